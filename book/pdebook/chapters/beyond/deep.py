"""Does the theory help? A scale for the branches of a deep Transformer, chosen before training.

u ← u + sA(u), u ← u + sR(u), L layers, n = 2L branches of unit gain, |A(u)| ≈ |R(u)| ≈ |u|. Of s theorems say:

| theorem | keeps | so it takes | at L = 64 |
|---|---|---|---|
| branches at right angles | ρ = (1 + s²)^(−n/2) ≈ e^(−x²/2), s = x/√n | 1/√n, ρ ≈ 0.61 | x = 1 |
| worst case, Φ = Σ arcsin κ | ρ ≥ cos Φ while Φ < π/2 | 1/n, ρ ≥ 0.54 | x = 0.088 |
| limit of many layers | u(T) of an equation, T = sL | 1/L | x = 0.177 |

The law gives 1/√n up to a factor. That the factor is 1 was a guess from a first trial with one or two seeds at 12, 36
and 72 layers; it is tested here with other weights, other depths and other settings.

Beside them, with the same weights and batches: no norm and post-LayerNorm at s = 1, which are to fail; post-LayerNorm
with a warm-up, its usual remedy; and three networks made to be deep: pre-LayerNorm, ReZero (every branch times a
learned number that starts at 0), and DeepNorm, LN(αu + f(u)), α = (2L)^¼, with the matrices of f times (8L)^(−¼), which
is post-LayerNorm at s = 1/α. Nothing is tuned for any of them: one learning rate, a warm-up in one arm, no clipping.
The number of steps was set by a trial of five arms with a seed that is not recorded.

How the record is read, fixed before it was made. A run that diverged has the accuracy of the majority. Intervals are
Student's over the seeds, of differences within a seed, at 95 % for all comparisons of a question together.

1. The theory saves the network: at x = 1 the accuracy is above 0.8 in at least four of five seeds, and with no norm and
   with post-LayerNorm at s = 1 it is below 0.5 in at least four of five.
2. It keeps up: x = 1 reaches the median of the three peers less 0.02 in at least four of five seeds.
3. The law chooses better than the worst case and the limit: the intervals of x = 1 less 1/n and less 1/L lie above 0;
   "no" if one lies below 0; else undecided.
4. The factor is right: the same for x = 1 less x = 1/√2 and less x = √2, at each depth.
5. The edge belongs to the law: let x½ be where the accuracy falls through 0.5 beyond the best x, on a line between
   neighbours in log x. If it is the law that ends training, x½ is the same at both depths: "no" if the interval of
   log x½(64) − log x½(16) leaves out 0, "undecided" if it holds 0 and is longer than log 2, else "yes".

"Helps" is 1 and 2 together.
"""

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import Measured, Task, named, trained
from pdebook.ledger.record import Figures, Key, Result, Summary, interval
from pdelab.datasets.base import Dataset, Examples, majority
from pdelab.evaluation import evaluate
from pdelab.field import Field, Mask
from pdelab.metrics.stability import nonuniformity, push_constants
from pdelab.models import Model, transformer, with_ends
from pdelab.seeds import derive, stream
from pdelab.status import Status
from pdelab.terms.base import Term
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.training import Settings

XS = tuple(2 ** (k / 2) for k in range(-2, 4))  # x = s√n: ½ to 2√2, each √2 times the one before; √2 is s = 1/√L
DEPTHS = {Scale.SMOKE: (4, 2), Scale.BOOK: (64, 16)}  # that of all arms, and a smaller one for the sweep alone
TASKS = {
    Scale.SMOKE: Task("digits-rows", Settings(steps=4, batch=16), depth=4, width=8, probe=20),
    Scale.BOOK: Task("digits-rows", Settings(steps=150, batch=32), depth=64, width=32, probe=200),
}
PLAIN, PEERS = ("no norm", "post-LN"), ("pre-LN", "ReZero", "DeepNorm")
WORST, LIMIT = "1 over n", "1 over L"
TRAINS, FAILS, BEHIND = 0.8, 0.5, 0.02

