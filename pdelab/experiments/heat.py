"""The heat equation on N tokens: exact solutions, the orders of the schemes, and the step past which they fail.

∂u/∂t = D ∂²u/∂x² with the explicit scheme of P1 eq 20, backward Euler, and the exact flow on the grid.  (P1 eq 20)
"""

import math

import torch
from torch import Tensor

from pdelab.field import Field, laplacian
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

    States beyond 10³ are cut there: the picture shows that they left it.
    """
    u = bump(tokens, at=0.25, width=0.05)
    limit = Diffusion(1.0, boundary).largest_step(tokens)
    quarter = max(1, round(time / 4 / (ratio * limit)))
    states = [u]
    for _ in range(4):
        u = advance(u, quarter * ratio * limit, quarter, scheme, boundary).clamp(-1e3, 1e3)
        states.append(u)
    return states
