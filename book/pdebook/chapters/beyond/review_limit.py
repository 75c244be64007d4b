"""Do trained layers approach a continuous limit as they become many?  (review, next checks, 3)

Stacks of pre-LayerNorm blocks of growing depth L are trained on digits. Two things would show a limit:

- `nearness`, −log₁₀ of |u_T − ũ_T|/|u_T − u_0|: ũ is the state of the network refined four times, each block split into
  four steps of Δt/4 whose weights lie on straight lines between the middles of neighbouring blocks;
- `smoothness`, the cosine of F_{ℓ+1}(u_ℓ) and F_ℓ(u_ℓ), mean over blocks: what two neighbouring blocks add to the same
  state. In a limit it tends to 1.

Both are lists, one value for each depth. `blended_nearness` has straight lines between what neighbouring blocks add in
place of their weights: blocks can do alike with unlike weights. That a network with its blocks split, each with weights
of its own kept (`halved_nearness`), comes nearer with 1/L is true of any weights, and shows nothing.

`scaled`: the branches have the factor Δt = T/L, for which a limit could be. `usual`: Δt = 1. `equal`: as scaled, and
all blocks begin with the weights of the first. Controls of each: `…-shuffled`, the trained blocks in another order;
`…-independent`, in every block the entries of each weight dealt out anew; `…-untrained`, the first weights.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask
from pdelab.metrics.base import norm
from pdelab.metrics.similarity import cosine
from pdelab.models import Model, transformer, with_ends
from pdelab.options import choose
from pdelab.seeds import derive, stream
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.base import Term

DEPTHS = {Scale.SMOKE: (2, 4), Scale.BOOK: (4, 8, 16, 32)}
TRAINING = {Scale.SMOKE: 15, Scale.BOOK: 150}
STARTS = ("scaled", "usual", "equal")
CONTROLS = ("shuffled", "independent", "untrained")
TIME = 4.0
PARTS = 4
LINES = {"": "weights", "blended_": "terms", "halved_": "nothing"}  # word of the figure: between what a line is drawn
DEFINITIONS = {
    "nearness": "-log10 of the change of the last state by refining four times, over its distance from the input",
    "blended_nearness": "the same, with straight lines between the terms of neighbouring blocks",
    "halved_nearness": "the same, each block split with its own weights",
    "smoothness": "cosine of what a block and the next one add to the same state, mean over tokens and blocks",
}


def network(start: str, depth: int, task: Task, data: Dataset, seed: int) -> Model:
    """A stack of `depth` blocks, untrained, between an embedding and a readout."""
    dt = 1.0 if start == "usual" else TIME / depth
    sizes = {"width": task.width, "depth": depth, "heads": task.heads, "hidden": task.hidden}
    core = transformer(**sizes, dt=dt, seed=derive(seed, "blocks", depth))
    if start == "equal":
        first, *rest = core.equation.equations
        for block in rest:
            block.load_state_dict(first.state_dict())
    ends = {"length": data.length, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(seed, "ends"))


class Between(Term):
    """(1 − s) T[u] + s T′[u]: on the straight line between two terms, whatever their weights."""

    symbol: str = ""

    def __init__(self, one: Term, other: Term, s: float):
        super().__init__()
        self.one, self.other, self.s, self.symbol = one, other, s, one.symbol

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return torch.lerp(self.one(u, t, mask), self.other(u, t, mask), self.s)


@torch.no_grad()
def between(blocks: Sequence[MasterEquation], place: float, of: str) -> MasterEquation:
    """The block on the straight line between two neighbours; whole places are blocks, the ends are kept beyond them.

    of: "weights" or "terms".
    """
    place = min(max(place, 0.0), len(blocks) - 1.0)
    before = min(int(place), max(len(blocks) - 2, 0))
    one, other, s = blocks[before], blocks[min(before + 1, len(blocks) - 1)], place - before
    if of == "terms":
        return MasterEquation(*(Between(*pair, s) for pair in zip(one.terms, other.terms, strict=True)))
    made = copy.deepcopy(one)
    for mine, theirs in zip(made.parameters(), other.parameters(), strict=True):
        mine.lerp_(theirs, s)
    return made


def refined(stack: Layered, parts: int = PARTS, of: str = "weights") -> Layered:
    """Each block in `parts` steps of Δt/parts, on straight lines between the middles of neighbouring blocks.

    of: lines between their "weights" or their "terms"; "nothing" keeps each block as it is.
    """
    choose("of", of, LINES.values())
    blocks = list(stack.equations)
    middles = [0.0 if of == "nothing" else (j + 0.5) / parts - 0.5 for j in range(parts)]
    made = [between(blocks, number + middle, of) for number in range(len(blocks)) for middle in middles]
    return Layered(made, stack.dt / parts)


def rearranged(stack: Layered, seed: int) -> Layered:
    """The same blocks in another order."""
    order = torch.randperm(len(stack.equations), generator=stream(seed, "order", len(stack.equations))).tolist()
    return Layered([stack.equations[number] for number in order], stack.dt)


@torch.no_grad()
def dealt_anew(stack: Layered, seed: int) -> Layered:
    """In every block the entries of every weight in an order of its own: sizes stay, nothing else does."""
    made = copy.deepcopy(stack)
    generator = stream(seed, "entries", len(stack.equations))
    for weights in made.parameters():
        order = torch.randperm(weights.numel(), generator=generator).to(weights.device)
        weights.copy_(weights.flatten()[order].view_as(weights))
    return made


def solved(model: Model, stack: Layered, u0: Field) -> Trajectory:
    """The trajectory of another stack from u₀, by the integrator of the model."""
    return solve(stack, u0, steps=len(stack.equations), dt=stack.dt, integrator=model.integrator)


def smoothness(model: Model, stack: Layered, run: Trajectory) -> float:
    """Mean over blocks of cos(F_{ℓ+1}(u_ℓ), F_ℓ(u_ℓ)), F(u) the change of u by one block."""

    def change(block: MasterEquation, u: Field) -> Tensor:
        return model.integrator.step(block, u, 0.0, stack.dt) - u

    pairs = zip(stack.equations[:-1], stack.equations[1:], run.states, strict=False)
    return fmean(cosine(change(after, u), change(block, u)).item() for block, after, u in pairs)


@torch.no_grad()
def figures(model: Model, stack: Layered, u0: Field) -> Figures | None:
    """Nearness and smoothness of a stack; None if it diverges."""
    run = solved(model, stack, u0)
    finer = {word: solved(model, refined(stack, of=of), u0) for word, of in LINES.items()}
    if any(one.status is Status.DIVERGED for one in (run, *finer.values())):
        return None
    path = norm(run.final - u0).item()
    near = {f"{word}nearness": math.log10(path / norm(run.final - one.final).item()) for word, one in finer.items()}
    return near | {"smoothness": smoothness(model, stack, run)}


def examined(model: Model, first: Layered, examples: Examples, seed: int) -> dict[str, Figures | None]:
    """The trained stack, "", and its controls by name; first: the stack before training."""
    with torch.no_grad():
        u0 = model.embed(examples.to(model.readout.weight.device).x)
    trained_one = model.equation
    stacks = {
        "": trained_one,
        "-shuffled": rearranged(trained_one, seed),
        "-independent": dealt_anew(trained_one, seed),
        "-untrained": first,
    }
    return {name: figures(model, stack, u0) for name, stack in stacks.items()}


def grown(start: str, depths: Sequence[int], task: Task, data: Dataset, seed: int, work: Workplace) -> Measured:
    """Train stacks of every depth from one kind of start; one value for each depth, nothing if one diverges."""
    found, rows, accuracies = Measured(), [], []
    for depth in depths:
        model = network(start, depth, task, data, seed)
        first = copy.deepcopy(model.equation).to(work.device)
        settings = replace(task.settings, watch=())
        record = trained(model, data, settings, derive(seed, "training"), work, f"{start} {depth}")
        found.made_by(record.commits)
        seen = None
        if record.status != Status.DIVERGED:
            seen = examined(model, first, data.test.take(slice(0, task.probe)), seed)
        if seen is None or None in seen.values():
            found.diverged[start] = depth
            return found
        rows.append(seen)
        accuracies.append(record.accuracy)
    found.figures[Key(start, "accuracy")] = accuracies
    for name in rows[0]:
        place = found.controls if name else found.figures
        for figure in rows[0][name]:
            place[Key(start + name, figure)] = [row[name][figure] for row in rows]
    return found


@experiment("review_limit", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """How near trained stacks of 4 to 32 blocks are to their own limit, and how alike neighbouring blocks are."""
    task = TASKS["images"][scale].cut(TRAINING[scale])
    data, found = task.load(seed), Measured()
    for start in STARTS:
        found.absorb(grown(start, DEPTHS[scale], task, data, seed, work))
    told = {"depths": list(DEPTHS[scale]), "time": TIME, "parts": PARTS, "review": DEFINITIONS}
    return found.result("review_limit", task, scale, seed, **told)
