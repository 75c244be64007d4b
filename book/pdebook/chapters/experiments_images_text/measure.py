"""Ten layers of a Transformer beside ten states of pure diffusion, measured.  (P1 §3.1.3, tables 2 and 3; appendix B)

Both models begin with one state, "layer 1": the output of the Transformer's first layer (`after`), or its embedded
input (`embedded`). The diffusion, and what is known of it for white noise, is in `laws`.
"""

from itertools import pairwise

import torch
from torch import Tensor

from pdebook.chapters.experiments_images_text.laws import AXES, STATES, STEP, diffuse, white_noise
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, build, look, measure, named
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Examples
from pdelab.field import BOUNDARIES, Field
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import inter_layer, pearson, spearman
from pdelab.models import Model
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory

SAMPLES = 5
STARTS = ("after", "embedded")
KINDS = {"transformer": "pre", "residual_norm": "post"}  # our two Transformers, by where LayerNorm stands


def layers_of(model: Model, examples: Examples, start: str) -> Trajectory:
    """The ten states that P1 calls layers 1 to 10: the outputs of ten layers, or embedded input and nine outputs."""
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}; not {start!r}")
    states = look(model, examples).states
    return Trajectory.of([u.cpu() for u in (states[1:] if start == "after" else states[:-1])])


def compare(run: Trajectory, seed: int) -> tuple[Figures, Figures]:
    """Both tables for one Transformer: figures, and their controls from its first state alone."""
    first, states = run.states[0], len(run.states)
    copies = Trajectory.of([first] * states)
    order = torch.randperm(first.shape[-1], generator=stream(seed, "features in another order"))
    along_features, along_tokens = (diffuse(first, axis, states) for axis in AXES)

    figures = {
        "inter": inter_layer(run, pearson),
        "features_inter": inter_layer(along_features, pearson),
        "features_pearson": per_layer(pearson, along_features, run),
        "features_spearman": per_layer(spearman, along_features, run),
        "tokens_inter": inter_layer(along_tokens, pearson),
        "tokens_pearson": per_layer(pearson, along_tokens, run),
        "tokens_spearman": per_layer(spearman, along_tokens, run),
    }
    controls = {
        "copy_pearson": per_layer(pearson, copies, run),
        "copy_spearman": per_layer(spearman, copies, run),
        "reordered_inter": inter_layer(diffuse(first[..., order], "features", states), pearson),
    }
    return tuple({name: values.tolist() for name, values in table.items()} for table in (figures, controls))


def samples(run: Trajectory, seed: int) -> tuple[Figures, Figures]:
    """How much more the first five examples change from layer to layer than they do by diffusion; than white noise."""
    five = Trajectory.of([u[:SAMPLES] for u in run.states])
    first, states, own = five.states[0], len(five.states), change(five)
    figures = {
        "features_samples": (own - change(diffuse(first, "features", states))).tolist(),
        "tokens_samples": (own - change(diffuse(first, "tokens", states))).tolist(),
    }
    noise = change(diffuse(_noise(seed, *first.shape), "features", states))
    return figures, {"noise_samples": (own - noise).tolist()}


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
    kept = [figures[Key(name, f"heat_{n}")] for n in range(SAMPLES)]
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
                name = f"{word}{short}_{start}"
                run = layers_of(model, probe, start)
                for figures, controls in (compare(run, seed), samples(run, seed)):
                    (found.controls if word else found.figures).update(named(name, figures))
                    found.controls |= named(name, controls)

                if start == "after" and not word:
                    for n, one in enumerate(heat(Trajectory.of([u[:SAMPLES] for u in run.states]))):
                        found.figures[Key(name, f"heat_{n}")] = one

    width, states = task.width, task.depth
    made = diffuse(_noise(seed, *probe.x.shape[:2], width), "features", states)
    found.controls[Key("white_noise", "features_inter")] = inter_layer(made, pearson).tolist()
    found.controls[Key("white_noise", "closed_form")] = white_noise(width, states).tolist()
    known = {"heat_N": "sample N, its states averaged over tokens: layer after layer, feature after feature"}
    known |= {"step": STEP, "boundary": "reflecting", "boundaries": list(BOUNDARIES), "samples": SAMPLES}
    return found.result("tables", task, scale, seed, **known, **task.cut_of(full))
