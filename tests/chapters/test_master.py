"""One equation, four terms: the sum, the sweep, the two −u, the dial, the dictionary.  (P2 eq 4-6; P1 eq 1, §2.3)"""

import copy
import math

import pytest
import torch
from torch import nn

from pdebook.chapters.continuum_limit import continuum
from pdebook.chapters.master_equation import attack as attack_master
from pdebook.chapters.master_equation import budgets, dial, dictionary
from pdebook.chapters.master_equation.dial import law
from pdebook.evidence import adversary
from pdebook.evidence.experiment import Scale, torch_threads
from pdelab import (
    Diffusion,
    Euler,
    Interaction,
    LieEuler,
    MasterEquation,
    Reaction,
    SpatialStabilization,
    from_torch,
    solve,
)
from pdelab.integrators import RK4
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import budget
from pdelab.metrics.stability import energy
from pdelab.seeds import normal, stream
from pdelab.terms.base import Term

WIDTH, HEADS, HIDDEN = 8, 2, 16
ROUNDING = 1e-10  # of one block in double precision
DIFFERENT = 0.02  # of the state: far from rounding, and what a depth of fifty layers would make of the whole state


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


def tokens(*names, size=(2, 5, WIDTH)):
    return normal(0, "master", *names, size=size)


def encoder_layer(number=0):
    """torch's own post-LayerNorm layer, with gains and biases away from 1 and 0."""
    return attack_master.random_encoder(3, number)


def relative(u, v):
    return ((u - v).norm() / v.norm()).item()


# P2-eq4: is a Transformer the sum of four terms?


def layers_of_torch():
    """Two kinds of weights: torch's own first draw, and large ones with gains and biases away from 1 and 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True)
    first = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).double().requires_grad_(False)
    return first, encoder_layer()


def smallest_gap(equations, schemes, block, u, steps=(0.02, 0.1, 0.2, 0.5, 0.7, 1.0)):
    """min over equations, schemes and Δt of ‖one step − block(u)‖/‖block(u)‖, also for tokens on the sphere."""
    return min(
        relative(scheme.step(equation, v, 0.0, dt), block(v))
        for v in (u, continuum.on_sphere(u))
        for equation in equations
        for scheme in schemes
        for dt in steps
    )


@pytest.mark.claim("P2-eq4")
@pytest.mark.parametrize("leak", [True, False], ids=["as printed", "without −u"])
def test_is_one_step_of_the_printed_sum_an_encoder_block(evidence, leak):
    """P2 eq 4-6, 8, 9 with the attention and the network of torch's layer: any γ, D, Δt and scheme of a grid.

    Without −u is more than is printed: it is what the two residual connections would make of the sum if they were
    rates +u inside S, which undo the −u of A and of R.
    """
    gaps = []
    for encoder in layers_of_torch():
        attention, _, network, _ = from_torch(encoder).equation.equations[0].terms
        attention.leak = network.leak = leak
        sums = [
            MasterEquation(attention, network, Diffusion(d), SpatialStabilization(gamma).double())
            for gamma in (0.0, 0.3, 1.0, 3.0)
            for d in (0.0, 1e-2)
        ]
        gaps.append(smallest_gap(sums, (Euler(), RK4(), LieEuler()), encoder, tokens("printed")))
    evidence("printed", holds=max(gaps) < ROUNDING, fails=min(gaps) > DIFFERENT)


@pytest.mark.claim("P2-eq4")
def test_is_one_step_on_the_sum_of_attention_norm_network_norm_an_encoder_block(evidence):
    """The very terms of the block, LayerNorm itself for S and no −u, but added up: any Δt and scheme for a sum."""
    gaps = []
    for encoder in layers_of_torch():
        equation = from_torch(encoder).equation
        gaps.append(smallest_gap([equation], (Euler(), RK4()), encoder, tokens("sum")))
    evidence("printed", holds=max(gaps) < ROUNDING, fails=min(gaps) > DIFFERENT)


@pytest.mark.claim("P2-eq4")
def test_is_a_sweep_through_the_same_terms_an_encoder_block(evidence):
    gaps = []
    for number in range(5):
        encoder, u = encoder_layer(number), tokens("sweep", number)
        gaps.append(relative(LieEuler().step(from_torch(encoder).equation, u, 0.0, 1.0), encoder(u)))
    evidence("repair", holds=max(gaps) < ROUNDING, fails=max(gaps) > 1e-6)


@pytest.mark.claim("P2-eq4")
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_do_sum_and_sweep_meet_as_the_step_shrinks(evidence, seed):
    """Tokens on the sphere, gain 1: their distance falls like Δt."""
    depths = (8, 16, 32)
    even = continuum.slope(depths, budgets.sum_against_sweep(seed, depths))
    evidence("repair", holds=abs(even + 1) < 0.1, fails=even > -0.5)


def test_sum_and_sweep_stay_apart_from_a_start_that_layernorm_moves():
    """e → −e is never damped: off the sphere, or on it with uneven gains. From a fixed point of LN they meet again."""
    depths = (8, 32)
    for start in ({"stretch": 1.3}, {"uneven": 0.5}):
        coarse, fine = budgets.sum_against_sweep(5, depths, **start)
        assert fine > 0.5 * coarse, start
        assert fine > 0.1, start
    coarse, fine = budgets.sum_against_sweep(5, depths, uneven=0.5, settled=500)
    assert fine < 0.5 * coarse


def test_the_budget_of_the_four_terms_closes():
    made = MasterEquation.later(WIDTH, HEADS, HIDDEN, diffusion=0.01).double().requires_grad_(False)
    run = solve(made, tokens("budget"), steps=6, dt=1 / 6)
    gap = budget(made, run, Euler()).energy.sum(dim=1) - per_layer(energy, run).diff()
    assert gap.abs().max() < 1e-12


@pytest.mark.parametrize("dt", [0.25, 1.0])
def test_two_residuals_as_rates_inside_s_undo_the_two_leaks(dt):
    """(Att − u) + (FFN − u) + (S + 2u) is the sum without −u: the identity's weight is 1 again at every Δt."""
    printed = MasterEquation(Interaction(4, leak=True), Reaction(4, 8, leak=True))
    u = normal(0, "filed", size=(1, 3, 4))
    with torch.no_grad():
        for weight in printed.parameters():
            weight.zero_()
        step = Euler().step(lambda v, t=0.0, mask=None: printed.double()(v) + 2 * v, u, 0.0, dt)
    torch.testing.assert_close(step, u)


