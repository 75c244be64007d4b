"""Eq 9, LayerNorm as a projection, the corrected term, and the adversary. (P2 eq 9; the summary's "conservation")"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from pdebook.chapters.stabilization import attack as attack_layernorm
from pdebook.chapters.stabilization import normalization
from pdebook.evidence.adversary import ROUNDING, SHRUNK
from pdebook.evidence.experiment import Scale, torch_threads
from pdebook.evidence.trained import TASKS, look
from pdelab import RK4, CorrectedStabilization, LayerNormRate, SpatialStabilization, solve
from pdelab.metrics.jacobian import jacobian
from pdelab.metrics.stability import energy, fluctuation
from pdelab.seeds import normal


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


def spread(u):
    return math.sqrt(2 * fluctuation(u).item())


# P2-eq9: where does it drive the field, and what does it do to the energy?


@pytest.mark.claim("P2-eq9")
@pytest.mark.parametrize("start", [0.3, 1.0, 3.0])
def test_does_eq_9_drive_the_field_to_zero_mean_and_unit_variance(evidence, start):
    u0 = normalization.field_of(number(2.0), number(start), 0)
    end = solve(SpatialStabilization(1.0, 0.01), u0, steps=1000, dt=0.005, integrator=RK4()).final
    mean, variance = end.mean(dim=1).norm().item(), spread(end) ** 2
    unit = abs(variance - 1) < 0.05 or abs(variance / u0.shape[-1] - 1) < 0.05  # summed over features, or one feature
    evidence("printed", holds=mean < 0.05 and unit, fails=abs(mean - 2) < 1e-6 and variance < 1e-6)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_remove_energy_at_the_printed_rate_on_every_field(evidence):
    share = normalization.share_failing(7)
    evidence("printed", holds=share == 0, fails=share > 0.5)


@pytest.mark.claim("P2-eq9")
def test_does_some_smaller_rate_of_dissipation_hold_for_every_field(evidence):
    """For every rate from 1 down to 10⁻⁴, is there a field, not constant, that breaks ∫⟨u, S⟩ ≤ −2·rate·E?"""
    term = SpatialStabilization(1.0, 1e-5)
    broken = []
    for rate in 10.0 ** -np.arange(5):
        u = normalization.field_of(number(0.0), number(2 / rate), 1)
        broken.append(normalization.power(term, u).item() > -2 * rate * energy(u).item())
    evidence("printed", holds=not any(broken), fails=all(broken))


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_with_a_rate_that_depends_on_position_remove_energy(evidence):
    gained = attack_layernorm.attack_uneven(7)
    evidence("printed", holds=bool((gained <= 0).all()), fails=bool((gained > 1e-3).any()))


@pytest.mark.claim("P2-eq9")
@pytest.mark.parametrize("tokens", [2, 32, 512])
def test_does_eq_9_with_the_best_rate_approximate_layernorm_on_short_middling_and_long_tokens(evidence, tokens):
    """The rate γ(x) ≥ 0 is chosen for each token of each field; "approximates" is read as an error below 10 %."""
    u = normal(7, "approximates", tokens, size=(16, tokens, 8))
    near = LayerNormRate(8, eps=1e-3).double().requires_grad_(False)
    errors = [normalization.mismatch(SpatialStabilization(), size * u).median().item() for size in (0.1, 1.0, 10.0)]
    control = [normalization.mismatch(near, size * u).median().item() for size in (0.1, 1.0, 10.0)]
    assert max(control) < 0.1, "LayerNorm with a small ε is the control: it does approximate LayerNorm"
    evidence("printed", holds=max(errors) < 0.1, fails=max(errors) > 0.5)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_with_any_rate_approximate_layernorm_where_all_tokens_agree(evidence):
    u = normal(7, "equal", size=(16, 1, 4)).expand(16, 5, 4)
    error = normalization.mismatch(SpatialStabilization(), u).min().item()
    evidence("printed", holds=error < 0.1, fails=error > 1 - 1e-9)


@pytest.mark.claim("P2-eq9")
def test_is_the_power_of_eq_9_that_of_the_fluctuation_and_its_mean_zero(evidence):
    worst = attack_layernorm.power_error(7).max()
    wrong = attack_layernorm.power_error(7, "printed").max()
    assert wrong > 0.1, "the test must see the difference where it is there"
    evidence("repair", holds=worst < 1e-12, fails=worst > 1e-6)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_come_to_rest_where_all_tokens_agree(evidence):
    u0 = normalization.field_of(number(2.0), number(1.0), 2)
    end = solve(SpatialStabilization(1.0, 0.01), u0, steps=1000, dt=0.005, integrator=RK4()).final
    gap = (end - u0.mean(dim=1, keepdim=True)).abs().max().item()
    evidence("repair", holds=gap < 1e-6, fails=gap > 1e-2)


@pytest.mark.claim("P2-eq9")
def test_does_every_uneven_rate_feed_some_field(evidence):
    worst = attack_layernorm.uneven_error(7).max()
    evidence("repair", holds=worst < 1e-9, fails=worst > 1e-3)


@pytest.mark.claim("P2-eq9")
def test_is_layernorm_idempotent_with_unit_gain_and_no_eps(evidence):
    worst = attack_layernorm.idempotence_error(7).max()
    uneven = attack_layernorm.idempotence_error(7, uneven=0.3).min()
    assert uneven > 1e-3, "with uneven gains it is not, and the test must see that"
    evidence("repair", holds=worst < 1e-12, fails=worst > 1e-6)


# Eq 9 by itself


@pytest.mark.parametrize("eps", [1e-2, 1.0])
@pytest.mark.parametrize("start", [0.2, 3.0])
def test_the_spread_follows_its_closed_form(eps, start):
    u0 = normalization.field_of(number(1.0), number(start), 3)
    run = solve(SpatialStabilization(1.5, eps), u0, steps=400, dt=0.005, integrator=RK4(), keep=spread)
    exact = normalization.spread_at(np.array(run.times), start, 1.5, eps)
    np.testing.assert_allclose(run.states, exact, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("start", "eps"), [(1e-3, 1.0), (1.0, 1e-5), (50.0, 1e-5), (2.0, 0.3)])
def test_the_closed_form_solves_its_implicit_equation_at_every_time(start, eps):
    def level(sigma):
        return np.sqrt(sigma**2 + eps) - math.sqrt(eps) * np.arcsinh(math.sqrt(eps) / sigma)

    t = np.linspace(0, start + 20 * math.sqrt(eps), 50)
    sigma = normalization.spread_at(t, start, 1.0, eps)
    np.testing.assert_allclose(level(sigma), level(start) - t, rtol=1e-9, atol=1e-9 * start)


def test_without_eps_the_tokens_meet_in_finite_time():
    u0 = normalization.field_of(number(1.0), number(1.0), 4)
    run = solve(SpatialStabilization(2.0, 0.0), u0, steps=128, dt=2.0**-8, keep=spread)  # to t = ½ = σ₀/γ
    np.testing.assert_allclose(run.states, 1 - 2 * np.array(run.times), atol=1e-12)


def test_late_the_spread_falls_at_the_rate_gamma_over_root_eps():
    late = normalization.spread_at(np.array([4.0, 5.0]), 1.0, 1.0, 0.04)
    assert math.log(late[0] / late[1]) == pytest.approx(1 / 0.2, rel=1e-6)


def test_the_share_of_fields_that_break_the_printed_rate_is_that_of_the_condition():
    law = normalization.share_failing_law()
    assert normalization.share_failing(5, 4000) == pytest.approx(law, abs=4 * math.sqrt(law * (1 - law) / 4000))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_condition_for_the_printed_rate_agrees_with_the_field(eps):
    mean, sigma = (normalization.log_uniform(6, name, 500) for name in "ab")
    u = normalization.field_of(mean, sigma, 6)
    power = normalization.power(SpatialStabilization(1.0, eps), u)
    direct = power <= -u.square().sum(dim=-1).mean(dim=1)
    assert (direct == normalization.dissipates_as_printed(mean, sigma, eps)).all()


@pytest.mark.parametrize(("step", "decays"), [(0.9, True), (1.9, True), (2.1, False), (4.0, False)])
def test_euler_comes_to_rest_below_two_root_eps_and_flips_for_ever_above(step, decays):
    eps = 0.01
    u0 = normalization.field_of(number(0.0), number(1.0), 5)
    run = solve(SpatialStabilization(1.0, eps), u0, steps=3000, dt=step * math.sqrt(eps))
    if decays:
        assert spread(run.final) < 1e-6
    else:
        cycle = math.sqrt(eps) * math.sqrt((step / 2) ** 2 - 1)
        assert spread(run.final) == pytest.approx(cycle, rel=1e-6)
        torch.testing.assert_close(run.states[-1], -run.states[-2], rtol=0, atol=1e-6)


def test_without_eps_euler_stops_where_a_step_lands_on_zero_and_else_alternates():
    for start, last in ((3.0, [0.0, 0.0]), (3.25, [0.25, 0.75])):
        u0 = normalization.field_of(number(0.0), number(start), 5, tokens=2, width=1)
        run = solve(SpatialStabilization(1.0, 0.0), u0.sign() * start, steps=7, dt=1.0, keep=spread)
        assert sorted(run.states[-2:]) == pytest.approx(last, abs=1e-12)


# LayerNorm


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_layer_norm_of_the_attack_is_that_of_torch(eps):
    z, gain, bias = (normal(0, k, size=n) for k, n in (("z", (7, 5)), ("g", (5,)), ("b", (5,))))
    want = nn.functional.layer_norm(z, (5,), gain, bias, eps)
    torch.testing.assert_close(attack_layernorm.layer_norm(z, eps, gain, bias), want)


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_the_jacobian_of_layernorm_has_rank_d_minus_2_at_eps_zero_and_norm_one_over_the_deviation(eps):
    z = normal(1, "z", size=(1, 1, 6))
    found = jacobian(lambda u: nn.functional.layer_norm(u, (6,), eps=eps), z).reshape(6, 6)
    torch.testing.assert_close(found, attack_layernorm.jacobian_formula(z.reshape(6), eps))
    values = torch.linalg.svdvals(found)
    variance = z.var(unbiased=False).item()
    along = eps / (variance + eps) ** 1.5
    want = [*(4 * [1 / math.sqrt(variance + eps)]), along, 0.0]
    torch.testing.assert_close(values, number(*want), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_the_mismatch_is_the_least_error_over_rates_at_each_token(size):
    """Against a search over a grid of rates, one token at a time; and zero for the rate of LayerNorm itself."""
    u = size * normal(4, "u", size=(1, 5, 3))
    want = nn.functional.layer_norm(u, (3,), eps=0.0) - u
    rates = torch.linspace(0, 200, 20001).double().reshape(-1, 1, 1)
    off = (rates * SpatialStabilization()(u) - want).square().sum(dim=-1).amin(dim=0).sum().sqrt() / want.norm()
    assert normalization.mismatch(SpatialStabilization(), u).item() == pytest.approx(off.item(), rel=1e-3)
    own = LayerNormRate(3, 0.5, eps=0.0).double().requires_grad_(False)
    assert normalization.mismatch(own, u).item() < 1e-9


@pytest.mark.parametrize("eps", [0.1, 0.5])
def test_repeated_layernorm_has_inverse_variances_in_a_line(eps):
    """1/v ← 1 + ε/v, so 1/v_n = (1 − εⁿ)/(1 − ε) + εⁿ/v_0."""
    z = normal(2, "z", size=(1, 5))
    first, seen = z.var(unbiased=False).item(), []
    for _ in range(6):
        z = attack_layernorm.layer_norm(z, eps)
        seen.append(1 / z.var(unbiased=False).item())
    n = np.arange(1, 7)
    np.testing.assert_allclose(seen, (1 - eps**n) / (1 - eps) + eps**n / first, rtol=1e-10)


def test_the_flow_of_layernorm_is_a_straight_line():
    u0 = 3 * normal(3, "u", size=(2, 4, 5)) + 1
    term = LayerNormRate(5, 2.0, eps=0.0).double().requires_grad_(False)
    end = solve(term, u0, steps=100, dt=0.005, integrator=RK4()).final
    torch.testing.assert_close(end, normalization.layer_norm_flow(u0, 0.5, 2.0), rtol=1e-9, atol=1e-9)


# The corrected term


@pytest.mark.parametrize(("strength", "growth"), [(2.0, 0.5), (1.0, 1.0), (1.0, 2.0)])
def test_the_bound_of_the_corrected_term_is_reached_by_linear_growth(strength, growth):
    """F = λu on a field of mean zero, ε = 0: ‖u‖' = (λ − γ)‖u‖ + γ exactly."""
    u0 = normalization.field_of(number(0.0), number(0.7), 8)
    term = CorrectedStabilization(strength, 0.0)
    run = solve(lambda u: growth * u + term(u), u0, steps=400, dt=0.005, integrator=RK4(), keep=spread)
    bound = normalization.size_bound(np.array(run.times), 0.7, strength, growth)
    np.testing.assert_allclose(run.states, bound, rtol=1e-8)


