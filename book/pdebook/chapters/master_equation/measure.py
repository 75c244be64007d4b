"""Who moves the state of a trained model, and does the dial Δt matter for learning?

budgets: motion and energy of two models on the digits, split between the terms of the master equation, each beside
itself before training. `residual_norm` is a post-LayerNorm Transformer (a sweep through A, S, R, S), `printed` is Euler
on the sum of P2 eq 4-9. The appendix to P2 Theorem 3.5 expects A to dominate first, then R, then S: the budget is where
one would see it.

dial, dial_size: small models trained at many Δt, with both −u of P2 eq 5 and 6 and with none.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pdebook.evidence.experiment import HERE, Scale, Workplace, experiment
from pdebook.evidence.systems import amplified
from pdebook.evidence.trained import TASKS, Measured, Task, build, fit, look, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.integrators import Euler
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import Budget, budget
from pdelab.metrics.similarity import cosine, fidelity
from pdelab.metrics.stability import energy
from pdelab.models import Model, with_ends
from pdelab.seeds import derive, seeded
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.training import Training


def task_of(scale: Scale, steps: int | None = None) -> Task:
    """The digits in rows, with at most so many training steps if given, evaluated at their end alone."""
    task = TASKS["images"][scale]
    if steps is None:
        return task
    steps = min(steps, task.settings.steps)
    brief = {"steps": steps, "warmup": steps // 10, "evaluate_every": steps, "watch": (0, steps)}
    return replace(task, settings=replace(task.settings, **brief))


# Budgets

KINDS = ("residual_norm", "printed")
PHASES = ("A", "R", "S")  # the order in which P2 expects the terms to dominate


def pair(
    kind: str, task: Task, seed: int, work: Workplace = HERE
) -> tuple[dict[str, tuple[Budget, Trajectory]], Training]:
    """The model trained and as it began, each as (budget, run) on the same test examples; and the training.

    The −u of P2 eq 5 and 6 count apart. A training that diverged leaves nothing to split: the dictionary is empty.
    """
    data = task.load(seed)
    model, record = fit(kind, task, data, seed, work)
    if record.status == Status.DIVERGED:
        return {}, record

    probe, both = data.test.take(slice(0, task.probe)), {}
    for name, one in (("trained", model), ("untrained", build(kind, task, data, seed))):
        run = look(one, probe)
        both[name] = budget(one.equation, run, one.integrator, centre="stage", leak=True), run
    return both, record


def figures_of(parts: Budget, run: Trajectory) -> Figures:
    """One value per layer: each symbol's energy, share of the motion, size, and whether it is the largest (1 or 0)."""
    energies = per_layer(energy, run)
    gap = (parts.energy.sum(dim=1) - energies.diff()).abs().max()
    figures: Figures = {"energy": energies.tolist(), "gap": (gap / energies.max()).item()}
    for number, symbol in enumerate(parts.symbols):
        figures[f"energy {symbol}"] = parts.energy[:, number].tolist()
        figures[f"share {symbol}"] = parts.shares()[:, number].tolist()
        figures[f"size {symbol}"] = parts.size[:, number].tolist()
        figures[f"leads {symbol}"] = [int(symbol == leader) for leader in parts.leaders()]
    return figures | {"phases": int(in_phases(parts.leaders()))}


def in_phases(leaders: Sequence[str]) -> bool:
    """Do A, R and S lead in this order, each at least once, and nothing else?

    >>> in_phases(["A", "A", "R", "S"]), in_phases(["A", "R", "A", "S"]), in_phases(["A", "R"])
    (True, False, False)
    """
    return tuple(dict.fromkeys(leaders)) == PHASES and list(leaders) == sorted(leaders, key="ARS".find)


@experiment("budgets", Scale.SMOKE, Scale.BOOK)
def run_budgets(scale: Scale, seed: int, work: Workplace) -> Result:
    """Motion and energy of a trained Transformer and of P2's simulator, split between the terms (P2 eq 4, thm 3.5).

    MODEL/energy T, share T, size T and leads T: one value a layer for each term T, as `metrics.budget` defines them.
    gap: the largest |sum of the shares − change of energy|, relative to the energy.
    """
    task = task_of(scale)
    measured = Measured()
    for kind in KINDS:
        both, record = pair(kind, task, seed, work)
        if not both or any(path.status is Status.DIVERGED for _, path in both.values()):
            measured.diverged[kind] = record.stopped_at or record.step
            continue
        measured.made_by(record.commits)
        measured.figures |= named(kind, {"accuracy": record.accuracy} | figures_of(*both["trained"]))
        before = {f"untrained {name}": value for name, value in figures_of(*both["untrained"]).items()}
        measured.controls |= named(kind, before)
    return measured.result("budgets", task, scale, seed)


