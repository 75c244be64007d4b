"""An adversary against what the chapter on attention states.  (P2 eq 5)

Quadrature over N tokens, on a grid and at random; the growth of the spread; the contraction of the diameter in one
layer, in several, by the flow, with a skip connection and with a causal mask; the law of the angle on a sphere. Beside
a skip connection, a −u or a mask the score is of what attention itself adds or takes away: where it does nearly nothing
a plain ratio would be 1 without any search.
"""

import math

import torch
from torch import Tensor

from pdebook.chapters.interaction import laws
from pdebook.evidence.adversary import Start, Statement, attack, in_turn
from pdelab import integrators
from pdelab.formulas import (
    attention,
    attention_contraction,
    attention_weights,
    centred,
    centres,
    diameter,
    dobrushin,
    longest,
    norm2,
    per_example,
    size,
)

SMALLEST = 1e-8  # weights are exact to about 1e-16, so that differences above it have eight digits
LARGEST_BETA = 200.0
EXACT = 1e-10  # relative gap of two ways to compute the rate of an angle: e^{βγ} magnifies rounding by β ≤ 200


def quotient(value: Tensor, bound: Tensor, least: float = SMALLEST) -> Tensor:
    """value/bound, and 0 where the bound is so small that rounding would decide."""
    sure = bound > least
    return torch.where(sure, value / torch.where(sure, bound, 1.0), 0.0)


# Quadrature


def midpoint(c, A, V, place, *, n, degree, a=1.0, v=1.0, R=1.0, u1=1.0, u2=1.0) -> Tensor:
    """|a_N(q) − a(q)| ≤ v e^{2aR²} [2R(aRu₂ + a²R²u₁²) + 2aRu₁² + u₂]/24N² for tokens at N cell centres.

    Fields are c₀ + c₁x and c₀ + c₁x + c₂x², whose constants are known, and q = u(sigmoid(place)).
    """

    def field(x: Tensor) -> Tensor:  # (batch or 1, m) → (batch, m, d)
        return torch.stack([x**power for power in range(degree + 1)], dim=-1) @ c[:, : degree + 1]

    x, mass = laws.gauss()
    q = field(place.sigmoid().unsqueeze(-1))  # (batch, 1, d)
    exact = laws.read(q, field(x.unsqueeze(0)), A, V, mass)
    error = (laws.read(q, field(centres(n).unsqueeze(0)), A, V) - exact).flatten(1).norm(dim=-1)

    bend = 2 * c[:, 2] if degree > 1 else torch.zeros_like(c[:, 2])
    steepest = longest(torch.stack([c[:, 1], c[:, 1] + bend], dim=1))  # u' is straight, so it is longest at an end
    fine = 200
    largest = longest(field(centres(fine).unsqueeze(0))) + steepest / (2 * fine)  # also between two places

    constants = {"R": R * largest, "first": u1 * steepest, "second": u2 * bend.norm(dim=-1)}
    bound = laws.midpoint_bound(n, a * norm2(A), v * norm2(V), **constants)
    scale = norm2(V) * largest
    return quotient(error / scale, bound / scale)


def sample(u, odds, q, A, V, *, n, a=1.0, v=1.0, R=1.0) -> Tensor:
    """√E|a_N(q) − a(q)|² ≤ v e^{2aR²} R/√N for N independent tokens.

    Each is u₀ with probability sigmoid(odds), else u₁, so that the mean over all samples is a finite sum.
    """
    k = torch.arange(n + 1, dtype=torch.float64)
    chances = torch.distributions.Binomial(n, logits=odds.unsqueeze(-1)).log_prob(k).exp()  # (batch, k)
    p = odds.sigmoid().unsqueeze(-1)
    counts = torch.stack([k, n - k], dim=-1).clamp(min=1e-300)  # (k, 2); what is absent has no weight

    asked, pair, A4, V4 = (x.unsqueeze(1) for x in (q, u, A, V))  # (batch, 1, …)
    drawn = laws.read(asked, pair, A4, V4, counts)[..., 0, :]  # (batch, k, d)
    exact = laws.read(asked, pair, A4, V4, torch.stack([p, 1 - p], dim=-1))[..., 0, :]
    mean_square = (chances * (drawn - exact).square().sum(dim=-1)).sum(dim=-1)

    largest = torch.maximum(longest(u), longest(q))
    return mean_square.sqrt() / laws.sample_bound(n, a * norm2(A), v * norm2(V), R * largest)


# Spread and diameter


def fluctuation(u, A, V, *, c=1.0, v=1.0, columns=True) -> Tensor:
    """‖Att(u) − 1Vμ‖ ≤ √c v ‖u − 1μ‖, c the largest column sum of P(u)."""
    P = attention_weights(u, A)
    largest = P.sum(dim=-2).amax(dim=-1) if columns else 1.0
    moved = P @ centred(u) @ V.mT
    return size(moved) / ((c * largest) ** 0.5 * v * norm2(V) * size(centred(u)))


