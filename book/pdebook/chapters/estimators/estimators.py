"""One network, many estimators: what bins, noise, scale and the range of the bins make of one and the same states.

The truth is known: X is one of finitely many inputs, and which of them a state tells apart can be counted. The units of
a layer are free: T_ℓ times unit^ℓ, undone by the next layer, is the same network. An estimate that moves with the
number of bins, with the noise or with the units describes the estimator.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pdebook.chapters.information import countable
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Figures, Result, summarise
from pdelab.metrics.information import (
    binned_information,
    channel_information,
    gaussian_channel,
    per_unit_information,
    rows,
    usable_information,
)
from pdelab.seeds import derive, normal, stream

BINS = (2, 4, 8, 16, 32)
LIMITS = ("unit", "layer", "shared")
NOISES = (0.03, 0.1, 0.3, 1.0, 3.0)
UNITS = (0.25, 0.5, 1.0, 2.0)
RATIOS = (1.0, 10.0, 100.0)
ACTIVATIONS = ("tanh", "relu")


def preserving(seed: int, inputs: int = 512, width: int = 8, depth: int = 6) -> list[Tensor]:
    """T₀ … T_L of h ← Q(h + ½ tanh h)/1.3, Q orthogonal: each layer is a bijection, so I(X; T) = log n at each."""
    h = normal(seed, "inputs", size=(inputs, width))
    found = [h]
    for number in range(depth):
        Q = torch.linalg.qr(normal(seed, "Q", number, size=(width, width))).Q
        found.append((found[-1] + 0.5 * torch.tanh(found[-1])) / 1.3 @ Q.T)
    return found


def binned(layers: Sequence[Tensor], bins: int, limits: str, y: Tensor | None = None) -> list[float]:
    """I(X; bin T), or I(bin T; Y), of every layer; limits "shared": one range for all layers."""
    if limits == "shared":
        limits = min(t.min().item() for t in layers), max(t.max().item() for t in layers)
    return [binned_information(t, y, bins=bins, limits=limits).value for t in layers]


def noisy(layers: Sequence[Tensor], y: Tensor | None = None, *, seed: int = 0, **noise: float) -> list[float]:
    """I(X; T + σZ), or I(Y; T + σZ), of every layer; noise=σ, or ratio= a signal-to-noise ratio."""
    return [channel_information(t, y, seed=seed, **noise).value for t in layers]


def sweep(layers: Sequence[Tensor], y: Tensor | None = None, seed: int = 0) -> Iterator[tuple[str, list[float]]]:
    """name -> one value a layer, for every setting: "bins K unit", "bins K shared, units S", "noise σ, units S", …"""
    for bins in BINS:
        for limits in LIMITS[:2]:
            yield f"bins {bins} {limits}", binned(layers, bins, limits, y)
        for unit in UNITS:
            yield f"bins {bins} shared, units {unit:g}", binned(countable.rescaled(layers, unit), bins, "shared", y)
    for noise in NOISES:
        for unit in UNITS:
            found = noisy(countable.rescaled(layers, unit), y, seed=seed, noise=noise)
            yield f"noise {noise:g}, units {unit:g}", found
    for ratio in RATIOS:
        yield f"ratio {ratio:g}", noisy(layers, y, seed=seed, ratio=ratio)


def shuffled(y: Tensor, seed: int) -> Tensor:
    return y[torch.randperm(len(y), generator=stream(seed, "shuffled"))]


def trained(activation: str, seed: int, steps: int) -> tuple[list[Tensor], float]:
    """The mean over tokens of every state, (512, width), of a Transformer that learned the parities; its accuracy."""
    x = countable.inputs()
    model = countable.build(derive(seed, activation), activation=activation)
    accuracy = countable.fit(model, x, countable.parities(x), steps)
    return [rows(u) for u in countable.states(model, x).states], accuracy


def linear_gaussian(seed: int, scales: Sequence[float], noise: float = 1.0, inputs: int = 2000) -> tuple[Tensor, ...]:
    """I(X; sWX + σZ) by Monte Carlo on so many inputs, and ½ log det(1 + s²Σ/σ²), for each scale s; four features."""
    W = normal(seed, "W", size=(4, 4)) / 2
    t = normal(seed, "X", size=(inputs, 4)) @ W.T
    seen = [channel_information(s * t, noise=noise, seed=seed).value for s in scales]
    law = [gaussian_channel(s**2 * W @ W.T, noise).item() for s in scales]
    return torch.tensor(seen, dtype=torch.float64), torch.tensor(law, dtype=torch.float64)


def xor(seed: int, number: int = 400, spread: float = 0.3) -> tuple[Tensor, Tensor]:
    """Four clouds about (±1, ±1), (number, 2), and Y = 1 where the signs differ: no line tells them apart."""
    signs = 2 * torch.randint(2, (number, 2), generator=stream(seed, "signs")).double() - 1
    return signs + spread * normal(seed, "cloud", size=(number, 2)), (signs.prod(dim=1) < 0).long()


@experiment("estimators", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Estimates of information by many settings on one network whose information is known (P1 fig 8, P2 thm 3.5).

    tanh, relu: the mean state of a Transformer that learned two parities of nine bits; stack: six layers that preserve
    everything. MODEL/X SETTING and MODEL/Y SETTING: one value a layer. controls: the same with shuffled labels.
    """
    steps = 20 if scale == Scale.SMOKE else 300
    figures: Figures = {}
    controls: Figures = {}
    stack = preserving(seed)
    figures |= {f"stack/X {name}": found for name, found in sweep(stack, seed=seed)}
    figures["stack/true X"] = [countable.counted(t) for t in stack]
    y = countable.parities(countable.inputs())
    mixed = shuffled(y, seed)
    for kind in ACTIVATIONS:
        layers, figures[f"{kind}/accuracy"] = trained(kind, seed, steps)
        figures[f"{kind}/true X"] = [countable.counted(t) for t in layers]
        figures[f"{kind}/true Y"] = [countable.counted(t, y) for t in layers]
        figures |= {f"{kind}/X {name}": found for name, found in sweep(layers, seed=seed)}
        figures |= {f"{kind}/Y {name}": found for name, found in sweep(layers, y, seed=seed)}
        controls |= {f"{kind}/Y {name}": found for name, found in sweep(layers, mixed, seed=seed)}
        for labels, into in ((y, figures), (mixed, controls)):
            into[f"{kind}/usable"] = [usable_information(t, labels, seed=seed).value for t in layers]
            into[f"{kind}/per unit"] = [per_unit_information(t, labels, bins=8).mean().item() for t in layers]
    return Result(
        experiment="estimators",
        configuration={
            "bins": list(BINS),
            "noises": list(NOISES),
            "units": list(UNITS),
            "ratios": list(RATIOS),
            "steps": steps,
            "bits": countable.BITS,
        },
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )


def change(course: Sequence[float], first: int = 1) -> float:
    """From layer `first` to the last, in nats: negative is what is called compression."""
    return course[-1] - course[first]


def changes(results: Sequence[Result], kind: str, names: Sequence[str]) -> Tensor:
    """The mean over seeds of `change` of the estimates of I(X; T) of a model, one value a setting."""
    means = [[row.mean for row in summarise(results, f"{kind}/X {name}")] for name in names]
    return torch.tensor([change(course) for course in means])


def tables(results: Sequence[Result], kind: str) -> tuple[Tensor, Tensor]:
    """`changes` as two tables: bins against the range (unit, layer, shared in each of UNITS), noise against UNITS."""
    ranges = [*LIMITS[:2], *(f"shared, units {unit:g}" for unit in UNITS)]
    by_bins = [changes(results, kind, [f"bins {bins} {limits}" for limits in ranges]) for bins in BINS]
    by_noise = [changes(results, kind, [f"noise {noise:g}, units {unit:g}" for unit in UNITS]) for noise in NOISES]
    return torch.stack(by_bins), torch.stack(by_noise)
