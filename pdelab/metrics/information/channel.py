"""Information through a noisy channel: I(X; T + σZ) is finite, and depends on σ, on the scale of T and on its clusters.

X is uniform over n inputs and T = f(X) is deterministic, so T + σZ is a mixture of n Gaussians, whose information is
bracketed by sums over pairs (Kolchinsky and Tracey 2017) and computed by Monte Carlo.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdelab.metrics.information.bins import entropy
from pdelab.metrics.information.estimate import Estimate, labels, samples
from pdelab.options import positive, whole
from pdelab.seeds import stream

AT_ONCE = 2**20  # distances held at once


@dataclass(frozen=True)
class Bounds:
    """lower ≤ I(X; T + σZ) ≤ upper, in nats, for X uniform over the given inputs; no sampling, so no error."""

    lower: float
    upper: float
    noise: float

    def __str__(self) -> str:
        return f"{self.lower:.3f} to {self.upper:.3f} nats (noise {self.noise:.3g})"


def noise_at_ratio(t: Tensor, ratio: float) -> float:
    """σ with (mean variance of a feature)/σ² = ratio: noise at a fixed signal-to-noise ratio, in proportion to t."""
    positive("ratio", ratio)
    t, size = _unit(samples(t, "t").detach())
    variance = t.square().mean().item()
    if not variance > 0:
        raise ValueError("t must vary over the samples; all of them are equal, so no noise gives this ratio")
    return size * (variance / ratio) ** 0.5


def channel_bounds(t: Tensor, *, noise: float | None = None, ratio: float | None = None) -> Bounds:
    """−(1/n) Σ_i log (1/n) Σ_j exp(−|t_i − t_j|²/cσ²), with c = 8 a lower and c = 2 an upper bound of I(X; T + σZ).

    noise: σ itself, the same for every layer; ratio: the signal-to-noise ratio, for a noise that follows the scale of
    t. Give one of them. Both bounds lie between 0 and log n.

    >>> str(channel_bounds(torch.tensor([[0.0], [100.0]]), noise=1.0))
    '0.693 to 0.693 nats (noise 1)'
    """
    t, sigma, noise = _prepared(t, noise, ratio)
    n = len(t)
    sums = {8: 0.0, 2: 0.0}
    for _, squared in _squared_distances(t, t, sigma):
        for c in sums:
            sums[c] += torch.logsumexp(-squared / c, dim=1).sum().item()
    return Bounds(math.log(n) - sums[8] / n, math.log(n) - sums[2] / n, noise)


def channel_information(
    t: Tensor,
    y: Tensor | Sequence[int] | None = None,
    *,
    noise: float | None = None,
    ratio: float | None = None,
    draws: int = 1,
    seed: int = 0,
) -> Estimate:
    """I(X; T + σZ), or I(Y; T + σZ) with labels y: the mean of log p(s | t_i)/p(s) at s = t_i + σz, Monte Carlo over z.

    Unbiased for X uniform over the given inputs. With labels p(s | y_i) is the mixture of the inputs of that label.
    error: over inputs and draws; for these inputs alone it is smaller.
    """
    t, sigma, noise = _prepared(t, noise, ratio)
    kinds = None if y is None else labels(y, len(t)).to(t.device)
    draws = whole("draws", draws)
    generator, found = stream(seed, "channel"), []
    for _ in range(draws):
        z = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        found.append(_log_ratio(t + sigma * z, t, sigma, kinds))
    ceiling = math.log(len(t)) if kinds is None else entropy(kinds).value
    return Estimate.mean_of(torch.stack(found).mean(dim=0), f"channel, noise {noise:.3g}", ceiling=ceiling)


def _log_ratio(s: Tensor, t: Tensor, sigma: float, kinds: Tensor | None) -> Tensor:
    """log p(s_i | x_i or y_i)/p(s_i), (n,)."""
    parts = []
    for chosen, squared in _squared_distances(s, t, sigma):
        score = -squared / 2
        every = torch.logsumexp(score, dim=1) - math.log(len(t))
        if kinds is None:
            own = score.diagonal(chosen.start)[: len(chosen)]
        else:
            same = kinds[chosen.start : chosen.stop].unsqueeze(1) == kinds
            own = torch.logsumexp(score.masked_fill(~same, -torch.inf), dim=1) - same.sum(dim=1).log()
        parts.append(own - every)
    return torch.cat(parts)


def _prepared(t: Tensor, noise: float | None, ratio: float | None) -> tuple[Tensor, float, float]:
    """t centred and brought to size 1, the noise in those units, and the noise as it was."""
    t = samples(t, "t").detach()
    if (noise is None) == (ratio is None):
        raise ValueError(f"give noise or ratio, one of the two; not {noise} and {ratio}")
    if ratio is not None:
        noise = noise_at_ratio(t, ratio)
    positive("noise", noise)
    t, size = _unit(t)
    return t, noise / size, float(noise)


def _unit(t: Tensor) -> tuple[Tensor, float]:
    """t less its mean, divided by its largest |entry|, and that entry: squares of very small numbers would be lost."""
    t = t - t.mean(dim=0)
    size = t.abs().amax().item() or 1.0
    return t / size, size


def _squared_distances(s: Tensor, t: Tensor, sigma: float) -> Iterator[tuple[range, Tensor]]:
    """|s_i − t_j|²/σ², some rows i at a time, (row, sample); from differences, since |s|² − 2s·t + |t|² cancels."""
    chunk = max(1, AT_ONCE // len(t))
    for start in range(0, len(s), chunk):
        chosen = range(start, min(start + chunk, len(s)))
        exact = "donot_use_mm_for_euclid_dist"
        yield chosen, (torch.cdist(s[chosen.start : chosen.stop], t, compute_mode=exact) / sigma).square()
