"""Random systems u' = G(u), attention and a feed-forward network in matrices, and P1's scheme: what attacks search."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from pdelab.field import Field, laplacian
from pdelab.formulas import attention, norm2
from pdelab.seeds import normal

M = TypeVar("M", bound=nn.Module)
MATRICES = {"A": "d d", "V": "d d", "W": "d d", "U": "d d"}  # for `vary` of a Statement


def read(q: Tensor, y: Tensor, A: Tensor, V: Tensor, mass: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """V Σ_j m_j e^{qᵀAy_j} y_j / Σ_j m_j e^{qᵀAy_j}: what queries q (…, m, d) read from tokens or atoms y (…, n, d).

    mass: m_j > 0, of a law or of a quadrature rule, (…, n); without it every y_j counts alike, which is softmax.
    causal: query i reads j ≤ i only, which is no function of the law.
    """
    scores = q @ A @ y.mT  # (…, m, n)
    if mass is not None:
        scores = scores + mass.log().unsqueeze(-2)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(dim=-1) @ y @ V.mT


def push(u: Tensor, A: Tensor, V: Tensor, W: Tensor, U: Tensor, *, causal: bool = False) -> Tensor:
    """G(u) = P(u) u Vᵀ + tanh(u Wᵀ) Uᵀ: attention and a feed-forward network, without −u."""
    return attention(u, A, V, causal=causal) + torch.tanh(u @ W.mT) @ U.mT


def allowed_push(
    gain: float | Tensor,
    V: Tensor,
    W: Tensor,
    U: Tensor,
    A: Tensor | None = None,
    *,
    values: float = 1.0,
    network: float = 1.0,
) -> Tensor:
    """g‖V‖ + ‖U‖‖W‖, whatever the scores A are: what G may do in a norm in which averages P may do at most g.

    g is ½(1 + √(N/2)) for ⟨u − μ, ·⟩ and √(N/2) for the spread, ½(1 + √N) for ⟨u, ·⟩ and 1 for the diameter and for
    the longest token. values and network: factors of the two parts, 1 but for an attack.
    """
    return values * gain * norm2(V) + network * norm2(U) * norm2(W)


@torch.no_grad()
def randomised(made: M, seed: int, *names: object, gain: float = 1.0, biases: float = 0.3) -> M:
    """The module in double precision and without gradients: matrices N(0, gain²/fan-in), biases N(0, biases²)."""
    made = made.double().requires_grad_(False)
    for name, value in made.named_parameters():
        size = gain / math.sqrt(value.shape[1]) if value.ndim > 1 else biases
        value.copy_(size * normal(seed, *names, name, size=value.shape))
    return made


@torch.no_grad()
def amplified(made: M, gain: float) -> M:
    """The module with every matrix multiplied by gain."""
    for weights in made.parameters():
        weights.mul_(gain if weights.ndim > 1 else 1.0)
    return made


def one_step(
    u: Field,
    *,
    diffusive: float | Tensor,
    strength: float | Tensor,
    V: Tensor,
    A: Tensor | None = None,
    kappa: float | Tensor = 0.0,
    extra: Callable[[Field], Field] | None = None,
    ends: str = "reflecting",
) -> Field:
    """u + (x/2)(u_{i+1} − 2u_i + u_{i−1}) + y(P u Vᵀ − κu) + Δt R(u), x = 2DΔt/Δx², y = αΔt.  (P1 eq 20)

    A = None lets every token attend to all alike. extra is Δt R, or an exchange −Δt C.
    """
    scores = torch.zeros_like(V) if A is None else A
    spatial = laplacian(u, ends) / u.shape[1] ** 2  # without 1/Δx²
    after = u + diffusive / 2 * spatial + strength * (attention(u, scores, V) - kappa * u)
    return after if extra is None else after + extra(u)


def printed_condition(diffusive: float, strength: float, output_norm: float) -> bool:
    """2DΔt/Δx² + αΔt‖W_O‖₂ ≤ 1.  (P1 eq 21)"""
    return diffusive + strength * output_norm <= 1
