"""A layer's stages: its branches, and their symbols, which are measured.

Tokens of the stream are nudged: a branch that moves at other tokens too is A, one that moves only there is R. What acts
on the stream itself, a norm or a scaling, is S.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pdelab.field import Field, Mask, precise
from pdelab.layers import FIELD, Block, Unreadable
from pdelab.metrics.base import real_places
from pdelab.seeds import stream
from pdelab.tracing import Tracer, Write

UNSPLIT = "take each layer as one step with whole=True"


@dataclass(frozen=True)
class Stage:
    """One summand δ of a layer's step: the stream goes from `before` to `after`.

    symbol: A, R or S. name: of the module inside the layer that made it. Branches that read the same stream are one sum
    and share `before` and `after`.
    causal: whether a branch A looks at earlier tokens only; None for others.
    """

    symbol: str
    name: str
    delta: Field
    before: Field
    after: Field
    causal: bool | None = None

    def __repr__(self) -> str:
        return f"Stage({self.symbol}, {self.name!r}{', causal' if self.causal else ''})"


@dataclass(frozen=True)
class Writes:
    """How a layer writes to its stream.

    For each write its place, after how many writes it reads the stream, and of each of its parts symbol and `causal`.
    """

    places: tuple[int, ...]
    reads: tuple[int, ...]
    kinds: tuple[tuple[tuple[str, bool | None], ...], ...]

    def are(self, writes: Sequence[Write]) -> bool:
        """Whether these are such writes: in the same places, of as many parts, if those have kinds of their own."""
        return self.places == tuple(write.place for write in writes) and all(
            len(kinds) in (1, len(write.parts)) for kinds, write in zip(self.kinds, writes, strict=True)
        )

    @property
    def symbols(self) -> list[list[str]]:
        return [[symbol for symbol, _ in kinds] for kinds in self.kinds]

    def __str__(self) -> str:
        rows = [sorted(symbol for n in group for symbol in self.symbols[n]) for group in self.groups()]
        return "→".join(map("+".join, rows))

    def groups(self) -> list[list[int]]:
        """The numbers of the writes, those in a row that read the same stream together."""
        return [list(group) for _, group in groupby(range(len(self.reads)), key=self.reads.__getitem__)]


def read(
    block: Block, mask: Mask | None, known: Writes | None = None, writes: Sequence[Write] = ()
) -> tuple[tuple[Stage, ...], Writes]:
    """A layer's stages, and how it writes; `writes`: those of the model's run, taken if they are what is known."""
    if known is None or not known.are(writes):
        writes, out = traced(block, block.u)
        _check_again(block, out)
    if not writes:
        raise Unreadable(f"the output of {block.name} is not its input plus branches; {UNSPLIT}")
    if known is None or not known.are(writes):
        judged, seen = _in_single(block, writes)
        found = [
            (_symbols if write.kind == "add" else _symbol_of_scaling)(judged, seen, number, mask)
            for number, write in enumerate(seen)
        ]
        places = tuple(write.place for write in writes)
        known = Writes(places, tuple(read for _, read in found), tuple(tuple(kinds) for kinds, _ in found))

    shape, stages = block.u.shape, []
    for number, write in enumerate(writes):
        kinds = known.kinds[number]
        branches = branches_of(write.parts, write.delta, len(kinds))
        together = next(group for group in known.groups() if number in group)
        before, after = writes[together[0]].before.reshape(shape), writes[together[-1]].after.reshape(shape)
        for (symbol, causal), (name, delta) in zip(kinds, branches, strict=True):
            stages.append(Stage(symbol, name, delta.reshape(shape), before, after, causal))
    _check_sum(block, stages)
    return tuple(stages), known


def read_whole(
    block: Block, mask: Mask | None, known: Writes | None = None, writes: Sequence[Write] = ()
) -> tuple[tuple[Stage, ...], Writes]:
    """A layer as one stage."""
    if known is None:
        _check_again(block, block(block.u))
        symbol = "R"
        for nudged, others in _random_halves(block.u, mask):
            answer = block(torch.where(nudged.unsqueeze(-1), _nudge(block.u), block.u))
            symbol = "A" if _moved(answer, block.out, others) else symbol
        known = Writes((-1,), (0,), (((symbol, None),),))
    delta = (precise(block.out) - precise(block.u)).to(block.u.dtype)
    return (Stage(known.kinds[0][0][0], "", delta, block.u, block.out),), known


def check_alone(first: Block) -> None:
    """Refuse a layer that does not give again what it gave, and examples that touch each other."""
    if first.out.isfinite().all():
        _check_again(first, first(first.u))
    others = torch.arange(len(first.u), device=first.u.device) % 2 == 1
    if others.any():
        moved = first(torch.where(others[:, None, None], first.u, _nudge(first.u)))
        if (precise(moved) - precise(first.out))[others].abs().amax() > _rounding(first.out) * first.out.abs().amax():
            torchs = isinstance(first.module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
            raise Unreadable(
                "examples of a batch change each other; where the stream is (token, batch, feature), "
                + ("set batch_first=True" if torchs else f"let each layer take {FIELD}")
            )


def _check_again(block: Block, out: Field) -> None:
    gap = (precise(out) - precise(block.out)).abs().amax()
    if out.equal(block.out) or (block.also_given and gap <= _rounding(out) * out.abs().amax()):
        return  # attention from a tensor to itself rounds otherwise than to a copy
    raise Unreadable(
        f"{block.name} gives another output when it is run again by itself: it keeps a state between calls, as a "
        "cache of keys and values does, draws random numbers, or a hook or autocast inside the model changes what it "
        "gives; switch that off; a model that makes the cache itself must run without one"
    )


def traced(
    block: Block, u: Field, change: Callable[[Write, Tracer], Tensor | None] | None = None
) -> tuple[list[Write], Field]:
    """The layer run on u: its writes to the stream, none if they do not lead to its output; and the output."""
    tracer, given = Tracer(change), u.clone()
    with tracer.listening(block.module), tracer:
        tracer.begin(given)
        out = block(given)
        return tracer.path(out), out


def _in_single(block: Block, writes: Sequence[Write]) -> tuple[Block, Sequence[Write]]:
    """The layer and its writes in float32, where a branch that hardly looks at other tokens is told from rounding."""
    half = block.u.dtype
    if half not in (torch.float16, torch.bfloat16):
        return block, writes
    single = partial(tree_map_only, Tensor, lambda x: x.float() if x.dtype == half else x)
    module = copy.deepcopy(block.module).float()
    exact = replace(block, module=module, args=single(block.args), kwargs=single(block.kwargs), u=block.u.float())
    seen, _ = traced(exact, exact.u)
    kinds = [[(write.place, write.kind, len(write.parts)) for write in row] for row in (writes, seen)]
    return (exact, seen) if kinds[0] == kinds[1] else (block, writes)


def branches_of(parts: Sequence[tuple[str, Tensor]], delta: Tensor, kinds: int) -> Sequence[tuple[str, Tensor]]:
    """The parts of a write with their names; one branch if all are of one kind, as experts are."""
    if len(parts) == kinds:
        return parts
    return [(" + ".join(dict.fromkeys(name for name, _ in parts)), delta)]


def _check_sum(block: Block, stages: Sequence[Stage]) -> None:
    """u⁺ − u = Σ δ_T, up to the rounding of the additions: 1e-6 of the largest number in float32."""
    total = sum(precise(stage.delta) for stage in stages)
    gap = (precise(block.out) - precise(block.u) - total).abs().amax()
    largest = (precise(x).abs().amax() for s in stages for x in (s.after, s.before, s.delta))  # mostly the first does
    if all(gap > _rounding(block.u) * size for size in largest):
        raise Unreadable(f"the branches of {block.name} miss its step by {gap:.2g}; {UNSPLIT}")


Kinds = list[tuple[str, bool | None]]


def _symbols(block: Block, writes: Sequence[Write], number: int, mask: Mask | None) -> tuple[Kinds, int]:
    """For each part of a write A or R and whether it is causal; and after how many writes the stream is read.

    That is the last one at which a nudge of the stream changes what is written here.
    """
    plain = [part for _, part in writes[number].parts]
    answers = partial(_answers, block, writes, number)
    halves = _random_halves(block.u, mask)
    for point in range(number, -1, -1):
        first = answers(point, halves[0][0])
        if any(not x.equal(y) for x, y in zip(first, plain, strict=True)):
            break

    mixing = [False] * len(plain)
    for (_, others), found in zip(halves, (first, answers(point, halves[1][0])), strict=True):
        mixing = [m or _moved(x, y, others) for m, x, y in zip(mixing, found, plain, strict=True)]
    ahead = [False] * len(plain)
    for later, earlier in _prefixes(block.u, mask) if any(mixing) else ():
        found = answers(point, later)
        ahead = [a or _moved(x, y, earlier) for a, x, y in zip(ahead, found, plain, strict=True)]
    kinds = [("A", not looks) if mixes else ("R", None) for mixes, looks in zip(mixing, ahead, strict=True)]
    return (kinds[:1] if len(set(kinds)) == 1 else kinds), point


def _symbol_of_scaling(block: Block, writes: Sequence[Write], number: int, mask: Mask | None) -> tuple[Kinds, int]:
    """S, what acts on the stream itself, if it treats every token alone."""
    nudged, others = _random_halves(block.u, mask)[0]
    (answer,) = _answers(block, writes, number, number, nudged)
    if _moved(answer, writes[number].delta, others):
        raise Unreadable(f"{block.name} mixes tokens in what acts on its stream, and does not add it; {UNSPLIT}")
    return [("S", None)], number


def _answers(block: Block, writes: Sequence[Write], number: int, point: int, nudged: Tensor) -> list[Tensor]:
    """What write `number` writes, part by part, if these tokens of the stream are nudged after `point` writes."""

    def at(u: Field) -> Field:
        u = u.reshape(block.u.shape)
        return torch.where(nudged.unsqueeze(-1), _nudge(u), u)

    def change(write: Write, tracer: Tracer) -> Tensor | None:
        return at(write.after) if point and write.place == writes[point - 1].place else None

    others, _ = traced(block, block.u if point else at(block.u), change)
    if [w.place for w in others] != [w.place for w in writes]:
        raise Unreadable(f"{block.name} writes elsewhere when its tokens change; {UNSPLIT}")
    found, number_of_parts = others[number], len(writes[number].parts)
    same = len(found.parts) == number_of_parts
    return [part for _, part in found.parts] if same else [found.delta] * number_of_parts


def _nudge(u: Field) -> Field:
    """u with every token moved by its own length, in a random direction: not along u, which a norm would undo."""
    away = torch.randn(u.shape, generator=stream(0, "nudge")).to(u)
    length = u.norm(dim=-1, keepdim=True)
    return u + away / away.norm(dim=-1, keepdim=True) * torch.where(length > 0, length, length.amax())


def _random_halves(u: Field, mask: Mask | None) -> list[tuple[Tensor, Tensor]]:
    """A random half of the real tokens of each sequence, and the other ones; twice, for sequences that are short."""
    real = real_places(u, mask)
    pairs = []
    for draw in range(2):
        order = torch.rand(real.shape, generator=stream(0, "half", draw)).to(u.device)
        rank = torch.where(real, order, 2.0).argsort(dim=1).argsort(dim=1)  # padding last
        half = real & (2 * rank < real.sum(dim=1, keepdim=True))
        pairs.append((half, real & ~half))
    return pairs


def _prefixes(u: Field, mask: Mask | None) -> list[tuple[Tensor, Tensor]]:
    """All but the first token, the second half, and the last token; each with the real tokens before it."""
    real = real_places(u, mask)
    place, number = real.cumsum(dim=1), real.sum(dim=1, keepdim=True)
    cuts = (torch.ones_like(number), number // 2, number - 1)
    return [(real & (place > cut), real & (place <= cut)) for cut in cuts]


def _moved(answer: Tensor, plain: Tensor, tokens: Tensor) -> bool:
    """Whether it differs at these tokens by more than rounding; a router of experts may round otherwise."""
    shape = (*tokens.shape, -1)
    x, y = precise(answer).reshape(shape)[tokens], precise(plain).reshape(shape)[tokens]
    return bool(((x - y).abs().amax(-1) > _rounding(plain) * y.abs().amax(-1)).any())


def _rounding(x: Tensor) -> float:
    return 8 * torch.finfo(x.dtype).eps
