"""The code of the chapter on the feed-forward term: constants, kinks, clusters, and the adversary.  (P2 eq 6)"""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from pdebook.chapters.reaction import attack, laws, measure
from pdebook.evidence.stacks import slope
from pdelab import RK4, solve
from pdelab.field import positions
from pdelab.formulas import attention, reaction_constants, reaction_scales, spread
from pdelab.metrics.jacobian import jacobian, lipschitz, logarithmic_norm
from pdelab.metrics.stability import fluctuation
from pdelab.seeds import normal
from pdelab.terms.reaction import SLOPES

# What the term is


def test_a_step_with_the_leak_is_an_average_of_state_and_network():
    network, leaking = (laws.gaussian(0, 6, 20, biases=0.5, leak=leak) for leak in (False, True))
    u = normal(3, "u", size=(2, 5, 6))
    for dt in (0.1, 0.5, 1.0):
        step = solve(leaking, u, steps=1, dt=dt).final
        torch.testing.assert_close(step, (1 - dt) * u + dt * network(u), rtol=0, atol=1e-12)


def test_an_outside_input_is_integrated_along_the_depth():
    """With a network that is zero, u = u₀ + ∫g dt: also for a field that was constant in x."""

    def source(x, t):
        return torch.cos(math.pi * x).unsqueeze(-1).expand(-1, -1, 2) * math.cos(t)

    zero = torch.zeros(2, 2, dtype=torch.float64)
    term = laws.with_weights(zero, zero, source=source)
    u0 = torch.ones(1, 9, 2, dtype=torch.float64)
    run = solve(term, u0, steps=50, dt=0.02, integrator=RK4())
    exact = u0 + math.sin(1.0) * torch.cos(math.pi * positions(u0)).unsqueeze(-1)
    torch.testing.assert_close(run.final, exact, rtol=0, atol=1e-9)
    assert fluctuation(run.final).item() > 0.1, "a field that was constant in x is not any more"


# Constants


def networks(activation, leak):
    return [
        laws.gaussian(seed, width, hidden, gain=gain, biases=0.5, activation=activation, leak=leak)
        for seed, (width, hidden, gain) in enumerate([(1, 1, 1.0), (2, 5, 0.3), (4, 3, 3.0), (6, 24, 1.0)])
    ]


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("leak", [False, True])
def test_jacobians_and_adversaries_stay_within_the_constants(activation, leak):
    for seed, term in enumerate(networks(activation, leak)):
        bound = term.constants()
        u = 2 * normal(seed, "u", size=(50, 1, term.width))
        K, rate = measure.steepest(term, seed, batch=16, steps=30)
        assert max(K, lipschitz(term, u).max().item()) <= bound.lipschitz * (1 + 1e-9)
        assert max(rate, logarithmic_norm(term, u).max().item()) <= bound.upper + 1e-9
        assert -logarithmic_norm(lambda v, f=term: -f(v), u).max().item() >= bound.lower - 1e-9
        assert -bound.lipschitz - 1e-12 <= bound.lower <= bound.upper <= bound.lipschitz + 1e-12


def test_the_adversary_finds_the_exact_constant_of_a_diagonal_network():
    """W₂W₁ = diag(3, 2): each unit has its own direction, so K = λ = 3, while the product of norms is 6."""
    term = laws.with_weights(
        torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)),
        torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)),
        activation="relu",
    )
    assert measure.steepest(term, 0, steps=200) == pytest.approx((3, 3), rel=1e-3)
    assert laws.product_constants(term).lipschitz == pytest.approx(6)
    assert term.constants() == pytest.approx((0, 3, 3), abs=1e-6)


@pytest.mark.parametrize(("gain", "without", "with_leak"), [(2.0, 2, 1), (1.0, 1, 1), (0.5, 0.5, 1), (-1.0, 1, 2)])
def test_the_constants_of_the_tanh_cell_are_the_true_ones(gain, without, with_leak):
    """FFN = β tanh has slopes between 0 and β; with −u they lie between −1 and β − 1. The product of norms adds 1."""
    z = torch.linspace(-20, 20, 4001, dtype=torch.float64).view(-1, 1, 1)
    terms = [laws.double_well(gain, leak) for leak in (False, True)]
    true = [lipschitz(term, z).max().item() for term in terms]
    assert true == pytest.approx([without, with_leak], rel=1e-12)
    for leak, (term, constant) in enumerate(zip(terms, true, strict=True)):
        assert term.constants() == pytest.approx((min(0, gain) - leak, max(0, gain) - leak, constant), abs=1e-9)
        assert laws.product_constants(term).lipschitz == pytest.approx(abs(gain) + leak)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize(("width", "hidden"), [(1, 3), (2, 8), (4, 8), (8, 8), (10, 6)])
