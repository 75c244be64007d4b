"""What a data set is here: examples as tensors, and a name that tells where they come from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pdelab.field import Mask, described
from pdelab.options import choose, instance, whole
from pdelab.seeds import stream


@dataclass(frozen=True)
class Examples:
    """Sequences and their answers.

    | what | shape |
    |---|---|
    | x, symbols | (example, token), int64 or int32 |
    | x, continuous | (example, token, feature), float32 |
    | y | (example,) classes, or (example, token) next symbols; int64 |
    | mask | (example, token), True where a token is real; None: all are. Padding stands at the end |
    """

    x: Tensor
    y: Tensor
    mask: Mask | None = None

    def __post_init__(self):
        for name, value in vars(self).items():
            if not isinstance(value, Tensor) and (name != "mask" or value is not None):
                raise ValueError(f"{name} must be a torch.Tensor, try torch.as_tensor(…); not {type(value).__name__}")
        if self.x.ndim not in (2, 3) or self.x.is_complex() or self.x.dtype == torch.bool:
            raise ValueError(f"x must be (example, token) or (example, token, feature); not {described(self.x)}")
        if self.y.is_floating_point() or self.y.is_complex() or self.y.ndim not in (1, 2):
            given = described(self.y)
            raise ValueError(f"y must be whole numbers (example,) or (example, token), no one-hot; not {given}")
        if self.mask is not None and self.mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, True where a token is real; not {self.mask.dtype}")
        if len(self.x) != len(self.y) or (self.mask is not None and self.mask.shape != self.x.shape[:2]):
            shapes = {name: tuple(v.shape) for name, v in vars(self).items() if v is not None}
            raise ValueError(f"x, y and mask must have one row per example, and mask one entry per token; not {shapes}")
        # once, where data are made; on a GPU every batch would wait for the answer
        on_cpu = self.mask is not None and self.mask.device.type == "cpu"
        if on_cpu and not self.mask.any(dim=1).all():
            raise ValueError("mask must leave every sequence a real token; drop a sequence that has none")
        if on_cpu and (~self.mask[:, :-1] & self.mask[:, 1:]).any():
            raise ValueError("mask must be True up to a sequence's length and False after it: padding is at the end")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Examples(x {tuple(self.x.shape)}, y {tuple(self.y.shape)}, {'no ' if self.mask is None else ''}mask)"

    def take(self, index: Tensor | slice) -> "Examples":
        """Some of the examples, without the padding that none of them needs."""
        x, y = self.x[index], self.y[index]
        if self.mask is None:
            return Examples(x, y)
        mask = self.mask[index]
        longest = int(mask.sum(dim=1).max()) if len(mask) else 0
        y = y[:, :longest] if y.ndim == 2 else y
        return Examples(x[:, :longest], y, mask[:, :longest])

    def to(self, device: torch.device | str) -> "Examples":
        return replace(self, **{name: value.to(device) for name, value in vars(self).items() if value is not None})

    def by_length(self) -> Tensor:
        """Indices of the examples from the shortest to the longest; as they are where all have one length."""
        count = len(self)
        return torch.arange(count) if self.mask is None else self.mask.sum(dim=1).cpu().argsort(stable=True)

    def batches(self, size: int) -> Iterator["Examples"]:
        """All examples in order, `size` at a time; the last batch may be smaller."""
        size = whole("size", size, most=2**63)
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


def shuffled_batches(examples: Examples, size: int, seed: int, epoch: int) -> list[Tensor]:
    """The indices of one epoch's full batches: a function of (seed, epoch) alone, so that a run can go on anywhere.

    Where examples differ in length, those of a batch are chosen from 16 batches' worth sorted by length: less padding,
    and still another mixture in every epoch.
    """
    if whole("size", size, most=2**63) > len(instance("examples", examples, Examples)):
        raise ValueError(f"size of a batch must be at most the {len(examples)} examples there are; not {size}")
    generator = stream(seed, "batches", whole("epoch", epoch, 0, 10**12))
    full = len(examples) // size * size  # what is left over is left out before lengths are looked at
    order = torch.randperm(len(examples), generator=generator)[:full]
    if examples.mask is not None:
        length = examples.mask.sum(dim=1)
        order = torch.cat([pool[length[pool].argsort(stable=True)] for pool in order.split(16 * size)])
    batches = order.split(size)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator)]


@dataclass(frozen=True)
class Dataset:
    """Train and test examples under a name such as `digits-rows` or `synthetic-topics`.

    source: "own" (yours), "built in", "synthetic" (made by a rule of ours), "generated" (made by a published rule) or
    "public" (a file that others published).
    classes: how many answers there are; symbols: size of the alphabet, padding included, or None for continuous tokens.
    """

    name: str
    source: str
    train: Examples
    test: Examples
    classes: int
    symbols: int | None = None

    def __post_init__(self):
        instance("train", self.train, Examples)
        instance("test", self.test, Examples)
        whole("classes", self.classes)
        if self.symbols is not None:
            whole("symbols", self.symbols)
        choose("source", self.source, ("own", "built in", "synthetic", "generated", "public"))

    @property
    def length(self) -> int:
        """The longest sequence, in tokens."""
        return max(self.train.x.shape[1], self.test.x.shape[1])

    @property
    def features(self) -> int | None:
        return self.train.x.shape[2] if self.train.x.ndim == 3 else None


def majority(data: Dataset) -> float:
    """The share of test answers that equal the commonest training answer: what knowing nothing scores."""
    commonest = _answers(instance("data", data, Dataset).train).bincount().argmax()
    return (_answers(data.test) == commonest).double().mean().item()


def _answers(examples: Examples) -> Tensor:
    """All answers in a row, those of padded tokens left out."""
    padded = examples.y.ndim == 2 and examples.mask is not None
    return examples.y[examples.mask] if padded else examples.y.flatten()
