"""An adversary against what the book proves of R[u] = W₂ φ(W₁ u + b₁) − κu.  (P2 eq 6; P1 eq 12-13)

Scores of inequalities measure what the weights add to the linear part −κu: a network of zeros attains each bound, so
that a plain ratio would be 1 without any search. κ is called leak, the time T is 1, and λ₋, λ and K are the library's.
They hold for any diagonal matrix T > 0, t_k² = e^{s_k}|c_k|/|w_k|: the adversary chooses s, too.
"""

import math

import torch
from torch import Tensor
from torch.func import jvp

from pdebook.chapters.reaction.laws import clock_error, merging_law, traces, tug_of_war, well
from pdebook.evidence.adversary import Statement, attack
from pdelab import formulas
from pdelab.formulas import Constants, attention, centred, feed_forward, reaction_constants, spread
from pdelab.integrators import flow
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.seeds import derive, normal, stream
from pdelab.terms.reaction import ACTIVATIONS, SLOPES

PHI = {name: kind() for name, kind in ACTIVATIONS.items()}
EXACT = 1e-9  # the relative gap of two ways to compute one number, with room for a badly scaled start
DEVIATIONS = 4.5  # how many standard deviations a sample variance may be off its law


def network(z: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, activation: str, leak: float = 0.0) -> Tensor:
    """R(z) = W₂ φ(W₁ z + b₁) − κz."""
    return feed_forward(z, W1, b1, W2, PHI[activation], leak)


def constants(
    W1: Tensor, W2: Tensor, s: Tensor, activation: str, leak: float, *, c: float = 1.0, r: float = 1.0
) -> Constants:
    """λ₋, λ and K with the scales s; `c` and `r` multiply the middle and half the width of the slopes of φ."""
    low, high = SLOPES[activation]
    middle, radius = c * (high + low) / 2, r * (high - low) / 2
    return reaction_constants(W1, W2, (middle - radius, middle + radius), leak, Constants(s, s, s))


def unit(W1: Tensor, W2: Tensor, activation: str) -> Tensor:
    """K of the network without −κu, at s = 0: unlike ‖W₂‖‖W₁‖ it stays as it is if units are rescaled."""
    return reaction_constants(W1, W2, SLOPES[activation]).lipschitz


def shrunk(rate: Tensor, factor: float, leak: float) -> Tensor:
    """λ = −κ + (what the weights add), with that part multiplied by a factor."""
    return factor * (rate + leak) - leak


# Two tokens z and w, v = z − w their difference


def difference(z: Tensor) -> Tensor:
    return z[:, 0] - z[:, 1]


def length(z: Tensor) -> Tensor:
    """|v|."""
    return difference(z).norm(dim=-1)


def along(z: Tensor, R: Tensor) -> Tensor:
    """⟨v, R(z) − R(w)⟩/|v|²."""
    v = difference(z)
    return (v * difference(R)).sum(dim=-1) / v.square().sum(dim=-1)


def lipschitz(z, W1, b1, W2, s, *, activation, leak, c=1.0, r=1.0) -> Tensor:
    """|R(z) − R(w)| ≤ K|z − w|, K = λ_max[[rB, G], [Gᵀ, rA]]: G = cW₂W₁ − κ, A = W₁ᵀT²W₁, B = W₂T⁻²W₂ᵀ, any T > 0."""
    K = constants(W1, W2, s, activation, leak, c=c, r=r).lipschitz
    R = network(z, W1, b1, W2, activation, leak)
    return 1 + (length(R) / length(z) - K) / unit(W1, W2, activation)


def upper(z, W1, b1, W2, s, *, activation, leak, c=1.0, r=1.0) -> Tensor:
    """⟨z − w, R(z) − R(w)⟩ ≤ λ|z − w|², λ = λ_max(sym G + ½r(A + B))."""
    rate = constants(W1, W2, s, activation, leak, c=c, r=r).upper
    R = network(z, W1, b1, W2, activation, leak)
    return 1 + (along(z, R) - rate) / unit(W1, W2, activation)


def lower(z, W1, b1, W2, s, *, activation, leak, c=1.0, r=1.0) -> Tensor:
    """⟨z − w, R(z) − R(w)⟩ ≥ λ₋|z − w|², λ₋ = λ_min(sym G − ½r(A + B))."""
    rate = constants(W1, W2, s, activation, leak, c=c, r=r).lower
    R = network(z, W1, b1, W2, activation, leak)
    return 1 + (rate - along(z, R)) / unit(W1, W2, activation)


def separation(z, W1, b1, W2, s, *, activation, leak, upper=1.0, lower=1.0) -> Tensor:
    """e^{λ₋T}|v(0)| ≤ |v(T)| ≤ e^{λT}|v(0)|."""
    rates = constants(W1, W2, s, activation, leak)
    end = flow(lambda u: network(u, W1, b1, W2, activation), z, leak=leak)
    rate = (length(end) / length(z)).log()

    above = rate - shrunk(rates.upper, upper, leak)
    below = shrunk(rates.lower, lower, leak) - rate
    return 1 + torch.maximum(above, below) / unit(W1, W2, activation)