def test_the_constants_are_close_to_the_worst_of_all_slopes_and_never_beyond(width, hidden, activation, leak):
    """All 2^m vertices are tried. The rates come within a twentieth of K, K within a sixth, and the norms do worse."""
    term = laws.gaussian(width, width, hidden, gain=1.5, activation=activation, leak=leak)
    exact, bound, norms = laws.vertex_constants(term), term.constants(), laws.product_constants(term)
    rounding = 1e-9 * norms.lipschitz
    assert norms.lower - rounding <= bound.lower <= exact.lower + rounding
    assert exact.upper - rounding <= bound.upper <= norms.upper + rounding
    assert exact.lipschitz - rounding <= bound.lipschitz <= norms.lipschitz + rounding
    assert max(exact.lower - bound.lower, bound.upper - exact.upper) < 0.05 * exact.lipschitz
    assert exact.lipschitz > bound.lipschitz / 1.2


@pytest.mark.parametrize("leak", [False, True])
def test_slopes_and_directions_in_turn_find_the_worst_vertex(leak):
    term = laws.gaussian(3, 4, 8, gain=1.5, activation="gelu", leak=leak)
    np.testing.assert_allclose(measure.any_slopes(term, 0, rounds=100), laws.vertex_constants(term), rtol=1e-6)


def test_the_lipschitz_bound_is_a_point_of_the_semidefinite_program_of_fazlyab_et_al():
    """[[−2αβWᵀDW − K², (α + β)WᵀD], [·, W₂ᵀW₂ − 2D]] ≤ 0 with D = K T²/2r, and not for a smaller K with the same T."""
    low, high = SLOPES["gelu"]
    term = laws.gaussian(2, 5, 7, gain=1.5, activation="gelu")
    W1, W2 = term.inner.weight, term.outer.weight
    scales = reaction_scales(W1, W2, (low, high))
    squared = (scales.lipschitz.exp() * W2.norm(dim=0) / W1.norm(dim=1)).diag()
    K = reaction_constants(W1, W2, (low, high), 0.0, scales).lipschitz

    def largest(bound):
        D = bound * squared / (high - low)
        corner = (low + high) * W1.T @ D
        rows = [-2 * low * high * W1.T @ D @ W1 - bound**2 * torch.eye(5, dtype=torch.float64), corner]
        matrix = torch.cat([torch.cat(rows, dim=1), torch.cat([corner.T, W2.T @ W2 - 2 * D], dim=1)])
        return torch.linalg.eigvalsh(matrix)[-1].item()

    assert largest(K) < 1e-9
    assert largest(0.99 * K) > 1e-3


def test_too_many_units_for_all_vertices_are_refused():
    with pytest.raises(ValueError, match="at most 12 hidden units"):
        laws.vertex_constants(laws.gaussian(0))


def test_rescaled_units_change_the_norms_and_neither_the_network_nor_its_constants():
    term = laws.gaussian(1, 6, 24, biases=0.5)
    other = laws.rescaled(term, (2 * normal(1, "ρ", size=(24,))).exp())
    u = normal(1, "u", size=(1, 9, 6))
    torch.testing.assert_close(other(u), term(u), rtol=1e-12, atol=1e-12)
    assert other.constants() == pytest.approx(term.constants(), rel=1e-6)
    assert laws.product_constants(other).lipschitz > 10 * laws.product_constants(term).lipschitz


@pytest.mark.parametrize(("seed", "width", "hidden"), [(0, 6, 24), (5, 4, 3), (5, 2, 5)])
@pytest.mark.parametrize("which", ["lower", "upper", "lipschitz"])
def test_constants_are_bounds_after_every_rescaling_and_the_same_up_to_the_search(seed, width, hidden, which):
    """Units rescaled so that T = t·1, the guess that sees the scale, is the best there is for one of the three."""
    term = laws.gaussian(seed, width, hidden, biases=0.5)
    W1, W2 = term.inner.weight, term.outer.weight
    scales = getattr(reaction_scales(W1, W2, SLOPES["relu"], steps=300), which)
    other = laws.rescaled(term, (scales / 2).exp() * (W2.norm(dim=0) / W1.norm(dim=1)).sqrt())
    K, rate = measure.steepest(term, seed, batch=16, steps=30)
    before, after = term.constants(), other.constants()
    assert after == pytest.approx(before, rel=0, abs=1e-3 * before.lipschitz)
    for found in (before, after, term.constants(steps=0), other.constants(steps=0)):
        assert found.lipschitz * (1 + 1e-9) >= K
        assert found.upper + 1e-9 >= rate


