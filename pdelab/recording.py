"""record: any Transformer as a trajectory, with what each branch of each layer adds to the stream.

    rec = record(model, inputs)
    rec.trajectory            u_0, …, u_L, the stream before the first layer and after each one
    rec.stages[l]             the summands of u_{l+1} − u_l: their symbols, what they add, and the stream around them
    rec.again(others)         the recording of other inputs, in one run of the model
    rec.rewrite(write)        the model's output with another stream
    rec.layer(l)              u ↦ u⁺, layer l alone, differentiable

No architecture is known by name, and torch is all that is needed. A branch's symbol is measured: tokens are nudged; if
the branch moves at other tokens too it is A, if only there it is R. What acts on the stream itself, a norm or a
scaling, is S.
"""

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise, starmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pdelab.field import Field, Mask, check_mask, described, precise, same_shape
from pdelab.integrators import Euler, Integrator, LieEuler
from pdelab.metrics.base import real_places
from pdelab.metrics.budget import Budget, budget_of
from pdelab.options import flags, function, instance
from pdelab.options import whole as integer
from pdelab.seeds import stream
from pdelab.solver import Trajectory
from pdelab.watching import (
    Call,
    Tracer,
    Write,
    added_between,
    at_layers,
    calls_of,
    copied,
    hands_on,
    is_added,
    left_as_it_was,
    padding_seen,
    stages_of,
    tensors,
    with_first,
)

FIELD = "a field (batch, token, feature)"
UNSPLIT = "take each layer as one step with whole=True"


class Unreadable(ValueError):
    """A model whose layers, or their branches, were not found; the message says what to do."""


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
class At:
    """Where `rewrite` is: the layer, the number of the write within it, and the (symbol, δ) that are added there.

    names: of the modules inside the layer that made them; `Stage.name` joins those of a product, gate · attention.
    """

    layer: int
    write: int
    parts: tuple[tuple[str, Field], ...]
    names: tuple[str, ...]

    @property
    def symbol(self) -> str:
        return "+".join(symbol for symbol, _ in self.parts)


