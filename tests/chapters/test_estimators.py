"""One network, three curves: the ruler, any curve, and the bounds of a record."""

import math

import pytest
import torch

from pdebook.chapters.estimators import attack, laws, measure
from pdebook.chapters.information import attack as information
from pdebook.evidence import countable
from pdebook.ledger.record import Store
from pdelab.metrics.information import (
    binary_divergence,
    channel_information,
    gaussian_channel,
    largest_accuracy,
)
from pdelab.seeds import normal


def test_quadrature_agrees_with_sampling_and_with_two_far_points():
    points = normal(0, "points", size=(1, 4, 2))
    many = channel_information(points[0].repeat(5000, 1), noise=1.0).value  # 5,000 draws a point
    assert attack.through_noise(points).item() == pytest.approx(many, abs=0.02)
    far = torch.tensor([[[0.0], [40.0]]], dtype=torch.float64)
    assert attack.through_noise(far).item() == pytest.approx(math.log(2), abs=1e-9)


def test_information_rises_with_the_scale_from_nothing_to_log_n():
    points = normal(1, "points", size=(1, 5, 1))
    scales = torch.logspace(-3, 3, 40, dtype=torch.float64)
    seen = torch.cat([attack.through_noise(s * points) for s in scales])
    assert (seen.diff()[:30] > 0).all()
    assert seen[0] < 1e-5
    assert seen[-1] == pytest.approx(math.log(5), abs=1e-6)


def test_the_scale_law_is_the_closed_form_of_the_library():
    points = normal(2, "points", size=(1, 4, 2))
    centred = points[0] - points[0].mean(dim=0)
    law = gaussian_channel(centred.T @ centred / 4, 1.0)
    score = attack.scale_law(points, torch.zeros(1, dtype=torch.float64))
    assert score.item() == pytest.approx((attack.through_noise(points) / law).item())


def test_the_scales_make_the_estimate_follow_any_curve():
    layers = laws.preserving(3, inputs=128, depth=3)
    wanted = [0.1, 4.5, 2.0, 4.0]
    scales = laws.scales_for(layers, wanted, noise=0.5, seed=1)
    seen = [laws.noisy([s * t], noise=0.5, seed=1)[0] for s, t in zip(scales, layers, strict=True)]
    assert seen == pytest.approx(wanted, abs=1e-3)
    with pytest.raises(ValueError, match="between 0 and log n"):
        laws.scales_for(layers, [5.0, 1.0, 1.0, 1.0])


def test_the_lower_end_is_below_the_upper_trained_or_not():
    record = Store().load("information_training", "book")
    for untrained in (False, True):
        lower, upper = measure.ends(record, "transformer", "ratio1.0", untrained=untrained)
        assert all(low < high for low, high in zip(lower, upper, strict=True))
    lower, upper = measure.ends(record, "bare", "noise0.3", 6)
    assert len(lower) == len(upper) == len(record[0].configuration["steps"])


def test_the_largest_accuracy_solves_fanos_equation_and_grows_with_information():
    for majority in (0.05, 0.1, 0.171, 0.5):
        found = [largest_accuracy(i, majority) for i in (0.0, 0.0016, 0.1, 0.5)]
        assert found == sorted(found)
        assert found[0] == pytest.approx(majority)
        assert binary_divergence(found[1], majority) == pytest.approx(0.0016, rel=1e-6)
    assert largest_accuracy(-math.log(0.1), 0.1) == 1.0


def test_no_guess_on_a_random_table_beats_fanos_bound_and_some_reach_it():
    """Tables p(t, y): the best guess is argmax_y p(y|t). A symmetric channel reaches the bound."""
    joint = (3 * normal(0, "tables", size=(300, 4, 5))).flatten(1).softmax(dim=1).view(300, 4, 5)
    known = information.information(joint)
    best = joint.amax(dim=2).sum(dim=1)
    majority = joint.sum(dim=1).amax(dim=1)
    allowed = [largest_accuracy(i, p) for i, p in zip(known.tolist(), majority.tolist(), strict=True)]
    assert (best <= torch.tensor(allowed) + 1e-9).all()
    symmetric = torch.full((1, 5, 5), 0.05 / 5, dtype=torch.float64)
    symmetric[0].fill_diagonal_(0.8 / 5)
    reached = largest_accuracy(information.information(symmetric).item(), 0.2)
    assert reached == pytest.approx(0.8, rel=1e-9)


