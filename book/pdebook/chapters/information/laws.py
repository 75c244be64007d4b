"""What keeps information and what loses it: the flow run backward, and P1 eq 16 on pairs whose information is known.

The flow (P2 Theorem 3.5). u' = A[u] + R[u] + D[u] + S[u] for N tokens, with ε > 0, bounded γ, a Lipschitz activation
and a constant matrix D, is solved backward as well as forward: u₀ ↦ u_t is a bijection. Beside it what cannot be
undone, the mean over tokens, LayerNorm, a ReLU network without a skip, P2 eq 9 with ε = 0; and layers u + Δt F(u),
which can be undone while Δt times a Lipschitz constant is below 1.

P1 eq 16,  Ĩ = E_{p(x,t)} log q(t|x) − E_{p(x)p(t)} log q(t). X ~ N(0, 1) and T = sX + νZ, so that I = ½ log(1 + s²/ν²).
For q(t|x) = N(ax, v) and q(t) = N(0, w) everything is in closed form, and so are the two divergences between Ĩ and I.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from pdebook.evidence import countable, quadrature
from pdebook.evidence.systems import amplified, randomised
from pdelab.equation import MasterEquation
from pdelab.field import Field, token_mean
from pdelab.formulas import centred, layer_norm, norm2, spread
from pdelab.integrators import RK4
from pdelab.metrics.information import club, printed_eq16
from pdelab.models import simulator, transformer
from pdelab.seeds import derive, normal, stream
from pdelab.solver import Trajectory, solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import SpatialStabilization

# The flow, and what cannot be undone.

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
    equation = MasterEquation(
        Interaction(width, 2, leak=True),
        Reaction(width, hidden, activation=activation, leak=True),
        Diffusion(diffusion),
        SpatialStabilization(gamma, eps),
    )
    return randomised(equation, seed, "invertible", gain=gain)


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


def star(tokens: int = 30) -> Field:
    """Tokens with two features along the outline of a star with five points, (1, tokens, 2); 10 should divide them."""
    corner = torch.arange(11)
    radius, angle = torch.where(corner % 2 == 0, 1.3, 0.55), math.pi * (0.5 + corner / 5)
    corners = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).double()
    way = 10 * torch.arange(tokens).double() / tokens
    before = way.long()
    return torch.lerp(corners[before], corners[before + 1], (way - before).unsqueeze(1)).unsqueeze(0)


PER_UNIT = 160  # steps of RK4 per unit of depth, for the star


def squeezing() -> MasterEquation:
    """An equation for tokens with two features that squeezes the star to a dot and keeps it in the picture."""
    return master(3, width=2, diffusion=1e-5, gain=2.0)


def there_and_back(equation: MasterEquation, u0: Field, T: float, stops: int, digits: int = 15) -> list[Field]:
    """States at 2·stops + 1 times: from u(0) to u(T), which is then rounded to so many decimals, and back."""
    each = math.ceil(PER_UNIT * T / stops)
    forward = ahead(equation, u0, T, each * stops).states[::each]
    backward = back(equation, forward[-1].round(decimals=digits), T, each * stops).states[::each]
    return [*forward[:-1], *backward]


def flow_slopes(equation: MasterEquation, u0: Field, T: float, steps: int, push: float = 1e-5) -> Tensor:
    """The derivative of u(0) ↦ u(T) at one state u0 (1, token, feature), by central differences, (size, size)."""
    size = u0.numel()
    pushes = push * torch.eye(size, dtype=u0.dtype).view(size, *u0.shape[1:])
    ends = ahead(equation, torch.cat([u0 + pushes, u0 - pushes]), T, steps).final.flatten(1)
    return (ends[:size] - ends[size:]).T / (2 * push)


def undo_layer(rate: Callable[[Field], Field], w: Field, dt: float, iterations: int) -> list[Field]:
    """v ← w − Δt F(v) from v = w: the iterates, which tend to the u with u + Δt F(u) = w if Δt·Lip F < 1."""
    iterates = [w]
    for _ in range(iterations):
        iterates.append(w - dt * rate(iterates[-1]))
    return iterates


class Branch(nn.Module):
    """F(u) = P u Vᵀ + tanh(u Wᵀ) Uᵀ, attention to all tokens alike and a network: Lipschitz with ‖V‖ + ‖U‖‖W‖."""

    def __init__(self, seed: int, width: int = WIDTH, lipschitz: float = 1.0):
        super().__init__()
        V, W, U = (normal(seed, "branch", k, size=(width, width)) for k in "VWU")
        size = (norm2(V) + norm2(U) * norm2(W)).item()
        self.V, self.W, self.U = lipschitz / size * V, W, lipschitz / size * U

    def forward(self, u: Field) -> Field:
        return token_mean(u) @ self.V.T + torch.tanh(u @ self.W.T) @ self.U.T


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
        v, f = u + normal(seed, "shift", size=(1, tokens, 1)), partial(layer_norm, eps=1e-5)

    elif name == "ReLU without skip":
        u, v = -u.abs(), -normal(seed, "other", size=u.shape).abs()
        f = Reaction(width, 8, bias=False).double().requires_grad_(False)
        f.inner.weight.abs_()

    elif name == "ε = 0":
        rest = centred(u) / spread(u)
        u, v = token_mean(u) + rest, token_mean(u) + 0.5 * rest

        def f(w: Field) -> Field:
            # exact: the spread falls at the rate γ = 1 until it is 0, and the direction stays
            return token_mean(w) + (1 - 2.0 / spread(w)).clamp(min=0) * centred(w)

    elif name == "large step":
        v = u.flip(1)

        def f(w: Field) -> Field:
            return w - (w - token_mean(w))

    else:
        raise ValueError(f"name must be one of {', '.join(LOSSY)}; not {name!r}")

    with torch.no_grad():
        return u, v, (u - v).abs().max().item(), (f(u) - f(v)).abs().max().item()


# P1 eq 16.

SLOPE, NOISE = 1.0, 0.5  # s and ν: I = ½ log 5 = 0.805


def pair_information(slope: float | Tensor = SLOPE, noise: float = NOISE) -> Tensor:
    """I = ½ log(1 + s²/ν²)."""
    return torch.log1p(torch.as_tensor(slope, dtype=torch.float64) ** 2 / noise**2) / 2


@dataclass(frozen=True)
class Gaussians:
    """q(t|x) = N(ax, v) and q(t) = N(0, w)."""

    a: float | Tensor
    v: float | Tensor
    w: float | Tensor

    def value(self, slope: float | Tensor = SLOPE, noise: float = NOISE) -> Tensor:
        """Ĩ = ½ log(w/v) − E(t − ax)²/2v + E t²/2w."""
        s, a, v, w = (torch.as_tensor(x, dtype=torch.float64) for x in (slope, self.a, self.v, self.w))
        return torch.log(w / v) / 2 - ((s - a) ** 2 + noise**2) / (2 * v) + (s**2 + noise**2) / (2 * w)

    def divergences(self, slope: float = SLOPE, noise: float = NOISE) -> tuple[Tensor, Tensor]:
        """E_x KL(p(t|x) ‖ q(t|x)) and KL(p(t) ‖ q(t)), by torch.distributions and Gauss's quadrature over x."""
        x, weights = quadrature.gauss(20)
        true = Normal(slope * x, noise)
        given = torch.distributions.kl_divergence(true, Normal(self.a * x, math.sqrt(self.v)))
        wide = math.sqrt(slope**2 + noise**2)
        alone = torch.distributions.kl_divergence(_centred(wide), _centred(math.sqrt(self.w)))
        return (weights * given).sum(), alone

    def seen(self, seed: int, number: int = 20_000, slope: float = SLOPE, noise: float = NOISE) -> Tensor:
        """Ĩ on samples, by `printed_eq16`."""
        x, t = pairs(seed, number, slope, noise)
        return printed_eq16(Normal(self.a * x, math.sqrt(self.v)).log_prob(t), _centred(math.sqrt(self.w)).log_prob(t))


