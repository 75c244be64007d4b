"""The formulas that terms, metrics and proofs share, each once: unchecked, differentiable, for any number of examples.

u: (…, token, feature), matrices (…, d, d), results (…). Nothing here looks at values: a field that is not finite gives
what arithmetic gives, so that the formulas can be used inside a flow or a search. `pdelab.metrics` and `pdelab.terms`
are the faces that check what they are given.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", Tensor, float)

# Fields


def centres(n: int) -> Tensor:
    """x_i = (i + ½)/N, the centres of N equal cells of [0, 1]: (N,)."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def keep_real(u: Tensor, mask: Tensor | None) -> Tensor:
    """u with zeros where no token is; mask: (…, token), True where a token is real."""
    return u if mask is None else torch.where(mask.unsqueeze(-1), u, torch.zeros_like(u))


def centred(u: Tensor) -> Tensor:
    """u − μ, μ = (1/N) Σ_i u_i: exactly 0 where all tokens agree."""
    rest = u - u[..., :1, :]  # measured from the first token, or the rounding of the mean would be left
    return rest - rest.mean(dim=-2, keepdim=True)


def size(u: Tensor) -> Tensor:
    """‖u‖ = √((1/N) Σ_i |u_i|²) = (∫|u|² dx)^{½}."""
    return (u.square().sum(dim=(-2, -1)) / u.shape[-2]).sqrt()


def spread(u: Tensor) -> Tensor:
    """σ = ‖u − μ‖, the root of the variance over tokens.  (P2 eq 9)"""
    return size(centred(u))


def longest(u: Tensor) -> Tensor:
    """max_i |u_i|."""
    return u.norm(dim=-1).amax(dim=-1)


def diameter(u: Tensor) -> Tensor:
    """max_{i,k} |u_i − u_k|."""
    return torch.cdist(u, u, compute_mode="donot_use_mm_for_euclid_dist").amax(dim=(-2, -1))


def per_example(values: Tensor) -> Tensor:
    """One number per example, (…), as a factor of fields or matrices: (…, 1, 1)."""
    return values[..., None, None]


# Attention


def attention_weights(u: Tensor, A: Tensor, *, causal: bool = False) -> Tensor:
    """p_ij = e^{s_ij} / Σ_k e^{s_ik}, s_ij = u_iᵀ A u_j, over k ≤ i only if causal: (…, token, token)."""
    scores = u @ A @ u.mT
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=u.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(dim=-1)


def attention(u: Tensor, A: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    """Att(u)_i = Σ_j p_ij V u_j: one head, A = W_QᵀW_K/√d and V = W_O W_V."""
    return attention_weights(u, A, causal=causal) @ u @ V.mT


def dobrushin(P: Tensor) -> Tensor:
    """τ(P) = ½ max_{i,k} Σ_j |p_ij − p_kj|, rows of P sum to 1: 0 if all rows agree, 1 if two share nothing.

    >>> dobrushin(torch.tensor([[0.75, 0.25], [0.25, 0.75]])).item()
    0.5
    """
    return torch.cdist(P, P, p=1).amax(dim=(-2, -1)) / 2


def attention_contraction(A: Tensor, delta: Tensor) -> Tensor:
    """tanh(‖A‖δ²/4) < 1: diam(Att(u)) is at most ‖V‖ times this times δ = diam(u), for attention without a mask."""
    return torch.tanh(norm2(A) * delta**2 / 4)


def norm2(matrix: Tensor) -> Tensor:
    """‖M‖, the largest singular value."""
    return torch.linalg.matrix_norm(matrix, 2)


# The feed-forward network


class Constants(NamedTuple, Generic[Number]):
    """Of a reaction, for all pairs of states: λ₋|v|² ≤ ⟨v, R(z + v) − R(z)⟩ ≤ λ|v|² and |R(z + v) − R(z)| ≤ K|v|."""

    lower: Number
    upper: Number
    lipschitz: Number


def feed_forward(
    z: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, phi: Callable[[Tensor], Tensor], leak: float = 0.0
) -> Tensor:
    """W₂ φ(W₁ z_i + b₁) − κ z_i, token by token: W₁ (…, hidden, d), b₁ (…, hidden), W₂ (…, d, hidden)."""
    return phi(z @ W1.mT + b1.unsqueeze(-2)) @ W2.mT - leak * z


def reaction_constants(W1: Tensor, W2: Tensor, slopes: tuple[float, float], leak: float = 0.0) -> Constants[Tensor]:
    """λ = c μ(W₂W₁) + r‖W₂‖‖W₁‖ − κ, λ₋ the same with −μ(−·) and −r, K = max(|s₋|, |s₊|) ‖W₂‖‖W₁‖ + κ.

    slopes: s₋ and s₊, the least and the largest slope of φ; c and r are the middle and half the width of [s₋, s₊].
    """
    least, most = slopes
    middle, radius = (most + least) / 2, (most - least) / 2
    product, omega = W2 @ W1, norm2(W1) * norm2(W2)
    rates = torch.linalg.eigvalsh((product + product.mT) / 2)
    return Constants(
        lower=middle * rates[..., 0] - radius * omega - leak,
        upper=middle * rates[..., -1] + radius * omega - leak,
        lipschitz=max(abs(least), abs(most)) * omega + leak,
    )


# LayerNorm


def layer_norm(z: Tensor, eps: Tensor | float = 0.0, gain: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    """g ⊙ (z − m1)/√(v + ε) + b over the features of each token, with ε, g and b of any shape that fits."""
    y = z - z.mean(dim=-1, keepdim=True)
    return gain * y / (y.square().mean(dim=-1, keepdim=True) + eps).sqrt() + bias


# Along a flow


def growth(rate: Tensor, T: Tensor | float = 1.0) -> Tensor:
    """∫₀ᵀ e^{λs} ds = (e^{λT} − 1)/λ, and T at λ = 0."""
    small = rate.abs() < 1e-8  # below it the quotient has no digits left, and the limit is right to 1e-8
    safe = torch.where(small, torch.ones_like(rate), rate)
    return torch.where(small, torch.ones_like(rate) * T, torch.expm1(safe * T) / safe)
