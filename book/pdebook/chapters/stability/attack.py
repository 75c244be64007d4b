"""An adversary against conditional stability:  u' = F(u) + S(u), S = −γ(u − μ)/√(σ² + ε).  (P2 Theorem 3.3, eq 13-15)

Printed: ∫⟨u, S⟩ ≤ −2γE for an effective rate γ > 0, and E decays if γ exceeds the sum of Lipschitz constants.
Corrected: the spread σ decays inside a basin (Theorem A), also for Euler steps (B); it falls to a floor if constants
are pushed apart; and another S bounds the field (C).

G = attention + network; K = √N ‖V‖ + ‖U‖‖W‖ comes from its weights alone. The √N is not sharp, so a smaller K is
refuted where the network rules. The neighbour `pull` is the same promise with a γ that is a tenth weaker.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pdebook.chapters.stability import laws
from pdebook.evidence.adversary import Start, Statement, attack, over_decades
from pdebook.evidence.systems import MATRICES, allowed_push, push
from pdelab.field import laplacian, laplacian_eigenvalues
from pdelab.formulas import attention_weights, centred, growth, norm2, per_example, size, spread
from pdelab.integrators import flow
from pdelab.metrics.stability import basin_margin, euler_factor, step_margin
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
    allowed = values * root * norm2(V) + network * norm2(U) * norm2(W)
    return gained / (allowed * inner(rest, rest))


def poincare(u, M, B, *, least=1.0, continuum=False, singular=False) -> Tensor:
    """−⟨u − μ, D Δ_N u⟩ ≥ D_min 4N² sin²(π/2N) σ², reflecting ends, D_min the least eigenvalue of ½(D + Dᵀ)."""
    symmetric = M @ M.mT
    D = symmetric + B - B.mT
    lost = -inner(centred(u), laplacian(u) @ D.mT)

    smallest = torch.linalg.matrix_norm(D, -2) if singular else torch.linalg.eigvalsh(symmetric)[..., 0]
    slowest = math.pi**2 if continuum else -laplacian_eigenvalues(u.shape[-2])[1].item()
    return smallest * slowest * inner(centred(u), centred(u)) / (least * lost)


# Theorem A.


def decay(u, ln_eps, margin, place, *, pull=1.0, K=1.0, eps=1.0, **system) -> Tensor:
    """σ(T) ≤ σ₀ e^{−r₀T}, r₀ = γ/√(σ₀² + ε) − K > 0: the promised ln(σ₀/σ(T)) over what happens.

    margin: ln(γ/(K√(σ₀² + ε)) − 1), so that the start lies in the basin; place: where T lies in (0, 2/(γ/√ε + K)),
    where RK4 is exact to 1e-7. No leak: it only helps.
    """
    rate, soft, sigma = allowed_push(u.shape[-2], **system), ln_eps.exp(), spread(u)
    gamma = rate * (sigma**2 + soft).sqrt() * (1 + margin.exp())
    T = 2 * place.sigmoid() / (gamma / soft.sqrt() + rate)

    promised = basin_margin(u, strength=gamma, growth=K * rate, eps=eps * soft)
    end = spread(stabilised_flow(u, T, pull * gamma, soft, steps=32, **system))
    return promised * T / (sigma / end).log()


def extinction(u, margin, *, pull=1.0, K=1.0, **system) -> Tensor:
    """σ(T) ≤ e^{KT}σ₀ − γ(e^{KT} − 1)/K without ε: the promised fall over what happens.

    T is half the time at which the bound is 0, so that the field is still moving.
    """
    rate, sigma = allowed_push(u.shape[-2], **system), spread(u)
    gamma = rate * sigma * (1 + margin.exp())
    T = -torch.log1p(-rate * sigma / gamma) / rate / 2

    promised = torch.exp(K * rate * T) * sigma - gamma * growth(K * rate, T)
    end = spread(stabilised_flow(u, T, pull * gamma, torch.zeros_like(T), steps=24, **system))
    return (sigma - promised) / (sigma - end)


def stabilised_flow(u, T, gamma, eps, *, steps, **system) -> Tensor:
    """u(T) of u' = G(u) + S(u) with T, γ and ε of each example: (batch,) each."""
    T, gamma, eps = (per_example(x) for x in (T, gamma, eps))
    return flow(lambda v: push(v, **system) - gamma * normalised(v, eps), u, T=T, steps=steps)


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


def euler(u, ln_eps, margin, place, ln_leak, *, factor=euler_factor, pull=1.0, K=1.0, eps=1.0, **system) -> Tensor:
    """σ₁ ≤ qσ₀, q = max{1 − Δt(g₀ + κ − K), Δt(g_ε + κ + K) − 1}: one Euler step of u' = G(u) − κu + S.

    The hypotheses are met by construction: margin as in `decay`, place: where Δt lies in (0, 2/(g_ε + κ + K)). Where κ
    is so large that no γ ≥ 0 gives this margin, γ = 0 does.
    """
    rate, soft, leak, sigma = allowed_push(u.shape[-2], **system), ln_eps.exp(), ln_leak.exp(), spread(u)
    gamma = (sigma**2 + soft).sqrt() * (rate * (1 + margin.exp()) - leak).clamp(min=0)
    dt = 2 * place.sigmoid() / (gamma / soft.sqrt() + leak + rate)

    q = factor(u, dt=dt, strength=gamma, lipschitz=K * rate, eps=eps * soft, leak=leak)
    S = -per_example(pull * gamma) * normalised(u, per_example(soft))
    after = u + per_example(dt) * (push(u, **system) - per_example(leak) * u + S)
    return spread(after) / (q * sigma)


