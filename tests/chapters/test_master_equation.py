"""One equation, four terms: the sum, the sweep, the two −u, the dial, the dictionary.  (P2 eq 4-6; P1 eq 1, §2.3)"""

import math
from dataclasses import replace

import pytest
import torch

from pdebook.chapters.master_equation import attack, laws, measure
from pdebook.evidence.adversary import ROUNDING
from pdebook.evidence.experiment import Scale, torch_threads
from pdebook.evidence.stacks import on_sphere, slope
from pdelab import Diffusion, Euler, Interaction, MasterEquation, Reaction, solve
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import budget
from pdelab.metrics.stability import energy
from pdelab.seeds import normal

WIDTH, HEADS, HIDDEN = 8, 2, 16


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


def tokens(*names, size=(2, 5, WIDTH)):
    return normal(0, "master", *names, size=size)


# The sum and the sweep


def test_sum_and_sweep_stay_apart_from_a_start_that_layernorm_moves():
    """e → −e is never damped: off the sphere, or on it with uneven gains. From a fixed point of LN they meet again."""
    depths = (8, 32)
    for start in ({"stretch": 1.3}, {"uneven": 0.5}):
        coarse, fine = laws.sum_against_sweep(5, depths, **start)
        assert fine > 0.5 * coarse, start
        assert fine > 0.1, start
    coarse, fine = laws.sum_against_sweep(5, depths, uneven=0.5, settled=500)
    assert fine < 0.5 * coarse


def test_on_a_circle_the_sweep_stays_and_the_sum_comes_back_with_smaller_steps():
    ends = {layers: laws.circle_paths(layers) for layers in (8, 32)}
    for paths in ends.values():
        torch.testing.assert_close(paths["sweep"].norm(dim=-1), torch.ones_like(paths["sweep"][..., 0]))
    coarse, fine = ((p["sweep"] - p["sum"])[-1].norm(dim=-1).max() for p in ends.values())
    assert (fine / coarse).item() == pytest.approx(1 / 4, rel=0.2)
    off = laws.circle_paths(32, stretch=1.3)
    assert ((off["sum"].norm(dim=-1) - 1).abs().amax(dim=1) > 0.2).all()


def test_the_budget_of_the_four_terms_closes():
    made = MasterEquation.later(WIDTH, HEADS, HIDDEN, diffusion=0.01).double().requires_grad_(False)
    run = solve(made, tokens("budget"), steps=6, dt=1 / 6)
    gap = budget(made, run, Euler()).energy.sum(dim=1) - per_layer(energy, run).diff()
    assert gap.abs().max() < 1e-12


@pytest.mark.parametrize("dt", [0.25, 1.0])
def test_two_residuals_as_rates_inside_s_undo_the_two_leaks(dt):
    """(Att − u) + (FFN − u) + (S + 2u) is the sum without −u: the identity's weight is 1 again at every Δt."""
    printed = MasterEquation(Interaction(4, leak=True), Reaction(4, 8, leak=True))
    u = normal(0, "filed", size=(1, 3, 4))
    with torch.no_grad():
        for weight in printed.parameters():
            weight.zero_()
        step = Euler().step(lambda v, t=0.0, mask=None: printed.double()(v) + 2 * v, u, 0.0, dt)
    torch.testing.assert_close(step, u)


# The dial and the laws beside it


def test_the_dial_law_has_its_known_values():
    assert laws.dial_law(0.0, 9) == 1
    assert laws.dial_law(1.0, 1) == 0
    assert laws.dial_law(0.5, 2) == pytest.approx(0.5)  # (1/√2)²
    assert laws.dial_law(0.5, 1, operators=2) == 0  # identity weight 0: a plain network
    assert laws.dial_law(1.0, 1, operators=2) == pytest.approx(-1 / math.sqrt(3))
    assert laws.dial_law(0.25, 3, ratio=2.0) == pytest.approx((0.75 / math.hypot(0.75, 0.5)) ** 3)


def test_the_dial_runs_from_a_plain_residual_to_the_leak():
    """θ = 0 is (1 + kΔt²)^(−L/2); in between real stacks follow the law of what they keep, 1 − kθΔt."""
    assert laws.dial_law(0.3, 4, 2, theta=0.0) == pytest.approx((1 + 2 * 0.3**2) ** -2)
    assert laws.dial_law(0.3, 4, 2, theta=1.0) == laws.dial_law(0.3, 4, 2)
    steps, width = (0.1, 0.4, 0.8), 512
    for theta in (0.0, 0.5):
        found = laws.fidelities(steps, 4, width, 2, 5, theta=theta)[-1].tolist()
        assert found == pytest.approx([laws.dial_law(dt, 4, 2, theta=theta) for dt in steps], abs=4 / math.sqrt(width))


