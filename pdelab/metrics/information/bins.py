"""Entropy and mutual information by counting: the plug-in estimate, its bias, and what bins make of a real number.

For a deterministic T = f(X) and samples that differ, I(X; bin T) = H(bin T) ≤ log n: it measures the bins.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pdelab.metrics.information.estimate import Estimate, labels, samples
from pdelab.options import choose, whole

CORRECTIONS = ("none", "miller-madow")


def _counts(codes: Tensor) -> Tensor:
    return torch.bincount(codes).to(torch.float32 if codes.device.type == "mps" else torch.float64)


def entropy(y: Tensor | Sequence[int], *, correction: str = "none") -> Estimate:
    """H = −Σ p̂ log p̂, p̂ the shares of the labels.

    It is below H on average, by about (m − 1)/2n with m labels that occur; miller-madow adds that.

    >>> str(entropy([0, 0, 1, 1]))
    '0.693 ± 0.000 nats (plug-in, 4 samples)'
    """
    choose("correction", correction, CORRECTIONS)
    codes = labels(y)
    counts = _counts(codes)
    pointwise = -(counts / len(codes)).log()[codes]
    bias = -(len(counts) - 1) / (2 * len(codes)) if correction == "miller-madow" else 0.0
    method = "plug-in" if correction == "none" else correction
    return Estimate.mean_of(pointwise, method, less=bias, ceiling=math.log(len(codes)))


def discrete_information(x: Tensor | Sequence[int], y: Tensor | Sequence[int], *, correction: str = "none") -> Estimate:
    """I = Σ p̂(x, y) log p̂(x, y)/p̂(x)p̂(y), the plug-in estimate for labels.

    At independence it is χ²/2n to first order, so about (mₓ − 1)(m_y − 1)/2n too large for mₓ and m_y labels;
    miller-madow takes off (m_xy − mₓ − m_y + 1)/2n, which is the same if all pairs occur, m_xy = mₓm_y. It is at most
    the smaller of the two entropies: `saturated` also where one label tells the other indeed.

    >>> round(float(discrete_information([0, 0, 1, 1], [3, 3, 5, 5])), 4)
    0.6931
    """
    choose("correction", correction, CORRECTIONS)
    a = labels(x, name="x")
    b = labels(y, len(a)).to(a.device)
    joint = labels(torch.stack([a, b], dim=1))
    n, sizes = len(a), [_counts(codes) for codes in (a, b, joint)]
    pointwise = (n * sizes[2][joint] / (sizes[0][a] * sizes[1][b])).log()
    bias = (len(sizes[2]) - len(sizes[0]) - len(sizes[1]) + 1) / (2 * n) if correction == "miller-madow" else 0.0
    method, ceiling = "plug-in" if correction == "none" else correction, min(entropy(a).value, entropy(b).value)
    return Estimate.mean_of(pointwise, method, less=bias, ceiling=ceiling)


def bin_codes(t: Tensor, bins: int, limits: str | tuple[float, float] = "layer") -> Tensor:
    """The bin 0 … bins − 1 of every entry of t (sample, feature), equally wide between two limits.

    limits: "unit", the least and largest value of each feature; "layer", those of all features together; or two
    numbers, which several layers can share. What lies outside is in the outermost bins.
    """
    t = samples(t, "t", at_least=1)
    bins = whole("bins", bins)
    if not isinstance(limits, tuple | list):
        choose("limits", limits, ("unit", "layer"))
        low, high = (t.amin(dim=0), t.amax(dim=0)) if limits == "unit" else (t.amin(), t.amax())
    else:
        real = len(limits) == 2 and all(isinstance(limit, int | float | Tensor) for limit in limits)
        low, high = (t.new_tensor(float(limit)) for limit in limits) if real else (t[0], t[0])
        if not (real and low < high and torch.isfinite(high - low)):
            raise ValueError(f"limits must be two finite numbers, the smaller first, or unit, or layer; not {limits}")
    width = (high - low) / bins
    inside = (t - low) / torch.where(width > 0, width, torch.ones_like(width))
    return inside.floor().clamp(0, bins - 1).long()


def binned_information(
    t: Tensor, y: Tensor | Sequence[int] | None = None, *, bins: int = 30, limits: str | tuple[float, float] = "layer"
) -> Estimate:
    """I(X; bin T) = H(bin T) without y, I(bin T; Y) with labels y: a row of bins is one symbol.

    With many features almost every row is a symbol of its own: the first is then log n and the second H(Y), whatever t
    is, and the estimate is `saturated`; so it is where t has one feature, at log bins. `per_unit_information` is not.
    """
    placed = bin_codes(t, bins, limits)
    codes = labels(placed, name="t")
    found = entropy(codes) if y is None else discrete_information(codes, y)
    ceiling = min(found.ceiling, placed.shape[1] * math.log(bins))
    return Estimate(found.value, found.error, found.samples, f"{bins} bins", ceiling)


def per_unit_information(
    t: Tensor, y: Tensor | Sequence[int], *, bins: int = 30, limits: str | tuple[float, float] = "unit"
) -> Tensor:
    """I(bin T_j; Y) of each feature by itself, (feature,), in nats; bias about (bins − 1)(classes − 1)/2n.

    It can miss what only several features together tell, and count what they share several times.
    """
    codes = bin_codes(t, bins, limits)
    classes = labels(y, len(codes)).to(codes.device)
    n, width, kinds = len(codes), codes.shape[1], int(classes.max()) + 1
    place = (torch.arange(width, device=codes.device) * bins + codes) * kinds + classes.unsqueeze(1)
    joint = torch.bincount(place.flatten(), minlength=width * bins * kinds).view(width, bins, kinds) / n
    outer = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
    return torch.xlogy(joint, joint / torch.where(outer > 0, outer, torch.ones_like(outer))).sum((1, 2))
