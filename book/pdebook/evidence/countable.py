"""A Transformer whose information can be counted: X is one of all 2⁹ strings of nine bits, Y two parities of pairs.

X is uniform on finitely many inputs, so I(X; T) = H(T) is the entropy of the partition of the inputs into those that T
tells apart, and I(Y; T) follows from it: no estimator is needed, and every estimator can be compared with the truth.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pdelab.field import Field
from pdelab.metrics.information import discrete_information, entropy
from pdelab.models import Model, transformer, with_ends
from pdelab.seeds import derive
from pdelab.solver import Trajectory

BITS, CLASSES = 9, 4
EQUAL = 1e-12  # two states nearer than this share of the largest entry are one; none may lie between this and APART
APART = 1e-11


def inputs(bits: int = BITS) -> Tensor:
    """All strings of so many bits, (2^bits, bits)."""
    return (torch.arange(2**bits).unsqueeze(1) >> torch.arange(bits)) & 1


def parities(x: Tensor) -> Tensor:
    """Y = 2 (x₁ ⊕ x₂) + (x₃ ⊕ x₄), one of four classes, each equally often; the other bits are of no use."""
    return 2 * (x[:, 0] ^ x[:, 1]) + (x[:, 2] ^ x[:, 3])


def told_apart(t: Tensor) -> Tensor:
    """A label for each row of t (sample, …), the same for rows that are equal up to rounding."""
    t = t.detach().double().flatten(1)
    if not torch.isfinite(t).all():
        raise ValueError("t must be finite; it holds NaN or infinite values")
    gaps = torch.cdist(t, t, p=torch.inf) / max(t.abs().max().item(), 1e-300)
    if ((gaps > EQUAL) & (gaps < APART)).any():
        raise ValueError("t has rows that are neither equal nor clearly apart; count in higher precision")
    return (gaps <= EQUAL).double().argmax(dim=1)  # the first row that is the same


def counted(t: Tensor, y: Tensor | None = None) -> float:
    """I(X; T) = H(T), or I(Y; T), in nats, exact for X uniform over the rows of t."""
    kinds = told_apart(t)
    return entropy(kinds).value if y is None else discrete_information(kinds, y).value


def build(seed: int, *, activation: str = "tanh", norm: str = "pre", width: int = 8, depth: int = 4) -> Model:
    core = transformer(width, depth, 2, 2 * width, norm=norm, activation=activation, seed=derive(seed, "core"))
    return with_ends(core, width, outputs=CLASSES, length=BITS, symbols=2, seed=derive(seed, "ends"))


def fit(model: Model, x: Tensor, y: Tensor, steps: int = 200, rate: float = 0.01) -> float:
    """Adam on all inputs at once; gives the share of right answers at the end."""
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        cross_entropy(model(x), y).backward()
        adam.step()
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).double().mean().item()


@torch.no_grad()
def states(model: Model, x: Tensor) -> Trajectory:
    """Every state in double precision, so that what is distinct can be told from rounding."""
    found = model.double().trajectory(x)
    model.float()
    return found


def rescaled(layers: list[Field], unit: float) -> list[Field]:
    """T_ℓ in other units: unit^ℓ T_ℓ. A next layer that divides first computes the same, so no information changes."""
    if not 0 < unit < math.inf:
        raise ValueError(f"unit must be positive and finite; not {unit!r}")
    return [unit**number * t for number, t in enumerate(layers)]
