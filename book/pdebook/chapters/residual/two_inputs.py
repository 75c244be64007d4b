"""Do two inputs become one? The correlation c of their states, from layer to layer:  c ← C(c).  (P2 Theorem 3.4)

A wide random layer h ← Wφ(h) + b with fresh weights, Var W = σ_w²/n and Var b = σ_b², has in the limit n → ∞

q ← σ_w² E[φ(√q z)²] + σ_b²,    C(c) = (σ_w² E[φ(√q z₁)φ(√q z₂)] + σ_b²)/q,

with standard normal z₁, z₂ of correlation c, and q at its fixed point. With a skip, h + αf, both q and the covariance
qc grow by α² times the right-hand sides. Where |f| = |h| at every layer, as for ReLU with σ_w² = 2 and Gaussian inputs,
that moves the pair part of the way: c ← (c + α²C(c))/(1 + α²). Where it is not, as for tanh, q drifts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pdelab.seeds import normal, stream

NODES = 48


def _quadrature(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    """Points and weights for means over a standard normal: exact for polynomials of degree 2·nodes − 1."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.tensor(z), torch.tensor(w / w.sum())


def _even(spacing: float = 0.08, reach: float = 9.0) -> tuple[Tensor, Tensor]:
    """Points at equal distances, for bounded φ. For tanh(√q z) the error is about exp(−π²/(spacing √q))."""
    z = torch.arange(-reach, reach + spacing / 2, spacing, dtype=torch.float64)
    w = torch.exp(-(z**2) / 2)
    return z, w / w.sum()


def pair_mean(phi: Callable[[Tensor], Tensor], c: Tensor, q: float = 1.0, *, even: bool = False) -> Tensor:
    """E[φ(√q z₁)φ(√q z₂)] for standard normal z₁, z₂ of correlation c, by quadrature: c (…) → (…).

    For smooth φ. A kink, as in ReLU, costs quadrature its precision. even: points at equal distances, which see a
    bounded φ that is steep, as tanh is for a large q; Gauss's points are too few near zero.
    """
    z, w = _even() if even else _quadrature()
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
    """An activation with its σ_w², σ_b² and the scale α of the branch; α = None: no skip."""

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
        (z, w), q = _quadrature(), 1.0
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
        found = [(c0, self.q)]
        for _ in range(layers):
            c, q = self.advance(torch.tensor(found[-1][0], dtype=torch.float64), found[-1][1])
            found.append((c.item(), self.q if self.activation == "relu" else q))
        return found

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


LAYERS, WIDTH, COPIES, START = 16, 512, 8, 0.5


def simulate(name: str, seed: int, layers: int = LAYERS) -> list[float]:
    """c_0, …, c_L of real networks: the cosine of two inputs that start at ½, mean over 8 networks of width 512."""
    net, size = NETWORKS[name], (COPIES, WIDTH)
    q, generator = net.q, stream(seed, "pairs", name)
    basis = torch.linalg.qr(normal(seed, "start", name, size=(*size, 2)))[0] * math.sqrt(WIDTH * q)
    # two columns of length √(nq) and correlation ½: (network, feature, 2)
    h = torch.stack([basis[..., 0], START * basis[..., 0] + math.sqrt(1 - START**2) * basis[..., 1]], dim=-1)
    found = [_correlation(h)]
    for _ in range(layers):
        W = torch.randn(*size, WIDTH, generator=generator, dtype=torch.float64) * math.sqrt(net.weight / WIDTH)
        b = torch.randn(*size, 1, generator=generator, dtype=torch.float64) * math.sqrt(net.bias)
        f = W @ net.phi(h) + b
        h = f if net.alpha is None else h + net.alpha * f
        found.append(_correlation(h))
    return found


def _correlation(h: Tensor) -> float:
    return torch.cosine_similarity(h[..., 0], h[..., 1], dim=-1).mean().item()


def spread(name: str, layers: int = LAYERS) -> list[float]:
    """4√(Σ_k Π_{j>k} C'(c_j)²)/√(mn): each layer adds noise of about 1/√n, which the slopes of the map carry on.

    m = 8 networks of width n = 512, one value per layer.
    """
    net, variance, found = NETWORKS[name], 0.0, [0.0]
    for c, q in net.states(START, layers)[:-1]:
        variance = net.slope(c, q) ** 2 * variance + 1
        found.append(4 * math.sqrt(variance / (WIDTH * COPIES)))
    return found
