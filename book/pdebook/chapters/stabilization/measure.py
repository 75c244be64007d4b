"""Energies along the depth of small Transformers: LayerNorm after each branch, before it, none, and eq 9.  (P2 eq 9)"""

import torch

from pdebook.chapters.stabilization.laws import branch_bound
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, look, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.formulas import longest
from pdelab.integrators import LieEuler
from pdelab.metrics.base import per_layer
from pdelab.metrics.stability import energy, fluctuation
from pdelab.models import Model, transformer, with_ends
from pdelab.seeds import derive, seeded
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate, PreNorm, SpatialStabilization
from pdelab.training import Settings, Training

KINDS = ("post", "pre", "none", "eq9")
SETTINGS = Settings(steps=300, rate=3e-3, warmup=30)


def build(kind: str, task: Task, data: Dataset, seed: int) -> Model:
    """A Transformer with LayerNorm post, pre or none, or with eq 9, γ = 1, where post-LayerNorm has its norms."""
    own = derive(seed, "normalization", kind)
    sizes = {"width": task.width, "heads": task.heads, "hidden": task.hidden}

    if kind == "eq9":
        layers = seeded(lambda: [_eq9_layer(**sizes) for _ in range(task.depth)], own)
        core = Model(Layered(layers, 1.0), steps=task.depth, dt=1.0, integrator=LieEuler())
    else:
        core = transformer(**sizes, depth=task.depth, norm=kind, seed=own)

    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(own, "ends"))


def _eq9_layer(width: int, heads: int, hidden: int) -> MasterEquation:
    return MasterEquation(
        Interaction(width, heads), SpatialStabilization(), Reaction(width, hidden), SpatialStabilization()
    )


@torch.no_grad()
def at_norms(model: Model, u: Field) -> list[tuple[Field, Field]]:
    """The field before and after each LayerNorm of a Transformer with Δt = 1, from the first block to the last."""
    pairs = []
    for equation in model.equation.equations:
        for term in equation.terms:
            if isinstance(term, LayerNormRate | PreNorm):
                pairs.append((u, term.norm(u)))
            u = u + term(u)
    return pairs


def norm_figures(pairs: list[tuple[Field, Field]]) -> Figures:
    """Energies before and after each norm, and the share of tokens that it made longer."""
    raised = [(after.norm(dim=-1) > before.norm(dim=-1)).double().mean().item() for before, after in pairs]
    return {
        "before": [energy(before).item() for before, _ in pairs],
        "after": [energy(after).item() for _, after in pairs],
        "raised": raised,
    }


@torch.no_grad()
def set_energies(model: Model) -> list[float]:
    """½(|g|² + |b|²) of each LayerNorm: the mean energy of what it returns if the directions are spread evenly."""
    norms = [
        term.norm
        for equation in model.equation.equations
        for term in equation.terms
        if isinstance(term, LayerNormRate | PreNorm)
    ]
    return [((norm.weight.square().sum() + norm.bias.square().sum()) / 2).item() for norm in norms]


@torch.no_grad()
def growth_used(model: Model, states: tuple[Field, ...]) -> float:
    """(max_i|u_i| at the end − at the start)/Σ M over the branches of a pre-LayerNorm model: at most 1."""
    first, last = (longest(u).max().item() for u in (states[0], states[-1]))
    allowed = sum(branch_bound(term) for equation in model.equation.equations for term in equation.terms)
    return (last - first) / allowed


def trained_energies(
    kind: str, task: Task, data: Dataset, seed: int, work: Workplace
) -> tuple[Figures | None, Figures, Training]:
    """Figures of one trained model (None if it diverged), the same before training, and the record of the training."""
    model = build(kind, task, data, seed)
    probe = data.test.take(slice(0, task.probe))
    before = _figures(kind, model, look(model, probe))

    record = trained(model, data, SETTINGS, derive(seed, "normalization", kind, "training"), work, kind)
    run = look(model, probe) if record.status != Status.DIVERGED else None
    if run is None or run.status is Status.DIVERGED:  # the last step may have moved the weights out of range
        return None, before, record
    return _figures(kind, model, run) | {"accuracy": record.evaluations[-1].accuracy}, before, record


def _figures(kind: str, model: Model, run: Trajectory) -> Figures:
    found = {name: per_layer(f, run).tolist() for name, f in (("energy", energy), ("fluctuation", fluctuation))}
    if kind in ("post", "pre"):
        found |= norm_figures(at_norms(model, run.states[0])) | {"set": set_energies(model)}
    if kind == "pre":
        found["growth_used"] = growth_used(model, run.states)
    return found


@experiment("normalization", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Energies along the depth of Transformers, with LayerNorm, without, and with eq 9 (P2 eq 9, S).

    One seed of four models on digits; as controls the same models before training.
    """
    task, found = TASKS["images"][scale], Measured()
    data = task.load(seed)

    for kind in KINDS:
        figures, controls, record = trained_energies(kind, task, data, seed, work)
        found.made_by(record.commits)
        found.controls |= {Key(kind, name): value for name, value in controls.items()}
        if figures is None:
            found.diverged[kind] = record.stopped_at or record.step
        else:
            found.figures |= {Key(kind, name): value for name, value in figures.items()}

    return found.result("normalization", task, scale, seed, settings=SETTINGS.that_matter())
