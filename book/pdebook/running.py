"""pdelab run, and what the doctor says of the machine: all that needs torch, which takes seconds to load."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import getdoc
from pathlib import Path

import click
import torch
from torch import distributed
from tqdm.auto import tqdm

from pdebook.evidence import run as runner
from pdebook.evidence.experiment import Scale, choose_scale
from pdebook.ledger.record import Result, Store
from pdebook.ledger.sources import experiments
from pdebook.terminal import DAMAGED, EXPECTED, MISSING, STOPPED, fail, matching, stores, table
from pdelab.checkpoints import RefusedCheckpoint, UnusableFolder
from pdelab.datasets import cache
from pdelab.files import check_writable
from pdelab.training import choose_device, group, of_first

FORESEEN = (*EXPECTED, RefusedCheckpoint, UnusableFolder, runner.Killed)


def list_experiments() -> None:
    known = {name: runner.find(name) for name in experiments()}
    rows = [(name, "/".join(one.scales), getdoc(one).split("\n")[0]) for name, one in known.items()]
    table(rows, ("experiment", "scales", "what it measures"))
    click.echo("Next: pdelab run NAME, or a pattern such as 'corners-*'")


def run(
    names: Sequence[str],
    scale: str | None,
    seeds: Sequence[int],
    device: str,
    jobs: int | None,
    threads: int,
    address: str | None,
    steps: int | None,
    again: bool,
    folder: Path | None,
    quiet: bool,
) -> None:
    """Run experiments and record their results; the arguments are the options of the command."""
    far = address is not None
    if jobs is not None and (far or _many()):
        other = "--cluster: it runs as many as it has workers" if far else "torchrun: its processes share one run"
        raise click.UsageError(f"--jobs makes no sense with {other}")
    if far and _many():
        raise click.UsageError("--cluster makes no sense with torchrun: start the one or the other")
    known = _cluster(address) if far else nullcontext()
    if far and not quiet:
        click.echo(f"connecting to {address}", err=True)

    with _together(), known as cluster:
        if group()[0] > 0:
            _along(str(_device(device)), threads)
        else:
            chosen = device if cluster else str(_device(device))  # each worker chooses for itself
            _lead(names, _size(scale), seeds, chosen, jobs, threads, cluster, steps, again, folder, quiet)


def _lead(names, scale, seeds, device, jobs, threads, cluster, steps, again, folder, quiet) -> None:
    """Find out what is to do, have it done, record it, and say how it went."""
    wanted, known = _having(scale, names), list(stores(folder).values())
    store = known[0]
    try:
        todo = runner.jobs(wanted, scale, seeds, known, again, steps)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    if skipped := len(wanted) * len(seeds) - len(todo):
        places = " or ".join(str(one.folder) for one in known)
        click.echo(f"{skipped} recorded already in {places} (--again runs anew)")
    size = group()[1]
    workers = 1 if size > 1 else jobs or (os.cpu_count() or 1 if device == "cpu" else 1)
    workers = min(cluster.workers() if cluster else workers, max(1, len(todo)))
    if todo:
        store.check_writable()
        check_writable(runner.folder())
        beside = f", {workers} at a time" if len(todo) > 1 else ""
        beside = f", {size} processes together" if size > 1 else beside
        where = cluster or device
        click.echo(f"{len(todo)} to run on {where}{beside}{_expected(todo, workers)}; results go to {store.folder}")

    bars = not quiet and sys.stderr.isatty()  # in a log file every turn of a bar is a line of its own
    options = {"device": device, "workers": workers, "progress": bars, "threads": threads}
    if cluster:
        options["elsewhere"] = cluster.do
    stopped, failed, gone, missing = [], [], [], []
    for job, outcome in runner.do_all(of_first(todo), store, **options):
        if isinstance(outcome, runner.Stopped):
            stopped.append(f"{job}: {outcome.where}")
        elif isinstance(outcome, cache.DataMissing):
            missing.append(str(outcome))
        elif isinstance(outcome, runner.Gone):
            gone.append(str(outcome))
        elif isinstance(outcome, FORESEEN):
            failed.append(f"{job}: failed, {outcome}")
        elif isinstance(outcome, Exception):
            tqdm.write("".join(traceback.format_exception(outcome)), file=sys.stderr)
            failed.append(f"{job}: failed, {type(outcome).__name__}: {outcome}")
        else:
            tqdm.write(f"{job}: {_done(outcome)}, {store.path(job.name, job.scale, job.seed)}", file=sys.stdout)

    troubles = [*failed, *dict.fromkeys([*gone, *missing]), *stopped]
    if stopped:
        repeats = " With --again it also repeats runs that are done: name the seeds that are left." if again else ""
        fail("\n".join([*troubles, f"The same command goes on with what is left.{repeats}"]), STOPPED)
    if troubles:
        fail("\n".join(troubles), DAMAGED if failed or gone else MISSING)
    click.echo(f"Next: pdelab results {wanted[0]}" + (f" --store {folder}" if folder else ""))


def _cluster(address: str):
    """A context: the cluster whose scheduler has this address."""
    try:
        from pdebook.evidence.cluster import connected, place_of
    except ModuleNotFoundError as error:
        raise click.UsageError(f'--cluster needs {error.name}: pip install "pdelab[cluster]"') from error
    try:
        place_of(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return connected(address)


def _many() -> bool:
    """Whether torchrun started this process, and others beside it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def _together() -> Iterator[None]:
    """Under torchrun its processes find each other; `train` then has them train each model together."""
    if not _many():
        yield
        return
    distributed.init_process_group()
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _along(device: str, threads: int) -> None:
    """In every process but the first: the same jobs, of which it records and says nothing but its own faults."""
    try:
        todo = of_first([])
    except ConnectionError:  # of which the one that is gone says why
        sys.exit(DAMAGED)
    for job, outcome in runner.do_all(todo, None, device=device, progress=False, threads=threads):
        if isinstance(outcome, runner.Stopped):
            sys.exit(STOPPED)
        if isinstance(outcome, ConnectionError):  # the same
            sys.exit(DAMAGED)
        if isinstance(outcome, Exception):
            fail(f"process {group()[0]}, {job}: failed, {type(outcome).__name__}: {outcome}", DAMAGED)


