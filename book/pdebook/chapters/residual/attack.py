"""An adversary against bounds on fidelity: how far can a state turn away from its input?  (P2 Theorem 3.4, eq 16-17)

Our bounds are bounds on the angle ∠(u, u₀) = arccos ρ, so the ratio is angle/bound: above 1 the bound is false. Of what
is printed we attack eq 17 on both sides of ‖I‖ = ‖u₀‖, the decay of ρ without a skip, and the positive lower bound of ρ
for stable flows.
"""

import math
from itertools import repeat

import torch
from torch import Tensor

from pdebook.chapters.residual.residual_laws import rectified_stack
from pdebook.chapters.residual.two_inputs import pair_mean
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.seeds import normal, stream

WIDTHS = (2, 3, 8)


def dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(dim=-1)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """ρ = ⟨u, v⟩ / (‖u‖‖v‖) along the last axis."""
    return dot(u, v) / (u.norm(dim=-1) * v.norm(dim=-1))


def angle(u: Tensor, v: Tensor) -> Tensor:
    """∠(u, v) in [0, π]. The arc cosine is imprecise near 0 and π, where half-angles are not."""
    u, v = (x / x.norm(dim=-1, keepdim=True) for x in (u, v))
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


# One addition, u = u₀ + I.


def printed_bound(r: Tensor) -> Tensor:
    """(1 − r)/(1 + r) with r = ‖I‖/‖u₀‖.  (P2 eq 17)"""
    return (1 - r) / (1 + r)


def sharp_bound(r: Tensor) -> Tensor:
    """√(1 − r²) for r < 1: the least cosine of u₀ + I with u₀, where I is at right angles to u₀ + I."""
    return (1 - r**2).sqrt()


def addition(start: Tensor, direction: Tensor, r: Tensor) -> Tensor:
    """u₀ + I with ‖I‖ = r ‖u₀‖ in a given direction."""
    unit = direction / direction.norm(dim=-1, keepdim=True)
    return start + (r * start.norm(dim=-1)).unsqueeze(-1) * unit


def addition_ratio(start: Tensor, direction: Tensor, raw: Tensor) -> Tensor:
    """∠(u₀ + I, u₀) / arcsin r, r = sigmoid(raw) < 1: at most 1."""
    r = torch.sigmoid(raw)
    return angle(addition(start, direction, r), start) / torch.arcsin(r)


def attack_addition(seed: int, batch: int = 128, steps: int = 100) -> Tensor:
    found = []
    for d in WIDTHS:
        start, direction = (normal(seed, "addition", d, k, size=(batch, d)) for k in "uI")
        found.append(ascend(addition_ratio, start, direction, normal(seed, "r", d, size=(batch,)), steps=steps))
    return torch.cat(found)


def attack_printed(seed: int, beyond: bool, batch: int = 2048) -> Tensor:
    """Whether ρ < (1 − r)/(1 + r), random u₀ and I, r up to 1 or from 1 to 4: bool, (width · batch,)."""
    found = []
    for d in WIDTHS:
        start, direction = (normal(seed, "printed", beyond, d, k, size=(batch, d)) for k in "uI")
        r = torch.rand(batch, generator=stream(seed, "size", beyond, d), dtype=torch.float64)
        r = 1 + 3 * r if beyond else r
        found.append(cosine(addition(start, direction, r), start) < printed_bound(r) - 1e-9)
    return torch.cat(found)


# Layers, h ← h + f.


def layers_ratio(start: Tensor, pushes: Tensor, raw: Tensor) -> Tensor:
    """∠(h_L, h_0) / Σ arcsin κ_ℓ for |f_ℓ| = κ_ℓ|h_ℓ| in the directions `pushes`: at most 1 where the sum is at most π.

    start (batch, d), pushes (batch, L, d), raw (batch, L) with κ = sigmoid(raw). Beyond π nothing is claimed: −1.
    """
    kappa, h = torch.sigmoid(raw), start
    for layer in range(pushes.shape[1]):
        h = addition(h, pushes[:, layer], kappa[:, layer])
    total = torch.arcsin(kappa).sum(dim=-1)
    return torch.where(total <= math.pi, angle(h, start) / total, -torch.ones_like(total))


