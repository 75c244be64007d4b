"""Laws of diffusion over tokens: the heat equation on a grid, attention by position, and the diffusivity of attention.

The heat equation ∂u/∂t = D ∂²u/∂x² on N tokens with the explicit scheme of P1 eq 20, backward Euler, and the exact flow
on the grid: exact solutions, the orders of the schemes, and the step past which they fail.

Attention by position alone, p_ij = softmax_j(⟨P(x_i), P(x_j)⟩/τ), where P(x) holds pairs a_m(cos ω_m x, sin ω_m x).
Then |P|² = Σa_m² and |P'|² = Σa_m²ω_m² are constant in x, and the score is κ(x_i − x_j)/τ with κ(r) = Σ a_m² cos ω_m r.
Near r = 0 it is a parabola, so the kernel is nearly a Gaussian of variance τ/|P'|²: D = ½m₂V falls with |P'|². P2 eq 8
has the factor |P'|² in front.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import torch
from torch import Tensor, nn

from pdelab.field import Field, Mask, laplacian, laplacian_eigenvalues, positions
from pdelab.formulas import centres
from pdelab.metrics.diffusivity import moment
from pdelab.options import choose
from pdelab.seeds import normal, seeded, stream
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction

Module = TypeVar("Module", bound=nn.Module)

TIME = 0.05
TAU, PAIRS = 0.02, 16
BROKEN = ("recurring", "coarse", "wide", "varying length", "near the end")
"""Ways to break a hypothesis of the law m₂ = τ/|P'|², for `law_ratios`."""


def drawn(build: Callable[[], Module], seed: int) -> Module:
    """build() with weights that follow from the seed alone, in double precision and not to be trained."""
    return seeded(build, seed).double().requires_grad_(False)


# The heat equation


def exact_solution(x: Tensor, t: float, boundary: str, D: float = 1.0) -> Tensor:
    """Three modes on the line, each decaying as e^{−Dκ²t}: cosines (reflecting), sines (absorbing), both (periodic)."""
    modes = {
        "reflecting": ((1, math.pi, 0.0), (-0.5, 2 * math.pi, 0.0), (0.25, 5 * math.pi, 0.0)),
        "absorbing": ((1, math.pi, 0.5), (-0.5, 2 * math.pi, 0.5), (0.25, 5 * math.pi, 0.5)),
        "periodic": ((1, 2 * math.pi, 0.0), (-0.5, 4 * math.pi, 0.5), (0.25, 4 * math.pi, 0.0)),
    }
    waves = choose("boundary", boundary, modes)
    return sum(c * math.exp(-D * k**2 * t) * torch.cos(k * x - q * math.pi) for c, k, q in waves)


def advance(u: Field, time: float, steps: int, scheme: str, boundary: str, D: float = 1.0) -> Field:
    """u after `steps` equal steps of the explicit or the implicit scheme, or exactly on the grid."""
    diffusion, dt = Diffusion(D, boundary), time / steps
    one_step = choose(
        "scheme",
        scheme,
        {
            "explicit": lambda v: v + dt * diffusion(v),
            "implicit": lambda v: diffusion.implicit(v, dt),
            "exact": lambda v: diffusion.exact(v, dt),
        },
    )
    for _ in range(steps):
        u = one_step(u)
    return u


def error(scheme: str, boundary: str, tokens: int, steps: int, *, time: float = TIME, against: str = "line") -> float:
    """max_i |u_i(T) − u(x_i, T)|, against the solution on the line or against the exact flow on the same grid."""
    x = centres(tokens)
    u0 = exact_solution(x, 0.0, boundary).reshape(1, -1, 1)
    if against == "line":
        wanted = exact_solution(x, time, boundary).reshape(1, -1, 1)
    else:
        wanted = advance(u0, time, 1, "exact", boundary)
    return (advance(u0, time, steps, scheme, boundary) - wanted).abs().max().item()


def parabola(tokens: int) -> list[Fraction]:
    """x(1 − x) at the tokens, exactly: on the grid it holds all modes that are even about ½."""
    x = [Fraction(2 * i + 1, 2 * tokens) for i in range(tokens)]
    return [y * (1 - y) for y in x]