# P1-eq1


def earlier_like(encoder, d, alpha, extra=0.0):
    """P1 eq 1 with the attention and the network of torch's layer; extra: a rate +u inside R."""
    attention, _, network, _ = from_torch(encoder).equation.equations[0].terms
    attention.strength = alpha
    network.source = None
    terms = [Diffusion(d), attention, _Filed(network, extra) if extra else network]
    return MasterEquation(*terms)


class _Filed(Term):
    """R(u) = FFN(u) + c u: the residual connection as a part of R, word for word."""

    symbol = "R"

    def __init__(self, network, factor):
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, u, t=0.0, mask=None):
        return self.network(u, t, mask) + self.factor * u


@pytest.mark.claim("P1-eq1")
@pytest.mark.parametrize("norm_first", [False, True], ids=["LayerNorm after", "LayerNorm before"])
def test_is_one_step_of_the_earlier_equation_an_encoder_block(evidence, norm_first):
    """Torch's block with its LayerNorms, which eq 1 has not: any D, α, Δt and scheme of a grid."""
    gaps = []
    for encoder in layers_of_torch():
        sums = [earlier_like(encoder, d, alpha) for d in (0.0, 1e-2) for alpha in (0.5, 1.0, 2.0)]
        theirs = copy.deepcopy(encoder)
        theirs.layers[0].norm_first = norm_first
        schemes = Euler(), RK4(), LieEuler()
        gaps.append(smallest_gap(sums, schemes, theirs.train(), tokens("earlier")))  # no dropout; off the fast path
    evidence("printed", holds=max(gaps) < ROUNDING, fails=min(gaps) > DIFFERENT)


