"""The stability theorem on fields: exact laws, real attention with its constants, and phase diagrams.  (P2 Theorem 3.3)

u' = F(u) + S(u), S = −γ(u − μ)/√(σ² + ε) as in P2 eq 9. For F = λu the spread obeys σ' = (λ − γ/√(σ² + ε))σ exactly,
so every statement about it has a known answer. For attention and a feed-forward network λ comes from the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pdebook.evidence.systems import randomised
from pdelab.equation import MasterEquation
from pdelab.field import Field, centred, token_mean
from pdelab.formulas import attention, diameter, norm2, per_example
from pdelab.integrators import RK4, Euler, Integrator
from pdelab.metrics.stability import PushConstants, push_constants, spread
from pdelab.seeds import normal
from pdelab.solver import solve
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import SpatialStabilization

# Exact laws for F = λu.


def extinction_time(sigma0: float, gamma: float, growth: float) -> float:
    """t* = λ⁻¹ ln(γ/(γ − λσ₀)), when σ' = λσ − γ reaches 0 (ε = 0); σ₀/γ for λ = 0; infinite outside the basin.

    >>> round(extinction_time(1.0, 2.0, 1.0), 4), extinction_time(1.0, 2.0, 0.0), extinction_time(3.0, 2.0, 1.0)
    (0.6931, 0.5, inf)
    """
    if growth * sigma0 >= gamma:
        return math.inf
    return sigma0 / gamma if growth == 0 else -math.log1p(-growth * sigma0 / gamma) / growth


def spread_without_eps(t: np.ndarray, sigma0: float, gamma: float, growth: float) -> np.ndarray:
    """σ(t) = e^{λt}σ₀ − γ(e^{λt} − 1)/λ until it is 0, and 0 from then on: the solution of σ' = λσ − γ."""
    t = np.asarray(t, dtype=float)
    factor = t if growth == 0 else np.expm1(growth * t) / growth
    law = np.exp(growth * t) * sigma0 - gamma * factor
    return np.where(t < extinction_time(sigma0, gamma, growth), law, 0.0)


def spread_bound(t: np.ndarray, sigma0: float, gamma: float, growth: float, eps: float) -> np.ndarray:
    """σ₀ e^{−(γ/√(σ₀² + ε) − λ)t}, what the theorem allows from inside the basin."""
    return sigma0 * np.exp(-(gamma / math.sqrt(sigma0**2 + eps) - growth) * np.asarray(t, dtype=float))


def basin_edge(gamma: float | np.ndarray, growth: float | np.ndarray, eps: float) -> np.ndarray:
    """σ_c = √((γ/λ)² − ε), where growth and stabilisation balance; 0 if γ < λ√ε, infinite for λ ≤ 0.

    >>> basin_edge(2.0, 1.0, 0.25).round(4).item()
    1.9365
    """
    gamma, growth = np.broadcast_arrays(np.asarray(gamma, dtype=float), growth)
    ratio = np.divide(gamma, growth, out=np.full(gamma.shape, np.inf), where=growth > 0)
    return np.sqrt(np.maximum(ratio**2 - eps, 0.0))


def floor(forcing: float, gamma: float, growth: float, eps: float) -> float:
    """σ_*, the least root of γσ/√(σ² + ε) − λσ = φ: where the spread stays if constants are pushed apart by φ.

    Infinite if there is none: then the forcing outweighs the stabilisation for every σ.

    >>> round(floor(0.6, 1.0, 0.0, 1.0), 6)     # σ/√(σ² + 1) = 0.6
    0.75
    """
    if forcing == 0:
        return 0.0
    if growth == 0 and forcing >= gamma:
        return math.inf
    # for λ > 0 the left side rises up to (σ² + ε)^{3/2} = γε/λ and falls from there on
    top = math.inf if growth <= 0 else math.sqrt(max((gamma * eps / growth) ** (2 / 3) - eps, 0.0))

    def excess(sigma: float) -> float:
        return gamma * sigma / math.sqrt(sigma**2 + eps) - growth * sigma - forcing

    high = top
    if math.isinf(top):
        high = 1.0
        while excess(high) < 0 and high < 1e12:
            high *= 2
    if excess(high) < 0:
        return math.inf
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


def euler_map(a: np.ndarray, dt: float, gamma: float, growth: float, eps: float) -> np.ndarray:
    """a⁺ = a(1 + Δtλ − Δtγ/√(a² + ε)), one Euler step of u = μ + a·w, F = λ(u − μ); the spread is |a|."""
    size = np.sqrt(a**2 + eps)
    return a * (1 + dt * growth) - dt * gamma * np.divide(a, size, out=np.zeros_like(a), where=size > 0)


def two_cycle(dt: float, gamma: float, growth: float, eps: float) -> tuple[float, float]:
    """The spread √(s² − ε) of the cycle a → −a → a, s = Δtγ/(2 + Δtλ), and its multiplier 1 − (2 + Δtλ)(1 − ε/s²).

    It exists if Δt(γ/√ε − λ) > 2 and 2 + Δtλ > 0, else (0, 1); it attracts if the multiplier lies in (−1, 1).

    >>> [round(x, 4) for x in two_cycle(1.0, 2.0, 1.0, 0.25)]
    [0.441, -0.3125]
    """
    if 2 + dt * growth <= 0:
        return 0.0, 1.0
    s = dt * gamma / (2 + dt * growth)
    if s**2 <= eps:
        return 0.0, 1.0
    return math.sqrt(s**2 - eps), 1 - (2 + dt * growth) * (1 - eps / s**2)


