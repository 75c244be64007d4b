import math

import numpy as np
import pytest
import torch
from hypothesis import given
from systems import field, fields, padded

from pdelab.metrics.spectrum import amplitude, cumulative_energy, power, spectral_similarity, spectrum

BOTH = pytest.mark.parametrize("over", ["series", "mean"])


def close(a, b, atol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), b, rtol=0, atol=atol)


def waves(n, k):
    """cos and sin of k turns over n tokens: (1, n, 2)."""
    angle = 2 * math.pi * k * torch.arange(n, dtype=torch.float64) / n
    return torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1).unsqueeze(0)


@given(u=fields())
def test_power_sums_to_the_squares(u):
    """Parseval, for every number of bins."""
    for bins in range(1, u.shape[1] // 2 + 2):
        torch.testing.assert_close(power(u, bins=bins).sum(1), u.square().sum(1), rtol=1e-12, atol=1e-12)


def test_power_sums_to_the_squares_for_every_length_of_sequence():
    sequences = [field(1, n, seed=n) for n in (7, 4, 5)]
    u, mask = padded(sequences, (0, 2, 1))
    close(torch.cat([s.square().sum(1) for s in sequences]), power(u, mask).sum(1))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_it_is_numpys_transform_where_each_bin_holds_one_frequency(n):
    u = field(2, n)
    want = np.abs(np.fft.rfft(u.numpy(), axis=1)) / math.sqrt(n)
    close(want, amplitude(u))
    close(np.sqrt((want**2).mean(axis=(0, 2))), spectrum(u))


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_wave_has_all_its_power_in_one_bin(n, k):
    want = torch.zeros(n // 2 + 1, dtype=torch.float64)
    want[k] = n / 2
    close(want.unsqueeze(-1).expand(-1, 2), power(waves(n, k))[0])
    close((torch.arange(n // 2 + 1) >= k).double(), cumulative_energy(waves(n, k)))


@pytest.mark.parametrize(("u", "place"), [(torch.ones(8), 0), (torch.tensor([1.0, -1.0] * 4), -1)])
def test_a_constant_is_at_the_lowest_and_an_alternating_field_at_the_highest_frequency(u, place):
    total = power(u.double().reshape(1, 8, 1))[0, :, 0]
    assert total[place] == pytest.approx(8)
    assert total.sum() == pytest.approx(8)


@pytest.mark.parametrize("bins", [None, 5])
def test_white_noise_has_a_flat_spectrum(bins):
    u = 3 * field(100, 32, 40)
    assert ((spectrum(u, bins=bins) / 3 - 1).abs() < 4 / math.sqrt(100 * 40)).all()


def test_sequences_of_every_length_put_a_wave_in_the_bin_of_its_frequency():
    """A period of 4 tokens is the frequency ¼, the first of the upper half of [0, ½], whatever the length."""
    u, mask = padded([waves(n, n // 4) for n in (8, 12, 20)], (0, 5, 3), 25)
    close([0.0, 0.0, 1.0, 0.0], power(u, mask, bins=4).sum((0, 2)) / 40)
    close([0.0, 0.0, 1.0, 1.0], cumulative_energy(u, mask, bins=4))


def test_bins_are_filled_by_frequency_and_hold_the_mean():
    u = field(2, 8)  # frequencies 0, ⅛, ¼, ⅜, ½: two below ¼, and three from there on
    squares = amplitude(u).square()
    close(((squares[:, 0] + 2 * squares[:, 1]) / 3).sqrt(), amplitude(u, bins=2)[:, 0])


def test_cumulative_energy_rises_to_exactly_one():
    share = cumulative_energy(field(3, 30))
    assert (share.diff() >= 0).all()
    assert share[-1] == 1


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_state_has_the_spectrum_of_itself_its_negative_and_its_shifts(over, dtype):
    u = field(3, 8, dtype=dtype)
    assert spectral_similarity(u, u.clone(), over=over) == pytest.approx(1, abs=1e-6)
    assert spectral_similarity(u, -3 * u.roll(2, dims=1), over=over) == pytest.approx(1, abs=1e-2)


@BOTH
def test_waves_of_different_frequency_have_nothing_in_common(over):
    assert spectral_similarity(waves(8, 1), waves(8, 2), over=over) == pytest.approx(0, abs=1e-12)


def test_unrelated_noise_scores_high():
    u, v = field(50, 128, 20, seed=1), field(50, 128, 20, seed=2)
    assert spectral_similarity(u, v) == pytest.approx(math.pi / 4, abs=0.01)
    assert spectral_similarity(u, v, over="mean") == pytest.approx(1, abs=0.01)


def test_a_zero_state_has_no_value():
    assert spectral_similarity(field(), torch.zeros_like(field())).isnan()
    assert cumulative_energy(torch.zeros_like(field())).isnan().all()


@pytest.mark.parametrize("bins", [0, 4, 2.0, True])
def test_bins_that_would_stay_empty_are_refused(bins):
    with pytest.raises(ValueError, match="bins must be a whole number from 1 to 3"):
        power(field(1, 5), bins=bins)


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="over must be one of"):
        spectral_similarity(field(), field(), over="batch")