@pytest.mark.claim("P1-eq1")
def test_is_a_residual_block_the_sweep_with_the_residual_inside_the_reaction(evidence):
    """Word for word: R(u) = FFN(u) + u, a block without LayerNorm, D = 0, any α and Δt of a grid."""
    encoder = encoder_layer(1)
    sums = [earlier_like(encoder, 0.0, alpha, extra=1.0) for alpha in (0.25, 0.5, 1.0, 2.0)]
    schemes = Euler(), RK4(), LieEuler()
    gap = smallest_gap(sums, schemes, lambda u: dictionary.torch_block(encoder.layers[0], u), tokens("filed"))
    evidence("printed", holds=gap < ROUNDING, fails=gap > DIFFERENT)


@pytest.mark.claim("P1-eq1")
def test_is_a_residual_block_without_norm_the_sweep_with_no_diffusion(evidence):
    """R = FFN, as P1's own formulas have it, D = 0, α = 1, Δt = 1."""
    encoder, u = encoder_layer(1), tokens("residual")
    block = dictionary.torch_block(encoder.layers[0], u)
    gaps = [relative(LieEuler().step(earlier_like(encoder, d, 1.0), u, 0.0, 1.0), block) for d in (0.0, 0.01)]
    assert gaps[1] > 1e-3, "with diffusion it must be another map"
    evidence("repair", holds=gaps[0] < ROUNDING, fails=gaps[0] > 1e-6)


@pytest.mark.claim("P1-eq1")
def test_do_modes_stay_bounded_for_a_spectrum_in_the_right_half_plane(evidence):
    """Also for a shear, whose symmetric part is indefinite: it grows for a while, by the same bound on every grid."""
    turning = torch.tensor([[0.1, -1.0], [1.0, 0.1]], dtype=torch.float64)
    shear = torch.tensor([[1.0, 10.0], [0.0, 1.0]], dtype=torch.float64)
    growth = [dictionary.mode_growth(turning, 0.01, tokens=n).max().item() for n in (8, 32)]
    times = (1e-4, 1e-3, 1e-2)
    worst = [max(dictionary.mode_growth(shear, t, tokens=n).max().item() for t in times) for n in (8, 32, 64)]
    bounded = max(growth) <= 1 + 1e-9 and max(worst) < 10
    evidence("repair", holds=bounded, fails=max(growth) > 2 or max(worst) > 100)


@pytest.mark.parametrize(
    ("matrix", "power"),
    [([[1.0, 0.0], [0.0, -0.1]], None), ([[0.0, 1.0], [0.0, 0.0]], 2)],
    ids=["negative", "nilpotent"],
)
def test_modes_grow_with_the_grid_for_a_spectrum_outside_the_open_half_plane(matrix, power):
    """A negative eigenvalue: faster than any power of the number of tokens. A nilpotent matrix: like its square."""
    D = torch.tensor(matrix, dtype=torch.float64)
    few, more, many = (dictionary.mode_growth(D, 0.1, tokens=n).max().item() for n in (16, 32, 64))
    if power is None:
        assert many / more > (more / few) ** 2 > 1
    else:
        assert many / more == pytest.approx(2**power, rel=0.05)


# P1-map


@pytest.mark.claim("P1-map")
def test_is_depth_the_time_of_the_equation_and_position_its_space(evidence):
    """A sweep of L steps passes through the states of torch's L layers, token by token: position is x, depth is t."""
    layers = [encoder_layer(n).layers[0] for n in range(3)]
    encoder = nn.TransformerEncoder(layers[0], 3, enable_nested_tensor=False)
    encoder.layers = nn.ModuleList(layers)
    u = tokens("depth")
    run = from_torch(encoder).trajectory(u)
    states = [u]
    for one in layers:
        states.append(one(states[-1]))
    gap = max(relative(a, b) for a, b in zip(run.states[1:], states[1:], strict=True))
    evidence("printed", holds=gap < ROUNDING, fails=gap > 1e-6)


@pytest.mark.claim("P1-map")
def test_is_diffusion_as_blind_to_the_order_of_the_tokens_as_attention(evidence):
    """Permute the tokens, then act; act, then permute. Rate and flow of the diffusion against self-attention."""
    u, order = normal(0, "order", size=(1, 16, 4)), torch.randperm(16, generator=stream(0, "order"))

    def gap(act):
        return relative(act(u[:, order]), act(u)[:, order])

    assert gap(Interaction(4).double().requires_grad_(False)) < 1e-12
    rate, flow = gap(Diffusion(0.01)), gap(lambda v: Diffusion(0.01).exact(v, 0.5))
    evidence("printed", holds=max(rate, flow) < 1e-9, fails=min(rate, flow) > 0.1)


