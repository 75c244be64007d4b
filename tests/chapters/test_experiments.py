"""The product law of strangers, against random turns and against networks."""

import math

import numpy as np
import pytest

from pdebook.chapters.experiments import laws, measure
from pdelab.metrics.angles import third_cosine
from pdelab.seeds import normal


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def with_fidelity(rho, across):
    """Unit vectors whose first entry, along e, is ρ; across: any vectors for the rest."""
    rest = math.sqrt(1 - rho**2) * unit(across)
    return np.concatenate([np.full((*rest.shape[:-1], 1), rho), rest], axis=-1)


@pytest.mark.parametrize("d", [2, 5, 40])
def test_strangers_score_the_product_and_spread_as_the_law_says(d):
    turns = 40_000
    u = with_fidelity(0.6, normal(d, "u", size=(d - 1,)).numpy())
    v = with_fidelity(0.8, normal(d, "v", size=(turns, d - 1)).numpy())  # uniform about e
    seen, spread = v @ u, math.sqrt((1 - 0.6**2) * (1 - 0.8**2) / (d - 1))

    assert abs(seen.mean() - 0.6 * 0.8) < 4 * spread / math.sqrt(turns)
    assert abs(seen.std() / spread - 1) < 0.03


def test_the_partial_cosine_is_that_of_the_parts_across():
    u, v = normal(0, "pair", size=(2, 7)).numpy()
    e = unit(normal(0, "shared", size=(7,)).numpy())
    across = [x - (x @ e) * e for x in (u, v)]

    found = laws.partial_cosine(unit(u) @ unit(v), unit(u) @ e, unit(v) @ e)

    assert found == pytest.approx(unit(across[0]) @ unit(across[1]))


def test_beyond_twice_the_angle_nothing_beats_the_copy():
    for rho_u in (0.99, 0.8, 0.3):
        for rho_v in np.linspace(-0.99, 0.99, 100):
            best = third_cosine(rho_u, rho_v)[1]
            assert laws.loses_to_copy(rho_u, rho_v) == (best < rho_u)


def test_weights_of_its_own_make_a_stranger():
    def left(angle):
        e, u, v = measure.mixed_pair(angle)
        pairs = ((u, v), (u, e), (v, e))
        return laws.partial_cosine(*((unit(x) * unit(y)).sum(-1).mean() for x, y in pairs))

    assert left(0.1) > 0.9
    assert abs(left(math.pi / 2)) < 0.25


def test_a_simulator_with_the_same_weights_is_a_relative():
    assert (laws.partial_cosine(*measure.relatives("earlier", 0)) > 0.5).all()
