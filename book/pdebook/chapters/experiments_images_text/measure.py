"""Ten layers of a Transformer beside ten states of pure diffusion.  (P1 §3.1.3, tables 2 and 3; appendix B)

P1's PDE model here repeats u ← u + h (u_{c+1} − 2u_c + u_{c−1}); it prints neither h nor the axis. Both models begin
with one state, "layer 1": the output of the Transformer's first layer (`after`), or its embedded input (`embedded`). We
take h = 0.1 along the features and along the tokens. Tables: the correlation of successive states (table 2), and that
of the Transformer's and the diffused state at equal depth (table 3).

For white noise the first table is known without any model: see `white_noise`.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, build, look, measure, named
from pdebook.ledger.record import Figures, Result
from pdelab.datasets.base import Examples
from pdelab.field import BOUNDARIES, Field, check_boundary, laplacian, laplacian_eigenvalues
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import inter_layer, pearson, spearman
from pdelab.models import Model
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory

STEP = 0.1  # h = D Δt/Δx²: of the round numbers the one with which white noise comes nearest to the printed column
STATES = 10
SAMPLES = 5
AXES = ("features", "tokens")
STARTS = ("after", "embedded")
KINDS = {"transformer": "pre", "residual_norm": "post"}  # our two Transformers, by where LayerNorm stands


def diffuse(u: Field, axis: str, states: int = STATES, step: float = STEP, boundary: str = "reflecting") -> Trajectory:
    """u ← u + h (u_{c+1} − 2u_c + u_{c−1}), c along the tokens or the features; the first state is u."""
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}; not {axis!r}")
    found = [u]
    for _ in range(states - 1):
        along = found[-1] if axis == "tokens" else found[-1].transpose(1, 2)
        second = laplacian(along, boundary) / along.shape[1] ** 2  # Δx = 1
        found.append(found[-1] + step * (second if axis == "tokens" else second.transpose(1, 2)))
    return Trajectory.of(found)


def white_noise(n: int, states: int = STATES, step: float = STEP, boundary: str = "reflecting") -> Tensor:
    """c_{2m+1}/√(c_{2m} c_{2m+2}) with c_m = (1/n) Σ_k g_k^m, g_k = 1 + hλ_k: table 2 for white noise, (states − 1,).

    λ_k: the eigenvalues of the second difference on n places with Δx = 1. On a ring of more than m places c_m is the
    constant coefficient of (h z + 1 − 2h + h/z)^m.

    >>> white_noise(64, states=2, boundary="periodic").item() == 0.8 / math.sqrt(0.66)
    True
    """
    check_boundary(boundary)
    g = 1 + step * laplacian_eigenvalues(n, boundary) / n**2
    c = torch.stack([(g**m).mean() for m in range(2 * states)])
    even, odd = c[::2], c[1::2]
    return odd[:-1] / (even[:-1] * even[1:]).sqrt()


def fading(n: int, states: int = STATES, step: float = STEP) -> Tensor:
    """a_m/√a_{2m} with a_m = (n c_m − 1)/(n − 1): what m updates leave of a correlation, (states,).

    For zero-mean vectors v, w of n features in a random order the mean of ⟨v, Gᵐw⟩ is a_m⟨v, w⟩ and that of |Gᵐw|² is
    a_{2m}|w|², G the update with reflecting ends. So table 3 is that of a copy of the first state times this.
    """
    g = 1 + step * laplacian_eigenvalues(n) / n**2
    a = torch.stack([((g**m).sum() - 1) / (n - 1) for m in range(2 * states)])
    return a[:states] / a[::2].sqrt()


def layers_of(model: Model, examples: Examples, start: str) -> Trajectory:
    """The ten states that P1 calls layers 1 to 10: the outputs of ten layers, or embedded input and nine outputs."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}; not {start!r}")
    states = look(model, examples).states
    return Trajectory.of([u.cpu() for u in (states[1:] if start == "after" else states[:-1])])


def compare(run: Trajectory, seed: int) -> tuple[Figures, Figures]:
    """Both tables for one Transformer: figures, and their controls from its first state alone."""
    first, states = run.states[0], len(run.states)
    figures = {"inter": inter_layer(run, pearson).tolist()}
    copies = Trajectory.of([first] * states)
    order = torch.randperm(first.shape[-1], generator=stream(seed, "features in another order"))
    controls = {
        "copy_pearson": per_layer(pearson, copies, run).tolist(),
        "copy_spearman": per_layer(spearman, copies, run).tolist(),
        "reordered_inter": inter_layer(diffuse(first[..., order], "features", states), pearson).tolist(),
    }
    for axis in AXES:
        pde = diffuse(first, axis, states)
        figures[f"{axis}_inter"] = inter_layer(pde, pearson).tolist()
        figures[f"{axis}_pearson"] = per_layer(pearson, pde, run).tolist()
        figures[f"{axis}_spearman"] = per_layer(spearman, pde, run).tolist()
    return figures, controls


