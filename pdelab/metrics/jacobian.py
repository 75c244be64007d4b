"""How the rate, or a layer, at one token depends on the others: Jacobians of u ↦ f(u), u (batch, token, feature).

f is any function of a field that treats the examples of a batch apart and gives a field of the same shape: a Term, a
MasterEquation, or a layer. A Term or an equation gets the mask too; any other function is called as f(u) and must heed
padding by itself. Attention runs in plain matrix products here: fused kernels have no second derivative.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field, Mask, all_true, check_field, same_shape
from pdelab.formulas import keep_real
from pdelab.metrics.base import norm, precise, real_places, unfused
from pdelab.options import choose, function, seed_of, whole
from pdelab.seeds import stream
from pdelab.terms.base import Term

Map = Callable[[Field], Field]
DENSE = 1024  # numbers of an example up to which a Jacobian, with the square of it, is built without being asked for


def jacobian(f: Map, u: Field, mask: Mask | None = None) -> Tensor:
    """J[b, i, a, j, c] = ∂f(u)_{ia}/∂u_{jc} of each example b: (batch, token, feature, token, feature).

    A map whose value has no graph is refused, also where it is constant: f(u) + 0 * u has the derivative 0.

    >>> jacobian(lambda u: 3 * u, torch.ones(1, 1, 2)).reshape(2, 2).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    u = check_field(u, mask=mask).detach()
    real = real_places(u, mask)

    def one(example: Tensor, real: Tensor) -> Tensor:
        value = evaluated(f, example.unsqueeze(0), None if mask is None else real.unsqueeze(0))
        return _depending(value, value.requires_grad).squeeze(0)

    with unfused():
        return vmap(jacrev(one))(u, real).detach()


