"""What the trained experiments share: tasks at three sizes, models by name, and what is measured of each.

A task is a data set with the size of its models and the settings of their training:

- `images`: digits, a row of pixels per token; at paper size MNIST, a pixel per token, tested on 500 images
- `listops`: short expressions without SM; at paper size 1,000 tokens, SM among the operators
- `listops128`: at paper size expressions of about 128 tokens, SM among the operators, P2's width and depth
- `rows`, `layers` (for P1): digits, a row of pixels per token; at paper size MNIST, 28 rows
- `text` (for P1): synthetic topics; at paper size 20 Newsgroups, with P1's four layers, width 128, batches of 32 and
  five epochs

A model is a pre-LayerNorm Transformer, `transformer` or `other`, which differ in their name and so in every weight, or
a variant of the simulator. All are trained alike: nothing is tuned for one of them.

Weights and batches follow from the seed, and so do the expressions of ListOps and the synthetic topics; images and
posts have one fixed split. So an interval over seeds is over weights and batches, and for generated data over the data.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn

from pdebook.evidence.experiment import Scale, Workplace
from pdebook.evidence.systems import amplified
from pdebook.ledger.record import Figures, Key, Result, environment
from pdelab import datasets
from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.evaluation import Look, Watched
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import cka, cosine, fidelity
from pdelab.metrics.stability import fluctuation, nonuniformity, state_rms
from pdelab.models import VARIANTS, Model, simulator, transformer, with_ends
from pdelab.seeds import derive
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.training import Place, Settings, Training, patience, train

TRANSFORMERS = ("transformer", "other")

# Part of every Result, so that no figure is mistaken for another of the same name.
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
    """A training was stopped between two steps; what is done is in its checkpoint."""


@dataclass(frozen=True)
class Task:
    """A data set, the size of the models and the settings of their training.

    options: passed to datasets.load, such as the number of examples.
    probe: how many test examples the states are measured on.
    gain: multiplies the initial matrices of every layer.
    activation: of the feed-forward layers; recorded only where it is not ReLU.
    diffusion: D of the simulators; recorded only where it is not 1e-4. Long inputs need a small one: DΔt/Δx² ≤ 1/2.
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
        """Features inside the feed-forward layers."""
        return 4 * self.width

    def operations(self, tokens: float) -> float:
        """3 · batch · N · depth · (24d² + 4Nd): floating-point operations of one training step of the Transformer.

        d is the width, N the number of tokens. Each token costs 24d² in the weights of a layer and 4Nd in its attention
        to N tokens, once forward and twice backward. Only matrix products of the layers are counted, and not the part
        of the attention that the fused kernel computes again.
        """
        return 3 * self.settings.batch * tokens * self.depth * (24 * self.width**2 + 4 * tokens * self.width)

    def duration(self, tokens: float, models: float, rate: float, least: float = 0.0) -> float:
        """Seconds to train this many models at `rate` operations per second, each step taking at least `least`."""
        return self.settings.steps * models * max(self.operations(tokens) / rate, least)

    def cut(self, steps: int | None) -> "Task":
        """The same task with at most this many training steps, watched as often but evaluated at the end only."""
        if steps is None or steps >= self.settings.steps:
            return self
        shorter = replace(_settings(steps, len(self.settings.watch)), evaluate_every=None)
        kept = {name: getattr(shorter, name) for name in ("steps", "warmup", "evaluate_every", "watch")}
        return replace(self, settings=replace(self.settings, **kept))

    def cut_of(self, full: "Task") -> dict[str, str]:
        """For the Result of a task that was cut: which part of the full training was done."""
        return {} if self == full else {"cut": f"{self.settings.steps} of {full.settings.steps} training steps"}

    def load(self, seed: int) -> Dataset:
        """The data set; one that is generated depends on the seed."""
        own = {"seed": seed} if self.data.startswith(("listops", "synthetic")) else {}
        return datasets.load(self.data, **self.options, **own)

    def configuration(self) -> dict:
        """For the Result: sizes and settings, without those that change nothing, and what the figures mean."""
        chosen = asdict(self)
        for name, usual in (("activation", "relu"), ("diffusion", 1e-4)):
            if chosen[name] == usual:
                del chosen[name]
        return chosen | {"hidden": self.hidden, "definitions": DEFINITIONS, "settings": self.settings.that_matter()}


