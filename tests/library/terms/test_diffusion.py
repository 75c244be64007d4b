import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solveh_banded
from systems import (
    COEFFICIENTS,
    SEQUENCES,
    WIDTH,
    assert_padding_changes_nothing,
    field,
    fields,
    matrix_of,
    observed_order,
    padded,
)

from pdelab import Diffusion, solve
from pdelab.field import BOUNDARIES, laplacian_eigenvalues, laplacian_modes
from pdelab.status import Status


def constant_field(n=64):
    return torch.ones(1, n, 3, dtype=torch.float64)


def test_zero_ends_drain_a_constant_field_at_the_exact_rate():
    run = solve(Diffusion(1.0, "absorbing"), constant_field(), steps=2048, dt=0.2 / 2048)
    left = 8 / math.pi**2 * sum(math.exp(-(k**2) * math.pi**2 * 0.2) / k**2 for k in range(1, 40, 2))
    # second order in space, first in time: both errors are below 1e-3 here
    assert run.final.mean().item() == pytest.approx(left, abs=1e-3)
    assert left < 0.12


@pytest.mark.parametrize("boundary", ["reflecting", "absorbing", "periodic"])
def test_explicit_steps_blow_up_exactly_past_two_over_the_largest_eigenvalue(boundary):
    diffusion, n = Diffusion(0.7, boundary), 9
    u0 = torch.randn(1, n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    limit = diffusion.largest_step(n)
    assert limit == pytest.approx(2 / (0.7 * -laplacian_eigenvalues(n, boundary)[-1].item()))
    inside = solve(diffusion, u0, steps=4000, dt=0.999 * limit)
    past = solve(diffusion, u0, steps=4000, dt=1.01 * limit)
    assert inside.final.abs().max() <= u0.norm()
    assert past.final.abs().max() > 1e6


def test_divergence_is_a_status_and_keeps_the_finite_states():
    diffusion = Diffusion(1.0)
    run = solve(diffusion, torch.randn(1, 8, 2), steps=500, dt=10 * diffusion.largest_step(8))
    assert run.status is Status.DIVERGED
    assert len(run.states) == len(run.times) == run.stopped_at
    assert all(torch.isfinite(u).all() for u in run.states)


def test_no_step_is_small_enough_for_backward_heat():
    assert Diffusion(-1.0).largest_step(8) == 0.0
    assert Diffusion(0.0).largest_step(8) == math.inf


def test_a_coefficient_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="coefficient"):
        Diffusion(math.nan)
    with pytest.raises(ValueError, match="boundary"):
        Diffusion(1.0, "open")


def test_a_negative_coefficient_has_no_stable_step():
    assert Diffusion(-0.5).largest_step(8) == 0


def test_what_does_not_move_has_no_largest_step():
    assert Diffusion(0.0).largest_step(8) == Diffusion(1.0).largest_step(1) == math.inf


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_one_explicit_step_amplifies_exactly_past_the_largest_step(kind, boundary):
    """The spectral radius of I + Δt·D∂², assembled as a matrix, crosses 1 at largest_step."""
    diffusion, n = Diffusion(COEFFICIENTS[kind], boundary), 7
    rate, identity = matrix_of(diffusion, n, WIDTH), torch.eye(n * WIDTH, dtype=torch.float64)

    def radius(dt):
        return torch.linalg.eigvals(identity + dt * rate).abs().max().item()

    limit = diffusion.largest_step(n)
    assert radius(0.999 * limit) <= 1 + 1e-12
    assert radius(1.001 * limit) > 1 + 1e-4


