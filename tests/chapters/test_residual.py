"""Residual connections: sharp bounds on fidelity, laws of random stacks, two inputs, and the adversary. (P2 thm 3.4)"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pdebook.chapters.residual import attack, laws, measure
from pdebook.evidence import adversary
from pdebook.evidence.experiment import Scale, Workplace
from pdelab.metrics.similarity import fidelity
from pdelab.seeds import normal, seeded
from pdelab.solver import Trajectory
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import PreNorm

# Angles and bounds


def test_the_angle_is_the_arc_cosine_and_precise_where_that_is_not():
    u, v = normal(0, "u", size=(64, 5)), normal(0, "v", size=(64, 5))
    torch.testing.assert_close(laws.angle(u, v), torch.arccos(laws.cosine(u, v)))
    e = torch.tensor([1.0, 0.0], dtype=torch.float64)
    near = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    assert laws.angle(e, near).item() == pytest.approx(1e-9, rel=1e-9)
    assert laws.angle(e, -e).item() == pytest.approx(math.pi)


def test_the_sharp_bound_is_met_where_the_addition_is_at_right_angles_to_the_sum():
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for r in (0.1, 0.5, 0.99):
        r = torch.tensor([r], dtype=torch.float64)
        direction = torch.stack([-r, (1 - r**2).sqrt()], dim=-1)  # cos∠(I, u₀) = −r
        u = laws.addition(start, direction, r)
        assert ((u - start) * u).sum().item() == pytest.approx(0, abs=1e-15)
        torch.testing.assert_close(laws.cosine(u, start), laws.sharp_bound(r))
        assert laws.printed_bound(r) < laws.sharp_bound(r)


def test_rotating_layers_meet_the_bound_for_layers():
    """Every push at right angles to the new state, in one plane: the angles add up."""
    kappa = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
    h, pushes = torch.tensor([[1.0, 0.0]], dtype=torch.float64), []
    start = h
    for k in kappa:
        across = torch.stack([-h[:, 1], h[:, 0]], dim=-1)
        pushes.append(-k * h + (1 - k**2).sqrt() * across)
        h = laws.addition(h, pushes[-1], k.expand(1))
    ratio = attack.layers(start, torch.stack(pushes, dim=1), torch.logit(kappa)[None] + 2)
    assert ratio.item() == pytest.approx(1, abs=1e-12)


def test_beyond_a_half_turn_the_bound_for_layers_says_nothing():
    start, pushes = normal(0, "h", size=(3, 2)), normal(0, "f", size=(3, 5, 2))
    assert attack.layers(start, pushes, torch.full((3, 5), 9.0).double()).tolist() == [0, 0, 0]


def test_a_rotating_flow_comes_close_to_the_bound_for_flows():
    turn = 1e4 * torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)  # saturated: ‖F‖ = ‖u‖ to 1e-8
    none, start = torch.zeros_like(turn), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    ratio = attack.flow(start, turn, none, none, span=2.0, steps=64)
    assert 1 - 1e-6 < ratio.item() <= 1


@pytest.mark.parametrize("name", ["addition", "layers", "flow", "two_inputs", "eq17_within"])
def test_no_attack_passes_a_bound_and_each_passes_it_shrunk(name):
    one = attack.run.statements[name]
    counted, broken = replace(one, batch=min(one.batch, 16)).attempt(7)
    assert counted["violations"] == 0
    assert all(broken.values()), broken


def test_the_printed_bound_fails_for_many_additions_longer_than_the_input():
    broken = attack.run.statements["eq17_beyond"].search(7) > 1 + adversary.ROUNDING
    assert broken.double().mean() > 0.05


def test_stacks_without_a_skip_need_not_decay_and_stable_flows_turn_round():
    assert (attack.decay(7, stack="rotations", batch=8) > 1).all()
    assert (attack.decay(7, stack="rectified", batch=8) > 1).all()
    assert (attack.decay(7, stack="random", batch=8) < 1).all()  # fresh orthogonal matrices leave the level of chance
    assert (attack.stable_flow(7, batch=8) > 1).all()


def test_the_search_for_decay_sees_decay():
    """ρ_ℓ = 0.8^ℓ is what the theorem prints; 0.3 at every depth is not, where chance gives 1/√256."""
    layers = torch.arange(1, 65, dtype=torch.float64)
    rho = torch.stack([0.8**layers, torch.full((64,), 0.3)], dim=-1)
    assert (attack.above_chance(rho, 256) > 1).tolist() == [False, True]


@pytest.mark.parametrize("width", [16, 64, 256])
def test_unrelated_directions_count_as_decayed_in_every_width(width):
    u, v = (normal(0, name, width, size=(64, 50, width)) for name in "uv")
    assert (attack.above_chance(laws.cosine(u, v), width) < 1).all()


def test_the_second_hermite_polynomial_alone_meets_the_bound_on_convexity():
    """φ = z² − 1 has C(c) = c² and b₂ = 1; φ = z³ − 3z has C(c) = c³ and b₂ = 0."""
    weights = torch.tensor([[-1.0, 0, 1, 0], [0, -3.0, 0, 1]], dtype=torch.float64)
    none, c = torch.zeros(2, dtype=torch.float64), torch.tensor([0.3, 0.3], dtype=torch.float64)
    expected = torch.tensor([0.3**2, 0.3**3], dtype=torch.float64)
    torch.testing.assert_close(laws.correlation(c, weights, none), expected)
    assert laws.second_coefficient(weights, none).tolist() == [1, 0]
    ratio = attack.two_inputs(weights, none - 60, normal(0, "ends", size=(2, 2)))  # no bias
    torch.testing.assert_close(ratio, torch.tensor([1.0, 0.0], dtype=torch.float64))


# Random stacks


@pytest.mark.parametrize("branch", ["linear", "relu"])
@pytest.mark.parametrize("kind", measure.KINDS)
def test_a_wide_random_stack_drifts_as_its_law_says(kind, branch):
    found = measure.fidelities(kind, 0.6, 12, 3, branch=branch)
    law = laws.fidelity_law(kind, 0.6, torch.arange(13))
    assert np.abs(np.array(found) - law.numpy()).max() < laws.fidelity_spread()


def test_the_law_needs_a_direction_of_its_own():
    """f = ±h has mean zero and the right length, and h never leaves its line."""
    assert measure.fidelities("skip", 0.5, 9, 0, branch="sign")[-1] == pytest.approx(1, abs=1e-12)
    assert laws.fidelity_law("skip", 0.5, 9) < 0.4


def test_branches_have_the_length_of_their_input_on_average():
    h = normal(0, "h", size=(64, 256))
    for branch in measure.BRANCHES:
        f = measure.draw_branch(h, branch, torch.Generator().manual_seed(0))
        ratio = (f.square().sum(dim=-1) / h.square().sum(dim=-1)).mean().item()
        assert ratio == pytest.approx(1, abs=4 * math.sqrt(7 / 256))  # relative variance at most 7/n


def test_cosines_are_the_fidelity_of_the_metrics():
    states = measure.random_stack("pre-LN", 1.0, 3, measure.random_inputs(0, 32), 0)
    run = Trajectory.of([h.unsqueeze(1) for h in states])
    torch.testing.assert_close(measure.cosines(states), fidelity(run))


def test_unknown_kinds_and_branches_are_refused_by_name():
    start = measure.random_inputs(0, 8)
    with pytest.raises(ValueError, match="pre-LN"):
        measure.random_stack("middle-LN", 1.0, 2, start, 0)
    with pytest.raises(ValueError, match="relu"):
        measure.random_stack("skip", 1.0, 2, start, 0, branch="gelu")


def test_an_input_chosen_after_the_weights_keeps_its_direction():
    assert measure.worst_input(33, 0, layers=4) == pytest.approx(1, abs=1e-9)  # odd: a real eigenvalue exists


@pytest.mark.parametrize("kind", measure.KINDS)
def test_gradients_grow_as_their_law_says(kind):
    for gain in (1.0, 0.7):
        found = np.log(measure.gradients(kind, 0.8, 12, 3, gain=gain))
        law = laws.gradient_law(kind, 0.8, 12, gain).log().numpy()
        assert np.abs(found - law).max() < laws.gradient_spread(12)


@pytest.mark.parametrize("kind", ["skip", "pre-LN"])
def test_the_root_of_a_gradient_law_is_refuted_at_every_depth(kind):
    for L in (4, 16, 64):
        off = math.log(measure.gradients(kind, 1.0, L, 0)[0]) - laws.gradient_law(kind, 1.0, L)[0].log() / 2
        assert abs(off) > laws.gradient_spread(L)


def test_the_gradient_laws_need_a_gradient_that_does_not_know_the_weights():
    """loss = ½|Wh|²: |WᵀWh|²/|Wh|² → 2, the second moment of Marchenko and Pastur, where the law says 1."""
    n = 512
    W, h = normal(0, "W", size=(n, n)) / math.sqrt(n), normal(0, "h", size=(n,))
    known, fresh = W @ h, normal(0, "w", size=(n,))
    ratio = [((W.T @ g).norm() / g.norm()).item() for g in (known, fresh)]
    assert ratio == pytest.approx([math.sqrt(2), 1], abs=4 / math.sqrt(n))


def test_a_relu_branch_without_a_first_matrix_need_not_be_as_long_as_its_input():
    """f = √2 W max(h, 0) is zero on −max(z, 0) and √2 as long as max(z, 0)."""
    n = 1024
    h = torch.relu(normal(0, "z", size=(n,)))
    W = normal(0, "W", size=(n, n)) / math.sqrt(n)
    lengths = [(math.sqrt(2) * W @ torch.relu(x)).norm() / h.norm() for x in (h, -h)]
    assert lengths == pytest.approx([math.sqrt(2), 0], abs=4 / math.sqrt(n))


def test_fidelity_times_the_gain_of_the_gradient_is_one():
    """J and Jᵀ have one law, so what the skip dilutes on the way up it amplifies on the way down."""
    for kind in ("skip", "pre-LN"):
        product = laws.fidelity_law(kind, 0.7, 9) * laws.gradient_law(kind, 0.7, 9)[0]
        assert product.item() == pytest.approx(1)


@pytest.mark.parametrize("gain", [1.0, math.sqrt(3)])
def test_a_bare_block_shrinks_gradients_by_its_gain(gain):
    found = np.log(measure.corner_gradients("bare", 16, 0, gain=gain))
    slope = (found[8] - found[0]) / 8  # far from the loss, where only the part common to all tokens is left
    # four matrices of 32 rows: the logarithm of a layer's gain has a standard deviation of about 1/4
    assert slope == pytest.approx(-math.log(laws.bare_gain(gain)), abs=4 * 0.25 / math.sqrt(8))


@pytest.mark.parametrize("kind", ["rectified", "absolute", "uniform"])
def test_a_relu_network_of_he_scale_keeps_the_cosine_of_positive_inputs(kind):
    z = normal(1, "z", size=(4, 1024))
    start = {"rectified": torch.relu(z), "absolute": z.abs(), "uniform": torch.special.ndtr(z)}[kind]
    exact = {"rectified": 1 / math.pi, "absolute": math.sqrt(2) / math.pi, "uniform": math.sqrt(0.75 / math.pi)}[kind]
    assert laws.rectified_law(start) == pytest.approx(exact, abs=4 / math.sqrt(4096))
    found = measure.cosines(measure.rectified_stack(start, 6, 1))[1:]
    assert (found - exact).abs().max() < 4 / math.sqrt(1024)


def test_a_search_finds_the_law_of_stacks_and_refutes_its_square():
    off, wrong = measure.search_laws(5, attempts=12)
    assert off.max() < 1 < wrong.max()


@pytest.mark.parametrize("kind", ["skip", "rotation", "relu"])
def test_layers_with_a_skip_and_rotations_can_be_undone_and_relu_layers_cannot(kind):
    start = normal(0, "start", size=(64,)).abs()
    states, found = measure.there_and_back(kind, start, 6, seed=0, alpha=0.5)
    error = torch.stack([(back - start).norm() / start.norm() for back in found])
    assert len(states) == len(found) == 7
    if kind == "relu":
        assert (error[2:] > 0.3).all()
    else:
        assert error.max() < 1e-9
    if kind == "rotation":
        torch.testing.assert_close(states[-1].norm(), start.norm())


# Two inputs


def test_quadrature_knows_the_moments_of_a_pair():
    c = torch.tensor([-0.5, 0.0, 0.3, 1.0], dtype=torch.float64)
    torch.testing.assert_close(laws.pair_mean(lambda z: z, c, q=2.0), 2 * c)
    torch.testing.assert_close(laws.pair_mean(lambda z: z**2, c), 1 + 2 * c**2)  # Isserlis


def test_even_points_see_a_steep_tanh():
    """For tanh both rules agree; for tanh(10 z) only points at equal distances agree with a sample."""
    c = torch.tensor([0.3, 0.9], dtype=torch.float64)
    torch.testing.assert_close(laws.pair_mean(torch.tanh, c, even=True), laws.pair_mean(torch.tanh, c))
    u, v = normal(0, "pairs", size=(2, 400_000))
    sampled = (torch.tanh(10 * u) * torch.tanh(10 * (0.9 * u + math.sqrt(0.19) * v))).mean().item()
    even, gauss = (laws.pair_mean(torch.tanh, c[1], q=100.0, even=e).item() for e in (True, False))
    assert even == pytest.approx(sampled, abs=4 / math.sqrt(400_000))
    assert gauss != pytest.approx(sampled, abs=4 / math.sqrt(400_000))


def test_the_map_of_relu_is_that_of_arc_cosine_kernels_and_its_approach_is_algebraic():
    z = normal(0, "z", size=(2, 400_000))
    pair = torch.stack([z[0], 0.6 * z[0] + 0.8 * z[1]])
    sampled = 2 * torch.relu(pair).prod(dim=0).mean().item()
    assert laws.relu_map(torch.tensor(0.6)).item() == pytest.approx(sampled, abs=4 * 2 / math.sqrt(400_000))
    c = laws.NETWORKS["ReLU"].path(0.0, 4000)[-1]
    assert (1 - c) * 4000**2 == pytest.approx(9 * math.pi**2 / 2, rel=0.01)


def test_a_skip_slows_the_approach_fourfold_at_alpha_one():
    plain, skip = (1 - laws.NETWORKS[name].path(0.0, 4000)[-1] for name in ("ReLU", "ReLU with a skip"))
    assert skip / plain == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_relu_with_a_skip_goes_part_of_the_way(alpha):
    c = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64)
    found, q = laws.Network("relu", 2.0, alpha=alpha).advance(c, 1.0)
    torch.testing.assert_close(found, (c + alpha**2 * laws.relu_map(c)) / (1 + alpha**2))
    assert q == 1 + alpha**2


def test_a_skip_can_keep_apart_what_tanh_alone_would_merge():
    """Without a skip c → 1. With it q grows, tanh becomes a sign, and 1 attracts no longer."""
    bare, skip = (laws.NETWORKS["tanh, σ_w² = 1/2" + end] for end in ("", ", skip"))
    for start in (0.5, 0.9, 0.99):
        assert bare.path(start, 60)[-1] > 1 - 1e-6
        assert skip.path(start, 120)[-1] < 0.95
    assert skip.states(0.9, 40)[-1][1] > 10 * skip.q


def test_ordered_and_chaotic_networks_have_the_fixed_points_that_the_slope_at_one_tells():
    ordered, chaotic = laws.NETWORKS["tanh, σ_w² = 1/2"], laws.NETWORKS["tanh, σ_w² = 4"]
    assert ordered.slope(1.0) < 1 < chaotic.slope(1.0)
    assert ordered.path(0.1, 60)[-1] == pytest.approx(1, abs=1e-9)
    end = chaotic.path(0.1, 200)[-1]
    assert 0 < end < 0.9
    assert chaotic.path(0.99, 300)[-1] == pytest.approx(end, abs=1e-6)
    assert chaotic.slope(end) < 1


@pytest.mark.parametrize("name", laws.NETWORKS)
def test_wide_networks_follow_the_map(name):
    off = np.abs(np.subtract(measure.simulate(name, 5, 6), laws.NETWORKS[name].path(0.5, 6)))
    assert (off <= np.array(laws.correlation_spread(name, 6)) + 1e-12).all()


# Trained networks


def test_the_slopes_of_a_feed_forward_branch_stay_below_their_bound_with_and_without_layernorm():
    u = normal(0, "states", size=(4, 5, 6)).float()
    for seed in range(4):
        network = seeded(lambda: Reaction(6, 24), seed)
        for branch in (network, PreNorm(network, 6)):
            assert 0 < measure.slope(branch, u) <= measure.slope_bound(branch) * (1 + 1e-5)


def test_the_bound_behind_layernorm_is_reached_by_tokens_of_equal_features():
    """LN(u) at u = c·1 has the slope 1/√ε in every direction but 1."""
    network = seeded(lambda: Reaction(4, 8, bias=False), 0)
    for weight, value in ((network.inner.weight, torch.eye(4)), (network.outer.weight, torch.eye(4))):
        weight.data.zero_()
        weight.data[:4, :4] = value
    network.activation = torch.nn.Identity()
    branch = PreNorm(network, 4, eps=0.01)
    found = measure.slope(branch, torch.ones(1, 1, 4))
    assert found == pytest.approx(10, rel=1e-4)


def test_angles_of_layers_that_turn_one_way_reach_phi():
    """Plane rotations by addition: f ⟂ h + f with |f| = κ|h| turns by arcsin κ, and the cosine is that of Φ."""
    h, states = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), []
    for kappa in (0.3, 0.5, 0.2):
        states.append(h)
        across = torch.stack([-h[..., 1], h[..., 0]], dim=-1)
        h = h + kappa * (math.sqrt(1 - kappa**2) * across - kappa * h)
    found = measure.turned(Trajectory.of([*states, h]))
    assert found["phi"] == pytest.approx(sum(math.asin(k) for k in (0.3, 0.5, 0.2)))
    assert found["rho"] == pytest.approx(math.cos(found["phi"]))
    assert found["kappa"] == pytest.approx([0.3, 0.5, 0.2])


def test_the_experiment_on_angles_runs_at_its_smoke_size():
    found = measure.run_angles(Scale.SMOKE, 0, Workplace())
    for kind in measure.TRAINED:
        assert found.figures[f"{kind}/phi"] > 0
        assert max(found.figures[f"{kind}/slope"]) <= max(found.figures[f"{kind}/slope_bound"])
        assert found.controls[f"{kind}/untrained_rho"] <= 1
