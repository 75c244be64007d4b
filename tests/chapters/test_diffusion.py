"""Does a Transformer diffuse? Schemes, kernels, adversary and claims. (P2 eq 7, 8, 18; P1 eq 8, 20, figure 7)"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pdebook.chapters.diffusion import attack as attack_diffusion
from pdebook.chapters.diffusion import diffusivity, position_kernel
from pdebook.chapters.diffusion import laws as heat
from pdebook.evidence import adversary
from pdebook.evidence.experiment import torch_threads
from pdebook.evidence.trained import TASKS, build
from pdelab import Coupling, Diffusion, FeatureDiffusion, Interaction, MasterEquation, Reaction, laplacian, solve
from pdelab.field import BOUNDARIES, laplacian_eigenvalues, laplacian_modes
from pdelab.metrics.diffusivity import diffusivity as measure
from pdelab.metrics.diffusivity import largest_off_diagonal, moment, position_slope, symbol
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal

OMEGA = position_kernel.spread_frequencies(7)
KINDS = ("relu", "gelu", "tanh")


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


def seeded(build_term, seed=0):
    return attack_diffusion.drawn(build_term, seed)


def ffn(activation="tanh", seed=0, width=4):
    return seeded(lambda: Reaction(width, 16, activation=activation), seed)


def slope(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# P1 eq 20: the explicit scheme


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_exact_solutions_solve_the_heat_equation_and_meet_their_ends(boundary):
    x, t, e = torch.linspace(0.1, 0.9, 5, dtype=torch.float64), 0.01, 1e-4
    u = heat.exact_solution
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
    errors = [heat.error(scheme, boundary, 32, n, against="grid") for n in steps]
    assert slope(steps, errors) == pytest.approx(-1, abs=0.05)


@pytest.mark.claim("P1-eq20")
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_has_the_explicit_scheme_order_one_in_time_and_two_in_space_within_the_step_bound(boundary, evidence):
    tokens = (8, 16, 32, 64)
    # Δt ∝ Δx², so that one refinement tests both: 2Δt/Δx² = 0.4 and the error falls fourfold
    space = slope(tokens, [heat.error("explicit", boundary, n, round(heat.TIME / 0.2 * n**2)) for n in tokens])
    steps = (128, 256, 512)
    time = slope(steps, [heat.error("explicit", boundary, 32, n, against="grid") for n in steps])
    evidence("repair", holds=abs(space + 2) < 0.1 and abs(time + 1) < 0.05, fails=space > -1.5 or time > -0.8)


@pytest.mark.claim("P1-eq20")
def test_does_the_scheme_converge_without_a_bound_on_the_step(evidence):
    """2DΔt/Δx² = 1.2 on finer and finer grids, from x(1 − x) and in whole numbers: what grows is not rounding."""
    errors = [heat.error_in_fractions(Fraction(6, 5), n) for n in (16, 32, 64)]
    evidence("printed", holds=errors[2] < errors[1] < errors[0], fails=errors[2] > 1e3 * errors[1] > 1e6 * errors[0])


@pytest.mark.claim("P1-eq20")
def test_does_the_scheme_converge_from_the_same_data_within_the_bound_on_the_step(evidence):
    tokens = (8, 16, 32, 64)
    found = [slope(tokens, [heat.error_in_fractions(r, n) for n in tokens]) for r in (Fraction(2, 5), Fraction(1))]
    evidence("repair", holds=max(abs(order + 2) for order in found) < 0.1, fails=max(found) > -1.5)


def growth(D, dt, n=16, steps=2**22):
    """The norm of the explicit scheme's matrix, I ⊗ I + Δt Δ_N ⊗ D with absorbing ends, to a high power."""
    rate = laplacian(torch.eye(n, dtype=torch.float64).unsqueeze(0), "absorbing")[0]
    step = torch.eye(n * len(D), dtype=torch.float64) + dt * torch.kron(rate, D)
    end = torch.linalg.matrix_power(step, steps)
    return torch.linalg.matrix_norm(end, 2).item() if torch.isfinite(end).all() else math.inf


MATRICES = {
    "damped rotation": [[0.1, 5.0], [-5.0, 0.1]],
    "shear": [[1.0, 10.0], [0.0, 1.0]],
    "diagonal": [[0.3, 0.0], [0.0, 2.0]],
}


