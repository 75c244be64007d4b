"""One equation, four terms: the sum, the sweep, the two −u, the dial, the dictionary.  (P2 eq 4-6; P1 eq 1, §2.3)"""

import math

import pytest
import torch
from torch import nn

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
from pdelab.experiments import adversary, attack_master, budgets, continuum, dial, dictionary
from pdelab.experiments.dial import law
from pdelab.experiments.scales import Scale, torch_threads
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import budget
from pdelab.metrics.stability import energy
from pdelab.seeds import normal

WIDTH, HEADS, HIDDEN = 8, 2, 16
ROUNDING = 1e-10  # of one block in double precision


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


def printed_like(encoder, dt=1.0):
    """P2 eq 4-6 and 9 with the attention and the network of torch's layer: one Euler step of the sum."""
    ours = from_torch(encoder).equation.equations[0]
    attention, _, network, _ = ours.terms
    attention.leak = network.leak = True
    return MasterEquation(attention, network, SpatialStabilization().double())


@pytest.mark.claim("P2-eq4")
def test_is_one_euler_step_of_the_printed_sum_an_encoder_block(evidence):
    encoder, u = encoder_layer(), tokens("printed")
    step = Euler().step(printed_like(encoder), u, 0.0, 1.0)
    gap = relative(step, encoder(u))
    evidence("printed", holds=gap < ROUNDING, fails=gap > 0.1)


@pytest.mark.claim("P2-eq4")
def test_is_one_euler_step_on_attention_norm_network_norm_an_encoder_block(evidence):
    """The same terms as the block has, without −u, but added up."""
    encoder, u = encoder_layer(), tokens("sum")
    gap = relative(Euler().step(from_torch(encoder).equation, u, 0.0, 1.0), encoder(u))
    evidence("printed", holds=gap < ROUNDING, fails=gap > 0.1)


@pytest.mark.claim("P2-eq4")
def test_is_a_sweep_through_the_same_terms_an_encoder_block(evidence):
    gaps = []
    for number in range(5):
        encoder, u = encoder_layer(number), tokens("sweep", number)
        gaps.append(relative(LieEuler().step(from_torch(encoder).equation, u, 0.0, 1.0), encoder(u)))
    evidence("repair", holds=max(gaps) < ROUNDING, fails=max(gaps) > 1e-6)


@pytest.mark.claim("P2-eq4")
def test_do_sum_and_sweep_meet_as_the_step_shrinks(evidence):
    """On the sphere, with gain 1: their distance falls like Δt. With uneven gains it does not."""
    depths = (8, 16, 32, 64)
    even = continuum.slope(depths, budgets.sum_against_sweep(5, depths))
    uneven = budgets.sum_against_sweep(5, depths, uneven=0.5)
    assert min(uneven) > 0.1, "with uneven gains there is nothing to meet in"
    evidence("repair", holds=abs(even + 1) < 0.1, fails=even > -0.5)


@pytest.mark.claim("P2-eq4")
def test_is_the_residual_connection_a_part_of_the_stabilisation(evidence):
    """If it were, an equation without S would lose the identity. Its weight is compared with and without S."""
    with_s = MasterEquation.later(4, 1, 8, diffusion=0.0)
    u = normal(0, "constant", size=(1, 1, 4)).expand(-1, 3, -1)  # S is zero here, so that nothing else acts
    for weight in with_s.parameters():
        nn.init.zeros_(weight)
    without = MasterEquation(*list(with_s.terms)[:2])
    weights = [(Euler().step(f.double(), u, 0.0, 0.1) / u).mean().item() for f in (with_s, without)]
    evidence("printed", holds=abs(weights[1]) < 1e-12, fails=abs(weights[0] - weights[1]) < 1e-12)


@pytest.mark.claim("P2-eq4")
def test_does_the_budget_of_the_four_terms_close(evidence):
    made = MasterEquation.later(WIDTH, HEADS, HIDDEN, diffusion=0.01).double().requires_grad_(False)
    run = solve(made, tokens("budget"), steps=6, dt=1 / 6)
    gap = (budget(made, run, Euler()).energy.sum(dim=1) - per_layer(energy, run).diff()).abs().max().item()
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


# P1-eq1


@pytest.mark.claim("P1-eq1")
def test_is_the_earlier_equation_well_posed_for_every_matrix(evidence):
    """One negative eigenvalue: do finer modes grow faster, without bound as the grid is refined?"""
    bad = torch.tensor([[1.0, 0.0], [0.0, -0.1]], dtype=torch.float64)
    coarse, fine = (dictionary.mode_growth(bad, 0.01, tokens=n).max().item() for n in (8, 32))
    evidence("printed", holds=fine <= 1 + 1e-9, fails=fine > 10 * coarse)


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


@pytest.mark.claim("P1-eq1")
def test_is_a_residual_block_without_norm_the_sweep_with_no_diffusion(evidence):
    layer, u = encoder_layer(1).layers[0], tokens("residual")
    attention, _, network, _ = from_torch(encoder_layer(1)).equation.equations[0].terms
    block = dictionary.torch_block(layer, u)
    gaps = [
        relative(LieEuler().step(MasterEquation(Diffusion(d), attention, network), u, 0.0, 1.0), block)
        for d in (0.0, 0.01)
    ]
    assert gaps[1] > 1e-3, "with diffusion it must be another map"
    evidence("repair", holds=gaps[0] < ROUNDING, fails=gaps[0] > 1e-6)


@pytest.mark.claim("P1-eq1")
def test_is_the_residual_connection_a_part_of_the_reaction(evidence):
    """R removed: does the identity go with it?"""
    whole = dial.identity_weight(MasterEquation(Interaction(4), Reaction(4, 8)), 0.3)
    without = dial.identity_weight(MasterEquation(Interaction(4)), 0.3)
    evidence("printed", holds=abs(without) < 1e-12, fails=abs(whole - without) < 1e-12)


