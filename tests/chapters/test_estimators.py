"""One network, three curves: the ruler, any curve, and the bounds of a record."""

import math

import pytest
import torch

from pdebook.chapters.estimators import attack, laws, measure
from pdebook.ledger.record import Store
from pdelab.metrics.information import channel_information, gaussian_channel
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
