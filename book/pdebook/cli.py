"""pdelab run | results | claims | probe | data | doctor.

Exit codes: 0 done; 1 something is damaged or failed; 2 the command was not understood; 3 data are missing; 130 stopped.
"""

import platform
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from inspect import getdoc
from itertools import groupby
from pathlib import Path

import click

from pdebook import ledger
from pdebook.ledger.record import Result, Scale, Store, Summary, summarise
from pdebook.terminal import DAMAGED, MISSING, Group, Seeds, fail, stores, table
from pdelab import __version__
from pdelab.datasets import cache
from pdelab.files import check_writable

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "ipywidgets", "pooch")
CONTROLS = ("random", "permuted", "shuffled-layers", "shuffled-tokens")  # as pdelab.probing has them, without torch
FILE = click.Path(dir_okay=False, path_type=Path)
SCALES = click.Choice([scale.value for scale in Scale], case_sensitive=False)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pdelab")
def main() -> None:
    """Transformers as PDEs: run the experiments, read their results, judge the claims."""


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--scale", type=SCALES, help="Size; default: PDELAB_SCALE, else book.")
@click.option("--seeds", type=Seeds(), default="5", show_default=True, help=getdoc(Seeds))
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps.")
@click.option("--jobs", type=click.IntRange(1), help="Runs side by side; default: one per CPU core, one on a GPU.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each run, on a CPU.")
@click.option("--cluster", "address", help="Run on the Dask cluster with this scheduler, such as tcp://node:8786.")
@click.option("--steps", type=click.IntRange(1), help="Cut every training to so many steps; the result says so.")
@click.option("--again", is_flag=True, help="Run what is recorded already, and replace it.")
@click.option(
    "--store",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Read and write results here alone; default: your own (PDELAB_RESULTS), with the book's read beside them.",
)
@click.option("--quiet", is_flag=True, help="No progress bars.")
def run(names, scale, seeds, device, jobs, threads, address, steps, again, folder, quiet) -> None:
    """Run experiments and record their results; without a name, list them.

    What is recorded is skipped. Ctrl-C keeps checkpoints, and the same command goes on from them. Started by
    `torchrun -m pdebook run`, all processes train each model together.
    """
    from pdebook import running  # and torch, which takes seconds

    if names:
        running.run(names, scale, seeds, device, jobs, threads, address, steps, again, folder, quiet)
    else:
        running.list_experiments()


@main.command()
@click.argument("name", required=False)
@click.option("--scale", type=SCALES, help="One size only.")
@click.option("--store", "folder", type=FOLDER, help="Folder of results; default: yours and the book's.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values.")
def results(name, scale, folder, as_csv) -> None:
    """What is recorded: all experiments, or the figures of one with their controls and intervals.

    Yours, and the book's for seeds that you lack. A list has one value per layer, or per evaluation.
    """
    known = stores(folder)
    surveys = {whose: store.survey(name) for whose, store in known.items()}
    damaged = [str(fault) for _, faults in surveys.values() for fault in faults.values()]
    every = {whose: whole for whose, (whole, _) in surveys.items()}
    if name is None:
        rows = [
            (*row, whose)
            for whose, found in every.items()
            for _, same in groupby(found, key=lambda r: r.experiment)
            for row in overview([r for r in same if scale in (None, r.scale)])
        ]
        table(rows, ("experiment", "scale", "seeds", "diverged", "cut to", "s a seed", "commit", "whose"), as_csv)
        _tell(damaged)
        return
    chosen = {whose: [r for r in found if scale in (None, r.scale)] for whose, found in every.items()}
    found = _pooled(chosen.values())
    if not found:
        _tell(damaged)
        there = ", ".join(dict.fromkeys(r.scale for found in every.values() for r in found))
        of = f"{name!r} at scale {scale}, only at {there}" if there else f"{name!r}"
        raise click.UsageError(f"nothing is recorded of {of}; pdelab results lists what is, pdelab run records")
    rows = []
    try:
        for size in dict.fromkeys(r.scale for r in found):
            same = [r for r in found if r.scale == size]
            for kind in ("figures", "controls"):
                for figure in dict.fromkeys(key for r in same for key in getattr(r, kind)):
                    summary = summarise(same, figure, control=kind == "controls")
                    rows.append((size, kind.removesuffix("s"), figure, shown(summary)))
    except ValueError as error:  # seeds recorded with other settings, or without this figure, have no common mean
        fail(f"{name}: {error}; pdelab run {name} --again records all seeds alike", DAMAGED)
    table(rows, ("scale", "kind", "name", "mean [95 % interval] over seeds"), as_csv, cut=True)
    if as_csv:
        _tell(damaged)
        return
    definitions = found[-1].configuration.get("definitions", {})
    if definitions:
        click.echo("\n" + "\n".join(f"{key}: {words}" for key, words in definitions.items()))
    cuts = {f"{r.scale}: the training was cut to {r.configuration['cut']}" for r in found if "cut" in r.configuration}
    shares = {whose: sum(any(r is one for one in found) for r in runs) for whose, runs in chosen.items() if runs}
    whose = ", ".join(f"{number} are {one}" for one, number in shares.items())
    if notes := [*sorted(cuts), *([f"of the results shown, {whose}"] if len(shares) > 1 else [])]:
        click.echo("\n" + "\n".join(notes))
    _tell(damaged)