DEFINITIONS = {
    "accuracy": "share of the test examples after the last step",
    "train_loss": "mean of the last ten steps",
    "gradient_largest": "largest norm of the gradient of all weights in any step",
    "rho": "cosine of an example's last state with its first, before a final norm; mean over examples",
    "untrained_...": "at the first weights",
    "predicted": "the law's rho from the scale alone, before any weight is drawn",
    "untrained_law": "product of (1 + kappa^2)^(-1/2), kappa = |branch|/|state| as measured",
    "untrained_phi": "sum of arcsin kappa; a kappa above 1 counts as 1",
    "untrained_growth": "|last state|/|first state|",
    "untrained_nonuniformity": "norm of u - mean over tokens by the norm of u, last state",
    "threshold": "sum of |V_h| over heads plus a Lipschitz constant of the network, mean over layers: what a "
    "stabilization would have to exceed",
    "exponent": "s times the sum of that over layers: log of the growth of a diameter that the worst case allows",
}


@dataclass(frozen=True)
class Arm:
    """How the layers are put together; the weights are the same for all.

    scale: s. gain: multiplies the matrices of value, output and network. gated: s is learned, one a branch, from 0.
    warmup: share of the steps.
    """

    norm: str = "none"
    scale: float = 1.0
    gain: float = 1.0
    gated: bool = False
    warmup: float = 0.0

    def predicted(self, depth: int) -> float:
        """ρ of the law of right angles: (1 + a²)^(−n/2), pre-LN (1 + a²n)^(−½), with a = s·gain², the branch's length.

        >>> round(Arm(scale=1 / math.sqrt(128)).predicted(64), 3)
        0.608
        """
        a, n = self.scale * self.gain**2 * (not self.gated), 2 * depth
        return (1 + n * a**2) ** -0.5 if self.norm == "pre" else (1 + a**2) ** (-n / 2)


def at(x: float, depth: int) -> Arm:
    """No norm, s = x/√(2L)."""
    return Arm(scale=x / math.sqrt(2 * depth))


def called(x: float, depth: int) -> str:
    """The name of an arm of the sweep.

    >>> called(2**0.5, 64)
    'L=64 x=1.41'
    """
    return f"L={depth} x={x:.3g}"


def arms(depth: int) -> dict[str, Arm]:
    """All arms but the sweep."""
    return {
        "no norm": Arm(),
        "post-LN": Arm("post"),
        "post-LN warm-up": Arm("post", warmup=0.25),
        WORST: Arm(scale=1 / (2 * depth)),
        LIMIT: Arm(scale=1 / depth),
        "pre-LN": Arm("pre"),
        "ReZero": Arm(gated=True),
        "DeepNorm": Arm("post", scale=(2 * depth) ** -0.25, gain=(8 * depth) ** -0.25),
    }


# The networks


class Gated(Term):
    """α T[u] with a learned number α that starts at 0: ReZero (Bachlechner et al. 2021), here one α for each branch."""

    def __init__(self, term: Term):
        super().__init__()
        self.term, self.symbol = term, term.symbol
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return self.alpha * self.term(u, t, mask)


def build(arm: Arm, task: Task, depth: int, data: Dataset, seed: int) -> Model:
    """The untrained network; arms of one depth and seed have the same matrices, embedding and readout."""
    sizes = {"width": task.width, "depth": depth, "heads": task.heads, "hidden": 2 * task.width}
    core = transformer(**sizes, norm=arm.norm, dt=arm.scale, final_norm=arm.norm == "pre")
    draw_unit(core, derive(seed, "deep", depth), arm.gain)
    if arm.gated:
        for equation in core.equation.equations:
            equation.terms = nn.ModuleList(Gated(term) for term in equation.terms)
    ends = {"length": data.length, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(seed, "deep", "ends"))


@torch.no_grad()
def draw_unit(model: Model, seed: int, gain: float = 1.0) -> None:
    """Matrices N(0, 1/fan-in), 2/fan-in after ReLU, and biases 0: branches about as long as what they read.

    gain: multiplies all of them but queries and keys.
    """
    generator = stream(seed, "unit")
    for term in model.modules():
        if not isinstance(term, Interaction | Reaction):
            continue
        layers = (term.qkv, term.out) if isinstance(term, Interaction) else (term.inner, term.outer)
        for layer in layers:
            spread = math.sqrt((2 if isinstance(term, Reaction) and layer is term.outer else 1) / layer.in_features)
            layer.weight.copy_(spread * torch.randn(layer.weight.shape, generator=generator))
            layer.bias.zero_()
            scaled = (
                layer.weight[2 * term.width :] if isinstance(term, Interaction) and layer is term.qkv else layer.weight
            )
            scaled.mul_(gain)