@pytest.mark.claim("P1-map")
def test_are_the_weights_of_diffusion_made_from_the_tokens_as_those_of_attention_are(evidence):
    """‖∂act_i/∂u_j‖ at two states: attention's changes with the state. Does that of the heat flow?"""

    def change(act):
        here, there = (dictionary.reach(act, normal(0, "content", k, size=(1, 8, 4)), 4) for k in (0, 1))
        return relative(here, there)

    assert change(Interaction(4).double().requires_grad_(False)) > 0.01
    found = change(lambda v: Diffusion(0.01).exact(v, 0.5))
    evidence("printed", holds=found > 0.01, fails=found < 1e-9)


def test_the_heat_flow_reaches_every_token_and_its_rate_only_the_neighbours():
    """So reach is not what tells diffusion from attention."""
    u, far = normal(0, "reach", size=(1, 16, 4)), [abs(i - 4) > 1 for i in range(16)]
    assert dictionary.reach(Diffusion(0.01), u, 4)[far].max() == 0
    assert dictionary.reach(lambda v: Diffusion(0.01).exact(v, 1.0), u, 4)[far].min() > 1e-6


@pytest.mark.claim("P1-map")
def test_is_the_reaction_local_and_not_linear(evidence):
    u = normal(0, "reaction", size=(1, 6, 4))
    network = Reaction(4, 8).double()
    elsewhere = dictionary.reach(network, u, 2)[[0, 1, 3, 4, 5]].max().item()
    bend = (network(u + u) - 2 * network(u) + network(0 * u)).norm().item() / network(u).norm().item()
    evidence("printed", holds=elsewhere == 0 and bend > 1e-3, fails=elsewhere > 1e-9 or bend < 1e-9)


@pytest.mark.claim("P1-map")
def test_does_the_stability_bound_of_the_training_flow_bound_the_learning_rate(evidence):
    """Time as training: θ' = −∇L is an equation too, and 2/λ_max is the bound of its explicit steps."""
    X, _ = dictionary.features(0.5 * dictionary.forward_bound(), 0)
    limit = dictionary.rate_bound(X)
    lost = [dictionary.training_diverges(X, side * limit, 0) for side in (0.5, 0.9, 1.1, 2.0)]
    evidence("printed", holds=lost == [False, False, True, True], fails=lost[0] or not lost[3])


@pytest.mark.claim("P1-map")
def test_does_the_stability_bound_of_the_depth_flow_move_the_learning_rate(evidence):
    """Time as depth (P1 A.5). Half the bound on Δt, by twice the coefficient: does the bound on η halve?

    And twice the inputs: the bound on Δt stays; does that on η?
    """
    bounds, limits = [], []
    for coefficient, size in ((0.01, 1.0), (0.02, 1.0), (0.01, 2.0)):
        bounds.append(dictionary.forward_bound(coefficient))
        X, _ = dictionary.features(0.5 * bounds[-1], 0, coefficient)
        limits.append(dictionary.rate_bound(size * X))
    (_, slower, same), (_, halved, scaled) = ([x / values[0] for x in values] for values in (bounds, limits))
    assert (slower, same) == pytest.approx((0.5, 1.0))
    together = abs(halved - slower) < 0.05 and abs(scaled - same) < 0.05
    evidence("printed", holds=together, fails=abs(halved - slower) > 0.25 and abs(scaled - same) > 0.25)


@pytest.mark.claim("P1-map")
def test_does_each_bound_limit_its_own_step(evidence):
    """Four corners: Δt below and above its bound, η below and above its own. The state and the training, apart."""
    bound = dictionary.forward_bound()
    grew, lost = {}, {}
    for side in (0.9, 1.1):
        X, grew[side] = dictionary.features(side * bound, 0)
        for rate in (0.9, 1.1):
            lost[side, rate] = dictionary.training_diverges(X, rate * dictionary.rate_bound(X), 0)
    apart = grew == {0.9: False, 1.1: True} and all(diverged == (rate > 1) for (_, rate), diverged in lost.items())
    evidence("repair", holds=apart, fails=not apart)


