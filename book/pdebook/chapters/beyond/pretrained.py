"""Is depth time in a network that nobody trained for this book? Its layers, taken otherwise, and what that costs.

Layer l is one step of Euler's method, u⁺ = u + F_l(u), if F_l(u) = Φ_l(u) − u is a rate and its step is 1. Then

- inside a layer a finer step should change little: two steps of ½ or four of ¼, Heun, RK4, half steps of the branches;
- across layers the rate should change slowly: F_l may stand for its neighbour F_{l+1} (hold), two neighbours may change
  places (swap), and every second layer may be left out if the others take a step of 2;
- branches that are terms of one rate may all read u (sum), or act in another order (R first).

Changes are made to the inner layers, all but the first and the last, in all of them at once. What they cost is the loss
in nats above that of the network as it is. Beside it:

- *noise*: the same network, with every changed layer or pair of layers given back its own output plus a random
  perturbation, at every token as long as what the change does there;
- *shuffled tokens*, the same change on the text in random order; and
- *untrained*, on the same network with random weights; its loss tells nothing, so read kl and moved.

Doses of noise are recorded too: a random perturbation of every inner layer, a share of the step at every token.

How the record is read, fixed before it was made. A text, or for minilm a set of sentences, is one seed; intervals are
Student's over the seeds.

1. A change is *small* if the interval of cost/cost(skip), text by text, lies below 0.1, *large* if it lies above 0.5,
   else *between*; skip leaves every second inner layer out.
2. It is *gentler than noise* if the interval of cost less the noise's cost lies below 0, *worse than noise* if above,
   at 95 % for all changes of one network together, else *like noise*.
3. Depth is time inside a layer: yes if half, quarter, Heun and RK4 are all small; no if one is large; else undecided.
   Across layers: the same of hold, swap and skip at double step. In the order of branches: the same of sum and R first.

*Noise elsewhere*, the experiment beyond_noise, is noise that spares the token with the largest write. It was asked for
after the record was seen, in which noise there may be all that harms; cost less its cost is read by rule 2, too.

For minilm, kept is Spearman's correlation of the cosines of all pairs of sentences with those of the network as it is,
and 1 − kept is read in 1 in place of the cost. In a first trial, matching pieces of running text, leaving layers out
lowered the loss, so that cost/cost(skip) meant nothing; sentences with the same in other words were taken then. Where
what skip does is not above 0 in every text, the size is *without measure*.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from scipy.stats import spearmanr
from torch import Tensor

from pdebook.chapters.beyond.networks import Layer, Network, branches, language, sentences, texts
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Figures, Key, Result, Summary, interval, summarise
from pdelab.field import Field
from pdelab.integrators import RK4, Euler, Heun, Integrator
from pdelab.metrics.base import real_places
from pdelab.recording import At, Recording
from pdelab.seeds import derive, stream

DOSES = (0.05, 0.1, 0.2, 0.4, 0.8)
FINER, ACROSS, ORDER = ("half", "quarter", "Heun", "RK4"), ("hold", "swap", "skip, double step"), ("sum", "R first")
SMALL, LARGE = 0.1, 0.5

DEFINITIONS = {
    "half": "each inner layer twice at step 1/2: u + F(u)/2",
    "quarter": "each inner layer four times at step 1/4",
    "Heun": "one step of Heun's method with the rate F of the layer",
    "RK4": "one step of the method of Runge and Kutta with the rate F of the layer",
    "half branches": "each inner layer twice, every branch and norm times 1/2",
    "half the time": "each inner layer once, at step 1/2",
    "repeat": "each inner layer twice, at step 1",
    "skip": "every second inner layer left out",
    "skip, double step": "the same, the others at step 2",
    "hold": "every second inner layer replaced by the one before it",
    "swap": "inner layers 1 and 2, 3 and 4, ... change places",
    "shuffle": "the inner layers in a random order",
    "sum": "R reads the layer's input; what A left goes on",
    "Euler": "every branch and norm reads the layer's input, and all are added",
    "R first": "R with its norm before A with its norm",
    "without the write": "the largest write, as the energy budget finds it, left out at its token",
    "without its sublayer": "left out at all tokens",
    "without the rest of it": "left out at all tokens but that one",
    "without another token's": "left out at the token in the middle of the text",
    "cost": "loss above that of the network as it is, in nats a question",
    "kl": "divergence of its answers from those of the network as it is, in nats a question",
    "moved": "|difference of the last state|/|last state|, median over tokens",
    "kept": "Spearman's correlation of the cosines of all pairs of sentences with those of the network as it is",
    "deviation": "|perturbation|/|step|, median over tokens, mean over changed layers, in the run with noise",
}

WORDS = DEFINITIONS | {  # as rows of a table have it, where no line stands before them
    "skip, double step": "every second left out, the rest at double step",
    "sum": "A and R both read the input",
    "without its sublayer": "its branch left out at all tokens",
    "without the rest of it": "its branch left out at all tokens but that one",
    "without another token's": "its branch left out at the token in the middle of the text",
}


# Changes


@dataclass(frozen=True)
class Part:
    """One layer or some in a row: as they are, and as they are to be."""

    plain: Layer
    changed: Layer


@dataclass(frozen=True)
class Stack:
    """The layers of a network, and a recording of each by itself."""

    layers: tuple[Layer, ...]
    alone: tuple[Recording, ...]

    def same(self, layer: int) -> Part:
        return Part(self.layers[layer], self.layers[layer])

    def each(self, change: Callable[[int], Layer]) -> list[Part]:
        """Every inner layer by itself."""
        last = len(self.layers) - 1
        inner = [Part(self.layers[layer], change(layer)) for layer in range(1, last)]
        return [self.same(0), *inner, self.same(last)]

    def pairs(self, change: Callable[[Layer, Layer], Layer]) -> list[Part]:
        """Inner layers 1 and 2, 3 and 4, …; one that is left over stays."""
        f, last = self.layers, len(self.layers) - 1
        changed = [Part(chain(f[k], f[k + 1]), change(f[k], f[k + 1])) for k in range(1, last - 1, 2)]
        rest = [self.same(layer) for layer in range(2 * len(changed) + 1, last + 1)]
        return [self.same(0), *changed, *rest]

    def rewritten(self, layer: int, write: Callable[[], Callable[[At, Field, Field], Field | None]]) -> Layer:
        """The layer on another stream; `write` makes the function anew for every run, as it may remember."""
        return lambda u: self.alone[layer].rewrite(write(), inputs=u)

    def reaction(self, layer: int) -> int:
        """The number of the write that is R."""
        return [stage.symbol for stage in self.alone[layer].stages[0]].index("R")


def chain(*layers: Layer) -> Layer:
    """u ↦ … f_2(f_1(u))."""

    def run(u: Field) -> Field:
        for layer in layers:
            u = layer(u)
        return u

    return run


def stepped(f: Layer, method: Integrator, h: float = 1.0, number: int = 1) -> Layer:
    """So many steps of a method for u' = F(u) = f(u) − u, each of length h. One step of Euler with h = 1 is f.

    >>> halved = stepped(lambda u: 3 * u, Euler(), 0.5, 2)
    >>> halved(torch.ones(1, 1, 1)).item()
    4.0
    """
    return chain(*[lambda u: method.step(lambda w, t, mask: f(w) - w, u, 0.0, h)] * number)


def read_early(reaction: int) -> Callable[[At, Field, Field], Field]:
    """R reads the layer's input u; what the writes before it left goes on, with δ_R added."""
    kept: dict[str, Field] = {}

    def write(at: At, u: Field, delta: Field) -> Field:
        if at.write == 0:
            kept["input"] = u
        if at.write == reaction - 1:
            kept["stream"] = u + delta
            return kept["input"]
        return (kept["stream"] if at.write == reaction else u) + delta

    return write


