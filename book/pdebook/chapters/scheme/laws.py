"""P1's explicit scheme on model problems: when it stays bounded, and how fast its error falls.  (P1 eq 20, 21, 24)

u⁺ = u + Δt(D Δ_N u + α(P u Vᵀ − κu) + R(u)), one field, periodic or reflecting ends; κ = 0 in P1, κ = 1 with the −u of
P2 eq 5. The step enters through two numbers, x = 2DΔt/Δx² and y = αΔt.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pdebook.evidence.systems import one_step
from pdelab.field import Field, laplacian, token_mean
from pdelab.formulas import attention, centred, centres, longest
from pdelab.integrators import RK4, Euler
from pdelab.seeds import normal
from pdelab.solver import solve

# Boundedness.


def growth_in_steps(step: Callable[[Field], Field], u: Field, steps: int) -> Tensor:
    """max_i|u_i^n| / max_i|u_i⁰| after so many steps, of each example: (batch,); infinite beyond floats."""
    start = longest(u)
    for _ in range(steps):
        u = step(u)
    end = longest(u)
    return torch.where(end.isfinite(), end, torch.inf) / start


def step_bound(
    size: Tensor | float, *, diffusive, strength, value, kappa=0.0, reaction=0.0, forcing=0.0, outflow=0.0
) -> Tensor | float:
    """(1 + y(‖V‖ − κ) + Δtρ − Δtc)·max|u| + Δt R₀, what one step may reach if x + yκ + Δtc ≤ 1; else infinite.

    reaction, forcing and outflow are Δtρ, ΔtR₀ and Δtc: |R(z)| ≤ ρ|z| + R₀, exchange −c u.
    """
    bound = (1 + strength * (value - kappa) + reaction - outflow) * size + forcing
    allowed = torch.as_tensor(diffusive + strength * kappa + outflow) <= 1
    return torch.where(allowed, torch.as_tensor(bound), torch.inf)


ALTERNATING = 8  # tokens of the fields in `scheme_map`


def scheme_map(kind: str, xs: Sequence[float], ys: Sequence[float], steps: int = 30) -> np.ndarray:
    """What `steps` steps do at every (x, y): 0 stays bounded, 1 grows as the exact solution does, 2 blows up: (y, x).

    kind "plain": κ = 0, V = 1, attention to all alike, u = 1 + 0.01(−1)^i. The exact mean grows as e^{αt}, the exact
    wave decays; 2 is where the wave grows. kind "leak": κ = 1, V = −1, sharp attention, u = (−1)^i; the exact solution
    decays, so growth is 2. Periodic ends, where (−1)^i is the fastest mode.
    """
    wave = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(ALTERNATING // 2).view(1, -1, 1)
    grid = torch.cartesian_prod(torch.as_tensor(ys).double(), torch.as_tensor(xs).double())
    y, x = grid[:, 0].view(-1, 1, 1), grid[:, 1].view(-1, 1, 1)
    one = torch.ones(1, 1, dtype=torch.float64)

    if kind == "plain":
        u, V, A, kappa = 1 + 0.01 * wave, one, None, 0.0
    elif kind == "leak":
        u, V, A, kappa = wave, -one, 50 * one, 1.0
    else:
        raise ValueError(f"kind must be plain or leak; not {kind!r}")

    start = u = u.expand(len(grid), -1, -1)
    for _ in range(steps):
        u = one_step(u, diffusive=x, strength=y, V=V, A=A, kappa=kappa, ends="periodic")

    grown = longest(u) > longest(start) * (1 + 1e-9)
    blown = longest(centred(u)) > longest(centred(start)) * (1 + 1e-9)
    return torch.where(blown, 2, grown.long()).reshape(len(ys), len(xs)).numpy()


# The error.

WIDTH, COEFFICIENT, TIME = 2, 0.02, 0.25


def smooth_start(seed: int) -> Callable[[Tensor], Field]:
    """u₀(x) = Σ_{k ≤ 3} c_k cos(kπx)/(1 + k²), flat at both ends: x (token,) → (1, token, feature)."""
    c = normal(seed, "start", size=(4, WIDTH))

    def at(x: Tensor) -> Field:
        k = torch.arange(4, dtype=x.dtype)
        return (torch.cos(math.pi * k * x.unsqueeze(-1)) / (1 + k**2) @ c).unsqueeze(0)

    return at


def problem(seed: int, *, coefficient: float = COEFFICIENT, mixing: float = 0.0) -> Callable[[Field], Field]:
    """D ∂²u + Att(u) + U tanh(Wu), reflecting ends; mixing ε replaces P by (1 − ε)P + ε/N, a simplified attention."""
    A, V, W, U = (normal(seed, "problem", k, size=(WIDTH, WIDTH)) for k in "AVWU")

    def rate(u: Field) -> Field:
        attended = (1 - mixing) * attention(u, A, V) + mixing * token_mean(u) @ V.T
        return coefficient * laplacian(u) + attended + torch.tanh(u @ W.T) @ U.T

    return rate


def _end(rate: Callable[[Field], Field], u0: Field, steps: int, integrator) -> Field:
    return solve(rate, u0, steps=steps, dt=TIME / steps, integrator=integrator, keep=lambda u: None, throw=True).final


def stable_steps(tokens: int, coefficient: float = COEFFICIENT, ratio: float = 1.0) -> int:
    """The fewest steps with 2DΔt/Δx² ≤ ratio."""
    return math.ceil(2 * coefficient * TIME * tokens**2 / ratio - 1e-9)


def time_errors(seed: int, steps: Sequence[int], tokens: int = 12) -> list[float]:
    """max|error| of Euler on N tokens against RK4 with many steps, for each number of steps."""
    rate, u0 = problem(seed), smooth_start(seed)(centres(tokens))
    exact = _end(rate, u0, 4 * max(steps), RK4())
    return [(_end(rate, u0, n, Euler()) - exact).abs().max().item() for n in steps]


def space_errors(seed: int, tokens: Sequence[int], finest: int = 162) -> list[float]:
    """max|error| on N cells, exact in time, against the finest grid, whose centres include theirs (ratios 3, 9, …).

    A difference of two grids of order two is 1 − (N/finest)² times the error of the coarse one; we divide by that.
    """
    rate, start = problem(seed), smooth_start(seed)

    def end(n: int) -> Field:
        return _end(rate, start(centres(n)), max(20, stable_steps(n)), RK4())

    reference, found = end(finest), []
    for n in tokens:
        ratio = finest // n
        if finest % n or ratio % 2 == 0:
            raise ValueError(f"tokens must divide {finest} an odd number of times, so that centres meet; not {n}")
        found.append((end(n) - reference[:, ratio // 2 :: ratio]).abs().max().item() / (1 - 1 / ratio**2))
    return found


def attention_errors(seed: int, mixings: Sequence[float], tokens: int = 12) -> tuple[list[float], list[float]]:
    """max|error| that a simplified attention causes, and ε_att = max|Att − Âtt| along the solution, for each mixing."""
    u0 = smooth_start(seed)(centres(tokens))
    steps = max(40, stable_steps(tokens))
    states = solve(problem(seed), u0, steps=steps, dt=TIME / steps, integrator=RK4()).states
    errors, sizes = [], []
    for mixing in mixings:
        simplified = problem(seed, mixing=mixing)
        errors.append((_end(simplified, u0, steps, RK4()) - states[-1]).abs().max().item())
        sizes.append(max((simplified(u) - problem(seed)(u)).abs().max().item() for u in states))
    return errors, sizes


def rule(name: str, n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a quadrature on [0, 1] with n nodes: midpoint, trapezoid or left."""
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    if name == "midpoint":
        return centres(n), weights
    if name == "left":
        return torch.arange(n, dtype=torch.float64) / n, weights
    if name == "trapezoid":
        weights = torch.full((n,), 1 / (n - 1), dtype=torch.float64)
        weights[0] = weights[-1] = 0.5 / (n - 1)
        return torch.linspace(0, 1, n, dtype=torch.float64), weights
    raise ValueError(f"name must be midpoint, trapezoid or left; not {name!r}")


