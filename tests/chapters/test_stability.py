"""The stability theorem and P1's scheme against exact solutions, second methods, and the adversary."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pdebook.chapters.scheme import attack as attack_scheme
from pdebook.chapters.scheme import laws as scheme
from pdebook.chapters.stability import attack as attack_stability
from pdebook.chapters.stability import laws as maps
from pdebook.chapters.stability import starts
from pdebook.evidence.adversary import ROUNDING, ascend
from pdebook.evidence.systems import one_step, push
from pdelab import RK4, Diffusion, Diverged, Euler, Interaction, MasterEquation, Reaction, SpatialStabilization, solve
from pdelab.field import token_mean
from pdelab.formulas import averaging_growth, centred, centres, diameter, per_example, variance_share
from pdelab.metrics.jacobian import lipschitz
from pdelab.metrics.stability import growth_towards_mean, spread
from pdelab.seeds import normal, stream
from pdelab.terms.stabilization import normalised

# Exact laws


@pytest.mark.parametrize("growth", [-1.0, 0.0, 1.0])
def test_the_spread_dies_at_the_predicted_time(growth):
    """RK4 on the field, ε = 0, against σ' = λσ − γ, up to 0.99 of the time at which σ is 0."""
    end = maps.extinction_time(1.5, 2.0, growth)
    u0 = maps.fields(torch.tensor([1.5], dtype=torch.float64), 1.0, 5, 3, 0)
    course = maps.follow(maps.stabilised(lambda u: growth * u, 2.0, 0.0), u0, T=0.99 * end, steps=200)
    law = maps.spread_without_eps(course.t, 1.5, 2.0, growth)
    np.testing.assert_allclose(course.spread[:, 0], law, rtol=1e-6)
    np.testing.assert_allclose(course.mean[:, 0], np.exp(growth * course.t), rtol=1e-6)
    np.testing.assert_allclose(course.energy, (course.mean**2 + course.spread**2) / 2)
    assert maps.spread_without_eps(np.array([end]), 1.5, 2.0, growth)[0] == 0


def test_outside_the_basin_the_spread_follows_the_growing_solution():
    u0 = maps.fields(torch.tensor([2.1], dtype=torch.float64), 0.0, 4, 2, 0)
    course = maps.follow(maps.stabilised(lambda u: u, 2.0, 0.0), u0, T=3.0, steps=300)
    assert course.spread[-1, 0] == pytest.approx(2 + 0.1 * math.exp(3), rel=1e-6)
    assert maps.extinction_time(2.1, 2.0, 1.0) == math.inf


def test_fields_have_the_spread_and_the_mean_asked_for():
    u = maps.fields(
        torch.tensor([0.5, 2.0], dtype=torch.float64), torch.tensor([3.0, 0.1], dtype=torch.float64), 7, 3, 1
    )
    np.testing.assert_allclose(spread(u), [0.5, 2.0], rtol=1e-12)
    np.testing.assert_allclose(token_mean(u).flatten(1).norm(dim=1), [3.0, 0.1], rtol=1e-12)


@pytest.mark.parametrize("growth", [-0.5, 0.0, 0.5])
def test_the_floor_is_where_a_pushed_field_comes_to_rest(growth):
    """F = λu + g(x), g of size φ: a long run from zero spread ends at the root."""
    g = maps.fields(torch.tensor([0.3], dtype=torch.float64), 0.0, 4, 1, 0)
    course = maps.follow(maps.stabilised(lambda u: growth * u + g, 1.0, 0.04), 1e-6 * g, T=20.0, steps=800)
    assert course.spread[-1, 0] == pytest.approx(maps.floor(0.3, 1.0, growth, 0.04), rel=1e-6)


def test_there_is_no_floor_under_a_push_that_is_too_strong():
    assert maps.floor(1.5, 1.0, 0.5, 0.04) == math.inf
    assert maps.floor(1.0, 1.0, 0.0, 0.04) == math.inf
    assert maps.floor(0.0, 1.0, 0.0, 0.04) == 0


def test_the_scalar_map_is_the_euler_step_of_a_field():
    u = maps.fields(torch.tensor([0.7], dtype=torch.float64), 2.0, 5, 2, 0)
    rate = maps.stabilised(lambda v: 0.5 * (v - token_mean(v)), 2.0, 0.1)
    course = maps.follow(rate, u, T=1.5, steps=5, integrator=Euler())
    a = np.array([0.7])
    for n in range(1, 6):
        a = maps.euler_map(a, 0.3, 2.0, 0.5, 0.1)
        assert abs(a[0]) == pytest.approx(course.spread[n, 0], rel=1e-12)


