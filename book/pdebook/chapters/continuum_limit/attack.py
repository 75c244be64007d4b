"""An adversary against depth as time, and against existence.  (P2 Theorem 3.2, eq 10-12; P1 Theorem 1)

Printed, in three readings: the update of §3.1, without the factor Δt; that of B.1 with its two assumptions, which ask
for no smoothness in t; and the same with "smoothness with respect to ℓ", as the theorem has it. Also one Lipschitz
constant of attention for all states, and existence for every matrix D. Corrected: an error bound for Euler's method in
a tube about the solution, and D with its spectrum in the right half-plane.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp

from pdebook.chapters.continuum_limit.laws import (
    Line,
    error_bound,
    finer_is_worse,
    heat_growth,
    kernel_mass,
    normaliser_is_infinite,
    smooth_embedding,
)
from pdebook.evidence.adversary import Start, Statement, ascend, attack
from pdebook.evidence.stacks import slope_of_attention
from pdebook.evidence.systems import randomised
from pdelab.equation import MasterEquation
from pdelab.field import Field
from pdelab.formulas import attention, attention_lipschitz, longest, norm2
from pdelab.integrators import RK4, ExponentialDiffusion, ImplicitDiffusion, flow
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

CONSTANTS = tuple(10.0**k for k in range(1, 7))  # offered as a Lipschitz constant of attention for all states
MOMENT = 2e-5  # a short time, in which a well-posed equation moves a smooth field little


def euclidean(u: Field) -> Tensor:
    """(Σ_i |u_i|²)^{½}, one number per example."""
    return u.flatten(1).norm(dim=-1)


def sizes_below(top: Sequence[float], width: Sequence[float]) -> Callable[..., Start]:
    """A `start` with log_sizes = top − width·|z|, z ~ N(0, 1): decades apart, so that parts of a bound stand alone."""

    def start(seed: int, **drawn: Tensor) -> Start:
        z = drawn["log_sizes"].abs()
        return drawn | {"log_sizes": z.new_tensor(top) - z.new_tensor(width) * z}

    return start


def sized(log_sizes: Tensor, *parts: Tensor) -> list[Tensor]:
    """Each part times its own size, e^{log_sizes}: (batch, part)."""
    sizes = log_sizes.exp().unbind(dim=-1)
    return [size.view(-1, *[1] * (x.ndim - 1)) * x for size, x in zip(sizes, parts, strict=True)]


def slope(values: Tensor, scores: Tensor, R: Tensor) -> Tensor:
    """v(x + √(1 + x²)), x = ‖A‖R²: the Lipschitz constant of attention in max_i|·| where max_i|u_i| ≤ R and ‖V‖ ≤ v."""
    return values * attention_lipschitz(scores, torch.eye(scores.shape[-1], dtype=scores.dtype), R)


# Euler's error: B = (ε + ½(KM + K_t)Δt)(e^{KT} − 1)/K


def line_of(log_rate, log_time, u0, c, *, sign) -> Line:
    """u' = au + ct with rates and times over decades; below 1e-3 the closed form has too few digits left."""
    return Line(a=sign * ((1.5 * log_rate).exp() + 1e-3), c=c, u0=u0, T=(0.5 * log_time).exp())


def error_on_a_line(log_off, *, layers, epsilon=1.0, K=1.0, M=1.0, K_t=1.0, **numbers) -> Tensor:
    """max_t|u^L(t) − u(t)| ≤ B, u^L the states joined by lines, for u' = au + ct.

    Layers return garbage outside the tube of radius 1.01 B. Between two layers three times are looked at.
    """
    line, off = line_of(**numbers), (3 * log_off).exp()
    rate, speed, drift = line.constants()
    dt = line.T / layers
    radius = 1.01 * error_bound(rate, speed, drift, line.T, dt, off)
    allowed = error_bound(K * rate, M * speed, K_t * drift, line.T, dt, epsilon * off)
    push = -off * torch.sign(line.a**2 * line.u0 + line.c)  # to the side to which Euler's steps err, that of −u''

    H, worst = line.u0, torch.zeros_like(off)
    for n in range(layers):
        t = n * dt
        inside = (H - line.at(t)).abs() <= radius
        F = torch.where(inside, line.a * H + line.c * t + push, 1e6)
        for part in (0.25, 0.5, 0.75, 1.0):
            joined = H + part * dt * F
            worst = torch.maximum(worst, (joined - line.at(t + part * dt)).abs() / allowed)
        H = joined
    return worst


