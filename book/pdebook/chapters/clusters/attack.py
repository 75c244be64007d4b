"""An adversary against what the chapter states of tokens behind a causal mask."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pdebook.chapters.clusters import laws
from pdebook.evidence.adversary import Start, Statement, attack
from pdebook.evidence.sphere import sphere_rate

HOTTEST = 12.0  # β: beyond it the weight of a far token is so small that rounding would decide


def leader(u, heat, *, others=1.0, exponent=1.0) -> Tensor:
    """m' ≥ (1 − m²)/(1 + (N−1)e^{β(1−m)}), m = min_i⟨u_i, u_1⟩ ≥ 0, causal attention on the sphere with V = I."""
    u = normalize(u, dim=-1)
    first = u[:, :1]
    u = u - 2 * (u * first).sum(dim=-1, keepdim=True).clamp(max=0) * first  # mirrored to the first token's side
    beta = HOTTEST * heat.sigmoid()

    cosines = (u * first).sum(dim=-1)  # (batch, token)
    m, last = cosines.min(dim=-1)
    rates = (sphere_rate(u, beta[:, None, None], causal=True) * first).sum(dim=-1)
    measured = rates.gather(1, last[:, None])[:, 0]

    kappa = laws.lead_rate(m, beta, u.shape[1], others=others, exponent=exponent)
    apart = m < 1 - 1e-6  # else both sides are 0
    return torch.where(apart, kappa * (1 - m**2) / torch.where(apart, measured, 1.0), 0.0)


def some_together(seed: int, u: Tensor, heat: Tensor) -> Start:
    """Every second start with all but the first near one place, the last token the farthest: it sees all of them."""
    near = u.clone()
    first, last = u[1::2, :1], u[1::2, -1:]
    side = (first * last).sum(dim=-1, keepdim=True).sign()
    near[1::2, 1:-1] = last + 1e-3 * side * first
    return {"u": near, "heat": 2 * heat}


run = attack(
    "attack_clusters",
    {
        "leader": Statement(
            leader,
            {"u": "n d", "heat": ""},
            [{"n": 2, "d": 2}, {"n": 3, "d": 2}, {"n": 6, "d": 3}, {"n": 12, "d": 8}],
            start=some_together,
            shrink=("others", "exponent"),
            batch=48,
            each=True,
        )
    },
)
