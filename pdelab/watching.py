"""Watch somebody else's model run: which of its calls are its layers, and what each layer adds to the stream.

Nothing here knows an architecture by name. Layers are calls of modules that hand a field on, each getting the very
tensor that the one before gave. Inside a layer every operation is seen by a dispatch mode, and the path of the stream
is followed from the layer's input to its output: additions to it are branches, norms and scalings of it are S.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pdelab.field import Field
from pdelab.metrics.base import no_fast_path

ADDITIONS = {"add", "add_", "sub", "sub_"}
NORMS = {"native_layer_norm", "_fused_rms_norm", "native_group_norm"}
SCALINGS = {"mul", "mul_", "div", "div_"}
COPIES = {"view", "_unsafe_view", "reshape", "clone", "_to_copy", "alias", "detach", "unsqueeze", "squeeze", "expand"}

Name = tuple[int, int]  # what a tensor held at one time: its id, and how often it had been changed in place


def name_of(t: Tensor, changes: int = 0) -> Name:
    """changes: how many are under way; inside a dispatch mode torch has not counted the one that is being made."""
    return id(t), 0 if t.is_inference() else t._version + changes


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples, lists, mappings and model outputs, in their order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        yield from tensors(list(x.values()))
    elif isinstance(x, (tuple, list)):
        for part in x:
            yield from tensors(part)


def copied(x: Any) -> Any:
    """x with its tensors copied: a model may change its inputs in place."""
    return tree_map_only(Tensor, Tensor.clone, x)


def with_first(x: Any, new: Tensor) -> Any:
    """x, a module's output, with its first tensor replaced."""
    if isinstance(x, Tensor):
        return new
    if isinstance(x, Mapping):
        first = next(k for k, v in x.items() if next(tensors(v), None) is not None)
        return type(x)({**x, first: with_first(x[first], new)})
    first = next(i for i, v in enumerate(x) if next(tensors(v), None) is not None)
    parts = [with_first(v, new) if i == first else v for i, v in enumerate(x)]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)  # a named tuple takes them one by one


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without a fused fast path, nothing compiled; all as before at the end."""
    training = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with no_fast_path(), _uncompiled():
            yield
    finally:
        for part, was in training.items():
            part.training = was


def _uncompiled() -> AbstractContextManager:
    """Layers that torch.compile wrapped run as they were written: compiled ones round otherwise, and hide additions."""
    used = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")  # from torch 2.6 on
    return torch.compiler.set_stance("force_eager") if used else nullcontext()


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, no fused fast path; these, buffers and the random state as before at the end."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    attributes = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    bits = [(buffer, name_of(buffer), buffer.clone()) for buffer in model.buffers()]
    try:
        with evaluating(model), torch.random.fork_rng(devices), torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for module, held, buffers in attributes:
            vars(module).clear()  # also the attributes that go with a buffer, such as how far it is filled
            vars(module).update(held)
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, name, held in bits:
                if name_of(buffer) != name or not buffer.equal(held):  # one that counts, or keeps statistics
                    buffer.copy_(held)


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
    longest = max(beside, key=lambda calls: (len(chain := main_chain(calls)), _weights(chain)))
    return main_chain(longest) if longest is not row else row, [calls for calls in beside if calls is not longest]


def main_chain(calls: Sequence[Call]) -> list[Call]:
    """The row of calls, each getting what the one before made, that holds most weights; of equal ones the longest.

    They are of one class, as the layers of most models are, or stand side by side in one container; or the model adds
    what they make to what they were given.
    """

    def weight(row: list[Call]) -> tuple[int, int]:
        return _weights(row), len(row)

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
    return added if _weights(added) > _weights(row) else row  # else they are the branches of these layers


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


def _weights(row: Sequence[Call]) -> int:
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


@contextmanager
def at_layers(
    layers: Sequence[tuple[nn.Module, int]],
    begin: Callable[[int, tuple, dict[str, Any]], tuple[tuple, dict[str, Any]] | None],
    end: Callable[[int, tuple, dict[str, Any], Any], Any],
) -> Iterator[None]:
    """Call `begin` before and `end` after each layer; what they return takes the place of its arguments, its output.

    layers: the module, and which of its calls it is: one module may be several layers.
    """
    numbers = {layer: n for n, layer in enumerate(layers)}
    count: dict[nn.Module, int] = defaultdict(int)

    def before(module, args, kwargs):
        layer = numbers.get((module, count[module]))
        return None if layer is None else begin(layer, args, kwargs)

    def after(module, args, kwargs, out):
        layer = numbers.get((module, count[module]))
        count[module] += 1
        return None if layer is None else end(layer, args, kwargs, out)

    with ExitStack() as hooks:
        for module in dict.fromkeys(module for module, _ in layers):
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        yield


@contextmanager
def padding_seen(layer: nn.Module, model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """Where tokens are real, as torch's attention of this layer to its own tokens is told.

    And, under the name of an embedding with a padding index, where tokens have another.
    """
    seen: list[tuple[str, Tensor]] = []

    def attention(module, args, kwargs):
        given = dict(zip(("query", "key", "value", "key_padding_mask"), args, strict=False)) | kwargs
        if given.get("key_padding_mask") is not None and given["query"] is given["key"]:
            seen.append(("", given["key_padding_mask"] == 0))  # True or −∞ at padding

    def embedding(name: str):
        def hook(module, args):
            if args and (padding := args[0] == module.padding_idx).any():
                seen.append((name, ~padding))

        return hook

    with ExitStack() as hooks:
        for part in layer.modules():
            if isinstance(part, nn.MultiheadAttention):
                hooks.callback(part.register_forward_pre_hook(attention, with_kwargs=True).remove)
        for name, part in model.named_modules():
            if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                hooks.callback(part.register_forward_pre_hook(embedding(name)).remove)
        yield seen


@dataclass
class Write:
    """One operation on the stream, from `before` to `after`; `place` counts those of the layer before it.

    added: what an addition adds, times `sign`, and `branch` its name. parent: the name of the stream that it acts on.
    parts: the summands of what it added, each with the name of the module that made it. All tensors are copies: the
    model may go on to change its own in place.
    """

    place: int
    kind: str  # add, norm or scale
    parent: Name
    before: Tensor
    after: Tensor
    added: Tensor | None = None
    branch: Name | None = None
    sign: float = 1.0
    steps: int = 0  # operations since the layer's input
    maker: str = ""  # the module per feature that wrote it, a norm for one
    parts: Sequence[tuple[str, Tensor]] = ()

    @property
    def delta(self) -> Tensor:
        """What it adds to the stream, in the stream's shape."""
        if self.added is None:
            return self.after - self.before
        delta = self.added if self.sign == 1.0 else self.sign * self.added
        return torch.broadcast_to(delta, self.before.shape)


