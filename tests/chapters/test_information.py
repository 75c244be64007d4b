"""Information along the depth: the flow undone, information counted, and P1 eq 16."""

import math
from dataclasses import replace

import pytest
import torch

from pdebook.chapters.information import attack, laws, measure
from pdebook.evidence import adversary, countable
from pdelab.integrators import RK4
from pdelab.metrics.information import gaussian_information, rows
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.terms.stabilization import SpatialStabilization

# The flow undone


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_the_flow_is_undone_with_one_order_more_than_runge_kutta_has(activation):
    """Local errors cΔt⁵ forward and c(−Δt)⁵ backward cancel to leading order."""
    equation, u0 = laws.master(3, activation=activation), normal(3, "u0", size=(4, 6, 4))
    errors = [laws.recovery(equation, u0, 1.0, steps) for steps in (32, 64)]
    assert errors[1] < 1e-5
    assert math.log2(errors[0] / errors[1]) == pytest.approx(5, abs=0.3)


def test_running_back_passes_the_states_of_the_way_there():
    equation, u0 = laws.master(1), normal(1, "u0", size=(2, 6, 4))
    there = laws.ahead(equation, u0, 1.0, 64)
    back = laws.back(equation, there.final, 1.0, 64)
    torch.testing.assert_close(back.at(0.25), there.at(0.75), rtol=1e-6, atol=1e-6)


def test_a_star_goes_to_a_dot_and_comes_back_unless_the_dot_is_rounded():
    star = laws.star(10)
    states = laws.there_and_back(laws.squeezing(), star, 1.5, 6)
    assert len(states) == 13
    assert (states[6] - states[6].mean(dim=1)).abs().max() < 0.02
    assert (states[-1] - star).abs().max() < 1e-6
    rounded = laws.there_and_back(laws.squeezing(), star, 1.5, 6, digits=2)
    assert (rounded[-1] - star).abs().max() > 0.5


