"""Depth as time: the limit, its hypotheses, and the adversary. (P2 §3.1, Theorem 3.2, eq 2, 10-12; P1 Theorem 1)"""

import math

import numpy as np
import pytest
import torch

from pdebook.chapters.continuum_limit import attack as attack_continuum
from pdebook.chapters.continuum_limit import attack_existence, continuum
from pdebook.chapters.continuum_limit.continuum import interpolate
from pdebook.evidence import adversary
from pdebook.evidence.experiment import torch_threads
from pdelab import Diffusion, Interaction, solve


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


# P2-def3.1 and P2-eq2: is there a field behind the tokens?


def jumps_between_neighbours(embedding):
    """The largest jump after eight layers with 27 and with 243 tokens; of a continuous field it falls ninefold."""
    return [continuum.largest_jump(continuum.through_layers(embedding(2, n), 2)) for n in (27, 243)]


@pytest.mark.claim("P2-def3.1")
def test_are_words_from_a_table_a_field(evidence):
    few, many = jumps_between_neighbours(continuum.vocabulary_embedding)
    evidence("printed", holds=many < few / 5, fails=many > 0.5 * few)


@pytest.mark.claim("P2-def3.1")
def test_do_smooth_embeddings_converge_to_a_field_as_tokens_are_added(evidence):
    counts = (9, 27, 81)
    slope = continuum.slope(counts, continuum.space_errors("smooth", 2, counts))  # the midpoint rule has order 2
    few, many = jumps_between_neighbours(continuum.smooth_embedding)
    evidence("repair", holds=abs(slope + 2) < 0.1 and many < few / 5, fails=slope > -0.6 or many > 0.5 * few)


@pytest.mark.claim("P2-def3.1")
def test_does_the_rate_at_fixed_n_hold_a_derivative_in_x(evidence):
    """A rate that does not see the order of the tokens contains no difference of neighbours; diffusion does."""
    u = continuum.random_tokens(3)
    order = torch.randperm(continuum.TOKENS, generator=continuum.stream(3, "order"))
    block = continuum.stack(1, 3)
    diffusion = Diffusion(1.0)
    gap, seen = ((rate(u[:, order]) - rate(u)[:, order]).abs().max().item() for rate in (block, diffusion))
    assert seen > 1, "the test must see the order where it is there to be seen"
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P2-eq2")
def test_do_integrals_over_words_from_a_table_converge_like_integrals(evidence):
    # mean of three seeds; each slope has a standard error near 0.06
    found = np.mean([continuum.slope(continuum.COUNTS, continuum.space_errors("vocabulary", s)) for s in (10, 11, 12)])
    # a continuous field with a kink would still have order 1; independent words have order one half
    evidence("printed", holds=found < -0.9, fails=abs(found + 0.5) < 0.15)


@pytest.mark.claim("P2-eq2")
def test_do_integrals_of_a_continuous_embedding_converge_at_order_two(evidence):
    exact = continuum.smooth_embedding(4, 2187).mean(dim=1)
    errors = [(continuum.smooth_embedding(4, n).mean(dim=1) - exact).norm().item() for n in (9, 27, 81)]
    slope = continuum.slope((9, 27, 81), errors)
    evidence("repair", holds=abs(slope + 2) < 0.05, fails=slope > -0.9)


# P2-eq10: ceilings and floors


def states(layers=8, seed=0):
    return solve(continuum.stack(layers, seed), continuum.random_tokens(seed), steps=layers, dt=1 / layers).states


@pytest.mark.claim("P2-eq10")
def test_is_the_printed_interpolant_continuous(evidence):
    h = states()
    jumps = [interpolate(h, n + 1e-9, math.ceil) - h[n] for n in range(7)]
    for n, jump in enumerate(jumps):  # each is a second difference
        assert torch.allclose(jump, -(h[n + 2] - 2 * h[n + 1] + h[n]), atol=1e-6)
    sizes = [jump.norm().item() for jump in jumps]
    evidence("printed", holds=max(sizes) < 1e-6, fails=min(sizes) > 0.1)


@pytest.mark.claim("P2-eq10")
def test_does_the_printed_interpolant_need_only_layers_that_exist(evidence):
    try:
        interpolate(states(), 7.5, math.ceil)
        missing = False
    except IndexError:
        missing = True
    evidence("printed", holds=not missing, fails=missing)