@dataclass(frozen=True)
class _Block:
    """One layer, as it was called: `where` are the arguments that are the stream, two in `layer(u, u)`.

    added: whether the model adds what the module makes to the stream, u + f(u), and not the module itself.
    fixed: whether it got its stream once more, in a place where the other layers get something else.
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
    fixed: bool = False

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


@dataclass(frozen=True)
class _Writes:
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


@dataclass(frozen=True)
class Recording:
    """A model's run as a trajectory, and the model, which can be run again with another stream.

    output: what the model returned. names: of the layers. notes: what is to be known of it, layers not read for one.
    """

    model: nn.Module
    names: tuple[str, ...]
    trajectory: Trajectory
    stages: tuple[Any, ...]
    output: Any
    _inputs: tuple[tuple, dict[str, Any]]
    _blocks: tuple[_Block, ...]
    _writes: tuple[_Writes, ...]
    _read: Callable[..., tuple[tuple[Stage, ...], _Writes]]  # how layers were read
    _unread: tuple[str, ...]  # the notes on layers that were not
    _keep: Callable[[tuple[Stage, ...]], Any]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(type(block.module).__name__ for block in self._blocks))
        said = "; ".join([f"{len(self.names)} layers {kinds}: {self.scheme}", str(self.trajectory), *self.notes])
        return f"Recording({said})"

    @property
    def scheme(self) -> str:
        """The writes of a layer in order, as A→S→R→S; branches that read the same stream are a sum, A+R."""
        return " or ".join(dict.fromkeys(map(str, self._writes)))

    @property
    def integrator(self) -> Integrator | None:
        """LieEuler where every branch reads what the one before left, Euler where all read u; None if it is neither."""
        if all(len(write.groups()) == 1 and sum(map(len, write.kinds)) > 1 for write in self._writes):
            return Euler()
        in_turn = all(write.reads == tuple(range(len(write.reads))) for write in self._writes)
        return LieEuler() if in_turn and "+" not in self.scheme else None

    def budget(self, **options) -> Budget:
        """E(u⁺) − E(u) = Σ_T ⟨½(w⁺ + w), δ_T⟩ for every layer, as `budget` has it for an equation, with its options."""
        if not all(isinstance(row, tuple) and all(isinstance(s, Stage) for s in row) for row in self.stages):
            raise ValueError("keep took the stages away that a budget needs; record without keep")
        steps = [[(s.symbol, s.delta, s.before, s.after) for s in stages] for stages in self.stages]
        return budget_of(steps, self.trajectory.mask, **options)

    def layer(self, number: int) -> Callable[[Field], Field]:
        """u ↦ u⁺, layer `number` alone with the arguments it had: same batch, same masks. Differentiable."""
        return self._blocks[integer("number", number, 0, len(self._writes) - 1)]

    @torch.no_grad()
    def summed(self, number: int, u: Field) -> Field:
        """u + Σ_T δ_T(u), layer `number` with every branch reading u itself: Euler on the sum, in place of a sweep."""
        block, like = self.layer(number), self.trajectory.states[0]
        if not isinstance(u, Tensor) or (u.shape, u.dtype) != (like.shape, like.dtype):
            raise ValueError(f"u must be a field like the states recorded, {described(like)}; not {described(u)}")
        places, total = self._writes[number].places, []

        def change(write: Write, tracer: Tracer) -> Tensor | None:
            if write.place not in places:
                return None
            total.append(write.delta.reshape(u.shape))
            return u + sum(total) if write.place == places[-1] else u

        with left_as_it_was(self.model):
            return _traced(block, u, change)[1]

    def again(self, inputs: Any = None, *, model: nn.Module | None = None, mask: Mask | None = None) -> "Recording":
        """The recording of other inputs, or of another model of the same architecture, with the symbols found here.

        It takes one run, in which the layers are watched; one that writes elsewhere than it did runs again by itself.
        """
        model = self.model if model is None else _unwrapped(instance("model", model, nn.Module))
        given = self._inputs if inputs is None else _arguments(model, inputs)
        mask = self.trajectory.mask if mask is None and inputs is None else mask
        modules = dict(model.named_modules())
        if missing := [block.name for block in self._blocks if block.name not in modules]:
            raise ValueError(f"model must have the layers that were recorded; it has no {missing[0]}")
        blocks = [_Block(b.name, modules[b.name], b.number, b.where, b.added) for b in self._blocks]
        with left_as_it_was(model):
            return _recorded(model, blocks, given, mask, self._keep, self._read, self._unread, known=self)

    @torch.no_grad()
    def rewrite(
        self,
        write: Callable[[At, Field, Field], Field | None] | None = None,
        *,
        step: Callable[[int, Field, Callable[[Field], Field]], Field | None] | None = None,
        inputs: Any = None,
    ) -> Any:
        """The model's output if its stream is another one; the model itself stays as it is.

        write(at, u, delta): called where δ is added to the stream u; gives what goes on in place of u + δ, or None.
        step(l, u, f): called after layer l with its input u and the layer itself, f; gives u⁺, or None.
        inputs: others than those recorded, of the same kind.
        Where both are given, what `step` gives stands in place of what `write` made of the layer; f is the layer as it
        was. The output has no gradients; for these differentiate `rec.layer(l)`, or see `rec.gradients`.

            rec.rewrite(lambda at, u, delta: u + delta / 2)                     # Δt = ½ in every branch
            rec.rewrite(lambda at, u, delta: u if at.symbol == "R" else None)   # without feed-forward
            rec.rewrite(lambda at, u, delta: u if "cross" in at.names else None)  # without the layers' module `cross`
            rec.rewrite(step=lambda l, u, f: u if l % 2 else None)              # every second layer left out
        """
        for name, given in (("write", write), ("step", step)):
            if given is not None:
                function(name, given)
        if write is not None and self._read is _whole:
            raise ValueError("write needs the writes of a layer, and whole=True took each layer as one; give step")
        args, kwargs = self._inputs if inputs is None else _arguments(self.model, inputs)
        now: list[tuple[int, Field]] = []  # the layer that runs, and its input
        failed: list[TypeError] = []

        def change(done: Write, tracer: Tracer) -> Tensor | None:
            layer, u = now[-1]
            places, symbols = self._writes[layer].places, self._writes[layer].symbols
            if done.place not in places:
                return None
            number = places.index(done.place)
            branches = _branches(tracer.parts(done), done.delta, len(symbols[number]))
            names = tuple(one for name, _ in branches for one in re.split(r" [·+] ", name))
            parts = zip(symbols[number], (part.reshape(u.shape) for _, part in branches), strict=True)
            try:
                new = write(
                    At(layer, number, tuple(parts), names), done.before.reshape(u.shape), done.delta.reshape(u.shape)
                )
            except TypeError as error:  # within u + δ Python takes it for "cannot be added", and drops it
                failed.append(error)
                raise
            return None if new is None else same_shape(new, u, "write")

        tracer = Tracer(change)

        def begin(layer, args, kwargs):
            block = self._blocks[layer]
            u = block.stream(args, kwargs)
            now.append((layer, u.clone()))
            if block.fixed:  # a tensor of its own, as when the layer was read: else all that is made of it is a write
                u = u.clone()
            if write is not None and not block.added:
                tracer.begin(u)
            return block.with_stream(args, kwargs, u) if block.fixed else None

        def end(layer, args, kwargs, out):
            block, u, new = replace(self._blocks[layer], args=args, kwargs=kwargs), now[-1][1], None
            if write is not None and block.added:  # the model has yet to add it: do so here, where `write` is heard
                tracer.begin(u)
                new = block(u)
            tracer.active = False
            now.pop()
            stepped = None if step is None else step(layer, u, block)
            new = new if stepped is None else same_shape(stepped, u, "step")
            return None if new is None or new.equal(block.result(u, out)) else block.giving(new, u, out)

        with left_as_it_was(self.model), at_layers(self._calls, begin, end), ExitStack() as stack:
            if write is not None:
                for module in dict.fromkeys(module for module, _ in self._calls):
                    stack.enter_context(tracer.listening(module))
                stack.enter_context(tracer)
            try:
                return self.model(*copied(args), **copied(kwargs))
            except TypeError:
                if failed:
                    raise failed[0] from None
                raise

    def gradients(self, loss: Callable[[Any], Tensor]) -> tuple[Field, ...]:
        """∂loss/∂u_l for every state u_0, …, u_L; loss: a function of the model's output that gives one number.

        What the model takes from u_0 past its layers, a skip to its end for example, does not count.
        """
        states: list[Tensor] = []

        def begin(layer, args, kwargs):
            u = self._blocks[layer].stream(args, kwargs)
            states.append(u if states else u.detach().clone().requires_grad_())
            return self._blocks[layer].with_stream(args, kwargs, states[-1].clone())  # it may be changed in place

        def end(layer, args, kwargs, out):
            block, u = self._blocks[layer], states[layer]
            if layer < len(self._calls) - 1 and not block.added:
                return None
            after = block.result(u, out)
            if layer == len(self._calls) - 1:
                states.append(after)
            return block.giving(after.clone(), u if layer else u.detach(), out)  # the model's own u_0 has no gradient

        args, kwargs = self._inputs
        with left_as_it_was(self.model), torch.enable_grad(), at_layers(self._calls, begin, end):
            value = one_number(loss, self.model(*copied(args), **copied(kwargs)))
            if not value.requires_grad:
                raise ValueError("loss must depend on the model's output, not detached nor under torch.no_grad")
            if not all(u.requires_grad for u in states):
                raise ValueError(
                    "the model runs layers under torch.no_grad, where there are no gradients; with "
                    "torch.utils.checkpoint give use_reentrant=False"
                )
            return torch.autograd.grad(value, states)

    @property
    def _calls(self) -> list[tuple[nn.Module, int]]:
        return [(block.module, block.number) for block in self._blocks[: len(self._writes)]]


def one_number(loss: Callable[[Any], Tensor], output: Any) -> Tensor:
    """loss(output), a tensor without axes."""
    value = function("loss", loss)(output)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"loss must give one number from the model's output; it gave {described(value)}")
    return value.reshape(())


def record(
    model: nn.Module,
    inputs: Any,
    *,
    mask: Mask | None = None,
    blocks: Sequence[str | nn.Module] | nn.ModuleList | None = None,
    whole: bool = False,
    keep: Callable[[tuple[Stage, ...]], Any] | None = None,
) -> Recording:
    """u_{l+1} − u_l = Σ_T δ_T for every layer l of the model, as it runs on these inputs.

    inputs: the model's argument; a tuple, or a mapping of names to arguments, if it has several.
    mask: (batch, token), True where a token is real; unless given, the inputs' attention_mask.
    blocks: the layers, as names or modules, where they are not found or others are wanted: of several rows, such as
    stages of different width, the longest is read, of equal ones that with most weights, and `notes` has the others.
    whole: take each as one stage, where layers are found and not their branches.
    keep: makes of each layer's stages what `stages` holds in their place, where memory matters.
    A branch is A or R by what it does with the layer's own tokens while all else that the layer is given stays: to look
    at the tokens of another network is R. The model runs in evaluation mode, some eight times, and once more where
    `again` is given other inputs; it is afterwards what it was, also if something fails, but for what it changes inside
    a list or another object of its own.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> rec = record(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 5, 8))
    >>> rec.scheme, len(rec.trajectory.states)
    ('A→S→R→S', 4)
    """
    instance("model", model, nn.Module)
    model = _unwrapped(model)
    flags(whole=whole)
    keep = (lambda stages: stages) if keep is None else function("keep", keep)
    args, kwargs = _arguments(model, inputs)
    if any(x.is_meta for x in (*tensors((args, kwargs)), *model.parameters())):
        raise ValueError("model and inputs must hold numbers; on the device meta there are none")

    with left_as_it_was(model):
        found, unread = _found(model, lambda: model(*copied(args), **copied(kwargs)), blocks)
        return _recorded(model, found, (args, kwargs), mask, keep, _whole if whole else _read, unread)


def _recorded(
    model: nn.Module,
    found: list[_Block],
    inputs: tuple[tuple, dict[str, Any]],
    mask: Mask | None,
    keep: Callable[[tuple[Stage, ...]], Any],
    read: Callable[..., tuple[tuple[Stage, ...], _Writes]],
    unread: tuple[str, ...],
    known: Recording | None = None,
) -> Recording:
    """The recording of these layers; `known`: one in which they were measured before."""
    args, kwargs = inputs
    with padding_seen(found[0].module, model) as seen:
        found, written, output = _captured(
            found, lambda: model(*copied(args), **copied(kwargs)), trace=known is not None and read is _read
        )
    mask, notes = _mask(mask, model, inputs, found[0].u, seen)
    _check(found, mask)
    if known is None or not known._writes or _kinds(found[0]) != _kinds(known._blocks[0]):
        _check_alone(found[0])
    trajectory = Trajectory.of([*(block.u for block in found), found[-1].out], mask)
    read_now = found[: len(trajectory.states) - 1]  # layers after a divergence are not read
    stages, ways, silent = [], [], set()
    for number, block in enumerate(read_now):
        before = () if known is None or number >= len(known._writes) else (known._writes[number], written[number])
        row, how = read(block, mask, *before)
        silent |= {f"{block.name}.{stage.name}".strip(".") for stage in row if not stage.delta.any()}
        stages.append(keep(row))
        ways.append(how)
    if silent:
        notes = (*notes, f"adds nothing, so that R is no finding: {', '.join(sorted(silent))}")
    names, notes = tuple(block.name for block in read_now), (*unread, *notes)
    found, stages, ways = tuple(found), tuple(stages), tuple(ways)
    return Recording(model, names, trajectory, stages, output, inputs, found, ways, read, unread, keep, notes)


def _unwrapped(model: nn.Module) -> nn.Module:
    """What torch.compile wrapped."""
    return getattr(model, "_orig_mod", model)


def _arguments(model: nn.Module, inputs: Any) -> tuple[tuple, dict[str, Any]]:
    if isinstance(inputs, list):
        raise ValueError("inputs is a list; several arguments go in a tuple, (a, b), and one tensor stands alone")
    if next(tensors(inputs), None) is None:
        raise ValueError(f"inputs must hold the tensors that the model is called with; not {described(inputs)}")
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (inputs, {})
    args = args if isinstance(args, tuple) else (args,)
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("model must be the module itself; what torch.jit made of it cannot be watched")
    signature = inspect.signature(model.forward)
    try:
        named = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        hint = "; a model whose one argument is a mapping takes ({…},)" if isinstance(inputs, Mapping) else ""
        takes = f"{type(model).__name__}.forward({', '.join(signature.parameters)})"
        raise ValueError(f"inputs must be what {takes} takes: {error}{hint}") from error
    if "use_cache" in signature.parameters and "use_cache" not in named:
        kwargs["use_cache"] = False  # a layer that stores keys for the next token cannot be run twice
    return args, kwargs


def _found(
    model: nn.Module, run: Callable[[], Any], named: Sequence[str | nn.Module] | None
) -> tuple[list[_Block], tuple[str, ...]]:
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
        _Block(call.name, call.module, call.number, tuple(where), added)
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


def _captured(found: list[_Block], run: Callable[[], Any], trace: bool) -> tuple[list[_Block], list[list[Write]], Any]:
    """The layers with the arguments they get and what they give; if wanted, what they write; the model's output."""
    full, written = list(found), [[] for _ in found]
    tracer, listening = Tracer(), ExitStack()

    def begin(layer, args, kwargs):
        given = full[layer].stream(args, kwargs)
        tracer.begin(given)
        if trace:
            listening.enter_context(tracer.listening(full[layer].module))
            listening.enter_context(tracer)
        u = tracer.copy(given)
        args, kwargs = full[layer].with_stream(args, kwargs, u)
        fixed = any(x is given for x in (*args, *kwargs.values()))
        full[layer] = replace(full[layer], args=args, kwargs=kwargs, u=u, fixed=fixed)

    def end(layer, args, kwargs, out):
        after = full[layer].result(full[layer].u, out)
        written[layer] = tracer.path(after)
        listening.close()
        full[layer] = replace(full[layer], out=tracer.copy(after))

    with listening, at_layers([(block.module, block.number) for block in found], begin, end):
        return full, written, run()


