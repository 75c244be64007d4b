"""An adversary against the statements of the chapter on the master equation.  (P2 eq 4-6)

Exact statements (the budget, the sweep, the identity path, the moments of the dial) are attacked to rounding: the score
is the gap over a tolerance of rounding. That sum and sweep meet, and where post-LayerNorm layers go, are orders in Δt,
searched at random: an order has no worst case to climb to. The dial law is a limit: the adversary chooses input, step
and activation to make the gap large, then fresh weights of finite width decide, with the spread that the law of the
variance gives for this width. That law stands for itself, too, with as many draws as tell it from its neighbours.
"""

import math
from functools import lru_cache
from itertools import product
from types import SimpleNamespace

import torch
from torch import Tensor

from pdebook.chapters.master_equation import laws
from pdebook.evidence.adversary import Statement, ascend, attack
from pdelab.convert import from_torch
from pdelab.equation import MasterEquation
from pdelab.integrators import Euler, LieEuler
from pdelab.metrics.budget import budget as split
from pdelab.metrics.stability import energy
from pdelab.seeds import derive, normal, seeded, stream
from pdelab.solver import solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate, SpatialStabilization

EXACT = 1e-13  # of a sum of some hundred products in double precision, relative to its largest part
HALF_ORDER = 0.5  # (1/4)^½: what four times the layers leave of an error of order ½; order 1 leaves a quarter
SIGMAS = 5.5  # the worst of some hundred normal draws stays below it, but for one search in a hundred thousand
WIDTH, LAYERS, FRESH = 128, 4, 12  # of the stacks under the dial law: their size, and how often weights are drawn anew
VARIANCE_WIDTH, DRAWS = 256, 16_000  # of the stacks whose variance is measured


def random_equation(seed: int, *names: object) -> MasterEquation:
    """Terms of every kind in a random order, with weights of random size."""
    sizes = (10 ** (2 * torch.rand(4, generator=stream(seed, "sizes", *names)) - 1)).tolist()

    def build() -> list:
        return [
            Interaction(4, 2, leak=True, strength=sizes[0]),
            Reaction(4, 8, leak=True),
            Diffusion(0.01 * sizes[1]),
            SpatialStabilization(sizes[2]),
            LayerNormRate(4, sizes[3]),
        ]

    terms = seeded(build, derive(seed, "terms", *names))
    order = torch.randperm(len(terms), generator=stream(seed, "order", *names)).tolist()
    return MasterEquation(*(terms[k] for k in order)).double().requires_grad_(False)


# Exact statements


