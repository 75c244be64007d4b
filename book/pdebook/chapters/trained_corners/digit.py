"""A digit through the layers: four networks small enough to travel in a page, and the figure that runs them there.

They are the corners of the 2×2 on digits, each row of pixels a token. A reader's digit is no digit of the data set, so
they are trained on images that were turned, sheared, shifted, stretched, thinned and thickened too. `pdelab run digit`
records their accuracies and, in the same file, their weights; the figure reads them from there.
"""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pdebook.chapters.trained_corners.measure import CORNERS
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, build, fit, named
from pdebook.kit.page import Page
from pdebook.kit.play import script
from pdebook.ledger.record import Figures, Result, Store
from pdelab import datasets
from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.field import Field
from pdelab.metrics.similarity import cosine
from pdelab.metrics.stability import spread
from pdelab.models import Model
from pdelab.seeds import stream
from pdelab.status import Status

COPIES = {Scale.SMOKE: 1, Scale.BOOK: 8}  # warped images for each image of the data set
DEFINITIONS = {
    "accuracy": "share of the 400 test digits, which are not warped, with the weights as they were trained",
    "packed_accuracy": "the same with the weights that the page has",
    "spread": "median over the test digits, in double precision, with the page's weights; one value per state",
    "token_cosine": "mean over all pairs of tokens and all test digits, as spread",
    "untrained_...": "the same of the first weights",
}


def task_of(scale: Scale) -> Task:
    """The task `images` with smaller networks and a longer training, as its images are more; √3 suits every corner."""
    known = TASKS["images"][scale]
    if scale == Scale.SMOKE:
        return replace(known, width=8, heads=2)
    settings = replace(known.settings, steps=1500, warmup=150, evaluate_every=None, watch=())
    return replace(known, width=16, gain=math.sqrt(3), settings=settings)


def warped(images: Tensor, copies: int, seed: int) -> Tensor:
    """The images (example, row, column) with values in [0, 1], then `copies` of each, every one warped otherwise.

    Turned and sheared by up to a quarter, scaled by 0.83 to 1.18 across and 0.89 to 1.05 upright, shifted by up to half
    a pixel, and thinned or thickened by a power between 0.7 and 1.4 of each grey value.
    """
    generator, count = stream(seed, "warp"), len(images)

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    made = [images]
    for _ in range(copies):
        turn, shear = drawn(-0.25, 0.25), drawn(-0.25, 0.25)
        across = torch.stack([drawn(0.85, 1.2) * turn.cos(), shear - turn.sin(), drawn(-0.15, 0.15)], dim=1)
        upright = torch.stack([turn.sin(), drawn(0.95, 1.12) * turn.cos(), drawn(-0.08, 0.08)], dim=1)
        places = nn.functional.affine_grid(
            torch.stack([across, upright], dim=1), [count, 1, *images.shape[1:]], align_corners=False
        )
        moved = nn.functional.grid_sample(images.unsqueeze(1), places, align_corners=False).squeeze(1)
        made.append(moved.clamp(0, 1) ** drawn(-0.35, 0.35).exp()[:, None, None])
    return torch.cat(made)


def grey(data: Dataset) -> tuple[float, float]:
    """What an input is for white paper and for full ink."""
    return data.train.x.min().item(), data.train.x.max().item()


def with_warped(data: Dataset, copies: int, seed: int) -> Dataset:
    """The data set with warped training images beside its own; the test images are left as they are."""
    paper, ink = grey(data)
    images = warped((data.train.x - paper) / (ink - paper), copies, seed)
    return replace(data, train=Examples(paper + (ink - paper) * images, data.train.y.repeat(copies + 1)))


# Weights as text


def pack(model: nn.Module) -> str:
    """The weights in the order of state_dict, row by row: a scale in four bytes, then w/scale rounded to a byte each.

    A matrix has a scale for every row, a vector is one row. base64, for a page.
    """
    parts = []
    for weights in model.state_dict().values():
        rows = weights.detach().cpu().double().reshape(-1, weights.shape[-1]).numpy()
        scales = np.maximum(np.abs(rows).max(axis=1), 1e-30).astype("<f4") / np.float32(127)
        for row, scale in zip(rows, scales, strict=True):
            parts += [scale.tobytes(), np.rint(row / float(scale)).astype("i1").tobytes()]
    return base64.b64encode(b"".join(parts)).decode()


