"""Can one see before training, or after five steps of it, that a training will fail?

Eight networks of 16 layers, each with five learning rates from 10⁻³ to 10⁻¹: about half of the trainings diverge or
learn nothing. What is measured of each, before training and again after five steps, on the first training examples:

| sign | what | alarming if |
|---|---|---|
| law | Π(1 + κ²)^(−½), κ = |branch|/|state|: the fidelity that branches at right angles leave | small |
| phi | Φ = Σ arcsin κ, the largest turn of the worst case | large |
| nonuniformity | ‖u − mean over tokens‖/‖u‖ of the last state: collapse | small |
| log_norm | Σ_ℓ μ(∂(Φ_ℓ(u) − u)/∂u), the rate at which two states part, u ↦ Φ_ℓ(u) one layer | large |
| defect | |Φ½(Φ½(u)) − Φ₁(u)|/|Φ₁(u) − u|: two half steps against a whole one, mean over layers | large |
| trust | (loss(θ) − loss(θ − η sign g))/(η‖g‖₁): what a step gains of what its gradient promises, η the rate | small |

and as controls what anybody would look at: the learning rate, the loss, the loss after that one step, the norm of the
gradient, |log| of the ratio of the gradients of first and last layer, and chance.

AUC: the share of pairs, one training that fails and one that does not, in which the first is the more alarming; a tie
is ½. Also among pairs of one learning rate, and of one network. A value that is not finite is the most alarming.

How the record is read, fixed before it was made. A training fails if it diverges or ends below an accuracy of 0.5. One
that diverged within the five steps has no value there and does not count there. The best control is the one with the
largest mean AUC over the seeds. Intervals are Student's over the seeds, at 95 % for the six signs together. A sign

- warns, if the interval of its AUC less that of the best control, within a seed, lies above 0;
- is as good as the best control, if that interval holds 0 and that of its AUC lies above ½;
- is worse than the best control, if the interval of the difference lies below 0;
- says nothing, else.

Networks, rates, depth and number of steps were set by a trial with a seed that is not recorded, in which none of the
signs was computed. The interval is over weights and batches: it knows of no other networks, rates or data.
"""

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pdebook.chapters.beyond.deep import Arm, arms, at, build, turning
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import Measured, Task, trained
from pdebook.ledger.record import Figures, Key, Result, Summary, interval
from pdelab.datasets.base import Examples, majority
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.models import Model
from pdelab.seeds import derive, normal
from pdelab.status import Status
from pdelab.training import Settings, Training

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
XS = (0.5, 1.0, 2**0.5, 2.0, 2 * 2**0.5)
NORMED = ("pre-LN", "post-LN", "DeepNorm")
EARLY = {Scale.SMOKE: 2, Scale.BOOK: 5}  # steps
TASKS = {
    Scale.SMOKE: Task("digits-rows", Settings(steps=4, batch=16), depth=2, width=8),
    Scale.BOOK: Task("digits-rows", Settings(steps=80, batch=32), depth=16, width=32),
}
SEEN, FEW = 64, 2  # training examples that the signs are measured on; those at which a Jacobian is computed
FAILS = 0.5

SIGNS = {"law": -1, "phi": 1, "nonuniformity": -1, "log_norm": 1, "defect": 1, "trust": -1}
CONTROLS = {"rate": 1, "loss": 1, "loss_after": 1, "gradient": 1, "gradient_ratio": 1, "chance": 1}
"""1 where a large value is alarming, −1 where a small one is."""

WORDS = {
    "law": "share of the input that the law leaves",
    "nonuniformity": "collapse of the tokens",
    "phi": "largest turn Φ, worst case",
    "log_norm": "sum of the log norms, worst case",
    "defect": "what half steps change",
    "trust": "what a step gains of what its gradient promises",
    "gradient_ratio": "control: gradient of first to last layer",
    "gradient": "control: norm of the gradient",
    "loss": "control: loss",
    "loss_after": "control: loss after one more step",
    "rate": "control: learning rate",
    "chance": "control: chance",
}

GROUPS = {
    "": lambda network, rate: 0,
    ", same rate": lambda network, rate: rate,
    ", same network": lambda network, rate: network,
}


