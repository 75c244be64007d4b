"""Is what residual connections and LayerNorm do independent of the scheme and of the step?  (review, next checks, 1)

The field is u' = A[u] + R[u] + D∂²u + (LN(u) − u) on [0, T], the same weights at all times. Without residual
connections both −u of P2 eq 5 and 6 are there; in a sweep with Δt = 1 they leave u ← Att(u), u ← FFN(u). Without
LayerNorm the last term is not.

`field-VARIANT/…`: one field, trained with both by Euler's method with Δt = 1/2, then solved anew by every scheme with
every step, one value a cell, as it is and with one stabiliser taken away. The control of that is a random term, as long
as the stabiliser at every token: |u_i| n_i in place of each u_i, or |LN(u_i) − u_i| n_i in place of LayerNorm.
The two −u, LayerNorm's and the diffusion together are a rate of up to 3.5, for which explicit steps must be below 4/7:
cells with Δt = 1 are kept apart, as `whole_…`.

`trained-VARIANT/…`: trained anew under each scheme of RETRAINED, with and without; `again` has both stabilisers and
weights and batches of its own.

`residual/more_drift`, `norm/more_size`, `norm/more_gradient`: what there is more of without it, the cells of the field
first, then those that were trained anew; `instead_…`: the same differences of the controls.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from pdebook.chapters.beyond.review import EqualNorm, Skipless, directions
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, look, named, trained, training_figures
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.equation import MasterEquation
from pdelab.evaluation import PROBE, answer_loss
from pdelab.integrators import RK4, Euler, Heun, ImplicitDiffusion, Integrator, LieEuler
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import state_gradients, state_rms
from pdelab.models import Model, with_ends
from pdelab.seeds import derive, seeded
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate

SCHEMES: dict[str, type[Integrator]] = {
    "Euler": Euler,
    "Heun": Heun,
    "RK4": RK4,
    "sweep": LieEuler,
    "implicit": ImplicitDiffusion,
}
STEPS = {Scale.SMOKE: (1 / 2,), Scale.BOOK: (1 / 2, 1 / 4, 1 / 8)}  # below the bound of the explicit schemes
WHOLE = (1.0,)  # and above
RETRAINED = {
    Scale.SMOKE: (("Euler", 1 / 2), ("implicit", 1 / 2)),
    Scale.BOOK: (*((name, 1 / 2) for name in SCHEMES), ("Euler", 1 / 4)),
}
VARIANTS = ("both", "no_residual", "no_norm", "random_residual", "random_norm")
DIFFUSION = 2e-3  # with 8 tokens D·max|λ| = 1/2: it is felt
TIME = 3.0
JOINED = {  # figure: (without what, figure of the field, figure of the networks that were trained anew)
    Key("residual", "more_drift"): ("residual", "drift", "drift"),
    Key("norm", "more_size"): ("norm", "size", "size"),
    Key("norm", "more_gradient"): ("norm", "gradient", "training_gradient"),
}
TRAINING = {Scale.SMOKE: 20, Scale.BOOK: 120}
DEFINITIONS = {
    "drift": "1 less the cosine of a token's last state with its input, mean over tokens",
    "size": "log10 of the root mean square of the last state over that of the input",
    "gradient": "log10 of the norm of the gradient of the loss with respect to the input over that to the last state",
    "training_gradient": "log10 of the largest norm of the gradient of all weights during the training",
    "whole_...": "the same with steps of 1",
}


def parts(task: Task, seed: int) -> nn.ModuleDict:
    """A, R, D and S with weights of this seed."""

    def build() -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "A": Interaction(task.width, task.heads),
                "R": Reaction(task.width, task.hidden, activation=task.activation),
                "D": Diffusion(DIFFUSION),
                "S": LayerNormRate(task.width),
            }
        )

    return seeded(build, seed)


def equation(variant: str, made: nn.ModuleDict, n: torch.Tensor | None = None) -> MasterEquation:
    """The field of a variant, out of these terms; n: directions, for the random ones."""
    A, R, D, S = made["A"], made["R"], made["D"], made["S"]
    terms = {
        "both": lambda: (A, R, D, S),
        "no_residual": lambda: (Skipless(A), Skipless(R), D, S),
        "no_norm": lambda: (A, R, D),
        "random_residual": lambda: (Skipless(A, n), Skipless(R, n), D, S),
        "random_norm": lambda: (A, R, D, EqualNorm(S, n)),
    }
    return MasterEquation(*terms[variant]())


def network(variant: str, scheme: str, dt: float, task: Task, data: Dataset, seed: int) -> Model:
    """A classifier that solves the field of a variant by a scheme; its weights follow from the seed alone."""
    core = Model(equation(variant, parts(task, seed)), steps=round(TIME / dt), dt=dt, integrator=SCHEMES[scheme]())
    ends = {"length": data.length, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(seed, "ends"))


def solved(model: Model, variant: str, scheme: str, dt: float, n: torch.Tensor) -> Model:
    """The same weights as another variant, by another scheme: the terms themselves are shared, not copied."""
    A, R, D, S = model.equation.terms
    made = nn.ModuleDict({"A": A, "R": R, "D": D, "S": S})
    return Model(
        equation(variant, made, n),
        steps=round(TIME / dt),
        dt=dt,
        integrator=SCHEMES[scheme](),
        embed=model.embed,
        readout=model.readout,
        pool=True,
    )


def end_figures(run: Trajectory) -> Figures:
    """Drift and size of the last state."""
    growth = state_rms(run.states[-1], run.mask) / state_rms(run.states[0], run.mask)
    return {"drift": 1 - fidelity(run)[-1].item(), "size": math.log10(growth.item())}


def cell(model: Model, examples: Examples) -> Figures | None:
    """Drift, size and gradient of one solution; None if it diverges."""
    run = model.trajectory(examples.x)
    if run.status is Status.DIVERGED:
        return None
    loss = answer_loss(model.readout(run.final.mean(dim=1)), examples)
    first, *_, last = state_gradients(run, loss).tolist()
    if not (first > 0 and last > 0 and math.isfinite(first)):
        return None
    return end_figures(replace(run, states=tuple(u.detach() for u in run.states))) | {
        "gradient": math.log10(first / last)
    }


def solve_anew(model: Model, data: Dataset, seed: int, found: Measured, few: Sequence[float]) -> None:
    """The field of the model by every scheme with the steps `few` and WHOLE, each stabiliser taken away or replaced."""
    examples = data.test.take(slice(0, PROBE)).to(next(model.parameters()).device)
    n = directions(data.length, model.embed.places.shape[1], seed).to(examples.x.device)
    for variant in VARIANTS:
        name = f"field-{variant}"
        for word, steps in (("", few), ("whole_", WHOLE)):
            cells = [cell(solved(model, variant, scheme, dt, n), examples) for dt in steps for scheme in SCHEMES]
            if None in cells:
                found.diverged[name] = cells.index(None) + 1
                continue
            figures = {word + key: [one[key] for one in cells] for key in cells[0]}
            place = found.controls if variant.startswith("random") else found.figures
            place |= named(name, figures)


def retrain(task: Task, data: Dataset, seed: int, work: Workplace, found: Measured, cells: Sequence) -> None:
    """Train every variant under every (scheme, step) of cells; the first, with both by Euler, is kept in the models."""
    examples = data.test.take(slice(0, task.probe))
    for variant, kind, own in (
        ("both", "both", "first"),
        ("no_residual", "no_residual", "first"),
        ("no_norm", "no_norm", "first"),
        ("again", "both", "again"),
    ):
        name, rows = f"trained-{variant}", []
        for scheme, dt in cells:
            weights = derive(seed, own)
            model = network(kind, scheme, dt, task, data, weights)
            label = f"{variant} {scheme} {dt:g}"
            record = trained(model, data, task.settings, derive(weights, "training"), work, label)
            found.made_by(record.commits)
            run = look(model, examples) if record.status != Status.DIVERGED else None
            if run is None or run.status is Status.DIVERGED:
                found.diverged[name] = record.stopped_at or record.step
                break
            seen = training_figures(record)
            largest = math.log10(seen["gradient_largest"])
            rows.append(end_figures(run) | {"training_gradient": largest, "accuracy": seen["accuracy"]})
            found.models.setdefault(variant, model)
        else:
            place = found.controls if variant == "again" else found.figures
            place |= named(name, {key: [row[key] for row in rows] for key in rows[0]})


def join(found: Measured) -> None:
    """The differences of JOINED over all cells, and those of their controls, where nothing diverged."""
    known = found.figures | found.controls

    def less(one: str, other: str, figure: str) -> list[float]:
        both = zip(known[Key(one, figure)], known[Key(other, figure)], strict=True)
        return [mine - theirs for mine, theirs in both]

    for name, (part, solved_one, trained_one) in ({} if found.diverged else JOINED).items():
        lacking, instead = f"field-no_{part}", f"field-random_{part}"
        anew = less(f"trained-no_{part}", "trained-both", trained_one)
        found.figures[name] = less(lacking, "field-both", solved_one) + anew
        again = less("trained-again", "trained-both", trained_one)
        found.controls[f"instead_{name}"] = less(lacking, instead, solved_one) + again


@experiment("review_schemes", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """With and without residual connections and LayerNorm by five schemes and four steps, on digits."""
    task = TASKS["images"][scale].cut(TRAINING[scale])
    data, found = task.load(seed), Measured()
    retrain(task, data, seed, work, found, RETRAINED[scale])
    if "both" in found.models:
        solve_anew(found.models["both"], data, seed, found, STEPS[scale])
    join(found)
    cells = {
        "cells": [f"{scheme} {dt:g}" for dt in STEPS[scale] for scheme in SCHEMES],
        "whole_cells": [f"{scheme} {dt:g}" for dt in WHOLE for scheme in SCHEMES],
        "retrained_cells": [f"{scheme} {dt:g}" for scheme, dt in RETRAINED[scale]],
    }
    told = {"review": DEFINITIONS, "time": TIME, "field_diffusion": DIFFUSION}
    return found.result("review_schemes", task, scale, seed, **cells, **told)
