"""A trained Transformer run backward, half a layer at a time, and what its states tell, counted.

Half a layer is u + f(u), f attention or FFN behind LayerNorm. Newton's method looks for the v with v + f(v) = w, from
v = w. Three things may happen: it finds u again; it finds *another* state with the same image, so that the half layer
is not injective; or it finds none.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pdebook.evidence import countable
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Figures, Key, Result
from pdelab.field import Field
from pdelab.formulas import per_example
from pdelab.integrators import LieEuler
from pdelab.metrics.information import rows
from pdelab.metrics.jacobian import jacobian
from pdelab.models import Model

SOLVED = 1e-11  # |v + f(v) − w| over |w|
SAME, OTHER = 1e-6, 1e-3  # max|v − u|: below the first it is u, above the second it is not
EVERY = {Scale.SMOKE: 128, Scale.BOOK: 16}  # of the 512 inputs, one in so many is run backward
STEPS = {Scale.SMOKE: 20, Scale.BOOK: 300}  # of the training


def undo(f: Callable[[Field], Field], w: Field, iterations: int = 30) -> tuple[Field, Tensor]:
    """v with v + f(v) = w by Newton's method from v = w, and which examples it solved, (batch).

    A step that does not bring an example closer is halved up to seven times; after that the example stays where it is.
    """
    size, v = w[0].numel(), w
    gap = w - v - f(v)

    for _ in range(iterations):
        matrix = jacobian(f, v).reshape(-1, size, size) + torch.eye(size, dtype=w.dtype)
        # where the matrix is singular the step is not finite, and no part of it comes closer
        step = torch.linalg.solve_ex(matrix, gap.flatten(1)).result.view_as(w)
        part = w.new_ones(len(w))

        for _ in range(8):
            there = v + per_example(part) * step
            left = w - there - f(there)
            closer = length(left) < length(gap)
            if closer.all():
                break
            part = torch.where(closer, part, part / 2)

        v, gap = (torch.where(per_example(closer), new, old) for new, old in ((there, v), (left, gap)))
        if not closer.any():
            break
    return v, length(gap) < SOLVED * length(w)


def length(u: Field) -> Tensor:
    """|u| of every example, (batch)."""
    return u.flatten(1).norm(dim=1)


@torch.no_grad()
def halves(model: Model, u: Field) -> dict[str, list[float]]:
    """For each half layer in turn, from its exact output: the largest slope ‖f'(u)‖ over the examples, and the shares
    of them for which Newton's method finds the state again, and another state with the same image."""
    if not isinstance(model.integrator, LieEuler):
        raise ValueError(f"the model must sweep through its terms (LieEuler); not {type(model.integrator).__name__}")
    found: dict[str, list[float]] = {"slope": [], "again": [], "another": []}

    for own in model.equation.equations:
        for f in own.terms:
            w = u + f(u)
            v, solved = undo(f, w)
            away = (v - u).abs().amax(dim=(1, 2))
            slopes = torch.linalg.matrix_norm(jacobian(f, u).flatten(3).flatten(1, 2), 2)
            found["slope"].append(slopes.max().item())
            found["again"].append((solved & (away < SAME)).double().mean().item())
            found["another"].append((solved & (away > OTHER)).double().mean().item())
            u = w
    return found


def counts(states: list[Field], y: Tensor) -> dict[str, list[float]]:
    """I(X; ·) and I(Y; ·) of the whole state and of the mean over tokens, counted, one value a state."""
    return {
        f"{of} {name}": [countable.counted(rows(u, of=of), labels) for u in states]
        for of in ("whole", "mean")
        for name, labels in (("X", None), ("Y", y))
    }


@experiment("layers_undone", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A Transformer on nine bits run backward, half a layer at a time, and its information counted (P2 thm 3.5).

    Controls: the same network before training.
    """
    x = countable.inputs()
    y = countable.parities(x)
    model = countable.build(seed)
    figures: Figures = {}
    controls: Figures = {}

    for into, kind in ((controls, "untrained"), (figures, "trained")):
        if kind == "trained":
            figures[Key(kind, "accuracy")] = countable.fit(model, x, y, STEPS[scale])
        states = list(countable.states(model, x).states)
        precise = model.double()
        found = halves(precise, states[0][:: EVERY[scale]]) | counts(states, y)
        model.float()
        into |= {Key(kind, name): values for name, values in found.items()}

    return Result(
        experiment="layers_undone",
        configuration={"every": EVERY[scale], "steps": STEPS[scale], "bits": countable.BITS},
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )
