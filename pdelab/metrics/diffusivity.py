"""How far a map of fields diffuses: second moments of its Jacobian along the tokens, and P2 eq 8 as printed.

J: (batch, token, feature, token, feature), as `jacobian` gives it; `sampled_diffusivity` needs none. P: attention
weights (batch, head, query, key); mask: (batch, token). Positions are x_i = (i + ½)/N, so a diffusivity has the unit x²
per application of the map.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pdelab.field import Field, Mask, check_field, check_mask, check_number, described, keep_real, positions, precise
from pdelab.metrics.attention import check_maps, check_rows
from pdelab.metrics.jacobian import Map, products
from pdelab.options import choose, flags, seed_of, whole
from pdelab.seeds import stream

READINGS = ("moment", "weights", "constant")


def diffusion_matrix(J: Tensor, mask: Mask | None = None) -> Tensor:
    """D(x_i) = ½ Σ_j (x_j − x_i)² J_ij: (batch, token, feature, feature), zero at padding.

    The coefficient of w'' in the response of the map to a small smooth w(x): Σ_j J_ij w(x_j) = M₀w + M₁w' + Dw'' + …
    """
    J = _jacobian(J, mask)
    squares = _offsets(J[:, :, :, 0, 0], mask) ** 2 / 2  # (batch, token, token)
    if mask is not None:  # 0 times a NaN that stands at padding is NaN
        J = torch.where(_both(mask)[:, :, None, :, None], J, torch.zeros_like(J))
    return torch.einsum("bij,biajc->biac", squares, J)


def diffusivity(J: Tensor, mask: Mask | None = None) -> Tensor:
    """D(x_i) = ½ Σ_j (x_j − x_i)² (1/d) tr J_ij, the mean eigenvalue of `diffusion_matrix`: (batch, token).

    >>> mean_of_two = torch.full((1, 2, 1, 2, 1), 0.5)  # two tokens, ½ apart
    >>> diffusivity(mean_of_two).tolist()
    [[0.0625, 0.0625]]
    """
    return diffusion_matrix(J, mask).diagonal(dim1=2, dim2=3).mean(-1)


class Sampled(NamedTuple):
    """A mean over random draws and its standard error, the standard deviation over √draws."""

    value: Tensor
    error: Tensor


def sampled_diffusivity(f: Map, u: Field, mask: Mask | None = None, *, draws: int = 16, seed: int = 0) -> Sampled:
    """`diffusivity` of f at u without its Jacobian: D(x_i) is the mean of z · D_i z / d over random signs z.

    D_i z = ½ Σ_j (x_j − x_i)² J_ij z with one z for all tokens takes three derivatives along x_j^k z, k = 0, 1, 2
    (Hutchinson's trace). value, error: (batch, token), zero at padding. Rounding is that of |Jz|, about 1e−7 of it in
    float32: for kernels of a few of thousands of tokens take float64. f as in `metrics.jacobian`.

    >>> sampled_diffusivity(lambda u: u.mean(dim=1, keepdim=True).expand_as(u), torch.zeros(1, 2, 3)).value.tolist()
    [[0.0625, 0.0625]]
    """
    draws, seed = whole("draws", draws, least=2), seed_of(seed)
    u = check_field(u, mask=mask).detach()
    x = (positions(u, mask) - 0.5).unsqueeze(-1)  # (batch, token, 1), small numbers for small roundings
    push, found = products(f, u, mask)[0], []
    for draw in range(draws):
        generator = stream(seed, "signs", draw)  # on the CPU: the same signs on every device
        z = (2 * torch.randint(2, (len(u), 1, u.shape[-1]), generator=generator) - 1).to(x)
        y0, y1, y2 = (push(x**k * z) for k in range(3))
        found.append(keep_real(z * (y2 - 2 * x * y1 + x**2 * y0) / 2, mask).mean(dim=-1))
    values = torch.stack(found)  # (draw, batch, token)
    return Sampled(values.mean(dim=0), values.std(dim=0) / draws**0.5)


def block_traces(J: Tensor) -> Tensor:
    """(1/d) tr J_ij: (batch, token, token)."""
    J = _jacobian(J)
    return J.diagonal(dim1=2, dim2=4).mean(-1)


def largest_off_diagonal(J: Tensor) -> Tensor:
    """max_{i≠j} |J_ij|, the largest entry of a block between two different tokens: 0 for a map of each token alone."""
    J = _jacobian(J)
    if not J.is_meta and not torch.isfinite(J).all():
        raise ValueError("J must be finite; it holds NaN or infinite values")
    apart = ~torch.eye(J.shape[1], dtype=torch.bool, device=J.device)
    blocks = J.abs().amax(dim=(2, 4))  # (batch, token, token)
    return torch.where(apart, blocks, torch.zeros_like(blocks)).amax()


def symbol(J: Tensor) -> Tensor:
    """σ_k = (1/N) Σ_ij e^{−2πik(x_i − x_j)} (1/d) tr J_ij, k = 0…N−1: the map's effect on wave k: (batch, k), complex.

    Flat in k for a map of each token alone; e^{−½m₂(2πk)²} for averaging with a Gaussian of variance m₂ on a periodic
    domain. The real part counts for damping; a shift turns the phase.
    """
    traces = block_traces(J)
    n = traces.shape[1]
    k = torch.arange(n, device=J.device, dtype=traces.dtype)
    waves = torch.exp(2j * math.pi * k.unsqueeze(1) * k / n)  # (k, token); the shift by ½ cancels
    return torch.einsum("ki,bij,kj->bk", waves.conj(), traces.to(waves.dtype), waves) / n


def moment(P: Tensor, order: int, mask: Mask | None = None, *, absolute: bool = False) -> Tensor:
    """m_k(x_i) = Σ_j P_ij (x_j − x_i)^k, with |x_j − x_i|^k if absolute: (batch, head, token), zero at padding."""
    order = whole("order", order, 0)
    flags(absolute=absolute)
    P = _maps(P, mask)
    r = _offsets(P[:, 0], mask)
    power = (r.abs() if absolute else r) ** order
    return (P * power.unsqueeze(1)).sum(-1)


def heat_gap(P: Tensor, coefficient: float = 0.0, mask: Mask | None = None) -> Tensor:
    """(sup|m|, ½ sup|s² − 2D|, sup c̄₃/6) over the tokens: (batch, head, 3). How far averaging is from a step of heat.

    m, s² and c̄₃ are mean, variance and central absolute third moment of the distances x_j − x_i under the weights P_ij,
    and D is the coefficient. For u on [0, 1] with u' = 0 at the ends and M_k = sup|u^(k)|,

        sup|Pu − e^{D∂²}u| ≤ sup|m| M₁ + ½ sup|s² − 2D| M₂ + sup c̄₃ M₃/6 .

    Over layers of a stack, whose weights may depend on place, layer and state, the gaps add up. For a residual layer
    u + h(Pu − u) pass (1 − h)I + hP.

    >>> shift = torch.eye(4).roll(1, 1)[:3]  # tokens 0 to 2 look one token further, a quarter of the length
    >>> P = torch.cat([shift, torch.eye(4)[3:]]).reshape(1, 1, 4, 4)
    >>> heat_gap(P).tolist()
    [[[0.25, 0.0, 0.0]]]
    """
    check_number("coefficient", coefficient, 0, shape=())
    P = _maps(P, mask)
    check_rows(P, mask)
    r = _offsets(P[:, 0], mask).unsqueeze(1)
    mean = (P * r).sum(-1)  # (batch, head, token), zero at padding
    away = (r - mean.unsqueeze(-1)).abs()
    square, cube = ((P * away**k).sum(-1) for k in (2, 3))

    apart = (square - 2 * coefficient).abs()
    if mask is not None:
        apart = torch.where(mask.unsqueeze(1), apart, torch.zeros_like(apart))
    return torch.stack([mean.abs().amax(-1), apart.amax(-1) / 2, cube.amax(-1) / 6], dim=-1)


# P2 eq 8 as printed: D_eff ∝ |∂_x P|² · Tr(∇_u FFN(u)) · σ²_att(x).


def position_slope(places: Tensor) -> Tensor:
    """|∂_x P(x_i)|² of a table P (token, feature) by central differences, one-sided at both ends: (token,)."""
    shaped = isinstance(places, Tensor) and places.ndim == 2 and len(places) > 1 and places.shape[1]
    if not shaped or not places.is_floating_point() or not (places.is_meta or torch.isfinite(places).all()):
        raise ValueError(
            f"places must be a finite table (token, feature) of at least two tokens; not {described(places)}"
        )
    (slope,) = torch.gradient(places, spacing=1 / len(places), dim=0)
    return slope.square().sum(-1)


def attention_variance(P: Tensor, reading: str = "moment", mask: Mask | None = None) -> Tensor:
    """σ²_att(x_i), which P2 names and does not define, averaged over the heads: (batch, token).

    reading: "moment", m₂ = Σ_j P_ij (x_j − x_i)², a square of positions; "weights", the variance over j of the numbers
    P_ij, which has no unit; "constant", 1, for the reading that it does not vary.
    """
    choose("reading", reading, READINGS)
    second = moment(P, 2, mask).mean(dim=1)
    if reading == "moment":
        return second
    real = torch.ones_like(second) if mask is None else mask.to(second.dtype)
    if reading == "constant":
        return real
    n = real.sum(dim=1).reshape(-1, 1, 1)
    P = _maps(P, mask)
    return real * (P.square().sum(-1) / n - (P.sum(-1) / n) ** 2).mean(dim=1)


def printed_diffusivity(
    places: Tensor, J: Tensor, P: Tensor, *, reading: str = "moment", mask: Mask | None = None
) -> Tensor:
    """|∂_x P|² · Tr(∇_u FFN(u)) · σ²_att, P2 eq 8 with the factor of proportionality 1: (batch, token).

    places: P(x_i), (token, feature). J: the Jacobian of the feed-forward network. P: attention weights.
    """
    J = _jacobian(J, mask)
    position_slope(places)
    if len(places) != J.shape[1]:
        raise ValueError(f"places must have {J.shape[1]} tokens, as J has; not {len(places)}")
    trace = J.shape[2] * block_traces(J).diagonal(dim1=1, dim2=2)
    product = _slopes(places, mask, J) * trace * attention_variance(P, reading, mask)
    return keep_real(product.unsqueeze(-1), mask).squeeze(-1)


def _slopes(places: Tensor, mask: Mask | None, J: Tensor) -> Tensor:
    """|∂_x P|² on the real tokens of each sequence, whose spacing is 1 over its own length: (batch, token).

    One token alone has no slope: NaN.
    """
    if mask is None or mask.is_meta:
        return position_slope(places).expand(len(J), -1)
    found = J.new_zeros(mask.shape)
    for rows in mask.unique(dim=0):  # a loop over the lengths that occur, not over sequences
        same = (mask == rows).all(dim=1)
        slope = position_slope(places[rows]).to(J) if rows.sum() > 1 else J.new_tensor([torch.nan])
        found[same.unsqueeze(1) & rows] = slope.repeat(int(same.sum()))
    return found


def _maps(P: Tensor, mask: Mask | None) -> Tensor:
    """P in float32 at least, zero where query or key is padding."""
    check_maps(P, mask)
    P = precise(P)
    return P if mask is None else torch.where(_both(mask).unsqueeze(1), P, torch.zeros_like(P))


def _offsets(like: Tensor, mask: Mask | None) -> Tensor:
    """x_j − x_i, and 0 where i or j is padding: (batch, i, j). `like`: any (batch, token, …) of the dtype wanted."""
    x = positions(like, mask)
    r = x.unsqueeze(1) - x.unsqueeze(2)
    return r if mask is None else torch.where(_both(mask), r, torch.zeros_like(r))


def _both(mask: Mask) -> Tensor:
    """True where i and j are real: (batch, i, j)."""
    return mask.unsqueeze(1) & mask.unsqueeze(2)


def _jacobian(J: Tensor, mask: Mask | None = None) -> Tensor:
    """J in float32 at least."""
    shaped = isinstance(J, Tensor) and J.ndim == 5 and J.shape[1:3] == J.shape[3:5] and 0 not in J.shape
    if not shaped or not J.is_floating_point():
        raise ValueError(
            f"J must have shape (batch, token, feature, token, feature), as jacobian gives it; not {described(J)}"
        )
    check_mask(mask, J[:, :, :, 0, 0])
    return precise(J)