def _pooled(stores: Iterable[Sequence[Result]]) -> list[Result]:
    """The results of the first store, and of the next the seeds that are missing, if their settings are the same."""
    found: dict[tuple[str, int], Result] = {}
    for results in stores:
        settings = {r.scale: r.configuration for r in found.values()}
        same = [r for r in results if settings.get(r.scale, r.configuration) == r.configuration]
        found = {(r.scale, r.seed): r for r in same} | found
    return [found[key] for key in sorted(found)]


def _tell(damaged: Sequence[str]) -> None:
    """End with what cannot be trusted, if anything: after the good results, and with its exit code."""
    if damaged:
        fail("\n".join(damaged), DAMAGED)


def overview(found: list[Result]) -> list[tuple]:
    """One row per scale."""
    rows = []
    for scale in dict.fromkeys(r.scale for r in found):
        same = [r for r in found if r.scale == scale]
        lost = sum(r.status == "diverged" or bool(r.diverged) for r in same)
        seconds = sum(r.seconds for r in same) / len(same)
        commits = [commit for r in same for commit in r.environment.get("commit", "unknown").split(", ")]
        seeds = ",".join(str(r.seed) for r in same)
        cuts = [r.configuration["cut"].removesuffix(" training steps") for r in same if "cut" in r.configuration]
        less = "; ".join(dict.fromkeys(cuts)) or "-"
        rows.append((same[0].experiment, scale, seeds, lost, less, f"{seconds:.1f}", ", ".join(dict.fromkeys(commits))))
    return rows


def shown(summary: Summary | list[Summary]) -> str:
    """A list has its number of seeds once, at the end."""
    if isinstance(summary, Summary):
        return str(summary)
    return "; ".join(one.value for one in summary) + f" ({summary[-1].runs})"


