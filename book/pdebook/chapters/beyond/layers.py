"""Which layers can go? Four ways to foresee what dropping a layer costs, and what it does cost.

Dropping layer l, u_{l+1} = u_l in place of u_l + Δ_l, changes the loss by about −Σ_i g_i · Δ_i, with g_i the gradient
of the loss at token i of u_{l+1}. Its bound, token by token, is what the layer carries towards the loss:

| ranking | score of a layer | needs |
|---|---|---|
| transport | Σ_i |g_i| |Δ_i| | a gradient |
| taylor | |Σ_i g_i · Δ_i| | a gradient |
| turning | 1 − cos(u_l, u_{l+1}), mean over tokens | states |
| relative step | |Δ_l|/|u_l|, mean over tokens | states |
| measured | the cost of dropping that layer alone | a run a layer |

Controls know nothing of the network: *middle first* goes by the place alone, the farther from the middle the costlier;
and *chance* is 40 random choices.

Scores are taken on some text or examples and costs on others. Four networks: SmolLM2 and MiniLM, scores on text n,
costs on text n + 1, or sets of sentences, the seed being n; and two pre-LayerNorm Transformers of 12 layers that are
trained here, on digits and on ListOps, with weights from the seed, scores on 200 test examples and costs on 200 others.

How the record is read, fixed before it was made. A fifth of the layers, those with the lowest scores, is dropped at
once: 6 of 30, 1 of 6, 2 of 12. Intervals are Student's over the seeds, of differences within a seed, at 95 % for the
four networks together.

1. On a network transport is *better* than another ranking if the interval of its cost less the other's lies below 0,
   *worse* if above, else *undecided*.
2. It *helps against* a ranking if it is better on at least two of the four networks and worse on none.
3. It *beats chance* on a network if its cost is below the median of the random choices in at least four of five seeds.
4. "Transport helps" is: it helps against turning and against relative step, and beats chance on every network.

Whether it is better than middle first and than taylor is read in the same way, and said, but decides nothing. Rank
correlations with the cost of each layer alone are shown beside, with their intervals; of six layers they say little.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import spearmanr
from torch import Tensor

from pdebook.chapters.beyond.networks import Layer, Network, language, sentences, texts
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import Measured, Task, fit, named
from pdebook.ledger.record import Figures, Key, Result, Summary, interval
from pdelab.datasets.base import Examples
from pdelab.field import Field, token_mean
from pdelab.metrics.base import real_places
from pdelab.models import Model
from pdelab.seeds import stream
from pdelab.status import Status
from pdelab.training import Settings

TASKS = {
    "digits": {
        Scale.SMOKE: Task("digits-rows", Settings(steps=4, batch=16), depth=4, width=8, probe=20),
        Scale.BOOK: Task("digits-rows", Settings(steps=300, rate=3e-3, warmup=30), depth=12),
    },
    "listops": {
        Scale.SMOKE: Task(
            "listops-16-nosm", Settings(steps=4, batch=16), {"train": 100, "test": 40}, depth=4, width=8, probe=20
        ),
        Scale.BOOK: Task(
            "listops-16-nosm",
            Settings(steps=800, rate=3e-3, warmup=80),
            {"train": 20_000, "test": 1_000},
            depth=12,
        ),
    },
}
READ = {"smollm2": language, "minilm": sentences}
NETWORKS = (*READ, *TASKS)
DRAWS = {Scale.SMOKE: 3, Scale.BOOK: 40}
SHARE = 5  # one layer in five goes
RANKINGS, POSITION = ("transport", "taylor", "turning", "relative step", "measured"), "middle first"
RIVALS = ("turning", "relative step")

DEFINITIONS = {
    "score ...": "of each layer, on one text",
    "cost": "loss without each layer less the loss with all, in nats, on another text",
    "rank ...": "Spearman's correlation of the scores with that cost",
    "dropped ...": "the same cost without the fifth of the layers that scores lowest",
    "chance": "the same cost of random choices of as many layers",
    "largest rank by chance": "97.5 % quantile of the rank correlation of random scores",
}


# Networks of our own


def answering(model: Model, examples: Examples) -> Network:
    """A classifier on examples, as layers."""
    examples = examples.to(next(model.parameters()).device)

    def layer(k: int) -> Layer:
        return lambda u: model.integrator.step(model.equation, u, k * model.dt, model.dt, examples.mask)

    return Network(
        layers=tuple(map(layer, range(model.steps))),
        start=model.embed(examples.x).detach(),
        read=lambda u: model.readout(token_mean(u, examples.mask).squeeze(1)),
        targets=examples.y,
        tokens=[],
        mask=examples.mask,
    )


# Scores and costs


def _length(u: Field) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1)


def scores(network: Network) -> dict[str, list[float]]:
    """One number a layer for each ranking but the measured one; more means that it should stay."""
    states = [network.start.clone().requires_grad_()]
    for layer in network.layers:
        states.append(layer(states[-1]))
    gradients = torch.autograd.grad(network.loss(states[-1]), states)[1:]
    states, real = [u.detach() for u in states], real_places(network.start, network.mask)

    found: dict[str, list[float]] = {name: [] for name in RANKINGS[:-1]}
    for u, after, g in zip(states, states[1:], gradients, strict=False):
        step = after - u
        found["transport"].append((_length(g) * _length(step)).sum().item())
        found["taylor"].append((g * step).sum().abs().item())
        found["turning"].append(1 - torch.cosine_similarity(u, after, dim=-1)[real].mean().item())
        found["relative step"].append((_length(step) / _length(u))[real].mean().item())
    return found


@dataclass
class Costs:
    """loss without some layers less the loss with all; what comes before the first of them is computed once."""

    network: Network

    @torch.no_grad()
    def __post_init__(self):
        self.states = [self.network.start]
        for layer in self.network.layers:
            self.states.append(layer(self.states[-1]))
        self.base = self.network.loss(self.states[-1]).item()

    @torch.no_grad()
    def without(self, left_out: Sequence[int]) -> float:
        first = min(left_out)
        u = self.states[first]
        for k in range(first, len(self.network.layers)):
            u = u if k in left_out else self.network.layers[k](u)
        return self.network.loss(u).item() - self.base

    def each(self) -> list[float]:
        return [self.without([k]) for k in range(len(self.network.layers))]


def lowest(values: Sequence[float], number: int) -> list[int]:
    """The places of the lowest values.

    >>> lowest([3.0, 1.0, 2.0], 2)
    [1, 2]
    """
    return sorted(range(len(values)), key=lambda k: values[k])[:number]


def compared(here: Network, there: Network, seed: int, draws: int) -> tuple[Figures, Figures]:
    """Figures and controls of DEFINITIONS: scores on one text, costs on the other."""
    depth, costs = len(here.layers), Costs(there)
    number = max(1, depth // SHARE)
    ranked = scores(here) | {"measured": Costs(here).each()}
    cost = costs.each()
    figures: Figures = {"loss": costs.base, "cost": cost}
    for name, values in ranked.items():
        figures |= {f"score {name}": values} | _judged(name, values, cost, costs, number)

    middle = [abs(k - (depth - 1) / 2) for k in range(depth)]
    orders = [torch.randperm(depth, generator=stream(seed, "chance", n)).tolist() for n in range(draws)]
    by_chance = torch.tensor([_rank(torch.rand(depth, generator=stream(seed, "rank", n)), cost) for n in range(2_000)])
    controls = _judged(POSITION, middle, cost, costs, number)
    controls |= {"chance": [costs.without(order[:number]) for order in orders]}
    return figures, controls | {"largest rank by chance": by_chance.quantile(0.975).item()}


def _rank(values: Sequence[float] | Tensor, cost: Sequence[float]) -> float:
    return float(spearmanr(values, cost).statistic)


def _judged(name: str, values: list[float], cost: list[float], costs: Costs, number: int) -> Figures:
    return {f"rank {name}": _rank(values, cost), f"dropped {name}": costs.without(lowest(values, number))}


# The experiment


@experiment("layers_dropped", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Which layers can go? Transport towards the loss beside size, turning, place and chance, on four networks.

    Seed n: scores on text n of data/texts.yml, costs on the next; and weights of two Transformers trained here.
    """
    found = Measured()
    for name, of in READ.items():
        _add(found, name, compared(of(scale, seed), of(scale, seed + 1), seed, DRAWS[scale]))
    for name, sizes in TASKS.items():
        task = sizes[scale]
        data = task.load(seed)
        model, record = fit("transformer", task, data, seed, work, label=f" {name}")
        found.made_by(record.commits)
        if record.status is Status.DIVERGED:
            found.diverged[name] = record.stopped_at
            continue
        here, there = (data.test.take(slice(k * task.probe, (k + 1) * task.probe)) for k in (0, 1))
        model = model.eval()
        _add(found, name, compared(answering(model, here), answering(model, there), seed, DRAWS[scale]))
        found.figures[Key(name, "accuracy")] = record.accuracy

    settings = {name: sizes[scale].configuration() for name, sizes in TASKS.items()}
    own = {"weights": [] if scale is Scale.SMOKE else list(READ), "texts": list(texts()), "tasks": settings}
    result = found.result("layers_dropped", TASKS["digits"][scale], scale, seed)
    return replace(result, configuration=own | {"definitions": DEFINITIONS})