def read_once(writes: int) -> Callable[[At, Field, Field], Field]:
    """All read the layer's input: u + Σδ."""
    deltas: list[Field] = []

    def write(at: At, u: Field, delta: Field) -> Field:
        deltas.append(delta)
        return u + sum(deltas) if at.write == writes - 1 else u

    return write


def only(kept: Callable[[int], bool]) -> Callable[[At, Field, Field], Field | None]:
    """Leave out every write but these."""
    return lambda at, u, delta: None if kept(at.write) else u


def changes(stack: Stack, seed: int) -> dict[str, list[Part]]:
    """Every change by its name; DEFINITIONS says what each is."""
    f, last = stack.layers, len(stack.layers) - 1

    def euler(h: float, number: int) -> list[Part]:
        return stack.each(lambda k: stepped(f[k], Euler(), h, number))

    def reaction_first(k: int) -> Layer:
        r = stack.reaction(k)
        after, before = (stack.rewritten(k, partial(only, kept)) for kept in (lambda n: n >= r, lambda n: n < r))
        return chain(after, before)

    def half_branches(k: int) -> Layer:
        return chain(*[stack.rewritten(k, lambda: lambda at, u, delta: u + delta / 2)] * 2)

    order = (torch.randperm(last - 1, generator=stream(seed, "layers")) + 1).tolist()
    return {
        "half": euler(1 / 2, 2),
        "quarter": euler(1 / 4, 4),
        "Heun": stack.each(lambda k: stepped(f[k], Heun())),
        "RK4": stack.each(lambda k: stepped(f[k], RK4())),
        "half branches": stack.each(half_branches),
        "half the time": euler(1 / 2, 1),
        "repeat": euler(1.0, 2),
        "skip": stack.pairs(lambda one, two: one),
        "skip, double step": stack.pairs(lambda one, two: stepped(one, Euler(), 2.0)),
        "hold": stack.pairs(lambda one, two: chain(one, one)),
        "swap": stack.pairs(lambda one, two: chain(two, one)),
        "shuffle": [stack.same(0), Part(chain(*f[1:last]), chain(*(f[k] for k in order))), stack.same(last)],
        "sum": stack.each(lambda k: stack.rewritten(k, partial(read_early, stack.reaction(k)))),
        "Euler": stack.each(lambda k: stack.rewritten(k, partial(read_once, len(stack.alone[k].stages[0])))),
        "R first": stack.each(reaction_first),
    }


