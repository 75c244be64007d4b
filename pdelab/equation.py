"""The master equation: the plus signs of ∂u/∂t = A[u] + R[u] + D[u] + S[u].  (P2 eq 4; P1 eq 1)"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pdelab.field import Field, Mask, check_number
from pdelab.options import choose, number, positive
from pdelab.terms.base import Term
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import SpatialStabilization


class MasterEquation(nn.Module):
    """∂u/∂t = Σ terms, in the order given: the order is what a splitting integrator sweeps through.  (P2 eq 4)"""

    def __init__(self, *terms: Term):
        super().__init__()
        if not terms or not all(isinstance(term, Term) for term in terms):
            raise ValueError(f"terms must be at least one Term; not {[type(term).__name__ for term in terms]}")
        self.terms = nn.ModuleList(terms)

    @classmethod
    def later(
        cls,
        width: int,
        heads: int,
        hidden: int,
        *,
        diffusion: float | Tensor = 1e-4,
        stabilization: float = 1.0,
        boundary: str = "reflecting",
        activation: str = "relu",
    ) -> "MasterEquation":
        """∂u/∂t = (Att(u) − u) + (FFN(u) − u) + D∂²u − γ(u − μ)/√(σ² + ε): P2 eq 4-9, each −u included.

        D is given: P2 eq 8 names a coefficient that no formula determines.
        """
        check_number("diffusion", diffusion, shape=(width, width))
        check_number("stabilization", stabilization, 0)
        return cls(
            Interaction(width, heads, leak=True),
            Reaction(width, hidden, activation=activation, leak=True),
            Diffusion(diffusion, boundary),
            SpatialStabilization(stabilization),
        )

    @classmethod
    def earlier(
        cls,
        width: int,
        heads: int,
        hidden: int,
        *,
        diffusion: float | Tensor = 1e-4,
        strength: float = 1.0,
        source: Callable[[Tensor, float], Field] | None = None,
        boundary: str = "reflecting",
        activation: str = "relu",
    ) -> "MasterEquation":
        """∂u/∂t = D∂²u + α Att(u) + FFN(u) + g(x, t): P1 eq 1 with eq 9-13, no −u anywhere."""
        check_number("diffusion", diffusion, shape=(width, width))
        return cls(
            Diffusion(diffusion, boundary),
            Interaction(width, heads, strength=strength),
            Reaction(width, hidden, activation=activation, source=source),
        )

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        return reduce(add, (term(u, t, mask) for term in self.terms))

    def rates(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> dict[str, Field]:
        """Each symbol's share of du/dt; terms with one symbol are added. The shares sum to forward."""
        shares: dict[str, Field] = {}
        for term in cast(Iterable[Term], self.terms):
            rate = term(u, t, mask)
            shares[term.symbol] = shares[term.symbol] + rate if term.symbol in shares else rate
        return shares

    def at(self, t: float) -> "MasterEquation":
        return self


class Layered(nn.Module):
    """Equation ℓ on [ℓΔt, (ℓ+1)Δt): depth as time with weights that change from layer to layer.

    interpolation="constant" is what a Transformer is: each layer its own weights, jumping at ℓΔt. "linear" joins the
    weights of neighbouring layers by straight lines, θ(t) = (1 − s)θ_ℓ + s θ_{ℓ+1} with s = t/Δt − ℓ, which is what
    higher-order integrators and a change of depth need; the last layer's weights stay from (L−1)Δt on.
    """

    def __init__(self, equations: Sequence[MasterEquation], dt: float = 1.0, interpolation: str = "constant"):
        super().__init__()
        known = isinstance(equations, Iterable) and all(isinstance(e, MasterEquation) for e in equations)
        if not known or not len(equations):
            raise ValueError("equations must be at least one MasterEquation")
        choose("interpolation", interpolation, ("constant", "linear"))
        positive("dt", dt)
        if interpolation == "linear" and any(_form(e) != _form(equations[0]) for e in equations):
            raise ValueError(
                "equations must have the same weights and settings in all layers for interpolation='linear'"
            )
        self.equations = nn.ModuleList(equations)
        self.dt, self.interpolation = dt, interpolation

    def _place(self, t: float) -> tuple[int, float]:
        """ℓ and s of a time t; a hair is added, since ℓΔt is rarely a float."""
        number("t", t)
        last = len(self.equations) - 1
        layer = min(max(int(t / self.dt + 1e-9), 0), last)
        return layer, 0.0 if layer == last else max(t / self.dt - layer, 0.0)

    def at(self, t: float) -> MasterEquation:
        """The layer that acts at time t, for integrators that sweep through its terms."""
        if self.interpolation == "linear":
            raise ValueError(
                "a splitting integrator needs interpolation='constant': between layers there is no list of terms"
            )
        return cast(MasterEquation, self.equations[self._place(t)[0]])

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        layer, s = self._place(t)
        here = cast(MasterEquation, self.equations[layer])
        if self.interpolation == "constant" or s == 0.0:
            return here(u, t, mask)
        after = _weights(cast(MasterEquation, self.equations[layer + 1]))
        between = {name: torch.lerp(value, after[name], s) for name, value in _weights(here).items()}
        return functional_call(here, between, (u, t, mask))

    def rates(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> dict[str, Field]:
        return self.at(t).rates(u, t, mask)


def _weights(equation: MasterEquation) -> dict[str, Tensor]:
    """θ: parameters and buffers, such as a matrix D."""
    return dict(equation.named_parameters()) | dict(equation.named_buffers())


def _form(equation: MasterEquation) -> tuple[dict, list]:
    """All but the values of the weights: what two layers must share for a straight line between them."""
    shapes = {name: weight.shape for name, weight in _weights(equation).items()}
    settings = [{k: v for k, v in vars(m).items() if isinstance(v, int | float | str)} for m in equation.modules()]
    return shapes, [(type(module), own) for module, own in zip(equation.modules(), settings, strict=True)]
