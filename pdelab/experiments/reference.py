"""A trained Transformer and the simulators, trained separately: are their states alike, layer by layer?  (P2 §4)

Similarity is measured between the Transformer and each simulator, and between the Transformer and what knows nothing of
it: a copy of the input, the mean at each position, an affine map of the input, an untrained simulator, and a second
Transformer with other weights. A figure counts for something only where it is better than these.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from pdelab.experiments.scales import Scale, Workplace, experiment
from pdelab.experiments.tasks import TASKS, build, look, measure
from pdelab.field import Field, keep_real
from pdelab.metrics.base import per_layer
from pdelab.metrics.similarity import cka, cosine, nmse
from pdelab.metrics.spectrum import spectral_similarity
from pdelab.results import Figures, Result
from pdelab.solver import Status, Trajectory

SIMULATORS = ("printed", "bare", "earlier", "diffusion_only")
SIMILARITIES = {
    "nmse": nmse,
    "cosine": cosine,
    "centred_cosine": partial(cosine, centre="position"),
    "spectral": spectral_similarity,
    "cka": cka,
}


def position_mean(u: Field, mask=None) -> Field:
    """The mean over the batch at each position, for every example: what knowing the position alone gives."""
    if mask is None:
        return u.mean(dim=0, keepdim=True).expand_as(u)
    count = mask.sum(dim=0).clamp(min=1).unsqueeze(-1)  # (token, 1)
    return keep_real((keep_real(u, mask).sum(dim=0) / count).expand_as(u), mask)


def affine_maps(seen: Trajectory) -> list[torch.Tensor]:
    """For each layer the least-squares map (u₀, 1) → u_ℓ over the real tokens: (feature + 1, feature) each."""
    real = seen.mask if seen.mask is not None else torch.ones(seen.final.shape[:2], dtype=torch.bool)
    flat = [u[real].double().cpu() for u in seen.states]
    source = torch.cat([flat[0], torch.ones(len(flat[0]), 1, dtype=flat[0].dtype)], dim=1)
    return [torch.linalg.lstsq(source, target).solution for target in flat]


def through(maps: Sequence[torch.Tensor], u0: Field, mask=None) -> list[Field]:
    source = torch.cat([u0, torch.ones_like(u0[..., :1])], dim=-1)
    return [keep_real(source @ one.to(source), mask) for one in maps]


def alignment(states: Sequence[Field], target: Trajectory) -> Figures:
    """Every similarity of the states to the Transformer's, one value per layer."""
    run = replace(target, states=tuple(states))
    return {name: per_layer(metric, run, target).tolist() for name, metric in SIMILARITIES.items()}


def _reference(name: str, scale: Scale, seed: int, work: Workplace) -> Result:
    task = TASKS[name][scale]
    data = task.load()
    found = measure(("transformer", "other", *SIMULATORS), task, data, seed, work)
    figures, controls, models = found.figures, found.controls, found.models

    if "transformer" in models:
        test = data.test.take(slice(0, task.probe))
        target = look(models["transformer"], test)
        maps = affine_maps(look(models["transformer"], data.train.take(slice(0, task.probe))))
        untrained = build("printed", task, data, seed).to(target.final.device)
        knows_nothing = {
            "copy": [target.states[0]] * len(target.states),
            "position_mean": [position_mean(v, target.mask) for v in target.states],
            "affine": through(maps, target.states[0], target.mask),
            "untrained": look(untrained, test).states,
        }
        if "other" in models:
            knows_nothing["other"] = look(models["other"], test).states
        for control, states in knows_nothing.items():
            controls |= {f"{control}/{key}": value for key, value in alignment(states, target).items()}
        for kind in models.keys() & set(SIMULATORS):
            run = look(models[kind], test)
            if run.status is Status.FINISHED:
                figures |= {f"{kind}/{key}": value for key, value in alignment(run.states, target).items()}
    return Result(
        experiment=f"reference-{name}",
        configuration=task.configuration(),
        scale=scale,
        seed=seed,
        status="finished" if "transformer" in models else "diverged",
        figures=figures,
        controls=controls,
        diverged=found.diverged,
    )


@experiment(*Scale)
def images(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside separately trained simulators on images: are their states alike?"""
    return _reference("images", scale, seed, work)


@experiment(*Scale)
def listops(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside separately trained simulators on ListOps: are their states alike?"""
    return _reference("listops", scale, seed, work)
