"""The field u(x, t) on Ω = [0, 1]: tokens are the points of space, features the components of u.

A field is a tensor of shape (batch, token, feature); a mask is (batch, token), True where a token is real. Token i of
N sits at the centre of its cell, x_i = (i + ½)/N, so neighbouring tokens are Δx = 1/N apart and the two ends of Ω lie
half a cell outside the first and the last token. N is each sequence's own number of real tokens: padding changes
nothing.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pdelab import formulas
from pdelab.options import choose, number, whole

Field: TypeAlias = Float[Tensor, "batch token feature"]
Mask: TypeAlias = Bool[Tensor, "batch token"]  # True where a token is real

PRECISE = (torch.float32, torch.float64)
BOUNDARIES = ("reflecting", "absorbing", "periodic")


def described(x: object) -> str:
    """What was given, in a few words for an error."""
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def check_field(
    u: Field,
    name: str = "u",
    width: int | None = None,
    mask: Mask | None = None,
    weights: Tensor | torch.nn.Module | None = None,
) -> Field:
    """u with zeros where no token is, if it is a non-empty, finite (batch, token, feature) tensor of floats."""
    check_state(u, None, width, weights, name)
    check_mask(mask, u)
    u = formulas.keep_real(u, mask)
    if not u.is_meta and not torch.isfinite(u).all():
        raise ValueError(f"{name} holds NaN or infinite values; a field must be finite where it starts")
    return u


def check_state(
    u: Field,
    mask: Mask | None = None,
    width: int | None = None,
    weights: Tensor | torch.nn.Module | None = None,
    name: str = "u",
) -> None:
    """The cheap check at the door of every term and operator; values are looked at once, where a run starts.

    weights: any of those that u meets, or the layer that has them; they must have its dtype and device.
    """
    if not isinstance(u, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor of shape (batch, token, feature), not {type(u).__name__}")
    if u.ndim != 3 or not u.numel() or not (width is None or u.shape[-1] == width):
        wanted = "feature" if width is None else width
        raise ValueError(f"{name} must have shape (batch, token, {wanted}), none of them 0; not {tuple(u.shape)}")
    if not u.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {u.dtype}; try {name}.float()")
    if isinstance(weights, torch.nn.Module):  # one that was put in place of ours may keep its weights elsewhere
        weights = getattr(weights, "weight", None)
    if isinstance(weights, Tensor):
        check_like(u, weights, name)
    if mask is not None and not _known(mask, u):
        check_mask(mask, u)


def check_like(u: Tensor, weights: Tensor | None, name: str = "u", other: str = "the weights") -> None:
    """Refuse a field of another dtype or device than the weights it meets; autocast mixes dtypes on purpose."""
    if weights is None or (u.dtype == weights.dtype and u.device == weights.device):
        return
    if u.device != weights.device:
        raise ValueError(
            f"{name} is on {u.device} and {other} on {weights.device}; try {name}.to({str(weights.device)!r})"
        )
    if weights.ndim == 1 and weights.dtype in PRECISE and u.dtype not in PRECISE:
        return  # a norm is often kept in float32 inside a model of half precision
    if u.is_meta or not torch.is_autocast_enabled(u.device.type):
        raise ValueError(
            f"{name} is {u.dtype} and not {weights.dtype} as {other}; try {name}.to({weights.dtype}), or for a model "
            f"model.to({u.dtype}), as .double() and .float() do"
        )


def same_shape(value: Field, u: Field, name: str = "f") -> Field:
    """What the function `name` gave for u, if broadcasting would not make of it what nobody meant."""
    if not isinstance(value, Tensor) or value.shape != u.shape:
        raise ValueError(f"{name} must give a field in the shape of u, {tuple(u.shape)}; it gave {described(value)}")
    return value


def check_mask(mask: Mask | None, u: Field, name: str = "mask") -> None:
    """Refuse a mask of the wrong kind or shape, one with holes, and one that leaves a sequence without tokens."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != u.shape[:2]:
        raise ValueError(
            f"{name} must be a bool tensor of shape {tuple(u.shape[:2])}, True where a token is real; "
            f"not {described(mask)}"
        )
    if mask.device != u.device:
        raise ValueError(f"{name} is on {mask.device} and the field on {u.device}; try {name}.to({str(u.device)!r})")
    filled = all_true(mask.any(dim=1))
    if filled is None:
        return
    version = None if mask.is_inference() else mask._version  # such a tensor does not count its changes
    if not filled:
        raise ValueError(
            f"{name} leaves a sequence without a real token; drop that sequence, or is the mask inverted? True is real"
        )
    starts = mask & ~torch.nn.functional.pad(mask[:, :-1], (1, 0))
    if (starts.sum(dim=1) > 1).any():
        raise ValueError(
            f"{name} has holes: the real tokens of a sequence must stand together, padding before or after"
        )
    if version is not None:
        global _last_good
        seen = mask.clone() if mask.device.type == "cpu" else None
        _last_good = weakref.ref(mask), version, seen


