"""Run somebody else's model and leave it as it was: copies, hooks at its layers, and what stands for its padding."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pdelab.metrics.base import no_fast_path

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