@pytest.mark.parametrize(("gamma", "attracts"), [(2.0, True), (3.0, False)])
def test_the_two_cycle_is_a_cycle_and_its_multiplier_is_the_slope_of_the_map(gamma, attracts):
    size, multiplier = maps.two_cycle(1.0, gamma, 1.0, 0.25)
    near = np.array([size - 1e-6, size, size + 1e-6])
    after = -maps.euler_map(near, 1.0, gamma, 1.0, 0.25)
    assert after[1] == pytest.approx(size, rel=1e-12)
    assert (after[2] - after[0]) / 2e-6 == pytest.approx(multiplier, rel=1e-5)
    assert (abs(multiplier) < 1) == attracts


@pytest.mark.parametrize("growth", [-2.0, -3.0])
def test_a_step_that_turns_the_tokens_over_by_itself_has_no_cycle(growth):
    """Δtλ ≤ −2: a⁺ = −a has no solution but 0, since (2 + Δtλ)√(a² + ε) = Δtγ has none."""
    assert maps.two_cycle(1.0, 2.0, growth, 0.25) == (0.0, 1.0)


def test_an_error_that_does_not_shrink_is_no_order_one(monkeypatch):
    for name in ("time_errors", "space_errors"):
        monkeypatch.setattr(scheme, name, lambda one, sizes: [1.0, 1.0])
    monkeypatch.setattr(scheme, "attention_errors", lambda one, sizes: ([1.0, 1.0], None))
    assert all((attack_scheme.order(0, of=of, fields=1) > 1).all() for of in attack_scheme.ORDERS)


def test_a_cycle_exists_exactly_beyond_the_step_limit():
    for dt in np.linspace(0.1, 2, 30):
        exists = maps.two_cycle(dt, 1.0, -0.5, 0.25)[0] > 0
        assert exists == (dt * (1.0 / 0.5 + 0.5) > 2)


def test_from_below_the_floor_the_spread_rises_to_it():
    """σ₀ = 0 lies below the floor of φ = 0.3, so the inequality must be asked for above σ_*, not only up to σ₀."""
    g = maps.fields(torch.tensor([0.3], dtype=torch.float64), 0.0, 4, 1, 0)
    course = maps.follow(maps.stabilised(lambda u: 0 * u + g, 1.0, 0.04), 0 * g, T=30.0, steps=1200)
    assert course.spread[-1, 0] == pytest.approx(maps.floor(0.3, 1.0, 0.0, 0.04), rel=1e-6)
    assert course.spread[-1, 0] == pytest.approx(0.3 * 0.2 / math.sqrt(1 - 0.09), rel=1e-6)


# Constants of real blocks