def _settings(steps: int, watched: int = 4, **others) -> Settings:
    """A tenth of the steps to warm up; watched before training, at a quarter, at half and at the end, or more often.

    watched: how often, if more than four times: at equal distances.
    """
    watch = (0, steps // 4, steps // 2, steps)
    if watched > len(watch):
        watch = tuple(dict.fromkeys(k * steps // (watched - 1) for k in range(watched)))
    return Settings(steps=steps, warmup=steps // 10, evaluate_every=max(1, steps // 4), watch=watch, **others)


WATCHED = 21  # how often P1's tasks watch the gradients of every layer
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
    "listops128": {
        Scale.SMOKE: Task("listops-16", _settings(40, batch=32), {"train": 1_000, "test": 200}, depth=2, width=16),
        Scale.PAPER: Task(
            "listops-128",
            _settings(3_000, batch=8, checkpoint_every=50),  # P2 prints no batch; 32 would take eight CPU hours
            {"train": 96_000, "test": 2_000},
            **_PAPER | {"diffusion": 4e-6},  # DΔt/Δx² = 0.017 for 160 tokens
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
    """The model named `kind`, untrained, between an embedding and a readout for the data.

    Its weights follow from the seed and the kind; with `shared` they follow from that name in place of the kind.
    """
    if kind not in (*TRANSFORMERS, *VARIANTS):
        raise ValueError(f"kind must be one of {', '.join((*TRANSFORMERS, *VARIANTS))}; not {kind!r}")

    own = derive(seed, shared or kind)
    sizes = {"width": task.width, "depth": task.depth, "heads": task.heads, "hidden": task.hidden}
    sizes |= {"activation": task.activation, "seed": own}
    core = transformer(**sizes) if kind in TRANSFORMERS else simulator(kind, **sizes, diffusion=task.diffusion)
    amplified(core, task.gain)

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
    """Build a model, train it as `trained` does, and give the two: model and record.

    label: added to the kind where one kind is trained several times. look: see `Settings`.
    """
    model = build(kind, task, data, seed, shared)
    seed = derive(seed, shared or kind, "training")
    return model, trained(model, data, task.settings, seed, work, kind + label, look=look)


def trained(
    model: nn.Module, data: Dataset, settings: Settings, seed: int, work: Workplace, name: str, **options
) -> Training:
    """Train any module as part of an experiment: on the device of the workplace, with a checkpoint under this name.

    options: changes of the settings, such as look=, objective= or penalty=.
    Raises Interrupted if the run was stopped: no half result is recorded, and the next run goes on from there.
    """
    place = Place(work.device, work.inside(name), work.progress, f"{data.name} {name}")
    with patience() as asked:
        record = train(model, data, replace(settings, **options), seed=seed, place=place)
    if asked or record.status == Status.INTERRUPTED:  # asked during the last step, the training is finished
        raise Interrupted(f"stopped after step {record.step} of {settings.steps} of {name}")
    return record


@dataclass
class Measured:
    """What was found out about a group of models: the models themselves, and the parts of a Result.

    diverged: model -> the step that failed. commits: of the code that trained them. records: model -> its training.
    """

    models: dict[str, Model] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    controls: Figures = field(default_factory=dict)
    diverged: dict[str, int] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    records: dict[str, Training] = field(default_factory=dict)

    def absorb(self, other: "Measured") -> None:
        """Add what was found out about another group of models."""
        self.models |= other.models
        self.figures |= other.figures
        self.controls |= other.controls
        self.diverged |= other.diverged
        self.records |= other.records
        self.made_by(other.commits)

    def made_by(self, commits: Sequence[str]) -> None:
        """Note the commits of the code that had a part in this, each once."""
        self.commits = [*dict.fromkeys([*self.commits, *commits])]

    def result(self, experiment: str, task: Task, scale: Scale, seed: int, **configuration) -> Result:
        """The Result, with the commits of all trainings, also of one that went on with other code, and today's."""
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
    """Train a model of every kind and measure it, beside the same model untrained and the controls of the data set.

    shared: one name for the seeds of all kinds. label: added to the name of each. states: measure the states as well.
    watching: the `look` of every training; what it saw is in `records`.
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
            found.figures |= named(name, state_figures(run))
            untrained = look(build(kind, task, data, seed, shared).to(run.final.device), probe)
            before = state_figures(untrained) | _layer_gradients(record.watched[0])
            found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
            found.controls |= named(name, {"other_input": other_input(run)})
    return found


def named(model: str, figures: Figures) -> Figures:
    """The figures of a model under the keys MODEL/figure.

    An empty list is left out: a model without weights in its layers, such as a given diffusion, has no gradients there.
    """
    return {Key(model, name): value for name, value in figures.items() if value != []}


@torch.no_grad()
def look(model: Model, examples: Examples) -> Trajectory:
    """Every state of the model on the examples, on the device of its weights."""
    examples = examples.to(next(model.parameters()).device)
    return model.trajectory(examples.x, examples.mask)


def state_figures(run: Trajectory) -> Figures:
    """One value per state, from the input to the output; DEFINITIONS says what each figure is."""
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
    """cos(u_l, v_0) per state, v another example: the one before it in the batch, at the tokens that both have."""
    both = None if run.mask is None else run.mask & run.mask.roll(1, dims=0)
    return [cosine(u, run.states[0].roll(1, dims=0), both).item() for u in run.states]


def training_figures(record: Training) -> Figures:
    """Accuracy, and gradient norms over the whole training and in up to 40 equal parts of it (`…_course`)."""
    last = record.evaluations[-1]
    size = math.ceil(record.step / 40)  # steps per part
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
    """One value per layer, without embedding and readout."""
    layers = [name for name in seen.gradient_norm if name.startswith("layer")]
    return {
        "layer_gradient_norm": [seen.gradient_norm[name] for name in layers],
        "layer_gradient_rms": [seen.gradient_rms[name] for name in layers],
    }
