"""The feed-forward term by itself and beside attention: u' = R(u) = W₂ φ(W₁ u + b₁) + b₂ − κu.  (P2 eq 6; P1 eq 12-13)

Its Jacobian at random weights, what the kinks of ReLU cost a scheme, and what becomes of clusters of tokens when
attention pulls the other way: closed forms, and the small systems that they speak of.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import product

import torch
from torch import Tensor

from pdebook.evidence.systems import randomised
from pdelab.field import Field
from pdelab.formulas import Constants, feed_forward, norm2
from pdelab.integrators import flow
from pdelab.seeds import normal, stream
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import ACTIVATIONS, SLOPES, Reaction

WIDTH, HIDDEN = 32, 128


def gaussian(
    seed: int, width: int = WIDTH, hidden: int = HIDDEN, *, gain: float = 1.0, biases: float = 0.0, **options
) -> Reaction:
    """A reaction with weights N(0, gain²/fan-in) and biases N(0, biases²), in double precision."""
    return randomised(Reaction(width, hidden, **options), seed, "reaction", gain=gain, biases=biases)


def with_weights(inner: Tensor, outer: Tensor, *, activation: str = "tanh", leak: bool = False, **options) -> Reaction:
    """R[u]_i = W₂ φ(W₁ u_i) with the given W₁ (hidden, width) and W₂ (width, hidden), without biases."""
    hidden, width = inner.shape
    made = Reaction(width, hidden, activation=activation, leak=leak, bias=False, **options)
    made = made.to(inner).requires_grad_(False)
    made.inner.weight.copy_(inner)
    made.outer.weight.copy_(outer)
    return made


# Constants


def slopes_of(term: Reaction) -> tuple[float, float]:
    """s₋ and s₊ of its activation."""
    return next(SLOPES[name] for name, kind in ACTIVATIONS.items() if isinstance(term.activation, kind))


def product_constants(term: Reaction) -> Constants[float]:
    """λ = c μ(W₂W₁) + r‖W₂‖‖W₁‖ − κ, λ₋ the same with −μ(−·) and −r, K = s₊‖W₂‖‖W₁‖ + κ: from the norms alone.

    The library's `Reaction.constants` are never worse, and do not change if units are rescaled.
    """
    least, most = slopes_of(term)
    inner, outer = term.inner.weight.double(), term.outer.weight.double()
    omega, both = (norm2(inner) * norm2(outer)).item(), outer @ inner
    rates = torch.linalg.eigvalsh((both + both.mT) / 2).tolist()
    middle, radius, leak = (most + least) / 2, (most - least) / 2, float(term.leak)
    return Constants(
        lower=middle * rates[0] - radius * omega - leak,
        upper=middle * rates[-1] + radius * omega - leak,
        lipschitz=most * omega + leak,
    )


def vertex_constants(term: Reaction, hidden_most: int = 12) -> Constants[float]:
    """λ₋, λ and K of all W₂ΘW₁ − κ with slopes Θ_kk in [s₋, s₊], exactly: each is attained at one of 2^m vertices."""
    inner, outer = term.inner.weight.double(), term.outer.weight.double()
    if len(inner) > hidden_most:
        raise ValueError(f"the term must have at most {hidden_most} hidden units for all vertices; not {len(inner)}")
    vertices = torch.tensor(list(product(slopes_of(term), repeat=len(inner))), dtype=torch.float64)
    J = outer * vertices.unsqueeze(1) @ inner - float(term.leak) * torch.eye(inner.shape[1], dtype=torch.float64)
    rates = torch.linalg.eigvalsh((J + J.mT) / 2)
    return Constants(rates.min().item(), rates.max().item(), norm2(J).max().item())


def rescaled(term: Reaction, factors: Tensor) -> Reaction:
    """A copy with w_k, b_k → ρ_k w_k, ρ_k b_k and c_k → c_k/ρ_k, ρ_k > 0: for ReLU the same function."""
    copy = deepcopy(term)
    copy.inner.weight.data.mul_(factors.to(term.inner.weight).unsqueeze(-1))
    if copy.inner.bias is not None:
        copy.inner.bias.data.mul_(factors.to(term.inner.bias))
    copy.outer.weight.data.div_(factors.to(term.outer.weight))
    return copy


# The Jacobian at random weights


def trace_law(width: int, hidden: int, inner: float, outer: float) -> float:
    """√(½ m d v₁ v₂): the standard deviation of Tr(W₂ diag(relu'(W₁u + b₁)) W₁), v the variances of the weights."""
    return math.sqrt(hidden * width * inner * outer / 2)


def traces(seed: int, u: Tensor, hidden: int, *, draws: int = 2000, kind: str = "normal") -> tuple[Tensor, float]:
    """The trace of the Jacobian of a ReLU network at one token u (feature,), for fresh weights: (draw,), and its law.

    kind: "normal", N(0, 1/fan-in) without biases, or "torch", uniform on ±1/√fan-in with biases, as nn.Linear draws.
    """
    width, generator = len(u), stream(seed, "trace", kind, hidden)

    def weights(*size: int, fan_in: int) -> Tensor:
        if kind == "normal":
            return torch.randn(*size, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
        return (2 * torch.rand(*size, generator=generator, dtype=torch.float64) - 1) / math.sqrt(fan_in)

    inner, outer = weights(draws, hidden, width, fan_in=width), weights(draws, width, hidden, fan_in=hidden)
    bias = 0.0 if kind == "normal" else weights(draws, hidden, fan_in=width)
    active = (inner @ u + bias > 0).to(u)  # (draw, hidden)
    found = torch.einsum("nk,nak,nka->n", active, outer, inner)

    part = 1.0 if kind == "normal" else 1 / 3  # the variance of a uniform number on (−1, 1)
    return found, trace_law(width, hidden, part / width, part / hidden)


def typical_constants(width: int, hidden: int) -> tuple[float, float, float]:
    """‖J‖, μ(J) and ‖W₁‖‖W₂‖ of a ReLU network with weights N(0, 1/fan-in), in the limit of large width.

    With c = m/2d active units per feature: ‖J‖² = (d/m) min_z (1 + z)(1 + cz)²/z, and
    μ(J) = √(d/m) min_y (c y/(1 − y²) + 1/(2y)): edges of a product and of a difference of two Wishart matrices.
    """
    c = hidden / (2 * width)
    z = (math.sqrt(c * c + 8 * c) - c) / (4 * c)  # 2cz² + cz = 1
    squared = (1 + z) * (1 + c * z) ** 2 / z

    # c (1 + s)/(1 − s)² = 1/(2s), s = y²
    s = (-(1 + c) + math.sqrt((1 + c) ** 2 + (2 * c - 1))) / (2 * c - 1) if c != 0.5 else 1 / 3
    y = math.sqrt(s)

    product = (1 + math.sqrt(hidden / width)) * (1 + math.sqrt(width / hidden))
    root = math.sqrt(width / hidden)
    return math.sqrt(squared) * root, root * (c * y / (1 - s) + 1 / (2 * y)), product


# Kinks


def clock(kinks: Tensor, strengths: Tensor) -> Callable[[Field], Field]:
    """R(u) = (1, Σ_k s_k relu(u₁ − τ_k)): a ReLU network with the time as its first feature, so u₂' has kinks at τ_k.

    τ and s: (…, kink), for fields (…, token, 2). The exact solution from (0, 0) is u₂ = ½ Σ_k s_k relu(t − τ_k)².
    """
    first, second = torch.eye(2, dtype=kinks.dtype)
    W1 = first.expand(*kinks.shape, 2)
    W2 = second.unsqueeze(-1) * strengths.unsqueeze(-2)
    return lambda u: feed_forward(u, W1, -kinks, W2, torch.relu) + first


def clock_error(kinks: Tensor | Sequence[float], strengths: Tensor | Sequence[float], steps: int) -> Tensor:
    """u₂(1) − u₂ⁿ of RK4 in n steps for the clock network: measured, not from the formula. (…)"""
    kinks, strengths = (torch.as_tensor(x, dtype=torch.float64) for x in (kinks, strengths))
    start = torch.zeros(*kinks.shape[:-1], 1, 2, dtype=kinks.dtype)
    end = flow(clock(kinks, strengths), start, steps=steps)[..., 0, 1]
    exact = (strengths * torch.relu(1 - kinks).square()).sum(dim=-1) / 2
    return exact - end


def kink_error(theta: Tensor) -> Tensor:
    """B(θ) = ½(1 − θ)² − (4(½ − θ)₊ + (1 − θ))/6: what Simpson's rule misses of relu(s − θ) on [0, 1]; |B| ≤ 1/24."""
    return (1 - theta) ** 2 / 2 - (4 * torch.relu(0.5 - theta) + (1 - theta)) / 6


# Clusters


def double_well(gain: float, leak: bool = True) -> Reaction:
    """R(u) = β tanh(u) − u on one feature: for β > 1 it rests at 0, which repels, and at ±u*, which attract."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return with_weights(one, gain * one, leak=leak)


def well(gain: float, pull: float = 0.0) -> float:
    """The u* > 0 with β tanh u* = (1 + α) u*, by Newton's method from above; 0 if β ≤ 1 + α."""
    slope = (1 + pull) / gain
    if slope >= 1:
        return 0.0

    u = 1 / slope  # above u*, where tanh(u) − slope·u is concave and falls: Newton comes down to u* and never passes it
    for _ in range(60):
        u -= (math.tanh(u) - slope * u) / (1 / math.cosh(u) ** 2 - slope)
    return u


def landscape(u: Tensor, gain: float, pull: float = 0.0, mean: float = 0.0) -> Tensor:
    """E(u) = ½u² − β ln cosh u + ½α(u − ū)²: each token rolls downhill, u_i' = −E'(u_i), while the mean ū moves E."""
    return u.square() / 2 - gain * u.cosh().log() + pull * (u - mean).square() / 2


def merging_law(gain: float) -> float:
    """α_c = β tanh(u_c)/u_c − 1 with cosh²(u_c) = β: two equal clusters withstand uniform averaging up to α_c."""
    u = math.acosh(math.sqrt(gain))
    return gain * math.tanh(u) / u - 1


def pull(strength: float, sharpness: float = 0.0, width: int = 1) -> Callable[[Field], Field]:
    """α(Σ_j p_ij u_j − u_i), p_i = softmax_j(a u_i·u_j): P2 eq 5 with V = I and a strength; a = 0 takes the mean."""
    attention = Interaction(width, bias=False).double().requires_grad_(False)
    eye = torch.eye(width, dtype=torch.float64)
    root = math.sqrt(sharpness * math.sqrt(width)) * eye  # the term divides the scores by √width
    attention.qkv.weight.copy_(torch.cat([root, root, eye]))
    attention.out.weight.copy_(eye)
    return lambda u: strength * (attention(u) - u)


def tug_of_war(strength: float, gain: float | None, sharpness: float = 0.0) -> Callable[[Field], Field]:
    """u_i' = α(Σ_j p_ij u_j − u_i) + β tanh(u_i) − u_i, one feature; gain=None leaves the reaction out."""
    attention = pull(strength, sharpness)
    if gain is None:
        return attention
    reaction = double_well(gain)
    return lambda u: attention(u) + reaction(u)


def planar(gain: float, turn: float, activation: str = "tanh", leak: bool = True) -> Reaction:
    """R(u) = g Q φ(u) − κu on two features, Q the rotation by `turn` degrees."""
    angle = math.radians(turn)
    rows = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    rotation = torch.tensor(rows, dtype=torch.float64)
    return with_weights(torch.eye(2, dtype=torch.float64), gain * rotation, activation=activation, leak=leak)


def two_crowds(seed: int, tokens: int = 32, shift: float = 0.01) -> Field:
    """As many tokens right as left of 0, at N(±1, 0.3²), mirror images but for a small shift: (1, token, 1)."""
    right = 1 + 0.3 * normal(seed, "crowd", size=(tokens // 2,))
    return torch.cat([right, -right]).view(1, -1, 1) + shift
