"""What the layers of a model in training know about the labels, by estimators that need not agree.  (P1 §3.3, figure 4)

T is the mean over tokens of a state on test examples, the vector that the readout sees; Y are their labels. P1 names
no estimator, so each difference is taken by all of DECIDING, chosen before any run:

- `usable`: a linear probe on held-out folds, held back by STRENGTH since there are few examples for so many weights;
- `unit5`: 5 bins between the least and largest value of a feature, each feature by itself, the mean over features;
- `noise1.0`: I(Y; T + Z), noise of the same size for every state, so that a larger state tells more;
- `ratio0.03`: the same with a noise in proportion to the spread of T;
- `level6.0`: T brought to root mean square 1, then noise of size 6: the states at a common norm.

An estimate from few examples tells something of labels in any order, and more when T grows. So every difference is that
of the estimate less its value with the labels in another order; that value alone is the control.

`bins30_layer` and `unit30` are recorded beside them. A row of 30 bins a feature is another symbol for every example, so
that the first is H(Y) whatever T is: it cannot see a fall and has no say. The probe's strength, the ratio and the
last noise were chosen on Gaussian classes of known information, not on trained models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdebook.evidence.trained import Measured, named
from pdebook.ledger.record import Figures
from pdelab.datasets.base import Examples
from pdelab.metrics.information import (
    binned_information,
    channel_information,
    per_unit_information,
    rows,
    usable_information,
)
from pdelab.models import Model
from pdelab.seeds import stream
from pdelab.status import Status
from pdelab.training import Training

EXAMPLES = 600  # of the test set; at paper size their states take most of the time of a look
FOLDS, STRENGTH, NOISE, RATIO, LEVEL = 5, 0.01, 1.0, 0.03, 6.0
DECIDING = ("usable", "unit5", f"noise{NOISE}", f"ratio{RATIO}", f"level{LEVEL}")
RECORDED = (*DECIDING, "unit30", "bins30_layer")

DEFINITIONS = {
    "KIND/information/ESTIMATOR/STATE": "estimate of I(T; Y) in nats at the watched steps; state 0 is the embedding",
    "KIND/information/shuffled_ESTIMATOR/STATE": "the same with the labels in one other order",
    "KIND/label_...": "one value for each estimator of `deciding`, each less its value with shuffled labels",
    "label_fall": "first step minus last, mean over the layers",
    "label_gap": "Transformer minus KIND, mean over the layers and over the watched steps after the first",
    "label_first": "the fall of layer 1 minus the largest fall of another layer",
    "label_last": "the last layer minus the highest of the others, each the mean over the steps after the first",
    "shuffled_label_...": "the same of the value with the labels in another order alone",
    "untrained_label_...": "the same before training",
}


@torch.no_grad()
def pooled(model: Model, examples: Examples, batch: int = 50) -> Tensor | None:
    """T at every state, (state, example, feature): the mean over the real tokens; None if the model diverged.

    Examples of like length are computed together, so that little of the work is on padding.
    """
    device = next(model.parameters()).device
    order = examples.by_length()
    found = []
    for chosen in order.split(batch):
        part = examples.take(chosen).to(device)
        run = model.trajectory(part.x, part.mask)
        if run.status is Status.DIVERGED:
            return None
        found.append(torch.stack([rows(u, run.mask) for u in run.states]).cpu())
    return torch.cat(found, dim=1)[:, order.argsort()]


def of_labels(t: Tensor, y: Tensor, seed: int) -> Figures:
    """I(T; Y) by every estimator of RECORDED, t (example, feature); 0 where T is constant, which tells nothing."""
    if not (t != t[0]).any():
        return dict.fromkeys(RECORDED, 0.0)
    level = t / t.square().mean().sqrt()
    enough = y.bincount()[y] >= FOLDS  # the probe needs a class in every fold; of 600 examples none is left out
    found = {
        "usable": usable_information(t[enough], y[enough], seed=seed, folds=FOLDS, strength=STRENGTH),
        "unit5": per_unit_information(t, y, bins=5).mean(),
        f"noise{NOISE}": channel_information(t, y, noise=NOISE, seed=seed),
        f"ratio{RATIO}": channel_information(t, y, ratio=RATIO, seed=seed),
        f"level{LEVEL}": channel_information(level, y, noise=LEVEL, seed=seed),
        "unit30": per_unit_information(t, y, bins=30).mean(),
        "bins30_layer": binned_information(t, y, bins=30),
    }
    return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True)
class LabelLook:
    """look(model) for a training: ESTIMATOR and shuffled_ESTIMATOR, one value a state; nothing if the model diverged.

    Nothing is kept here, so that a training that was stopped can go on.
    """

    examples: Examples
    seed: int

    def __call__(self, model: nn.Module) -> Figures:
        states = pooled(model, self.examples)
        if states is None:
            return {}
        y = self.examples.y.cpu()
        shuffled = y[torch.randperm(len(y), generator=stream(self.seed, "shuffled labels"))]
        found: dict[str, list[float]] = {}
        for prefix, answers in (("", y), ("shuffled_", shuffled)):
            for t in states:
                for name, value in of_labels(t, answers, self.seed).items():
                    found.setdefault(prefix + name, []).append(float(f"{value:.6g}"))
        return found


def curves(record: Training) -> dict[str, Tensor] | None:
    """ESTIMATOR → (state, step) of a training with a LabelLook; None if the states were not finite at some step.

    A checkpoint of a training without a look, or with another one, is refused by `train` and never comes here.
    """
    if not record.watched:
        raise ValueError("record has watched no step; train with a LabelLook and steps in settings.watch")
    if not all(seen.looked for seen in record.watched):
        return None
    names = record.watched[0].looked
    return {name: torch.tensor([seen.looked[name] for seen in record.watched]).T for name in names}


def fall(curve: Tensor) -> float:
    """First step minus last, mean over the layers; curve: (state, step), the embedding first, which is left out."""
    return (curve[1:, 0] - curve[1:, -1]).mean().item()


def first(curve: Tensor) -> float:
    """The fall of layer 1 minus the largest fall of another layer."""
    falls = curve[1:, 0] - curve[1:, -1]
    return (falls[0] - falls[1:].max()).item()


def last(curve: Tensor) -> float:
    """The last layer minus the highest of the others, each its mean over the steps of the curve."""
    levels = curve[1:].mean(dim=1)
    return (levels[-1] - levels[:-1].max()).item()


def gap(curve: Tensor, other: Tensor) -> float:
    """curve − other, mean over the layers and the steps."""
    return (curve[1:] - other[1:]).mean().item()


def add(found: Measured, kinds: Sequence[str]) -> None:
    """The curves of every trained model, and the differences that P1's claim is about, with their controls.

    `other`, a second Transformer, is a control: between two of a kind there is no gap.
    """
    seen = {}
    for kind in ("transformer", "other", *kinds):
        if kind in found.records and (curve := curves(found.records[kind])) is not None:
            seen[kind] = curve
        elif kind in found.records:
            lost = next(look.step for look in found.records[kind].watched if not look.looked)
            found.diverged[f"{kind}/information"] = lost  # its other figures stand
    for kind, own in seen.items():
        place = found.controls if kind == "other" else found.figures
        for name, table in own.items():
            values = {f"information/{name}/{state}": curve for state, curve in enumerate(table.tolist())}
            (found.controls if name.startswith("shuffled_") else place).update(named(kind, values))
        place |= named(kind, _differences(own, seen.get("transformer"), ""))
        found.controls |= named(kind, _differences(own, seen.get("transformer"), "shuffled_"))
        found.controls |= named(kind, _untrained(own, seen.get("transformer")))


def _tables(own: dict[str, Tensor], prefix: str) -> list[Tensor]:
    """One (state, step) for each of DECIDING: with a prefix the value for shuffled labels, else less that."""
    noise = [own[f"shuffled_{name}"] for name in DECIDING]
    return noise if prefix else [own[name] - floor for name, floor in zip(DECIDING, noise, strict=True)]


def _differences(own: dict[str, Tensor], transformer: dict[str, Tensor] | None, prefix: str) -> Figures:
    tables = _tables(own, prefix)
    values: Figures = {
        "label_fall": [fall(table) for table in tables],
        "label_first": [first(table) for table in tables],
        "label_last": [last(table[:, 1:]) for table in tables],
    }
    if transformer is not None and own is not transformer:
        pairs = zip(_tables(transformer, prefix), tables, strict=True)
        values["label_gap"] = [gap(theirs[:, 1:], ours[:, 1:]) for theirs, ours in pairs]
    return {prefix + name: value for name, value in values.items()}


def _untrained(own: dict[str, Tensor], transformer: dict[str, Tensor] | None) -> Figures:
    tables = _tables(own, "")
    values: Figures = {"untrained_label_last": [last(table[:, :1]) for table in tables]}
    if transformer is not None and own is not transformer:
        pairs = zip(_tables(transformer, ""), tables, strict=True)
        values["untrained_label_gap"] = [gap(theirs[:, :1], ours[:, :1]) for theirs, ours in pairs]
    return values
