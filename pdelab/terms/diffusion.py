"""D[u] = D ∂²u/∂x²: the heat equation along the tokens.  (P1 eq 1 and 20; the form that P2 eq 7 names)

Beside it stands the sum over features that P1 eq 8 prints, which moves nothing between tokens.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pdelab.field import (
    Field,
    Mask,
    check_boundary,
    check_number,
    check_state,
    laplacian,
    laplacian_eigenvalues,
    precise,
)
from pdelab.formulas import keep_real
from pdelab.options import whole
from pdelab.terms.base import Term

Multiplier = Callable[[Tensor], Tensor]


class _SecondDerivative(Term):
    """D times a second derivative. coefficient: a number, one number per feature, or a d×d matrix on the features."""

    symbol: str = "D"

    def __init__(self, coefficient: float | Tensor, boundary: str = "reflecting"):
        super().__init__()
        number = isinstance(coefficient, int | float)
        given = coefficient
        try:
            coefficient = torch.tensor(given, dtype=torch.float64, device="cpu") if number else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"coefficient must be a number or a tensor; not {given!r}") from error
        square = coefficient.ndim == 2 and coefficient.shape[0] == coefficient.shape[1]
        if not (coefficient.ndim < 2 or square) or 0 in coefficient.shape or not coefficient.is_floating_point():
            raise ValueError(
                "coefficient must be a number, one number per feature, or a square matrix of floats; "
                f"not {coefficient.dtype} of shape {tuple(coefficient.shape)}"
            )
        if not coefficient.is_meta and not torch.isfinite(coefficient).all():
            raise ValueError(f"coefficient must be finite; not {coefficient}")
        check_boundary(boundary)
        self.boundary = boundary
        if number:
            self.coefficient = coefficient.item()  # a buffer would round it to the model's dtype
        else:
            self.register_buffer("coefficient", coefficient)
        self.width = coefficient.shape[-1] if coefficient.ndim else None

    def _coefficient_like(self, u: Field) -> Tensor:
        return torch.as_tensor(self.coefficient, dtype=u.dtype, device=u.device)

    def _times(self, second: Field) -> Field:
        if isinstance(self.coefficient, float):
            return self.coefficient * second
        coefficient = self._coefficient_like(second)
        return second @ coefficient.T if coefficient.ndim == 2 else coefficient * second


class Diffusion(_SecondDerivative):
    """D[u]_i = D (u_{i+1} − 2u_i + u_{i−1}) / Δx² with tokens at cell centres.  (P1 eq 1, 20)

    coefficient: a number, one number per feature, or a d×d matrix that acts on the features.

    Three ways to advance it: as a rate with an explicit step (bounded up to `largest_step`), implicitly, or exactly.

    >>> Diffusion(0.5)(torch.ones(1, 4, 2)).abs().max().item()      # a constant field does not diffuse
    0.0
    """

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        if self.width is not None:  # the rest is checked there
            check_state(u, mask, self.width)
        return self._times(laplacian(u, self.boundary, mask))

    def largest_step(self, tokens: int) -> float:
        """2/(D·|λ_max|): past this Δt one explicit Euler step amplifies the fastest mode that this grid carries.

        For a matrix D the step z = 1 + Δt·λ·δ must have |z| ≤ 1 for every eigenvalue δ of D: 2 Re δ / (|λ| |δ|²).
        """
        fastest = -laplacian_eigenvalues(whole("tokens", tokens), self.boundary)[-1].item()
        d = torch.as_tensor(self.coefficient, dtype=torch.float64)
        rates = torch.linalg.eigvals(d) if d.ndim == 2 else torch.complex(d, torch.zeros_like(d)).reshape(-1)
        moving = rates[rates.abs() > 0]
        if fastest == 0 or moving.numel() == 0:
            return math.inf
        return max(0.0, (2 * moving.real / (fastest * moving.abs() ** 2)).min().item())

    def exact(self, u: Field, dt: float | Tensor, mask: Mask | None = None) -> Field:
        """e^{Δt D ∂²} u on the grid: each frequency k of the Laplacian is multiplied by e^{Δt λ_k D}."""

        def factor(rate: Tensor) -> Tensor:
            return torch.exp(dt * rate)

        def matrix(rate: Tensor) -> Tensor:
            return torch.linalg.matrix_exp(dt * rate)

        check_number("dt", dt, 0, shape=())
        return self._by_frequency(u, mask, factor, matrix)

    def implicit(
        self, u: Field, dt: float | Tensor, mask: Mask | None = None, *, order: int = 1, steps: int = 1
    ) -> Field:
        """Backward Euler, (I − Δt D∂²)⁻¹ u, or with order=2 Crank–Nicolson, (I − ½Δt D∂²)⁻¹ (I + ½Δt D∂²) u.

        Both stay bounded for every Δt if D has no negative eigenvalue; only the first damps what Δt does not resolve.
        steps: so many steps of Δt, at the cost of one.

        >>> u = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)  # λ = −8 on two tokens
        >>> round(Diffusion(1.0).implicit(u, 0.125, steps=3)[0, 0].item(), 12)  # 1/(1 + 1)³
        0.125
        """

        def factor(rate: Tensor) -> Tensor:
            return ((1 + explicit * rate) / (1 - (dt - explicit) * rate)) ** steps

        def matrix(rate: Tensor) -> Tensor:
            one = torch.eye(rate.shape[-1]).to(rate)
            once = torch.linalg.solve(one - (dt - explicit) * rate, one + explicit * rate)
            return torch.linalg.matrix_power(once, steps)

        check_number("dt", dt, 0, shape=())
        order, steps = whole("order", order, 1, 2), whole("steps", steps)
        explicit = dt / 2 if order == 2 else 0.0  # the part of Δt that looks back
        return self._by_frequency(u, mask, factor, matrix)

    def _by_frequency(self, u: Field, mask: Mask | None, factor: Multiplier, matrix: Multiplier) -> Field:
        """f(D∂²) u, with the length of each sequence; f of numbers, and of a stack of matrices."""
        check_state(u, mask, self.width)
        if mask is None or mask.is_meta:  # on the meta device lengths are unknown, and shapes do not depend on them
            return self._transform(u, factor, matrix)
        result = torch.zeros_like(u)
        number = mask.sum(dim=1)
        for length in number.unique().tolist():  # a loop over lengths, not over sequences
            rows = number == length
            inside = rows.unsqueeze(1) & mask
            block = u[inside].view(-1, length, u.shape[-1])
            result = result.masked_scatter(inside.unsqueeze(-1), self._transform(block, factor, matrix))
        return result

    def _transform(self, state: Field, factor: Multiplier, matrix: Multiplier) -> Field:
        """On a circle ∂² is diagonal in the Fourier transform; mirrored, even or odd, any field is half of a circle."""
        u = precise(state)  # the eigenvalues grow as 4n², beyond what half precision holds
        n = u.shape[1]
        mirror = {"reflecting": 1, "absorbing": -1, "periodic": 0}[self.boundary]
        circle = torch.cat([u, mirror * u.flip(1)], dim=1) if mirror else u

        turns = torch.fft.rfftfreq(circle.shape[1], dtype=u.dtype, device=u.device)
        eigenvalues = -((2 * n * torch.sin(math.pi * turns)) ** 2)  # those of `laplacian_eigenvalues`, and more
        amplitudes = torch.fft.rfft(circle, dim=1)  # (batch, frequency, feature)
        coefficient = self._coefficient_like(u)
        if coefficient.ndim == 2:
            factors = matrix(eigenvalues.view(-1, 1, 1) * coefficient)  # (frequency, feature, feature)
            amplitudes = torch.einsum("kij,bkj->bki", factors.to(amplitudes.dtype), amplitudes)
        else:
            amplitudes = factor(eigenvalues.view(-1, 1) * coefficient) * amplitudes
        return torch.fft.irfft(amplitudes, circle.shape[1], dim=1)[:, :n].to(state.dtype)


class FeatureDiffusion(_SecondDerivative):
    """D Σ_i ∂²u/∂x_i² with i over the d features, as P1 eq 8 prints it: D (u_{c+1} − 2u_c + u_{c−1}) d² at each token.

    Printed to spread information between positions, it spreads it between features of one position, and depends on the
    order in which they are numbered. Kept to be compared with `Diffusion`.

    >>> FeatureDiffusion(1.0)(torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]])).tolist()
    [[[9.0, -18.0, 9.0], [0.0, 0.0, 0.0]]]
    """

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width)
        return self._times(laplacian(keep_real(u, mask).transpose(1, 2), self.boundary).transpose(1, 2))
