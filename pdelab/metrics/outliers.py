"""Tokens that are far longer than the rest, and spoil every mean over tokens. u: (batch, token, feature)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pdelab.field import Field, Mask, first_token
from pdelab.metrics.base import clean, real_places
from pdelab.options import number


@dataclass(frozen=True)
class Outliers:
    """The tokens with |u_i| > factor · median_j |u_j|, the median over their own sequence; one entry each.

    example, token: where, u[example, token]; place: the token, counted from the first real one of its sequence.
    size: |u_i|; times: |u_i| / median. examples: how many there were in all.
    """

    example: Tensor
    token: Tensor
    place: Tensor
    size: Tensor
    times: Tensor
    examples: int

    def __len__(self) -> int:
        return len(self.token)

    def __str__(self) -> str:
        """The places, those of most examples first: 'token 0 in 12 of 16 examples, 180 times the median'."""
        if not len(self):
            return "no outlier tokens"
        places, number = self.place.unique(return_counts=True)
        words = [
            f"token {place} in {count} of {self.examples} examples, "
            f"{self.times[self.place == place].median().item():.3g} times the median"
            for place, count in sorted(zip(places.tolist(), number.tolist(), strict=True), key=lambda x: (-x[1], x[0]))
        ]
        return "; ".join(words[:3]) + (f"; {len(words) - 3} more places" if len(words) > 3 else "")


@torch.no_grad()
def outliers(u: Field, mask: Mask | None = None, *, factor: float = 5.0) -> Outliers:
    """Which tokens are longer than `factor` times the median length of their sequence, |u_i| > k · median_j |u_j|?

    Among N tokens of one size no length is far from the median; trained networks have a few tokens, often the first,
    that are a hundred times as long. At most half of a sequence can be outliers, and a lone token is none. A sequence
    whose median is 0 has no scale, and all its tokens that are not 0 are outliers, infinitely many times the median.

    >>> u = torch.ones(2, 5, 4)
    >>> u[:, 0] *= 100
    >>> str(outliers(u))
    'token 0 in 2 of 2 examples, 100 times the median'
    """
    number("factor", factor, 1)
    u = clean(u, mask)
    real = real_places(u, mask)
    size = torch.linalg.vector_norm(u, dim=-1)  # (batch, token)
    median = torch.where(real, size, torch.nan).nanquantile(0.5, dim=1, keepdim=True)
    example, token = (real & (size > factor * median)).nonzero(as_tuple=True)
    place = token if mask is None else token - first_token(mask).flatten()[example]
    times = size / median
    return Outliers(example, token, place, size[example, token], times[example, token], len(u))
