"""What all metrics share: padding is ignored, half precision is raised to float32, one value per layer.

A metric is a function metric(u, mask=…) of one state or metric(u, v, mask=…) of two; `per_layer` maps it over a run. A
value that does not exist, such as the cosine with a zero vector, is NaN.

Where a metric is a mean over tokens or examples, reduce="median" gives their median, which a few huge tokens do not
move, and reduce="none" all values, (batch, token) or (batch,), NaN at padding; so values.nanmean(1) is one an example.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pdelab.field import Field, Mask, check_field, described, first_token, precise
from pdelab.options import choose, flags, function, instance
from pdelab.solver import Trajectory

REDUCTIONS = ("mean", "median", "none")


def clean(u: Field, mask: Mask | None = None, name: str = "u") -> Field:
    """u with zeros where no token is, in float32 at least; ValueError if it is no finite field."""
    return precise(check_field(u, name, mask=mask))


def clean_pair(u: Field, v: Field, mask: Mask | None = None, same_width: bool = True) -> tuple[Field, Field]:
    flags(same_width=same_width)
    u, compared = clean(u, mask), 3 if same_width else 2
    if isinstance(v, Tensor) and v.ndim == 3 and 0 not in v.shape and v.shape[:compared] != u.shape[:compared]:
        raise ValueError(f"v must have the shape of u, {tuple(u.shape)}; not {tuple(v.shape)}")
    if isinstance(v, Tensor) and v.device != u.device:
        raise ValueError(f"v must be on the device of u, {u.device}; not {v.device}")
    v = clean(v, mask, "v")
    dtype = torch.promote_types(u.dtype, v.dtype)
    return u.to(dtype), v.to(dtype)


def real_places(u: Field, mask: Mask | None) -> Mask:
    """The mask, also where none was given: (batch, token)."""
    return u.new_ones(u.shape[:2], dtype=torch.bool) if mask is None else mask


def mean_where(values: Tensor, real: Tensor) -> Tensor:
    """The mean of the values where `real`, one number; NaN if there are none."""
    return torch.where(real, values, torch.zeros_like(values)).sum() / real.sum()


def reduced(values: Tensor, real: Tensor, reduce: str, *, by_example: bool = False) -> Tensor:
    """The mean or the median of the values where `real`, one number; or "none": all of them, NaN where not `real`.

    by_example: the mean is that of the means over the tokens of each example, which count alike, however long.
    The median of an even number of values is half the sum of the two in the middle; of a NaN there is none: NaN.

    >>> [reduced(torch.tensor([[1.0, 2.0, 9.0]]), torch.ones(1, 3) > 0, how).item() for how in ("mean", "median")]
    [4.0, 2.0]
    """
    choose("reduce", reduce, REDUCTIONS)
    if reduce == "mean" and not by_example:
        return mean_where(values, real)
    if reduce == "mean":
        return (torch.where(real, values, torch.zeros_like(values)).sum(dim=1) / real.sum(dim=1)).mean()
    held = torch.where(real, values, torch.nan)
    if reduce == "none":
        return held
    return held.nanquantile(0.5).masked_fill((real & values.isnan()).any(), torch.nan)


def each_example(values: Tensor, reduce: str) -> Tensor:
    """The same of one value an example, (batch,)."""
    return reduced(values, torch.ones_like(values, dtype=torch.bool), reduce)


def mean_along(u: Field, mask: Mask | None, dim: int | tuple[int, ...]) -> Tensor:
    """The mean of the real entries along `dim`, which is kept with size 1; NaN where there are none.

    The second pass makes the mean of equal numbers exactly that number, so that u − mean is 0 where it ought to be.
    """
    real = real_places(u, mask).unsqueeze(-1).expand_as(u)
    number = real.sum(dim, keepdim=True)
    mean = torch.where(real, u, torch.zeros_like(u)).sum(dim, keepdim=True) / number
    return mean + torch.where(real, u - mean, torch.zeros_like(u)).sum(dim, keepdim=True) / number


def aligned(u: Field, mask: Mask | None) -> tuple[Field, Mask]:
    """u and its mask with every sequence moved so that its first real token stands at place 0."""
    if mask is None:
        return u, real_places(u, mask)
    place = torch.arange(u.shape[1], device=u.device) + first_token(mask).squeeze(-1)  # (batch, token)
    place = place % u.shape[1]
    return u.gather(1, place.unsqueeze(-1).expand_as(u)), mask.gather(1, place)


def norm(x: Tensor) -> Tensor:
    """|x|, all entries together. Scaled first: the squares of numbers below 1e−19 are lost in float32."""
    x = precise(x)
    largest = x.abs().amax()
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return scale * torch.linalg.vector_norm(x / scale)


def per_layer(
    metric: Callable[..., Tensor],
    run: Trajectory,
    other: Trajectory | Tensor | None = None,
    *,
    of: str = "states",
    **options,
) -> Tensor:
    """(m(u_0), m(u_1), …), or (m(u_0, v_0), m(u_1, v_1), …): the metric of every state of a run, (layer,).

    other: a second run of as many states, or one state that all are compared with.
    of: "states", or "attention" for a metric of attention maps (one per step: solve(…, attention=True)).
    options: passed on to the metric. A diverged run gives the values of the states it has. Nothing is differentiated.

    >>> from pdelab.metrics.stability import energy
    >>> from pdelab.solver import solve
    >>> per_layer(energy, solve(lambda u: -u, torch.ones(1, 3, 2), steps=2, dt=0.5)).tolist()
    [1.0, 0.25, 0.0625]
    """
    choose("of", of, ("states", "attention"))
    function("metric", metric)
    first = _tensors(run, of, "run")
    with torch.no_grad():
        if other is None:
            return stacked([metric(u, mask=run.mask, **options) for u in first])
        if isinstance(other, Tensor):
            return stacked([metric(u, other, mask=run.mask, **options) for u in first])
        second = _tensors(other, of, "other")
        if len(first) != len(second):
            raise ValueError(f"other must have as many {of} as run: {len(first)} in run, {len(second)} in other")
        if not _same(run.mask, other.mask):
            raise ValueError("other must have the same mask as run, or tokens would be compared with padding")
        return stacked([metric(u, v, mask=run.mask, **options) for u, v in zip(first, second, strict=True)])


def stacked(values: list[Tensor]) -> Tensor:
    """The values of a metric, one a layer, if they are what a metric gives."""
    for value in values:
        if not isinstance(value, Tensor) or value.shape != values[0].shape:
            raise ValueError(f"metric must give a tensor, of one shape at every layer; not {described(value)}")
    return torch.stack(values)


def _tensors(run: Trajectory, of: str, name: str) -> tuple[Tensor, ...]:
    tensors = getattr(instance(name, run, Trajectory), of)
    if tensors is None:
        raise ValueError(f"{name} holds no attention maps; make it with attention=True, or give them to Trajectory.of")
    if not all(isinstance(x, Tensor) for x in tensors):
        raise ValueError(f"{name} must hold states; it was made with keep, which stored something else")
    return tensors


def _same(a: Mask | None, b: Mask | None) -> bool:
    return a is b or (a is not None and b is not None and (a.is_meta or torch.equal(a, b)))


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Without the one fused operation that torch makes of a whole encoder layer, if nothing asks for a gradient."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def unfused() -> Iterator[None]:
    """Attention in plain matrix products: fused ones have no forward derivative."""
    with no_fast_path(), sdpa_kernel(SDPBackend.MATH):
        yield
