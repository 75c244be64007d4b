"""Which calls of somebody else's model are its layers, and how each was called.

No architecture is known by name. Layers are calls of modules that hand a field on, each getting the very tensor that
the one before gave; or modules that make branches, which the model adds to its stream.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import dropwhile, pairwise, starmap
from typing import Any

import torch
from torch import Tensor, nn

from pdelab.field import Field, described
from pdelab.options import instance
from pdelab.tracing import Tracer
from pdelab.watching import Name, at_layers, left_as_it_was, name_of, tensors, with_first

FIELD = "a field (batch, token, feature)"


class Unreadable(ValueError):
    """A model whose layers, or their branches, were not found; the message says what to do."""


@dataclass(frozen=True)
class Block:
    """One layer, as it was called: `where` are the arguments that are the stream, two in `layer(u, u)`.

    added: whether the model adds what the module makes to the stream, u + f(u), and not the module itself.
    also_given: whether its stream stands in another argument too, as in layer(u, start=u), which keeps what it held.
    """

    name: str
    module: nn.Module
    number: int  # of its calls, where one module is several layers
    where: tuple[int | str, ...]
    added: bool
    args: tuple = ()
    kwargs: Mapping[str, Any] | None = None
    u: Field | None = None
    out: Field | None = None
    also_given: bool = False

    def __call__(self, u: Field) -> Field:
        if not isinstance(u, Tensor) or u.ndim != 3 or u.shape[-1] != self.u.shape[-1]:
            raise ValueError(f"{self.name} maps {FIELD} like {tuple(self.u.shape)}; u is {described(u)}")
        args, kwargs = self.with_stream(self.args, self.kwargs or {}, u.clone())  # it may be changed in place
        graph = torch.is_grad_enabled()
        with left_as_it_was(self.module), torch.set_grad_enabled(graph):
            return self.result(u, self.module.forward(*args, **kwargs))

    def result(self, u: Field, out: Any) -> Field:
        """The stream after the layer, of the module's output."""
        made = next(tensors(out))
        return u + made if self.added else made

    def giving(self, new: Field, u: Field, out: Any) -> Any:
        """The module's output, were the stream after the layer `new`."""
        return with_first(out, new - u if self.added else new)

    def stream(self, args: tuple, kwargs: Mapping[str, Any]) -> Field:
        place = self.where[0]
        return args[place] if isinstance(place, int) else kwargs[place]

    def with_stream(self, args: tuple, kwargs: Mapping[str, Any], u: Field) -> tuple[tuple, dict[str, Any]]:
        given = tuple(u if place in self.where else x for place, x in enumerate(args))
        return given, {place: u if place in self.where else x for place, x in kwargs.items()}


@dataclass
class Call:
    """One call of a module, its `number`-th, which makes the field `made` of one of the fields that it was given.

    given: the places and the shape of every tensor that may be the stream.
    """

    name: str
    module: nn.Module
    number: int
    depth: int
    given: dict[Name, tuple[list[int | str], torch.Size]]
    alive: list[Tensor]  # kept, so that no other tensor gets their ids
    made: Name | None = None

    @property
    def container(self) -> str:
        return self.name.rpartition(".")[0]


def find_layers(
    model: nn.Module, run: Callable[[], Any], named: Sequence[str | nn.Module] | None
) -> tuple[list[Block], tuple[str, ...]]:
    """The layers, the longest row or the calls of the modules that were named; and which others there are."""
    calls, axes = calls_of(model, run)
    notes: tuple[str, ...] = ()
    lacking = "; tensors (token, feature) were seen: add an axis of examples, as x[None] does" if axes == {2} else ""
    if named is None:
        row, others = stages_of(calls)
        left = next((call for call in calls if _belongs(call, row)), None)
        if (not row or left) and (pair := added_between(calls, run)):
            raise Unreadable(_added_by_the_model(*pair))
        if not row:
            raise Unreadable(
                f"no two modules in a row of {type(model).__name__} map {FIELD} to one"
                + (lacking or "; put each layer into a module that does. blocks=[…] reads one layer alone")
            )
        if left:
            layers = _around(calls, row)
            if len(layers) > 1:
                raise Unreadable(
                    f"{_span(layers)} do not hand on the very tensor that they made, each to the next; "
                    f"{_advice(layers)}"
                )
            alone = [f"; blocks=[{one.name!r}] reads {one.name or 'the model'} as one layer" for one in layers]
            raise Unreadable(
                f"{left.name} does not get what {_span(row)} hand on; move what happens between into it, or give "
                f"blocks=[…] that get {FIELD} and give it first, as the next one gets it{''.join(alone)}"
            )
        calls = row
        notes = tuple(
            f"not read: {_span(other)} of width {other[0].alive[-1].shape[-1]}; {_advice(other)}" for other in others
        )
    else:
        modules = dict(model.named_modules())
        instance("blocks", named, list, tuple, nn.ModuleList)
        wanted = [modules.get(block) if isinstance(block, str) else block for block in named]
        for block, module in zip(named, wanted, strict=True):
            if not any(module is known for known in modules.values()):
                raise ValueError(f"blocks must be names or modules of the model; {block!r} is none of them")
        everything, calls = calls, [call for call in calls if any(call.module is module for module in wanted)]
        if not calls:
            raise Unreadable(
                f"no module of blocks, when the model runs, maps {FIELD} to one of its shape"
                + (lacking or "; give modules that do")
            )
        for one, other in pairwise(calls):
            behind = everything[everything.index(one) + 1 : everything.index(other)]
            gap = [call.name for call in behind if (call.container, call.depth) == (one.container, one.depth)]
            if gap and not hands_on(one, other) and not is_added(one, other):
                raise Unreadable(
                    f"between {one.name} and {other.name} runs {gap[0]}, which blocks leaves out; name it too"
                )
        if pair := added_between(calls, run):
            raise Unreadable(_added_by_the_model(*pair))
    added = len(calls) > 1 and all(is_added(*pair) for pair in pairwise(calls))

    wheres = []
    for n, call in enumerate(calls):
        made = calls[n - 1].made if n and not added else None
        wheres.append((call.given.get(made) or next(iter(call.given.values())))[0])
    if len(wheres) > 1 and (usual := set(wheres[0]) & set(wheres[1])):  # the first may get its stream as a start too
        wheres[0] = [place for place in wheres[0] if place in usual]
    blocks = [
        Block(call.name, call.module, call.number, tuple(where), added)
        for call, where in zip(calls, wheres, strict=True)
    ]
    return blocks, notes