@pytest.mark.claim("P1-eq20")
@pytest.mark.parametrize("name", MATRICES)
def test_is_the_limit_for_a_matrix_set_by_its_eigenvalues(name, evidence):
    """2 Re δ/(|λ||δ|²), the smallest over the eigenvalues δ of D."""
    D = torch.tensor(MATRICES[name], dtype=torch.float64)
    limit = Diffusion(D, "absorbing").largest_step(16)
    below, past = growth(D, 0.99 * limit), growth(D, 1.01 * limit)
    evidence("repair", holds=below < 1 and past > 1e3, fails=below > 1e3 or past < 1)


def test_the_rule_with_the_norm_of_a_matrix_is_not_safe():
    """2‖D‖Δt/Δx² = 0.9 and yet it grows: the eigenvalues of the rotation are nearly imaginary."""
    D = torch.tensor(MATRICES["damped rotation"], dtype=torch.float64)
    dt = 0.9 / (2 * torch.linalg.matrix_norm(D, 2).item() * 16**2)
    assert growth(D, dt, steps=400) > 1e100


def test_three_sines_converge_past_the_limit_if_nothing_is_rounded_and_explode_in_floating_point():
    """They are modes of the grid, and the fast modes are absent until rounding brings them in."""
    tokens = (16, 32, 64, 128)
    assert slope(tokens, [heat.error_of_modes(1.2, n) for n in tokens]) == pytest.approx(-2, abs=0.1)
    assert heat.error("explicit", "absorbing", 64, round(heat.TIME / 0.6 * 64**2)) > 1e6
    for n in (8, 16):  # few steps: rounding has had no time
        steps = round(heat.TIME / 0.2 * n**2)
        assert heat.error("explicit", "absorbing", n, steps) == pytest.approx(heat.error_of_modes(0.4, n), rel=1e-9)


def test_the_scheme_in_fractions_is_the_scheme():
    u = heat.explicit_exactly(heat.parabola(8), Fraction(2, 3), 5)
    start = torch.tensor([float(v) for v in heat.parabola(8)], dtype=torch.float64).reshape(1, 8, 1)
    assert all(isinstance(v, Fraction) for v in u)
    wanted = heat.advance(start, 5 / (3 * 8**2), 5, "explicit", "absorbing")
    found = torch.tensor([float(v) for v in u], dtype=torch.float64)
    torch.testing.assert_close(found, wanted.flatten(), rtol=1e-13, atol=0)


def test_the_parabola_solves_the_heat_equation_from_its_start():
    x = heat.centres(9)
    torch.testing.assert_close(heat.parabola_later(x, 0.0, 2000), x * (1 - x), rtol=0, atol=1e-6)
    t, e = 0.02, 1e-4
    rate = (heat.parabola_later(x, t + e) - heat.parabola_later(x, t - e)) / (2 * e)
    second = (heat.parabola_later(x + e, t) - 2 * heat.parabola_later(x, t) + heat.parabola_later(x - e, t)) / e**2
    torch.testing.assert_close(rate, second, rtol=1e-3, atol=1e-3)


@pytest.mark.claim("P1-eq20")
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_does_the_scheme_blow_up_at_two_over_the_largest_eigenvalue_of_the_grid(boundary, evidence):
    found = [heat.blow_up_step(n, boundary) / Diffusion(1.0, boundary).largest_step(n) for n in (4, 5, 8, 9)]
    off = max(abs(ratio - 1) for ratio in found)
    evidence("repair", holds=off < 1e-3, fails=off > 1e-2)


def test_an_euler_step_of_the_terms_is_equation_20():
    width, layers, n, dt, D = 2, 2, 6, 1e-3, 0.3
    terms = Diffusion(D), seeded(lambda: Interaction(4)), ffn(), seeded(lambda: Coupling(width, layers))
    u = normal(0, "u", size=(1, n, 4))
    after = solve(MasterEquation(*terms), u, steps=1, dt=dt).final
    second = (torch.cat([u[:, 1:], u[:, -1:]], 1) - 2 * u + torch.cat([u[:, :1], u[:, :-1]], 1)) * n**2
    given = terms[3].exchange[0](u[..., :width])
    exchange = torch.cat([-given, given], dim=-1)
    torch.testing.assert_close(after, u + dt * (D * second + terms[1](u) + terms[2](u) + exchange), rtol=1e-12, atol=0)


def test_spreading_stays_bounded_below_the_limit_and_leaves_past_it():
    for boundary in BOUNDARIES:
        for ratio in (0.25, 0.9, 1.0):
            assert heat.spreading(boundary, "explicit", ratio)[-1].abs().max() <= 1
        for ratio in (1.1, 1.6):
            assert heat.spreading(boundary, "explicit", ratio)[-1].abs().max() > 1
        assert heat.spreading(boundary, "implicit", 4.0)[-1].abs().max() <= 1
        assert heat.spreading(boundary, "exact", 4.0)[-1].abs().max() <= 1
    with pytest.raises(ValueError, match="scheme must be one of explicit, implicit, exact"):
        heat.advance(heat.bump(), 0.1, 1, "leapfrog", "reflecting")


# P1 figure 7


@pytest.mark.claim("P1-fig7")
def test_does_diffusion_spread_a_bump_over_the_tokens_as_the_exact_modes_say(evidence):
    n, D, t = 64, 0.5, 0.004
    u0 = heat.bump(n)
    found = heat.advance(u0, t, 400, "explicit", "reflecting", D)
    # mode k with its eigenvalue on the grid; on the line it is −k²π², within 0.1 % for the modes the bump holds
    modes, rates = laplacian_modes(n), laplacian_eigenvalues(n)
    exact = modes @ (torch.exp(D * t * rates).unsqueeze(-1) * (modes.T @ u0[0]))
    off = (found[0] - exact).abs().max().item()
    widened = (heat.spread(found) - heat.spread(u0)) / (2 * D * t)
    evidence("printed", holds=off < 1e-3 and abs(widened - 1) < 1e-3, fails=off > 0.1)


@pytest.mark.claim("P1-fig7")
def test_does_diffusion_move_information_between_layers(evidence):
    """P1 eq 17: each layer has a field (two features here) and a matrix D_l of its own. Exchange left out.

    The same flow with the exchange is the control: there a change in layer 1 must be seen in layer 2.
    """
    matrices = [torch.tensor(m, dtype=torch.float64) for m in ([[1.0, 0.4], [-0.4, 0.6]], [[0.5, 0.0], [0.3, 0.8]])]
    terms = Diffusion(torch.block_diag(*matrices)), seeded(lambda: Coupling(2, 2))
    u = normal(0, "u", size=(1, 8, 4))
    changed = u.clone()
    changed[0, 3, :2] += 1  # token 3 of layer 1
    equations = MasterEquation(*terms[:1]), MasterEquation(*terms)
    alone, exchanged = (
        (solve(e, changed, steps=20, dt=1e-3).final - solve(e, u, steps=20, dt=1e-3).final).abs() for e in equations
    )
    assert alone[0, 5, :2].max() > 1e-3, "the test must see movement between tokens"
    assert exchanged[..., 2:].max() > 1e-3, "and between layers, where there is some"
    across = alone[..., 2:].max().item()
    evidence("printed", holds=across > 1e-6, fails=across == 0)


@pytest.mark.claim("P1-fig7")
def test_is_it_the_exchange_that_moves_information_between_layers_and_nothing_between_tokens(evidence):
    J = jacobian(seeded(lambda: Coupling(2, 2)), normal(0, "u", size=(1, 8, 4)))
    across, between_tokens = J[:, :, 2:, :, :2].abs().max().item(), largest_off_diagonal(J).item()
    evidence("repair", holds=across > 1e-3 and between_tokens == 0, fails=across < 1e-9 or between_tokens > 1e-9)


# P1 eq 8


def reached(term, token, feature):
    """Which tokens and which features a change of one entry reaches: two sets."""
    u, e = normal(0, "u", size=(1, 7, 5)), torch.zeros(1, 7, 5, dtype=torch.float64)
    e[0, token, feature] = 1
    moved = ((term(u + e) - term(u)).abs() > 1e-9)[0].nonzero()
    return set(moved[:, 0].tolist()), set(moved[:, 1].tolist())


