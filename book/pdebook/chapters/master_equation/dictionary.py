"""P1's dictionary of PDE and Transformer, line by line: both sides built and compared.  (P1 §2.3, P1 eq 1)

Space is position, time is depth: these stand. Diffusion is not attention, the residual connection is no part of the
non-linear term, and the step Δt is not a learning rate.
"""

import torch
from torch import Tensor, nn

from pdelab.field import Field, laplacian_eigenvalues, laplacian_modes
from pdelab.integrators import Rate
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal
from pdelab.solver import solve
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion

TOKENS, SAMPLES = 16, 64


def reach(rate: Rate, u: Field, token: int) -> Tensor:
    """‖∂rate_i/∂u_j‖ for one j and every i, Frobenius norm over features: who notices when token j moves? (token,)"""
    return torch.linalg.matrix_norm(jacobian(rate, u)[0, :, :, token, :])


def mode_growth(matrix: Tensor, time: float, tokens: int = TOKENS) -> Tensor:
    """‖e^{tλ_kD}‖ of every mode k of the grid, measured: how much diffusion with the matrix D amplifies it: (mode,)

    Each mode is sent through `Diffusion.exact` in every direction of feature space.
    """
    width = matrix.shape[0]
    modes = laplacian_modes(tokens)  # (token, mode)
    u = torch.einsum("ik,ab->kaib", modes, torch.eye(width, dtype=modes.dtype)).flatten(0, 1)  # mode · direction
    after = Diffusion(matrix).exact(u, time).view(tokens, width, tokens, width)
    return torch.linalg.matrix_norm(torch.einsum("ik,kaib->kba", modes, after), 2)


def mode_law(matrix: Tensor, time: float, tokens: int = TOKENS) -> Tensor:
    """‖e^{tλ_kD}‖, by the matrix exponential: (mode,)"""
    rates = laplacian_eigenvalues(tokens).reshape(-1, 1, 1)
    return torch.linalg.matrix_norm(torch.linalg.matrix_exp(time * rates * matrix), 2)


def torch_block(layer: nn.TransformerEncoderLayer, u: Field) -> Field:
    """u ← u + Att(u), u ← u + FFN(u): a residual block without LayerNorm, from torch's own modules."""
    u = u + layer.self_attn(u, u, u, need_weights=False)[0]
    return u + layer.linear2(layer.activation(layer.linear1(u)))


# Δt and the learning rate


def forward_bound(coefficient: float = 0.01) -> float:
    """2/|λ_max|: past this Δt explicit diffusion grows, whatever happens in training."""
    return Diffusion(coefficient).largest_step(TOKENS)


def features(dt: float, seed: int, coefficient: float = 0.01, steps: int = 40) -> tuple[Tensor, bool]:
    """X: the states after `steps` explicit steps of diffusion, (sample, token); and whether they grew."""
    u0 = 1 + normal(seed, "inputs", size=(SAMPLES, TOKENS, 1))
    run = solve(Diffusion(coefficient), u0, steps=steps, dt=dt)
    grew = run.status is Status.DIVERGED or run.final.norm() > u0.norm()
    return run.final.squeeze(-1), bool(grew)


def rate_bound(X: Tensor) -> float:
    """2/λ_max(XᵀX/m): past this learning rate gradient descent on ½ mean (Xw − y)² diverges."""
    return 2 / torch.linalg.matrix_norm(X.T @ X / len(X), 2).item()


def training_diverges(X: Tensor, rate: float, seed: int, steps: int = 200) -> bool:
    """Gradient descent of a linear readout on the features X: is the loss larger at the end than at the start?"""
    y, w = normal(seed, "targets", size=(len(X),)), torch.zeros(X.shape[1], dtype=X.dtype)
    first = (X @ w - y).square().mean()
    for _ in range(steps):
        w = w - rate * X.T @ (X @ w - y) / len(X)
    last = (X @ w - y).square().mean()
    return bool(~(last <= first))  # NaN counts as divergence
