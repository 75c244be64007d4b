"""Attention as an integral operator: its kernel, and how well N tokens stand for the integral.  (P2 eq 5 and 19)

One head, without −u: a query q reads a(q) = ∫K(q, y) V u(y) dy, K(q, y) = e^{qᵀAu(y)} / ∫e^{qᵀAu(z)}dz. On tokens
u_j = u(x_j) both integrals become means, and their ratio is softmax attention.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pdelab.formulas import norm2
from pdelab.seeds import normal, stream

COUNTS = (9, 27, 81, 243)  # odd, so that a jump at ½ falls in the middle of a cell
DRAWS = 256

Function = Callable[[Tensor], Tensor]  # of positions, (N,) → (N, feature)


def weights(u: Tensor, A: Tensor, *, causal: bool = False) -> Tensor:
    """p_ij = e^{s_ij} / Σ_k e^{s_ik}, s_ij = u_iᵀ A u_j, over k ≤ i only if causal: (…, token, token)."""
    scores = u @ A @ u.transpose(-1, -2)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=u.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(dim=-1)


def kernel(u: Tensor, A: Tensor, *, causal: bool = False) -> Tensor:
    """K_att(x_i, x_j) = N p_ij, so that the midpoint rule gives ∫K_att(x_i, y) dy = 1: (…, token, token)."""
    return u.shape[-2] * weights(u, A, causal=causal)


def read(q: Tensor, u: Tensor, A: Tensor, V: Tensor, mass: Tensor | None = None) -> Tensor:
    """a(q) = Σ_j m_j e^{qᵀAu_j} V u_j / Σ_j m_j e^{qᵀAu_j}: what queries q (…, m, d) read from tokens u (…, N, d).

    mass: the weights m_j > 0 of a quadrature rule, (…, N); without them every token counts alike, which is softmax.
    """
    scores = q @ A @ u.transpose(-1, -2)  # (…, m, N)
    if mass is not None:
        scores = scores + mass.log().unsqueeze(-2)
    return scores.softmax(dim=-1) @ u @ V.transpose(-1, -2)


def centres(n: int) -> Tensor:
    """x_i = (i + ½)/N."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def gauss(nodes: int = 40) -> tuple[Tensor, Tensor]:
    """Places and weights on [0, 1] that integrate what is smooth on each half, to rounding."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = torch.from_numpy((x + 1) / 4), torch.from_numpy(w / 4)
    return torch.cat([x, x + 0.5]), torch.cat([w, w])


def smooth(x: Tensor) -> Tensor:
    """u(x) = (sin 3x, cos 2x): |u| ≤ √2, |u'| ≤ √13, |u''| ≤ √97."""
    return torch.stack([torch.sin(3 * x), torch.cos(2 * x)], dim=-1)


def jump(x: Tensor) -> Tensor:
    """The same, turned round from x = ½ on: smooth on each half, with a jump between them."""
    return torch.where((x < 0.5).unsqueeze(-1), smooth(x), -smooth(x))


SMOOTH = {"R": math.sqrt(2), "first": math.sqrt(13), "second": math.sqrt(97)}


def matrices(seed: int, width: int = 2, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """Random A and V with spectral norms `size` and 1."""
    A, V = (normal(seed, name, size=(width, width)) for name in "AV")
    return size * A / norm2(A), V / norm2(V)


def grid_errors(field: Function, A: Tensor, V: Tensor, counts: Sequence[int] = COUNTS, at: float = 0.3) -> list[float]:
    """|a_N(q) − a(q)| for q = u(at) and tokens u_j = u(x_j) at N cell centres, for each N."""
    q, (x, mass) = field(torch.tensor([at], dtype=torch.float64)), gauss()
    exact = read(q, field(x), A, V, mass)
    return [(read(q, field(centres(n)), A, V) - exact).norm().item() for n in counts]


def sample_errors(
    field: Function, A: Tensor, V: Tensor, seed: int, counts: Sequence[int] = COUNTS, at: float = 0.3
) -> list[float]:
    """√E|a_N(q) − a(q)|² for tokens at N independent, uniform places, the mean over 256 draws, for each N."""
    q, (x, mass) = field(torch.tensor([at], dtype=torch.float64)), gauss()
    exact = read(q, field(x), A, V, mass)
    found = []
    for n in counts:
        places = torch.rand(DRAWS, n, generator=stream(seed, "places", n), dtype=torch.float64)
        found.append((read(q, field(places), A, V) - exact).square().sum(dim=-1).mean().sqrt().item())
    return found


def midpoint_bound(n: int, A: Tensor, V: Tensor, R, first, second) -> Tensor:
    """‖V‖ e^{2aR²} [2R(aRu₂ + a²R²u₁²) + 2aRu₁² + u₂] / 24N², a = ‖A‖, for |q|, |u| ≤ R, |u'| ≤ u₁, |u''| ≤ u₂."""
    a = norm2(A)
    curved = 2 * R * (a * R * second + (a * R * first) ** 2) + 2 * a * R * first**2 + second
    return norm2(V) * torch.exp(2 * a * R**2) * curved / (24 * n**2)


def sample_bound(n: int, A: Tensor, V: Tensor, R) -> Tensor:
    """‖V‖ e^{2‖A‖R²} R / √N: bounds √E|a_N − a|² for N independent tokens with |u_j|, |q| ≤ R."""
    return norm2(V) * torch.exp(2 * norm2(A) * R**2) * R / math.sqrt(n)


def orthogonal(seed: int, *names: object, width: int) -> Tensor:
    """A random orthogonal matrix, uniform among them all."""
    Q, R = torch.linalg.qr(normal(seed, *names, size=(width, width)))
    return Q * R.diagonal().sign()  # or the result would not be uniform


def largest_growth(matrix: Tensor) -> float:
    """max Re λ over the eigenvalues: the rate at which the fastest mode of u' = Mu grows."""
    return torch.linalg.eigvals(matrix).real.max().item()