def networks(depth: int) -> dict[str, Arm]:
    """No norm at five scales x/√(2L), and three with norms."""
    return {f"x={x:.3g}": at(x, depth) for x in XS} | {name: arms(depth)[name] for name in NORMED}


# Signs


def signs(model: Model, examples: Examples, rate: float) -> Figures:
    """All signs and controls but rate and chance, at the weights of now, in double precision."""
    model, examples = copy.deepcopy(model).cpu().double(), replace(examples, x=examples.x.cpu().double())
    states = model.trajectory(examples.x).states
    found = {name: value for name, value in turning(model, examples).items() if name in SIGNS}
    found |= {"log_norm": separation(model, states), "defect": halved(model, states)}
    return found | promised(model, examples, rate)


def _layer(model: Model, layer: int, u: Tensor, dt: float | None = None) -> Tensor:
    """Φ_ℓ(u): one step of the layer."""
    return model.integrator.step(model.equation, u, layer * model.dt, model.dt if dt is None else dt)


def separation(model: Model, states: Sequence[Tensor]) -> float:
    """Σ_ℓ μ(J_ℓ), J_ℓ the Jacobian of Φ_ℓ(u) − u at the states of the first two examples; mean over these."""
    rates = [
        logarithmic_norm(lambda u, layer=layer: _layer(model, layer, u) - u, u[:FEW])
        for layer, u in enumerate(states[: model.steps])
    ]
    return torch.stack(rates).sum(dim=0).mean().item()


def halved(model: Model, states: Sequence[Tensor]) -> float:
    """|Φ½(Φ½(u)) − Φ₁(u)|/|Φ₁(u) − u|, mean over examples and layers."""
    ratios = []
    for layer, u in enumerate(states[: model.steps]):
        whole, half = _layer(model, layer, u), _layer(model, layer, u, model.dt / 2)
        twice = _layer(model, layer, half, model.dt / 2)
        ratios.append((twice - whole).flatten(1).norm(dim=1) / (whole - u).flatten(1).norm(dim=1))
    return torch.stack(ratios).mean().item()


@torch.enable_grad()
def promised(model: Model, examples: Examples, rate: float) -> Figures:
    """loss, loss_after a step of η sign g, trust, gradient and gradient_ratio; the model stays as it is."""
    model = copy.deepcopy(model)
    weights = list(model.parameters())
    loss = cross_entropy(model(examples.x), examples.y)
    gradients = torch.autograd.grad(loss, weights)
    first, *_, last = (
        [g for w, g in zip(weights, gradients, strict=True) if any(w is own for own in equation.parameters())]
        for equation in model.equation.equations
    )
    with torch.no_grad():
        for weight, g in zip(weights, gradients, strict=True):
            weight.sub_(rate * g.sign())
        after = cross_entropy(model(examples.x), examples.y).item()
    steepness = sum(g.abs().sum().item() for g in gradients)
    return {
        "loss": loss.item(),
        "loss_after": after,
        "trust": (loss.item() - after) / (rate * steepness) if steepness else math.nan,
        "gradient": _norm(gradients),
        "gradient_ratio": abs(_log(_norm(first)) - _log(_norm(last))),
    }


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(g.double().square().sum().item() for g in tensors))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


# The experiment