@pytest.mark.claim("P1-eq8")
def test_does_the_sum_over_features_spread_information_between_positions(evidence):
    tokens, features = reached(FeatureDiffusion(1.0), 3, 2)
    assert features == {1, 2, 3}
    evidence("printed", holds=len(tokens) > 1, fails=tokens == {3})


@pytest.mark.claim("P1-eq8")
def test_does_the_sum_over_features_stay_the_same_when_features_are_numbered_anew(evidence):
    u, order = normal(0, "u", size=(1, 7, 5)), torch.tensor([3, 0, 4, 1, 2])
    term = FeatureDiffusion(1.0)
    gap = (term(u[..., order]) - term(u)[..., order]).abs().max().item()
    evidence("printed", holds=gap < 1e-9, fails=gap > 1)


@pytest.mark.claim("P1-eq8")
def test_does_the_second_derivative_in_the_position_spread_between_positions_and_mix_features_by_its_matrix(evidence):
    M = normal(0, "M", size=(5, 5))
    tokens, features = reached(Diffusion(1.0), 3, 2)
    by_matrix = reached(Diffusion(M), 3, 2)
    u, order = normal(0, "u", size=(1, 7, 5)), torch.tensor([3, 0, 4, 1, 2])
    relabelled = Diffusion(M[order][:, order])(u[..., order])
    gap = (relabelled - Diffusion(M)(u)[..., order]).abs().max().item()
    right = tokens == {2, 3, 4} and features == {2} and by_matrix == ({2, 3, 4}, {0, 1, 2, 3, 4})
    evidence("repair", holds=right and gap < 1e-9, fails=not right or gap > 1e-3)


# P2 eq 7: no diffusion from FFN and positions


@pytest.mark.claim("P2-eq7")
@pytest.mark.parametrize("activation", KINDS)
def test_does_a_feed_forward_network_with_positions_connect_tokens(activation, evidence):
    P = normal(1, "P", size=(1, 9, 4))
    f = ffn(activation)
    off = largest_off_diagonal(jacobian(lambda u: f(u + P), normal(1, "u", size=(1, 9, 4)))).item()
    evidence("printed", holds=off > 1e-9, fails=off == 0)


@pytest.mark.claim("P2-eq7")
def test_does_it_see_the_curvature_of_the_field(evidence):
    """u and v = u + ½c(x − x₀)²χ agree at x₀ in value and slope, and differ there by c in the second derivative."""
    n, c, width = 201, 50.0, 0.1
    x = heat.centres(n)
    middle, f, P = n // 2, ffn(), normal(1, "P", size=(1, n, 4))
    u = torch.sin(3 * x).reshape(1, n, 1).expand(1, n, 4)
    z = ((x - x[middle]) / width).clamp(-1, 1)
    v = u + (c / 2 * (x - x[middle]) ** 2 * (1 - z**2) ** 3).reshape(1, n, 1)
    seen = (f(v + P) - f(u + P))[0, middle].abs().max().item()
    curvature = (laplacian(v) - laplacian(u))[0, middle].abs().max().item()
    assert curvature == pytest.approx(c, rel=0.01)
    near = (-((x - x[middle]) ** 2) / (2 * 0.02**2)).softmax(dim=0)
    assert (near @ (v - u)[0]).abs().max() > 1e-3, "an average over a window narrower than the bend must see it"
    evidence("printed", holds=seen > 1e-3, fails=seen == 0)


@pytest.mark.claim("P2-eq7")
def test_does_the_symbol_of_the_network_fall_with_the_frequency_as_that_of_diffusion_does(evidence):
    P, f = normal(1, "P", size=(1, 16, 4)), ffn()
    found = symbol(jacobian(lambda u: f(u + P), normal(1, "u", size=(1, 16, 4)))).real[0]
    change = (found[8] - found[0]).abs().item() / found[0].abs().item()
    evidence("printed", holds=change > 0.1, fails=change < 1e-9)


