"""What the trained experiments share: a task at three sizes, a model for it by name, and what is measured on it.

Tasks: `images` (digits in rows; MNIST's 784 pixels at paper size, tested on 500 images), `listops` (short
expressions without SM; 1000 tokens with SM at paper size), and for P1 `rows` and `layers` (digits in rows; MNIST in 28
rows) and `text` (synthetic topics; 20 Newsgroups, with P1's four layers, width 128, batch 32 and five epochs). Models:
`transformer` and `other`, two pre-LayerNorm Transformers that differ in their name and so in every weight, and the
variants of the simulator. All are trained alike, nothing is tuned for one of them.

Seeds: weights and batches follow from the seed, and so do the expressions of ListOps and the synthetic topics; images
and posts have one fixed split. So an interval over seeds is over weights and batches, and for made data over these too.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn

from pdebook.evidence.experiment import Scale, Workplace
from pdebook.ledger.record import Figures, Result, environment
from pdelab import datasets
from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import cka, cosine, fidelity
from pdelab.metrics.stability import fluctuation, nonuniformity, state_rms
from pdelab.models import VARIANTS, Model, simulator, transformer, with_ends
from pdelab.seeds import derive
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.training import Look, Settings, Training, Watched, train

TRANSFORMERS = ("transformer", "other")

# Written into every Result, so that a figure is not read as another of the same name.
DEFINITIONS = {
    "accuracy": "share of the test examples, with Wilson's 95 % interval in accuracy_low and accuracy_high",
    "fidelity": "cosine of a token's state with its input, mean over tokens; one value per state, the input first",
    "centred_fidelity": "the same after the mean at each position was taken away",
    "state_cosine": "cosine of the whole state of an example with its input, mean over examples (P2 thm 3.4's rho)",
    "input_cka": "linear CKA of the states with the input: 1 also after a rotation",
    "other_input": "control of fidelity: cosine with the input of another example at the same position",
    "nonuniformity": "norm of u - mean over tokens, divided by the norm of u; mean over examples",
    "fluctuation": "half the mean square of u - mean over tokens",
    "gradient_median, gradient_largest": "over all steps, of the norm of the gradient of all weights, before clipping",
    "layer_gradient_norm": "norm of the gradient of a layer's weights on the first 64 training examples",
    "layer_gradient_rms": "the same divided by the root of the number of weights",
    "untrained_...": "the same model at its first weights, on the same examples",
}


class Interrupted(Exception):
    """A run was stopped between two steps; what was done is in its checkpoint."""


@dataclass(frozen=True)
class Task:
    """A data set, the size of the models and how they are trained.

    probe: that many test examples are looked at closely. gain: multiplies the first matrices of every layer.
    activation: of the reaction; a Result names it where it is not ReLU.
    diffusion: D of the simulators; a Result names it where it is not 1e-4. Long inputs need less, DΔt/Δx² ≤ 1/2.
    """

    data: str
    settings: Settings
    options: dict = field(default_factory=dict)
    width: int = 32
    depth: int = 6
    heads: int = 4
    probe: int = 200
    gain: float = 1.0
    activation: str = "relu"
    diffusion: float = 1e-4

    @property
    def hidden(self) -> int:
        return 4 * self.width

    def operations(self, tokens: float) -> float:
        """Floating-point operations of the matrix products in one training step of the Transformer's layers.

        3 · batch · N · depth · (24d² + 4Nd), d the width: for a token 24d² in the weights of a layer and 4Nd in its
        attention to N tokens, once forward and twice backward. The fused kernel does part of the attention again.
        """
        return 3 * self.settings.batch * tokens * self.depth * (24 * self.width**2 + 4 * tokens * self.width)

    def duration(self, tokens: float, models: float, rate: float, least: float = 0.0) -> float:
        """Seconds to train so many models at `rate` operations a second, each step taking at least so long."""
        return self.settings.steps * models * max(self.operations(tokens) / rate, least)

    def cut(self, steps: int | None) -> "Task":
        """The same with a training of so many steps, if fewer, watched as often but evaluated at its end alone."""
        if steps is None or steps >= self.settings.steps:
            return self
        shorter = replace(_settings(steps, len(self.settings.watch)), evaluate_every=None)
        kept = {name: getattr(shorter, name) for name in ("steps", "warmup", "evaluate_every", "watch")}
        return replace(self, settings=replace(self.settings, **kept))

    def cut_of(self, full: "Task") -> dict[str, str]:
        """For the Result of a task that was cut: how much of the training is left."""
        return {} if self == full else {"cut": f"{self.settings.steps} of {full.settings.steps} training steps"}

    def load(self, seed: int) -> Dataset:
        """The data; where they are generated, those of the seed."""
        own = {"seed": seed} if self.data.startswith(("listops", "synthetic")) else {}
        return datasets.load(self.data, **self.options, **own)

    def configuration(self) -> dict:
        """For the Result: the settings, but not how often a checkpoint is written, and what the figures mean."""
        sizes = {"hidden": self.hidden, "definitions": DEFINITIONS, "settings": self.settings.that_matter()}
        chosen = asdict(self)
        for name, usual in (("activation", "relu"), ("diffusion", 1e-4)):
            if chosen[name] == usual:
                del chosen[name]
        return chosen | sizes


def _settings(steps: int, watched: int = 4, **others) -> Settings:
    """Gradient norms and states are watched before, twice during and after training, or `watched` times in all."""
    watch = (0, steps // 4, steps // 2, steps)
    if watched > len(watch):
        watch = tuple(dict.fromkeys(k * steps // (watched - 1) for k in range(watched)))
    return Settings(steps=steps, warmup=steps // 10, evaluate_every=max(1, steps // 4), watch=watch, **others)


WATCHED = 21  # steps at which P1's tasks watch the gradients of every layer
_MNIST_ROWS = Task("mnist-rows", _settings(4_685, WATCHED), depth=10, width=64)  # five epochs of batches of 64
_PAPER = {"width": 128, "depth": 6, "heads": 4, "probe": 64, "diffusion": 1e-7}  # DΔt/Δx² = 0.017 for 1,000 tokens
TASKS: dict[str, dict[Scale, Task]] = {
    "images": {
        Scale.SMOKE: Task("digits-rows", _settings(40, batch=32), depth=2, width=16),
        Scale.BOOK: Task("digits-rows", _settings(600, rate=3e-3)),
        Scale.PAPER: Task("mnist-pixels", _settings(9_375, batch=32, checkpoint_every=20), {"test": 500}, **_PAPER),
    },
    "listops": {
        Scale.SMOKE: Task("listops-16-nosm", _settings(40, batch=32), {"train": 1_000, "test": 200}, depth=2, width=16),
        Scale.BOOK: Task("listops-32-nosm", _settings(1_500, rate=3e-3), {"train": 100_000, "test": 2_000}),
        Scale.PAPER: Task(
            "listops-1000", _settings(5_000, batch=32, checkpoint_every=20), {"train": 96_000, "test": 2_000}, **_PAPER
        ),
    },
    "rows": {
        Scale.SMOKE: Task("digits-rows", _settings(40, batch=32), depth=2, width=16),
        Scale.BOOK: Task("digits-rows", _settings(300, WATCHED, rate=3e-3), depth=4),
        Scale.PAPER: _MNIST_ROWS,
    },
    "layers": {
        Scale.SMOKE: Task("digits-rows", _settings(40, batch=32), depth=3, width=16),
        Scale.BOOK: Task("digits-rows", _settings(200), depth=10, width=64),
        Scale.PAPER: _MNIST_ROWS,
    },
    "text": {
        Scale.SMOKE: Task(
            "synthetic-topics", _settings(40, batch=32), {"train": 1_000, "test": 200}, depth=2, width=16
        ),
        Scale.BOOK: Task(
            "synthetic-topics", _settings(500, WATCHED, batch=32, rate=3e-3), {"train": 3_200, "test": 1_000}, depth=4
        ),
        Scale.PAPER: Task(
            "newsgroups",
            _settings(1_765, WATCHED, batch=32, checkpoint_every=20),
            depth=4,
            width=128,
            probe=64,
            diffusion=1e-6,
        ),
    },
}


def build(kind: str, task: Task, data: Dataset, seed: int, shared: str | None = None) -> Model:
    """The model named `kind`, with weights that follow from the seed and that name, or from the name `shared`."""
    own = derive(seed, shared or kind)
    sizes = {"width": task.width, "depth": task.depth, "heads": task.heads, "hidden": task.hidden}
    sizes |= {"activation": task.activation, "seed": own}
    if kind not in (*TRANSFORMERS, *VARIANTS):
        raise ValueError(f"kind must be one of {', '.join((*TRANSFORMERS, *VARIANTS))}; not {kind!r}")
    core = transformer(**sizes) if kind in TRANSFORMERS else simulator(kind, **sizes, diffusion=task.diffusion)
    with torch.no_grad():
        for weights in core.parameters():
            weights.mul_(task.gain if weights.ndim > 1 else 1.0)
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(own, "ends"))


def fit(
    kind: str,
    task: Task,
    data: Dataset,
    seed: int,
    work: Workplace,
    *,
    shared: str | None = None,
    label: str = "",
    look: Look | None = None,
) -> tuple[Model, Training]:
    """Build and train, as `trained` does."""
    model = build(kind, task, data, seed, shared)
    seed = derive(seed, shared or kind, "training")
    return model, trained(model, data, task.settings, seed, work, kind + label, look=look)


def trained(
    model: nn.Module, data: Dataset, settings: Settings, seed: int, work: Workplace, name: str, **options
) -> Training:
    """Train any module as part of an experiment: in the workplace, with a checkpoint under its name.

    options: objective, penalty and look of `train`.
    Raises Interrupted when the run was stopped: no half result is recorded, and the next run goes on from there.
    """
    where = {"device": work.device, "folder": work.inside(name), "progress": work.progress}
    record = train(model, data, settings, seed=seed, name=f"{data.name} {name}", **where, **options)
    if record.status == Status.INTERRUPTED:
        raise Interrupted(f"stopped after step {record.step} of {settings.steps} of {name}")
    return record


@dataclass
class Measured:
    """What a group of trained models gave: the models themselves, and the parts of a Result."""

    models: dict[str, Model] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    controls: Figures = field(default_factory=dict)
    diverged: dict[str, int] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    records: dict[str, Training] = field(default_factory=dict)

    def absorb(self, other: "Measured") -> None:
        """Add what another group of models gave."""
        self.models |= other.models
        self.figures |= other.figures
        self.controls |= other.controls
        self.diverged |= other.diverged
        self.records |= other.records
        self.made_by(other.commits)

    def made_by(self, commits: Sequence[str]) -> None:
        """Note the commits of the package that had a part in this, each once."""
        self.commits = [*dict.fromkeys([*self.commits, *commits])]

    def result(self, experiment: str, task: Task, scale: Scale, seed: int, **configuration) -> Result:
        """The Result names the commit of every training, also of one that went on with other code, and the present."""
        here = environment()
        self.made_by([here["commit"]])
        return Result(
            experiment=experiment,
            configuration=task.configuration() | configuration,
            scale=scale,
            seed=seed,
            status="finished" if self.figures else "diverged",
            figures=self.figures,
            controls=self.controls,
            diverged=self.diverged,
            environment=here | {"commit": ", ".join(self.commits)},
        )


def measure(
    kinds: Sequence[str],
    task: Task,
    data: Dataset,
    seed: int,
    work: Workplace,
    *,
    shared: str | None = None,
    label: str = "",
    states: bool = True,
    watching: Look | None = None,
) -> Measured:
    """Train every kind and measure it; beside the accuracies stand the controls of the data set.

    shared: one name for the seeds of all kinds. label: added to the name of each. states: look at the states as well.
    watching: `look` of `train`, for every kind; what it saw is in `records`.
    """
    found = Measured(controls=controls.of(data) if states else {})
    probe = data.test.take(slice(0, task.probe))
    for kind in kinds:
        name = kind + label
        model, record = fit(kind, task, data, seed, work, shared=shared, label=label, look=watching)
        found.made_by(record.commits)
        run = look(model, probe) if record.status != Status.DIVERGED else None
        if run is None or run.status is Status.DIVERGED:  # the last step may have moved the weights out of range
            found.diverged[name] = record.stopped_at or record.step
            continue
        found.models[name], found.records[name] = model, record
        found.figures |= named(name, training_figures(record))
        if states:
            untrained = look(build(kind, task, data, seed, shared).to(run.final.device), probe)
            found.figures |= named(name, state_figures(run))
            before = state_figures(untrained) | _layer_gradients(record.watched[0])
            found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
            found.controls |= named(name, {"other_input": other_input(run)})
    return found


def named(name: str, figures: Figures) -> Figures:
    """NAME/figure; what has no layers of its own, such as a given diffusion, has no gradients per layer: left out."""
    return {f"{name}/{key}": value for key, value in figures.items() if value != []}


@torch.no_grad()
def look(model: Model, examples: Examples) -> Trajectory:
    """Every state on the examples, on the device of the model."""
    examples = examples.to(next(model.parameters()).device)
    return model.trajectory(examples.x, examples.mask)


def state_figures(run: Trajectory) -> Figures:
    """One value per state, from the input to the output; DEFINITIONS says what each is."""
    found = {
        "fidelity": fidelity(run),
        "centred_fidelity": fidelity(run, centre="position"),
        "state_cosine": fidelity(run, over="state"),
        "input_cka": fidelity(run, cka),
        "nonuniformity": per_layer(nonuniformity, run),
        "fluctuation": per_layer(fluctuation, run),
        "state_rms": per_layer(state_rms, run),
    }
    return {name: values.tolist() for name, values in found.items()}


def other_input(run: Trajectory) -> list[float]:
    """cos(u_l, v_0) with v the example before it in the batch, over the tokens that are real in both."""
    both = None if run.mask is None else run.mask & run.mask.roll(1, dims=0)
    return [cosine(u, run.states[0].roll(1, dims=0), both).item() for u in run.states]


def training_figures(record: Training) -> Figures:
    """Accuracy, and gradient norms over the whole of training and in up to 40 equal parts of it (`…_course`)."""
    last, size = record.evaluations[-1], math.ceil(record.step / 40)
    parts = [record.gradient_norms[i : i + size] for i in range(0, record.step, size)]
    return {
        "accuracy": last.accuracy,
        "accuracy_low": last.low,
        "accuracy_high": last.high,
        "loss": last.loss,
        "accuracies": [e.accuracy for e in record.evaluations],
        "gradient_course": [statistics.median(part) for part in parts],
        "gradient_course_largest": [max(part) for part in parts],
        "gradient_median": statistics.median(record.gradient_norms),
        "gradient_largest": max(record.gradient_norms),
        **_layer_gradients(record.watched[-1]),
    }


def _layer_gradients(seen: Watched) -> Figures:
    layers = [name for name in seen.gradient_norm if name.startswith("layer")]
    return {
        "layer_gradient_norm": [seen.gradient_norm[name] for name in layers],
        "layer_gradient_rms": [seen.gradient_rms[name] for name in layers],
    }
