"""Eq 9, LayerNorm as a projection, the corrected term, and the adversary. (P2 eq 9; the summary's "conservation")"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pdebook.chapters.stabilization import attack, laws, measure
from pdebook.evidence.adversary import ROUNDING
from pdebook.evidence.experiment import Scale
from pdebook.evidence.trained import TASKS, look
from pdelab import RK4, CorrectedStabilization, LayerNormRate, SpatialStabilization, solve
from pdelab.formulas import attention_weights, layer_norm
from pdelab.metrics.jacobian import jacobian
from pdelab.metrics.stability import fluctuation
from pdelab.seeds import normal


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


def spread(u):
    return math.sqrt(2 * fluctuation(u).item())


# Eq 9 by itself


@pytest.mark.parametrize("eps", [1e-2, 1.0])
@pytest.mark.parametrize("start", [0.2, 3.0])
def test_the_spread_follows_its_closed_form(eps, start):
    u0 = laws.field_of(number(1.0), number(start), 3)
    run = solve(SpatialStabilization(1.5, eps), u0, steps=400, dt=0.005, integrator=RK4(), keep=spread)
    exact = laws.spread_at(np.array(run.times), start, 1.5, eps)
    np.testing.assert_allclose(run.states, exact, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("start", "eps"), [(1e-3, 1.0), (1.0, 1e-5), (50.0, 1e-5), (2.0, 0.3)])
def test_the_closed_form_solves_its_implicit_equation_at_every_time(start, eps):
    def level(sigma):
        return np.sqrt(sigma**2 + eps) - math.sqrt(eps) * np.arcsinh(math.sqrt(eps) / sigma)

    t = np.linspace(0, start + 20 * math.sqrt(eps), 50)
    sigma = laws.spread_at(t, start, 1.0, eps)
    np.testing.assert_allclose(level(sigma), level(start) - t, rtol=1e-9, atol=1e-9 * start)


def test_without_eps_the_tokens_meet_in_finite_time():
    u0 = laws.field_of(number(1.0), number(1.0), 4)
    run = solve(SpatialStabilization(2.0, 0.0), u0, steps=128, dt=2.0**-8, keep=spread)  # to t = ½ = σ₀/γ
    np.testing.assert_allclose(run.states, 1 - 2 * np.array(run.times), atol=1e-12)


def test_late_the_spread_falls_at_the_rate_gamma_over_root_eps():
    late = laws.spread_at(np.array([4.0, 5.0]), 1.0, 1.0, 0.04)
    assert math.log(late[0] / late[1]) == pytest.approx(1 / 0.2, rel=1e-6)


def test_the_share_of_fields_that_break_the_printed_rate_is_that_of_the_condition():
    law = laws.share_failing_law()
    assert laws.share_failing(5, 4000) == pytest.approx(law, abs=4 * math.sqrt(law * (1 - law) / 4000))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_condition_for_the_printed_rate_agrees_with_the_field(eps):
    mean, sigma = (laws.log_uniform(6, name, 500) for name in "ab")
    u = laws.field_of(mean, sigma, 6)
    power = laws.power(SpatialStabilization(1.0, eps), u)
    direct = power <= -u.square().sum(dim=-1).mean(dim=1)
    assert (direct == laws.dissipates_as_printed(mean, sigma, eps)).all()


@pytest.mark.parametrize(("step", "decays"), [(0.9, True), (1.9, True), (2.1, False), (4.0, False)])
def test_euler_comes_to_rest_below_two_root_eps_and_flips_for_ever_above(step, decays):
    eps = 0.01
    u0 = laws.field_of(number(0.0), number(1.0), 5)
    run = solve(SpatialStabilization(1.0, eps), u0, steps=3000, dt=step * math.sqrt(eps))
    if decays:
        assert spread(run.final) < 1e-6
    else:
        cycle = math.sqrt(eps) * math.sqrt((step / 2) ** 2 - 1)
        assert spread(run.final) == pytest.approx(cycle, rel=1e-6)
        torch.testing.assert_close(run.states[-1], -run.states[-2], rtol=0, atol=1e-6)


def test_without_eps_euler_stops_where_a_step_lands_on_zero_and_else_alternates():
    for start, last in ((3.0, [0.0, 0.0]), (3.25, [0.25, 0.75])):
        u0 = laws.field_of(number(0.0), number(start), 5, tokens=2, width=1)
        run = solve(SpatialStabilization(1.0, 0.0), u0.sign() * start, steps=7, dt=1.0, keep=spread)
        assert sorted(run.states[-2:]) == pytest.approx(last, abs=1e-12)


# LayerNorm


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_the_jacobian_of_layernorm_has_rank_d_minus_2_at_eps_zero_and_norm_one_over_the_deviation(eps):
    z = normal(1, "z", size=(1, 1, 6))
    found = jacobian(lambda u: nn.functional.layer_norm(u, (6,), eps=eps), z).reshape(6, 6)
    torch.testing.assert_close(found, laws.jacobian_formula(z.reshape(6), eps))
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
    assert laws.mismatch(SpatialStabilization(), u).item() == pytest.approx(off.item(), rel=1e-3)
    own = LayerNormRate(3, 0.5, eps=0.0).double().requires_grad_(False)
    assert laws.mismatch(own, u).item() < 1e-9


@pytest.mark.parametrize("eps", [0.1, 0.5])
def test_repeated_layernorm_has_inverse_variances_in_a_line(eps):
    """1/v ← 1 + ε/v, so 1/v_n = (1 − εⁿ)/(1 − ε) + εⁿ/v_0."""
    z = normal(2, "z", size=(1, 5))
    first, seen = z.var(unbiased=False).item(), []
    for _ in range(6):
        z = layer_norm(z, eps)
        seen.append(1 / z.var(unbiased=False).item())
    n = np.arange(1, 7)
    np.testing.assert_allclose(seen, (1 - eps**n) / (1 - eps) + eps**n / first, rtol=1e-10)


def test_the_flow_of_layernorm_is_a_straight_line():
    u0 = 3 * normal(3, "u", size=(2, 4, 5)) + 1
    term = LayerNormRate(5, 2.0, eps=0.0).double().requires_grad_(False)
    end = solve(term, u0, steps=100, dt=0.005, integrator=RK4()).final
    torch.testing.assert_close(end, laws.layer_norm_flow(u0, 0.5, 2.0), rtol=1e-9, atol=1e-9)


# The corrected term


@pytest.mark.parametrize(("strength", "growth"), [(2.0, 0.5), (1.0, 1.0), (1.0, 2.0)])
def test_the_bound_of_the_corrected_term_is_reached_by_linear_growth(strength, growth):
    """F = λu on a field of mean zero, ε = 0: ‖u‖' = (λ − γ)‖u‖ + γ exactly."""
    u0 = laws.field_of(number(0.0), number(0.7), 8)
    term = CorrectedStabilization(strength, 0.0)
    run = solve(lambda u: growth * u + term(u), u0, steps=400, dt=0.005, integrator=RK4(), keep=spread)
    bound = laws.size_bound(np.array(run.times), 0.7, strength, growth)
    np.testing.assert_allclose(run.states, bound, rtol=1e-8)