# Fields and equations.


def fields(spreads: Tensor, means: Tensor | float, tokens: int, width: int, seed: int) -> Field:
    """Random fields with these spreads σ and these lengths of the mean |μ|, one for each: (batch, token, feature)."""
    count = len(spreads)
    shape, place = normal(seed, "shape", size=(count, tokens, width)), normal(seed, "mean", size=(count, 1, width))
    place = place / place.norm(dim=-1, keepdim=True)
    means = torch.as_tensor(means, dtype=shape.dtype).expand(count)
    return per_example(means) * place + per_example(spreads / spread(shape)) * centred(shape)


def block(
    seed: int, *, width: int = 8, heads: int = 2, hidden: int = 16, gain: float = 1.0, activation: str = "relu"
) -> MasterEquation:
    """A[u] + R[u] as P2 eq 5 and 6 print them, −u included; weights N(0, gain²/fan-in), biases of size 0.3."""
    terms = Interaction(width, heads, leak=True), Reaction(width, hidden, activation=activation, leak=True)
    return randomised(MasterEquation(*terms), seed, "block", gain=gain)


def gradient_block(seed: int, *, width: int = 2, hidden: int = 8, value: float = 3.0) -> MasterEquation:
    """A block that pushes tokens apart: W_Q = W_K = 1, V = v·1 and FFN(z) = Wᵀ relu(Wz), a slope of a convex function.

    Attention with these weights is studied in Geshkovski et al. (2023). −u included, no biases.
    """
    terms = Interaction(width, leak=True, bias=False), Reaction(width, hidden, leak=True, bias=False)
    made = MasterEquation(*terms).double().requires_grad_(False)
    attention, network = made.terms
    one, inner = torch.eye(width), normal(seed, "gradient block", size=(hidden, width)) / math.sqrt(hidden)
    attention.qkv.weight.copy_(torch.cat([one, one, value * one]))
    attention.out.weight.copy_(one)
    network.inner.weight.copy_(inner)
    network.outer.weight.copy_(inner.T)
    return made


@dataclass(frozen=True)
class Constants:
    """What the theorems ask of F = Att + FFN − κu on N tokens."""

    heads: tuple[float, ...]  # ‖V‖ of each head
    feedforward: float  # f, a Lipschitz constant of FFN
    tokens: int  # N
    leak: float  # κ

    @property
    def value(self) -> float:
        """‖V‖, summed over the heads."""
        return sum(self.heads)

    @property
    def push(self) -> PushConstants:
        """λ, K and Λ of `push_constants`, without knowledge of column sums."""
        return push_constants(self.tokens, self.heads, network=self.feedforward, leak=self.leak)

    @property
    def lipschitz(self) -> float:
        """K = S‖V‖ + f, S of `averaging_size`: the spread of Att + FFN is at most Kσ."""
        return self.push.lipschitz

    @property
    def growth(self) -> float:
        """λ = ½(1 + S)‖V‖ + f − κ."""
        return self.push.growth

    @property
    def product(self) -> float:
        """½(1 + √N)‖V‖ + f − κ: ⟨u, F(u)⟩ ≤ this times ‖u‖², and ‖F(0)‖‖u‖ besides."""
        return (1 + math.sqrt(self.tokens)) / 2 * self.value + self.feedforward - self.leak


def constants(equation: MasterEquation, tokens: int) -> Constants:
    """The constants of an equation made of one Interaction and one Reaction, from the weights alone."""
    attention, network = equation.terms
    _, _, values = attention.qkv.weight.split(attention.width)
    size = attention.width // attention.heads
    heads = zip(attention.out.weight.split(size, dim=1), values.split(size), strict=True)
    norms = tuple(abs(attention.strength) * norm2(out @ inner).item() for out, inner in heads)
    inner, outer = (norm2(layer.weight).item() for layer in (network.inner, network.outer))
    return Constants(norms, outer * inner, tokens, attention.leak + network.leak)


def stabilised(rate: Callable[[Field], Field], gamma: float | Tensor, eps: float) -> Callable[[Field], Field]:
    """u ↦ F(u) + S(u), with one γ for all examples or one for each: (batch,)."""
    strength = gamma if isinstance(gamma, float | int) else lambda x, t: gamma.unsqueeze(-1).expand_as(x)
    term = SpatialStabilization(strength, eps)
    return lambda u: rate(u) + term(u)


@dataclass(frozen=True)
class Course:
    """σ, |μ| and E of every example over time: (time, batch) each."""

    t: np.ndarray
    spread: np.ndarray
    mean: np.ndarray

    @property
    def energy(self) -> np.ndarray:
        """E = ½(|μ|² + σ²)."""
        return (self.mean**2 + self.spread**2) / 2


