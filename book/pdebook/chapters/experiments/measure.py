"""Pairs of untrained networks on ListOps that are related by construction, or are not."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from pdebook.evidence.experiment import Scale
from pdebook.evidence.reference import borrowed
from pdebook.evidence.trained import TASKS, Task, build, look
from pdelab.datasets.base import Dataset
from pdelab.metrics.similarity import cosine, fidelity
from pdelab.models import Model
from pdelab.solver import Trajectory


@cache
def _listops() -> tuple[Task, Dataset]:
    task = replace(TASKS["listops"][Scale.BOOK], options={"train": 100, "test": 100})
    return task, task.load(0)


def _states(model: Model) -> Trajectory:
    return look(model, _listops()[1].test)


def relatives(kind: str, seed: int) -> NDArray:
    """Of an untrained Transformer and a simulator that has all its weights: their cosine, and the fidelity of each.

    kind: of the simulator, "printed" (P2 eq 4) or "earlier" (P1 eq 1). Layers 1 to L, (3, layer).
    """
    task, data = _listops()
    transformer = build("transformer", task, data, seed)
    run, other = _states(transformer), _states(borrowed(kind, transformer, task, data))
    pairs = zip(run.states, other.states, strict=True)
    between = [cosine(u, v, run.mask).item() for u, v in pairs]
    return np.array([between, fidelity(run).tolist(), fidelity(other).tolist()])[:, 1:]


def mixed_pair(angle: float, seed: int = 0) -> tuple[NDArray, NDArray, NDArray]:
    """Input and last states of two untrained Transformers, each (token, feature), double precision.

    They share the embedding and LayerNorm's gains and biases. Every other weight of the second is cos(angle) times
    that of the first plus sin(angle) times a fresh one.
    """
    task, data = _listops()
    first, second = (build(kind, task, data, seed) for kind in ("transformer", "other"))
    with torch.no_grad():
        for own, fresh in zip(first.equation.parameters(), second.equation.parameters(), strict=True):
            if not torch.equal(own, fresh):  # LayerNorm's gains and biases begin alike
                fresh.copy_(math.cos(angle) * own + math.sin(angle) * fresh)
    second.embed.load_state_dict(first.embed.state_dict())
    run, other = _states(first), _states(second)
    u0, u, v = (x[run.mask].double().numpy() for x in (run.states[0], run.final, other.final))
    return u0, u, v
