"""Who moves the state of a trained model? Its motion and its energy, split between the terms of the master equation.

Two models on the digits: `residual_norm`, a post-LayerNorm Transformer (a sweep through A, S, R, S), and `printed`,
Euler on the sum of P2 eq 4-9. Each beside itself before training. The appendix to P2 Theorem 3.5 expects A to dominate
first, then R, then S: the budget is where one would see it.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pdebook.evidence.experiment import HERE, Scale, Workplace, experiment
from pdebook.evidence.stacks import (
    DEPTHS,
    TIME,
    WIDTH,
    distance,
    layer,
    on_sphere,
    random_tokens,
    smooth_path,
)
from pdebook.evidence.trained import TASKS, Measured, Task, build, fit, look
from pdebook.ledger.record import Figures, Result
from pdelab.equation import Layered, MasterEquation
from pdelab.integrators import Euler, LieEuler
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import Budget, budget
from pdelab.metrics.stability import energy
from pdelab.models import Model
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.stabilization import LayerNormRate
from pdelab.training import Training

KINDS = ("residual_norm", "printed")
PHASES = ("A", "R", "S")  # the order in which P2 expects the terms to dominate


def of_model(model: Model, run: Trajectory, centre: str = "stage") -> Budget:
    """The budget of a run of the model, the −u of P2 eq 5 and 6 counted apart."""
    return budget(model.equation, run, model.integrator, centre=centre, leak=True)


def task_of(scale: Scale, steps: int | None = None) -> Task:
    """The digits in rows; fewer training steps where a chapter trains while you wait."""
    task = TASKS["images"][scale]
    if steps is None:
        return task
    return replace(
        task, settings=replace(task.settings, steps=steps, warmup=steps // 10, evaluate_every=steps, watch=(0, steps))
    )


def pair(
    kind: str, task: Task, seed: int, work: Workplace = HERE
) -> tuple[dict[str, tuple[Budget, Trajectory]], Training]:
    """The model trained and as it began, each as (budget, run) on the same test examples; and the training.

    A training that diverged leaves nothing to split: no entry is found.
    """
    data = task.load(seed)
    model, record = fit(kind, task, data, seed, work)
    probe, found = data.test.take(slice(0, task.probe)), {}
    if record.status == Status.DIVERGED:
        return found, record
    for name, one in (("trained", model), ("untrained", build(kind, task, data, seed))):
        run = look(one, probe)
        found[name] = of_model(one, run), run
    return found, record


def figures_of(parts: Budget, run: Trajectory) -> Figures:
    """One value per layer: each symbol's energy, share of the motion, size, and whether it is the largest (1 or 0)."""
    found: Figures = {"energy": per_layer(energy, run).tolist()}
    gap = (parts.energy.sum(dim=1) - per_layer(energy, run).diff()).abs().max()
    found["gap"] = (gap / per_layer(energy, run).max()).item()
    for number, symbol in enumerate(parts.symbols):
        found[f"energy {symbol}"] = parts.energy[:, number].tolist()
        found[f"share {symbol}"] = parts.shares()[:, number].tolist()
        found[f"size {symbol}"] = parts.size[:, number].tolist()
        found[f"leads {symbol}"] = [int(symbol == leader) for leader in parts.leaders()]
    return found


def in_phases(leaders: Sequence[str]) -> bool:
    """Do A, R and S lead in this order, each at least once, and nothing else?

    >>> in_phases(["A", "A", "R", "S"]), in_phases(["A", "R", "A", "S"]), in_phases(["A", "R"])
    (True, False, False)
    """
    return tuple(dict.fromkeys(leaders)) == PHASES and list(leaders) == sorted(leaders, key="ARS".find)


def sum_against_sweep(
    seed: int, depths: Sequence[int] = DEPTHS, *, uneven: float = 0.0, settled: int = 0, stretch: float = 1.0
) -> list[float]:
    """‖Euler on A + S + R + S minus the sweep A, S, R, S‖/‖u₀‖ at t = 1, S = (LN(u) − u)/Δt, for each depth.

    The weights are smooth in depth; ε = 0, b = 0, gains from 1 − uneven to 1 + uneven. u₀ lies on the sphere, is taken
    through LN `settled` times, which brings it near a fixed point of LN, and is stretched.
    """
    path, found = smooth_path(seed), []
    gain = torch.linspace(1 - uneven, 1 + uneven, WIDTH, dtype=torch.float64)
    u0 = on_sphere(random_tokens(seed))
    for _ in range(settled):
        u0 = gain * on_sphere(u0)
    u0 = stretch * u0
    for layers in depths:
        dt = TIME / layers
        norm = LayerNormRate(WIDTH, 1 / dt, 0.0).double().requires_grad_(False)
        norm.norm.weight.copy_(gain)
        blocks = [layer(path(n / layers)).terms for n in range(layers)]
        made = Layered([MasterEquation(a, norm, r, norm) for a, r in blocks], dt)
        ends = [solve(made, u0, steps=layers, dt=dt, integrator=scheme()).final for scheme in (Euler, LieEuler)]
        found.append(distance(*ends, u0))
    return found


@experiment("budgets", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Motion and energy of a trained Transformer and of P2's simulator, split between the terms (P2 eq 4, thm 3.5).

    MODEL/energy T, share T, size T and leads T: one value a layer for each term T, as `metrics.budget` defines them.
    gap: the largest |sum of the shares − change of energy|, relative to the energy.
    """
    task = task_of(scale)
    found = Measured()
    for kind in KINDS:
        both, record = pair(kind, task, seed, work)
        if not both or any(path.status is Status.DIVERGED for _, path in both.values()):
            found.diverged[kind] = record.stopped_at or record.step
            continue
        found.made_by(record.commits)
        found.figures |= {f"{kind}/accuracy": record.accuracy}
        found.figures |= {f"{kind}/{key}": value for key, value in figures_of(*both["trained"]).items()}
        found.figures |= {f"{kind}/phases": int(in_phases(both["trained"][0].leaders()))}
        found.controls |= {f"{kind}/untrained {key}": value for key, value in figures_of(*both["untrained"]).items()}
        found.controls |= {f"{kind}/untrained phases": int(in_phases(both["untrained"][0].leaders()))}
    return found.result("budgets", task, scale, seed)
