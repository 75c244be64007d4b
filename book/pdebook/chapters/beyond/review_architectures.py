"""Does the role of residual connections and LayerNorm carry over to other architectures?  (review, next checks, 2)

`vit`: images cut into patches, all seeing all, one answer from their mean. `decoder`: characters, each seeing those
before it, each asked for the next one. A block has two branches f, attention and network, and there are

| corner | each branch |
|---|---|
| bare | u ← f(u) |
| residual | u ← u + f(u) |
| norm, residual_norm | u ← f(LN u), u ← u + f(LN u): pre-LayerNorm, as ViT and GPT-2 have it |
| norm_after, residual_norm_after | u ← LN(f(u)), u ← LN(u + f(u)): post-LayerNorm, as in the papers |

All share first weights, batches, budget and settings. There is no norm behind the last block.
`ARCHITECTURE-CORNER/…`: accuracy and gradients in training, and states by layer; DEFINITIONS of the trained experiments
says what each is. `untrained_…`: the same at the first weights. `ARCHITECTURE-again/…`: a second residual_norm with
weights and batches of its own. `ARCHITECTURE-majority/accuracy`: always the commonest answer.

At paper size: MNIST in patches of 4 × 4 pixels and the works of Shakespeare, the four corners with pre-LayerNorm.
"""

from dataclasses import replace

from pdebook.chapters.beyond.review import Skipless
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import Measured, Task, look, named, state_figures, trained, training_figures
from pdebook.ledger.record import Figures, Key, Result
from pdelab import datasets
from pdelab.datasets import images
from pdelab.datasets.base import Dataset, Examples, majority
from pdelab.equation import Layered, MasterEquation
from pdelab.integrators import LieEuler
from pdelab.models import Model, with_ends
from pdelab.seeds import derive, seeded
from pdelab.status import Status
from pdelab.terms.base import Term
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate, PreNorm
from pdelab.training import Settings

CORNERS = ("bare", "residual", "norm", "residual_norm")
AFTER = ("norm_after", "residual_norm_after")
STATES = ("fidelity", "nonuniformity", "state_rms")
TRAINING = ("accuracy", "loss", "gradient_median", "gradient_largest", "layer_gradient_norm")
SIDE = 2  # of a patch of the small digits, in pixels


def _settings(steps: int, **others) -> Settings:
    return Settings(steps=steps, warmup=steps // 10, evaluate_every=None, watch=(0, steps), **others)


TASKS: dict[Scale, dict[str, Task]] = {
    Scale.SMOKE: {
        "vit": Task("digits-patches", _settings(20, batch=32), depth=2, width=16, probe=60),
        "decoder": Task(
            "synthetic-characters",
            _settings(20, batch=16),
            {"train": 200, "test": 60, "length": 16},
            depth=2,
            width=16,
            probe=60,
        ),
    },
    Scale.BOOK: {
        "vit": Task("digits-patches", _settings(250, rate=3e-3), activation="gelu"),
        "decoder": Task(
            "synthetic-characters",
            _settings(400, batch=32, rate=3e-3),
            {"train": 12_800, "test": 500, "length": 32},
            activation="gelu",
        ),
    },
    Scale.PAPER: {
        "vit": Task("mnist-patches", _settings(400, batch=32, rate=2e-3), {"test": 2_000}, activation="gelu"),
        "decoder": Task("tinyshakespeare", _settings(400, batch=32, rate=2e-3), {"length": 64}, activation="gelu"),
    },
}


def loaded(task: Task, seed: int) -> Dataset:
    """The data of a task; the small digits are cut into patches of SIDE × SIDE pixels here."""
    if task.data != "digits-patches":
        return task.load(seed)
    rows = datasets.load("digits-rows")
    train, test = (Examples(images.patches(part.x, SIDE), part.y) for part in (rows.train, rows.test))
    return replace(rows, name=task.data, train=train, test=test)


def block(corner: str, width: int, heads: int, hidden: int, activation: str, causal: bool) -> MasterEquation:
    """The terms of one block, for a sweep with Δt = 1."""
    terms: list[Term] = []
    for branch in (Interaction(width, heads, causal=causal), Reaction(width, hidden, activation=activation)):
        term = PreNorm(branch, width) if corner in ("norm", "residual_norm") else branch
        terms.append(term if corner.startswith("residual") else Skipless(term))
        if corner in AFTER:
            terms.append(LayerNormRate(width))
    return MasterEquation(*terms)


def network(corner: str, task: Task, data: Dataset, seed: int) -> Model:
    """The model of a corner, untrained; one that answers at every token sees no later one. LayerNorm draws nothing."""
    each = data.train.y.ndim == 2
    sizes = (task.width, task.heads, task.hidden, task.activation, each)
    equation = seeded(lambda: Layered([block(corner, *sizes) for _ in range(task.depth)]), seed)
    core = Model(equation, steps=task.depth, dt=1.0, integrator=LieEuler())
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, pool=not each, seed=derive(seed, "ends"))


def _kept(figures: Figures, names: tuple[str, ...], word: str = "") -> Figures:
    return {word + name: figures[name] for name in names}


def measured(architecture: str, task: Task, seed: int, work: Workplace, corners: tuple[str, ...]) -> Measured:
    """Train every corner of an architecture, and `again`; the first weights stand beside as controls."""
    data = loaded(task, seed)
    probe = data.test.take(slice(0, task.probe))
    found = Measured(controls={Key(f"{architecture}-majority", "accuracy"): majority(data)})
    for corner in (*corners, "again"):
        name, again = f"{architecture}-{corner}", corner == "again"
        own = derive(seed, architecture, "again" if again else "first")
        model = network("residual_norm" if again else corner, task, data, own).to(work.device)
        before = state_figures(look(model, probe))
        record = trained(model, data, task.settings, derive(own, "training"), work, name)
        found.made_by(record.commits)
        run = look(model, probe) if record.status != Status.DIVERGED else None
        if run is None or run.status is Status.DIVERGED:
            found.diverged[name] = record.stopped_at or record.step
            continue
        after = _kept(training_figures(record), TRAINING) | _kept(state_figures(run), STATES)
        (found.controls if again else found.figures).update(named(name, after))
        found.controls |= named(name, _kept(before, STATES, "untrained_"))
    return found


@experiment("review_architectures", *Scale)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """The 2×2 of residual connections and LayerNorm in a small Vision Transformer and a small causal decoder."""
    found = Measured()
    corners = CORNERS if scale is Scale.PAPER else (*CORNERS, *AFTER)
    for architecture, task in TASKS[scale].items():
        found.absorb(measured(architecture, task, seed, work, corners))
    first, *others = TASKS[scale]
    told = {name: TASKS[scale][name].configuration() for name in others}
    return found.result("review_architectures", TASKS[scale][first], scale, seed, **told)