@torch.no_grad()
def unpack(text: str, model: Model) -> Model:
    """The model, in double precision, with the weights that `pack` wrote."""
    content, at = base64.b64decode(text), 0
    model.double()
    for weights in model.state_dict().values():
        for row in weights.reshape(-1, weights.shape[-1]):
            scale = float(np.frombuffer(content, "<f4", 1, at)[0])
            row.copy_(scale * torch.from_numpy(np.frombuffer(content, "i1", len(row), at + 4).astype(float)))
            at += 4 + len(row)
    if at != len(content):
        raise ValueError(f"text must hold the weights of this model, {at} bytes; it has {len(content)}")
    return model


# The recorded run


def token_cosine(u: Field) -> Tensor:
    """The mean of cos(u_i, u_j) over all pairs i ≠ j of tokens and all examples."""
    shifts = range(1, u.shape[1])
    return torch.stack([cosine(u, u.roll(shift, dims=1)) for shift in shifts]).mean()


@torch.no_grad()
def seen(model: Model, examples: Examples) -> Figures:
    """Spread and cosine of every state, in double precision."""
    states = model.double().trajectory(examples.x.double()).states
    return {
        "spread": [spread(u).median().item() for u in states],
        "token_cosine": [token_cosine(u).item() for u in states],
    }


@torch.no_grad()
def accuracy(model: Model, examples: Examples) -> float:
    right = model(examples.x.to(next(model.parameters()).dtype)).argmax(dim=1) == examples.y
    return right.double().mean().item()


@experiment("digit", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """The trained 2×2 that the page runs on a drawn digit: accuracy, spread and cosine per layer, and its weights."""
    task = task_of(scale)
    plain = task.load(seed)
    data = with_warped(plain, COPIES[scale], seed)
    found, weights = Measured(controls=controls.of(plain)), {}
    for corner in CORNERS:
        model, record = fit(corner, task, data, seed, work, shared="corner")
        found.made_by(record.commits)
        if record.status == Status.DIVERGED:
            found.diverged[corner] = record.stopped_at or record.step
            continue

        model.cpu()
        before = seen(build(corner, task, data, seed, "corner"), plain.test)
        found.controls |= named(corner, {f"untrained_{name}": value for name, value in before.items()})
        figures = {"accuracy": accuracy(model, plain.test)}
        weights[corner] = pack(model)
        unpack(weights[corner], model)
        figures |= {"packed_accuracy": accuracy(model, plain.test), **seen(model, plain.test)}
        found.figures |= named(corner, figures)

    result = found.result("digit", task, scale, seed, copies=COPIES[scale], definitions=DEFINITIONS)
    return replace(result, weights=weights)


# The figure


def _examples(data: Dataset) -> Iterator[list[int]]:
    """The first test image of each class, in grey values 0 to 16."""
    paper, ink = grey(data)
    for digit in range(data.classes):
        image = data.test.x[data.test.y == digit][0]
        yield (16 * (image - paper) / (ink - paper)).round().int().flatten().tolist()


def digit() -> Page:
    """Draw a digit and watch it pass through four trained networks, with and without a skip and LayerNorm.

    The networks run on the page itself, in plain JavaScript, with the weights of the recorded run of `digit`.
    """
    result = next(iter(Store().load("digit", "book")), None)
    if result is None:
        raise FileNotFoundError("the experiment digit is not recorded; run: pdelab run digit --store data/results")
    data = datasets.load("digits-rows")
    paper, ink = grey(data)
    sizes = {name: result.configuration[name] for name in ("width", "depth", "heads", "hidden")}
    content = {
        "sizes": sizes | {"tokens": data.length, "features": data.features, "classes": data.classes},
        "paper": paper,
        "ink": ink,
        "examples": list(_examples(data)),
        "networks": {
            corner: {"accuracy": result.figures[f"{corner}/packed_accuracy"], "weights": text}
            for corner, text in result.weights.items()
        },
    }
    made = f"seed {result.seed}, commit {result.environment['commit'][:10]}"
    words = (
        "A digit that you draw passes through four trained networks, with and without a skip, with and without "
        f"LayerNorm. The figure needs JavaScript. Its weights are the record of the experiment digit, {made}."
    )
    packed = json.dumps(content, separators=(",", ":"))  # numbers and base64: no "<" that could end the script
    markup = (
        f'<div class="pdelab-digit"><p class="without">{words}</p><script type="application/json">{packed}</script>'
        f'<script class="play-script">{script()}</script></div>'
    )
    return Page(markup, "<a digit to draw, and four trained networks that it passes through>")
