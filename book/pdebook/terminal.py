"""What the commands share: troubles told in a sentence, tables, seeds, patterns of names, folders of results."""

import csv
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

import click
from platformdirs import user_data_path

from pdebook.ledger.record import DamagedResult, Store, data_folder
from pdebook.ledger.sources import experiments
from pdelab.datasets import cache

DAMAGED, MISSING, STOPPED = 1, 3, 130  # exit codes
MOST_SEEDS = 10_000  # a slip of the hand, such as a year, must not fill the memory with jobs
EXPECTED = (DamagedResult, cache.DataDamaged, OSError)


class Group(click.Group):
    """Commands whose expected troubles end in a sentence and an exit code, not in a traceback."""

    def invoke(self, ctx: click.Context):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("stopped; what is recorded stays, and the same command goes on", STOPPED)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough: click ends quietly
            raise
        except cache.DataMissing as error:
            fail(str(error), MISSING)
        except EXPECTED as error:
            fail(str(error), DAMAGED)


def fail(words: str, code: int):
    click.echo(f"pdelab: {words}", err=True)
    sys.exit(code)


def own_folder() -> Path:
    """PDELAB_RESULTS; else work/results in a checkout, which git ignores; else a folder for data of the user.

    The book's own record, data/results, is read beside it, and written by `make record` or where it is named.
    """
    if named := os.environ.get("PDELAB_RESULTS"):
        return Path(named).expanduser()
    checkout = data_folder().parent
    return (
        checkout / "work" / "results"
        if (checkout / "pyproject.toml").exists()
        else user_data_path("pdelab") / "results"
    )


def stores(folder: Path | None) -> dict[str, Store]:
    """The folder that was named, or yours and the book's."""
    return {"named": Store(folder)} if folder else {"yours": Store(own_folder()), "the book's": Store()}


def table(rows: Sequence[Sequence[object]], header: Sequence[str], as_csv: bool = False, cut: bool = False) -> None:
    """Columns, or comma-separated values. cut: lines end with … where a terminal does."""
    if as_csv:
        csv.writer(sys.stdout).writerows([header, *rows])
        return
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)] + [0]  # the last column is free
    room = shutil.get_terminal_size().columns if cut and sys.stdout.isatty() else sys.maxsize
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if len(line) <= room else f"{line[: room - 1]}…")


class Seeds(click.ParamType):
    """5 stands for the seeds 0 to 4; 0,3,7 for these three, and 7, for seed 7 alone."""

    name = "N or LIST"

    def convert(self, value, param, ctx) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            parts = [int(part) for part in str(value).removesuffix(",").split(",")]
        except ValueError:
            self.fail(f"{value!r} is neither a number of seeds, such as 5, nor a list of seeds, such as 0,3,7")
        several = "," in str(value)
        if max(parts) >= 2**63 or min(parts) < (0 if several else 1) or (not several and parts[0] > MOST_SEEDS):
            self.fail(f"{value!r} must be a number of seeds, 1 to {MOST_SEEDS}, or a list of seeds from 0")
        seeds = parts if several else range(parts[0])
        return list(dict.fromkeys(seeds))


def matching(names: Iterable[str]) -> list[str]:
    """The experiments that the names or patterns stand for: corners-* is all of them that begin so."""
    found: dict[str, None] = {}
    for name in names:
        fitting = [known for known in experiments() if fnmatchcase(known, name)]
        if not fitting:
            near = " or ".join(get_close_matches(name, experiments()))
            hint = (
                f"did you mean {near}? pdelab run lists them all" if near else f"there are {', '.join(experiments())}"
            )
            raise click.BadParameter(f"no experiment is called {name!r}; {hint}", param_hint="NAME")
        found |= dict.fromkeys(fitting)
    return list(found)