@main.command()
@click.argument("claim_id", required=False)
@click.option(
    "--verdict",
    type=click.Choice([v.value for v in ledger.Verdict], case_sensitive=False),
    help="Only claims with this verdict.",
)
@click.option("--chapter", help="Only claims of this chapter.")
@click.option("--store", "folder", type=FOLDER, help="Folder of results; default: the book's own.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, all columns.")
def claims(claim_id, verdict, chapter, folder, as_csv) -> None:
    """Every claim of the papers with its verdict, printed figure and ours; with CLAIM_ID all about one."""
    try:
        outcomes = ledger.judge_all(store=Store(folder))
    except ValueError as error:  # of claims.yml
        fail(str(error), DAMAGED)
    chapters = list(ledger.by_chapter(outcomes))
    if chapter is not None and chapter not in chapters:
        raise click.UsageError(f"no claim is of the chapter {chapter!r}; there are {', '.join(chapters)}")
    chosen = ledger.those(outcomes, verdict, chapter)
    if claim_id is not None:
        claim_id = _meant(claim_id, [o.claim.id for o in outcomes])
        chosen = [o for o in chosen if o.claim.id == claim_id]
    rows = ledger.rows(chosen)
    if as_csv:
        table([row.values() for row in rows], ledger.COLUMNS, as_csv)
    elif claim_id is None:
        shown = ("claim", "verdict", "title", "chapter", "evidence")
        table([(*(row[name] for name in shown[:-1]), _evidence(row)) for row in rows], shown, cut=True)
        click.echo("; ".join(f"{n} {verdict}" for verdict, n in ledger.counts(chosen).items() if n) or "no claim")
        parts = {f"{kind}s": found for kind, found in ledger.by_kind(chosen).items()} | ledger.by_source(chosen)
        for name, found in parts.items():
            if sum(found.values()):
                click.echo(f"  {name}: " + "; ".join(f"{n} {verdict}" for verdict, n in found.items() if n))
        for words, found in ledger.by_fault(chosen).items():
            if len(found) > 1:
                click.echo(f"  one slip in {len(found)}, {words}: {', '.join(o.claim.id for o in found)}")
    elif not chosen:
        click.echo(f"{claim_id} is not among those chosen.")
    else:
        claim = chosen[0].claim
        lines = rows[0] | {"says": claim.says, "tested by": claim.protocol, "controls": claim.control}
        table([(key, value) for key, value in lines.items() if value], ("", ""))
    _tell([f"{o.claim.id}: {o.ruling.because}" for o in chosen if o.ruling.unusable])


def _meant(claim_id: str, known: Sequence[str]) -> str:
    """The claim's id, however its letters and strokes were typed."""
    plain = {one.casefold().replace("/", "-"): one for one in known}
    typed = claim_id.casefold().replace("/", "-")
    if typed in plain:
        return plain[typed]
    near = [plain[one] for one in get_close_matches(typed, plain)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise click.UsageError(f"no claim is called {claim_id!r}; {hint}pdelab claims lists them all")


def _evidence(row: dict[str, str]) -> str:
    """Printed, ours and the control in one line, as far as they are there."""
    parts = (("printed", row["printed"]), ("ours", row["ours"]), ("control", row["control"]))
    return " | ".join(f"{name} {words}" for name, words in parts if words)


@main.command()
@click.argument("network")
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What it reads; default: ours."
)
@click.option("--length", type=click.IntRange(2), help="Tokens of an example; default: 32.")
@click.option("--examples", type=click.IntRange(1), help="How many, from the beginning of the text; default: 8.")
@click.option("--html", "page", type=FILE, help="Write the report as one page.")
@click.option("--json", "data", type=FILE, help="Write every number.")
@click.option(
    "--control", "controls", multiple=True, type=click.Choice(CONTROLS), help="Only this one; may be repeated."
)
@click.option("--no-controls", is_flag=True, help="The network alone, in about half of the time.")
@click.option("--whole", is_flag=True, help="Take each layer as one step, where its branches cannot be read.")
@click.option("--draws", type=click.IntRange(1), default=3, show_default=True, help="Of random and permuted weights.")
@click.option("--sampled", type=click.IntRange(0), default=4, show_default=True, help="Layers with derivatives; slow.")
@click.option("--threads", type=click.IntRange(1), help="On a CPU; default: as many as torch takes.")
@click.option("--device", help="auto, cpu, cuda, cuda:1, mps; default: auto.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Of what is measured; default: in PDELAB_DATA."
)
@click.option("--quiet", is_flag=True, help="No progress bar.")
def probe(network, text, length, examples, device, controls, no_controls, **options) -> None:
    """Is depth time in this network? Every layer's step, energy and stability, beside four controls.

    NETWORK is minilm or smollm2 (pdelab data get); a folder with a model and tokenizer that transformers saved; or
    module:function or file.py:function, a function that returns (model, inputs), (model, inputs, loss) or (model,
    inputs, loss, mask): mask (batch, token) is True where a token is real, and loss may be None.

    The text is cut into examples of equal length. The network and each draw of a control are kept once measured: after
    Ctrl-C the same command goes on with the one that was under way, from its first layer.
    """
    from pdebook import probing_command  # and torch, which takes seconds

    if controls and no_controls:
        raise click.UsageError("--control and --no-controls exclude each other")
    chosen = () if no_controls else controls or CONTROLS
    options["controls"] = [name.replace("-", " ") for name in chosen]
    about = {"text": text, "length": length, "examples": examples, "device": device}
    probing_command.run(network, about, **options)