def test_the_slopes_of_a_linear_flow_are_exponentials():
    u0 = normal(0, "u0", size=(1, 2, 2))
    found = laws.flow_slopes(lambda u, t: -2 * u, u0, 1.0, 50)
    torch.testing.assert_close(found, math.exp(-2) * torch.eye(4, dtype=torch.float64), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", laws.LOSSY)
def test_what_cannot_be_undone_makes_two_states_one(name):
    _, _, before, after = laws.collision(name, 5)
    assert before > 0.1
    assert after < 1e-14


def test_collisions_have_names():
    with pytest.raises(ValueError, match="name must be one of pooling"):
        laws.collision("nothing", 0)


def test_without_eps_the_collision_is_that_of_the_flow():
    """RK4 in small steps of P2 eq 9 with ε = 0 ends where the closed form says, from both starts."""
    u, v, _, _ = laws.collision("ε = 0", 5)
    ends = [solve(SpatialStabilization(1.0, eps=0.0), w, steps=4000, dt=2 / 4000).final for w in (u, v)]
    assert (ends[0] - ends[1]).abs().max() < 2e-3  # Euler chatters within one step of the mean


@pytest.mark.parametrize("q", [0.3, 0.9])
def test_a_layer_below_the_limit_is_undone_by_iteration_at_the_rate_of_its_constant(q):
    branch, u = laws.Branch(2, lipschitz=1.0), normal(2, "u", size=(3, 6, 4))
    w = u + q * branch(u)
    found = laws.undo_layer(branch, w, q, 25)
    errors = torch.stack([(v - u).norm() for v in found])
    assert (errors[1:] <= q * errors[:-1] + 1e-12).all()


# A Transformer run backward


def test_newton_undoes_a_layer_that_iteration_cannot():
    """f = −3u has the slope 3: w = −2u, and the iteration v ← w + 3v runs away."""
    u = normal(0, "u", size=(5, 3, 2))
    v, solved = measure.undo(lambda v: -3 * v, -2 * u)
    assert solved.all()
    torch.testing.assert_close(v, u)


def test_newton_finds_another_state_where_two_go_to_one():
    """u − 2 tanh u falls around 0: what comes from near 0 comes from two other numbers, too."""
    u = torch.full((1, 1, 1), 0.7, dtype=torch.float64)
    w = u - 2 * torch.tanh(u)
    v, solved = measure.undo(lambda v: -2 * torch.tanh(v), w)
    assert solved.all()
    torch.testing.assert_close(v - 2 * torch.tanh(v), w)
    assert (v - u).abs() > measure.OTHER


def test_newton_says_so_where_no_state_is_found():
    """u² + ½ is never 0."""
    _, solved = measure.undo(lambda v: v**2 - v + 0.5, torch.zeros(1, 1, 1, dtype=torch.float64))
    assert not solved.any()


def test_an_untrained_transformer_is_run_backward():
    model, x = countable.build(1), countable.inputs()[::64]
    start = countable.states(model, x).states[0]
    found = measure.halves(model.double(), start)
    assert found["again"] == [1.0] * 8
    assert found["another"] == [0.0] * 8


def test_only_sweeps_are_run_backward():
    model = countable.build(0)
    model.integrator = RK4()
    with pytest.raises(ValueError, match="must sweep through its terms"):
        measure.halves(model, normal(0, "u", size=(1, 9, 8)))


# Counting


def test_information_is_counted_exactly_on_finitely_many_inputs():
    x = countable.inputs(3)
    t = x[:, :1].double() + 10.0  # one bit is left
    y = x[:, 0] ^ x[:, 1]
    assert countable.counted(t) == pytest.approx(math.log(2))
    assert countable.counted(t, y) == pytest.approx(0.0, abs=1e-12)
    assert countable.counted(x.double(), y) == pytest.approx(math.log(2))
    assert len(x.unique(dim=0)) == 8


def test_rows_that_are_neither_equal_nor_apart_are_refused():
    with pytest.raises(ValueError, match="neither equal nor clearly apart"):
        countable.counted(torch.tensor([[1.0], [1.0 + 5e-12]], dtype=torch.float64))
    assert countable.counted(torch.tensor([[1.0], [1.0 + 1e-15]], dtype=torch.float64)) == 0


def test_the_labels_are_parities_of_pairs_each_equally_often():
    x = countable.inputs()
    y = countable.parities(x)
    assert torch.bincount(y).tolist() == [128] * 4
    for bit in range(countable.BITS):  # no single bit tells anything
        assert countable.counted(x[:, bit : bit + 1].double(), y) == pytest.approx(0, abs=1e-12)


def test_a_transformer_tells_all_inputs_apart_and_its_mean_does_not_at_the_start():
    model, x = countable.build(0), countable.inputs()
    run = countable.states(model, x)
    assert [countable.counted(u) for u in run.states] == pytest.approx([9 * math.log(2)] * 5)
    # u₀ = E(x_i) + P_i: its mean is a function of the number of ones alone
    share = torch.tensor([math.comb(9, k) for k in range(10)]).double() / 512
    assert countable.counted(rows(run.states[0])) == pytest.approx(-(share * share.log()).sum().item())
    assert next(model.parameters()).dtype == torch.float32


# P1 eq 16


def test_the_information_of_the_pair_is_that_of_its_covariance():
    covariance = torch.tensor([[1.0, 1.0], [1.0, 1.25]], dtype=torch.float64)
    assert laws.pair_information() == pytest.approx(gaussian_information(covariance, 1).item())


def test_the_value_in_closed_form_is_that_of_the_samples():
    for model in laws.choices().values():
        assert model.seen(0).item() == pytest.approx(model.value().item(), abs=0.06)


def test_descending_on_eq16_may_bring_the_information_down_before_it_rises():
    below, above = (laws.descend(400, over="theta", start=s)["true"] for s in (1.0, 1.3))
    assert min(below) < 0.05 < below[0]
    assert above == sorted(above)


def test_the_largest_eq16_over_q_with_its_own_marginal_is_the_information():
    """max over q, then min over θ, would do: no q with w = a² + v passes I, and the exact one reaches it."""
    for s in (0.3, 1.0, 2.0):
        draws = torch.rand(400, 2, generator=stream(4, "models"), dtype=torch.float64).tolist()
        pairs = [(3 * a - 1, 0.05 * 100**v) for a, v in draws]
        values = [laws.Gaussians(a, v, a**2 + v).value(s).item() for a, v in pairs]
        exact = laws.Gaussians(s, laws.NOISE**2, s**2 + laws.NOISE**2).value(s)
        assert max(values) <= exact + 1e-12
        assert exact.item() == pytest.approx(laws.pair_information(s).item())


def test_an_upper_bound_brings_the_information_down():
    """The control: VIB, exact q(t|x) = N(sx, ν²) and q(t) = N(0, 1.25), minimised over s."""
    s = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    before = laws.pair_information(s.item())
    for _ in range(100):
        value = laws.Gaussians(s, laws.NOISE**2, 1.25).value(s)
        (slope,) = torch.autograd.grad(value, s)
        with torch.no_grad():
            s -= 0.1 * slope
    assert value >= laws.pair_information(s.item())
    assert laws.pair_information(s.item()) < before - 0.4


def test_club_is_the_signal_to_noise_ratio():
    """E log p(t|x) over pairs minus over strangers is s²/ν² for the Gaussian pair: 4, far above I."""
    assert laws.club_seen(0).item() == pytest.approx(4.0, abs=0.3)


def test_descending_needs_something_to_descend():
    with pytest.raises(ValueError, match="over must be phi or theta"):
        laws.descend(1, over="psi")


# The adversary


@pytest.mark.parametrize("name", ["processing", "layer", "undo", "injective"])
def test_the_bounds_on_information_and_layers_withstand_the_attack_and_false_neighbours_do_not(name):
    statement = replace(attack.run.statements[name], batch=12, steps=80)
    assert statement.search(7).max() <= 1 + adversary.ROUNDING
    assert all(statement.breaks(7, **change) for change in statement.neighbours.values())


def test_two_solutions_approach_no_faster_than_allowed():
    found = replace(attack.run.statements["approach"], batch=4, steps=10).search(7)
    assert 0.5 < found.max() <= 1 + adversary.ROUNDING


def test_attention_alone_draws_two_states_together_at_twice_the_norms():
    """Of ‖V‖‖A‖R²(1 + √2), what the constant allows two tokens, attention reaches 2."""
    drawn = {name: torch.zeros(1, 2, 2, dtype=torch.float64) for name in "uvAVWU"}
    drawn["numbers"] = torch.zeros(1, 5, dtype=torch.float64)
    score = attack.approach(**attack.attention_alone(0, **drawn), ends="reflecting")[0]
    assert score.item() == pytest.approx(2 * 20 / (math.sqrt(2) + 20 * (1 + math.sqrt(2))), rel=0.01)


def test_the_attack_tells_a_stack_that_loses_from_a_flow_that_does_not():
    seen = attack.counts(7, number=12)
    hidden = torch.tensor([attack.lossy(n) for n in range(12)])
    room = seen["H(Y)"][:, 0] - seen["flow Y"][:, 0]
    assert hidden.sum() == 6
    assert (room[hidden] > attack.SEEN).all()
    assert (room[~hidden].abs() < 1e-9).all()  # every input is told apart: no room for a rise
    assert (seen["flow X"] == seen["flow X"][:, :1]).all()
    assert (seen["flow Y"] == seen["flow Y"][:, :1]).all()
    assert (seen["stack X"].diff(dim=1) <= 1e-12).all()
    assert (seen["stack Y"].diff(dim=1) <= 1e-12).all()
    lost = seen["stack X"][:, 0] - seen["stack X"][:, -1]
    assert lost[laws.KINDS.index("sign")] > 1


def test_a_start_comes_back_from_all_digits_of_the_end_and_not_from_three():
    assert attack.recovered(7, number=3).max() < 1
    assert attack.recovered(7, number=3, digits=3).max() > 1


def test_false_statements_next_to_the_counted_ones_are_broken():
    assert (attack.pooling(7, number=2) > 1).all()
    assert (attack.mean_rises(7, number=2) > 1).any()
    assert (attack.input_again(7, number=2) > 1).all()
    assert (attack.usable_rises(0, number=1) > 1).all()


def test_a_layer_with_its_constant_at_one_can_bring_everything_together():
    """The limit q < 1 is sharp: F = −κu with Δtκ = 1 leaves nothing."""
    u = normal(0, "u", size=(1, 4, 2))
    none, leak = torch.zeros(1, 2, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert (u + attack.branch(u, none, none, none, leak)).abs().max() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_states_that_are_not_finite_are_not_counted(value):
    t = torch.eye(4, dtype=torch.float64)
    t[2, 1] = value
    with pytest.raises(ValueError, match="t must be finite"):
        countable.counted(t)
