"""Residual connections and LayerNorm in trained models: the 2×2 of both.  (P2 thm 3.4)

bare: u ← Att(u), u ← FFN(u). norm: each followed by LayerNorm. residual: u ← u + Att(u), u ← u + FFN(u).
residual_norm: both, a post-LayerNorm Transformer.

The four share their first weights, the order of their batches, the budget and, in `images` and `listops`, one learning
rate and torch's initial scale, which suits residual stacks: what a corner can do at its best, `settings` tells better.
Two of them have the gains and biases of LayerNorm in addition.
"""

import math
from dataclasses import replace

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, measure
from pdebook.ledger.record import Result
from pdelab.datasets import controls

CORNERS = ("bare", "norm", "residual", "residual_norm")
RATES, GAINS = (1e-3, 3e-3, 1e-2), (1.0, math.sqrt(3))  # √3: uniform weights of variance 1/width, where torch has 1/3


def _corners(name: str, scale: Scale, seed: int, work: Workplace) -> Result:
    task = TASKS[name][scale]
    found = measure(CORNERS, task, task.load(seed), seed, work, shared="corner")
    return found.result(f"corners-{name}", task, scale, seed)


@experiment("corners-images", *Scale)
def images(scale: Scale, seed: int, work: Workplace) -> Result:
    """The trained 2×2 of residual connections and LayerNorm on images: accuracy, fidelity, gradients, collapse."""
    return _corners("images", scale, seed, work)


@experiment("corners-listops", *Scale)
def listops(scale: Scale, seed: int, work: Workplace) -> Result:
    """The trained 2×2 of residual connections and LayerNorm on ListOps: accuracy, fidelity, gradients, collapse."""
    return _corners("listops", scale, seed, work)


@experiment("corner_settings", Scale.SMOKE, Scale.BOOK)
def settings(scale: Scale, seed: int, work: Workplace) -> Result:
    """The same 2×2 on images at three learning rates and two initial scales: is a corner's accuracy the setting's?

    A figure is named CORNER rate RATE gain GAIN/accuracy; the gain multiplies the first matrices of every layer.
    """
    task = TASKS["images"][scale]
    data = task.load(seed)
    found = Measured(controls=controls.of(data))
    for rate in RATES:
        for gain in GAINS:
            chosen = replace(task, settings=replace(task.settings, rate=rate), gain=gain)
            label = f" rate {rate:g} gain {gain:.3g}"
            part = measure(CORNERS, chosen, data, seed, work, shared="corner", label=label, states=False)
            found.figures |= part.figures
            found.diverged |= part.diverged
            found.made_by(part.commits)
    return found.result("corner_settings", task, scale, seed, rates=list(RATES), gains=list(GAINS))
