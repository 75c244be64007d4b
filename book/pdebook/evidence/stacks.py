"""Random stacks of layers, with weights that are smooth in depth or drawn anew for each layer.

One block is A[u] + R[u] without biases, attention with one head and a tanh network. A stack of L blocks is a `Layered`
equation, and its branch scale is the step: H⁺ = H + Δt F_ℓ(H) is `solve(stack, u0, steps=L, dt=Δt)`. The weights of
layer ℓ are either smooth in depth, θ(s) = cos(πs) θ₀ + sin(πs) θ₁ at s = ℓ/L, or drawn anew for each layer. Both have
the same law at every layer, N(0, 1/fan-in): the two differ in nothing but how layers depend on each other.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.formulas import attention
from pdelab.seeds import normal, stream
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

BATCH, TOKENS, WIDTH, HIDDEN, TIME = 4, 8, 16, 32, 1.0
DEPTHS = (8, 16, 32, 64, 128)

Weights = dict[str, Tensor]


def random_tokens(seed: int) -> Field:
    """u₀ ~ N(0, 1) in every entry: (batch, token, feature)."""
    return normal(seed, "tokens", size=(BATCH, TOKENS, WIDTH))


def block(width: int = WIDTH, hidden: int = HIDDEN) -> MasterEquation:
    """A[u] + R[u] in double precision, with weights that are set from outside."""
    terms = Interaction(width, bias=False), Reaction(width, hidden, activation="tanh", bias=False)
    return MasterEquation(*terms).double().requires_grad_(False)


@lru_cache(maxsize=1)
def empty_block() -> MasterEquation:
    return block()


def draw_weights(seed: int, *names: object) -> Weights:
    """Independent weights, N(0, 1/fan-in), so that every matrix keeps lengths on average."""
    generator = stream(seed, *names)
    sizes = {name: value.shape for name, value in empty_block().named_parameters()}
    return {
        name: torch.randn(n, generator=generator, dtype=torch.float64) / math.sqrt(n[1]) for name, n in sizes.items()
    }


def smooth_path(seed: int) -> Callable[[float], Weights]:
    """θ(s) = cos(πs) θ₀ + sin(πs) θ₁ for s ∈ [0, 1]: smooth in depth, with the law of `draw_weights` at every s."""
    start, end = draw_weights(seed, "θ₀"), draw_weights(seed, "θ₁")

    def at(s: float) -> Weights:
        return {name: math.cos(math.pi * s) * start[name] + math.sin(math.pi * s) * end[name] for name in start}

    return at


def layer(weights: Weights) -> MasterEquation:
    made = copy.deepcopy(empty_block())  # much faster than building it and drawing weights that are replaced at once
    for name, value in made.named_parameters():
        value.copy_(weights[name])
    return made


def stack(
    layers: int, seed: int, *, dt: float | None = None, roughness: float = 0.0, draw: object = 0, linear: bool = False
) -> Layered:
    """L blocks F_ℓ with weights √(1 − r²) θ(ℓ/L) + r ξ_ℓ, ξ_ℓ fresh for each layer: r = 0 is smooth, r = 1 is i.i.d.

    Solve it with `dt`, the scale of the branches; Δt = T/L unless given. linear=True adds the weights θ(1) as a last
    node and joins neighbouring layers by straight lines, which Heun and RK4 need.
    """
    path = smooth_path(seed)
    made = []
    for number in range(layers + linear):
        weights = path(number / layers)
        if roughness:
            fresh = draw_weights(seed, "ξ", draw, layers, number)
            smooth = math.sqrt(1 - roughness**2)
            weights = {name: smooth * weights[name] + roughness * fresh[name] for name in weights}
        made.append(layer(weights))
    return Layered(made, TIME / layers if dt is None else dt, "linear" if linear else "constant")


def on_sphere(u: Field) -> Field:
    """Every token centred and scaled to length √d: LayerNorm with g = 1, b = 0, ε = 0."""
    return torch.nn.functional.layer_norm(u, u.shape[-1:], eps=0.0)


def distance(u: Field, v: Field, u0: Field) -> float:
    """‖u − v‖ / ‖u₀‖ in the Euclidean norm of the whole state."""
    return ((u - v).norm() / u0.norm()).item()


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x: −p for an error of order p.

    >>> round(slope([1, 2, 4], [1, 1 / 4, 1 / 16]), 6)
    -2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slope_of_attention(s: float) -> float:
    """∂Att₁/∂u₁ at the tokens (0, s, −s), d = 1, A = V = 1, by automatic differentiation; it is 1/3 + 2s²/3.

    >>> round(slope_of_attention(1.0), 12)
    1.0
    """
    u = torch.tensor([[0.0], [s], [-s]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    move_first = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)

    _, change = jvp(lambda v: attention(v, one, one), (u,), (move_first,))
    return change[0, 0].item()