Change = Callable[[Write, "Tracer"], Tensor | None]  # another stream after this operation; None leaves it


class Tracer(TorchDispatchMode):
    """Follows the stream through one layer, from `begin(u)` to `path(out)`.

    change: may replace the stream after each operation on it. What a module of the layer gave is one branch, however
    the module made it.
    """

    def __init__(self, change: Change | None = None):
        super().__init__()
        self.change, self.active = change, False
        self.quiet = 0  # above 0 in what is no operation of the layer
        self.norm: str | None = None  # the module per feature that runs: in it only additions to the stream are seen
        self.alive: list[Tensor] = []
        self.copies: dict[Name, Tensor] = {}

    def begin(self, u: Field) -> None:
        self.active, self.place, self.size = True, 0, u.numel()
        start = name_of(u)
        self.copies = {name: copy for name, copy in self.copies.items() if name == start}
        self.alive = [u]
        self.stream: dict[Name, Write | None] = {start: None}
        self.sums: dict[Name, tuple[tuple[Name, Tensor, float], ...]] = {}
        self.makers: dict[Name, tuple[str, ...]] = {}  # of a branch: the modules that made it, factors of a product

    def copy(self, x: Tensor) -> Tensor:
        """What x holds: the copy that is there, if it still holds that, as not every change in place is counted."""
        name = name_of(x)
        if name not in self.copies or not self.copies[name].equal(x):
            self.alive.append(x)
            self.copies[name] = x.clone()
        return self.copies[name]

    def path(self, out: Tensor) -> list[Write]:
        """The operations between the layer's input and this output, in order; none if it is not on the stream."""
        self.active = False
        writes, name = [], name_of(out)
        while name in self.stream and self.stream[name] is not None:
            writes.append(self.stream[name])
            name = writes[-1].parent
        if name not in self.stream or out.numel() != self.size:
            return []
        for write in writes:
            write.parts = self.parts(write)
        return writes[::-1]

    def parts(self, write: Write) -> list[tuple[str, Tensor]]:
        """The summands of what this operation added, each with the name of the module that made it."""
        if write.branch is None:
            return [(write.maker, write.delta)]
        leaves = self._leaves(write.branch, write.added, write.sign)
        if len(leaves) == 1:
            return [(self._name(write.branch) or write.maker, write.delta)]
        shape = write.before.shape
        return [(self._name(name), torch.broadcast_to(sign * x, shape)) for name, x, sign in leaves]

    def _name(self, branch: Name) -> str:
        return " · ".join(self.makers.get(branch, ()))

    def _leaves(self, name: Name, x: Tensor, sign: float) -> list[tuple[Name, Tensor, float]]:
        if name not in self.sums or name in self.makers:  # what a module gave is one branch, however it made it
            return [(name, x, sign)]
        return [leaf for inner, y, s in self.sums[name] for leaf in self._leaves(inner, y, sign * s)]

    # what happens inside the layer

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.active or self.quiet or not args or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        operation, name = func.overloadpacket.__name__, name_of(args[0])
        if self.norm is not None and not (operation in ADDITIONS and self._shifts(*args[:2])):
            return func(*args, **kwargs)
        if operation in ADDITIONS and isinstance(args[1], Tensor):
            return self._add(func, args, kwargs)
        if operation in COPIES:
            return self._copy(func, args, kwargs)
        if name in self.stream and (operation in NORMS or (operation in SCALINGS and _constant(args[1]))):
            return self._act(func, args, kwargs)
        if (
            operation == "mul"
            and _constant(args[0])
            and isinstance(args[1], Tensor)
            and name_of(args[1]) in self.stream
        ):
            return self._act(func, (args[1], args[0]), kwargs)
        out = func(*args, **kwargs)
        if operation in SCALINGS:
            self._scale_sum(operation, args, out)
        if isinstance(out, Tensor) and out.numel() == self.size:
            # a branch that is scaled or put in another order, or a product of several
            factors = args[:2] if operation in SCALINGS else args[:1]
            found = [one for x in factors if isinstance(x, Tensor) for one in self.makers.get(name_of(x), ())]
            if found:
                self.makers[name_of(out, operation.endswith("_"))] = tuple(dict.fromkeys(found))
                self.alive.append(out)
        return out

    def _shifts(self, one: Tensor, other: Any) -> bool:
        """Whether one of them is the stream, and the other one number per feature."""
        pairs = ((one, other), (other, one)) if isinstance(other, Tensor) else ()
        return any(name_of(u) in self.stream and _constant(shift) for u, shift in pairs)

    def _scale_sum(self, operation: str, args: tuple, out: Tensor) -> None:
        """A sum of branches times a constant is the sum of the branches times that constant."""
        times = operation.startswith("mul")
        pairs = ((args[0], args[1]), (args[1], args[0])) if operation == "mul" else ((args[0], args[1]),)
        for x, factor in pairs:
            if isinstance(x, Tensor) and name_of(x) in self.sums and _constant(factor):
                scaled = [(n, y * factor if times else y / factor, s) for n, y, s in self._leaves(name_of(x), x, 1.0)]
                self.sums[name_of(out, operation.endswith("_"))] = tuple(scaled)
                self.alive += [out, *(y for _, y, _ in scaled)]
                return

    def _copy(self, func, args, kwargs):
        name, out = name_of(args[0]), func(*args, **kwargs)
        if name_of(out) != name:
            for known in (self.stream, self.sums, self.makers):
                if name in known:
                    known[name_of(out)] = known[name]
                    self.alive.append(out)
        return out

    def _add(self, func, args, kwargs):
        one, other = args[:2]
        operation = func.overloadpacket.__name__
        sign = float(kwargs.get("alpha", 1)) * (-1 if operation.startswith("sub") else 1)
        names, in_place = (name_of(one), name_of(other)), operation.endswith("_")
        if max(one.numel(), other.numel()) != self.size:
            return func(*args, **kwargs)
        kept = one.clone() if in_place else one  # what it held before it is overwritten
        out = func(*args, **kwargs)

        on = [name in self.stream and x.numel() == self.size for name, x in zip(names, (one, other), strict=True)]
        if all(on):  # the stream is the one to which less has happened
            first = self._steps(names[0]) <= self._steps(names[1])
            on = [first, not first]
        if on[0]:
            write = Write(self.place, "add", names[0], kept, out, other, names[1], sign, maker=self.norm or "")
        elif on[1] and sign == 1.0:
            write = Write(self.place, "add", names[1], other, out, kept, names[0], maker=self.norm or "")
        else:
            if kept.numel() == other.numel():
                self.alive += [kept, other, out, one]
                self.sums[name_of(out, in_place)] = ((names[0], kept, 1.0), (names[1], other, sign))
            return out
        return self._wrote(write, out, in_place, kept, other)

    def _act(self, func, args, kwargs):
        """A norm of the stream, or its product with a constant."""
        name, before = name_of(args[0]), args[0]
        in_place = func.overloadpacket.__name__.endswith("_")
        kept = before.clone() if in_place else before
        out = func(*args, **kwargs)
        first = next(tensors(out))
        kind = "norm" if func.overloadpacket.__name__ in NORMS else "scale"
        write = Write(self.place, kind, name, kept, first)
        new = self._wrote(write, first, in_place, kept)
        return new if out is first else with_first(out, new)

    def _wrote(self, write: Write, out: Tensor, in_place: bool, *kept: Tensor) -> Tensor:
        """Remember what was written to the stream, after `change` had its say; the stream that goes on."""
        write.steps = self._steps(write.parent) + 1
        self.place += 1
        self.alive += [out, *kept]
        self.quiet += 1  # what is computed here is no operation of the layer
        try:
            before = self.copies.get(write.parent)
            write.before, write.after = write.before.clone() if before is None else before, out.clone()
            write.added = None if write.added is None else write.added.clone()
            new = None if self.change is None else self.change(write, self)
        finally:
            self.quiet -= 1
        if new is not None:
            new = new.to(out.dtype).reshape(out.shape)
            out = out.copy_(new) if in_place else new
            self.alive.append(out)
        else:
            self.copies[name_of(out, in_place)] = write.after
        self.stream[name_of(out, in_place)] = write
        return out

    def _steps(self, name: Name) -> int:
        write = self.stream[name]
        return 0 if write is None else write.steps

    @contextmanager
    def listening(self, block: nn.Module) -> Iterator[None]:
        """Hear the modules inside the layer: who made which branch, and norms that are written by hand."""
        norms: list[tuple[Tensor | None, Name | None]] = []  # what those that run were given, if it is one tensor

        def begin(prefix: str):
            def hook(module, args, kwargs):
                given = list(tensors((args, kwargs)))
                norms.append((given[0], name_of(given[0])) if len(given) == 1 else (None, None))
                self.norm = prefix if len(given) == 1 else None

            return hook

        def end(prefix: str, feature: bool, weighted: bool):
            def hook(module, args, kwargs, out):
                (u, name), made = norms.pop() if feature else (None, None), next(tensors(out), None)
                self.norm = None
                if not self.active or self.quiet or made is None:
                    return None
                if name in self.stream and name_of(made) in self.stream:  # u + t, an addition as any other
                    return None
                if name in self.stream and made.shape == u.shape and name_of(made) != name:
                    write = Write(self.place, "norm", name, u, made, maker=prefix)
                    new = self._wrote(write, made, False, u)
                    return None if new is made else with_first(out, new)
                if weighted and made.numel() <= self.size:
                    self.makers[name_of(made)] = self.makers.get(
                        name, (prefix,)
                    )  # of a norm's input, if it is a branch
                    self.alive.append(made)
                return None

            return hook

        with ExitStack() as hooks:
            for name, module in block.named_modules():
                if module is block:
                    continue
                feature, weighted = _per_feature(module), any(True for _ in module.parameters())
                if feature:
                    hooks.callback(module.register_forward_pre_hook(begin(name), with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(end(name, feature, weighted), with_kwargs=True).remove)
            yield


def _per_feature(module: nn.Module) -> bool:
    """A module without parts whose weights are one number per feature at most: LayerNorm, RMSNorm, LayerScale, …"""
    return not any(True for _ in module.children()) and all(p.ndim <= 1 for p in module.parameters())


def _constant(x: Any) -> bool:
    """A number, or one number per feature: not computed from the tokens."""
    return not isinstance(x, Tensor) or x.ndim == 0 or x.numel() == x.shape[-1]


def added_between(calls: Sequence[Call], run: Callable[[], Any]) -> tuple[Call, Call] | None:
    """The first two calls, one after the other in a list of alike layers, between which the model adds to the stream.

    The list is the one that holds most weights; branches that the model adds, u + f(u), are layers themselves.
    """
    lists: dict[tuple[str, type], list[Call]] = defaultdict(list)
    for call in calls:
        lists[call.container, type(call.module)].append(call)
    lists_of_more = (row for row in lists.values() if len(row) > 1)
    layers = max(lists_of_more, key=lambda row: (_weights(row), len(row)), default=[])
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
