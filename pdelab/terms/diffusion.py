"""D[u] = D ∂²u/∂x²: the heat equation along the tokens.  (P1 eq 1 and 20, with a scalar coefficient)"""

import math
from typing import ClassVar

from pdelab.field import Field, check_boundary, laplacian, laplacian_eigenvalues
from pdelab.terms.base import Term


class Diffusion(Term):
    """D[u]_i = D (u_{i+1} − 2u_i + u_{i−1}) / Δx² with tokens at cell centres.  (P1 eq 20)

    >>> import torch
    >>> Diffusion(0.5)(torch.ones(1, 4, 2)).abs().max().item()      # a constant field does not diffuse
    0.0
    """

    symbol: ClassVar[str] = "D"

    def __init__(self, coefficient: float, boundary: str = "reflecting"):
        super().__init__()
        if not math.isfinite(coefficient):
            raise ValueError(f"coefficient must be a finite number, not {coefficient!r}")
        check_boundary(boundary)
        self.coefficient = coefficient
        self.boundary = boundary

    def forward(self, u: Field, t: float = 0.0) -> Field:
        return self.coefficient * laplacian(u, self.boundary)

    def largest_step(self, tokens: int) -> float:
        """2/(D·|λ_max|): past this Δt one explicit Euler step amplifies the fastest mode that this grid carries."""
        fastest = self.coefficient * laplacian_eigenvalues(tokens, self.boundary)[-1].item()
        if fastest > 0:
            return 0.0  # D < 0 grows at every step
        return 2 / -fastest if fastest < 0 else math.inf
