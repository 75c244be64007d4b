"""Every definition of `laws` on trained models: information, entropy and the like of four layers.  (P2 A.2)

Models: `rows-KIND` on digits read row by row, which decide, at P2's size, and `listops-KIND` at the book's width,
recorded beside.

Controls that know nothing: the models untrained (`untrained_…`), trained on shuffled labels (`…-shuffled`), and for the
dimension white noise of the same size and a copy of the input. Beside them `…-held`: trained on the true labels with
LayerNorm's gain and bias held at one and zero. With T rescaled to root mean square 1 no printed figure is compared: it
is no control that knows nothing, but where a definition does not see the scale it changes nothing.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pdebook.chapters.experiments_information.laws import (
    CONTRASTS,
    DEFINITIONS,
    DEPTH,
    DIMENSIONS,
    DIVERSITIES,
    ENTROPIES,
    INPUTS,
    KINDS,
    SIMULATORS,
    SPARSITIES,
    contrast,
    decided,
    profile,
)
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.labels import RECORDED
from pdebook.evidence.reference import shuffled_labels
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.metrics.information import rows
from pdelab.models import Model
from pdelab.seeds import derive, stream
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.training import Settings, Training

FOOLED, HELD = KINDS, KINDS[:2]
SIZE = {"width": 128, "heads": 4}  # P2 appendix A: four layers, hidden size 512; of the digits at the book's scale
EXAMPLES = {Scale.SMOKE: 100, Scale.BOOK: 400}  # of the test set; 400 are all digits
STEPS = {Scale.SMOKE: 40, Scale.BOOK: 250}
RATE = 1e-3  # of the digits at that size
WATCH = {"rows": (0.0, 0.1, 0.4, 1.0), "listops": (0.0, 1.0), "control": (1.0,)}  # shares of the steps
TRAINED = ("h_hist30_own", "h_hist30_shared", "dim_participation_tokens", "dim_entropy_tokens", "magnitude", "spread")
TRAINED += (*CONTRASTS, *DIVERSITIES, "sparse0.1", "sparse_relative0.1", "y_usable", "y_unit5")


@dataclass(frozen=True)
class ProfileLook:
    """look(model) for a training: `profile` on the examples; nothing if the model diverged or its states are equal."""

    examples: Examples
    seed: int

    def __call__(self, model: nn.Module) -> Figures:
        run = look(model, self.examples)
        run = replace(run, states=tuple(u.cpu() for u in run.states), mask=self.examples.mask)
        if run.status is Status.DIVERGED or any(not rows(u, run.mask).std(dim=0).any() for u in run.states):
            return {}
        return profile(run, self.examples.y.cpu(), self.seed)


def without_dynamics(run: Trajectory, y: Tensor, seed: int) -> Figures:
    """`dimension` of white noise of the same size, and of a copy of the input in every layer."""
    noise = [torch.randn(u.shape, generator=stream(seed, "noise", n)) for n, u in enumerate(run.states)]
    found = {}
    for name, states in (("noise", noise), ("copy", [run.states[0]] * len(run.states))):
        of = decided(profile(replace(run, states=tuple(states)), y, seed), len(y))
        found |= named(name, {key: value for key, value in of.items() if key.startswith("dimension")})
    return found


def hold_norms(model: Model) -> Model:
    """LayerNorm with gain 1 and bias 0 that are not trained."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            for weights in module.parameters():
                weights.requires_grad_(False)
    return model


