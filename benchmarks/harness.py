"""Two ways to do one piece of work, timed in turns: what every benchmark here is made of."""

import ctypes
import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

PROC = Path("/proc/self")


class NotInstalled(ImportError):
    """A peer is missing: its rows are left out, in one sentence."""


@dataclass(frozen=True)
class Row:
    """One line of the table: the ratio of ours to the peer's, or to a limit, with the least and the largest seen.

    Where the clock or the system stands in the peer's place, it is the number that they give, in the unit that `work`
    names. target: "≤ 0.9" or "≥ 30"; without one, or where nothing could be measured (NaN), the row informs.
    """

    work: str
    peer: str
    ratio: float
    low: float
    high: float
    target: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        if not self.target or math.isnan(self.ratio):
            return None
        limit = float(self.target[1:])
        return self.ratio <= limit if self.target[0] == "≤" else self.ratio >= limit


def peer(module: str) -> ModuleType:
    """The module of a peer; NotInstalled says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f'{module} is not installed: pip install ".[bench]" brings every peer ({error})') from error


def spread(work: str, peer: str, ratios: list[float], target: str = "", note: str = "") -> Row:
    return Row(work, peer, statistics.median(ratios), min(ratios), max(ratios), target, note)


def compare(
    work: str,
    peer: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    target: str = "",
    repeats: int = 7,
    device: str = "cpu",
    note: str = "",
    agree: float | None = None,
) -> Row:
    """Time of ours / time of theirs: the median of `repeats` pairs of neighbours in time, after one call of each.

    On a CPU it is the time that this process had the processor, of all its threads: what else runs costs neither side.

    agree: the first results of both, numbers or arrays, nested or not, must be equal to this error; else it is no
    comparison, and AssertionError says so.
    """
    first = ours(), theirs()
    if agree is not None:
        torch.testing.assert_close(*first, rtol=agree, atol=agree, check_dtype=False, check_device=False)
    del first

    sides = ours, theirs
    calls = [_calls(side, device) for side in sides]
    ratios = []
    for repeat in range(repeats):
        seconds = {}
        for i in (0, 1) if repeat % 2 else (1, 0):  # neither always follows the other
            seconds[i] = timed(sides[i], device, calls[i]) / calls[i]
        ratios.append(seconds[0] / seconds[1])
    return spread(work, peer, ratios, target, note)


def _calls(side: Callable[[], object], device: str) -> int:
    """How many calls take 50 ms."""
    return max(1, round(0.05 / max(timed(side, device), 1e-6)))


def timed(function: Callable[[], object], device: str = "cpu", calls: int = 1) -> float:
    """Seconds of so many calls: on a CPU, of the processor's time; on a GPU, until it has done its part too."""
    cuda = torch.device(device).type == "cuda"
    wait, clock = (torch.cuda.synchronize, time.perf_counter) if cuda else (lambda: None, time.process_time)
    gc.collect()
    wait()
    begun = clock()
    for _ in range(calls):
        function()
    wait()
    return clock() - begun


def peak_memory(function: Callable[[], object], device: str = "cpu") -> float:
    """Bytes that one call held at most beyond what was there before; NaN where the system does not say (Linux does).

    Call the function once before, so that what it loads and compiles is not counted.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before

    if not (PROC / "clear_refs").exists():
        return float("nan")
    ctypes.CDLL(None).malloc_trim(0)  # what was freed and is still held would be taken again, unseen
    (PROC / "clear_refs").write_text("5")  # from here on VmHWM is the largest size since now
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    line = next(line for line in (PROC / "status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