def attack_layers(seed: int, batch: int = 128, steps: int = 150) -> Tensor:
    """The worst ratio of each start, two and five layers. Those that never came below π say nothing."""
    found = []
    for d in WIDTHS:
        for layers in (2, 5):
            name = ("layers", d, layers)
            start, pushes = normal(seed, *name, "h", size=(batch, d)), normal(seed, *name, "f", size=(batch, layers, d))
            raw = normal(seed, *name, "κ", size=(batch, layers)) - 2
            found.append(ascend(layers_ratio, start, pushes, raw, steps=steps))
    found = torch.cat(found)
    return found[found > 0]


# Flows, u' = F(u, t) with ‖F‖ ≤ K‖u‖.


def flow_ratio(start: Tensor, turn: Tensor, inner: Tensor, outer: Tensor, *, span: float, steps: int = 24) -> Tensor:
    """∠(u(t), u(0)) / Kt at Kt = span ≤ π for F(u) = ‖u‖ w/√(1 + |w|²), w = Bn + W₂ tanh(W₁n), n = u/‖u‖, so K = 1.

    start: (batch, d), turn, inner, outer: (batch, d, d). RK4, which on a rotation lags behind and never overshoots.
    """

    def rate(u: Tensor) -> Tensor:  # (batch, d, 1)
        size = u.norm(dim=1, keepdim=True)
        n = u / size
        w = turn @ n + outer @ torch.tanh(inner @ n)
        return size * w / (1 + (w * w).sum(dim=1, keepdim=True)).sqrt()

    u, dt = start.unsqueeze(-1), span / steps
    for _ in range(steps):
        k1 = rate(u)
        k2 = rate(u + dt / 2 * k1)
        k3 = rate(u + dt / 2 * k2)
        u = u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rate(u + dt * k3))
    return angle(u.squeeze(-1), start) / span


def attack_flow(seed: int, batch: int = 64, steps: int = 60) -> Tensor:
    """The worst ratio of each start in two and four dimensions, up to Kt = 1 and up to π."""
    found = []
    for d in (2, 4):
        for span in (1.0, math.pi):
            start = normal(seed, "flow", d, span, size=(batch, d))
            matrices = [normal(seed, "flow", d, span, k, size=(batch, d, d)) for k in "BWV"]
            found.append(ascend(lambda *x, s=span: flow_ratio(*x, span=s), start, *matrices, steps=steps, rate=0.2))
    return torch.cat(found)


# Two inputs, c ← C(c).


def polynomial(z: Tensor, weights: Tensor) -> Tensor:
    """φ(z) = Σ_k w_k z^k, weights (batch, k), z (node,) or (batch, node, …) → (batch, node, …)."""
    weights = weights.reshape(*weights.shape, *[1] * max(z.ndim - 1, 1))
    value = weights[:, -1]
    for k in range(weights.shape[1] - 2, -1, -1):  # Horner
        value = value * z + weights[:, k]
    return value


def correlation(c: Tensor, weights: Tensor, share: Tensor) -> Tensor:
    """C(c) = (1 − s) E[φ(z₁)φ(z₂)]/E[φ²] + s at q = 1, s the share of the bias in the variance; c: (batch,).

    φ is a polynomial, for which the quadrature is exact.
    """

    def mean(c: Tensor) -> Tensor:
        return pair_mean(lambda z: polynomial(z, weights), c)

    return (1 - share) * mean(c) / mean(torch.ones_like(c)) + share


def second_coefficient(weights: Tensor, share: Tensor) -> Tensor:
    """b₂ = (1 − s) E[φ(z)(z² − 1)]²/(2 E[φ²]), the share of the second Hermite polynomial: C''(0)/2."""
    k = torch.arange(weights.shape[1])
    moment = [math.prod(range(j - 1, 0, -2)) * (j % 2 == 0) for j in range(2 * len(k) + 2)]  # E[z^j] = (j − 1)!!
    moment = torch.tensor(moment, dtype=weights.dtype)
    with_second = (weights * (moment[k + 2] - moment[k])).sum(dim=-1)
    square = torch.einsum("bj,jk,bk->b", weights, moment[k[:, None] + k], weights)
    return (1 - share) * with_second**2 / (2 * square)


def convexity_ratio(weights: Tensor, raw: Tensor, ends: Tensor) -> Tensor:
    """b₂ (b − a)²/4 over the gap (C(a) + C(b))/2 − C((a + b)/2), 0 ≤ a < b ≤ 1: at most 1, as C'' ≥ C''(0) = 2b₂.

    b − a ≥ 0.1, so that the gap is no matter of rounding. A gap below zero, a map that is not convex, gives infinity.
    """
    share, (place, width) = torch.sigmoid(raw), torch.sigmoid(ends).unbind(dim=-1)
    width = 0.1 + 0.9 * width
    a = place * (1 - width)
    low, middle, high = (correlation(c, weights, share) for c in (a, a + width / 2, a + width))
    gap, least = (low + high) / 2 - middle, second_coefficient(weights, share) * width**2 / 4
    return torch.where(gap > 0, least / gap, torch.inf)


