"""A trained Transformer and the simulators, trained separately: are their states alike, layer by layer?  (P2 §4)

Two models trained apart have their features in no common order, so cosine, mean square error and spectra of feature
against feature cannot find them alike: `relabelled`, the Transformer itself with its features permuted, scores no
better than an unrelated model. CKA can, and so can every similarity after an affine map from the states of one to the
states of the other, fitted on training examples (`mapped_…`). Beside them stand

- controls that have the Transformer's states but no dynamics: a copy of its input, the mean of its states at each
  position, and an affine map of its input, the last two fitted on training examples;
- unrelated models: a second Transformer with other weights (`other`), and every model untrained (`untrained_…`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from pdelab.experiments.scales import Scale, Workplace, experiment
from pdelab.experiments.tasks import TASKS, build, look, measure
from pdelab.field import Field, Mask, keep_real
from pdelab.metrics.base import per_layer, real_places
from pdelab.metrics.similarity import cka, cosine, mse, nmse
from pdelab.metrics.spectrum import spectral_similarity
from pdelab.results import Figures, Result
from pdelab.seeds import stream
from pdelab.solver import Status, Trajectory

SIMULATORS = ("printed", "bare", "earlier", "diffusion_only")
SIMILARITIES = {
    "mse": mse,
    "nmse": nmse,
    "cosine": cosine,
    "centred_cosine": partial(cosine, centre="position"),
    "spectral": spectral_similarity,
    "cka": cka,
}
MAPPED = ("nmse", "cosine", "centred_cosine")  # after a map fitted to the target; CKA needs none
FITTED = 4  # times `probe` training examples, for maps and means


def position_mean(u: Field, mask: Mask | None, length: int) -> Field:
    """The mean over the batch at each position: (1, length, feature), zero where no example has a token."""
    real = real_places(u, mask).unsqueeze(-1)
    mean = keep_real(u, mask).sum(dim=0) / real.sum(dim=0).clamp(min=1)  # (token, feature)
    return torch.nn.functional.pad(mean, (0, 0, 0, max(0, length - len(mean))))[:length].unsqueeze(0)


def affine_maps(source: Sequence[Field], target: Trajectory) -> list[torch.Tensor]:
    """For each layer the least-squares map (u, 1) → v over the real tokens: (feature + 1, feature)."""
    real = real_places(target.final, target.mask)
    pairs = [(u[real].cpu().double(), v[real].cpu().double()) for u, v in zip(source, target.states, strict=True)]
    # gelsd takes states of low rank, as when all tokens have become one; what float32 cannot tell from 0 is left out
    return [torch.linalg.lstsq(_with_one(u), v, rcond=1e-5, driver="gelsd").solution for u, v in pairs]


def through(maps: Sequence[torch.Tensor], states: Sequence[Field], mask: Mask | None) -> list[Field]:
    return [keep_real(_with_one(u) @ one.to(u), mask) for one, u in zip(maps, states, strict=True)]


def _with_one(u: torch.Tensor) -> torch.Tensor:
    return torch.cat([u, torch.ones_like(u[..., :1])], dim=-1)


def alignment(states: Sequence[Field], target: Trajectory, names: Sequence[str] = tuple(SIMILARITIES)) -> Figures:
    """Similarities of the states to the Transformer's, one value per layer."""
    run = replace(target, states=tuple(states))
    return {name: per_layer(SIMILARITIES[name], run, target).tolist() for name in names}


def compared(fitted: Trajectory, tested: Trajectory, target_fitted: Trajectory, target: Trajectory) -> Figures:
    """A model's states beside the Transformer's: as they are, and after the map fitted on training examples."""
    maps = affine_maps(fitted.states, target_fitted)
    mapped = alignment(through(maps, tested.states, target.mask), target, MAPPED)
    return alignment(tested.states, target) | {f"mapped_{name}": values for name, values in mapped.items()}


def _reference(name: str, scale: Scale, seed: int, work: Workplace) -> Result:
    task = TASKS[name][scale]
    data = task.load(seed)
    found = measure(("transformer", "other", *SIMULATORS), task, data, seed, work)
    if "transformer" in found.models:
        fit, test = data.train.take(slice(0, FITTED * task.probe)), data.test.take(slice(0, task.probe))
        target_fit, target = (look(found.models["transformer"], part) for part in (fit, test))
        maps = affine_maps([target_fit.states[0]] * len(target_fit.states), target_fit)
        tokens, features = target.final.shape[1:]
        order = torch.randperm(features, generator=stream(seed, "relabelled"))
        means = [position_mean(v, target_fit.mask, tokens).expand_as(target.final) for v in target_fit.states]
        controls = {
            "copy": [target.states[0]] * len(target.states),
            "position_mean": [keep_real(mean, target.mask) for mean in means],
            "affine": through(maps, [target.states[0]] * len(maps), target.mask),
            "relabelled": [v[..., order] for v in target.states],
        }
        for key, states in controls.items():
            found.controls |= {f"{key}/{figure}": value for figure, value in alignment(states, target).items()}
        device = target.final.device
        models = {kind: found.models[kind] for kind in (*SIMULATORS, "other") if kind in found.models}
        models |= {f"untrained_{k}": build(k, task, data, seed).to(device) for k in (*SIMULATORS, "other")}
        for key, model in models.items():
            runs = [look(model, part) for part in (fit, test)]
            if diverged := [run.stopped_at for run in runs if run.status is Status.DIVERGED]:
                found.diverged |= {key: diverged[0]}
                continue
            into = found.figures if key in SIMULATORS else found.controls
            into |= {f"{key}/{figure}": value for figure, value in compared(*runs, target_fit, target).items()}
    return found.result(f"reference-{name}", task, scale, seed, fitted_on=FITTED * task.probe)


@experiment(*Scale)
def images(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside separately trained simulators on images: are their states alike?"""
    return _reference("images", scale, seed, work)


@experiment(*Scale)
def listops(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside separately trained simulators on ListOps: are their states alike?"""
    return _reference("listops", scale, seed, work)
