"""Tokens of length 1: how attention with A = βI moves them, and into how many groups they have come on a circle."""

import math

import torch
from torch import Tensor


def sphere_rate(u: Tensor, beta: float | Tensor, sign: float = 1.0, *, causal: bool = False) -> Tensor:
    """u_i' = ±(I − u_iu_iᵀ) Σ_j p_ij u_j, p_i = softmax_j(β⟨u_i, u_j⟩), |u_i| = 1: attention with V = ±I.

    u: (…, token, feature). causal: the sums are over j ≤ i.
    """
    n = u.shape[-2]
    scores = beta * (u @ u.mT)
    if causal:
        later = torch.ones(n, n, dtype=torch.bool, device=u.device).triu(diagonal=1)
        scores = scores.masked_fill(later, -math.inf)

    itself = torch.eye(n, dtype=torch.bool, device=u.device)
    # j = i gives (I − u_iu_iᵀ)u_i = 0; left in, its weight near 1 would drown the others by rounding at a large β
    pull = sign * scores.softmax(dim=-1).masked_fill(itself, 0) @ u
    # divided by |u|² = 1, or rounding off the sphere would grow where V = −I
    return pull - (pull * u).sum(dim=-1, keepdim=True) / (u * u).sum(dim=-1, keepdim=True) * u


def groups(theta: Tensor, gap: float) -> Tensor:
    """How many groups stand on the circle, parted by empty arcs longer than `gap`: angles (…, token) → (…).

    >>> groups(torch.tensor([[0.0, 0.1, 2.0, 6.2], [0.0, 2.0, 2.1, 4.0]]), 0.3)
    tensor([2, 3])
    """
    place = theta.remainder(2 * math.pi).sort(dim=-1).values
    around = torch.cat([place, place[..., :1] + 2 * math.pi], dim=-1)
    return (around.diff(dim=-1) > gap).sum(dim=-1).clamp(min=1)
