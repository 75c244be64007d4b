"""How long a step of training takes here."""

import statistics
import time

import torch

from pdebook.chapters.many_machines.laws import Stack
from pdelab.models import transformer


def seconds_per_step(stack: Stack, repeats: int = 3) -> float:
    """Forward and backward, the median of a few, by the processor's time of this process."""
    model = transformer(width=stack.width, depth=stack.layers, heads=4, hidden=stack.hidden)
    u = torch.randn(stack.batch, stack.tokens, stack.width)
    times = []
    for _ in range(repeats + 1):  # the first warms up
        started = time.process_time()
        model(u).square().mean().backward()
        times.append(time.process_time() - started)
    return statistics.median(times[1:])