@experiment("deep_warning", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Is a failing training foreseen by log norm, step doubling, trust, turning or collapse, beside plain controls?

    One seed of 40 trainings. Lists have one value for each, network by network; nan where there is none.
    """
    task, early = TASKS[scale], EARLY[scale]
    data = task.load(seed)
    seen = data.train.take(slice(0, SEEN))
    found = Measured(controls={"majority": majority(data)})
    plan = list(product(networks(task.depth).items(), RATES))
    records = []
    for (name, arm), rate in plan:
        settings = replace(task.settings, rate=rate, watch=(0, early), look=partial(signs, examples=seen, rate=rate))
        model = build(arm, task, task.depth, data, seed)
        label = f"{name} rate={rate:g}"
        records.append(trained(model, data, settings, derive(seed, "deep", "training"), work, label))
        found.made_by(records[-1].commits)
        if records[-1].status is Status.DIVERGED:
            found.diverged[label] = records[-1].stopped_at

    chance = normal(seed, "chance", size=(len(plan),)).tolist()
    _note(
        found, records, {"rate": [rate for _, rate in plan], "chance": chance}, [name for (name, _), _ in plan], early
    )
    own = {"hidden": 2 * task.width, "networks": list(networks(task.depth)), "rates": list(RATES), "early": early}
    return found.result("deep_warning", task, scale, seed, **own, definitions={"AUC": auc.__doc__.splitlines()[0]})


def _note(
    found: Measured, records: Sequence[Training], given: dict[str, list[float]], names: Sequence[str], early: int
) -> None:
    """Add outcomes, signs and AUCs to what was found."""
    accuracy = [r.accuracy if r.status is Status.FINISHED else math.nan for r in records]
    failed = [not a >= FAILS for a in accuracy]
    found.figures |= {"accuracy": accuracy, "failed": [float(one) for one in failed]}
    for when in (0, early):
        looked = [next((w.looked for w in r.watched if w.step == when), None) for r in records]
        here = [k for k, one in enumerate(looked) if one is not None]
        for table, into in ((SIGNS, found.figures), (CONTROLS, found.controls)):
            for sign, alarming in table.items():
                values = given.get(sign) or [math.nan if one is None else one[sign] for one in looked]
                into[Key(f"step {when}", sign)] = values
                for group, of in GROUPS.items():
                    same = [of(names[k], given["rate"][k]) for k in here]
                    into[Key(f"auc at step {when}{group}", sign)] = auc(
                        [alarming * values[k] for k in here], [failed[k] for k in here], same
                    )


def auc(alarm: Sequence[float], failed: Sequence[bool], groups: Sequence[object] | None = None) -> float:
    """P(alarm of one that fails > alarm of one that does not) + ½P(equal), over pairs of one group; NaN without pairs.

    >>> auc([3.0, 1.0, 2.0], [True, False, True]), auc([1.0, 1.0], [True, False])
    (1.0, 0.5)
    """
    value = torch.tensor([math.inf if math.isnan(one) else one for one in alarm], dtype=torch.float64)
    failed = torch.tensor(list(failed))
    groups = [0] * len(failed) if groups is None else list(groups)
    same = torch.tensor([[a == b for b in groups] for a in groups])
    pairs = same & failed.unsqueeze(1) & ~failed.unsqueeze(0)
    wins = (value.unsqueeze(1) > value.unsqueeze(0)).double() + (value.unsqueeze(1) == value.unsqueeze(0)).double() / 2
    return wins[pairs].mean().item() if pairs.any() else math.nan


# Reading the record


def aucs(results: Sequence[Result], sign: str, when: int, group: str = "") -> list[float]:
    """The AUC of a sign or control in each seed. group: "", ", same rate" or ", same network"."""
    tables = (r.figures if sign in SIGNS else r.controls for r in results)
    return [table[Key(f"auc at step {when}{group}", sign)] for table in tables]


def best_control(results: Sequence[Result], when: int, group: str = "") -> str:
    """The control with the largest mean AUC."""
    return max(CONTROLS, key=lambda name: statistics.fmean(aucs(results, name, when, group)))


def rows(results: Sequence[Result], when: int, group: str = "") -> list[tuple[str, Summary, Summary, str]]:
    """(sign, its AUC, that less the best control's, the words of this module), the largest AUC first; controls too."""
    best = aucs(results, best_control(results, when, group), when, group)
    made = []
    for sign in (*SIGNS, *CONTROLS):
        own, among = aucs(results, sign, when, group), len(SIGNS)
        alone = interval(own, among=among)
        beside = interval([a - b for a, b in zip(own, best, strict=True)], among=among)
        made.append((sign, alone, beside, "control" if sign in CONTROLS else _word(alone, beside)))
    return sorted(made, key=lambda row: -row[1].mean)


def _word(alone: Summary, beside: Summary) -> str:
    if beside.low > 0:
        return "warns"
    if beside.high < 0:
        return "worse than the best control"
    return "as good as the best control" if alone.low > 0.5 else "says nothing"
