"""Gradients through the four corners: the exact mean of the square, and the factor of a wide layer."""

import math

import pytest

from pdebook.chapters.trained_corners import laws
from pdebook.chapters.trained_corners.measure import CORNERS, stack_gradients

NETWORKS = 20_000


@pytest.mark.parametrize(("corner", "alpha", "width"), [("bare", 0.5, 4), ("residual", 1.0, 4), ("norm", 0.5, 8)])
def test_the_mean_square_is_exact_in_narrow_layers(corner, alpha, width):
    square = stack_gradients(corner, alpha, 3, width, 0, NETWORKS)[0] ** 2
    error = square.std().item() / math.sqrt(NETWORKS)
    assert abs(square.mean().item() - laws.mean_square(corner, alpha, 3, width)) < 4 * error
    assert 4 * error < 0.1 * laws.mean_square(corner, alpha, 3, width)  # a law that is off by a tenth would fail


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_a_wide_layer_has_its_factor(corner, alpha):
    layers, width, networks = 4, 256, 8
    found = stack_gradients(corner, alpha, layers, width, 0, networks)[0].log().mean().item()
    # per layer a variance of at most 1/width for the branch and as much for the size of the state; two directions lost
    spread = 2 * layers / width + 4 * math.sqrt(layers / (width * networks))
    assert abs(found - layers * math.log(laws.factor(corner, alpha))) < spread


def test_behind_layernorm_without_a_skip_the_gradient_does_not_see_the_scale():
    small, large = (stack_gradients("norm", alpha, 8, 32, 0) for alpha in (0.1, 10.0))
    assert (small / large - 1).abs().max() < 1e-9


def test_unknown_corners_and_narrow_layers_are_refused_by_name():
    for refused in (
        lambda: laws.mean_square("residual_norm", 1.0, 2, 8),
        lambda: laws.factor("pre-LN", 1.0),
        lambda: stack_gradients("post-LN", 1.0, 2, 8, 0),
    ):
        with pytest.raises(ValueError, match="corner must be one of"):
            refused()
    with pytest.raises(ValueError, match="above 3"):
        laws.mean_square("norm", 1.0, 2, 3)
