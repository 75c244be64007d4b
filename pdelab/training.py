"""One training loop for classifiers and language models, which loses nothing.

A run is a function of (model, data, settings, seed): the batches of a step, and the random numbers of a layer that
draws some, follow from the seed and the step. So a checkpoint is weights, optimiser and record, and a run that goes on
from it gives the same bits as one that never stopped. A loss that is not finite ends the run as diverged: a result.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from pdelab import checkpoints
from pdelab.datasets.base import Dataset, Examples, shuffled_batches
from pdelab.files import commit
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import gradient_norms, nonuniformity, state_rms
from pdelab.models import Model
from pdelab.seeds import derive
from pdelab.status import Status

DECAYS = ("cosine", "none")
Penalty = Callable[[nn.Module, Examples], Tensor]
Look = Callable[[nn.Module], dict[str, float | list[float]]]
PROBE = 64  # training examples for the gradients that are watched, and test examples for the states


@dataclass(frozen=True)
class Settings:
    """How to train: AdamW, a linear warm-up to `rate`, then a cosine towards 0 or no decay.

    Weight decay acts on all weights alike, gains, biases and embeddings among them.

    clip: the largest whole gradient norm that passes unchanged; None: no clipping. The record says when it acted.
    evaluate_every, checkpoint_every: in steps; the last step is always evaluated and kept.
    watch: steps after which gradient norms per layer and statistics of the states are recorded; 0 is before training.
    """

    steps: int
    batch: int = 64
    rate: float = 1e-3
    warmup: int = 0
    decay: str = "cosine"
    weight_decay: float = 0.01
    clip: float | None = None
    evaluate_every: int | None = None
    checkpoint_every: int = 100
    watch: tuple[int, ...] = ()

    def __post_init__(self):
        evaluate_every = 1 if self.evaluate_every is None else self.evaluate_every  # None: at the end only
        least = {"steps": 1, "batch": 1, "warmup": 0, "checkpoint_every": 1, "evaluate_every": 1}
        for name, value in (vars(self) | {"evaluate_every": evaluate_every}).items():
            if name in least and not (isinstance(value, int) and value >= least[name]):
                raise ValueError(f"{name} must be a whole number of at least {least[name]}; not {value!r}")
        if self.warmup > self.steps:
            raise ValueError(f"warmup must be at most the {self.steps} steps; not {self.warmup}")
        numbers = (self.rate, self.weight_decay, 1.0 if self.clip is None else self.clip)
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError(f"rate, weight_decay and clip must be numbers; not {numbers}")
        if not isinstance(self.watch, tuple | list | range):
            raise ValueError(f"watch must be a tuple of steps, such as (0, {self.steps}); not {self.watch!r}")
        if not 0 < self.rate < math.inf or (self.clip is not None and not self.clip > 0):
            raise ValueError(f"rate and clip must be positive and finite; not {self.rate} and {self.clip}")
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(DECAYS)}; not {self.decay!r}")
        if beyond := [step for step in self.watch if not 0 <= step <= self.steps]:
            raise ValueError(f"watch must name steps from 0 to {self.steps}; not {beyond}")

    def that_matter(self) -> dict:
        """What a run depends on; how often it is kept may change when it goes on."""
        chosen = asdict(self) | {"watch": list(self.watch)}
        del chosen["checkpoint_every"]
        return chosen

    def rate_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …: rate · (step+1)/warmup, then rate · ½(1 + cos πs), s = 0 … below 1."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.decay == "none":
            return self.rate
        s = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (1 + math.cos(math.pi * s)) / 2


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy over `examples`, with Wilson's 95 % interval for the accuracy."""

    step: int
    loss: float
    accuracy: float
    low: float
    high: float
    examples: int

    def __str__(self) -> str:
        return f"{self.accuracy:.3f} [{self.low:.3f}, {self.high:.3f}] on {self.examples} examples"


@dataclass(frozen=True)
class Watched:
    """What was seen at one step: norms of the gradient per layer, and one value per state from embedding to output.

    All in eval mode and on the same examples at every step, whatever the model: the gradient of the loss on the first
    training examples, unsorted, and the states of the first test examples (PROBE of each).
    gradient_norm: the whole norm, √Σg² over a layer's weights; gradient_rms: the same over √(number of weights).
    state_rms: root mean square of the entries; fidelity: cosine with the input; nonuniformity: ‖u − μ‖/‖u‖.
    looked: what the caller's own `look` gave.
    """

    step: int
    gradient_norm: dict[str, float]
    gradient_rms: dict[str, float]
    state_rms: list[float] = field(default_factory=list)
    fidelity: list[float] = field(default_factory=list)
    nonuniformity: list[float] = field(default_factory=list)
    looked: dict[str, float | list[float]] = field(default_factory=dict)


@dataclass
class Training:
    """The record of a run. Losses and whole gradient norms (before clipping) have one entry per step done.

    With a penalty the losses hold it; `penalties` are its share. clipped: the steps at which clipping acted, from 1.
    commits: of the package; several if it changed between restarts.
    """

    status: Status = Status.INTERRUPTED
    stopped_at: int | None = None
    losses: list[float] = field(default_factory=list)
    penalties: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def read(cls, kept: dict) -> "Training":
        """The record that a checkpoint holds."""
        evaluations = [Evaluation(**one) for one in kept["evaluations"]]
        watched = [Watched(**one) for one in kept["watched"]]
        return cls(**kept | {"status": Status(kept["status"]), "evaluations": evaluations, "watched": watched})

    @property
    def step(self) -> int:
        """Steps done; a diverged run failed in the next, `stopped_at`."""
        return len(self.losses)

    @property
    def accuracy(self) -> float:
        """The last evaluation's."""
        return self.evaluations[-1].accuracy if self.evaluations else math.nan


def wilson(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """(p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n), Wilson's interval for a share p of n.

    >>> low, high = wilson(0, 10)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.278)
    """
    p, n = successes / trials, trials
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + z**2 / n)), min(1.0, (middle + half) / (1 + z**2 / n))


def choose_device(device: str = "auto") -> torch.device:
    """auto: CUDA if there is one, else MPS, else the CPU."""
    if device != "auto":
        if torch.device(device).type == "meta":
            raise ValueError("device must be one that computes, such as cpu, cuda or mps; not meta")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _loss(logits: Tensor, batch: Examples, classes: int = 0) -> Tensor:
    """Cross-entropy over classes (batch, class), or over real tokens (batch, token, class)."""
    if not isinstance(logits, Tensor) or logits.shape[:-1] != batch.y.shape:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"model must give one row of scores for each answer, {(*batch.y.shape, 'class')}; it gives {given} "
            "(next symbols need an answer for every token, pool=False in with_ends)"
        )
    if logits.shape[-1] < classes:
        raise ValueError(f"model must give a score for each of the {classes} classes; it gives {logits.shape[-1]}")
    if batch.y.ndim == 1 or batch.mask is None:
        return cross_entropy(logits.flatten(0, -2), batch.y.flatten())
    return cross_entropy(logits[batch.mask], batch.y[batch.mask])


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, *, step: int = 0, batch: int = 64) -> Evaluation:
    """Loss and accuracy; an answer that is not a number is wrong.

    For language models an example's accuracy is that of its tokens, which depend on each other: the interval counts
    examples, not tokens, and is wider than need be if the examples are independent. The loss is per answer.
    Examples of like length are evaluated together: less padding.
    """
    if not len(examples):
        raise ValueError("examples is empty; give at least one")
    if examples.mask is not None:
        examples = examples.take(examples.by_length())
    device = _device(model)
    loss, right, answers = 0.0, 0.0, 0
    with _evaluating(model):
        for part in examples.batches(batch):
            part = part.to(device)
            logits = model(part.x, part.mask)
            correct = (logits.argmax(dim=-1) == part.y) & torch.isfinite(logits).all(dim=-1)
            number = len(part)
            if correct.ndim == 2:
                real = part.mask if part.mask is not None else torch.ones_like(correct)
                correct, number = (correct & real).sum(dim=1) / real.sum(dim=1), int(real.sum())
            loss, answers = loss + _loss(logits, part).item() * number, answers + number
            right += correct.float().sum().item()
    low, high = wilson(right, len(examples))
    return Evaluation(step, loss / answers, right / len(examples), low, high, len(examples))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _parts(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of each layer of ours, or of each child of another module; `own` are those of no child."""
    parts = model.layers() if isinstance(model, Model) else dict(model.named_children())
    found = {name: list(part.parameters()) for name, part in parts.items()}
    own = [] if isinstance(model, Model) else list(model.parameters(recurse=False))
    return found | ({"own": own} if own else {})


def _watch(model: nn.Module, data: Dataset, step: int, look: Look | None) -> Watched:
    """What `Watched` says, at the weights of now; the model and its mode are left as they were."""
    device = _device(model)
    with _evaluating(model):
        batch = data.train.take(slice(0, PROBE)).to(device)
        model.zero_grad()
        _loss(model(batch.x, batch.mask), batch, data.classes).backward()
        groups = {name: [p.grad for p in part] for name, part in _parts(model).items()}
        seen = Watched(step, gradient_norms(groups), gradient_norms(groups, normalise="rms"))
        model.zero_grad()
        if isinstance(model, Model):
            probe = data.test.take(slice(0, PROBE)).to(device)
            with torch.no_grad():
                run = model.trajectory(probe.x, probe.mask)
            seen.state_rms.extend(per_layer(state_rms, run).tolist())
            seen.fidelity.extend(fidelity(run).tolist())
            seen.nonuniformity.extend(per_layer(nonuniformity, run).tolist())
        if look is not None:
            with torch.no_grad():
                seen.looked.update(look(model))
    return seen


@contextmanager
def patience() -> Iterator[list]:
    """Ctrl-C or a notebook's stop button is noted, not obeyed at once: a half-made step would be lost or, worse, kept.

    A second one is obeyed at once, unless it follows within a second: a terminal tells parent and child alike, and the
    parent tells the child again.
    """
    asked: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number, frame):
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: set by something other than Python


def train(
    model: nn.Module,
    data: Dataset,
    settings: Settings,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    folder: Path | str | None = None,
    progress: bool | int = True,
    name: str = "training",
    objective: Penalty | None = None,
    penalty: Penalty | None = None,
    look: Look | None = None,
) -> Training:
    """Train the model in place, from the weights it has, and give the record.

    model: any module with model(x, mask) → logits, (batch, class) or (batch, token, class). One that gives every token
    an answer must not see the tokens after it: causal=True in `transformer`.
    progress: a bar with loss and gradient norm; a number is the line of the terminal, from 1.
    folder: where checkpoint.pt is kept; a run that finds one goes on from it, bit for bit on the same machine.
    objective: objective(model, batch), one number, in place of the cross-entropy of the answers.
    penalty: penalty(model, batch), one number, is added to the loss of every step, right after model(x, mask); the
    evaluations are without it. With a folder both must be functions of a module, or a functools.partial of one: by that
    a checkpoint knows them.
    look: look(model) gives named numbers to record at the steps of settings.watch, in eval mode, without gradients.
    With a folder its repr has to say what it is, as a dataclass's does: by that a checkpoint knows it.
    An interruption (Ctrl-C, a notebook's stop button) ends the run after the current step with status "interrupted":
    weights, record and checkpoint are those of that step, and the same call goes on from there.
    """
    device = choose_device(str(device))
    _check(data, settings, seed)
    model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)
    with ExitStack() as stack:
        record, save = Training(), lambda: None
        if folder is not None:
            path = Path(folder) / "checkpoint.pt"
            given = {"objective": objective, "penalty": penalty}
            chosen = settings.that_matter() | {key: _name(f) for key, f in given.items() if f is not None}
            own = checkpoints.fingerprint(model, data, chosen, seed) | {"look": None if look is None else repr(look)}
            stack.enter_context(checkpoints.alone_in(path.parent))
            if path.exists():
                record = Training.read(checkpoints.load(path, own, model, optimiser))

            def save() -> None:
                checkpoints.save(path, own, model, optimiser, asdict(record))

        if record.status == Status.INTERRUPTED:
            _run(model, optimiser, data, settings, seed, record, save, progress, name, objective, penalty, look)
    model.eval()
    return record


def _name(penalty: Penalty) -> str:
    """What tells one objective or penalty from another; a lambda or a closure cannot be told from the next."""
    if isinstance(penalty, partial):
        return f"{_name(penalty.func)} {penalty.args} {sorted(penalty.keywords.items())}"
    name = getattr(penalty, "__qualname__", "<object>")
    if "<" in name:
        raise ValueError(
            "objective and penalty must be functions of a module, or partials of such, for a run kept in a folder: "
            f"by {name} a checkpoint could not tell it from another"
        )
    return f"{penalty.__module__}.{name}"


def _check(data: Dataset, settings: Settings, seed: int) -> None:
    for name, value, kind in (("data", data, Dataset), ("settings", settings, Settings)):
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be a {kind.__name__}; not {type(value).__name__}")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0; not {seed!r}")
    if not len(data.test):
        raise ValueError("data has no test examples")
    if settings.batch > len(data.train):
        raise ValueError(f"batch must be at most the {len(data.train)} training examples; not {settings.batch}")
    for part in (data.train, data.test):
        if part.x.is_floating_point() and not torch.isfinite(part.x).all():
            raise ValueError("data has NaN or infinite values in x")
        for name, values, number in (("classes", part.y, data.classes), ("symbols", part.x, data.symbols)):
            low, high = values.min().item(), values.max().item()
            if number is not None and not 0 <= low <= high < number:
                raise ValueError(f"data has {name} from {low} to {high}; they must lie in 0 to {number - 1}")


def _run(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: Dataset,
    settings: Settings,
    seed: int,
    record: Training,
    save: Callable[[], None],
    progress: int,
    name: str,
    objective: Penalty | None,
    penalty: Penalty | None,
    look: Look | None,
) -> None:
    """The steps that are still to do, noted in the record."""
    device = _device(model)
    record.commits += [commit()] if commit() not in record.commits else []
    started = time.perf_counter() - record.seconds

    def keep() -> None:
        record.seconds = time.perf_counter() - started
        save()

    batch_at = _batches(data.train, settings.batch, seed, device)
    bar = tqdm(
        total=settings.steps,
        initial=record.step,
        desc=name,
        disable=not progress,
        position=max(int(progress) - 1, 0),
        leave=None,
        mininterval=0.5,
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), patience() as asked, bar:
        for step in range(record.step, settings.steps):
            batch = batch_at(step)
            if step in settings.watch:
                record.watched.append(_watch(model, data, step, look))
            _draw_from(derive(seed, "step", step), device)
            if not _step(model, optimiser, batch, data.classes, settings, record, objective, penalty):
                record.status, record.stopped_at = Status.DIVERGED, step + 1
                break
            bar.set_postfix(loss=f"{record.losses[-1]:.3f}", gradient=f"{record.gradient_norms[-1]:.2g}", refresh=False)
            bar.update()
            if record.step == settings.steps or (
                settings.evaluate_every and record.step % settings.evaluate_every == 0
            ):
                record.evaluations.append(evaluate(model, data.test, step=record.step))
                if not math.isfinite(record.evaluations[-1].loss):  # the step itself moved the weights out of range
                    record.status, record.stopped_at = Status.DIVERGED, step + 1
                    break
            if asked:
                break
            if record.step % settings.checkpoint_every == 0:
                keep()
        if record.step == settings.steps and record.status == Status.INTERRUPTED:
            if settings.steps in settings.watch:
                record.watched.append(_watch(model, data, settings.steps, look))
            record.status = Status.FINISHED
        keep()


def _batches(examples: Examples, size: int, seed: int, device: torch.device) -> Callable[[int], Examples]:
    """step → its batch, wherever the run starts."""
    per_epoch = len(examples) // size
    order = lru_cache(maxsize=1)(lambda epoch: shuffled_batches(examples, size, seed, epoch))
    return lambda step: examples.take(order(step // per_epoch)[step % per_epoch]).to(device)


def _step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Examples,
    classes: int,
    settings: Settings,
    record: Training,
    objective: Penalty | None,
    penalty: Penalty | None,
) -> bool:
    """One step, unless loss or gradient is not finite: then the weights stay as they are."""
    for group in optimiser.param_groups:
        group["lr"] = settings.rate_at(record.step)
    optimiser.zero_grad()
    loss = objective(model, batch) if objective is not None else _loss(model(batch.x, batch.mask), batch, classes)
    extra = penalty(model, batch) if penalty is not None else torch.zeros((), device=batch.x.device)
    for what, value in (("objective", loss), ("penalty", extra)):
        if not isinstance(value, Tensor) or value.shape != ():
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{what} must give one number, a tensor of shape (); not {given}")
    loss = loss + extra
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf).item()
    if not math.isfinite(loss.item()) or not math.isfinite(norm):
        return False
    optimiser.step()
    record.losses.append(loss.item())
    if penalty is not None:
        record.penalties.append(extra.item())
    record.gradient_norms.append(norm)
    if settings.clip is not None and norm > settings.clip:
        record.clipped.append(record.step)
    return True


def _draw_from(seed: int, device: torch.device) -> None:
    """Dropout and the like draw from a step's own seed; the caller has forked the generators, but for that of MPS."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