def test_a_relative_step_gives_its_fidelity_back():
    for rho, layers in ((0.85, 5), (0.3, 1), (0.99, 12)):
        s = laws.relative_step(rho, layers)
        assert laws.dial_law(s / (1 + s), layers) == pytest.approx(rho)  # s = Δt/(1 − Δt)


@pytest.mark.parametrize("dt", [0.25, 0.5])
def test_a_branch_that_breaks_one_hypothesis_follows_another_law(dt):
    width, wide = 1024, 4 / math.sqrt(1024)
    expected = {
        "all hypotheses": laws.dial_law(dt, 4),
        "twice as long": laws.dial_law(dt, 4, ratio=2.0),
        "not centred": laws.uncentred_law(dt, 4, 0.0),
        "same weights": laws.shared_law(dt, 4),
    }
    for branch, value in expected.items():
        assert laws.fidelity_with(branch, dt, 4, width, 5) == pytest.approx(value, abs=wide), branch
    rectified = normal(5, "rectified", size=(width,)).relu()
    found = laws.fidelity_with("not centred", dt, 4, width, 5, rectified)
    assert found == pytest.approx(laws.uncentred_law(dt, 4, 1 / math.sqrt(math.pi)), abs=wide)


def test_a_coin_that_flips_u_itself_has_the_moments_and_not_the_law():
    assert abs(laws.fidelity_with("along u", 0.25, 4, 64, 5)) == pytest.approx(1)


def test_the_uncentred_law_at_full_step_is_one_over_pi_for_a_rectified_start():
    """One layer at Δt = 1 from any start: ρ = mean(u₀)/(rms(u₀)√π)."""
    assert laws.uncentred_law(1.0, 1, 1 / math.sqrt(math.pi)) == pytest.approx(1 / math.pi)
    assert laws.uncentred_law(1.0, 5, 0.0) == 0


def test_the_identity_weight_refuses_a_term_that_acts_without_weights():
    with pytest.raises(ArithmeticError, match="no multiple of the identity"):
        laws.identity_weight(MasterEquation(Diffusion(0.1)), 0.5)


def test_the_spread_of_a_cosine_is_that_of_the_law_for_its_variance():
    """What the tolerances rest on: the root mean square of ρ − law over fresh weights of real layers."""
    width, steps = 64, (0.05, 0.1, 0.25, 0.5, 1.0)
    for operators in (1, 2):
        wanted = torch.tensor([laws.dial_law(dt, 6, operators) for dt in steps], dtype=torch.float64)
        spread = [laws.dial_spread(dt, 6, width, operators, laws.LENGTHS[operators]) for dt in steps]
        draws = torch.stack([laws.fidelities(steps, 6, width, operators, seed)[-1] for seed in range(100)])
        ratio = (draws - wanted).square().mean(dim=0).sqrt() / torch.tensor(spread, dtype=torch.float64)
        assert ratio.sub(1).abs().max() < 0.28  # a hundred draws tell a spread to 7 %


def test_the_variance_of_the_dial_has_its_known_values():
    assert laws.dial_variance(1.0, 3) == 1  # nothing is kept: a cosine of unrelated vectors
    assert laws.dial_variance(0.0, 3) == 0
    beta = 0.3**2 / (0.7**2 + 0.3**2)
    assert laws.dial_variance(0.3, 1) == pytest.approx((beta**2 + beta**3) / 2)
    small = laws.dial_variance(1e-3, 5)
    assert math.sqrt(small) == pytest.approx((1 - laws.dial_law(1e-3, 5) ** 2) / math.sqrt(2), rel=1e-2)
    assert laws.dial_spread(1e-9, 5, 64) >= 0  # rounding makes the variance negative


def test_drawn_cosines_agree_with_layers_of_real_matrices():
    """`dial_draws` draws no matrices; layers with W do, and must have the same mean and variance."""
    dt, width, draws = 0.4, 48, 2000
    W = normal(3, "W", size=(2, draws, width, width)) / math.sqrt(width)
    u0 = u = normal(3, "u", size=(draws, width))
    for layer in W:
        u = (1 - dt) * u + dt * torch.einsum("bij,bj->bi", layer, u)
    real = torch.cosine_similarity(u, u0, dim=-1)
    drawn = laws.dial_draws(dt, 2, 1, width, draws, 3)
    assert real.mean().item() == pytest.approx(drawn.mean().item(), abs=5 * math.sqrt(2 * drawn.var().item() / draws))
    assert (real.var() / drawn.var()).item() == pytest.approx(1, abs=5 * math.sqrt(4 / draws))


