"""What eq 9 does to a field and what LayerNorm does to tokens, in closed form.  (P2 eq 9)"""

import math

import numpy as np
import torch
from torch import Tensor

from pdelab.field import Field
from pdelab.formulas import centred, layer_norm, norm2, per_example, size
from pdelab.seeds import normal, stream
from pdelab.terms.base import Term
from pdelab.terms.interaction import Interaction
from pdelab.terms.stabilization import PreNorm, SpatialStabilization

DECADES = 2  # |μ| and σ each log-uniform from 10⁻² to 10²

# Eq 9 by itself


def power(term: Term, u: Field, t: float = 0.0) -> Tensor:
    """∫⟨u, S[u]⟩ dx, the rate at which a term changes the energy ½∫|u|² dx of each example: (batch,)."""
    return (u * term(u, t)).sum(dim=-1).mean(dim=1)


def field_of(mean: Tensor, spread: Tensor, seed: int, tokens: int = 8, width: int = 3) -> Field:
    """Random fields with |μ| and σ exactly as given, both of shape (batch,)."""
    rest = centred(normal(seed, "rest", size=(len(mean), tokens, width)))
    rest = rest / per_example(size(rest))

    way = normal(seed, "mean", size=(len(mean), 1, width))
    return per_example(mean) * way / way.norm(dim=-1, keepdim=True) + per_example(spread) * rest


def spread_at(t: np.ndarray, start: np.ndarray | float, strength: float, eps: float) -> np.ndarray:
    """σ(t) of u' = S[u] with constant γ:  √(σ² + ε) − √ε arsinh(√ε/σ) = C − γt, and max(σ₀ − γt, 0) at ε = 0.

    With σ = √ε/sinh s the left side is √ε (coth s − s), which falls in s; Newton's method climbs to the root.

    >>> spread_at(np.array([0.0, 0.5, 2.0]), start=1.0, strength=1.0, eps=0.0).tolist()
    [1.0, 0.5, 0.0]
    """
    t = np.asarray(t, dtype=float)
    if eps == 0:
        return np.maximum(start - strength * t, 0.0)

    root = math.sqrt(eps)
    s0 = np.arcsinh(root / start)
    level = 1 / np.tanh(s0) - s0 - strength * t / root

    s = 1 / (1 + np.abs(level))  # left of the root, from where Newton's method on a convex function never overshoots
    for _ in range(60):
        s = s + (1 / np.tanh(s) - s - level) * np.tanh(s) ** 2
    return root / np.sinh(s)


def dissipates_as_printed(mean: Tensor, spread: Tensor, eps: float) -> Tensor:
    """σ²/√(σ² + ε) ≥ |μ|² + σ²: exactly then ∫⟨u, S⟩ ≤ −2γE holds for eq 9 with constant γ > 0.  (P2 B.2)"""
    return spread**2 / (spread**2 + eps).sqrt() >= mean**2 + spread**2


def log_uniform(seed: int, name: str, count: int, decades: float = DECADES) -> Tensor:
    """10^U, U uniform on (−decades, decades)."""
    return 10 ** (decades * (2 * torch.rand(count, generator=stream(seed, name), dtype=torch.float64) - 1))


def share_failing(seed: int, fields: int = 4000, eps: float = 1e-5) -> float:
    """How many of random fields break ∫⟨u, S⟩ ≤ −2γE, evaluated on the fields: |μ| and σ log-uniform over DECADES."""
    u = field_of(log_uniform(seed, "|μ|", fields), log_uniform(seed, "σ", fields), seed)
    twice_energy = u.square().sum(dim=-1).mean(dim=1)
    return (power(SpatialStabilization(1.0, eps), u) > -twice_energy).double().mean().item()


def share_failing_law(eps: float = 1e-5, decades: float = DECADES) -> float:
    """The same share from the condition: for σ² + ε < 1 it holds up to |μ| = σ√(1/√(σ² + ε) − 1), else never."""
    sigma = 10 ** (decades * (2 * (np.arange(20_000) + 0.5) / 20_000 - 1))
    room = 1 / np.sqrt(sigma**2 + eps) - 1
    edge = np.log10(sigma * np.sqrt(np.where(room > 0, room, 1.0)))  # log₁₀ of the largest mean allowed
    holds = np.where(room > 0, np.clip((edge + decades) / (2 * decades), 0, 1), 0.0)
    return float(1 - holds.mean())


# LayerNorm


def jacobian_formula(z: Tensor, eps: float = 0.0, centre: bool = True) -> Tensor:
    """LN'(z) = (v + ε)^{−½} (I − 11ᵀ/d − x̂x̂ᵀ/d), x̂ = LN(z), for g = 1, b = 0: (…, d, d).

    centre=False leaves 11ᵀ/d out, which is wrong.
    """
    d = z.shape[-1]
    hat = layer_norm(z, eps)
    inside = torch.eye(d, dtype=z.dtype) - hat.unsqueeze(-1) * hat.unsqueeze(-2) / d - (1 / d if centre else 0)
    return inside / per_example(z.var(dim=-1, unbiased=False) + eps).sqrt()


def layer_norm_flow(u0: Field, t: float, strength: float = 1.0) -> Field:
    """u(t) = e^{−γt} u₀ + (1 − e^{−γt}) LN(u₀), the solution of u' = γ(LN(u) − u) for g = 1, b = 0, ε = 0."""
    left = math.exp(-strength * t)
    return left * u0 + (1 - left) * layer_norm(u0)


def mismatch(term: Term, u: Field) -> Tensor:
    """min over γ_i ≥ 0 of ‖γT[u] − (LN(u) − u)‖ / ‖LN(u) − u‖, a rate for each token: (batch,); ε = 0 in LN.

    0 if the term is LayerNorm as a rate, up to its strength; 1 if no strength brings it nearer than 0 does.
    """
    want, given = layer_norm(u) - u, term(u)
    best = (given * want).sum(dim=-1, keepdim=True) / given.square().sum(dim=-1, keepdim=True)
    off = best.nan_to_num(0.0).clamp(min=0) * given - want  # where the term vanishes every rate does the same
    return off.flatten(1).norm(dim=-1) / want.flatten(1).norm(dim=-1)


# Bounds on sizes


def size_bound(t: np.ndarray, start: float, strength: float, growth: float, forcing: float = 0.0) -> np.ndarray:
    """‖u(t)‖ ≤ e^{−κt}‖u₀‖ + (γ + f₀)(1 − e^{−κt})/κ with κ = γ − λ, and ‖u₀‖ + (γ + f₀)t at κ = 0."""
    t, rate = np.asarray(t, dtype=float), strength - growth
    gained = -np.expm1(-rate * t) / rate if rate else t
    return np.exp(-rate * t) * start + (strength + forcing) * gained


def branch_bound(term: PreNorm) -> float:
    """M with |T(LN(u))_i| ≤ M for every u: the branch sees tokens no longer than R = √d‖g‖_∞ + |b|.

    Attention: ‖W_O‖ (Σ_h (‖W_Vʰ‖R + |b_Vʰ|)²)^{½} + |b_O|; feed-forward: ‖W₂‖(‖W₁‖R + |b₁|) + |b₂|, as |φ(z)| ≤ |z|.
    """
    radius = math.sqrt(term.width) * term.norm.weight.abs().max().item() + term.norm.bias.norm().item()
    inner = term.term

    def reach(weight: Tensor, bias: Tensor, longest: float) -> float:
        return norm2(weight).item() * longest + bias.norm().item()

    if isinstance(inner, Interaction):
        values, offsets = (x.chunk(3)[2].chunk(inner.heads) for x in (inner.qkv.weight, inner.qkv.bias))
        heads = [reach(value, offset, radius) for value, offset in zip(values, offsets, strict=True)]
        return reach(inner.out.weight, inner.out.bias, math.hypot(*heads))
    return reach(inner.outer.weight, inner.outer.bias, reach(inner.inner.weight, inner.inner.bias, radius))