@pytest.mark.parametrize(("tokens", "features"), [(2, 1), (3, 1), (3, 2), (4, 1), (7, 1), (7, 2), (8, 1)])
def test_values_push_from_the_mean_by_what_averages_may_do(tokens, features):
    """sup ⟨w, PVw⟩/σ² over rows p ≥ 0 of sum 1 and turns V, by ascent from random starts; 1 % less is too little."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(64, tokens, features, generator=generator, dtype=torch.float64)
    P = torch.randn(64, tokens, tokens, generator=generator, dtype=torch.float64)
    angle = torch.randn(64, generator=generator, dtype=torch.float64)

    def gain(w, P, angle):
        w = centred(w)
        ahead, aside = (per_example(x) for x in (angle.cos(), angle.sin()))
        turned = ahead * w + aside * torch.stack([-w[..., 1], w[..., 0]], dim=-1) if features == 2 else w
        return (w * (P.softmax(dim=-1) @ turned)).sum(dim=(1, 2)) / w.square().sum(dim=(1, 2))

    best = ascend(gain, {"w": w, "P": P, "angle": angle}, steps=500, rate=0.1).max().item()
    law = averaging_growth(tokens)
    assert 0.99 * law < best <= law


@pytest.mark.parametrize("tokens", [2, 3, 4, 5])
def test_no_choice_of_leaders_and_no_rotation_does_more_than_averages_may(tokens):
    """All N^N maps, tokens in the plane as complex numbers, V a turn by one of 24 angles: the largest eigenvalue."""
    chosen = torch.cartesian_prod(*tokens * [torch.arange(tokens)]).view(-1, tokens)
    C = torch.eye(tokens, dtype=torch.complex128) - 1 / tokens
    T = C @ torch.nn.functional.one_hot(chosen, tokens).to(C) @ C
    turns = torch.polar(torch.ones(24).double(), 2 * math.pi * torch.arange(24).double() / 24)
    best = max(torch.linalg.eigvalsh((t * T + (t * T).mH) / 2)[:, -1].max().item() for t in turns)
    assert best == pytest.approx(averaging_growth(tokens), rel=1e-12)


@pytest.mark.parametrize("make", [maps.block, maps.gradient_block])
def test_the_constants_of_a_block_bound_what_it_does(make):
    equation = make(3)
    width = equation.terms[0].width
    u = maps.fields(torch.logspace(-1, 1, 64).double(), torch.logspace(1, -1, 64).double(), 6, width, 2)
    bound = maps.constants(equation, 6)
    assert (growth_towards_mean(equation, u) <= bound.growth).all()
    assert (lipschitz(equation.terms[1], u, steps=20) <= bound.feedforward + 1).all()
    moved = spread(equation(u) + 2 * u) / spread(u)
    assert (moved <= bound.lipschitz).all()


def test_attention_minus_attention_at_the_mean_is_linear_in_the_fluctuation():
    """Att(u) − Att(μ) = P(u)(u − μ)Vᵀ, without a derivative of softmax; biases cancel."""
    attention = maps.block(1).terms[0]
    u = maps.fields(torch.tensor([2.0], dtype=torch.float64), 5.0, 6, 8, 0)
    mean = token_mean(u).expand_as(u)
    exact = torch.zeros_like(u)
    values, size = attention.qkv.weight[16:], 4
    for head in range(2):
        V = attention.out.weight[:, head * size : (head + 1) * size] @ values[head * size : (head + 1) * size]
        exact = exact + attention.weights(u)[:, head] @ (u - mean) @ V.T
    torch.testing.assert_close(attention(u) - attention(mean) + (u - mean), exact, rtol=1e-10, atol=1e-10)


# The basin in the diameter


@pytest.mark.parametrize("copies", [1, 4])
def test_the_triangle_meets_the_edge_of_the_basin_however_often_it_is_copied(copies):
    """Sharp attention with V = 1: Λ = 1 and χ = 1/3, so the edge from δ₀ = 2 is γ = √(4/3 + ε)."""
    shape, edge = maps.triangle(copies), math.sqrt(4 / 3 + 0.04)
    assert diameter(shape).item() == pytest.approx(1, rel=1e-12)
    found = maps.least_pull(maps.looking(16.0), shape, 2.0, [0.98 * edge, 1.02 * edge], eps=0.04)
    assert found == 1.02 * edge
    assert maps.least_pull(maps.looking(16.0), shape, 2.0, [0.5 * edge], eps=0.04) == math.inf


def test_inside_the_basin_the_diameter_of_a_cloud_stays_below_its_bound():
    shape, starts_at, gamma = maps.cloud(9, seed=3), 1.5, 1.2
    course = maps.diameters(maps.looking(16.0), shape, [gamma], [starts_at], eps=0.04, T=3.0, steps=120)[:, 0]
    rate = gamma / math.sqrt(starts_at**2 / 3 + 0.04) - 1
    assert rate > 0
    assert (course <= starts_at * np.exp(-rate * np.linspace(0, 3, 121)) * (1 + 1e-9)).all()


# Phase diagrams


def test_a_course_that_diverges_is_refused_and_not_cut_short():
    u0 = maps.fields(torch.tensor([1.0, 2.0]).double(), 1.0, 4, 2, 0)
    with pytest.raises(Diverged, match="not finite"):
        maps.follow(lambda u: u**3 * 1e3, u0, T=1.0, steps=50)


def test_the_basin_map_turns_at_the_edge():
    sigmas, gammas = [0.5, 1.5, 2.5], [0.4, 1.0, 2.0]
    grown, energy = maps.basin_map(lambda u: u, sigmas, gammas, eps=0.25, T=8.0, steps=400)
    edge = maps.basin_edge(np.array(gammas), 1.0, 0.25)[:, None]
    assert ((grown < 1) == (np.array(sigmas) < edge)).all()
    assert (energy > 1).all()  # the mean escapes everywhere


def test_the_step_map_turns_at_the_step_limit():
    dts, gammas = np.array([0.1, 0.3, 0.5, 0.7]), np.array([0.8, 1.2, 1.6])
    stays = maps.step_map(1.0, dts, gammas, eps=0.04, sigma0=0.5, steps=200)
    limit = dts[None, :] * (gammas[:, None] / 0.2 - 1) < 2
    assert ((stays < 1e-3) == limit).all()


# The adversary

ATTACKS = {
    "stability": attack_stability.run,
    "diameter": attack_stability.run_diameter,
    "scheme": attack_scheme.run,
    "error": attack_scheme.run_error,
}
SEARCHED = [(name, key) for name, run in ATTACKS.items() for key, one in run.statements.items() if one.vary]
FLOWS = (  # each score is a flow, so that a long search is slow
    *("decay", "decay_leaking", "decay_diffusing", "extinction", "mean_zero", "scaled_pull", "bounded"),
    *("diameter", "diameter_contracting", "diameter_extinction", "token_bounded", "absorbing_bound", "barrier"),
    *("flow", "flow_periodic", "flow_contracting"),
)


@pytest.mark.parametrize(("attack", "name"), SEARCHED)
def test_a_short_search_comes_near_every_bound_and_breaks_none(attack, name):
    steps = 5 if name in FLOWS else 60
    one = replace(ATTACKS[attack].statements[name], batch=12, steps=steps)
    found = one.search(7)
    assert (0.7 if name in FLOWS else 0.9) < found.max() <= 1 + ROUNDING


@pytest.mark.parametrize(("attack", "name"), [pair for pair in SEARCHED if pair[1] not in FLOWS])
def test_every_false_neighbour_of_a_bound_is_broken(attack, name):
    one = ATTACKS[attack].statements[name]
    assert all(one.breaks(7, **change) for change in one.neighbours.values())


@pytest.mark.parametrize("name", ["basin", "chatter", "cycle"])
def test_the_laws_for_linear_pushes_withstand_the_attack_and_their_false_neighbours_do_not(name):
    figures, broken = attack_stability.run.statements[name].attempt(7)
    assert figures["attempts"] > 20
    assert figures["violations"] == 0
    assert all(broken.values())


def test_the_flow_of_the_attack_is_the_flow_of_the_terms():
    """γ(t) = 1.5(1 + sin²πt), so that the time is used too."""
    u = normal(0, "flow", size=(1, 4, 2))
    attention, network = Interaction(2, bias=False).double(), Reaction(2, 3, activation="tanh", bias=False).double()
    query, key, value = attention.qkv.weight.detach().chunk(3)
    W, U = network.inner.weight.detach(), network.outer.weight.detach()
    system = {"A": query.mT @ key / math.sqrt(2), "V": attention.out.weight.detach() @ value, "W": W, "U": U}

    def rate(v, t):
        pulled = 1.5 * (1 + torch.sin(math.pi * t) ** 2) * normalised(v, 0.2)
        return push(v, **{k: m[None] for k, m in system.items()}) - pulled, torch.ones_like(t)

    mine, _ = attack_stability.kutta(rate, (u, torch.zeros(1, 1, 1, dtype=u.dtype)), 0.3, steps=40)
    gamma = SpatialStabilization(lambda x, t: torch.full_like(x, 1.5 * (1 + math.sin(math.pi * t) ** 2)), 0.2)
    theirs = solve(MasterEquation(attention, network, gamma), u, steps=40, dt=0.3 / 40, integrator=RK4()).final
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of", ["spread", "diameter"])
def test_two_tokens_under_a_linear_push_die_exactly_when_they_may(of):
    """Two tokens that look at themselves, u' = v·u: λ = v and σ = δ/2, so the time that is allowed is the true one."""
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    u = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1).expand(3, 2, 1)
    system = {"A": 1e14 * one, "V": one, "W": 0 * one, "U": one}  # so sharp that they do so until they meet
    score = attack_stability.extinction(u, torch.tensor([-2.0, 0.0, 2.0]).double(), of=of, **system)
    torch.testing.assert_close(score, torch.ones_like(score), rtol=1e-5, atol=0)


