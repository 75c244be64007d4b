"""What bins, noise, scale and the range of the bins make of one and the same states, where the truth is known.

X is one of finitely many inputs, and which of them a state T tells apart can be counted. The units of a layer are free:
T_ℓ times unit^ℓ, undone by the next layer, is the same network. An estimate of I(X; T) that moves with the number of
bins, with the noise or with the units describes the estimator.

First the estimates of one network under many settings; then curves over the training of several networks, and what
they call compression.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import one_hot

from pdebook.evidence import countable
from pdebook.ledger.record import Figures, Key
from pdelab.metrics.information import (
    binned_information,
    channel_bounds,
    channel_information,
    entropy,
    gaussian_channel,
    per_unit_information,
    usable_information,
)
from pdelab.seeds import normal, stream

BINS = (2, 4, 8, 16, 32)
LIMITS = ("unit", "layer", "shared")
NOISES = (0.03, 0.1, 0.3, 1.0, 3.0)
UNITS = (0.25, 0.5, 1.0, 2.0)
RATIOS = (1.0, 10.0, 100.0)


def preserving(seed: int, inputs: int = 512, width: int = 8, depth: int = 6) -> list[Tensor]:
    """T₀ … T_L of h ← Q(h + ½ tanh h)/1.3, Q orthogonal: each layer is a bijection, so I(X; T) = log n at each."""
    layers = [normal(seed, "inputs", size=(inputs, width))]
    for number in range(depth):
        Q = torch.linalg.qr(normal(seed, "Q", number, size=(width, width))).Q
        layers.append((layers[-1] + 0.5 * torch.tanh(layers[-1])) / 1.3 @ Q.T)
    return layers


def linear_gaussian(seed: int, scales: Sequence[float], noise: float = 1.0, inputs: int = 2000) -> tuple[Tensor, ...]:
    """I(X; sWX + σZ) by Monte Carlo, and ½ log det(1 + s²WWᵀ/σ²), for each scale s; X is normal with four features."""
    W = normal(seed, "W", size=(4, 4)) / 2
    t = normal(seed, "X", size=(inputs, 4)) @ W.T
    seen = [channel_information(s * t, noise=noise, seed=seed).value for s in scales]
    law = [gaussian_channel(s**2 * W @ W.T, noise).item() for s in scales]
    return torch.tensor(seen, dtype=torch.float64), torch.tensor(law, dtype=torch.float64)


def scales_for(layers: Sequence[Tensor], wanted: Sequence[float], noise: float = 1.0, seed: int = 0) -> list[float]:
    """The scale of every layer at which I(X; sT + σZ), estimated with the same draws of Z, has the wanted value."""
    if not all(0 < value < math.log(len(t)) for t, value in zip(layers, wanted, strict=True)):
        raise ValueError("wanted must lie strictly between 0 and log n, n the number of inputs")
    found = []
    for t, value in zip(layers, wanted, strict=True):
        low, high = -12.0, 12.0  # log s
        for _ in range(20):
            middle = (low + high) / 2
            less = channel_information(math.exp(middle) * t, noise=noise, seed=seed).value < value
            low, high = (middle, high) if less else (low, middle)
        found.append(math.exp((low + high) / 2))
    return found


def xor(seed: int, number: int = 400, spread: float = 0.3) -> tuple[Tensor, Tensor]:
    """Four clouds about (±1, ±1), (number, 2), and Y = 1 where the signs differ: no line tells them apart."""
    signs = 2 * torch.randint(2, (number, 2), generator=stream(seed, "signs")).double() - 1
    return signs + spread * normal(seed, "cloud", size=(number, 2)), (signs.prod(dim=1) < 0).long()


def shuffled(y: Tensor, seed: int) -> Tensor:
    """The labels in another order."""
    return y[torch.randperm(len(y), generator=stream(seed, "shuffled"))]


def binned(layers: Sequence[Tensor], bins: int, limits: str, y: Tensor | None = None) -> list[float]:
    """I(X; bin T), or I(bin T; Y), of every layer; limits "shared": one range for all layers."""
    if limits == "shared":
        limits = min(t.min().item() for t in layers), max(t.max().item() for t in layers)
    return [binned_information(t, y, bins=bins, limits=limits).value for t in layers]


def noisy(layers: Sequence[Tensor], y: Tensor | None = None, *, seed: int = 0, **noise: float) -> list[float]:
    """I(X; T + σZ), or I(Y; T + σZ), of every layer; noise=σ, or ratio= a signal-to-noise ratio."""
    return [channel_information(t, y, seed=seed, **noise).value for t in layers]


def sweep(layers: Sequence[Tensor], y: Tensor | None = None, seed: int = 0) -> Iterator[tuple[str, list[float]]]:
    """(setting, one value per layer) for every setting: "bins K unit", "bins K shared, units S", "noise σ, units S"."""
    for bins in BINS:
        for limits in LIMITS[:2]:
            yield f"bins {bins} {limits}", binned(layers, bins, limits, y)
        for unit in UNITS:
            yield f"bins {bins} shared, units {unit:g}", binned(countable.rescaled(layers, unit), bins, "shared", y)

    for noise in NOISES:
        for unit in UNITS:
            estimates = noisy(countable.rescaled(layers, unit), y, seed=seed, noise=noise)
            yield f"noise {noise:g}, units {unit:g}", estimates

    for ratio in RATIOS:
        yield f"ratio {ratio:g}", noisy(layers, y, seed=seed, ratio=ratio)


def change(course: Sequence[float], first: int = 1) -> float:
    """From layer `first` to the last, in nats: negative is what is called compression."""
    return course[-1] - course[first]


# Trained networks. Estimates of a state T (example, feature) on n examples: x_… of I(X; T), y_… of I(T; Y).

FEW_BINS = (5, 30)
DEPTH_NOISES, DEPTH_RATIOS = (0.1, 0.3, 1.0), (0.1, 1.0, 10.0)  # at the end of the training
NOISE, RATIO = 0.3, 1.0  # over training
FALL = 0.05  # of log n: a larger fall is called compression
SHUFFLES = 5
SCALINGS = ("", "times0.125_", "times8_", "level_")
BINNED = {f"bins{bins}_{limits}": (bins, limits) for bins in FEW_BINS for limits in LIMITS}

# Followed over training: the estimates that depend on the scale of T, and those that do not.
MOVED = ("x_bins5_shared", "x_bins30_shared", f"x_noise{NOISE}_lower", f"x_noise{NOISE}_upper")
FIXED = ("x_bins5_unit", "x_bins5_layer", "x_bins30_unit", "x_bins30_layer")
FIXED += (f"x_ratio{RATIO}_lower", f"x_ratio{RATIO}_upper")

Range = tuple[float, float]  # of the bins that all states share


def spread(t: Tensor) -> float:
    """(mean variance of a feature)^½ of t (example, feature)."""
    return t.var(dim=0, correction=0).mean().sqrt().item()


def clustering(t: Tensor, y: Tensor) -> float:
    """Σ_c p_c |m_c − m|² / (mean of |t − m|²), m_c the mean of class c: the share of the variance between classes.

    Labels that have nothing to do with t give about (classes − 1)/(n − 1).
    """
    t = t.double() - t.double().mean(dim=0)
    member = one_hot(y).double()
    sizes = member.sum(dim=0).clamp(min=1)
    means = member.T @ t / sizes.unsqueeze(1)
    return ((sizes * means.square().sum(dim=1)).sum() / t.square().sum()).item()


def about_input(t: Tensor, shared: Range, *, moved: bool = True, fixed: bool = True) -> Figures:
    """The estimates of I(X; T) that are followed over training; moved: depend on the scale of T, fixed: do not."""
    wanted = (MOVED if moved else ()) + (FIXED if fixed else ())
    figures = {f"x_{name}": _in_bins(name, t, shared) for name in BINNED if f"x_{name}" in wanted}
    if moved:
        figures |= _bounds("noise", NOISE, t)
    if fixed:
        figures |= _bounds("ratio", RATIO, t)
    return figures


def about_label(t: Tensor, y: Tensor, seed: int) -> Figures:
    """The estimates of I(T; Y) that are followed over training, and the clustering."""
    return {
        "y_bins30_layer": float(binned_information(t, y, bins=30)),
        f"y_noise{NOISE}": float(channel_information(t, y, noise=NOISE, seed=seed)),
        f"y_ratio{RATIO}": float(channel_information(t, y, ratio=RATIO, seed=seed)),
    } | _over_orders(t, [y])


def over_depth(states: Tensor, y: Tensor, seed: int) -> Figures:
    """Every figure of the states (state, example, feature), one value per state."""
    shared = (states.min().item(), states.max().item())
    return _gathered([_all_of_input(t, shared) | _all_of_label(t, [y], shared, seed) for t in states])


def over_depth_shuffled(states: Tensor, y: Tensor, seed: int) -> Figures:
    """The figures that look at labels, for labels whose order was destroyed."""
    shared, generator = (states.min().item(), states.max().item()), stream(seed, "shuffled labels")
    orders = [y[torch.randperm(len(y), generator=generator)] for _ in range(SHUFFLES)]
    return _gathered([_all_of_label(t, orders, shared, seed) for t in states])


def over_training(taken: Tensor, y: Tensor, seed: int) -> Figures:
    """Curves FIGURE/STATE of taken (step, state, example, feature), one value per step.

    Those of a rescaled T have one of SCALINGS in front. The bins that are shared have the range of all steps and
    states, unscaled.
    """
    shared = (taken.min().item(), taken.max().item())
    curves: Figures = {}
    for state, steps in enumerate(taken.unbind(dim=1)):
        seen = []
        for t in steps:
            one = about_input(t, shared) | about_label(t, y, seed) | _known(t)
            if state in probed(taken.shape[1]):
                one["y_usable"] = float(usable_information(t, y, seed=seed))
            for scaling, factor in (("times0.125_", 0.125), ("times8_", 8.0), ("level_", spread(steps[0]) / spread(t))):
                scaled = about_input(factor * t, shared, fixed=scaling == "times8_")
                one |= {f"{scaling}{name}": value for name, value in scaled.items()}
            seen.append(one)
        curves |= {Key(name, state): values for name, values in _gathered(seen).items()}
    return curves


def probed(states: int) -> tuple[int, int, int]:
    """The states whose usable information is followed over training, the slowest of the figures."""
    return 0, states // 2, states - 1


def _in_bins(name: str, t: Tensor, shared: Range, y: Tensor | None = None) -> float:
    """I(X; bin T), or I(bin T; Y), with the bins and the range that BINNED has under this name."""
    bins, limits = BINNED[name]
    return float(binned_information(t, y, bins=bins, limits=shared if limits == "shared" else limits))


def _bounds(kind: str, size: float, t: Tensor) -> Figures:
    """Lower and upper bound of I(X; T + σZ); kind: noise, σ itself, or ratio, of the mean variance to σ²."""
    bounds = channel_bounds(t, **{kind: size})
    return {f"x_{kind}{size}_lower": bounds.lower, f"x_{kind}{size}_upper": bounds.upper}


def _channels() -> list[tuple[str, float]]:
    return [("noise", size) for size in DEPTH_NOISES] + [("ratio", size) for size in DEPTH_RATIOS]


def _known(t: Tensor) -> Figures:
    """The truth, counted, also after rounding to single precision; and the spread of T."""
    return {"x_truth": float(entropy(t)), "truth_single": float(entropy(t.float())), "spread": spread(t)}


def _all_of_input(t: Tensor, shared: Range) -> Figures:
    figures: Figures = {f"x_{name}": _in_bins(name, t, shared) for name in BINNED}
    for kind, size in _channels():
        figures |= _bounds(kind, size, t)
    return figures | {"rms": t.square().mean().sqrt().item()} | _known(t)


def _all_of_label(t: Tensor, orders: Sequence[Tensor], shared: Range, seed: int) -> Figures:
    y = orders[0]
    figures: Figures = {f"y_{name}": _in_bins(name, t, shared, y) for name in BINNED}
    for kind, size in _channels():
        figures[f"y_{kind}{size}"] = float(channel_information(t, y, seed=seed, **{kind: size}))
    return figures | {"y_usable": float(usable_information(t, y, seed=seed))} | _over_orders(t, orders)


def _over_orders(t: Tensor, orders: Sequence[Tensor]) -> Figures:
    """y_unit and clustering, means over the orders of the labels."""
    units = {
        f"y_unit{bins}": sum(per_unit_information(t, y, bins=bins).mean().item() for y in orders) / len(orders)
        for bins in FEW_BINS
    }
    return units | {"clustering": sum(clustering(t, y) for y in orders) / len(orders)}


def _gathered(rows: Sequence[Figures]) -> Figures:
    """One list per figure; six digits, since an untrained network may have a spread of 1e-6."""
    return {name: [float(f"{row[name]:.6g}") for row in rows] for name in rows[0]}


# What the curves over training say of several networks. A pair is a network and a state of it.


def falls(curve: Sequence[float], n: int) -> float:
    """(largest − last)/log n.

    >>> round(falls([0.0, math.log(4), math.log(2)], 4), 3)
    0.5
    """
    return (max(curve) - curve[-1]) / math.log(n)


def rises(curve: Sequence[float], n: int) -> float:
    """(last − first)/log n."""
    return (curve[-1] - curve[0]) / math.log(n)


def dead(curve: Sequence[float], n: int) -> bool:
    """Whether it is 0 at all steps or log n at all steps, in the six digits that are kept."""
    return max(curve) < 1e-5 or min(curve) > (1 - 1e-5) * math.log(n)


def calls(curves: Figures, n: int, measure: Callable[[Sequence[float], int], float] = falls) -> dict[str, list[float]]:
    """ESTIMATOR -> its fall at each state of a network, or its rise; the estimators of a rescaled T among them."""
    estimators: dict[str, list[float]] = {}
    for name, curve in curves.items():
        estimator = name.rpartition("/")[0]
        if "x_" in estimator:
            estimators.setdefault(estimator, []).append(round(measure(curve, n), 5))
    return estimators


def agreement(fallen: Sequence[dict[str, list[float]]]) -> tuple[Figures, Figures]:
    """Of the falls of several networks: on which share of the pairs each estimator calls compression.

    Figures and controls; `x_truth` is no estimator and has no say in `split`.
    """
    pairs = {name: torch.tensor([fall for network in fallen for fall in network[name]]) for name in fallen[0]}
    called = {name: fall > FALL for name, fall in pairs.items()}
    truth = called.pop("x_truth")
    every = torch.stack([*called.values()])
    plain = torch.stack([called[name] for name in (*MOVED, *FIXED)])

    def split(votes: Tensor) -> float:
        return (votes.any(dim=0) & ~votes.all(dim=0)).double().mean().item()

    shares = {name: value.double().mean().item() for name, value in called.items()}
    figures = {Key("compressing", name): shares[name] for name in (*MOVED, *FIXED)}
    figures |= {Key("compressing", "x_truth"): truth.double().mean().item(), "pairs": float(len(truth))}
    figures |= {"split": split(every), "split_unscaled": split(plain)}
    figures |= {"agreed": every.all(dim=0).double().mean().item()}
    return figures, {Key("compressing", name): shares[name] for name in shares if name not in (*MOVED, *FIXED)}


def expansion(fallen: Sequence[dict[str, list[float]]], risen: Sequence[dict[str, list[float]]]) -> Figures:
    """expanding and opposed, of the falls and the rises of several networks."""
    falling, growing = (
        torch.tensor([[value for network in given for value in network[name]] for name in (*MOVED, *FIXED)]) > FALL
        for given in (fallen, risen)
    )
    shares = dict(zip((*MOVED, *FIXED), growing.double().mean(dim=1).tolist(), strict=True))
    opposed = (falling.any(dim=0) & growing.any(dim=0)).double().mean().item()
    return {Key("expanding", name): share for name, share in shares.items()} | {"opposed": opposed}


def follows(curves: Sequence[Figures], states: int) -> Figures:
    """Does an estimate change with the scale of T or with its clusters?  Over all pairs, the truth being constant."""
    pairs = [(network, state) for network in curves for state in range(states)]

    def moved(name: str, function: Callable[[float], float] = float) -> list[float]:
        ends = [(network[Key(name, state)][0], network[Key(name, state)][-1]) for network, state in pairs]
        return [function(last) - function(first) for first, last in ends]

    causes = {"follows_scale": moved("spread", math.log), "follows_clustering": moved("clustering")}
    figures: Figures = {}
    for name in (*MOVED, *FIXED):
        effect = moved(name)
        for key, cause in causes.items():
            varies = len({*effect}) > 1 and len({*cause}) > 1
            figures[Key(key, name)] = float(spearmanr(effect, cause).statistic) if varies else 0.0
    return figures


def shortfall(curves: Sequence[Figures], n: int) -> float:
    """The largest share of log n by which the truth falls short, over all networks, states and steps."""
    truths = [min(curve) for network in curves for name, curve in network.items() if name.startswith("x_truth/")]
    return max(0.0, 1 - min(truths) / math.log(n))