# S-res: do residual connections constrain the step?

SWEPT = (0.05, 0.2, 0.5, 1.0, 2.0)


@pytest.mark.claim("S-res")
def test_does_a_unit_residual_keep_random_branches_bounded(evidence):
    """Branches W u with |W| = 1, W drawn at random: none is chosen against the claim. Control: no residual."""

    def growth(dt, kept, layers=400, n=16):
        start = u = normal(0, "start", size=(n,))
        for layer in range(layers):
            W = normal(0, "W", layer, size=(n, n))
            u = kept * u + dt * (W @ u) / torch.linalg.matrix_norm(W, 2)
        return (u.norm() / start.norm()).item()

    assert growth(1.0, 0.0) <= 1, "without a residual nothing can grow"
    ends = [growth(dt, 1.0) for dt in SWEPT]
    evidence("printed", holds=max(ends) <= 1 + 1e-9, fails=max(ends) > 10)


@pytest.mark.claim("S-res")
def test_does_a_unit_residual_keep_a_dissipative_branch_bounded_at_every_step(evidence):
    """S's other reading: a residual is an explicit step, and such a step has a bound. Is Δt kept below it?

    Control: the same branch and the same Δt, integrated exactly, stays bounded.
    """
    heat, u = Diffusion(0.01), normal(0, "heat", size=(1, 16, 2))
    bound = heat.largest_step(16)
    ends = [(solve(heat, u, steps=400, dt=side * bound).final.norm() / u.norm()).item() for side in (0.5, 0.9, 1.1)]
    assert max(ends[:2]) <= 1, "below the bound it decays"
    assert heat.exact(u, 400 * 1.1 * bound).norm() <= u.norm()
    evidence("printed", holds=ends[2] <= 1 + 1e-9, fails=ends[2] > 10)


@pytest.mark.claim("S-res")
@pytest.mark.parametrize("dt", [0.05, 0.3, 0.5, 1.0])
def test_do_the_two_leaks_keep_the_identity_with_one_minus_two_dt(evidence, dt):
    both = MasterEquation(Interaction(4, leak=True), Reaction(4, 8, leak=True))
    one = MasterEquation(Interaction(4, leak=True), Reaction(4, 8))
    gap = max(abs(dial.identity_weight(both, dt) - (1 - 2 * dt)), abs(dial.identity_weight(one, dt) - (1 - dt)))
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("S-res")
@pytest.mark.parametrize("operators", [1, 2])
def test_does_the_leak_keep_the_state_bounded_up_to_its_step_and_not_beyond(evidence, operators):
    inside = attack_master.attack_leak(7, operators)[0].max().item()
    one = torch.ones(1, 1, 1, dtype=torch.float64)

    def after(total):  # k branches G(u) = −u, each with its leak, at kΔt = total
        return solve(lambda u: operators * (-u - u), one, steps=50, dt=total / operators).final.abs().item()

    kept, grown = after(1.0), after(1.1)
    evidence(
        "repair", holds=inside <= 1 + adversary.ROUNDING and kept <= 1 < grown, fails=inside > 1 + 1e-3 or grown <= 1
    )


def test_for_a_unit_residual_some_branch_no_longer_than_the_state_grows_at_every_step():
    growth = torch.cat([attack_master.attack_leak(seed, 1)[1] for seed in (7, 8)])
    assert growth.min() > 1.1
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    assert solve(lambda u: u, one, steps=5_000, dt=1e-3, keep=lambda u: None).final.item() > 100


@pytest.mark.claim("S-res")
@pytest.mark.parametrize("operators", [1, 2])
def test_does_fidelity_follow_the_dial_law(evidence, operators):
    """Within four standard deviations at every step, which the law of the other number of operators is not."""
    width, steps = 512, (0.1, 0.25, 0.4, 0.5, 0.8, 1.0)
    found = dial.fidelities(steps, 6, width, operators, 11)[-1]

    def worst(k):
        allowed = [4 * dial.spread(dt, 6, width, operators) for dt in steps]
        return max(abs(found[n].item() - law(dt, 6, k)) / allowed[n] for n, dt in enumerate(steps))

    assert worst(3 - operators) > 2
    evidence("repair", holds=worst(operators) < 1, fails=worst(operators) > 2)


