"""What the trained experiments share: a task at three sizes, a model for it by name, and what is measured on it.

Tasks: `images` (digits in rows; MNIST's 784 pixels at paper size) and `listops` (short expressions without SM; 1000
tokens with SM at paper size). Models: `transformer` and `other`, two pre-LayerNorm Transformers that differ in their
name and so in every weight, and the variants of the simulator. All are trained alike, nothing is tuned for one of them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch

from pdelab import datasets
from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.experiments.scales import Scale, Workplace
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import nonuniformity
from pdelab.models import VARIANTS, Model, simulator, transformer, with_ends
from pdelab.results import Figures
from pdelab.seeds import derive
from pdelab.solver import Trajectory
from pdelab.training import DIVERGED, INTERRUPTED, Settings, Training, train

TRANSFORMERS = ("transformer", "other")


class Interrupted(Exception):
    """A run was stopped between two steps; what was done is in its checkpoint."""


@dataclass(frozen=True)
class Task:
    """A data set, the size of the models and how they are trained; `probe` test examples are looked at closely."""

    data: str
    settings: Settings
    options: dict = field(default_factory=dict)
    width: int = 32
    depth: int = 6
    heads: int = 4
    probe: int = 200

    @property
    def hidden(self) -> int:
        return 4 * self.width

    def load(self) -> Dataset:
        return datasets.load(self.data, **self.options)

    def configuration(self) -> dict:
        """For the Result: the settings, but not how often a checkpoint is written."""
        found = asdict(self) | {"hidden": self.hidden}
        del found["settings"]["checkpoint_every"]
        return found


def _settings(steps: int, **others) -> Settings:
    """Gradient norms and states are watched before, twice during and after training."""
    watch = (0, steps // 4, steps // 2, steps)
    return Settings(steps=steps, warmup=steps // 10, evaluate_every=max(1, steps // 4), watch=watch, **others)


_PAPER = {"width": 128, "depth": 6, "heads": 4, "probe": 64}
TASKS: dict[str, dict[Scale, Task]] = {
    "images": {
        Scale.SMOKE: Task("digits-rows", _settings(40, batch=32), depth=2, width=16),
        Scale.BOOK: Task("digits-rows", _settings(600, rate=3e-3)),
        Scale.PAPER: Task("mnist-pixels", _settings(9_375, batch=32, checkpoint_every=20), **_PAPER),
    },
    "listops": {
        Scale.SMOKE: Task("listops-16-nosm", _settings(40, batch=32), {"train": 1_000, "test": 200}, depth=2, width=16),
        Scale.BOOK: Task("listops-32-nosm", _settings(2_000, rate=3e-3), {"train": 100_000, "test": 2_000}),
        Scale.PAPER: Task(
            "listops-1000", _settings(5_000, batch=32, checkpoint_every=20), {"train": 96_000, "test": 2_000}, **_PAPER
        ),
    },
}


def build(kind: str, task: Task, data: Dataset, seed: int) -> Model:
    """The model named `kind`, with weights that follow from the seed and that name."""
    own = derive(seed, kind)
    sizes = {"width": task.width, "depth": task.depth, "heads": task.heads, "hidden": task.hidden, "seed": own}
    if kind not in (*TRANSFORMERS, *VARIANTS):
        raise ValueError(f"kind must be one of {', '.join((*TRANSFORMERS, *VARIANTS))}; not {kind!r}")
    core = transformer(**sizes) if kind in TRANSFORMERS else simulator(kind, **sizes)
    return with_ends(
        core,
        task.width,
        outputs=data.classes,
        length=data.length,
        symbols=data.symbols,
        features=data.features,
        seed=derive(own, "ends"),
    )


def fit(kind: str, task: Task, data: Dataset, seed: int, work: Workplace) -> tuple[Model, Training]:
    """Build and train; raises Interrupted when the run was stopped, so that no half result is recorded."""
    model = build(kind, task, data, seed)
    record = train(
        model,
        data,
        task.settings,
        seed=derive(seed, kind, "training"),
        device=work.device,
        folder=work.inside(kind),
        progress=work.progress,
        name=f"{data.name} {kind}, seed {seed}",
    )
    if record.status == INTERRUPTED:
        raise Interrupted(f"stopped after step {record.step} of {task.settings.steps} of {kind}")
    return model, record


@dataclass
class Measured:
    """What a group of trained models gave: the models themselves, and the parts of a Result."""

    models: dict[str, Model] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    controls: Figures = field(default_factory=dict)
    diverged: dict[str, int] = field(default_factory=dict)


def measure(kinds: Sequence[str], task: Task, data: Dataset, seed: int, work: Workplace) -> Measured:
    """Train every kind and measure it; beside the accuracies stand the controls of the data set."""
    found = Measured(controls=controls.of(data))
    for kind in kinds:
        model, record = fit(kind, task, data, seed, work)
        if record.status == DIVERGED:
            found.diverged[kind] = record.stopped_at
            continue
        found.models[kind] = model
        after, before = figures_of(kind, model, record, data, task)
        found.figures |= after
        found.controls |= before
    return found


@torch.no_grad()
def look(model: Model, examples: Examples) -> Trajectory:
    """Every state on the examples, on the device of the model."""
    examples = examples.to(next(model.parameters()).device)
    return model.trajectory(examples.x, examples.mask)


def figures_of(kind: str, model: Model, record: Training, data: Dataset, task: Task) -> tuple[Figures, Figures]:
    """What is measured on every trained model, and the same before training as a control.

    fidelity: mean cosine of a token's state with its input; correlation: ρ, that of the whole states (P2 thm 3.4).
    Gradient norms: median and largest whole norm over all steps, and per layer the whole norm and the root mean square
    per weight, before training and after it.
    """
    first, last = record.watched[0], record.watched[-1]
    layers = [name for name in first.gradient_norm if name.startswith("layer")]
    run = look(model, data.test.take(slice(0, task.probe)))
    evaluation = record.evaluations[-1]
    figures: Figures = {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "accuracies": [e.accuracy for e in record.evaluations],
        "fidelity": fidelity(run).tolist(),
        "correlation": fidelity(run, over="state").tolist(),
        "nonuniformity": per_layer(nonuniformity, run).tolist(),
        "state_rms": last.state_rms,
        "gradient_median": statistics.median(record.gradient_norms),
        "gradient_largest": max(record.gradient_norms),
        "layer_gradient_norm": [last.gradient_norm[name] for name in layers],
        "layer_gradient_rms": [last.gradient_rms[name] for name in layers],
    }
    before: Figures = {
        "untrained_fidelity": first.fidelity,
        "untrained_nonuniformity": first.nonuniformity,
        "untrained_state_rms": first.state_rms,
        "untrained_layer_gradient_norm": [first.gradient_norm[name] for name in layers],
        "untrained_layer_gradient_rms": [first.gradient_rms[name] for name in layers],
    }
    # what has no layers of its own, such as diffusion with a given coefficient, has no gradients per layer
    return tuple({f"{kind}/{name}": value for name, value in part.items() if value != []} for part in (figures, before))