def _mask(
    mask: Mask | None,
    model: nn.Module,
    inputs: tuple[tuple, dict[str, Any]],
    u: Field,
    seen: Sequence[tuple[str, Mask]],
) -> tuple[Mask | None, tuple[str, ...]]:
    """The mask that was given, else that of the inputs, else of torch's attention; and a note if there may be padding.

    A model of two sides has one mask for each in its inputs: none is taken.
    """
    notes: tuple[str, ...] = ()
    if mask is None:
        signature = inspect.signature(model.forward)
        named = signature.bind(*inputs[0], **inputs[1]).arguments
        named |= named.get("kwargs", {})
        two_sided = "decoder_attention_mask" in signature.parameters
        given = {"": named.get("attention_mask")} if not two_sided else {}
        for name, found in (*given.items(), *seen):
            if mask is None and isinstance(found, Tensor) and found.shape == u.shape[:2]:
                if name:
                    notes = (f"{name} got its padding index, and these tokens count: if they are padding, give mask",)
                else:
                    mask = found.bool()
    check_mask(mask, u)
    return None if mask is None or bool(mask.all()) else mask, () if mask is not None else notes


def _check(found: list[_Block], mask: Mask | None) -> None:
    """Refuse layers between which something happens, and tokens that are alone."""
    first = found[0]
    if not first.u.numel():
        raise ValueError(f"inputs must not be empty; the first layer gets {described(first.u)}")
    if not first.u.isfinite().all():
        raise Unreadable("inputs must give the first layer finite numbers; it gets NaN or infinite ones")
    tokens = first.u.shape[1] if mask is None else int(mask.sum(dim=1).max())
    if tokens < 2:
        raise Unreadable("inputs must have a sequence of two real tokens or more: one alone shows no interaction")
    for before, after in pairwise(found):
        same = before.out is after.u or (before.out.shape == after.u.shape and before.out.equal(after.u))
        if not same and (before.out.shape != after.u.shape or before.out.isfinite().all()):
            raise Unreadable(
                f"between {before.name} and {after.name} something else changes the stream; move it into a module, or "
                "give blocks that follow each other"
            )