def mixing(logits, u) -> Tensor:
    """diam(Pu) ≤ τ(P) diam(u) for every P whose rows are distributions."""
    P = logits.softmax(dim=-1)
    return diameter(P @ u) / (dobrushin(P) * diameter(u))


def softmax(scores, *, ranges=1.0) -> Tensor:
    """τ(P) ≤ tanh(Δ/4) for P = softmax(s), Δ = max_{i,k} range_j (s_ij − s_kj)."""
    differences = scores.unsqueeze(-2) - scores.unsqueeze(-3)  # (…, i, k, j)
    widest = (differences.amax(dim=-1) - differences.amin(dim=-1)).amax(dim=(-2, -1))
    return dobrushin(scores.softmax(dim=-1)) / torch.tanh(ranges * widest / 4)


def contraction(u, A, V, *, a=1.0, v=1.0) -> Tensor:
    """diam(Att(u)) ≤ v tanh(aδ²/4) δ, δ = diam(u)."""
    delta = diameter(u)
    moved = attention_weights(u, A) @ centred(u) @ V.mT  # Att(u) − 1Vμ, without its cancellation
    return quotient(diameter(moved) / (v * norm2(V) * delta), attention_contraction(a * A, delta))


def layers(u, A, V, log_a, log_v, *, a=1.0, v=1.0) -> Tensor:
    """δ_L ≤ q^L δ_0 if q = v tanh(aδ_0²/4) < 1, for L layers with ‖A_ℓ‖ = a and ‖V_ℓ‖ = v."""
    delta, scores, values = diameter(u), log_a.exp(), log_v.exp()
    A = A * per_example(scores[:, None] / norm2(A))
    V = V * per_example(values[:, None] / norm2(V))

    moved = u
    for number in range(A.shape[1]):
        moved = attention(moved, A[:, number], V[:, number])

    true, claimed = (y * values * torch.tanh(x * scores * delta**2 / 4) for x, y in ((1.0, 1.0), (a, v)))
    score = quotient(diameter(moved) / delta, claimed ** A.shape[1], least=1e-6)
    return torch.where(true < 1, score, 0.0)  # of the rest the theorem says nothing


def near_the_edge(seed: int, u: Tensor, A: Tensor, V: Tensor, log_a: Tensor, log_v: Tensor) -> Start:
    """Every second start with opposite tokens that attract each other, and q a little below 1.

    There a layer leaves nearly the whole diameter to the next.
    """
    second = torch.arange(len(u)) % 2 == 1
    edge = -torch.tanh(log_a.exp() * diameter(u) ** 2 / 4).log() - 0.05 * log_v.abs()
    return {
        "u": torch.where(per_example(second), centred(u), u),
        "A": torch.where(per_example(second[:, None]), A @ A.mT, A),
        "V": V,
        "log_a": log_a,
        "log_v": torch.where(second, edge, log_v),
    }


def flow(u, A, *, a=1.0) -> Tensor:
    """δ(1) ≤ δ_0 e^{q−1}, q = tanh(aδ_0²/4), for u' = Att(u) − u, V = I: attention adds at most q to the rate −1."""
    delta = diameter(u)
    end = integrators.flow(lambda v: attention_weights(v, A) @ v, u, steps=20, leak=1.0)
    return quotient(1 + (diameter(end) / delta).log(), attention_contraction(a * A, delta), least=0.01)


def step(u, A, odds, *, a=1.0) -> Tensor:
    """diam(u⁺) ≤ (1 − Δt + Δt tanh(aδ²/4)) δ for u⁺ = u + Δt(Att(u) − u), V = I, Δt = sigmoid(odds)."""
    delta, dt, rest = diameter(u), odds.sigmoid(), centred(u)
    moved = rest + per_example(dt) * (attention_weights(u, A) @ rest - rest)
    return quotient(diameter(moved) / delta - (1 - dt), dt * attention_contraction(a * A, delta))


def skip(u, A, V, *, a=1.0, v=1.0) -> Tensor:
    """diam(u + Att(u)) ≥ (1 − v tanh(aδ²/4)) δ: attention takes away at most v tanh(aδ²/4) δ."""
    delta, rest = diameter(u), centred(u)
    moved = rest + attention_weights(u, A) @ rest @ V.mT
    return quotient(1 - diameter(moved) / delta, v * norm2(V) * attention_contraction(a * A, delta))


def causal(u, A, *, b=1.0, others=1.0) -> Tensor:
    """r⁺ ≤ (1 − 1/(1 + (N−1)e^b)) r, r = max_k|u_k − u_0|, b = a max|u_i| δ, causal, V = I: r loses at least that."""
    first = u[:, :1]
    left = longest(attention_weights(u, A, causal=True) @ u - first) / longest(u - first)
    lost = torch.sigmoid(-b * laws.causal_exponent(u, A) - math.log(others * (u.shape[1] - 1)))  # no overflow
    return quotient(lost, 1 - left)


