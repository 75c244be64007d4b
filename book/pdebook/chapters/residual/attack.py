"""An adversary against bounds on fidelity: how far can a state turn away from its input?  (P2 Theorem 3.4, eq 16-17)

Our bounds are bounds on the angle ∠(u, u₀) = arccos ρ, so the score is angle/bound. Of what is printed we attack eq 17
on both sides of ‖J‖ = ‖u₀‖, the decay of ρ without a skip, and the positive lower bound of ρ for stable flows.
"""

import math

import torch
from torch import Tensor

from pdebook.chapters.residual.laws import addition, angle, correlation, cosine, printed_bound, second_coefficient
from pdebook.chapters.residual.measure import rectified_stack
from pdebook.evidence.adversary import Statement, attack
from pdelab.formulas import norm2
from pdelab.integrators import flow as solution
from pdelab.seeds import normal, stream

WIDTHS = (2, 3, 8)
PAIR = {"start": "d", "direction": "d", "raw": ""}
CHANCE = 4  # in units of 1/√d: unrelated directions in d dimensions have |ρ| of about 0.8/√d


# As printed


def eq17(start: Tensor, direction: Tensor, raw: Tensor, *, beyond: bool = False) -> Tensor:
    """ρ ≥ (1 − r)/(1 + r), that is 1 − ρ ≤ 2r/(1 + r), for r = ‖J‖/‖u₀‖ up to 1, or from 1 to 4 (beyond)."""
    r = torch.sigmoid(raw)
    r = 1 + 3 * r if beyond else r
    return (1 - cosine(addition(start, direction, r), start)) / (1 - printed_bound(r))


def decay(seed: int, *, stack: str = "random", batch: int = 32, layers: int = 64, d: int = 256) -> Tensor:
    """Without a skip |ρ| falls to the level of chance: below 4/√d, on average over the second half of the depth.

    rotations: h ← Qh, by one angle in every plane, the same Q at every layer. random: a fresh orthogonal Q at every
    layer, which keeps nothing. rectified: h ← max(√2 Wh, 0), fresh W, on rectified noise.
    """
    if stack == "rectified":
        states = rectified_stack(torch.relu(normal(seed, "rectified", size=(batch, d))), layers, seed)
    else:
        states = [normal(seed, "start", size=(batch, d))]
        same = rotation(seed, batch, d) if stack == "rotations" else None
        for layer in range(layers):
            Q = torch.linalg.qr(normal(seed, "fresh", layer, size=(d, d)))[0] if same is None else same
            states.append((Q @ states[-1].unsqueeze(-1)).squeeze(-1))
    return above_chance(torch.stack([cosine(h, states[0]) for h in states[1:]]), d)


