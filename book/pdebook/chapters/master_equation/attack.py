"""An adversary against the statements of the chapter on the master equation.  (P2 eq 4-6)

Exact statements (the budget, the sweep, the identity path, the moments of the dial) are attacked to rounding: the ratio
is the gap over a tolerance of rounding. Their control is a wrong law that the same search must break. The bound on
leaky steps is an inequality, with the usual control. That sum and sweep meet is an order in Δt, searched at random; a
start off the sphere is its control. The dial law itself is a limit: the adversary chooses input, step
and activation to make the gap large, then fresh weights of finite width decide, with the spread that width allows.
"""

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from pdebook.chapters.master_equation.budgets import sum_against_sweep
from pdebook.chapters.master_equation.dial import SPREAD, law, spread
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.equation import MasterEquation
from pdelab.integrators import Euler, LieEuler
from pdelab.metrics.budget import budget
from pdelab.metrics.stability import energy
from pdelab.models import from_torch
from pdelab.seeds import derive, normal, stream
from pdelab.solver import solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate, SpatialStabilization

EXACT = 1e-13  # of a sum of some hundred products in double precision, relative to its largest part
HALF_ORDER = 0.5  # (1/4)^½: what four times the layers leave of an error of order ½; order 1 leaves a quarter
SIGMAS = 5.5  # the worst of some thousand normal draws stays below, but for one search in a thousand


def random_equation(seed: int, *names: object) -> MasterEquation:
    """Terms of every kind in a random order, with weights of random size."""
    sizes = 10 ** (2 * torch.rand(4, generator=stream(seed, "sizes", *names)) - 1)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derive(seed, "terms", *names))
        terms = [
            Interaction(4, 2, leak=True, strength=sizes[0].item()),
            Reaction(4, 8, leak=True),
            Diffusion(0.01 * sizes[1].item()),
            SpatialStabilization(sizes[2].item()),
            LayerNormRate(4, sizes[3].item()),
        ]
        order = torch.randperm(len(terms), generator=stream(seed, "order", *names)).tolist()
    return MasterEquation(*(terms[k] for k in order)).double().requires_grad_(False)


