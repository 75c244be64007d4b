"""Randomness is passed in: one integer per run, and from it a stream of its own for each named use.

Two models with different names never share a weight by accident, and adding a model changes nothing for the others.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from pdelab.options import function, instance, seed_of, whole

T = TypeVar("T")


def derive(seed: int, *names: object) -> int:
    """The seed of one use, from the run's integer and a name: the same on every machine.

    >>> derive(0, "weights") == derive(0, "weights"), derive(0, "weights") == derive(0, "batches")
    (True, False)
    """
    return zlib.crc32(f"{seed_of(seed)} {names}".encode())


def stream(seed: int, *names: object) -> torch.Generator:
    """A generator of its own for each use, from one integer and a name."""
    return torch.Generator().manual_seed(derive(seed, *names))


def normal(seed: int, *names: object, size: Sequence[int]) -> torch.Tensor:
    """Independent N(0, 1) numbers in double precision, from the stream of that name."""
    for length in instance("size", size, Sequence):
        whole("size", length, 0)
    return torch.randn(*size, generator=stream(seed, *names), dtype=torch.float64)


def seeded(build: Callable[[], T], seed: int) -> T:
    """What `build` makes when torch draws from this seed; the global generator is left as it was.

    >>> first, again = (seeded(lambda: torch.rand(2), 3) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    function("build", build)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed))  # torch.manual_seed would seed every GPU as well
        return build()
