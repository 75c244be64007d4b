"""How alike two models are: states, attention maps and spectra of one beside those of another, layer by layer.

Two models trained apart have their features in no common order, so cosine, mean square error and spectra of feature
against feature cannot find them alike. CKA can, and so can every similarity after an affine map from the states of one
to the states of the other, fitted on training examples (`mapped_…`).
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from pdebook.ledger.record import Figures
from pdelab.field import Field, Mask, keep_real
from pdelab.metrics import attention
from pdelab.metrics.base import per_layer, real_places
from pdelab.metrics.similarity import cka, cosine, mse, nmse
from pdelab.metrics.spectrum import cumulative_energy, spectral_similarity, spectrum
from pdelab.solver import Trajectory

SIMILARITIES = {
    "mse": mse,
    "nmse": nmse,
    "cosine": cosine,
    "centred_cosine": partial(cosine, centre="position"),
    "spectral": spectral_similarity,
    "mean_spectral": partial(spectral_similarity, over="mean"),
    "cka": cka,
}
MAPPED = ("nmse", "cosine", "centred_cosine")  # after a map fitted to the target; CKA needs none
SPECTRAL = ("spectral", "mean_spectral")
BINS = 16  # of the spectra that are kept, or as many as the shortest example has
SHORTEST = 8  # tokens that an example must have to count in a spectrum: five bands
DEFINITIONS = {
    "mse, nmse": "mean square difference of the states, plain and over the variance of the target's",
    "cosine": "of a token's two states, mean over tokens; centred_: less the mean at each position",
    "spectral": "cosine of the amplitudes along the tokens, one for each example and feature, averaged; "
    f"as in all spectra of examples of at least {SHORTEST} tokens",
    "mean_spectral": "cosine of the two amplitude spectra averaged over examples and features",
    "mapped_...": "the same after an affine map fitted on training examples",
    "attention_cosine, attention_kl": "of the rows of the maps, head by head, KL from the target in nats",
    "mean_attention_...": "the same for the mean over the heads",
    "overall_...": "the mean over the layers, without the input",
    "energy_gap": "largest distance of the energy curve from the target's; energy_gain: that of its input less this",
    "amplitude, energy": f"spectrum along the tokens up to 1/2 a token, averaged over the layers; {BINS} bands, or "
    "as many as the shortest example has",
}


def overall(figures: Figures, *, skip: int = 0) -> Figures:
    """The mean over the layers of every list, as overall_NAME, without the first `skip` values."""
    return {f"overall_{name}": statistics.fmean(values[skip:]) for name, values in figures.items()}


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
    """Similarities of the states to the target's, one value per state, and overall."""
    both = (replace(target, states=tuple(states)), target)
    longer = [long_enough(run) for run in both]
    layers = {name: per_layer(SIMILARITIES[name], *(longer if name in SPECTRAL else both)).tolist() for name in names}
    return layers | overall(layers, skip=1)


def long_enough(run: Trajectory) -> Trajectory:
    """The run of the examples that count in a spectrum; of all if none is so long."""
    kept = real_places(run.final, run.mask).sum(dim=1) >= SHORTEST
    if run.mask is None or kept.all() or not kept.any():
        return run
    return replace(run, states=tuple(u[kept] for u in run.states), mask=run.mask[kept])


def compared(fitted: Trajectory, tested: Trajectory, target_fitted: Trajectory, target: Trajectory) -> Figures:
    """A model's states beside the target's: as they are, and after the map fitted on training examples."""
    maps = affine_maps(fitted.states, target_fitted)
    mapped = alignment(through(maps, tested.states, target.mask), target, MAPPED)
    mapped = {f"mapped_{name}": mapped[name] for name in MAPPED}
    return alignment(tested.states, target) | mapped | overall(mapped, skip=1)


def maps_compared(run: Trajectory, target: Trajectory) -> Figures:
    """Attention maps of a model beside the target's, by layer and overall; the target's rows come first in KL."""

    def by_layer(measure, one: Trajectory, other: Trajectory, heads: str) -> list[float]:
        return per_layer(measure, one, other, of="attention", heads=heads).tolist()

    layers = {
        "attention_cosine": by_layer(attention.cosine, run, target, "each"),
        "attention_kl": by_layer(attention.kl, target, run, "each"),
        "mean_attention_cosine": by_layer(attention.cosine, run, target, "mean"),
        "mean_attention_kl": by_layer(attention.kl, target, run, "mean"),
    }
    return layers | overall(layers)


def uniform_maps(run: Trajectory) -> Trajectory:
    """The same run with every token looking at all tokens alike: the control of attention maps."""
    return replace(run, attention=tuple(attention.uniform(P, run.mask) for P in run.attention))


def spectra(states: Sequence[Field], mask: Mask | None) -> Figures:
    """Amplitude in each band of frequency and cumulative energy, averaged over the layers (in the root mean square)."""
    run = long_enough(Trajectory.of(states, mask=mask))
    states, mask = run.states, run.mask
    bins = min(BINS, int(real_places(states[0], mask).sum(dim=1).min()) // 2 + 1)
    amplitudes = torch.stack([spectrum(u, mask, bins=bins) for u in states])
    energies = torch.stack([cumulative_energy(u, mask, bins=bins) for u in states])
    return {"amplitude": amplitudes.square().mean(dim=0).sqrt().tolist(), "energy": energies.mean(dim=0).tolist()}


def energy_gap(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest distance between two curves of cumulative energy; NaN if one has a NaN."""
    return torch.tensor([abs(a - b) for a, b in zip(one, other, strict=True)], dtype=torch.float64).amax().item()