def follow(
    rate: Callable[[Field], Field], u0: Field, *, T: float, steps: int, integrator: Integrator | None = None
) -> Course:
    """Solve u' = rate(u) up to T (RK4 unless another integrator is given) and note σ and |μ| after every step.

    Raises Diverged if a field of the batch is not finite before T: the others would end early with it.
    """
    with torch.no_grad():
        run = solve(
            rate,
            u0,
            steps=steps,
            dt=T / steps,
            integrator=integrator or RK4(),
            keep=lambda u: torch.stack([spread(u), token_mean(u).flatten(1).norm(dim=1)]),
            throw=True,
        )
    seen = torch.stack(run.states).numpy()
    return Course(np.array(run.times), seen[:, 0], seen[:, 1])


# Attention against the pull, in the diameter.


def looking(sharpness: float, value: float = 1.0, width: int = 2) -> Callable[[Field], Field]:
    """u ↦ Att(u) with A = a·1 and V = v·1: tokens far apart look at themselves, and move outwards at the rate v."""
    one = torch.eye(width, dtype=torch.float64)
    return lambda u: attention(u, sharpness * one, value * one)


def triangle(copies: int = 1) -> Tensor:
    """Three tokens at distance 1 from each other in the plane, each `copies` times: (token, feature)."""
    angle = 2 * math.pi * torch.arange(3, dtype=torch.float64) / 3
    corners = torch.stack([angle.cos(), angle.sin()], dim=1) / math.sqrt(3)
    return corners.repeat(copies, 1)


def cloud(tokens: int, seed: int, width: int = 2) -> Tensor:
    """Normal tokens with mean zero, of diameter 1: (token, feature)."""
    shape = normal(seed, "cloud", tokens, size=(tokens, width))
    return (shape - shape.mean(dim=0)) / diameter(shape)


def diameters(
    rate: Callable[[Field], Field],
    shape: Tensor,
    gammas: Sequence[float],
    starts: Sequence[float],
    *,
    eps: float,
    T: float,
    steps: int,
) -> np.ndarray:
    """δ over time under u' = F(u) + S(u) from δ₀ times the shape, one run for each pair of γ and δ₀: (time, run)."""
    gamma, start = (torch.as_tensor(x, dtype=torch.float64) for x in (gammas, starts))
    with torch.no_grad():
        run = solve(
            stabilised(rate, gamma, eps),
            per_example(start) * shape,
            steps=steps,
            dt=T / steps,
            integrator=RK4(),
            keep=diameter,
            throw=True,
        )
    return torch.stack(run.states).numpy()


def least_pull(
    rate: Callable[[Field], Field], shape: Tensor, start: float, gammas: Sequence[float], *, eps: float
) -> float:
    """The least of these γ (ascending) with which the diameter has fallen at t = 2; infinite if it has with none."""
    course = diameters(rate, shape, gammas, [start] * len(gammas), eps=eps, T=2.0, steps=60)
    fallen = np.flatnonzero(course[-1] < start)
    return float(gammas[fallen[0]]) if len(fallen) else math.inf


# Phase diagrams.


def basin_map(
    rate: Callable[[Field], Field],
    sigmas: Sequence[float],
    gammas: Sequence[float],
    *,
    eps: float,
    T: float,
    steps: int,
    mean: float = 0.5,
    tokens: int = 6,
    width: int = 2,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """σ(T)/σ₀ and E(T)/E(0) from every start σ₀ under every γ: (γ, σ₀) each."""
    grid = torch.cartesian_prod(torch.as_tensor(gammas).double(), torch.as_tensor(sigmas).double())
    one = torch.ones(1, dtype=torch.float64)
    shape, place = fields(one, 0.0, tokens, width, seed), fields(0 * one, mean, tokens, width, seed)
    u0 = place + per_example(grid[:, 1]) * shape  # the same field everywhere, only stretched
    course = follow(stabilised(rate, grid[:, 0], eps), u0, T=T, steps=steps)
    spreads, energies = ((x[-1] / x[0]).reshape(len(gammas), len(sigmas)) for x in (course.spread, course.energy))
    return spreads, energies


def step_map(
    growth: float,
    dts: Sequence[float],
    gammas: Sequence[float],
    *,
    eps: float,
    sigma0: float,
    steps: int,
    tokens: int = 6,
    seed: int = 0,
) -> np.ndarray:
    """max σ_n/σ₀ over the last half of the Euler steps, F = λ(u − μ), for every Δt and γ: (γ, Δt)."""
    grid = torch.cartesian_prod(torch.as_tensor(gammas).double(), torch.as_tensor(dts).double())
    u0 = fields(torch.full_like(grid[:, 0], sigma0), 0.0, tokens, 1, seed)
    rate = stabilised(lambda u: growth * centred(u), grid[:, 0], eps)
    dt = per_example(grid[:, 1])  # a step of its own for each example: Δt F is the rate for steps of length 1
    run = follow(lambda u: dt * rate(u), u0, T=float(steps), steps=steps, integrator=Euler())
    return (run.spread[steps // 2 :].max(axis=0) / sigma0).reshape(len(gammas), len(dts))
