"""Is a simulator most like the Transformer where it has residual connections and LayerNorm?  (review, key results, 3)

The four simulators of the 2×2, `bare`, `residual`, `norm` and `residual_norm`, begin with the same weights and see the
same batches; the pre-LayerNorm Transformer that they stand beside has weights and batches of its own, and so has a
second one, `other`. All are trained on ListOps. `KIND/cka`: linear CKA of the states with the Transformer's, one value
per state, the input first; `KIND/overall_cka`: its mean over the layers.

LayerNorm stands after each addition in these simulators, as in the papers' block. `other` has both before each branch
and is the Transformer's own kind: the closest that a simulator could be.

Controls: `untrained_KIND`, the same model at its first weights beside the same trained Transformer; `copy`, the
Transformer's input in place of all its states; `untrained_pair_KIND`, both untrained.
"""

from collections.abc import Sequence
from dataclasses import replace

from pdebook.evidence import alignment
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, measure, named
from pdebook.ledger.record import Figures, Result, summarise
from pdelab.datasets.base import Dataset, Examples
from pdelab.solver import Trajectory

CORNERS = ("bare", "norm", "residual", "residual_norm")
STEPS = 600
SHARED = "corner"  # of the seeds of the four simulators


def beside(run: Trajectory, target: Trajectory) -> Figures:
    """Linear CKA with the target, by state and overall."""
    return alignment.alignment(run.states, target, ["cka"])


@experiment("alignment_corners", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """CKA with a trained Transformer of simulators with residual connections and LayerNorm, one of them, or neither."""
    task = TASKS["listops"][scale].cut(STEPS)
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))
    found = measure(("transformer", "other"), task, data, seed, work, states=False)
    found.absorb(measure(CORNERS, task, data, seed, work, shared=SHARED, states=False))
    kept = {key: value for key, value in found.figures.items() if key.endswith(("/accuracy", "/gradient_largest"))}
    found = replace(found, figures=kept)
    if "transformer" in found.models:
        _compare(found, task, data, seed, probe)
    return found.result("alignment_corners", task, scale, seed, comparisons={"cka": "linear CKA of the states"})


def _compare(found: Measured, task: Task, data: Dataset, seed: int, probe: Examples) -> None:
    """Every model beside the trained Transformer, and untrained beside the trained and the untrained one."""
    target = look(found.models["transformer"], probe)
    device = target.final.device
    before = look(build("transformer", task, data, seed).to(device), probe)
    for kind in ("other", *CORNERS):
        shared = SHARED if kind in CORNERS else None
        untrained = look(build(kind, task, data, seed, shared).to(device), probe)
        found.controls |= named(f"untrained_{kind}", beside(untrained, target))
        found.controls |= named(f"untrained_pair_{kind}", beside(untrained, before))
        if kind in found.models:
            found.figures |= named(kind, beside(look(found.models[kind], probe), target))
    copied = replace(target, states=(target.states[0],) * len(target.states))
    found.controls |= named("copy", beside(copied, target))


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Each simulator, and a second Transformer: CKA by training and by first weights alone, both overall, accuracy."""
    found = []
    for kind in ("other", *reversed(CORNERS)):
        before = summarise(results, f"untrained_{kind}/overall_cka", control=True)
        after, accuracy = (summarise(results, f"{kind}/{name}") for name in ("overall_cka", "accuracy"))
        found.append((kind, after.value, before.value, accuracy.value))
    return found