# Post-LayerNorm with gains

GAINS = torch.tensor([1.4, *torch.linspace(0.6, 1.0, 15).tolist()], dtype=torch.float64)


def test_the_top_of_the_gains_is_a_fixed_point_of_layernorm_and_repeated_layernorm_goes_there():
    v, ratio = laws.top_of(GAINS)
    torch.testing.assert_close(GAINS * on_sphere(v), v)
    assert 0 < ratio < 0.8
    u = u0 = normal(0, "tokens", size=(5, 16))
    for _ in range(200):
        u = GAINS * on_sphere(u)
    torch.testing.assert_close(u, laws.power_limit(GAINS, u0))


@pytest.mark.parametrize(("largest", "gap"), [(1, True), (2, True), (3, False)])
def test_there_is_a_gap_exactly_if_the_largest_gain_occurs_at_most_twice(largest, gap):
    gain = GAINS.clone()
    gain[:largest] = 1.4
    assert (laws.top_of(gain)[1] < 1 - 1e-9) == gap


def test_layers_with_uneven_gains_stand_still_and_those_with_nearly_even_gains_move():
    """The motion in the second half of the depth is of order 1/L, and of order 1."""
    start, slopes = attack.tokens_off(0, GAINS, 0.5), normal(0, "slopes", size=(16,))
    coarse, fine = (laws.motion(laws.post_norm(0, GAINS.expand(n, -1), start)) for n in (32, 128))
    assert fine < coarse / 3
    coarse, fine = (laws.motion(laws.post_norm(0, (1 + slopes / n).expand(n, -1))) for n in (32, 128))
    assert fine > coarse / 1.5


def test_the_limit_with_gains_stays_on_the_sphere_and_layers_tend_to_it_with_order_one():
    slopes = 2 * normal(1, "slopes", size=(16,))
    limit = laws.gain_flow(1, slopes)
    torch.testing.assert_close(limit, on_sphere(limit), rtol=0, atol=1e-5)
    depths = (16, 32, 64)
    errors = [(laws.post_norm(1, (1 + slopes / n).expand(n, -1))[-1] - limit).norm().item() for n in depths]
    assert slope(depths, errors) == pytest.approx(-1, abs=0.1)


def test_two_branches_with_the_same_weights_are_one_branch_with_twice_the_step():
    """Condition 3 gone: u⁺ = (1 − 2Δt)u + 2ΔtG follows the law of one operator at 2Δt, not that of two."""
    width, dt = 1024, 0.25
    found = laws.fidelity_with("all hypotheses", 2 * dt, 6, width, 5)
    assert (
        abs(found - laws.dial_law(2 * dt, 6))
        < 4 * laws.dial_spread(2 * dt, 6, width, 1, laws.LENGTHS[1])
        < abs(found - laws.dial_law(dt, 6, 2))
    )


def test_a_dial_model_has_the_same_first_weights_at_every_step():
    task = measure.task_of(Scale.SMOKE, measure.BRIEF)
    data = task.load(0)
    one, other = (measure.dial_model(dt, leak, task, data, 0) for dt, leak in ((0.1, True), (0.7, False)))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert (one.dt, other.dt) == (0.1, 0.7)


def test_a_gain_multiplies_the_matrices_of_the_layers_and_nothing_else():
    task = measure.task_of(Scale.SMOKE, measure.BRIEF)
    data = task.load(0)
    plain, doubled = (measure.dial_model(0.5, True, task, data, 0, gain) for gain in (1.0, 2.0))
    for (name, a), b in zip(plain.named_parameters(), doubled.parameters(), strict=True):
        inside = name.startswith("equation.") and a.ndim > 1
        assert torch.equal(b, 2 * a if inside else a), name
    assert plain.dt == doubled.dt


def test_for_a_unit_residual_some_branch_no_longer_than_the_state_grows_at_every_step():
    excess = attack.run.statements["unit_residual"].search(7)
    assert excess.min() > 1.9  # of at most 2: the branches point along the state
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    assert solve(lambda u: u, one, steps=5_000, dt=1e-3, keep=lambda u: None).final.item() > 100


# Budgets


def test_leaders_in_the_order_of_the_paper_are_recognised():
    assert measure.in_phases("AARRS")
    assert not measure.in_phases("ARAS")
    assert not measure.in_phases("RAS")
    assert not measure.in_phases(["A", "R", "−u", "S"])


