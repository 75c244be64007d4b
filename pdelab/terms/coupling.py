"""C: exchange between neighbouring layers of the coupled system.  (P1 eq 4/17-19)"""

from collections.abc import Sequence

import torch
from torch import nn

from pdelab.field import Field, Mask, check_state
from pdelab.formulas import keep_real
from pdelab.options import flags, whole
from pdelab.terms.base import Term


class Coupling(Term):
    """C_l = W_{l−1,l} u_{l−1} + b_{l−1,l} − W_{l,l+1} u_l − b_{l,l+1}, what l gets less what it gives.  (P1 eq 18-19)

    The layers stand side by side along the feature axis: u is (batch, token, layers · width). As a rule the first layer
    gets nothing and the last gives nothing, so the exchanges add up to zero over the layers. The end terms:

    inflow: the first of the layers is the input u_0, which is given: it gives C_{0,1}(u_0) to the next and stays.
    outflow: the last layer gives too, C_{L,L+1}(u_L), to nobody.
    """

    symbol: str = "C"

    def __init__(self, width: int, layers: int, *, inflow: bool = False, outflow: bool = False):
        super().__init__()
        width, layers = whole("width", width), whole("layers", layers, least=2)
        flags(inflow=inflow, outflow=outflow)
        self.width, self.layers, self.inflow, self.outflow = width, layers, inflow, outflow
        self.exchange = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1 + outflow))

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width * self.layers, self.exchange[0])
        states = keep_real(u, mask).split(self.width, dim=-1)
        given = [link(state) for link, state in zip(self.exchange, states, strict=False)]
        nothing = torch.zeros_like(states[0])
        gets = [nothing, *given[: self.layers - 1]]
        gives = [nothing if self.inflow else given[0], *given[1:], *([] if self.outflow else [nothing])]
        rates = [got - gave for got, gave in zip(gets, gives, strict=True)]
        return keep_real(torch.cat(rates, dim=-1), mask)


class SideBySide(Term):
    """T_1[u_1], …, T_L[u_L]: every layer its own term, on its own part of the feature axis.  (P1 eq 4/17)

    None stands for a layer in which nothing happens, such as the input. The symbol is that of the first term.
    """

    symbol: str = ""

    def __init__(self, terms: Sequence[Term | None], width: int):
        super().__init__()
        real = [term for term in terms if term is not None] if isinstance(terms, Sequence) else []
        if not real or not all(isinstance(term, Term) for term in real):
            raise ValueError(f"terms must hold at least one Term, and None elsewhere; not {terms}")
        self.width, self.layers = whole("width", width), len(terms)
        self.terms = nn.ModuleDict({str(place): term for place, term in enumerate(terms) if term is not None})
        self.symbol = real[0].symbol

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width * self.layers)
        states = u.split(self.width, dim=-1)
        rates = [
            self.terms[str(place)](state, t, mask) if str(place) in self.terms else torch.zeros_like(state)
            for place, state in enumerate(states)
        ]
        return keep_real(torch.cat(rates, dim=-1), mask)