def _add(found: Measured, name: str, measured: tuple[Figures, Figures]) -> None:
    found.figures |= named(name, measured[0])
    found.controls |= named(name, measured[1])


# Reading the record


@dataclass(frozen=True)
class Row:
    """One network and one ranking over all seeds. beside: cost of dropping by transport less that by this ranking."""

    network: str
    ranking: str
    rank: Summary
    dropped: Summary
    beside: Summary

    @property
    def transport_is(self) -> str:
        if self.beside.high < 0:
            return "better"
        return "worse" if self.beside.low > 0 else "undecided"


def _values(results: Sequence[Result], network: str, figure: str) -> list:
    counted = [r for r in results if network not in r.diverged]
    return [(r.figures | r.controls)[Key(network, figure)] for r in counted]


def rows(results: Sequence[Result]) -> list[Row]:
    """One Row a network and ranking, the control by place among them."""
    made = []
    for network in NETWORKS:
        own = _values(results, network, "dropped transport")
        for name in (*RANKINGS, POSITION):
            theirs = _values(results, network, f"dropped {name}")
            less = [a - b for a, b in zip(own, theirs, strict=True)]
            rank = interval(_values(results, network, f"rank {name}"))
            made.append(Row(network, name, rank, interval(theirs), interval(less, among=len(NETWORKS))))
    return made