def _centred(size: float) -> Normal:
    return Normal(torch.zeros((), dtype=torch.float64), torch.tensor(size, dtype=torch.float64))


def pairs(seed: int, number: int, slope: float = SLOPE, noise: float = NOISE) -> tuple[Tensor, Tensor]:
    x = normal(seed, "x", size=(number,))
    return x, slope * x + noise * normal(seed, "z", size=(number,))


def club_seen(seed: int, number: int = 2000, slope: float = SLOPE, noise: float = NOISE) -> Tensor:
    """CLUB with the exact conditional: E log p(t|x) over pairs minus over strangers."""
    x, t = pairs(seed, number, slope, noise)
    return club(Normal(slope * x.unsqueeze(1), noise).log_prob(t))


def choices(slope: float = SLOPE, noise: float = NOISE) -> dict[str, Gaussians]:
    """Ways to fill in eq 16, by name: what is exact, and what is off."""
    both = slope**2 + noise**2
    return {
        "q(t) exact, q(t|x) too wide": Gaussians(slope, 4 * noise**2, both),
        "q(t) the marginal of a wide q(t|x)": Gaussians(slope, 4 * noise**2, slope**2 + 4 * noise**2),
        "both exact": Gaussians(slope, noise**2, both),
        "q(t|x) exact, q(t) = N(0, 4)": Gaussians(slope, noise**2, 4.0),
        "neither: q(t) narrow": Gaussians(slope, 4 * noise**2, 0.3),
        "neither: q(t|x) narrow": Gaussians(slope, noise**2 / 4, both * 2),
    }


