"""The unchecked formulas: exact values, and equality with the checked faces and with torch."""

import math

import pytest
import torch

from pdelab import RK4, Interaction, Reaction, solve
from pdelab.formulas import (
    attention,
    attention_weights,
    centred,
    centres,
    diameter,
    feed_forward,
    growth,
    layer_norm,
    longest,
    norm2,
    per_example,
    reaction_constants,
    reaction_scales,
    size,
    spread,
)
from pdelab.integrators import flow
from pdelab.metrics import stability
from pdelab.seeds import normal, seeded
from pdelab.terms.reaction import SLOPES

U = normal(0, "u", size=(5, 7, 3))


def test_centres_of_cells():
    assert centres(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_sizes_of_a_field_counted_by_hand():
    u = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert size(u).item() == pytest.approx(math.sqrt(12.5))
    assert spread(u).item() == pytest.approx(2.5)
    assert longest(u).item() == diameter(u).item() == 5


def test_tokens_that_agree_leave_exactly_nothing():
    assert (centred(torch.full((2, 3, 4), 0.1)) == 0).all()


def test_the_spread_is_that_of_the_checked_metric():
    torch.testing.assert_close(spread(U), stability.spread(U))


def test_every_formula_takes_any_number_of_examples_in_front():
    for formula in (size, spread, longest, diameter):
        torch.testing.assert_close(formula(U.view(5, 1, 7, 3)).flatten(), formula(U))
    assert per_example(spread(U)).shape == (5, 1, 1)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_matrices_is_that_of_the_term(causal):
    term = seeded(lambda: Interaction(3, causal=causal, bias=False).double().requires_grad_(False), 0)
    query, key, value = term.qkv.weight.chunk(3)
    A, V = query.T @ key / math.sqrt(3), term.out.weight @ value
    torch.testing.assert_close(attention(U, A, V, causal=causal), term(U))
    torch.testing.assert_close(attention_weights(U, A, causal=causal), term.weights(U).squeeze(1))


@pytest.mark.parametrize("activation", SLOPES)
def test_the_network_and_its_constants_are_those_of_the_term(activation):
    term = seeded(lambda: Reaction(3, 6, activation=activation, leak=True).double().requires_grad_(False), 1)
    torch.nn.init.zeros_(term.outer.bias)
    W1, b1, W2 = term.inner.weight, term.inner.bias, term.outer.weight
    torch.testing.assert_close(feed_forward(U, W1, b1, W2, term.activation, leak=1.0), term(U))

    weights = W1.expand(4, -1, -1), W2.expand(4, -1, -1)
    scales = reaction_scales(*weights, SLOPES[activation], 1.0)
    batched = reaction_constants(*weights, SLOPES[activation], 1.0, scales)
    for one, several in zip(term.constants(), batched, strict=True):
        assert several.tolist() == [pytest.approx(one)] * 4


def test_the_spectral_norm_is_the_largest_singular_value():
    assert norm2(torch.diag(torch.tensor([1.0, -3.0]))).item() == pytest.approx(3)


def test_layer_norm_is_that_of_torch():
    gain, bias = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    torch.testing.assert_close(
        layer_norm(U, 1e-5, gain, bias), torch.nn.functional.layer_norm(U, (3,), gain, bias, eps=1e-5)
    )


@pytest.mark.parametrize("rate", [-2.0, -1e-12, 0.0, 1e-9, 0.5])
def test_growth_is_the_integral_of_the_exponential(rate):
    times = torch.linspace(0, 2, 20_001, dtype=torch.float64)
    expected = torch.trapezoid(torch.exp(rate * times), times).item()
    assert growth(torch.tensor(rate, dtype=torch.float64), 2.0).item() == pytest.approx(expected, rel=1e-7)


def test_a_flow_is_the_last_state_of_solve():
    ends = flow(lambda u: torch.sin(u), U, T=0.5, steps=10)
    run = solve(lambda u: torch.sin(u), U, steps=10, dt=0.05, integrator=RK4())
    torch.testing.assert_close(ends, run.final)


def test_a_flow_with_a_leak_is_exact_where_nothing_else_happens():
    torch.testing.assert_close(flow(torch.zeros_like, U, T=2.0, steps=1, leak=1.5), math.exp(-3) * U)


def test_a_flow_has_a_time_of_its_own_for_each_example():
    times = torch.linspace(0.1, 1, 5, dtype=torch.float64)
    ends = flow(lambda u: -u, U, T=per_example(times), steps=40)
    torch.testing.assert_close(ends, per_example(torch.exp(-times)) * U, rtol=1e-7, atol=0)


def test_what_is_seeded_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, again = (seeded(lambda: torch.rand(3), 5) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
