"""Run recorded experiments again and compare with the record: does the code still give the numbers of the book?

python tools/replay.py                       seed 0 of every experiment that took a minute at most
python tools/replay.py 'attack_*' dial       these, however long they take
python tools/replay.py --seconds 1000        all that took at most so long
python tools/replay.py --jobs 2              side by side
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase

from pdebook.evidence.run import find
from pdebook.ledger.record import Figures, Result, Store
from pdebook.ledger.sources import experiments

RELATIVE = 1e-5  # of a number: a training in single precision rounds otherwise on another machine
FLOOR = 1e-12  # of the largest of a list: below it a collapsed state is rounding
RATIO = 0.01  # of the worst score that an attack found: ascent follows the rounding of the machine


def recorded(seed: int = 0, scale: str = "book") -> dict[str, Result]:
    """The record of one seed, by experiment, quickest first; claims' tests have no experiment to run again."""
    found = [r for name in experiments() for r in Store().load(name, scale) if r.seed == seed]
    return {r.experiment: r for r in sorted(found, key=lambda r: r.seconds)}


def differences(before: Result, after: Result) -> list[str]:
    """Every figure and control that is not what was recorded, in words; empty where the run gave the same."""
    found = []
    for table in ("figures", "controls"):
        found += _compared(getattr(before, table), getattr(after, table))
    if before.diverged != after.diverged:
        found.append(f"diverged: {before.diverged} was recorded, now {after.diverged}")
    return found


def _compared(before: Figures, after: Figures) -> Iterator[str]:
    for name in sorted(before.keys() ^ after.keys()):
        yield f"{name} is {'missing' if name in before else 'new'}"

    for name in before.keys() & after.keys():
        old, new = (value if isinstance(value, list) else [value] for value in (before[name], after[name]))
        largest = max((abs(value) for value in old if math.isfinite(value)), default=0.0)
        if len(old) != len(new) or not all(_same(name, *pair, largest) for pair in zip(old, new, strict=True)):
            yield f"{name}: {before[name]} was recorded, now {after[name]}"


def _same(name: str, old: float, new: float, largest: float) -> bool:
    if "/broken/" in name:  # how many starts broke a false neighbour when the first did: that one did, is what counts
        return (old > 0) == (new > 0)
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    allowed = RATIO if name.endswith("/worst") else RELATIVE
    return old == new or abs(old - new) <= allowed * max(abs(old), abs(new)) + FLOOR * largest


def replay(before: Result) -> tuple[list[str], float]:
    """The differences of a run made again, and its seconds."""
    started = time.perf_counter()
    after = find(before.experiment)(before.scale, before.seed)
    return differences(before, after), time.perf_counter() - started


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run recorded experiments again and compare with the record.")
    parser.add_argument("names", nargs="*", help="experiments, * and ? allowed; without any: by --seconds")
    parser.add_argument("--seconds", type=float, default=60, help="leave out what took longer (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", default="book")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args(words)

    known = recorded(asked.seed, asked.scale)
    if asked.names:
        chosen = [r for name, r in known.items() if any(fnmatchcase(name, pattern) for pattern in asked.names)]
    else:
        chosen = [r for r in known.values() if r.seconds <= asked.seconds]
    if not chosen:
        print(f"Nothing recorded fits {asked.names}; recorded are {', '.join(known)}", file=sys.stderr)
        return 2

    differing = 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        for before, (found, seconds) in zip(chosen, pool.map(replay, chosen), strict=True):
            numbers = len(before.figures) + len(before.controls)
            verdict = f"{len(found)} of {numbers} figures differ" if found else f"{numbers} figures as recorded"
            print(f"{before.experiment}: {verdict} ({seconds:.0f} s, recorded {before.seconds:.0f} s)", flush=True)
            for line in found[:5]:
                print(f"    {line[:200]}")
            differing += bool(found)
    print(f"{len(chosen) - differing} of {len(chosen)} experiments as recorded.")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
