"""The heat equation on N tokens: exact solutions, the orders of the schemes, and the step past which they fail.

∂u/∂t = D ∂²u/∂x² with the explicit scheme of P1 eq 20, backward Euler, and the exact flow on the grid.  (P1 eq 20)
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from pdelab.field import Field, laplacian, laplacian_eigenvalues
from pdelab.seeds import normal
from pdelab.terms.base import choose
from pdelab.terms.diffusion import Diffusion

TIME = 0.05


def centres(tokens: int) -> Tensor:
    """x_i = (i + ½)/N."""
    return (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens


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


def spread(u: Field) -> float:
    """Σ_i u_i (x_i − x̄)² / Σ_i u_i, the variance of a bump: it grows by 2Dt until the ends are felt."""
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
