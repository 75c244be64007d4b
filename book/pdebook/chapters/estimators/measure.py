"""What estimators of information say of trained networks, where the truth is known: two experiments.

`estimators`: many settings of an estimator on one network whose information can be counted.

`information_training`: networks on digits, over depth and over training. X is uniform over the n test images, which
differ, and T is the mean over tokens of a state of the network, the vector that a pooled readout sees: T = f(X) without
noise. So I(X; T) = H(T) = log n, at every layer and every step, as long as T is another vector for each image
(`x_truth` counts, in double precision), and I(T; Y) = H(Y) by the same count. What an estimator gives instead depends
on its bins or its noise, on the scale of T and on its clusters. Here both change, and the truth stands beside them. The
activation acts inside the reaction: neither tanh nor ReLU bounds a state.

Rules, fixed before the first run:

- FALL: an estimator *calls compression* on a network's state if its curve over training ends more than 5 % of log n
  below its largest value.
- A rescaled state has the same information. `times0.125_` and `times8_`: T multiplied by a power of two, which changes
  no digit, with the range of shared bins and the noise left as they are; `level_`: T multiplied at each step so that
  its spread is that of the first step, which takes a change of scale out of a curve and leaves its shape.
- NOISE and RATIO: the noise of a channel over training, σ itself or (mean variance of a feature)/σ².
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
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pdebook.chapters.estimators import laws
from pdebook.chapters.estimators.laws import FALL, FIXED, MOVED, SCALINGS
from pdebook.evidence import countable
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, fit, look, named
from pdebook.ledger.record import Figures, Key, Result, Summary, summarise
from pdelab.datasets.base import Examples
from pdelab.metrics.information import entropy, per_unit_information, rows, usable_information
from pdelab.models import Model
from pdelab.seeds import derive
from pdelab.status import Status

ACTIVATIONS = ("tanh", "relu")

# Of `information_training`: kind and activation. Two that differ in their activation alone share their first weights
# and their batches.
MODELS = {
    "transformer": ("transformer", "relu"),
    "transformer tanh": ("transformer", "tanh"),
    "residual_norm": ("residual_norm", "relu"),
    "printed": ("printed", "relu"),
    "printed tanh": ("printed", "tanh"),
    "bare": ("bare", "relu"),
}
EXAMPLES = {Scale.SMOKE: 100, Scale.BOOK: 400}  # of the test set; 400 are all of it
WATCH = (0.0, 1 / 60, 1 / 20, 1 / 10, 1 / 5, 2 / 5, 2 / 3, 1.0)  # shares of the steps

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


def mean_states(model: Model, examples: Examples) -> dict[str, Tensor]:
    """For a training to look at: T at every state, (state, example, feature), as `T`; nothing if the model diverged.

    Computed in double precision with the weights of now: in single precision inputs may be merged by rounding alone.
    """
    run = look(copy.deepcopy(model).cpu().double(), replace(examples, x=examples.x.double()))
    if run.status is Status.DIVERGED:
        return {}
    return {"T": torch.stack([rows(u, run.mask) for u in run.states])}


@experiment("estimators", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Estimates of information by many settings on one network whose information is known (P1 fig 8, P2 thm 3.5).

    tanh, relu: the mean state of a Transformer that learned two parities of nine bits; stack: six layers that preserve
    everything. MODEL/X SETTING and MODEL/Y SETTING: one value a layer. controls: the same with shuffled labels.
    """
    steps = 20 if scale == Scale.SMOKE else 300
    stack = laws.preserving(seed)
    figures: Figures = {Key("stack", f"X {name}"): estimates for name, estimates in laws.sweep(stack, seed=seed)}
    figures[Key("stack", "true X")] = [countable.counted(t) for t in stack]
    controls: Figures = {}

    x = countable.inputs()
    y = countable.parities(x)
    mixed = laws.shuffled(y, seed)
    for kind in ACTIVATIONS:
        model = countable.build(derive(seed, kind), activation=kind)
        figures[Key(kind, "accuracy")] = countable.fit(model, x, y, steps)
        layers = [rows(u) for u in countable.states(model, x).states]  # the mean over tokens of every state

        figures[Key(kind, "true X")] = [countable.counted(t) for t in layers]
        figures[Key(kind, "true Y")] = [countable.counted(t, y) for t in layers]
        figures |= {Key(kind, f"X {name}"): estimates for name, estimates in laws.sweep(layers, seed=seed)}
        for labels, into in ((y, figures), (mixed, controls)):
            into |= {Key(kind, f"Y {name}"): estimates for name, estimates in laws.sweep(layers, labels, seed=seed)}
            into[Key(kind, "usable")] = [usable_information(t, labels, seed=seed).value for t in layers]
            into[Key(kind, "per unit")] = [per_unit_information(t, labels, bins=8).mean().item() for t in layers]

    return Result(
        experiment="estimators",
        configuration={
            "bins": list(laws.BINS),
            "noises": list(laws.NOISES),
            "units": list(laws.UNITS),
            "ratios": list(laws.RATIOS),
            "steps": steps,
            "bits": countable.BITS,
        },
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )


def changes(results: Sequence[Result], kind: str, settings: Sequence[str]) -> Tensor:
    """The mean over seeds of `laws.change` of the estimates of I(X; T) of a model, one value per setting."""
    means = [[row.mean for row in summarise(results, Key(kind, f"X {name}"))] for name in settings]
    return torch.tensor([laws.change(course) for course in means])


