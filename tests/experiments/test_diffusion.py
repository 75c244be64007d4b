"""Does a Transformer diffuse? Schemes, kernels, adversary and claims. (P2 eq 7, 8, 18; P1 eq 8, 20, figure 7)"""

import math

import numpy as np
import pytest
import torch

from pdelab import Coupling, Diffusion, FeatureDiffusion, Interaction, MasterEquation, Reaction, laplacian, solve
from pdelab.experiments import adversary, attack_diffusion, diffusivity, heat, position_kernel
from pdelab.experiments.scales import torch_threads
from pdelab.experiments.tasks import TASKS, build
from pdelab.field import BOUNDARIES, laplacian_eigenvalues, laplacian_modes
from pdelab.metrics.diffusivity import diffusivity as measure
from pdelab.metrics.diffusivity import largest_off_diagonal, moment, symbol
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
    """2DΔt/Δx² = 1.2 on finer and finer grids: the printed formula alone does not forbid it."""
    errors = [heat.error("explicit", "absorbing", n, round(heat.TIME / 0.6 * n**2)) for n in (16, 32, 64)]
    evidence("printed", holds=errors[2] < errors[1] < errors[0], fails=errors[2] > 1e3)


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
        assert heat.spreading(boundary, "explicit", 0.9)[-1].abs().max() <= 1
        assert heat.spreading(boundary, "explicit", 1.6)[-1].abs().max() > 1
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
    evidence("repair", holds=off < 1e-3 and abs(widened - 1) < 1e-3, fails=off > 0.1)


@pytest.mark.claim("P1-fig7")
def test_does_diffusion_move_information_between_layers(evidence):
    """Two layers side by side along the features, as for P1 eq 17: what does a change in layer 1 reach in layer 2?"""
    u = normal(0, "u", size=(1, 8, 4))
    J = jacobian(MasterEquation(Diffusion(0.7)), u)
    across = J[:, :, 2:, :, :2].abs().max().item()
    between_tokens = largest_off_diagonal(J).item()
    assert between_tokens > 1, "the test must see movement where there is some"
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
def test_is_the_equation_well_posed_exactly_if_all_eigenvalues_have_positive_real_part(evidence):
    shear, mixed = torch.tensor([[1.0, 10.0], [0.0, 1.0]]), torch.diag(torch.tensor([3.0, -1.0]))
    grown = {}
    for name, D in {"shear": shear, "mixed": mixed}.items():
        for n in (32, 128):
            factors = torch.linalg.matrix_exp(1e-3 * laplacian_eigenvalues(n).view(-1, 1, 1) * D.double())
            grown[name, n] = torch.linalg.matrix_norm(factors, 2).max().item()
    bounded = grown["shear", 128] < 5 and grown["shear", 32] < 5
    evidence("repair", holds=bounded and grown["mixed", 128] > 1e6 * grown["mixed", 32], fails=not bounded)


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
        "low": attack_diffusion.attack_kernel(7, 16, 60)[0],
        "high": attack_diffusion.attack_kernel(7, 16, 60)[1],
        "backward": attack_diffusion.attack_backward(7, 16, 60),
    }
    for name, ratios in found.items():
        assert adversary.SHRUNK < ratios.max() <= 1 + adversary.ROUNDING, name


def test_the_familiar_rule_is_reached_only_where_the_grid_holds_the_fastest_wave():
    """Absorbing ends, and periodic ones with an even number of tokens."""
    _, rule = attack_diffusion.attack_step(7, 4, 300)
    best = rule.reshape(3, len(attack_diffusion.GRIDS), 4).amax(dim=-1)  # (boundary, grid)
    reached = {
        (b, n)
        for b, row in zip(BOUNDARIES, best, strict=True)
        for n, r in zip((4, 5, 8, 9), row, strict=True)
        if r > 0.99
    }
    assert reached == {("absorbing", n) for n in (4, 5, 8, 9)} | {("periodic", 4), ("periodic", 8)}


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
    assert set(result.controls) == {f"untrained_{name}" for name in result.figures if name != "accuracy"}


def test_regression_recovers_a_power_law():
    a, b = (normal(0, k, size=(50,)) for k in "ab")
    coefficients, r2 = diffusivity.regress(2 * a - 0.5 * b + 3, [a, b])
    assert coefficients == pytest.approx([2, -0.5])
    assert r2 == pytest.approx(1)
