"""How samples lie: t: (n, feature), n samples, or (n,) of one feature; each gives one number.

The papers speak of the dimension, sparsity, magnitude and diversity of representations and define none of them. These
are definitions, not theirs; each says what a common factor c does to it, because a network can change c at no cost.
"""

import torch
from torch import Tensor

from pdelab.metrics.base import mean_along, norm
from pdelab.metrics.information.estimate import samples
from pdelab.options import choose, flags, number

DIMENSIONS = ("participation", "entropy")
DIVERSITIES = ("variance", "distance", "cosine")
ENTRIES = 2**22
"""How many distances are held at once."""


def effective_dimension(t: Tensor, kind: str = "participation") -> Tensor:
    """(Σλ)² / Σλ² ("participation") or exp(−Σ p log p), p = λ/Σλ ("entropy"), λ the eigenvalues of cov(t).

    Both lie between 1 and min(feature, n − 1), are k where k eigenvalues are equal and the others 0, and see neither a
    rotation nor a shift nor a factor c; "entropy" is never below "participation" (Rényi entropies of order 1 and 2).
    Few samples make it too small: for n of N(0, 1) in d features E[1/participation] = (n + d)/((n − 1)d + 2), about
    1/d + 1/n. NaN if all samples are equal.

    >>> effective_dimension(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0], [0.0, -3.0]])).item()
    2.0
    """
    choose("kind", kind, DIMENSIONS)
    t = _centred(samples(t, "t"))
    p = torch.linalg.svdvals(t / _size(t)).square()  # the covariance itself would square the condition number
    p = p / p.sum()
    return 1 / p.square().sum() if kind == "participation" else torch.special.entr(p).sum().exp()


def sparsity(t: Tensor, threshold: float = 0.0, relative: bool = False) -> Tensor:
    """#{|t| ≤ τ} / #t, τ the threshold, or threshold · √(mean t²) if relative: the share of small entries, in [0, 1].

    A factor c does not change the relative one, nor that with threshold 0. The absolute one with a threshold falls as c
    grows: it measures scale too. For independent N(0, 1) entries it is erf(threshold/√2), relative or not. It is a
    count, so it has no gradient. A rotation changes it.

    >>> sparsity(torch.tensor([[0.0, 1.0, -2.0, 0.0]])).item()
    0.5
    """
    flags(relative=relative)
    number("threshold", threshold, 0)
    t = samples(t, "t", at_least=1)
    size = norm(t) / t.numel() ** 0.5 if relative else 1.0
    return (t.abs() <= threshold * size).to(t.dtype).mean()


def magnitude(t: Tensor) -> Tensor:
    """Mean |t| over samples and features. A factor c multiplies it by |c|; a rotation changes it.

    >>> magnitude(torch.tensor([[1.0, -3.0]])).item()
    2.0
    """
    return samples(t, "t", at_least=1).abs().mean()


def diversity(t: Tensor, kind: str = "variance") -> Tensor:
    """How unlike each other the samples are. A rotation changes none of these.

    "variance"  mean over the features of Σ_i (t_i − t̄)² / (n − 1), which is the mean of |t_i − t_j|²/(2·feature) over
                the pairs i ≠ j; a factor c multiplies it by c².
    "distance"  mean of |t_i − t_j| over the pairs i ≠ j; a factor c multiplies it by |c|.
    "cosine"    1 − mean of cos(t_i, t_j) over the pairs i ≠ j, in [0, n/(n − 1)]; a factor c changes nothing, a shift
                does, while the other two do not see one. NaN if a sample is 0.

    >>> [diversity(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), kind).item() for kind in DIVERSITIES]
    [6.25, 5.0, 1.0]
    """
    choose("kind", kind, DIVERSITIES)
    t = samples(t, "t")
    n = len(t)
    if kind == "variance":
        return _centred(t).square().sum() / ((n - 1) * t.shape[1])
    if kind == "distance":
        # by a product of matrices, as is usual, near samples would lose their distance to rounding
        t, exact = _centred(t), "donot_use_mm_for_euclid_dist"
        size = _size(t)
        t = t / size
        parts = t.split(max(1, ENTRIES // n))
        return size * sum(torch.cdist(part, t, compute_mode=exact).sum() for part in parts) / (n * (n - 1))
    t = t / t.abs().amax(dim=1, keepdim=True)
    total = (t / torch.linalg.vector_norm(t, dim=1, keepdim=True)).sum(dim=0)
    return 1 - (total.square().sum() - n) / (n * (n - 1))  # |Σ û|² = n + Σ_{i≠j} cos(t_i, t_j)


def _size(t: Tensor) -> Tensor:
    """The largest |entry|, or 1 if all are 0: squares of numbers below 1e−19 would be lost in float32."""
    largest = t.abs().amax()
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def _centred(t: Tensor) -> Tensor:
    return t - mean_along(t.unsqueeze(0), None, 1).squeeze(0)
