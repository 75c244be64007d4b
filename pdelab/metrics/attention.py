"""Attention maps compared. P, Q: (batch, head, query, key), each row a distribution over keys; mask: (batch, token).

Every function gives one number, averaged over the real queries of the batch and over the heads; padded queries and keys
have no part in it. Maps may come of different blocks of different models, and head 1 of one has then nothing to do with
head 1 of the other: heads="each" compares head with head, heads="mean" the averages over the heads.
reduce: "median" of them instead, or "none", all values, (batch, head, query), NaN at padding.
For one value per layer of a run: per_layer(entropy, run, of="attention").
"""

import torch
from torch import Tensor

from pdelab.field import Mask, check_mask, described
from pdelab.metrics.base import mean_where, precise, reduced
from pdelab.options import choose, flags


def cosine(P: Tensor, Q: Tensor, mask: Mask | None = None, *, heads: str = "each", reduce: str = "mean") -> Tensor:
    """⟨P_i, Q_i⟩ / (|P_i| |Q_i|) of the rows, in [0, 1]; no entry is negative, so unrelated maps score well above 0."""
    P, Q = _pair(P, Q, mask, heads)
    # √(s · s) is s exactly: equal rows score exactly 1
    return _of_rows((P * Q).sum(-1) / ((P * P).sum(-1) * (Q * Q).sum(-1)).sqrt(), mask, reduce)


def kl(P: Tensor, Q: Tensor, mask: Mask | None = None, *, heads: str = "each", reduce: str = "mean") -> Tensor:
    """Σ_j P_ij log(P_ij / Q_ij), in nats, with 0 log 0 = 0; infinite if in any row Q_ij = 0 < P_ij."""
    P, Q = _pair(P, Q, mask, heads)
    return _of_rows((torch.xlogy(P, P) - torch.xlogy(P, Q)).sum(-1), mask, reduce)


def entropy(P: Tensor, mask: Mask | None = None, *, heads: str = "each", reduce: str = "mean") -> Tensor:
    """−Σ_j P_ij log P_ij, in nats: 0 for a row that sees one key, log N for a row that sees all N alike."""
    P = _clean(P, mask, heads)
    return _of_rows(-torch.xlogy(P, P).sum(-1), mask, reduce)


def uniform(P: Tensor, mask: Mask | None = None, *, causal: bool = False) -> Tensor:
    """1/N at each of the N real keys (causal: at those with j ≤ i): the control that has learned nothing.

    It has the shape of P, and zeros in the rows and columns of padding.

    >>> uniform(torch.eye(2).reshape(1, 1, 2, 2), causal=True).tolist()
    [[[[1.0, 0.0], [0.5, 0.5]]]]
    """
    check_maps(P, mask, "P")
    flags(causal=causal)
    seen = _real(P, mask)
    if causal:
        seen = seen & seen.new_ones(P.shape[-2:]).tril()
    seen = precise(seen.expand_as(P).to(P.dtype))
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)  # a padded row sees nothing and stays zero


def _real(P: Tensor, mask: Mask | None) -> Tensor:
    """Where query and key are both real: (batch, 1, query, key)."""
    if mask is None:
        return torch.ones_like(P[:, :1], dtype=torch.bool)
    return (mask.unsqueeze(2) & mask.unsqueeze(1)).unsqueeze(1)


def check_maps(P: Tensor, mask: Mask | None, name: str = "P") -> None:
    """Refuse what are no maps (batch, head, token, token) of floats; whether rows sum to 1 is not asked."""
    if not isinstance(P, Tensor) or P.ndim != 4 or P.shape[2] != P.shape[3] or 0 in P.shape:
        raise ValueError(f"{name} must have shape (batch, head, token, token), none of them 0; not {described(P)}")
    if not P.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {P.dtype}")
    check_mask(mask, P[:, 0])


def _clean(P: Tensor, mask: Mask | None, heads: str, name: str = "P") -> Tensor:
    """P with zeros where there is padding, in float32 at least; ValueError if a row is no distribution."""
    choose("heads", heads, ("each", "mean"))
    check_maps(P, mask, name)
    tolerance = max(1e-5, 4 * torch.finfo(P.dtype).eps)  # a row of half precision sums to one so far only
    half = P.dtype in (torch.float16, torch.bfloat16)
    P = precise(torch.where(_real(P, mask), P, torch.zeros_like(P)))
    check_rows(P, mask, name, tolerance)
    if half:  # or a KL could be negative
        P = P / P.sum(-1, keepdim=True).clamp(min=0.5)  # below ½ only in padded rows, which are zero
    return P.mean(dim=1, keepdim=True) if heads == "mean" else P


def check_rows(P: Tensor, mask: Mask | None, name: str = "P", tolerance: float = 1e-5) -> None:
    """Refuse rows of real queries that are no distribution; P is zero where there is padding."""
    if P.is_meta:
        return
    if not (P >= 0).all():
        raise ValueError(f"{name} must be a softmax: it holds negative numbers or NaN")
    off = mean_where((P.sum(-1) - 1).abs() > tolerance, _rows(P[..., 0], mask))
    if off > 0:
        raise ValueError(f"{name} must have rows that sum to 1 over the real keys; {off:.1%} of them do not")


def _pair(P: Tensor, Q: Tensor, mask: Mask | None, heads: str) -> tuple[Tensor, Tensor]:
    P, Q = _clean(P, mask, heads), _clean(Q, mask, heads, "Q")
    if P.shape != Q.shape:
        raise ValueError(f"Q must have the shape of P, {tuple(P.shape)}; not {tuple(Q.shape)}")
    dtype = torch.promote_types(P.dtype, Q.dtype)
    return P.to(dtype), Q.to(dtype)


def _rows(values: Tensor, mask: Mask | None) -> Tensor:
    """Which queries are real, in the shape of the values: (batch, head, query)."""
    return torch.ones_like(values, dtype=torch.bool) if mask is None else mask.unsqueeze(1).expand_as(values)


def _of_rows(values: Tensor, mask: Mask | None, reduce: str) -> Tensor:
    return reduced(values, _rows(values, mask), reduce)
