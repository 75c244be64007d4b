"""The field u(x, t) on Ω = [0, 1]: tokens are the points of space, features the components of u.

A field is a tensor of shape (batch, token, feature); a mask is (batch, token), True where a token is real. Token i of
N sits at the centre of its cell, x_i = (i + ½)/N, so neighbouring tokens are Δx = 1/N apart and the two ends of Ω lie
half a cell outside the first and the last token. N is each sequence's own number of real tokens: padding changes
nothing.
"""

import math
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pdelab import formulas
from pdelab.options import choose

Field: TypeAlias = Float[Tensor, "batch token feature"]
Mask: TypeAlias = Bool[Tensor, "batch token"]  # True where a token is real

BOUNDARIES = ("reflecting", "absorbing", "periodic")


def check_field(u: Field, name: str = "u", width: int | None = None) -> None:
    """Refuse anything that is not a non-empty, finite (batch, token, feature) tensor of floats."""
    if not isinstance(u, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor of shape (batch, token, feature), not {type(u).__name__}")
    if u.ndim != 3 or 0 in u.shape:
        raise ValueError(f"{name} must have shape (batch, token, feature), none of them 0; not {tuple(u.shape)}")
    if width is not None and u.shape[-1] != width:
        raise ValueError(f"{name} must have {width} features, the width this was built for; it has {u.shape[-1]}")
    if not u.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {u.dtype}; try {name}.float()")
    if not u.is_meta and not torch.isfinite(u).all():
        raise ValueError(f"{name} holds NaN or infinite values; a field must be finite where it starts")


def check_width(u: Field, width: int | None = None) -> None:
    """The cheap check that runs inside a step; values are checked once, where a run starts."""
    if u.ndim != 3 or 0 in u.shape or (width is not None and u.shape[-1] != width):
        wanted = "feature" if width is None else width
        raise ValueError(f"u must have shape (batch, token, {wanted}), none of them 0; not {tuple(u.shape)}")


def check_mask(mask: Mask | None, u: Field, name: str = "mask") -> None:
    """Refuse a mask of the wrong kind or shape, one with holes, and one that leaves a sequence without tokens."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != u.shape[:2]:
        given = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"{name} must be a bool tensor of shape {tuple(u.shape[:2])}, True where a token is real; not {given}"
        )
    if mask.is_meta:
        return
    if not mask.any(dim=1).all():
        raise ValueError(
            f"{name} leaves a sequence without a real token; drop that sequence, or is the mask inverted? True is real"
        )
    starts = mask & ~torch.nn.functional.pad(mask[:, :-1], (1, 0))
    if (starts.sum(dim=1) > 1).any():
        raise ValueError(
            f"{name} has holes: the real tokens of a sequence must stand together, padding before or after"
        )


def check_boundary(boundary: str) -> None:
    choose("boundary", boundary, BOUNDARIES)


def check_tokens(n: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1 token; not {n}")


def lengths(u: Field, mask: Mask | None) -> Tensor:
    """N, the number of real tokens of each sequence: (batch, 1, 1), in the dtype of u."""
    if mask is None:
        return u.new_full((u.shape[0], 1, 1), u.shape[1])
    return mask.sum(dim=1).to(u.dtype).reshape(-1, 1, 1)


def token_mean(u: Field, mask: Mask | None = None) -> Tensor:
    """μ = ∫u dx = (1/N) Σ_i u_i over the real tokens, by the midpoint rule: (batch, 1, feature).  (P2 eq 9)"""
    check_width(u)
    return keep_real(u, mask).sum(dim=1, keepdim=True) / lengths(u, mask)


def centred(u: Field, mask: Mask | None = None) -> Field:
    """u − μ with μ the mean over the real tokens, and 0 where no token is: exactly 0 where all tokens agree.

    >>> centred(torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[True, True, False]])).flatten().tolist()
    [-1.0, 1.0, 0.0]
    """
    check_width(u)
    if mask is None:
        return formulas.centred(u)
    # measured from the first token, as there, or tokens that agree would leave the rounding of their mean
    rest = u - u.gather(1, first_token(mask).expand(-1, -1, u.shape[-1]))
    return keep_real(rest - token_mean(rest, mask), mask)


def mean_square(u: Field, mask: Mask | None = None) -> Tensor:
    """‖u‖² = ∫|u|² dx = (1/N) Σ_i |u_i|² over the real tokens: (batch, 1, 1)."""
    return token_mean(u.square().sum(dim=-1, keepdim=True), mask)


def keep_real(u: Field, mask: Mask | None) -> Field:
    """u with zeros where no token is; what a padded place held, even NaN, is gone."""
    return u if mask is None else torch.where(mask.unsqueeze(-1), u, torch.zeros_like(u))


def first_token(mask: Mask) -> Tensor:
    """The place of each sequence's first real token: (batch, 1, 1)."""
    return mask.to(torch.uint8).argmax(dim=1).reshape(-1, 1, 1)