def each_part_alone(seed: int, **drawn: Tensor) -> Start:
    """Starts in turn as drawn, with a small c, and with small c, ε and rate: there the part ½KMΔt of B stands alone."""
    turn = torch.arange(len(drawn["c"])) % 3
    return drawn | {
        "c": drawn["c"] * torch.tensor([1.0, 1e-3, 1e-7], dtype=torch.float64)[turn],
        "log_off": drawn["log_off"] - torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64)[turn],
        "log_rate": drawn["log_rate"] - torch.tensor([0.0, 0.0, 1.5], dtype=torch.float64)[turn],
    }


def error_with_attention(u, scores, values, drift, push, log_sizes, *, epsilon=1.0, K=1.0, M=1.0, K_t=1.0) -> Tensor:
    """max_ℓ‖H^ℓ − u(t_ℓ)‖ ≤ B if B < δ, for u' = Att(u; A, V + tW) on [0, 1] in the norm max_i|·|.

    Layer ℓ adds a push w_ℓ, so that ε = max_ℓ‖w_ℓ‖. K comes from the lemma on the tube of radius δ, K_t from ‖W‖, and M
    from samples along the solution plus what can happen between them. Where B ≥ δ the theorem says nothing: −B/δ.
    """
    scores, values, drift, push = sized(log_sizes, scores, values, drift, push)
    layers, fine = push.shape[1], 4  # steps of RK4 per layer
    dt, step = 1 / layers, 1 / (fine * layers)

    def rate(v: Tensor, t: Tensor | float, mask: None = None) -> Tensor:
        return attention(v, scores, values + t * drift)

    path = [u]
    for n in range(layers * fine):
        path.append(RK4().step(rate, path[-1], n * step, step))
    solution = torch.stack(path)  # (time, batch, token, feature)
    times = torch.linspace(0, 1, len(path), dtype=u.dtype).view(-1, 1, 1, 1)
    reach = longest(solution).amax(dim=0)
    fastest = longest(rate(solution, times)).amax(dim=0)
    off = longest(push).amax(dim=-1)

    def constants(radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lipschitz = slope(norm2(values) + norm2(drift), scores, reach + radius)
        in_time = norm2(drift) * (reach + radius)
        # between two samples the speed changes by at most (KM + K_t)·step/2
        speed = (fastest + in_time * step / 2) / (1 - lipschitz * step / 2).clamp(min=0.5)
        return lipschitz, speed, in_time

    radius = 1.2 * error_bound(*constants(0 * reach), 1.0, dt, off)  # wider than B unless K grows fast with δ
    lipschitz, speed, in_time = constants(radius)
    filled = error_bound(lipschitz, speed, in_time, 1.0, dt, off) / radius
    allowed = error_bound(K * lipschitz, M * speed, K_t * in_time, 1.0, dt, epsilon * off)

    H, worst = u, torch.zeros_like(off)
    for n in range(layers):
        H = H + dt * (rate(H, n * dt) + push[:, n])
        worst = torch.maximum(worst, longest(H - path[(n + 1) * fine]) / allowed)
    # with a larger K, neither RK4 nor the speed between samples would be exact enough
    return torch.where((filled < 1) & (lipschitz * step < 0.1), worst, -filled)


# The limit as printed: in every case F_ℓ = F(·, t_ℓ), Lipschitz in u with one constant for all states


def stacks_of(seed: int, batch: int) -> tuple[Tensor, Callable[[Tensor, float], Tensor]]:
    """Starts u₀ (batch, 8, 1), and F(u, t) = W₂(t) tanh(W₁(t)u) with matrices that turn smoothly with t in [0, 1]."""
    draws = {k: normal(seed, "limit", k, size=(2, batch, 8, 8)) / math.sqrt(8) for k in "12"}

    def rate(u: Tensor, t: float) -> Tensor:
        W1, W2 = (math.cos(t) * first + math.sin(t) * second for first, second in draws.values())
        return W2 @ torch.tanh(W1 @ u)

    return normal(seed, "limit", "u", size=(batch, 8, 1)), rate


def smooth_errors(seed: int, *depths: int, scaled: bool = True, rough: float = 0.0, batch: int = 16) -> list[Tensor]:
    """The errors at t = 1 of stacks of these depths, F smooth in t; rough: the size of a rough F(t) that is added.

    scaled: H + Δt F(H), as B.1 has it; else H + F(H), the update of §3.1.
    """
    u0, rate = stacks_of(seed, batch)
    exact = u0
    for n in range(128):
        exact = RK4().step(lambda u, t, mask: rate(u, t), exact, n / 128, 1 / 128)

    def end(layers: int) -> Tensor:
        u = u0
        for n in range(layers):
            forced = rate(u, n / layers) + rough * rough_part(n / layers)
            u = u + (1 / layers if scaled else 1.0) * forced
        return u

    return [euclidean(end(layers) - exact) for layers in depths]


def rough_part(t: float) -> float:
    """Σ_k 2^{−k/2} cos(2π 2ᵏ t), whose integral over [0, 1] is 0."""
    return sum(2 ** (-k / 2) * math.cos(2 * math.pi * (2**k * t % 1)) for k in range(40))


def smooth_limit(seed: int, *, scaled=True) -> Tensor:
    """F smooth in t: the error at 64 layers is at most half of that at 8 (it is an eighth)."""
    few, many = smooth_errors(seed, 8, 64, scaled=scaled)
    return 2 * many / few


def smooth_rate(seed: int, *, rough=0.0) -> Tensor:
    """F smooth in t: the error times L grows at most by a half from 16 to 128 layers."""
    few, many = smooth_errors(seed, 16, 128, rough=rough)
    return 128 * many / (16 * few) / 1.5


def rough_errors(seed: int, *depths: int, scaled: bool = True, batch: int = 16) -> list[Tensor]:
    """The errors of u' = F(t) = Σ_k a_k cos(2π 2ᵏ t), a_k ∝ 2^{−sk}: continuous, and not Lipschitz in t.

    Each F has its own s between ¼ and 0.55, and coefficients that differ by up to a quarter. At t = 1 the solution is
    back at u(0), and L = 2ᵐ steps are off by Σ_{k ≥ m} a_k, about L^{−s}.
    """
    k, stream_of = torch.arange(40, dtype=torch.float64), partial(stream, seed, "rough")
    s = 0.25 + 0.3 * torch.rand(batch, 1, generator=stream_of("s"), dtype=torch.float64)
    a = (1 + 0.25 * torch.rand(batch, 40, generator=stream_of("a"), dtype=torch.float64)) * 2 ** (-s * k)

    def error(layers: int) -> Tensor:
        t = torch.arange(layers, dtype=torch.float64) / layers
        waves = torch.cos(2 * math.pi * torch.frac(torch.outer(2**k, t)))  # (k, layer)
        return (a @ waves).mean(dim=1).abs() * (1 if scaled else layers)

    return [error(layers) for layers in depths]


def rough_limit(seed: int, *, scaled=True) -> Tensor:
    """F continuous in t, no more: the error at 512 layers is at most half of that at 8."""
    few, many = rough_errors(seed, 8, 512, scaled=scaled)
    return 2 * many / few


def rough_rate(seed: int) -> Tensor:
    """F continuous in t, no more: the error times L grows at most fourfold from 8 to 512 layers."""
    few, many = rough_errors(seed, 8, 512)
    return 512 * many / (8 * few) / 4


# Existence and uniqueness:  ∂u/∂t = D ∂²u/∂x² + α Att(u) + R(u)


def any_matrix(seed: int, *, batch=64) -> Tensor:
    """Whatever the 2×2 matrix D, a short time enlarges 1024 tokens at most 100 times more than 256."""
    return finer_is_worse(normal(seed, "D", size=(batch, 2, 2)), MOMENT)


def right_half_plane(seed: int, batch: int) -> Tensor:
    """Random 2×2 matrices with both eigenvalues λ, Re λ > 0: real or complex pairs, in a random basis."""
    basis = normal(seed, "basis", size=(batch, 2, 2))
    complex_pair = torch.arange(batch) % 2 == 1
    real = 0.05 + torch.rand(batch, 2, generator=stream(seed, "real"), dtype=torch.float64)
    turn = normal(seed, "turn", size=(batch,)) * complex_pair

    inner = torch.diag_embed(torch.where(complex_pair.unsqueeze(-1), real[:, :1], real))
    inner[:, 0, 1], inner[:, 1, 0] = turn, -turn
    return basis @ inner @ torch.linalg.inv(basis)


def semigroup(seed: int, *, C_D=1.0, contracts=False, batch=64) -> Tensor:
    """‖e^{−sD}‖ ≤ C_D for all s ≥ 0, if both eigenvalues of D lie in the right half-plane; contracts: ≤ 1."""
    D = right_half_plane(seed, batch)
    worst = torch.stack([norm2(torch.linalg.matrix_exp(-s * D)) for s in torch.logspace(-3, 2, 60)]).amax(dim=0)
    worst = torch.maximum(worst, heat_growth(D, 1024, MOMENT))
    return worst / (1.0 if contracts else C_D * kernel_mass(D))


def separation(u, gap, scores, values, network, log_sizes, *, coefficient, A=1.0, V=1.0, W=1.0) -> Tensor:
    """max_i|u_i − v_i|(T) ≤ e^{KT} max_i|u_i − v_i|(0), K = ‖V‖(x + √(1 + x²)) + ‖W‖, x = ‖A‖R².

    R is the longest token met. Diffusion is exact and the rest one Euler step. The score is the rate of separation over
    K: the two sides would agree without any search where the weights are zero.
    """
    scores, values, network, gap = sized(log_sizes, scores, values, network, gap)
    T, steps = 0.25, 8
    diffusion, dt = Diffusion(coefficient), T / steps

    pair = torch.cat([u, u + gap])  # both starts in one batch
    reach, (A2, V2, W2) = longest(pair), (x.repeat(2, 1, 1) for x in (scores, values, network))
    for _ in range(steps):
        pair = diffusion.exact(pair + dt * (attention(pair, A2, V2) + torch.tanh(pair) @ W2.mT), dt)
        reach = torch.maximum(reach, longest(pair))

    u, v = pair.chunk(2)
    R = torch.maximum(*reach.chunk(2))
    K = slope(V * norm2(values), A * scores, R) + W * norm2(network)
    return (longest(u - v) / longest(gap)).log() / (K * T)


def equation(seed: int, coefficient: float) -> MasterEquation:
    """P1 eq 1 with a ReLU network, which is Lipschitz and not smooth."""
    terms = Diffusion(coefficient), Interaction(4, bias=False), Reaction(4, 8, bias=False)
    return randomised(MasterEquation(*terms), seed, "existence")


def agreement(seed: int, *, other=0.05, fields=8) -> Tensor:
    """With a quarter of the step two methods are less than half as far apart: a quarter, if they share a limit.

    other: the diffusivity that the second method is given; the first has 0.05.
    """

    def apart(number: int, steps: int) -> Tensor:
        u0, ends = smooth_embedding(number, 32), []
        for coefficient, method in ((0.05, ImplicitDiffusion()), (other, ExponentialDiffusion())):
            run = solve(equation(number, coefficient), u0, steps=steps, dt=0.2 / steps, integrator=method)
            ends.append(run.final)
        return (ends[0] - ends[1]).abs().max()

    numbers = range(100 * seed, 100 * seed + fields)
    return torch.stack([2 * apart(number, 64) / apart(number, 16) for number in numbers])


def there_and_back(seed: int, *, root=0.0, fields=16) -> Tensor:
    """No two solutions meet: forward to t = 1 and back, N tokens without diffusion are where they began.

    root: the strength of −√|u| sign(u), which is not Lipschitz, so that solutions meet at 0.
    """

    def missed(number: int) -> Tensor:
        block, u0 = equation(number, 0.0), smooth_embedding(number, 12)

        def rate(u: Field) -> Field:
            return block(u) - root * u.abs().sqrt() * u.sign()

        back = flow(lambda u: -rate(u), flow(rate, u0, steps=64), steps=64)
        return (back - u0).abs().max()

    # ReLU's kinks cost RK4 its order; a second solution would be seen at order 1
    return torch.stack([missed(number) for number in range(100 * seed, 100 * seed + fields)]) / 1e-4


# Counted apart, since the papers may exclude it


def one_constant(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Is one of CONSTANTS a Lipschitz constant of attention for all states?  And which steps leave the tube at once?"""
    steepest = steepest_slope(seed)
    exceeded = sum(max(steepest, slope_of_attention(math.sqrt(1.5 * c))) > c for c in CONSTANTS)

    longer = 0
    for settings, start in run.statements["error_bound_line"].searches(seed):
        off, layers = (3 * start.pop("log_off")).exp(), settings["layers"]
        line = line_of(**start, sign=settings["sign"])
        stride = line.constants()[1] * line.T / layers
        longer += int((stride > 1.01 * error_bound(*line.constants(), line.T, line.T / layers, off)).sum())

    figures = {"assumption_attempts": len(CONSTANTS), "assumption_violations": exceeded}
    return figures | {"steepest": steepest, "steps_longer_than_the_tube": longer}, {}


def steepest_slope(seed: int, batch: int = 16) -> float:
    """The largest ‖Att'(u)δ‖/‖δ‖ that ascent on three tokens finds with A = V = 1, knowing no example."""
    one = torch.ones(batch, 1, 1, dtype=torch.float64)

    def score(log_size: Tensor, u: Tensor, direction: Tensor) -> Tensor:
        _, change = jvp(lambda v: attention(v, one, one), (u * log_size.exp(),), (direction,))
        return (euclidean(change) / euclidean(direction)).log()

    start = {key: normal(seed, "slope", key, size=(batch, 3, 1)) for key in ("u", "direction")}
    return ascend(score, {"log_size": 0 * one} | start, rate=0.03, steps=200).max().exp().item()


def without_normaliser(seed: int, batch: int = 64) -> tuple[dict[str, float], dict[str, float]]:
    """Fields of L² for which attention is not defined; the control is the backward heat equation."""
    powers = 0.5 * torch.rand(batch, generator=stream(seed, "q"), dtype=torch.float64)
    fields = normaliser_is_infinite(powers, normal(seed, "a", size=(batch,)))
    backward = finer_is_worse(torch.tensor([[-1.0]], dtype=torch.float64), MOMENT)
    return {"fields_without_normaliser": int(fields.sum())}, {"backward_heat_grows": float(backward > 1)}


NUMBERS = dict.fromkeys(("log_rate", "log_time", "log_off", "u0", "c"), "")
MATRICES = {"u": "n d", "scores": "d d", "values": "d d"}

run = attack(
    "attack_continuum",
    {
        # three readings of the theorem as printed: §3.1; B.1 with its two assumptions; B.1 with smoothness in ℓ
        "3.1 limit": Statement(smooth_limit, over={"scaled": [False]}, printed=True),
        "B.1 limit": Statement(rough_limit, wrong={"no Δt": {"scaled": False}}, printed=True),
        "B.1 rate": Statement(rough_rate, printed=True),
        "B.1 smooth limit": Statement(smooth_limit, wrong={"no Δt": {"scaled": False}}, printed=True),
        "B.1 smooth rate": Statement(smooth_rate, wrong={"rough in t": {"rough": 1.0}}, printed=True),
        "error_bound_line": Statement(
            error_on_a_line, NUMBERS, over={"layers": (1, 2, 4, 16), "sign": (-1.0, 1.0)}, start=each_part_alone,
            wrong={f"{name}, 3 %": {name: 0.97} for name in ("epsilon", "K", "M", "K_t")}, each=True, batch=192,
            steps=60,
        ),
        "error_bound_attention": Statement(
            error_with_attention, MATRICES | {"drift": "d d", "push": "layers n d", "log_sizes": "parts"},
            [{"n": 3, "d": 2, "layers": 4, "parts": 4}], start=sizes_below((-2.0,) * 4, (3.0, 0.5, 6.0, 6.0)),
            shrink=("epsilon", "K", "M", "K_t"), batch=64, steps=40,
        ),
    },
    extra=one_constant,
    constants=list(CONSTANTS),
)  # fmt: skip

run_existence = attack(
    "attack_existence",
    {
        "matrices": Statement(any_matrix, printed=True),
        "semigroup": Statement(semigroup, wrong={"C_D = 1": {"contracts": True}}, shrink=("C_D",)),
        "separation": Statement(
            separation, MATRICES | {"gap": "n d", "network": "d d", "log_sizes": "parts"},
            [{"n": n, "d": 2, "parts": 4} for n in (3, 4)], over={"coefficient": (0.0, 0.01)},
            start=sizes_below((2.0, -2.0, -2.0, -2.0), (2.0, 1.0, 4.0, 2.0)),
            shrink=("A", "V", "W"), batch=48,
        ),
        "agreement": Statement(agreement, wrong={"another diffusivity": {"other": 0.055}}),
        "return": Statement(there_and_back, wrong={"not Lipschitz": {"root": 2.0}}),
    },
    extra=without_normaliser,
    moment=MOMENT,
)  # fmt: skip
