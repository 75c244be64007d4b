"""How a model answers to small changes: the gradients of its weights, layer by layer, and its loss under noise.

Gradient flow (P1 §3.4, figure 5): for every layer the gradient at WATCHED steps of training, as a whole norm and as a
root mean square per weight. P1 does not say which; the second does not grow with the size of a layer.

Perturbation (P1 §3.5, figure 6): the loss with ε ξ added to the embedded input, ξ standard normal, the same numbers for
every model; absolute, or with ε in units of the root mean square of the embedded input. Noise comes in pairs ±ξ, so
that what is linear in ε cancels within each pair, and in double precision: at ε = 10⁻⁴ the rise is about 10⁻⁸.
"""

import copy
import math
import statistics
from itertools import pairwise

import torch
from torch import Tensor, nn

from pdebook.evidence.trained import Measured, Task, build, named
from pdebook.ledger.record import Figures, Key
from pdelab.datasets.base import Dataset, Examples
from pdelab.field import Field, keep_real
from pdelab.metrics.base import real_places
from pdelab.models import Model
from pdelab.seeds import stream
from pdelab.training import Training, evaluate

STRENGTHS = tuple(10 ** (k / 2) for k in range(-8, 1))  # ε = 1e-4 … 1
STRONG = STRENGTHS[4:]  # from 1e-2 on, where P1 sees the models part
NORMS = ("rms", "norm")
APART = 0.1  # nats between the rises of two models: they have parted


class Shifted(nn.Module):
    """x → E(x) + ε ξ: an embedding whose result is shifted by a given field."""

    def __init__(self, embed: nn.Module, shift: Field):
        super().__init__()
        self.embed, self.shift = embed, shift

    def forward(self, x: Tensor) -> Field:
        return self.embed(x) + self.shift


def noisy_losses(model: Model, examples: Examples, seed: int, *, relative: bool = False) -> list[float]:
    """½(L(u₀ + ε ξ) + L(u₀ − ε ξ)) for every ε of STRENGTHS, L the mean loss over the examples; first L(u₀).

    relative: ε in units of the root mean square of the entries of u₀.
    """
    double = copy.deepcopy(model).cpu().double()  # Apple's GPUs have no float64
    if examples.x.is_floating_point():
        examples = Examples(examples.x.double(), examples.y, examples.mask)
    with torch.no_grad():
        u0 = keep_real(double.embed(examples.x), examples.mask)
    noise = torch.randn(u0.shape, generator=stream(seed, "noise on the input"), dtype=u0.dtype)
    if relative:
        noise = noise * (u0.square().sum() / (real_places(u0, examples.mask).sum() * u0.shape[-1])).sqrt()
    embed, found = double.embed, []
    for strength in (0.0, *STRENGTHS):
        both = []
        for sign in (1, -1):
            double.embed = Shifted(embed, sign * strength * noise)
            both.append(evaluate(double, examples, batch=len(examples)).loss)
        found.append(statistics.fmean(both))
    return found


def rises(losses: list[float]) -> list[float]:
    """L(ε) − L(0), one for each of STRENGTHS."""
    return [loss - losses[0] for loss in losses[1:]]


def slope(losses: list[float], low: float = 1e-3, high: float = 1e-2) -> float:
    """d log(L(ε) − L(0)) / d log ε between two strengths: 2 where the mean rise is ½ε² tr H. NaN where it falls."""
    rise = dict(zip(STRENGTHS, rises(losses), strict=True))
    first, last = (min(rise.items(), key=lambda item: abs(math.log(item[0] / at)))[1] for at in (low, high))
    return math.log(last / first) / math.log(high / low) if min(first, last) > 0 else math.nan


def parting(one: list[float], other: list[float], apart: float = APART) -> float:
    """The smallest ε of STRENGTHS from which on the two rises differ by more than `apart`; or infinity."""
    gaps = [abs(a - b) for a, b in zip(rises(one), rises(other), strict=True)]
    near = [k for k, gap in enumerate(gaps) if gap <= apart]
    first = near[-1] + 1 if near else 0
    return STRENGTHS[first] if first < len(STRENGTHS) else math.inf