def _kinds(block: _Block) -> tuple[dict[int | str, type], bool]:
    """Of what type the layer's arguments are, and whether it has examples that could touch each other."""
    arguments = (*enumerate(block.args), *block.kwargs.items())
    return {place: type(x) for place, x in arguments}, len(block.u) > 1


def _check_alone(first: _Block) -> None:
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


def _check_again(block: _Block, out: Field) -> None:
    gap = (precise(out) - precise(block.out)).abs().amax()
    if out.equal(block.out) or (block.fixed and gap <= _rounding(out) * out.abs().amax()):
        return  # attention from a tensor to itself rounds otherwise than to a copy
    raise Unreadable(
        f"{block.name} gives another output when it is run again by itself: it keeps a state between calls, as a "
        "cache of keys and values does, draws random numbers, or a hook or autocast inside the model changes what it "
        "gives; switch that off; a model that makes the cache itself must run without one"
    )


def _traced(
    block: _Block, u: Field, change: Callable[[Write, Tracer], Tensor | None] | None = None
) -> tuple[list[Write], Field]:
    """The layer run on u: its writes to the stream, none if they do not lead to its output; and the output."""
    tracer, given = Tracer(change), u.clone()
    with tracer.listening(block.module), tracer:
        tracer.begin(given)
        out = block(given)
        return tracer.path(out), out


