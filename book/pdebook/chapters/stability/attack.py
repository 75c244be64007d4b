"""An adversary against conditional stability:  u' = F(u) + S(u), S = −γ(u − μ)/√(σ² + ε).  (P2 Theorem 3.3, eq 13-15)

Printed: E decays if γ exceeds the sum of Lipschitz constants. A step of its proof, apart: ∫⟨u, S⟩ ≤ −2γE for an
effective rate γ > 0. Corrected: the spread σ, or the diameter δ, decays inside a basin (Theorem A), also for Euler
steps (B); it falls to a floor if constants are pushed apart; and another S bounds the field (C).

G = attention + network. What G may do comes from its weights alone, g‖V‖ + ‖U‖‖W‖ (`allowed_push`), and both parts of
it are made smaller apart: `values` and `network`. Half of the starts are near the states where averages do most, with
two leading tokens to which the others attend, or corners of a simplex; from random ones the ascent is too short to
find them. The neighbours `pull` and `damping` are the same promise with a γ, or a κ, that is a tenth weaker.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pdebook.chapters.stability import laws
from pdebook.chapters.stability.starts import (
    SYSTEM,
    WIDE,
    aligned,
    attended,
    equal_tokens,
    most_growth,
    near_leaders,
    one_leader,
    one_leader_in_a_flow,
    slowest_mode,
)
from pdebook.evidence.adversary import Statement, attack
from pdebook.evidence.systems import allowed_push, push
from pdelab.field import laplacian, laplacian_eigenvalues
from pdelab.formulas import (
    attention_contraction,
    attention_weights,
    averaging_growth,
    averaging_size,
    centred,
    diameter,
    growth,
    layer_norm,
    longest,
    norm2,
    per_example,
    size,
    spread,
    variance_share,
)
from pdelab.integrators import flow
from pdelab.metrics.stability import basin_margin, diameter_margin, euler_factor, step_margin
from pdelab.seeds import normal, stream
from pdelab.terms.stabilization import normalised

EXACT = 1e-9  # relative gap of a law and of what it is about
EFFECTIVE = tuple(10.0**-k for k in range(5))  # effective rates on offer, relative to γ


def inner(v: Tensor, w: Tensor) -> Tensor:
    """Σ_i v_i · w_i of each example."""
    return (v * w).sum(dim=(-2, -1))


# What F may do to the spread.


def one_sided(u, A, V, W, U, *, values=1.0, network=1.0) -> Tensor:
    """⟨u − μ, G(u) − G(μ)⟩ ≤ (√c ‖V‖ + ‖U‖‖W‖)σ², c the largest column sum of P(u)."""
    rest = centred(u)
    gained = inner(rest, push(u, A, V, W, U) - push(u - rest, A, V, W, U))

    root = attention_weights(u, A).sum(dim=-2).amax(dim=-1).sqrt()
    allowed = allowed_push(root, V, W, U, values=values, network=network)
    return gained / (allowed * inner(rest, rest))


def average_growth(w, logits, V, *, values=1.0) -> Tensor:
    """⟨w, PVw⟩ ≤ ½(1 + √(N/2))‖V‖ ‖w‖², N even, for fields of mean zero and every P with rows ≥ 0 of sum 1."""
    w = centred(w)
    gained = inner(w, logits.softmax(dim=-1) @ w @ V.mT)
    return gained / (values * averaging_growth(w.shape[-2]) * norm2(V) * inner(w, w))


def average_size(w, logits, V, *, values=1.0) -> Tensor:
    """‖PVw − mean‖ ≤ √(N/2) ‖V‖ ‖w‖, N even, for the same fields and P."""
    w = centred(w)
    spread_out = spread(logits.softmax(dim=-1) @ w @ V.mT)
    return spread_out / (values * averaging_size(w.shape[-2]) * norm2(V) * size(w))


def average_product(w, logits, V, *, values=1.0) -> Tensor:
    """⟨u, PVu⟩ ≤ ½(1 + √N)‖V‖ ‖u‖² for every field u."""
    gained = inner(w, logits.softmax(dim=-1) @ w @ V.mT)
    return gained / (values * (1 + math.sqrt(w.shape[-2])) / 2 * norm2(V) * inner(w, w))


def jung(u, *, chi=1.0, dimensions=0) -> Tensor:
    """σ² ≤ χδ², χ = ½ min(1 − 1/N, d/(d + 1)); false for the χ of one feature less."""
    share = variance_share(u.shape[-2], u.shape[-1] - dimensions)
    return spread(u) ** 2 / (chi * share * diameter(u) ** 2)


def poincare(u, M, B, *, least=1.0, continuum=False, singular=False) -> Tensor:
    """−⟨u − μ, D Δ_N u⟩ ≥ D_min 4N² sin²(π/2N) σ², reflecting ends, D_min the least eigenvalue of ½(D + Dᵀ)."""
    symmetric = M @ M.mT
    D = symmetric + B - B.mT
    lost = -inner(centred(u), laplacian(u) @ D.mT)

    smallest = torch.linalg.matrix_norm(D, -2) if singular else torch.linalg.eigvalsh(symmetric)[..., 0]
    slowest = math.pi**2 if continuum else -laplacian_eigenvalues(u.shape[-2])[1].item()
    return smallest * slowest * inner(centred(u), centred(u)) / (least * lost)


# Theorem A, for the spread and for the diameter.

MEASURES = {"spread": (spread, basin_margin), "diameter": (diameter, diameter_margin)}


def gain(of: str, u: Tensor) -> float:
    """What averages may do to the growth of the spread, or of the diameter."""
    return averaging_growth(u.shape[-2]) if of == "spread" else 1.0


def decay(
    u, ln_eps, margin, place, ln_rise, ln_leak, ln_D, *, of, leaking=False, causal=False, contracting=False,
    ends="reflecting", pull=1.0, damping=1.0, values=1.0, network=1.0, eps=1.0, chi=1.0, largest=False, backward=False,
    **system,
) -> Tensor:  # fmt: skip
    """σ(T) ≤ σ₀ e^{−r₀T}, r₀ = γ₀/√(σ₀² + ε) − λ, for F = G − κu + DΔ_N u and γ(t) ≥ γ₀, if r₀ > 0; also δ for σ.

    The start lies in the basin: γ₀ = √(σ₀² + ε)(max(λ, 0) + K e^margin), K = λ + κ. For the diameter √(χδ₀² + ε) and
    K = ‖V‖ + ‖U‖‖W‖, with contracting ‖V‖tanh(¼‖A‖δ₀²), without a mask. leaking: λ < 0, so that every start is allowed;
    else 0 < λ < K. γ(t) = γ₀(1 + a sin²(πt/T)), and largest promises the decay of γ₀(1 + a). The score is 1 plus what
    ln σ(T) exceeds, over KT. T is short enough for RK4: 2/(γ/√ε + K + κ + 4N²D) at most. backward: −D for D.
    """
    measure, margin_of = MEASURES[of]
    tanh = attention_contraction(system["A"], diameter(u)) if contracting else 1.0
    K = allowed_push(gain(of, u) * tanh, **system)
    leak = K * (1 + ln_leak.exp() if leaking else ln_leak.sigmoid())
    soft, most, D = ln_eps.exp(), 1 + ln_rise.exp(), ln_D.exp() / u.shape[-2] ** 2
    still = torch.zeros_like(K)
    root = 1 / margin_of(u, strength=1.0, growth=still, eps=soft)
    gamma = root * ((K - leak).clamp(min=0) + K * margin.exp())
    T = 2 * place.sigmoid() / (gamma * most / soft.sqrt() + K + leak + 4 * ln_D.exp())

    allowed = allowed_push(gain(of, u) * tanh, **system, values=values, network=network) - leak
    promised = margin_of(chi**0.5 * u, strength=gamma * (most if largest else 1.0), growth=allowed, eps=eps * soft)

    D = -D if backward else D
    g, e, kappa, D, turn = (per_example(x) for x in (pull * gamma, soft, damping * leak, D, math.pi / T))
    rise = per_example(most) - 1

    def rate(v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        strength = g * (1 + rise * torch.sin(turn * t) ** 2)
        moved = push(v, **system, causal=causal) - kappa * v + D * laplacian(v, ends) - strength * normalised(v, e)
        return moved, torch.ones_like(t)

    end, _ = kutta(rate, (u, torch.zeros_like(g)), per_example(T), steps=24)
    return 1 + ((measure(end) / measure(u)).log() + promised * T) / (K * T)


def kutta(rate: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...], T, steps: int) -> tuple[Tensor, ...]:
    """The state at T of a system of several tensors, by RK4; the time may be one of them."""
    h = T / steps

    def moved(by, slopes):
        return tuple(x + by * slope for x, slope in zip(state, slopes, strict=True))

    for _ in range(steps):
        k1 = rate(*state)
        k2 = rate(*moved(h / 2, k1))
        k3 = rate(*moved(h / 2, k2))
        k4 = rate(*moved(h, k3))
        state = moved(h / 6, [a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True)])
    return state


def decay_diffusing(
    u, M, B, ln_eps, margin, place, *, least=1.0, network=1.0, pull=1.0, continuum=False, **system
) -> Tensor:
    """The same bound on σ for F = G + DΔ_N u with a matrix D: λ = K − 4N² sin²(π/2N) D_min, reflecting ends."""
    symmetric = M @ M.mT
    D, K = symmetric + B - B.mT, allowed_push(gain("spread", u), **system)
    slowest = -laplacian_eigenvalues(u.shape[-2])[1].item()
    lost, soft = slowest * torch.linalg.eigvalsh(symmetric)[..., 0], ln_eps.exp()
    root, unit = (spread(u) ** 2 + soft).sqrt(), K + lost
    gamma = root * ((K - lost).clamp(min=0) + unit * margin.exp())
    T = 2 * place.sigmoid() / (gamma / soft.sqrt() + K + 4 * u.shape[-2] ** 2 * norm2(D))

    faster = math.pi**2 / slowest if continuum else 1.0
    allowed = allowed_push(gain("spread", u), **system, network=network) - lost * faster / least
    promised = basin_margin(u, strength=gamma, growth=allowed, eps=soft)
    g, e = per_example(pull * gamma), per_example(soft)
    end = flow(lambda v: push(v, **system) + laplacian(v) @ D.mT - g * normalised(v, e), u, T=per_example(T), steps=24)
    return 1 + ((spread(end) / spread(u)).log() + promised * T) / (unit * T)


NEARLY = 1 - 1e-6


def extinction(u, margin, *, of, pull=1.0, values=1.0, network=1.0, chi=1.0, **system) -> Tensor:
    """Without ε all tokens are equal from λ⁻¹ ln(γ/(γ − λσ₀)) on; for the diameter √χδ₀ in the place of σ₀.

    With w = (1 − r)y and the time dt = (‖y‖/γ)dr the field is extinct at r = 1, and nothing is stiff on the way:
    dy/dr = (‖y‖/γ)(G − mean G)/(1 − r). The score is the time at r = 1 − 10⁻⁶ over the time that is allowed.
    """
    share = variance_share(u.shape[-2], u.shape[-1]).sqrt()
    measured = spread(u) if of == "spread" else share * diameter(u)
    rate = allowed_push(gain(of, u), **system)
    gamma = rate * measured * (1.3 + margin.exp())
    g = per_example(pull * gamma)

    def moved(y, mean, t, r):
        slow = per_example(size(y)) / g
        out = push(mean + (1 - r) * y, **system)
        average = out.mean(dim=-2, keepdim=True)
        return slow * centred(out) / (1 - r), slow * average, slow, torch.ones_like(r)

    start = centred(u), u.mean(dim=-2, keepdim=True), torch.zeros_like(g), torch.zeros_like(g)
    time = kutta(moved, start, NEARLY, steps=24)[2].squeeze(-1).squeeze(-1)

    allowed = allowed_push(gain(of, u), **system, values=values, network=network)
    measured = measured if of == "spread" else chi * measured
    return time / (-torch.log1p(-allowed * measured / gamma) / allowed)


def mean_zero(u, m, ln_eps, margin, place, *, free=False, pull=1.0, values=1.0, network=1.0, eps=1.0, **system):
    """E(T) ≤ E₀ e^{−2(γ_eff − λ)T}, γ_eff = γ/√(2E₀ + ε), if the mean is 0 and stays 0; false if it is free.

    F = G − mean G holds the mean; free: it does not, and the start has the mean m.
    """
    rate, soft = allowed_push(gain("spread", u), **system), ln_eps.exp()
    u = centred(u) + (m if free else 0.0)
    root = (size(u) ** 2 + soft).sqrt()
    gamma = rate * root * (1 + margin.exp())
    T = 2 * place.sigmoid() / (gamma / soft.sqrt() + rate)

    effective = gamma / (size(u) ** 2 + eps * soft).sqrt()
    allowed = allowed_push(gain("spread", u), **system, values=values, network=network)
    g, e = per_example(pull * gamma), per_example(soft)

    def moved(v: Tensor) -> Tensor:
        out = push(v, **system)
        return (out if free else centred(out)) - g * normalised(v, e)

    end = flow(moved, u, T=per_example(T), steps=24)
    return 1 + ((size(end) / size(u)).log() + (effective - allowed) * T) / (rate * T)


def scaled_pull(u, margin, place, *, pull=1.0, values=1.0, network=1.0, **system) -> Tensor:
    """σ(T) ≤ σ₀ e^{−(Γ − λ)T} from every start if γ = Γ√(σ² + ε), Γ of any size."""
    rate = allowed_push(gain("spread", u), **system)
    strength = rate * margin.exp()
    T = 2 * place.sigmoid() / (strength + rate)
    g = per_example(pull * strength)
    end = flow(lambda v: push(v, **system) - g * centred(v), u, T=per_example(T), steps=24)
    allowed = allowed_push(gain("spread", u), **system, values=values, network=network)
    return 1 + ((spread(end) / spread(u)).log() + (strength - allowed) * T) / (rate * T)


def basin(seed: int, *, dropped=False, soft=1.0, systems=64, eps=0.1) -> Tensor:
    """For F = λu the spread falls exactly if σ₀ < √((γ/λ)² − ε); half of the starts are within 1 % of it.

    dropped: that it falls from every start; soft: a factor of ε in the edge.
    """
    draws = torch.rand(3, systems, generator=stream(seed, "basin"), dtype=torch.float64)
    rate, gamma = 0.2 + draws[0], 0.4 + draws[1]  # γ/λ > √ε, so that there is a basin
    factor = 0.5 + 1.5 * draws[2]
    factor[::2] = 1 + 0.01 * (factor[::2] - 1.25).sign()

    edge, claimed = (torch.tensor(laws.basin_edge(gamma.numpy(), rate.numpy(), e)) for e in (eps, soft * eps))
    sigma = factor * edge
    push_out = laws.stabilised(lambda u: per_example(rate) * u, gamma, eps)
    course = laws.follow(push_out, laws.fields(sigma, 1.0, 4, 2, seed), T=1.0, steps=50)

    falls = torch.as_tensor(course.spread[-1] < course.spread[0])
    promised = torch.ones_like(falls) if dropped else sigma < claimed
    return 2.0 * (falls != promised)


def floor(w, g, ln_level, ln_eps, ln_growth, *, forcing=1.0, lam=1.0, pull=1.0, eps=1.0) -> Tensor:
    """σ(T) ≤ σ_* from σ₀ = σ_* for F = λu + g(x), ‖g − mean g‖ = φ = γσ_*/√(σ_*² + ε) − λσ_*, in any direction.

    γ = 1. ln_growth sets λ, of either sign, below ε/(σ_*² + ε)^{3/2}: there γσ/√(σ² + ε) − λσ rises at σ_*, so that
    the hypothesis holds just above it. The neighbours have the σ_* of a smaller φ, λ or ε.
    """
    level, soft = ln_level.exp(), ln_eps.exp()
    rate = (1 - ln_growth.exp()) * soft / (level**2 + soft) ** 1.5
    phi = level / (level**2 + soft).sqrt() - rate * level
    T = 2 / (1 / soft.sqrt() + rate.abs())

    u, source = (per_example(length / spread(v)) * centred(v) for length, v in ((level, w), (phi / forcing, g)))
    rate, soft = per_example(rate / lam), per_example(soft / eps)
    end = flow(lambda v: rate * v + source - pull * normalised(v, soft), u, T=per_example(T), steps=20)
    return spread(end) / level


# Theorem B and larger steps.


def euler(
    u, ln_eps, margin, place, ln_leak, *, of="spread", causal=False, factor=euler_factor, pull=1.0, damping=1.0,
    values=1.0, network=1.0, eps=1.0, chi=1.0, **system,
) -> Tensor:  # fmt: skip
    """σ₁ ≤ qσ₀, q = max{1 − Δt(g₀ + κ − K), Δt(g_ε + κ + K) − 1}: one Euler step of u' = G(u) − κu + S; also δ for σ.

    The hypotheses are met by construction: margin as in `decay`, place: where Δt lies in (0, 2/(g_ε + κ + K)). Where κ
    is so large that no γ ≥ 0 gives this margin, γ = 0 does. For the spread K = S‖V‖ + ‖U‖‖W‖ with S of
    `averaging_size`, for the diameter ‖V‖ + ‖U‖‖W‖.
    """
    measure, margin_of = MEASURES[of]
    most = averaging_size(u.shape[-2]) if of == "spread" else 1.0
    rate, soft, leak = allowed_push(most, **system), ln_eps.exp(), ln_leak.exp()
    root = 1 / margin_of(u, strength=1.0, growth=torch.zeros_like(rate), eps=soft)
    gamma = root * (rate * (1 + margin.exp()) - leak).clamp(min=0)
    dt = 2 * place.sigmoid() / (gamma / soft.sqrt() + leak + rate)

    K = allowed_push(most, **system, values=values, network=network)
    q = factor(chi**0.5 * u, dt=dt, strength=gamma, lipschitz=K, eps=eps * soft, leak=leak, of=of)
    S = -per_example(pull * gamma) * normalised(u, per_example(soft))
    after = u + per_example(dt) * (push(u, **system, causal=causal) - per_example(damping * leak) * u + S)
    return measure(after) / (q * measure(u))


def euler_diffusing(
    u, ln_eps, margin, place, ln_leak, x, *, ends="reflecting", reach=1.0, pull=1.0, damping=1.0, values=1.0,
    network=1.0, chi=1.0, **system,
) -> Tensor:  # fmt: skip
    """δ₁ ≤ (1 − Δt(g₀ + κ − K))δ₀ with diffusion too, if 2DΔt/Δx² + Δt(g_ε + κ) ≤ 1; false without the condition.

    x: the share of diffusion in that sum; place: the sum itself. reach: a factor of D that the condition does not know.
    """
    rate, soft, leak = allowed_push(1.0, **system), ln_eps.exp(), ln_leak.exp()
    root = 1 / diameter_margin(u, strength=1.0, growth=torch.zeros_like(rate), eps=soft)
    gamma = root * (rate * (1 + margin.exp()) - leak).clamp(min=0)
    share, diffusive = place.sigmoid() * x.sigmoid(), place.sigmoid() * (1 - x.sigmoid())
    dt = share / (gamma / soft.sqrt() + leak)

    K = allowed_push(1.0, **system, values=values, network=network)
    q = 1 - dt * diameter_margin(chi**0.5 * u, strength=gamma, growth=K - leak, eps=soft)
    S = -per_example(pull * gamma) * normalised(u, per_example(soft))
    spatial = per_example(reach * diffusive / 2) * laplacian(u, ends) / u.shape[-2] ** 2
    after = u + spatial + per_example(dt) * (push(u, **system) - per_example(damping * leak) * u + S)
    return 1 + (diameter(after) / diameter(u) - q) / (dt * rate + diffusive)


def without_overshoot(u, *, dt, strength, lipschitz, eps, leak, of) -> Tensor:
    """The first of the two numbers of q alone, which forgets that a step may jump across."""
    margin = MEASURES[of][1](u, strength=strength, growth=lipschitz - leak, eps=eps)
    return (1 - dt * margin).clamp(min=EXACT)


def overshoot_alone(u, *, of, **numbers) -> Tensor:
    """The second of the two numbers of q alone, which forgets that a small step does little."""
    return (1 - step_margin(**numbers)).clamp(min=EXACT)


def chatter(seed: int, *, top=1.0, largest=1.0, systems=64, steps=200) -> Tensor:
    """σ_n ≤ Δtγ from some n on, for Euler steps of F = λ(u − μ) without ε, Δtλ ≤ 1 and σ₀ < γ/λ.

    Each step takes at least the share Δtλ ≥ 0.05 more of what is missing to γ/λ, so that 100 steps are enough. Here
    Δt = γ = 1. largest: of Δtλ.
    """
    share, place = torch.rand(2, systems, generator=stream(seed, "chatter"), dtype=torch.float64).numpy()
    turn = 0.05 + (largest - 0.05) * share
    a, seen = 0.95 * place / turn, []
    for _ in range(steps):
        a = laws.euler_map(a, 1.0, 1.0, turn, 0.0)
        seen.append(np.abs(a))
    return torch.tensor(np.max(seen[steps // 2 :], axis=0)) / top


def cycle(seed: int, *, soft=1.0, sign=1.0, systems=64, steps=4000) -> Tensor:
    """Euler steps beyond the step limit settle at a spread of √(s² − ε), s = Δtγ/(2 + Δtλ), for F = λ(u − μ), λ ≤ 0.

    Cycles that attract too slowly for the steps are left out. soft and sign: factors of ε and λ in the law. Δt = 1.
    """
    share, excess, eps = torch.rand(3, systems, generator=stream(seed, "cycle"), dtype=torch.float64).numpy()
    rate, eps = -1.5 * share, 0.1 + eps
    gamma = (2 + rate + 0.1 + 2 * excess) * np.sqrt(eps)

    true, claimed = (
        np.array([laws.two_cycle(1.0, *one) for one in zip(gamma, r, e, strict=True)])
        for r, e in ((rate, eps), (sign * rate, soft * eps))
    )
    a = 0.5 * gamma / (2 + rate)
    for _ in range(steps):
        a = laws.euler_map(a, 1.0, gamma, rate, eps)

    fast = np.abs(true[:, 1]) < 0.99
    return torch.tensor(np.abs(np.abs(a) - claimed[:, 0]) / np.abs(a))[fast] / EXACT


# Theorem C.


def bounded(u, b, ln_root, margin, place, *, N=1.0, f0=1.0, values=1.0, network=1.0, steps=32, **system) -> Tensor:
    """‖u(T)‖ ≤ e^{−θT}‖u₀‖ + (γ + f₀)(1 − e^{−θT})/θ, θ = γ − λ > 0, for S = γ(N(u) − u), F = G − 2u + b, f₀ = |b|.

    λ = ½(1 + √N)‖V‖ + ‖U‖‖W‖ − 2. The score is 1 plus what ln‖u(T)‖ exceeds, over T times the sum of all rates; T is at
    most 1/θ, and short enough for RK4. ln_root: of √ε. N: the bound 1 of ‖N(u)‖.
    """
    most = (1 + math.sqrt(u.shape[-2])) / 2
    rate, root, force = allowed_push(most, **system), ln_root.exp(), b.norm(dim=-1).squeeze(-1)
    gamma = (rate - 2).clamp(min=0) + margin.exp()
    theta, start = gamma - (rate - 2), size(u)
    T = place.sigmoid() / torch.maximum(theta, 2 * (gamma / root + gamma + rate + 2) / steps)

    g, eps = per_example(gamma), per_example(root**2)
    end = flow(lambda v: push(v, **system) - 2 * v + b + g * (normalised(v, eps) - v), u, T=per_example(T), steps=steps)

    theta = gamma - (allowed_push(most, **system, values=values, network=network) - 2)
    allowed = torch.exp(-theta * T) * start + (N * gamma + f0 * force) * growth(-theta, T)
    return 1 + (size(end) / allowed).log() / (T * (rate + 2 + gamma + (gamma + force) / start))


def token_bounded(
    u, b, g, h, ln_root, margin, ln_leak, place, *, causal, kind, R=1.0, f0=1.0, values=1.0, network=1.0, reach=1.0,
    steps=32, **system,
) -> Tensor:  # fmt: skip
    """max|u_i(T)| ≤ e^{−θT}max|u_i(0)| + (γR + f₀)(1 − e^{−θT})/θ, θ = γ + κ − ‖V‖ − ‖U‖‖W‖ > 0, S = γ(LN(u) − u).

    LayerNorm of each token with gains g and biases h: R = √d max|g| + |h|. F = G − κu + b, f₀ = |b|, and any mask.
    kind: "flow", or one Euler "step" with Δt(γ + κ) ≤ 1, where max|u_i⁺| ≤ (1 − Δtθ)max|u_i| + Δt(γR + f₀); reach: a
    factor of Δt.
    """
    rate, root, force, leak = allowed_push(1.0, **system), ln_root.exp(), b.norm(dim=(-2, -1)), ln_leak.exp()
    gamma, start = (rate - leak).clamp(min=0) + margin.exp(), longest(u)
    radius = u.shape[-1] ** 0.5 * g.abs().amax(dim=(-2, -1)) + h.norm(dim=(-2, -1))
    s, kappa, eps = per_example(gamma), per_example(leak), per_example(root**2)

    def moved(v: Tensor) -> Tensor:
        return push(v, **system, causal=causal) + b - kappa * v + s * (layer_norm(v, eps, g, h) - v)

    theta = gamma + leak - allowed_push(1.0, **system, values=values, network=network)
    source = R * gamma * radius + f0 * force
    if kind == "step":
        T = place.sigmoid() / (gamma + leak)
        end = u + reach * per_example(T) * moved(u)
        allowed = (1 - theta * T) * start + source * T
    else:
        stiff = gamma * g.abs().amax(dim=(-2, -1)) / root + gamma + leak + rate
        T = place.sigmoid() / torch.maximum(gamma + leak - rate, 2 * stiff / steps)
        end = flow(moved, u, T=per_example(T), steps=steps)
        allowed = torch.exp(-theta * T) * start + source * growth(-theta, T)
    unit = rate + leak + gamma + (gamma * radius + force) / start
    return 1 + (longest(end) / allowed - 1) / (T * unit)


# The printed statements.


def dissipation(seed: int, *, effective: float, fields: int = 1000) -> Tensor:
    """∫⟨u, S⟩ ≤ −2γ_eff E, fields whose mean and spread are log-uniform, γ_eff a share of γ.

    ∫⟨u, S⟩ = −γσ²/√(σ² + ε) and 2E = |μ|² + σ² are exact, so nothing is left to rounding.
    """
    draws = torch.rand(2, fields, generator=stream(seed, "dissipation"), dtype=torch.float64)
    mean, sigma = torch.pow(10, 6 * draws - 3)
    return effective * (mean**2 + sigma**2) * (sigma**2 + 1e-5).sqrt() / sigma**2


def energy_decay(seed: int, *, systems: int = 64) -> Tensor:
    """E(t) ≤ E(0)e^{−2(γ − λ_c)t} for t ≤ 1 above the printed threshold, γ that of eq 9.

    Attention to all tokens alike, A(u) = Vμ − u, and R(u) = U tanh(Wu) − u have the Lipschitz constants ‖V‖ + 1 and
    ‖U‖‖W‖ + 1 everywhere; λ_c is their sum. γ/λ_c from 1.05 to 3, σ₀, |μ| and 10ε from 0.01 to 10, log-uniform.
    """
    draws = torch.rand(4, systems, generator=stream(seed, "decay broken"), dtype=torch.float64)
    sigma, mean, tenfold = torch.pow(10, 3 * draws[:3] - 2)
    V, W, U = (0.5 * normal(seed, "decay", k, size=(systems, 3, 3)) for k in "VWU")
    threshold = norm2(V) + norm2(U) * norm2(W) + 2
    gamma = (1.05 + 1.95 * draws[3]) * threshold
    g, eps = per_example(gamma), per_example(tenfold / 10)

    def rate(u: Tensor) -> Tensor:
        return push(u, torch.zeros_like(V), V, W, U) - 2 * u - g * normalised(u, eps)

    course = laws.follow(rate, laws.fields(sigma, mean, 6, 3, seed), T=1.0, steps=1200)
    allowed = torch.exp(-2 * torch.outer(torch.tensor(course.t), gamma - threshold))
    return (torch.tensor(course.energy / course.energy[0]) / allowed).amax(dim=0)


def effective_rate(u, V, W, U, K, b, margin, place, *, biased=False, pull=1.0, values=1.0, network=1.0) -> Tensor:
    """E(T) ≤ E₀e^{−2(γ − λ_c)T} for every S with ∫⟨u, S⟩ ≤ −2γE, γ > λ_c = L_A + L_R, and A(0) = R(0) = 0.

    The γ of B.2, as a hypothesis on S: S(u) = −γu + (K − Kᵀ)u has it. Attention to all tokens alike has L_A = ‖V‖, the
    network L_R = ‖U‖‖W‖; biased: R has a bias, R(0) = b. Score as in `decay`.
    """
    still = torch.zeros_like(V)
    rate = norm2(V) + norm2(U) * norm2(W)
    gamma, turn = rate * (1 + margin.exp()), K - K.mT
    T = place.sigmoid() / (gamma + rate + norm2(turn))
    g, source = per_example(pull * gamma), b if biased else 0.0

    end = flow(lambda v: push(v, still, V, W, U) + source - g * v + v @ turn.mT, u, T=per_example(T), steps=16)
    promised = gamma - values * norm2(V) - network * norm2(U) * norm2(W)
    return 1 + ((size(end) / size(u)).log() + promised * T) / (rate * T)


SHAPES = [{"n": n, "d": d, "1": 1} for n, d in ((2, 1), (4, 1), (4, 2))]
FREE = {"w": "n d", "logits": "n n", "V": "d d"}
MANY = [{"n": n, "d": d} for n, d in ((2, 1), (4, 1), (4, 2), (8, 1), (16, 2))]
CLOCK = dict.fromkeys(("ln_eps", "margin", "place", "ln_rise", "ln_leak", "ln_D"), "")
LEADERS = {"start": near_leaders(most_growth), "batch": 24, "steps": 40}
DECAY = LEADERS | {
    "vary": SYSTEM | CLOCK,
    "wrong": {"γ at its largest": {"largest": True}},
    "shrink": ("pull", "values", "network", "eps"),
}
TOKENS = {
    "vary": SYSTEM | {"b": "1 d", "g": "1 d", "h": "1 d", "ln_root": "", "margin": "", "ln_leak": "", "place": ""},
    "sizes": [{"n": 3, "d": d, "1": 1} for d in (2, 4)],
    "start": aligned,
    "shrink": ("R", "f0", "values", "network"),
    "batch": 24,
}
PAIRS = [{"n": n, "d": d, "1": 1} for n, d in ((2, 1), (4, 1))]
EULER = {
    "vary": SYSTEM | {"ln_eps": "", "margin": "", "place": "", "ln_leak": ""},
    "wrong": {"no overshoot": {"factor": without_overshoot}, "overshoot alone": {"factor": overshoot_alone}},
    "shrink": ("pull", "values", "network", "eps"),
    "batch": 48,
}

run = attack(
    "attack_stability",
    {
        "energy_decay": Statement(energy_decay, printed=True),
        "dissipation": Statement(dissipation, over={"effective": EFFECTIVE}, lemma=True),
        "one_sided": Statement(one_sided, SYSTEM, SHAPES, start=WIDE, shrink=("values", "network"), batch=64),
        "average_growth": Statement(
            average_growth, FREE, MANY, start=attended(most_growth), shrink=("values",), each=True
        ),
        "average_size": Statement(average_size, FREE, MANY, start=attended(0.99), shrink=("values",), each=True),
        "average_product": Statement(average_product, FREE, MANY, start=one_leader, shrink=("values",), each=True),
        "jung": Statement(
            jung,
            {"u": "n d"},
            [{"n": n, "d": d} for n, d in ((2, 2), (3, 2), (4, 3), (6, 2))],
            wrong={"one feature less": {"dimensions": 1}},
            shrink=("chi",),
            steps=200,
        ),
        "poincare": Statement(
            poincare,
            {"u": "n d", "M": "d d", "B": "d d"},
            [{"n": n, "d": d} for n, d in ((2, 1), (4, 2), (8, 2))],
            wrong={"π² for 4N² sin²": {"continuum": True}, "singular value": {"singular": True}},
            shrink=("least",),
            batch=48,
            steps=150,
        ),
        "decay": Statement(decay, **DECAY, sizes=SHAPES, over={"of": ("spread",)}),
        "decay_leaking": Statement(decay, **DECAY, sizes=PAIRS, over={"of": ("spread",), "leaking": (True,)}),
        "decay_diffusing": Statement(
            decay_diffusing,
            SYSTEM | {"M": "d d", "B": "d d", "ln_eps": "", "margin": "", "place": ""},
            [{"n": n, "d": d} for n, d in ((3, 1), (4, 2))],
            start=slowest_mode,
            wrong={"π² for 4N² sin²": {"continuum": True}},
            shrink=("least", "network", "pull"),
            steps=40,
        ),
        "extinction": Statement(
            extinction,
            SYSTEM | {"margin": ""},
            SHAPES,
            over={"of": ("spread",)},
            shrink=("pull", "values", "network"),
            **LEADERS,
        ),
        "diameter": Statement(
            decay,
            **DECAY | {"batch": 16, "steps": 30},
            sizes=PAIRS,
            over={"of": ("diameter",), "causal": (False, True), "leaking": (False, True)},
        ),
        "diameter_contracting": Statement(
            decay, **DECAY, sizes=PAIRS[:1], over={"of": ("diameter",), "contracting": (True,)}
        ),
        "diameter_extinction": Statement(
            extinction,
            SYSTEM | {"margin": ""},
            PAIRS,
            over={"of": ("diameter",)},
            shrink=("pull", "values", "network", "chi"),
            **LEADERS | {"start": near_leaders(1 - 1e-6)},
        ),
        "mean_zero": Statement(
            mean_zero,
            SYSTEM | {"m": "1 d", "ln_eps": "", "margin": "", "place": ""},
            PAIRS,
            wrong={"a mean that moves": {"free": True}},
            shrink=("pull", "values", "network", "eps"),
            **LEADERS,
        ),
        "scaled_pull": Statement(
            scaled_pull,
            SYSTEM | {"margin": "", "place": ""},
            PAIRS,
            shrink=("pull", "values", "network"),
            **LEADERS,
        ),
        "basin": Statement(basin, wrong={"every start": {"dropped": True}, "without ε": {"soft": 0.0}}),
        "floor": Statement(
            floor,
            {"w": "n d", "g": "n d", "ln_level": "", "ln_eps": "", "ln_growth": ""},
            [{"n": 4, "d": 2}],
            shrink=("forcing", "lam", "pull", "eps"),
            batch=64,
            steps=60,
        ),
        "euler": Statement(euler, **EULER, sizes=SHAPES, start=near_leaders(0.998)),
        "diameter_euler": Statement(
            euler,
            **EULER,
            sizes=PAIRS,
            over={"of": ("diameter",), "causal": (False, True)},
            start=near_leaders(most_growth),
        ),
        "diameter_euler_diffusing": Statement(
            euler_diffusing,
            SYSTEM | {"ln_eps": "", "margin": "", "place": "", "ln_leak": "", "x": ""},
            PAIRS,
            start=near_leaders(most_growth),
            wrong={"condition dropped": {"reach": 4.0}},
            shrink=("pull", "values", "network"),
            batch=48,
        ),
        "chatter": Statement(chatter, wrong={"Δtλ to 1.2": {"largest": 1.2}}, shrink=("top",)),
        "cycle": Statement(cycle, wrong={"without ε": {"soft": 0.0}, "−λ": {"sign": -1.0}}),
        "bounded": Statement(
            bounded,
            SYSTEM | {"b": "1 d", "ln_root": "", "margin": "", "place": ""},
            SHAPES,
            start=one_leader_in_a_flow,
            shrink=("N", "f0", "values", "network"),
            batch=24,
            steps=30,
        ),
        "token_bounded": Statement(
            token_bounded, **TOKENS, over={"causal": (False, True), "kind": ("flow",)}, steps=40
        ),
        "token_bounded_step": Statement(
            token_bounded,
            **TOKENS,
            over={"causal": (False, True), "kind": ("step",)},
            wrong={"Δt longer": {"reach": 3.0}},
            steps=60,
        ),
    },
    effective=EFFECTIVE,
)

# The diameter with three tokens in the plane, where χ = ⅓, at both kinds of ends, each constant by itself.
PLANE = [{"n": 3, "d": 2, "1": 1}]
CORNERS = near_leaders(most_growth, regimes=True)
MOVING = DECAY | {
    "sizes": PLANE,
    "start": CORNERS,
    "wrong": DECAY["wrong"] | {"−D": {"backward": True}},
    "shrink": (*DECAY["shrink"], "damping", "chi"),
    "batch": 16,
    "steps": 30,
}
STEPPING = {"sizes": PLANE, "start": CORNERS, "each": True}
run_diameter = attack(
    "attack_diameter",
    {
        "flow": Statement(decay, **MOVING, over={"of": ("diameter",), "causal": (False, True)}),
        "flow_periodic": Statement(
            decay, **MOVING, over={"of": ("diameter",), "ends": ("periodic",), "leaking": (False, True)}
        ),
        "flow_contracting": Statement(decay, **MOVING, over={"of": ("diameter",), "contracting": (True,)}),
        "extinction": Statement(
            extinction,
            SYSTEM | {"margin": ""},
            over={"of": ("diameter",)},
            shrink=("pull", "values", "network", "chi"),
            **LEADERS | {"sizes": PLANE, "start": CORNERS},
        ),
        "euler": Statement(
            euler,
            **EULER | {"shrink": (*EULER["shrink"], "damping", "chi")},
            **STEPPING,
            over={"of": ("diameter",), "causal": (False, True)},
        ),
        "euler_diffusing": Statement(
            euler_diffusing,
            SYSTEM | {"ln_eps": "", "margin": "", "place": "", "ln_leak": "", "x": ""},
            over={"ends": ("reflecting", "periodic")},
            wrong={"condition dropped": {"reach": 4.0}},
            shrink=("pull", "damping", "values", "network", "chi"),
            batch=48,
            **STEPPING,
        ),
    },
)

# Theorem 3.3 with the γ of B.2's inequality: FFN has a bias in print, so R(0) = 0 is a hypothesis that is added.
RATE = {
    "vary": {"u": "n d", "V": "d d", "W": "d d", "U": "d d", "K": "d d", "b": "1 d", "margin": "", "place": ""},
    "sizes": [{"n": 3, "d": 2, "1": 1}],
    "start": equal_tokens,
    "batch": 48,
    "steps": 30,
}
run_rate = attack(
    "attack_rate",
    {
        "B.2 decay": Statement(effective_rate, **RATE, over={"biased": (True,)}, printed=True),
        "B.2 decay, R(0) = 0": Statement(effective_rate, **RATE, shrink=("pull", "values", "network")),
    },
)
