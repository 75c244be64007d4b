"""Find an experiment by name and run it: what is recorded is not run again, and what was begun goes on."""

import multiprocessing
import os
import shutil
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from tqdm.auto import tqdm

from pdelab.datasets import cache
from pdelab.experiments.scales import Run, Scale, Workplace
from pdelab.experiments.tasks import Interrupted
from pdelab.results import DamagedResult, Result, Store
from pdelab.training import choose_device, patience

# name -> module and function
RUNS = {
    "heat_ends": ("heat_ends", "run"),
    "start_tokens": ("start_tokens", "run"),
    "continuum": ("continuum", "run"),
    "attack_continuum": ("attack_continuum", "run"),
    "attack_existence": ("attack_existence", "run"),
    "budgets": ("budgets", "run"),
    "dial": ("dial", "run"),
    "dial_size": ("dial", "run_size"),
    "attack_master": ("attack_master", "run"),
    "collapse": ("clustering", "run"),
    "attack_interaction": ("attack_interaction", "run"),
    "position_kernel": ("position_kernel", "run"),
    "diffusivity": ("diffusivity", "run"),
    "attack_diffusion": ("attack_diffusion", "run"),
    "normalization": ("normalization", "run"),
    "attack_layernorm": ("attack_layernorm", "run"),
    "reactions": ("reactions", "run"),
    "reactions_trained": ("reactions", "trained"),
    "attack_reaction": ("attack_reaction", "run"),
    "residual_laws": ("residual_laws", "run"),
    "attack_residual": ("attack_residual", "run"),
    "attack_stability": ("attack_stability", "run"),
    "attack_scheme": ("attack_scheme", "run"),
    "attack_error": ("attack_scheme", "run_error"),
    "attack_coupled": ("attack_coupled", "run"),
    "algorithm1": ("algorithm1", "run"),
    "bottleneck": ("bottleneck", "run"),
    "attack_information": ("attack_information", "run"),
    "estimators": ("estimators", "run"),
    "corners-images": ("corners", "images"),
    "corners-listops": ("corners", "listops"),
    "corner_settings": ("corners", "settings"),
    "information_training": ("information_training", "run"),
    "information_layers": ("information_layers", "run"),
    "reference-images": ("reference", "images"),
    "reference-listops": ("reference", "listops"),
    "reference-rows": ("reference", "rows"),
    "reference-text": ("reference", "text"),
    "tables": ("tables", "run"),
    "embedding_scale": ("embedding_scale", "run"),
}


def find(name: str) -> Run:
    """The function run(scale, seed, work) of an experiment; its `scales` are the sizes it has."""
    if name not in RUNS:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(RUNS)}")
    module, function = RUNS[name]
    return getattr(import_module(f"pdelab.experiments.{module}"), function)


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

    steps: cut every training to so many; refused by an experiment whose training cannot be cut.
    """
    for name in names:
        if scale not in find(name).scales:
            raise ValueError(f"{name} has no scale {scale}, only {' and '.join(find(name).scales)}")
        if steps is not None and not find(name).cuts:
            raise ValueError(f"{name} has no training that can be cut to {steps} steps; leave out --steps")
    wanted = [Job(name, scale, seed, steps) for name in names for seed in seeds]
    return [job for job in wanted if again or not any(_recorded(job, store) for store in stores)]


def _recorded(job: Job, store: Store) -> bool:
    path = store.path(job.name, job.scale, job.seed)
    try:
        return path.exists() and store.read(path).status != "interrupted"
    except DamagedResult:
        return False


@dataclass(frozen=True)
class Stopped:
    """A run that was interrupted; the same job goes on from its checkpoints."""

    where: str


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
    interruption the runs in progress keep their checkpoints and no new one is begun. A run that fails does not stop the
    others.
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


def _begin(lines: "multiprocessing.Queue[int]", lock) -> None:
    """A worker: a line of its own, and between two jobs it leaves Ctrl-C to the parent."""
    global _line
    _line = lines.get()
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
    """As many jobs in the pool as there are workers, and no more: a job that waits there could not be called back."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    lines, lock = context.Queue(), context.RLock()  # bars of several processes take turns
    for line in range(workers):
        lines.put(line + 2)  # line 1 counts the jobs
    tqdm.set_lock(lock)
    waiting, running = deque(todo), {}
    pool = ProcessPoolExecutor(workers, context, _begin, (lines, lock))
    with patience() as asked, tqdm(total=len(todo), desc="runs", disable=not progress) as bar:
        try:
            told = False
            while running or (waiting and not asked):
                while waiting and not asked and len(running) < workers:
                    with _deaf():
                        future = pool.submit(_work, waiting[0], device, progress, threads)
                    running[future] = waiting.popleft()
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                if asked and not told:
                    _tell(pool)
                    told = True
                for future in finished:
                    job = running.pop(future)
                    bar.update()
                    yield job, future.exception() or future.result()
        finally:
            if running:
                _tell(pool)
            pool.shutdown()


@contextmanager
def _deaf() -> Iterator[None]:
    """A process started here ignores Ctrl-C until it is ready to note it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(pool: ProcessPoolExecutor) -> None:
    """Stop after the current step. A terminal tells every process itself, kill -INT the parent alone."""
    for process in list((pool._processes or {}).values()):
        os.kill(process.pid, signal.SIGINT)