def _having(scale: Scale, names: Sequence[str]) -> list[str]:
    """The experiments that are meant: those named, and of those that fit a pattern the ones that have this scale."""
    wanted = matching(names)
    without = [name for name in wanted if name not in names and scale not in runner.find(name).scales]
    if without == wanted:
        raise click.UsageError(f"none of {', '.join(wanted)} has the scale {scale}")
    if without:
        click.echo(f"{len(without)} have no scale {scale} and are left out: {', '.join(without)}")
    return [name for name in wanted if name not in without]


def _expected(todo: Sequence[runner.Job], workers: int) -> str:
    """How long it may take, by the times in the book's record; nothing where one is not recorded."""
    known = {(r.experiment, r.scale): r.seconds for r in Store().survey()[0] if "cut" not in r.configuration}
    times = [known.get((job.name, job.scale)) if job.steps is None else None for job in todo]
    if None in times:
        return ""
    minutes = max(sum(times) / workers, *times) / 60
    return f", about {minutes:.0f} min by the times recorded" if minutes >= 1 else ""


def _size(scale: str | None) -> Scale:
    try:
        return choose_scale(scale)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _device(device: str) -> torch.device:
    """What was asked for, if this machine has it; where several processes train together, each has a GPU of its own."""
    try:
        if _many() and device in ("auto", "cuda") and torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before anything else touches a GPU
        chosen = choose_device(device)
        torch.zeros(1, device=chosen)
    except (ValueError, RuntimeError, AssertionError) as error:
        words = f"--device {device}: this machine has none; cpu is always there, and auto takes the best there is"
        raise click.UsageError(words) from error
    if _many() and chosen.type not in ("cpu", "cuda"):
        raise click.UsageError(f"--device {chosen.type}: processes that train together need cpu or cuda")
    if _many() and device.startswith("cuda:"):
        raise click.UsageError(f"--device {device}: under torchrun each process takes a GPU of its own; give cuda")
    return torch.device("cuda", torch.cuda.current_device()) if _many() and chosen.type == "cuda" else chosen


def _done(result: Result) -> str:
    """How a run ended, and how long it took."""
    lost = f", diverged: {', '.join(result.diverged)}" if result.diverged else ""
    less = f", cut to {result.configuration['cut']}" if "cut" in result.configuration else ""
    return f"{result.status}{lost}{less}, {result.seconds:.1f} s"


def machine() -> list[tuple[str, str]]:
    """The device and the cores that torch would use."""
    device = choose_device()
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return [("device", kind), ("cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()}")]