# The largest write


@dataclass(frozen=True)
class Largest:
    """The branch, A or R, that adds most energy to a token: where, and the energy of every layer and symbol there."""

    layer: int
    write: int
    symbol: str
    token: int
    energy: dict[str, list[float]]
    usual: float  # the median over the tokens of what this branch adds


def largest(stack: Stack) -> Largest:
    """By the energy budget of every layer, token by token, mean over the pieces of text."""
    budgets = [one.budget(reduce="none") for one in stack.alone]
    symbols = budgets[0].symbols
    energy = torch.stack([b.energy[0].nanmean(dim=1) for b in budgets])  # (layer, symbol, token)
    added = energy.clone()
    added[:, [k for k, symbol in enumerate(symbols) if symbol == "S"]] = -torch.inf
    layer, symbol, token = (int(k) for k in torch.unravel_index(added.nan_to_num(-torch.inf).argmax(), added.shape))
    stages = [stage.symbol for stage in stack.alone[layer].stages[0]]
    return Largest(
        layer=layer,
        write=stages.index(symbols[symbol]),
        symbol=symbols[symbol],
        token=token,
        energy={name: energy[:, k, token].tolist() for k, name in enumerate(symbols)},
        usual=energy[layer, symbol].nanmedian().item(),
    )


def without(stack: Stack, found: Largest) -> dict[str, list[Part]]:
    """The largest write left out at its token, at all, at all others, and at another token alone."""
    tokens = stack.alone[0].trajectory.states[0].shape[1]
    here = torch.arange(tokens) == found.token
    where = {
        "without the write": here,
        "without its sublayer": here | True,
        "without the rest of it": ~here,
        "without another token's": torch.arange(tokens) == tokens // 2,
    }

    def dropped(at: At, u: Field, delta: Field, chosen: Tensor) -> Field | None:
        return torch.where(chosen.to(u.device)[:, None], u, u + delta) if at.write == found.write else None

    parts = [stack.same(k) for k in range(len(stack.layers))]
    made = {}
    for name, chosen in where.items():
        changed = stack.rewritten(found.layer, lambda chosen=chosen: partial(dropped, chosen=chosen))
        one = Part(stack.layers[found.layer], changed)
        made[name] = [*parts[: found.layer], one, *parts[found.layer + 1 :]]
    return made