def positions(u: Field, mask: Mask | None = None) -> Tensor:
    """x_i = (i + ½)/N, counted from the first real token: (batch, token)."""
    index = torch.arange(u.shape[1], device=u.device, dtype=u.dtype).expand(u.shape[:2])
    if mask is not None:
        index = index - first_token(mask).squeeze(-1)
    return (index + 0.5) / lengths(u, mask).squeeze(-1)


def laplacian(u: Field, boundary: str = "reflecting", mask: Mask | None = None) -> Field:
    """(u_{i+1} − 2u_i + u_{i−1}) / Δx² along the token axis, Δx = 1/N.  (P1 eq 20, the diffusion part)

    The ends are set by a ghost token half a cell outside Ω: its value equals the end token's (reflecting: nothing
    flows out), minus the end token's (absorbing: u = 0 on the boundary, P1 eq 7), or the other end's (periodic).

    >>> u = torch.tensor([[[0.0], [1.0], [0.0]]])            # 3 tokens, Δx = 1/3
    >>> laplacian(u).flatten().tolist()
    [9.0, -18.0, 9.0]
    """
    check_boundary(boundary)
    check_width(u)
    if mask is None:
        first, last = u[:, :1], u[:, -1:]  # (batch, 1, feature)
        ends = {"reflecting": (first, last), "absorbing": (-first, -last), "periodic": (last, first)}[boundary]
        padded = torch.cat([ends[0], u, ends[1]], dim=1)  # (batch, token + 2, feature)
        return (padded[:, 2:] - 2 * u + padded[:, :-2]) * u.shape[1] ** 2
    left, right = u.roll(1, dims=1), u.roll(-1, dims=1)
    has_left = torch.nn.functional.pad(mask[:, :-1], (1, 0)).unsqueeze(-1)  # (batch, token, 1)
    has_right = torch.nn.functional.pad(mask[:, 1:], (0, 1)).unsqueeze(-1)
    if boundary == "periodic":
        first = first_token(mask).expand(-1, 1, u.shape[-1])
        last = first + mask.sum(dim=1).reshape(-1, 1, 1) - 1
        before, after = u.gather(1, last), u.gather(1, first)
    else:
        before = after = u if boundary == "reflecting" else -u
    left, right = torch.where(has_left, left, before), torch.where(has_right, right, after)
    return keep_real((left - 2 * u + right) * lengths(u, mask) ** 2, mask)


def laplacian_eigenvalues(n: int, boundary: str = "reflecting") -> Tensor:
    """λ_k = −4N² sin²(θ_k/2), the exact spectrum of `laplacian` on N tokens, in the order of `laplacian_modes`.

    θ_k = kπ/N (reflecting), (k+1)π/N (absorbing) and 2π⌈k/2⌉/N (periodic), k = 0…N−1: from the slowest mode to the
    fastest. The explicit Euler step with coefficient D stays bounded up to Δt = 2/(D·|λ_max|).
    """
    check_boundary(boundary)
    check_tokens(n)
    k = torch.arange(n, dtype=torch.float64)
    turn = {"reflecting": k, "absorbing": k + 1, "periodic": 2 * torch.ceil(k / 2)}[boundary]
    return -4 * n**2 * torch.sin(turn * math.pi / n / 2) ** 2


def laplacian_modes(n: int, boundary: str = "reflecting") -> Tensor:
    """The orthonormal modes of `laplacian` on N tokens, one per column: cosines, sines, or both.

    cos(kπx), k = 0…N−1 (reflecting); sin(kπx), k = 1…N (absorbing); 1, sin 2πx, cos 2πx, sin 4πx, … (periodic).
    """
    check_boundary(boundary)
    check_tokens(n)
    x = (torch.arange(n, dtype=torch.float64).unsqueeze(1) + 0.5) / n  # (token, 1)
    k = torch.arange(n, dtype=torch.float64)
    if boundary == "reflecting":
        modes = torch.cos(k * math.pi * x)
    elif boundary == "absorbing":
        modes = torch.sin((k + 1) * math.pi * x)
    else:
        # sines first: for even N the highest mode is alone, and at cell centres it is the cosine of it that vanishes
        angle = 2 * math.pi * torch.ceil(k / 2) * x
        modes = torch.where(k % 2 == 1, torch.sin(angle), torch.cos(angle))
    return modes / modes.norm(dim=0)