def test_without_a_search_the_constants_depend_on_the_scale_of_the_units():
    term = laws.gaussian(0, 6, 24, biases=0.5)
    W1, W2 = term.inner.weight, term.outer.weight
    scales = reaction_scales(W1, W2, SLOPES["relu"], steps=300).lipschitz
    other = laws.rescaled(term, (scales / 2).exp() * (W2.norm(dim=0) / W1.norm(dim=1)).sqrt())
    assert other.constants(steps=0).lipschitz < 0.95 * term.constants(steps=0).lipschitz


def test_the_search_for_scales_pays_and_may_be_skipped():
    term = laws.gaussian(0, 16, 64, bias=False)
    guess, short, long = (term.constants(steps=steps) for steps in (0, 50, 1000))
    assert long.lipschitz <= short.lipschitz < guess.lipschitz < laws.product_constants(term).lipschitz
    assert short == pytest.approx(long, rel=2e-3)
    assert long.upper <= short.upper < guess.upper


def test_a_stable_rest_point_can_drive_tokens_apart_first():
    """J = [[−1, 10], [0, −1]]: both eigenvalues −1, but μ(J) = 4."""
    inner = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    outer = torch.tensor([[10.0], [0.0]], dtype=torch.float64)
    term = laws.with_weights(inner, outer, leak=True)
    pair = torch.tensor([[[0.0, 0.01], [0.0, 0.0]]], dtype=torch.float64)
    assert logarithmic_norm(term, pair[:, 1:]).item() == pytest.approx(4)
    run = solve(term, pair, steps=400, dt=0.02, integrator=RK4())
    gaps = torch.stack([(u[0, 0] - u[0, 1]).norm() / 0.01 for u in run.states])
    # while tanh is linear: |(10t, 1)|e^{−t}, at most close to 10/e
    np.testing.assert_allclose(gaps.max(), 10 / math.e, rtol=0.01)
    assert gaps[-1] < 0.05


def test_the_trace_is_that_of_the_jacobian():
    """`traces` against automatic differentiation of the same weights."""
    term = laws.gaussian(3, 5, 11, bias=False)
    u = normal(3, "u", size=(1, 1, 5))
    active = (term.inner(u[0, 0]) > 0).double()
    formula = torch.einsum("k,ak,ka->", active, term.outer.weight, term.inner.weight)
    assert jacobian(term, u).reshape(5, 5).trace().item() == pytest.approx(formula.item(), rel=1e-12)


@pytest.mark.parametrize("kind", ["normal", "torch"])
@pytest.mark.parametrize(("width", "hidden"), [(4, 64), (32, 8)])
def test_the_trace_at_initialisation_has_the_variance_of_the_law(kind, width, hidden):
    n = 4000
    found, law = laws.traces(7, normal(7, "u", size=(width,)), hidden, draws=n, kind=kind)
    assert abs(found.mean().item()) < 4 * law / math.sqrt(n)
    # kurtosis a little above 3 for products of normal numbers and few units, so a little more than √(2/n)
    assert found.var().item() / law**2 == pytest.approx(1, abs=5 * math.sqrt(2 / n))
    assert (found < 0).double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(n))


def test_the_law_of_the_trace_does_not_depend_on_the_sizes():
    assert laws.trace_law(3, 50, 1 / 3, 1 / 50) == pytest.approx(1 / math.sqrt(2))


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_typical_constants_are_those_of_wide_networks(ratio):
    width = 200
    term = laws.gaussian(ratio, width, ratio * width, bias=False)
    u = normal(ratio, "u", size=(2, 1, width))
    measured = lipschitz(term, u).mean(), logarithmic_norm(term, u).mean(), laws.product_constants(term).lipschitz
    near = width ** (-2 / 3) + 4 * 0.5 / math.sqrt(ratio * width)  # the edge; the number of active units
    limits = laws.typical_constants(width, ratio * width)
    for value, law in zip(measured, limits, strict=True):
        assert float(value) == pytest.approx(law, rel=near)
    all_active = [math.sqrt(2) * law for law in laws.typical_constants(width, 2 * ratio * width)[:2]]
    for value, law in zip(measured, all_active, strict=False):
        assert float(value) != pytest.approx(law, rel=near)


