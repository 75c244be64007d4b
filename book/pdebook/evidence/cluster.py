"""Run jobs on a Dask cluster: a worker makes a Result, and the command, on its own machine, records it."""

import logging
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from distributed import Client, Event, Future, KilledWorker, Security, as_completed, get_client, get_worker
from distributed.comm import parse_address, parse_host_port
from distributed.worker import thread_state
from tqdm.auto import tqdm

from pdebook.evidence.run import Gone, Job, Killed, Outcome, Stopped, do
from pdebook.ledger.record import Result
from pdelab import __version__
from pdelab.training import TOLD, patience

_SECONDS = 10  # for a scheduler to answer
_ALONE = threading.Lock()  # torch has one generator and one number of threads per process


@dataclass
class Cluster:
    """The workers of a Dask scheduler."""

    client: Client

    def __str__(self) -> str:
        return f"the cluster {self.client.scheduler.address}"

    def workers(self) -> int:
        """How many there are; one at least, for which the runs will wait."""
        number = len(self.client.nthreads())
        if not number:
            tqdm.write(f"no worker yet: dask worker {self.client.scheduler.address} --nthreads 1", file=sys.stderr)
        return max(1, number)

    def do(self, todo: Sequence[Job], device: str, progress: bool, threads: int) -> Iterator[tuple[Job, Outcome]]:
        """Each job is one task. That of a worker which died is given to another, and goes on from its checkpoint if
        both see the folder; a job that killed four workers is given up. After Ctrl-C the runs in progress keep their
        checkpoints and no new one is begun. Where the scheduler dies, what has arrived is recorded, the rest is Gone.
        """
        stop = Event(f"stop-{uuid.uuid4().hex}", client=self.client)
        submit = partial(self.client.submit, _there, pure=False)
        futures = {submit(job, device, threads, stop.name, __version__): job for job in todo}
        told = reported = False
        with patience() as asked, tqdm(total=len(todo), desc="runs", disable=not progress) as bar:
            arriving = as_completed(futures, loop=self.client.loop)
            while not arriving.is_empty():
                if asked and not told:
                    told = True
                    begun = self._stop(futures, stop)
                    words = f"waiting for {begun} runs to keep what they have; Ctrl-C again leaves them"
                    tqdm.write(words, file=sys.stderr)

                for future in arriving.next_batch(block=False):
                    bar.update()
                    if not (told and future.cancelled()):
                        found = _outcome(future)
                        reported = reported or isinstance(found, Stopped)
                        yield futures[future], found
                time.sleep(0.05)
        if told and not reported:
            raise KeyboardInterrupt

    def _stop(self, futures: Iterable[Future], stop: Event) -> int:
        """Workers keep what they are at, which then arrives, so many; what waits is taken back."""
        begun = set()
        with suppress(OSError):  # the scheduler is gone as well
            stop.set()
            begun = {key for keys in self.client.processing().values() for key in keys}
            self.client.cancel([future for future in futures if future.key not in begun])
        return len(begun.intersection(future.key for future in futures))


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster whose scheduler has this address."""
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what happens is said in our words
    try:
        _greeted(address)
        client = Client(address, set_as_default=False, timeout=_SECONDS)
    except (OSError, ValueError) as error:  # ValueError: a name that no machine can have
        words = f"no scheduler answers at --cluster {address}; `dask scheduler` starts one and prints its address"
        raise ConnectionError(words) from error
    with client:
        yield Cluster(client)


def place_of(address: str) -> tuple[str, int]:
    """Host and port; ValueError if this is no address of a scheduler that Dask could reach."""
    scheme, place = parse_address(address)
    if scheme == "tls" and Security().get_connection_args("client")["ssl_context"] is None:
        raise ValueError(f"--cluster {address} needs certificates, and Dask's configuration names none")
    try:
        host, port = parse_host_port(place)
    except ValueError:
        host, port = "", 0
    if scheme not in ("tcp", "tls") or not host or not 0 < port < 2**16:
        raise ValueError(f"--cluster {address!r} is no address of a scheduler, such as tcp://node:8786")
    return host, port


def _greeted(address: str) -> None:
    """Raises if there is no scheduler, for which Client would wait long: one speaks first, with what it can do."""
    with socket.create_connection(place_of(address), _SECONDS) as line:
        said = b""
        while parse_address(address)[0] == "tcp" and b"pickle-protocol" not in said:
            part = line.recv(4096)
            if not part or len(said) > 1 << 16:
                raise ConnectionError
            said += part


def _outcome(future: Future) -> Outcome:
    """What a worker gave back, or why it gave nothing."""
    if future.cancelled():
        return Gone("the scheduler is gone; start it and the workers, and the same command goes on with what is left")
    try:
        return future.result()
    except KilledWorker:
        return Killed("it killed several workers, perhaps for lack of memory")
    except ModuleNotFoundError as error:
        return Killed(f"a worker has no {error.name}; install pdelab {__version__} there")
    except Exception as fault:  # what a worker could not read or send
        return fault


def _there(job: Job, device: str, threads: int, stop: str, version: str) -> Outcome:
    """On a worker: one job at a time, however many threads it has."""
    if version != __version__:
        words = f"has pdelab {__version__}, and the command {version}; install the same and start the worker anew"
        return Killed(f"the worker {get_worker().address} {words}")
    with _ALONE, _listening(stop) as told:
        if told:
            return Stopped("stopped before it began")
        done = job.folder / "done"  # a worker's own disk keeps what the command has recorded
        if job.again and done.exists():
            job.clear()
        token = TOLD.set(told)
        try:
            outcome = do(job, device, 0, threads)
            if isinstance(outcome, Result):
                done.parent.mkdir(parents=True, exist_ok=True)
                done.touch()
            return outcome
        except Exception as fault:
            fault.add_note("".join(traceback.format_exception(fault)))  # its traceback stays behind
            return fault
        finally:
            TOLD.reset(token)


@contextmanager
def _listening(stop: str) -> Iterator[list]:
    """A list that holds something once the command asked to stop, or is gone, or the scheduler is."""
    event, done = Event(stop, client=get_client()), threading.Event()
    tasks, key = get_worker().state.tasks, thread_state.key
    told = [time.monotonic()] if event.is_set() else []

    def wanted() -> bool:
        task = tasks.get(key)
        return task is not None and task.state == "executing"

    def listen() -> None:
        with suppress(Exception):  # of whatever kind, where the scheduler is gone
            while not done.is_set() and wanted() and not event.wait(timeout=1):
                pass
        told.append(time.monotonic())

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield told
    finally:
        done.set()