def all_true(condition: Tensor) -> bool | None:
    """Whether it is true everywhere; None on the meta device, in a trace and in a vmap, where there are no values."""
    if condition.is_meta or torch.compiler.is_compiling():
        return None
    try:
        return bool(condition.all())
    except RuntimeError as error:
        if not any(word in str(error) for word in ("vmap", "_local_scalar_dense")):  # how vmap and a trace say so
            raise
        return None


_last_good: tuple[Callable[[], Tensor | None], int, Tensor | None] = (lambda: None, 0, None)
"""The last mask that was found good, how often it had been changed, and on a CPU what it held.

A step on a GPU need not wait for its values again. A change there that torch does not count, through .data, is seen
where the next run starts, not within one.
"""


def _known(mask: Mask, u: Field) -> bool:
    if torch.compiler.is_compiling():  # nothing to remember: a trace looks at no values
        return False
    good, version, seen = _last_good  # at once, as another thread may look at another mask
    same = good() is mask and mask._version == version and mask.get_device() == u.get_device()
    same = same and mask.size(0) == u.size(0) and mask.size(1) == u.size(1)
    return same and (seen is None or mask.equal(seen))


def check_number(
    name: str,
    value: float | Tensor,
    least: float = -math.inf,
    *,
    above: bool = False,
    shape: tuple[int | str, ...] | None = ("batch", 1, 1),
) -> None:
    """Refuse what is no finite number of at least `least`, or above it, nor a tensor of such, one for each example.

    shape: the largest that a tensor may have, with words for what is not known; (): one number, None: any. One number
    may be a tensor (1,) everywhere.
    """
    if not isinstance(value, Tensor):
        number(name, value, least, above=above)
        return
    if value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers; not {described(value)}")
    if all_true(torch.isfinite(value) & ((value > least) if above else (value >= least))) is False:
        low = "" if least == -math.inf else f" above {least}" if above else f" of at least {least}"
        raise ValueError(f"{name} must be finite numbers{low}")
    if shape is not None and value.shape != (1,) and not _widens_to(value.shape, shape):
        each = f", or have the shape ({', '.join(map(str, shape))})" if shape else ""
        raise ValueError(f"{name} must be one number{each}; not {described(value)}")


def _widens_to(given: Sequence[int], shape: Sequence[int | str]) -> bool:
    """Whether broadcasting makes of the first shape the second, and not a larger one."""
    pairs = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(one in (1, other) or isinstance(other, str) for one, other in pairs)


def check_boundary(boundary: str) -> None:
    choose("boundary", boundary, BOUNDARIES)


def precise(x: Tensor) -> Tensor:
    """x in float32 at least: sums over a few hundred numbers are wrong in half precision."""
    return x if x.dtype in PRECISE else x.to(torch.promote_types(x.dtype, torch.float32))


def lengths(u: Field, mask: Mask | None) -> Tensor:
    """N, the number of real tokens of each sequence: (batch, 1, 1), in the dtype of u or float32 at least."""
    check_state(u, mask)
    return _lengths(u, mask)


def _lengths(u: Field, mask: Mask | None) -> Tensor:
    dtype = u.dtype if u.dtype in PRECISE else torch.float32  # bfloat16 knows no 257, and float16 no 256²
    if mask is None:
        return u.new_full((u.shape[0], 1, 1), u.shape[1], dtype=dtype)
    return mask.sum(dim=1).to(dtype).reshape(-1, 1, 1)


def token_mean(u: Field, mask: Mask | None = None) -> Tensor:
    """μ = ∫u dx = (1/N) Σ_i u_i over the real tokens, by the midpoint rule: (batch, 1, feature).  (P2 eq 9)"""
    check_state(u, mask)
    return _token_mean(u, mask)