def test_rotation_makes_every_explicit_step_unstable():
    """D with eigenvalues ±i turns the features without damping: no explicit step is small enough."""
    assert Diffusion(torch.tensor([[0.0, 1.0], [-1.0, 0.0]])).largest_step(8) == 0


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("k", [0, 1, 4, 6])
def test_each_mode_decays_at_its_own_rate(boundary, k):
    """Explicit (1 + Δtλ)ᵐ, implicit (1 − Δtλ)⁻ᵐ, exact e^{mΔtλ}, with λ the discrete eigenvalue times D."""
    n, m, dt, coefficient = 7, 5, 1e-3, 0.7
    diffusion = Diffusion(coefficient, boundary)
    mode = laplacian_modes(n, boundary)[:, k].reshape(1, n, 1)
    rate = coefficient * laplacian_eigenvalues(n, boundary)[k].item()
    found = {"explicit": mode, "implicit": mode, "exact": mode}
    for _ in range(m):
        found["explicit"] = found["explicit"] + dt * diffusion(found["explicit"])
        found["implicit"] = diffusion.implicit(found["implicit"], dt)
        found["exact"] = diffusion.exact(found["exact"], dt)
    factors = {"explicit": (1 + dt * rate) ** m, "implicit": (1 - dt * rate) ** -m, "exact": math.exp(m * dt * rate)}
    for way, factor in factors.items():
        torch.testing.assert_close(found[way], factor * mode, rtol=0, atol=1e-13)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_exact_and_implicit_are_the_functions_of_the_assembled_matrix(kind, boundary):
    diffusion, n, dt = Diffusion(COEFFICIENTS[kind], boundary), 6, 0.3
    rate, identity = matrix_of(diffusion, n, WIDTH), torch.eye(n * WIDTH, dtype=torch.float64)
    exact = matrix_of(lambda u: diffusion.exact(u, dt), n, WIDTH)
    implicit = matrix_of(lambda u: diffusion.implicit(u, dt), n, WIDTH)
    torch.testing.assert_close(exact, torch.linalg.matrix_exp(dt * rate), rtol=0, atol=1e-12)
    torch.testing.assert_close(implicit @ (identity - dt * rate), identity, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_many_implicit_steps_at_once_are_as_many_solves(kind, boundary, order):
    """Backward Euler and Crank–Nicolson, step by step with the assembled matrix."""
    diffusion, n, dt, steps = Diffusion(COEFFICIENTS[kind], boundary), 6, 0.3, 5
    rate, identity = matrix_of(diffusion, n, WIDTH), torch.eye(n * WIDTH, dtype=torch.float64)
    implicit = dt / order
    once = torch.linalg.solve(identity - implicit * rate, identity + (dt - implicit) * rate)
    found = matrix_of(lambda u: diffusion.implicit(u, dt, order=order, steps=steps), n, WIDTH)
    torch.testing.assert_close(found, torch.linalg.matrix_power(once, steps), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", ["reflecting", "absorbing"])
def test_crank_nicolson_is_lapacks_banded_solve_step_by_step(boundary):
    n, dt, steps = 256, 0.1 / 64, 64
    end = 1.0 if boundary == "reflecting" else 3.0
    stiffness = np.full(n, 2.0)
    stiffness[[0, -1]] = end
    bands = np.stack([np.full(n, -dt / 2 * n**2), 1 + dt / 2 * n**2 * stiffness])  # above the diagonal, and it
    diffusion, u = Diffusion(1.0, boundary), field(1, n, 1)
    theirs = u.numpy()[0]
    for _ in range(steps):
        right = theirs + dt / 2 * diffusion(torch.from_numpy(theirs).unsqueeze(0)).numpy()[0]
        theirs = solveh_banded(bands, right)
    found = diffusion.implicit(u, dt, order=2, steps=steps)[0]
    torch.testing.assert_close(found, torch.from_numpy(theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_crank_nicolson_tends_to_the_exact_flow_at_second_order(kind, boundary):
    diffusion, time, (u, mask) = Diffusion(COEFFICIENTS[kind], boundary), 0.02, padded(fill=0.0)
    exact = diffusion.exact(u, time, mask)

    def error(steps):
        return (diffusion.implicit(u, time / steps, mask, order=2, steps=steps) - exact).norm().item()

    assert observed_order(error, (8, 16)) == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_explicit_and_implicit_tend_to_the_exact_flow_at_first_order(kind, boundary):
    diffusion, time = Diffusion(COEFFICIENTS[kind], boundary), 0.02
    u, mask = padded(fill=0.0)
    exact = diffusion.exact(u, time, mask)

    def explicit_error(steps):
        return (solve(diffusion, u, steps=steps, dt=time / steps, mask=mask).final - exact).norm().item()

    def implicit_error(steps):
        found = u
        for _ in range(steps):
            found = diffusion.implicit(found, time / steps, mask)
        return (found - exact).norm().item()

    assert observed_order(explicit_error, (8, 16)) == pytest.approx(1, abs=0.15)
    assert observed_order(implicit_error, (8, 16)) == pytest.approx(1, abs=0.15)
    assert explicit_error(16) < 0.01 * exact.norm()


@pytest.mark.parametrize("way", ["exact", "implicit"])
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_padding_changes_nothing_for_exact_and_implicit_steps(kind, boundary, way):
    advance = getattr(Diffusion(COEFFICIENTS[kind], boundary), way)
    u, mask = padded()
    assert_padding_changes_nothing(advance(u, 0.3, mask), mask, [advance(one, 0.3) for one in SEQUENCES])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(first=st.floats(0, 1), second=st.floats(0, 1), kind=st.sampled_from(list(COEFFICIENTS)))
def test_two_exact_steps_are_one_of_their_sum(boundary, first, second, kind):
    diffusion, u = Diffusion(COEFFICIENTS[kind], boundary), field()
    twice = diffusion.exact(diffusion.exact(u, first), second)
    torch.testing.assert_close(twice, diffusion.exact(u, first + second), rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", ["reflecting", "periodic"])
@given(u=fields(WIDTH), dt=st.floats(0, 2), kind=st.sampled_from(list(COEFFICIENTS)))
def test_mass_is_conserved_where_nothing_can_leave(boundary, u, dt, kind):
    diffusion, mass = Diffusion(COEFFICIENTS[kind], boundary), u.mean(dim=1)
    crank_nicolson = diffusion.implicit(u, dt, order=2, steps=3)
    for after in (u + dt * diffusion(u), diffusion.exact(u, dt), diffusion.implicit(u, dt), crank_nicolson):
        torch.testing.assert_close(after.mean(dim=1), mass, rtol=0, atol=1e-10)


@given(u=fields(), dt=st.floats(0, 100))
def test_exact_and_implicit_steps_of_any_size_stay_between_the_extremes(u, dt):
    """The maximum principle of the heat equation, which an explicit step has for small Δt only."""
    low, high = u.amin(dim=1, keepdim=True), u.amax(dim=1, keepdim=True)
    for after in (Diffusion(1.0).exact(u, dt), Diffusion(1.0).implicit(u, dt)):
        assert (after >= low - 1e-11).all()
        assert (after <= high + 1e-11).all()


@pytest.mark.parametrize("way", ["exact", "implicit"])
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_exact_and_implicit_steps_have_derivatives_dtype_and_device(kind, way):
    diffusion = Diffusion(COEFFICIENTS[kind])
    u, mask = padded((SEQUENCES[1], SEQUENCES[2]), (0, 1), tokens=5, fill=0.0)
    advance = getattr(diffusion, way)
    assert torch.autograd.gradcheck(lambda u: advance(u, 0.3, mask), u.requires_grad_(), fast_mode=True)
    assert advance(u.float(), 0.3, mask).dtype == torch.float32
    torch.testing.assert_close(advance(u.float(), 0.3, mask), advance(u, 0.3, mask).float(), rtol=0, atol=1e-5)
    assert advance(u.to("meta"), 0.3, mask.to("meta")).shape == u.shape


def test_a_number_is_used_as_it_was_written_whatever_the_dtype_of_the_model():
    """0.1 is not a float32; a run in float64 must not see float32's nearest."""
    mode = laplacian_modes(4)[:, 1].reshape(1, 4, 1)
    want = 0.1 * laplacian_eigenvalues(4)[1] * mode
    torch.testing.assert_close(Diffusion(0.1)(mode), want, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(Diffusion(0.1).float().double()(mode), want, rtol=1e-14, atol=1e-15)


def test_a_whole_number_is_a_coefficient():
    assert torch.equal(Diffusion(2)(field()), Diffusion(2.0)(field()))


@pytest.mark.parametrize(
    "wrong",
    [torch.ones(2, 3), torch.ones(2, 2, 2), torch.ones(2, dtype=torch.long), torch.ones(0), -math.inf, [1.0, math.nan]],
)
def test_a_coefficient_of_another_shape_or_kind_is_refused(wrong):
    with pytest.raises(ValueError, match="coefficient must be"):
        Diffusion(wrong)


@pytest.mark.parametrize("way", ["exact", "implicit"])
@pytest.mark.parametrize("u", [torch.ones(5, WIDTH), torch.ones(1, 0, WIDTH), torch.ones(1, 5, WIDTH + 1)])
def test_exact_and_implicit_steps_refuse_what_is_not_a_field_of_their_width(way, u):
    with pytest.raises(ValueError, match=r"^u must have shape"):
        getattr(Diffusion(torch.ones(WIDTH)), way)(u, 0.1)


def test_a_coefficient_has_a_gradient_through_exact_and_implicit_steps():
    coefficient = torch.tensor([0.01, 0.02, 0.0, 0.04], dtype=torch.float64, requires_grad=True)
    for advance in (
        lambda d: Diffusion(d).exact(field(), 0.3),
        lambda d: Diffusion(d).implicit(field(), 0.3, order=2, steps=3),
        lambda d: Diffusion(torch.diag(d)).implicit(field(), 0.3, order=2, steps=3),
    ):
        assert torch.autograd.gradcheck(advance, coefficient, fast_mode=True)


def test_a_grid_without_tokens_has_no_largest_step():
    with pytest.raises(ValueError, match="tokens must be a whole number of at least 1"):
        Diffusion(1.0).largest_step(0)
