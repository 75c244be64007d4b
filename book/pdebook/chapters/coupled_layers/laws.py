"""The coupled system by itself: which reading of l and t, which derivative, which step.  (P1 eq 4/17-20, 22/23, fig 9)

The layers stand side by side: u is (batch, token, blocks · width), block 0 the held input where there is an inflow.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pdelab.equation import MasterEquation
from pdelab.field import Field, laplacian
from pdelab.integrators import RK4, Euler
from pdelab.metrics.jacobian import jacobian
from pdelab.models import Model, coupled
from pdelab.seeds import derive, stream
from pdelab.solver import solve
from pdelab.terms.base import choose
from pdelab.terms.coupling import Coupling, SideBySide
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

Branches = MasterEquation | Sequence[MasterEquation]  # one for all layers, or one a layer

# One depth equation, three stacks.


def branch(seed: int, width: int = 4, *, bias: bool = True, size: float = 1.0) -> MasterEquation:
    """F = A + R, smooth, random and in float64; bias=False: F(0) = 0."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derive(seed, "branch"))
        terms = Interaction(width, 2, bias=bias), Reaction(width, 8, activation="tanh", bias=bias)
    equation = MasterEquation(*terms).double().requires_grad_(False)
    for weight in equation.parameters():
        weight.mul_(size)
    return equation


def varying(seed: int, layers: int, width: int = 4) -> list[MasterEquation]:
    """F_l, l = 1 … L: weights that go in a straight line from those of one `branch` to those of another, s = l/L."""
    first, last = branch(seed, width), branch(derive(seed, "last"), width)
    found = [branch(seed, width) for _ in range(layers)]
    for number, F in enumerate(found, start=1):
        for own, one, two in zip(F.parameters(), first.parameters(), last.parameters(), strict=True):
            own.copy_(torch.lerp(one, two, number / layers))
    return found


def identity_links(F: Branches, width: int, layers: int, rate: float) -> MasterEquation:
    """u_l' = F_l(u_l) + c(u_{l−1} − u_l): every link c · identity, the input held, the last layer giving too."""
    each = _each(F, layers)
    links = Coupling(width, layers + 1, inflow=True, outflow=True).double().requires_grad_(False)
    for link in links.exchange:
        nn.init.eye_(link.weight).mul_(rate)
        nn.init.zeros_(link.bias)
    parts = zip(*(own.terms for own in each), strict=True)
    return MasterEquation(*(SideBySide([None, *terms], width) for terms in parts), links)


def _each(F: Branches, layers: int) -> list[MasterEquation]:
    each = [F] * layers if isinstance(F, MasterEquation) else list(F)
    if len(each) != layers:
        raise ValueError(f"F must be one equation or one for each of the {layers} layers; not {len(each)}")
    return each


def layers_of(u: Field, width: int) -> tuple[Field, ...]:
    """The fields of the single layers."""
    return u.split(width, dim=-1)


def follow_layers(
    F: Branches, u0: Field, layers: int, rate: float, dt: float, steps: int, *, start: str = "zero"
) -> tuple[Field, ...]:
    """All layers of `identity_links` after `steps` explicit steps, the held input first.

    start: where layers 1 … L begin, "zero" or "input" (each of them at u₀).
    """
    width, share = u0.shape[-1], choose("start", start, {"zero": 0.0, "input": 1.0})
    start = torch.cat([u0, *[share * u0] * layers], dim=-1)
    run = solve(identity_links(F, width, layers, rate), start, steps=steps, dt=dt, keep=lambda u: None, throw=True)
    return layers_of(run.final, width)


def explicit_stack(F: Branches, u0: Field, layers: int, h: float) -> Field:
    """u_l = u_{l−1} + h F_l(u_{l−1}): a residual network without LayerNorm, A and R side by side."""
    for own in _each(F, layers):
        u0 = u0 + h * own(u0)
    return u0


def implicit_stack(F: Callable[[Field], Field], u0: Field, layers: int, h: float, iterations: int = 200) -> Field:
    """u_l = u_{l−1} + h F(u_l): an equation a layer, solved by iteration (h times F's Lipschitz constant below 1)."""
    for _ in range(layers):
        v = u0
        for _ in range(iterations):
            v = u0 + h * F(v)
        u0 = v
    return u0


def depth_flow(F: Callable[[Field], Field], u0: Field, T: float = 1.0) -> Field:
    """u(T) of u' = F(u), u(0) = u0, by RK4 with 400 steps."""
    return solve(F, u0, steps=400, dt=T / 400, integrator=RK4(), keep=lambda u: None, throw=True).final