def rotation(seed: int, batch: int, d: int) -> Tensor:
    """Q that turns by one random angle in each of d/2 random planes: (batch, d, d)."""
    planes = torch.linalg.qr(normal(seed, "planes", size=(batch, d, d)))[0]
    turn = math.pi * torch.rand(batch, 1, 1, generator=stream(seed, "angle"), dtype=torch.float64)
    quarter = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)] * (d // 2))
    return planes @ (turn.cos() * torch.eye(d, dtype=torch.float64) + turn.sin() * quarter) @ planes.mT


def above_chance(rho: Tensor, d: int) -> Tensor:
    """The mean of |ρ_ℓ| over the second half of the depth in units of 4/√d: (layer, batch) → (batch,)."""
    return rho[len(rho) // 2 :].abs().mean(dim=0) * math.sqrt(d) / CHANCE


def stable_flow(seed: int, batch: int = 64, d: int = 6, decay: float = 0.3, time: float = 20.0) -> Tensor:
    """ρ(t) > 0 for all t ≤ 20 in u' = (B − δ)u, B antisymmetric: stable, E(t) = E(0)e^{−2δt} exactly."""
    square = normal(seed, "B", size=(batch, d, d))
    step = torch.linalg.matrix_exp(0.05 * (square - square.mT - decay * torch.eye(d)))

    start = normal(seed, "u", size=(batch, d, 1))
    u, least = start, torch.ones(batch, dtype=torch.float64)
    for _ in range(int(time / 0.05)):
        u = step @ u
        least = torch.minimum(least, cosine(u.squeeze(-1), start.squeeze(-1)))
    return 1 - least


# As corrected


def one_addition(start: Tensor, direction: Tensor, raw: Tensor) -> Tensor:
    """∠(u₀ + J, u₀) ≤ arcsin r for r = ‖J‖/‖u₀‖ < 1."""
    r = torch.sigmoid(raw)
    return angle(addition(start, direction, r), start) / torch.arcsin(r)


def layers(start: Tensor, pushes: Tensor, raw: Tensor) -> Tensor:
    """∠(h_L, h_0) ≤ Σ arcsin κ_ℓ for h ← h + f, |f_ℓ| = κ_ℓ|h_ℓ| < |h_ℓ|, if the sum is at most π; else 0."""
    kappa, h = torch.sigmoid(raw - 2), start  # most starts have a sum below π
    for layer in range(pushes.shape[1]):
        h = addition(h, pushes[:, layer], kappa[:, layer])

    total = torch.arcsin(kappa).sum(dim=-1)
    return torch.where(total <= math.pi, angle(h, start) / total, torch.zeros_like(total))


def flow(start: Tensor, turn: Tensor, inner: Tensor, outer: Tensor, *, span: float, steps: int = 24) -> Tensor:
    """∠(u(t), u(0)) ≤ Kt ≤ π for u' = F(u), ‖F(u)‖ ≤ K‖u‖.

    F(u) = ‖u‖ w/√(1 + |w|²), w = Bn + W₂ tanh(W₁n), n = u/‖u‖, so K = 1 and span = Kt. RK4 lags behind on a rotation
    and never overshoots.
    """

    def rate(u: Tensor) -> Tensor:  # (batch, d, 1)
        length = u.norm(dim=1, keepdim=True)
        n = u / length
        w = turn @ n + outer @ torch.tanh(inner @ n)
        return length * w / (1 + (w * w).sum(dim=1, keepdim=True)).sqrt()

    return angle(solution(rate, start.unsqueeze(-1), T=span, steps=steps).squeeze(-1), start) / span


def _kept(start: Tensor, other: Tensor, inner: Tensor, outer: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """|h_L − h'_L|/|h_0 − h'_0| of h ← h + f_ℓ(h), f = κ W₂ tanh(W₁h)/(‖W₁‖‖W₂‖), and the κ_ℓ < 1.

    Shapes: (batch,) and (batch, L). κ bounds the slope for all pairs of states, by the norms of the weights.
    """
    kappa = torch.sigmoid(raw)
    both = torch.stack([start, other], dim=-1)  # (batch, d, 2)
    before = (start - other).norm(dim=-1)
    for layer in range(inner.shape[1]):
        W1, W2 = inner[:, layer], outer[:, layer]
        scale = kappa[:, layer] / (norm2(W1) * norm2(W2))
        both = both + scale.view(-1, 1, 1) * (W2 @ torch.tanh(W1 @ both))
    return (both[..., 0] - both[..., 1]).norm(dim=-1) / before, kappa


def skip_least(start, other, inner, outer, raw, *, slope=1.0) -> Tensor:
    """|h_L − h'_L| ≥ Π(1 − κ_ℓ)|h_0 − h'_0| for h ← h + f_ℓ(h), f_ℓ Lipschitz with constant κ_ℓ < 1."""
    ratio, kappa = _kept(start, other, inner, outer, raw)
    return (1 - slope * kappa).prod(dim=-1) / ratio


def skip_most(start, other, inner, outer, raw, *, slope=1.0) -> Tensor:
    """|h_L − h'_L| ≤ Π(1 + κ_ℓ)|h_0 − h'_0| for h ← h + f_ℓ(h), f_ℓ Lipschitz with constant κ_ℓ."""
    ratio, kappa = _kept(start, other, inner, outer, raw)
    return ratio / (1 + slope * kappa).prod(dim=-1)


def two_inputs(weights: Tensor, raw: Tensor, ends: Tensor) -> Tensor:
    """b₂ (b − a)²/4 ≤ (C(a) + C(b))/2 − C((a + b)/2) for 0 ≤ a < b ≤ 1, as C'' ≥ C''(0) = 2b₂.

    b − a ≥ 0.1, so that the gap on the right is no matter of rounding. A gap below 0, of a map that is not convex, has
    the score 2.
    """
    share, (place, width) = torch.sigmoid(raw), torch.sigmoid(ends).unbind(dim=-1)
    width = 0.1 + 0.9 * width
    a = place * (1 - width)

    low, middle, high = (correlation(c, weights, share) for c in (a, a + width / 2, a + width))
    gap, least = (low + high) / 2 - middle, second_coefficient(weights, share) * width**2 / 4
    return torch.where(gap > 0, least / gap, torch.full_like(gap, 2.0))


BY_WIDTH = [{"d": d} for d in WIDTHS]
SKIPS = {
    "vary": {"start": "d", "other": "d", "inner": "L d d", "outer": "L d d", "raw": "L"},
    "sizes": [{"d": d, "L": L} for d in (2, 4) for L in (1, 3)],
    "shrink": ("slope",),
    "each": True,
    "rate": 0.1,
}
run = attack(
    "attack_residual",
    {
        "eq17_within": Statement(eq17, PAIR, BY_WIDTH, printed=True, batch=2048, rate=0.1),
        # as drawn: the count is the share of random pairs
        "eq17_beyond": Statement(eq17, PAIR, BY_WIDTH, {"beyond": (True,)}, printed=True, batch=2048, steps=1),
        "no_skip_rotations": Statement(decay, over={"stack": ("rotations",)}, printed=True),
        "no_skip_rectified": Statement(decay, over={"stack": ("rectified",)}, printed=True),
        "stable_flow": Statement(stable_flow, printed=True),
        # where the printed decay is right, the search must see it
        "no_skip_random": Statement(decay, wrong={"one rotation": {"stack": "rotations"}}),
        "addition": Statement(one_addition, PAIR, BY_WIDTH, batch=128),
        "layers": Statement(
            layers,
            {"start": "d", "pushes": "L d", "raw": "L"},
            [{"d": d, "L": L} for d in WIDTHS for L in (2, 5)],
            batch=128,
            steps=150,
        ),
        "skip_least": Statement(skip_least, **SKIPS),
        "skip_most": Statement(skip_most, **SKIPS),
        "flow": Statement(
            flow,
            {"start": "d", "turn": "d d", "inner": "d d", "outer": "d d"},
            [{"d": 2}, {"d": 4}],
            {"span": (1.0, 2.5)},  # at π the score could not be above 1: no angle is
            batch=64,
            steps=60,
            rate=0.2,
        ),
        "two_inputs": Statement(
            two_inputs, {"weights": "k", "raw": "", "ends": "e"}, [{"k": 6, "e": 2}], batch=32, steps=60, rate=0.2
        ),
    },
    widths=list(WIDTHS),
)