@pytest.mark.claim("P2-eq7")
def test_does_averaging_with_weights_diffuse_with_half_their_second_moment(evidence):
    """The remainder of the expansion with m₁ and ½m₂ stays in the bound, and is of third order in the width."""
    x, at = heat.centres(801), 400
    u = torch.stack([torch.sin(2 * x), torch.cos(3 * x)], dim=-1)
    V = normal(2, "V", size=(2, 2))
    first, second = torch.stack([2 * torch.cos(2 * x), -3 * torch.sin(3 * x)], -1), -u * torch.tensor([4.0, 9.0])
    ratios, rests = [], []
    widths = (0.02, 0.04, 0.08)
    for width in widths:
        p = torch.where(x >= x[at], torch.exp(-((x - x[at]) ** 2) / (2 * width**2)), 0.0)
        p = p / p.sum()
        r = x - x[at]
        m1, m2, m3 = ((p * r.abs() ** k).sum() for k in (1, 2, 3))
        rest = (V @ (p @ u - u[at] - m1 * first[at] - m2 / 2 * second[at])).norm()
        third = math.sqrt(8**2 + 27**2)  # |u'''| ≤ |(8, 27)|
        ratios.append((rest / (torch.linalg.matrix_norm(V, 2) * third * m3 / 6)).item())
        rests.append(rest.item())
    order = slope(widths, rests)
    evidence("repair", holds=max(ratios) <= 1 and abs(order - 3) < 0.3, fails=max(ratios) > 1 + 1e-6)


@pytest.mark.claim("P2-eq7")
def test_does_the_diffusivity_of_a_block_stay_without_its_feed_forward_network(evidence):
    V = torch.tensor([[1.0, 0.3], [0.0, 0.5]], dtype=torch.float64)
    alone = position_kernel.layer_diffusivity(OMEGA / 4, V)
    with_zero = position_kernel.layer_diffusivity(OMEGA / 4, V, ffn=lambda w: 0 * w)
    # without attention, the network alone has none
    P = normal(0, "P", size=(1, 16, 4))
    f = ffn()
    network = measure(jacobian(lambda u: u + f(u + P), normal(0, "u", size=(1, 16, 4)))).abs().max().item()
    m2 = moment(
        position_kernel.weights(position_kernel.encode(heat.centres(128), OMEGA / 4)).reshape(1, 1, 128, 128), 2
    )
    half = m2[0, 0, 64].item() / 2 * 0.75  # tr V/d
    right = alone == pytest.approx(half, rel=1e-9) and with_zero == alone and network == 0
    evidence("repair", holds=right, fails=abs(alone - half) > 0.01 * half or network > 0)


@pytest.mark.claim("P2-eq7")
def test_do_eigenvalues_decide_and_neither_trace_nor_symmetric_part(evidence):
    """A shear whose symmetric part is indefinite stays bounded; a matrix of positive trace does not."""
    shear, mixed = torch.tensor([[1.0, 10.0], [0.0, 1.0]]), torch.diag(torch.tensor([3.0, -1.0]))
    grown = {}
    for name, D in {"shear": shear, "mixed": mixed}.items():
        for n in (32, 128):
            factors = torch.linalg.matrix_exp(1e-3 * laplacian_eigenvalues(n).view(-1, 1, 1) * D.double())
            grown[name, n] = torch.linalg.matrix_norm(factors, 2).max().item()
    bounded = grown["shear", 128] < 5 and grown["shear", 32] < 5
    evidence("repair", holds=bounded and grown["mixed", 128] > 1e6 * grown["mixed", 32], fails=not bounded)


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
    x = heat.centres(4001)
    r = x - x[2000]
    p = (-(r**2) / (2 * 0.05**2)).softmax(dim=0)

    def answer(width):
        z = (r / width).clamp(-1, 1)
        return (p @ (25 * r**2 * (1 - z**2) ** 3)).item() / (25 * (p @ r**2).item())

    wide, narrow, narrower = answer(4.0), answer(0.02), answer(0.01)
    assert wide == pytest.approx(1, abs=0.01)
    assert narrower / narrow == pytest.approx(1 / 8, abs=0.02)  # height η², and a share η of the window


# P2 eq 18


def remainder(f, u, P):
    """|f(u + P) − f(u) − J(u)P|."""
    J = jacobian(f, u)
    return (f(u + P) - f(u) - torch.einsum("biajc,bjc->bia", J, P)).norm().item()