def test_the_theorem_is_counted_and_a_step_of_its_proof_apart():
    roles = {name: one.role for name, one in attack_stability.run.statements.items()}
    assert [name for name, role in roles.items() if role == "printed"] == ["energy_decay"]
    assert [name for name, role in roles.items() if role == "lemma"] == ["dissipation"]


def test_leaders_attain_what_averages_may_do():
    for n in (4, 16):
        w = starts.leading(n, starts.most_growth(n))
        looked_at = w[0] * w.sign()
        assert (w * looked_at).sum().item() == pytest.approx(averaging_growth(n), rel=1e-12)
        assert w.sum().item() == pytest.approx(0, abs=1e-12)
        assert w.square().sum().item() == pytest.approx(1, rel=1e-12)


def test_jungs_share_is_a_little_too_large_for_tokens_that_cannot_sit_evenly_on_its_corners():
    """Three tokens on a line: the largest σ²/δ² is 2/9, at an end, and χ = ¼; four attain it."""
    middle = torch.linspace(0, 1, 101, dtype=torch.float64)
    u = torch.stack([torch.zeros_like(middle), middle, torch.ones_like(middle)], dim=1).unsqueeze(-1)
    assert spread(u).square().max().item() == pytest.approx(2 / 9)
    assert variance_share(3, 1).item() == 0.25
    even = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64).view(1, 4, 1)
    assert spread(even).square().item() == pytest.approx(variance_share(4, 1).item())


