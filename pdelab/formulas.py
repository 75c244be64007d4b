"""The formulas that terms, metrics and proofs share, each once: unchecked, differentiable, for any number of examples.

u: (…, token, feature), matrices (…, d, d), results (…). Nothing here looks at values: a field that is not finite gives
what arithmetic gives, so that the formulas can be used inside a flow or a search. `pdelab.metrics` and `pdelab.terms`
are the faces that check what they are given.
"""

import math
from collections.abc import Callable
from functools import partial
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


def averaging_growth(tokens: int) -> float:
    """½(1 + √(N/2)), the largest Σ_i w_i·(Pw)_i for averages P (rows ≥ 0 of sum 1), Σ_i w_i = 0 and Σ_i|w_i|² = 1.

    For even N, N ≥ 2; a little less for odd N.

    >>> averaging_growth(8)
    1.5
    """
    return (1 + math.sqrt(tokens / 2)) / 2


def averaging_size(tokens: int) -> float:
    """√(N/2), the largest √Σ_i|(Pw)_i − mean|² for the same P and w: how much averages may spread the tokens.

    >>> averaging_size(8)
    2.0
    """
    return math.sqrt(tokens / 2)


def variance_share(tokens: Tensor | float, features: int) -> Tensor:
    """χ = ½ min(1 − 1/N, d/(d + 1)): σ² ≤ χδ² for N tokens of d features, δ their diameter (Jung's theorem).

    >>> [variance_share(n, 1).item() for n in (1, 2, 100)]
    [0.0, 0.25, 0.25]
    """
    tokens = torch.as_tensor(tokens, dtype=None if isinstance(tokens, Tensor) else torch.float64)
    return (1 - 1 / tokens).clamp(max=features / (features + 1)) / 2


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


def attention_lipschitz(
    A: Tensor,
    V: Tensor,
    R: Tensor | float,
    *,
    r: Tensor | float | None = None,
    b: Tensor | float = 0.0,
    columns: Tensor | float = 1.0,
) -> Tensor:
    """‖V‖(‖A‖r² + √(c(1 + r²(‖A‖R + |b|)²))): a Lipschitz constant of attention where |u_i| ≤ R and |u_i − u_j| ≤ 2r.

    r: half the largest distance of two tokens, R unless given. b: the length |W_Kᵀb_Q|/√d of the query bias, which
    adds b·u_j to the scores. columns: c = 1 for the norm max_i|u_i|; for (Σ_i|u_i|²)^{½} the largest column sum of the
    weights p_ij on the set, N at most. Masks and scores that depend on positions may be added; with rotary positions,
    where A differs from pair to pair, it is false, and ‖V‖(1 + 2‖A‖R²) is true.

    >>> attention_lipschitz(torch.eye(2), torch.eye(2), 0.75**0.5).item()  # x + √(1 + x²) at x = ¾
    2.0
    """
    scores, r = norm2(A), R if r is None else r
    root = (columns * (1 + (r * (scores * R + b)) ** 2)) ** 0.5
    return norm2(V) * (scores * r**2 + root)


def norm2(matrix: Tensor) -> Tensor:
    """‖M‖, the largest singular value."""
    return torch.linalg.matrix_norm(matrix, 2)


# Tokens on the circle


def circle_rate(theta: Tensor, beta: Tensor | float, v: Tensor | float = 1.0, *, causal: bool = False) -> Tensor:
    """θ_i' = v Σ_j p_ij sin(θ_j − θ_i), p_i = softmax_j(β cos(θ_j − θ_i)), over j ≤ i only if causal: (…, token).

    It is u_i' = (I − u_iu_iᵀ) Att(u)_i with A = βI and V = vI for tokens u_i = (cos θ_i, sin θ_i).
    """
    apart = theta.unsqueeze(-2) - theta.unsqueeze(-1)  # (…, i, j): θ_j − θ_i
    scores = beta * apart.cos()
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=theta.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return v * (scores.softmax(dim=-1) * apart.sin()).sum(dim=-1)