def _token_mean(u: Field, mask: Mask | None) -> Tensor:
    mean = formulas.keep_real(precise(u), mask).sum(dim=1, keepdim=True) / _lengths(u, mask)
    return mean if mean.dtype == u.dtype else mean.to(u.dtype)


def centred(u: Field, mask: Mask | None = None) -> Field:
    """u − μ with μ the mean over the real tokens, and 0 where no token is: exactly 0 where all tokens agree.

    >>> centred(torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[True, True, False]])).flatten().tolist()
    [-1.0, 1.0, 0.0]
    """
    check_state(u, mask)
    if mask is None:
        return formulas.centred(u)
    # measured from the first token, as there, or tokens that agree would leave the rounding of their mean
    rest = u - u.gather(1, first_token(mask).expand(-1, -1, u.shape[-1]))
    return formulas.keep_real(rest - _token_mean(rest, mask), mask)


def mean_square(u: Field, mask: Mask | None = None) -> Tensor:
    """‖u‖² = ∫|u|² dx = (1/N) Σ_i |u_i|² over the real tokens: (batch, 1, 1), in float32 at least."""
    check_state(u, mask)
    return _token_mean(precise(u).square().sum(dim=-1, keepdim=True), mask)


def keep_real(u: Field, mask: Mask | None) -> Field:
    """u with zeros where no token is; what a padded place held, even NaN, is gone."""
    check_state(u, mask)
    return formulas.keep_real(u, mask)


def first_token(mask: Mask) -> Tensor:
    """The place of each sequence's first real token: (batch, 1, 1)."""
    return mask.to(torch.uint8).argmax(dim=1).reshape(-1, 1, 1)


def positions(u: Field, mask: Mask | None = None) -> Tensor:
    """x_i = (i + ½)/N, counted from the first real token: (batch, token), in float32 at least."""
    check_state(u, mask)
    n = _lengths(u, mask)
    index = torch.arange(u.shape[1], device=u.device, dtype=n.dtype).expand(u.shape[:2])
    if mask is not None:
        index = index - first_token(mask).squeeze(-1)
    return (index + 0.5) / n.squeeze(-1)


def laplacian(u: Field, boundary: str = "reflecting", mask: Mask | None = None) -> Field:
    """(u_{i+1} − 2u_i + u_{i−1}) / Δx² along the token axis, Δx = 1/N.  (P1 eq 20, the diffusion part)

    The ends are set by a ghost token half a cell outside Ω: its value equals the end token's (reflecting: nothing
    flows out), minus the end token's (absorbing: u = 0 on the boundary, P1 eq 7), or the other end's (periodic).

    >>> u = torch.tensor([[[0.0], [1.0], [0.0]]])            # 3 tokens, Δx = 1/3
    >>> laplacian(u).flatten().tolist()
    [9.0, -18.0, 9.0]
    """
    check_boundary(boundary)
    check_state(u, mask)
    if u.dtype not in PRECISE:
        return laplacian(precise(u), boundary, mask).to(u.dtype)
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
    return formulas.keep_real((left - 2 * u + right) * _lengths(u, mask) ** 2, mask)


def laplacian_eigenvalues(n: int, boundary: str = "reflecting") -> Tensor:
    """λ_k = −4N² sin²(θ_k/2), the exact spectrum of `laplacian` on N tokens, in the order of `laplacian_modes`.

    θ_k = kπ/N (reflecting), (k+1)π/N (absorbing) and 2π⌈k/2⌉/N (periodic), k = 0…N−1: from the slowest mode to the
    fastest. The explicit Euler step with coefficient D stays bounded up to Δt = 2/(D·|λ_max|).
    """
    check_boundary(boundary)
    k = torch.arange(whole("n", n), dtype=torch.float64)
    turn = {"reflecting": k, "absorbing": k + 1, "periodic": 2 * torch.ceil(k / 2)}[boundary]
    return -4 * n**2 * torch.sin(turn * math.pi / n / 2) ** 2


def laplacian_modes(n: int, boundary: str = "reflecting") -> Tensor:
    """The orthonormal modes of `laplacian` on N tokens, one per column: cosines, sines, or both.

    cos(kπx), k = 0…N−1 (reflecting); sin(kπx), k = 1…N (absorbing); 1, sin 2πx, cos 2πx, sin 4πx, … (periodic).
    """
    check_boundary(boundary)
    n = whole("n", n, most=10**5)  # n² numbers
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
