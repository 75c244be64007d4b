"""A Transformer and the simulators that begin with the same weights and are then trained apart.  (P2 §4.2 and A.1)

P2 says that its simulator learns its operators by end-to-end backpropagation, and nothing of the weights it begins
with. Nets that begin with unrelated weights have their features in no common order, and a raw cosine of their states is
0 on average whatever they do; nor are the heads of their attention in a common order. Here both begin with one
embedding, one readout and, layer by layer, the same attention and feed-forward; a simulator without these shares the
embedding and the readout. Then each is trained on ListOps, on the same batches. The cosine can come out either way.

The embedding is multiplied by s before training, since P2 prints no scale. `SIMULATOR-scaleS/…`: the simulator beside
the Transformer at that s. `best/overall_…`: for each similarity the best over simulators and scales, seed by seed, with
its scale in `best/overall_…_scale` and the place of its simulator in SIMULATORS in `best/overall_…_simulator`.
Diffusion alone moves a state so little that it is a copy of its input; `sharing_best/…` is the best of the others,
which share all weights of the Transformer but LayerNorm's. Attention maps are compared for these alone.

Controls at each s, `NAME-scaleS/…`: a copy of the Transformer's input, the mean of its states at each position, an
affine map of its input, its features in another order (`relabelled`), a second Transformer with weights of its own
(`other`), the pair before training (`untrained_SIMULATOR`), and for the maps attention to all alike (`uniform`).
`NAME/overall_…` is the control at the s of the best; `untrained/overall_…` that of its simulator there;
`sharing_NAME/…` the same for `sharing_best`.
"""

from collections.abc import Iterator
from dataclasses import replace

from pdebook.chapters.experiments_listops.measure import SCALES, STEPS, enlarge
from pdebook.evidence import alignment
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.reference import FITTED, SIMULATORS, borrowed, terms, with_maps, without_dynamics
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.models import Model
from pdelab.seeds import derive
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction

START = "same start"  # of the seeds of the weights and of the batches
BEST = {"overall_cosine": max, "overall_mse": min, "overall_nmse": min}  # what P2 prints, and the error without a unit
BEST_MAPS = {
    "overall_attention_cosine": max,
    "overall_attention_kl": min,
    "overall_mean_attention_cosine": max,
    "overall_mean_attention_kl": min,
}
GROUPS = {"": SIMULATORS, "sharing_": SIMULATORS[:3]}  # what the best is chosen from
CONTROLS = ("copy", "position_mean", "affine", "other")
SIMILARITIES = ("mse", "nmse", "cosine", "centred_cosine", "mean_spectral", "cka")


def starts(factor: float, task: Task, data: Dataset, seed: int) -> Iterator[tuple[str, Model]]:
    """(kind, untrained model) of the Transformer, of the simulators with its weights, and of `other` with its own."""
    first = build("transformer", task, data, seed, START)
    enlarge(first.embed, factor)
    yield "transformer", first
    for kind in SIMULATORS:
        yield kind, borrowed(kind, first, task, data)
    other = build("other", task, data, seed)
    enlarge(other.embed, factor)
    yield "other", other


def seen(model: Model, examples: Examples) -> Trajectory:
    """Every state of the model on the examples, and its attention maps if it has attention."""
    run = look(model, examples)
    return replace(run, attention=with_maps(model, examples).attention) if terms(model, Interaction) else run


def beside(run: Trajectory, target: Trajectory) -> Figures:
    """States and attention maps of a run beside the target's."""
    figures = alignment.alignment(run.states, target, SIMILARITIES)
    return figures if run.attention is None else figures | alignment.maps_compared(run, target)


def compared(factor: int, task: Task, data: Dataset, seed: int, work: Workplace, found: Measured) -> None:
    """Train all at one scale; the simulators beside the Transformer into the figures of `found`, the controls beside.

    The untrained pairs come first: training changes the models in place.
    """
    models = {kind: model.to(work.device) for kind, model in starts(factor, task, data, seed)}
    fit, test = data.train.take(slice(0, FITTED * task.probe)), data.test.take(slice(0, task.probe))
    before = {kind: seen(model, test) for kind, model in models.items()}
    for kind in SIMULATORS:
        if not {before[kind].status, before["transformer"].status} & {Status.DIVERGED}:
            figures = beside(before[kind], before["transformer"])
            found.controls |= named(f"untrained_{kind}-scale{factor}", figures)

    after = {}
    for kind, model in models.items():
        name = f"{kind}-scale{factor}"
        batches = derive(seed, kind if kind == "other" else START, "training")
        record = trained(model, data, task.settings, batches, work, name)
        found.made_by(record.commits)
        run = seen(model, test) if record.status != Status.DIVERGED else None
        if run is None or run.status is Status.DIVERGED:
            found.diverged[name] = record.stopped_at or record.step
            continue
        after[kind] = run
        found.figures |= named(name, {"accuracy": record.accuracy})
    if "transformer" not in after:
        return

    target = after.pop("transformer")
    for key, values in without_dynamics(look(models["transformer"], fit), target, seed, SIMILARITIES).items():
        control, figure = key.split("/")
        found.controls[Key(f"{control}-scale{factor}", figure)] = values
    uniform = alignment.maps_compared(alignment.uniform_maps(target), target)
    found.controls |= named(f"uniform-scale{factor}", uniform)
    for kind, run in after.items():
        place = found.controls if kind == "other" else found.figures
        place |= named(f"{kind}-scale{factor}", beside(run, target))


def best(figures: Figures, controls: Figures, word: str = "") -> tuple[Figures, Figures]:
    """For each similarity the best pair over the scales and the simulators of a group, and the controls at its scale.

    word: of GROUPS.
    """
    chosen: Figures = {}
    known: Figures = {}
    pairs = {f"{kind}-scale{factor}": (kind, factor) for factor in SCALES for kind in GROUPS[word]}
    for figure, better in (BEST if word else BEST | BEST_MAPS).items():
        values = {name: figures[Key(name, figure)] for name in pairs if Key(name, figure) in figures}
        if not values:
            continue
        name = better(values, key=values.__getitem__)
        kind, factor = pairs[name]
        chosen[Key(f"{word}best", figure)] = values[name]
        chosen[Key(f"{word}best", f"{figure}_scale")] = float(factor)
        chosen[Key(f"{word}best", f"{figure}_simulator")] = float(SIMULATORS.index(kind))
        there = {control: f"{control}-scale{factor}" for control in (*CONTROLS, "uniform")}
        for control, place in (there | {"untrained": f"untrained_{name}"}).items():
            if Key(place, figure) in controls:
                known[Key(word + control, figure)] = controls[Key(place, figure)]
    return chosen, known


@experiment("same_start", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Transformer and simulators on ListOps that begin with the same weights, the embedding 1 to 30 times as large."""
    task = TASKS["listops"][scale].cut(STEPS)
    data, found = task.load(seed), Measured()
    for factor in SCALES:
        compared(factor, task, data, seed, work, found)
    for word in GROUPS:
        chosen, known = best(found.figures, found.controls, word)
        found.figures |= chosen
        found.controls |= known
    settings = {"scales": list(SCALES), "simulators": list(SIMULATORS), "comparisons": alignment.DEFINITIONS}
    return found.result("same_start", task, scale, seed, **settings, fitted_on=FITTED * task.probe)