def test_the_corrected_term_drives_to_zero_mean_and_to_variance_one_in_all():
    u0 = normalization.field_of(number(2.0), number(3.0), 9)
    end = solve(CorrectedStabilization(1.0, 0.0), u0, steps=2000, dt=0.01, integrator=RK4()).final
    assert end.mean(dim=1).norm().item() < 1e-6
    assert spread(end) == pytest.approx(1, abs=1e-6)  # summed over the features: one third in each of three


# Blocks


def test_the_bound_of_a_pre_norm_branch_holds_for_states_of_any_size():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    model = normalization.build("pre", task, data, 0)
    u = normal(0, "u", size=(16, 8, task.width)).float()
    for term in (t for equation in model.equation.equations for t in equation.terms):
        for size in (1e-2, 1.0, 1e3):
            longest = term(size * u).norm(dim=-1).max().item()
            assert 0 < longest <= normalization.branch_bound(term)


def test_norms_of_untrained_blocks_set_the_energy_to_half_the_width():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    for kind in ("post", "pre"):
        model = normalization.build(kind, task, data, 0)
        run = look(model, data.test.take(slice(0, 20)))
        pairs = normalization.at_norms(model, run.states[0])
        seen = normalization.norm_figures(pairs)
        assert seen["after"] == pytest.approx([task.width / 2] * 2 * task.depth, rel=1e-4)
        assert len(seen["raised"]) == 2 * task.depth
        if kind == "post":
            torch.testing.assert_close(pairs[-1][1], run.final)


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_evenly_spread_directions_leave_a_norm_with_the_energy_that_its_gains_and_biases_set(kind):
    """½E|g ⊙ x̂ + b|² = ½(|g|² + |b|²), for gains and biases drawn at random, within four standard errors."""
    task = TASKS["images"][Scale.SMOKE]
    model = normalization.build(kind, task, task.load(0), 0)
    norms = [term.norm for equation in model.equation.equations for term in equation.terms if hasattr(term, "norm")]
    z = normal(1, "directions", size=(5000, task.width)).float()
    for k, norm in enumerate(norms):
        with torch.no_grad():
            norm.weight.copy_(1 + normal(k, "g", size=(task.width,)))
            norm.bias.copy_(normal(k, "b", size=(task.width,)))
            energies = norm(z).square().sum(dim=-1) / 2
        error = 4 * energies.std().item() / math.sqrt(len(z))
        assert normalization.set_energies(model)[k] == pytest.approx(energies.mean().item(), abs=error)