def test_the_corrected_term_drives_to_zero_mean_and_to_variance_one_in_all():
    u0 = laws.field_of(number(2.0), number(3.0), 9)
    end = solve(CorrectedStabilization(1.0, 0.0), u0, steps=2000, dt=0.01, integrator=RK4()).final
    assert end.mean(dim=1).norm().item() < 1e-6
    assert spread(end) == pytest.approx(1, abs=1e-6)  # summed over the features: one third in each of three


# Blocks


def test_the_bound_of_a_pre_norm_branch_holds_for_states_of_any_size():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    model = measure.build("pre", task, data, 0)
    u = normal(0, "u", size=(16, 8, task.width)).float()
    for term in (t for equation in model.equation.equations for t in equation.terms):
        for size in (1e-2, 1.0, 1e3):
            longest = term(size * u).norm(dim=-1).max().item()
            assert 0 < longest <= laws.branch_bound(term)


def test_norms_of_untrained_blocks_set_the_energy_to_half_the_width():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    for kind in ("post", "pre"):
        model = measure.build(kind, task, data, 0)
        run = look(model, data.test.take(slice(0, 20)))
        pairs = measure.at_norms(model, run.states[0])
        seen = measure.norm_figures(pairs)
        assert seen["after"] == pytest.approx([task.width / 2] * 2 * task.depth, rel=1e-4)
        assert len(seen["raised"]) == 2 * task.depth
        if kind == "post":
            torch.testing.assert_close(pairs[-1][1], run.final)


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_evenly_spread_directions_leave_a_norm_with_the_energy_that_its_gains_and_biases_set(kind):
    """½E|g ⊙ x̂ + b|² = ½(|g|² + |b|²), for gains and biases drawn at random, within four standard errors."""
    task = TASKS["images"][Scale.SMOKE]
    model = measure.build(kind, task, task.load(0), 0)
    norms = [term.norm for equation in model.equation.equations for term in equation.terms if hasattr(term, "norm")]
    z = normal(1, "directions", size=(5000, task.width)).float()
    for k, norm in enumerate(norms):
        with torch.no_grad():
            norm.weight.copy_(1 + normal(k, "g", size=(task.width,)))
            norm.bias.copy_(normal(k, "b", size=(task.width,)))
            energies = norm(z).square().sum(dim=-1) / 2
        error = 4 * energies.std().item() / math.sqrt(len(z))
        assert measure.set_energies(model)[k] == pytest.approx(energies.mean().item(), abs=error)