# Noise


def _length(u: Field) -> Tensor:
    return torch.linalg.vector_norm(u, dim=-1, keepdim=True)


def noisy(
    parts: Sequence[Part],
    seed: int,
    real: Tensor,
    deviations: list[float],
    share: float | None = None,
    spared: int | None = None,
) -> list[Layer]:
    """Each changed part as it is, plus a random direction times |changed − plain|, token by token.

    share: times so much of |plain − u| in its place. deviations: gets |perturbation|/|plain − u| of every changed part.
    spared: a token that is left as it is.
    """

    def perturbed(number: int, part: Part) -> Layer:
        def run(u: Field) -> Field:
            plain = part.plain(u)
            step = _length(plain - u)
            size = share * step if share is not None else _length(part.changed(u) - plain)
            deviations.append((size / step)[real].median().item())
            if spared is not None:
                size[:, spared] = 0
            away = torch.randn(u.shape, generator=stream(seed, "noise", number)).to(u)
            return plain + size * away / _length(away)

        return run

    return [p.plain if p.plain is p.changed else perturbed(k, p) for k, p in enumerate(parts)]


# What is measured


def scored(network: Network, base: Field, layers: Sequence[Layer]) -> Figures:
    """cost, kl, moved and, where sentences are compared, kept."""
    u = network.run(layers)
    real = real_places(u, network.mask)
    found = {
        "cost": (network.loss(u) - network.loss(base)).item(),
        "kl": network.divergence(base, u),
        "moved": (_length(u - base) / _length(base))[real].median().item(),
    }
    if network.embed is not None:
        found["kept"] = kept(network.embed(base), network.embed(u))
    return found


def kept(one: Tensor, other: Tensor) -> float:
    """Spearman's correlation of the products of all pairs of rows.

    >>> kept(torch.eye(3)[[0, 0, 1]], 2 * torch.eye(3)[[0, 0, 1]])
    1.0
    """
    upper = torch.triu_indices(len(one), len(one), 1)
    first, second = ((e @ e.T)[upper[0], upper[1]] for e in (one, other))
    return float(spearmanr(first.cpu().numpy(), second.cpu().numpy()).statistic)


@torch.no_grad()
def measured(network: Network, seed: int, noise: bool = False) -> tuple[Figures, Figures]:
    """Figures of all changes, CHANGE/figure; and with noise the same of each one's noise, and of doses of it."""
    stack = Stack(network.layers, branches(network))
    base, found = network.run(), largest(stack)
    plan = changes(stack, seed) | without(stack, found)
    figures: Figures = {"loss": network.loss(base).item(), "tokens": network.tokens}
    figures |= {f"largest write/{name}": float(getattr(found, name)) for name in ("layer", "token", "usual")}
    figures |= {Key("energy at that token", symbol): values for symbol, values in found.energy.items()}
    for name, parts in plan.items():
        figures |= _named(name, scored(network, base, [part.changed for part in parts]))
    return figures, _noise(network, base, stack, plan, seed) if noise else {}


