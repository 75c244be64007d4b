"""How fast N tokens approach the crowd: coupled errors, the field, test functions, W₁, and layers.

The law has 1200 equal atoms, so that the crowd itself is one flow of 1200 tokens and nothing stands in for it.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pdebook.chapters.crowd import laws
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import slope
from pdebook.evidence.trained import TASKS, Measured, build, fit
from pdebook.ledger.record import Key, Result
from pdelab import formulas
from pdelab.crowd import solve_density
from pdelab.formulas import norm2
from pdelab.integrators import RK4, flow
from pdelab.models import Model
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.interaction import Interaction

COUNTS = (12, 25, 50, 100, 200, 400)  # divisors of 1200, and at most a third of it: more would flatter W₁
DIMENSIONS = (1, 3, 5)
DEPTHS = (4, 8, 16, 32)
STEPS, TIME = 10, 1.0


@dataclass(frozen=True)
class Size:
    """atoms of the law; counts: N; stacks: tokens of a stack; draws of a sample, of which `costs` give W₁ if d > 1."""

    atoms: int
    counts: tuple[int, ...]
    stacks: tuple[int, ...]
    draws: int
    costs: int


SIZES = {
    Scale.SMOKE: Size(240, (10, 20, 40, 80), (12, 240), 8, 1),
    Scale.BOOK: Size(1200, COUNTS, (12, 120, 1200), 40, 3),
}


def weights(seed: int, d: int) -> tuple[Tensor, Tensor]:
    """Random A and V with spectral norm 1."""
    A, V = (normal(seed, name, d, size=(d, d)) for name in "AV")
    return A / norm2(A), V / norm2(V)


def atoms(seed: int, d: int, number: int) -> Tensor:
    """The law: equal atoms, uniform in a ball of radius ½ that touches 0: in the unit ball, and moved by attention."""
    z = normalize(normal(seed, "atoms", d, size=(number, d)), dim=-1)
    radius = torch.rand(number, 1, generator=stream(seed, "radius", d), dtype=torch.float64) ** (1 / d)
    return (radius * z + torch.eye(d, dtype=torch.float64)[0]) / 2


def carried(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """The flow u' = Att(u) up to t = 1, (…, token, d)."""
    return flow(partial(formulas.attention, A=A, V=V), u, T=TIME, steps=STEPS)