def attack_convexity(seed: int, batch: int = 32, steps: int = 60) -> Tensor:
    """Polynomials of degree five, any bias, any two places; φ starts with little of z² − 1 in it."""
    weights, ends = normal(seed, "φ", size=(batch, 6)), normal(seed, "ends", size=(batch, 2))
    return ascend(convexity_ratio, weights, normal(seed, "s", size=(batch,)), ends, steps=steps, rate=0.2)


# The printed theorem, in words.


def decays(rho: Tensor, width: int) -> Tensor:
    """Whether |ρ_ℓ| is down at the level of chance in the second half of the depth: below 4/√d on average.

    rho (layer, batch). Unrelated directions in d dimensions have |ρ| of about 0.8/√d.
    """
    return rho[len(rho) // 2 :].abs().mean(dim=0) < 4 / math.sqrt(width)


def attack_decay(seed: int, batch: int = 32, layers: int = 64, d: int = 256) -> dict[str, Tensor]:
    """Whether non-residual stacks keep ρ above the level of chance.

    rotations: h ← Qh, by one angle in every plane, the same Q at every layer. rectified: h ← max(√2 Wh, 0), fresh W,
    on rectified noise. random, the control: h ← Qh with a fresh orthogonal Q at every layer, which keeps nothing.
    """
    planes = torch.linalg.qr(normal(seed, "planes", size=(batch, d, d)))[0]
    turn = math.pi * torch.rand(batch, 1, 1, generator=stream(seed, "angle"), dtype=torch.float64)
    quarter = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)] * (d // 2))
    rotation = planes @ (turn.cos() * torch.eye(d, dtype=torch.float64) + turn.sin() * quarter) @ planes.mT
    start = normal(seed, "start", size=(batch, d, 1))
    fresh = (torch.linalg.qr(normal(seed, "fresh", k, size=(d, d)))[0] for k in range(layers))
    stacks = {}
    for name, matrices in {"rotations": repeat(rotation, layers), "random": fresh}.items():
        stacks[name] = [start.squeeze(-1)]
        for matrix in matrices:
            stacks[name].append((matrix @ stacks[name][-1].unsqueeze(-1)).squeeze(-1))
    stacks["rectified"] = rectified_stack(torch.relu(normal(seed, "rectified", size=(batch, d))), layers, seed)
    return {
        name: ~decays(torch.stack([cosine(h, states[0]) for h in states[1:]]), d) for name, states in stacks.items()
    }


def attack_stable(seed: int, batch: int = 64, d: int = 6, decay: float = 0.3, time: float = 20.0) -> Tensor:
    """Whether ρ(t) ≤ 0 at some t ≤ 20 for u' = (B − δ)u, B antisymmetric: stable, E(t) = E(0)e^{−2δt} exactly."""
    square = normal(seed, "B", size=(batch, d, d))
    step = torch.linalg.matrix_exp(0.05 * (square - square.mT - decay * torch.eye(d)))
    start = normal(seed, "u", size=(batch, d, 1))
    u, least = start, torch.ones(batch, dtype=torch.float64)
    for _ in range(int(time / 0.05)):
        u = step @ u
        least = torch.minimum(least, cosine(u.squeeze(-1), start.squeeze(-1)))
    return least <= 0


@experiment("attack_residual", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the theorem on residual connections, as printed and as corrected (P2 thm 3.4).

    One seed of every attack; `worst` is the largest angle over the angle that the corrected statements allow.
    """
    decay = attack_decay(seed)
    return attack_result(
        "attack_residual",
        scale,
        seed,
        printed={
            "eq17_within": attack_printed(seed, beyond=False),
            "eq17_beyond": attack_printed(seed, beyond=True),
            **{f"no_skip_{name}": decay[name] for name in ("rotations", "rectified")},
            "stable_flow": attack_stable(seed),
        },
        corrected={
            "addition": attack_addition(seed),
            "layers": attack_layers(seed),
            "flow": attack_flow(seed),
            "two_inputs": attack_convexity(seed),
        },
        figures={"eq17_attempts_each_side": 2048 * len(WIDTHS)},
        controls={"random stacks that decayed": int((~decay["random"]).sum())},
        configuration={"widths": list(WIDTHS)},
    )
