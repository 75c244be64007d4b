"""An answer that passes a channel of known noise: what it keeps of the input can be computed, and priced."""

import torch
from torch import Tensor, nn

from pdelab.models import Model, with_ends
from pdelab.options import instance, whole
from pdelab.seeds import derive, seeded


class Bottleneck(nn.Module):
    """z ↦ W T + b with T = μ(z) + Z, Z ~ N(0, 1): a readout through a channel whose noise is known.

    So I(X; T) is finite: at most ½E|μ|² (VIB with prior N(0, 1)). In eval mode the noise is left out, T = μ.
    seen: μ of the last call, in training with its graph, for a penalty.
    """

    def __init__(self, width: int, size: int, outputs: int):
        super().__init__()
        width, size, outputs = whole("width", width), whole("size", size), whole("outputs", outputs)
        self.mean, self.out = nn.Linear(width, size), nn.Linear(size, outputs)
        self.seen: Tensor | None = None

    def forward(self, z: Tensor) -> Tensor:
        mean = self.mean(z)
        self.seen = mean if self.training else mean.detach()  # a module that holds a graph cannot be copied
        return self.out(mean + torch.randn_like(mean) if self.training else mean)


def with_bottleneck(core: Model, width: int, size: int, *, outputs: int, seed: int = 0, **ends) -> Model:
    """`with_ends`, and in place of its linear readout a `Bottleneck` of that size: a pooled classifier."""
    model = with_ends(core, width, outputs=outputs, seed=seed, **ends, pool=True)
    readout = seeded(lambda: Bottleneck(width, size, outputs), derive(seed, "bottleneck"))
    model.readout = readout if core.readout is None else nn.Sequential(core.readout, readout)
    return model


def channel(model: Model) -> Bottleneck:
    """The bottleneck inside the readout of a model made by `with_bottleneck`."""
    parts = [] if instance("model", model, Model).readout is None else model.readout.modules()
    for part in parts:
        if isinstance(part, Bottleneck):
            return part
    raise ValueError("model has no bottleneck in its readout; with_bottleneck makes one that has")