def _task(name: str, scale: Scale) -> Task:
    task, steps, printed = TASKS[name][scale], STEPS[scale], name == "rows" and scale is Scale.BOOK
    rate = RATE if printed else task.settings.rate
    chosen = Settings(steps=steps, batch=task.settings.batch, rate=rate, warmup=steps // 10)
    task = replace(task, **(SIZE if printed else {}), depth=DEPTH, settings=chosen, probe=EXAMPLES[scale])
    return _watched(task, name)


def _watched(task: Task, name: str) -> Task:
    watch = tuple(round(share * task.settings.steps) for share in WATCH[name])
    return replace(task, settings=replace(task.settings, watch=watch))


def _fit(kind: str, label: str, task: Task, data: Dataset, seed: int, work: Workplace) -> tuple[Model, Training]:
    model = build(kind, task, data, seed)
    model = hold_norms(model) if label == "-held" else model
    seen = ProfileLook(data.test.take(slice(0, task.probe)), seed)
    name = f"{task.data} {kind}{label}"
    return model, trained(model, data, task.settings, derive(seed, kind, "training"), work, name, look=seen)


def _models(found: Measured, prefix: str, task: Task, data: Dataset, seed: int, work: Workplace) -> None:
    """Every model of one data set, its deciding figures and the controls."""
    jobs = [(kind, "", data) for kind in KINDS]
    if prefix == "rows":
        jobs += [(kind, "-shuffled", shuffled_labels(data, seed)) for kind in FOOLED]
        jobs += [(kind, "-held", data) for kind in HELD]
    profiles: dict[str, dict[str, Figures]] = {"": {}, "untrained_": {}, "-shuffled": {}}

    for kind, label, given in jobs:
        name = f"{prefix}-{kind}{label}"
        own = _watched(task, "control") if label else task
        model, record = _fit(kind, label, own, given, seed, work)
        found.made_by(record.commits)
        if record.status == Status.DIVERGED or not all(one.looked for one in record.watched):
            found.diverged[name] = record.stopped_at or record.step
            continue

        first, last = record.watched[0].looked, record.watched[-1].looked
        place = found.controls if label else found.figures
        figures = last | decided(last, task.probe) | {"accuracy": record.accuracy}
        place |= named(name, {key: value for key, value in figures.items() if not key.startswith("shuffled_")})
        found.controls |= named(name, {key: value for key, value in last.items() if key.startswith("shuffled_")})
        if label in profiles:
            profiles[label][kind] = last

        if not label:
            before = {f"untrained_{key}": value for key, value in (first | decided(first, task.probe)).items()}
            found.controls |= named(name, before)
            profiles["untrained_"][kind] = first
            found.figures |= named(name, _course(record))
        if name == "rows-transformer":
            run = look(model.cpu(), data.test.take(slice(0, task.probe)))
            found.controls |= without_dynamics(run, data.test.y[: task.probe], seed)

    for label, known in profiles.items():
        if "transformer" not in known:
            continue
        simulators = {kind: known[kind] for kind in SIMULATORS if kind in known}
        start, end = ("untrained_", "") if label == "untrained_" else ("", label)
        for kind, figures in contrast(simulators, known["transformer"], task.probe).items():
            place = found.controls if label else found.figures
            place |= named(f"{prefix}-{kind}{end}", {start + key: value for key, value in figures.items()})


def _course(record: Training) -> Figures:
    states = range(len(record.watched[0].looked[TRAINED[0]]))
    return {
        Key("training", name, state): [one.looked[name][state] for one in record.watched]
        for name in TRAINED
        for state in states
    }


@experiment("information_layers", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Entropy, dimension, information, sparsity, magnitude and diversity of four layers, under many definitions."""
    found, tasks = Measured(), {name: _task(name, scale) for name in ("rows", "listops")}
    watched = {}
    for name, task in tasks.items():
        data = task.load(seed)
        _models(found, name, task, data, seed, work)
        watched[name] = list(task.settings.watch)
    chosen = {"watched": watched, "information": DEFINITIONS, "labels": list(RECORDED)}
    chosen |= {"entropies": list(ENTROPIES), "dimensions": list(DIMENSIONS), "inputs": list(INPUTS)}
    chosen |= {"sparsities": list(SPARSITIES), "contrasts": list(CONTRASTS), "n": EXAMPLES[scale]}
    chosen |= {"listops": tasks["listops"].configuration()}
    return found.result("information_layers", tasks["rows"], scale, seed, **chosen)
