"""P1's scheme: one step, its condition, the orders of its error, and its own ends."""

import math

import numpy as np
import pytest
import torch

from pdebook.chapters.scheme import laws as scheme
from pdebook.evidence.stacks import slope
from pdebook.evidence.systems import one_step, printed_condition
from pdelab.field import laplacian, token_mean
from pdelab.formulas import centres
from pdelab.seeds import normal


def test_one_step_of_the_scheme_is_euler_on_the_terms():
    u, V = normal(0, "u", size=(1, 6, 2)), normal(0, "V", size=(2, 2))
    D, alpha, dt = 0.01, 0.7, 0.05
    scheme_step = one_step(u, diffusive=2 * D * dt * 36, strength=alpha * dt, V=V, extra=lambda v: dt * torch.tanh(v))
    direct = u + dt * (D * laplacian(u) + alpha * token_mean(u) @ V.T + torch.tanh(u))
    torch.testing.assert_close(scheme_step, direct, rtol=1e-12, atol=1e-12)


def test_the_maps_of_the_scheme_turn_where_the_modes_say():
    xs, ys = np.array([0.2, 0.6, 0.9, 1.1]), np.array([0.05, 0.3, 0.7, 2.0])
    plain, leak = scheme.scheme_map("plain", xs, ys), scheme.scheme_map("leak", xs, ys)
    assert (plain == np.where(xs[None, :] > 1, 2, 1).repeat(4, axis=0)).all()
    assert (leak == np.where(xs[None, :] + ys[:, None] > 1, 2, 0)).all()
    with pytest.raises(ValueError, match="kind must be plain or leak"):
        scheme.scheme_map("other", xs, ys)


def test_printed_condition_is_eq_21():
    assert printed_condition(0.5, 0.25, 2.0)
    assert not printed_condition(0.5, 0.25, 2.1)


def test_the_step_bound_needs_its_condition():
    assert scheme.step_bound(2.0, diffusive=0.5, strength=0.1, value=3.0, forcing=0.2).item() == pytest.approx(2.8)
    assert scheme.step_bound(2.0, diffusive=1.1, strength=0.1, value=3.0).item() == math.inf


def test_orders_are_one_in_time_two_in_space_one_in_attention():
    assert slope((32, 64), scheme.time_errors(5, (32, 64))) == pytest.approx(-1, abs=0.1)
    assert slope((18, 54), scheme.space_errors(5, (18, 54))) == pytest.approx(-2, abs=0.1)
    errors, sizes = scheme.attention_errors(5, (0.005, 0.01))
    assert slope(sizes, errors) == pytest.approx(1, abs=0.05)
    with pytest.raises(ValueError, match="odd number of times"):
        scheme.space_errors(5, (81,))


@pytest.mark.parametrize(("name", "order"), [("midpoint", 2), ("trapezoid", 2), ("left", 1)])
def test_the_quadrature_sets_the_order_of_attention(name, order):
    errors = [scheme.quadrature_error(1, name, n, finest=300) for n in (8, 16)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.25)
    with pytest.raises(ValueError, match="name must be midpoint"):
        scheme.rule("simpson", 3)


@pytest.mark.parametrize("name", ["midpoint", "trapezoid", "left"])
def test_rules_integrate_constants_and_two_of_them_lines(name):
    x, w = scheme.rule(name, 9)
    assert w.sum().item() == pytest.approx(1)
    assert ((w @ x).item() == pytest.approx(0.5)) == (name != "left")


def test_mixing_changes_attention_by_the_share_of_the_mean():
    u = scheme.smooth_start(0)(centres(8))
    full, none, half = (scheme.problem(0, mixing=m)(u) for m in (1.0, 0.0, 0.5))
    torch.testing.assert_close(half, (full + none) / 2, rtol=1e-12, atol=1e-12)


def test_the_error_bound_holds_for_a_solution_known_exactly():
    """u = e^{−π²Dt}cos πx: bound and error, second by second method (the discrete mode)."""
    D, cells, steps, T = 0.1, 10, 20, 0.5
    rate = math.pi**2 * D
    lam = -4 * D * cells**2 * math.sin(math.pi / 2 / cells) ** 2
    error = abs((1 + lam * T / steps) ** steps - math.exp(-rate * T)) * math.cos(math.pi / 2 / cells)
    bound = scheme.error_bound(
        torch.tensor(1e-9, dtype=torch.float64), rate**2, math.pi**4, D, 1.0, 0.0, T, T / steps, 1 / cells
    )
    assert 0.1 < error / bound.item() < 1


@pytest.mark.parametrize("cells", [2, 5, 16])
def test_at_rest_absorbing_ends_make_an_error_of_an_eighth_of_the_cell_squared_everywhere(cells):
    x, eye = centres(cells), torch.eye(cells, dtype=torch.float64)
    found = torch.linalg.solve(laplacian(eye.unsqueeze(0), "absorbing")[0], -torch.ones(cells, dtype=torch.float64))
    torch.testing.assert_close(found - x * (1 - x) / 2, torch.full_like(x, 1 / (8 * cells**2)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ratio", [0.2, 1 / 3, 0.45, 0.49])
def test_absorbing_ends_keep_order_two_below_a_half(ratio):
    coarse, fine = scheme.absorbing_errors(7, (16, 32), ratio)
    assert math.log2(coarse / fine) == pytest.approx(2, abs=0.15)


def test_the_end_cell_errs_by_a_quarter_of_the_second_derivative_and_less_than_an_inner_cell_besides():
    """With s = Δx/2, Δ_hu − u″(s) + u″(0)/4 is 0 in the first cell for cubics with u(0) = 0, and 5s²/16 for x⁴/24."""
    n = 5
    s, x = 1 / (2 * n), centres(n)
    for power, expected in ((1, 0.0), (2, 0.0), (3, 0.0), (4, 5 / 16 * s**2 * 24)):
        second = [power * (power - 1) * at ** max(power - 2, 0) for at in (s, 0.0)]
        scheme_there = laplacian((x**power).view(1, n, 1), "absorbing")[0, 0, 0].item()
        assert scheme_there - second[0] + second[1] / 4 == pytest.approx(expected, abs=1e-12)
    assert 5 / 64 < 1 / 12


def test_inputs_that_alternate_need_the_whole_barrier_beyond_a_third():
    """Two cells, (1, −1)(−1)ⁿ is a mode with the factor 1 − 4r: the error tends to Δtβ/(2 − 4r)."""
    r, e, b = 0.45, torch.zeros(1, 2, 1, dtype=torch.float64), torch.tensor([1.0, -1.0]).double().view(1, 2, 1)
    for n in range(400):
        e = e + r / 4 * laplacian(e, "absorbing") + (-1) ** n * b
    assert e.abs().max().item() == pytest.approx(scheme.barrier(r).item() / (2 * r), rel=1e-6)
