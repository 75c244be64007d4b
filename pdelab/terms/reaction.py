"""R[u]: the feed-forward network, a reaction at each token by itself.  (P2 eq 6; P1 eq 12-13)"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from pdelab.field import Field, Mask, check_width, keep_real, positions
from pdelab.terms.base import Term, choose

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class Reaction(Term):
    """R[u]_i = W₂ φ(W₁ u_i + b₁) + b₂ + g(x_i, t): token i reacts to itself alone.  (P2 eq 6; P1 eq 12-13)

    leak=True subtracts u, as P2 eq 6 prints it; a Transformer block is the form without.
    source is P1's external input g(x, t): it gets the positions (batch, token) and gives a field.
    """

    symbol: ClassVar[str] = "R"

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
        if width < 1 or hidden < 1:
            raise ValueError(f"width and hidden must be at least 1; not {width} and {hidden}")
        self.width, self.leak, self.source = width, leak, source
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.activation = choose("activation", activation, ACTIVATIONS)()
        self.outer = nn.Linear(hidden, width, bias=bias)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_width(u, self.width)
        u = keep_real(u, mask)
        rate = self.outer(self.activation(self.inner(u)))
        if self.source is not None:
            external = self.source(positions(u, mask), t)
            if not isinstance(external, Tensor) or external.ndim != 3:
                raise ValueError("source must give a field (batch, token, feature) from the positions (batch, token)")
            rate = rate + external
        return keep_real(rate - u if self.leak else rate, mask)
