"""Three cosines: what two of them allow for the third."""

import math

import pytest
import torch

from pdelab.metrics.angles import third_cosine
from pdelab.metrics.similarity import cosine
from pdelab.seeds import normal


def test_the_bounds_are_those_of_the_formula_and_are_attained():
    for a, b in ((0.98, 0.85), (0.5, -0.3), (1.0, 0.2), (-1.0, 0.4), (0.0, 0.0)):
        across = math.sqrt((1 - a**2) * (1 - b**2))
        assert third_cosine(a, b) == pytest.approx((a * b - across, a * b + across), abs=1e-12)


def test_the_mean_cosine_over_tokens_obeys_the_inequality():
    """For states of any sizes, not only for unit vectors: each cosine forgets the sizes."""
    for n in range(20):
        x, y, noise = (normal(n, name, size=(4, 5, 3)) for name in ("x", "y", "z"))
        z = x * y.abs() + 0.3 * noise
        a, b, c = (cosine(u, v).item() for u, v in ((x, y), (y, z), (x, z)))
        low, high = third_cosine(a, b)
        assert low - 1e-12 <= c <= high + 1e-12


def test_rounding_widens_the_bounds_to_all_that_may_have_been_printed():
    low, high = third_cosine(0.98, 0.85, 0.005)
    grid = torch.linspace(-0.005, 0.005, 21).tolist()
    pairs = [third_cosine(0.98 + i, 0.85 + j) for i in grid for j in grid]
    assert low == pytest.approx(min(pair[0] for pair in pairs), abs=1e-9)
    assert high == pytest.approx(max(pair[1] for pair in pairs), abs=1e-9)
    assert third_cosine(0.99, 0.98, 0.005)[1] == 1.0  # both may have been 0.985
    assert third_cosine(0.1, -0.1, 0.2)[0] == -1.0


def test_angles_beyond_a_half_turn_come_back():
    low, _ = third_cosine(-0.9, -0.9)
    assert low == pytest.approx(0.81 - 0.19)
    low, _ = third_cosine(-0.9, -0.9, 0.05)
    grid = torch.linspace(-0.95, -0.85, 21, dtype=torch.float64).tolist()
    assert low == pytest.approx(min(third_cosine(a, b)[0] for a in grid for b in grid), abs=1e-9)


@pytest.mark.parametrize("given", [(1.1, 0.0), (0.0, math.nan), (0.5, 0.5, -0.1)])
def test_what_is_no_cosine_is_refused(given):
    with pytest.raises(ValueError, match=r"^(a|b|slack) must be a finite number"):
        third_cosine(*given)
