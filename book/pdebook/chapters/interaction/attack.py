"""An adversary against what the chapter on attention states: random search, then gradient ascent.  (P2 eq 5)

Bounds: the quadrature of attention over N tokens, on a grid and at random; the contraction of the diameter in a layer,
in several and by the flow; the growth of the fluctuation. A law: the angle between tokens on a sphere. A ratio above 1
is a counterexample. The control is each bound shrunk to 90 %, and for the law two wrong ones.
"""

import torch
from torch import Tensor

from pdebook.chapters.interaction import clustering, kernels
from pdebook.evidence.adversary import ROUNDING, ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.formulas import attention, longest, norm2
from pdelab.integrators import RK4
from pdelab.seeds import normal
from pdelab.solver import solve

SMALLEST = 1e-8  # weights are exact to about 1e-16, so that their differences have eight digits or more
LARGEST_BETA = 200.0
LAYERS, DEEP_SMALLEST = 3, 1e-2  # q³ = 1e-6 is far above rounding
SHAPES = ((2, 1), (3, 2), (6, 3))  # tokens, features


def sizes(batch: int, *values: float) -> Tensor:
    """One of the values for each start in turn: (batch, 1, 1)."""
    return torch.tensor(values, dtype=torch.float64).repeat(batch)[:batch].view(-1, 1, 1)


# Quadrature


def midpoint_ratio(coefficients: Tensor, A: Tensor, V: Tensor, place: Tensor, n: int) -> Tensor:
    """|a_N(q) − a(q)| over its bound for u(x) = c₀ + c₁x + c₂x², c (batch, 3, d), and q = u(sigmoid(place))."""

    def field(x: Tensor) -> Tensor:  # (batch or 1, m) → (batch, m, d)
        return torch.stack([torch.ones_like(x), x, x**2], dim=-1) @ coefficients

    x, mass = kernels.gauss()
    q = field(place.sigmoid().unsqueeze(-1))  # (batch, 1, d)
    exact = kernels.read(q, field(x.unsqueeze(0)), A, V, mass)
    error = (kernels.read(q, field(kernels.centres(n).unsqueeze(0)), A, V) - exact).flatten(1).norm(dim=-1)
    ends = torch.stack([coefficients[:, 1], coefficients[:, 1] + 2 * coefficients[:, 2]], dim=1)
    first, second = longest(ends), 2 * coefficients[:, 2].norm(dim=-1)  # u' is linear, so it is longest at an end
    fine = 200
    R = longest(field(kernels.centres(fine).unsqueeze(0))) + first / (2 * fine)  # between two places, and at the ends
    return error / kernels.midpoint_bound(n, A, V, R, first, second)


