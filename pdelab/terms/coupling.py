"""C: exchange between neighbouring layers of the coupled system.  (P1 eq 4/17-19)"""

from typing import ClassVar

import torch
from torch import nn

from pdelab.field import Field, Mask, check_width, keep_real
from pdelab.terms.base import Term


class Coupling(Term):
    """C_l = W_{l−1,l} u_{l−1} + b_{l−1,l} − W_{l,l+1} u_l − b_{l,l+1}, what l gets less what it gives.  (P1 eq 18-19)

    The layers stand side by side along the feature axis: u is (batch, token, layers · width). The first layer gets
    nothing and the last gives nothing, so the exchanges add up to zero over the layers.
    """

    symbol: ClassVar[str] = "C"

    def __init__(self, width: int, layers: int):
        super().__init__()
        if width < 1 or layers < 2:
            raise ValueError(f"width must be at least 1 and layers at least 2; not {width} and {layers}")
        self.width, self.layers = width, layers
        self.exchange = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_width(u, self.width * self.layers)
        states = keep_real(u, mask).split(self.width, dim=-1)
        given = [link(state) for link, state in zip(self.exchange, states, strict=False)]
        nothing = torch.zeros_like(states[0])
        rates = [got - gave for got, gave in zip([nothing, *given], [*given, nothing], strict=True)]
        return keep_real(torch.cat(rates, dim=-1), mask)
