"""Find an experiment by name and run it: what is recorded is not run again, and what was begun goes on."""

import math
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tqdm.auto import tqdm

from pdebook.evidence.experiment import Run, Workplace
from pdebook.evidence.trained import Interrupted
from pdebook.ledger.record import DamagedResult, Result, Scale, Store
from pdebook.ledger.sources import experiments
from pdelab.checkpoints import UnusableFolder, alone_in
from pdelab.datasets import cache
from pdelab.training import choose_device, group, patience


def folder() -> Path:
    """Where the checkpoints of all runs wait."""
    return cache.folder() / "runs"


def find(name: str) -> Run:
    """The function run(scale, seed, work) of an experiment; its `scales` are those it has."""
    known = experiments()
    if name not in known:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(known)}")
    return getattr(import_module(known[name].module), known[name].function)


@dataclass(frozen=True)
class Job:
    """One Result to be made. again: though it is recorded; a worker that sees another disk then begins anew."""

    name: str
    scale: Scale
    seed: int
    steps: int | None = None
    again: bool = False

    def __str__(self) -> str:
        return f"{self.name}, {self.scale}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where its checkpoints wait until the Result is recorded."""
        cut = "" if self.steps is None else f"-{self.steps}steps"
        return folder() / self.name / f"{self.scale}-seed{self.seed}{cut}"

    def clear(self) -> None:
        """Delete what it kept, unless another run is at it."""
        with suppress(UnusableFolder), ExitStack() as held:
            for lock in [*self.folder.rglob(".lock")]:
                held.enter_context(alone_in(lock.parent))
            for training in self.folder.glob("*"):  # no file: what says that all were done goes last
                shutil.rmtree(training, ignore_errors=True)
            shutil.rmtree(self.folder, ignore_errors=True)


def jobs(
    names: Sequence[str],
    scale: Scale,
    seeds: Sequence[int],
    stores: Sequence[Store],
    again: bool = False,
    steps: int | None = None,
) -> list[Job]:
    """The jobs that are to be done: one per experiment and seed, without those whose Result a store has.

    A Result that is damaged counts as missing. again: do all of them, recorded or not.
    steps: cut every training to this many; refused by an experiment whose training cannot be cut.
    The first store is where the Results will go. A full training may replace a cut one there; a shorter training that
    would replace a longer one is refused.
    """
    for name in names:
        if scale not in find(name).scales:
            raise ValueError(f"{name} has no scale {scale}, only {' and '.join(find(name).scales)}")
        if steps is not None and not find(name).cuts:
            able = ", ".join(one for one in experiments() if find(one).cuts)
            raise ValueError(f"{name} cannot be cut to {steps} steps; --steps works for {able}")
    wanted = [Job(name, scale, seed, steps, again) for name in names for seed in seeds]
    todo = [job for job in wanted if again or not any(_recorded(job, store) for store in stores)]
    for job in todo:
        _keep_longer(job, stores[0])
    return todo


def _there(job: Job, store: Store) -> Result | None:
    """The Result that the store has of this experiment, scale and seed; None if it has none, or a damaged one."""
    path = store.path(job.name, job.scale, job.seed)
    try:
        return store.read(path) if path.exists() else None
    except DamagedResult:
        return None


def _steps(found: Result) -> float:
    """How long the training was; what trains nothing is longer than any."""
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
    """Refuse a job that would replace a longer training."""
    found = _there(job, store)
    if found is not None and job.steps is not None and _steps(found) > job.steps:
        raise ValueError(
            f"{store.path(job.name, job.scale, job.seed)} holds a training of more than {job.steps} steps, which a "
            "shorter one must not replace; name another folder with --store"
        )


@dataclass(frozen=True)
class Stopped:
    """A run that was interrupted, and where; the same job goes on from its checkpoints."""

    where: str


class Killed(RuntimeError):
    """The process of a run is gone; its checkpoints stay."""


class Gone(Killed):
    """Who handed out the runs is gone: one reason for all that are left."""


Outcome = Result | Stopped | Exception


def do(job: Job, device: str = "cpu", progress: int = 0, threads: int = 1) -> Result | Stopped:
    """Do one job: its Result, recorded nowhere yet, or where it was stopped."""
    try:
        work = Workplace(str(choose_device(device)), job.folder, progress, threads, job.steps)
        return find(job.name)(job.scale, job.seed, work)
    except Interrupted as stop:
        return Stopped(str(stop))
    except KeyboardInterrupt:
        kept = any(job.folder.rglob("checkpoint.pt"))
        return Stopped("stopped between two trainings; those done are kept" if kept else "stopped; nothing was to keep")


def do_all(
    todo: Sequence[Job],
    store: Store | None,
    *,
    device: str = "cpu",
    workers: int = 1,
    progress: bool = True,
    threads: int = 1,
    elsewhere: Callable[..., Iterator[tuple[Job, Outcome]]] | None = None,
) -> Iterator[tuple[Job, Outcome]]:
    """Run the jobs, record each Result as it comes, and give (job, Result), or why there is none.

    store: None records nothing: of several processes that train together all do the same jobs, and the first records.
    elsewhere: does the jobs in place of processes of this machine.

    Two runs of one thread side by side are faster than one after the other on two. After an interruption,
    Ctrl-C or SIGTERM, the runs in progress keep their checkpoints and no new one is begun. A run that fails, whose
    process is killed or whose Result cannot be saved, keeps them too, and does not stop the others.
    """
    done = elsewhere or (_one_by_one if workers == 1 else partial(_side_by_side, workers=workers))
    with _terminated_as_interrupted():
        for job, found in done(todo, device=device, progress=progress, threads=threads):
            if isinstance(found, Result) and store is not None:
                try:
                    store.save(found)
                    job.clear()
                except Exception as fault:
                    found = fault
            elif isinstance(found, UnusableFolder) and store is not None and not job.again and _recorded(job, store):
                found = _there(job, store)  # by the command that was using the folder
            yield job, found


