"""Attacks on theorems: a statement is data, and a search that breaks no false neighbour of it has proved nothing.

A score is value/bound, or 1 + (value − bound)/unit where the bound may be 0 or negative, or an error over what rounding
allows: above 1 the statement is false. Scores are made as large as gradient ascent can, from random starts. Every
statement has false neighbours of its own: a wrong law that looks like the right one, or the same bound with one of its
constants a tenth smaller. The same search must break each of them, or the statement does not count.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Key, Result
from pdebook.ledger.rules import ROUNDING, SHRUNK
from pdelab.seeds import normal, stream
from pdelab.status import Status

BOUND = "bound"  # the neighbour of a statement that names none: the whole bound, shrunk

Start = dict[str, Tensor]


@dataclass(frozen=True)
class Statement:
    """score(**variables, **settings): (batch,), at most 1 if the statement is true.

    vary: the variables, by name, with their shapes in letters, and a letter by whose root they are divided at the
        start: {"u": "n d", "W": "m d /m"}.
    sizes: what the letters are; one search for each.
    over: settings with their values; one search for each combination.
    start: changes what was drawn before the search begins, start(seed, **variables) -> variables, as for sizes that
        range over decades.
    wrong: false neighbours by name, each a change of the settings: {"transposed": {"transposed": True}}.
    shrink: constants of the bound, each a keyword of score that multiplies it and is 1 by default; each in turn is set
        to SHRUNK. With neither `wrong` nor `shrink` the neighbour is the whole bound shrunk.
    printed: the statement is the papers', as printed; else it is ours. lemma: it is a step of a proof, theirs or ours;
        it is shown apart and decides nothing.
    each: the false neighbours are searched for in every setting, and it is counted in how many each of them fell; else
        the search for a neighbour ends with the first setting in which it falls.
    Without `vary` there is nothing to climb: score(seed, **settings) draws for itself.
    """

    score: Callable[..., Tensor]
    vary: Mapping[str, str] = field(default_factory=dict)
    sizes: Sequence[Mapping[str, int]] = ({},)
    over: Mapping[str, Sequence] = field(default_factory=dict)
    start: Callable[..., Start] | None = None
    wrong: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    shrink: Sequence[str] = ()
    printed: bool = False
    lemma: bool = False
    each: bool = False
    batch: int = 24
    steps: int = 100
    rate: float = 0.05

    @property
    def role(self) -> str:
        """Under which name its figures are recorded: printed, corrected or lemma."""
        return "lemma" if self.lemma else "printed" if self.printed else "corrected"

    @property
    def says(self) -> str:
        """The statement in one line: the first of its score's documentation."""
        return (self.score.__doc__ or "").partition("\n")[0]

    @property
    def neighbours(self) -> dict[str, Mapping[str, object]]:
        """The false neighbours that are searched for by themselves: a change of the settings each."""
        return dict(self.wrong) | {name: {name: SHRUNK} for name in self.shrink}

    def searches(self, seed: int) -> Iterator[tuple[Mapping[str, object], Start]]:
        """The settings and the start of each search, one for every size and combination of settings."""
        for size, values in product(self.sizes, product(*self.over.values())):
            names = (self.score.__name__, *size.values(), *values)
            drawn = {}
            for key, letters in self.vary.items():
                shape, _, root = letters.partition("/")
                numbers = normal(seed, *names, key, size=(self.batch, *(size[s] for s in shape.split())))
                drawn[key] = numbers / math.sqrt(size.get(root, 1))
            if self.start is not None:
                drawn = self.start(seed, **drawn)
            yield dict(zip(self.over, values, strict=True)), drawn

    def found(self, seed: int, until: float = math.inf, **options: object) -> Iterator[Tensor]:
        """The worst score of each start, setting by setting; options: further settings of the score."""
        if not self.vary:
            for values in product(*self.over.values()):
                yield self.score(seed, **dict(zip(self.over, values, strict=True)), **options)
            return
        for settings, start in self.searches(seed):
            score = partial(self.score, **settings, **options)
            yield ascend(score, start, steps=self.steps, rate=self.rate, until=until)

    def search(self, seed: int, **options: object) -> Tensor:
        """The worst score of each start of all settings; options: further settings of the score."""
        return torch.cat(list(self.found(seed, **options)))

    def breaks(self, seed: int, **false: object) -> int:
        """How many starts broke the false neighbour, in the first setting in which one did; with `each`, in all."""
        return self.fallen(seed, **false)[0]

    def fallen(self, seed: int, **false: object) -> tuple[int, int]:
        """How many starts broke the false neighbour, and in how many settings."""
        counted = (int((one > 1 + ROUNDING).sum()) for one in self.found(seed, until=1 + ROUNDING, **false))
        if self.each or not self.vary:
            counted = list(counted)
            return sum(counted), sum(n > 0 for n in counted)
        first = next((n for n in counted if n), 0)
        return first, int(first > 0)

    def attempt(self, seed: int) -> tuple[dict[str, float], dict[str, int]]:
        """Figures: attempts, violations and the worst score. Controls: how often each false neighbour was broken.

        With `each`, further figures: the number of settings, and of those in which a neighbour fell.
        """
        found = list(self.found(seed))
        scores = torch.cat(found)
        # NaN > 1 is False: a search that found nothing but NaN would pass for one that found no fault
        if not len(scores) or not torch.isfinite(scores).all():
            raise ValueError(f"{self.score.__name__} must give finite scores, at least one; not {scores}")

        fallen = {name: self.fallen(seed, **change) for name, change in self.neighbours.items()}
        if not fallen:
            below = [int((one > SHRUNK).sum()) for one in found]
            fallen = {BOUND: (sum(below), sum(n > 0 for n in below))}
        figures = {
            "attempts": len(scores),
            "violations": int((scores > 1 + ROUNDING).sum()),
            "worst": scores.max().item(),
        }
        if self.each:
            figures["settings"] = len(found)
            figures |= {Key("broken_in", name): settings for name, (_, settings) in fallen.items()}
        return figures, {name: starts for name, (starts, _) in fallen.items()}