def step(z, W1, b1, W2, s, *, activation, leak, dt=0.5, lower=1.0) -> Tensor:
    """|v⁺| ≥ (1 + Δtλ₋)|v| for one Euler step."""
    rate = shrunk(constants(W1, W2, s, activation, leak).lower, lower, leak)
    after = z + dt * network(z, W1, b1, W2, activation, leak)
    kept = length(after) / length(z)
    return 1 + (rate - (kept - 1) / dt) / unit(W1, W2, activation)


# Sizes and spreads along a flow; the excess over a bound is in units of what λ allows more than −κ


def allowed(rate: Tensor, start: Tensor, push: Tensor) -> Tensor:
    """e^{λT}·start + push·(e^{λT} − 1)/λ."""
    return rate.exp() * start + push * formulas.growth(rate)


def growth(z, W1, b1, W2, s, *, activation, leak, rate=1.0, push=1.0) -> Tensor:
    """|u_i(T)| ≤ e^{λT}|u_i(0)| + |R(0)|(e^{λT} − 1)/λ."""
    fastest = constants(W1, W2, s, activation, leak).upper.unsqueeze(-1)
    size = z.norm(dim=-1)
    at_zero = network(torch.zeros_like(z[:, :1]), W1, b1, W2, activation).norm(dim=-1)

    end = flow(lambda u: network(u, W1, b1, W2, activation), z, leak=leak).norm(dim=-1)
    excess = end - allowed(shrunk(fastest, rate, leak), size, push * at_zero)
    unit = allowed(fastest, size, at_zero) - math.exp(-leak) * size
    return (1 + excess / unit).amax(dim=-1)


def floor(z, W1, b1, W2, s, g, *, activation, leak, rate=1.0, push=1.0) -> Tensor:
    """σ(T) ≤ e^{λT}σ(0) + φ(e^{λT} − 1)/λ, φ the spread of a g(x) that differs from token to token."""
    fastest = constants(W1, W2, s, activation, leak).upper
    sigma, phi = spread(z), spread(g)

    end = spread(flow(lambda u: network(u, W1, b1, W2, activation) + g, z, leak=leak))
    excess = end - allowed(shrunk(fastest, rate, leak), sigma, push * phi)
    unit = allowed(fastest, sigma, phi) - allowed(torch.full_like(fastest, -leak), sigma, phi)
    return 1 + excess / unit


def kinks(places, strengths, *, steps) -> Tensor:
    """|error of RK4| ≤ Δt²/24 Σ_k |s_k| for a network with kinks at τ_k: a real run, for up to three kinks."""
    error = clock_error(places.sigmoid(), strengths, steps)
    return error.abs() * 24 * steps**2 / strengths.abs().sum(dim=-1)


# Exact laws: the relative gap of two ways to compute one thing


def gap(one: Tensor, other: Tensor) -> Tensor:
    one, other = one.flatten(1), other.flatten(1)
    return (one - other).norm(dim=-1) / (one.norm(dim=-1) + other.norm(dim=-1) + 1e-30) / EXACT


def locality(z, W1, b1, W2, direction, *, attention_strength=0.0) -> Tensor:
    """∂u_0(T)/∂u_j(0) = 0 for j ≠ 0: with a little attention it is not."""
    eye = torch.eye(z.shape[-1], dtype=z.dtype)

    def end(u: Tensor) -> Tensor:
        return flow(
            lambda v: network(v, W1, b1, W2, "tanh", 1.0) + attention_strength * attention(v, eye, eye), u, steps=4
        )

    others = torch.cat([0 * direction[:, :1], direction[:, 1:]], dim=1)
    by_itself, by_others = (jvp(end, (z,), (v,))[1][:, 0].norm(dim=-1) for v in (direction - others, others))
    return by_others / by_itself / EXACT


def block(z, W1, b1, W2, v, *, leak, transposed=False) -> Tensor:
    """R'(z)v = (W₂ diag φ'(W₁z + b₁) W₁ − κ)v."""
    change = jvp(lambda u: network(u, W1, b1, W2, "tanh", leak), (z,), (v,))[1]
    slopes = 1 - torch.tanh(z @ W1.mT + b1.unsqueeze(-2)) ** 2
    first, last = (W2, W1.mT) if transposed else (W1.mT, W2)
    return gap(change, (slopes * (v @ first)) @ last.mT - leak * v)


def agreement(c, W1, b1, W2, A, V, delta, *, values=0.0, alpha=0.7) -> Tensor:
    """F'(u)δ = (R'(c) − α)δ at u_i = c, Σδ_i = 0, F = α(Att(u) − u) + R: the values V do not matter there."""
    delta = centred(delta)
    u = c.repeat(1, delta.shape[1], 1)

    def reaction(v: Tensor) -> Tensor:
        return network(v, W1, b1, W2, "tanh")

    change = jvp(lambda v: alpha * (attention(v, A, V) - v) + reaction(v), (u,), (delta,))[1]
    law = jvp(reaction, (u,), (delta,))[1] - alpha * delta + values * alpha * delta @ V.mT
    return gap(change, law)


def crowds(seed: int, *, tries=64, naive=False) -> Tensor:
    """Two crowds at ±u* lose their hold exactly where α > α_c: 2 where the sign of the largest eigenvalue says no.

    The equation itself is differentiated. Half of the tries are close to α_c. naive: α_c = β − 1.
    """
    gain = 1.1 + 3 * torch.rand(tries, generator=stream(seed, "β"), dtype=torch.float64)
    share = torch.rand(tries, generator=stream(seed, "α"), dtype=torch.float64)
    misjudged = []
    for number, (beta, part) in enumerate(zip(gain.tolist(), share.tolist(), strict=True)):
        critical = merging_law(beta)
        alpha = critical * (0.99 if part < 0.5 else 1.01) if number % 2 else 0.98 * part * (beta - 1)

        rest = well(beta, alpha)
        u = torch.tensor([rest, rest, -rest, -rest], dtype=torch.float64).view(1, 4, 1)
        grows = logarithmic_norm(tug_of_war(alpha, beta), u).item() > 0  # the Jacobian is symmetric here
        misjudged.append(grows != (alpha > (beta - 1 if naive else critical)))
    return 2.0 * torch.tensor(misjudged)


def trace(seed: int, *, draws=2000, half=1.0) -> Tensor:
    """Var Tr R' = ½ m d v₁ v₂ up to 4.5 standard deviations, for long, short, one-hot and equal tokens."""
    found = []
    for number, (width, hidden) in enumerate(((4, 64), (16, 32), (32, 32))):
        eye = torch.eye(width, dtype=torch.float64)
        long, short = (normal(seed, size, width, size=(width,)) for size in ("long", "short"))
        for place, u in enumerate((100 * long, 1e-3 * short, eye[0], eye.sum(dim=0))):
            for kind in ("normal", "torch"):
                seen, law = traces(derive(seed, number, place), u, hidden, draws=draws, kind=kind)
                found.append(abs(half * seen.var().item() / law**2 - 1) / math.sqrt(2 / draws) / DEVIATIONS)
    return torch.tensor(found, dtype=torch.float64)


WEIGHTS = {"W1": "m d /m", "b1": "m", "W2": "d m /m"}
PAIR = {"z": "n d"} | WEIGHTS
SCALED = PAIR | {"s": "m"}
SIZES = [{"n": 2, "d": d, "m": m} for d, m in ((1, 1), (2, 2), (3, 6))]
LEAKS = {"leak": (0.0, 1.0)}
ALL = {"activation": ("gelu", "relu", "tanh")} | LEAKS
SMOOTH = {"activation": ("gelu", "tanh")} | LEAKS  # where RK4 is exact enough for the flows

run = attack(
    "attack_reaction",
    {
        "lipschitz": Statement(lipschitz, SCALED, SIZES, ALL, shrink=("c", "r"), each=True),
        "upper": Statement(upper, SCALED, SIZES, ALL, shrink=("c", "r"), each=True),
        "lower": Statement(lower, SCALED, SIZES, ALL, shrink=("c", "r"), each=True),
        "separation": Statement(separation, SCALED, SIZES, SMOOTH, shrink=("upper", "lower"), steps=25),
        "step": Statement(step, SCALED, SIZES, ALL, shrink=("lower",)),
        "growth": Statement(growth, SCALED, SIZES, SMOOTH, shrink=("rate", "push"), steps=25),
        "floor": Statement(
            floor, SCALED | {"g": "n d"}, [{"n": 4, "d": 2, "m": 3}], SMOOTH, shrink=("rate", "push"), steps=60
        ),
        "kinks": Statement(
            kinks,
            {"places": "k", "strengths": "k"},
            [{"k": 1}, {"k": 2}, {"k": 3}],
            {"steps": (3, 5, 8, 11)},
            steps=60,
            rate=0.02,
        ),
        "locality": Statement(
            locality,
            PAIR | {"direction": "n d"},
            [{"n": 3, "d": 2, "m": 4}],
            wrong={"a little attention": {"attention_strength": 0.01}},
            batch=16,
            steps=20,
        ),
        "block": Statement(
            block,
            PAIR | {"v": "n d"},
            [{"n": 2, "d": 3, "m": 5}],
            LEAKS,
            wrong={"transposed": {"transposed": True}},
            batch=32,
            steps=30,
        ),
        "agreement": Statement(
            agreement,
            {"c": "one d"} | WEIGHTS | {"A": "d d", "V": "d d", "delta": "n d"},
            [{"one": 1, "n": 5, "d": 2, "m": 4}],
            wrong={"αV added": {"values": 1.0}},
            batch=32,
            steps=30,
        ),
        "crowds": Statement(crowds, wrong={"α_c = β − 1": {"naive": True}}),
        "trace": Statement(trace, wrong={"without ½": {"half": 0.5}}),
    },
    exact=EXACT,
    deviations=DEVIATIONS,
)