def test_the_figures_of_a_model_close_and_name_one_leader_a_layer():
    task = measure.task_of(Scale.SMOKE, steps=4)
    both, record = measure.pair("printed", task, 0)
    assert record.step == 4
    found = measure.figures_of(*both["trained"])
    assert found["gap"] < 1e-5  # float32
    leads = [found[f"leads {symbol}"] for symbol in both["trained"][0].symbols]
    assert [sum(column) for column in zip(*leads, strict=True)] == [1] * task.depth
    shares = [found[f"share {symbol}"] for symbol in both["trained"][0].symbols]
    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx([1] * task.depth, abs=1e-4)


# The dictionary


@pytest.mark.parametrize(
    ("matrix", "power"),
    [([[1.0, 0.0], [0.0, -0.1]], None), ([[0.0, 1.0], [0.0, 0.0]], 2)],
    ids=["negative", "nilpotent"],
)
def test_modes_grow_with_the_grid_for_a_spectrum_outside_the_open_half_plane(matrix, power):
    """A negative eigenvalue: faster than any power of the number of tokens. A nilpotent matrix: like its square."""
    D = torch.tensor(matrix, dtype=torch.float64)
    few, more, many = (laws.mode_growth(D, 0.1, tokens=n).max().item() for n in (16, 32, 64))
    if power is None:
        assert many / more > (more / few) ** 2 > 1
    else:
        assert many / more == pytest.approx(2**power, rel=0.05)


def test_the_heat_flow_reaches_every_token_and_its_rate_only_the_neighbours():
    """So reach is not what tells diffusion from attention."""
    u, far = normal(0, "reach", size=(1, 16, 4)), [abs(i - 4) > 1 for i in range(16)]
    assert laws.reach(Diffusion(0.01), u, 4)[far].max() == 0
    assert laws.reach(lambda v: Diffusion(0.01).exact(v, 1.0), u, 4)[far].min() > 1e-6


def test_modes_grow_as_the_matrix_exponential_says():
    D = normal(0, "D", size=(3, 3))
    torch.testing.assert_close(
        laws.mode_growth(D, 0.002), laws.mode_law(D, 0.002), rtol=1e-9, atol=1e-12, check_dtype=False
    )


def test_torch_s_block_without_norms_is_two_residual_branches():
    layer = laws.random_encoder(3, 0).layers[0]
    u = tokens("block")
    middle = u + layer.self_attn(u, u, u)[0]
    expected = middle + layer.linear2(torch.relu(layer.linear1(middle)))
    torch.testing.assert_close(laws.torch_block(layer, u), expected, rtol=0, atol=1e-12)


def test_reach_is_the_size_of_a_block_of_the_jacobian():
    """Diffusion: 2D/Δx² at the token itself, D/Δx² at its neighbours, times √d for the identity in the features."""
    found = laws.reach(Diffusion(0.5), normal(0, "u", size=(1, 5, 4)), 2)
    expected = 0.5 * 25 * 2 * torch.tensor([0, 1, 2, 1, 0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_path_of_the_identity_adds_up_to_the_state():
    """u' = −2u + 1 from u₀ = 1 by two Euler steps of ¼, by hand: ¾, then ⅝."""
    one = torch.ones(1, dtype=torch.float64)
    parts = laws.identity_path(one, [one, one], 0.25)
    assert [part.item() for part in parts] == [0.25, 0.125, 0.25]
    assert sum(parts).item() == 0.625


# The adversary


@pytest.mark.parametrize("name", ["budget", "sweep", "sum_meets_sweep", "identity_path"])
def test_the_exact_statements_withstand_the_search_and_the_wrong_ones_do_not(name):
    few = {"sweep": {"attempts": 2, "steps": 3}, "sum_meets_sweep": {"attempts": 2}}.get(name, {"attempts": 4})
    statement = attack.run.statements[name]
    assert statement.search(7, **few).max() <= 1
    for wrong in statement.neighbours.values():
        assert statement.search(7, **few, **wrong).min() > 1


def test_the_moments_of_the_dial_hold_at_every_width_for_a_fair_coin_only():
    short = replace(attack.run.statements["moments"], batch=3, steps=3)
    assert short.search(7).max() <= 1
    assert short.search(7, chance=0.6).min() > 1


def test_the_dial_law_holds_for_weights_drawn_later_and_not_for_those_that_were_seen():
    assert attack.dial_law(7, operators=2).max() <= 1
    for wrong in attack.run.statements["dial_law"].neighbours.values():
        assert (attack.dial_law(7, operators=2, **wrong) > 1).any()


def test_the_leak_bounds_the_state_and_its_limits_are_needed():
    statement = attack.run.statements["leak_bound"]
    worst = statement.search(7).max()
    assert 0.99 < worst <= 1 + ROUNDING
    for wrong in statement.neighbours.values():
        assert statement.breaks(7, **wrong)