def circle_kernel(cells: int, beta: float, v: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """e^{β(cos s − 1)} and v times that times sin s, s = φ_j − θ_{i+½}: from centre j to the right face of cell i."""
    place = torch.arange(cells, dtype=torch.float64)
    apart = (place - place.unsqueeze(1) - 0.5) * (2 * torch.pi / cells)  # (face, cell)
    weight = torch.exp(beta * (apart.cos() - 1))
    return weight.to(like), (v * weight * apart.sin()).to(like)


def circle_speed(rho: Tensor, kernel: tuple[Tensor, Tensor]) -> Tensor:
    """X at the right face of each cell, from the means of ρ over cells, by the midpoint rule: (…, cell), |X| ≤ |v|.

    By sums of what is not negative: a Fourier transform would lose the small weights, of order e^{−2β}, to rounding.
    """
    weight, pull = kernel
    return (rho @ pull.mT) / (rho @ weight.mT)


def transport(rho: Tensor, speed: Tensor, *, limited: bool = True) -> Tensor:
    """−(F_{i+½} − F_{i−½})/Δθ, F = X⁺ρ⁻ + X⁻ρ⁺: each face takes ρ from the side that the flow comes from.

    ρ∓ = ρ_i ± s_i/2 with van Leer's slope s = 2ab/(a+b) of the differences a, b to both neighbours, 0 at an extremum;
    or s = 0, the upwind scheme, if not limited. speed: at the right faces, (…, cell).
    """
    left, right = rho, rho.roll(-1, dims=-1)
    if limited:
        ahead = right - rho
        behind = ahead.roll(1, dims=-1)
        monotone = ahead * behind > 0
        slope = torch.where(monotone, ahead * behind / torch.where(monotone, ahead + behind, 1), 0)  # half of s
        left, right = rho + slope, (rho - slope).roll(-1, dims=-1)
    flux = speed.clamp(min=0) * left + speed.clamp(max=0) * right
    return (flux.roll(1, dims=-1) - flux) * (rho.shape[-1] / (2 * torch.pi))


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


def balanced(W1: Tensor, W2: Tensor) -> tuple[Tensor, Tensor]:
    """TW₁ and W₂T⁻¹ with t_k² = |c_k|/|w_k|, so that row w_k of W₁ and column c_k of W₂ become equally long.

    W₂ΘW₁ stays as it is for every diagonal Θ. A unit with w_k = 0 or c_k = 0 adds nothing to it: both are set to 0.
    """
    rows, columns = W1.norm(dim=-1), W2.norm(dim=-2)
    used = (rows > 0) & (columns > 0)
    rows, columns = (torch.where(used, x, torch.ones_like(x)) for x in (rows, columns))
    root = torch.where(used, columns.sqrt() / rows.sqrt(), torch.zeros_like(rows))  # t_k
    return W1 * root.unsqueeze(-1), W2 * torch.where(used, 1 / root, root).unsqueeze(-2)


def reaction_constants(
    W1: Tensor, W2: Tensor, slopes: tuple[float, float], leak: float = 0.0, scales: Constants[Tensor] | None = None
) -> Constants[Tensor]:
    """K = ‖cW₂W₁ − κ‖ + r‖W₂T⁻¹‖‖TW₁‖ and λ = λ_max(c sym(W₂W₁) + ½r(W₁ᵀT²W₁ + W₂T⁻²W₂ᵀ)) − κ, any diagonal T > 0.

    λ₋ = λ_min(c sym(W₂W₁) − ½r(W₁ᵀT²W₁ + W₂T⁻²W₂ᵀ)) − κ, with sym(M) = ½(M + Mᵀ).
    slopes: s₋ and s₊, the least and the largest slope of φ; c and r are the middle and half the width of [s₋, s₊].
    scales: s of each of the three, (…, hidden), for t_k² = e^{s_k}|c_k|/|w_k|; 0 if not given. `reaction_scales` finds
        good ones; for a derivative with respect to the weights they may be held fixed.
    """
    least, most = slopes
    middle, radius = (most + least) / 2, (most - least) / 2
    P, Q = balanced(W1, W2)
    if scales is None:
        scales = Constants(*3 * (torch.zeros_like(P[..., 0]),))

    product = middle * (Q @ P)
    linear = (product + product.mT) / 2
    eye = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    TP, QT = _scaled(P, Q, scales.lipschitz)
    return Constants(
        lower=torch.linalg.eigvalsh(linear - radius * _squares(P, Q, scales.lower))[..., 0] - leak,
        upper=torch.linalg.eigvalsh(linear + radius * _squares(P, Q, scales.upper))[..., -1] - leak,
        lipschitz=norm2(product - leak * eye) + radius * norm2(QT) * norm2(TP),
    )


@torch.no_grad()
def reaction_scales(W1: Tensor, W2: Tensor, slopes: tuple[float, float], steps: int = 100) -> Constants[Tensor]:
    """Scales s for `reaction_constants` that make K and λ small and λ₋ large: (…, hidden) each.

    All three are convex in s. Adam goes down from s = 0; the best scales on its way are kept, and those of T = t·1 with
    t² = ‖W₂‖/‖W₁‖ if they are better: with these the constants are never worse than those with the product ‖W₂‖‖W₁‖.
    steps: of Adam, with two eigenvalue problems of size d for each constant; 0 compares s = 0 and T = t·1 only.
    """
    least, most = slopes
    middle, radius = (most + least) / 2, (most - least) / 2
    P, Q = balanced(W1, W2)
    product = middle * (Q @ P)
    linear = (product + product.mT) / 2

    def rate(s: Tensor, sign: int, heat: float) -> tuple[Tensor, Tensor]:
        top, at_P, at_Q = _top(sign * linear + radius * _squares(P, Q, s), heat, *_scaled(P, Q, s))
        return top, at_P - at_Q

    def norms(s: Tensor, heat: float) -> tuple[Tensor, Tensor]:
        TP, QT = _scaled(P, Q, s)
        (first, at_P, _), (second, _, at_Q) = (_top(M, heat, TP, QT) for M in (TP.mT @ TP, QT @ QT.mT))
        tiny = torch.finfo(P.dtype).tiny
        relative = at_P / first.clamp(min=tiny).unsqueeze(-1) - at_Q / second.clamp(min=tiny).unsqueeze(-1)
        return first * second, relative

    rows, columns = W1.norm(dim=-1), W2.norm(dim=-2)
    used = (rows > 0) & (columns > 0)
    inner, outer = (norm2(torch.where(used.unsqueeze(dim), W, torch.zeros_like(W))) for W, dim in ((W1, -1), (W2, -2)))
    even = (outer / inner).log().unsqueeze(-1) - (columns / rows).log()
    even = torch.where(used, even, torch.zeros_like(even))  # T = t·1, seen from s = 0
    return Constants(
        lower=_descend(partial(rate, sign=-1), even, steps),
        upper=_descend(partial(rate, sign=1), even, steps),
        lipschitz=_descend(norms, even, steps),
    )


def _scaled(P: Tensor, Q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """e^{s/2}P and Qe^{−s/2}."""
    root = (s / 2).exp()
    return P * root.unsqueeze(-1), Q / root.unsqueeze(-2)


def _squares(P: Tensor, Q: Tensor, s: Tensor) -> Tensor:
    """½(Pᵀe^sP + Qe^{−s}Qᵀ)."""
    TP, QT = _scaled(P, Q, s)
    return (TP.mT @ TP + QT @ QT.mT) / 2


def _top(M: Tensor, heat: float, TP: Tensor, QT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """λ_max(M), and ⟨x, Xx⟩ for the rows x of TP and the columns x of QT, X a smooth stand-in for its eigenvector.

    X has the eigenvectors of M with weights e^{λ/h}, h being `heat` times the width of the spectrum: at the best scales
    the largest eigenvalue is a multiple one, and a single eigenvector would jump about.
    """
    values, vectors = torch.linalg.eigh(M)
    width = (values[..., -1:] - values[..., :1]).clamp(min=torch.finfo(M.dtype).tiny)
    weights = ((values - values[..., -1:]) / (heat * width)).softmax(dim=-1).unsqueeze(-2)
    at_P, at_Q = ((x @ vectors).square() * weights for x in (TP, QT.mT))
    return values[..., -1], at_P.sum(dim=-1), at_Q.sum(dim=-1)


def _descend(look: Callable[..., tuple[Tensor, Tensor]], other: Tensor, steps: int) -> Tensor:
    """The best s on the way of Adam down from 0, or `other`; look(s, heat=…) gives the value (…) and a slope (…, hidden)."""
    s = torch.zeros_like(other)
    mean, square = torch.zeros_like(s), torch.zeros_like(s)
    best, least = other, look(other, heat=1.0)[0]

    for n in range(steps + 1):
        cooled = n / max(steps, 1)
        value, slope = look(s, heat=0.1 * 0.02**cooled)
        better = value <= least
        best, least = torch.where(better.unsqueeze(-1), s, best), torch.where(better, value, least)

        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope.square()
        size = (square / (1 - 0.99 ** (n + 1))).sqrt()
        size = size + 1e-8 * size.amax(dim=-1, keepdim=True) + torch.finfo(s.dtype).tiny
        s = s - 0.3 * 0.01**cooled * mean / (1 - 0.9 ** (n + 1)) / size
    return best


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