def attack_budget(seed: int, attempts: int = 40) -> tuple[Tensor, Tensor]:
    """|Σ shares − (E⁺ − E)| over rounding, both schemes, with padding; and the same for the budget ⟨u, δ⟩."""
    gaps, wrong = [], []
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    for number in range(attempts):
        equation, scheme = random_equation(seed, number), (Euler(), LieEuler())[number % 2]
        u0 = 10 ** (number % 5 - 2) * normal(seed, "state", number, size=(2, 6, 4))
        run = solve(equation, u0, steps=3, dt=0.1, integrator=scheme, mask=mask)
        change = torch.stack([energy(u, mask) for u in run.states]).diff()
        found = budget(equation, run, scheme, centre=("stage", "step")[number // 2 % 2])
        scale = EXACT * (found.energy.abs().sum(dim=1) + energy(run.states[0], mask))
        gaps.append(((found.energy.sum(dim=1) - change).abs() / scale).max())
        left = [(u * (v - u)).sum(dim=-1)[mask] for u, v in zip(run.states, run.states[1:], strict=False)]
        per_token = torch.where(mask, 1 / mask.sum(dim=1, keepdim=True), 0)[mask] / 2
        wrong.append(((torch.stack([(x * per_token).sum() for x in left]) - change).abs() / scale).max())
    return torch.stack(gaps), torch.stack(wrong)


def random_encoder(seed: int, number: int) -> nn.TransformerEncoder:
    """One post-LayerNorm layer of torch with gains and biases drawn at random."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derive(seed, "encoder", number))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=False)
        for weight in layer.parameters():
            nn.init.normal_(weight, std=0.5)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return encoder.double().requires_grad_(False)


def attack_sweep(seed: int, attempts: int = 20, steps: int = 20) -> tuple[Tensor, Tensor]:
    """max|sweep A, S, R, S − torch's layer| over rounding, the input climbing; and the same for Euler on the sum."""
    gaps, sums = [], []
    for number in range(attempts):
        encoder = random_encoder(seed, number)
        ours = from_torch(encoder).equation
        u0 = normal(seed, "tokens", number, size=(1, 5, 8))

        def gap(u: Tensor, scheme=None, encoder=encoder, ours=ours) -> Tensor:
            theirs = encoder(u)
            return ((scheme.step(ours, u, 0.0, 1.0) - theirs).abs().amax() / theirs.abs().amax()).reshape(1)

        for scheme, found in ((LieEuler(), gaps), (Euler(), sums)):
            found.append(ascend(lambda u, s=scheme, g=gap: g(u, s), u0, steps=steps).max() / EXACT)
    return torch.stack(gaps), torch.stack(sums)


def attack_sum(seed: int, attempts: int = 6, layers: int = 8) -> tuple[Tensor, Tensor]:
    """‖sum − sweep‖ at 4L layers over that at L, divided by ½: at most 1; and the same from a start off the sphere.

    Random weights and tokens, no ascent: the statement is about an order, and an order has no worst case to climb to.
    """
    found = []
    for stretch in (1.0, 1.3):
        ends = [
            sum_against_sweep(derive(seed, "sum", n), (layers, 4 * layers), stretch=stretch) for n in range(attempts)
        ]
        found.append(torch.tensor([fine / coarse for coarse, fine in ends], dtype=torch.float64) / HALF_ORDER)
    return found[0], found[1]


def attack_identity_path(seed: int, attempts: int = 40, layers: int = 8) -> tuple[Tensor, Tensor]:
    """|u_L − (1−2Δt)^L u₀ − Δt Σ(1−2Δt)^{L−1−ℓ}G_ℓ| over rounding; and with (1−Δt) for (1−2Δt)."""
    gaps, wrong = [], []
    for number in range(attempts):
        dt = torch.rand(1, generator=stream(seed, "dt", number), dtype=torch.float64).item()
        u0 = normal(seed, "u", number, size=(1, 4, 4))
        blocks = [random_equation(seed, number, n) for n in range(layers)]
        u, forced = u0, []
        for block in blocks:
            forced.append(block(u) + 2 * u)  # G: what is left when the two −u are taken out
            u = u + dt * block(u)
        for kept, found in ((1 - 2 * dt, gaps), (1 - dt, wrong)):
            path = [kept**layers * u0, *(dt * kept ** (layers - 1 - n) * g for n, g in enumerate(forced))]
            scale = EXACT * sum(p.abs().amax() for p in path)
            found.append((sum(path) - u).abs().amax() / scale)
    return torch.stack(gaps), torch.stack(wrong)


# The dial


def _branch(u: Tensor, inner: Tensor, bend: Tensor) -> Tensor:
    """|u| φ/|φ|, φ = relu(Wu) − s·relu(−Wu): as long as u whatever the activation; u (batch, n)."""
    z = torch.einsum("bij,bj->bi", inner, u)
    bent = torch.relu(z) - bend * torch.relu(-z)
    return bent * (u.norm(dim=-1, keepdim=True) / bent.norm(dim=-1, keepdim=True))


def moments(u0: Tensor, dt: Tensor, inner: Tensor, bend: Tensor, chance: float = 0.5) -> tuple[Tensor, Tensor]:
    """E⟨u_L, u₀⟩ and E|u_L|² over all signs of ±G: exact. u0 (batch, n), dt (batch, 1), inner (L, k, batch, n, n).

    chance: of a plus. ½ makes every branch centred and the two branches of a layer uncorrelated.
    """
    layers, operators = inner.shape[:2]
    along, square = 0, 0
    for signs in product((1.0, -1.0), repeat=layers * operators):
        u, weight = u0, math.prod(chance if s > 0 else 1 - chance for s in signs)
        for number in range(layers):
            pushes = [
                signs[number * operators + k] * _branch(u, inner[number, k], bend[:, k : k + 1])
                for k in range(operators)
            ]
            u = (1 - operators * dt) * u + dt * sum(pushes)
        along = along + weight * (u * u0).sum(dim=-1)
        square = square + weight * (u * u).sum(dim=-1)
    return along, square


def attack_moments(seed: int, operators: int, batch: int = 8, steps: int = 5) -> tuple[Tensor, Tensor]:
    """|E − law| over rounding for both moments, input, step and activation climbing; and with a coin of 0.6."""
    layers, width = 4 // operators, 3
    inner = normal(seed, "inner", operators, size=(layers, operators, batch, width, width))
    start = (
        normal(seed, "u", operators, size=(batch, width)),
        normal(seed, "dt", operators, size=(batch, 1)),
        normal(seed, "bend", operators, size=(batch, operators)),
    )

    def gap(chance: float) -> Callable[..., Tensor]:
        def score(u0: Tensor, free: Tensor, bend: Tensor) -> Tensor:
            dt = torch.sigmoid(free)
            kept, size = 1 - operators * dt, (u0 * u0).sum(dim=-1)
            along, square = moments(u0, dt, inner, bend, chance)
            first = kept.squeeze(-1) ** layers * size
            second = (kept**2 + operators * dt**2).squeeze(-1) ** layers * size
            return torch.maximum((along - first).abs(), (square - second).abs()) / (
                EXACT * (first.abs() + second + size)
            )

        return score

    return tuple(ascend(gap(chance), *start, steps=steps) for chance in (0.5, 0.6))


def cosine_at_width(u0: Tensor, dt: Tensor, bend: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """ρ_L of u⁺ = (1 − kΔt)u + Δt Σ_k W₂φ_k(W₁u), with W₂ Gaussian and |φ(u)| = |u|; matrices (L, k, batch, n, n)."""
    u, operators = u0, inner.shape[1]
    for first, second in zip(inner, outer, strict=True):
        pushes = [
            torch.einsum("bij,bj->bi", second[k], _branch(u, first[k], bend[:, k : k + 1])) for k in range(operators)
        ]
        u = (1 - operators * dt) * u + dt * sum(pushes)
    return torch.cosine_similarity(u, u0, dim=-1)


def attack_dial(
    seed: int, operators: int, *, width: int = 128, batch: int = 12, fresh: int = 12, steps: int = 15, layers: int = 4
) -> dict[str, Tensor]:
    """Gap to the law over what width n allows, on weights drawn after the adversary chose (`law`).

    Beside it: the same gap to two wrong laws, that of the other number of operators and that of a unit residual
    (`other`, `unit`), and the gap on the weights that the adversary saw when it chose the input (`seen`).
    """

    def allowed(dt: Tensor) -> Tensor:
        return 1e-12 + SIGMAS * spread(dt.squeeze(-1), layers, width, operators)

    def draw(number: int) -> tuple[Tensor, Tensor]:
        size = (layers, operators, batch, width, width)
        return tuple(normal(seed, operators, name, number, size=size) / math.sqrt(width) for name in ("W₁", "W₂"))

    def laws(dt: Tensor, k: int) -> Tensor:
        return law(dt.squeeze(-1), layers, k)

    start = (
        normal(seed, operators, "input", size=(batch, width)),
        normal(seed, operators, "step", size=(batch, 1)),
        normal(seed, operators, "bend", size=(batch, operators)),
    )
    known = draw(0)
    reached = [x.clone().requires_grad_(True) for x in start]
    adam = torch.optim.Adam(reached, lr=0.1)
    for _ in range(steps):
        u0, free, bend = reached
        dt = torch.sigmoid(free)
        gap = (cosine_at_width(u0, dt, bend, *known) - laws(dt, operators)).abs()
        adam.zero_grad()
        (-gap.sum()).backward()
        adam.step()
    u0, free, bend = (x.detach() for x in reached)
    dt = torch.sigmoid(free)
    seen = (cosine_at_width(u0, dt, bend, *known) - laws(dt, operators)).abs() / allowed(dt)
    found: dict[str, list[Tensor]] = {"law": [], "other": [], "unit": []}
    unit = (1 + operators * dt.squeeze(-1) ** 2) ** (-layers / 2)
    for number in range(1, fresh + 1):
        rho = cosine_at_width(u0, dt, bend, *draw(number))
        for name, wanted in (("law", laws(dt, operators)), ("other", laws(dt, 3 - operators)), ("unit", unit)):
            found[name].append((rho - wanted).abs() / allowed(dt))
    return {name: torch.cat(values) for name, values in found.items()} | {"seen": seen}


def attack_leak(seed: int, operators: int, batch: int = 64, steps: int = 60) -> tuple[Tensor, Tensor]:
    """|u⁺|/|u| for branches no longer than u and kΔt ≤ 1, with the leaks: at most 1; and the same for unit residual."""
    u = normal(seed, "u", operators, size=(batch, 4))
    pushes = normal(seed, "G", operators, size=(batch, operators, 4))
    free = normal(seed, "dt", operators, size=(batch, 1))

    def growth(kept: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def score(u: Tensor, pushes: Tensor, free: Tensor) -> Tensor:
            dt = torch.sigmoid(free) / operators
            length = pushes.norm(dim=-1, keepdim=True)
            scaled = pushes * u.norm(dim=-1)[:, None, None] / torch.maximum(length, u.norm(dim=-1)[:, None, None])
            return (kept(dt) * u + dt * scaled.sum(dim=1)).norm(dim=-1) / u.norm(dim=-1)

        return score

    start = u, pushes, free
    return (
        ascend(growth(lambda dt: 1 - operators * dt), *start, steps=steps),
        ascend(growth(torch.ones_like), *start, steps=steps),
    )


@experiment("attack_master", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the budget, sweep, sum, identity path, moments, leak bound and dial law (P2 eq 4-6).

    controls: how often the same search broke a wrong law in place of each exact one.
    """
    shares, left_end = attack_budget(seed)
    sweep, added = attack_sweep(seed)
    meeting, off_sphere = attack_sum(seed)
    path, one_leak = attack_identity_path(seed)
    moment = [attack_moments(seed, k) for k in (1, 2)]
    dials = [attack_dial(seed, k) for k in (1, 2)]
    leaks = [attack_leak(seed, k) for k in (1, 2)]

    def broken(found: Tensor) -> int:
        return int((found > 1).sum())

    return attack_result(
        "attack_master",
        scale,
        seed,
        corrected={
            "budget": shares,
            "sweep": sweep,
            "sum_meets_sweep": meeting,
            "identity_path": path,
            "moments": torch.cat([right for right, _ in moment]),
            "dial_law": torch.cat([d["law"] for d in dials]),
            "leak_bound": torch.cat([right for right, _ in leaks]),
        },
        # a unit residual with a branch no longer than the state, chosen by the adversary
        printed={"unit_residual_grows": torch.cat([grown for _, grown in leaks]) > 1 + 1e-6},
        controls={
            "left_end_budget": broken(left_end),
            "euler_on_the_sum": broken(added),
            "sum_from_off_the_sphere": broken(off_sphere),
            "path_with_one_leak": broken(one_leak),
            "biased_coin": broken(torch.cat([wrong for _, wrong in moment])),
            "law_of_other_operators": broken(torch.cat([d["other"] for d in dials])),
            "law_of_unit_residual": broken(torch.cat([d["unit"] for d in dials])),
            "input_chosen_after_weights": broken(torch.cat([d["seen"] for d in dials])),
        },
        configuration={"exact": EXACT, "spread": SPREAD, "sigmas": SIGMAS, "width": 128},
    )