@main.group()
def data() -> None:
    """The public data: list, get, verify."""


@data.command("list")
def list_data() -> None:
    """What is here, what is missing, and how large it is."""
    entries = cache.listing()
    rows = [(e.name, e.state, f"{e.bytes / 1e6:.1f} MB", e.credit) for e in entries]
    table(rows, ("name", "state", "size", "credit"))
    click.echo(f"Folder: {cache.folder()} (PDELAB_DATA names another). Next: pdelab data get NAME")


@data.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice([*cache.SOURCES, "all"]))
def get(names) -> None:
    """Download what is missing or damaged; checksums are verified, and nothing half-written stays."""
    for name in cache.SOURCES if "all" in names else names:
        for path in cache.get(name):
            click.echo(f"{name}: {path}")


@data.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(cache.SOURCES)))
def verify(names) -> None:
    """Check files against their checksums, without network; without a name, every source that is here."""
    wanted = [e for e in cache.listing() if (e.name in names if names else e.state != "missing")]
    for entry in wanted:
        click.echo(
            f"{entry.name}: {'whole' if entry.state == 'present' else entry.problem}", err=entry.state != "present"
        )
    if not wanted:
        click.echo("Nothing is here yet. Next: pdelab data get NAME")
    states = {entry.state for entry in wanted}
    sys.exit(DAMAGED if "damaged" in states else MISSING if "missing" in states else 0)


@main.command()
def doctor() -> None:
    """What is installed, which device, which folders and data, and what is missing and how to get it."""
    from pdebook import running  # and torch, which takes seconds
    from pdelab import pretrained

    advice, faults = [], []
    rows = [("pdelab", __version__), ("python", platform.python_version()), ("system", platform.platform())]
    extras = dict.fromkeys(pretrained.NEEDED, '"pdelab[probe]", for pretrained networks')
    extras["distributed"] = '"pdelab[cluster]", for runs on several machines'
    for name in (*PACKAGES, "jupyterlab", "pytest", *extras):
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "not installed"))
            advice.append(f"{name} is missing: pip install {extras.get(name, name)}")
    rows += running.machine()

    own = stores(None)["yours"].folder
    for what, folder, variable in (("data", cache.folder(), "PDELAB_DATA"), ("results", own, "PDELAB_RESULTS")):
        try:
            check_writable(folder)
            rows.append((f"{what} folder", folder))
        except OSError as error:
            rows.append((f"{what} folder", f"{folder}, not writable"))
            faults.append(f"{error}; name another folder with {variable}")
    for entry in cache.listing():
        rows.append((f"data {entry.name}", entry.state))
        if entry.state == "missing":
            advice.append(f"{entry.name} is not here, and the book does without: pdelab data get {entry.name}")
        elif entry.state == "damaged":
            faults.append(entry.problem)
    for whose, store in stores(None).items():
        found, damaged = store.survey()
        rows.append((f"results, {whose}", f"{len(found)} in {store.folder}, {len(damaged)} damaged"))
        faults += map(str, damaged.values())
    try:
        rows.append(("scale", running.choose_scale()))
    except ValueError as error:
        rows.append(("scale", "not understood"))
        advice.append(str(error))

    table(rows, ("what", "found"))
    click.echo("\n".join(f"- {line}" for line in [*advice, *faults]) or "Nothing is missing.")
    if faults:
        sys.exit(DAMAGED)


if __name__ == "__main__":
    main()
