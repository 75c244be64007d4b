"""How far a state may turn, what wide random stacks keep, and whether two inputs become one.  (P2 Theorem 3.4)

One layer of a stack, with f a random branch that is as long as its input and LN the LayerNorm without gain, bias or ε:

| kind | layer | ρ_ℓ | ‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ |
|---|---|---|---|
| bare | f(h) | 0 after one layer | 1 |
| norm | LN(f(h)) | 0 after one layer | 1 |
| skip | h + α f(h) | (1 + α²)^(−ℓ/2) | (1 + α²)^((L−ℓ)/2) |
| pre-LN | h + α f(LN(h)) | (1 + α²ℓ)^(−1/2) | √((1 + α²L)/(1 + α²ℓ)) |
| post-LN | LN(h + α f(h)) | (1 + α²)^(−ℓ/2) | 1 |
| leaky | (1 − α) h + α f(h) | ((1 − α)/r)^ℓ, r² = (1 − α)² + α² | r^(L−ℓ) |

The laws are limits for width n → ∞ at fixed depth, for an input of unit variance and a gradient ∂loss/∂h_L that were
both chosen before the weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pdebook.evidence import quadrature

WIDTH, INPUTS = 256, 8  # of the stacks whose fidelity and gradients are measured
PAIR_LAYERS, PAIR_WIDTH, PAIR_COPIES, PAIR_START = 16, 512, 8, 0.5  # of the networks that see two inputs
NODES = 48  # of Gauss's quadrature
EVEN = 9.0, 226  # reach and number of nodes 0.08 apart: for tanh(√q z) the error is about exp(−π²/(0.08 √q))


# Angles


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """ρ = ⟨u, v⟩ / (‖u‖‖v‖) along the last axis."""
    return (u * v).sum(dim=-1) / (u.norm(dim=-1) * v.norm(dim=-1))


def angle(u: Tensor, v: Tensor) -> Tensor:
    """∠(u, v) in [0, π]. The arc cosine is imprecise near 0 and π, where half-angles are not."""
    u, v = (x / x.norm(dim=-1, keepdim=True) for x in (u, v))
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


def degrees(rho: float) -> float:
    """arccos ρ in degrees.

    >>> round(degrees(0.5), 9)
    60.0
    """
    return math.degrees(math.acos(rho))


def addition(start: Tensor, direction: Tensor, r: Tensor) -> Tensor:
    """u₀ + J with ‖J‖ = r ‖u₀‖ in a given direction."""
    unit = direction / direction.norm(dim=-1, keepdim=True)
    return start + (r * start.norm(dim=-1)).unsqueeze(-1) * unit


def printed_bound(r: Tensor) -> Tensor:
    """(1 − r)/(1 + r) with r = ‖J‖/‖u₀‖: the least cosine of u₀ + J with u₀, as printed.  (P2 eq 17)"""
    return (1 - r) / (1 + r)


def sharp_bound(r: Tensor) -> Tensor:
    """√(1 − r²) for r < 1: the least cosine of u₀ + J with u₀, where J is at right angles to u₀ + J."""
    return (1 - r**2).sqrt()


# Wide random stacks


def fidelity_law(kind: str, alpha: float, layer: Tensor | float) -> Tensor:
    """skip, post-LN: (1 + α²)^(−ℓ/2). pre-LN: (1 + α²ℓ)^(−1/2). bare, norm: 1 at ℓ = 0 and then 0. leaky: see above.

    >>> fidelity_law("skip", 1.0, 2).item()
    0.5
    """
    layer = torch.as_tensor(layer, dtype=torch.float64)
    if kind in ("bare", "norm"):
        return (layer == 0).double()
    if kind == "leaky":
        return ((1 - alpha) / math.hypot(1 - alpha, alpha)) ** layer
    return (1 + alpha**2 * layer) ** -0.5 if kind == "pre-LN" else (1 + alpha**2) ** (-layer / 2)


def fidelity_spread(width: int = WIDTH, inputs: int = INPUTS) -> float:
    """4/√(mn): four standard deviations of the mean cosine of m inputs of n features, from above.

    >>> fidelity_spread(256, 1)
    0.25
    """
    return 4 / math.sqrt(width * inputs)


def gradient_law(kind: str, alpha: float, layers: int, gain: float = 1.0) -> Tensor:
    """‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ for ℓ = 0, …, L; the table above, and g^(L−ℓ) for a bare stack of gain g.

    >>> gradient_law("bare", 1.0, 2, gain=0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    layer = torch.arange(layers + 1, dtype=torch.float64)
    if kind == "pre-LN":
        a = (alpha * gain) ** 2
        return ((1 + a * layers) / (1 + a * layer)).sqrt()

    factors = {
        "bare": gain,
        "skip": math.hypot(1, alpha * gain),
        "leaky": math.hypot(1 - alpha, alpha * gain),
    }
    return factors.get(kind, 1.0) ** (layers - layer)


def gradient_spread(layers: int, width: int = WIDTH, inputs: int = INPUTS) -> float:
    """L/n + 4√(L/(2mn)), for the logarithm of a gradient of m inputs in n dimensions.

    The square of its length is a product of L factors with relative variance at most 2/(mn), and LayerNorm takes two
    of n directions away at each layer, so that the logarithm of the length is lower by 1/n.
    """
    return layers / width + 4 * math.sqrt(layers / (2 * width * inputs))


def rectified_law(start: Tensor) -> float:
    """mean(h_0) / (rms(h_0) √π): the ρ of every layer max(√2 Wh, 0) on an input that is nowhere negative.

    Rectified Gaussian numbers max(z, 0) give 1/π, absolute values |z| give √2/π.
    """
    return (start.mean() / (start.square().mean().sqrt() * math.sqrt(math.pi))).item()


def bare_gain(gain: float = 1.0) -> float:
    """g⁴/(9√2): how much a layer of attention and FFN without a skip shrinks a gradient at the start.

    Each of its four matrices has variance g²/(3 fan-in), a factor g/√3; ReLU lets half of the squares through.

    >>> round(1 / bare_gain(), 1), round(bare_gain(3**0.5), 3)
    (12.7, 0.707)
    """
    return gain**4 / (9 * math.sqrt(2))


# Two inputs


def pair_mean(phi: Callable[[Tensor], Tensor], c: Tensor, q: float = 1.0, *, even: bool = False) -> Tensor:
    """E[φ(√q z₁)φ(√q z₂)] for standard normal z₁, z₂ of correlation c, by quadrature: c (…) → (…).

    For smooth φ. A kink, as in ReLU, costs quadrature its precision. even: points at equal distances, which see a
    bounded φ that is steep, as tanh is for a large q; Gauss's points are too few near zero.
    """
    z, w = quadrature.even(*EVEN) if even else quadrature.gauss(NODES)
    c = torch.as_tensor(c, dtype=torch.float64)[..., None, None]
    other = c * z[:, None] + (1 - c**2).clamp(min=0).sqrt() * z  # (…, node, node)
    first = phi(math.sqrt(q) * z)[..., :, None]
    return (w[:, None] * w * first * phi(math.sqrt(q) * other)).sum(dim=(-1, -2))


def relu_map(c: Tensor) -> Tensor:
    """C(c) = (√(1 − c²) + c(π − arccos c))/π for ReLU with σ_w² = 2, σ_b = 0.  (Cho and Saul 2009)

    >>> relu_map(torch.tensor([0.0, 1.0]))
    tensor([0.3183, 1.0000])
    """
    c = torch.as_tensor(c).clamp(-1, 1)
    return ((1 - c**2).sqrt() + c * (math.pi - torch.arccos(c))) / math.pi


@dataclass(frozen=True)
class Network:
    """h ← Wφ(h) + b, or h + α(Wφ(h) + b), and the correlation c of two inputs from layer to layer: c ← C(c).

    With fresh weights, Var W = σ_w²/n and Var b = σ_b², a wide layer has in the limit n → ∞

    q ← σ_w² E[φ(√q z)²] + σ_b²,    C(c) = (σ_w² E[φ(√q z₁)φ(√q z₂)] + σ_b²)/q,

    with standard normal z₁, z₂ of correlation c, and q at its fixed point. With a skip both q and the covariance qc
    grow by α² times the right-hand sides. Where |f| = |h| at every layer, as for ReLU with σ_w² = 2 and Gaussian
    inputs, that moves the pair part of the way: c ← (c + α²C(c))/(1 + α²). Where it is not, as for tanh, q drifts.

    weight and bias are σ_w² and σ_b²; alpha=None: no skip.
    """

    activation: str
    weight: float
    bias: float = 0.0
    alpha: float | None = None

    @property
    def phi(self) -> Callable[[Tensor], Tensor]:
        return {"tanh": torch.tanh, "relu": torch.relu}[self.activation]

    @cached_property
    def q(self) -> float:
        """The fixed point of the variance; ReLU with σ_w² = 2 keeps any, and gets 1."""
        if self.activation == "relu":
            return 1.0

        (z, w), q = quadrature.gauss(NODES), 1.0
        for _ in range(1000):
            q = self.weight * (w * self.phi(math.sqrt(q) * z) ** 2).sum().item() + self.bias
        return q

    def moments(self, c: Tensor, q: float) -> tuple[float, Tensor]:
        """Variance and covariance of the entries of Wφ(h) + b, where those of h have variance q and covariance qc."""
        if self.activation == "relu":
            return q, q * relu_map(c)

        one = torch.ones((), dtype=torch.float64)
        steep = self.alpha is not None  # a skip makes q grow, layer by layer
        means = (pair_mean(self.phi, x, q, even=steep) for x in (one, c))
        variance, covariance = (self.weight * mean + self.bias for mean in means)
        return variance.item(), covariance

    def advance(self, c: Tensor, q: float) -> tuple[Tensor, float]:
        """(c, q) after one layer; with a skip q + α²·variance and (qc + α²·covariance)/(q + α²·variance)."""
        variance, covariance = self.moments(c, q)
        if self.alpha is not None:
            variance, covariance = q + self.alpha**2 * variance, q * c + self.alpha**2 * covariance
        return covariance / variance, variance

    def slope(self, c: float, q: float | None = None, gap: float = 1e-5) -> float:
        """C'(c), by a difference quotient inside [−1, 1]; q: the fixed point unless given."""
        low, high = max(c - gap, -1.0), min(c + gap, 1.0)
        values = self.advance(torch.tensor([low, high], dtype=torch.float64), self.q if q is None else q)[0]
        return ((values[1] - values[0]) / (high - low)).item()

    def states(self, c0: float, layers: int) -> list[tuple[float, float]]:
        """(c_0, q_0), …, (c_L, q_L) by the maps, from the fixed point of q without a skip.

        ReLU does not see the scale of q, which stays 1 here, since with a skip it would overflow.
        """
        path = [(c0, self.q)]
        for _ in range(layers):
            c, q = self.advance(torch.tensor(path[-1][0], dtype=torch.float64), path[-1][1])
            path.append((c.item(), self.q if self.activation == "relu" else q))
        return path

    def path(self, c0: float, layers: int) -> list[float]:
        """c_0, …, c_L by the map."""
        return [c for c, _ in self.states(c0, layers)]


NETWORKS = {
    "tanh, σ_w² = 1/2": Network("tanh", 0.5, 0.05),
    "tanh, σ_w² = 4": Network("tanh", 4.0, 0.05),
    "ReLU": Network("relu", 2.0),
    "ReLU with a skip": Network("relu", 2.0, alpha=1.0),
    "tanh, σ_w² = 1/2, skip": Network("tanh", 0.5, 0.05, alpha=1.0),
}


def correlation_spread(name: str, layers: int = PAIR_LAYERS) -> list[float]:
    """4√(Σ_k Π_{j>k} C'(c_j)²)/√(mn): each layer adds noise of about 1/√n, which the slopes of the map carry on.

    m = 8 networks of width n = 512, one value per layer.
    """
    net, variance, spreads = NETWORKS[name], 0.0, [0.0]
    for c, q in net.states(PAIR_START, layers)[:-1]:
        variance = net.slope(c, q) ** 2 * variance + 1
        spreads.append(4 * math.sqrt(variance / (PAIR_WIDTH * PAIR_COPIES)))
    return spreads


# Two inputs, where φ(z) = Σ_k w_k z^k is a polynomial, for which the quadrature is exact; weights: (batch, k)


def polynomial(z: Tensor, weights: Tensor) -> Tensor:
    """φ(z) = Σ_k w_k z^k, z (node,) or (batch, node, …) → (batch, node, …)."""
    weights = weights.reshape(*weights.shape, *[1] * max(z.ndim - 1, 1))
    value = weights[:, -1]
    for k in range(weights.shape[1] - 2, -1, -1):  # Horner
        value = value * z + weights[:, k]
    return value


def correlation(c: Tensor, weights: Tensor, share: Tensor) -> Tensor:
    """C(c) = (1 − s) E[φ(z₁)φ(z₂)]/E[φ²] + s at q = 1, s the share of the bias in the variance; c: (batch,)."""

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