def test_the_block_at_a_token_has_the_law_of_a_product_of_gaussian_matrices():
    """J ~ G₂G₁ with Bin(m, ½) units between, also for few units: two samples of ‖J‖ compared (Kolmogorov–Smirnov)."""
    width, hidden, n = 4, 6, 4000
    rng = np.random.default_rng(0)
    inner, outer = rng.normal(size=(n, hidden, width)), rng.normal(size=(n, width, hidden))

    def norms(inner, active):
        return np.linalg.norm(outer * active[:, None, :] @ inner, 2, axis=(1, 2))

    ours = norms(inner, inner[:, :, 0] > 0)  # the token along the first axis
    fresh = rng.normal(size=inner.shape)
    assert scipy.stats.ks_2samp(ours, norms(fresh, rng.random((n, hidden)) < 0.5)).pvalue > 1e-3
    assert scipy.stats.ks_2samp(ours, norms(fresh, np.ones((n, hidden)))).pvalue < 1e-9


def test_the_typical_norm_for_square_layers_with_all_units_active_is_fuss_catalan():
    """m' = d: the largest squared singular value of a product of two square Gaussian matrices is 27/4."""
    norm, _, _ = laws.typical_constants(100, 200)  # half of 200 units are active
    assert norm**2 * 200 / 100 == pytest.approx(27 / 4)


# Kinks


def test_the_clock_network_has_its_exact_solution():
    u0 = torch.zeros(1, 1, 2, dtype=torch.float64)
    kinks, strengths = torch.tensor([[0.25, 0.5], [2.0, -1.0]], dtype=torch.float64)
    run = solve(laws.clock(kinks, strengths), u0, steps=4, dt=0.25, integrator=RK4())
    np.testing.assert_allclose(run.final.flatten(), [1.0, 0.75**2 - 0.5 * 0.5**2], atol=1e-14)


def test_several_clocks_at_once_are_each_by_itself():
    kinks, strengths = normal(0, "τ", size=(4, 3)).sigmoid(), normal(0, "s", size=(4, 3))
    apart = [laws.clock_error(k, s, 7) for k, s in zip(kinks, strengths, strict=True)]
    torch.testing.assert_close(laws.clock_error(kinks, strengths, 7), torch.stack(apart), rtol=0, atol=1e-15)


@pytest.mark.parametrize("theta", [0.0, 0.1, 0.37, 0.5, 0.8, 5 / 6])
def test_a_kink_costs_rk4_what_the_formula_says(theta):
    steps, place = 10, 0.4 + 0.1 * theta
    error = laws.clock_error([place], [3.0], steps).item()
    law = 3.0 * laws.kink_error(torch.tensor(theta, dtype=torch.float64)).item() / steps**2
    assert error == pytest.approx(law, abs=1e-14)


def test_the_cost_of_a_kink_is_at_most_a_24th_and_symmetric():
    theta = torch.linspace(0, 1, 1001, dtype=torch.float64)
    B = laws.kink_error(theta)
    assert B.abs().max().item() == pytest.approx(1 / 24)
    assert B.abs().argmax() == 500
    torch.testing.assert_close(B, B.flip(0))


@pytest.mark.parametrize(
    ("activation", "scheme", "order"),
    [("relu", "Euler", 1), ("relu", "Heun", 2), ("relu", "RK4", 2), ("tanh", "RK4", 4), ("gelu", "RK4", 4)],
)
def test_rk4_keeps_its_order_for_smooth_activations_and_falls_to_two_for_relu(activation, scheme, order):
    errors = measure.order_errors(activation, scheme, 5)
    assert slope(measure.ORDER_STEPS, errors) == pytest.approx(-order, abs=0.12 * order)


@pytest.mark.parametrize("seed", [0, 3])
def test_for_equal_work_rk4_beats_heun_across_kinks_of_random_networks_though_not_in_order(seed):
    heun, rk4 = (np.array(measure.order_errors("relu", scheme, seed)) for scheme in ("Heun", "RK4"))
    assert (heun[1:] / rk4[:-1]).min() > 2  # Heun with 2n steps, RK4 with n


# Clusters


@pytest.mark.parametrize(("gain", "pull"), [(2.0, 0.0), (3.0, 0.5), (1.2, 0.1), (50.0, 0.0), (1.001, 0.0)])
def test_the_well_is_a_rest_point(gain, pull):
    u = laws.well(gain, pull)
    assert u > 0
    assert gain * math.tanh(u) == pytest.approx((1 + pull) * u, rel=1e-12)


