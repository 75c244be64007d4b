"""S[u]: what LayerNorm is said to be, and what it is.  (P2 eq 9)

Three rates that must not be confused. P2 eq 9 as printed takes mean and variance over space and pulls towards the mean.
LayerNorm takes them over the features of each token and, as a rate, pulls towards its own output. The corrected term
keeps eq 9's statistics over space and LayerNorm's form, and it bounds the field.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from pdelab.field import (
    Field,
    Mask,
    centred,
    check_field,
    check_number,
    check_state,
    mean_square,
    positions,
)
from pdelab.formulas import keep_real
from pdelab.options import flags, instance, whole
from pdelab.terms.base import Term, scaled


def _check(strength: float, eps: float) -> None:
    check_number("strength", strength, 0)
    check_number("eps", eps, 0)


def normalised(u: Field, eps: float | Tensor = 1e-5, mask: Mask | None = None) -> Field:
    """N(u) = (u − μ)/√(σ² + ε), μ and σ² = ‖u − μ‖² over the tokens; 0 where all tokens agree, also for ε = 0.

    eps: one number, or one for each example, (batch, 1, 1).
    """
    rest = centred(u, mask)
    check_number("eps", eps, 0, shape=(len(u), 1, 1))
    variance = mean_square(rest, mask) + eps  # (batch, 1, 1)
    safe = torch.where(variance > 0, variance, torch.ones_like(variance))
    made = rest / safe.sqrt()
    return made if made.dtype == u.dtype else made.to(u.dtype)


class SpatialStabilization(Term):
    """S[u] = −γ(x, t) (u − μ)/√(σ² + ε), μ and σ² over the tokens: P2 eq 9 as printed.

    strength is γ: a number, or a function that gets the positions (batch, token) and t and gives γ in that shape.
    For a number, ∫⟨u, S⟩ dx = −γ σ²/√(σ² + ε) and ∫S dx = 0: the mean is never damped, and the term rests where all
    tokens agree. A γ that depends on x moves the mean and can add energy.
    """

    symbol: str = "S"

    def __init__(self, strength: float | Callable[[Tensor, float], Tensor] = 1.0, eps: float = 1e-5):
        super().__init__()
        _check(0.0 if callable(strength) else strength, eps)
        self.strength, self.eps = strength, eps

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return keep_real(-self._strength(u, t, mask) * normalised(u, self.eps, mask), mask)

    def _strength(self, u: Field, t: float, mask: Mask | None) -> float | Tensor:
        if not callable(self.strength):
            return self.strength
        x = positions(u, mask)
        given = self.strength(x, t)
        if not isinstance(given, Tensor) or given.shape != x.shape:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(f"strength must give one γ for each position, in the shape {tuple(x.shape)}; not {shape}")
        return given.to(u).unsqueeze(-1)  # (batch, token, 1)


class CorrectedStabilization(Term):
    """S[u] = γ ((u − μ)/√(σ² + ε) − u), μ and σ² over the tokens: with γ above the growth rate it bounds ‖u‖.

    Not P2 eq 9: that term is −γ(u − μ)/√(σ² + ε), which does not touch the mean.
    """

    symbol: str = "S"

    def __init__(self, strength: float = 1.0, eps: float = 1e-5):
        super().__init__()
        _check(strength, eps)
        self.strength, self.eps = strength, eps

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return self.strength * keep_real(normalised(u, self.eps, mask) - u, mask)


def _norm(width: int, eps: float, bias: bool, centre: bool) -> nn.LayerNorm | nn.RMSNorm:
    check_number("eps", eps, 0, shape=())
    flags(bias=bias, centre=centre)
    return nn.LayerNorm(width, eps=eps, bias=bias) if centre else nn.RMSNorm(width, eps=eps)


class LayerNormRate(Term):
    """S[u] = γ (LN(u) − u), LN over the features of each token: an Euler step with Δt = 1/γ is LayerNorm itself.

    centre=False takes RMSNorm, g ⊙ z/√(|z|²/d + ε), in place of LN: no mean is taken off, and there is no bias.
    """

    symbol: str = "S"

    def __init__(self, width: int, strength: float = 1.0, eps: float = 1e-5, *, bias: bool = True, centre: bool = True):
        super().__init__()
        check_number("strength", strength, 0)
        self.width, self.strength = whole("width", width), strength
        self.norm = _norm(width, eps, bias, centre)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width, self.norm)
        u = keep_real(u, mask)
        return scaled(self.strength, keep_real(self.norm(u) - u, mask))


class PreNorm(Term):
    """T[LN(u)]: a term that reads the normalised field. Pre-LayerNorm is this composition; it is not a term S.

    centre=False takes RMSNorm in place of LN, as in `LayerNormRate`.
    """

    symbol: str = ""

    def __init__(self, term: Term, width: int, eps: float = 1e-5, *, bias: bool = True, centre: bool = True):
        super().__init__()
        self.width, self.term = whole("width", width), instance("term", term, Term)
        self.norm = _norm(width, eps, bias, centre)
        self.symbol = term.symbol  # its rate counts as that of the term inside

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None, **options: Any) -> Field:
        """options: what the term inside takes beside these, such as the list `maps` of an interaction."""
        check_state(u, mask, self.width, self.norm)
        return self.term(self.norm(keep_real(u, mask)), t, mask, **options)

    def weights(self, u: Field, mask: Mask | None = None) -> Tensor:
        """The attention maps of an interaction that reads the normalised field."""
        u = check_field(u, width=self.width, mask=mask, weights=self.norm)
        return cast(Any, self.term).weights(self.norm(u), mask)  # an Interaction has them; others say so
