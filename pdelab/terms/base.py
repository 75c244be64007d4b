"""Term: one summand of ∂u/∂t."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from pdelab.field import Field, Mask


class Term(nn.Module, ABC):
    """A rate: maps the field u at time t to its share of du/dt, in the shape of u and zero where no token is.

    u: (batch, token, feature); mask: (batch, token), True where a token is real.
    """

    symbol: ClassVar[str]

    @abstractmethod
    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field: ...

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        """The part of the rate that is the −u of P2 eq 5 and 6, which a budget may count apart; None if it has none."""
        return None


def choose(option: str, given: str, known: dict):
    """known[given], or a ValueError that names the option and what would work."""
    if given not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}; not {given!r}")
    return known[given]