@pytest.mark.claim("P2-eq18")
@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_is_the_remainder_of_second_order_for_smooth_activations(activation, evidence):
    f, u, P = ffn(activation), normal(3, "u", size=(1, 5, 4)), normal(3, "P", size=(1, 5, 4))
    sizes = (0.04, 0.02, 0.01)
    order = slope(sizes, [remainder(f, u, s * P) for s in sizes])
    evidence("printed", holds=abs(order - 2) < 0.1, fails=order < 1.5)


@pytest.mark.claim("P2-eq18")
def test_is_the_remainder_of_second_order_for_relu_where_a_unit_switches(evidence):
    """u on the kink of a unit: the larger of the remainders at P and −P."""
    f = ffn("relu")
    unit = f.inner.weight[0]
    u = normal(3, "u", size=(1, 1, 4))
    u = u - (u @ unit + f.inner.bias[0]).unsqueeze(-1) / unit.square().sum() * unit
    P = unit.reshape(1, 1, 4)
    sizes = (0.04, 0.02, 0.01)
    order = slope(sizes, [max(remainder(f, u, s * P), remainder(f, u, -s * P)) for s in sizes])
    evidence("printed", holds=abs(order - 2) < 0.1, fails=abs(order - 1) < 0.1)


@pytest.mark.claim("P2-eq18")
def test_do_the_terms_of_the_expansion_hold_derivatives_of_the_field(evidence):
    """Each term as a function of u: FFN(u), J(u)P and ½P·H(u)P, differentiated at other positions."""
    f, u, P = ffn(), normal(3, "u", size=(1, 6, 4)), normal(3, "P", size=(1, 6, 4))

    def along(g):
        return lambda v: torch.func.jvp(g, (v,), (P,))[1]

    terms = (f, along(f), along(along(f)))
    off = [largest_off_diagonal(jacobian(term, u)).item() for term in terms]
    on = [jacobian(term, u).abs().max().item() for term in terms]
    assert min(on) > 1e-3
    evidence("printed", holds=max(off) > 1e-9, fails=max(off) == 0)


@pytest.mark.claim("P2-eq18")
def test_is_the_equation_of_the_network_a_separate_one_at_each_position(evidence):
    f, P = ffn(), normal(3, "P", size=(1, 6, 4))
    u = normal(3, "u", size=(1, 6, 4))
    changed = u.clone()
    changed[0, 4] += 1
    ends = [solve(lambda v: f(v + P) - v, start, steps=20, dt=0.05).final for start in (u, changed)]
    heated = [solve(Diffusion(0.1), start, steps=20, dt=0.01).final for start in (u, changed)]
    same = torch.equal(ends[0][0, :4], ends[1][0, :4])
    spread = (heated[0] - heated[1])[0, 0].abs().max().item()
    evidence("repair", holds=same and spread > 1e-3, fails=not same)


# P2 eq 8


@pytest.mark.claim("P2-eq8")
def test_has_any_reading_of_equation_8_the_exponent_of_the_positions_that_is_measured(evidence):
    found = position_kernel.exponents(OMEGA)
    gaps = [abs(found[name] - found["measured"]) for name in ("constant", "moment", "weights")]
    evidence("printed", holds=min(gaps) < 0.2, fails=min(gaps) > 0.5)


@pytest.mark.claim("P2-eq8")
def test_is_the_exponent_of_the_positions_minus_one_under_the_hypotheses(evidence):
    found = position_kernel.exponents(OMEGA)["measured"]
    evidence("repair", holds=abs(found + 1) < 0.1, fails=abs(found + 1) > 0.3)


@pytest.mark.claim("P2-eq8")
def test_does_the_trace_of_the_network_give_the_sign_of_the_diffusivity(evidence):
    """Untrained Transformers, 80 layers in all, where the trace has either sign; agreement near one half is chance."""
    task = TASKS["images"]["smoke"]
    data = task.load(0)
    x = data.test.take(slice(0, 2)).x.double()
    agree, chance = [], []
    for seed in range(40):
        model = build("transformer", task, data, 100 + seed).double().requires_grad_(False)
        for layer in diffusivity.layers_of(model, x):
            found = diffusivity.measure_layer(*layer)
            agree.append(diffusivity.same_sign(found["trace"], found["layer"]))
            chance.append((found["trace"] < 0).double().mean().item())
    assert 0.2 < np.mean(chance) < 0.8
    share, error = np.mean(agree), np.std(agree) / math.sqrt(len(agree))
    evidence("printed", holds=share > 0.9, fails=abs(share - 0.5) < 4 * error and share < 0.75)