@pytest.mark.parametrize(("a", "p"), [(-0.1, 0.5), (0.5, 1.1)])
def test_probabilities_are_checked(a, p):
    with pytest.raises(ValueError, match="must be a probability"):
        binary_divergence(a, p)
    with pytest.raises(ValueError, match="majority must be a share"):
        largest_accuracy(0.1, 0.0)
    with pytest.raises(ValueError, match="information must be in nats"):
        largest_accuracy(-0.1, 0.5)


def test_the_divergence_of_coins_is_infinite_where_one_never_falls_so():
    assert binary_divergence(0.5, 0.0) == math.inf
    assert binary_divergence(0.0, 0.0) == 0.0


def test_units_change_a_layer_by_a_power():
    layers = [torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 1)]
    assert [t[0].item() for t in countable.rescaled(layers, 0.5)] == [1.0, 0.5, 0.25]
    with pytest.raises(ValueError, match="unit must be positive"):
        countable.rescaled(layers, 0.0)


def test_every_layer_of_the_preserving_stack_is_undone():
    """h + ½ tanh h is increasing, Q orthogonal: undo the last layer by Newton."""
    layers = laws.preserving(1, inputs=64)
    Q = torch.linalg.qr(normal(1, "Q", 5, size=(8, 8))).Q
    want = 1.3 * layers[6] @ Q
    h = want.clone()
    for _ in range(30):
        h = h - (h + 0.5 * torch.tanh(h) - want) / (1 + 0.5 / torch.cosh(h) ** 2)
    torch.testing.assert_close(h, layers[5], rtol=1e-10, atol=1e-10)


def test_noise_compresses_or_not_as_the_units_are_and_a_fixed_ratio_does_not_see_them():
    layers = laws.preserving(2)
    falling, flat = (laws.noisy(countable.rescaled(layers, unit), noise=0.1) for unit in (0.4, 1.0))
    assert laws.change(falling, 0) < -5
    assert abs(laws.change(flat, 0)) < 0.1
    same = [laws.noisy(countable.rescaled(layers, unit), ratio=10.0) for unit in (0.4, 1.0)]
    assert same[0] == pytest.approx(same[1], abs=1e-6)


def test_a_range_of_its_own_hides_the_units_and_a_shared_one_shows_nothing_else():
    layers = laws.preserving(2)
    small = countable.rescaled(layers, 0.5)
    for limits in ("unit", "layer"):
        assert laws.binned(small, 4, limits) == pytest.approx(laws.binned(layers, 4, limits), abs=0.05)
    assert laws.change(laws.binned(small, 4, "shared"), 0) < -5


def test_the_closed_form_for_gaussians_is_met_until_log_n():
    seen, law = laws.linear_gaussian(0, (0.3, 1.0, 30.0))
    assert seen[:2].tolist() == pytest.approx(law[:2].tolist(), abs=0.1)
    assert seen[2] < math.log(2000) < law[2]


def test_a_shuffle_keeps_the_labels_and_destroys_the_pairing():
    y = torch.arange(100)
    mixed = laws.shuffled(y, 0)
    assert sorted(mixed.tolist()) == y.tolist()
    assert (mixed != y).double().mean() > 0.9


def test_the_estimators_run_at_smoke_scale(monkeypatch):
    monkeypatch.setattr(laws, "BINS", (2,))
    monkeypatch.setattr(laws, "NOISES", (1.0,))
    result = measure.run("smoke", 0)
    assert result.figures["tanh/true X"][1:] == pytest.approx([9 * math.log(2)] * 4)
    assert set(result.controls) >= {"tanh/usable", "relu/per unit"}


def test_tables_hold_the_change_from_layer_one_of_the_recorded_means():
    record = Store().load("estimators", "book")
    by_bins, by_noise = measure.tables(record, "tanh")
    assert by_bins.shape == (len(laws.BINS), 2 + len(laws.UNITS))
    assert by_noise.shape == (len(laws.NOISES), len(laws.UNITS))
    courses = [r.figures["tanh/X bins 2 layer"] for r in record]
    mean = sum(course[-1] - course[1] for course in courses) / len(courses)
    assert by_bins[0, 1].item() == pytest.approx(mean, abs=1e-6)
