"""P1 eq 16 on pairs whose information is known:  Ĩ = E_{p(x,t)} log q(t|x) − E_{p(x)p(t)} log q(t).

X ~ N(0, 1) and T = sX + νZ, so that I = ½ log(1 + s²/ν²). For q(t|x) = N(ax, v) and q(t) = N(0, w) everything is in
closed form, and so are the two divergences that stand between Ĩ and I.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pdelab.metrics.information import club, printed_eq16
from pdelab.seeds import normal

SLOPE, NOISE = 1.0, 0.5  # s and ν: I = ½ log 5 = 0.805


def information(slope: float | Tensor = SLOPE, noise: float = NOISE) -> Tensor:
    """I = ½ log(1 + s²/ν²)."""
    return torch.log1p(torch.as_tensor(slope, dtype=torch.float64) ** 2 / noise**2) / 2


@dataclass(frozen=True)
class Model:
    """q(t|x) = N(ax, v) and q(t) = N(0, w)."""

    a: float | Tensor
    v: float | Tensor
    w: float | Tensor

    def value(self, slope: float | Tensor = SLOPE, noise: float = NOISE) -> Tensor:
        """Ĩ = ½ log(w/v) − E(t − ax)²/2v + E t²/2w."""
        s, a, v, w = (torch.as_tensor(x, dtype=torch.float64) for x in (slope, self.a, self.v, self.w))
        return torch.log(w / v) / 2 - ((s - a) ** 2 + noise**2) / (2 * v) + (s**2 + noise**2) / (2 * w)

    def divergences(self, slope: float = SLOPE, noise: float = NOISE) -> tuple[Tensor, Tensor]:
        """E_x KL(p(t|x) ‖ q(t|x)) and KL(p(t) ‖ q(t)), by torch.distributions and Gauss's quadrature over x."""
        x, weights = _gauss()
        true = Normal(slope * x, noise)
        given = torch.distributions.kl_divergence(true, Normal(self.a * x, math.sqrt(self.v)))
        wide = math.sqrt(slope**2 + noise**2)
        alone = torch.distributions.kl_divergence(_centred(wide), _centred(math.sqrt(self.w)))
        return (weights * given).sum(), alone

    def seen(self, seed: int, number: int = 20_000, slope: float = SLOPE, noise: float = NOISE) -> Tensor:
        """Ĩ on samples, by `printed_eq16`."""
        x, t = pairs(seed, number, slope, noise)
        return printed_eq16(Normal(self.a * x, math.sqrt(self.v)).log_prob(t), _centred(math.sqrt(self.w)).log_prob(t))


def _centred(size: float) -> Normal:
    return Normal(torch.zeros((), dtype=torch.float64), torch.tensor(size, dtype=torch.float64))


def _gauss(nodes: int = 20) -> tuple[Tensor, Tensor]:
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.tensor(x), torch.tensor(weights / weights.sum())


def pairs(seed: int, number: int, slope: float = SLOPE, noise: float = NOISE) -> tuple[Tensor, Tensor]:
    x = normal(seed, "x", size=(number,))
    return x, slope * x + noise * normal(seed, "z", size=(number,))


def club_seen(seed: int, number: int = 2000, slope: float = SLOPE, noise: float = NOISE) -> Tensor:
    """CLUB with the exact conditional: E log p(t|x) over pairs minus over strangers."""
    x, t = pairs(seed, number, slope, noise)
    return club(Normal(slope * x.unsqueeze(1), noise).log_prob(t))


def choices(slope: float = SLOPE, noise: float = NOISE) -> dict[str, Model]:
    """Ways to fill in eq 16, by name: what is exact, and what is off."""
    both = slope**2 + noise**2
    return {
        "q(t) exact, q(t|x) too wide": Model(slope, 4 * noise**2, both),
        "q(t) the marginal of a wide q(t|x)": Model(slope, 4 * noise**2, slope**2 + 4 * noise**2),
        "both exact": Model(slope, noise**2, both),
        "q(t|x) exact, q(t) = N(0, 4)": Model(slope, noise**2, 4.0),
        "neither: q(t) narrow": Model(slope, 4 * noise**2, 0.3),
        "neither: q(t|x) narrow": Model(slope, noise**2 / 4, both * 2),
    }


def descend(steps: int, rate: float = 0.05, *, over: str = "phi", start: float = SLOPE) -> dict[str, list[float]]:
    """Gradient descent on Ĩ: over φ = log v with T fixed, or over θ = s with q fixed and q(t) the marginal of q(t|x).

    Gives Ĩ and the true I at every step, until Ĩ is below −100. In the second case Ĩ is a lower bound throughout, exact
    at s = SLOPE, and a parabola in s that opens downward, with its top at s = 5/4: I may fall first, on the way through
    s = 0, and ends by rising from every start but the top.
    """
    if over not in ("phi", "theta"):
        raise ValueError(f"over must be phi or theta; not {over!r}")
    free = torch.tensor(math.log(NOISE**2 / 2) if over == "phi" else start, dtype=torch.float64, requires_grad=True)
    found: dict[str, list[float]] = {"eq16": [], "true": []}
    for _ in range(steps):
        if over == "phi":
            value, truth = Model(SLOPE, free.exp(), SLOPE**2 + NOISE**2).value(), information()
        else:
            value, truth = Model(SLOPE, NOISE**2, SLOPE**2 + NOISE**2).value(free), information(free)
        found["eq16"].append(value.item())
        found["true"].append(truth.item())
        if value < -100:
            break
        (slope,) = torch.autograd.grad(value, free)
        with torch.no_grad():
            free -= rate * slope
    return found
