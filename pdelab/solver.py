"""solve: from u₀ to every state along the depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask, check_field, check_like, keep_real, same_shape
from pdelab.integrators import Euler, Integrator, Rate
from pdelab.options import flags, function, instance, number, positive, whole
from pdelab.status import Status
from pdelab.terms.base import Takes, Term

OURS = (Term, MasterEquation, Layered)  # called as f(u, t, mask)


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
        if not instance("states", states, list, tuple):
            raise ValueError("states is empty; give the embedding and the output of every layer")
        check_field(states[0], "states[0]", mask=mask)
        for n, u in enumerate(states):
            if not isinstance(u, Tensor) or u.shape != states[0].shape:
                given = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
                raise ValueError(f"states must be tensors of one shape (batch, token, feature); states[{n}] is {given}")
            check_like(u, states[0], f"states[{n}]", "states[0]")
        if attention is not None:
            batch, tokens, _ = states[0].shape
            maps = [tuple(getattr(P, "shape", ())) for P in instance("attention", attention, list, tuple)]
            good = all(len(P) == 4 and (P[0], P[2], P[3]) == (batch, tokens, tokens) for P in maps)
            if not good or len(maps) != len(states) - 1:
                raise ValueError(
                    f"attention must have one map per layer, {len(states) - 1}, (batch, head, token, token); not {maps}"
                )
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
        number("t", t)
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
    weights = next(f.parameters(), None) if isinstance(f, OURS) else None
    u0 = check_field(u0, "u0", mask=mask, weights=weights)
    steps, dt = whole("steps", steps, most=10**9), float(positive("dt", dt))
    flags(attention=attention, throw=throw)
    integrator = Euler() if integrator is None else integrator
    instance("integrator", integrator, Integrator)
    rate = _as_rate(f)
    if isinstance(f, Layered):
        _check_layers(f, steps, dt)
    keep = (lambda u: u) if keep is None else function("keep", keep)
    u, times, states, maps = u0, [0.0], [keep(u0)], []

    def trajectory(status: Status, stopped_at: int | None = None) -> Trajectory:
        seen = tuple(maps) if attention else None
        return Trajectory(tuple(times), tuple(states), u, status, stopped_at, seen, mask)

    for step in range(1, steps + 1):
        if attention:
            maps.append(_maps(rate, u, times[-1], mask))
        after = same_shape(integrator.step(rate, u, times[-1], dt, mask), u)
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


def _check_layers(f: Layered, steps: int, dt: float) -> None:
    """Refuse steps that jump over layers, that stay in the first of several, or are as many as layers and shorter.

    And those that go on behind the last layer, which would be repeated.
    """
    layers, long, constant = len(f.equations), dt / f.dt, f.interpolation == "constant"
    first = long * steps < 1 + 1e-6 and layers > 1 + (not constant)  # between two layers a line is the whole path
    if layers > 1 and abs(long - 1) > 1e-6 and (first or (constant and (long > 1 or steps == layers))):
        raise ValueError(
            f"dt = {dt:.6g} is not the dt = {f.dt:.6g} of the {layers} layers of f, and {steps} steps of it leave "
            f"layers out; take dt={f.dt:.6g}, one step a layer, or dt={f.dt:.6g}/k with steps={layers}*k, k steps each"
        )
    if layers > 1 and long * steps > layers * (1 + 1e-6):
        raise ValueError(
            f"steps must be at most {int(layers / long + 1e-6)}: {steps} steps of dt = {dt:.6g} go beyond the "
            f"{layers} layers of f, each of dt = {f.dt:.6g}, and would repeat the last"
        )


def _as_rate(f: Rate) -> Rate:
    """f as a function of (u, t, mask)."""
    if isinstance(f, OURS):
        return f
    if not callable(f):
        raise ValueError(
            f"f must be a function f(u, t) or f(u) that gives du/dt, or an equation; not {type(f).__name__}"
        )
    takes = Takes.of(f)
    return lambda u, t, mask: takes.rate(f, u, t, mask)


def _maps(rate: Rate, u: Field, t: float, mask: Mask | None) -> Tensor:
    at = getattr(rate, "at", None)
    terms: list[Any] = [rate] if at is None else at(t).terms
    for term in terms:
        if getattr(term, "symbol", "") == "A":
            return term.weights(u, mask)
    raise ValueError("attention=True needs an equation with an interaction term")