def _noise(
    network: Network, base: Field, stack: Stack, plan: dict[str, list[Part]], seed: int, spared: int | None = None
) -> Figures:
    found: Figures = {}
    real = real_places(base, network.mask)
    for name, parts in plan.items():
        deviations: list[float] = []
        values = scored(network, base, noisy(parts, derive(seed, name), real, deviations, spared=spared))
        found |= _named(name, values | {"deviation": sum(deviations) / len(deviations)}, "noise ")
    inner = stack.each(lambda k: lambda u: u)
    runs = [noisy(inner, derive(seed, "dose"), real, [], share, spared) for share in DOSES]
    found_at = [scored(network, base, layers) for layers in runs]
    return found | {Key("noise", name): [dose[name] for dose in found_at] for name in found_at[0]}


def _named(change: str, values: Figures, prefix: str = "") -> Figures:
    return {Key(change, prefix + name): value for name, value in values.items()}


def _result(name: str, weights: str, of: Callable[..., Network], scale: Scale, seed: int) -> Result:
    figures, controls = measured(of(scale, seed), seed, noise=True)
    for arm, options in (("shuffled tokens ", {"mixed": True}), ("untrained ", {"weights": seed})):
        for key, value in measured(of(scale, seed, **options), seed)[0].items():
            change, _, figure = key.rpartition("/")
            controls[Key(change, arm + figure) if change else arm + figure] = value
    needs = [] if scale is Scale.SMOKE else [weights]
    own = {"weights": needs, "texts": list(texts()), "doses": list(DOSES), "definitions": DEFINITIONS}
    return Result(name, own, scale, seed, "finished", figures, controls)


@experiment("beyond_steps", Scale.SMOKE, Scale.BOOK)
def steps(scale: Scale, seed: int, work: Workplace) -> Result:
    """Is depth time in SmolLM2? Layers halved, skipped, held, swapped and summed, beside noise of equal size.

    Seed n is text n of data/texts.yml.
    """
    return _result("beyond_steps", "smollm2", language, scale, seed)


@experiment("beyond_sentences", Scale.SMOKE, Scale.BOOK)
def compared(scale: Scale, seed: int, work: Workplace) -> Result:
    """Is depth time in MiniLM? The same changes, and what is left of the similarity of sentences.

    Seed n is set n of the pairs in data/texts.yml.
    """
    return _result("beyond_sentences", "minilm", sentences, scale, seed)


@torch.no_grad()
def _elsewhere(network: Network, seed: int) -> Figures:
    """The noise of every change, but none at the token that gets the largest write."""
    stack = Stack(network.layers, branches(network))
    return _noise(network, network.run(), stack, changes(stack, seed), seed, spared=largest(stack).token)


@experiment("beyond_noise", Scale.SMOKE, Scale.BOOK)
def noise_elsewhere(scale: Scale, seed: int, work: Workplace) -> Result:
    """The noise beside changed layers of SmolLM2 and MiniLM once more, sparing the token with the largest write.

    Asked after the record of the changes was seen: that token alone may be what noise destroys. NETWORK/CHANGE/figure.
    """
    found: Figures = {}
    for name, of in (("smollm2", language), ("minilm", sentences)):
        found |= {Key(name, key): value for key, value in _elsewhere(of(scale, seed), seed).items()}
    needs = [] if scale is Scale.SMOKE else ["smollm2", "minilm"]
    own = {"weights": needs, "texts": list(texts()), "doses": list(DOSES), "definitions": DEFINITIONS}
    return Result("beyond_noise", own, scale, seed, "finished", {}, found)


# Reading the record


@dataclass(frozen=True)
class Row:
    """One change over all texts. share: of what skip does, as rule 1 has it; beside_noise: cost less its noise's."""

    change: str
    cost: Summary
    share: Summary
    noise: Summary
    beside_noise: Summary
    deviation: Summary

    @property
    def size(self) -> str:
        if math.isnan(self.share.mean):
            return "without measure"
        if self.share.high < SMALL:
            return "small"
        return "large" if self.share.low > LARGE else "between"

    @property
    def against_noise(self) -> str:
        return against(self.beside_noise)