def change(run: Trajectory) -> Tensor:
    """1 − correlation of successive states, averaged over the layers, for each example: (example,)."""
    flat = [u.flatten(1).double() for u in run.states]
    flat = [u - u.mean(dim=1, keepdim=True) for u in flat]
    return torch.stack([1 - torch.cosine_similarity(u, v, dim=1) for u, v in pairwise(flat)]).mean(dim=0)


def heat(run: Trajectory) -> list[list[float]]:
    """For each example its states averaged over the tokens, layer after layer, to four digits: layers · features.

    The mean over tokens commutes with diffusion along the features, so the PDE model's picture follows from row one:
    see `pictures`.
    """
    pictures = torch.stack([u.mean(dim=1) for u in run.states], dim=1)  # (example, layer, feature)
    return [[float(f"{value:.4g}") for value in one] for one in pictures.flatten(1).tolist()]


def pictures(figures: Figures, name: str, states: int = STATES) -> tuple[Tensor, Tensor]:
    """The recorded heat maps NAME/heat_N, and diffusion along the features from their first rows.

    Both (sample, layer, feature).
    """
    kept = [figures[f"{name}/heat_{n}"] for n in range(SAMPLES)]
    maps = torch.tensor(kept, dtype=torch.float64).unflatten(1, (states, -1))
    return maps, torch.cat(diffuse(maps[:, :1], "features", states).states, dim=1)


def _noise(seed: int, *size: int) -> Field:
    return normal(seed, "white noise", size=size)


@experiment("tables", *Scale, cuts=True)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """P1's tables 2 and 3 and its five samples: a Transformer's layers beside pure diffusion and white noise."""
    full = TASKS["layers"][scale]
    task = full.cut(work.steps)
    data = task.load(seed)
    found = measure(tuple(KINDS), task, data, seed, work, states=False)
    probe = data.test.take(slice(0, task.probe))
    for kind, short in KINDS.items():
        if kind not in found.models:
            continue
        for word, model in (("", found.models[kind]), ("untrained_", build(kind, task, data, seed))):
            for start in STARTS:
                run = layers_of(model, probe, start)
                figures, controls = compare(run, seed)
                (found.figures if not word else found.controls).update(named(f"{word}{short}_{start}", figures))
                found.controls |= named(f"{word}{short}_{start}", controls)
                five = Trajectory.of([u[:SAMPLES] for u in run.states])
                own, states = change(five), len(five.states)
                calm = {axis: change(diffuse(five.states[0], axis, states)) for axis in AXES}
                gaps = {f"{axis}_samples": (own - calm[axis]).tolist() for axis in AXES}
                (found.figures if not word else found.controls).update(named(f"{word}{short}_{start}", gaps))
                if start == "after" and not word:
                    found.figures |= named(f"{short}_{start}", {f"heat_{n}": one for n, one in enumerate(heat(five))})
                noise = change(diffuse(_noise(seed, *five.states[0].shape), "features", states))
                found.controls |= named(f"{word}{short}_{start}", {"noise_samples": (own - noise).tolist()})
    width, states = task.width, task.depth
    made = diffuse(_noise(seed, *probe.x.shape[:2], width), "features", states)
    found.controls["white_noise/features_inter"] = inter_layer(made, pearson).tolist()
    found.controls["white_noise/closed_form"] = white_noise(width, states).tolist()
    known = {"heat_N": "sample N, its states averaged over tokens: layer after layer, feature after feature"}
    known |= {"step": STEP, "boundary": "reflecting", "boundaries": list(BOUNDARIES), "samples": SAMPLES}
    return found.result("tables", task, scale, seed, **known, **task.cut_of(full))


def best_step(printed: list[float], n: int, steps: Tensor | None = None) -> tuple[float, float]:
    """The h with which white noise comes nearest to a printed column, and the root mean square distance there.

    Without `steps` every h below 1/2, where the update is stable, in thousandths.
    """
    steps = torch.arange(0.001, 0.4995, 0.001, dtype=torch.float64) if steps is None else steps
    target = torch.tensor(printed, dtype=torch.float64)
    errors = [(white_noise(n, len(printed) + 1, h) - target).square().mean().sqrt().item() for h in steps.tolist()]
    best = min(range(len(errors)), key=errors.__getitem__)
    return steps[best].item(), errors[best]


def root_mean_square(values: list[float], printed: list[float]) -> float:
    """√mean (v − p)², the distance of a measured column from a printed one."""
    return math.sqrt(sum((v - p) ** 2 for v, p in zip(values, printed, strict=True)) / len(printed))
