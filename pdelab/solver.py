"""solve: from u₀ to every state along the depth."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask, check_field, check_like, keep_real, same_shape
from pdelab.integrators import Euler, Integrator, Rate
from pdelab.options import flags, function, instance, number, positive, whole
from pdelab.status import Status
from pdelab.terms.base import Takes, Term
from pdelab.terms.interaction import Interaction
from pdelab.terms.stabilization import PreNorm

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
        finite = [_finite(keep_real(u, mask)) for u in states]
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
    recompute: bool = False,
) -> Trajectory:
    """du/dt = F(u, t), u(0) = u₀: `steps` steps of size Δt, every state kept.

    f: a Term, MasterEquation or Layered, or any function f(u), f(u, t) or f(u, t, mask) that gives du/dt.
    u0: (batch, token, feature); mask: (batch, token), True where a token is real; integrator: Euler() unless given.
    keep: a statistic to store in place of each state, where memory matters.
    attention: store the maps of the interaction term at the start of each step. Where the term acts on that state, they
    are computed once and the step uses them: then states differ by rounding from those of the fused kernel.
    A state that is no longer finite ends the run with status DIVERGED, or raises Diverged if `throw`.
    recompute: for the gradient store states alone, and compute the rest again where backward needs it: the same
    gradient, of weights too, in memory that grows with √steps where `keep` stores little, and by one state a step where
    every state is kept. It takes a third longer where f is large, as one more run does, and up to three times as long
    where the calls take longer than the numbers (96 layers of width 16). f must be a Term, an equation or another
    Module if it has weights; backward runs it as it is by then, so f.eval() before it gives another gradient, and
    BatchNorm counts twice. Of what f keeps for a later step, as a weight that it has computed, the gradient is right or
    backward fails. There are no second derivatives.

    >>> run = solve(lambda u: -u, torch.ones(1, 1, 1), steps=2, dt=0.5)
    >>> [state.item() for state in run.states]
    [1.0, 0.5, 0.25]
    """
    u0 = check_field(u0, "u0", mask=mask, weights=next(f.parameters(), None) if isinstance(f, OURS) else None)
    steps, dt = whole("steps", steps, most=10**9), float(positive("dt", dt))
    flags(attention=attention, throw=throw, recompute=recompute)
    integrator = Euler() if integrator is None else integrator
    instance("integrator", integrator, Integrator)
    rate = _as_rate(f)
    if isinstance(f, Layered):
        _check_layers(f, steps, dt)
    kept = (lambda u: u) if keep is None else function("keep", keep)
    recompute = recompute and torch.is_grad_enabled() and not u0.is_meta
    length = max(1, math.isqrt(steps) // 2) if recompute and keep else 1  # where every state is kept, each is a start

    def part(u: Field, first: int) -> list[Field]:
        """The states after the next `length` steps, while they are finite."""
        found = []
        for step in range(first, min(first + length, steps)):
            u = same_shape(integrator.advance(rate, u, step * dt, dt, mask), u)
            if not _finite(u):
                break
            found.append(u)
        return found

    def weights(first: int) -> list[Tensor]:
        return _weights(f, first * dt, (first + length) * dt)

    u, states, maps, ahead = u0, [kept(u0)], [], iter(())
    for step in range(steps):
        term, seen = _interaction(rate, step * dt) if attention else None, []
        if step % length == 0:
            known = weights(step) if recompute else []
            again = recompute and (u.requires_grad or known)  # else there is no gradient that it would pass on
            with _seeing(None if recompute else term, u, seen):
                ahead = iter(_Recomputed.apply(part, weights, step, mask, u, *known) if again else part(u, step))
        if term is not None:
            maps.append(seen[0] if seen else term.weights(u, mask))
        after = next(ahead, None)
        if after is None:
            break
        u = after
        states.append(kept(u))

    stopped_at = len(states) if len(states) <= steps else None
    if stopped_at and throw:
        raise Diverged(
            f"the state is not finite after step {stopped_at} of {steps} (t = {stopped_at * dt:.4g}); try a smaller dt"
        )
    status = Status.DIVERGED if stopped_at else Status.FINISHED
    times = tuple(step * dt for step in range(len(states)))
    return Trajectory(times, tuple(states), u, status, stopped_at, tuple(maps) if attention else None, mask)


def _finite(u: Field) -> bool:
    """Whether every entry is: their sum is a quick look, which only an overflow deceives."""
    return u.is_meta or math.isfinite(u.detach().sum().item()) or bool(torch.isfinite(u).all())


def _weights(f: Rate, start: float, end: float) -> list[Tensor]:
    """The parameters and buffers that want a gradient, of the layers that act between two times if f has layers."""
    if isinstance(f, Layered):
        first, last = f._place(start)[0], f._place(end)[0]
        f = f.equations[first : last + 2]  # the last may be joined to the next by a line
    known = [*f.parameters(), *f.buffers()] if isinstance(f, torch.nn.Module) else []
    return [weight for weight in known if weight.requires_grad]


def _refuse_other_weights(known: list[Tensor], after: Field) -> None:
    """Refuse steps in whose graph there is a weight that is not among the known: its gradient would be lost."""
    seen, todo = {weight.grad_fn for weight in known}, [after.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not any(leaf is weight for weight in known):
            raise ValueError(
                f"recompute=True needs every weight of f as its parameter, and a tensor {tuple(leaf.shape)} that "
                "requires a gradient is none; give f as a Term, an equation or a torch.nn.Module that keeps no field "
                "of an earlier step"
            )
        todo += [before for before, _ in node.next_functions]


def _random_states(device: torch.device) -> list[Tensor]:
    """Of the generator of the CPU, and of that of the device if it is another."""
    return [torch.get_rng_state(), *(getattr(torch, kind).get_rng_state(device) for kind in {device.type} - {"cpu"})]


@contextmanager
def _drawing_again(states: list[Tensor], device: torch.device) -> Iterator[None]:
    first, *others = states
    with torch.random.fork_rng([device for _ in others], device_type=device.type):
        torch.set_rng_state(first)
        for state in others:
            getattr(torch, device.type).set_rng_state(state, device)
        yield


class _Recomputed(torch.autograd.Function):
    """The states that part(u, step) gives; their graph is made when backward comes by, and gone behind it.

    torch.utils.checkpoint makes the nodes of that graph in forward already: between so many small pieces freed memory
    is not used again, and on a CPU the process grows to several times the size.
    """

    @staticmethod
    def forward(
        ctx: Any, part: Callable, weights: Callable, step: int, mask: Mask | None, u: Field, *known: Tensor
    ) -> tuple[Field, ...]:
        kind = u.device.type
        ctx.part, ctx.weights, ctx.step, ctx.known = part, weights, step, known
        ctx.drawn = _random_states(u.device)
        ctx.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        ctx.save_for_backward(mask, u, *known)  # which notices a change in place
        ctx.set_materialize_grads(False)
        with torch.enable_grad():  # what f keeps for a later step must lead back to what it was made of
            return tuple(after.detach() for after in part(u.detach().requires_grad_(), step))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        _, u, *_ = ctx.saved_tensors
        known = ctx.known  # the weights themselves, as a hook of checkpoints may have saved copies
        seen = [n for n, gradient in enumerate(gradients) if gradient is not None]
        if not seen:
            return (None,) * (5 + len(known))
        if list(map(id, ctx.weights(ctx.step))) != list(map(id, known)):
            raise ValueError("recompute=True needs f with the weights of the run; call backward before they change")

        start = u.detach().requires_grad_()
        with torch.enable_grad(), ctx.autocast, _drawing_again(ctx.drawn, u.device):
            found = ctx.part(start, ctx.step)
        _refuse_other_weights([start, *known], found[-1])
        after, given = [found[n] for n in seen], [gradients[n] for n in seen]
        return *[None] * 4, *torch.autograd.grad(after, [start, *known], given, allow_unused=True)


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


def _interaction(rate: Rate, t: float) -> Any:
    """The term that has attention maps."""
    at = getattr(rate, "at", None)
    terms: list[Any] = [rate] if at is None else at(t).terms
    for term in terms:
        if getattr(term, "symbol", "") == "A":
            return term
    raise ValueError("attention=True needs an equation with an interaction term")


@contextmanager
def _seeing(term: Any, u: Field, seen: list[Tensor]) -> Iterator[None]:
    """If the term acts on the state u itself, `seen` takes the maps with which it does, and none are computed twice."""
    inside = term.term if isinstance(term, PreNorm) else term
    if not isinstance(inside, Interaction):
        yield
        return

    def ask(_: Term, given: tuple, options: dict) -> tuple | None:
        return (given, options | {"maps": seen}) if given[0] is u and not seen else None

    hook = term.register_forward_pre_hook(ask, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
