"""What makes an experiment of a function: a name, up to three sizes, and a place where a run may work."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from pdebook.ledger.record import Result, Scale
from pdelab.training import group


def choose_scale(scale: str | None = None) -> Scale:
    """The argument, else the environment's PDELAB_SCALE, else book."""
    name = scale or os.environ.get("PDELAB_SCALE") or Scale.BOOK
    if name not in list(Scale):
        raise ValueError(f"scale (or the environment's PDELAB_SCALE) must be one of {', '.join(Scale)}; not {name!r}")
    return Scale(name)


@dataclass(frozen=True)
class Workplace:
    """How a run is done, as opposed to what. Device and threads may change a figure by rounding, and are recorded.

    folder: where checkpoints are kept until the Result is recorded; None: nowhere.
    progress: the line of the terminal for a progress bar, from 1; 0: no bar.
    steps: cut every training to this many steps; None: as the scale has it. A Result says what was cut.
    threads: of torch, NumPy and SciPy on a CPU. One is fastest for models as small as the book's, and far faster on a
    busy machine.
    """

    device: str = "cpu"
    folder: Path | None = None
    progress: int = 0
    threads: int = 1
    steps: int | None = None

    def inside(self, name: str) -> Path | None:
        """The folder for the checkpoint of one training of this run."""
        return None if self.folder is None else self.folder / name


HERE = Workplace()


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads for torch, and for the linear algebra of NumPy and SciPy: theirs would wait for busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


Run = Callable[[Scale, int, Workplace], Result]


def experiment(name: str, *scales: Scale, cuts: bool = False) -> Callable[[Run], Run]:
    """Make of a function run(scale, seed, work) the experiment `name`, which has these scales and refuses others.

    An exact computation has no larger form: one scale is enough for it.
    cuts: it heeds `work.steps`; an experiment that does not refuses them.
    The Result's `seconds` are those of this call: a run that was stopped and went on took longer in all.
    """

    def of(run: Run) -> Run:
        @wraps(run)
        def sized(scale: Scale | str, seed: int, work: Workplace = HERE) -> Result:
            if scale not in scales:
                raise ValueError(f"scale must be {' or '.join(scales)}, the sizes this experiment has; not {scale!r}")
            if work.steps is not None and not cuts:
                raise ValueError("steps cuts the training of an experiment that has one; this has none that can be cut")
            started = time.perf_counter()
            with torch_threads(work.threads):
                result = run(Scale(scale), seed, work)
            where = {"device": work.device, "threads": str(work.threads)}
            if group()[1] > 1:
                where["processes"] = str(group()[1])
            seconds = round(time.perf_counter() - started, 3)
            return replace(result, environment=result.environment | where, seconds=seconds)

        sized.name, sized.scales, sized.cuts = name, scales, cuts
        return sized

    return of
