"""How the rate, or a layer, at one token depends on the others: Jacobians of u ↦ f(u), u (batch, token, feature).

f is any function of a field that treats the examples of a batch apart and gives a field of the same shape: a Term, a
MasterEquation, or a layer. Attention runs in plain matrix products here: fused kernels have no forward derivative.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.func import jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pdelab.field import Field, check_field, same_shape
from pdelab.metrics.base import norm, precise
from pdelab.options import function, seed_of, whole

Map = Callable[[Field], Field]


def jacobian(f: Map, u: Field) -> Tensor:
    """J[b, i, a, j, c] = ∂f(u)_{ia}/∂u_{jc} of each example b: (batch, token, feature, token, feature).

    A map whose value has no graph is refused, also where it is constant: f(u) + 0 * u has the derivative 0.

    >>> jacobian(lambda u: 3 * u, torch.ones(1, 1, 2)).reshape(2, 2).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    check_field(u)
    with sdpa_kernel(SDPBackend.MATH):
        return vmap(jacrev(lambda example: _backward(f, example.unsqueeze(0)).squeeze(0)))(u.detach()).detach()


def influence(f: Map, u: Field) -> Tensor:
    """‖∂f(u)_i/∂u_j‖₂ for every pair of tokens of each example: (batch, token i, token j).

    A diagonal table is a map that treats every token by itself.

    >>> influence(lambda u: 3 * u, torch.ones(1, 2, 2))[0].tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    return torch.linalg.matrix_norm(precise(jacobian(f, u)).transpose(2, 3), 2)  # blocks (feature, feature) last


def logarithmic_norm(f: Map, u: Field) -> Tensor:
    """μ(J) = λ_max((J + Jᵀ)/2), J the Jacobian of each example: (batch,).

    Two solutions of u' = f(u) close to u separate at most at this rate, and at least at −μ(−J), the rate for −f.

    >>> [logarithmic_norm(lambda u, a=a: a * u, torch.ones(1, 1, 2)).item() for a in (3.0, -3.0)]
    [3.0, -3.0]
    """
    J = precise(jacobian(f, u))
    J = J.reshape(len(u), u[0].numel(), u[0].numel())
    return torch.linalg.eigvalsh((J + J.transpose(1, 2)) / 2)[:, -1]


def derivative(f: Map, u: Field, direction: Field) -> Field:
    """f'(u) v, the change of f along v, by forward differentiation: (batch, token, feature).

    A constant map is refused as by `jacobian`.
    """
    check_field(u)
    check_field(direction, "direction")
    same_shape(direction, u, "direction")
    with sdpa_kernel(SDPBackend.MATH):
        return jvp(lambda v: _forward(f, v), (u.detach(),), (direction.detach(),))[1].detach()


def lipschitz(f: Map, u: Field, *, steps: int = 100, seed: int = 0) -> Tensor:
    """‖f'(u)‖₂, the largest singular value of the Jacobian of each example: (batch,), by power iteration on JᵀJ.

    A lower bound of every Lipschitz constant of f near u, in the norm √Σ|u_i|². The iteration rises
    towards it and is slow where the two largest singular values nearly agree. A constant map is refused as by
    `jacobian`.

    >>> lipschitz(lambda u: 3 * u, torch.ones(1, 2, 2)).item()
    3.0
    """
    check_field(u)
    steps, seed = whole("steps", steps), seed_of(seed)
    u = u.detach()
    # drawn on the CPU, so that the start is the same on every device
    start = torch.randn(u.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    direction = _unit(start.to(u))
    with sdpa_kernel(SDPBackend.MATH):
        pull = vjp(lambda v: _backward(f, v), u)[1]
        for _ in range(steps):
            image = jvp(lambda v: _forward(f, v), (u,), (direction,))[1]
            direction = _unit(pull(image)[0])
        image = jvp(lambda v: _forward(f, v), (u,), (direction,))[1]
    return torch.stack([norm(example) for example in image]).detach()


def _backward(f: Map, u: Field) -> Field:
    """f(u) inside of vjp or jacrev, which would take for constant whatever hides how it comes from u."""
    value = _same_shape(f, u)
    return _depending(value, value.requires_grad)


def _forward(f: Map, u: Field) -> Field:
    """f(u) inside of jvp, likewise."""
    value = _same_shape(f, u)
    return _depending(value, unpack_dual(value).tangent is not None)


def _same_shape(f: Map, u: Field) -> Field:
    return same_shape(function("f", f)(u), u)


def _depending(value: Field, depends: bool) -> Field:
    if not depends:
        raise ValueError(
            "f must give what depends on u, with its graph: not detached, nor under torch.no_grad; "
            "if it is constant, its derivative is 0, which f(u) + 0 * u has"
        )
    return value


def _unit(v: Field) -> Field:
    """Each example with norm 1; zero stays zero."""
    size = torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True)
    return v / torch.where(size > 0, size, torch.ones_like(size))