def _one_by_one(todo: Sequence[Job], device: str, progress: bool, threads: int) -> Iterator[tuple[Job, Outcome]]:
    for job in todo:
        try:
            found = do(job, device, int(progress), threads)
        except Exception as fault:
            found = fault
        yield job, found
        # the others of a group wait for this process, and are ended when it ends
        if isinstance(found, Stopped) or (isinstance(found, Exception) and group()[1] > 1):
            return


class _Worker:
    """A process that does one job after the other; if it was killed, the next job begins a new one."""

    def __init__(self, line: int, lock, stop):
        self.line, self.lock = line, lock  # of the terminal, for its progress bar; of all bars, which take turns
        self.stop = stop  # an event: all are to stop
        self.process: BaseProcess | None = None

    def give(self, job: Job, work: Callable[..., Result | Stopped]) -> None:
        """Begin work(job, line)."""
        self.job = job
        if self.process is None or not self.process.is_alive():
            context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
            self.pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self.lock, self.stop))
            with _deaf():
                process.start()
            self.process = process
            theirs.close()  # so that the pipe ends with the process
        self.pipe.send(partial(work, job, self.line))

    def outcome(self) -> Outcome:
        """What came of the job, once the pipe has something to read."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()  # it is on its way out
            return Killed("its process was killed, perhaps for lack of memory; --jobs 1 needs less")

    def tell(self) -> None:
        """Stop after the current step. A terminal tells every process itself, kill -INT the parent alone."""
        self.stop.set()  # for one that is not yet listening
        if self.process is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        """Wait for the process, which ends when it has no job and the pipe is closed."""
        if self.process is not None:
            self.pipe.close()
            self.process.join()


def _serve(pipe: Connection, lock, stop) -> None:
    """In a worker: do what comes through the pipe until it is closed. Between jobs signals are left to the parent."""
    tqdm.set_lock(lock)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with _deaf(), suppress(EOFError, OSError):  # the pipe is closed
        while True:
            work = pipe.recv()
            try:
                found = work(stop=stop)
            except Exception as fault:
                fault.add_note("".join(traceback.format_exception(fault)))  # its traceback stays behind
                found = fault
            pipe.send(found)


def _end_with_parent() -> None:
    """A worker whose parent was killed records nothing any more, and must not keep its folder from the next command."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


@contextmanager
def _handled(handlers: dict) -> Iterator[None]:
    """Signals handled so for a while; only a main thread can arrange that, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)  # None: not set by Python


def _terminated_as_interrupted():
    """SIGTERM, by which a cluster ends a job, does what Ctrl-C would, also where a shell lets Ctrl-C be ignored."""
    handlers = {signal.SIGTERM: lambda number, frame: signal.raise_signal(signal.SIGINT)}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background of a script
        handlers[signal.SIGINT] = signal.default_int_handler
    return _handled(handlers)


def _work(job: Job, line: int, device: str, progress: bool, threads: int, stop) -> Result | Stopped:
    """In a worker: one job, which Ctrl-C or SIGTERM stops, also if it came before this began to listen."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _terminated_as_interrupted():
            if stop.is_set():
                raise KeyboardInterrupt
            return do(job, device, line if progress else 0, threads)
    except KeyboardInterrupt:
        return Stopped("stopped before it began")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _side_by_side(
    todo: Sequence[Job], device: str, progress: bool, threads: int, workers: int
) -> Iterator[tuple[Job, Outcome]]:
    """Each worker has one job at a time: no job waits where it could not be called back."""
    context = multiprocessing.get_context("spawn")
    lock, stop = context.RLock(), context.Event()
    tqdm.set_lock(lock)
    work = partial(_work, device=device, progress=progress, threads=threads)
    free = deque(_Worker(line, lock, stop) for line in range(2, workers + 2))  # line 1 counts the jobs
    waiting, running, told = deque(todo), [], False

    with patience() as asked, tqdm(total=len(todo), desc="runs", disable=not progress) as bar:
        try:
            while running or (waiting and not asked):
                while waiting and not asked and free:
                    running.append(free.popleft())
                    running[-1].give(waiting.popleft(), work)

                ready = wait([worker.pipe for worker in running], timeout=0.2)
                if asked and not told:
                    told = True
                    for worker in running:
                        worker.tell()

                for worker in [worker for worker in running if worker.pipe in ready]:
                    running.remove(worker)
                    free.append(worker)
                    bar.update()
                    yield worker.job, worker.outcome()
        finally:
            for worker in running:
                worker.tell()
            for worker in (*running, *free):
                worker.end()


def _deaf():
    """A process started here ignores Ctrl-C and SIGTERM until it is ready to note them."""
    return _handled({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN})
