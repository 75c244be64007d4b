"""How alike two states are. u, v: (batch, token, feature); mask: (batch, token); each gives one number.

reduce: "mean", "median" or "none", see `metrics.base`; the values are those of the tokens, or of the examples. With
centre="position" a token has the place that it is compared at, counted from the first real one.

Two states can agree in what every example shares, and a cosine near 1 then says little. `centre` takes it out of both
before they are compared:
  "none"      nothing is subtracted: the plain reading.
  "all"       the mean over all real tokens of all examples, one vector.
  "position"  the mean over the examples at each position, counted from the first real token: what a control knows that
              knows the position and nothing else. Such a control scores 0.
Where centring leaves nothing of either state there is nothing to compare, and the place is left out; where it leaves
nothing of one of them the value is 0. Without centring, a zero vector or a constant has no value: NaN.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from pdelab.field import Field, Mask, keep_real
from pdelab.metrics.base import aligned, clean_pair, mean_along, mean_where, per_layer, real_places, reduced, stacked
from pdelab.options import choose, function, instance
from pdelab.solver import Trajectory

CENTRES = ("none", "all", "position")


def cosine(
    u: Field,
    v: Field,
    mask: Mask | None = None,
    *,
    centre: str = "none",
    over: str = "token",
    reduce: str = "mean",
) -> Tensor:
    """⟨u, v⟩ / (|u| |v|), in [−1, 1].

    over: "token", a cosine along the features of each token, averaged over all real tokens of the batch; or "state", a
    cosine of each example's whole state, all its real tokens × features, averaged over the examples.

    >>> cosine(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[4.0, 3.0]]])).item()
    0.9599999785423279
    """
    choose("over", over, ("token", "state"))
    u, v, real = _centred(u, v, mask, centre)
    if over == "state":
        u, v, real = u.flatten(1), v.flatten(1), real.any(dim=1)  # (batch, token · feature), (batch,)
    return _cosines(u, v, real, centre != "none", reduce)


def pearson(u: Field, v: Field, mask: Mask | None = None, *, centre: str = "none", reduce: str = "mean") -> Tensor:
    """cov(u, v) / (σ_u σ_v) over all real entries (token × feature) of each example, averaged over the examples."""
    u, v, real = _centred(u, v, mask, centre)
    return _correlation(u, v, real, centre != "none", reduce)


def spearman(u: Field, v: Field, mask: Mask | None = None, *, centre: str = "none", reduce: str = "mean") -> Tensor:
    """The Pearson correlation of the ranks of all real entries of each example, ties sharing their mean rank."""
    u, v, real = _centred(u, v, mask, centre)
    return _correlation(_ranks(u, real), _ranks(v, real), real, centre != "none", reduce)


def mse(u: Field, v: Field, mask: Mask | None = None, *, reduce: str = "mean") -> Tensor:
    """Mean of (u − v)² over all real entries of the batch; of each token over its features."""
    u, v = clean_pair(u, v, mask)
    squares, real = (u - v) ** 2, real_places(u, mask)
    if reduce == "mean":
        return mean_where(squares, real.unsqueeze(-1).expand_as(u))
    return reduced(squares.mean(dim=-1), real, reduce)


def nmse(u: Field, v: Field, mask: Mask | None = None) -> Tensor:
    """Σ|u − v|² / Σ|v − v̄|², v̄ the mean of the reference v over all real tokens of the batch.

    1 is what the constant v̄ scores. For a v that is constant it is infinite, or NaN if u = v.
    """
    u, v = clean_pair(u, v, mask)
    size = torch.maximum(u.abs().amax(), v.abs().amax())  # or squares are lost, or infinite, in float32
    u, v = u / size, v / size
    return mse(u, v, mask) / mse(mean_along(v, mask, (0, 1)).expand_as(v), v, mask)


def cka(u: Field, v: Field, mask: Mask | None = None) -> Tensor:
    """‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), in [0, 1]: linear centred kernel alignment (Kornblith et al. 2019).

    X, Y: the real tokens of the batch as samples, (sample, feature), less their means; u and v may differ in width. It
    does not see rotations or a common scale. With far fewer samples than features it is near 1 for unrelated noises.
    NaN if all tokens of u or of v are equal.
    """
    u, v = clean_pair(u, v, mask, same_width=False)
    x, y = (_unit(keep_real(w - mean_along(w, mask, (0, 1)), mask).flatten(0, 1)) for w in (u, v))
    cross, own, other = ((a.T @ b).square().sum() for a, b in ((x, y), (x, x), (y, y)))
    return cross / (own * other).sqrt()


def fidelity(run: Trajectory, metric: Callable[..., Tensor] = cosine, **options) -> Tensor:
    """ρ_l = cos(u_l, u_0): the direction that each layer still shares with the input, (layer,); ρ_0 = 1.

    It does not say how much of the input can be recovered: a rotation loses nothing and can make it 0, while states of
    different examples share a direction already where a position has one. fidelity(run, cka) does not see rotations,
    and fidelity(run, centre="position") leaves out what a position has in common. The ρ of P2 theorem 3.4 is the cosine
    of whole states: fidelity(run, over="state").
    """
    return per_layer(metric, run, instance("run", run, Trajectory).states[0], **options)


def inter_layer(run: Trajectory, metric: Callable[..., Tensor] = cosine, **options) -> Tensor:
    """cos(u_l, u_{l+1}) for each pair of neighbouring layers: (layer − 1,).  (P1 table 2)"""
    if not isinstance(run, Trajectory) or len(run.states) < 2:
        raise ValueError("run must be a Trajectory of at least two states")
    function("metric", metric)
    with torch.no_grad():
        return stacked([metric(u, v, mask=run.mask, **options) for u, v in pairwise(run.states)])


def _centred(u: Field, v: Field, mask: Mask | None, centre: str) -> tuple[Field, Field, Mask]:
    """u and v less their means, zeros where no token is, and the mask that goes with them."""
    choose("centre", centre, CENTRES)
    u, v = clean_pair(u, v, mask)
    if centre == "none":
        return u, v, real_places(u, mask)
    if centre == "position":
        if len(u) < 2:
            raise ValueError("centre='position' needs at least two examples in u; with one, nothing would be left")
        (u, real), (v, _) = aligned(u, mask), aligned(v, mask)
        means = (mean_along(w, real, 0) for w in (u, v))
    else:
        real = real_places(u, mask)
        means = (mean_along(w, real, (0, 1)) for w in (u, v))
    u, v = (keep_real(w - mean, real) for w, mean in zip((u, v), means, strict=True))
    return u, v, real


def _unit(x: Tensor) -> Tensor:
    """x with 1 as its largest entry: squares of numbers below 1e−19 would be lost in float32. Zeros become NaN."""
    return x / x.abs().amax()


def _cosines(a: Tensor, b: Tensor, real: Tensor, centred: bool, reduce: str) -> Tensor:
    """The cosine along the last axis, averaged over the real places unless `reduce` says otherwise."""
    a_size, b_size = a.abs().amax(-1, keepdim=True), b.abs().amax(-1, keepdim=True)
    a, b = a / a_size, b / b_size  # a zero vector becomes NaN; no square is lost to underflow
    # √(s · s) is s exactly, a product of two roots is not: equal vectors score exactly 1
    values = (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()
    if centred:
        no_a, no_b = (a_size == 0).squeeze(-1), (b_size == 0).squeeze(-1)
        values, real = values.masked_fill(no_a | no_b, 0.0), real & ~(no_a & no_b)
    return reduced(values, real, reduce)


def _correlation(u: Field, v: Field, real: Mask, centred: bool, reduce: str) -> Tensor:
    u, v = (keep_real(w - mean_along(w, real, (1, 2)), real).flatten(1) for w in (u, v))
    return _cosines(u, v, real.any(dim=1), centred, reduce)


def _ranks(u: Field, real: Mask) -> Field:
    """The rank 1, 2, … of each entry among its example's real ones, the mean rank for equal entries."""
    # padding sorts last, after every real entry, and so has no part in their ranks
    values = torch.where(real.unsqueeze(-1), u, torch.full_like(u, torch.inf)).flatten(1)
    ordered = values.sort(dim=1).values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return ((below + upto + 1) / 2).to(u.dtype).reshape(u.shape)
