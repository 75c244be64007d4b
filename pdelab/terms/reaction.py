"""R[u]: the feed-forward network, a reaction at each token by itself.  (P2 eq 6; P1 eq 12-13)"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pdelab.field import Field, Mask, check_state, described, positions
from pdelab.formulas import Constants, keep_real, reaction_constants, reaction_scales
from pdelab.options import choose, flags, function, whole
from pdelab.terms.base import Term

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}

# gelu'(x) = Φ(x) + x Φ'(x) has its extremes at ±√2, where its derivative Φ'(x)(2 − x²) is 0: they add up to 1
_STEEPEST = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)
SLOPES = {"relu": (0.0, 1.0), "gelu": (1 - _STEEPEST, _STEEPEST), "tanh": (0.0, 1.0)}
"""s₋ ≤ (φ(a) − φ(b))/(a − b) ≤ s₊ for all a ≠ b, and no smaller interval will do."""


class Reaction(Term):
    """R[u]_i = W₂ φ(W₁ u_i + b₁) + b₂ + g(x_i, t): token i reacts to itself alone.  (P2 eq 6; P1 eq 12-13)

    leak=True subtracts u, as P2 eq 6 prints it; a Transformer block is the form without.
    source is P1's external input g(x, t): it gets the positions (batch, token) and gives a field.
    """

    symbol: str = "R"

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str = "relu",
        leak: bool = False,
        source: Callable[[Tensor, float], Field] | None = None,
        bias: bool = True,
    ):
        super().__init__()
        width, hidden = whole("width", width), whole("hidden", hidden)
        flags(leak=leak, bias=bias)
        self.width, self.leak = width, leak
        self.source = None if source is None else function("source", source)
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.activation = choose("activation", activation, ACTIVATIONS)()
        self.outer = nn.Linear(hidden, width, bias=bias)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width, self.inner)
        u = keep_real(u, mask)
        rate = self.outer(self.activation(self.inner(u)))
        if self.source is not None:
            external = self.source(positions(u, mask), t)
            fits = isinstance(external, Tensor) and external.ndim == 3 and external.shape[1] in (1, u.shape[1])
            if not fits or external.shape[0] not in (1, len(u)) or external.shape[2] not in (1, self.width):
                raise ValueError(
                    "source must give a field (batch, token, feature) from the positions (batch, token); "
                    f"not {described(external)}"
                )
            rate = rate + external.to(rate)
        return keep_real(rate - u if self.leak else rate, mask)

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        check_state(u, mask)
        return -keep_real(u, mask) if self.leak else None

    @torch.no_grad()
    def constants(self, steps: int = 50) -> Constants[float]:
        """λ₋, λ and K of `reaction_constants` for these weights, with a good T for each; κ = 1 with a leak, else 0.

        They are bounds for every T. If units of ReLU are rescaled, w_k, b_k → ρw_k, ρb_k and c_k → c_k/ρ, which changes
        nothing that the network does, the best bounds stay the same; those returned do, up to how well T was found.
        steps: how long a good T is looked for; 0 takes the better of two guesses, of which one changes with ρ: for
        networks with very many features.

        >>> term = Reaction(1, 1, activation="tanh", leak=True)
        >>> for layer in (term.inner, term.outer): _ = layer.weight.data.fill_(1.0)
        >>> [round(x, 6) for x in term.constants()]  # R(u) = tanh u − u: its slopes fill (−1, 0]
        [-1.0, 0.0, 1.0]
        """
        steps = whole("steps", steps, least=0)
        slopes = next(SLOPES[name] for name, kind in ACTIVATIONS.items() if isinstance(self.activation, kind))
        inner, outer = self.inner.weight.detach().cpu().double(), self.outer.weight.detach().cpu().double()
        if not torch.isfinite(inner.norm() * outer.norm()):
            raise ValueError("the weights must be finite, and not too large, for the term to have constants")

        weights = inner, outer, slopes, float(self.leak)
        lower, upper, lipschitz = (x.item() for x in reaction_constants(*weights, reaction_scales(*weights, steps)))
        return Constants(max(lower, -lipschitz), min(upper, lipschitz), lipschitz)


class GatedReaction(Term):
    """R[u]_i = W₂ (φ(W₁ u_i) ⊙ W₃ u_i): a network with a gate; with φ = silu it is SwiGLU (Shazeer 2020).

    inner, gate and outer are W₁, W₃ and W₂; with bias=True each adds its own.
    """

    symbol: str = "R"

    def __init__(self, width: int, hidden: int, *, activation: str = "silu", bias: bool = False):
        super().__init__()
        width, hidden = whole("width", width), whole("hidden", hidden)
        flags(bias=bias)
        self.width = width
        self.inner, self.gate = (nn.Linear(width, hidden, bias=bias) for _ in range(2))
        self.activation = choose("activation", activation, ACTIVATIONS | {"silu": nn.SiLU})()
        self.outer = nn.Linear(hidden, width, bias=bias)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width, self.inner)
        u = keep_real(u, mask)
        return keep_real(self.outer(self.activation(self.inner(u)) * self.gate(u)), mask)

    def constants(self, steps: int = 50) -> Constants[float]:
        """There are none: along a ray it grows with the square of |u|, as a rule, and so does its slope with |u|."""
        raise ValueError("a GatedReaction has no constants for all states: it grows with the square of |u|")


class Rectified(Term):
    """R[u]_i = max(W u_i + b, 0) − u_i: with Δt = 1 one linear layer with ReLU at each token, u ← max(W u + b, 0).

    P1 describes a PDE model of "linear layers and ReLU activations" (P1 §3.3.2, §3.4.2): it moves nothing between
    tokens. Kept to be measured as it is described.

    >>> layer = Rectified(2).requires_grad_(False)
    >>> u = torch.ones(1, 3, 2)
    >>> torch.allclose(u + layer(u), torch.relu(layer.linear(u)))
    True
    """

    symbol: str = "R"

    def __init__(self, width: int):
        super().__init__()
        self.width = whole("width", width)
        self.linear = nn.Linear(width, width)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width, self.linear)
        u = keep_real(u, mask)
        return keep_real(torch.relu(self.linear(u)) - u, mask)

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        check_state(u, mask)
        return -keep_real(u, mask)