# Before training


def _size(u: Field) -> Tensor:
    return u.flatten(1).norm(dim=1)


@torch.no_grad()
def turning(model: Model, examples: Examples) -> Figures:
    """rho, law, phi, growth and nonuniformity of DEFINITIONS, in double precision; NaN where a state is not finite."""
    model = copy.deepcopy(model).cpu().double()
    start = u = model.embed(examples.x.cpu().double())
    kappa = []
    for equation in model.equation.equations:
        for term in equation.terms:
            push = model.dt * term(u)
            if term.symbol != "S":  # LayerNorm is no branch
                kappa.append(_size(push) / _size(u))
            u = u + push
            if not torch.isfinite(u).all():
                return dict.fromkeys(("rho", "law", "phi", "growth", "nonuniformity"), math.nan)
    kappas = torch.stack(kappa)  # (branch, example)
    return {
        "rho": torch.cosine_similarity(u.flatten(1), start.flatten(1), dim=1).mean().item(),
        "law": (1 + kappas**2).rsqrt().prod(dim=0).mean().item(),
        "phi": kappas.clamp(max=1).arcsin().sum(dim=0).mean().item(),
        "growth": (_size(u) / _size(start)).mean().item(),
        "nonuniformity": nonuniformity(u).item(),
    }


def allowed(model: Model, tokens: int) -> Figures:
    """threshold and exponent of DEFINITIONS, from the weights alone."""
    rates = []
    for equation in model.equation.equations:
        inner = [getattr(term, "term", term) for term in equation.terms]
        (attention,) = (term for term in inner if isinstance(term, Interaction))
        (network,) = (term for term in inner if isinstance(term, Reaction))
        values = attention.contraction(1e9)  # Σ‖V_h‖: of a diameter so large, tanh is 1
        rates.append(push_constants(tokens, values, network=network.constants(steps=0).lipschitz).diameter)
    started = not any(isinstance(term, Gated) for term in model.modules())  # else every branch is still 0
    return {"threshold": statistics.fmean(rates), "exponent": started * model.dt * math.fsum(rates)}


# The experiment


