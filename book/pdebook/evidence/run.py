"""Find an experiment by name and run it: what is recorded is not run again, and what was begun goes on."""

import math
import multiprocessing
import os
import shutil
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from tqdm.auto import tqdm

from pdebook.evidence.experiment import Run, Workplace
from pdebook.evidence.trained import Interrupted
from pdebook.ledger.record import DamagedResult, Result, Scale, Store
from pdebook.ledger.sources import experiments
from pdelab.datasets import cache
from pdelab.training import choose_device, patience


def find(name: str) -> Run:
    """The function run(scale, seed, work) of an experiment; its `scales` are the sizes it has."""
    known = experiments()
    if name not in known:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(known)}")
    return getattr(import_module(known[name].module), known[name].function)


@dataclass(frozen=True)
class Job:
    """One Result to be made."""

    name: str
    scale: Scale
    seed: int
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.name}, {self.scale}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where its checkpoints wait until the Result is recorded."""
        cut = "" if self.steps is None else f"-{self.steps}steps"
        return cache.folder() / "runs" / self.name / f"{self.scale}-seed{self.seed}{cut}"


def jobs(
    names: Sequence[str],
    scale: Scale,
    seeds: Sequence[int],
    stores: Sequence[Store],
    again: bool = False,
    steps: int | None = None,
) -> list[Job]:
    """What is in none of the stores, or damaged there; with `again` everything. Other scales are refused.

    steps: cut every training to so many; refused by an experiment whose training cannot be cut. The first store is
    where the Results go: a full training may replace a cut one there, a shorter one none that is longer.
    """
    for name in names:
        if scale not in find(name).scales:
            raise ValueError(f"{name} has no scale {scale}, only {' and '.join(find(name).scales)}")
        if steps is not None and not find(name).cuts:
            able = ", ".join(one for one in experiments() if find(one).cuts)
            raise ValueError(f"{name} cannot be cut to {steps} steps; --steps works for {able}")
    wanted = [Job(name, scale, seed, steps) for name in names for seed in seeds]
    todo = [job for job in wanted if again or not any(_recorded(job, store) for store in stores)]
    for job in todo:
        _keep_longer(job, stores[0])
    return todo


def _there(job: Job, store: Store) -> Result | None:
    """What the store has in the job's place, if it is whole."""
    path = store.path(job.name, job.scale, job.seed)
    try:
        return store.read(path) if path.exists() else None
    except DamagedResult:
        return None


def _steps(found: Result) -> float:
    return found.configuration.get("settings", {}).get("steps", math.inf)


def _recorded(job: Job, store: Store) -> bool:
    """Whether the store has this job's Result, its training neither shorter nor longer."""
    found = _there(job, store)
    if found is None:
        return False
    if "cut" in found.configuration:
        return _steps(found) == job.steps
    return job.steps is None or _steps(found) <= job.steps  # so many steps cut nothing


def _keep_longer(job: Job, store: Store) -> None:
    found = _there(job, store)
    if found is not None and job.steps is not None and _steps(found) > job.steps:
        raise ValueError(
            f"{store.path(job.name, job.scale, job.seed)} holds a training of more than {job.steps} steps, which a "
            "shorter one must not replace; name another folder with --store"
        )


@dataclass(frozen=True)
class Stopped:
    """A run that was interrupted; the same job goes on from its checkpoints."""

    where: str


class Killed(RuntimeError):
    """The process of a run is gone; what it had kept stays."""


Outcome = Result | Stopped | Exception


def do(job: Job, device: str = "cpu", progress: int = 0, threads: int = 1) -> Result | Stopped:
    """The Result, recorded nowhere yet, or where the run was stopped."""
    work = Workplace(str(choose_device(device)), job.folder, progress, threads, job.steps)
    try:
        return find(job.name)(job.scale, job.seed, work)
    except Interrupted as stop:
        return Stopped(str(stop))
    except KeyboardInterrupt:
        kept = any(job.folder.rglob("checkpoint.pt"))
        return Stopped("stopped between two trainings; those done are kept" if kept else "stopped; nothing was to keep")


def do_all(
    todo: Sequence[Job],
    store: Store,
    *,
    device: str = "cpu",
    workers: int = 1,
    progress: bool = True,
    threads: int = 1,
) -> Iterator[tuple[Job, Outcome]]:
    """Run the jobs, record each Result as it comes, and give (job, Result), or why there is none.

    Two runs of one thread side by side are faster than one after the other on two (benchmarks/training.py). After an
    interruption the runs in progress keep their checkpoints and no new one is begun. A run that fails, or whose process
    is killed, does not stop the others.
    """
    done = _one_by_one if workers == 1 else partial(_side_by_side, workers=workers)
    for job, found in done(todo, device=device, progress=progress, threads=threads):
        if isinstance(found, Result):
            store.save(found)
            shutil.rmtree(job.folder, ignore_errors=True)
        yield job, found


def _one_by_one(todo: Sequence[Job], device: str, progress: bool, threads: int) -> Iterator[tuple[Job, Outcome]]:
    for job in todo:
        try:
            found = do(job, device, int(progress), threads)
        except Exception as fault:
            found = fault
        yield job, found
        if isinstance(found, Stopped):
            return


_line = 1  # of the terminal, for the bar of this worker


def _begin(line: int, lock) -> None:
    """A worker: a line of its own, and between two jobs it leaves Ctrl-C to the parent."""
    global _line
    _line = line
    tqdm.set_lock(lock)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(job: Job, device: str, progress: bool, threads: int) -> Result | Stopped:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return do(job, device, _line if progress else 0, threads)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _side_by_side(
    todo: Sequence[Job], device: str, progress: bool, threads: int, workers: int
) -> Iterator[tuple[Job, Outcome]]:
    """Every worker is a pool of its own with one job at a time.

    A job that waits in a pool could not be called back, and a process that is killed breaks its whole pool.
    """
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    lock = context.RLock()  # bars of several processes take turns
    tqdm.set_lock(lock)

    def worker(line: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, context, _begin, (line, lock))

    pools = {line: worker(line) for line in range(2, workers + 2)}  # line 1 counts the jobs
    free, waiting, running = deque(pools), deque(todo), {}
    with patience() as asked, tqdm(total=len(todo), desc="runs", disable=not progress) as bar:
        try:
            told = False
            while running or (waiting and not asked):
                while waiting and not asked and free:
                    line, job = free.popleft(), waiting.popleft()
                    if pools[line]._broken:
                        pools[line] = worker(line)
                    with _deaf():
                        future = pools[line].submit(_work, job, device, progress, threads)
                    running[future] = line, job
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                if asked and not told:
                    _tell(pools.values())
                    told = True
                for future in finished:
                    line, job = running.pop(future)
                    free.append(line)
                    bar.update()
                    yield job, _outcome(future)
        finally:
            if running:
                _tell(pools.values())
            for pool in pools.values():
                pool.shutdown()


def _outcome(future: Future) -> Outcome:
    fault = future.exception()
    if isinstance(fault, BrokenProcessPool):
        return Killed("its process was killed, perhaps for lack of memory; --jobs 1 needs less")
    return fault or future.result()


@contextmanager
def _deaf() -> Iterator[None]:
    """A process started here ignores Ctrl-C until it is ready to note it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(pools: Iterable[ProcessPoolExecutor]) -> None:
    """Stop after the current step. A terminal tells every process itself, kill -INT the parent alone."""
    for process in [process for pool in pools for process in (pool._processes or {}).values()]:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