# The dial

STEPS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # Δt of the trained models
BRIEF = 200  # training steps: accuracy is to be compared over Δt, not to be high
GAIN = 2.0  # of the first matrices in `run_size`, at the Δt where the identity has weight 0
LEAKS = {"leaky": True, "residual": False}  # both −u, or none


def dial_model(dt: float, leak: bool, task: Task, data: Dataset, seed: int, gain: float = 1.0) -> Model:
    """Att + FFN by Euler on the sum with step Δt, with both −u or with none; the same first weights for every Δt.

    gain: multiplies the first matrices of every layer, and so the length of its branches; Δt and the weight of u stay.
    """

    def layer() -> MasterEquation:
        return MasterEquation(
            Interaction(task.width, task.heads, leak=leak), Reaction(task.width, task.hidden, leak=leak)
        )

    stack = seeded(lambda: Layered([layer() for _ in range(task.depth)], dt), derive(seed, "dial"))
    core = Model(amplified(stack, gain), steps=task.depth, dt=dt, integrator=Euler())
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
    """(1/N) Σ_i |u_i|², averaged over the batch."""
    return u.square().sum(dim=-1).mean()


@experiment("dial", Scale.SMOKE, Scale.BOOK)
def run_dial(scale: Scale, seed: int, work: Workplace) -> Result:
    """Models trained at nine Δt, with both −u and with none: accuracy, gradient, fidelity (P2 eq 4-6).

    Every figure is a list over Δt. fidelity: P2 thm 3.4's ρ of the last state. gradient: the median over training of
    the norm for all weights; untrained_gradient: that of the first step. untrained_law: the dial law, measured lengths.
    A model that diverged has the figure diverged 1 and no others: NaN.
    """
    task = task_of(scale, BRIEF)
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))

    figures: dict[str, list[float]] = {}
    controls: dict[str, list[float]] = {}
    for name, leak in LEAKS.items():
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
            start = {
                "untrained_fidelity": fidelity(before, over="state")[-1].item(),
                "untrained_law": at_start,
                "untrained_gradient": record.gradient_norms[0] if record.gradient_norms else math.nan,
                "other_input": cosine(before.final, before.states[0].roll(1, dims=0), over="state").item(),
            }
            for table, values in ((figures, found), (controls, start)):
                for key, value in values.items():
                    table.setdefault(Key(name, key), []).append(value)

    return Result(
        experiment="dial",
        configuration=task.configuration() | {"steps": list(STEPS)},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )


@experiment("dial_size", Scale.SMOKE, Scale.BOOK)
def run_size(scale: Scale, seed: int, work: Workplace) -> Result:
    """The models of `dial` at Δt = ½, where the identity has weight 0, with the first matrices doubled (P2 eq 4-6).

    leaky: both −u; residual: none. size: the length of the last state over that of the first, before training,
    also at gain 1.
    """
    task, dt = task_of(scale, BRIEF), 0.5
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))

    def size(model: Model) -> float:
        states = look(model, probe).states
        return (_mean_square(states[-1]) / _mean_square(states[0])).sqrt().item()

    figures, controls = {}, {}
    for name, leak in LEAKS.items():
        model = dial_model(dt, leak, task, data, seed, GAIN)
        controls[Key(name, "size")] = size(model)
        controls[Key(name, "size_at_gain_1")] = size(dial_model(dt, leak, task, data, seed))
        record = trained(model, data, task.settings, derive(seed, "dial", "training"), work, f"{name} doubled")
        lost = record.status == Status.DIVERGED
        figures[Key(name, "diverged")] = int(lost)
        figures[Key(name, "accuracy")] = math.nan if lost else record.accuracy

    return Result(
        experiment="dial_size",
        configuration=task.configuration() | {"dt": dt, "first_gain": GAIN},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )
