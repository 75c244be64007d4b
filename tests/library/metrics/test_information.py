"""Estimators against information that is known: Gaussians, counts, mixtures, and other people's code."""

import math

import infomeasure
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.feature_selection import mutual_info_regression
from systems import field, padded
from torch.utils._python_dispatch import TorchDispatchMode

from pdelab.metrics.information import (
    Estimate,
    bin_codes,
    binned_information,
    channel,
    channel_bounds,
    channel_information,
    discrete_information,
    entropy,
    gaussian_channel,
    gaussian_information,
    ksg,
    neighbours,
    noise_at_ratio,
    per_unit_information,
    permutation_test,
    rows,
)
from pdelab.seeds import normal, stream

BITS = math.log(2)


def gaussian_pair(rho, n, d=1, seed=0):
    """n samples of d independent pairs with correlation rho: I = −d/2 log(1 − ρ²)."""
    x, z = normal(seed, "x", size=(n, d)), normal(seed, "z", size=(n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * z


def known(rho, d=1):
    return -d / 2 * math.log(1 - rho**2)


def within(estimate, truth, errors=4.0, bias=0.0):
    assert abs(estimate.value - truth) < errors * estimate.error + bias, (str(estimate), truth)


# KSG


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9, -0.9])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_ksg_finds_the_information_of_a_gaussian_pair(rho, k):
    within(ksg(*gaussian_pair(rho, 3000), k=k), known(rho), bias=0.01)


def test_ksg_is_zero_for_independent_and_for_shuffled_samples():
    x, y = gaussian_pair(0.9, 2000)
    independent = ksg(*gaussian_pair(0.0, 2000))
    shuffled = ksg(x, y[torch.randperm(2000, generator=stream(0, "order"))])
    for found in (independent, shuffled):
        within(found, 0.0)
    assert ksg(x, y).value > 20 * ksg(x, y).error  # the same test does see a dependence


def test_ksg_of_two_independent_pairs_is_the_sum():
    (x, y), (a, b) = gaussian_pair(0.8, 4000, seed=1), gaussian_pair(0.5, 4000, seed=2)
    together = ksg(torch.cat([x, a], 1), torch.cat([y, b], 1))
    within(together, known(0.8) + known(0.5), bias=0.05)
    assert together.value == pytest.approx(ksg(x, y).value + ksg(a, b).value, abs=0.08)


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
def test_ksg_does_not_see_a_joint_scale_a_shift_or_the_order(scale, shift):
    x, y = gaussian_pair(0.7, 200, d=2)
    order = torch.randperm(200, generator=stream(3, "order"))
    moved = ksg((scale * x + shift)[order], (scale * y - shift)[order])
    assert moved.value == pytest.approx(ksg(x, y).value, abs=1e-9)
    assert ksg(y, x).value == pytest.approx(ksg(x, y).value, abs=1e-12)


def test_ksg_does_see_the_scale_of_one_of_them():
    x, y = gaussian_pair(0.7, 500)
    assert abs(ksg(x, 1000 * y).value - ksg(x, y).value) > 1e-3


@pytest.mark.parametrize(("dx", "dy"), [(1, 1), (2, 1), (3, 5), (16, 16)])
@pytest.mark.parametrize("k", [1, 4])
def test_ksg_is_infomeasures(dx, dy, k):
    x = normal(4, "x", size=(300, dx))
    y = x[:, :1] + normal(4, "y", size=(300, dy))
    theirs = infomeasure.mutual_information(x.numpy(), y.numpy(), approach="metric", k=k, noise_level=0)
    assert ksg(x, y, k=k).value == pytest.approx(theirs, abs=1e-12)


def test_ksg_is_scikit_learns_in_one_dimension():
    """Theirs scales both variables, adds a little noise and takes the maximum with 0: equal up to that noise."""
    x, y = gaussian_pair(0.6, 400)
    x, y = x / x.std(correction=0), y / y.std(correction=0)
    theirs = mutual_info_regression(x.numpy(), y.squeeze(1).numpy(), n_neighbors=3, random_state=0)[0]
    assert ksg(x, y).value == pytest.approx(theirs, abs=1e-6)


def test_ksg_is_far_too_low_in_many_dimensions():
    """What its docstring warns of."""
    found, truth = ksg(*gaussian_pair(0.5, 2000, d=16)), known(0.5, 16)
    assert truth == pytest.approx(2.30, abs=0.01)
    assert found.value < 1


def all_distances(x, y, k):
    """Î from the matrices of distances, by the definition."""
    dx, dy = ((v - v.T).abs().fill_diagonal_(math.inf) for v in (x, y))
    reach = torch.maximum(dx, dy).sort(dim=1).values[:, k - 1 : k]
    numbers = torch.stack([(d < reach).sum(dim=1) for d in (dx, dy)]).to(x.dtype)
    constant = torch.digamma(torch.tensor([k, len(x)], dtype=x.dtype)).sum()
    return (constant - torch.digamma(numbers + 1).sum(dim=0).mean()).item()


def rounded(v):
    return (8 * v).round() / 8  # hardly a hundred values


CLOUDS = {
    "smooth": lambda x, y: (x, y),
    "single precision": lambda x, y: (x.float(), y.float()),
    "with ties": lambda x, y: (rounded(x), y),
    "far from 0": lambda x, y: (x.float() + 1e4, y.float()),
    "of two scales": lambda x, y: (x.sign() * x.abs() ** 40, y),
}


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
@pytest.mark.parametrize("k", [1, 3, 30])
def test_ksg_by_sorting_is_ksg_by_comparing_all_and_its_definition(cloud, k, monkeypatch):
    x, y = cloud(*gaussian_pair(0.6, 700))
    found = []
    for least in (1, 10**9):
        monkeypatch.setattr(neighbours, "SORTED", least)
        found.append(ksg(x, y, k=k, splits=0).value)
    assert found[0] == found[1]
    assert found[0] == pytest.approx(all_distances(x, y, k), abs=1e-12 if x.dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize(("n", "k"), [(5, 1), (40, 3), (300, 3), (301, 9), (307, 1)])
def test_the_smallest_are_found_in_groups_as_in_a_whole_row(n, k):
    d = normal(24, n, size=(2, 7, n)).abs()
    d[..., ::3] = d[..., :1]  # many are equal
    torch.testing.assert_close(neighbours._smallest(d, k), d.sort(dim=-1).values[..., k - 1 : k], rtol=0, atol=0)


def test_ksg_in_pieces_is_ksg_at_once(monkeypatch):
    x, y = gaussian_pair(0.6, 333, d=2)
    whole = ksg(x, y)
    monkeypatch.setattr(neighbours, "AT_ONCE", 1000)
    assert ksg(x, y) == whole


def test_ten_thousand_samples_stay_within_bounded_memory():
    """All distances at once would be 10⁸ numbers, 400 MB in float32, for x and for y each."""
    for d in (1, 2):
        x, y = (v.float() for v in gaussian_pair(0.6, 10_000, d=d))
        assert _largest_tensor(lambda x=x, y=y: ksg(x, y)) <= neighbours.AT_ONCE


def _largest_tensor(compute):
    """The number of entries of the largest tensor that any operation makes."""

    class Watch(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            made = f(*args, **(kwargs or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, torch.Tensor):
                    Watch.largest = max(Watch.largest, one.numel())
            return made

    with Watch():
        compute()
    return Watch.largest


@pytest.mark.parametrize("least", [1, 10**9])
def test_equal_samples_are_refused_by_ksg(least, monkeypatch):
    monkeypatch.setattr(neighbours, "SORTED", least)
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="4 or more equal samples"):
        ksg(x, x)


# Gaussian


@given(rho=st.floats(-0.99, 0.99))
def test_a_gaussian_pair_has_minus_half_log_one_minus_rho_squared(rho):
    covariance = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
    assert gaussian_information(covariance, 1).item() == pytest.approx(known(rho), abs=1e-12)


def test_in_several_dimensions_it_is_the_sum_over_canonical_correlations():
    a = normal(5, "a", size=(5, 5))
    covariance = a @ a.T + 0.5 * torch.eye(5, dtype=torch.float64)
    xx, yy, xy = covariance[:2, :2], covariance[2:, 2:], covariance[:2, 2:]
    white = [torch.linalg.inv(torch.linalg.cholesky(part)) for part in (xx, yy)]
    canonical = torch.linalg.svdvals(white[0] @ xy @ white[1].T)
    want = -torch.log1p(-canonical.square()).sum() / 2
    torch.testing.assert_close(gaussian_information(covariance, 2), want)


def test_a_gaussian_channel_is_a_gaussian_pair():
    a = normal(6, "a", size=(3, 3))
    covariance, noise = a @ a.T, 0.7
    joint = torch.cat([torch.cat([covariance, covariance], 1), torch.cat([covariance, covariance], 1)], 0)
    joint[3:, 3:] += noise**2 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(gaussian_channel(covariance, noise), gaussian_information(joint, 3))


@pytest.mark.parametrize(("estimator", "d", "rho"), [(ksg, 1, 0.0), (ksg, 1, 0.7), (ksg, 4, 0.6)])
def test_the_standard_error_is_the_spread_over_samples(estimator, d, rho):
    """Within 10 %, and 6 % for the spread over 150 repeats. The standard deviation of KSG's terms over √n, which would
    be its error if they were independent, is 20 % too small in the first cases and 35 % in the last."""
    found = [estimator(*gaussian_pair(rho, 250, d, seed=seed)) for seed in range(150)]
    spread = torch.tensor([one.value for one in found]).std().item()
    error = math.sqrt(np.mean([one.error**2 for one in found]))
    assert 0.84 < error / spread < 1.16


@pytest.mark.parametrize(("n", "parts", "deals"), [(81, 2, 24), (2001, 4, 1)])
def test_the_error_of_ksg_is_the_spread_of_parts_dealt_at_random_and_of_their_halves(n, parts, deals):
    """Parts have no sample in common, so the variance over them is that of the estimate for so many samples."""
    x, y = gaussian_pair(0.5, n, seed=5)
    generator = stream(0, "parts of the samples")
    orders = [torch.randperm(n, generator=generator) for _ in range(deals)]

    def scaled(parts):
        m = n // parts
        dealt = [[order[i * m : (i + 1) * m] for i in range(parts)] for order in orders]
        return m * np.mean([np.var([ksg(x[p], y[p], splits=0).value for p in one], ddof=1) for one in dealt])

    v, smaller = scaled(parts), scaled(2 * parts)
    want = math.sqrt((v + max(0, v - smaller) / 2) / n)
    assert ksg(x, y, splits=deals * (parts - 1)).error == pytest.approx(want, rel=1e-9)


def test_an_error_that_is_not_wanted_or_cannot_be_had_is_nan():
    x, y = gaussian_pair(0.5, 50, seed=7)
    alone = ksg(x, y, splits=0)
    assert alone.value == ksg(x, y).value
    assert math.isnan(alone.error)
    assert math.isnan(ksg(x[:15], y[:15]).error)
    assert ksg(x[:16], y[:16]).error > 0


# counts


def test_the_entropy_of_known_shares():
    assert entropy([0, 0, 0, 1]).value == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert entropy(torch.arange(7)).value == pytest.approx(math.log(7))
    assert entropy(torch.zeros(9)).value == 0


def test_counting_is_infomeasures():
    x = torch.randint(0, 4, (500,), generator=stream(8, "x"))
    y = (x + torch.randint(0, 3, (500,), generator=stream(8, "y"))) % 5
    theirs = infomeasure.mutual_information(x.numpy(), y.numpy(), approach="discrete")
    assert discrete_information(x, y).value == pytest.approx(theirs, abs=1e-12)
    corrected = infomeasure.entropy(x.numpy(), approach="miller_madow")
    assert entropy(x, correction="miller-madow").value == pytest.approx(corrected, abs=1e-12)


def test_the_bias_of_counting_is_that_of_chi_squared():
    """Independent labels, 5 and 4 of them, 400 samples: mean (5−1)(4−1)/2n, and none after the correction."""
    n, kinds = 400, (5, 4)
    pairs = [[torch.randint(0, m, (n,), generator=stream(seed, m)) for m in kinds] for seed in range(300)]
    plain = torch.tensor([discrete_information(*pair).value for pair in pairs], dtype=torch.float64)
    corrected = torch.tensor([discrete_information(*p, correction="miller-madow").value for p in pairs])
    bias = (kinds[0] - 1) * (kinds[1] - 1) / (2 * n)
    assert plain.mean() == pytest.approx(bias, rel=0.1)
    assert abs(corrected.mean()) < 4 * corrected.std() / math.sqrt(300)


def test_entropy_by_counting_is_too_low_by_the_number_of_labels():
    values = [entropy(torch.randint(0, 10, (200,), generator=stream(seed, "h"))).value for seed in range(300)]
    assert math.log(10) - np.mean(values) == pytest.approx(9 / 400, rel=0.15)


@given(bins=st.integers(1, 50), seed=st.integers(0, 100))
def test_binned_information_never_exceeds_log_n_and_is_reached_by_samples_that_differ(bins, seed):
    t = normal(seed, "t", size=(40, 6))
    found = binned_information(t, bins=bins)
    assert found.value <= math.log(40) + 1e-12
    assert binned_information(t, bins=1000).value == pytest.approx(math.log(40), abs=1e-12)


def test_with_all_rows_different_shuffled_labels_have_all_the_information_of_labels():
    """Saturation: I(bin T; Y) = H(Y) whatever Y is."""
    t, y = normal(9, "t", size=(100, 20)), torch.randint(0, 10, (100,), generator=stream(9, "y"))
    assert binned_information(t, y, bins=30).value == pytest.approx(entropy(y).value, abs=1e-12)


def test_counting_obeys_data_processing():
    """X → T → g(T): a coarser label knows no more."""
    x = torch.randint(0, 12, (300,), generator=stream(10, "x"))
    t = (x + torch.randint(0, 4, (300,), generator=stream(10, "noise"))) % 12
    assert discrete_information(x, t // 3).value <= discrete_information(x, t).value
    assert discrete_information(x, (5 * t) % 12).value == pytest.approx(discrete_information(x, t).value, abs=1e-12)


def test_a_bin_is_where_numpy_puts_it():
    t = normal(11, "t", size=(200, 3))
    for j, codes in enumerate(bin_codes(t, 7, "unit").T):
        counts = np.histogram(t[:, j].numpy(), bins=7)[0]
        assert torch.bincount(codes, minlength=7).tolist() == counts.tolist()
    layer = np.histogram(t.numpy(), bins=7)[0]
    assert torch.bincount(bin_codes(t, 7, "layer").flatten(), minlength=7).tolist() == layer.tolist()
    outside = bin_codes(torch.tensor([-9.0, 0.1, 0.9, 9.0]), 2, (0.0, 1.0)).flatten()
    assert outside.tolist() == [0, 0, 1, 1]
    assert bin_codes(torch.ones(4, 2), 5).unique().tolist() == [0]


def test_per_unit_information_is_that_of_each_unit_by_itself():
    t, y = normal(12, "t", size=(300, 4)), torch.randint(0, 3, (300,), generator=stream(12, "y"))
    t[:, 1] += 3 * y
    found = per_unit_information(t, y, bins=6)
    one_by_one = [discrete_information(bin_codes(t[:, j], 6, "unit").squeeze(1), y).value for j in range(4)]
    torch.testing.assert_close(found.double(), torch.tensor(one_by_one, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    assert found.argmax() == 1


# the noisy channel


def two_points(distance, noise):
    """I of a fair bit sent as 0 or `distance` with Gaussian noise, by quadrature."""

    def density(s):
        return (math.exp(-(s**2) / (2 * noise**2)) + math.exp(-((s - distance) ** 2) / (2 * noise**2))) / 2

    def integrand(s):
        own = math.exp(-(s**2) / (2 * noise**2))
        return own * (math.log(own / density(s)) if own > 0 else 0.0)

    return quad(integrand, -12 * noise, 12 * noise)[0] / (noise * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_the_channel_of_one_bit_is_the_integral_and_lies_between_the_bounds(noise):
    t = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    truth, bounds = two_points(2.0, noise), channel_bounds(t, noise=noise)
    assert bounds.lower <= truth <= bounds.upper
    found = [channel_information(t, noise=noise, draws=2000, seed=seed).value for seed in range(10)]
    assert abs(np.mean(found) - truth) < 4 * np.std(found, ddof=1) / math.sqrt(10) + 1e-12


@given(noise=st.floats(0.05, 20.0), seed=st.integers(0, 50))
def test_the_bounds_are_in_order_and_within_zero_and_log_n(noise, seed):
    bounds = channel_bounds(normal(seed, "t", size=(30, 3)), noise=noise)
    assert -1e-12 <= bounds.lower <= bounds.upper <= math.log(30) + 1e-12


def test_many_samples_of_a_gaussian_have_the_information_of_a_gaussian_channel():
    t = normal(13, "t", size=(4000, 1))
    truth = gaussian_channel(torch.eye(1, dtype=torch.float64), 1.0).item()
    within(channel_information(t, noise=1.0, draws=4), truth, bias=0.005)
    bounds = channel_bounds(t, noise=1.0)
    assert bounds.lower <= truth <= bounds.upper


def test_little_noise_tells_every_input_and_much_noise_none():
    t, y = normal(14, "t", size=(50, 4)), torch.arange(50) % 5
    assert channel_bounds(t, noise=1e-3).lower == pytest.approx(math.log(50))
    assert channel_bounds(t, noise=1e4).upper == pytest.approx(0, abs=1e-6)
    assert channel_information(t, noise=1e-3).value == pytest.approx(math.log(50))
    assert channel_information(t, y, noise=1e-3).value == pytest.approx(math.log(5))
    assert channel_information(t, noise=1e4).value == pytest.approx(0, abs=1e-3)


def test_labels_that_name_the_inputs_are_the_inputs_and_coarser_labels_know_less():
    t = normal(15, "t", size=(60, 3))
    one = channel_information(t, noise=0.5, seed=1)
    assert channel_information(t, torch.arange(60), noise=0.5, seed=1).value == pytest.approx(one.value, abs=1e-12)
    coarse = channel_information(t, torch.arange(60) // 6, noise=0.5, draws=20)
    assert coarse.value < channel_information(t, noise=0.5, draws=20).value


@given(scale=st.floats(1e-2, 1e2))
def test_at_a_fixed_ratio_the_scale_is_not_seen_and_at_fixed_noise_it_is(scale):
    t = normal(16, "t", size=(40, 3))
    still, moved = channel_bounds(t, ratio=2.0), channel_bounds(scale * t, ratio=2.0)
    assert moved.lower == pytest.approx(still.lower, abs=1e-9)
    assert moved.upper == pytest.approx(still.upper, abs=1e-9)
    assert (channel_bounds(scale * t, noise=1.0).upper > channel_bounds(t, noise=1.0).upper) == (
        scale > 1
    ) or scale == 1


def test_the_noise_at_a_ratio_has_that_ratio():
    t = normal(17, "t", size=(500, 4)) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert t.var(dim=0, correction=0).mean().item() / noise_at_ratio(t, 5.0) ** 2 == pytest.approx(5.0)


def test_labels_in_pieces_are_labels_at_once(monkeypatch):
    t, y = normal(19, "t", size=(50, 3)), torch.arange(50) % 4
    whole = channel_information(t, y, noise=0.5, draws=3)
    assert (whole.samples, whole.method) == (50, "channel, noise 0.5")
    monkeypatch.setattr(channel, "AT_ONCE", 350)
    pieces = channel_information(t, y, noise=0.5, draws=3)
    assert pieces.value == pytest.approx(whole.value, abs=1e-12)
    assert pieces.error == pytest.approx(whole.error, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_small_clouds_and_very_little_noise_are_no_special_case(dtype):
    t = normal(20, "t", size=(30, 2)).to(dtype)
    for size, noise in ((1.0, 1e-30), (1e-25, 1e-60), (1e25, 1.0)):
        bounds = channel_bounds(size * t, noise=noise)
        assert bounds.lower == bounds.upper == pytest.approx(math.log(30), rel=1e-6)
        assert channel_information(size * t, noise=noise).value == pytest.approx(math.log(30), rel=1e-6)
    small, usual = channel_bounds(1e-25 * t, ratio=1.0), channel_bounds(t, ratio=1.0)
    assert small.upper == pytest.approx(usual.upper, rel=1e-5)
    assert channel_bounds(torch.ones(5, 2, dtype=dtype), noise=1.0).upper == pytest.approx(0, abs=1e-6)


# the test against zero, samples, input


def test_the_permutation_test_finds_a_dependence_and_not_its_absence():
    x, y = gaussian_pair(0.5, 400)
    assert permutation_test(ksg, x, y, shuffles=39).p == 1 / 40
    quiet = [permutation_test(ksg, *gaussian_pair(0.0, 60, seed=s), shuffles=19, seed=s).p for s in range(40)]
    assert sum(p <= 0.05 for p in quiet) <= 8  # 2 are expected, more than 8 have probability 2e−4
    assert np.mean(quiet) > 0.3


def test_the_null_of_the_permutation_test_is_the_bias():
    t, y = normal(18, "t", size=(200, 1)), torch.randint(0, 4, (200,), generator=stream(18, "y"))

    def counted(t, y):
        return binned_information(t, y, bins=10, limits="unit")

    found = permutation_test(counted, t, y)
    assert found.null == pytest.approx(9 * 3 / 400, rel=0.3)
    assert abs(found.excess) < 0.05


def test_rows_leave_out_padding():
    sequences = [field(1, n, seed=n) for n in (4, 2)]
    u, mask = padded(sequences, (0, 2))
    torch.testing.assert_close(rows(u, mask), torch.cat([s.mean(1) for s in sequences]))
    torch.testing.assert_close(rows(u, mask, "tokens"), torch.cat([s[0] for s in sequences]))
    assert rows(u, mask, "whole").shape == (2, u.shape[1] * u.shape[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_raised(dtype):
    x, y = (v.to(dtype) for v in gaussian_pair(0.6, 300))
    assert ksg(x, y).value == pytest.approx(ksg(*(v.float() for v in (x, y))).value)
    assert channel_bounds(x, noise=1.0).upper > 0


def test_estimates_are_plain_numbers_whatever_they_were_computed_from():
    x, y = (v.requires_grad_() for v in gaussian_pair(0.6, 100, d=2))
    still = [v.detach() for v in (x, y)]
    assert ksg(x, y) == ksg(*still)
    assert channel_bounds(x, noise=1.0) == channel_bounds(still[0], noise=1.0)


def test_samples_of_two_precisions_are_compared_in_the_finer_one():
    x = normal(21, "x", size=(300,)).float()
    y = x.double() + 1e-7 * normal(21, "noise", size=(300,))
    assert ksg(x, y) == ksg(x.double(), y)


def test_an_estimate_prints_and_converts():
    found = Estimate(BITS, 0.1, 10, "KSG")
    assert float(found) == BITS
    assert found.bits == pytest.approx(1)
    assert str(found) == "0.693 ± 0.100 nats (KSG, 10 samples)"
    assert not found.saturated
    assert str(Estimate(0.69, 0.1, 2, "bins", BITS)) == "0.690 ± 0.100 nats (bins, 2 samples, saturated: at most 0.693)"


def test_what_counts_the_samples_or_the_bins_says_that_it_is_saturated():
    """Rows of many features are all different, whatever they hold: log n, and H(Y) for labels drawn at random."""
    noise, y = normal(22, "t", size=(64, 40)), torch.arange(64) % 4
    assert entropy(torch.arange(64)).saturated
    for found, most in (
        (binned_information(noise), math.log(64)),
        (binned_information(noise, y), math.log(4)),
        (binned_information(torch.linspace(0, 1, 640), bins=8), math.log(8)),
        (channel_information(noise, noise=1e-6), math.log(64)),
        (channel_information(noise, y, noise=1e-6), math.log(4)),
        (ksg(noise[:, :1], noise[:, :1], splits=0), sum(1 / n for n in range(3, 64))),
    ):
        assert found.ceiling == pytest.approx(most)
        assert found.value == pytest.approx(most)
        assert found.saturated


def test_what_could_be_larger_does_not_say_so():
    x = normal(23, "x", size=(400,))
    y = x + normal(23, "noise", size=(400,))
    label = torch.arange(400) % 4
    for found in (
        entropy(label),
        binned_information(x, bins=8),
        binned_information(x, (x > 0).long() + (y > 0).long(), bins=8),
        channel_information(x, noise=1.0),
        ksg(x, y, splits=0),
        entropy(torch.zeros(5, dtype=torch.long)),
    ):
        assert not found.saturated


X = torch.linspace(0, 1, 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ksg(X, X[:5]), "y must have as many samples as x, 10; not 5"),
        (lambda: ksg(X, X, k=10), "k must be a whole number from 1 to 9"),
        (lambda: ksg(X, X, k=True), "k must be a whole number"),
        (lambda: ksg(X, X, splits=-1), "splits must be a whole number"),
        (lambda: channel_bounds(X, noise="a"), "noise must be a positive"),
        (lambda: bin_codes(X, 2, (-math.inf, math.inf)), "limits must be two finite numbers"),
        (lambda: gaussian_information(-torch.eye(4), 2), "without negative eigenvalues"),
        (lambda: gaussian_information(torch.tensor([[1.0, 0.5], [0.0, 1.0]]), 1), "must be finite and symmetric"),
        (lambda: gaussian_channel(-2 * torch.eye(2), 1.0), "without negative eigenvalues"),
        (lambda: gaussian_channel(torch.eye(2), 0.0), "noise must be a positive"),
        (lambda: permutation_test(lambda x, y: math.nan, X, X), "estimator must give finite numbers"),
        (lambda: entropy(None), "y must be a tensor or a list of labels"),
        (lambda: ksg(torch.zeros(2, 3, 4), X), "`rows` makes samples of a field"),
        (lambda: ksg([1, 2], X), "x must be a tensor of samples"),
        (lambda: ksg(X / 0, X), "x must be finite"),
        (lambda: gaussian_information(torch.ones(2, 3), 1), "covariance must be a square matrix"),
        (lambda: gaussian_information(torch.zeros(2, 2), 1), "positive definite"),
        (lambda: gaussian_information(torch.eye(2), 2), "split must be a whole number from 1 to 1"),
        (lambda: channel_bounds(X), "give noise or ratio"),
        (lambda: channel_bounds(X, noise=0.0), "noise must be a positive"),
        (lambda: channel_bounds(torch.ones(4), ratio=1.0), "t must vary"),
        (lambda: bin_codes(X, 0), "bins must be a whole number"),
        (lambda: bin_codes(X, 2, "own"), "limits must be one of unit, layer"),
        (lambda: bin_codes(X, 2, (1.0, 0.0)), "limits must be two finite numbers"),
        (lambda: entropy([]), "y must be labels"),
        (lambda: discrete_information([1, 2], [1]), "one label for each of the 2 samples"),
        (lambda: permutation_test(ksg, X, X, shuffles=0), "shuffles must be"),
        (lambda: rows(torch.zeros(1, 2, 3), of="all"), "of must be one of tokens, mean, whole"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
