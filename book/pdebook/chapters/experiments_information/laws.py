"""Entropy, dimension, information, sparsity, magnitude and diversity of every layer, under many definitions.  (P2 A.2)

P2 figures 6, 9 and 10 print numbers for a Transformer of four layers, and define none of them. Here is every definition
that we know, for the same states: `tokens`, every real token a sample, and `T`, the mean over tokens, one sample per
example. States: 0 the embedding, 1 … 4 the layers. Rules, fixed before the first run:

- The pre-LayerNorm Transformer decides where the claim does not name both.
- Printed figures (entropy, dimension, I(X;T)): the setting of a sweep that comes closest, seed by seed; each control
  gets the same sweep and its own closest setting. Settings that are 0 in some layer are left out of the entropies.
- Differences (sparsity, diversity, early drop): one value for each setting of a short list, and the sign has to be the
  same in all. A common norm of the states is one of the settings.
- Early drop: I(X;T) of the embedding minus that after layer 2 of 4. `best/early_contrast`: the simulator's minus the
  Transformer's, for the simulator whose least value over the settings is largest.

Changed after the first results, which were of width 32: the digits have P2's width; an estimate within SATURATED of
log n cannot see a difference and has no vote, neither in the early contrast nor among the entropies; the ratios of
noise are close enough for any small I(X;T) to be met, which is then compared in nats and in bits; the dip of diversity
before its recovery is compared as well; `…-held` is no longer a control.
"""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from pdebook.evidence.labels import of_labels
from pdebook.ledger.record import Figures, Key, Result, interval
from pdelab.metrics.information import (
    bin_codes,
    binned_information,
    diversity,
    effective_dimension,
    magnitude,
    rows,
    sparsity,
)
from pdelab.seeds import stream
from pdelab.solver import Trajectory

DEPTH = 4
KINDS = ("transformer", "residual_norm", "printed", "bare")
SIMULATORS = KINDS[2:]
DROP, RATIO, INFORMATION = 1.7, 0.39, 0.048  # printed: per cent, ratio to the width, without a unit
SATURATED = 0.01  # nats below log n

HISTOGRAMS, RANGES = (10, 30, 50, 100, 256), ("own", "shared", "sd")
ROWS = {f"bins{bins}_{limits}": (bins, limits) for bins in (2, 5, 30) for limits in ("unit", "layer", "shared")}
NOISES = (0.3, 1.0, 3.0, 10.0, 30.0)
FINE = tuple(round(0.0002 * 1.15**k, 6) for k in range(25))  # up to 0.0057
RATIOS = (*FINE, 0.01, 0.03, 0.1, 1.0)
PAIRED = (5, 10, 20)
SHARES = (0.9, 0.95, 0.99)
THRESHOLDS = (0.01, 0.03, 0.1, 0.3)

CHANNELS = tuple(
    f"{kind}{value}_{end}"
    for kind, values in (("noise", NOISES), ("ratio", RATIOS))
    for value in values
    for end in ("lower", "upper")
)
ENTROPIES = tuple(f"h_hist{bins}_{where}" for bins in HISTOGRAMS for where in RANGES)
ENTROPIES += ("h_unit5", "h_unit30", "x_bins5_layer", "x_bins5_shared", "x_bins30_shared")
DIMENSIONS = tuple(
    f"dim_{kind}_{of}"
    for of in ("tokens", "mean")
    for kind in ("participation", "entropy", *(f"share{share}" for share in SHARES))
)
INPUTS = tuple(f"x_{name}" for name in (*ROWS, *CHANNELS, *(f"paired{bins}" for bins in PAIRED)))
SPARSITIES = tuple(f"sparse{tau}" for tau in THRESHOLDS) + tuple(f"sparse_relative{tau}" for tau in THRESHOLDS)
DIVERSITIES = ("diversity", "diversity_level")
CONTRASTS = ("x_bins5_layer", "x_bins30_layer", "x_bins5_shared", "x_bins30_shared")
CONTRASTS += ("x_noise0.3_upper", "x_noise1.0_upper", "x_ratio0.1_upper", "x_ratio1.0_upper")

