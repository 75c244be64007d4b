"""One training loop for classifiers and language models, which loses nothing.

A run is a function of (model, data, settings, seed): the batches of a step, and the random numbers of a layer that
draws some, follow from the seed and the step. So a checkpoint is weights, optimiser and record, and a run that goes on
from it gives the same bits as one that never stopped. A loss that is not finite ends the run as diverged: a result.

Where torch.distributed is initialised, as under torchrun, all processes train one model: each takes its share of every
batch, and the gradient is that of the whole batch, to rounding. The first process alone has the checkpoint.
"""

import io
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from tqdm.auto import tqdm

from pdelab import checkpoints
from pdelab.datasets.base import Dataset, Examples, shuffled_batches
from pdelab.evaluation import Evaluation, Look, Watched, answer_loss, device_of, evaluate, watch
from pdelab.files import commit
from pdelab.options import choose, function, instance, number, positive, whole
from pdelab.seeds import derive
from pdelab.status import Status

DECAYS = ("cosine", "none")
HOOKS = ("objective", "penalty", "look")
TOLD: ContextVar[list | None] = ContextVar("told", default=None)  # for a thread that no signal reaches: see `patience`
Objective = Callable[[nn.Module, Examples], Tensor]


@dataclass(frozen=True)
class Settings:
    """How to train: AdamW, a linear warm-up to `rate`, then a cosine towards 0 or no decay.

    Weight decay acts on all weights alike, gains, biases and embeddings among them.

    clip: the largest whole gradient norm that passes unchanged; None: no clipping. The record says when it acted.
    evaluate_every, checkpoint_every: in steps; the last step is always evaluated and kept.
    watch: steps after which gradient norms per layer and statistics of the states are recorded; 0 is before training.
    look: look(model) gives named numbers, lists or tensors to record at those steps, in eval mode, without gradients.
    objective: objective(model, batch), one number, in place of the cross-entropy of the answers.
    penalty: penalty(model, batch), one number, is added to the loss of every step, right after model(x, mask); the
    evaluations are without it.

    A run that is kept in a folder knows look, objective and penalty by name: each must be a function of a module, a
    functools.partial of one, or a dataclass. What a look gives is in the record; what it keeps for itself is lost when
    a run is stopped.
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
    look: Look | None = None
    objective: Objective | None = None
    penalty: Objective | None = None

    def __post_init__(self):
        def plain(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # as a checkpoint can hold it: not a number of NumPy's

        for name, least in (("steps", 1), ("batch", 1), ("warmup", 0), ("checkpoint_every", 1)):
            plain(name, whole(name, getattr(self, name), least, 10**9))
        if self.evaluate_every is not None:  # None: at the end only
            plain("evaluate_every", whole("evaluate_every", self.evaluate_every, most=10**9))
        if self.warmup > self.steps:
            raise ValueError(f"warmup must be at most the {self.steps} steps; not {self.warmup}")
        plain("rate", positive("rate", self.rate))
        plain("weight_decay", number("weight_decay", self.weight_decay, 0))
        if self.clip is not None:
            plain("clip", positive("clip", self.clip))
        choose("decay", self.decay, DECAYS)
        if not isinstance(self.watch, tuple | list | range):
            raise ValueError(f"watch must be a tuple of steps, such as (0, {self.steps}); not {self.watch!r}")
        plain("watch", tuple(whole("watch", step, 0, self.steps) for step in self.watch))
        for name in HOOKS:
            if getattr(self, name) is not None:
                function(name, getattr(self, name))

    def that_matter(self) -> dict:
        """The numbers that a run depends on; how often it is kept may change when it goes on."""
        chosen = {name: value for name, value in vars(self).items() if name not in ("checkpoint_every", *HOOKS)}
        return chosen | {"watch": list(self.watch)}

    def names(self) -> dict[str, str]:
        """What tells look, objective and penalty from others, those that are given."""
        given = {name: getattr(self, name) for name in HOOKS}
        return {name: checkpoints.identity(name, hook) for name, hook in given.items() if hook is not None}

    def rate_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …: rate · (step+1)/warmup, then rate · ½(1 + cos πs), s = 0 … below 1."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.decay == "none":
            return self.rate
        s = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (1 + math.cos(math.pi * s)) / 2


@dataclass(frozen=True)
class Place:
    """Where a run is done; no part of what it is. Another device may change a result by rounding.

    device: cpu, cuda, cuda:1, mps, or auto for the best there is.
    folder: where checkpoint.pt is kept; a run that finds one goes on from it, bit for bit on the same machine.
    progress: a bar with loss and gradient norm; a number is the line of the terminal, from 1.
    name: what stands beside the bar.
    """

    device: str | torch.device = "cpu"
    folder: Path | str | None = None
    progress: bool | int = True
    name: str = "training"

    def __post_init__(self):
        if self.folder is not None:
            instance("folder", self.folder, Path, str)
        if not isinstance(self.progress, bool):
            whole("progress", self.progress, 0)


HERE = Place()


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

    def plain(self) -> dict:
        """The record in dicts, lists, strings, numbers and tensors, as a checkpoint holds it."""
        return asdict(self) | {"status": self.status.value}

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


def choose_device(device: str = "auto") -> torch.device:
    """auto: CUDA if there is one, else MPS, else the CPU."""
    if device != "auto":
        try:
            torch.empty(0, device=device)  # as it may be known and not be here
            meta = torch.device(device).type == "meta"
        except (TypeError, RuntimeError, AssertionError) as error:
            raise ValueError(f"device must be one that is here, such as cpu; not {device!r} ({error})") from error
        if meta:
            raise ValueError("device must be one that computes, such as cpu, cuda or mps; not meta")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@contextmanager
def patience() -> Iterator[list]:
    """Ctrl-C or a notebook's stop button is noted, not obeyed at once: a half-made step would be lost or, worse, kept.

    A second one is obeyed at once, unless it follows within a second: a terminal tells parent and child alike, and the
    parent tells the child again. Where one stands inside another, they share the list. Where TOLD is set, somebody else
    notes in that list what no signal can tell this thread.
    """
    if (told := TOLD.get()) is not None:
        yield told
        return

    before = signal.getsignal(signal.SIGINT)
    asked: list[float] = getattr(before, "asked", [])
    if hasattr(before, "asked") or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number, frame):
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > 1:
            raise KeyboardInterrupt

    note.asked = asked
    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: set by something other than Python


def group() -> tuple[int, int]:
    """(rank, size): which of the processes that train together this one is; (0, 1) where it is alone."""
    together = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)


def of_first(value: Any) -> Any:
    """What the first of the processes that train together has; all others wait for it."""
    if group()[1] > 1:
        given = [value]
        with _all_there():
            distributed.broadcast_object_list(given)
        value = given[0]
    return value


def train(model: nn.Module, data: Dataset, settings: Settings, *, seed: int, place: Place = HERE) -> Training:
    """Train the model in place, from the weights it has, and give the record.

    model: any module with model(x, mask) → logits, (batch, class) or (batch, token, class). One that gives every token
    an answer must not see the tokens after it: causal=True in `transformer`.
    place: device, folder for a checkpoint, progress bar.
    An interruption (Ctrl-C, a notebook's stop button) ends the run after the current step with status "interrupted":
    weights, record and checkpoint are those of that step, and the same call goes on from there.

    Where torch.distributed is initialised every process makes this call, and all end with the weights and the record of
    one that is alone, to rounding. The first process's weights and checkpoint count, and it alone writes. Layers that
    draw random numbers draw others in each process, and batch statistics are those of a share. An objective or penalty
    is refused, as a share cannot tell what it is of a whole batch.
    """
    instance("model", model, nn.Module)
    seed = whole("seed", seed, 0, 2**64 - 1)
    _check(data, settings, place)
    model.to(choose_device(str(place.device))).train()
    loop = _Loop(model, data, settings, seed)

    if place.folder is None:
        loop.run(place)
    else:
        own = checkpoints.fingerprint(model, data, settings.that_matter() | settings.names(), seed)
        with checkpoints.alone_in(Path(place.folder)) if loop.rank == 0 else nullcontext():
            loop.go_on(Path(place.folder) / "checkpoint.pt", own)
            loop.run(place)

    model.eval()
    return loop.record


def _check(data: Dataset, settings: Settings, place: Place) -> None:
    instance("data", data, Dataset)
    instance("settings", settings, Settings)
    instance("place", place, Place)
    if not len(data.test):
        raise ValueError("data has no test examples")
    if settings.batch > len(data.train):
        raise ValueError(f"batch must be at most the {len(data.train)} training examples; not {settings.batch}")
    size = group()[1]
    if settings.batch % size:
        words = f"a multiple of {size}, the number of processes that train together"
        raise ValueError(f"batch must be {words}; not {settings.batch}")
    for name in ("objective", "penalty"):
        if size > 1 and getattr(settings, name) is not None:
            words = "is of a whole batch, of which each process has a share; train in one process"
            raise ValueError(f"{name} {words}")
    for part in (data.train, data.test):
        if part.x.is_floating_point() and not torch.isfinite(part.x).all():
            raise ValueError("data has NaN or infinite values in x")
        for name, values, known in (("classes", part.y, data.classes), ("symbols", part.x, data.symbols)):
            low, high = values.min().item(), values.max().item()
            if known is not None and not 0 <= low <= high < known:
                raise ValueError(f"data has {name} from {low} to {high}; they must lie in 0 to {known - 1}")


class _Loop:
    """One run: the model, its optimiser, and the record of the steps that are done."""

    def __init__(self, model: nn.Module, data: Dataset, settings: Settings, seed: int):
        self.model, self.data, self.settings, self.seed = model, data, settings, seed
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)
        self.record = Training()
        self.device = device_of(model)
        self.rank, self.size = group()
        self.asked: list = []  # to stop
        self.save: Callable[[dict], None] = lambda record: None
        self.order = lru_cache(maxsize=1)(partial(shuffled_batches, data.train, settings.batch, seed))

    def go_on(self, path: Path, own: dict) -> None:
        """From the checkpoint, if there is one of the run with this fingerprint; from now on it is kept there."""
        if self.rank > 0:
            return
        if path.exists():
            self.record = checkpoints.load(path, own, self.model, self.optimiser, Training.read)
        self.save = partial(checkpoints.save, path, own, self.model, self.optimiser)

    def run(self, place: Place) -> None:
        """The steps that are still to do, noted in the record."""
        self._begin_alike()
        record, settings = self.record, self.settings
        if record.status != Status.INTERRUPTED:
            return

        record.commits += [commit()] if commit() not in record.commits else []
        started = time.perf_counter() - record.seconds
        bar = tqdm(
            total=settings.steps,
            initial=record.step,
            desc=place.name,
            disable=not place.progress or self.rank > 0,
            position=max(int(place.progress) - 1, 0),
            leave=None,
            mininterval=0.5,
        )

        def keep() -> None:
            record.seconds = time.perf_counter() - started
            self.save(record.plain())

        generators = torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])
        with generators, patience() as self.asked, bar:
            while not self._stopping() and record.step < settings.steps:
                step = record.step + 1
                self._watch()
                if not (self._step() and self._evaluate()):
                    record.status, record.stopped_at = Status.DIVERGED, step
                    break
                bar.set_postfix(
                    loss=f"{record.losses[-1]:.3f}", gradient=f"{record.gradient_norms[-1]:.2g}", refresh=False
                )
                bar.update()
                if record.step % settings.checkpoint_every == 0:
                    keep()

            if record.step == settings.steps and record.status == Status.INTERRUPTED:
                self._watch()
                record.status = Status.FINISHED
            keep()

    def _begin_alike(self) -> None:
        """Every process goes on from the first one's weights, optimiser and record."""
        if self.size == 1:
            return
        own = checkpoints.fingerprint(self.model, self.data, self.settings.that_matter(), self.seed)
        state = io.BytesIO()  # as a checkpoint, which may move to another device
        torch.save([self.model.state_dict(), self.optimiser.state_dict(), self.record.plain()], state)
        theirs, kept = of_first((own, state.getvalue()))
        if other := [key for key in own if key != "first weights" and own[key] != theirs[key]]:
            raise ValueError(f"{' and '.join(other)} must be the same in all processes that train together")
        if self.rank > 0:
            weights, optimiser, record = torch.load(io.BytesIO(kept), map_location="cpu", weights_only=True)
            self.model.load_state_dict(weights)
            self.optimiser.load_state_dict(optimiser)
            self.record = Training.read(record)

    def _stopping(self) -> bool:
        """Whether anyone has asked to stop: processes that train together stop after the same step, and all know it."""
        if self.size == 1:
            return bool(self.asked)
        anyone = torch.tensor(float(bool(self.asked)), device=self.device)
        with _all_there():
            distributed.all_reduce(anyone)
        if anyone and not self.asked:
            self.asked.append(math.inf)  # no Ctrl-C of this process, after which a second would be obeyed at once
        return bool(anyone)

    def _watch(self) -> None:
        """Note what is to be seen after the steps done so far, if the settings ask for it."""
        step = self.record.step
        if step in self.settings.watch:
            _draw_from(derive(self.seed, "watch", step), self.device)
            self.record.watched.append(watch(self.model, self.data, step, self.settings.look))

    def _evaluate(self) -> bool:
        """Evaluate where the settings ask for it; False if the last step moved the weights out of range."""
        record, every = self.record, self.settings.evaluate_every
        if record.step < self.settings.steps and (every is None or record.step % every):
            return True
        found = evaluate(self.model, self.data.test, step=record.step)
        record.evaluations.append(of_first(found))  # whether it is finite decides for all
        return math.isfinite(record.evaluations[-1].loss)

    def _step(self) -> bool:
        """One step; False if loss or gradient is not finite, and then the weights stay as they are."""
        record, settings = self.record, self.settings
        batch, share = self._batch(record.step)
        own = (self.rank,) if self.rank else ()
        _draw_from(derive(self.seed, "step", record.step, *own), self.device)
        for weights in self.optimiser.param_groups:
            weights["lr"] = settings.rate_at(record.step)
        self.optimiser.zero_grad()

        loss, penalty = self._loss(batch, share)
        loss.backward()
        loss = self._summed(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf).item()
        if not math.isfinite(loss.item()) or not math.isfinite(norm):
            return False
        self.optimiser.step()

        record.losses.append(loss.item())
        record.gradient_norms.append(norm)
        if settings.penalty is not None:
            record.penalties.append(penalty.item())
        if settings.clip is not None and norm > settings.clip:
            record.clipped.append(record.step)
        return True

    def _summed(self, loss: Tensor) -> Tensor:
        """Σ over the processes of the loss and of the gradients, each of which is a share of the whole batch's.

        One sum by hand: DistributedDataParallel would be another module than the one that looks and checkpoints know.
        """
        if self.size == 1:
            return loss
        weights = [one for one in self.model.parameters() if one.requires_grad]
        used = loss.new_tensor([one.grad is not None for one in weights])
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
        flat = torch.cat([*(part.flatten() for part in parts), used, loss[None]])
        with _all_there():
            distributed.all_reduce(flat)

        *parts, used, loss = flat.split([*(one.numel() for one in weights), len(weights), 1])
        for one, part, counted in zip(weights, parts, used.tolist(), strict=True):
            one.grad = part.view_as(one).to(one.dtype) if counted else None  # None: no process has it in its graph
        return loss[0]

    def _loss(self, batch: Examples, share: float) -> tuple[Tensor, Tensor]:
        """What is minimised on the batch, the penalty included, and the penalty; this process's share of the two."""
        model, settings = self.model, self.settings
        if settings.objective is not None:
            loss = settings.objective(model, batch)
        else:
            loss = answer_loss(model(batch.x, batch.mask), batch, self.data.classes)
        penalty = torch.zeros((), device=self.device) if settings.penalty is None else settings.penalty(model, batch)

        for name, value in (("objective", loss), ("penalty", penalty)):
            if not isinstance(value, Tensor) or value.shape != ():
                given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"{name} must give one number, a tensor of shape (); not {given}")
            if not value.requires_grad and value.abs() > 0:  # 0 may mean that there is none in this step
                raise ValueError(f"{name} must keep its graph, or nothing learns from it; not detached, nor no_grad")
        if self.size > 1:
            loss = loss * share
        return loss + penalty, penalty

    def _batch(self, step: int) -> tuple[Examples, float]:
        """The examples of a step, wherever the run starts, and their share of the loss.

        Of several processes each has as many examples, padded alike.
        """
        per_epoch = len(self.data.train) // self.settings.batch
        index = self.order(step // per_epoch)[step % per_epoch]
        whole = self.data.train.take(index)
        if self.size == 1:
            return whole.to(self.device), 1.0
        rows = slice(self.rank, None, self.size)
        part = Examples(whole.x[rows], whole.y[rows], None if whole.mask is None else whole.mask[rows])
        # the loss is a mean over answers, of which a share of the examples may have more than its share
        tokens = whole.y.ndim == 2 and whole.mask is not None
        share = part.mask.sum().item() / whole.mask.sum().item() if tokens else 1 / self.size
        return part.to(self.device), share


@contextmanager
def _all_there() -> Iterator[None]:
    """What all processes do at once fails in ours, in our words, when another is gone."""
    try:
        yield
    except RuntimeError as error:
        words = "a process that trains with this one is gone; the same command goes on from the checkpoint"
        raise ConnectionError(words) from error


def _draw_from(seed: int, device: torch.device) -> None:
    """Dropout and the like draw from a step's own seed; the caller has forked the generators, but for that of MPS."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