@pytest.mark.claim("P2-eq10")
def test_is_the_interpolant_with_floors_continuous_and_does_it_meet_every_layer(evidence):
    h = states()
    near = [(n, tau) for n in range(9) for tau in (n - 1e-9, n + 1e-9) if 0 <= tau <= 8]
    gap = max((interpolate(h, tau) - h[n]).norm().item() for n, tau in near)
    met = all(torch.equal(interpolate(h, float(n)), h[n]) for n in range(9))
    straight = torch.allclose(interpolate(h, 2.25), 0.75 * h[2] + 0.25 * h[3])
    evidence("repair", holds=gap < 1e-6 and met and straight, fails=gap > 0.1 or not met)


def test_the_interpolant_stays_in_the_bound_between_layers():
    """u' = 2t has K = 0, K_t = 2: the layers are off by t_ℓΔt, the chord by another Δt²/4 at most, and both are met."""
    layers, dt = 10, 0.1
    h = [torch.tensor(dt**2 * n * (n - 1)) for n in range(layers + 1)]
    worst = max(abs(interpolate(h, tau).item() - (tau * dt) ** 2) for tau in np.linspace(0, 10, 401))
    allowed = continuum.error_bound(K=0, M=2, K_t=2, T=1, dt=dt) + 2 * dt**2 / 8
    assert 0.99 * continuum.error_bound(0, 2, 2, 1, dt) < worst <= allowed


# The limit


@pytest.mark.parametrize("scheme", ["Euler", "Lie"])
def test_smooth_stacks_reach_their_limit_at_order_one(scheme):
    depths = (8, 16, 32)
    assert continuum.slope(depths, continuum.scheme_errors(scheme, 5, depths)) == pytest.approx(-1, abs=0.1)


@pytest.mark.parametrize(
    ("weights", "scale", "expected"), [("smooth", "1/L", -1), ("fresh", "1/L", -0.5), ("fresh", "1/√L", 0)]
)
def test_doubling_the_depth_changes_the_output_at_the_expected_rate(weights, scale, expected):
    depths = (8, 16, 32, 64)
    assert continuum.slope(depths, continuum.doubling(weights, scale, 5, depths)) == pytest.approx(expected, abs=0.2)


def test_unscaled_stacks_grow():
    for weights in ("smooth", "fresh"):
        changes = continuum.doubling(weights, "1", 5, (8, 16))
        assert changes[1] > 10 * changes[0]


@pytest.mark.parametrize(("scheme", "order"), [("Heun", 2), ("RK4", 4)])
def test_schemes_keep_their_order_when_kinks_fall_between_steps(scheme, order):
    errors = continuum.refined_errors(scheme, 5)
    assert continuum.slope(continuum.REFINED, errors) == pytest.approx(-order, abs=0.1 * order)


def test_rough_weights_have_the_law_of_smooth_ones():
    """Both are N(0, 1/fan-in): same mean square, whatever the roughness."""
    for roughness in (0.0, 0.5, 1.0):
        stack = continuum.stack(8, 0, roughness=roughness)
        for layer in stack.equations:
            weight = layer.terms[0].qkv.weight
            assert weight.square().mean().item() * continuum.WIDTH == pytest.approx(1, abs=0.25)


def test_fresh_wide_stacks_drift_as_the_law_says():
    # at width n a cosine fluctuates by about 1/√n
    for cosine, law in zip(continuum.cosines(5, width=256), continuum.cosine_law(), strict=True):
        assert cosine == pytest.approx(law, abs=4 / math.sqrt(256))


def test_paths_start_together_and_agree_without_roughness():
    one, two, three = continuum.paths(4, "Lie", 0.0, 0)
    assert one == two == three
    rough = continuum.paths(4, "Heun", 1.0, 0)
    assert len({path[0] for path in rough}) == 1
    assert len({path[-1] for path in rough}) == 3


# LayerNorm


