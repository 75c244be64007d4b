"""solve: from u₀ to every state along the depth."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask, check_field, check_mask, keep_real
from pdelab.integrators import Euler, Integrator, Rate
from pdelab.status import Status
from pdelab.terms.base import Term


class Diverged(ArithmeticError):
    """Raised by solve(…, throw=True) in place of the status DIVERGED."""


@dataclass(frozen=True)
class Trajectory:
    """The states u(t₀), u(t₁), …, or what `keep` made of them; `final` is the last finite state itself.

    A diverged run keeps what was finite, and `stopped_at` is the step that failed. `attention` holds one tensor of maps
    (batch, head, token, token) per step, on request.
    """

    times: tuple[float, ...]
    states: tuple[Any, ...]
    final: Field
    status: Status
    stopped_at: int | None = None
    attention: tuple[Tensor, ...] | None = None
    mask: Mask | None = None

    def __repr__(self) -> str:
        maps = "" if self.attention is None else f", {len(self.attention)} attention maps"
        end = "" if self.stopped_at is None else f" at step {self.stopped_at}"
        return f"Trajectory({len(self.states)} states to {tuple(self.final.shape)}, {self.status}{end}{maps})"

    @classmethod
    def of(
        cls, states: Sequence[Field], mask: Mask | None = None, attention: Sequence[Tensor] | None = None
    ) -> "Trajectory":
        """The states that some other model gave, embedding first, one per layer: t = 0, 1, …, L.

        A state that is not finite ends it there as DIVERGED, as in `solve`. `attention`: maps, one per layer.

        >>> Trajectory.of([torch.ones(1, 2, 3), torch.zeros(1, 2, 3)]).times
        (0.0, 1.0)
        """
        if not states:
            raise ValueError("states is empty; give the embedding and the output of every layer")
        for n, u in enumerate(states):
            if not isinstance(u, Tensor) or u.ndim != 3 or u.shape != states[0].shape:
                given = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
                raise ValueError(f"states must be tensors of one shape (batch, token, feature); states[{n}] is {given}")
        check_mask(mask, states[0])
        check_field(keep_real(states[0], mask), "states[0]")
        if attention is not None and len(attention) != len(states) - 1:
            raise ValueError(f"attention must have one map per layer, {len(states) - 1}; not {len(attention)}")
        finite = [bool(u.is_meta or torch.isfinite(keep_real(u, mask)).all()) for u in states]
        good = len(states) if all(finite) else finite.index(False)
        return cls(
            times=tuple(float(n) for n in range(good)),
            states=tuple(states[:good]),
            final=states[good - 1],
            status=Status.FINISHED if all(finite) else Status.DIVERGED,
            stopped_at=None if all(finite) else good,
            attention=None if attention is None else tuple(attention[: good if good < len(states) else None]),
            mask=mask,
        )

    def at(self, t: float) -> Any:
        """The stored state nearest in time to t."""
        return self.states[min(range(len(self.times)), key=lambda i: abs(self.times[i] - t))]


def solve(
    f: Rate,
    u0: Field,
    *,
    steps: int,
    dt: float,
    integrator: Integrator | None = None,
    mask: Mask | None = None,
    keep: Callable[[Field], Any] | None = None,
    attention: bool = False,
    throw: bool = False,
) -> Trajectory:
    """du/dt = F(u, t), u(0) = u₀: `steps` steps of size Δt, every state kept.

    f: a Term, MasterEquation or Layered, or any function f(u), f(u, t) or f(u, t, mask) that gives du/dt.
    u0: (batch, token, feature); mask: (batch, token), True where a token is real; integrator: Euler() unless given.
    keep: a statistic to store in place of each state, where memory matters.
    attention: store the maps of the interaction term at the start of each step.
    A state that is no longer finite ends the run with status DIVERGED, or raises Diverged if `throw`.

    >>> run = solve(lambda u: -u, torch.ones(1, 1, 1), steps=2, dt=0.5)
    >>> [state.item() for state in run.states]
    [1.0, 0.5, 0.25]
    """
    if mask is not None and isinstance(u0, Tensor) and u0.ndim == 3:
        check_mask(mask, u0)
        u0 = keep_real(u0, mask)
    check_field(u0, "u0")
    steps, dt = _check_steps(steps), _check_dt(dt)
    integrator = integrator if integrator is not None else Euler()
    if not isinstance(integrator, Integrator):
        raise ValueError(f"integrator must be an Integrator such as Euler(); not {integrator!r}")
    rate = _as_rate(f, mask)
    keep = keep or (lambda u: u)
    u, times, states, maps = u0, [0.0], [keep(u0)], []

    def trajectory(status: Status, stopped_at: int | None = None) -> Trajectory:
        seen = tuple(maps) if attention else None
        return Trajectory(tuple(times), tuple(states), u, status, stopped_at, seen, mask)

    for step in range(1, steps + 1):
        if attention:
            maps.append(_maps(rate, u, times[-1], mask))
        after = integrator.step(rate, u, times[-1], dt, mask)
        if after.shape != u.shape:
            raise ValueError(
                f"f must give du/dt in the shape of u, {tuple(u.shape)}; a step made it {tuple(after.shape)}"
            )
        if not after.is_meta and not torch.isfinite(after).all():
            if throw:
                raise Diverged(
                    f"the state is not finite after step {step} of {steps} (t = {step * dt:.4g}); try a smaller dt"
                )
            return trajectory(Status.DIVERGED, step)
        u = after
        times.append(step * dt)
        states.append(keep(u))
    return trajectory(Status.FINISHED)


def _check_steps(steps: int) -> int:
    try:
        number = index(steps)
    except TypeError:
        number = 0
    if number < 1 or isinstance(steps, bool):
        raise ValueError(f"steps must be a whole number of at least 1; not {steps!r}")
    return number


def _check_dt(dt: float) -> float:
    if isinstance(dt, bool) or not isinstance(dt, int | float) or not math.isfinite(dt) or dt <= 0:
        raise ValueError(f"dt must be a positive number; not {dt!r}")
    return float(dt)


def _as_rate(f: Rate, mask: Mask | None) -> Rate:
    """f as a function of (u, t, mask)."""
    if isinstance(f, Term | MasterEquation | Layered):
        return f
    if not callable(f):
        raise ValueError(
            f"f must be a function f(u, t) or f(u) that gives du/dt, or an equation; not {type(f).__name__}"
        )
    try:
        parameters = inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f).parameters.values()
    except (TypeError, ValueError):  # a built-in such as torch.sin has no signature
        parameters = []
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_mask = any(p.name == "mask" for p in parameters)
    if mask is not None and not takes_mask:
        raise ValueError("mask was given, but f takes no mask; write it as f(u, t, mask)")
    if takes_mask:
        return lambda u, t, mask: _shaped_like(u, f(u, t, mask=mask))
    needed = [p for p in places if p.default is p.empty]
    takes_time = len(needed) >= 2 or any(p.name == "t" for p in places)
    return lambda u, t, mask: _shaped_like(u, f(u, t) if takes_time else f(u))


def _shaped_like(u: Field, rate: Field) -> Field:
    """The rate, if broadcasting would not make of it what nobody meant."""
    if not isinstance(rate, Tensor) or rate.shape != u.shape:
        given = tuple(rate.shape) if isinstance(rate, Tensor) else type(rate).__name__
        raise ValueError(f"f must give du/dt in the shape of u, {tuple(u.shape)}; it gave {given}")
    return rate


def _maps(rate: Rate, u: Field, t: float, mask: Mask | None) -> Tensor:
    at = getattr(rate, "at", None)
    terms: list[Any] = [rate] if at is None else at(t).terms
    for term in terms:
        if getattr(term, "symbol", "") == "A":
            return term.weights(u, mask)
    raise ValueError("attention=True needs an equation with an interaction term")