def beats_chance(results: Sequence[Result], network: str, ranking: str = "transport") -> int:
    """In how many seeds a ranking costs less than the median of the random choices."""
    own, chance = _values(results, network, f"dropped {ranking}"), _values(results, network, "chance")
    return sum(cost < statistics.median(draws) for cost, draws in zip(own, chance, strict=True))


def rank_by_chance(results: Sequence[Result], network: str) -> float:
    """The rank correlation that 97.5 % of random scores stay below, mean over the seeds."""
    return statistics.fmean(_values(results, network, "largest rank by chance"))


def reading(results: Sequence[Result]) -> dict[str, str]:
    """Against each ranking and chance: helps or not; and "transport helps", which is rule 4 of this module."""
    table = rows(results)

    def helps(ranking: str) -> bool:
        said = [row.transport_is for row in table if row.ranking == ranking]
        return said.count("better") >= 2 and "worse" not in said

    enough = 0.8 * len(results)
    chance = all(beats_chance(results, network) >= enough for network in NETWORKS)
    against = {name: helps(name) for name in (*RANKINGS[1:-1], POSITION)}
    answers = against | {"chance": chance, "transport helps": chance and all(against[name] for name in RIVALS)}
    return {name: "yes" if answer else "no" for name, answer in answers.items()}