DEFINITIONS = {
    "h_histB_own, _shared, _sd": "entropy of all entries of a state in B bins, in nats: between their least and "
    "largest value, those of all states, or three standard deviations about their mean, the rest in the last bins",
    "h_unitB": "entropy of a feature of T in B bins between its least and largest value, mean over features",
    "h_gauss": "of a Gaussian with the covariance of the tokens, divided by the width; 1e-6 added to each variance",
    "dim_KIND_tokens, dim_KIND_mean": "effective dimension of tokens or of T, divided by the width: participation, "
    "exponential of the spectral entropy, or the number of principal axes that hold this share of the variance",
    "x_binsB_LIMITS": "H(bin T) = I(X; bin T), a row of bins one symbol; limits of a feature, a state, or all states",
    "x_noiseS_..., x_ratioR_...": "bounds of I(X; T + noise), of standard deviation S or of variance spread^2/R",
    "x_pairedB": "plug-in information of a feature of the tokens and the same feature of the embedding, B bins each",
    "y_...": "I(T; Y), see information_labels; shuffled_y_...: with the labels in another order",
    "sparseA, sparse_relativeA": "share of the entries of the tokens below A, or below A times their root mean square",
    "magnitude": "mean absolute entry of the tokens", "rms": "root mean square entry of the tokens",
    "spread": "root of the mean variance of a feature of T",
    "diversity, diversity_level": "mean variance of a feature of T; the same after T was brought to mean square 1",
    "entropy_drop": "100 (mean of layers 1 to 3 - output)/(that mean), for the setting of `entropies` closest to print",
    "dimension": "layers 2 to 4, for the setting of `dimensions` closest to print",
    "input_information, input_information_bits": "layers 1 to 4, for the setting of `inputs` closest to print, "
    "in nats and in bits",
    "..._setting": "which one: its number in that list",
    "sparsity_fall": "layer 1 minus output, one value for each of `sparsities`",
    "magnitude_rise": "output minus layer 1",
    "diversity_recovery": "output minus the mean of layers 2 and 3, raw and at a common norm",
    "diversity_dip": "layer 1 minus the mean of layers 2 and 3, raw and at a common norm",
    "early_drop": "embedding minus layer 2, one value for each of `contrasts`",
    "early_contrast": "early drop of the simulator minus that of the Transformer; without a vote: the mean of the rest",
    "early_vote": "1 for each of `contrasts` that has a vote: not within 0.01 of log n in both models at both states",
    "MODEL/training/FIGURE/STATE": "one value for each step of `watched`",
}  # fmt: skip


_RANGE = {"own": "own range", "shared": "common range", "sd": "3 deviations", "unit": "range per feature"}
_RANGE["layer"] = _RANGE["own"]
_OF = {"tokens": "tokens", "mean": "mean states"}
_SPOKEN = (  # pattern of a name -> its words
    (r"h_hist(\d+)_(\w+)", lambda m: f"{m[1]} bins, {_RANGE[m[2]]}"),
    (r"h_unit(\d+)", lambda m: f"each feature apart, {m[1]} bins"),
    (r"h_gauss", lambda m: "Gaussian"),
    (r"x_bins(\d+)_(\w+)", lambda m: f"rows of {m[1]} bins, {_RANGE[m[2]]}"),
    (r"x_(noise|ratio)([\d.]+)_(\w+)", lambda m: f"{m[1]} {float(m[2]):g}, {m[3]} bound"),
    (r"x_paired(\d+)", lambda m: f"pairs of features, {m[1]} bins"),
    (r"dim_participation_(\w+)", lambda m: f"participation ratio, {_OF[m[1]]}"),
    (r"dim_entropy_(\w+)", lambda m: f"spectral entropy, {_OF[m[1]]}"),
    (r"dim_share([\d.]+)_(\w+)", lambda m: f"axes with {100 * float(m[1]):g} % of the variance, {_OF[m[2]]}"),
    (r"y_usable", lambda m: "linear probe"),
    (r"y_unit(\d+)", lambda m: f"{m[1]} bins per feature"),
    (r"y_noise([\d.]+)", lambda m: f"noise {float(m[1]):g}"),
    (r"y_ratio([\d.]+)", lambda m: f"ratio {m[1]}"),
    (r"y_level([\d.]+)", lambda m: f"common norm, noise {float(m[1]):g}"),
    (r"y_bins(\d+)_layer", lambda m: f"rows of {m[1]} bins"),
)