def quadrature_error(seed: int, name: str, n: int, finest: int = 600, steps: int = 12) -> float:
    """max|error| at the nodes when attention is the only term and its integrals are taken by the rule.

    The reference lets the same nodes look at `finest` midpoints: nodes of weight 0 follow the field and do not act.
    """
    A, V = (normal(seed, "problem", k, size=(WIDTH, WIDTH)) for k in "AV")
    nodes, weights = rule(name, n)
    fine, fine_weights = rule("midpoint", finest)

    def end(x: Tensor, w: Tensor) -> Field:
        u0 = smooth_ramp(seed)(x)

        def rate(u: Field) -> Field:
            scores = u @ A @ u[:, : len(w)].mT + w.log()
            return scores.softmax(dim=-1) @ u[:, : len(w)] @ V.T

        return _end(rate, u0, steps, RK4())

    exact = end(torch.cat([fine, nodes]), fine_weights)[:, finest:]
    return (end(nodes, weights) - exact).abs().max().item()


def smooth_ramp(seed: int) -> Callable[[Tensor], Field]:
    """u₀(x) plus a slope: without it the field is flat at the ends, which flatters every rule."""
    start, slope = smooth_start(seed), normal(seed, "slope", size=(WIDTH,))
    return lambda x: start(x) + x.view(1, -1, 1) * slope


