"""What the checks of the review share: a block without its skip, and a random term of equal norm."""

import torch
from torch import Tensor

from pdelab.field import Field, Mask, keep_real
from pdelab.seeds import normal
from pdelab.terms.base import Term


class Skipless(Term):
    """T[u]_i − u_i + |u_i| n_i: with Δt = 1 the skip of a block u + T[u] is gone, or is a random term of equal norm.

    directions: n, unit vectors (token, feature); None: nothing in place of the skip.
    """

    symbol: str = ""

    def __init__(self, term: Term, directions: Tensor | None = None):
        super().__init__()
        self.term, self.symbol = term, term.symbol
        self.register_buffer("directions", directions)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        rate = self.term(u, t, mask) - keep_real(u, mask)
        return rate if self.directions is None else rate + _as_long(u, self.directions, mask)


class EqualNorm(Term):
    """|T[u]_i| n_i: as long as the term at every token, in directions n that have nothing to do with the state."""

    symbol: str = ""

    def __init__(self, term: Term, directions: Tensor):
        super().__init__()
        self.term, self.symbol = term, term.symbol
        self.register_buffer("directions", directions)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return _as_long(self.term(u, t, mask), self.directions, mask)


def _as_long(rate: Field, directions: Tensor, mask: Mask | None) -> Field:
    return keep_real(rate.norm(dim=-1, keepdim=True) * directions[: rate.shape[1]].to(rate), mask)


def directions(tokens: int, width: int, seed: int) -> Tensor:
    """Unit vectors in random directions, one for each token: (token, feature)."""
    drawn = normal(seed, "directions", size=(tokens, width))
    return (drawn / drawn.norm(dim=-1, keepdim=True)).to(torch.get_default_dtype())
