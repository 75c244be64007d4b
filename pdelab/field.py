"""The field u(x, t) on Ω = [0, 1]: tokens are the points of space, features the components of u.

A field is a tensor of shape (batch, token, feature). Token i of N sits at the centre of its cell, x_i = (i + ½)/N, so
neighbouring tokens are Δx = 1/N apart and the two ends of Ω lie half a cell outside the first and the last token.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor

Field: TypeAlias = Tensor  # (batch, token, feature)

BOUNDARIES = ("reflecting", "absorbing", "periodic")


def check_field(u: Field, name: str = "u") -> None:
    """Refuse anything that is not a non-empty, finite (batch, token, feature) tensor of floats."""
    if not isinstance(u, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor of shape (batch, token, feature), not {type(u).__name__}")
    if u.ndim != 3 or 0 in u.shape:
        raise ValueError(f"{name} must have shape (batch, token, feature), none of them 0; not {tuple(u.shape)}")
    if not u.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {u.dtype}; try {name}.float()")
    if not u.is_meta and not torch.isfinite(u).all():
        raise ValueError(f"{name} holds NaN or infinite values; a field must be finite where it starts")


def check_boundary(boundary: str) -> None:
    if boundary not in BOUNDARIES:
        raise ValueError(f"boundary must be one of {', '.join(BOUNDARIES)}; not {boundary!r}")


def laplacian(u: Field, boundary: str = "reflecting") -> Field:
    """(u_{i+1} − 2u_i + u_{i−1}) / Δx² along the token axis, Δx = 1/N.  (P1 eq 20, the diffusion part)

    The ends are set by a ghost token half a cell outside Ω: its value equals the end token's (reflecting: nothing
    flows out), minus the end token's (absorbing: u = 0 on the boundary, P1 eq 7), or the other end's (periodic).

    >>> u = torch.tensor([[[0.0], [1.0], [0.0]]])            # 3 tokens, Δx = 1/3
    >>> laplacian(u).flatten().tolist()
    [9.0, -18.0, 9.0]
    """
    check_boundary(boundary)
    first, last = u[:, :1], u[:, -1:]  # (batch, 1, feature)
    if boundary == "reflecting":
        left, right = first, last
    elif boundary == "absorbing":
        left, right = -first, -last
    else:
        left, right = last, first
    padded = torch.cat([left, u, right], dim=1)  # (batch, token + 2, feature)
    n = u.shape[1]
    return (padded[:, 2:] - 2 * u + padded[:, :-2]) * n**2


def laplacian_eigenvalues(n: int, boundary: str = "reflecting") -> Tensor:
    """λ_k = −4N² sin²(θ_k/2), the exact spectrum of `laplacian` on N tokens, from the slowest mode to the fastest.

    θ_k = kπ/N for k = 0…N−1 (reflecting), (k+1)π/N for k = 0…N−1 (absorbing), 2πk/N for k = 0…N−1 (periodic). The
    explicit Euler step D·Δt·λ stays bounded up to Δt = 2/(D·|λ_max|).
    """
    check_boundary(boundary)
    k = torch.arange(n, dtype=torch.float64)
    angle = {"reflecting": k, "absorbing": k + 1, "periodic": 2 * k}[boundary] * math.pi / n
    return (-4 * n**2 * torch.sin(angle / 2) ** 2).sort(descending=True).values