def gradient_course(record: Training) -> Figures:
    """gradient_rms_N and gradient_norm_N of layer N at the watched steps, and medians over layers and steps.

    What was seen before training has no part in the medians. gradient_…_spread: largest over smallest layer median.
    loss_jump: the median of |L_{n+1} − L_n| over the second half of training, how unsteady the loss is.
    """
    half = record.losses[record.step // 2 :]
    found: Figures = {"gradient_steps": [float(seen.step) for seen in record.watched]}
    if len(half) > 1:  # a training cut to one or two steps has no jump there
        found["loss_jump"] = statistics.median(abs(b - a) for a, b in pairwise(half))
    layers = [name for name in record.watched[0].gradient_norm if name.startswith("layer")]
    if not layers:
        return found
    for kind in NORMS:
        table = [[getattr(seen, f"gradient_{kind}")[name] for seen in record.watched] for name in layers]
        found |= {f"gradient_{kind}_{n}": values for n, values in enumerate(table, start=1)}
        medians = [statistics.median(values[1:]) for values in table]
        found[f"median_gradient_{kind}"] = statistics.median(medians)
        found[f"layer_median_{kind}"] = medians
        found[f"gradient_{kind}_spread"] = max(medians) / min(medians) if min(medians) > 0 else math.inf
    return found


def add(found: Measured, kinds: tuple[str, ...], task: Task, data: Dataset, seed: int) -> None:
    """Gradient flow and noise of every trained model, and the differences that P1's claims are about.

    KIND/log10_gradient_rms_ratio: of the medians, over the Transformer's; KIND/extra_rise: of the loss at STRONG, less
    the Transformer's. The same of `other`, a second Transformer, and of the untrained models are the controls.
    """
    probe = data.test.take(slice(0, task.probe))
    losses = {}
    for kind in ("transformer", "other", *kinds):
        if kind not in found.models:
            continue
        place = found.controls if kind == "other" else found.figures
        place |= named(kind, gradient_course(found.records[kind]))
        for relative in (False, True):
            word = "relative_" if relative else ""
            untrained = build(kind, task, data, seed)
            losses[word, kind] = noisy_losses(found.models[kind], probe, seed, relative=relative)
            losses[word, f"untrained_{kind}"] = noisy_losses(untrained, probe, seed, relative=relative)
            place[Key(kind, word + "noisy_loss")] = losses[word, kind]
            place[Key(kind, word + "noise_slope")] = slope(losses[word, kind])
            found.controls[Key(f"untrained_{kind}", word + "noisy_loss")] = losses[word, f"untrained_{kind}"]

    if "transformer" not in found.models:
        return
    for (word, kind), curve in losses.items():
        own = "untrained_transformer" if kind.startswith("untrained_") else "transformer"
        if kind == own:
            continue
        base = losses[word, own]
        extra = [a - b for a, b in zip(rises(curve), rises(base), strict=True)][-len(STRONG) :]
        place = found.figures if kind in kinds else found.controls
        place[Key(kind, word + "extra_rise")] = extra
        place[Key(kind, word + "parting")] = parting(curve, base)

    for kind in ("other", *kinds):
        if kind in found.models:
            place = found.controls if kind == "other" else found.figures
            place |= named(kind, _ratios(found, kind))


def _ratios(found: Measured, kind: str) -> Figures:
    """log₁₀ of the model's median gradient over the Transformer's, in both normalisations."""
    known, ratios = found.figures | found.controls, {}
    for median, name in (
        ("median_gradient_rms", "log10_gradient_rms_ratio"),
        ("median_gradient_norm", "log10_gradient_norm_ratio"),
    ):
        if own := known.get(Key(kind, median)):
            ratios[name] = math.log10(own / known[Key("transformer", median)])
    return ratios
