"""The leaky-residual dial: what the two −u of P2 eq 5 and 6 make of the step Δt.  (P2 eq 4-6, Theorem 3.4)

Euler on u' = Σ_i (G_i(u) − u), i = 1…k, is u⁺ = (1 − kΔt) u + Δt Σ_i G_i(u): k = 1 for one operator alone, k = 2 for
attention and FFN together. At random weights the cosine ρ with the input follows a law; here are the law, the stacks
that obey it, the stacks that break one hypothesis each, and small models trained at many Δt.
"""

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Task, look, trained
from pdebook.ledger.record import Result
from pdelab.datasets.base import Dataset
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.integrators import Euler
from pdelab.metrics.budget import budget
from pdelab.metrics.jacobian import jacobian
from pdelab.metrics.similarity import cosine, fidelity
from pdelab.models import Model, with_ends
from pdelab.seeds import derive, normal, stream
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

SPREAD = 1.1  # see `spread`
STEPS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # Δt of the trained models
GAIN = 2.0  # of the first matrices in `run_size`, at the Δt where the identity has weight 0


def identity_weight(equation: MasterEquation, dt: float, width: int = 4, tokens: int = 3) -> float:
    """w in u⁺ = w u + (the terms' networks): the Jacobian of one Euler step with every weight set to 0, read off.

    Raises ArithmeticError if that Jacobian is no multiple of the identity.

    >>> identity_weight(MasterEquation(Reaction(4, 8, leak=True)), dt=0.25)
    0.75
    """
    bare = copy.deepcopy(equation).double().requires_grad_(False)
    for weight in bare.parameters():
        weight.zero_()
    u = normal(0, "identity", size=(1, tokens, width))
    entries = jacobian(lambda v: Euler().step(bare, v, 0.0, dt), u).reshape(tokens * width, tokens * width)
    weight = entries.diagonal().mean().item()
    if not torch.allclose(entries, weight * torch.eye(len(entries), dtype=entries.dtype), atol=1e-12):
        raise ArithmeticError("without weights the step is no multiple of the identity: another term acts as well")
    return weight


# Laws


def law(dt: float | Tensor, layers: int, operators: int = 1, ratio: float = 1.0) -> float | Tensor:
    """ρ_L → ((1 − kΔt)/√((1 − kΔt)² + kΔt²r²))^L as the width grows, k operators with r = |G(u)|/|u|.

    >>> round(law(0.5, 6), 3), law(0.5, 6, operators=2)
    (0.125, 0.0)
    """
    kept = 1 - operators * dt
    return (kept / (kept**2 + operators * (ratio * dt) ** 2) ** 0.5) ** layers


def spread(dt: float | Tensor, layers: int, width: int, operators: int = 1) -> float | Tensor:
    """1.1(1 − ρ²)/√n with ρ of the law: at least the standard deviation of ρ_L over fresh weights, for kL ≥ 2 branches.

    To first order in 1/√n the variance is (1 − ρ²)²(1 − ρ² + cρ²)/n, where c ≤ 9/8 comes from the lengths of the
    branches and the angles between them; a small turn is known well, whatever the width.
    """
    return SPREAD * (1 - law(dt, layers, operators) ** 2) / math.sqrt(width)


def relative_step(rho: float, layers: int) -> float:
    """s = √(ρ^(−2/L) − 1), the step relative to what is kept, for which (1 + s²)^(−L/2) = ρ.

    >>> round(relative_step(0.85, 5), 2)
    0.26
    """
    return math.sqrt(rho ** (-2 / layers) - 1)


def shared_law(dt: float, layers: int) -> float:
    """ρ_L for one Gaussian matrix in all layers: Wʲu₀ are orthogonal and of one length, so binomials add up."""
    kept = 1 - dt
    square = sum((math.comb(layers, j) * kept ** (layers - j) * dt**j) ** 2 for j in range(layers + 1))
    return kept**layers / math.sqrt(square)


