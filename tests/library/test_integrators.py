import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from systems import (
    COEFFICIENTS,
    INTEGRATORS,
    MATRIX,
    SEQUENCES,
    WIDTH,
    Mixing,
    Potential,
    assert_padding_changes_nothing,
    equation,
    field,
    layered,
    matrix_of,
    observed_order,
    padded,
)

from pdelab import (
    RK4,
    CrankNicolson,
    Diffusion,
    Euler,
    ExponentialDiffusion,
    Heun,
    ImplicitDiffusion,
    LieEuler,
    MasterEquation,
    Strang,
    solve,
)

every_integrator = pytest.mark.parametrize("integrator", INTEGRATORS, ids=lambda kind: kind.__name__)
splitting = pytest.mark.parametrize(
    "integrator", [LieEuler, Strang, CrankNicolson, ExponentialDiffusion, ImplicitDiffusion]
)

TOKENS, TIME = 4, 0.5
# steps small enough for the leading error term, large enough that the error stays well above rounding
STEPS = {1: (32, 64), 2: (16, 32), 4: (8, 16)}


def linear():
    """Three linear terms no two of which commute."""
    turn = torch.tensor([[0.1, 1.0, 0.0, 0.3], [-1.0, 0.0, 0.2, 0.0], [0.0, 0.5, -0.4, 0.0], [0.0, 0.0, 1.0, 0.2]])
    return MasterEquation(Potential(), Diffusion(MATRIX), Mixing(turn))


def parts():
    """The matrices of those terms."""
    return [matrix_of(term, TOKENS, WIDTH) for term in linear().terms]


def flow(matrix, u):
    return (torch.linalg.matrix_exp(matrix) @ u.reshape(-1, TOKENS * WIDTH).T).T.reshape(u.shape)


@pytest.fixture(scope="module")
def nonlinear():
    """u₀ and u(T) of A + R + D + S with a source that changes in time, from 128 steps of RK4."""
    u0 = field(1, TOKENS)
    with torch.no_grad():
        return u0, solve(equation(), u0, steps=128, dt=TIME / 128, integrator=RK4()).final


def test_no_two_terms_of_the_linear_system_commute():
    V, D, M = parts()
    for X, Y in ((V, D), (V + D, M), (D, M)):
        assert (X @ Y - Y @ X).abs().max() > 1e-3


@every_integrator
def test_the_error_on_a_linear_system_falls_at_the_order(integrator):
    u0 = field(1, TOKENS)
    exact = flow(TIME * sum(parts()), u0)

    def error(steps):
        return (solve(linear(), u0, steps=steps, dt=TIME / steps, integrator=integrator()).final - exact).norm().item()

    assert observed_order(error, STEPS[integrator.order]) == pytest.approx(integrator.order, abs=0.15)


@every_integrator
def test_the_error_on_a_nonlinear_system_falls_at_the_order(integrator, nonlinear):
    u0, exact = nonlinear
    whole = equation()

    def error(steps):
        return (solve(whole, u0, steps=steps, dt=TIME / steps, integrator=integrator()).final - exact).norm().item()

    with torch.no_grad():
        assert observed_order(error, STEPS[integrator.order]) == pytest.approx(integrator.order, abs=0.15)


