"""One step in depth: u(t) → u(t + Δt).

Δt is a number; for Euler, Heun and RK4 also a tensor with one step per example, (batch, 1, 1).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from pdelab.field import Field, Mask, check_number, check_state, same_shape
from pdelab.options import function, number, whole
from pdelab.terms.base import scaled
from pdelab.terms.diffusion import Diffusion

Rate = Callable[..., Field]  # F(u, t, mask) → du/dt in the shape of u
Time = float | Tensor  # one for all examples, or (batch, 1, 1)


class Integrator(ABC):
    """A method is its order and its formula, `advance`; `step` checks what it is given, as `solve` does once a run."""

    order: ClassVar[int]
    one: ClassVar[bool] = False  # Δt must be one number for all examples

    def step(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        _check_step(rate, u, dt, mask, one=self.one)
        return self.advance(rate, u, t, dt, mask)

    @abstractmethod
    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field: ...


def _check_step(rate: Rate, u: Field, dt: Time, mask: Mask | None, *, one: bool = False) -> None:
    """one: dt must be one number for all examples."""
    function("rate", rate)
    batches = u.shape[:-2] if isinstance(u, Tensor) else ()
    if len(batches) > 1 and mask is None:  # several batches at once, if the rate can
        u = u.flatten(0, -3)
    check_state(u, mask)
    check_number("dt", dt, 0, above=True, shape=(*((1,) * len(batches) if one else batches), 1, 1))
    if isinstance(dt, Tensor) and torch.result_type(u, dt) != u.dtype:
        raise ValueError(f"dt is {dt.dtype}, of which u would not stay {u.dtype}; try dt.to({u.dtype})")


def _one_number(dt: Time) -> Time:
    """Δt without the axes of the field, (), for what is not a field."""
    return dt.reshape(()) if isinstance(dt, Tensor) else dt


class Euler(Integrator):
    """u⁺ = u + Δt F(u, t): a residual layer is this step with Δt = 1."""

    order: ClassVar[int] = 1

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        return u + dt * same_shape(rate(u, t, mask), u, "rate")


class Heun(Integrator):
    """u⁺ = u + Δt/2 (k₁ + k₂),  k₁ = F(u, t),  k₂ = F(u + Δt k₁, t + Δt)."""

    order: ClassVar[int] = 2

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        k1 = same_shape(rate(u, t, mask), u, "rate")
        k2 = rate(u + dt * k1, t + dt, mask)
        return u + dt / 2 * (k1 + k2)


class RK4(Integrator):
    """u⁺ = u + Δt/6 (k₁ + 2k₂ + 2k₃ + k₄), the classical method of Kutta."""

    order: ClassVar[int] = 4

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        return _kutta(rate, u, t, dt, mask)


def _kutta(rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
    k1 = same_shape(rate(u, t, mask), u, "rate")
    k2 = rate(u + dt / 2 * k1, t + dt / 2, mask)
    k3 = rate(u + dt / 2 * k2, t + dt / 2, mask)
    k4 = rate(u + dt * k3, t + dt, mask)
    return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def flow(rate: Callable[[Field], Field], u: Field, *, T: Time = 1.0, steps: int = 24, leak: float = 0.0) -> Field:
    """u(T) of u' = F(u) − κu by RK4 for w = e^{κt}u, so that the leak κ alone makes no error; the last state only.

    Unchecked and differentiable, for a search; `solve` checks, keeps every state and notices divergence.
    T: one time for all, or one per example, (batch, 1, 1); a leak needs one time for all.
    """
    dt = T / whole("steps", steps)
    number("leak", leak)

    def grown(w: Field, t: Time, mask: Mask | None) -> Field:
        factor = math.exp(leak * t) if leak else 1.0
        return factor * rate(w / factor)

    for n in range(steps):
        u = _kutta(grown, u, n * dt, dt)
    return math.exp(-leak * T) * u if leak else u


class LieEuler(Integrator):
    """u ← u + Δt T(u, t) for each term T in turn. With Δt = 1 and the terms A, S, R, S it is a post-LayerNorm block."""

    order: ClassVar[int] = 1

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        for term in terms_of(rate, t, self):
            u = u + scaled(dt, term(u, t, mask))
        return u


class Strang(Integrator):
    """Half steps through the terms, a full step of the last, half steps back; each by Heun's method."""

    order: ClassVar[int] = 2

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        *before, last = terms_of(rate, t, self)
        for term in before:
            u = self._one(term, u, t, dt / 2, mask)
        u = self._one(last, u, t, dt, mask)
        for term in reversed(before):
            u = self._one(term, u, t + dt / 2, dt / 2, mask)
        return u

    def _one(self, term: nn.Module, u: Field, t: Time, dt: Time, mask: Mask | None) -> Field:
        return Heun().advance(term, u, t, dt, mask)


class CrankNicolson(Strang):
    """The sweep of Strang with diffusion by Crank–Nicolson: bounded however fast it is, and still of order 2."""

    one: ClassVar[bool] = True

    def _one(self, term: nn.Module, u: Field, t: Time, dt: Time, mask: Mask | None) -> Field:
        if isinstance(term, Diffusion):
            return term.implicit(u, _one_number(dt), mask, order=2)
        return super()._one(term, u, t, dt, mask)


class ExponentialDiffusion(Integrator):
    """u⁺ = e^{Δt D∂²}(u + Δt N(u, t)): diffusion exactly, the other terms N by an Euler step."""

    order: ClassVar[int] = 1
    one: ClassVar[bool] = True
    diffused: ClassVar[Callable[..., Field]] = staticmethod(Diffusion.exact)

    def advance(self, rate: Rate, u: Field, t: Time, dt: Time, mask: Mask | None = None) -> Field:
        terms = terms_of(rate, t, self)
        u = u + dt * sum(term(u, t, mask) for term in terms if not isinstance(term, Diffusion))
        for diffusion in (term for term in terms if isinstance(term, Diffusion)):
            u = self.diffused(diffusion, u, _one_number(dt), mask)
        return u


class ImplicitDiffusion(ExponentialDiffusion):
    """(I − Δt D∂²) u⁺ = u + Δt N(u, t): diffusion by backward Euler, the other terms N by an Euler step."""

    diffused: ClassVar[Callable[..., Field]] = staticmethod(Diffusion.implicit)


def terms_of(rate: Rate, t: Time, integrator: Integrator) -> nn.ModuleList:
    at = getattr(rate, "at", None)
    if at is None:
        raise ValueError(
            f"integrator {type(integrator).__name__} sweeps through terms, so rate must be a MasterEquation or Layered"
            "; for a plain function take Euler, Heun or RK4"
        )
    return at(t).terms