def test_eq_9_in_the_place_of_layernorm_pulls_tokens_together():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    model = normalization.build("eq9", task, data, 0)
    states = look(model, data.test.take(slice(0, 20))).states
    assert fluctuation(states[-1]) < fluctuation(states[0])


def test_models_of_two_kinds_share_no_weight():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    post, none = (normalization.build(kind, task, data, 0) for kind in ("post", "none"))
    assert not torch.equal(post.embed.places, none.embed.places)


# The adversary


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("place", attack_layernorm.PLACES)
def test_layernorm_neither_conserves_nor_only_removes_energy(place, plain):
    drawn, best = attack_layernorm.attack_energy(7, place, plain, batch=16, steps=20)
    assert (drawn.abs() > ROUNDING).all()
    assert best.max() > 0.1


def test_the_count_of_changes_of_energy_finds_none_where_there_are_none():
    """An orthogonal map keeps E, a contraction never raises it, and it does change it."""
    kept = torch.cat(attack_layernorm.attack_energy(7, "orthogonal", batch=16, steps=20))
    assert kept.abs().max() < ROUNDING
    drawn, best = attack_layernorm.attack_energy(7, "contraction", batch=16, steps=20)
    assert best.max() < 0
    assert (drawn.abs() > ROUNDING).all()