def spoken(name: str) -> str:
    """A definition in words, for a table or an axis.

    >>> spoken("h_hist30_sd"), spoken("x_ratio0.1_upper"), spoken("y_usable")
    ('30 bins, 3 deviations', 'ratio 0.1, upper bound', 'linear probe')
    """
    for pattern, words in _SPOKEN:
        if found := re.fullmatch(pattern, name):
            return words(found)
    raise ValueError(f"name must be one of the definitions of an information; not {name!r}")


def histogram(entries: Tensor, bins: int, low: float, high: float) -> float:
    """H of the entries in equally wide bins; what lies outside is in the outermost bins."""
    if not high > low:
        return 0.0
    return _entropy(bin_codes(entries.reshape(-1, 1), bins, (low, high)).flatten())


def _entropy(codes: Tensor) -> float:
    """`entropy` of labels that are small numbers already: counting them is faster than sorting them."""
    return torch.special.entr(codes.bincount().double() / len(codes)).sum().item()


def axes_for(t: Tensor, share: float) -> float:
    """The least number of principal axes that hold this share of the variance of t (sample, feature)."""
    variances = torch.linalg.svdvals((t - t.mean(dim=0)).double()).square()
    held = variances.cumsum(0) / variances.sum()
    return float((held < share - 1e-12).sum() + 1)


def gaussian_entropy(t: Tensor) -> float:
    """½ log 2πe + ½ mean of log λ, λ the variances along the principal axes of t, 1e-6 added to each."""
    variances = torch.linalg.svdvals((t - t.mean(dim=0)).double()).square() / len(t)
    return (0.5 * math.log(2 * math.pi * math.e) + 0.5 * (variances + 1e-6).log().mean()).item()


def paired(u: Tensor, t: Tensor, bins: int) -> float:
    """Mean over features of the plug-in I(bin u_j; bin t_j), each between its least and largest value.

    Of independent samples it is about (bins − 1)²/2n.
    """
    a, b = (bin_codes(x, bins, "unit") for x in (u, t))
    each = [_entropy(x) + _entropy(y) - _entropy(x * bins + y) for x, y in zip(a.T, b.T, strict=True)]
    return sum(each) / len(each)


def _shape(tokens: Tensor, t: Tensor, ends: tuple[float, float]) -> Figures:
    """Entropies of entries, dimensions, sparsity, magnitude, diversity of one state."""
    entries, found = tokens.flatten(), {}
    middle, sd = entries.mean().item(), entries.std().item()
    limits = {"own": (entries.min().item(), entries.max().item()), "shared": ends}
    limits["sd"] = (middle - 3 * sd, middle + 3 * sd)
    for bins in HISTOGRAMS:
        found |= {f"h_hist{bins}_{where}": histogram(entries, bins, *limits[where]) for where in RANGES}
    for bins in (5, 30):
        codes = bin_codes(t, bins, "unit")
        found[f"h_unit{bins}"] = sum(_entropy(code) for code in codes.T) / codes.shape[1]
    found["h_gauss"] = gaussian_entropy(tokens)
    for of, x in (("tokens", tokens), ("mean", t)):
        width = x.shape[1]
        for kind in ("participation", "entropy"):
            found[f"dim_{kind}_{of}"] = effective_dimension(x, kind).item() / width
        found |= {f"dim_share{share}_{of}": axes_for(x, share) / width for share in SHARES}
    for tau in THRESHOLDS:
        found |= {f"sparse{tau}": sparsity(tokens, tau).item()}
        found |= {f"sparse_relative{tau}": sparsity(tokens, tau, relative=True).item()}
    found |= {"magnitude": magnitude(tokens).item(), "rms": entries.square().mean().sqrt().item()}
    level = t / t.square().mean().sqrt()
    found |= {"diversity": diversity(t).item(), "diversity_level": diversity(level).item()}
    return found | {"spread": t.var(dim=0, correction=0).mean().sqrt().item()}