def attack_midpoint(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    found = []
    for n, width in ((1, 1), (2, 2), (4, 3)):
        c = normal(seed, "field", n, size=(batch, 3, width))
        A, V = (normal(seed, "midpoint", n, k, size=(batch, width, width)) for k in "AV")
        place = normal(seed, "place", n, size=(batch,))
        start = c, A * sizes(batch, 0.001, 0.1, 1.0), V, place
        found.append(ascend(lambda *x, n=n: midpoint_ratio(*x, n), *start, steps=steps))
    return torch.cat(found)


def sample_ratio(u: Tensor, odds: Tensor, q: Tensor, A: Tensor, V: Tensor, n: int) -> Tensor:
    """√E|a_N(q) − a(q)|² over its bound, exactly: N tokens that are u[0] with probability sigmoid(odds), else u[1]."""
    k = torch.arange(n + 1, dtype=torch.float64)
    chances = torch.distributions.Binomial(n, logits=odds.unsqueeze(-1)).log_prob(k).exp()  # (batch, k)
    p = odds.sigmoid().unsqueeze(-1)
    counts = torch.stack([k, n - k], dim=-1).clamp(min=1e-300)  # (k, 2); what is absent has no weight
    q, pair = q.unsqueeze(1), u.unsqueeze(1)  # (batch, 1, 1, d), (batch, 1, 2, d)
    A4, V4 = A.unsqueeze(1), V.unsqueeze(1)
    drawn = kernels.read(q, pair, A4, V4, counts)[..., 0, :]  # (batch, k, d)
    exact = kernels.read(q, pair, A4, V4, torch.stack([p, 1 - p], dim=-1))[..., 0, :]
    rms = (chances * (drawn - exact).square().sum(dim=-1)).sum(dim=-1).sqrt()
    R = torch.maximum(longest(u), longest(q.squeeze(1)))
    return rms / kernels.sample_bound(n, A, V, R)


def attack_sample(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    found = []
    for n, width in ((1, 1), (2, 2), (8, 3)):
        u = normal(seed, "two tokens", n, size=(batch, 2, width))
        q = normal(seed, "query", n, size=(batch, 1, width))
        A, V = (normal(seed, "sample", n, k, size=(batch, width, width)) for k in "AV")
        odds = normal(seed, "odds", n, size=(batch,))
        start = u, odds, q, A * sizes(batch, 0.001, 0.1, 1.0), V
        found.append(ascend(lambda *x, n=n: sample_ratio(*x, n), *start, steps=steps))
    return torch.cat(found)


# Spread


def fluctuation_ratio(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """‖Att(u) − 1Vμ‖ / (√c ‖V‖ ‖u − 1μ‖), c the largest column sum of P(u)."""
    P, centred = kernels.weights(u, A), u - u.mean(dim=-2, keepdim=True)
    moved = attention(u, A, V) - u.mean(dim=-2, keepdim=True) @ V.transpose(-1, -2)
    root = P.sum(dim=-2).amax(dim=-1).sqrt()
    return moved.flatten(1).norm(dim=-1) / (root * norm2(V) * centred.flatten(1).norm(dim=-1))


def mixing_ratio(logits: Tensor, u: Tensor) -> Tensor:
    """diam(Pu) / (τ(P) diam(u)) for any row-stochastic P = softmax(logits)."""
    P = logits.softmax(dim=-1)
    return clustering.diameter(P @ u) / (clustering.dobrushin(P) * clustering.diameter(u))


def softmax_ratio(scores: Tensor) -> Tensor:
    """τ(P) / tanh(Δ/4) for P = softmax(scores), Δ = max_{i,k} range_j (s_ij − s_kj), any scores."""
    differences = scores.unsqueeze(-2) - scores.unsqueeze(-3)  # (…, i, k, j)
    ranges = differences.amax(dim=-1) - differences.amin(dim=-1)
    return clustering.dobrushin(scores.softmax(dim=-1)) / torch.tanh(ranges.amax(dim=(-2, -1)) / 4)


def contraction_ratio(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """diam(Att(u)) / (‖V‖ tanh(‖A‖δ²/4) δ), δ = diam(u); 0 where tanh is so small that rounding would decide."""
    delta, centred = clustering.diameter(u), u - u.mean(dim=-2, keepdim=True)
    factor = clustering.factor(delta, A)
    moved = kernels.weights(u, A) @ centred @ V.transpose(-1, -2)  # Att(u) − 1Vμ, without its cancellation
    ratio = clustering.diameter(moved) / (norm2(V) * factor * delta)
    return torch.where(factor > SMALLEST, ratio, torch.zeros_like(ratio))


def layers_ratio(u: Tensor, A: Tensor, V: Tensor, log_a: Tensor, log_v: Tensor) -> Tensor:
    """δ_L / (q^L δ_0), q = v tanh(aδ_0²/4), for L layers with ‖A_ℓ‖ = a, ‖V_ℓ‖ = v of their own: A, V (…, L, d, d).

    0 where q ≥ 1, of which the theorem says nothing, and where q is so small that rounding would decide.
    """
    a, v = log_a.exp(), log_v.exp()
    delta = clustering.diameter(u)
    q = v * torch.tanh(a * delta**2 / 4)
    A, V = (x * (size[:, None] / norm2(x))[..., None, None] for x, size in ((A, a), (V, v)))
    moved = u
    for layer in range(LAYERS):
        moved = attention(moved, A[:, layer], V[:, layer])
    ratio = clustering.diameter(moved) / (q**LAYERS * delta)
    return torch.where((q > DEEP_SMALLEST) & (q < 1), ratio, torch.zeros_like(ratio))


def flow_ratio(u: Tensor, A: Tensor) -> Tensor:
    """δ(1) / (δ_0 e^{−(1−q)}), q = tanh(‖A‖δ_0²/4), for the flow u' = Att(u) − u, V = I.

    Where the rate is −(u − c), twenty steps of RK4 are exact to 20 · 0.05⁵/120 = 5e-8.
    """
    delta = clustering.diameter(u)
    end = solve(lambda v: kernels.weights(v, A) @ v - v, u, steps=20, dt=0.05, integrator=RK4()).final
    return clustering.diameter(end) / (delta * torch.exp(clustering.factor(delta, A) - 1))


def skip_ratio(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """(1 − ‖V‖ tanh(‖A‖δ²/4)) δ / diam(u + Att(u)): what a skip connection must leave, over what it leaves."""
    delta = clustering.diameter(u)
    return (1 - norm2(V) * clustering.factor(delta, A)) * delta / clustering.diameter(u + attention(u, A, V))


def step_ratio(u: Tensor, A: Tensor, odds: Tensor) -> Tensor:
    """diam(u⁺) / ((1 − Δt(1 − tanh(‖A‖δ²/4))) δ) for u⁺ = u + Δt(Att(u) − u), V = I, Δt = sigmoid(odds)."""
    delta, dt = clustering.diameter(u), odds.sigmoid()
    moved = u + dt[:, None, None] * (kernels.weights(u, A) @ u - u)
    return clustering.diameter(moved) / ((1 - dt * (1 - clustering.factor(delta, A))) * delta)


def causal_ratio(u: Tensor, A: Tensor) -> Tensor:
    """max_k|Att(u)_k − u_0| / (factor · max_k|u_k − u_0|) with a causal mask, V = I."""
    first = u[:, :1]
    moved = kernels.weights(u, A, causal=True) @ u
    return longest(moved - first) / (clustering.causal_factor(u, A) * longest(u - first))


def attack_spread(kind: str, seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    """The worst ratio of each start, for one of `SPREAD`."""
    found = []
    for tokens, width in SHAPES:
        name = kind, tokens, width
        u = normal(seed, *name, "u", size=(batch, tokens, width))
        A, V = (normal(seed, *name, k, size=(batch, width, width)) for k in "AV")
        A = A * sizes(batch, 0.01, 1.0, 10.0)
        odds = normal(seed, *name, "Δt", size=(batch,))
        logits = 2 * normal(seed, *name, "P", size=(batch, tokens, tokens))
        deep = (normal(seed, *name, "deep", k, size=(batch, LAYERS, width, width)) for k in "AV")
        gains = (normal(seed, *name, "gain", k, size=(batch,)) for k in "AV")
        score, start = {
            "fluctuation": (fluctuation_ratio, (u, A, V)),
            "mixing": (mixing_ratio, (logits, u)),
            "softmax": (softmax_ratio, (logits,)),
            "contraction": (contraction_ratio, (u, A, V)),
            "layers": (layers_ratio, (u, *deep, *gains)),
            "flow": (flow_ratio, (u, A)),
            "skip": (skip_ratio, (u, A, V)),
            "step": (step_ratio, (u, A, odds)),
            "causal": (causal_ratio, (u, A)),
        }[kind]
        found.append(ascend(score, *start, steps=steps))
    return torch.cat(found)


SPREAD = ("fluctuation", "mixing", "softmax", "contraction", "layers", "flow", "step", "skip", "causal")

# The law of the angle

LAWS = {
    "law": clustering.angle_law,
    # p_ij = 1/n whatever the angle
    "even_weights": lambda gamma, beta, n, sign: sign * 2 * (1 - gamma) * (1 + (n - 1) * gamma) / n,
    # as if only one of the two tokens moved
    "one_side": lambda gamma, beta, n, sign: clustering.angle_law(gamma, beta, n, sign) / 2,
}
WRONG = tuple(name for name in LAWS if name != "law")


def angle_ratio(heat: Tensor, odds: Tensor, n: int, sign: float, law: str = "law") -> Tensor:
    """1 + |measured − law| / |law| for d⟨u_1, u_2⟩/dt of n tokens with equal angles, β = 200 sigmoid(heat)."""
    beta, lowest = LARGEST_BETA * heat.sigmoid(), -1 / (n - 1)
    gamma = lowest + (1 - lowest) * (0.01 + 0.98 * odds.sigmoid())  # away from both ends, where the rate is 0
    measured = clustering.angle_rate(clustering.equal_angles(n, gamma), beta[:, None, None], sign)
    wanted = LAWS[law](gamma, beta, n, sign)
    return 1 + (measured - wanted).abs() / wanted.abs()


def attack_angles(seed: int, batch: int = 64, steps: int = 30, law: str = "law") -> Tensor:
    found = []
    for n, sign in ((2, 1.0), (3, -1.0), (8, 1.0)):
        heat, odds = (normal(seed, "angles", n, k, size=(batch,)) for k in ("β", "γ"))
        heat = 3 * heat - 2  # β from below 1 to nearly 200
        found.append(ascend(lambda *x, n=n, s=sign: angle_ratio(*x, n, s, law), heat, odds, steps=steps))
    return torch.cat(found)


@experiment("attack_interaction", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the bounds and the law of the chapter on attention.

    One seed of every attack; `worst` is the largest ratio that any bound allowed.
    """
    corrected = {"midpoint": attack_midpoint(seed), "sample": attack_sample(seed)}
    corrected |= {kind: attack_spread(kind, seed) for kind in SPREAD}
    law = attack_angles(seed)
    wrong = {f"wrong_{law}": attack_angles(seed, law=law) for law in WRONG}
    return attack_result(
        "attack_interaction",
        scale,
        seed,
        corrected=corrected,
        # a law has no smaller form to break, so it is counted apart; its control are the wrong laws
        figures={
            "law_attempts": len(law),
            "law_violations": int((law > 1 + ROUNDING).sum()),
            "worst_angle_law": law.max().item(),
        },
        controls={name: int((found > 1 + ROUNDING).sum()) for name, found in wrong.items()},
    )