def test_the_search_finds_growing_spreads_once_the_step_exceeds_two_root_eps():
    assert attack_layernorm.attack_step(7, limit=2.2, batch=64).max() > 1.01


@pytest.mark.parametrize("attack", ["length", "nearest", "lipschitz", "pre_norm", "step"])
def test_a_bound_withstands_the_attack_and_a_smaller_one_does_not(attack):
    found = getattr(attack_layernorm, f"attack_{attack}")(7, batch=32)
    assert SHRUNK < found.max() <= 1 + ROUNDING


def test_the_size_bound_withstands_the_attack_for_linear_maps_and_for_attention():
    linear, with_attention = attack_layernorm.attack_bounded(7, batch=16, steps=80)
    assert SHRUNK < linear.max() <= 1 + ROUNDING
    assert with_attention.max() <= 1 + ROUNDING


def test_the_size_bound_withstands_the_attack_for_flows_that_turn():
    found = attack_layernorm.attack_bounded_flow(7, batch=16, steps=60)
    assert SHRUNK < found.max() <= 1 + ROUNDING


@pytest.mark.parametrize("law", attack_layernorm.LAWS)
def test_a_law_holds_to_rounding(law):
    assert attack_layernorm.LAWS[law](7).max() < ROUNDING


@pytest.mark.parametrize("law", attack_layernorm.WRONG_LAWS)
def test_a_wrong_law_is_found_out(law):
    assert (attack_layernorm.WRONG_LAWS[law](7) > ROUNDING).any()