def readings(seed: int, layers: Sequence[int], T: float = 1.0, *, bias: bool = True) -> dict[str, list[float]]:
    """Distance of the top layer to the depth flow u(T), relative to how far the flow moves, links c = L/T, Δt = 1/c.

    relaxed: l is depth and t relaxes (L + 60 steps). twice, from zero or from the input: both are depth, L steps, and
    layers 1 … L start there. residual: a residual network.
    """
    F, width = branch(seed, bias=bias), 4
    u0 = torch.randn(2, 5, width, generator=stream(seed, "u0"), dtype=torch.float64)
    truth = depth_flow(F, u0, T)
    moved = (truth - u0).norm()
    found: dict[str, list[float]] = {"relaxed": [], "residual": [], "twice, from zero": [], "twice, from the input": []}
    for number in layers:
        h = T / number
        top = {
            "relaxed": follow_layers(F, u0, number, 1 / h, h, number + 60)[-1],
            "twice, from zero": follow_layers(F, u0, number, 1 / h, h, number)[-1],
            "twice, from the input": follow_layers(F, u0, number, 1 / h, h, number, start="input")[-1],
            "residual": explicit_stack(F, u0, number, h),
        }
        for name, state in top.items():
            found[name].append(((state - truth).norm() / moved).item())
    return found


def share_arrived(layers: int, steps: int, turn: float) -> float:
    """P(B ≥ L), B binomial of n trials with Δtc: the part of the held input in layer L after n steps if F = 0.

    >>> share_arrived(3, 3, 0.5)
    0.125
    """
    return sum(math.comb(steps, k) * turn**k * (1 - turn) ** (steps - k) for k in range(layers, steps + 1))


# Derivatives.


def step_jacobian(model: Model, u: Field) -> Tensor:
    """∂u^{n+1}/∂u^n of one explicit step: (block to, block from, token · feature, token · feature), batch of one."""
    coupling = model.equation.terms[-1]
    width, blocks, tokens = coupling.width, coupling.layers, u.shape[1]
    J = jacobian(lambda v: Euler().step(model.equation, v, 0.0, model.dt), u)[0]
    J = J.reshape(tokens, blocks, width, tokens, blocks, width).permute(1, 4, 0, 2, 3, 5)
    return J.reshape(blocks, blocks, tokens * width, tokens * width)


def printed_jacobian(model: Model, u: Field, block: int) -> Tensor:
    """I + Δt(D_l∇² + α_l ∂A_l/∂u_l + ∂R_l/∂u_l − ∂C_{l,l+1}/∂u_l), term by term.  (P1 eq 23)"""
    *inside, coupling = model.equation.terms
    own = layers_of(u, coupling.width)[block]
    size = own[0].numel()
    rate = sum(jacobian(lambda v, t=terms: t.terms[str(block)](v), own)[0].reshape(size, size) for terms in inside)
    outflow = torch.kron(torch.eye(u.shape[1]).to(u), coupling.exchange[block].weight.detach())
    return torch.eye(size).to(u) + model.dt * (rate - outflow)


def paths(steps: int, links: int, dt: float, weight: float = 1.0, rate: float = 0.0) -> float:
    """C(n, k) (Δt w)^k (1 + Δt a)^{n−k}: the derivative over k links in n steps of u_l' = a u_l + w u_{l−1}.

    >>> paths(3, 2, 0.1)
    0.030000000000000006
    """
    return math.comb(steps, links) * (dt * weight) ** links * (1 + dt * rate) ** (steps - links)


def link_gradient(model: Model, u: Field, steps: int, start: int, end: int) -> Tensor:
    """∂u_end^n/∂u_start^0 by automatic differentiation through all steps: (token · feature, token · feature)."""
    coupling = model.equation.terms[-1]
    width, size = coupling.width, u.shape[1] * coupling.width

    def all_steps(v: Field) -> Field:
        for n in range(steps):
            v = Euler().step(model.equation, v, n * model.dt, model.dt)
        return v

    J = jacobian(all_steps, u)[0].reshape(u.shape[1], coupling.layers, width, u.shape[1], coupling.layers, width)
    return J[:, end, :, :, start, :].reshape(size, size)


# The picture (P1 fig 9).


