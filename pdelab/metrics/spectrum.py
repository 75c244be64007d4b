"""The spectrum of a state along its tokens. u: (batch, token, feature); mask: (batch, token).

û_k = Σ_i u_i e^{−2πi·ki/N} for the frequencies k/N in [0, ½] cycles per token, N each sequence's own real length.
Sequences of several lengths have several sets of frequencies, so all results stand on `bins` equal parts of [0, ½].
Unless given, bins is ⌊N/2⌋ + 1 of the shortest sequence, the most that leaves no bin empty; where all have that length
each bin holds exactly one frequency, and nothing is lost.
"""

import torch
from torch import Tensor

from pdelab.field import Field, Mask
from pdelab.metrics.base import aligned, clean, clean_pair
from pdelab.options import choose, whole


def power(u: Field, mask: Mask | None = None, *, bins: int | None = None) -> Tensor:
    """Σ_k w_k |û_k|² / N over the frequencies of each bin: (batch, bin, feature).

    w_k = 2 for the k that stand for N − k too, else 1; so the sum over all bins is Σ_i u_i² (Parseval).
    """
    return _binned(clean(u, mask), mask, bins)[0]


def amplitude(u: Field, mask: Mask | None = None, *, bins: int | None = None) -> Tensor:
    """|û_k| / √N, the root mean square of it where a bin holds several frequencies: (batch, bin, feature).

    White noise of variance σ² has the root mean square amplitude σ in every bin.
    """
    total, number = _binned(clean(u, mask), mask, bins)
    return (total / number).sqrt()


def spectrum(u: Field, mask: Mask | None = None, *, bins: int | None = None) -> Tensor:
    """The amplitude averaged over batch and features in the root mean square, as it is within a bin: (bin,)."""
    return amplitude(u, mask, bins=bins).square().mean(dim=(0, 2)).sqrt()


def spectral_similarity(
    u: Field, v: Field, mask: Mask | None = None, *, bins: int | None = None, over: str = "series"
) -> Tensor:
    """⟨a, b⟩ / (|a| |b|) of the amplitudes a of u and b of v over the bins, in [0, 1].

    over: "series", one cosine for each example and feature, averaged; or "mean", the cosine of the two `spectrum`s.
    P2 prints 0.967 for a spectral similarity that it does not define; these are two readings. No amplitude is negative,
    so unrelated states score high: two independent white noises about π/4 ≈ 0.785 over "series" where sequences are
    long and each bin holds one frequency, more with wider bins, and 1 over "mean". A series that is zero at every token
    makes it NaN.
    """
    choose("over", over, ("series", "mean"))
    u, v = clean_pair(u, v, mask)
    if over == "series":
        a, b = (amplitude(w, mask, bins=bins) for w in (u, v))
    else:
        a, b = (spectrum(w, mask, bins=bins).reshape(1, -1, 1) for w in (u, v))
    a, b = a / a.amax(dim=1, keepdim=True), b / b.amax(dim=1, keepdim=True)  # the fourth power below would underflow
    return ((a * b).sum(dim=1) / ((a * a).sum(dim=1) * (b * b).sum(dim=1)).sqrt()).mean()


def cumulative_energy(u: Field, mask: Mask | None = None, *, bins: int | None = None) -> Tensor:
    """Σ_{k ≤ K} power / Σ_k power: the share up to each bin, low to high frequency, ends at 1: (bin,).

    Features are summed, then the shares of the examples averaged. An example that is zero at every token makes it NaN.
    """
    total = power(u, mask, bins=bins).sum(dim=2).cumsum(dim=1)  # (batch, bin)
    return (total / total[:, -1:]).mean(dim=0)


def _binned(u: Field, mask: Mask | None, bins: int | None) -> tuple[Tensor, Tensor]:
    """The power in each bin, (batch, bin, feature), and the number of frequencies k = 0…N−1 in it, (batch, bin, 1)."""
    if mask is None:
        bins = _check_bins(bins, u.shape[1])
        total, number = _of_one_length(u, bins)
        return total, number.expand(len(u), bins, 1)
    if mask.is_meta:
        raise ValueError(
            "mask must hold data: the frequencies depend on the lengths, which a meta tensor does not know"
        )
    u, mask = aligned(u, mask)
    lengths = mask.sum(dim=1)
    bins = _check_bins(bins, int(lengths.min()))
    total, number = u.new_zeros(len(u), bins, u.shape[2]), u.new_zeros(len(u), bins, 1)
    for n in lengths.unique().tolist():  # one transform for each length, not for each sequence
        rows = lengths == n
        total[rows], number[rows] = _of_one_length(u[rows, :n], bins)
    return total, number


def _of_one_length(u: Field, bins: int) -> tuple[Tensor, Tensor]:
    """As _binned, of sequences that are real from end to end: (batch, bin, feature) and (bin, 1)."""
    n = u.shape[1]
    k = torch.arange(n // 2 + 1, device=u.device)
    weight = 2 - ((k == 0) | (2 * k == n)).to(u.dtype).unsqueeze(1)  # k = 0 and N/2 stand for themselves alone
    power = weight * torch.fft.rfft(u, dim=1, norm="ortho").abs().square()  # (batch, N/2 + 1, feature)
    place = torch.clamp(k * 2 * bins // n, max=bins - 1)  # k/N = ½ itself belongs to the last bin
    total = u.new_zeros(len(u), bins, u.shape[2]).index_add(1, place, power)
    return total, u.new_zeros(bins, 1).index_add(0, place, weight)


def _check_bins(bins: int | None, shortest: int) -> int:
    most = shortest // 2 + 1  # for a sequence of so many tokens
    return most if bins is None else whole("bins", bins, most=most)