@pytest.mark.claim("P2-eq8")
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_is_the_diffusivity_of_attention_the_sum_of_values_and_scores(heads, causal, evidence):
    term = seeded(lambda: Interaction(6, heads, causal=causal, strength=0.7), 5)
    u = 2 * normal(5, "u", size=(3, 7, 6))
    values, scores = diffusivity.attention_diffusivity(term, u)
    measured = measure(jacobian(term, u))
    off = ((values + scores - measured).norm() / measured.norm()).item()
    assert scores.norm() > 0.01 * measured.norm(), "the second part must count"
    evidence("repair", holds=off < 1e-10, fails=off > 1e-3)


def test_the_two_parts_of_attention_do_not_see_padding():
    term = seeded(lambda: Interaction(6, 2), 5)
    u = normal(5, "u", size=(1, 7, 6))
    mask = torch.tensor([[False, True, True, True, True, False, False]])
    alone = diffusivity.attention_diffusivity(term, u[:, 1:5])
    for part, wanted in zip(diffusivity.attention_diffusivity(term, u, mask), alone, strict=True):
        torch.testing.assert_close(part[:, 1:5], wanted, rtol=1e-12, atol=1e-14)
        assert (part[~mask] == 0).all()


# Positions


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_positions_have_constant_length_and_the_slope_of_their_frequencies(seed):
    omega = position_kernel.spread_frequencies(seed)
    P = position_kernel.encode(heat.centres(2048), omega)
    torch.testing.assert_close(P.norm(dim=-1), torch.ones(2048, dtype=torch.float64), rtol=1e-12, atol=0)
    speed = (P[1:] - P[:-1]).norm(dim=-1) * 2048
    torch.testing.assert_close(speed**2, omega.square().mean().expand(2047), rtol=1e-3, atol=0)


def test_the_law_needs_one_peak_a_fine_grid_a_narrow_kernel_constant_length_and_room():
    assert attack_diffusion.off_the_law(attack_diffusion.law_ratios(3, "none", 8)) == 0
    for kind in attack_diffusion.BROKEN:
        assert attack_diffusion.off_the_law(attack_diffusion.law_ratios(3, kind, 8)) > 3, kind


def test_a_kernel_near_the_end_loses_part_of_its_second_moment():
    """A Gaussian cut one width from its centre keeps 1 − φ(1)/Φ(1) = 0.712 of its second moment."""
    kept = 1 - math.exp(-0.5) / math.sqrt(2 * math.pi) / (0.5 * (1 + math.erf(1 / math.sqrt(2))))
    ratios = attack_diffusion.law_ratios(3, "near the end", 8)
    assert ratios.numpy() == pytest.approx(kept, abs=0.06)  # the cut falls on a token, up to half a width/5


# The adversary


def test_the_laws_withstand_the_search_and_smaller_bounds_do_not():
    found = {
        "taylor": attack_diffusion.attack_taylor(7, 16, 60),
        "step": attack_diffusion.attack_step(7, 4, 120)[0],
        **attack_diffusion.attack_kernel(7, 15, 60),
        "backward": attack_diffusion.attack_backward(7, 16, 60),
    }
    for name, ratios in found.items():
        assert adversary.SHRUNK < ratios.max() <= 1 + adversary.ROUNDING, name


def test_the_familiar_rule_is_reached_only_where_the_grid_holds_the_fastest_wave():
    """Absorbing ends, and periodic ones with an even number of tokens; elsewhere cos²(π/2N) of it."""
    _, rule = attack_diffusion.attack_step(7, 4, 300)
    for boundary, row in zip(BOUNDARIES, rule.tolist(), strict=True):
        for n, found in zip(attack_diffusion.GRIDS, row, strict=True):
            held = boundary == "absorbing" or (boundary == "periodic" and n % 2 == 0)
            wanted = 1 if held else math.cos(math.pi / (2 * n)) ** 2
            assert found == pytest.approx(wanted, rel=1e-3), (boundary, n)