def _added_by_the_model(one: Call, other: Call) -> str:
    between = f"between {one.name} and {other.name}" if one.name != other.name else f"between two calls of {one.name}"
    return (
        f"{between} the model itself adds something to the stream, such as an embedding of the step; put the addition "
        "and the layer into one module, called as often: u = step(u, i)"
    )


def _belongs(call: Call, row: Sequence[Call]) -> bool:
    """Whether this is a call of a layer like these, in their list, that is not among them."""
    alike = [c for c in row if type(c.module) is type(call.module) and c.depth == call.depth]
    return call.container in {c.container for c in alike} and all(c.module is not call.module for c in row)


def _around(calls: Sequence[Call], row: Sequence[Call]) -> list[Call]:
    """The calls of what the row is a part of, and of modules of its class beside it."""
    own = next((call for call in calls if call.name == row[0].container), None)
    return [c for c in calls if own and type(c.module) is type(own.module) and c.container == own.container]


def _span(calls: Sequence[Call]) -> str:
    first, last = calls[0].name, calls[-1].name
    if first != last:
        return f"{first} to {last}"
    return f"the {len(calls)} calls of {first}" if len(calls) > 1 else first


def _advice(calls: Sequence[Call]) -> str:
    """How to read these layers, which follow each other in the model."""
    if not (all(starmap(hands_on, pairwise(calls))) or all(starmap(is_added, pairwise(calls)))):
        return "move what happens between them into their module"
    more = ", …" if calls[0].name != calls[-1].name else ""
    return f"blocks=[{calls[0].name!r}{more}] reads {'them' if len(calls) > 1 else 'it'}"


def calls_of(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Call], set[int]]:
    """Every call that makes a new field of a field of the same shape, in the order in which they ended.

    Beside them how many axes the tensors of floating-point numbers have that modules get.
    """
    calls: list[Call] = []
    axes: set[int] = set()
    stack: list[Call] = []
    count: dict[nn.Module, int] = defaultdict(int)

    def begin(name: str):
        def hook(module, args, kwargs):
            fields = [
                (place, x)
                for place, x in (*enumerate(args), *kwargs.items())
                if isinstance(x, Tensor) and x.is_floating_point()
            ]
            axes.update(x.ndim for _, x in fields)
            fields = [(place, x) for place, x in fields if x.ndim == 3]
            given: dict[Name, tuple[list[int | str], torch.Size]] = {}
            for place, x in fields:
                given.setdefault(name_of(x), ([], x.shape))[0].append(place)
            stack.append(Call(name, module, count[module], len(stack), given, [x for _, x in fields]))
            count[module] += 1

        return hook

    def end(module, args, kwargs, out):
        call, made = stack.pop(), next(tensors(out), None)
        if made is None or name_of(made) in call.given:
            return
        call.given = {name: (places, shape) for name, (places, shape) in call.given.items() if shape == made.shape}
        call.made = name_of(made)
        call.alive.append(made)
        if call.given:
            calls.append(call)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(begin(name), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(end, with_kwargs=True).remove)
        run()
    return calls, axes


def stages_of(calls: Sequence[Call]) -> tuple[list[Call], list[list[Call]]]:
    """The main chain, or one beside it that is longer; and the others, stages of another width for example.

    They stand in other lists, just as deep: layers of the same classes, or a chain of modules that have parts.
    """
    row = main_chain(calls)
    kinds = {type(call.module) for call in row}
    lists: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if row and call.depth == row[0].depth and any(call.module.children()) and call.name[-1:].isdigit():
            lists[call.container].append(call)
    for place in {call.container for call in row}:
        lists.pop(place, None)
    beside = [row, *(c for c in lists.values() if kinds & {type(call.module) for call in c} or main_chain(c))]
    longest = max(beside, key=lambda calls: (len(chain := main_chain(calls)), _size(chain)))
    return main_chain(longest) if longest is not row else row, [calls for calls in beside if calls is not longest]


