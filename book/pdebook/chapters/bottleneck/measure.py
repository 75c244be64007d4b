"""Training with the bottleneck penalty: L + βÎ on the channel T = μ(x) + Z.  (P1 eq 14, fig 8; P2 fig 6, 9)

The noise Z of the channel is known, so I(X; T) is finite and can be computed for X uniform over n test examples, where
it is at most ln n. Penalties Î: VIB's ½E|μ|² and CLUB's ½E|μ − μ'|², both upper bounds of I(X; T).
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import trained
from pdebook.ledger.record import Figures, Key, Result, environment
from pdelab import datasets
from pdelab.bottleneck import channel, with_bottleneck
from pdelab.datasets.base import Dataset, Examples
from pdelab.equation import MasterEquation
from pdelab.field import token_mean
from pdelab.metrics.information import channel_bounds, channel_information, entropy
from pdelab.models import Model, coupled, transformer
from pdelab.options import choose
from pdelab.seeds import derive, stream
from pdelab.status import Status
from pdelab.terms.coupling import Coupling
from pdelab.training import Settings, Training

KINDS = ("coupled", "transformer")


@dataclass(frozen=True)
class Size:
    """How large the models are, how they are trained, and which β are tried.

    width: features of a layer. steps, dt: of the coupled system's solver. size: features of the channel.
    """

    settings: Settings
    betas: tuple[float, ...] = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
    width: int = 16
    layers: int = 3
    steps: int = 8
    dt: float = 0.5
    size: int = 4


SIZES = {
    Scale.SMOKE: Size(Settings(20, batch=32, rate=3e-3, watch=(0, 10, 20)), (0.0, 0.1), width=8, layers=2, steps=4),
    Scale.BOOK: Size(Settings(400, batch=64, rate=5e-3, warmup=20, watch=(0, 10, 20, 40, 80, 160, 280, 400))),
}
AT = 0.1  # the β at which penalties and controls are compared


def vib_penalty(model: nn.Module, batch: Examples, beta: float) -> Tensor:
    """β ½E|μ|²: β times the mean of KL(N(μ, 1) ‖ N(0, 1)) over the batch that the model has just seen."""
    return beta * channel(model).seen.square().sum(dim=1).mean() / 2


def club_penalty(model: nn.Module, batch: Examples, beta: float) -> Tensor:
    """β ½E|μ_i − μ_j|² over pairs i ≠ j: CLUB with the exact p(t|x), which is β Σ_k var μ_k."""
    return beta * channel(model).seen.var(dim=0).sum()


def build(kind: str, size: Size, data: Dataset, seed: int) -> Model:
    """coupled: P1 eq 4/17 with links that start as the identity. transformer: pre-LayerNorm, as many layers."""
    own, heads, hidden = derive(seed, kind), 2, 2 * size.width
    options = {
        "coupled": lambda: coupled(
            size.width, size.layers, heads, hidden, steps=size.steps, dt=size.dt, seed=derive(own, "core")
        ),
        "transformer": lambda: transformer(size.width, size.layers, heads, hidden, seed=derive(own, "core")),
    }
    core = choose("kind", kind, options)()
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_bottleneck(core, size.width, size.size, seed=derive(own, "ends"), **ends)


def with_shuffled_labels(data: Dataset, seed: int) -> Dataset:
    """The same inputs, all answers permuted, in training and in test: nothing is left to learn."""

    def shuffled(examples: Examples, name: str) -> Examples:
        order = torch.randperm(len(examples), generator=stream(seed, "shuffled", name))
        return replace(examples, y=examples.y[order])

    parts = {"train": shuffled(data.train, "train"), "test": shuffled(data.test, "test")}
    return replace(data, name=f"{data.name}-shuffled", **parts)


def plane(model: Model, examples: Examples, draws: int = 8) -> dict[str, float]:
    """Where the model stands in the information plane, in nats, X uniform over the examples.

    information: I(X; T) by Monte Carlo with its `error`; `lower` and `upper` enclose it, unsampled; `vib`: ½E|μ|².
    about_label: H(Y) − cross-entropy of the readout from the noisy T, a lower bound of I(T; Y). counted_label: I(T; Y)
    for these very examples, which also counts labels that were learned by heart. accuracy: from the noisy T.
    """
    readout, weights = channel(model), next(model.parameters())
    there = examples.to(weights.device)
    model(there.x, there.mask)
    mean = readout.seen.cpu().double()

    noise = torch.randn(draws, *mean.shape, generator=stream(0, "plane"), dtype=torch.float64)  # one noise for all runs
    logits = readout.out((mean + noise).to(weights)).flatten(0, 1).cpu()
    y = examples.y.repeat(draws)

    bounds = channel_bounds(mean, noise=1.0)
    exact = channel_information(mean, noise=1.0, draws=draws)
    return {
        "information": exact.value,
        "error": exact.error,
        "lower": bounds.lower,
        "upper": bounds.upper,
        "vib": mean.square().sum(dim=1).mean().item() / 2,
        "about_label": entropy(examples.y).value - cross_entropy(logits, y).item(),
        "counted_label": channel_information(mean, examples.y, noise=1.0, draws=draws).value,
        "accuracy": (logits.argmax(dim=1) == y).double().mean().item(),
    }


@torch.no_grad()
def by_layer(model: Model, examples: Examples, ratio: float = 1.0) -> list[float]:
    """I(X; T_l + σ_l Z) at a fixed signal-to-noise ratio, T_l the mean over the tokens of layer l, the input first.

    For the coupled system the layers at the end of the run; for the Transformer the states along the depth.
    """
    model.eval()
    examples = examples.to(next(model.parameters()).device)
    run = model.trajectory(examples.x, examples.mask, throw=True)
    last = model.equation.terms[-1] if isinstance(model.equation, MasterEquation) else None
    states = run.final.split(last.width, dim=-1) if isinstance(last, Coupling) else run.states
    pooled = [token_mean(u, examples.mask).squeeze(1) for u in states]
    return [channel_information(t, ratio=ratio, draws=4).value for t in pooled]


def fit(
    kind: str, size: Size, data: Dataset, seed: int, work: Workplace, name: str, beta: float, penalty=vib_penalty
) -> tuple[Model, Training]:
    """The trained model and its record, which holds `plane` at every step that is watched."""
    model = build(kind, size, data, seed)
    settings = replace(
        size.settings,
        look=partial(plane, examples=data.test),
        penalty=partial(penalty, beta=beta) if beta else None,
    )
    return model, trained(model, data, settings, derive(seed, "training"), work, name)


@experiment("bottleneck", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Digits through a noisy bottleneck, coupled system and Transformer, for several β: the information plane.

    KIND/beta β/figure: one value at each step of `watch`. Controls: shuffled labels, the printed sign (−β), CLUB.
    """
    size, data = SIZES[scale], datasets.load("digits-rows")
    others = with_shuffled_labels(data, seed)
    measured = [(Key(kind, f"beta {beta:g}"), data, beta, vib_penalty) for kind in KINDS for beta in size.betas]
    aside = [
        (Key("coupled", "shuffled, beta 0"), others, 0.0, vib_penalty),
        (Key("coupled", f"shuffled, beta {AT:g}"), others, AT, vib_penalty),
        (Key("coupled", f"printed sign, beta {AT:g}"), data, -AT, vib_penalty),
        (Key("coupled", f"club, beta {AT:g}"), data, AT, club_penalty),
    ]

    figures: Figures = {}
    controls: Figures = {}
    diverged, commits = {}, []
    for into, jobs in ((figures, measured), (controls, aside)):
        for key, used, beta, penalty in jobs:
            model, record = fit(key.parts[0], size, used, seed, work, key.replace("/", " "), beta, penalty)
            commits = [*dict.fromkeys(commits + record.commits)]
            if record.status == Status.DIVERGED:
                diverged[key] = record.stopped_at
                continue

            for figure in record.watched[0].looked:
                into[Key(key, figure)] = [seen.looked[figure] for seen in record.watched]
            if into is figures and beta in (0.0, AT):
                figures[Key(key, "by_layer")] = by_layer(model, data.test)

    for kind in KINDS:
        controls[Key(kind, "untrained", "by_layer")] = by_layer(build(kind, size, data, seed), data.test)

    configuration = {
        "data": data.name,
        "examples": len(data.test),
        "ceiling": math.log(len(data.test)),
        "settings": size.settings.that_matter(),
        "sizes": {name: value for name, value in vars(size).items() if name not in ("settings", "betas")},
        "betas": list(size.betas),
    }
    where = environment() | {"commit": ", ".join(commits)}
    return Result("bottleneck", configuration, scale, seed, "finished", figures, controls, diverged, where)
