"""Residual connections and LayerNorm: the 2×2 of both, as random matrices and in trained models.  (P2 thm 3.4)

bare: u ← Att(u), u ← FFN(u). norm: each followed by LayerNorm. residual: u ← u + Att(u), u ← u + FFN(u).
residual_norm: both, a post-LayerNorm Transformer.

The four share their first weights, the order of their batches, the budget and, in `images` and `listops`, one learning
rate and torch's initial scale, which suits residual stacks: what a corner can do at its best, `settings` tells better.
Two of them have the gains and biases of LayerNorm in addition.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, measure
from pdebook.ledger.record import Result
from pdelab.datasets import controls
from pdelab.formulas import layer_norm
from pdelab.options import choose
from pdelab.seeds import normal, stream

CORNERS = ("bare", "norm", "residual", "residual_norm")
RATES, GAINS = (1e-3, 3e-3, 1e-2), (1.0, math.sqrt(3))  # √3: uniform weights of variance 1/width, where torch has 1/3


def stack_gradients(corner: str, alpha: float, layers: int, width: int, seed: int, copies: int = 8) -> Tensor:
    """|∂loss/∂h_ℓ| / |∂loss/∂h_L| for ℓ = 0, …, L, of random matrices: (layer, network).

    bare: h ← αWh. residual: h ← h + αWh. norm, residual_norm: LayerNorm after that. pre-LN: h ← h + αW LN(h).
    W is fresh in every layer and network, of variance 1/width; loss = ⟨w, h_L⟩ with a random w.
    """
    choose("corner", corner, (*CORNERS, "pre-LN"))
    generator = stream(seed, "matrices", layers, width)
    states = [layer_norm(normal(seed, "input", width, size=(copies, width))).requires_grad_()]
    for _ in range(layers):
        h = states[-1]
        W = alpha * torch.randn(copies, width, width, generator=generator, dtype=torch.float64) / math.sqrt(width)
        seen = layer_norm(h) if corner == "pre-LN" else h
        z = (W @ seen.unsqueeze(-1)).squeeze(-1) + (0 if corner in ("bare", "norm") else h)
        states.append(layer_norm(z) if corner in ("norm", "residual_norm") else z)
    loss = (states[-1] * normal(seed, "w", width, size=(copies, width))).sum()
    sizes = torch.stack([g.norm(dim=-1) for g in torch.autograd.grad(loss, states)])
    return sizes / sizes[-1]


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
