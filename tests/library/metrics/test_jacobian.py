"""Jacobians against closed forms and against each other."""

import pytest
import torch
from systems import field, padded

from pdelab import Interaction, LayerNormRate, MasterEquation, Reaction
from pdelab.metrics.jacobian import derivative, influence, jacobian, lipschitz, logarithmic_norm, random_growth
from pdelab.seeds import normal


def term(kind):
    torch.manual_seed(0)
    return {"attention": Interaction(6, 2), "ffn": Reaction(6, 9, activation="tanh")}[kind].double()


@pytest.mark.parametrize("kind", ["attention", "ffn"])
def test_the_jacobian_is_what_difference_quotients_say(kind):
    f, u, v = term(kind), normal(0, "u", size=(2, 4, 6)), normal(0, "v", size=(2, 4, 6))
    change = torch.einsum("biajc,bjc->bia", jacobian(f, u), v)
    quotient = (f(u + 1e-5 * v) - f(u - 1e-5 * v)) / 2e-5
    torch.testing.assert_close(change, quotient.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(derivative(f, u, v), change, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["attention", "ffn"])
def test_power_iteration_finds_the_largest_singular_value_of_each_example(kind):
    f, u = term(kind), normal(1, "u", size=(3, 4, 6))
    exact = torch.linalg.matrix_norm(jacobian(f, u).reshape(3, 24, 24), 2)
    found = lipschitz(f, u, steps=400)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=0)
    assert (found <= exact * (1 + 1e-12)).all()


@pytest.mark.parametrize("kind", ["attention", "ffn"])
def test_influence_is_the_norm_of_each_block(kind):
    f, u = term(kind), normal(3, "u", size=(2, 4, 6))
    table, J = influence(f, u), jacobian(f, u)
    assert table.shape == (2, 4, 4)
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(table[:, i, j], torch.linalg.matrix_norm(J[:, i, :, j], 2))
    off = table[:, ~torch.eye(4, dtype=torch.bool)]
    assert (off == 0).all() if kind == "ffn" else (off > 0).all()


def test_the_logarithmic_norm_of_a_linear_map_is_that_of_its_matrix():
    """Triangular with eigenvalues −1: the flow decays in the end, yet may grow at first, at the rate 3/2."""
    matrix = torch.tensor([[-1.0, 5.0], [0.0, -1.0]], dtype=torch.float64)
    found = logarithmic_norm(lambda u: u @ matrix.T, normal(0, "u", size=(3, 1, 2)))
    torch.testing.assert_close(found, torch.full((3,), 1.5, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["attention", "ffn"])
def test_the_logarithmic_norm_is_the_fastest_growth_of_a_small_difference(kind):
    """(‖I + hJ‖ − 1)/h → μ(J) as h → 0."""
    f, u, h = term(kind), normal(4, "u", size=(2, 4, 6)), 1e-6
    step = torch.eye(24, dtype=torch.float64) + h * jacobian(f, u).reshape(2, 24, 24)
    quotient = (torch.linalg.matrix_norm(step, 2) - 1) / h
    torch.testing.assert_close(logarithmic_norm(f, u), quotient, rtol=1e-4, atol=1e-5)


def test_examples_do_not_mix():
    f, u = term("attention"), normal(2, "u", size=(3, 4, 6))
    torch.testing.assert_close(jacobian(f, u)[1:2], jacobian(f, u[1:2]))
    torch.testing.assert_close(lipschitz(f, u)[1:2], lipschitz(f, u[1:2]), rtol=1e-3, atol=0)


def test_a_constant_map_has_no_slope():
    assert lipschitz(lambda u: 0 * u + 1, torch.ones(2, 3, 4)).tolist() == [0, 0]


def test_a_map_without_a_graph_is_refused_with_the_way_to_the_derivative_of_a_constant():
    u = torch.ones(1, 3, 2)
    for measure in (jacobian, lipschitz, lambda f, u: derivative(f, u, u)):
        with pytest.raises(ValueError, match=r"if it is constant, its derivative is 0, which f\(u\) \+ 0 \* u has"):
            measure(torch.ones_like, u)
        assert not measure(lambda u: torch.ones_like(u) + 0 * u, u).any()


def test_a_map_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"f must give a field in the shape of u"):
        jacobian(lambda u: u[:, :1], torch.ones(1, 3, 2))
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        lipschitz(lambda u: u, torch.ones(1, 3, 2), steps=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_device_and_dtype_follow_the_input(dtype):
    f = Interaction(6, 2).to("meta", dtype)
    u = torch.empty(2, 4, 6, device="meta", dtype=dtype)
    assert jacobian(f, u).device.type == "meta"
    assert jacobian(f, u).dtype == dtype
    assert lipschitz(f, u, steps=2).shape == (2,)
    assert logarithmic_norm(f, u).shape == (2,)
    assert influence(f, u).dtype == dtype


def block(width=12, seed=0):
    """A + R on fields of some hundred numbers, no multiple of a symmetric map."""
    torch.manual_seed(seed)
    return MasterEquation(Interaction(width, 2), Reaction(width, 24, activation="gelu")).double()


@pytest.mark.parametrize("sign", [1, -1])
def test_lanczos_finds_the_logarithmic_norm_of_the_dense_jacobian_to_seven_digits(sign):
    f, u = block(), 3 * normal(5, "u", size=(3, 20, 12))
    exact = logarithmic_norm(lambda u: sign * f(u), u, method="dense")
    found = logarithmic_norm(lambda u: sign * f(u), u, method="lanczos")
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=0)
    assert (found <= exact + 1e-12).all()
    few = [logarithmic_norm(lambda u: sign * f(u), u, method="lanczos", steps=n) for n in (1, 3, 9, 27)]
    assert (torch.stack(few).diff(dim=0) > -1e-12).all()  # it rises