def parabola_later(x: Tensor, t: float, terms: int = 50) -> Tensor:
    """Σ_{k odd} 8/(kπ)³ e^{−k²π²t} sin kπx: the solution from x(1 − x) with absorbing ends and D = 1."""
    k = (2 * torch.arange(terms, dtype=torch.float64) + 1) * math.pi
    return (8 / k**3 * torch.exp(-(k**2) * t) * torch.sin(k * x.unsqueeze(-1))).sum(-1)


def explicit_exactly(u: list[Fraction], ratio: Fraction, steps: int) -> list[Fraction]:
    """u_i + ½ρ(u_{i+1} − 2u_i + u_{i−1}), `steps` times with absorbing ends, in fractions: no rounding at all.

    ρ = 2DΔt/Δx². What grows here is in the scheme and the data. In floating point rounding adds every mode.
    """
    p, q = (ratio / 2).as_integer_ratio()
    scale = math.lcm(*(v.denominator for v in u))
    whole = [int(v * scale) for v in u]  # whole numbers over one denominator: fractions would be reduced at every step
    for _ in range(steps):
        padded = [-whole[0], *whole, -whole[-1]]
        whole = [q * v + p * (padded[i] - 2 * v + padded[i + 2]) for i, v in enumerate(whole)]
        scale *= q
    return [Fraction(v, scale) for v in whole]


def error_in_fractions(ratio: Fraction, tokens: int, time: Fraction = Fraction(1, 20)) -> float:
    """max_i |u_i(T) − u(x_i, T)| from x(1 − x) with 2DΔt/Δx² = ρ and without rounding; T is met up to half a step."""
    steps = round(time * 2 * tokens**2 / ratio)
    met = float(steps * ratio / (2 * tokens**2))
    found = [float(v) for v in explicit_exactly(parabola(tokens), ratio, steps)]
    return (torch.tensor(found, dtype=torch.float64) - parabola_later(centres(tokens), met)).abs().max().item()


def error_of_modes(ratio: float, tokens: int) -> float:
    """`error` of the explicit scheme with absorbing ends if nothing were rounded, from the factors of the three modes.

    The sines of `exact_solution` are modes of the grid too: (1 + Δtλ_k)^n takes the place of e^{−k²π²t}.
    """
    steps = round(TIME * 2 * tokens**2 / ratio)
    rates = laplacian_eigenvalues(tokens, "absorbing")
    gap = sum(
        c
        * ((1 + TIME / steps * rates[k - 1]) ** steps - math.exp(-((k * math.pi) ** 2) * TIME))
        * torch.sin(k * math.pi * centres(tokens))
        for c, k in ((1, 1), (-0.5, 2), (0.25, 5))
    )
    return gap.abs().max().item()


def blow_up_step(tokens: int, boundary: str, D: float = 1.0, steps: int = 2**16) -> float:
    """The Δt past which a random field has grown after `steps` explicit steps, by bisection.

    The steps are taken as one power of the matrix I + Δt D Δ_N, so that the growth is that of the scheme itself.
    """
    unit = torch.eye(tokens, dtype=torch.float64)
    rate = D * laplacian(unit.unsqueeze(0), boundary)[0]  # column j is what token j gives
    start = normal(tokens, "blow up", boundary, size=(tokens,))
    low, high = 0.1 / (D * tokens**2), 4 / (D * tokens**2)
    for _ in range(40):
        dt = (low + high) / 2
        end = torch.linalg.matrix_power(unit + dt * rate, steps) @ start
        grown = not torch.isfinite(end).all() or end.norm() > start.norm()
        low, high = (low, dt) if grown else (dt, high)
    return (low + high) / 2


def bump(tokens: int = 64, at: float = 0.4, width: float = 0.04) -> Field:
    """A localised state, e^{−(x − a)²/2w²}, of one feature: (1, token, 1)."""
    return torch.exp(-((centres(tokens) - at) ** 2) / (2 * width**2)).reshape(1, -1, 1)