def test_eq_9_in_the_place_of_layernorm_pulls_tokens_together():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    model = measure.build("eq9", task, data, 0)
    states = look(model, data.test.take(slice(0, 20))).states
    assert fluctuation(states[-1]) < fluctuation(states[0])


def test_models_of_two_kinds_share_no_weight():
    task = TASKS["images"][Scale.SMOKE]
    data = task.load(0)
    post, none = (measure.build(kind, task, data, 0) for kind in ("post", "none"))
    assert not torch.equal(post.embed.places, none.embed.places)


# The adversary


@pytest.mark.parametrize("name", [name for name, one in attack.run.statements.items() if not one.printed])
def test_a_statement_withstands_the_attack_and_none_of_its_false_neighbours_does(name):
    one = attack.run.statements[name]
    counted, broken = replace(one, batch=min(one.batch, 32)).attempt(7)
    assert counted["violations"] == 0
    assert all(broken.values()), broken


@pytest.mark.parametrize("name", [name for name, one in attack.run.statements.items() if one.printed])
def test_a_printed_statement_falls(name):
    assert (attack.run.statements[name].search(7) > 1 + ROUNDING).any()


def test_layernorm_changes_every_energy_and_adds_to_some():
    for name, one in attack.ENERGY.items():
        assert (one.search(7) > 1).all(), name
    counts, _ = attack.raised(7)
    for name in attack.ENERGY:
        assert 0 < counts[f"raised/{name}/as drawn"] < counts[f"raised/{name}/climbed"] <= 64


def test_the_starts_of_the_attack_on_attention_hold_tokens_that_all_attend_to_one():
    """Then ‖Att(u)‖ is near √N‖V‖‖u‖ for some V, where the constant √N of the bound is sharp."""
    _, start = next(attack.run.statements["bounded_attention"].searches(7))
    weights = attention_weights(start["u"], start["A"])
    assert (weights[::2, :, 0] > 0.9).double().mean() > 0.5
