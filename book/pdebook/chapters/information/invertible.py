"""The flow run backward: u₀ ↦ u_t is a bijection, and here is its inverse.  (P2 Theorem 3.5)

u' = A[u] + R[u] + D[u] + S[u] for N tokens, with ε > 0, bounded γ, a Lipschitz activation and a constant matrix D, is
solved backward as well as forward. Beside it what cannot be undone, the mean over tokens, LayerNorm, a ReLU network
without a skip, P2 eq 9 with ε = 0; and layers u + Δt F(u), which can be while Δt times a Lipschitz constant is below 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pdelab.equation import MasterEquation
from pdelab.field import Field, token_mean
from pdelab.integrators import RK4
from pdelab.seeds import normal
from pdelab.solver import Trajectory, solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import SpatialStabilization

WIDTH = 4


def master(
    seed: int,
    *,
    width: int = WIDTH,
    hidden: int = 8,
    diffusion: float = 0.01,
    gamma: float = 1.0,
    eps: float = 0.1,
    gain: float = 1.0,
    activation: str = "tanh",
) -> MasterEquation:
    """A + R + D + S of P2 eq 4-9, both −u included; weights N(0, gain²/fan-in), biases of size 0.3."""
    made = MasterEquation(
        Interaction(width, 2, leak=True),
        Reaction(width, hidden, activation=activation, leak=True),
        Diffusion(diffusion),
        SpatialStabilization(gamma, eps),
    )
    made = made.double().requires_grad_(False)
    for name, value in made.named_parameters():
        size = gain / math.sqrt(value.shape[1]) if value.ndim == 2 else 0.3
        value.copy_(size * normal(seed, "invertible", name, size=value.shape))
    return made


def ahead(equation: MasterEquation, u0: Field, T: float, steps: int) -> Trajectory:
    """u(0) … u(T) by RK4."""
    return solve(equation, u0, steps=steps, dt=T / steps, integrator=RK4(), throw=True)


def back(equation: MasterEquation, end: Field, T: float, steps: int) -> Trajectory:
    """v' = −F(v, T − t) from v(0) = u(T), by RK4: v(t) = u(T − t)."""
    return solve(lambda v, t: -equation(v, T - t), end, steps=steps, dt=T / steps, integrator=RK4(), throw=True)


def recovery(equation: MasterEquation, u0: Field, T: float, steps: int) -> float:
    """max|v(T) − u₀| / max|u₀|: there and back again."""
    returned = back(equation, ahead(equation, u0, T, steps).final, T, steps).final
    return ((returned - u0).abs().max() / u0.abs().max()).item()


def undo_layer(rate: Callable[[Field], Field], w: Field, dt: float, iterations: int) -> list[Field]:
    """v ← w − Δt F(v) from v = w: the iterates, which tend to the u with u + Δt F(u) = w if Δt·Lip F < 1."""
    found = [w]
    for _ in range(iterations):
        found.append(w - dt * rate(found[-1]))
    return found


class Branch(nn.Module):
    """F(u) = P u Vᵀ + tanh(u Wᵀ) Uᵀ, attention to all tokens alike and a network: Lipschitz with ‖V‖ + ‖U‖‖W‖."""

    def __init__(self, seed: int, width: int = WIDTH, lipschitz: float = 1.0):
        super().__init__()
        V, W, U = (normal(seed, "branch", k, size=(width, width)) for k in "VWU")
        size = _norm(V) + _norm(U) * _norm(W)
        self.V, self.W, self.U = lipschitz / size * V, W, lipschitz / size * U

    def forward(self, u: Field) -> Field:
        return token_mean(u) @ self.V.T + torch.tanh(u @ self.W.T) @ self.U.T


def _norm(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix, 2).item()


LOSSY = ("pooling", "LayerNorm", "ReLU without skip", "ε = 0", "large step")


def collision(name: str, seed: int, width: int = WIDTH, tokens: int = 6) -> tuple[Field, Field, float, float]:
    """Two states that a map makes one: u, v, max|u − v| and max|f(u) − f(v)|.

    pooling: v is u with its tokens in reverse. LayerNorm: v is u plus one number at all features of a token. ReLU
    without skip: both have negative pre-activations. ε = 0: P2 eq 9 with γ = 1 acts for a time 2 on spreads of 0.5 and
    1 about one mean. large step: one Euler step of u' = −(u − μ) with Δt = 1.
    """
    u = normal(seed, "collision", name, size=(1, tokens, width))
    if name == "pooling":
        v, f = u.flip(1), token_mean
    elif name == "LayerNorm":
        v, f = u + normal(seed, "shift", size=(1, tokens, 1)), nn.LayerNorm(width, dtype=u.dtype)
    elif name == "ReLU without skip":
        u, v = -u.abs(), -normal(seed, "other", size=u.shape).abs()
        network = Reaction(width, 8, bias=False).double().requires_grad_(False)
        network.inner.weight.abs_()
        f = network
    elif name == "ε = 0":
        rest = u - token_mean(u)
        rest = rest / rest.square().sum(dim=-1).mean().sqrt()
        u, v = token_mean(u) + rest, token_mean(u) + 0.5 * rest

        def f(w: Field) -> Field:
            # exact: the spread falls at the rate γ = 1 until it is 0, and the direction stays
            mean = token_mean(w)
            spread = (w - mean).square().sum(dim=-1).mean().sqrt()
            return mean + (1 - 2.0 / spread).clamp(min=0) * (w - mean)

    elif name == "large step":
        v = u.flip(1)

        def f(w: Field) -> Field:
            return w - (w - token_mean(w))
    else:
        raise ValueError(f"name must be one of {', '.join(LOSSY)}; not {name!r}")
    with torch.no_grad():
        return u, v, (u - v).abs().max().item(), (f(u) - f(v)).abs().max().item()
