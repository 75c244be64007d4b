"""Depth as time: the limit, its hypotheses, and the adversary.  (P2 §3.1, Theorem 3.2; P1 Theorem 1)"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pdebook.chapters.continuum_limit import attack, laws, measure
from pdebook.evidence.adversary import ROUNDING
from pdebook.evidence.stacks import WIDTH, on_sphere, random_tokens, slope, slope_of_attention, stack
from pdelab.integrators import flow
from pdelab.seeds import normal

STATEMENTS = attack.run.statements | attack.run_existence.statements


def short(name, seed=7, **size):
    """The worst score of a small search."""
    return replace(STATEMENTS[name], **size).search(seed).max().item()


# The bounds


def test_the_interpolant_stays_in_the_bound_between_layers():
    """u' = 2t has K = 0, K_t = 2: the layers are off by t_ℓΔt, the chord by another Δt²/4 at most, and both are met."""
    layers, dt = 10, 0.1
    h = [torch.tensor(dt**2 * n * (n - 1)) for n in range(layers + 1)]
    worst = max(abs(laws.interpolate(h, tau).item() - (tau * dt) ** 2) for tau in np.linspace(0, 10, 401))
    bound = laws.error_bound(K=0, M=2, K_t=2, T=1, dt=dt)
    assert 0.99 * bound < worst <= bound + 2 * dt**2 / 8


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_line_is_a_solution_with_its_speed_and_constants(sign):
    a, c, u0, T = (sign * torch.tensor([0.01, 1.0, 2.0]), *(normal(0, k, size=(3,)) for k in "cu"), torch.ones(3))
    line = laws.Line(a.double(), c, u0, T.double())
    state = torch.stack([u0, 0 * u0], dim=-1).unsqueeze(-2)  # the second feature is t

    def rate(w):
        return torch.stack([line.a * w[..., 0, 0] + c * w[..., 0, 1], torch.ones_like(c)], dim=-1).unsqueeze(-2)

    end = flow(rate, state, steps=64)[:, 0, 0]
    torch.testing.assert_close(line.at(line.T), end, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(line.speed(line.T), line.a * end + c, rtol=1e-6, atol=1e-9)

    K, M, K_t = line.constants()
    times = torch.linspace(0, 1, 33, dtype=torch.float64)
    torch.testing.assert_close(M, torch.stack([line.speed(t * line.T).abs() for t in times]).amax(dim=0))
    assert torch.equal(K, line.a.abs())
    assert torch.equal(K_t, c.abs())


def test_the_mass_of_the_heat_kernel_is_one_for_a_number_and_more_for_a_shear():
    D = torch.tensor([[[0.7, 0.0], [0.0, 0.7]], [[1.0, 10.0], [0.0, 1.01]]], dtype=torch.float64)
    mass = laws.kernel_mass(D)
    assert mass[0].item() == pytest.approx(1, abs=1e-6)
    assert mass[1].item() > 2


def test_a_finer_grid_is_worse_exactly_if_an_eigenvalue_is_negative_enough():
    D = normal(1, "D", size=(64, 2, 2))
    lowest = torch.linalg.eigvals(D).real.amin(dim=-1)
    flagged = laws.finer_is_worse(D) > 1
    assert (lowest[flagged] < 0).all()
    assert flagged[lowest < -0.2].all()


def test_the_normaliser_of_a_square_integrable_field_can_be_infinite():
    power, score = torch.tensor([0.25, 0.25], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert laws.normaliser_is_infinite(power, score).tolist() == [True, False]


# The limit


@pytest.mark.parametrize("scheme", ["Euler", "Lie"])
def test_smooth_stacks_reach_their_limit_at_order_one(scheme):
    depths = (8, 16, 32)
    assert slope(depths, measure.scheme_errors(scheme, 5, depths)) == pytest.approx(-1, abs=0.1)


@pytest.mark.parametrize(
    ("weights", "scale", "expected"), [("smooth", "1/L", -1), ("fresh", "1/L", -0.5), ("fresh", "1/√L", 0)]
)
def test_doubling_the_depth_changes_the_output_at_the_expected_rate(weights, scale, expected):
    depths = (8, 16, 32, 64)
    assert slope(depths, measure.doubling(weights, scale, 5, depths)) == pytest.approx(expected, abs=0.2)


def test_unscaled_stacks_grow():
    for weights in ("smooth", "fresh"):
        changes = measure.doubling(weights, "1", 5, (8, 16))
        assert changes[1] > 10 * changes[0]


@pytest.mark.parametrize(("scheme", "order"), [("Heun", 2), ("RK4", 4)])
def test_schemes_keep_their_order_when_kinks_fall_between_steps(scheme, order):
    errors = measure.refined_errors(scheme, 5)
    assert slope(measure.REFINED, errors) == pytest.approx(-order, abs=0.1 * order)


def test_rough_weights_have_the_law_of_smooth_ones():
    """Both are N(0, 1/fan-in): same mean square, whatever the roughness."""
    for roughness in (0.0, 0.5, 1.0):
        for layer in stack(8, 0, roughness=roughness).equations:
            weight = layer.terms[0].qkv.weight
            assert weight.square().mean().item() * WIDTH == pytest.approx(1, abs=0.25)


def test_fresh_wide_stacks_drift_as_the_law_says():
    # at width n a cosine fluctuates by about 1/√n
    for cosine, law in zip(measure.cosines(5, width=256), laws.cosine_law(), strict=True):
        assert cosine == pytest.approx(law, abs=4 / math.sqrt(256))


def test_paths_start_together_and_agree_without_roughness():
    one, two, three = measure.paths(4, "Lie", 0.0, 0)
    assert one == two == three
    rough = measure.paths(4, "Heun", 1.0, 0)
    assert len({path[0] for path in rough}) == 1
    assert len({path[-1] for path in rough}) == 3


# LayerNorm


def test_the_flow_on_the_sphere_keeps_length_and_mean():
    u = on_sphere(random_tokens(1))
    rate = laws.sphere_rate(laws.limit_rate(1))(u, 0.3)
    assert torch.allclose((u * rate).sum(dim=-1), torch.zeros(1, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(rate.sum(dim=-1), torch.zeros(1, dtype=torch.float64), atol=1e-12)


def test_post_layernorm_follows_the_sphere_only_with_even_gain_and_bias():
    depths = (8, 16, 32)
    assert slope(depths, measure.post_norm_errors(2, depths)) == pytest.approx(-1, abs=0.1)
    for change in ({"uneven": 0.5}, {"bias": 0.3}):
        errors = measure.post_norm_errors(2, depths, **change)
        assert min(errors) > 0.2
        assert slope(depths, errors) > -0.1


# The adversary


@pytest.mark.parametrize("s", [0.5, 3.0, 100.0])
def test_the_slope_of_attention_has_no_bound(s):
    assert slope_of_attention(s) == pytest.approx(1 / 3 + 2 * s**2 / 3, rel=1e-12)


def test_no_constant_on_offer_is_one_for_all_states_and_some_steps_leave_the_tube_at_once():
    figures, _ = attack.one_constant(7)
    assert figures["assumption_violations"] == figures["assumption_attempts"]
    assert figures["steps_longer_than_the_tube"] > 5


@pytest.mark.parametrize(
    ("name", "least", "size"),
    [
        ("error_bound_line", 0.99, {"batch": 64, "steps": 20}),
        ("error_bound_attention", 0.9, {"batch": 16, "steps": 30}),
        ("separation", 0.8, {"batch": 12, "steps": 20}),
        ("semigroup", 0.8, {}),
    ],
)
def test_a_small_search_comes_close_to_a_bound_and_does_not_break_it(name, least, size):
    assert least < short(name, **size) <= 1 + ROUNDING


def test_without_the_step_nothing_converges_and_with_it_everything_does():
    assert attack.smooth_limit(7, scaled=False).min() > 2
    # Euler's error at 64 layers is an eighth of that at 8, and a half would score 1
    assert attack.smooth_limit(7).max() < 0.32
    # L^{−s} with s ≥ ¼ and coefficients that differ by a quarter: at most 1.25/2^{1.5} of the error is left, 0.44
    assert attack.rough_limit(7).max() < 0.89


def test_the_printed_rate_holds_if_f_is_smooth_in_time_and_fails_if_it_is_only_continuous():
    """error(L)·L is level for a smooth F, and ∝ L^{1−s} for a rough one: 64^{0.45}/1.25 = 5.2 at least, 4 scores 1."""
    assert attack.smooth_rate(7).numpy() == pytest.approx(1 / 1.5, rel=0.1)
    assert attack.smooth_rate(7, rough=1.0).min() > 1
    assert attack.rough_rate(7).min() > 1.3


def test_rough_rates_differ_by_more_than_a_factor():
    """Or they would be one example, however many are tried."""
    few, many = attack.rough_errors(7, 8, 512)
    assert len(set((many / few).numpy().round(3))) > 10


@pytest.mark.parametrize("layers", [1, 3, 8])
def test_between_two_layers_the_states_joined_by_lines_are_as_close_as_at_the_layers(layers):
    """u'' of both signs: the bound of the layers holds in between, without any further term."""
    t = torch.linspace(0, 1, 40 * layers + 1, dtype=torch.float64)
    exact, bound = torch.sin(6 * t) / 6, laws.error_bound(K=0, M=1, K_t=6, T=1, dt=1 / layers)  # u' = cos 6t
    H = torch.cat([torch.zeros(1), torch.cos(6 * t[:-1:40]).cumsum(0) / layers]).double()
    joined = torch.stack([laws.interpolate(list(H), tau.item()) for tau in t * layers])
    assert (joined - exact).abs().max() <= bound


def test_two_methods_agree_unless_their_equations_differ():
    assert attack.agreement(7, fields=2).max() < 0.6  # both of order 1: a quarter, and a half would score 1
    assert attack.agreement(7, fields=2, other=0.055).min() > 1


def test_there_and_back_is_the_start_unless_solutions_may_meet():
    assert attack.there_and_back(7, fields=2).max() < 1
    assert attack.there_and_back(7, fields=2, root=2.0).min() > 1


def test_backward_heat_grows_without_bound():
    figures, controls = attack.without_normaliser(7)
    assert controls == {"backward_heat_grows": 1.0}
    assert 0 < figures["fields_without_normaliser"] < 64