def test_lanczos_on_jtj_finds_the_largest_singular_value_where_power_iteration_is_still_on_its_way():
    f, u = block(), normal(6, "u", size=(2, 20, 12))
    exact = torch.linalg.matrix_norm(jacobian(f, u).reshape(2, 240, 240), 2)
    torch.testing.assert_close(lipschitz(f, u, method="lanczos"), exact, rtol=1e-7, atol=0)
    close_together = torch.linspace(0, 1, 240, dtype=torch.float64).reshape(20, 12)  # singular values 1, 1 − 1/239, …
    lanczos, power = (lipschitz(lambda u: close_together * u, u, steps=60, method=m) for m in ("lanczos", "power"))
    torch.testing.assert_close(lanczos, torch.ones_like(lanczos), rtol=1e-7, atol=0)
    assert (power < 1 - 1e-4).all()


def test_a_frozen_layer_of_torch_has_derivatives_too():
    """Where nothing asks for a gradient torch fuses the layer into one operation, which has no forward derivative."""
    layer = torch.nn.TransformerEncoderLayer(12, 2, 24, batch_first=True).double().eval().requires_grad_(False)
    u = normal(8, "u", size=(2, 5, 12))
    exact = torch.linalg.matrix_norm(jacobian(layer, u).reshape(2, 60, 60), 2)
    torch.testing.assert_close(lipschitz(layer, u, method="lanczos"), exact, rtol=1e-7, atol=0)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("a", [3.0, -3.0, 0.0])
def test_lanczos_ends_where_no_direction_is_left(a):
    """A multiple of the identity leaves none after one step; the zeros that follow must not count for a < 0."""
    u = torch.ones(2, 2, 3)
    each = torch.tensor([a, 2 * a])
    found = logarithmic_norm(lambda u: each.reshape(2, 1, 1) * u, u, method="lanczos", steps=10)
    torch.testing.assert_close(found, each)
    torch.testing.assert_close(lipschitz(lambda u: a * u, u, method="lanczos"), torch.full((2,), abs(a)))


