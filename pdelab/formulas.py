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
    """½(1 + S), the largest Σ_i w_i·(Pw)_i for averages P (rows ≥ 0 of sum 1), Σ_i w_i = 0 and Σ_i|w_i|² = 1.

    S is `averaging_size`. It is attained for every N ≥ 2 and any number of features.

    >>> averaging_growth(8)
    1.5
    """
    return (1 + averaging_size(tokens)) / 2


def averaging_size(tokens: int) -> float:
    """S = √(2⌊N/2⌋⌈N/2⌉/N), the largest √Σ_i|(Pw)_i − mean|² for the same P and w: how far averages spread tokens.

    √(N/2) for even N, √((N² − 1)/(2N)) for odd N; attained for every N ≥ 2.

    >>> averaging_size(8)
    2.0
    """
    return math.sqrt(2 * (tokens // 2) * ((tokens + 1) // 2) / tokens)


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
    where A differs from pair to pair, it is false; without biases and for c = 1 there is ‖V‖(1 + 2‖A‖R²).

    >>> attention_lipschitz(torch.eye(2), torch.eye(2), 0.75**0.5).item()  # x + √(1 + x²) at x = ¾
    2.0
    """
    scores, r = norm2(A), R if r is None else r
    root = columns**0.5 * (1 + (r * (scores * R + b)) ** 2) ** 0.5
    return norm2(V) * (scores * r**2 + root)


def norm2(matrix: Tensor) -> Tensor:
    """‖M‖, the largest singular value."""
    return torch.linalg.matrix_norm(matrix, 2)


# Tokens on the circle


def circle_rate(theta: Tensor, beta: float, v: float = 1.0, *, causal: bool = False) -> Tensor:
    """θ_i' = v Σ_j p_ij sin(θ_j − θ_i), p_i = softmax_j(β cos(θ_j − θ_i)), over j ≤ i only if causal: (…, token).

    It is u_i' = (I − u_iu_iᵀ) Att(u)_i with A = βI and V = vI for tokens u_i = (cos θ_i, sin θ_i).
    """
    u = torch.stack([theta.cos(), theta.sin()], dim=-1)
    eye = torch.eye(2, dtype=theta.dtype, device=theta.device)
    x, y = (attention_weights(u, beta * eye, causal=causal) @ u).unbind(dim=-1)
    return v * (theta.cos() * y - theta.sin() * x)


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
    """λ = λ_max(sym G + ½r(A + B)), λ₋ = λ_min(sym G − ½r(A + B)) and K = λ_max[[rB, G], [Gᵀ, rA]].

    G = cW₂W₁ − κ, A = W₁ᵀT²W₁, B = W₂T⁻²W₂ᵀ, sym M = ½(M + Mᵀ): bounds for every diagonal matrix T > 0.
    slopes: s₋ and s₊, the least and the largest slope of φ; c and r are the middle and half the width of [s₋, s₊].
    scales: s of each of the three, (…, hidden), for t_k² = e^{s_k}|c_k|/|w_k|; 0 if not given. `reaction_scales` finds
        good ones; for a derivative with respect to the weights they may be held fixed.
    """
    look = _Slopes(W1, W2, slopes, leak)
    if scales is None:
        scales = Constants(*3 * (torch.zeros_like(look.P[..., 0]),))
    return Constants(
        lower=-torch.linalg.eigvalsh(look.rate(scales.lower, -1))[..., -1],
        upper=torch.linalg.eigvalsh(look.rate(scales.upper, 1))[..., -1],
        lipschitz=torch.linalg.eigvalsh(look.norm(scales.lipschitz))[..., -1],
    )


@torch.no_grad()
def reaction_scales(
    W1: Tensor, W2: Tensor, slopes: tuple[float, float], leak: float = 0.0, steps: int = 50
) -> Constants[Tensor]:
    """Scales s for `reaction_constants` that make K and λ small and λ₋ large: (…, hidden) each.

    All three are convex in s. Adam goes down from s = 0; the best scales on its way are kept, or those of T = t·1 with
    t² = ‖W₂‖/‖W₁‖ if they are better: so K is never worse than max(|s₋|, |s₊|) ‖W₂‖‖W₁‖ + |κ|.
    steps: of Adam, each with eigenvalue problems of sizes d, d and 2d; 0 compares s = 0 and T = t·1 only.
    """
    look = _Slopes(W1, W2, slopes, leak)
    rows, columns = W1.norm(dim=-1), W2.norm(dim=-2)
    used = (rows > 0) & (columns > 0)
    inner, outer = (norm2(torch.where(used.unsqueeze(dim), W, torch.zeros_like(W))) for W, dim in ((W1, -1), (W2, -2)))
    even = (outer.log() - inner.log()).unsqueeze(-1) - (columns.log() - rows.log())
    even = torch.where(used, even, torch.zeros_like(even))  # T = t·1, seen from s = 0
    return Constants(
        lower=_descend(partial(look.rate, sign=-1), look.P, look.Q, even, steps),
        upper=_descend(partial(look.rate, sign=1), look.P, look.Q, even, steps),
        lipschitz=_descend(look.norm, look.P, look.Q, even, steps),
    )


class _Slopes:
    """The symmetric matrices whose largest eigenvalues are λ, −λ₋ and K, for scales s (…, hidden)."""

    def __init__(self, W1: Tensor, W2: Tensor, slopes: tuple[float, float], leak: float):
        least, most = slopes
        self.radius = (most - least) / 2
        self.P, self.Q = balanced(W1, W2)
        eye = torch.eye(W1.shape[-1], dtype=W1.dtype, device=W1.device)
        self.G = (most + least) / 2 * self.Q @ self.P - leak * eye

    def squares(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """rA and rB."""
        TP, QT = _scaled(self.P, self.Q, s)
        return self.radius * TP.mT @ TP, self.radius * QT @ QT.mT

    def rate(self, s: Tensor, sign: int) -> Tensor:
        A, B = self.squares(s)
        return (sign * (self.G + self.G.mT) + A + B) / 2

    def norm(self, s: Tensor) -> Tensor:
        A, B = self.squares(s)
        return torch.cat([torch.cat([B, self.G], dim=-1), torch.cat([self.G.mT, A], dim=-1)], dim=-2)


def _scaled(P: Tensor, Q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """e^{s/2}P and Qe^{−s/2}."""
    root = (s / 2).exp()
    return P * root.unsqueeze(-1), Q / root.unsqueeze(-2)


def _descend(matrix: Callable[[Tensor], Tensor], P: Tensor, Q: Tensor, other: Tensor, steps: int) -> Tensor:
    """The s with the smallest λ_max(matrix(s)) on the way of Adam down from 0, or `other`.

    The slope is that of a smooth stand-in, a mean of the eigenvectors with weights e^{λ/h} and h falling from 0.1 to
    0.002 of the spectrum's width: at the best scales the largest eigenvalue is a multiple one, and its vector jumps.
    """
    d, tiny = P.shape[-1], torch.finfo(P.dtype).tiny
    s, best = torch.zeros_like(other), other
    least = torch.linalg.eigvalsh(matrix(other))[..., -1]
    mean, square = torch.zeros_like(s), torch.zeros_like(s)

    for n in range(steps + 1):
        cooled = n / max(steps, 1)
        values, vectors = torch.linalg.eigh(matrix(s))
        top = values[..., -1]
        best = torch.where((top <= least).unsqueeze(-1), s, best)
        least = torch.minimum(top, least)

        width = (values[..., -1:] - values[..., :1]).clamp(min=tiny)
        weights = ((values - values[..., -1:]) / (0.1 * 0.02**cooled * width)).softmax(dim=-1).unsqueeze(-2)
        TP, QT = _scaled(P, Q, s)
        # the last d entries belong to v, the first d to the output: the same ones for λ
        seen = (TP @ vectors[..., -d:, :]).square() - (QT.mT @ vectors[..., :d, :]).square()
        slope = (seen * weights).sum(dim=-1)

        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope.square()
        size = (square / (1 - 0.99 ** (n + 1))).sqrt()
        size = size + 1e-8 * size.amax(dim=-1, keepdim=True) + tiny
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