def test_corners_of_a_simplex_attain_jungs_share_of_the_variance():
    for n in (3, 4):
        u = starts.simplex(n).unsqueeze(0)
        assert u.sum(dim=1).abs().max() < 1e-12
        assert u.square().sum().item() == pytest.approx(1, rel=1e-12)
        share = variance_share(n, n - 1) * diameter(u) ** 2
        assert spread(u).item() ** 2 == pytest.approx(share.item(), rel=1e-12)


@pytest.mark.parametrize("effective", attack_stability.EFFECTIVE)
def test_the_printed_dissipation_fails_for_every_rate_on_offer(effective):
    assert (attack_stability.dissipation(7, effective=effective) > 1).double().mean() > 0.1


def test_the_score_of_the_printed_dissipation_is_that_of_the_term():
    """−2γE/∫⟨u, S⟩ on fields, with γ = 1 and ε = 1e-5."""
    draws = torch.rand(2, 1000, generator=stream(7, "dissipation"), dtype=torch.float64)
    mean, sigma = (torch.pow(10, 6 * draw[:5] - 3) for draw in draws)
    u = maps.fields(sigma, mean, 5, 3, 0)
    work = (u * SpatialStabilization(1.0, 1e-5)(u)).sum(dim=(1, 2)) / 5
    score = -u.square().sum(dim=(1, 2)) / 5 / work
    torch.testing.assert_close(attack_stability.dissipation(7, effective=1.0)[:5], score, rtol=1e-6, atol=0)


def test_the_printed_decay_of_the_energy_fails():
    assert (attack_stability.energy_decay(7, systems=16) > 1 + ROUNDING).any()


@pytest.mark.parametrize("where", attack_scheme.LEFT_OUT)
def test_the_printed_step_condition_is_broken_at_both_ends_and_by_what_it_leaves_out(where):
    assert (attack_scheme.printed_condition(7, where=where) > 1).double().mean() > 0.2


def test_without_values_outflow_or_network_nothing_breaks_the_printed_condition():
    """At W_V = 0 only diffusion is left, and x ≤ 1: growth comes from what eq 21 leaves out."""
    u, none = normal(0, "u", size=(50, 6, 2)), torch.zeros(50, 2, 2, dtype=torch.float64)
    x = torch.linspace(0, 1, 50, dtype=torch.float64).view(-1, 1, 1)
    for ends in attack_scheme.ENDS:
        grown = scheme.growth_in_steps(lambda v, e=ends: one_step(v, diffusive=x, strength=0.0, V=none, ends=e), u, 200)
        assert (grown <= 1 + 1e-12).all()
    with pytest.raises(ValueError, match="where must be one of"):
        attack_scheme.printed_condition(0, where="elsewhere")


def test_beyond_the_step_condition_every_alternating_field_grows():
    x = torch.linspace(1.05, 2, 20, dtype=torch.float64).view(-1, 1, 1)
    wave = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).view(1, 4, 1)
    after = one_step(wave, diffusive=x, strength=0.0, V=torch.zeros(1, 1, dtype=torch.float64), ends="periodic")
    torch.testing.assert_close(after, (1 - 2 * x) * wave, rtol=1e-12, atol=0)
    assert (after.abs().amax(dim=(1, 2)) > 1).all()


