"""Term: one summand of ∂u/∂t."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from pdelab.field import Field


class Term(nn.Module, ABC):
    """A rate: maps the field u and the time t to its share of du/dt, in the shape of u."""

    symbol: ClassVar[str]

    @abstractmethod
    def forward(self, u: Field, t: float = 0.0) -> Field: ...