def _read(
    block: _Block, mask: Mask | None, known: _Writes | None = None, writes: Sequence[Write] = ()
) -> tuple[tuple[Stage, ...], _Writes]:
    """A layer's stages, and how it writes; `writes`: those of the model's run, taken if they are what is known."""
    if known is None or not known.are(writes):
        writes, out = _traced(block, block.u)
        _check_again(block, out)
    if not writes:
        raise Unreadable(f"the output of {block.name} is not its input plus branches; {UNSPLIT}")
    if known is None or not known.are(writes):
        judged, seen = _in_single(block, writes)
        found = [
            (_symbols if write.kind == "add" else _acting)(judged, seen, number, mask)
            for number, write in enumerate(seen)
        ]
        places = tuple(write.place for write in writes)
        known = _Writes(places, tuple(read for _, read in found), tuple(tuple(kinds) for kinds, _ in found))

    shape, stages = block.u.shape, []
    for number, write in enumerate(writes):
        kinds = known.kinds[number]
        branches = _branches(write.parts, write.delta, len(kinds))
        together = next(group for group in known.groups() if number in group)
        before, after = writes[together[0]].before.reshape(shape), writes[together[-1]].after.reshape(shape)
        for (symbol, causal), (name, delta) in zip(kinds, branches, strict=True):
            stages.append(Stage(symbol, name, delta.reshape(shape), before, after, causal))
    _check_sum(block, stages)
    return tuple(stages), known