def budget(seed, *, left_end=False, attempts=40) -> Tensor:
    """E(u⁺) − E(u) = Σ_T ⟨½(u⁺ + u), δ_T⟩, and stage by stage, for both schemes, with padding; not ⟨u, u⁺ − u⟩."""
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    gaps = []
    for number in range(attempts):
        equation, scheme = random_equation(seed, number), (Euler(), LieEuler())[number % 2]
        u0 = 10 ** (number % 5 - 2) * normal(seed, "state", number, size=(2, 6, 4))
        run = solve(equation, u0, steps=3, dt=0.1, integrator=scheme, mask=mask)
        change = torch.stack([energy(u, mask) for u in run.states]).diff()

        shares = split(equation, run, scheme, centre=("stage", "step")[number // 2 % 2]).energy
        scale = EXACT * (shares.abs().sum(dim=1) + energy(u0, mask))
        steps = zip(run.states, run.states[1:], strict=False)
        naive = [((u * (v - u)).sum(dim=(1, 2)) / mask.sum(dim=1)).mean() for u, v in steps]
        total = torch.stack(naive) if left_end else shares.sum(dim=1)
        gaps.append(((total - change).abs() / scale).max())
    return torch.stack(gaps)


def sweep(seed, *, scheme=LieEuler, attempts=20, steps=20) -> Tensor:
    """A step Δt = 1 through A, S, R, S in turn is torch's post-LayerNorm layer: random layers, the input climbs."""
    gaps = []
    for number in range(attempts):
        encoder = laws.random_encoder(seed, number)
        ours = from_torch(encoder).equation

        def gap(u: Tensor, encoder=encoder, ours=ours) -> Tensor:
            theirs = encoder(u)
            away = (scheme().step(ours, u, 0.0, 1.0) - theirs).abs().amax(dim=(1, 2))
            return away / theirs.abs().amax(dim=(1, 2)) / EXACT

        gaps.append(ascend(gap, {"u": normal(seed, "tokens", number, size=(1, 5, 8))}, steps=steps))
    return torch.cat(gaps)


def identity_path(seed, *, leaks=2, attempts=40, layers=8) -> Tensor:
    """u^L = q^L u₀ + Δt Σ_ℓ q^{L−1−ℓ} G_ℓ, q = 1 − 2Δt, G what is left of the rate without its two −u."""
    gaps = []
    for number in range(attempts):
        dt = torch.rand(1, generator=stream(seed, "dt", number), dtype=torch.float64).item()
        u0 = u = normal(seed, "u", number, size=(1, 4, 4))
        pushes = []
        for n in range(layers):
            rate = random_equation(seed, number, n)(u)
            pushes.append(rate + 2 * u)
            u = u + dt * rate

        parts = laws.identity_path(u0, pushes, dt, leaks)
        gaps.append((sum(parts) - u).abs().amax() / (EXACT * sum(part.abs().amax() for part in parts)))
    return torch.stack(gaps)


def sum_meets_sweep(seed, *, attempts=6, layers=8, **start) -> Tensor:
    """‖sum − sweep‖ falls at least by half from L to 4L layers, from tokens on the sphere with even gains."""
    ratios = []
    for number in range(attempts):
        coarse, fine = laws.sum_against_sweep(derive(seed, "sum", number), (layers, 4 * layers), **start)
        ratios.append(fine / coarse / HALF_ORDER)
    return torch.tensor(ratios, dtype=torch.float64)


# Post-LayerNorm with gains


def uneven_gains(seed, *, largest, more=0, changing=False, across=False, attempts=6, layers=32) -> Tensor:
    """u_i^L − s_iv falls at least by half from L to 4L layers u ↦ LN(u + F/L) if the largest gain stands at most twice.

    q·u_i(0) ≠ 0; across: it is 0. largest: how many gains are the largest; from three on, as with two more, there is
    no gap. changing: gains in another order in each layer.
    """
    ratios = []
    for number in range(attempts):
        own = derive(seed, "gains", number)
        gain = 0.6 + 0.4 * torch.rand(laws.WIDTH, generator=stream(own, "gain"), dtype=torch.float64)
        gain[: largest + more] = 1.4
        start = tokens_off(own, gain, 0.0 if across else 0.5)
        limit, far = laws.power_limit(gain, start), []
        for depth in (layers, 4 * layers):
            gains = gain.expand(depth, -1)
            if changing:
                gains = gain[torch.rand(depth, laws.WIDTH, generator=stream(own, "order", depth)).argsort(dim=-1)]
            far.append((laws.post_norm(own, gains, start)[-1] - limit).norm(dim=-1).max())
        ratios.append(far[1] / far[0] / HALF_ORDER)
    return torch.stack(ratios)


def tokens_off(seed: int, gain: Tensor, least: float) -> Tensor:
    """Random tokens with their part along v, as q = G⁻¹v measures it, replaced by ±least·v."""
    v, _ = laws.top_of(gain)
    u, q = normal(seed, "start", size=(4, 8, laws.WIDTH)), v / gain
    along = u @ q
    return u + (least * along.sign() - along / (q @ v)).unsqueeze(-1) * v


def nearly_even_gains(seed, *, spread, flat=False, along=False, attempts=3, layers=16) -> Tensor:
    """With gains 1 + γ/L the layers tend, with order 1, to u' = (I − uuᵀ/d)P(F + γu) from LN(u₀), from any start.

    The error must fall at least by half from L to 4L. flat: the limit without γ. along: without I − uuᵀ/d.
    """
    ratios = []
    for number in range(attempts):
        own = derive(seed, "slopes", number)
        slopes = spread * normal(own, "slopes", size=(laws.WIDTH,))
        limit = laws.gain_flow(own, 0 * slopes if flat else slopes, along=along)
        depths = (layers, 4 * layers)
        ends = [laws.post_norm(own, (1 + slopes / depth).expand(depth, -1))[-1] for depth in depths]
        coarse, fine = ((end - limit).norm(dim=-1).max() for end in ends)
        ratios.append(fine / coarse / HALF_ORDER)
    return torch.stack(ratios)


# The dial: u⁺ = (1 − kΔt)u + Δt Σ_i G_i(u)


def branch(u: Tensor, inner: Tensor, bend: Tensor) -> Tensor:
    """|u| φ/|φ|, φ = relu(Wu) − s·relu(−Wu): as long as u whatever the activation; u (batch, n), bend (batch,)."""
    z = torch.einsum("bij,bj->bi", inner, u)
    bent = torch.relu(z) - bend.unsqueeze(-1) * torch.relu(-z)
    return bent * (u.norm(dim=-1, keepdim=True) / bent.norm(dim=-1, keepdim=True))


def moments(u, log_odds, bend, inner, *, chance=0.5) -> Tensor:
    """E⟨u_L, u₀⟩ = a^L|u₀|² and E|u_L|² = (a² + kΔt²)^L|u₀|², a = 1 − kΔt, over all signs of branches ±G.

    inner: (batch, L, k, n, n). chance: of a plus; a fair coin makes every branch centred and two uncorrelated.
    """
    layers, operators = inner.shape[1:3]
    dt = log_odds.sigmoid().unsqueeze(-1)
    kept, size = 1 - operators * dt, u.square().sum(dim=-1)

    along, square = 0.0, 0.0
    for tosses in product(product((1.0, -1.0), repeat=operators), repeat=layers):
        weight, state = math.prod(chance if sign > 0 else 1 - chance for row in tosses for sign in row), u
        for layer, row in enumerate(tosses):
            pushes = [sign * branch(state, inner[:, layer, k], bend[:, k]) for k, sign in enumerate(row)]
            state = kept * state + dt * sum(pushes)
        along = along + weight * (state * u).sum(dim=-1)
        square = square + weight * state.square().sum(dim=-1)

    first = kept.squeeze(-1) ** layers * size
    second = (kept**2 + operators * dt**2).squeeze(-1) ** layers * size
    gap = torch.maximum((along - first).abs(), (square - second).abs())
    return gap / (EXACT * (first.abs() + second + size))


def drawn_weights(seed: int, operators: int, number: int, batch: int) -> tuple[Tensor, Tensor]:
    """W₁ and W₂ of every layer and operator, N(0, 1/n): (L, k, batch, n, n) each."""
    size = LAYERS, operators, batch, WIDTH, WIDTH
    first, second = (normal(seed, operators, name, number, size=size) for name in ("W₁", "W₂"))
    return first / math.sqrt(WIDTH), second / math.sqrt(WIDTH)


def cosine_at_width(u0: Tensor, dt: Tensor, bend: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """ρ_L of u⁺ = (1 − kΔt)u + Δt Σ_k W₂φ_k(W₁u), with W₂ Gaussian and |φ(u)| = |u|; matrices (L, k, batch, n, n)."""
    u, step = u0, dt.unsqueeze(-1)
    for first, second in zip(inner, outer, strict=True):
        pushes = [
            torch.einsum("bij,bj->bi", W, branch(u, W1, s)) for W1, W, s in zip(first, second, bend.T, strict=True)
        ]
        u = (1 - len(pushes) * step) * u + step * sum(pushes)
    return torch.cosine_similarity(u, u0, dim=-1)


@lru_cache(maxsize=2)
def chosen(seed: int, operators: int, batch: int = 12, steps: int = 15) -> tuple[Tensor, Tensor, Tensor]:
    """Input, Δt and activation, chosen by ascent to miss the law on the weights number 0."""
    start = {
        "u0": normal(seed, operators, "input", size=(batch, WIDTH)),
        "log_odds": normal(seed, operators, "step", size=(batch,)),
        "bend": normal(seed, operators, "bend", size=(batch, operators)),
    }
    inputs = {name: x.requires_grad_(True) for name, x in start.items()}
    known = drawn_weights(seed, operators, 0, batch)
    adam = torch.optim.Adam(inputs.values(), lr=0.1)
    for _ in range(steps):
        dt = inputs["log_odds"].sigmoid()
        gap = cosine_at_width(inputs["u0"], dt, inputs["bend"], *known) - laws.dial_law(dt, LAYERS, operators)
        adam.zero_grad()
        (-gap.abs().sum()).backward()
        adam.step()
    return inputs["u0"].detach(), inputs["log_odds"].detach().sigmoid(), inputs["bend"].detach()


def dial_law(seed, *, operators, law="dial", fresh=True) -> Tensor:
    """ρ_L = (a/√(a² + kΔt²))^L, a = 1 − kΔt, up to 5.5 standard deviations, for weights drawn after all the rest.

    The deviation is that of the law for the variance, not one that was measured.
    """
    u0, dt, bend = chosen(seed, operators)
    wanted = {
        "dial": laws.dial_law(dt, LAYERS, operators),
        "other_operators": laws.dial_law(dt, LAYERS, 3 - operators),
        "unit_residual": laws.dial_law(dt, LAYERS, operators, theta=0.0),
    }[law]
    allowed = 1e-12 + SIGMAS * laws.dial_spread(dt, LAYERS, WIDTH, operators)

    draws = (drawn_weights(seed, operators, number, len(u0)) for number in (range(1, FRESH + 1) if fresh else (0,)))
    return torch.cat([(cosine_at_width(u0, dt, bend, *weights) - wanted).abs() / allowed for weights in draws])


@lru_cache(maxsize=64)  # every neighbour is judged by the same draws
def drawn_variance(seed: int, dt: float, layers: int, operators: int, lengths: str) -> float:
    """n·Var(ρ_L) of 16,000 draws of width 256."""
    return VARIANCE_WIDTH * laws.dial_draws(dt, layers, operators, VARIANCE_WIDTH, DRAWS, seed, lengths).var().item()


def dial_variance(seed, *, kept, layers, operators, lengths, law="whole") -> Tensor:
    """n·Var(ρ_L) = (1 − ρ²) − Lρ²(β + ½β² − ¼κβ²) up to 5.5 standard deviations of a variance of 16,000 draws.

    kept: a = 1 − kΔt, of either sign. κ = 0 for |φ(u)| = |u|, 5/k for k ReLU networks.
    """
    dt = (1 - kept) / operators
    kappa = 5 / operators if lengths == "ReLU" else 0.0
    wanted = {
        "whole": laws.dial_variance(dt, layers, operators, kappa),
        "no ½β²": laws.dial_variance(dt, layers, operators, kappa, squares=0.0),
        "1 − ρ²": 1 - laws.dial_law(dt, layers, operators) ** 2,
        "other lengths": laws.dial_variance(dt, layers, operators, 5 / operators - kappa),
    }[law]
    found = drawn_variance(derive(seed, "variance"), dt, layers, operators, lengths)
    error = laws.dial_variance(dt, layers, operators, kappa) * math.sqrt(2 / DRAWS)
    return torch.tensor([abs(found - wanted) / (SIGMAS * error)], dtype=torch.float64)


# What the leak buys


def leak_bound(u, pushes, log_odds, *, leak=True, longest=1.0, furthest=1.0) -> Tensor:
    """|(1 − kΔt)u + Δt Σ_i G_i| ≤ |u| for |G_i| ≤ |u| and kΔt ≤ 1: the excess in units of kΔt|u|."""
    operators, size = pushes.shape[1], u.norm(dim=-1)
    share = furthest * log_odds.sigmoid()  # kΔt
    most = longest * size[:, None, None]
    shortened = pushes * most / torch.maximum(pushes.norm(dim=-1, keepdim=True), most)

    kept = (1 - share if leak else torch.ones_like(share)).unsqueeze(-1)
    after = kept * u + (share / operators).unsqueeze(-1) * shortened.sum(dim=1)
    return 1 + (after.norm(dim=-1) / size - 1) / share


def unit_residual(u, pushes, log_odds) -> Tensor:
    """|u + Δt Σ_i G_i| ≤ |u| for |G_i| ≤ |u| and kΔt ≤ 1: that a residual connection keeps the state stable."""
    return leak_bound(u, pushes, log_odds, leak=False)


LEAK = {"u": "n", "pushes": "k n", "log_odds": ""}
LEAK_SIZES = [{"n": 4, "k": k} for k in (1, 2)]

run = attack(
    "attack_master",
    {
        "budget": Statement(budget, wrong={"left_end": {"left_end": True}}),
        "sweep": Statement(sweep, wrong={"euler_on_the_sum": {"scheme": Euler}}),
        "sum_meets_sweep": Statement(
            sum_meets_sweep, wrong={"off_the_sphere": {"stretch": 1.3}, "uneven_gains": {"uneven": 0.5}}
        ),
        "uneven_gains": Statement(
            uneven_gains,
            over={"largest": (1, 2)},
            wrong={
                "two more largest": {"more": 2},
                "another order in each layer": {"changing": True},
                "start across": {"across": True},
            },
            each=True,
        ),
        "nearly_even_gains": Statement(
            nearly_even_gains,
            over={"spread": (0.0, 1.0)},
            wrong={"gains forgotten": {"flat": True}, "not projected": {"along": True}},
        ),
        "identity_path": Statement(identity_path, wrong={"one_leak": {"leaks": 1}}),
        "moments": Statement(
            moments,
            {"u": "n", "log_odds": "", "bend": "k", "inner": "layers k n n"},
            [{"n": 3, "k": k, "layers": 4 // k} for k in (1, 2)],  # sixteen tosses
            wrong={"biased_coin": {"chance": 0.6}},
            steps=10,
        ),
        "dial_law": Statement(
            dial_law,
            over={"operators": (1, 2)},
            wrong={
                "other_operators": {"law": "other_operators"},
                "unit_residual": {"law": "unit_residual"},
                "input_chosen_after_weights": {"fresh": False},
            },
        ),
        "dial_variance": Statement(
            dial_variance,
            over={"kept": (0.7, -0.9), "layers": (1, 2, 4), "operators": (1, 2), "lengths": ("exact", "ReLU")},
            wrong={name: {"law": name} for name in ("no ½β²", "1 − ρ²", "other lengths")},
            each=True,
        ),
        "leak_bound": Statement(
            leak_bound,
            LEAK,
            LEAK_SIZES,
            wrong={"longer_branches": {"longest": 1.1}, "longer_steps": {"furthest": 1.1}},
            batch=64,
            steps=60,
        ),
        "unit_residual": Statement(unit_residual, LEAK, LEAK_SIZES, printed=True, batch=64, steps=60),
    },
    exact=EXACT,
    sigmas=SIGMAS,
    width=WIDTH,
)

# Short enough for a page: what the sweep and the budget promise, and what the dial does


def _some(*names: str) -> SimpleNamespace:
    return SimpleNamespace(statements={name: run.statements[name] for name in names})


brief = _some("budget", "sweep", "sum_meets_sweep")
brief_dial = _some("identity_path", "moments", "dial_law", "leak_bound", "unit_residual")