def test_the_equal_gaussian_has_the_second_moment_that_was_asked_for_and_its_gradient():
    r, tau = attack_diffusion.kernel_tokens(3, 6, 0.1), torch.full((6,), 0.3, dtype=torch.float64)
    g = torch.linspace(0.5, 3, 6, dtype=torch.float64, requires_grad=True)
    m2 = position_kernel.gaussian_moment(r, g.unsqueeze(-1), tau.unsqueeze(-1))
    found = attack_diffusion.equal_gaussian(r, m2, tau)
    torch.testing.assert_close(found, g, rtol=1e-9, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), g)  # of g ↦ G⁻¹(G(g))
    torch.testing.assert_close(gradient, torch.ones(6, dtype=torch.float64), rtol=1e-6, atol=0)


def test_tokens_of_the_kernel_attack_keep_their_range():
    for inner in (0.1, 0.998):
        distance = attack_diffusion.kernel_tokens(0, 30, inner).abs()
        torch.testing.assert_close(distance.amin(dim=-1), torch.full((30,), inner, dtype=torch.float64))
        assert (distance.amax(dim=-1) == 1).all()


def test_exact_laws_stand_and_half_laws_fall():
    full, part = attack_diffusion.attack_formula(7, draws=3)
    assert full.max() < 1e-10
    assert part.min() > 0.01
    network, attention = attack_diffusion.attack_locality(7, draws=3)
    assert network.max() == 0
    assert attention.min() > 1e-3
    assert attack_diffusion.positive_trace_but_backward(7).any()


def test_the_recorded_experiment_has_every_figure_at_smoke_size():
    result = diffusivity.run("smoke", 1)
    assert result.status == "finished"
    assert result.figures["ffn_off_diagonal"] == result.figures["ffn_diffusivity"] == 0
    assert result.figures["full_relative_error"] < 1e-10
    assert result.figures["composed_relative_error"] < 1e-10
    assert set(result.controls) == {f"untrained_{name}" for name in result.figures if name != "accuracy"}


def test_regression_recovers_a_power_law():
    a, b = (normal(0, k, size=(50,)) for k in "ab")
    coefficients, r2 = diffusivity.regress(2 * a - 0.5 * b + 3, [a, b])
    assert coefficients == pytest.approx([2, -0.5])
    assert r2 == pytest.approx(1)


def test_a_regression_of_layers_recovers_the_exponents_of_a_law_and_the_network_that_is_not_in_it():
    shape = (3, 4, 6)
    layers = {k: normal(0, k, size=shape).exp() for k in ("slope", "trace", "variance_moment", "variance_weights")}
    layers["variance_constant"] = torch.ones(shape, dtype=torch.float64)
    layers["without_ffn"] = layers["variance_moment"] * layers["slope"] ** -0.5
    layers["layer"] = -2 * layers["without_ffn"]
    found = diffusivity.exponents(layers)
    for kind in ("moment", "within_layers", "without_ffn"):
        exponents = [found[f"{kind}_exponent_{k}"] for k in ("slope", "trace", "variance")]
        assert exponents == pytest.approx([-0.5, 0, 1], abs=1e-9)
    assert found["network_exponent_trace"] == pytest.approx(0, abs=1e-9)
    assert found["moment_r2"] == pytest.approx(1)


def test_the_share_of_the_ends_is_one_if_only_they_differ_and_small_if_they_do_not():
    assert diffusivity.share_of_the_ends(torch.tensor([4.0, 1.0, 1.0, 1.0, 4.0])) == pytest.approx(1)
    assert diffusivity.share_of_the_ends(torch.tensor([2.0, 1.0, 3.0, 2.0])) == pytest.approx(0, abs=1e-6)


def test_a_table_of_independent_rows_is_steepest_at_its_ends():
    """One-sided differences of independent rows have four times the square of central ones."""
    slopes = torch.stack([position_slope(normal(seed, "rows", size=(8, 32))) for seed in range(50)])
    assert (slopes[:, [0, -1]].mean() / slopes[:, 1:-1].mean()).item() == pytest.approx(4, rel=0.15)