# The dial and the laws beside it


def test_the_dial_law_has_its_known_values():
    assert law(0.0, 9) == 1
    assert law(1.0, 1) == 0
    assert law(0.5, 2) == pytest.approx(0.5)  # (1/√2)²
    assert law(0.5, 1, operators=2) == 0  # identity weight 0: a plain network
    assert law(1.0, 1, operators=2) == pytest.approx(-1 / math.sqrt(3))
    assert law(0.25, 3, ratio=2.0) == pytest.approx((0.75 / math.hypot(0.75, 0.5)) ** 3)


def test_a_relative_step_gives_its_fidelity_back():
    for rho, layers in ((0.85, 5), (0.3, 1), (0.99, 12)):
        s = dial.relative_step(rho, layers)
        assert law(s / (1 + s), layers) == pytest.approx(rho)  # s = Δt/(1 − Δt)


@pytest.mark.parametrize("dt", [0.25, 0.5])
def test_a_branch_that_breaks_one_hypothesis_follows_another_law(dt):
    width, wide = 1024, 4 / math.sqrt(1024)
    expected = {
        "all hypotheses": law(dt, 4),
        "twice as long": law(dt, 4, ratio=2.0),
        "not centred": dial.uncentred_law(dt, 4, 0.0),
        "same weights": dial.shared_law(dt, 4),
    }
    for branch, value in expected.items():
        assert dial.fidelity_with(branch, dt, 4, width, 5) == pytest.approx(value, abs=wide), branch
    rectified = normal(5, "rectified", size=(width,)).relu()
    found = dial.fidelity_with("not centred", dt, 4, width, 5, rectified)
    assert found == pytest.approx(dial.uncentred_law(dt, 4, 1 / math.sqrt(math.pi)), abs=wide)


def test_a_coin_that_flips_u_itself_has_the_moments_and_not_the_law():
    assert abs(dial.fidelity_with("along u", 0.25, 4, 64, 5)) == pytest.approx(1)


def test_the_uncentred_law_at_full_step_is_one_over_pi_for_a_rectified_start():
    """One layer at Δt = 1 from any start: ρ = mean(u₀)/(rms(u₀)√π)."""
    assert dial.uncentred_law(1.0, 1, 1 / math.sqrt(math.pi)) == pytest.approx(1 / math.pi)
    assert dial.uncentred_law(1.0, 5, 0.0) == 0


def test_the_identity_weight_refuses_a_term_that_acts_without_weights():
    with pytest.raises(ArithmeticError, match="no multiple of the identity"):
        dial.identity_weight(MasterEquation(Diffusion(0.1)), 0.5)


def test_the_spread_of_a_cosine_shrinks_with_the_turn():
    """What the tolerances rest on: the root mean square of ρ − law over fresh weights, beside 1.1(1 − ρ²)/√n."""
    width, steps = 64, (0.05, 0.1, 0.25, 0.5, 1.0)
    for operators in (1, 2):
        laws = torch.tensor([law(dt, 6, operators) for dt in steps], dtype=torch.float64)
        allowed = torch.tensor([dial.spread(dt, 6, width, operators) for dt in steps], dtype=torch.float64)
        draws = torch.stack([dial.fidelities(steps, 6, width, operators, seed)[-1] for seed in range(100)])
        ratio = (draws - laws).square().mean(dim=0).sqrt() / allowed
        assert ratio.max() < 1.2  # a hundred draws tell a spread to 7 %
        assert ratio.min() > 0.55  # √c/1.1 for a small turn, c = (7/6 + 5/3)/4


def test_two_branches_with_the_same_weights_are_one_branch_with_twice_the_step():
    """Condition 3 gone: u⁺ = (1 − 2Δt)u + 2ΔtG follows the law of one operator at 2Δt, not that of two."""
    width, dt = 1024, 0.25
    found = dial.fidelity_with("all hypotheses", 2 * dt, 6, width, 5)
    assert abs(found - law(2 * dt, 6)) < 4 * dial.spread(2 * dt, 6, width) < abs(found - law(dt, 6, 2))