def uncentred_law(dt: float, layers: int, s: float) -> float:
    """ρ_L for G = √2 ReLU(Wu), fresh W: G has the mean |u|/√(πn) in every entry; s = mean(u₀)/rms(u₀).

    With e the unit vector of equal entries, x = ⟨u, e⟩, p = ⟨u, u₀⟩, N = |u| and |u₀| = 1:
    x⁺ = (1−Δt)x + ΔtN/√π,  p⁺ = (1−Δt)p + ΔtNs/√π,  N⁺² = ((1−Δt)² + Δt²)N² + 2(1−Δt)ΔtNx/√π.
    """
    kept, push = 1 - dt, dt / math.sqrt(math.pi)
    x, p, size = s, 1.0, 1.0
    for _ in range(layers):
        after = math.sqrt((kept**2 + dt**2) * size**2 + 2 * kept * push * size * x)
        x, p, size = kept * x + push * size, kept * p + push * size * s, after
    return p / size


# Stacks at random weights


def fresh_layer(width: int, operators: int, seed: int, *names: object) -> MasterEquation:
    """Att(u) − u + FFN(u) − u for one token, or its second half, with fresh weights that keep lengths on average."""
    terms = [Interaction(width, leak=True, bias=False), Reaction(width, width, leak=True, bias=False)]
    made = MasterEquation(*terms[-operators:]).double().requires_grad_(False)
    generator = stream(seed, width, operators, *names)
    for name, weight in made.named_parameters():
        spread = math.sqrt((2 if "inner" in name else 1) / width)  # ReLU throws half of the square away
        weight.normal_(std=spread, generator=generator)
    return made


def fidelities(steps: Sequence[float], layers: int, width: int, operators: int, seed: int) -> Tensor:
    """ρ_ℓ of one random token for every Δt, the same weights for all of them: (layer + 1, Δt)."""
    dt = torch.tensor(steps, dtype=torch.float64).reshape(-1, 1, 1)
    u0 = normal(seed, "input", size=(1, 1, width)).expand(len(steps), -1, -1)
    u, found = u0, [torch.ones(len(steps), dtype=torch.float64)]
    for number in range(layers):
        u = u + dt * fresh_layer(width, operators, seed, number)(u)  # Euler, each member of the batch with its own Δt
        found.append(torch.cosine_similarity(u, u0, dim=-1).squeeze(-1))
    return torch.stack(found)


def _gaussian(width: int, seed: int, *names: object) -> Tensor:
    return normal(seed, "branch", *names, size=(width, width)) / math.sqrt(width)


# G(u) of layer ℓ at width n: the hypotheses of the law, all of them or all but one
BRANCHES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "all hypotheses": lambda u, seed, layer: (
        _gaussian(len(u), seed, layer, 2) @ torch.relu(math.sqrt(2) * _gaussian(len(u), seed, layer) @ u)
    ),
    "twice as long": lambda u, seed, layer: 2 * _gaussian(len(u), seed, layer) @ u,
    "not centred": lambda u, seed, layer: torch.relu(math.sqrt(2) * _gaussian(len(u), seed, layer) @ u),
    "same weights": lambda u, seed, layer: _gaussian(len(u), seed) @ u,
    "along u": lambda u, seed, layer: math.copysign(1, normal(seed, "coin", layer, size=(1,)).item()) * u,
}


def fidelity_with(branch: str, dt: float, layers: int, width: int, seed: int, start: Tensor | None = None) -> float:
    """ρ_L of u⁺ = (1 − Δt)u + ΔtG(u) for a branch of BRANCHES, from a Gaussian u₀ unless another is given."""
    u0 = normal(seed, "start", size=(width,)) if start is None else start
    u = u0
    for layer in range(layers):
        u = (1 - dt) * u + dt * BRANCHES[branch](u, seed, layer)
    return torch.cosine_similarity(u, u0, dim=0).item()


# Trained


def task_of(scale: Scale) -> Task:
    """The digits in rows, briefly: accuracy is to be compared over Δt, not to be high."""
    task = TASKS["images"][scale]
    steps = min(200, task.settings.steps)
    return replace(
        task, settings=replace(task.settings, steps=steps, warmup=steps // 10, evaluate_every=steps, watch=(0, steps))
    )


def dial_model(dt: float, leak: bool, task: Task, data: Dataset, seed: int, gain: float = 1.0) -> Model:
    """Att + FFN by Euler on the sum with step Δt, with both −u or with none; the same first weights for every Δt.

    gain: multiplies the first matrices of every layer, and so the length of its branches; Δt and the weight of u stay.
    """

    def layer() -> MasterEquation:
        return MasterEquation(
            Interaction(task.width, task.heads, leak=leak), Reaction(task.width, task.hidden, leak=leak)
        )

    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derive(seed, "dial"))
        stack = Layered([layer() for _ in range(task.depth)], dt)
    with torch.no_grad():
        for weights in stack.parameters():
            weights.mul_(gain if weights.ndim > 1 else 1.0)
    core = Model(stack, steps=task.depth, dt=dt, integrator=Euler())
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(seed, "dial", "ends"))


