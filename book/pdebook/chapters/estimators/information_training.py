"""What estimators of information say of trained networks, over depth and over training, where the truth is known.

X is uniform over the n test images, which differ, and T is the mean over tokens of a state of the network, the vector
that a pooled readout sees: T = f(X) without noise. So I(X; T) = H(T) = log n, at every layer and every step, as long
as T is another vector for each image (`x_truth` counts, in double precision), and I(T; Y) = H(Y) by the same count.
What an estimator gives instead depends on its bins or its noise, on the scale of T and on its clusters. Here both
change, and the truth stands beside them. The activation acts inside the reaction: neither tanh nor ReLU bounds a state.

Rules, fixed before the first run:

- FALL: an estimator *calls compression* on a network's state if its curve over training ends more than 5 % of log n
  below its largest value.
- A rescaled state has the same information. `times0.125_` and `times8_`: T multiplied by a power of two, which changes
  no digit, with the range of shared bins and the noise left as they are; `level_`: T multiplied at each step so that
  its spread is that of the first step, which takes a change of scale out of a curve and leaves its shape.
- NOISE and RATIO: the noise of a channel over training, sigma itself or (mean variance of a feature)/sigma^2.
- `information falls in training` (P1 figure 8) holds if the truth falls on most pairs of a network and a state, or if
  all estimators at all scales call compression on most; it fails if the truth falls on none and most pairs are *split*:
  compression for one estimator or scale, none for another.
- Our statement holds if the truth is log n at every step of every pair and most are split; it fails if the truth is
  short by more than FALL anywhere.

One rule was added after the first run: a *dead* curve has no vote. It is 0 at all steps, since all inputs share a bin,
or log n at all steps, since none do: the estimator can see no fall there, and one such curve was enough to split a pair
on which all others fell. `voted` counts so; the figures `split` and `agreed` of a Result count dead curves too.
`expanding`, `opposed` and `follows_...` only describe: no rule uses them.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, fit, look
from pdebook.ledger.record import Figures, Result, summarise
from pdelab.datasets.base import Examples
from pdelab.metrics.information import (
    binned_information,
    channel_bounds,
    channel_information,
    entropy,
    per_unit_information,
    rows,
    usable_information,
)
from pdelab.seeds import derive, stream
from pdelab.status import Status

# kind and activation; two that differ in their activation alone share their first weights and their batches
MODELS = {
    "transformer": ("transformer", "relu"),
    "transformer tanh": ("transformer", "tanh"),
    "residual_norm": ("residual_norm", "relu"),
    "printed": ("printed", "relu"),
    "printed tanh": ("printed", "tanh"),
    "bare": ("bare", "relu"),
}
BINS, LIMITS = (5, 30), ("unit", "layer", "shared")
NOISES, RATIOS = (0.1, 0.3, 1.0), (0.1, 1.0, 10.0)  # over depth
NOISE, RATIO = 0.3, 1.0  # over training
FALL = 0.05  # of log n
SHUFFLES = 5
EXAMPLES = {Scale.SMOKE: 100, Scale.BOOK: 400}  # of the test set; 400 are all of it
WATCH = (0.0, 1 / 60, 1 / 20, 1 / 10, 1 / 5, 2 / 5, 2 / 3, 1.0)  # shares of the steps
SCALINGS = ("", "times0.125_", "times8_", "level_")

DEFINITIONS = {
    "T": "mean over tokens of a state, (example, feature); states: embedding, after each layer; examples: the test set",
    "x_...": "estimate of I(X; T) in nats", "y_...": "estimate of I(T; Y) in nats",
    "x_truth": "log n less what equal rows of T lose: the entropy of T over the n examples",
    "truth_single": "the same after T was rounded to single precision, which may merge examples",
    "binsB_LIMITS": "plug-in of rows of B bins a feature, between the least and largest value of a feature (unit), of "
    "all features (layer), or of all features, states and, over training, steps of the network (shared)",
    "noiseS_lower, noiseS_upper": "bounds of I(X; T + S z), z standard normal: the same noise for every state",
    "ratioR_lower, ratioR_upper": "the same with a noise of variance (mean variance of a feature)/R",
    "y_noiseS, y_ratioR": "I(Y; T + noise) by Monte Carlo, one draw an example",
    "y_unitB": "I(bin T_j; Y) by itself, B bins between its least and largest value; mean over features",
    "y_usable": "what a linear softmax probe tells of Y on examples held out, in nats",
    "rms": "root mean square of T", "spread": "root of the mean variance of a feature of T",
    "clustering": "variance of the class means over the variance of T, features summed: 0 none, 1 all",
    "untrained_...": "the same network at its first weights",
    "shuffled_...": "with labels permuted; mean of several permutations for y_unit and clustering, one for the others",
    "times0.125_..., times8_...": "T multiplied by this, range of shared bins and noise as before",
    "level_...": "T multiplied so that its spread is that of the first step",
    "MODEL/training/FIGURE/STATE": "one value for each step of `steps`",
    "MODEL/fall/ESTIMATOR": "(largest value over training - last)/log n, one value a state",
    "compressing/ESTIMATOR": "share of the pairs (network, state) whose fall is above FALL",
    "MODEL/change/ESTIMATOR": "(last value - first)/log n, one value a state",
    "expanding/ESTIMATOR": "share of the pairs whose change is above FALL",
    "opposed": "share of the pairs with compression for one estimator and expansion for another, unscaled",
    "split, split_unscaled": "share of the pairs on which not all estimators agree about that; at all scales, at one",
    "agreed": "share of the pairs on which all estimators at all scales call compression",
    "follows_scale, follows_clustering": "Spearman correlation over pairs of the change of an estimate (last step - "
    "first) with that of the logarithm of the spread, and of the clustering; 0 where one does not vary",
}  # fmt: skip


@dataclass
class Snapshots:
    """look(model) for a training: keeps T at every state, (state, example, feature), one tensor a watched step.

    Computed in double precision with the weights of now: in single precision inputs may be merged by rounding alone.
    """

    examples: Examples
    taken: list[Tensor] = field(default_factory=list)

    def __call__(self, model: nn.Module) -> Figures:
        run = look(copy.deepcopy(model).cpu().double(), self.examples)
        if len(run.states) == model.steps + 1:  # not if it diverged
            self.taken.append(torch.stack([rows(u, run.mask) for u in run.states]))
        return {}


def spread(t: Tensor) -> float:
    """(mean variance of a feature)^½ of t (sample, feature)."""
    return t.var(dim=0, correction=0).mean().sqrt().item()


def clustering(t: Tensor, y: Tensor) -> float:
    """Σ_c p_c |m_c − m|² / (mean of |t − m|²), m_c the mean of class c: the share of the variance between classes.

    Labels that have nothing to do with t give about (classes − 1)/(n − 1).
    """
    t = t.double() - t.double().mean(dim=0)
    member = torch.nn.functional.one_hot(y).double()
    sizes = member.sum(dim=0).clamp(min=1)
    means = member.T @ t / sizes.unsqueeze(1)
    return ((sizes * means.square().sum(dim=1)).sum() / t.square().sum()).item()


# Estimators of I(X; T): of T (sample, feature) and the range that the bins of all states share.

Estimator = Callable[[Tensor, tuple[float, float]], float]


def _bins(bins: int, limits: str, y: Tensor | None = None) -> Estimator:
    return lambda t, shared: float(binned_information(t, y, bins=bins, limits=shared if limits == "shared" else limits))


def channel(t: Tensor, **noise: float) -> Figures:
    """lower and upper bound of I(X; T + σZ)."""
    found = channel_bounds(t, **noise)
    return {"lower": found.lower, "upper": found.upper}


BINNED = {f"bins{bins}_{limits}": (bins, limits) for bins in BINS for limits in LIMITS}
# over training, those that depend on the scale of T and those that do not
MOVED = ("x_bins5_shared", "x_bins30_shared", f"x_noise{NOISE}_lower", f"x_noise{NOISE}_upper")
FIXED = ("x_bins5_unit", "x_bins5_layer", "x_bins30_unit", "x_bins30_layer")
FIXED += (f"x_ratio{RATIO}_lower", f"x_ratio{RATIO}_upper")


def about_input(t: Tensor, shared: tuple[float, float], *, moved: bool = True, fixed: bool = True) -> Figures:
    """The estimates of I(X; T) that are followed over training; moved: depend on the scale of T, fixed: do not."""
    wanted = (MOVED if moved else ()) + (FIXED if fixed else ())
    found = {f"x_{name}": _bins(*how)(t, shared) for name, how in BINNED.items() if f"x_{name}" in wanted}
    if moved:
        found |= {f"x_noise{NOISE}_{key}": value for key, value in channel(t, noise=NOISE).items()}
    if fixed:
        found |= {f"x_ratio{RATIO}_{key}": value for key, value in channel(t, ratio=RATIO).items()}
    return found


def about_label(t: Tensor, y: Tensor, seed: int) -> Figures:
    """The estimates of I(T; Y) that are followed over training, and the clustering."""
    return {
        "y_bins30_layer": float(binned_information(t, y, bins=30)),
        f"y_noise{NOISE}": float(channel_information(t, y, noise=NOISE, seed=seed)),
        f"y_ratio{RATIO}": float(channel_information(t, y, ratio=RATIO, seed=seed)),
    } | _over_units(t, [y])


def _over_units(t: Tensor, orders: Sequence[Tensor]) -> Figures:
    """y_unit and clustering, means over the label orders."""
    units = {
        f"y_unit{bins}": sum(per_unit_information(t, y, bins=bins).mean().item() for y in orders) / len(orders)
        for bins in BINS
    }
    return units | {"clustering": sum(clustering(t, y) for y in orders) / len(orders)}


def over_depth(states: Tensor, y: Tensor, seed: int) -> Figures:
    """Figures of the states (state, sample, feature), one value a state."""
    shared = (states.min().item(), states.max().item())
    return _gathered([_of_input(t, shared) | _of_label(t, [y], shared, seed) for t in states])


def shuffled(states: Tensor, y: Tensor, seed: int) -> Figures:
    """The figures that look at labels, for labels whose order was destroyed."""
    shared, generator = (states.min().item(), states.max().item()), stream(seed, "shuffled labels")
    orders = [y[torch.randperm(len(y), generator=generator)] for _ in range(SHUFFLES)]
    return _gathered([_of_label(t, orders, shared, seed) for t in states])


def _of_input(t: Tensor, shared: tuple[float, float]) -> Figures:
    found = {f"x_{name}": _bins(*how)(t, shared) for name, how in BINNED.items()}
    for kind, values in (("noise", NOISES), ("ratio", RATIOS)):
        for value in values:
            found |= {f"x_{kind}{value}_{key}": v for key, v in channel(t, **{kind: value}).items()}
    size = t.square().mean().sqrt().item()
    return found | {"rms": size} | _known(t)


def _known(t: Tensor) -> Figures:
    return {"x_truth": float(entropy(t)), "truth_single": float(entropy(t.float())), "spread": spread(t)}


def _of_label(t: Tensor, orders: Sequence[Tensor], shared: tuple[float, float], seed: int) -> Figures:
    y = orders[0]
    found = {f"y_{name}": _bins(*how, y)(t, shared) for name, how in BINNED.items()}
    for kind, values in (("noise", NOISES), ("ratio", RATIOS)):
        for value in values:
            found[f"y_{kind}{value}"] = float(channel_information(t, y, seed=seed, **{kind: value}))
    return found | {"y_usable": float(usable_information(t, y, seed=seed))} | _over_units(t, orders)


def _gathered(found: Sequence[Figures]) -> Figures:
    """One list a figure; six digits, since an untrained network may have a spread of 1e-6."""
    return {name: [float(f"{one[name]:.6g}") for one in found] for name in found[0]}


def over_training(taken: Tensor, y: Tensor, seed: int) -> Figures:
    """Curves FIGURE/STATE of taken (step, state, sample, feature), one value a step; SCALINGS in front of the rescaled.

    The bins that are shared have the range of all steps and states, unscaled.
    """
    shared = (taken.min().item(), taken.max().item())
    curves: Figures = {}
    for state, steps in enumerate(taken.unbind(dim=1)):
        first, found = spread(steps[0]), []
        for t in steps:
            size = spread(t)
            one = about_input(t, shared) | about_label(t, y, seed) | _known(t)
            if state in probed(taken.shape[1]):
                one["y_usable"] = float(usable_information(t, y, seed=seed))
            for scaling, factor in (("times0.125_", 0.125), ("times8_", 8.0), ("level_", first / size)):
                scaled = about_input(factor * t, shared, fixed=scaling == "times8_")
                one |= {f"{scaling}{name}": value for name, value in scaled.items()}
            found.append(one)
        curves |= {f"{name}/{state}": values for name, values in _gathered(found).items()}
    return curves


def probed(states: int) -> tuple[int, int, int]:
    """The states whose usable information is followed over training, the slowest of the figures."""
    return 0, states // 2, states - 1


def falls(curve: Sequence[float], n: int) -> float:
    """(largest − last)/log n.

    >>> round(falls([0.0, math.log(4), math.log(2)], 4), 3)
    0.5
    """
    return (max(curve) - curve[-1]) / math.log(n)


def changes(curve: Sequence[float], n: int) -> float:
    """(last − first)/log n."""
    return (curve[-1] - curve[0]) / math.log(n)


def calls(curves: Figures, n: int, measure: Callable = falls) -> dict[str, list[float]]:
    """ESTIMATOR → its fall at each state, or another measure of a curve; the rescaled among them."""
    found: dict[str, list[float]] = {}
    for name, curve in curves.items():
        estimator = name.rpartition("/")[0]
        if "x_" in estimator:
            found.setdefault(estimator, []).append(round(measure(curve, n), 5))
    return found


def agreement(found: Sequence[dict[str, list[float]]]) -> tuple[Figures, Figures]:
    """Of the falls of several networks: on how many pairs (network, state) each estimator calls compression.

    Figures and controls; `x_truth` is no estimator and has no say in `split`.
    """
    pairs = {name: torch.tensor([fall for one in found for fall in one[name]]) for name in found[0]}
    called = {name: fall > FALL for name, fall in pairs.items()}
    truth = called.pop("x_truth")
    every = torch.stack([*called.values()])
    plain = torch.stack([called[name] for name in (*MOVED, *FIXED)])

    def split(votes: Tensor) -> float:
        return (votes.any(dim=0) & ~votes.all(dim=0)).double().mean().item()

    shares = {name: value.double().mean().item() for name, value in called.items()}
    figures = {f"compressing/{name}": shares[name] for name in (*MOVED, *FIXED)}
    figures |= {"compressing/x_truth": truth.double().mean().item(), "pairs": float(len(truth))}
    figures |= {"split": split(every), "split_unscaled": split(plain)}
    figures |= {"agreed": every.all(dim=0).double().mean().item()}
    return figures, {f"compressing/{name}": share for name, share in shares.items() if name not in (*MOVED, *FIXED)}


def expansion(fallen: Sequence[dict[str, list[float]]], changed: Sequence[dict[str, list[float]]]) -> Figures:
    """expanding and opposed, of the falls and the changes of several networks."""
    falling, growing = (
        torch.tensor([[value for one in found for value in one[name]] for name in (*MOVED, *FIXED)]) > FALL
        for found in (fallen, changed)
    )
    shares = dict(zip((*MOVED, *FIXED), growing.double().mean(dim=1).tolist(), strict=True))
    opposed = (falling.any(dim=0) & growing.any(dim=0)).double().mean().item()
    return {f"expanding/{name}": share for name, share in shares.items()} | {"opposed": opposed}


def follows(curves: Sequence[Figures], states: int) -> Figures:
    """Does an estimate change with the scale of T or with its clusters?  Over all pairs, the truth being constant."""
    pairs = [(one, state) for one in curves for state in range(states)]

    def change(name: str, function: Callable[[float], float] = float) -> list[float]:
        return [function(one[f"{name}/{s}"][-1]) - function(one[f"{name}/{s}"][0]) for one, s in pairs]

    causes = {"follows_scale": change("spread", math.log), "follows_clustering": change("clustering")}
    found = {}
    for name in (*MOVED, *FIXED):
        effect = change(name)
        for key, cause in causes.items():
            varies = len({*effect}) > 1 and len({*cause}) > 1
            found[f"{key}/{name}"] = float(spearmanr(effect, cause).statistic) if varies else 0.0
    return found


def shortfall(curves: Sequence[Figures], n: int) -> float:
    """The largest share of log n by which the truth falls short, over all networks, states and steps."""
    truths = [value for one in curves for name, curve in one.items() if name.startswith("x_truth/") for value in curve]
    return max(0.0, 1 - min(truths) / math.log(n))


def _dead(curve: Sequence[float], n: int) -> bool:
    """0 at all steps or log n at all steps, in the six digits that are kept."""
    return max(curve) < 1e-5 or min(curve) > (1 - 1e-5) * math.log(n)


def voted(result: Result) -> Figures:
    """Shares of the pairs of a Result, dead curves left out: `agreed`, all others call compression; `split`, some do.

    A pair with fewer than two curves that are not dead is neither. `dead`: the share of the curves.
    """
    curves: dict[tuple[str, str], list[list[float]]] = {}
    for name, curve in (result.figures | result.controls).items():
        network, training, rest = name.partition("/training/")
        estimator, _, state = rest.rpartition("/")
        if training and "x_" in estimator and estimator != "x_truth":
            curves.setdefault((network, state), []).append(curve)
    if not curves:
        raise ValueError("result must hold curves MODEL/training/FIGURE/STATE; run information_training anew")
    n, agreed, split, alive, tried = result.configuration["n"], 0, 0, 0, 0
    for found in curves.values():
        calls = [falls(curve, n) > FALL for curve in found if not _dead(curve, n)]
        agreed += len(calls) > 1 and all(calls)
        split += any(calls) and not all(calls)
        alive, tried = alive + len(calls), tried + len(found)
    return {"agreed": agreed / len(curves), "split": split / len(curves), "dead": 1 - alive / tried}


def decide(results: Sequence[Result]) -> dict[str, dict[str, bool]]:
    """The rules of the module's docstring, in every seed: {"printed": {"holds": …, "fails": …}, "repair": {…}}."""
    if not results or not all(result.figures for result in results):
        raise ValueError("results must hold at least one finished run, and none without figures")
    seen = [result.figures | voted(result) for result in results]
    falling = all(one["compressing/x_truth"] > 0.5 or one["agreed"] > 0.5 for one in seen)
    split = all(one["split"] > 0.5 for one in seen)
    constant = all(one["compressing/x_truth"] == 0 for one in seen)
    exact = all(one["true_shortfall"] <= 1e-5 for one in seen)  # figures are rounded to six digits
    short = any(one["true_shortfall"] > FALL for one in seen)
    return {
        "printed": {"holds": falling, "fails": constant and split and not falling},
        "repair": {"holds": exact and split, "fails": short},
    }