def test_a_dial_model_has_the_same_first_weights_at_every_step():
    task = dial.task_of(Scale.SMOKE)
    data = task.load(0)
    one, other = (dial.dial_model(dt, leak, task, data, 0) for dt, leak in ((0.1, True), (0.7, False)))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert (one.dt, other.dt) == (0.1, 0.7)


def test_a_gain_multiplies_the_matrices_of_the_layers_and_nothing_else():
    task = dial.task_of(Scale.SMOKE)
    data = task.load(0)
    plain, doubled = (dial.dial_model(0.5, True, task, data, 0, gain) for gain in (1.0, 2.0))
    for (name, a), b in zip(plain.named_parameters(), doubled.parameters(), strict=True):
        inside = name.startswith("equation.") and a.ndim > 1
        assert torch.equal(b, 2 * a if inside else a), name
    assert plain.dt == doubled.dt


# Budgets


def test_leaders_in_the_order_of_the_paper_are_recognised():
    assert budgets.in_phases("AARRS")
    assert not budgets.in_phases("ARAS")
    assert not budgets.in_phases("RAS")
    assert not budgets.in_phases(["A", "R", "−u", "S"])


def test_the_figures_of_a_model_close_and_name_one_leader_a_layer():
    task = budgets.task_of(Scale.SMOKE, steps=4)
    both, record = budgets.pair("printed", task, 0)
    assert record.step == 4
    found = budgets.figures_of(*both["trained"])
    assert found["gap"] < 1e-5  # float32
    leads = [found[f"leads {symbol}"] for symbol in both["trained"][0].symbols]
    assert [sum(column) for column in zip(*leads, strict=True)] == [1] * task.depth
    shares = [found[f"share {symbol}"] for symbol in both["trained"][0].symbols]
    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx([1] * task.depth, abs=1e-4)


# The dictionary


def test_modes_grow_as_the_matrix_exponential_says():
    D = normal(0, "D", size=(3, 3))
    torch.testing.assert_close(
        dictionary.mode_growth(D, 0.002), dictionary.mode_law(D, 0.002), rtol=1e-9, atol=1e-12, check_dtype=False
    )


def test_torch_s_block_without_norms_is_two_residual_branches():
    layer = encoder_layer().layers[0]
    u = tokens("block")
    middle = u + layer.self_attn(u, u, u)[0]
    expected = middle + layer.linear2(torch.relu(layer.linear1(middle)))
    torch.testing.assert_close(dictionary.torch_block(layer, u), expected, rtol=0, atol=1e-12)


def test_reach_is_the_size_of_a_block_of_the_jacobian():
    """Diffusion: 2D/Δx² at the token itself, D/Δx² at its neighbours, times √d for the identity in the features."""
    found = dictionary.reach(Diffusion(0.5), normal(0, "u", size=(1, 5, 4)), 2)
    expected = 0.5 * 25 * 2 * torch.tensor([0, 1, 2, 1, 0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# The adversary


def test_the_exact_statements_withstand_the_search_and_the_wrong_ones_do_not():
    for attack, options in (
        (attack_master.attack_budget, {"attempts": 8}),
        (attack_master.attack_sweep, {"attempts": 2, "steps": 3}),
        (attack_master.attack_sum, {"attempts": 2}),
        (attack_master.attack_identity_path, {"attempts": 4}),
    ):
        right, wrong = attack(7, **options)
        assert right.max() <= 1
        assert wrong.min() > 1


@pytest.mark.parametrize("operators", [1, 2])
def test_the_moments_of_the_dial_hold_at_every_width_for_a_fair_coin_only(operators):
    fair, biased = attack_master.attack_moments(7, operators, batch=3, steps=3)
    assert fair.max() <= 1
    assert biased.min() > 1


def test_the_dial_law_holds_for_weights_drawn_later_and_not_for_those_that_were_seen():
    found = attack_master.attack_dial(7, 2, width=160, batch=8, fresh=3)
    assert found["law"].max() <= 1
    assert (found["seen"] > 1).any()
    assert (found["unit"] > 1).any()