def without_overshoot(u, *, dt, strength, lipschitz, eps, leak) -> Tensor:
    """The first of the two numbers of q alone, which forgets that a step may jump across."""
    return (1 - dt * basin_margin(u, strength=strength, growth=lipschitz - leak, eps=eps)).clamp(min=EXACT)


def overshoot_alone(u, **numbers) -> Tensor:
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


def bounded(u, b, ln_root, margin, *, N=1.0, f0=1.0, K=1.0, steps=32, **system) -> Tensor:
    """‖u(T)‖ ≤ e^{−θT}‖u₀‖ + (γ + f₀)(1 − e^{−θT})/θ, θ = γ − λ > 0, for S = γ(N(u) − u), F = G − 2u + b, f₀ = |b|.

    λ = K − 2. From half of (γ + f₀)/θ up to T = 3/θ; systems too stiff for the steps score 0. ln_root: of √ε.
    N: the bound 1 of ‖N(u)‖.
    """
    rate, root, force = allowed_push(u.shape[-2], **system), ln_root.exp(), b.norm(dim=-1).squeeze(-1)
    gamma = (rate - 2).clamp(min=0) + margin.exp()
    theta = gamma - (rate - 2)
    stiff = gamma / root + gamma + rate + 2
    soft = 3 / theta * stiff < 1.5 * steps
    T = torch.minimum(3 / theta, 1.5 * steps / stiff)

    start = (gamma + force) / theta / 2
    u = per_example(start / size(u)) * u
    g, eps = per_example(gamma), per_example(root**2)
    end = flow(lambda v: push(v, **system) - 2 * v + b + g * (normalised(v, eps) - v), u, T=per_example(T), steps=steps)

    theta = gamma - (K * rate - 2)
    allowed = torch.exp(-theta * T) * start + (N * gamma + f0 * force) * growth(-theta, T)
    return torch.where(soft, size(end) / allowed, 0.0)


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


# Some systems attend to all alike, some sharply; in some the network rules, in some attention.
SYSTEM = {"u": "n d", **MATRICES}
SHAPES = [{"n": n, "d": d, "1": 1} for n, d in ((2, 1), (4, 1), (4, 2))]
WIDE = over_decades(-2, 1, *SYSTEM)


def small_force(seed: int, **drawn: Tensor) -> Start:
    """A constant vector b of size 0.1, and √ε around e^{−1}: where most systems are soft enough for the steps."""
    drawn["b"], drawn["ln_root"] = 0.1 * drawn["b"], drawn["ln_root"] - 1
    return WIDE(seed, **drawn)


run = attack(
    "attack_stability",
    {
        "dissipation": Statement(dissipation, over={"effective": EFFECTIVE}, printed=True),
        "energy_decay": Statement(energy_decay, printed=True),
        "one_sided": Statement(one_sided, SYSTEM, SHAPES, start=WIDE, shrink=("values", "network"), batch=64),
        "poincare": Statement(
            poincare,
            {"u": "n d", "M": "d d", "B": "d d"},
            [{"n": n, "d": d} for n, d in ((2, 1), (4, 2), (8, 2))],
            wrong={"π² for 4N² sin²": {"continuum": True}, "singular value": {"singular": True}},
            shrink=("least",),
            batch=48,
            steps=150,
        ),
        "decay": Statement(
            decay,
            SYSTEM | {"ln_eps": "", "margin": "", "place": ""},
            SHAPES,
            start=WIDE,
            shrink=("pull", "K", "eps"),
            batch=32,
            steps=40,
        ),
        "extinction": Statement(
            extinction, SYSTEM | {"margin": ""}, SHAPES, start=WIDE, shrink=("pull", "K"), batch=32, steps=40
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
        "euler": Statement(
            euler,
            SYSTEM | {"ln_eps": "", "margin": "", "place": "", "ln_leak": ""},
            SHAPES,
            start=WIDE,
            wrong={"no overshoot": {"factor": without_overshoot}, "overshoot alone": {"factor": overshoot_alone}},
            shrink=("pull", "K", "eps"),
            batch=64,
        ),
        "chatter": Statement(chatter, wrong={"Δtλ to 1.2": {"largest": 1.2}}, shrink=("top",)),
        "cycle": Statement(cycle, wrong={"without ε": {"soft": 0.0}, "−λ": {"sign": -1.0}}),
        "bounded": Statement(
            bounded,
            SYSTEM | {"b": "1 d", "ln_root": "", "margin": ""},
            SHAPES,
            start=small_force,
            shrink=("N", "f0", "K"),
            batch=32,
            steps=40,
        ),
    },
    effective=EFFECTIVE,
)