def curve(results: Sequence[Result], model: str, figure: str, state: int | None = None, *, control: bool = False):
    """Summaries over seeds, to be drawn: over depth, or over training for one state.

    >>> from pdebook.ledger.record import Store
    >>> found = Store().load("information_training", "book")
    >>> len(curve(found, "printed", "x_bins30_layer")), len(curve(found, "printed", "spread", state=6))
    (7, 8)
    """
    return summarise(
        results, f"{model}/{figure}" if state is None else f"{model}/training/{figure}/{state}", control=control
    )


@experiment("information_training", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Estimates of I(X; T) and I(T; Y) in trained networks, over depth and training, beside the truth and rescaled."""
    base = TASKS["images"][scale]
    steps = tuple(sorted({round(share * base.settings.steps) for share in WATCH}))
    data = base.load(seed)
    base = replace(base, settings=replace(base.settings, watch=steps), probe=EXAMPLES[scale])
    examples = data.test.take(slice(0, base.probe))
    y, n, doubled = examples.y, len(examples), replace(examples, x=examples.x.double())
    found, curves, fallen, changed = Measured(), [], [], []
    nowhere = replace(work, folder=None)  # states seen on the way are in no checkpoint: an interrupted run begins anew
    for name, (kind, activation) in MODELS.items():
        seen = Snapshots(doubled)
        task = replace(base, activation=activation)
        _, record = fit(kind, task, data, seed, nowhere, label=name.removeprefix(kind), look=seen)
        found.made_by(record.commits)
        if record.status == Status.DIVERGED or len(seen.taken) < len(steps):
            found.diverged[name] = record.stopped_at or record.step
            continue
        taken, own = torch.stack(seen.taken), derive(seed, name)
        figures, before = (over_depth(taken[step], y, own) for step in (-1, 0))
        curves.append(over_training(taken, y, own))
        fallen.append(calls(curves[-1], n))
        changed.append(calls(curves[-1], n, changes))
        figures |= {f"training/{key}": value for key, value in curves[-1].items() if not key.startswith(SCALINGS[1:])}
        figures |= {f"fall/{key}": value for key, value in fallen[-1].items() if not key.startswith(SCALINGS[1:])}
        figures |= {f"change/{key}": changed[-1][key] for key in (*MOVED, *FIXED)}
        figures |= {"accuracy": record.accuracy, "accuracies": [e.accuracy for e in record.evaluations]}
        others = {f"untrained_{key}": value for key, value in before.items()}
        others |= {f"shuffled_{key}": value for key, value in shuffled(taken[-1], y, own).items()}
        others |= {f"training/{key}": value for key, value in curves[-1].items() if key.startswith(SCALINGS[1:])}
        others |= {f"fall/{key}": value for key, value in fallen[-1].items() if key.startswith(SCALINGS[1:])}
        found.figures |= {f"{name}/{key}": value for key, value in figures.items()}
        found.controls |= {f"{name}/{key}": value for key, value in others.items()}
    if curves:
        figures, rescaled = agreement(fallen)
        found.figures |= (
            figures
            | expansion(fallen, changed)
            | follows(curves, base.depth + 1)
            | {"true_shortfall": shortfall(curves, n)}
        )
        found.controls |= rescaled
    chosen = {"steps": list(steps), "n": n, "log_n": math.log(n), "label_entropy": float(entropy(y)), "fall": FALL}
    chosen |= {"models": {name: list(how) for name, how in MODELS.items()}, "states": base.depth + 1}
    chosen |= {"definitions": DEFINITIONS, "shuffles": SHUFFLES}
    return found.result("information_training", base, scale, seed, **chosen)
