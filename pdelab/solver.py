"""solve: from u₀ to every state along the depth."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch

from pdelab.field import Field, check_field
from pdelab.integrators import Euler, Integrator, Rate


class Status(StrEnum):
    """How a run ended. Divergence is a result of this subject, not an error."""

    FINISHED = "finished"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class Trajectory:
    """The states u(t₀), u(t₁), …; a diverged run keeps the finite ones, and `stopped_at` is the step that failed."""

    times: tuple[float, ...]
    states: tuple[Field, ...]
    status: Status
    stopped_at: int | None = None

    @property
    def final(self) -> Field:
        return self.states[-1]

    def at(self, t: float) -> Field:
        """The stored state nearest in time to t."""
        return self.states[min(range(len(self.times)), key=lambda i: abs(self.times[i] - t))]


def solve(rate: Rate, u0: Field, *, steps: int, dt: float, integrator: Integrator | None = None) -> Trajectory:
    """du/dt = F(u, t), u(0) = u₀: `steps` steps of size Δt, every state kept.

    rate: any callable F(u, t) → du/dt in the shape of u; u0: (batch, token, feature); integrator: Euler() unless given.
    A state that is no longer finite ends the run with status DIVERGED.

    >>> run = solve(lambda u, t: -u, torch.ones(1, 1, 1), steps=2, dt=0.5)
    >>> [state.item() for state in run.states]
    [1.0, 0.5, 0.25]
    """
    check_field(u0, "u0")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1, not {steps!r}")
    if not math.isfinite(dt) or dt <= 0:
        raise ValueError(f"dt must be a positive number, not {dt!r}")
    integrator = integrator or Euler()
    times, states = [0.0], [u0]
    for step in range(1, steps + 1):
        u = integrator.step(rate, states[-1], times[-1], dt)
        if not u.is_meta and not torch.isfinite(u).all():
            return Trajectory(tuple(times), tuple(states), Status.DIVERGED, stopped_at=step)
        times.append(step * dt)
        states.append(u)
    return Trajectory(tuple(times), tuple(states), Status.FINISHED)
