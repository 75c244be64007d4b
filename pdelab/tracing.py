"""What one layer adds to its stream, found by following the stream through every operation of the layer.

A dispatch mode sees each operation between the layer's input and its output: additions to the stream are branches,
norms and scalings of it are S.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pdelab.field import Field
from pdelab.watching import Name, name_of, tensors, with_first

ADDITIONS = {"add", "add_", "sub", "sub_"}
NORMS = {"native_layer_norm", "_fused_rms_norm", "native_group_norm"}
SCALINGS = {"mul", "mul_", "div", "div_"}
COPIES = {"view", "_unsafe_view", "reshape", "clone", "_to_copy", "alias", "detach", "unsqueeze", "squeeze", "expand"}


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
