"""The code of the chapter on diffusion: schemes, kernels, the adversary and what is measured.  (P2 eq 7-8; P1 eq 20)"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from pdebook.chapters.diffusion import attack, laws, measure
from pdebook.chapters.diffusion.laws import drawn
from pdebook.evidence.stacks import slope
from pdelab import Coupling, Diffusion, Interaction, MasterEquation, Reaction, solve
from pdelab.field import BOUNDARIES, laplacian_eigenvalues
from pdelab.formulas import centres
from pdelab.metrics.diffusivity import position_slope
from pdelab.seeds import normal

# The heat equation on a grid


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_exact_solutions_solve_the_heat_equation_and_meet_their_ends(boundary):
    x, t, e = torch.linspace(0.1, 0.9, 5, dtype=torch.float64), 0.01, 1e-4
    u = laws.exact_solution
    rate = (u(x, t + e, boundary) - u(x, t - e, boundary)) / (2 * e)
    second = (u(x + e, t, boundary) - 2 * u(x, t, boundary) + u(x - e, t, boundary)) / e**2
    torch.testing.assert_close(rate, second, rtol=1e-3, atol=1e-3)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    if boundary == "absorbing":
        torch.testing.assert_close(u(ends, t, boundary), torch.zeros_like(ends), rtol=0, atol=1e-12)
    elif boundary == "reflecting":
        torch.testing.assert_close(u(ends + e, t, boundary), u(ends - e, t, boundary), rtol=0, atol=1e-9)
    else:
        torch.testing.assert_close(u(ends, t, boundary)[0], u(ends, t, boundary)[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", ["explicit", "implicit"])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_schemes_have_order_one_in_time(scheme, boundary):
    steps = (128, 256, 512)
    errors = [laws.error(scheme, boundary, 32, n, against="grid") for n in steps]
    assert slope(steps, errors) == pytest.approx(-1, abs=0.05)


def test_the_rule_with_the_norm_of_a_matrix_is_not_safe():
    """2‖D‖Δt/Δx² = 0.9 and yet a wave grows: the eigenvalues of a damped rotation are nearly imaginary."""
    D, n = torch.tensor([[0.1, 5.0], [-5.0, 0.1]], dtype=torch.float64), 16
    dt = 0.9 / (2 * torch.linalg.matrix_norm(D, 2).item() * n**2)
    factors = 1 + dt * laplacian_eigenvalues(n, "absorbing").unsqueeze(-1) * torch.linalg.eigvals(D)
    assert factors.abs().max() ** 400 > 1e100


def test_three_sines_converge_past_the_limit_if_nothing_is_rounded_and_explode_in_floating_point():
    """They are modes of the grid, and the fast modes are absent until rounding brings them in."""
    tokens = (16, 32, 64, 128)
    assert slope(tokens, [laws.error_of_modes(1.2, n) for n in tokens]) == pytest.approx(-2, abs=0.1)
    assert laws.error("explicit", "absorbing", 64, round(laws.TIME / 0.6 * 64**2)) > 1e6
    for n in (8, 16):  # few steps: rounding has had no time
        steps = round(laws.TIME / 0.2 * n**2)
        assert laws.error("explicit", "absorbing", n, steps) == pytest.approx(laws.error_of_modes(0.4, n), rel=1e-9)


def test_the_scheme_in_fractions_is_the_scheme():
    u = laws.explicit_exactly(laws.parabola(8), Fraction(2, 3), 5)
    start = torch.tensor([float(v) for v in laws.parabola(8)], dtype=torch.float64).reshape(1, 8, 1)
    assert all(isinstance(v, Fraction) for v in u)
    wanted = laws.advance(start, 5 / (3 * 8**2), 5, "explicit", "absorbing")
    found = torch.tensor([float(v) for v in u], dtype=torch.float64)
    torch.testing.assert_close(found, wanted.flatten(), rtol=1e-13, atol=0)


def test_the_parabola_solves_the_heat_equation_from_its_start():
    x = centres(9)
    torch.testing.assert_close(laws.parabola_later(x, 0.0, 2000), x * (1 - x), rtol=0, atol=1e-6)
    t, e = 0.02, 1e-4
    rate = (laws.parabola_later(x, t + e) - laws.parabola_later(x, t - e)) / (2 * e)
    second = (laws.parabola_later(x + e, t) - 2 * laws.parabola_later(x, t) + laws.parabola_later(x - e, t)) / e**2
    torch.testing.assert_close(rate, second, rtol=1e-3, atol=1e-3)


def test_an_euler_step_of_the_terms_is_equation_20():
    width, layers, n, dt, D = 2, 2, 6, 1e-3, 0.3
    networks = (lambda: Interaction(4), lambda: Reaction(4, 16, activation="tanh"), lambda: Coupling(width, layers))
    terms = Diffusion(D), *(drawn(build, seed=0) for build in networks)
    u = normal(0, "u", size=(1, n, 4))
    after = solve(MasterEquation(*terms), u, steps=1, dt=dt).final
    second = (torch.cat([u[:, 1:], u[:, -1:]], 1) - 2 * u + torch.cat([u[:, :1], u[:, :-1]], 1)) * n**2
    given = terms[3].exchange[0](u[..., :width])
    exchange = torch.cat([-given, given], dim=-1)
    torch.testing.assert_close(after, u + dt * (D * second + terms[1](u) + terms[2](u) + exchange), rtol=1e-12, atol=0)


def test_spreading_stays_bounded_below_the_limit_and_leaves_past_it():
    for boundary in BOUNDARIES:
        for ratio in (0.25, 0.9, 1.0):
            assert laws.spreading(boundary, "explicit", ratio)[-1].abs().max() <= 1
        for ratio in (1.1, 1.6):
            assert laws.spreading(boundary, "explicit", ratio)[-1].abs().max() > 1
        assert laws.spreading(boundary, "implicit", 4.0)[-1].abs().max() <= 1
        assert laws.spreading(boundary, "exact", 4.0)[-1].abs().max() <= 1
    with pytest.raises(ValueError, match="scheme must be one of explicit, implicit, exact"):
        laws.advance(laws.bump(), 0.1, 1, "leapfrog", "reflecting")


# Averages over tokens


def test_eigenvalues_on_the_imaginary_axis_leave_it_open():
    """A rotation keeps every wave; a nilpotent matrix lets wave k grow like k²."""
    rates = laplacian_eigenvalues(128).view(-1, 1, 1)
    for D, bounded in ([[0.0, 1.0], [-1.0, 0.0]], True), ([[0.0, 1.0], [0.0, 0.0]], False):
        flow = torch.linalg.matrix_exp(1e-3 * rates * torch.tensor(D, dtype=torch.float64))
        norm = torch.linalg.matrix_norm(flow, 2)
        assert (norm.max() < 1 + 1e-9) == bounded
    assert norm.max().item() == pytest.approx(1e-3 * rates.abs().max().item(), rel=0.01)


def test_every_map_that_is_continuous_in_value_and_slope_forgets_a_narrow_bend():
    """An average over a window of 0.05 answers ½m₂c to a wide bend c, and nothing to one that is much narrower."""
    x = centres(4001)
    r = x - x[2000]
    p = (-(r**2) / (2 * 0.05**2)).softmax(dim=0)

    def answer(width):
        z = (r / width).clamp(-1, 1)
        return (p @ (25 * r**2 * (1 - z**2) ** 3)).item() / (25 * (p @ r**2).item())

    wide, narrow, narrower = answer(4.0), answer(0.02), answer(0.01)
    assert wide == pytest.approx(1, abs=0.01)
    assert narrower / narrow == pytest.approx(1 / 8, abs=0.02)  # height η², and a share η of the window


def test_the_two_parts_of_attention_do_not_see_padding():
    term = drawn(lambda: Interaction(6, 2), seed=5)
    u = normal(5, "u", size=(1, 7, 6))
    mask = torch.tensor([[False, True, True, True, True, False, False]])
    alone = laws.attention_diffusivity(term, u[:, 1:5])
    for part, wanted in zip(laws.attention_diffusivity(term, u, mask), alone, strict=True):
        torch.testing.assert_close(part[:, 1:5], wanted, rtol=1e-12, atol=1e-14)
        assert (part[~mask] == 0).all()


# Attention by position


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_positions_have_constant_length_and_the_slope_of_their_frequencies(seed):
    omega = laws.spread_frequencies(seed)
    P = laws.encode(centres(2048), omega)
    torch.testing.assert_close(P.norm(dim=-1), torch.ones(2048, dtype=torch.float64), rtol=1e-12, atol=0)
    speed = (P[1:] - P[:-1]).norm(dim=-1) * 2048
    torch.testing.assert_close(speed**2, omega.square().mean().expand(2047), rtol=1e-3, atol=0)


def test_the_law_needs_one_peak_a_fine_grid_a_narrow_kernel_constant_length_and_room():
    assert (laws.law_ratios(3, "none", 8) - 1).abs().max() < 0.1
    for kind in laws.BROKEN:
        assert ((laws.law_ratios(3, kind, 8) - 1).abs() > 0.1).sum() > 3, kind


def test_a_kernel_near_the_end_loses_part_of_its_second_moment():
    """A Gaussian cut one width from its centre keeps 1 − φ(1)/Φ(1) = 0.712 of its second moment."""
    kept = 1 - math.exp(-0.5) / math.sqrt(2 * math.pi) / (0.5 * (1 + math.erf(1 / math.sqrt(2))))
    ratios = laws.law_ratios(3, "near the end", 8)
    assert ratios.numpy() == pytest.approx(kept, abs=0.06)  # the cut falls on a token, up to half a width/5


# The adversary


@pytest.mark.parametrize("name", attack.run.statements)
def test_each_statement_withstands_the_search_and_its_false_neighbours_do_not(name):
    statement = replace(attack.run.statements[name], batch=16, steps=60)
    figures, broken = statement.attempt(7)
    assert figures["violations"] == 0
    assert min(broken.values()) > 0, broken


def test_the_familiar_rule_is_reached_only_where_the_grid_holds_the_fastest_wave():
    """Absorbing ends, and periodic ones with an even number of tokens; elsewhere cos²(π/2N) of it."""
    for boundary in BOUNDARIES:
        for n in attack.GRIDS:
            short = attack.SHARP * attack.place(7, boundary=boundary, tokens=n, familiar=True).item()
            held = boundary == "absorbing" or (boundary == "periodic" and n % 2 == 0)
            wanted = 0 if held else math.sin(math.pi / (2 * n)) ** 2
            assert short == pytest.approx(wanted, abs=1e-3), (boundary, n)


def test_the_equal_gaussian_has_the_second_moment_that_was_asked_for_and_its_gradient():
    r = tokens(6, 0.1)
    tau = torch.full((6,), 0.3, dtype=torch.float64)
    g = torch.linspace(0.5, 3, 6, dtype=torch.float64, requires_grad=True)
    m2 = laws.gaussian_moment(r, g.unsqueeze(-1), tau.unsqueeze(-1))
    found = attack.equal_gaussian(r, m2, tau)
    torch.testing.assert_close(found, g, rtol=1e-9, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), g)  # of g ↦ G⁻¹(G(g))
    torch.testing.assert_close(gradient, torch.ones(6, dtype=torch.float64), rtol=1e-6, atol=0)


def tokens(batch, inner):
    return attack.tokens_from(inner)(0, r=normal(0, "tokens", size=(batch, 7)))["r"]


def test_tokens_of_the_kernel_attack_keep_their_range_and_stay_where_they_are():
    for inner in (0.1, 0.998):
        distance = tokens(30, inner).abs()
        torch.testing.assert_close(distance.amin(dim=-1), torch.full((30,), inner, dtype=torch.float64))
        assert (distance.amax(dim=-1) == 1).all()
    _, start = next(attack.run.statements["gaussian_low"].searches(0))
    free = {name: x.requires_grad_(True) for name, x in start.items()}
    attack.gaussian_low(**free, Z=1.0).sum().backward()
    assert free["r"].grad is None
    assert free["omega"].grad.abs().max() > 0


def test_a_kernel_of_waves_too_long_to_be_told_from_a_parabola_is_the_gaussian_itself():
    r = tokens(4, 0.1)
    omega, share, width = (normal(0, name, size=(4, *size)) for name, size in {"ω": (3,), "a": (3,), "w": ()}.items())
    for score in (attack.gaussian_low, attack.gaussian_high):
        torch.testing.assert_close(score(omega, share, width, r, Z=1e-3), torch.ones(4).double(), rtol=1e-5, atol=0)


# What is measured


def test_the_recorded_experiment_has_every_figure_at_smoke_size():
    result = measure.run("smoke", 1)
    assert result.status == "finished"
    assert result.figures["ffn_off_diagonal"] == result.figures["ffn_diffusivity"] == 0
    assert result.figures["full_relative_error"] < 1e-10
    assert result.figures["composed_relative_error"] < 1e-10
    assert set(result.controls) == {f"untrained_{name}" for name in result.figures if name != "accuracy"}


def test_regression_recovers_a_power_law():
    a, b = (normal(0, k, size=(50,)) for k in "ab")
    coefficients, r2 = measure.regress(2 * a - 0.5 * b + 3, [a, b])
    assert coefficients == pytest.approx([2, -0.5])
    assert r2 == pytest.approx(1)


def test_a_regression_of_layers_recovers_the_exponents_of_a_law_and_the_network_that_is_not_in_it():
    shape = (3, 4, 6)
    layers = {k: normal(0, k, size=shape).exp() for k in ("slope", "trace", "variance_moment", "variance_weights")}
    layers["variance_constant"] = torch.ones(shape, dtype=torch.float64)
    layers["without_ffn"] = layers["variance_moment"] * layers["slope"] ** -0.5
    layers["layer"] = -2 * layers["without_ffn"]
    found = measure.regressions(layers)
    for kind in ("moment", "within_layers", "without_ffn"):
        exponents = [found[f"{kind}_exponent_{k}"] for k in ("slope", "trace", "variance")]
        assert exponents == pytest.approx([-0.5, 0, 1], abs=1e-9)
    assert found["network_exponent_trace"] == pytest.approx(0, abs=1e-9)
    assert found["moment_r2"] == pytest.approx(1)


def test_the_share_of_the_ends_is_one_if_only_they_differ_and_small_if_they_do_not():
    assert measure.share_of_the_ends(torch.tensor([4.0, 1.0, 1.0, 1.0, 4.0])) == pytest.approx(1)
    assert measure.share_of_the_ends(torch.tensor([2.0, 1.0, 3.0, 2.0])) == pytest.approx(0, abs=1e-6)


def test_a_table_of_independent_rows_is_steepest_at_its_ends():
    """One-sided differences of independent rows have four times the square of central ones."""
    slopes = torch.stack([position_slope(normal(seed, "rows", size=(8, 32))) for seed in range(50)])
    assert (slopes[:, [0, -1]].mean() / slopes[:, 1:-1].mean()).item() == pytest.approx(4, rel=0.15)


# Stacked averages


def test_a_window_on_a_ring_is_even_and_a_causal_one_looks_behind_only():
    r, even, causal = laws.ring_distance(15), laws.ring_window(15, 0.2), laws.ring_window(15, 0.2, causal=True)
    for p in (even, causal):
        torch.testing.assert_close(p.sum(-1), torch.ones(15, dtype=torch.float64))
    assert (even * r).sum(-1).abs().max() < 1e-12
    assert causal[r > 0].max() == 0
    assert ((causal * r).sum(-1) < -0.05).all()


def test_a_shift_of_the_ring_moves_a_wave_and_two_neighbours_damp_it_by_a_cosine():
    n = attack.RING
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    wave = torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(0)
    p = torch.zeros(2, n, len(attack.WINDOW), dtype=torch.float64)
    p[0, :, attack.REACH + 3] = 1
    p[1, :, [attack.REACH - 2, attack.REACH + 2]] = 0.5
    moved, damped = attack.average(p, wave.expand(2, n, 2))
    torch.testing.assert_close(moved, wave[0].roll(-3, 0))
    torch.testing.assert_close(damped, math.cos(4 * math.pi / n) * wave[0])


def test_every_two_point_law_has_equality_in_the_zero_bias_inequality():
    x = normal(0, "two", size=(64, 2))
    scores = attack.zero_bias(x, normal(0, "weights", size=(64, 2)))
    torch.testing.assert_close(scores, torch.ones(64, dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["heat", "heat_even", "zero_bias"])
def test_stacked_averages_stay_within_their_bounds_and_false_neighbours_fall_in_every_setting(name):
    statement = attack.run.statements[name]
    assert 0.9 < statement.search(11).max() <= 1 + 1e-9
    for change in statement.neighbours.values():
        settings = len(statement.sizes) * len(statement.over.get("skew", (0,)))
        assert statement.fallen(11, **change)[1] == settings


def test_a_leaning_row_keeps_its_moments_and_is_not_its_mirror_image():
    logits = normal(0, "rows", size=(50, len(attack.WINDOW)))
    sides = logits[:, attack.REACH + 1 :].softmax(dim=-1) / 2
    odd = attack.leaning(logits[:, : attack.REACH], sides)
    r = torch.arange(1, attack.REACH + 1, dtype=torch.float64)
    assert ((odd @ r).abs() < 1e-12).all()
    assert ((odd @ r**3).abs() < 1e-9).all()
    assert (sides - odd.abs() >= -1e-15).all()
    assert odd.abs().sum(dim=-1).median() > 0.05
