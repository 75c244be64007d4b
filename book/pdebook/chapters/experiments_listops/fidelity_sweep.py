"""How near trained simulators come to the printed loss of the input, over what P2 does not print.  (P2 figure 4)

P2 prints the correlation of the simulator's states with the input, L0 to L5, and neither the scale of the embedding nor
the step. Here the simulator of P2 eq 4 to 9 is trained on ListOps for every scale of SCALES and every step 1/N, N one
of PARTS.

`scaleS-stepN/profile`: the fidelity from the embedding to the last layer but one; with it the accuracy and the
`distance`, the largest over the layers of |profile − printed|. `best/…`: the point with the least distance, seed by
seed, with its scale and 1/step (`parts`). The control is the same choice among the same simulators untrained,
`untrained_best/…`.
"""

from pdebook.chapters.experiments_listops.measure import SCALES, enlarge
from pdebook.chapters.experiments_listops.measure import STEPS as TRAINING
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.equation import Layered
from pdelab.metrics.similarity import fidelity
from pdelab.models import Model
from pdelab.seeds import derive
from pdelab.status import Status

PRINTED = (1.00, 0.93, 0.91, 0.89, 0.87, 0.85)  # P2 figure 4, PDE; a test compares it with the claim
PARTS = (3, 6, 12, 24)  # the step is one part in so many; six layers fill the time 1 with steps of 1/6
KIND = "printed"


def simulator(factor: float, parts: int, task: Task, data: Dataset, seed: int) -> Model:
    """The simulator of P2 eq 4 to 9 with steps of 1/parts and its embedding times the factor, untrained.

    Its weights depend on the seed alone, so that points differ in the scale and the step and in nothing else.
    """
    model = build(KIND, task, data, seed)
    enlarge(model.embed, factor)
    model.dt = 1 / parts
    model.equation = Layered(model.equation.equations, model.dt)
    return model


def distance(profile: list[float]) -> float:
    """max over the layers of |profile − printed|, of as many layers as both have."""
    return max(abs(own - printed) for own, printed in zip(profile, PRINTED, strict=False))


def kept(model: Model, probe: Examples) -> Figures | None:
    """profile and distance of a model; None if it diverges."""
    run = look(model, probe)
    if run.status is Status.DIVERGED:
        return None
    profile = fidelity(run).tolist()[:-1]
    return {"profile": profile, "distance": distance(profile)}


def nearest(figures: Figures, word: str = "") -> Figures:
    """The point whose profile is nearest to the printed one; {} if all diverged. word: "" or "untrained_"."""
    points = {f"scale{factor}-step{parts}": (factor, parts) for factor in SCALES for parts in PARTS}
    seen = {name: figures[Key(name, f"{word}distance")] for name in points if Key(name, f"{word}distance") in figures}
    if not seen:
        return {}
    name = min(seen, key=seen.__getitem__)
    factor, parts = points[name]
    chosen = {"profile": figures[Key(name, f"{word}profile")], "distance": seen[name]}
    return named(f"{word}best", chosen | {"scale": float(factor), "parts": float(parts)})


@experiment("fidelity_sweep", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Fidelity of the simulator of P2 eq 4 to 9, trained on ListOps, over scales of the embedding and steps."""
    task = TASKS["listops"][scale].cut(TRAINING)
    data, found = task.load(seed), Measured()
    probe = data.test.take(slice(0, task.probe))
    for factor in SCALES:
        for parts in PARTS:
            name = f"scale{factor}-step{parts}"
            model = simulator(factor, parts, task, data, seed).to(work.device)
            before = kept(model, probe)
            if before is not None:
                found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
            record = trained(model, data, task.settings, derive(seed, KIND, "training"), work, name)
            found.made_by(record.commits)
            after = kept(model, probe) if record.status != Status.DIVERGED else None
            if after is None:
                found.diverged[name] = record.stopped_at or record.step
                continue
            found.figures |= named(name, after | {"accuracy": record.accuracy})

    found.figures |= nearest(found.figures)
    found.controls |= nearest(found.controls, "untrained_")
    known = {"scales": list(SCALES), "parts": list(PARTS), "printed": list(PRINTED)}
    return found.result("fidelity_sweep", task, scale, seed, **known)