def test_a_shear_has_the_logarithmic_norm_that_one_finds_by_hand():
    """J = [[−1, 5], [0, −1]] at every token: ½(J + Jᵀ) has the eigenvalues −1 ± 5/2; 600 tokens, 1200 numbers."""
    matrix = torch.tensor([[-1.0, 5.0], [0.0, -1.0]], dtype=torch.float64)
    u = normal(0, "u", size=(1, 600, 2))
    torch.testing.assert_close(logarithmic_norm(lambda u: u @ matrix.T, u), torch.tensor([1.5], dtype=torch.float64))


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_padding_has_no_part_in_norms_and_growth(method):
    f = block(4)
    sequences = [field(1, n, seed=n) for n in (6, 4)]
    u, mask = padded(sequences, (0, 2), fill=float("nan"))
    leak = LayerNormRate(4, 9.0).double()
    torch.nn.init.zeros_(leak.norm.weight)  # −9u
    for g in (f, MasterEquation(*f.terms, leak)):
        alone = torch.cat([logarithmic_norm(g, one, method=method) for one in sequences])
        torch.testing.assert_close(logarithmic_norm(g, u, mask, method=method), alone, rtol=1e-7, atol=1e-9)
    assert (alone < 0).all()  # of the last, where the zeros of padding would show
    largest = torch.cat([lipschitz(f, one, method="lanczos") for one in sequences])
    torch.testing.assert_close(lipschitz(f, u, mask, method="lanczos"), largest, rtol=1e-7, atol=0)
    J = jacobian(f, u, mask)
    torch.testing.assert_close(J[1, 2:6, :, 2:6], jacobian(f, sequences[1])[0])
    assert not J[~mask].any()


def test_the_mean_square_growth_of_random_directions_is_the_frobenius_norm():
    """E|Jv|² = ‖J‖_F²/n for v on the unit sphere of n dimensions; within four standard errors, and below the worst."""
    f, u = block(), normal(7, "u", size=(3, 8, 12))
    growth = random_growth(f, u, draws=200)
    squares, n = growth.square(), u[0].numel()
    exact = jacobian(f, u).square().sum(dim=(1, 2, 3, 4)) / n
    assert ((squares.mean(0) - exact).abs() < 4 * squares.std(0) / 200**0.5).all()
    assert (growth <= lipschitz(f, u, method="lanczos") * (1 + 1e-6)).all()
    assert torch.equal(growth[:3], random_growth(f, u, draws=3))
    assert not torch.equal(growth[:3], random_growth(f, u, draws=3, seed=1))


def test_a_method_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="method must be one of auto, dense, lanczos"):
        logarithmic_norm(torch.sin, torch.ones(1, 2, 2), method="power")
    with pytest.raises(ValueError, match="method must be one of power, lanczos"):
        lipschitz(torch.sin, torch.ones(1, 2, 2), method="dense")


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_an_example_without_a_slope_leaves_the_others_theirs(method):
    u = normal(30, "u", size=(3, 2, 4)).double()
    u[1] = 0  # where the slope of a root is infinite, and 0 · ∞ is none
    f = lambda u: 2 * u + (u * u).sqrt()  # noqa: E731
    found = logarithmic_norm(f, u, method=method)
    assert found[1].isnan()
    torch.testing.assert_close(found[[0, 2]], logarithmic_norm(f, u[[0, 2]], method="dense"))
    worst = lipschitz(f, u, method="lanczos")
    assert worst[1].isnan()
    assert worst[[0, 2]].isfinite().all()


@pytest.mark.parametrize("f", [lambda u: u.logcumsumexp(1), lambda u: u.cumprod(1), lambda u: u.softmax(-1) @ u.mT @ u])
def test_a_derivative_is_that_of_forward_differentiation(f):
    u, v = (normal(31, name, size=(2, 3, 4)).double() for name in "uv")
    torch.testing.assert_close(derivative(f, u, v), torch.func.jvp(f, (u,), (v,))[1])
