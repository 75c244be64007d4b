"""Every comparison, ours beside a peer's, in one table of ratios.

    python benchmarks/run.py [NAME …] [--device cuda] [--quick] [--page]

NAME: a file here, transformer for one; all of them unless given. --quick: sizes that show that it works, not how fast.
--page writes book/speed.md. All of it takes about half an hour on one thread of a quiet machine.
"""

import argparse
import importlib
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from harness import NotInstalled, Row

HERE = Path(__file__).parent
ROOT = HERE.parent
CPUINFO = Path("/proc/cpuinfo")  # of Linux alone
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("harness", "run"))
HEAD = "work | beside | ratio (least to most) | target | note".split(" | ")
PAGE = """# Speed

How long the library takes for work that others do too, and how much memory, on {date:%d %B %Y}. `make bench`
measures it again.

A ratio is ours over the peer's: under 1 we are faster. Of a rate or a share, more is better. Beside a limit, such as
1e-12 or 100 MB, it is ours over the limit; beside the clock or the system it is a number of seconds or GB, as the row
says. Both sides do the same work in the same precision, and the run stops where their results differ. They take turns;
the ratio is the median of pairs, and in brackets stand the least and the largest. {missed}

{table}

{machine}

## Where the time of the tests goes

{notebooks}
"""


def measured(names: list[str], device: str, quick: bool) -> list[Row]:
    """The rows of every name, each in a process of its own: what one leaves in memory slows none of the others."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
        return [row for rows in alone.map(partial(rows_of, device=device, quick=quick), names) for row in rows]


def rows_of(name: str, device: str, quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    try:
        for row in importlib.import_module(name).rows(device, quick):
            print(f"{name}: {line(row)}", flush=True)
            rows.append(row)
    except NotInstalled as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
    return rows


def line(row: Row) -> str:
    verdict = {None: "", True: ", met", False: ", missed"}[row.met]
    cells = (
        row.work,
        row.peer,
        short(row.ratio) + (f" ({short(row.low)} to {short(row.high)})" if row.low < row.high else ""),
        row.target + verdict,
        row.note,
    )
    return "| " + " | ".join(cells) + " |"


def short(x: float) -> str:
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def machine(device: str) -> str:
    """What it was measured on, in words."""
    if torch.device(device).type == "cuda":
        return f"Measured on {torch.cuda.get_device_name()} with torch {torch.__version__}."
    words = re.findall(r"model name\s*: (.*)", CPUINFO.read_text()) if CPUINFO.exists() else []
    kind = words[0].strip() if words else "unknown kind"
    version = torch.__version__.split("+")[0]
    return (
        f"Measured on one thread of a machine with {os.cpu_count()} cores ({kind}), torch {version}, "
        "each kind of work in a process of its own; other work may have run beside it. Times are of the processor; "
        "imports and seconds are by the clock."
    )


def page(rows: list[Row], device: str) -> str:
    decided = [row for row in rows if row.met is not None]
    missed = [row for row in decided if not row.met]
    words = "Every target is met." if not missed else f"Of {len(decided)} targets {len(missed)} are missed."
    table = "\n".join(["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD), *map(line, rows)])
    return PAGE.format(date=date.today(), missed=words, table=table, machine=machine(device), notebooks=notebooks())


def notebooks() -> str:
    """From book/sizes.md: the sum of the seconds that each notebook took, and the longest."""
    text = (ROOT / "book" / "sizes.md").read_text(encoding="utf-8")
    seconds = {name: int(s) for name, s in re.findall(r"^\| \[(\S+)\]\(.*\| (\d+) \| \d* \|$", text, re.MULTILINE)}
    longest = sorted(seconds, key=seconds.get, reverse=True)[:3]
    named = ", ".join(f"{name} {seconds[name]} s" for name in longest)
    minutes = sum(seconds.values()) / 60
    return (
        f"The {len(seconds)} notebooks took {minutes:.0f} minutes one after another when they last ran "
        f"([Sizes](sizes.md)): {named} are the longest."
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--quick", action="store_true")
    options.add_argument("--page", action="store_true", help="write book/speed.md")
    chosen = options.parse_args()
    if unknown := [name for name in chosen.names if name not in NAMES]:
        options.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        options.error("torch finds no GPU here: leave out --device cuda")

    rows = measured(chosen.names or NAMES, chosen.device, chosen.quick)
    print("\n".join(["", *map(line, rows)]))
    if chosen.page:
        (ROOT / "book" / "speed.md").write_text(page(rows, chosen.device), encoding="utf-8")
        print("Written to book/speed.md.")


if __name__ == "__main__":
    main()