# The law of the angle

WRONG_LAWS = {
    # p_ij = 1/n whatever the angle
    "even_weights": lambda gamma, beta, n, sign: sign * 2 * (1 - gamma) * (1 + (n - 1) * gamma) / n,
    # as if only one of the two tokens moved
    "one_side": lambda gamma, beta, n, sign: laws.angle_law(gamma, beta, n, sign) / 2,
}


def angle_law(heat, odds, *, n, sign, law="right") -> Tensor:
    """γ' = ±2e^{βγ}(1−γ)(1 + (n−1)γ)/(e^β + (n−1)e^{βγ}) for n tokens with equal angles on the sphere, β ≤ 200."""
    beta, lowest = LARGEST_BETA * heat.sigmoid(), -1 / (n - 1)
    gamma = lowest + (1 - lowest) * (0.01 + 0.98 * odds.sigmoid())  # away from both ends, where the rate is 0
    measured = laws.angle_rate(laws.equal_angles(n, gamma), per_example(beta), sign)
    wanted = WRONG_LAWS.get(law, laws.angle_law)(gamma, beta, n, sign)
    return (measured - wanted).abs() / wanted.abs() / EXACT


def from_cold_to_hot(seed: int, heat: Tensor, odds: Tensor) -> Start:
    """β from below 1 to nearly 200."""
    return {"heat": 3 * heat - 2, "odds": odds}


WEIGHTS = {"A": "d d", "V": "d d"}
TOKENS = {"u": "n d"}
SHAPES = [{"n": 2, "d": 1}, {"n": 3, "d": 2}, {"n": 6, "d": 3}]
SCORES = in_turn(A=(0.01, 1.0, 10.0))  # from nearly even weights to nearly hard attention
MANY = {"batch": 64}

run = attack(
    "attack_interaction",
    {
        "midpoint": Statement(
            midpoint,
            {"c": "three d", "place": "", **WEIGHTS},
            [{"three": 3, "d": d} for d in (1, 3)],
            over={"n": (1, 4), "degree": (1, 2)},
            start=in_turn(A=(0.001, 0.01, 0.1, 1.0)),
            # a is noticed in the bracket; without the factor e^{2aR²} no parabola was found that breaks the bound
            shrink=("a", "v", "R", "u1", "u2"),
        ),
        "sample": Statement(
            sample,
            {"u": "two d", "q": "one d", "odds": "", **WEIGHTS},
            [{"one": 1, "two": 2, "d": d} for d in (1, 3)],
            over={"n": (1, 8)},
            start=in_turn(A=(0.001, 0.1, 1.0)),
            shrink=("v", "R"),
            # a tenth less of a is not noticed: for N → ∞ the error of two-point laws grows like e^{aR²}, not e^{2aR²}
            wrong={"a quartered": {"a": 0.25}},
        ),
        "fluctuation": Statement(
            fluctuation,
            TOKENS | WEIGHTS,
            SHAPES,
            start=SCORES,
            shrink=("c", "v"),
            wrong={"c = 1": {"columns": False}},
            **MANY,
        ),
        "mixing": Statement(mixing, {"logits": "n n", **TOKENS}, SHAPES, **MANY),
        "softmax": Statement(softmax, {"scores": "n n"}, SHAPES, shrink=("ranges",), **MANY),
        "contraction": Statement(contraction, TOKENS | WEIGHTS, SHAPES, start=SCORES, shrink=("a", "v"), **MANY),
        "layers": Statement(
            layers,
            {"A": "l d d", "V": "l d d", "log_a": "", "log_v": "", **TOKENS},
            [{"l": 3, **shape} for shape in SHAPES],
            start=near_the_edge,
            shrink=("a", "v"),
            **MANY,
        ),
        "flow": Statement(flow, {"A": "d d", **TOKENS}, SHAPES, start=SCORES, shrink=("a",), steps=40),
        "step": Statement(step, {"A": "d d", "odds": "", **TOKENS}, SHAPES, start=SCORES, shrink=("a",), **MANY),
        "skip": Statement(skip, TOKENS | WEIGHTS, SHAPES, start=SCORES, shrink=("a", "v"), **MANY),
        "causal": Statement(causal, {"A": "d d", **TOKENS}, SHAPES, start=SCORES, shrink=("b", "others"), **MANY),
        "angle_law": Statement(
            angle_law,
            {"heat": "", "odds": ""},
            over={"n": (2, 3, 8), "sign": (1.0, -1.0)},
            start=from_cold_to_hot,
            wrong={name: {"law": name} for name in WRONG_LAWS},
            steps=30,
        ),
    },
)