def root_mean_square(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def sampled(seed: int, d: int, size: Size) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Errors at t = 1 for each N, and what knows nothing of the coupling or of the flow, as lists over N."""
    A, V = weights(seed, d)
    costs = size.draws if d == 1 else size.costs  # on a line W₁ is a sort
    start = atoms(seed, d, size.atoms)
    end = carried(start, A, V)
    query = normal(seed, "query", d, size=(1, d))
    query = 0.5 * query / query.norm()
    exact = laws.read(query, end, A, V)
    phi = query / query.norm()  # φ(y) = w·y
    mean = (end @ phi.mT).mean()

    names = ("coupled", "largest", "field", "function", "W1")
    figures: dict[str, list[float]] = {name: [] for name in names}
    controls: dict[str, list[float]] = {name: [] for name in ("permuted", "frozen field", "W1 of a sample")}
    for n in size.counts:
        generator = stream(seed, "draws", d, n)
        chosen = torch.randint(size.atoms, (size.draws, n), generator=generator)
        u, limit = carried(start[chosen], A, V), end[chosen]  # (draw, token, d)
        apart = (u - limit).norm(dim=-1)
        figures["coupled"].append(root_mean_square(apart))
        figures["largest"].append(apart.amax(dim=-1).mean().item())
        figures["field"].append(root_mean_square((laws.read(query, u, A, V) - exact).norm(dim=-1)))
        figures["function"].append(root_mean_square((u @ phi.mT).mean(dim=(-2, -1)) - mean))

        other = torch.randperm(n, generator=generator)
        controls["permuted"].append(root_mean_square((u - limit[:, other]).norm(dim=-1)))
        # the field that the sample makes before it moves
        frozen = laws.read(query, start[chosen], A, V)
        controls["frozen field"].append(root_mean_square((frozen - exact).norm(dim=-1)))

        fresh = end[torch.randint(size.atoms, (costs, n), generator=generator)]
        for name, into, clouds in (("W1", figures, u[:costs]), ("W1 of a sample", controls, fresh)):
            into[name].append(sum(laws.transport_cost(cloud, end) for cloud in clouds) / costs)
    return figures, controls


def layer_errors(seed: int, d: int, tokens: int) -> list[float]:
    """max_i|u_i^L − u_i(T)| of L layers u + (T/L)Att(u), for each depth."""
    A, V = weights(seed, d)
    u0 = atoms(seed, d, tokens)[None]
    end = carried(u0, A, V)
    rate = partial(formulas.attention, A=A, V=V)
    runs = (solve(lambda u: rate(u), u0, steps=n, dt=TIME / n, keep=lambda u: None).final for n in DEPTHS)
    return [(u - end).norm(dim=-1).max().item() for u in runs]


@experiment("crowd_rates", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Slopes of what N independent tokens and L layers miss of the crowd, in 1, 3 and 5 dimensions."""
    figures: dict[str, float | list[float]] = {}
    controls: dict[str, float | list[float]] = {}
    size = SIZES[scale]
    for d in DIMENSIONS:
        for into, lists in zip((figures, controls), sampled(seed, d, size), strict=True):
            for name, errors in lists.items():
                into[Key(f"d={d}", name)] = errors
                into[Key(f"d={d}", f"slope {name}")] = slope(size.counts, errors)
        for tokens in size.stacks:
            errors = layer_errors(seed, d, tokens)
            figures[Key(f"d={d}", f"layers, {tokens} tokens")] = errors
            figures[Key(f"d={d}", f"slope layers, {tokens} tokens")] = slope(DEPTHS, errors)
    return Result(
        experiment="crowd_rates",
        configuration={
            "depths": list(DEPTHS),
            **{name: list(x) if isinstance(x, tuple) else x for name, x in asdict(size).items()},
        },
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )


# Trained heads


def climbs(model: Model) -> tuple[list[float], list[float]]:
    """cos(A_h, V_h) = tr(A_hᵀV_h)/(|A_h||V_h|), the mean over the heads of each layer; and with V of the other heads.

    Attention pulls by V m where the logarithm of the smoothed crowd has the slope A m, m the mean that a head takes:
    V = A climbs, V = −A descends.
    """
    own, other = [], []
    for term in model.modules():
        if isinstance(term, Interaction):
            query, key, value = term.qkv.weight.detach().unflatten(0, (3, term.heads, -1))  # (head, d_h, d) each
            out = term.out.weight.detach().unflatten(1, (term.heads, -1)).transpose(0, 1)  # (head, d, d_h)
            A, V = (normalize((a @ b).flatten(1)) for a, b in ((query.mT, key), (out, value)))
            cosines = A @ V.mT  # (head, head)
            own.append(cosines.diagonal().mean().item())
            other.append(cosines[~torch.eye(term.heads, dtype=torch.bool)].mean().item())
    return own, other


HEADS = {"digits": "rows", "topics": "text"}  # data of the figure: the task


@experiment("crowd_heads", Scale.SMOKE, Scale.BOOK)
def heads(scale: Scale, seed: int, work: Workplace) -> Result:
    """Whether trained heads move tokens up the logarithm of the smoothed crowd: the cosine of A and V, per layer.

    Controls: V of the other heads of the layer, and the same network before training.
    """
    found = Measured()
    for name, kind in HEADS.items():
        task = TASKS[kind][scale]
        data = task.load(seed)
        own, _ = climbs(build("transformer", task, data, seed))
        found.controls[Key(name, "untrained")] = own
        model, record = fit("transformer", task, data, seed, work, label=f" {name}")
        found.figures[Key(name, "climb")], found.controls[Key(name, "other heads")] = climbs(model)
        found.figures[Key(name, "accuracy")] = record.accuracy
    return found.result("crowd_heads", task, scale, seed, tasks=list(HEADS.values()))


# For the pictures


def tokens_on_circle(theta: Tensor, beta: float, time: float, states: int, *, causal: bool = False) -> Trajectory:
    """Tokens at angles (N,) or (batch, N), followed by RK4 with steps of at most 1/10: states are (batch, N, 1)."""
    each = math.ceil(10 * time / states)
    pull = laws.rate_by_modes if theta.shape[-1] > 256 else formulas.circle_rate  # the faster of two equals

    def rate(u: Tensor) -> Tensor:
        return pull(u.squeeze(-1), beta, causal=causal).unsqueeze(-1)

    start = torch.atleast_2d(theta).unsqueeze(-1)
    found = solve(rate, start, steps=each * states, dt=time / states / each, integrator=RK4())
    return Trajectory(found.times[::each], found.states[::each], found.final, found.status)


def even_tokens(n: int, seeds: int) -> Tensor:
    """Independent angles, uniform on the circle: (seed, N)."""
    draws = [torch.rand(n, generator=stream(seed, "even", n), dtype=torch.float64) for seed in range(seeds)]
    return 2 * math.pi * torch.stack(draws)


def ripple(cells: int, size: float, seed: int = 0, modes: int = 12) -> Tensor:
    """An almost even crowd: modes 1 to 12 with normal amplitudes of size ε, in cells: (1, cell)."""
    k = torch.arange(1, modes + 1, dtype=torch.float64)
    angle = 2 * math.pi * formulas.centres(cells)
    a, b = normal(seed, "ripple", size=(2, modes))
    wave = a @ torch.cos(k[:, None] * angle) + b @ torch.sin(k[:, None] * angle)
    return ((1 + size * wave) / (2 * math.pi)).unsqueeze(0)


def rippled_tokens(n: int, size: float, seed: int = 0, modes: int = 12) -> Tensor:
    """N angles at quantiles of the law of `ripple`: (N,)."""
    k = torch.arange(1, modes + 1, dtype=torch.float64)
    a, b = normal(seed, "ripple", size=(2, modes))

    def primitive(theta: Tensor) -> Tensor:
        k_theta = theta[..., None] * k
        wave = (k_theta.sin() * a + (1 - k_theta.cos()) * b) / k
        return (theta + size * wave.sum(dim=-1)) / (2 * math.pi)

    return laws.at_quantiles(n, primitive)


def mode(theta: Tensor, k: int) -> Tensor:
    """|c_k|, c_k the mean of e^{ikθ}: 1 for tokens on k evenly spaced points, about N^{−1/2} at random: (…)."""
    return torch.polar(torch.ones_like(theta), k * theta).mean(dim=-1).abs()


def token_growth(k: int, beta: float, n: int = 1024, size: float = 1e-4, time: float = 1.0) -> float:
    """The rate at which N tokens let mode k grow, from quantiles of 1 + ε cos kθ."""
    start = laws.at_quantiles(n, lambda theta: (theta + size * torch.sin(k * theta) / k) / (2 * math.pi))
    ends = tokens_on_circle(start, beta, time, 1).states
    before, after = (mode(state[0, :, 0], k).item() for state in ends)
    return math.log(after / before) / time


def density_growth(k: int, beta: float, noise: float = 0.0, *, cells: int = 256, size: float = 1e-4) -> float:
    """The rate at which the equation lets mode k grow up to t = 1, with noise: ∂ρ/∂t + ∂(ρX)/∂θ = D ∂²ρ/∂θ².

    Ten times transport, then heat, exactly in Fourier space. On the even crowd the two commute.
    """
    wave = torch.cos(2 * math.pi * k * formulas.centres(cells))
    fade = torch.exp(-0.1 * noise * torch.arange(cells // 2 + 1, dtype=torch.float64) ** 2)
    rho = 1 + size * wave.unsqueeze(0)
    for _ in range(10):
        rho = solve_density(rho, beta=beta, time=0.1).final
        rho = torch.fft.irfft(torch.fft.rfft(rho) * fade, n=cells)
    return math.log(2 * (rho * wave).mean().item() / size)


def ring_growth(clusters: int, beta: float, push: float = 1e-4, time: float = 1.0) -> float:
    """The fastest growth of a push of K evenly spaced tokens, followed up to `time`: over all q, by the run."""
    even = 2 * math.pi * torch.arange(clusters, dtype=torch.float64) / clusters
    found = []
    for q in range(1, clusters // 2 + 1):
        wave = torch.cos(q * even)
        end = tokens_on_circle(even + push * wave, beta, time, 1).final.flatten() - even
        found.append(math.log((end @ wave / (wave @ wave)).item() / push) / time)
    return max(found)


def sphere_growth(degree: int, beta: float, n: int = 1500, push: float = 1e-4) -> float:
    """The rate at which n nearly even tokens on the sphere in space let the zonal harmonic P_ℓ(z) grow.

    They are pushed along its gradient, once forwards and once backwards, and attention answers.
    """
    z = 1 - 2 * formulas.centres(n)
    turn = math.pi * (1 + math.sqrt(5)) * torch.arange(n)  # a Fibonacci lattice
    around = (1 - z**2).sqrt()
    u = torch.stack([around * turn.cos(), around * turn.sin(), z], dim=-1)
    slope = torch.from_numpy(np.polynomial.legendre.Legendre.basis(degree).deriv()(z.numpy()))
    along = slope[:, None] * (torch.tensor([0.0, 0.0, 1.0]) - z[:, None] * u)
    eye = torch.eye(3, dtype=torch.float64)

    def answer(size: float) -> Tensor:
        moved = normalize(u + size * along, dim=-1)
        pull = formulas.attention(moved, beta * eye, eye)
        return pull - (pull * moved).sum(dim=-1, keepdim=True) * moved

    odd = (answer(push) - answer(-push)) / (2 * push)  # a lattice is not quite even: that part drops out
    return ((odd * along).sum() / along.square().sum()).item()


def decisions(theta: Tensor, beta: float, level: float = 0.3, longest: float = 20.0) -> tuple[Tensor, Tensor]:
    """When the largest |c_k| of each row of tokens, k up to 2k*, passes `level`, and which k it is: (seed,) each.

    The time is infinite and k is 0 for a row in which it does not.
    """
    k = range(1, 2 * laws.fastest_mode(beta) + 2)
    step, passed = 0.1, torch.full((len(theta),), torch.inf, dtype=theta.dtype)
    leader = torch.zeros(len(theta), dtype=torch.long)
    before = torch.stack([mode(theta, j) for j in k]).amax(dim=0)
    for number in range(round(longest / step)):
        theta = flow(partial(laws.rate_by_modes, beta=beta), theta, T=step, steps=1)
        after, which = torch.stack([mode(theta, j) for j in k]).max(dim=0)
        part = (math.log(level) - before.log()) / (after.log() - before.log())  # it grows as an exponential
        first = (after >= level) & passed.isinf()
        passed = torch.where(first, step * (number + part.clamp(0, 1)), passed)
        leader = torch.where(first, which + 1, leader)
        before = after
        if passed.isfinite().all():
            break
    return passed, leader


TURN = math.pi  # how far the start of the masked crowd turns along the sequence


def turning(x: Tensor, places: Tensor, turn: float = TURN) -> Tensor:
    """The angle of a token at position x of the sequence: one bump, which turns by half a circle along it."""
    return laws.at_quantiles(len(places), laws.bump, places) + turn * x


def turning_rows(rows: int, cells: int) -> Tensor:
    """The law of `turning` in each of `rows` equal parts of the sequence: (row, cell)."""
    edges = 2 * math.pi * torch.arange(cells + 1, dtype=torch.float64) / cells
    return laws.bump(edges - TURN * formulas.centres(rows).unsqueeze(1)).diff(dim=-1) * cells / (2 * math.pi)


def masked_and_blind(beta: float = 2.0, time: float = 3.0, rows: int = 48, cells: int = 180) -> tuple[Tensor, Tensor]:
    """The law of all tokens at time T, (cell,), from the equation with the causal mask and from the one without."""
    start = turning_rows(rows, cells)
    masked = solve_density(start, beta=beta, time=time, causal=True).final.mean(dim=0)
    return masked, solve_density(start.mean(dim=0, keepdim=True), beta=beta, time=time).final[0]


def causal_tokens(n: int, seed: int, beta: float = 2.0, time: float = 3.0, turn: float = TURN) -> Tensor:
    """The angles at time T of N causal tokens that start as `turning` says, (N,)."""
    places = torch.rand(n, generator=stream(seed, "causal", n), dtype=torch.float64)
    start = turning(formulas.centres(n), places, turn)
    return tokens_on_circle(start, beta, time, 1, causal=True).final.flatten()
