"""What is measured of a model in training: loss and accuracy, gradients per layer, states, and a look of your own."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdelab.datasets.base import Dataset, Examples
from pdelab.field import described
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import gradient_norms, nonuniformity, state_rms
from pdelab.models import Model
from pdelab.options import function, instance, number, positive, whole

Looked = dict[str, float | list[float] | Tensor]
Look = Callable[[nn.Module], Looked]
PROBE = 64  # training examples for the gradients that are watched, and test examples for the states


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
    looked: what the `look` of the settings gave.
    """

    step: int
    gradient_norm: dict[str, float]
    gradient_rms: dict[str, float]
    state_rms: list[float] = field(default_factory=list)
    fidelity: list[float] = field(default_factory=list)
    nonuniformity: list[float] = field(default_factory=list)
    looked: Looked = field(default_factory=dict)


def wilson(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """(p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n), Wilson's interval for a share p of n.

    >>> low, high = wilson(0, 10)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.278)
    """
    # written out, as scipy.stats.binomtest takes whole successes only: a sequence may be right in part of its tokens
    n = whole("trials", trials, most=10**12)
    p, z = number("successes", successes, 0, n) / n, positive("z", z)
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + z**2 / n)), min(1.0, (middle + half) / (1 + z**2 / n))


def answer_loss(logits: Tensor, batch: Examples, classes: int = 0) -> Tensor:
    """Cross-entropy of the answers, over classes (batch, class) or over real tokens (batch, token, class).

    classes: the least number of scores that the model must give for each answer.
    """
    instance("batch", batch, Examples)
    shaped = isinstance(logits, Tensor) and logits.is_floating_point() and logits.shape[:-1] == batch.y.shape
    if not shaped:
        raise ValueError(
            f"model must give one row of scores for each answer, {(*batch.y.shape, 'class')}; it gives "
            f"{described(logits)} as logits (next symbols need an answer for every token, pool=False in with_ends)"
        )
    if logits.shape[-1] < classes:
        given = f"{logits.shape[-1]} logits"
        raise ValueError(f"model must give a score for each of the {classes} classes; it gives {given}")

    if batch.y.ndim == 1 or batch.mask is None:
        return cross_entropy(logits.flatten(0, -2), batch.y.flatten())
    return cross_entropy(logits[batch.mask], batch.y[batch.mask])


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, *, step: int = 0, batch: int = 64) -> Evaluation:
    """Loss and accuracy of the model in eval mode; an answer that is not a number is wrong.

    For language models an example's accuracy is that of its tokens, which depend on each other: the interval counts
    examples, not tokens, and is wider than need be if the examples are independent. The loss is per answer.
    Examples of like length are evaluated together: less padding.
    """
    device = device_of(model)
    if not len(instance("examples", examples, Examples)):
        raise ValueError("examples is empty; give at least one")
    whole("batch", batch, most=2**63)
    if examples.mask is not None:
        examples = examples.take(examples.by_length())

    loss, right, answers = 0.0, 0.0, 0
    with _evaluating(model):
        for part in examples.batches(batch):
            part = part.to(device)
            logits = model(part.x, part.mask)
            correct = (logits.argmax(dim=-1) == part.y) & torch.isfinite(logits).all(dim=-1)
            number = len(part)
            if correct.ndim == 2:
                real = part.mask if part.mask is not None else torch.ones_like(correct)
                correct = (correct & real).sum(dim=1) / real.sum(dim=1)
                number = int(real.sum())

            loss += answer_loss(logits, part).item() * number
            answers += number
            right += correct.float().sum().item()

    low, high = wilson(right, len(examples))
    return Evaluation(step, loss / answers, right / len(examples), low, high, len(examples))


def watch(model: nn.Module, data: Dataset, step: int, look: Look | None = None) -> Watched:
    """What `Watched` says, at the weights of now; the model and its mode are left as they were."""
    instance("model", model, nn.Module)
    instance("data", data, Dataset)
    if look is not None:
        function("look", look)
    with _evaluating(model):
        batch = data.train.take(slice(0, PROBE)).to(device_of(model))
        model.zero_grad()
        answer_loss(model(batch.x, batch.mask), batch, data.classes).backward()
        gradients = {name: [weights.grad for weights in part] for name, part in _parts(model).items()}
        seen = Watched(step, gradient_norms(gradients), gradient_norms(gradients, normalise="rms"))
        model.zero_grad()

        with torch.no_grad():
            if isinstance(model, Model):
                probe = data.test.take(slice(0, PROBE)).to(device_of(model))
                run = model.trajectory(probe.x, probe.mask)
                seen.state_rms.extend(per_layer(state_rms, run).tolist())
                seen.fidelity.extend(fidelity(run).tolist())
                seen.nonuniformity.extend(per_layer(nonuniformity, run).tolist())
            if look is not None:
                found = look(model)
                if not isinstance(found, dict):
                    raise ValueError(f"look must give a dict of named numbers; not {described(found)}")
                seen.looked.update({name: _plain(name, value) for name, value in found.items()})
    return seen


def device_of(model: nn.Module) -> torch.device:
    """Where the weights are."""
    return next(instance("model", model, nn.Module).parameters()).device


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards the mode it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _parts(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of each layer of ours, or of each child of another module; `own` are those of no child."""
    parts = model.layers() if isinstance(model, Model) else dict(model.named_children())
    found = {name: list(part.parameters()) for name, part in parts.items()}
    own = [] if isinstance(model, Model) else list(model.parameters(recurse=False))
    return found | ({"own": own} if own else {})


def _plain(name: str, value: object) -> float | list[float] | Tensor:
    """The same in what a checkpoint can hold and give back: numbers of Python, lists of them, tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):  # numbers of NumPy among them, which a checkpoint would not read back
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    raise ValueError(
        f"look must give numbers, lists of numbers or tensors (torch.as_tensor makes one of an array); "
        f"{name!r} is a {type(value).__name__}"
    )
