"""The coupled system: which reading of l and t, which derivative, which signs.  (P1 eq 3/14, 4/17-20, 22/23, fig 9)

The layers stand side by side: u is (batch, token, blocks · width), block 0 the held input where there is an inflow.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pdebook.evidence.systems import printed_condition
from pdelab.equation import MasterEquation
from pdelab.field import Field
from pdelab.formulas import layer_norm
from pdelab.integrators import Euler, flow
from pdelab.metrics.jacobian import jacobian
from pdelab.models import Model, coupled
from pdelab.options import choose
from pdelab.seeds import derive, seeded, stream
from pdelab.solver import solve
from pdelab.terms.coupling import Coupling, SideBySide
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

Branches = MasterEquation | Sequence[MasterEquation]  # one for all layers, or one per layer

# One depth equation, three stacks.


def branch(seed: int, width: int = 4, *, bias: bool = True, size: float = 1.0) -> MasterEquation:
    """F = A + R, smooth, random and in float64; bias=False: F(0) = 0."""

    def build() -> MasterEquation:
        return MasterEquation(Interaction(width, 2, bias=bias), Reaction(width, 8, activation="tanh", bias=bias))

    equation = seeded(build, derive(seed, "branch")).double().requires_grad_(False)
    for weight in equation.parameters():
        weight.mul_(size)
    return equation


def varying(seed: int, layers: int, width: int = 4) -> list[MasterEquation]:
    """F_l, l = 1 … L: weights that go in a straight line from those of one `branch` to those of another, s = l/L."""
    first, last = branch(seed, width), branch(derive(seed, "last"), width)
    each = [branch(seed, width) for _ in range(layers)]
    for number, F in enumerate(each, start=1):
        for own, one, two in zip(F.parameters(), first.parameters(), last.parameters(), strict=True):
            own.copy_(torch.lerp(one, two, number / layers))
    return each


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
    """u_l = u_{l−1} + h F(u_l): an equation per layer, solved by iteration (h times F's Lipschitz constant below 1)."""
    for _ in range(layers):
        v = u0
        for _ in range(iterations):
            v = u0 + h * F(v)
        u0 = v
    return u0


def depth_flow(F: Callable[[Field], Field], u0: Field, T: float = 1.0) -> Field:
    """u(T) of u' = F(u), u(0) = u0, by RK4 with 400 steps."""
    return flow(F, u0, T=T, steps=400)


def readings(seed: int, layers: Sequence[int], T: float = 1.0, *, bias: bool = True) -> dict[str, list[float]]:
    """Distance of the top layer to the depth flow u(T), relative to how far the flow moves, links c = L/T, Δt = 1/c.

    relaxed: l is depth and t relaxes (L + 60 steps). twice, from zero or from the input: both are depth, L steps, and
    layers 1 … L start there. residual: a residual network.
    """
    F, width = branch(seed, bias=bias), 4
    u0 = torch.randn(2, 5, width, generator=stream(seed, "u0"), dtype=torch.float64)
    truth = depth_flow(F, u0, T)
    moved = (truth - u0).norm()
    errors: dict[str, list[float]] = {"relaxed": [], "residual": [], "twice, from zero": []}
    errors["twice, from the input"] = []

    for number in layers:
        h = T / number
        top = {
            "relaxed": follow_layers(F, u0, number, 1 / h, h, number + 60)[-1],
            "twice, from zero": follow_layers(F, u0, number, 1 / h, h, number)[-1],
            "twice, from the input": follow_layers(F, u0, number, 1 / h, h, number, start="input")[-1],
            "residual": explicit_stack(F, u0, number, h),
        }
        for name, state in top.items():
            errors[name].append(((state - truth).norm() / moved).item())
    return errors


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
    fit = affine_fit(train, layer_norm(train))
    return [_error(fit, s * test) for s in scales]


def layernorm_pooled_error(seed: int = 0, width: int = 16, examples: int = 4000) -> float:
    """|fit(x) − LN(x)|/|LN(x)| of the best affine fit to LayerNorm, x = s·N(0, 1), ln s ~ N(0, 1); new examples."""
    draws = torch.randn(2, examples, width + 1, generator=stream(seed, "pooled"), dtype=torch.float64)
    train, test = draws[..., 1:] * draws[..., :1].exp()
    return _error(affine_fit(train, layer_norm(train)), test)


def _error(fit: Callable[[Tensor], Tensor], x: Tensor) -> float:
    return ((fit(x) - layer_norm(x)).norm() / layer_norm(x).norm()).item()


# Signs (P1 eq 3 and 14, line 33 of Algorithm 1) on the scalar channel T = θX + Z, X and Z ~ N(0, 1), asked for Y = X.

# what multiplies ∇L, λθ and β∇I in dθ/dt
SIGNS = {
    "eq 3": (-1, +1, -1),
    "eq 14": (-1, -1, -1),
    "line 33": (-1, -1, +1),
    "corrected": (-1, -1, -1),
}


def channel_loss(theta: Tensor) -> Tensor:
    """½E(X − E[X|T])² = 1/(2(1 + θ²))."""
    return 1 / (2 * (1 + theta**2))


def channel_information(theta: Tensor) -> Tensor:
    """I(X; T) = ½ ln(1 + θ²)."""
    return torch.log1p(theta**2) / 2


def train_channel(
    form: str,
    *,
    theta: float = 1.0,
    beta: float = 0.0,
    decay: float = 0.0,
    eta: float = 0.01,
    steps: int = 1000,
    loss: Callable[[Tensor], Tensor] | None = channel_loss,
) -> Tensor:
    """θ after 0, 1, …, n steps θ⁺ = θ + η(s₁∇L + s₂λθ + s₃β∇I) with the signs of that form; loss=None: L = 0.

    A step of line 33, or one Euler step Δt = η of the flow of eq 3 or 14 (in which P1's own η, that stands before ∇L
    only, is 1).
    """
    first, second, third = choose("form", form, SIGNS)
    value, path = torch.tensor(theta, dtype=torch.float64, requires_grad=True), [theta]
    for _ in range(steps):
        gain = 0.0 if loss is None else torch.autograd.grad(loss(value), value)[0]
        learned = torch.autograd.grad(channel_information(value), value)[0]
        with torch.no_grad():
            value += eta * (first * gain + second * decay * value + third * beta * learned)
        path.append(value.item())
    return torch.tensor(path, dtype=torch.float64)


def resting_information(form: str, beta: float, decay: float) -> float:
    """I at rest on the scalar channel, from a small θ > 0: −½ ln q with q² + s₃βq + s₂λ = 0; ∞ if it never rests.

    With q = 1/(1 + θ²), dθ/dt = θ(q² + s₂λ + s₃βq) for the signs s₂ of λθ and s₃ of β∇I; β and λ are at least 0. If the
    bracket is negative just below q = 1, θ goes to 0. If it is positive there, θ grows and q falls to the largest root
    below 1; both roots lie on the same side of 1 where there are two, and without one below 1 θ goes to infinity.

    >>> round(resting_information("corrected", 0.25, 0.0), 3), resting_information("line 33", 0.25, 0.0)
    (0.693, inf)
    """
    _, second, third = choose("form", form, SIGNS)
    if beta < 0 or decay < 0:
        raise ValueError(f"beta and decay must be at least 0; not {beta!r} and {decay!r}")
    at_one, slope = 1 + second * decay + third * beta, 2 + third * beta  # the bracket at q = 1 and its derivative there
    if at_one < 0 or (at_one == 0 and slope > 0):
        return 0.0
    under = beta**2 - 4 * second * decay
    if under < 0:
        return math.inf
    root = (-third * beta + math.sqrt(under)) / 2
    return -math.log(root) / 2 if 0 < root < 1 else math.inf


# Line 37.


def diverges_at(outflow: float, dt: float, steps: int = 1000) -> tuple[bool, int | None]:
    """Whether eq 21 is met (D = 0, W_O = 1, α = 1), and the step at which u⁺ = u − Δt c u is no longer finite.

    Line 37 stands after step number `steps`: a run that fails has failed by then.
    """
    printed, u = printed_condition(0.0, dt, 1.0), 1.0
    for n in range(1, steps + 1):
        u -= dt * outflow * u
        if not math.isfinite(u):
            return printed, n
    return printed, None