def test_the_flow_on_the_sphere_keeps_length_and_mean():
    u = continuum.on_sphere(continuum.random_tokens(1))
    rate = continuum.sphere_rate(continuum.limit_rate(1))(u, 0.3)
    assert torch.allclose((u * rate).sum(dim=-1), torch.zeros(1, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(rate.sum(dim=-1), torch.zeros(1, dtype=torch.float64), atol=1e-12)


def test_post_layernorm_follows_the_sphere_only_with_even_gain_and_bias():
    depths = (8, 16, 32)
    assert continuum.slope(depths, continuum.post_norm_errors(2, depths)) == pytest.approx(-1, abs=0.1)
    for change in ({"uneven": 0.5}, {"bias": 0.3}):
        errors = continuum.post_norm_errors(2, depths, **change)
        assert min(errors) > 0.2
        assert continuum.slope(depths, errors) > -0.1


# Attention and the adversary


def test_attention_of_the_lemma_is_the_interaction_term():
    term = Interaction(4, bias=False).double()
    u = continuum.normal(0, "u", size=(1, 5, 4))
    query, key, value = term.qkv.weight.detach().split(4)
    A, V = query.T @ key / 2, term.out.weight.detach() @ value  # √d_k = 2
    assert torch.allclose(attack_continuum.attention(u, A, V), term(u), rtol=1e-12)


@pytest.mark.parametrize("s", [0.5, 3.0, 100.0])
def test_the_slope_of_attention_has_no_bound(s):
    assert attack_continuum.slope_of_attention(s) == pytest.approx(1 / 3 + 2 * s**2 / 3, rel=1e-12)


@pytest.mark.parametrize("kind", ["max", "frobenius"])
def test_the_lipschitz_lemma_withstands_the_attack_and_a_smaller_one_does_not(kind):
    worst = attack_continuum.attack_lipschitz(7, kind, batch=12, steps=40).max()
    assert 0.8 < worst <= 1 + adversary.ROUNDING


def test_the_error_bound_withstands_the_attack_also_where_a_step_is_longer_than_the_tube():
    worst, stride = attack_continuum.attack_line(7, batch=256, steps=20)
    assert (stride > 1).sum() > 5
    assert 0.99 < worst.max() <= 1 + adversary.ROUNDING


def test_the_error_bound_holds_for_attention_with_constants_from_the_lemma():
    worst = attack_continuum.attack_attention(7, batch=16)
    assert len(worst) > 0
    assert 0.5 < worst.max() <= 1 + adversary.ROUNDING


def test_without_the_step_nothing_converges_and_with_it_everything_does():
    assert attack_continuum.attack_limit(7, scaled=False).min() > 1
    # Euler's error at 64 layers is an eighth of that at 8
    assert attack_continuum.attack_limit(7, scaled=True).max() < 0.16


def test_without_smoothness_in_time_the_printed_rate_fails_like_the_root_of_the_depth():
    """error(L)·L ∝ √L: from 8 to 512 layers it grows eightfold, up to the end of the series."""
    assert attack_continuum.attack_rate(7).numpy() == pytest.approx(8, abs=0.1)


def test_ascend_finds_the_top_of_a_hill():
    start = torch.tensor([[3.0], [-2.0]], dtype=torch.float64)
    assert torch.allclose(
        attack_continuum.ascend(lambda x: 1 - x[:, 0] ** 2, start, steps=400), torch.ones(2).double(), atol=1e-2
    )


# Existence


def test_the_search_flags_a_matrix_exactly_if_an_eigenvalue_is_negative_enough():
    D = continuum.normal(1, "D", size=(64, 2, 2))
    lowest = torch.linalg.eigvals(D).real.amin(dim=-1)
    flagged = attack_existence.grows_without_bound(D)
    assert (lowest[flagged] < 0).all()
    assert flagged[lowest < -0.2].all()


def test_the_mass_of_the_heat_kernel_is_one_for_a_number_and_more_for_a_shear():
    D = torch.tensor([[[0.7, 0.0], [0.0, 0.7]], [[1.0, 10.0], [0.0, 1.01]]], dtype=torch.float64)
    mass = attack_existence.kernel_mass(D)
    assert mass[0].item() == pytest.approx(1, abs=1e-6)
    assert mass[1].item() > 2


def test_the_normaliser_of_a_square_integrable_field_can_be_infinite():
    power, score = torch.tensor([0.25, 0.25], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert attack_existence.normaliser_is_infinite(power, score).tolist() == [True, False]


def test_solutions_do_not_separate_faster_than_the_proof_allows():
    assert attack_existence.attack_separation(7, batch=8, steps=10).max() <= 1 + adversary.ROUNDING
    assert attack_existence.attack_semigroup(7, batch=16).max() <= 1 + adversary.ROUNDING


def test_two_methods_agree_and_there_and_back_is_the_start():
    assert attack_existence.attack_agreement(7, fields=2).max() < 0.3  # both of order 1: a quarter
    assert attack_existence.attack_return(7, fields=2).max() < 1e-4
