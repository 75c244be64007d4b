"""What the papers state of diffusion over tokens.  (P2 eq 7, 8, 18; P1 eq 8, 20, figure 7)"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pdebook.chapters.diffusion import attack, laws, measure
from pdebook.evidence.adversary import ROUNDING
from pdebook.evidence.stacks import slope
from pdebook.evidence.trained import TASKS, build
from pdelab import Coupling, Diffusion, FeatureDiffusion, Interaction, MasterEquation, Reaction, laplacian, solve
from pdelab.field import BOUNDARIES, laplacian_eigenvalues, laplacian_modes
from pdelab.formulas import centres
from pdelab.metrics.diffusivity import diffusivity, largest_off_diagonal, moment, symbol
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal

OMEGA = laws.spread_frequencies(7)


KINDS = ("relu", "gelu", "tanh")


def drawn(build_term, seed=0):
    return laws.drawn(build_term, seed)


def ffn(activation="tanh", seed=0, width=4):
    return drawn(lambda: Reaction(width, 16, activation=activation), seed)


# P1 eq 20: the explicit scheme


@pytest.mark.claim("P1-eq20")
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_has_the_explicit_scheme_order_one_in_time_and_two_in_space_within_the_step_bound(boundary, evidence):
    tokens = (8, 16, 32, 64)
    # Δt ∝ Δx², so that one refinement tests both: 2Δt/Δx² = 0.4 and the error falls fourfold
    space = slope(tokens, [laws.error("explicit", boundary, n, round(laws.TIME / 0.2 * n**2)) for n in tokens])
    steps = (128, 256, 512)
    time = slope(steps, [laws.error("explicit", boundary, 32, n, against="grid") for n in steps])
    evidence("repair", holds=abs(space + 2) < 0.1 and abs(time + 1) < 0.05, fails=space > -1.5 or time > -0.8)


@pytest.mark.claim("P1-eq20")
def test_does_the_scheme_converge_without_a_bound_on_the_step(evidence):
    """2DΔt/Δx² = 1.2 on finer and finer grids, from x(1 − x) and in whole numbers: what grows is not rounding."""
    errors = [laws.error_in_fractions(Fraction(6, 5), n) for n in (16, 32, 64)]
    evidence("printed", holds=errors[2] < errors[1] < errors[0], fails=errors[2] > 1e3 * errors[1] > 1e6 * errors[0])


@pytest.mark.claim("P1-eq20")
def test_does_the_scheme_converge_from_the_same_data_within_the_bound_on_the_step(evidence):
    tokens = (8, 16, 32, 64)
    found = [slope(tokens, [laws.error_in_fractions(r, n) for n in tokens]) for r in (Fraction(2, 5), Fraction(1))]
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


@pytest.mark.claim("P1-eq20")
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_does_the_scheme_blow_up_at_two_over_the_largest_eigenvalue_of_the_grid(boundary, evidence):
    found = [laws.blow_up_step(n, boundary) / Diffusion(1.0, boundary).largest_step(n) for n in (4, 5, 8, 9)]
    off = max(abs(ratio - 1) for ratio in found)
    evidence("repair", holds=off < 1e-3, fails=off > 1e-2)


# P1 figure 7


@pytest.mark.claim("P1-fig7")
def test_does_diffusion_spread_a_bump_over_the_tokens_as_the_exact_modes_say(evidence):
    n, D, t = 64, 0.5, 0.004
    u0 = laws.bump(n)
    found = laws.advance(u0, t, 400, "explicit", "reflecting", D)
    # mode k with its eigenvalue on the grid; on the line it is −k²π², within 0.1 % for the modes the bump holds
    modes, rates = laplacian_modes(n), laplacian_eigenvalues(n)
    exact = modes @ (torch.exp(D * t * rates).unsqueeze(-1) * (modes.T @ u0[0]))
    off = (found[0] - exact).abs().max().item()
    widened = (laws.variance(found) - laws.variance(u0)) / (2 * D * t)
    evidence("printed", holds=off < 1e-3 and abs(widened - 1) < 1e-3, fails=off > 0.1)


@pytest.mark.claim("P1-fig7")
def test_does_diffusion_move_information_between_layers(evidence):
    """P1 eq 17: each layer has a field (two features here) and a matrix D_l of its own. Exchange left out.

    The same flow with the exchange is the control: there a change in layer 1 must be seen in layer 2.
    """
    matrices = [torch.tensor(m, dtype=torch.float64) for m in ([[1.0, 0.4], [-0.4, 0.6]], [[0.5, 0.0], [0.3, 0.8]])]
    terms = Diffusion(torch.block_diag(*matrices)), drawn(lambda: Coupling(2, 2))
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
    J = jacobian(drawn(lambda: Coupling(2, 2)), normal(0, "u", size=(1, 8, 4)))
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
    x = centres(n)
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
    x, at = centres(801), 400
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
    alone = measure.layer_diffusivity(OMEGA / 4, V)
    with_zero = measure.layer_diffusivity(OMEGA / 4, V, ffn=lambda w: 0 * w)
    # without attention, the network alone has none
    P = normal(0, "P", size=(1, 16, 4))
    f = ffn()
    network = diffusivity(jacobian(lambda u: u + f(u + P), normal(0, "u", size=(1, 16, 4)))).abs().max().item()
    m2 = moment(laws.weights(laws.encode(centres(128), OMEGA / 4)).reshape(1, 1, 128, 128), 2)
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


# P2 eq 18, and what is inferred from it


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
    evidence("repair", holds=abs(order - 2) < 0.1, fails=order < 1.5)


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
def test_is_there_no_remainder_for_relu_where_no_unit_switches(evidence):
    f, u, P = ffn("relu"), normal(3, "u", size=(1, 5, 4)), normal(3, "P", size=(1, 5, 4))
    nearest = (f.inner(u).abs() / f.inner(P).abs().clamp(min=1e-9)).min().item()
    gap = remainder(f, u, min(0.5 * nearest, 1e-3) * P)
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-9)


@pytest.mark.claim("P2-eq18-diffusion")
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


@pytest.mark.claim("P2-eq18-diffusion")
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
    found = measure.position_exponents(OMEGA)
    gaps = [abs(found[name] - found["measured"]) for name in ("constant", "moment", "weights")]
    evidence("printed", holds=min(gaps) < 0.2, fails=min(gaps) > 0.5)


@pytest.mark.claim("P2-eq8")
def test_is_the_exponent_of_the_positions_minus_one_under_the_hypotheses(evidence):
    found = measure.position_exponents(OMEGA)["measured"]
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
        for layer in measure.layers_of(model, x):
            found = measure.measure_layer(*layer)
            agree.append(measure.same_sign(found["trace"], found["layer"]))
            chance.append((found["trace"] < 0).double().mean().item())
    assert 0.2 < np.mean(chance) < 0.8
    share, error = np.mean(agree), np.std(agree) / math.sqrt(len(agree))
    evidence("printed", holds=share > 0.9, fails=abs(share - 0.5) < 4 * error and share < 0.75)


@pytest.mark.claim("P2-eq8")
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_is_the_diffusivity_of_attention_the_sum_of_values_and_scores(heads, causal, evidence):
    term = drawn(lambda: Interaction(6, heads, causal=causal, strength=0.7), 5)
    u = 2 * normal(5, "u", size=(3, 7, 6))
    values, scores = laws.attention_diffusivity(term, u)
    measured = diffusivity(jacobian(term, u))
    off = ((values + scores - measured).norm() / measured.norm()).item()
    assert scores.norm() > 0.01 * measured.norm(), "the second part must count"
    evidence("repair", holds=off < 1e-10, fails=off > 1e-3)


# P1 figure 1: colours that weaken


def heated(step, axis, seed, layers=9):
    """(first, last state, matrix of one update) of u ← u + step (u_{i−1} − 2u_i + u_{i+1}) along one axis."""
    u = normal(seed, "colour", axis, size=(28, 64))
    size = u.shape[axis]
    one = torch.ones(size - 1, dtype=u.dtype)
    neighbours = one.diag(1) + one.diag(-1)
    update = torch.eye(size, dtype=u.dtype) + step * (neighbours - neighbours.sum(1).diag())
    last = torch.linalg.matrix_power(update, layers) @ (u if axis == 0 else u.T)
    return (u if axis == 0 else u.T), last, update


STEPS = (0.05, 0.1, 0.2)  # 0.1 is that of our table 2; the limit is 1/2, half of it 1/4


@pytest.mark.claim("P1-colour")
def test_do_the_colours_weaken_with_depth(evidence):
    shares = []
    for step in STEPS:
        for axis in (0, 1):
            first, last, _ = heated(step, axis, 0)
            shares.append((last.std() / first.std()).item())
    evidence("printed", holds=max(shares) < 0.95, fails=max(shares) >= 1)


@pytest.mark.claim("P1-colour")
def test_is_information_lost_where_the_colours_weaken(evidence):
    """The first state from the last, by solving nine times."""
    gaps = []
    for step in STEPS:
        for axis in (0, 1):
            first, back, update = heated(step, axis, 1)
            for _ in range(9):
                back = torch.linalg.solve(update, back)
            gaps.append(((back - first).norm() / first.norm()).item())
    evidence("printed", holds=min(gaps) > 0.01, fails=max(gaps) < 1e-6)


@pytest.mark.claim("P1-colour")
def test_is_every_update_below_half_of_the_limit_invertible(evidence):
    """Its eigenvalues lie in [1 − 4 step, 1]."""
    least = [torch.linalg.eigvalsh(heated(step, axis, 0)[2]).min().item() for step in STEPS for axis in (0, 1)]
    bound = [1 - 4 * step for step in STEPS for _ in (0, 1)]
    evidence(
        "repair",
        holds=all(a >= b - 1e-12 for a, b in zip(least, bound, strict=True)) and min(bound) > 0,
        fails=min(least) <= 0,
    )


@pytest.mark.claim("P2-eq7")
def test_does_a_stack_of_averages_stay_within_its_bound_of_heat(evidence):
    """Extremal and random rows, one layer and three; the bound is nearly reached, so that a tenth less would fail."""
    scores = [attack.heat(**start) for _, start in attack.run.statements["heat"].searches(7)]
    worst = torch.cat(scores).max().item()
    evidence("repair", holds=0.9 < worst <= 1 + ROUNDING, fails=worst > 1 + ROUNDING)