def error_bound(K, second, fourth, coefficient, strength, att, T, dt, dx):
    """(½ M_t Δt + D M_x Δx²/12 + α ε_att)(e^{KT} − 1)/K: eq 24 with its constants, p = 1 and q = 2.  (P1 eq 24)

    Midpoint sums that are exact; else Q Δx² joins ε_att.
    """
    return (second * dt / 2 + coefficient * fourth * dx**2 / 12 + strength * att) * torch.expm1(K * T) / K


def barrier(ratio: Tensor | float) -> Tensor:
    """max(1, r/(1 − 2r)), r = DΔt/Δx² < ½: what absorbing ends add to the error is Δx²/8 times this and max|∂²u|.

    >>> [round(barrier(r).item(), 3) for r in (0.1, 1 / 3, 0.4)]
    [1.0, 1.0, 2.0]
    """
    ratio = torch.as_tensor(ratio, dtype=torch.float64)
    return (ratio / (1 - 2 * ratio)).clamp(min=1.0)


def absorbing_bound(K, second, fourth, end, coefficient, strength, att, T, dt, dx):
    """Δx²/8 · max(1, r/(1 − 2r)) · max|∂²u(ends)| e^{KT} more than `error_bound`: eq 24 with P1's own ends."""
    added = dx**2 / 8 * barrier(coefficient * dt / dx**2) * end * torch.exp(K * T)
    return added + error_bound(K, second, fourth, coefficient, strength, att, T, dt, dx)