def ascend(
    score: Callable[..., Tensor], start: Start, *, steps: int = 100, rate: float = 0.05, until: float = math.inf
) -> Tensor:
    """The largest score that each member of the batch reached on its way up, by Adam on the variables.

    until: stop as soon as one score is above it. A score that is NaN counts as not reached.
    """
    inputs = {name: x.clone().requires_grad_(True) for name, x in start.items()}
    adam = torch.optim.Adam(inputs.values(), lr=rate)
    best = None

    for _ in range(steps):
        value = score(**inputs)
        reached = value.detach().nan_to_num(-torch.inf)
        best = reached if best is None else torch.maximum(best, reached)
        if best.max() > until:
            break

        adam.zero_grad()
        (-value).nan_to_num(0.0).sum().backward()
        adam.step()
    return best


def attack(
    name: str,
    statements: Mapping[str, Statement],
    extra: Callable[[int], tuple[dict[str, float], dict[str, float]]] | None = None,
    **configuration: object,
):
    """An experiment that attacks every statement with one seed, as the rule `attacked` reads it.

    Figures: ROLE/STATEMENT/attempts, …/violations and …/worst, where ROLE is printed, corrected or lemma, and with
    `each` …/settings and …/broken_in/NEIGHBOUR. Controls: ROLE/STATEMENT/broken/NEIGHBOUR. extra: further figures and
    controls of a seed, which decide nothing.
    """

    @experiment(name, Scale.BOOK)
    def run(scale: Scale, seed: int, work: Workplace) -> Result:
        figures, controls = extra(seed) if extra is not None else ({}, {})

        for key, one in statements.items():
            counted, broken = one.attempt(seed)
            figures |= {Key(one.role, key, what): number for what, number in counted.items()}
            controls |= {Key(one.role, key, "broken", neighbour): number for neighbour, number in broken.items()}

        return Result(
            experiment=name,
            configuration={"rounding": ROUNDING, "shrunk": SHRUNK, **configuration},
            scale=scale,
            seed=seed,
            status=Status.FINISHED,
            figures=figures,
            controls=controls,
        )

    run.__doc__ = f"A search for violations of {len(statements)} statements, each beside false neighbours of its own."
    run.statements = dict(statements)
    return run


def over_decades(low: float, high: float, *names: str) -> Callable[..., Start]:
    """A `start` that multiplies each named variable of each example by a size of its own, 10^low to 10^high."""

    def start(seed: int, **drawn: Tensor) -> Start:
        for name in names:
            x = drawn[name]
            power = low + (high - low) * torch.rand(len(x), generator=stream(seed, name, "size"), dtype=x.dtype)
            drawn[name] = x * (10**power).view(-1, *[1] * (x.ndim - 1))
        return drawn

    return start


def over_and_over(values: Sequence, batch: int) -> Tensor:
    """The values in turn, as many as there are examples: (batch,), or (batch, …) for values that are lists."""
    once = torch.tensor(values, dtype=torch.float64)
    return once.repeat(batch, *[1] * (once.ndim - 1))[:batch]


def in_turn(**sizes: Sequence[float]) -> Callable[..., Start]:
    """A `start` that multiplies a variable of example 0, 1, 2, … by its sizes in turn, so that all are tried."""

    def start(seed: int, **drawn: Tensor) -> Start:
        for name, values in sizes.items():
            x = drawn[name]
            factor = over_and_over(values, len(x)).to(x.dtype)
            drawn[name] = x * factor.view(-1, *[1] * (x.ndim - 1))
        return drawn

    return start


def live(run, *, batch: int = 8, steps: int = 20, seed: int = 0) -> dict[str, float]:
    """The worst score of every statement of an attack in a search short enough for a page."""
    short = {name: replace(one, batch=batch, steps=min(steps, one.steps)) for name, one in run.statements.items()}
    return {name: one.search(seed).max().item() for name, one in short.items()}