def variance(u: Field) -> float:
    """Σ_i u_i (x_i − x̄)² / Σ_i u_i of a bump: it grows by 2Dt until the ends are felt."""
    x, weight = centres(u.shape[1]), u[0, :, 0] / u[0, :, 0].sum()
    return (weight * (x - weight @ x) ** 2).sum().item()


def spreading(boundary: str, scheme: str, ratio: float, *, tokens: int = 32, time: float = 0.02) -> list[Field]:
    """A bump after 0, ¼, ½, ¾ and all of the time, with steps of `ratio` times the grid's own limit (at least four).

    A ripple of 0.02 from token to token goes with it, so that the fastest wave is there from the start. States beyond
    10³ are cut there: the picture shows that they left it.
    """
    u = bump(tokens, at=0.25, width=0.05) + 0.02 * (-1.0) ** torch.arange(tokens).reshape(1, -1, 1)
    limit = Diffusion(1.0, boundary).largest_step(tokens)
    quarter = max(1, round(time / 4 / (ratio * limit)))
    states = [u]
    for _ in range(4):
        u = advance(u, quarter * ratio * limit, quarter, scheme, boundary).clamp(-1e3, 1e3)
        states.append(u)
    return states


# A poke on a ring of tokens


def ring_distance(tokens: int) -> Tensor:
    """r_ij = x_j − x_i on a ring of length 1, from −½ to ½: (token, token)."""
    x = torch.arange(tokens, dtype=torch.float64) / tokens
    return (x - x.unsqueeze(1) + 0.5) % 1 - 0.5


def ring_window(tokens: int, width: float, *, causal: bool = False) -> Tensor:
    """softmax_j(−(r_ij/w)⁴), attention by position; causal: of r_ij ≤ 0 alone, the tokens behind: (token, token)."""
    r = ring_distance(tokens)
    scores = -((r / width) ** 4)
    return (scores.masked_fill(r > 0, -math.inf) if causal else scores).softmax(dim=-1)


# Attention by position


def spread_frequencies(seed: int, pairs: int = PAIRS, low: float = 10.0, high: float = 40.0) -> Tensor:
    """ω_m drawn evenly from [low, high]: with many of them the kernel has one peak."""
    return low + (high - low) * torch.rand(pairs, generator=stream(seed, "frequencies"), dtype=torch.float64)


def commensurate_frequencies(pairs: int = 4) -> Tensor:
    """2π, 4π, 6π, …: the kernel recurs at every period of the slowest wave."""
    return 2 * torch.pi * torch.arange(1, pairs + 1, dtype=torch.float64)


def encode(x: Tensor, omega: Tensor) -> Tensor:
    """P(x) = M^{−½}(cos ω_m x, sin ω_m x): |P| = 1, |P'|² = mean of ω². x (token,) → (token, 2M)."""
    angle = x.unsqueeze(-1) * omega
    return torch.cat([angle.cos(), angle.sin()], dim=-1) / len(omega) ** 0.5


def weights(P: Tensor, tau: float = TAU) -> Tensor:
    """softmax_j(⟨P_i, P_j⟩/τ): (token, token)."""
    return (P @ P.T / tau).softmax(dim=-1)


def centre_row(omega: Tensor, tokens: int, tau: float = TAU) -> tuple[Tensor, Tensor]:
    """r_j = x_j − x_c and p_cj of the token in the middle."""
    x = centres(tokens)
    c = tokens // 2
    P = encode(x, omega)
    return x - x[c], (P @ P[c] / tau).softmax(dim=-1)


def second_moment(r: Tensor, p: Tensor) -> float:
    """m₂ = Σ_j p_j r_j²."""
    return (p * r**2).sum().item()


def gaussian_moment(r: Tensor, g: Tensor | float, tau: Tensor | float = TAU) -> Tensor:
    """G(g) = Σ_j q_j r_j², q_j ∝ e^{−g r_j²/2τ}: the second moment of the Gaussian on the same tokens, r (…, token)."""
    return ((-g * r**2 / (2 * tau)).softmax(dim=-1) * r**2).sum(-1)


def varying_length(seed: int, tokens: int, tau: float = TAU) -> float:
    """m₂|P'|²/τ at the middle for a smooth random P whose length |P| varies: 1 if the law held without |P| = const."""
    x, c = centres(tokens), tokens // 2
    omega = spread_frequencies(seed)
    phase = 2 * torch.pi * torch.rand(PAIRS, generator=stream(seed, "phases"), dtype=torch.float64)
    angle = x.unsqueeze(-1) * omega + phase
    P, slope = angle.cos() * (2 / PAIRS) ** 0.5, -omega * angle.sin() * (2 / PAIRS) ** 0.5
    p = (P @ P[c] / tau).softmax(dim=-1)
    return second_moment(x - x[c], p) * slope[c].square().sum().item() / tau


def law_ratios(seed: int, kind: str = "none", batch: int = 32) -> Tensor:
    """m₂|P'|²/τ of random sinusoidal positions with one hypothesis broken, or none: about 1 where the law holds.

    kind: "none", or one of BROKEN: waves that recur together, a grid of 64 tokens, a window that is not narrow, a P
    whose length varies, a token one width of the kernel from the end.
    """
    if kind == "varying length":
        found = [varying_length(1000 * seed + draw, 2048) for draw in range(batch)]
    else:
        scales = (1 + 3 * torch.rand(1, generator=stream(seed, kind, k), dtype=torch.float64) for k in range(batch))
        found = [_law_ratio(1000 * seed + draw, kind, scale) for draw, scale in enumerate(scales)]
    return torch.tensor(found, dtype=torch.float64)


def _law_ratio(seed: int, kind: str, scale: Tensor) -> float:
    recurring = kind == "recurring"
    omega = (1 + scale.floor()) * commensurate_frequencies() if recurring else scale * spread_frequencies(seed)
    slope = omega.square().mean().item()
    tokens = 64 if kind == "coarse" else 2048
    tau = 1.0 if kind == "wide" else TAU

    width = math.sqrt(tau / slope)
    i = round(width * tokens) if kind == "near the end" else tokens // 2
    x = centres(tokens)
    P = encode(x, omega)
    m2 = second_moment(x - x[i], (P @ P[i] / tau).softmax(dim=-1))
    return m2 * slope / tau


# Attention by content


def attention_diffusivity(term: Interaction, u: Field, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The two parts of attention's diffusivity, each (batch, token); their sum is `diffusivity` of its Jacobian.

    values: α/d ½ Σ_h m₂ʰ tr(W_Oʰ W_Vʰ). scores: α/d ½ Σ_h (W_Kʰᵀ q_iʰ/√d_h) · W_Oʰ Cov_iʰ((y − x)², v): the part
    that comes of the scores, since a change at y also changes how much attention y gets.
    """
    size = term.width // term.heads
    q, _, v = (part.unflatten(-1, (term.heads, size)).transpose(1, 2) for part in term.qkv(u).chunk(3, dim=-1))
    key, value = (w.unflatten(0, (term.heads, size)) for w in term.qkv.weight.chunk(3)[1:])  # (head, d_h, d)
    out = term.out.weight.unflatten(1, (term.heads, size)).transpose(0, 1)  # (head, d, d_h)

    P = term.weights(u, mask)  # (batch, head, query, key)
    x = positions(u, mask)
    near = P * (x.unsqueeze(1) - x.unsqueeze(2)).square().unsqueeze(1)  # P_ij (x_j − x_i)²
    values = 0.5 * torch.einsum("bhi,hac,hca->bi", moment(P, 2, mask), out, value)

    covariance = near @ v - near.sum(-1, keepdim=True) * (P @ v)  # (batch, head, token, d_h)
    pull = torch.einsum("bhic,hca->bhia", q, key) / math.sqrt(size)  # (batch, head, token, d)
    scores = 0.5 * torch.einsum("bhia,hac,bhic->bi", pull, out, covariance)

    real = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    return term.strength * real * values / term.width, term.strength * real * scores / term.width