def channels(t: Tensor) -> Figures:
    """`channel_bounds` for every one of NOISES and RATIOS, with the distances computed once."""
    squared = torch.cdist(t, t, compute_mode="donot_use_mm_for_euclid_dist").square()  # else small ones cancel
    variance = t.var(dim=0, correction=0).mean().item()
    scales = [(f"noise{s}", s**2) for s in NOISES] + [(f"ratio{r}", variance / r) for r in RATIOS]
    return {
        f"{name}_{end}": math.log(len(t)) - torch.logsumexp(-squared / (c * scale), dim=1).mean().item()
        for name, scale in scales
        for end, c in (("lower", 8), ("upper", 2))
    }


def _of_input(tokens: Tensor, first: Tensor, t: Tensor, ends: tuple[float, float]) -> Figures:
    """Every estimate of I(X; T) of one state."""
    found = {
        f"x_{name}": float(binned_information(t, bins=bins, limits=ends if limits == "shared" else limits))
        for name, (bins, limits) in ROWS.items()
    }
    found |= {f"x_{name}": value for name, value in channels(t).items()}
    return found | {f"x_paired{bins}": paired(first, tokens, bins) for bins in PAIRED}


def profile(run: Trajectory, y: Tensor, seed: int) -> Figures:
    """Every figure of DEFINITIONS that belongs to a state, one value a state."""
    tokens = [rows(u, run.mask, "tokens").double() for u in run.states]
    means = [rows(u, run.mask).double() for u in run.states]
    ends, mean_ends = ((min(x.min() for x in xs).item(), max(x.max() for x in xs).item()) for xs in (tokens, means))
    other = y[torch.randperm(len(y), generator=stream(seed, "shuffled labels"))]
    found = []
    for tok, t in zip(tokens, means, strict=True):
        one = _shape(tok, t, ends) | _of_input(tok, tokens[0], t, mean_ends)
        one |= {f"y_{name}": value for name, value in of_labels(t.float(), y, seed).items()}
        one |= {f"shuffled_y_{name}": value for name, value in of_labels(t.float(), other, seed).items()}
        found.append(one)
    return {name: [float(f"{one[name]:.6g}") for one in found] for name in found[0]}


def closest(table: dict[str, list[float]], target: float) -> tuple[int, list[float]]:
    """The setting whose values come closest to the target in the largest distance: its number, and the values.

    A setting that gave NaN is no candidate.

    >>> closest({"a": [0.0, 2.0], "b": [1.2, 1.3]}, 1.0)
    (1, [1.2, 1.3])
    """
    settings = list(table.values())
    known = [n for n, values in enumerate(settings) if not any(map(math.isnan, values))]
    number = min(known, key=lambda n: max(abs(value - target) for value in settings[n]))
    return number, settings[number]


def drop(values: Sequence[float]) -> float:
    """100 (mean of layers 1 to 3 − output)/(that mean); values: embedding, layer 1 … 4.

    >>> round(drop([0.0, 3.722, 3.723, 3.722, 3.659]), 2)
    1.7
    """
    before = sum(values[1:-1]) / (len(values) - 2)
    return 100 * (before - values[-1]) / before