def tables(results: Sequence[Result], kind: str) -> tuple[Tensor, Tensor]:
    """`changes` as two tables: bins against the range (unit, layer, shared in each of UNITS), noise against UNITS."""
    ranges = [*laws.LIMITS[:2], *(f"shared, units {unit:g}" for unit in laws.UNITS)]
    by_bins = [changes(results, kind, [f"bins {bins} {limits}" for limits in ranges]) for bins in laws.BINS]
    by_noise = [
        changes(results, kind, [f"noise {noise:g}, units {unit:g}" for unit in laws.UNITS]) for noise in laws.NOISES
    ]
    return torch.stack(by_bins), torch.stack(by_noise)


@experiment("information_training", Scale.SMOKE, Scale.BOOK)
def run_training(scale: Scale, seed: int, work: Workplace) -> Result:
    """Estimates of I(X; T) and I(T; Y) in trained networks, over depth and training, beside the truth and rescaled."""
    base = TASKS["images"][scale]
    steps = tuple(sorted({round(share * base.settings.steps) for share in WATCH}))
    base = replace(base, settings=replace(base.settings, watch=steps), probe=EXAMPLES[scale])
    data = base.load(seed)
    examples = data.test.take(slice(0, base.probe))
    y, n = examples.y, len(examples)

    found, curves, fallen, risen = Measured(), [], [], []
    for name, (kind, activation) in MODELS.items():
        task = replace(base, activation=activation)
        seen = partial(mean_states, examples=examples)
        _, record = fit(kind, task, data, seed, work, label=name.removeprefix(kind), look=seen)
        found.made_by(record.commits)
        if record.status == Status.DIVERGED or not all(one.looked for one in record.watched):
            found.diverged[name] = record.stopped_at or record.step
            continue

        taken, own = torch.stack([one.looked["T"] for one in record.watched]), derive(seed, name)
        curves.append(laws.over_training(taken, y, own))
        fallen.append(laws.calls(curves[-1], n))
        risen.append(laws.calls(curves[-1], n, laws.rises))

        accuracies = {"accuracy": record.accuracy, "accuracies": [e.accuracy for e in record.evaluations]}
        found.figures |= named(name, laws.over_depth(taken[-1], y, own) | accuracies)
        found.figures |= named(Key(name, "change"), {key: risen[-1][key] for key in (*MOVED, *FIXED)})
        for part, table in (("training", curves[-1]), ("fall", fallen[-1])):
            rescaled = {key: value for key, value in table.items() if key.startswith(SCALINGS[1:])}
            found.controls |= named(Key(name, part), rescaled)
            plain = {key: value for key, value in table.items() if key not in rescaled}
            found.figures |= named(Key(name, part), plain)

        before = laws.over_depth(taken[0], y, own)
        found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
        mixed = laws.over_depth_shuffled(taken[-1], y, own)
        found.controls |= named(name, {f"shuffled_{key}": value for key, value in mixed.items()})

    if curves:
        figures, controls = laws.agreement(fallen)
        figures |= laws.expansion(fallen, risen) | laws.follows(curves, base.depth + 1)
        found.figures |= figures | {"true_shortfall": laws.shortfall(curves, n)}
        found.controls |= controls

    chosen = {"steps": list(steps), "n": n, "log_n": math.log(n), "label_entropy": float(entropy(y)), "fall": FALL}
    chosen |= {"models": {name: list(how) for name, how in MODELS.items()}, "states": base.depth + 1}
    chosen |= {"definitions": DEFINITIONS, "shuffles": laws.SHUFFLES}
    return found.result("information_training", base, scale, seed, **chosen)


def voted(result: Result) -> Figures:
    """Shares of the pairs of a Result, dead curves left out: `agreed`, all others call compression; `split`, some do.

    A pair with fewer than two curves that are not dead is neither. `dead`: the share of the curves.
    """
    curves: dict[tuple[str, str], list[list[float]]] = {}  # (network, state) -> one curve per estimator
    for name, curve in (result.figures | result.controls).items():
        network, training, rest = name.partition("/training/")
        estimator, _, state = rest.rpartition("/")
        if training and "x_" in estimator and estimator != "x_truth":
            curves.setdefault((network, state), []).append(curve)
    if not curves:
        raise ValueError("result must hold curves MODEL/training/FIGURE/STATE; run information_training anew")

    n, agreed, split, alive, tried = result.configuration["n"], 0, 0, 0, 0
    for pair in curves.values():
        calls = [laws.falls(curve, n) > FALL for curve in pair if not laws.dead(curve, n)]
        agreed += len(calls) > 1 and all(calls)
        split += any(calls) and not all(calls)
        alive += len(calls)
        tried += len(pair)
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


def curve(
    results: Sequence[Result], model: str, figure: str, state: int | None = None, *, control: bool = False
) -> list[Summary]:
    """Summaries over seeds, to be drawn: over depth, or over training for one state.

    >>> from pdebook.ledger.record import Store
    >>> found = Store().load("information_training", "book")
    >>> len(curve(found, "printed", "x_bins30_layer")), len(curve(found, "printed", "spread", state=6))
    (7, 8)
    """
    key = Key(model, figure) if state is None else Key(model, "training", figure, state)
    return summarise(results, key, control=control)


def ends(
    results: Sequence[Result], model: str, noise: str, state: int | None = None, *, untrained: bool = False
) -> list[list[float]]:
    """The lower and the upper bound of I(X; T + σZ), means over seeds; noise: "noise0.3" or "ratio1.0"."""
    start = "untrained_" if untrained else ""
    names = [f"{start}x_{noise}_{end}" for end in ("lower", "upper")]
    return [[row.mean for row in curve(results, model, name, state, control=untrained)] for name in names]