def main_chain(calls: Sequence[Call]) -> list[Call]:
    """The row of calls, each getting what the one before made, that holds most weights; of equal ones the longest.

    They are of one class, as the layers of most models are, or stand side by side in one container; or the model adds
    what they make to what they were given.
    """

    def weight(row: list[Call]) -> tuple[int, int]:
        return _size(row), len(row)

    def best(fits: Callable[[Call, Call], bool]) -> list[Call]:
        rows: dict[Name, list[list[Call]]] = defaultdict(list)
        found: list[list[Call]] = []
        for call in reversed(calls):
            after = [r for r in rows[call.made] if r[0].depth == call.depth and fits(call, r[0])]
            row = [call, *max(after, key=len, default=[])]
            for given in call.given:
                rows[given].append(row)
            found.append(row)
        return max((row for row in found if len(row) > 1), key=weight, default=[])

    row = best(lambda one, other: type(one.module) is type(other.module))
    place = row[0].container if row else None
    mixed = best(lambda one, other: one.container == other.container and place in (None, one.container))
    row, added = max(row, _layers_alone(mixed, row), key=weight), _added_row(calls)
    return added if _size(added) > _size(row) else row  # else they are the branches of these layers


def _layers_alone(mixed: Sequence[Call], row: Sequence[Call]) -> list[Call]:
    """Without what stands before and behind the layers: an embedding, a norm or a readout of the stream's own width.

    That is a module without parts where layers have some, or, where modules have names of their own and no numbers, one
    of another class than the row's.
    """
    kinds = {type(call.module) for call in row}
    parts = any(any(call.module.children()) for call in mixed)

    def outside(call: Call) -> bool:
        other = bool(kinds) and type(call.module) not in kinds and not call.name[-1:].isdigit()
        return other or (parts and not any(call.module.children()))

    left = list(dropwhile(outside, mixed))
    left = list(dropwhile(outside, reversed(left)))[::-1]
    return left if len(left) > 1 else list(mixed)


def _size(row: Sequence[Call]) -> int:
    return sum(p.numel() for module in dict.fromkeys(call.module for call in row) for p in module.parameters())


def hands_on(one: Call, other: Call) -> bool:
    """Whether the other call is given what `one` made, or a copy of it."""
    made = one.alive[-1]
    return any(x.dtype == made.dtype and x.equal(made) for x in other.alive[:-1])


def is_added(one: Call, other: Call) -> bool:
    """Whether the model itself adds what `one` makes: the other call is given u + f(u), where this one was given u."""
    made = one.alive[-1]
    streams = [x for x in one.alive[:-1] if name_of(x) in one.given]
    given = [x for x in other.alive if x.shape == made.shape and x.dtype == made.dtype]
    return any(torch.equal(x + made, y) for x in streams for y in given)


def _added_row(calls: Sequence[Call]) -> list[Call]:
    """The longest row of calls that the model adds to its stream, as in u = u + attention(u); u = u + reaction(u)."""
    rows: dict[int, list[list[Call]]] = defaultdict(lambda: [[]])  # for each depth
    for call in calls:
        row = rows[call.depth][-1]
        if row and is_added(row[-1], call):
            row.append(call)
        else:
            rows[call.depth].append([call])
    found = max((row for deep in rows.values() for row in deep), key=len, default=[])
    layers = found[:-1]  # the last may be a norm of what they made, and is a layer only if it is one of their kind
    return found if any(type(found[-1].module) is type(call.module) for call in layers) else layers


def added_between(calls: Sequence[Call], run: Callable[[], Any]) -> tuple[Call, Call] | None:
    """The first two calls, one after the other in a list of alike layers, between which the model adds to the stream.

    The list is the one that holds most weights; branches that the model adds, u + f(u), are layers themselves.
    """
    lists: dict[tuple[str, type], list[Call]] = defaultdict(list)
    for call in calls:
        lists[call.container, type(call.module)].append(call)
    lists_of_more = (row for row in lists.values() if len(row) > 1)
    layers = max(lists_of_more, key=lambda row: (_size(row), len(row)), default=[])
    pairs = [(one, other) for one, other in pairwise(layers) if not hands_on(one, other) and not is_added(one, other)]
    if not pairs:
        return None
    tracer, adding = Tracer(), set()

    def begin(layer, args, kwargs):
        if layer and any(w.kind == "add" for x in tensors((args, kwargs)) for w in tracer.path(x)):
            adding.add(layer - 1)

    def end(layer, args, kwargs, out):
        tracer.begin(next(tensors(out)))

    with at_layers([(call.module, call.number) for call in layers], begin, end), tracer:
        run()
    return next(((layers[n], layers[n + 1]) for n in sorted(adding) if (layers[n], layers[n + 1]) in pairs), None)