def impulse(
    layers: int = 5, tokens: int = 11, steps: int = 12, *, dt: float = 0.5, link: float = 1.0, seed: int = 0
) -> Tensor:
    """|change of u_l(x) at step n| after a unit impulse in the middle token of layer 1: (step, layer, token).

    The change is against the same run without the impulse, since attention and network move a state of zeros too.
    """
    width = 4
    model = coupled(
        width, layers, 2, 8, steps=steps, dt=dt, diffusion=2e-3, strength=0.3, link=link, inflow=False, seed=seed
    )
    model = model.double().requires_grad_(False)
    rest = torch.zeros(1, tokens, width, dtype=torch.float64)
    poked = rest.clone()
    poked[0, tokens // 2] = 0.5  # four features: length 1
    runs = [torch.cat(model.trajectory(u).states) for u in (poked, rest)]
    change = (runs[0] - runs[1]).unflatten(-1, (layers, width))  # (step, token, layer, feature)
    return change.norm(dim=-1).transpose(1, 2)


def turned(x: Tensor, y: Tensor, z: Tensor, azimuth: float, elevation: float) -> tuple[Tensor, Tensor]:
    """A point of space as seen from a direction given in degrees, far away: the two coordinates of the picture."""
    a, e = math.radians(azimuth), math.radians(elevation)
    across, away = x * math.cos(a) - y * math.sin(a), x * math.sin(a) + y * math.cos(a)
    return across, z * math.cos(e) + away * math.sin(e)


# Affine exchange and LayerNorm (P1 eq 18-19).


def affine_fit(x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The affine map that is closest to x ↦ y on these examples, by least squares: x and y (example, feature)."""
    ones = torch.ones_like(x[:, :1])
    weights = torch.linalg.lstsq(torch.cat([x, ones], dim=1), y).solution
    return lambda v: torch.cat([v, torch.ones_like(v[:, :1])], dim=1) @ weights


def layernorm_fit_errors(scales: Sequence[float], seed: int = 0, width: int = 16, examples: int = 2000) -> list[float]:
    """|fit(sx) − LN(sx)|/|LN(sx)| (root mean squares) of the best affine fit to LayerNorm at s = 1, new examples."""
    train, test = torch.randn(2, examples, width, generator=stream(seed, "affine"), dtype=torch.float64)
    norm = nn.LayerNorm(width, eps=0.0, elementwise_affine=False)
    fit = affine_fit(train, norm(train))
    return [((fit(s * test) - norm(s * test)).norm() / norm(s * test).norm()).item() for s in scales]


def layernorm_pooled_error(seed: int = 0, width: int = 16, examples: int = 4000) -> float:
    """|fit(x) − LN(x)|/|LN(x)| of the best affine fit to LayerNorm, x = s·N(0, 1), ln s ~ N(0, 1); new examples."""
    draws = torch.randn(2, examples, width + 1, generator=stream(seed, "pooled"), dtype=torch.float64)
    train, test = draws[..., 1:] * draws[..., :1].exp()
    norm = nn.LayerNorm(width, eps=0.0, elementwise_affine=False)
    return ((affine_fit(train, norm(train))(test) - norm(test)).norm() / norm(test).norm()).item()


# One step in the maximum norm, all layers.


def largest(u: Tensor) -> Tensor:
    """max_i |u_i| over the tokens, for every layer: (batch, layer)."""
    return u.norm(dim=-1).amax(dim=-1)


def one_step(u, A, V, W, U, b, E, numbers, ends: str) -> Tensor:
    """One step of all layers but the held first; u (batch, block, token, feature), Δt inside every number.

    The link out of block l is C_l − E_l, with C_l so that 2DΔt/Δx² + Δt C_l < 1.
    """
    x, top, y = shares(numbers)
    links = link_matrices(E, top)  # (batch, block, d, d)
    own = u[:, 1:]
    tokens, width = own.shape[-2:]
    spatial = laplacian(own.reshape(-1, tokens, width), ends).view_as(own) / tokens**2
    weights = (own @ A @ own.transpose(-1, -2)).softmax(dim=-1)
    attended = weights @ own @ V.transpose(-1, -2)
    reaction = torch.tanh(own @ W.transpose(-1, -2)) @ U.transpose(-1, -2)
    given = u @ links.transpose(-1, -2) + b.unsqueeze(-2)
    wide = (s[:, 1:, None, None] for s in (x, y))
    diffusive, strength = wide
    return own + diffusive / 2 * spatial + strength * attended + reaction + given[:, :-1] - given[:, 1:]


def shares(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2DΔt/Δx² and Δt C with a sum below 1, and αΔt, for every block: numbers (batch, block, 3)."""
    parts = torch.softmax(torch.cat([numbers[..., :2], 0 * numbers[..., :1]], dim=-1), dim=-1)
    return parts[..., 0], parts[..., 1], numbers[..., 2].exp()


def link_matrices(E: Tensor, top: Tensor) -> Tensor:
    """C · identity − E."""
    return top[..., None, None] * torch.eye(E.shape[-1]).to(E) - E


def next_bound(m: Tensor, V, W, U, b, E, numbers, without: str = "") -> Tensor:
    """(1 − Δt c_l + Δt α_l‖V_l‖ + Δt ρ_l) m_l + Δt‖W_{l−1,l}‖ m_{l−1} + Δt|b_{l−1,l} − b_{l,l+1}| for l ≥ 1.

    m (batch, block): largest tokens, the held input first; c_l = C_l − ‖E_l‖. without: a term to leave out (control).
    """
    _, top, y = shares(numbers)

    def size(matrix: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(matrix, 2)

    damping = (top - size(E))[:, 1:]
    added = {
        "value": y[:, 1:] * size(V) * m[:, 1:],
        "reaction": size(U) * size(W) * m[:, 1:],
        "inflow": size(link_matrices(E, top))[:, :-1] * m[:, :-1],
        "bias": (b[:, :-1] - b[:, 1:]).norm(dim=-1),
    }
    return (1 - damping) * m[:, 1:] + sum(part for name, part in added.items() if name != without)
