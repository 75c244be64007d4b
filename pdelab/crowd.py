"""The crowd: a law of tokens on the unit circle, moved by attention.

    ∂ρ/∂t + ∂(ρX)/∂θ = 0,   X(θ) = v ∫ e^{β cos(φ−θ)} sin(φ−θ) ρ(φ) dφ / ∫ e^{β cos(φ−θ)} ρ(φ) dφ

N tokens u_i = (cos θ_i, sin θ_i) under u_i' = (I − u_iu_iᵀ) Att(u)_i with A = βI and V = vI follow θ_i' = X(θ_i), with
the law (1/N) Σ_i δ_{θ_i} in place of ρ dθ: `formulas.circle_rate`. A density is a tensor (batch, cell): the means of ρ
over M equal cells, the centre of cell i at θ = 2π(i + ½)/M.
"""

import math

import torch
from torch import Tensor

from pdelab import formulas
from pdelab.field import PRECISE, described
from pdelab.options import choose, flags, number, positive, whole
from pdelab.solver import Diverged, Trajectory
from pdelab.status import Status

SCHEMES = ("limited", "upwind")
LEAST, MOST = 4, 4096  # cells: two matrices of M² numbers are kept
STRONGEST = {torch.float64: 300.0, torch.float32: 40.0}  # β up to which the least weight, e^{−2β}, is not lost


def solve_density(
    rho0: Tensor,
    *,
    beta: float,
    time: float,
    v: float = 1.0,
    states: int = 1,
    scheme: str = "limited",
    dt: float | None = None,
    causal: bool = False,
    throw: bool = False,
) -> Trajectory:
    """∂ρ/∂t + ∂(ρX)/∂θ = 0 on the circle, ρ(0) = ρ₀, by finite volumes: ρ at t = 0, T/n, …, T.

    rho0: (batch, cell), non-negative, float32 or float64; its mass need not be 1, as X does not change with it.
    beta: the sharpness of attention, 0 to 300, in float32 to 40; v: V = vI; time: T; states: n, how many are kept after
    the first.
    scheme: limited (van Leer's slopes and Heun's steps, order 2 where ρ is smooth) or upwind (Euler's, order 1).
    dt: the longest step; Δθ/(2|v|) unless given. Since |X| ≤ |v|, up to there no cell turns negative, and what leaves
    a cell enters the next: mass is kept to rounding.
    causal: row k of rho0 is the law of the tokens in the k-th of `batch` equal parts of the sequence, and X at row k
    is made by the rows before it and half of its own; equal parts, so all rows must have the same mass.
    A state with negative cells or one that is not finite ends the run with status DIVERGED, or raises if `throw`.

    >>> ring = torch.full((1, 8), 0.25)  # the even crowd stays as it is
    >>> torch.equal(solve_density(ring, beta=2.0, time=1.0).final, ring)
    True
    """
    _check(rho0)
    number("beta", beta, 0, STRONGEST[rho0.dtype])
    number("v", v)
    choose("scheme", scheme, SCHEMES)
    flags(causal=causal, throw=throw)
    if causal:
        _check_equal_masses(rho0)
    cells, states = rho0.shape[1], whole("states", states)
    longest = math.pi / cells / max(abs(v), 1e-3) if dt is None else positive("dt", dt)
    each = math.ceil(positive("time", time) / states / longest * (1 - 1e-12))
    whole("time/dt", each * states, most=10**7)
    dt, kernel = time / states / each, formulas.circle_kernel(cells, beta, v, like=rho0)

    def rate(rho: Tensor) -> Tensor:
        crowd = _up_to(rho) if causal else rho
        return formulas.transport(rho, formulas.circle_speed(crowd, kernel), limited=scheme == "limited")

    rho, times, kept = rho0, [0.0], [rho0]
    for step in range(1, each * states + 1):
        after = rho + dt * rate(rho)
        if scheme == "limited":
            after = (rho + after + dt * rate(after)) / 2  # Heun's step: a mean of what Euler's keep positive
        if not _is_density(after):
            if throw:
                raise Diverged(f"a cell is negative or not finite after step {step} (t = {step * dt:.4g}); lower dt")
            return Trajectory(tuple(times), tuple(kept), rho, Status.DIVERGED, step)
        rho = after
        if step % each == 0:
            times.append(step * dt)
            kept.append(rho)
    return Trajectory(tuple(times), tuple(kept), rho, Status.FINISHED)


def _check(rho0: Tensor) -> None:
    wanted = f"rho0 must be a float32 or float64 tensor (batch, cell) with {LEAST} to {MOST} cells"
    if not isinstance(rho0, Tensor) or rho0.dtype not in PRECISE or rho0.ndim != 2:
        raise ValueError(f"{wanted}; not {described(rho0)}")
    if not len(rho0) or not LEAST <= rho0.shape[1] <= MOST:
        raise ValueError(f"{wanted}; not {described(rho0)}")
    if rho0.is_meta:
        raise ValueError("rho0 is on the meta device, where there is nothing to solve for")
    if not torch.isfinite(rho0).all() or (rho0 < 0).any() or not (rho0.sum(dim=1) > 0).all():
        raise ValueError("rho0 must be finite and nowhere negative, with some mass in every row")


def _check_equal_masses(rho0: Tensor) -> None:
    least, most = rho0.sum(dim=1).aminmax()
    if most - least > torch.finfo(rho0.dtype).eps ** 0.5 * most:
        raise ValueError(
            "rho0 must have the same mass in every row if causal, as its rows are equal parts of the sequence; "
            f"not from {least:.6g} to {most:.6g}"
        )


def _up_to(rho: Tensor) -> Tensor:
    """The law that a token of row k sees behind a causal mask: the rows before it, and half of its own."""
    return rho.cumsum(dim=0) - rho / 2


def _is_density(rho: Tensor) -> bool:
    """Finite, and not negative by more than rounding."""
    low, high = rho.aminmax()
    return bool(torch.isfinite(high) & (low >= -(torch.finfo(rho.dtype).eps ** 0.5) * high))