def influence(f: Map, u: Field) -> Tensor:
    """‖∂f(u)_i/∂u_j‖₂ for every pair of tokens of each example: (batch, token i, token j).

    A diagonal table is a map that treats every token by itself.

    >>> influence(lambda u: 3 * u, torch.ones(1, 2, 2))[0].tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    return torch.linalg.matrix_norm(precise(jacobian(f, u)).transpose(2, 3), 2)  # blocks (feature, feature) last


def logarithmic_norm(
    f: Map, u: Field, mask: Mask | None = None, *, method: str = "auto", steps: int = 100, seed: int = 0
) -> Tensor:
    """μ(J) = λ_max((J + Jᵀ)/2), J the Jacobian of each example at its real tokens: (batch,).

    Two solutions of u' = f(u) close to u separate at most at this rate, and at least at −μ(−J), the rate for −f.
    method: "dense" builds J, of (token · feature)² numbers an example; "lanczos" multiplies vectors with J and Jᵀ only,
        and keeps three of them: a lower bound that rises to μ(J), in at most so many steps from a random start;
        "auto" is dense up to 1024 numbers an example.

    >>> [logarithmic_norm(lambda u, a=a: a * u, torch.ones(1, 1, 2)).item() for a in (3.0, -3.0)]
    [3.0, -3.0]
    """
    choose("method", method, ("auto", "dense", "lanczos"))
    steps, seed = whole("steps", steps), seed_of(seed)
    u = check_field(u, mask=mask).detach()
    if method == "lanczos" or (method == "auto" and u[0].numel() > DENSE):
        push, pull = products(f, u, mask)
        return _largest(lambda v: (push(v) + pull(v)) / 2, _start(u, mask, seed), steps)
    J = precise(jacobian(f, u, mask)).reshape(len(u), u[0].numel(), u[0].numel())
    J = (J + J.transpose(1, 2)) / 2
    if mask is not None:  # padding gets an eigenvalue below all others
        padded = ~mask.repeat_interleave(u.shape[-1], dim=1)  # (batch, token · feature)
        J = J.masked_fill(padded.unsqueeze(1) | padded.unsqueeze(2), 0)
        J = J - torch.diag_embed(padded * torch.linalg.matrix_norm(J).unsqueeze(1))
    return torch.linalg.eigvalsh(J.nan_to_num(0, 0, 0))[:, -1] + 0 * J.sum(dim=(1, 2))  # NaN where J is not finite


def derivative(f: Map, u: Field, direction: Field, mask: Mask | None = None) -> Field:
    """f'(u) v, the change of f along v: (batch, token, feature).

    A constant map is refused as by `jacobian`.
    """
    u, direction = check_field(u, mask=mask), check_field(direction, "direction", mask=mask)
    same_shape(direction, u, "direction")
    return _linear(f, u, mask)[0](direction)


def lipschitz(
    f: Map, u: Field, mask: Mask | None = None, *, steps: int = 100, seed: int = 0, method: str = "power"
) -> Tensor:
    """‖f'(u)‖₂, the largest singular value of the Jacobian of each example: (batch,), by iteration on JᵀJ.

    The growth of the worst direction, and a lower bound of every Lipschitz constant of f near u, in the norm √Σ|u_i|².
    method: "power" iteration rises towards it and is slow where the two largest singular values nearly agree;
        "lanczos" comes as far in many fewer steps, and stops where it has come near.
    A constant map is refused as by `jacobian`.

    >>> lipschitz(lambda u: 3 * u, torch.ones(1, 2, 2)).item()
    3.0
    """
    choose("method", method, ("power", "lanczos"))
    steps, seed = whole("steps", steps), seed_of(seed)
    u = check_field(u, mask=mask).detach()
    direction = _unit(_start(u, mask, seed))
    push, pull = products(f, u, mask)
    if method == "lanczos":
        return _largest(lambda v: pull(push(v)), direction, steps).clamp(min=0).sqrt()
    for _ in range(steps):
        direction = _unit(pull(push(direction)))
    return torch.stack([norm(example) for example in push(direction)])


def random_growth(f: Map, u: Field, mask: Mask | None = None, *, draws: int = 8, seed: int = 0) -> Tensor:
    """|f'(u) v| / |v| of random directions v at the real tokens of each example, each alike: (draw, batch).

    The mean of the squares is ‖J‖_F²/n, n the numbers of an example: what a small perturbation does that knows nothing
    of f, where `lipschitz` is the worst that one can do.

    >>> [round(x, 5) for x in random_growth(lambda u: 3 * u, torch.ones(1, 2, 2), draws=2).flatten().tolist()]
    [3.0, 3.0]
    """
    draws, seed = whole("draws", draws), seed_of(seed)
    u = check_field(u, mask=mask).detach()
    push = products(f, u, mask)[0]
    directions = (_unit(_start(u, mask, seed, draw)) for draw in range(draws))
    return torch.stack([_size(push(v)).flatten() for v in directions])


def _start(u: Field, mask: Mask | None, seed: int, draw: int = 0) -> Field:
    """Gaussian numbers at the real tokens; drawn on the CPU, so that they are the same on every device."""
    generator = torch.Generator().manual_seed(seed) if draw == 0 else stream(seed, "direction", draw)
    return keep_real(precise(torch.randn(u.shape, generator=generator, dtype=torch.float64).to(u)), mask)


def products(f: Map, u: Field, mask: Mask | None = None) -> tuple[Map, Map]:
    """v ↦ Jv and v ↦ Jᵀv at the real tokens, in float32 at least, without the Jacobian J."""
    push, pull = _linear(f, u, mask)

    def at_real_tokens(product: Map) -> Map:
        return lambda v: keep_real(precise(product(v.to(u.dtype))), mask)

    return at_real_tokens(push), at_real_tokens(pull)


def _linear(f: Map, u: Field, mask: Mask | None) -> tuple[Map, Map]:
    """v ↦ Jv and w ↦ Jᵀw. f runs once; as w ↦ Jᵀw is linear, backpropagation through it along v gives Jv."""
    with torch.enable_grad(), unfused():
        u = u.detach().clone().requires_grad_()
        value = evaluated(f, u.clone(), mask)  # f may change it in place
        value = _depending(value, value.requires_grad)
        w = torch.ones_like(value, requires_grad=True)  # not 0, where not every formula for it has a derivative
        (back,) = torch.autograd.grad(value, u, w, create_graph=True, allow_unused=True)
        back = _depending(back, back is not None) + 0 * w  # also where it is zero, as that of rounding is

    def pull(w: Field) -> Field:
        return torch.autograd.grad(value, u, w, retain_graph=True)[0]

    def push(v: Field) -> Field:
        return torch.autograd.grad(back, w, v, retain_graph=True)[0]

    return push, pull


def _largest(product: Map, start: Field, steps: int) -> Tensor:
    """λ_max of a symmetric product of each example, (batch,), by Lanczos: the largest eigenvalue of its compression.

    Without orthogonalisation against old vectors, which would have to be kept: rounding then repeats eigenvalues that
    were found, and never makes one that is larger than all. Ends where the residual |Sv − θv| is below 1e−5‖S‖; the
    error of θ is that squared, over the distance to the next eigenvalue.
    """
    old, q, beta = torch.zeros_like(start), _unit(start), 0.0
    diagonal, beside = [], []
    for _ in range(steps):
        w = product(q) - beta * old
        alpha = (w * q).sum(dim=(1, 2), keepdim=True)
        # no direction is left where q = 0: the first quotient again, which is not above the largest
        diagonal.append(torch.where(_size(q) > 0, alpha, diagonal[0] if diagonal else alpha))
        below = torch.cat([*beside, torch.zeros_like(alpha)], dim=1).squeeze(2)[:, : len(beside)]
        T = torch.diag_embed(torch.cat(diagonal, dim=1).squeeze(2)) + torch.diag_embed(below, -1)
        # which reads the lower half; a NaN in one example would stop it for all
        values, vectors = torch.linalg.eigh(T.nan_to_num(0, 0, 0))
        w = w - alpha * q
        old, q, beta = q, _unit(w), _size(w)
        beside.append(beta)
        residual = beta.flatten() * vectors[:, -1, -1].abs()
        if all_true(residual <= 1e-5 * values.abs().amax(dim=1)):
            break
    return values[:, -1] + 0 * T.sum(dim=(1, 2))  # NaN where a product was not finite


def evaluated(f: Map, u: Field, mask: Mask | None = None) -> Field:
    """f(u); a Term or an equation gets the mask too."""
    if mask is not None and isinstance(f, Term | MasterEquation | Layered):
        return f(u, 0.0, mask)
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
    size = _size(v)
    return v / torch.where(size > 0, size, torch.ones_like(size))


def _size(v: Field) -> Tensor:
    """|v| of each example: (batch, 1, 1)."""
    return torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True)