def tells(values: Sequence[float], n: int) -> bool:
    """Whether an entropy of n symbols can be said to fall: 0 in no layer, and not about log n in all.

    >>> tells([1.0, 2.0], 100), tells([1.0, 0.0], 100), tells([4.6, 4.604], 100)
    (True, False, False)
    """
    return min(values) > 0 and min(values) < math.log(n) - SATURATED


def decided(seen: Figures, n: int) -> Figures:
    """The figures that the claims are about, of a `profile` of n examples."""
    drops = {
        name: [drop(seen[name])]
        for name in ENTROPIES
        if (tells(seen[name][1:], n) if name.startswith("x_") else min(seen[name][1:]) > 0)
    }
    which, (change,) = closest(drops, DROP)
    found: Figures = {"entropy_drop": change, "entropy_setting": float(ENTROPIES.index(list(drops)[which]))}
    for key, names, first, unit, target in (
        ("dimension", DIMENSIONS, 2, 1.0, RATIO),
        ("input_information", INPUTS, 1, 1.0, INFORMATION),
        ("input_information_bits", INPUTS, 1, math.log(2), INFORMATION),
    ):
        which, values = closest({name: [x / unit for x in seen[name][first:]] for name in names}, target)
        found |= {key: values, f"{key}_setting": float(which)}
    found["sparsity_fall"] = [seen[name][1] - seen[name][-1] for name in SPARSITIES]
    found["magnitude_rise"] = seen["magnitude"][-1] - seen["magnitude"][1]
    between = [sum(seen[name][2:-1]) / (DEPTH - 2) for name in DIVERSITIES]
    found["diversity_recovery"] = [seen[name][-1] - x for name, x in zip(DIVERSITIES, between, strict=True)]
    found["diversity_dip"] = [seen[name][1] - x for name, x in zip(DIVERSITIES, between, strict=True)]
    found["early_drop"] = [seen[name][0] - seen[name][DEPTH // 2] for name in CONTRASTS]
    return found


def votes(a: Figures, b: Figures, n: int) -> list[bool]:
    """For each of CONTRASTS, of two profiles of n examples: False where both are saturated before and after."""
    high = math.log(n) - SATURATED
    return [min(seen[name][at] for seen in (a, b) for at in (0, DEPTH // 2)) < high for name in CONTRASTS]


def contrast(simulators: dict[str, Figures], transformer: Figures, n: int) -> dict[str, Figures]:
    """`early_contrast` and `early_vote` of each profile, and as `best` of that whose least value is largest.

    The mean of those that vote, in place of those that do not, decides nothing: it is above zero where they are.
    Where none votes there is nothing to see: NaN.
    """
    found = {}
    for kind, seen in simulators.items():
        pairs = zip(decided(seen, n)["early_drop"], decided(transformer, n)["early_drop"], strict=True)
        values, vote = [a - b for a, b in pairs], votes(seen, transformer, n)
        counted = [value for value, counts in zip(values, vote, strict=True) if counts]
        rest = sum(counted) / len(counted) if counted else math.nan
        values = [value if counts else rest for value, counts in zip(values, vote, strict=True)]
        found[kind] = {"early_contrast": values, "early_vote": [float(counts) for counts in vote]}
    seeing = [one for one in found.values() if any(one["early_vote"])] or list(found.values())
    return found | ({"best": max(seeing, key=lambda one: min(one["early_contrast"]))} if found else {})


WORDS = ("rises", "falls", "neither")


def directions(results: Sequence[Result], model: str, names: Sequence[str], prefix: str = "") -> dict[str, int]:
    """How many of the definitions rise from layer 1 to the output, fall, or do neither, with their whole interval.

    prefix: "untrained_" for the model before training.
    """
    counts = dict.fromkeys(WORDS, 0)
    for name in names:
        tables = [r.controls if prefix else r.figures for r in results if model not in r.diverged]
        key = Key(model, prefix + name)
        found = interval([table[key][-1] - table[key][1] for table in tables])
        counts["rises" if found.low > 0 else "falls" if found.high < 0 else "neither"] += 1
    return counts
