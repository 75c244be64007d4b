"""What the papers state of depth as time: fields, initial values and the interpolant.  (P2 §3.1, eq 2 and 10)"""

import math

import numpy as np
import pytest
import torch

from pdebook.chapters.continuum_limit.laws import interpolate, largest_jump, smooth_embedding, vocabulary_embedding
from pdebook.chapters.continuum_limit.measure import COUNTS, space_errors, through_layers
from pdebook.evidence.stacks import TOKENS, random_tokens, slope, stack
from pdelab import Diffusion, solve
from pdelab.seeds import stream

# P2-def3.1 and P2-eq2: is there a field behind the tokens?


def jumps_between_neighbours(embedding):
    """The largest jump after eight layers with 27 and with 243 tokens; of a continuous field it falls ninefold."""
    return [largest_jump(through_layers(embedding(2, n), 2)) for n in (27, 243)]


@pytest.mark.claim("P2-def3.1")
def test_are_words_from_a_table_a_field(evidence):
    few, many = jumps_between_neighbours(vocabulary_embedding)
    evidence("printed", holds=many < few / 5, fails=many > 0.5 * few)


@pytest.mark.claim("P2-def3.1")
def test_do_smooth_embeddings_converge_to_a_field_as_tokens_are_added(evidence):
    counts = (9, 27, 81)
    order = slope(counts, space_errors("smooth", 2, counts))  # the midpoint rule has order 2
    few, many = jumps_between_neighbours(smooth_embedding)
    evidence("repair", holds=abs(order + 2) < 0.1 and many < few / 5, fails=order > -0.6 or many > 0.5 * few)


@pytest.mark.claim("P2-def3.1")
def test_does_the_rate_at_fixed_n_hold_a_derivative_in_x(evidence):
    """A rate that does not see the order of the tokens contains no difference of neighbours; diffusion does."""
    u = random_tokens(3)
    order = torch.randperm(TOKENS, generator=stream(3, "order"))
    block, diffusion = stack(1, 3), Diffusion(1.0)
    gap, seen = ((rate(u[:, order]) - rate(u)[:, order]).abs().max().item() for rate in (block, diffusion))
    assert seen > 1, "the test must see the order where it is there to be seen"
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P2-eq2")
def test_do_integrals_over_words_from_a_table_converge_like_integrals(evidence):
    # mean of three seeds; each slope has a standard error near 0.06
    order = np.mean([slope(COUNTS, space_errors("vocabulary", seed)) for seed in (10, 11, 12)])
    # a continuous field with a kink would still have order 1; independent words have order one half
    evidence("printed", holds=order < -0.9, fails=abs(order + 0.5) < 0.15)


@pytest.mark.claim("P2-eq2")
def test_do_integrals_of_a_continuous_embedding_converge_at_order_two(evidence):
    exact = smooth_embedding(4, 2187).mean(dim=1)
    errors = [(smooth_embedding(4, n).mean(dim=1) - exact).norm().item() for n in (9, 27, 81)]
    order = slope((9, 27, 81), errors)
    evidence("repair", holds=abs(order + 2) < 0.05, fails=order > -0.9)


# P2 eq 10: ceilings, as in the copy we read, and floors. No verdict: the errata name it


def states(layers=8, seed=0):
    return solve(stack(layers, seed), random_tokens(seed), steps=layers, dt=1 / layers).states


def test_with_ceilings_the_interpolant_jumps_at_every_layer():
    h = states()
    jumps = [interpolate(h, n + 1e-9, math.ceil) - h[n] for n in range(7)]
    for n, jump in enumerate(jumps):  # each is a second difference
        assert torch.allclose(jump, -(h[n + 2] - 2 * h[n + 1] + h[n]), atol=1e-6)
    assert min(jump.norm() for jump in jumps) > 0.1


def test_with_ceilings_the_interpolant_needs_a_layer_that_does_not_exist():
    with pytest.raises(IndexError):
        interpolate(states(), 7.5, math.ceil)


def test_the_interpolant_with_floors_is_continuous_and_meets_every_layer():
    h = states()
    near = [(n, tau) for n in range(9) for tau in (n - 1e-9, n + 1e-9) if 0 <= tau <= 8]
    gap = max((interpolate(h, tau) - h[n]).norm().item() for n, tau in near)
    assert gap < 1e-6
    assert all(torch.equal(interpolate(h, float(n)), h[n]) for n in range(9))
    assert torch.allclose(interpolate(h, 2.25), 0.75 * h[2] + 0.25 * h[3])