@experiment("deep_scale", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Does a branch scale chosen by a theorem train 64 layers, beside pre-LN, ReZero and DeepNorm?

    One seed of every arm; as controls what the theory says of each before training, and the majority.
    """
    task, (deep, shallow) = TASKS[scale], DEPTHS[scale]
    data = task.load(seed)
    found = Measured(controls={"majority": majority(data)})
    plan = {name: (arm, deep) for name, arm in arms(deep).items()}
    plan |= {called(x, depth): (at(x, depth), depth) for depth in (deep, shallow) for x in XS}
    for name, (arm, depth) in plan.items():
        _train(name, arm, task, depth, data, seed, work, found)
    own = {"hidden": 2 * task.width, "depths": [deep, shallow], "x": list(XS), "definitions": DEFINITIONS}
    return found.result("deep_scale", task, scale, seed, **own)


def _train(
    name: str, arm: Arm, task: Task, depth: int, data: Dataset, seed: int, work: Workplace, found: Measured
) -> None:
    """Measure an arm before training, train it and add what was found."""
    model = build(arm, task, depth, data, seed)
    probe = data.test.take(slice(0, task.probe))
    before = {f"untrained_{key}": value for key, value in turning(model, probe).items()}
    before |= {"untrained_accuracy": evaluate(model, data.test).accuracy, "predicted": arm.predicted(depth)}
    found.controls |= named(name, before | allowed(model, data.length))

    settings = replace(task.settings, warmup=int(arm.warmup * task.settings.steps))
    record = trained(model, data, settings, derive(seed, "deep", "training"), work, name)
    found.made_by(record.commits)
    if record.status is Status.DIVERGED:
        found.diverged[name] = record.stopped_at
        return
    after = {
        "accuracy": record.accuracy,
        "train_loss": statistics.fmean(record.losses[-10:]),
        "gradient_largest": max(record.gradient_norms),
        "rho": turning(model, probe)["rho"],
    }
    found.figures |= named(name, after)


# Reading the record


def accuracies(results: Sequence[Result], arm: str) -> list[float]:
    """Of each seed; that of the majority where the arm diverged."""
    return [r.controls["majority"] if arm in r.diverged else r.figures[Key(arm, "accuracy")] for r in results]


def rows(results: Sequence[Result]) -> list[dict[str, float | str | list[float]]]:
    """One row per arm: its accuracies, how many diverged, and the means of what was known before training."""
    known = ("predicted", "untrained_law", "untrained_rho", "untrained_phi", "untrained_nonuniformity", "exponent")
    names = dict.fromkeys(key.rpartition("/")[0] for key in results[0].controls if key.endswith("/predicted"))
    made = []
    for name in sorted(names, key=lambda name: -results[0].controls[Key(name, "predicted")]):
        before = {key: statistics.fmean(r.controls[Key(name, key)] for r in results) for key in known}
        lost = sum(name in r.diverged for r in results)
        made.append({"arm": name, "accuracy": accuracies(results, name), "diverged": lost} | before)
    return made


def curve(results: Sequence[Result], depth: int) -> list[tuple[float, list[float]]]:
    """(x, accuracy of each seed) of the sweep at this depth."""
    return [(x, accuracies(results, called(x, depth))) for x in XS]


def edge(points: Sequence[tuple[float, float]], level: float = FAILS) -> float:
    """Where the accuracy falls through the level beyond the best x, on lines in log x; ∞ if it does not.

    >>> edge([(0.5, 0.9), (1.0, 1.0), (2.0, 0.75), (4.0, 0.25)], 0.5) == 8**0.5
    True
    """
    best = max(range(len(points)), key=lambda k: points[k][1])
    for (x, high), (y, low) in zip(points[best:], points[best + 1 :], strict=False):
        if high >= level > low:
            return x * (y / x) ** ((high - level) / (high - low))
    return math.inf


def edges(results: Sequence[Result], depth: int) -> list[float]:
    """x½ of each seed at this depth."""
    per_seed = zip(*(values for _, values in curve(results, depth)), strict=True)
    return [edge(list(zip(XS, values, strict=True))) for values in per_seed]


def better(results: Sequence[Result], arm: str, others: Sequence[str]) -> dict[str, Summary]:
    """Accuracy of the arm less that of each other, paired by seed; the intervals hold all at once."""
    own = accuracies(results, arm)
    theirs = {name: accuracies(results, name) for name in others}
    return {
        name: interval([a - b for a, b in zip(own, values, strict=True)], among=len(others))
        for name, values in theirs.items()
    }


def above(found: Sequence[Summary]) -> str:
    """yes if every interval lies above 0, no if one lies below it."""
    if any(one.high < 0 for one in found):
        return "no"
    return "yes" if all(one.low > 0 for one in found) else "undecided"


def reading(results: Sequence[Result]) -> dict[str, str]:
    """The five questions of this module and what the record answers: yes, no or undecided; and "helps"."""
    deep, shallow = results[0].configuration["depths"]
    enough = math.ceil(0.8 * len(results))
    law = accuracies(results, called(1, deep))
    peers = [statistics.median(values) for values in zip(*(accuracies(results, name) for name in PEERS), strict=True)]
    trains = sum(a > TRAINS for a in law) >= enough
    fail = all(sum(a < FAILS for a in accuracies(results, name)) >= enough for name in PLAIN)
    keeps = sum(a >= b - BEHIND for a, b in zip(law, peers, strict=True)) >= enough
    drift = interval([math.log(a / b) for a, b in zip(edges(results, deep), edges(results, shallow), strict=True)])
    answers = {
        "saves": "yes" if trains and fail else "no",
        "keeps up": "yes" if keeps else "no",
        "better than the worst case": above(list(better(results, called(1, deep), (WORST, LIMIT)).values())),
    }
    for depth in (deep, shallow):
        beside = [called(x, depth) for x in (2**-0.5, 2**0.5)]
        answers[f"factor at {depth} layers"] = above(list(better(results, called(1, depth), beside).values()))
    answers["edge"] = _same(drift)
    return answers | {"helps": "yes" if trains and fail and keeps else "no"}


def _same(drift: Summary) -> str:
    if not drift.low <= 0 <= drift.high:  # also where an edge was not found
        return "no" if math.isfinite(drift.mean) else "undecided"
    return "yes" if drift.high - drift.low <= math.log(2) else "undecided"