def test_without_enough_gain_there_is_no_well():
    assert laws.well(1.0) == laws.well(1.5, 0.6) == 0


def test_the_pull_is_attention_minus_the_state():
    u = normal(0, "u", size=(1, 6, 3))
    even = laws.pull(0.7, width=3)(u)
    torch.testing.assert_close(even, 0.7 * (u.mean(dim=1, keepdim=True) - u))
    weights = (1.5 * u @ u.transpose(1, 2)).softmax(dim=-1)
    torch.testing.assert_close(laws.pull(0.7, 1.5, 3)(u), 0.7 * (weights @ u - u))


@pytest.mark.parametrize(("gain", "pull"), [(2.0, 0.0), (0.5, 0.8), (3.0, 0.4)])
def test_tokens_roll_downhill_in_the_landscape(gain, pull):
    u = normal(0, "u", size=(1, 9, 1)).requires_grad_()
    height = laws.landscape(u, gain, pull, u.mean().item())
    (slope,) = torch.autograd.grad(height.sum(), u)
    torch.testing.assert_close(laws.tug_of_war(pull, gain)(u.detach()), -slope)


@pytest.mark.parametrize("gain", [1.5, 3.0])
def test_two_crowds_merge_where_the_law_says(gain):
    law = laws.merging_law(gain)
    left = [measure.clusters_left(1, factor * law, gain, time=200.0) for factor in (0.93, 1.07)]
    assert left == [2, 1]


def test_the_spread_is_the_root_of_twice_the_fluctuation():
    u = normal(0, "u", size=(1, 7, 3))
    assert spread(u).item() == pytest.approx(math.sqrt(2 * fluctuation(u).item()))


def test_without_the_leak_attention_may_collapse_more_slowly_than_any_exponential():
    """Scores u_iu_j, V = −1, tokens (x, −x): x' = −x tanh(x²), and 2x√(t/2) → 1."""
    u0 = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1)
    one = torch.ones(1, 1, 1, dtype=torch.float64)

    def rate(u):
        return attention(u, one, -one)

    torch.testing.assert_close(rate(u0), -u0 * torch.tanh(u0.square()))
    end = solve(rate, u0, steps=2000, dt=0.1, integrator=RK4()).final.flatten()
    assert ((end[0] - end[1]) * math.sqrt(200 / 2)).item() == pytest.approx(1, abs=0.01)


def test_clusters_are_chains_of_neighbours():
    u = torch.tensor([0.0, 0.09, 0.18, 1.0, 1.05, 3.0]).view(1, -1, 1)
    assert measure.clusters(u, gap=0.1) == 3
    assert measure.clusters(u, gap=0.06) == 5
    assert measure.clusters(u, gap=5.0) == 1


def test_equal_tokens_stay_equal_and_others_stay_apart():
    """Backward uniqueness: what is equal at the end was equal at the start."""
    rate = laws.tug_of_war(0.5, 2.0, sharpness=1.0)
    u0 = torch.tensor([0.3, 0.3, 0.31, -1.0], dtype=torch.float64).view(1, -1, 1)
    end = solve(rate, u0, steps=200, dt=0.05, integrator=RK4()).final.flatten()
    assert end[0] == end[1]
    assert (end[2] - end[0]).abs() > 1e-9


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_a_static_input_leaves_a_contraction_between_floor_and_ceiling(activation):
    """φ/K ≤ σ ≤ φ/|λ| at rest; in the linear case the two agree."""
    g = normal(0, "g", size=(1, 12, 3))
    phi = spread(g).item()
    for gain in (0.0, 0.2):
        term = laws.gaussian(0, 3, 6, gain=gain, activation=activation, leak=True, source=lambda x, t: g)
        bound = term.constants()
        assert bound.upper < 0
        end = solve(term, normal(0, "u", size=g.shape), steps=400, dt=0.1, integrator=RK4()).final
        sigma = spread(end).item()
        assert phi / bound.lipschitz * (1 - 1e-6) <= sigma <= phi / abs(bound.upper) * (1 + 1e-6)
        assert gain or sigma == pytest.approx(phi, rel=1e-6)


def test_planar_rotates_the_activation():
    term = laws.planar(2.0, 90.0)
    u = torch.tensor([[[0.5, 0.0]]], dtype=torch.float64)
    np.testing.assert_allclose(term(u).flatten(), [-0.5, 2 * math.tanh(0.5)], atol=1e-12)


