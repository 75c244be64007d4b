"""Term: one summand of ∂u/∂t."""

from abc import ABC, abstractmethod

from torch import nn

from pdelab.field import Field, Mask
from pdelab.options import choose

__all__ = ["Term", "choose"]


class Term(nn.Module, ABC):
    """A rate: maps the field u at time t to its share of du/dt, in the shape of u and zero where no token is.

    u: (batch, token, feature); mask: (batch, token), True where a token is real.
    """

    symbol: str  # its letter in the equation

    @abstractmethod
    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field: ...

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        """The part of the rate that is the −u of P2 eq 5 and 6, which a budget may count apart; None if it has none."""
        return None
