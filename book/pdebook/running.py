"""pdelab run, and what the doctor says of the machine: all that needs torch, which takes seconds to load."""

import os
import sys
import traceback
from collections.abc import Sequence
from inspect import getdoc
from pathlib import Path

import click
import torch
from tqdm.auto import tqdm

from pdebook.evidence import run as runner
from pdebook.evidence.experiment import Scale, choose_scale
from pdebook.ledger.record import Result, Store
from pdebook.ledger.sources import experiments
from pdebook.terminal import DAMAGED, EXPECTED, MISSING, STOPPED, fail, matching, stores, table
from pdelab.checkpoints import RefusedCheckpoint, UnusableFolder
from pdelab.datasets import cache
from pdelab.files import check_writable
from pdelab.training import choose_device

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
    steps: int | None,
    again: bool,
    folder: Path | None,
    quiet: bool,
) -> None:
    """Run experiments and record their results; the arguments are the options of the command."""
    scale, chosen = _size_and_device(scale, device)
    wanted, known = _having(scale, names), list(stores(folder).values())
    store = known[0]
    try:
        todo = runner.jobs(wanted, scale, seeds, known, again, steps)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    if skipped := len(wanted) * len(seeds) - len(todo):
        places = " or ".join(str(one.folder) for one in known)
        click.echo(f"{skipped} recorded already in {places} (--again runs anew)")
    workers = min(jobs or (os.cpu_count() or 1 if chosen.type == "cpu" else 1), max(1, len(todo)))
    if todo:
        store.check_writable()
        check_writable(runner.folder())
        beside = f", {workers} at a time" if len(todo) > 1 else ""
        click.echo(f"{len(todo)} to run on {chosen}{beside}{_expected(todo, workers)}; results go to {store.folder}")

    bars = not quiet and sys.stderr.isatty()  # in a log file every turn of a bar is a line of its own
    options = {"device": str(chosen), "workers": workers, "progress": bars, "threads": threads}
    stopped, failed, missing = [], [], []
    for job, outcome in runner.do_all(todo, store, **options):
        if isinstance(outcome, runner.Stopped):
            stopped.append(f"{job}: {outcome.where}")
        elif isinstance(outcome, cache.DataMissing):
            missing.append(str(outcome))
        elif isinstance(outcome, FORESEEN):
            failed.append(f"{job}: failed, {outcome}")
        elif isinstance(outcome, Exception):
            tqdm.write("".join(traceback.format_exception(outcome)), file=sys.stderr)
            failed.append(f"{job}: failed, {type(outcome).__name__}: {outcome}")
        else:
            tqdm.write(f"{job}: {_done(outcome)}, {store.path(job.name, job.scale, job.seed)}", file=sys.stdout)

    troubles = [*failed, *dict.fromkeys(missing), *stopped]
    if stopped:
        repeats = " With --again it also repeats runs that are done: name the seeds that are left." if again else ""
        fail("\n".join([*troubles, f"The same command goes on with what is left.{repeats}"]), STOPPED)
    if troubles:
        fail("\n".join(troubles), DAMAGED if failed else MISSING)
    click.echo(f"Next: pdelab results {wanted[0]}" + (f" --store {folder}" if folder else ""))


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


def _size_and_device(scale: str | None, device: str) -> tuple[Scale, torch.device]:
    """What was asked for, if this machine has it."""
    try:
        size = choose_scale(scale)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        chosen = choose_device(device)
        torch.zeros(1, device=chosen)
    except (ValueError, RuntimeError, AssertionError) as error:
        words = f"--device {device}: this machine has none; cpu is always there, and auto takes the best there is"
        raise click.UsageError(words) from error
    return size, chosen


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