def law_with_lengths(model: Model, run: Trajectory) -> float:
    """Π_ℓ w/√(w² + Δt²(r_A² + r_R²)), r the measured |Att|/|u| and |FFN|/|u| of layer ℓ, w the identity's weight."""
    parts = budget(model.equation, run, Euler(), leak=True)
    kept = 1 - 2 * model.dt if "−u" in parts.symbols else 1.0
    sizes = parts.size[:, [parts.symbols.index(s) for s in "AR"]].square().sum(dim=1)
    before = torch.stack([_mean_square(u) for u in run.states[:-1]])
    return torch.prod(kept / (kept**2 + sizes / before).sqrt()).item()


def _mean_square(u: Field) -> Tensor:
    return u.square().sum(dim=-1).mean()


@experiment("dial", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Models trained at nine Δt, with both −u and with none: accuracy, gradient, fidelity (P2 eq 4-6).

    Every figure is a list over Δt. fidelity: P2 thm 3.4's ρ of the last state. gradient: the median over training of
    the norm for all weights; untrained_gradient: that of the first step. untrained_law: the dial law, measured lengths.
    A model that diverged has the figure diverged 1 and no others: NaN.
    """
    task = task_of(scale)
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))
    figures: dict[str, list[float]] = {}
    controls: dict[str, list[float]] = {}
    for name, leak in (("leaky", True), ("residual", False)):
        for dt in STEPS:
            model = dial_model(dt, leak, task, data, seed)
            before = look(model, probe)
            at_start = law_with_lengths(model, before)
            record = trained(model, data, task.settings, derive(seed, "dial", "training"), work, f"{name} {dt:g}")
            after = look(model, probe) if record.status != Status.DIVERGED else None
            lost = after is None or after.status is Status.DIVERGED
            found = {
                "accuracy": math.nan if lost else record.accuracy,
                "diverged": int(lost),
                "fidelity": math.nan if lost else fidelity(after, over="state")[-1].item(),
                "gradient": math.nan if lost else statistics.median(record.gradient_norms),
            }
            for key, value in found.items():
                figures.setdefault(f"{name}/{key}", []).append(value)
            start = {
                "untrained_fidelity": fidelity(before, over="state")[-1].item(),
                "untrained_law": at_start,
                "untrained_gradient": record.gradient_norms[0] if record.gradient_norms else math.nan,
                "other_input": cosine(before.final, before.states[0].roll(1, dims=0), over="state").item(),
            }
            for key, value in start.items():
                controls.setdefault(f"{name}/{key}", []).append(value)
    return Result(
        experiment="dial",
        configuration=task.configuration() | {"steps": list(STEPS)},
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )


@experiment("dial_size", Scale.SMOKE, Scale.BOOK)
def run_size(scale: Scale, seed: int, work: Workplace) -> Result:
    """The models of `run` at Δt = ½, where the identity has weight 0, with the first matrices doubled (P2 eq 4-6).

    leaky: both −u; residual: none. size: the length of the last state over that of the first, before training,
    also at gain 1.
    """
    task, dt = task_of(scale), 0.5
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))

    def size(model: Model) -> float:
        states = look(model, probe).states
        return (_mean_square(states[-1]) / _mean_square(states[0])).sqrt().item()

    figures, controls = {}, {}
    for name, leak in (("leaky", True), ("residual", False)):
        model = dial_model(dt, leak, task, data, seed, GAIN)
        controls[f"{name}/size"] = size(model)
        controls[f"{name}/size_at_gain_1"] = size(dial_model(dt, leak, task, data, seed))
        record = trained(model, data, task.settings, derive(seed, "dial", "training"), work, f"{name} doubled")
        figures[f"{name}/diverged"] = int(record.status == Status.DIVERGED)
        figures[f"{name}/accuracy"] = math.nan if record.status == Status.DIVERGED else record.accuracy
    return Result(
        experiment="dial_size",
        configuration=task.configuration() | {"dt": dt, "first_gain": GAIN},
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )
