"""Depth as time: the limit of many layers and of many tokens, and the bounds of both.  (P2 Theorem 3.2, eq 10-12)"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from pdebook.evidence.stacks import TIME, empty_block, smooth_path
from pdelab.field import Field, laplacian_eigenvalues
from pdelab.formulas import centres, growth, norm2
from pdelab.integrators import RK4
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory, solve

SCALES: dict[str, Callable[[int], float]] = {
    "1/L": lambda layers: TIME / layers,
    "1/√L": lambda layers: TIME / math.sqrt(layers),
    "1": lambda layers: TIME,
}
WORDS = 16  # in the table that words are looked up in

# The limit of many layers


def limit_rate(seed: int) -> Callable[[Field, float], Field]:
    """F(u, t) = A[u] + R[u] with the weights θ(t/T): what a stack with smooth weights and Δt = T/L converges to."""
    path, empty = smooth_path(seed), empty_block()
    return lambda u, t: functional_call(empty, path(t / TIME), (u, t))


def limit(seed: int, u0: Field, steps: int = 128) -> Trajectory:
    """The limit, by RK4: at 128 steps its error is far below that of any stack here."""
    return solve(limit_rate(seed), u0, steps=steps, dt=TIME / steps, integrator=RK4())


def interpolate(states: Sequence[Field], tau: float, rounding: Callable[[float], int] = math.floor) -> Field:
    """u^L = h^(k) + (τ − k)(h^(k+1) − h^(k)), k = ⌊τ⌋, and h^(L) at τ = L.  (P2 eq 10, with floors)

    rounding=math.ceil is the printed form. It asks for h^(L+1) when τ > L − 1, and then raises IndexError.
    """
    k = rounding(tau)
    if k == tau and k == len(states) - 1 and rounding is math.floor:
        return states[k]
    return states[k] + (tau - k) * (states[k + 1] - states[k])


def sphere_rate(rate: Callable[[Field, float], Field]) -> Callable[[Field, float], Field]:
    """G(u) = (I − uuᵀ/d) P F(u), P = I − 11ᵀ/d, token by token: the limit of post-LayerNorm."""

    def along(u: Field, t: float) -> Field:
        f = rate(u, t)
        f = f - f.mean(dim=-1, keepdim=True)
        return f - u * (u * f).mean(dim=-1, keepdim=True)  # the mean over d features is the sum divided by d

    return along


def cosine_law(layers: int = 64) -> list[float]:
    """(1 + α²)^(−L/2) for each of the SCALES α: the cosine of H_L and H_0 in wide stacks with fresh weights."""
    return [(1 + scale(layers) ** 2) ** (-layers / 2) for scale in SCALES.values()]


# The bounds


def error_bound(
    K: Tensor | float,
    M: Tensor | float,
    K_t: Tensor | float,
    T: Tensor | float,
    dt: Tensor | float,
    inconsistency: Tensor | float = 0.0,
) -> Tensor:
    """B = (ε + ½(KM + K_t)Δt)(e^{KT} − 1)/K, with T in place of the fraction at K = 0: Euler's error is at most B.

    >>> error_bound(K=0, M=1, K_t=2, T=1, dt=0.1).item()
    0.1
    """
    K = torch.as_tensor(K, dtype=torch.float64)
    return (inconsistency + (K * M + K_t) * dt / 2) * growth(K, T)


@dataclass(frozen=True)
class Line:
    """u' = au + ct from u₀ on [0, T], a ≠ 0, in closed form, one number per example: every constant of B is exact."""

    a: Tensor
    c: Tensor
    u0: Tensor
    T: Tensor

    def at(self, t: Tensor) -> Tensor:
        """u(t) = u₀ + au₀g + c(g − t)/a, g = (e^{at} − 1)/a."""
        g = growth(self.a, t)
        return self.u0 + self.a * self.u0 * g + self.c * (g - t) / self.a

    def speed(self, t: Tensor) -> Tensor:
        """u'(t) = au₀e^{at} + cg, which is monotone in t."""
        return self.a * self.u0 * (self.a * t).exp() + self.c * growth(self.a, t)

    def constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """K = |a|, M = max|u'| and K_t = |c|."""
        fastest = torch.maximum(self.speed(0 * self.T).abs(), self.speed(self.T).abs())
        return self.a.abs(), fastest, self.c.abs()


def slope_in_max(jacobian: Tensor) -> float:
    """max_i max_{|w|=1} Σ_j |J_ijᵀw|, the norm of J (N, 2, N, 2) in max_i|·|, over 720 directions w of the plane.

    >>> slope_in_max(torch.eye(4, dtype=torch.float64).reshape(2, 2, 2, 2))
    1.0
    """
    turn = torch.arange(720, dtype=jacobian.dtype) * (2 * math.pi / 720)
    w = torch.stack([turn.cos(), turn.sin()], dim=-1)
    along = torch.einsum("wa,iajb->wijb", w, jacobian)
    return along.norm(dim=-1).sum(dim=-1).max().item()


def heat_growth(D: Tensor, tokens: int, t: float) -> Tensor:
    """max_k ‖e^{tλ_k D}‖ over the modes of N reflecting tokens, D (…, d, d): how much time t can enlarge a field."""
    rates = laplacian_eigenvalues(tokens)[:: max(1, tokens // 64)]
    return torch.stack([norm2(torch.linalg.matrix_exp(t * rate * D)) for rate in rates]).amax(dim=0)


def finer_is_worse(D: Tensor, t: float = 2e-5) -> Tensor:
    """log₁₀₀ of the growth of 1024 tokens over that of 256 in a short time t: above 1, no bound holds for all N."""
    return (heat_growth(D, 1024, t) / heat_growth(D, 256, t)).log() / math.log(100)


def kernel_mass(D: Tensor) -> Tensor:
    """C_D = ∫‖G(z)‖dz of the heat kernel G(z) = (4πD)^{−1/2} e^{−z²D⁻¹/4}: ‖e^{tD∂²}u‖ ≤ C_D ‖u‖ in max norm, all t."""
    rates, basis = torch.linalg.eig(D)
    inverse = torch.linalg.inv(basis)

    reach = 12 / (1 / rates).real.amin(dim=-1).sqrt()  # beyond this the kernel is below e^{−36}
    points = torch.linspace(-1, 1, 2001, dtype=D.dtype)

    total = torch.zeros_like(reach)
    for point in points:
        z = (point * reach).unsqueeze(-1)
        values = torch.exp(-(z**2) / (4 * rates)) / torch.sqrt(4 * math.pi * rates)
        total = total + norm2((basis * values.unsqueeze(-2)) @ inverse)
    return total * reach * (points[1] - points[0])


def normaliser_is_infinite(power: Tensor, score: Tensor) -> Tensor:
    """Whether ∫exp(a·u(1)u(y))dy has no bound for u(y) = y^{−q}, q < ½, which lies in L²(0, 1).

    The part over (0, 1/n) alone is at least exp(a n^q)/n. True where that passes e^{100} for some n up to 10^{100}.
    """
    n = torch.logspace(1, 100, 100, dtype=torch.float64).unsqueeze(-1)
    return (score * n**power - n.log()).amax(dim=0) > 100


# Tokens as samples of a field


def smooth_embedding(seed: int, tokens: int, width: int = 4) -> Field:
    """E(x) + P(x) at the cell centres x_i = (i + ½)/N, every feature a cosine cos(ωx + φ): (1, token, feature)."""
    frequency = 1 + 3 * torch.rand(width, generator=stream(seed, "ω"), dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(width, generator=stream(seed, "φ"), dtype=torch.float64)
    return torch.cos(centres(tokens).unsqueeze(-1) * frequency + phase).unsqueeze(0)


def vocabulary_embedding(seed: int, tokens: int, width: int = 4, sentences: int = 32) -> Field:
    """E(w_i) + P(x_i): words looked up in a table, plus the smooth field as position: (sentence, token, feature)."""
    table = normal(seed, "table", size=(WORDS, width))
    words = torch.randint(WORDS, (sentences, tokens), generator=stream(seed, "words", tokens))
    return table[words] + smooth_embedding(seed, tokens, width)


def every_word_everywhere(seed: int, cells: int = 81, width: int = 4) -> Field:
    """The law of (word, position) itself: every word at many positions, as one sequence: (1, token, feature)."""
    table = normal(seed, "table", size=(WORDS, width))
    return (table.unsqueeze(0) + smooth_embedding(seed, cells, width)[0].unsqueeze(1)).reshape(1, -1, width)


def largest_jump(u: Field) -> float:
    """max_i |u_{i+1} − u_i|: of the samples of one continuous field it tends to 0 as N grows."""
    return (u[:, 1:] - u[:, :-1]).norm(dim=-1).max().item()