# P1-map


@pytest.mark.claim("P1-map")
def test_does_diffusion_reach_as_far_as_attention(evidence):
    """Who notices when token 4 of 16 moves? Attention: all. Diffusion: the token and its neighbours."""
    u = normal(0, "reach", size=(1, 16, 4))
    far = [abs(i - 4) > 1 for i in range(16)]
    attention = dictionary.reach(Interaction(4).double(), u, 4)[far]
    diffusion = dictionary.reach(Diffusion(0.01), u, 4)[far]
    assert attention.min() > 0
    evidence("printed", holds=diffusion.min().item() > 0, fails=diffusion.max().item() == 0)


@pytest.mark.claim("P1-map")
def test_is_the_reaction_local_and_not_linear(evidence):
    u = normal(0, "reaction", size=(1, 6, 4))
    network = Reaction(4, 8).double()
    elsewhere = dictionary.reach(network, u, 2)[[0, 1, 3, 4, 5]].max().item()
    bend = (network(u + u) - 2 * network(u) + network(0 * u)).norm().item() / network(u).norm().item()
    evidence("printed", holds=elsewhere == 0 and bend > 1e-3, fails=elsewhere > 1e-9 or bend < 1e-9)


@pytest.mark.claim("P1-map")
def test_is_the_residual_connection_non_linear(evidence):
    """The dictionary files it with the non-linear terms. What is left of a step without networks: is it linear?"""
    bare = MasterEquation(Interaction(4), Reaction(4, 8)).double().requires_grad_(False)
    for weight in bare.parameters():
        weight.zero_()
    u, v = (normal(0, "line", k, size=(1, 3, 4)) for k in "uv")

    def step(w):
        return Euler().step(bare, w, 0.0, 1.0)

    bend = (step(2 * u + 3 * v) - 2 * step(u) - 3 * step(v)).abs().max().item()
    evidence("printed", holds=bend > 1e-6, fails=bend < 1e-12)


@pytest.mark.claim("P1-map")
def test_does_the_bound_on_dt_limit_the_learning_rate(evidence):
    """Four corners: Δt below and above its bound, learning rate below and above its own."""
    bound = dictionary.forward_bound()
    grew, lost = {}, {}
    for side in (0.9, 1.1):
        X, grew[side] = dictionary.features(side * bound, 0)
        limit = dictionary.rate_bound(X)
        for rate in (0.9, 1.1):
            lost[side, rate] = dictionary.training_diverges(X, rate * limit, 0)
    forward_only = grew == {0.9: False, 1.1: True}
    training_only = lost == {(0.9, 0.9): False, (0.9, 1.1): True, (1.1, 0.9): False, (1.1, 1.1): True}
    # with the forward step beyond its bound, a small enough learning rate still trains: the two bounds are two
    evidence("printed", holds=lost[1.1, 0.9] and not lost[0.9, 1.1], fails=forward_only and training_only)


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
    evidence("repair", holds=gap < ROUNDING, fails=gap > 1e-6)


# S-res: do residual connections constrain the step?


@pytest.mark.claim("S-res")
def test_does_a_unit_residual_keep_the_state_bounded_at_some_step(evidence):
    """A branch no longer than the state. If the residual constrained the step, a small enough one would be safe."""
    growth = [attack_master.attack_leak(seed, 1)[1].min().item() for seed in (7, 8)]
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    small = solve(lambda u: u, one, steps=5_000, dt=1e-3, keep=lambda u: None).final.item()  # the branch G(u) = u
    evidence("printed", holds=max(growth) <= 1 + 1e-9 and small < 2, fails=min(growth) > 1.1 and small > 100)


@pytest.mark.claim("S-res")
def test_is_any_step_excluded_by_a_residual_of_weight_one(evidence):
    """Enlarge the branch at fixed residual: the identity's weight is 1 at every step, and no step is refused."""
    unit = MasterEquation(Interaction(4), Reaction(4, 8))
    weights = [dial.identity_weight(unit, dt) for dt in (0.01, 0.5, 1.0, 10.0)]
    evidence("printed", holds=min(weights) < 1 - 1e-9, fails=max(abs(w - 1) for w in weights) < 1e-12)


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


@pytest.mark.claim("S-res")
@pytest.mark.parametrize("operators", [1, 2])
def test_does_fidelity_follow_the_dial_law(evidence, operators):
    width, steps = 512, (0.1, 0.25, 0.4, 0.5, 0.8, 1.0)
    found = dial.fidelities(steps, 6, width, operators, 11)[-1]
    gap = max(abs(found[k].item() - law(dt, 6, operators)) for k, dt in enumerate(steps))
    evidence("repair", holds=gap < 4 / math.sqrt(width), fails=gap > 10 / math.sqrt(width))


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


def test_the_spread_of_a_cosine_at_width_n_is_near_one_over_root_n():
    """What the tolerances rest on: the standard deviation of ρ − law over fresh weights, in units of 1/√n."""
    width, steps = 64, (0.1, 0.25, 0.5, 1.0)
    for operators in (1, 2):
        laws = torch.tensor([law(dt, 6, operators) for dt in steps], dtype=torch.float64)
        draws = torch.stack([dial.fidelities(steps, 6, width, operators, seed)[-1] for seed in range(100)])
        spread = (draws - laws).square().mean(dim=0).sqrt() * math.sqrt(width)
        assert spread.max() < 1.25 * attack_master.SPREAD  # a hundred draws tell a spread to 7 %
        assert spread.max() > 0.8


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