def descend(steps: int, rate: float = 0.05, *, over: str = "phi", start: float = SLOPE) -> dict[str, list[float]]:
    """Gradient descent on Ĩ: over φ = log v with T fixed, or over θ = s with q fixed and q(t) the marginal of q(t|x).

    Gives Ĩ and the true I at every step, until Ĩ is below −100. In the second case Ĩ is a lower bound throughout, exact
    at s = SLOPE, and a parabola in s that opens downward, with its top at s = 5/4: I may fall first, on the way through
    s = 0, and ends by rising from every start but the top.
    """
    if over not in ("phi", "theta"):
        raise ValueError(f"over must be phi or theta; not {over!r}")

    free = torch.tensor(math.log(NOISE**2 / 2) if over == "phi" else start, dtype=torch.float64, requires_grad=True)
    course: dict[str, list[float]] = {"eq16": [], "true": []}

    for _ in range(steps):
        if over == "phi":
            value, truth = Gaussians(SLOPE, free.exp(), SLOPE**2 + NOISE**2).value(), pair_information()
        else:
            value, truth = Gaussians(SLOPE, NOISE**2, SLOPE**2 + NOISE**2).value(free), pair_information(free)
        course["eq16"].append(value.item())
        course["true"].append(truth.item())
        if value < -100:
            break

        (slope,) = torch.autograd.grad(value, free)
        with torch.no_grad():
            free -= rate * slope
    return course


# Systems whose information is counted: all strings of six bits, a random embedding, random labels.

BITS = 6
TIMES = 6  # states looked at after the start, at equal distances in depth
GAIN = 3.0  # of the stacks' matrices: without a skip smaller ones bring all states together to rounding
KINDS = ("pre", "post", "none", "bare", "sign", "rounded")


def start(seed: int, number: int, *, places: bool = True, bits: int = BITS, hidden: int = 0) -> tuple[Field, Tensor]:
    """u₀ = E(x) + P for every x, (2^bits, bits, WIDTH), and labels Y of three kinds, random in X.

    hidden: for so many of the last bits both symbols get one vector, so that I(Y; u₀) < H(Y).
    """
    table, where = (normal(seed, "start", number, k, size=n) for k, n in (("E", (2, WIDTH)), ("P", (bits, WIDTH))))
    labels = torch.randint(3, (2**bits,), generator=stream(seed, "labels", number))
    shown = countable.inputs(bits)
    shown[:, bits - hidden :] = 0
    return table[shown] + (where if places else 0.0), labels


def equation(seed: int, number: int) -> MasterEquation:
    """A random equation of P2 eq 4: γ to 2, ε from 0.05 to 1, D to 0.02, three activations in turn."""
    g, e, d = torch.rand(3, generator=stream(seed, "flow", number)).tolist()
    kind = ("tanh", "relu", "gelu")[number % 3]
    chosen = {"gamma": 2 * g, "eps": 0.05 * 20**e, "diffusion": 0.02 * d}
    return master(derive(seed, number), **chosen, gain=1.5, activation=kind)


def along_flow(seed: int, number: int, u0: Field) -> list[Field]:
    """States of a random flow at TIMES + 1 times in [0, 1]."""
    return list(ahead(equation(seed, number), u0, 1.0, 8 * TIMES).states[::8])


@torch.no_grad()
def along_stack(seed: int, number: int, u0: Field) -> list[Field]:
    """States of a random stack of TIMES layers: LayerNorm before, after or none, no skip, and two that lose.

    sign: every layer is followed by the sign of each entry. rounded: by rounding to whole numbers.
    """
    kind = KINDS[number % len(KINDS)]
    sizes = {"width": WIDTH, "depth": TIMES, "heads": 2, "hidden": 8, "seed": derive(seed, "stack", number)}
    norm = kind if kind in ("pre", "post") else "none"
    model = (simulator("bare", **sizes) if kind == "bare" else transformer(**sizes, norm=norm)).double()
    amplified(model, GAIN)

    if kind not in ("sign", "rounded"):
        return list(solve(model.equation, u0, steps=TIMES, dt=1.0, integrator=model.integrator).states)
    merge = torch.sign if kind == "sign" else torch.round
    states = [u0]
    for own in model.equation.equations:
        states.append(merge(model.integrator.step(own, states[-1], 0.0, 1.0)))
    return states