def absorbing_errors(seed: int, cells: Sequence[int], ratio: float, D: float = 0.1, T: float = 0.25) -> list[float]:
    """max|û − u| on N cells at DΔt/Δx² = ratio, absorbing ends, attention and a tanh network, for each N.

    The solution is made: u = x(1 − x)(a + bx) cos(ωt + φ) with numbers of its own for each feature, so that ∂²u is not
    0 at the ends. What is left of the equation is the input g(x, t), its attention taken with Gauss's rule.
    """
    A, V, W, U = (normal(seed, "problem", k, size=(WIDTH, WIDTH)) for k in "AVWU")
    a, b, phase = (normal(seed, "made", k, size=(WIDTH,)) for k in ("a", "b", "phase"))
    nodes, weights = np.polynomial.legendre.leggauss(24)
    nodes, weights = torch.tensor((nodes + 1) / 2), torch.tensor(weights / 2)

    def shape(x: Tensor) -> Tensor:
        return (x * (1 - x)).unsqueeze(-1) * (a + b * x.unsqueeze(-1))

    def local(u: Tensor) -> Tensor:
        return torch.tanh(u @ W.T) @ U.T

    def made(x: Tensor, t: float) -> tuple[Tensor, Tensor]:
        """u and g at the places x: (token, feature) each."""
        swing, speed = torch.cos(3 * t + phase), -3 * torch.sin(3 * t + phase)
        u, all_u = shape(x) * swing, shape(nodes) * swing
        curved = (2 * b - 2 * a - 6 * b * x.unsqueeze(-1)) * swing
        attended = (u @ A @ all_u.T + weights.log()).softmax(dim=-1) @ all_u @ V.T
        return u, shape(x) * speed - D * curved - attended - local(u)

    found = []
    for n in cells:
        x, steps = centres(n), math.ceil(D * T * n**2 / ratio)
        dt, u = T / steps, made(x, 0.0)[0]
        for k in range(steps):
            rate = D * laplacian(u.unsqueeze(0), "absorbing")[0] + attention(u, A, V) + local(u)
            u = u + dt * (rate + made(x, k * dt)[1])
        found.append((u - made(x, T)[0]).norm(dim=-1).max().item())
    return found


def all_modes(x: Tensor, share: float, ends: str = "reflecting") -> Tensor:
    """u₀(x) = Σ_{k ≥ 1} r^k cos(kπx), or sin(kπx) for absorbing ends, 0 < r < 1: analytic, and no mode is missing.

    The sum is that of a geometric series, (re^{iπx})/(1 − re^{iπx}).
    """
    below = 1 - 2 * share * torch.cos(math.pi * x) + share**2
    above = torch.sin(math.pi * x) if ends == "absorbing" else torch.cos(math.pi * x) - share
    return share * above / below


def heat_error(cells: int, ratio: float, share: float = 0.5, ends: str = "reflecting", T: float = 0.1) -> float:
    """max|û − u| of Euler's scheme for u' = ∂²u from `all_modes` at 2Δt/Δx² = ratio, without the errors of rounding.

    Each mode φ_k of the grid is multiplied by 1 + Δtλ_k in a step; so we know the state after n steps from the
    coefficients c_k of the start. On N centres φ_{2N−k} is ∓φ_k and φ_{2N+k} is −φ_k, hence
    c_k = (r^k ∓ r^{2N−k})/(1 + r^{2N}), the upper sign for cosines. Stepping in floating point would excite modes that
    the start does not have.
    """
    absorbing = ends == "absorbing"
    steps = math.ceil(2 * T * cells**2 / ratio)
    x, waves = centres(cells), torch.sin if absorbing else torch.cos
    k = torch.arange(1, cells + 1, dtype=torch.float64)  # the last cosine is 0 on the grid
    c = (share**k + (1 if absorbing else -1) * share ** (2 * cells - k)) / (1 + share ** (2 * cells))
    c[-1] = c[-1] / 2  # φ_{2N−k} and φ_k are the same mode here
    constant = 0.0 if absorbing else -(share ** (2 * cells)) / (1 + share ** (2 * cells))
    factor = 1 - 4 * cells**2 * torch.sin(k * math.pi / (2 * cells)) ** 2 * T / steps
    found = constant + waves(math.pi * torch.outer(x, k)) @ (c * factor**steps)
    k = torch.arange(1, 60, dtype=torch.float64)  # e^{−k²π²T} is below 1e-300 from k = 27 on for T = 0.1
    exact = waves(math.pi * torch.outer(x, k)) @ (share**k * torch.exp(-((k * math.pi) ** 2) * T))
    return (found - exact).abs().max().item()