# The adversary


def test_the_attack_uses_the_term_and_its_constants():
    term = laws.gaussian(2, 3, 6, biases=0.5, activation="gelu", leak=True)
    W1, b1, W2 = (x.unsqueeze(0) for x in (term.inner.weight, term.inner.bias, term.outer.weight))
    z = normal(2, "z", size=(1, 4, 3))
    torch.testing.assert_close(attack.network(z, W1, b1, W2, "gelu", 1.0), term(z) - term.outer.bias)
    scales = reaction_scales(W1, W2, SLOPES["gelu"], 1.0)
    found = [attack.constants(W1, W2, s, "gelu", 1.0)[k].item() for k, s in enumerate(scales)]
    np.testing.assert_allclose(found, term.constants(), rtol=1e-12)


INEQUALITIES = ("lipschitz", "upper", "lower", "separation", "step", "growth")


@pytest.mark.parametrize("name", INEQUALITIES)
@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_no_attack_is_won_by_a_network_that_does_nothing(name, leak):
    """The ratios are of what the weights do: with weights of size 1e-3 the random ones are still well below 0.99."""
    statement = replace(attack.run.statements[name], sizes=[{"n": 2, "d": 3, "m": 6}], batch=16)
    _, start = next(statement.searches(0))
    start |= {"W1": 1e-3 * start["W1"], "W2": 1e-3 * start["W2"]}
    found = statement.score(**start, activation="tanh", leak=leak)
    assert found.median() < 0.9
    assert found.max() < 0.99


def test_a_smaller_part_of_the_weights_in_a_rate_is_the_rate_of_smaller_slopes():
    W1, W2, s = (normal(0, name, size=size) for name, size in (("W1", (4, 5, 3)), ("W2", (4, 3, 5)), ("s", (4, 5))))
    full = attack.constants(W1, W2, s, "gelu", 1.0)
    part = attack.constants(W1, W2, s, "gelu", 1.0, c=0.9, r=0.9)
    torch.testing.assert_close(attack.shrunk(full.upper, 0.9, 1.0), part.upper)
    torch.testing.assert_close(attack.shrunk(full.lower, 0.9, 1.0), part.lower)
    assert (part.upper < full.upper).all(), "a bound that is not smaller is no false neighbour"
    assert (part.lower > full.lower).all()


@pytest.mark.parametrize("name", attack.run.statements)
def test_each_statement_withstands_the_search_and_its_false_neighbours_do_not(name):
    one = attack.run.statements[name]
    figures, broken = replace(one, sizes=one.sizes[:1], batch=16, steps=min(40, one.steps)).attempt(7)
    assert figures["violations"] == 0
    assert min(broken.values()) > 0, broken


def test_a_smoke_run_measures_every_layer():
    result = measure.trained("smoke", 0)
    for name in ("K bound", "K ascent", "K sampled"):
        assert len(result.figures[name]) == len(result.controls[f"untrained {name}"]) == 2
    assert np.all(np.array(result.figures["K ascent"]) <= np.array(result.figures["K bound"]) * (1 + 1e-5))
    assert np.all(np.array(result.figures["λ ascent"]) <= np.array(result.figures["λ bound"]) + 1e-5)


def test_a_smoke_run_bounds_every_layer_and_its_rescaled_copy():
    result = measure.bounds("smoke", 0)
    for start, figures in (("", result.figures), ("untrained ", result.controls)):
        for constant in ("K", "λ", "λ₋"):
            sign = -1 if constant == "λ₋" else 1  # a bound from below
            kept = (np.array(figures[f"{start}{constant} {name}"]) for name in ("found", "slopes", "bound", "norms"))
            found, slopes, bound, norms = (sign * values for values in kept)
            assert len(bound) == 2
            assert np.all(found <= bound + 1e-9)
            assert np.all(slopes <= bound + 1e-9)
            assert np.all(bound <= norms)
        for constant in ("K", "λ"):
            again, bound = (figures[f"{start}{kind}{constant} bound"] for kind in ("rescaled ", ""))
            np.testing.assert_allclose(again, bound, rtol=1e-4)
            again, norms = (np.array(figures[f"{start}{kind}{constant} norms"]) for kind in ("rescaled ", ""))
            assert np.all(again > 10 * norms)
        assert max(figures[f"{start}rescaled output, distance"]) < 1e-12
