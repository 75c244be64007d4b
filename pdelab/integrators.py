"""One step in depth: u(t) → u(t + Δt)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from pdelab.field import Field

Rate = Callable[[Field, float], Field]


class Integrator(ABC):
    """A method is its order and its step."""

    order: ClassVar[int]

    @abstractmethod
    def step(self, rate: Rate, u: Field, t: float, dt: float) -> Field: ...


class Euler(Integrator):
    """u⁺ = u + Δt F(u, t): a residual layer is this step with Δt = 1."""

    order: ClassVar[int] = 1

    def step(self, rate: Rate, u: Field, t: float, dt: float) -> Field:
        return u + dt * rate(u, t)