def test_a_bias_of_attention_belongs_to_the_forcing_of_the_step_bound():
    """One token at 0 moves by Δtα|b|: the bound without it is 0."""
    after = one_step(
        torch.zeros(1, 1, 1, dtype=torch.float64),
        diffusive=0.5,
        strength=0.1,
        V=torch.ones(1, 1, dtype=torch.float64),
        extra=lambda v: torch.full_like(v, 0.1 * 2.0),
    )
    allowed = scheme.step_bound(0.0, diffusive=0.5, strength=0.1, value=1.0, forcing=0.1 * 2.0)
    assert after.item() == pytest.approx(allowed.item())
    assert scheme.step_bound(0.0, diffusive=0.5, strength=0.1, value=1.0).item() == 0


@pytest.mark.parametrize("ends", attack_scheme.ENDS)
@pytest.mark.parametrize("ratio", [1.0, 1.2])
def test_heat_mode_by_mode_is_what_stepping_gives_before_rounding_has_grown(ends, ratio):
    """16 cells, 43 or 52 steps: rounding of 1e-16 has grown by at most 1.4^43 = 2e6."""
    x, k = centres(16), torch.arange(1, 80, dtype=torch.float64)
    waves = (torch.sin if ends == "absorbing" else torch.cos)(math.pi * torch.outer(x, k))
    u0 = scheme.all_modes(x, 0.5, ends)
    torch.testing.assert_close(u0, waves @ 0.5**k, rtol=1e-12, atol=1e-12)
    steps = math.ceil(2 * 0.1 * 16**2 / ratio)
    end = solve(Diffusion(1.0, boundary=ends), u0.view(1, -1, 1), steps=steps, dt=0.1 / steps).final.flatten()
    error = (end - waves @ (0.5**k * torch.exp(-0.1 * (k * math.pi) ** 2))).abs().max().item()
    assert error == pytest.approx(scheme.heat_error(16, ratio, 0.5, ends), rel=1e-6)


@pytest.mark.parametrize("ends", attack_scheme.ENDS)
def test_heat_converges_with_order_two_up_to_the_step_limit_and_explodes_beyond(ends):
    below = [scheme.heat_error(cells, 1.0, 0.5, ends) for cells in (40, 80)]
    assert math.log2(below[0] / below[1]) == pytest.approx(2, abs=0.1)
    beyond = [scheme.heat_error(cells, 1.2, 0.5, ends) for cells in (20, 40)]
    assert beyond[1] > 1e10 * beyond[0]


def test_a_single_cosine_explodes_by_rounding_only():
    """cos πx is a mode of the grid: stepped exactly it converges at 2DΔt/Δx² = 1.2 too, in double it does not."""
    cells, steps = 60, math.ceil(0.2 * 60**2 / 1.2)
    mode = torch.cos(math.pi * centres(cells)).view(1, -1, 1)
    rate = -4 * cells**2 * math.sin(math.pi / 2 / cells) ** 2
    exactly = (1 + rate * 0.1 / steps) ** steps - math.exp(-(math.pi**2) * 0.1)
    stepped = solve(Diffusion(1.0), mode, steps=steps, dt=0.1 / steps).final - math.exp(-(math.pi**2) * 0.1) * mode
    assert abs(exactly) < 1e-3
    assert stepped.abs().max() > 1e10


def test_the_printed_error_bound_needs_a_step_condition_and_more_than_sampled_jumps():
    assert (attack_scheme.step_condition(7, systems=3) > 1).all()
    assert (attack_scheme.jump(7, averaged=False) > 1).double().mean() > 0.5
    assert (attack_scheme.jump(7, averaged=True) <= 1).all()


@pytest.mark.parametrize("of", attack_scheme.ORDERS)
def test_the_orders_stand_and_one_more_does_not(of):
    assert (attack_scheme.order(7, of=of, fields=1) <= 1).all()
    assert (attack_scheme.order(7, of=of, fields=1, raised=1) > 1).all()


def test_midpoints_and_trapezoids_have_order_two_and_left_endpoints_have_not():
    assert (attack_scheme.quadrature(7, fields=1) <= 1).all()
    assert (attack_scheme.quadrature(7, rules=("left",), fields=1) > 1).all()