def _in_single(block: _Block, writes: Sequence[Write]) -> tuple[_Block, Sequence[Write]]:
    """The layer and its writes in float32, where a branch that hardly looks at other tokens is told from rounding."""
    half = block.u.dtype
    if half not in (torch.float16, torch.bfloat16):
        return block, writes
    single = partial(tree_map_only, Tensor, lambda x: x.float() if x.dtype == half else x)
    module = copy.deepcopy(block.module).float()
    exact = replace(block, module=module, args=single(block.args), kwargs=single(block.kwargs), u=block.u.float())
    seen, _ = _traced(exact, exact.u)
    kinds = [[(write.place, write.kind, len(write.parts)) for write in row] for row in (writes, seen)]
    return (exact, seen) if kinds[0] == kinds[1] else (block, writes)


def _branches(parts: Sequence[tuple[str, Tensor]], delta: Tensor, kinds: int) -> Sequence[tuple[str, Tensor]]:
    """The parts of a write with their names; one branch if all are of one kind, as experts are."""
    if len(parts) == kinds:
        return parts
    return [(" + ".join(dict.fromkeys(name for name, _ in parts)), delta)]


def _whole(
    block: _Block, mask: Mask | None, known: _Writes | None = None, writes: Sequence[Write] = ()
) -> tuple[tuple[Stage, ...], _Writes]:
    """A layer as one stage."""
    if known is None:
        _check_again(block, block(block.u))
        symbol = "R"
        for nudged, others in _halves(block.u, mask):
            answer = block(torch.where(nudged.unsqueeze(-1), _nudge(block.u), block.u))
            symbol = "A" if _moved(answer, block.out, others) else symbol
        known = _Writes((-1,), (0,), (((symbol, None),),))
    delta = (precise(block.out) - precise(block.u)).to(block.u.dtype)
    return (Stage(known.kinds[0][0][0], "", delta, block.u, block.out),), known


