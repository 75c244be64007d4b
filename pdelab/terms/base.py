"""Term: one summand of ∂u/∂t."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from pdelab.field import Field, Mask, check_state, same_shape
from pdelab.formulas import keep_real
from pdelab.options import function


class Term(nn.Module, ABC):
    """A rate: maps the field u at time t to its share of du/dt, in the shape of u and zero where no token is.

    u: (batch, token, feature); mask: (batch, token), True where a token is real.
    """

    symbol: str  # its letter in the equation

    @staticmethod
    def of(symbol: str, f: Callable[..., Field]) -> "Term":
        """Any function f(u), f(u, t) or f(u, t, mask) as a term with this letter; a module's weights are the term's.

        A mask is refused where f takes none, as f might mix tokens with padding.

        >>> import torch
        >>> decay = Term.of("R", lambda u: -u)
        >>> decay.symbol, decay(torch.ones(1, 2, 1)).flatten().tolist()
        ('R', [-1.0, -1.0])
        """
        return _Function(symbol, f)

    @abstractmethod
    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field: ...

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        """The part of the rate that is the −u of P2 eq 5 and 6, which a budget may count apart; None if it has none."""
        return None


class Takes(NamedTuple):
    """Which arguments a function of u takes beside u."""

    time: bool
    mask: bool

    @classmethod
    def of(cls, f: Callable[..., Field]) -> "Takes":
        try:
            parameters = inspect.signature(f.forward if isinstance(f, nn.Module) else f).parameters.values()
        except (TypeError, ValueError):  # a built-in such as torch.sin has no signature
            parameters = []
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = [p for p in places if p.default is p.empty]
        time = len(needed) >= 2 or any(p.name == "t" for p in places)
        return cls(time, any(p.name == "mask" for p in parameters))

    def rate(self, f: Callable[..., Field], u: Field, t: float, mask: Mask | None) -> Field:
        """f(u), f(u, t) or f(u, t, mask), if it has the shape of u."""
        if mask is not None and not self.mask:
            raise ValueError("mask was given, but f takes no mask; write it as f(u, t, mask)")
        options = {"mask": mask} if self.mask else {}
        return same_shape(f(u, t, **options) if self.time or self.mask else f(u), u)


class _Function(Term):
    symbol: str = ""

    def __init__(self, symbol: str, f: Callable[..., Field]):
        super().__init__()
        if not isinstance(symbol, str) or not symbol:
            raise ValueError(f"symbol must be a letter such as A; not {symbol!r}")
        self.symbol, self.f = symbol, function("f", f)
        self.takes = Takes.of(f)

    def extra_repr(self) -> str:
        return f"{self.symbol!r}, {getattr(self.f, '__name__', type(self.f).__name__)}"

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask)
        return keep_real(self.takes.rate(self.f, keep_real(u, mask), t, mask), mask)


def scaled(factor: float | Tensor, x: Tensor) -> Tensor:
    """factor · x; x itself if the factor is the number 1, as in a usual Transformer, where the product costs time."""
    return x if not isinstance(factor, Tensor) and factor == 1 else factor * x
