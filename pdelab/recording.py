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

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pdelab.field import Field, Mask, check_mask, described, same_shape
from pdelab.integrators import Euler, Integrator, LieEuler
from pdelab.layers import Block, Unreadable, find_layers
from pdelab.metrics.budget import Budget, budget_of
from pdelab.options import flags, function, instance
from pdelab.options import whole as integer
from pdelab.reading import Stage, Writes, branches_of, check_alone, read, read_whole, traced
from pdelab.solver import Trajectory
from pdelab.tracing import Tracer, Write
from pdelab.watching import at_layers, copied, left_as_it_was, padding_seen, tensors


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
    _blocks: tuple[Block, ...]
    _writes: tuple[Writes, ...]
    _reader: Callable[..., tuple[tuple[Stage, ...], Writes]]  # how layers were read
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
            return traced(block, u, change)[1]

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
        blocks = [Block(b.name, modules[b.name], b.number, b.where, b.added) for b in self._blocks]
        with left_as_it_was(model):
            return _recorded(model, blocks, given, mask, self._keep, self._reader, self._unread, known=self)

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
        if write is not None and self._reader is read_whole:
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
            branches = branches_of(tracer.parts(done), done.delta, len(symbols[number]))
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
            if block.also_given:  # a tensor of its own, as when the layer was read: else all made of it is a write
                u = u.clone()
            if write is not None and not block.added:
                tracer.begin(u)
            return block.with_stream(args, kwargs, u) if block.also_given else None

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
        found, unread = find_layers(model, lambda: model(*copied(args), **copied(kwargs)), blocks)
        return _recorded(model, found, (args, kwargs), mask, keep, read_whole if whole else read, unread)


def _recorded(
    model: nn.Module,
    found: list[Block],
    inputs: tuple[tuple, dict[str, Any]],
    mask: Mask | None,
    keep: Callable[[tuple[Stage, ...]], Any],
    reader: Callable[..., tuple[tuple[Stage, ...], Writes]],
    unread: tuple[str, ...],
    known: Recording | None = None,
) -> Recording:
    """The recording of these layers; `known`: one in which they were measured before."""
    args, kwargs = inputs
    with padding_seen(found[0].module, model) as seen:
        found, written, output = _captured(
            found, lambda: model(*copied(args), **copied(kwargs)), trace=known is not None and reader is read
        )
    mask, notes = _mask(mask, model, inputs, found[0].u, seen)
    _check(found, mask)
    if known is None or not known._writes or _kinds(found[0]) != _kinds(known._blocks[0]):
        check_alone(found[0])
    trajectory = Trajectory.of([*(block.u for block in found), found[-1].out], mask)
    read_now = found[: len(trajectory.states) - 1]  # layers after a divergence are not read
    stages, ways, silent = [], [], set()
    for number, block in enumerate(read_now):
        before = () if known is None or number >= len(known._writes) else (known._writes[number], written[number])
        row, how = reader(block, mask, *before)
        silent |= {f"{block.name}.{stage.name}".strip(".") for stage in row if not stage.delta.any()}
        stages.append(keep(row))
        ways.append(how)
    if silent:
        notes = (*notes, f"adds nothing, so that R is no finding: {', '.join(sorted(silent))}")
    names, notes = tuple(block.name for block in read_now), (*unread, *notes)
    found, stages, ways = tuple(found), tuple(stages), tuple(ways)
    return Recording(model, names, trajectory, stages, output, inputs, found, ways, reader, unread, keep, notes)


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


def _captured(found: list[Block], run: Callable[[], Any], trace: bool) -> tuple[list[Block], list[list[Write]], Any]:
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
        again = any(x is given for x in (*args, *kwargs.values()))
        full[layer] = replace(full[layer], args=args, kwargs=kwargs, u=u, also_given=again)

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


def _check(found: list[Block], mask: Mask | None) -> None:
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


def _kinds(block: Block) -> tuple[dict[int | str, type], bool]:
    """Of what type the layer's arguments are, and whether it has examples that could touch each other."""
    arguments = (*enumerate(block.args), *block.kwargs.items())
    return {place: type(x) for place, x in arguments}, len(block.u) > 1