def _check_sum(block: _Block, stages: Sequence[Stage]) -> None:
    """u⁺ − u = Σ δ_T, up to the rounding of the additions: 1e-6 of the largest number in float32."""
    total = sum(precise(stage.delta) for stage in stages)
    gap = (precise(block.out) - precise(block.u) - total).abs().amax()
    largest = (precise(x).abs().amax() for s in stages for x in (s.after, s.before, s.delta))  # mostly the first does
    if all(gap > _rounding(block.u) * size for size in largest):
        raise Unreadable(f"the branches of {block.name} miss its step by {gap:.2g}; {UNSPLIT}")


Kinds = list[tuple[str, bool | None]]


def _symbols(block: _Block, writes: Sequence[Write], number: int, mask: Mask | None) -> tuple[Kinds, int]:
    """For each part of a write A or R and whether it is causal; and after how many writes the stream is read.

    That is the last one at which a nudge of the stream changes what is written here.
    """
    plain = [part for _, part in writes[number].parts]
    answers = partial(_answers, block, writes, number)
    halves = _halves(block.u, mask)
    for point in range(number, -1, -1):
        first = answers(point, halves[0][0])
        if any(not x.equal(y) for x, y in zip(first, plain, strict=True)):
            break

    mixing = [False] * len(plain)
    for (_, others), found in zip(halves, (first, answers(point, halves[1][0])), strict=True):
        mixing = [m or _moved(x, y, others) for m, x, y in zip(mixing, found, plain, strict=True)]
    ahead = [False] * len(plain)
    for later, earlier in _later(block.u, mask) if any(mixing) else ():
        found = answers(point, later)
        ahead = [a or _moved(x, y, earlier) for a, x, y in zip(ahead, found, plain, strict=True)]
    kinds = [("A", not looks) if mixes else ("R", None) for mixes, looks in zip(mixing, ahead, strict=True)]
    return (kinds[:1] if len(set(kinds)) == 1 else kinds), point


def _acting(block: _Block, writes: Sequence[Write], number: int, mask: Mask | None) -> tuple[Kinds, int]:
    """S, what acts on the stream itself, if it treats every token alone."""
    nudged, others = _halves(block.u, mask)[0]
    (answer,) = _answers(block, writes, number, number, nudged)
    if _moved(answer, writes[number].delta, others):
        raise Unreadable(f"{block.name} mixes tokens in what acts on its stream, and does not add it; {UNSPLIT}")
    return [("S", None)], number


def _answers(block: _Block, writes: Sequence[Write], number: int, point: int, nudged: Tensor) -> list[Tensor]:
    """What write `number` writes, part by part, if these tokens of the stream are nudged after `point` writes."""

    def at(u: Field) -> Field:
        u = u.reshape(block.u.shape)
        return torch.where(nudged.unsqueeze(-1), _nudge(u), u)

    def change(write: Write, tracer: Tracer) -> Tensor | None:
        return at(write.after) if point and write.place == writes[point - 1].place else None

    others, _ = _traced(block, block.u if point else at(block.u), change)
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


def _halves(u: Field, mask: Mask | None) -> list[tuple[Tensor, Tensor]]:
    """A random half of the real tokens of each sequence, and the other ones; twice, for sequences that are short."""
    real = real_places(u, mask)
    pairs = []
    for draw in range(2):
        order = torch.rand(real.shape, generator=stream(0, "half", draw)).to(u.device)
        rank = torch.where(real, order, 2.0).argsort(dim=1).argsort(dim=1)  # padding last
        half = real & (2 * rank < real.sum(dim=1, keepdim=True))
        pairs.append((half, real & ~half))
    return pairs


def _later(u: Field, mask: Mask | None) -> list[tuple[Tensor, Tensor]]:
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
