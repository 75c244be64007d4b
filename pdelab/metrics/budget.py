"""Who moves the state, and who changes its energy? One step of a run, split between the terms of its equation.

A step is u⁺ − u = Σ_T δ_T with δ_T = Δt · (what term T gave, at the stage where it acted), so both budgets close to
rounding, whatever the weights: ‖u⁺ − u‖² = Σ_T ⟨δ_T, u⁺ − u⟩ and E(u⁺) − E(u) = Σ_T ⟨½(u⁺ + u), δ_T⟩.
Norms and energies are those of `metrics.stability`: per token, averaged over the batch, padding left out. They hold at
every token by itself too: reduce="none". `budget` is for our equations, `budget_of` for the stages of any other model.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask, described, keep_real, lengths
from pdelab.integrators import Euler, Integrator, LieEuler
from pdelab.metrics.base import REDUCTIONS, clean, precise, real_places, reduced
from pdelab.options import choose, flags, instance
from pdelab.solver import Trajectory
from pdelab.terms.base import Term

LEAK = "−u"
CENTRES = ("stage", "step")


@dataclass(frozen=True)
class Budget:
    """One row a step, one column a symbol, in the order in which the terms act.

    energy: ⟨½(w⁺ + w), δ_T⟩, a row sums to E(u⁺) − E(u).
    motion: ⟨δ_T, u⁺ − u⟩, a row sums to ‖u⁺ − u‖².
    size: ‖δ_T‖, which do not add up: terms may cancel.

    All are (step, symbol), or with reduce="none" (step, symbol, batch, token), NaN at padding: there ⟨·, ·⟩ is the
    product of one token, and rows sum as above at each. Medians over the tokens do not add up.
    """

    symbols: tuple[str, ...]
    energy: Tensor
    motion: Tensor
    size: Tensor
    reduce: str = "mean"

    def shares(self) -> Tensor:
        """⟨δ_T, u⁺ − u⟩ / ‖u⁺ − u‖²: rows sum to 1; a term that works against the others has a negative share."""
        if self.reduce == "median":
            raise ValueError("shares need reduce='mean' or 'none', not 'median': medians do not sum to the step")
        return self.motion / self.motion.sum(dim=1, keepdim=True)

    def leaders(self) -> tuple[str, ...]:
        """The symbol with the largest ‖δ_T‖ of each step."""
        if self.reduce == "none":
            raise ValueError("leaders need reduce='mean' or 'median', not 'none': one size a step and symbol")
        return tuple(self.symbols[k] for k in self.size.argmax(dim=1).tolist())


@torch.no_grad()
def budget(
    equation: MasterEquation | Layered,
    run: Trajectory,
    integrator: Integrator,
    *,
    centre: str = "stage",
    leak: bool = False,
    reduce: str = "mean",
) -> Budget:
    """E(u⁺) − E(u) = Σ_T ⟨½(w⁺ + w), δ_T⟩ for every step of a run that `integrator` made with `equation`.

    integrator: Euler, where every term acts on u, or LieEuler, where each acts on what the ones before it left.
    centre: "stage", w → w⁺ is the term's own stage of the step; or "step", w = u and w⁺ = u⁺ for every term. Both sum
    to the same; in a sweep they differ, since two terms in turn share a product that belongs to neither. For Euler
    there is one stage, and no difference.
    leak: count the −u of P2 eq 5 and 6 apart, under the symbol −u (for P2 eq 19 this is −H W_O u).
    reduce: over the tokens, "mean", "median" or "none".

    >>> from pdelab import Diffusion, MasterEquation, solve
    >>> heat = MasterEquation(Diffusion(0.1))
    >>> run = solve(heat, torch.tensor([[[0.0], [1.0]]]), steps=1, dt=1.0)
    >>> [round(x, 6) for x in budget(heat, run, Euler()).energy[0].tolist()]
    [-0.12]
    """
    instance("equation", equation, MasterEquation, Layered)
    flags(leak=leak)
    if type(integrator) not in (Euler, LieEuler):
        raise ValueError(
            "integrator must be Euler() or LieEuler(), whose steps are sums over the terms; "
            f"not {type(integrator).__name__}"
        )
    if not isinstance(run, Trajectory) or len(run.states) < 2 or not _is_field(run.states[0]):
        raise ValueError("run must be a Trajectory with two states or more, made without keep")
    states = [keep_real(u, run.mask) for u in run.states]

    def steps() -> Iterator[tuple[list[Stage], Field, Field]]:
        for (t, after_t), (u, after) in zip(pairwise(run.times), pairwise(states), strict=True):
            stages = list(_stages(equation, integrator, u, t, after_t - t, run.mask, leak))
            if not _closes(stages, u, after, torch.finfo(u.dtype).eps):
                raise ValueError(
                    "run was not made by this equation and integrator: a step from its states leads elsewhere "
                    "(a model's final norm changes its last state, too)"
                )
            yield stages, u, after

    return _split(steps(), run.mask, centre, reduce)


def _is_field(state: object) -> bool:
    return isinstance(state, Tensor) and state.ndim == 3


Stage = tuple[str, Field, Field, Field]  # symbol, δ_T, and the states w, w⁺ before and after the stage


@torch.no_grad()
def budget_of(
    steps: Iterable[Sequence[Stage]], mask: Mask | None = None, *, centre: str = "stage", reduce: str = "mean"
) -> Budget:
    """The same from the stages of any model: for each step a list of (symbol, δ_T, w, w⁺). Steps are taken one by one.

    A step leads from u, the w of its first stage, to u⁺, the w⁺ of its last; its δ_T must sum to u⁺ − u. Terms that
    act one after the other have w⁺ = w + δ_T each; terms that act at once have w = u and w⁺ = u⁺ all.

    >>> u, attention, reaction = torch.ones(1, 2, 3), torch.ones(1, 2, 3), -torch.ones(1, 2, 3)
    >>> step = [("A", attention, u, u + attention), ("R", reaction, u + attention, u)]
    >>> budget_of([step]).energy.tolist()
    [[4.5, -4.5]]
    """
    if not isinstance(steps, Iterable) or isinstance(steps, Tensor):
        raise ValueError(f"steps must be a list of steps, each a list of stages; not {described(steps)}")
    return _split(_checked(steps, mask), mask, centre, reduce)


def _checked(steps: Iterable[Sequence[Stage]], mask: Mask | None) -> Iterator[tuple[list[Stage], Field, Field]]:
    """Each step with its first and last state, in float32 at least."""
    for number, step in enumerate(steps):
        stages = list(step) if isinstance(step, Sequence) else []
        if not stages or not all(isinstance(s, tuple) and len(s) == 4 and isinstance(s[0], str) for s in stages):
            raise ValueError(f"steps[{number}] must be a list of stages (symbol, δ, w, w⁺); not {described(step)}")
        given = [x for _, *fields in stages for x in fields]
        stages = [(s, *(clean(x, mask, f"steps[{number}] ({s})") for x in fields)) for s, *fields in stages]
        u, after = stages[0][2], stages[-1][3]
        if any(x.shape != u.shape for x in given):
            raise ValueError(f"steps[{number}] must hold fields of one shape, {tuple(u.shape)}")
        if not _closes(stages, u, after, max(torch.finfo(x.dtype).eps for x in given)):
            raise ValueError(f"steps[{number}] does not close: its δ must sum to the last w⁺ less the first w")
        yield stages, u, after


def _split(steps: Iterator[tuple[list[Stage], Field, Field]], mask: Mask | None, centre: str, reduce: str) -> Budget:
    choose("centre", centre, CENTRES)
    choose("reduce", reduce, REDUCTIONS)
    rows = [_row(stages, u, after, mask, centre, reduce) for stages, u, after in steps]
    if not rows:
        raise ValueError("steps must hold at least one step; it is empty")
    symbols = tuple(dict.fromkeys(symbol for row in rows for symbol in row))

    def table(number: int) -> Tensor:
        zero = rows[0][next(iter(rows[0]))][number] * 0
        return torch.stack([torch.stack([row[s][number] if s in row else zero for s in symbols]) for row in rows])

    return Budget(symbols, table(0), table(1), table(2), reduce)


def _stages(
    equation: MasterEquation | Layered,
    integrator: Integrator,
    u: Field,
    t: float,
    dt: float,
    mask: Mask | None,
    leak: bool,
) -> Iterator[Stage]:
    start, rest = u, []
    for term in equation.at(t).terms:
        rate = term(start, t, mask)
        parts = _parts(term, start, rate, mask, leak)
        if type(integrator) is LieEuler:
            after = start + dt * rate
            yield from ((symbol, dt * part, start, after) for symbol, part in parts)
            start = after
        else:
            rest += [(symbol, dt * part) for symbol, part in parts]
    if rest:
        after = u + sum(part for _, part in rest)
        yield from ((symbol, part, u, after) for symbol, part in rest)


def _parts(term: Term, u: Field, rate: Field, mask: Mask | None, leak: bool) -> list[tuple[str, Field]]:
    leaked = term.leaked(u, mask) if leak else None
    if leaked is None:
        return [(term.symbol, rate)]
    return [(term.symbol, rate - leaked), (LEAK, leaked)]


def _closes(stages: list[Stage], u: Field, after: Field, eps: float) -> bool:
    """Whether the stages lead from u to after, up to roundings of size eps."""
    if u.is_meta:
        return True
    parts = [precise(part) for _, part, _, _ in stages]
    scale = sum(x.abs().amax() for x in (precise(u), precise(after), *parts))
    # another attention kernel may round otherwise; in half precision a thousand roundings would let anything pass
    rounding = min(1e3 * eps, 0.05)
    return not (precise(u) + sum(parts) - precise(after)).abs().amax() > rounding * scale


def _row(
    stages: list[Stage], u: Field, after: Field, mask: Mask | None, centre: str, reduce: str
) -> dict[str, tuple[Tensor, ...]]:
    """symbol -> energy, motion and size, with the stages of one symbol added."""
    whole, product = after - u, _mean_product if reduce == "mean" else _token_products
    energy: dict[str, Tensor] = {}
    parts: dict[str, Field] = {}
    for symbol, part, before, behind in stages:
        middle = (before + behind) / 2 if centre == "stage" else (u + after) / 2
        energy[symbol] = energy.get(symbol, 0) + product(middle, part, mask)
        parts[symbol] = parts.get(symbol, 0) + part
    row = {s: (energy[s], product(p, whole, mask), product(p, p, mask).sqrt()) for s, p in parts.items()}
    if reduce != "mean":  # of the sum over the stages of a symbol, not of each
        row = {s: tuple(reduced(x, real_places(u, mask), reduce) for x in found) for s, found in row.items()}
    return row


def _token_products(u: Field, v: Field, mask: Mask | None) -> Tensor:
    """u_i · v_i: (batch, token)."""
    return (precise(u) * precise(v)).sum(dim=-1)


def _mean_product(u: Field, v: Field, mask: Mask | None) -> Tensor:
    """⟨u, v⟩ = (1/N) Σ_i u_i · v_i, averaged over the batch."""
    return ((precise(u) * precise(v)).sum(dim=(1, 2), keepdim=True) / lengths(precise(u), mask)).mean()