def test_the_nonlinear_reference_is_that_of_scipy(nonlinear):
    u0, exact = nonlinear
    whole = equation()

    def rate(t, y):
        with torch.no_grad():
            return whole(torch.from_numpy(y).reshape(u0.shape), float(t)).flatten().numpy()

    theirs = solve_ivp(rate, (0, TIME), u0.flatten().numpy(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    assert np.abs(theirs - exact.flatten().numpy()).max() < 1e-9


STEP_MATRICES = {
    Euler: lambda one, V, D, M, dt: one + dt * (V + D + M),
    Heun: lambda one, V, D, M, dt: one + dt * (V + D + M) + (dt * (V + D + M)).matrix_power(2) / 2,
    RK4: lambda one, V, D, M, dt: sum((dt * (V + D + M)).matrix_power(k) / f for k, f in enumerate((1, 1, 2, 6, 24))),
    LieEuler: lambda one, V, D, M, dt: (one + dt * M) @ (one + dt * D) @ (one + dt * V),
    Strang: lambda one, V, D, M, dt: palindrome(second, one, V, D, M, dt),
    CrankNicolson: lambda one, V, D, M, dt: palindrome(crank_nicolson, one, V, D, M, dt),
    ExponentialDiffusion: lambda one, V, D, M, dt: torch.linalg.matrix_exp(dt * D) @ (one + dt * (V + M)),
    ImplicitDiffusion: lambda one, V, D, M, dt: torch.linalg.inv(one - dt * D) @ (one + dt * (V + M)),
}


def second(one, X, h):
    return one + h * X + h**2 / 2 * X @ X


def crank_nicolson(one, X, h):
    return torch.linalg.solve(one - h / 2 * X, one + h / 2 * X)


def palindrome(diffusion, one, V, D, M, dt):
    before, inside, after = second(one, V, dt / 2), diffusion(one, D, dt / 2), second(one, M, dt)
    return before @ inside @ after @ inside @ before


@every_integrator
def test_one_step_on_a_linear_system_is_its_matrix(integrator):
    dt = 0.3
    identity = torch.eye(TOKENS * WIDTH, dtype=torch.float64)
    found = matrix_of(lambda u: integrator().step(linear(), u, 0.0, dt), TOKENS, WIDTH)
    torch.testing.assert_close(found, STEP_MATRICES[integrator](identity, *parts(), dt), rtol=0, atol=1e-12)


def test_implicit_and_exponential_steps_stay_bounded_where_explicit_ones_blow_up():
    diffusion = Diffusion(1.0)
    u0, dt = field(1, 8), 50 * diffusion.largest_step(8)
    for integrator in (ImplicitDiffusion(), ExponentialDiffusion()):
        run = solve(MasterEquation(diffusion), u0, steps=50, dt=dt, integrator=integrator)
        assert run.final.abs().max() <= u0.abs().max()
    run = solve(MasterEquation(diffusion), u0, steps=50, dt=dt, integrator=CrankNicolson())
    assert run.final.norm() <= u0.norm()  # no maximum principle: a mode that Δt does not resolve changes its sign
    assert solve(diffusion, u0, steps=50, dt=dt).final.abs().max() > 1e6


@pytest.mark.parametrize("integrator", [ImplicitDiffusion, ExponentialDiffusion])
def test_without_diffusion_the_diffusion_integrators_are_euler(integrator):
    whole = MasterEquation(Potential(), Mixing(torch.eye(WIDTH)))
    assert torch.equal(integrator().step(whole, field(), 0.0, 0.1), Euler().step(whole, field(), 0.0, 0.1))


@pytest.mark.parametrize("integrator", [Heun, RK4])
def test_steps_that_land_on_linear_layers_keep_their_order(integrator):
    """The weights have kinks at the nodes only, so inside each step the rate is smooth."""
    u0, whole = field(1, TOKENS), layered(3, 0.25, "linear")
    with torch.no_grad():
        exact = solve(whole, u0, steps=64, dt=TIME / 64, integrator=RK4()).final

        def error(steps):
            return (solve(whole, u0, steps=steps, dt=TIME / steps, integrator=integrator()).final - exact).norm().item()

        assert observed_order(error, STEPS[integrator.order]) == pytest.approx(integrator.order, abs=0.15)


def test_jumping_weights_cost_heun_its_order():
    """Its second stage already sees the next layer: one step in each interval is off by O(Δt)."""
    u0, whole = field(1, TOKENS), layered(3, 0.25)
    with torch.no_grad():
        exact = u0
        for one, start in zip(whole.equations[:2], (0.0, 0.25), strict=True):
            for k in range(16):
                exact = RK4().step(one, exact, start + k * 0.25 / 16, 0.25 / 16)

        def error(steps):
            return (solve(whole, u0, steps=steps, dt=TIME / steps, integrator=Heun()).final - exact).norm().item()

        assert observed_order(error, (16, 32)) == pytest.approx(1, abs=0.15)


@every_integrator
def test_padding_changes_nothing(integrator):
    u, mask = padded()
    options = {"steps": 3, "dt": 0.1, "integrator": integrator()}
    with torch.no_grad():
        for f in (equation(), layered()):
            run = solve(f, u, mask=mask, **options)
            alone = [solve(f, one, **options) for one in SEQUENCES]
            for k in range(4):
                assert_padding_changes_nothing(run.states[k], mask, [one.states[k] for one in alone])


@every_integrator
def test_derivatives_are_those_of_finite_differences(integrator):
    u, mask = padded((SEQUENCES[1], SEQUENCES[2]), (0, 1), tokens=5, fill=0.0)
    whole = equation()

    def two_steps(u):
        u = integrator().step(whole, u, 0.0, 0.1, mask)
        return integrator().step(whole, u, 0.1, 0.1, mask)

    assert torch.autograd.gradcheck(two_steps, u.requires_grad_(), fast_mode=True)


@every_integrator
@pytest.mark.parametrize("coefficient", COEFFICIENTS.values(), ids=COEFFICIENTS)
def test_derivatives_by_the_size_of_the_step_are_those_of_finite_differences(integrator, coefficient):
    whole = MasterEquation(Potential(), Diffusion(coefficient), Mixing(torch.eye(WIDTH)))
    dt = torch.full((1, 1, 1), 0.1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda dt: integrator().step(whole, field(), 0.0, dt), dt)


@every_integrator
def test_every_weight_gets_a_gradient(integrator):
    whole = equation()
    integrator().step(whole, field(), 0.0, 0.1).square().sum().backward()
    silent = [name for name, w in whole.named_parameters() if w.grad is None or w.grad.abs().max() == 0]
    # the keys' bias adds one number to a whole row of scores, which softmax does not see: part of qkv.bias, not all
    assert not silent


@every_integrator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_field(integrator, dtype):
    assert integrator().step(equation().to(dtype), field(dtype=dtype), 0.0, 0.1).dtype == dtype


@every_integrator
@pytest.mark.parametrize("masked", [True, False])
def test_an_integrator_runs_on_the_meta_device(integrator, masked):
    mask = torch.ones(2, 5, dtype=torch.bool, device="meta") if masked else None
    whole, u0 = equation().to("meta"), field().to("meta")
    run = solve(whole, u0, steps=2, dt=0.1, integrator=integrator(), mask=mask)
    assert [u.shape for u in run.states] == [(2, 5, WIDTH)] * 3


@splitting
@pytest.mark.parametrize("f", [lambda u: -u, Diffusion(0.1)])
def test_a_sweep_through_terms_needs_an_equation(integrator, f):
    with pytest.raises(ValueError, match=f"integrator {integrator.__name__}.*Euler, Heun or RK4"):
        solve(f, field(), steps=1, dt=0.1, integrator=integrator())


@splitting
def test_a_sweep_through_terms_refuses_weights_between_layers(integrator):
    with pytest.raises(ValueError, match="interpolation='constant'"):
        solve(layered(interpolation="linear"), field(), steps=1, dt=0.1, integrator=integrator())