def against(less: Summary) -> str:
    """Rule 2 in words, of a cost less its noise's."""
    if less.high < 0:
        return "gentler than noise"
    return "worse than noise" if less.low > 0 else "like noise"


def names(results: Sequence[Result]) -> list[str]:
    """The changes that are recorded."""
    return [key.rpartition("/")[0] for key in results[0].figures if key.endswith("/cost")]


def rows(results: Sequence[Result]) -> list[Row]:
    """One Row a change, in the order in which they were made."""
    chosen = sorted(names(results), key=list(DEFINITIONS).index)

    def values(change: str, figure: str, control: bool = False) -> list[float]:
        return [(r.controls if control else r.figures)[Key(change, figure)] for r in results]

    def harm(change: str) -> list[float]:
        similar = Key(change, "kept") in results[0].figures
        return [1 - kept for kept in values(change, "kept")] if similar else values(change, "cost")

    def share(change: str) -> Summary:
        if min(harm("skip")) <= 0:
            return Summary(math.nan, math.nan, math.nan, len(results), 0)
        return interval([a / b for a, b in zip(harm(change), harm("skip"), strict=True)])

    made = []
    for change in chosen:
        cost, noise = values(change, "cost"), values(change, "noise cost", control=True)
        made.append(
            Row(
                change,
                interval(cost),
                share(change),
                interval(noise),
                interval([a - b for a, b in zip(cost, noise, strict=True)], among=len(chosen)),
                interval(values(change, "noise deviation", control=True)),
            )
        )
    return made


def dissimilarity(results: Sequence[Result]) -> dict[str, Summary]:
    """change -> 1 − kept less that of its noise, for minilm; asked for after the record was seen, read by rule 2."""
    chosen = sorted(names(results), key=list(DEFINITIONS).index)

    def less(change: str) -> list[float]:
        return [r.controls[Key(change, "noise kept")] - r.figures[Key(change, "kept")] for r in results]

    return {change: interval(less(change), among=len(chosen)) for change in chosen}


def reading(results: Sequence[Result]) -> dict[str, str]:
    """Whether depth is time inside a layer, across layers and in the order of branches: yes, no or undecided."""
    size = {row.change: row.size for row in rows(results)}
    groups = {"inside a layer": FINER, "across layers": ACROSS, "order of branches": ORDER}

    def answer(found: set[str]) -> str:
        return "yes" if found == {"small"} else "no" if "large" in found else "undecided"

    return {name: answer({size[change] for change in group}) for name, group in groups.items()}


def doses(results: Sequence[Result]) -> list[tuple[float, Summary]]:
    """(share of the step, cost) of a random perturbation of every inner layer."""
    costs = zip(*(r.controls[Key("noise", "cost")] for r in results), strict=True)
    return [(share, interval(values)) for share, values in zip(DOSES, costs, strict=True)]


def energies(results: Sequence[Result]) -> dict[str, list[Summary]]:
    """symbol -> energy that it adds, layer by layer, to the token with the largest write."""
    keys = [key for key in results[0].figures if key.startswith("energy at that token/")]
    return {key.rpartition("/")[2]: summarise(results, key) for key in keys}


def elsewhere(results: Sequence[Result], noise: Sequence[Result], network: str) -> dict[str, Summary]:
    """change -> its cost less that of noise which spares the token with the largest write; by rule 2."""
    spared = {r.seed: r.controls for r in noise}
    known = [key.split("/")[1] for key in noise[0].controls if key.startswith(network) and key.endswith("/noise cost")]
    known.sort(key=list(DEFINITIONS).index)

    def less(change: str) -> list[float]:
        return [r.figures[Key(change, "cost")] - spared[r.seed][Key(network, change, "noise cost")] for r in results]

    return {change: interval(less(change), among=len(known)) for change in known}
