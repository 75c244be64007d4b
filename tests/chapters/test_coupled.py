"""The coupled system and Algorithm 1: exact values.  (P1 eq 3/14, 4/17-20, 22/23, Algorithm 1, fig 9)"""

import itertools
import math
from dataclasses import replace

import pytest
import systems
import torch
from coupled_systems import layer_rate, system
from torch.nn.functional import cross_entropy

from pdebook.chapters.coupled_layers import attack, laws, measure
from pdebook.evidence.adversary import ROUNDING, SHRUNK
from pdebook.evidence.systems import one_step
from pdelab import coupled, datasets, solve
from pdelab.bottleneck import channel
from pdelab.datasets.base import shuffled_batches
from pdelab.formulas import norm2
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.seeds import derive, normal, seeded
from pdelab.terms.coupling import Coupling


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits-rows")


def bounds_of(attention, network):
    """α‖V‖ + ρ and α|b| + R₀ of one layer, by the norms of its weights: tanh(z) is at most |z|."""

    def size(W):
        return norm2(W.detach()).item()

    V, b = attention.qkv.weight[-attention.width :], attention.qkv.bias[-attention.width :]
    spread = attention.strength * size(attention.out.weight @ V)
    constant = attention.strength * (attention.out.weight @ b + attention.out.bias).norm().item()
    W1, W2 = network.inner, network.outer
    at_zero = size(W2.weight) * W1.bias.norm().item() + W2.bias.norm().item()
    return spread + size(W2.weight) * size(W1.weight), constant + at_zero


# Readings of l and t.


@pytest.mark.parametrize("seed", range(3))
def test_at_rest_the_coupled_system_is_a_stack_of_implicit_residual_layers(seed):
    """u_l = u_{l−1} + F(u_l)/c."""
    F, u0 = laws.branch(seed), normal(seed, "u0", size=(2, 5, 4))
    relaxed = laws.follow_layers(F, u0, layers=6, rate=6.0, dt=1 / 6, steps=200)
    torch.testing.assert_close(relaxed[-1], laws.implicit_stack(F, u0, 6, 1 / 6), rtol=0, atol=1e-10)
    assert (relaxed[-1] - laws.explicit_stack(F, u0, 6, 1 / 6)).abs().max() > 1e-3


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_after_as_many_steps_as_layers_the_top_holds_the_input_untouched(layers):
    """Δt c = 1 and F(0) = 0: no layer has worked on it."""
    F, u0 = laws.branch(0, bias=False), normal(0, "u0", size=(2, 5, 4))
    top = laws.follow_layers(F, u0, layers, rate=float(layers), dt=1 / layers, steps=layers)[-1]
    torch.testing.assert_close(top, u0, rtol=0, atol=1e-14)
    later = laws.follow_layers(F, u0, layers, rate=float(layers), dt=1 / layers, steps=layers + 1)[-1]
    assert (later - u0).abs().max() > 1e-3


@pytest.mark.parametrize("rate", [0.0, 3.0, 8.0])
def test_started_at_the_input_equal_layers_are_a_residual_network_whatever_the_links(rate):
    """u_l^n = v_n for n ≤ l: neighbours that hold the same exchange nothing."""
    F, u0 = laws.branch(1), normal(1, "u0", size=(2, 5, 4))
    for steps in (1, 4, 8):
        layers = laws.follow_layers(F, u0, 8, rate, 1 / 8, steps, start="input")
        for place in range(steps, 9):
            want = laws.explicit_stack(F, u0, steps, 1 / 8)
            torch.testing.assert_close(layers[place], want if place else u0, rtol=0, atol=1e-13)
    late = laws.follow_layers(F, u0, 8, 8.0, 1 / 8, 12, start="input")[-1]
    assert (late - laws.explicit_stack(F, u0, 12, 1 / 8)).abs().max() > 1e-3  # n > l: the held input has arrived


def test_the_distance_to_the_residual_network_keeps_its_bound():
    """M/(KL)·(e^{KT} − 1)², for F_l(u) = k tanh(u + l/L) + m l/L, where K = |k| and M = |k| + |m|; T = 1."""
    k, m, u0 = normal(0, "layers", size=(3, 500)).unbind()
    for layers in (2, 5, 20):
        u, v = [u0] * (layers + 1), u0
        for _ in range(layers):
            moved = [k * torch.tanh(w + j / layers) + m * j / layers for j, w in enumerate(u)]
            u = [u0, *(below + rate / layers for below, rate in zip(u[:-1], moved[1:], strict=True))]
        for place in range(1, layers + 1):
            v = v + (k * torch.tanh(v + place / layers) + m * place / layers) / layers
        bound = (k.abs() + m.abs()) / (k.abs() * layers) * (k.abs().exp() - 1) ** 2
        ratio = (u[-1] - v).abs() / bound
        assert ratio.max() <= 1 + 1e-9
        assert ratio.max() > 0.1  # the control: a tenth of the bound breaks


@pytest.mark.parametrize("start", ["zero", "input"])
def test_k_steps_after_the_front_a_layer_holds_a_sum_over_the_layers_below(start):
    """Δt c = 1: u_l^{l+k} = u_0 + Δt Σ_{j ≤ l} F_j(u_j^{j+k−1}), Picard's iteration in k."""
    layers, h = 5, 1 / 5
    F, u0 = laws.varying(0, layers), normal(0, "u0", size=(2, 5, 4))
    at = [laws.follow_layers(F, u0, layers, layers, h, n, start=start) for n in range(1, 10)]
    for k in (1, 2, 4):
        total = u0 + h * sum(F[j - 1](at[j + k - 2][j]) for j in range(1, layers + 1))
        torch.testing.assert_close(at[layers + k - 1][layers], total, rtol=0, atol=1e-13)


def test_layers_and_starts_that_do_not_exist_are_refused():
    F, u0 = laws.varying(0, 3), normal(0, "u0", size=(1, 2, 4))
    with pytest.raises(ValueError, match="one for each of the 4 layers"):
        laws.follow_layers(F, u0, 4, 1.0, 0.1, 1)
    with pytest.raises(ValueError, match="start"):
        laws.follow_layers(F, u0, 3, 1.0, 0.1, 1, start="top")


@pytest.mark.parametrize("turn", [0.3, 1.0])
def test_the_share_that_has_arrived_is_a_binomial_tail(turn):
    still = laws.branch(0, bias=False, size=0.0)
    u0 = torch.ones(1, 2, 4, dtype=torch.float64)
    for steps in (2, 3, 7):
        top = laws.follow_layers(still, u0, 3, rate=turn, dt=1.0, steps=steps)[-1]
        torch.testing.assert_close(top, laws.share_arrived(3, steps, turn) * u0, rtol=0, atol=1e-14)


# Affine exchange.


@pytest.mark.parametrize("c", [-0.5, 0.8])
def test_an_outflow_of_c_u_shifts_the_logarithmic_norm_by_minus_c(c):
    made, still = system(), system()
    made.equation.terms[-1].exchange[2].weight.copy_(c * torch.eye(3, dtype=torch.float64))
    still.equation.terms[-1].exchange[2].weight.zero_()
    u = normal(0, "u", size=(1, 4, 12))
    one, other = (logarithmic_norm(layer_rate(m, u, 2), u[..., 6:9]).item() for m in (made, still))
    assert one - other == pytest.approx(-c, abs=1e-9)


def test_no_affine_map_is_layernorm_on_inputs_of_several_sizes_and_both_signs():
    """LN(sx) = sign(s) LN(x), so an affine map that agreed with it would have to be constant and odd: zero."""
    x = normal(0, "x", size=(40, 5))
    scaled = torch.cat([s * x for s in (1, 3, -1, -3)])
    normed = torch.nn.functional.layer_norm(scaled, (5,), eps=0.0)
    torch.testing.assert_close(normed[:40], normed[40:80], rtol=0, atol=1e-12)
    off = (laws.affine_fit(scaled, normed)(scaled) - normed).norm() / normed.norm()
    assert off > 0.3


# Derivatives.


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_damped_gradient_is_largest_after_k_over_its_decay_steps(k):
    """a < 0: C(n, k)(1 − δ)^{n−k}, δ = Δt|a|, is largest at n = ⌊k/δ⌋; without damping it only grows."""
    sizes = [laws.paths(n, k, 0.13, rate=-1.0) for n in range(60)]
    assert sizes.index(max(sizes)) == math.floor(k / 0.13)
    free = [laws.paths(n, k, 0.13) for n in range(k, 60)]
    assert all(later > earlier for earlier, later in itertools.pairwise(free))


def test_path_counting_is_exact_for_layers_that_are_alike():
    """u_l' = a u_l + w u_{l−1}."""
    a, w, dt, layers, steps = -0.3, 0.8, 0.2, 4, 6
    M = (1 + dt * a) * torch.eye(layers) + dt * w * torch.diag(torch.ones(layers - 1), -1)
    power = torch.linalg.matrix_power(M.double(), steps)
    for k in range(layers):
        assert power[k, 0].item() == pytest.approx(laws.paths(steps, k, dt, w, a), rel=1e-6)


# The step.


@pytest.mark.parametrize("name", attack.run.statements)
def test_the_bound_of_the_coupled_step_stands_and_without_a_tenth_of_a_term_it_breaks(name):
    statement = replace(attack.run.statements[name], batch=8, steps=30)
    found = statement.search(0)
    assert SHRUNK < found.max() <= 1 + ROUNDING
    assert set(statement.neighbours) == {"condition", *attack.TERMS}
    assert all(statement.breaks(0, **change) for change in statement.neighbours.values())


def test_the_step_of_the_attack_is_that_of_the_package():
    """One layer of the attack's system against Coupling, Interaction and Reaction with the same weights."""
    shapes = {"u": (3, 4, 2), "b": (3, 2), "E": (3, 2, 2), "numbers": (3, 3)} | dict.fromkeys("AVWU", (2, 2, 2))
    parts = {name: normal(0, "same", name, size=(1, *shape)) for name, shape in shapes.items()}
    u, A, V, W, U, b = (parts[name] for name in "uAVWUb")
    x, top, y = attack.shares(parts["numbers"])
    links = attack.link_matrices(parts["E"], top)
    term = Coupling(2, 3, inflow=True, outflow=True).double().requires_grad_(False)
    for k, link in enumerate(term.exchange):
        link.weight.copy_(links[0, k])
        link.bias.copy_(b[0, k])
    exchange = term(torch.cat(list(u[0]), dim=-1).unsqueeze(0)).split(2, dim=-1)
    after = attack.one_step(**parts, ends="reflecting")[0]
    for layer in (1, 2):
        v = u[0, layer]
        second = torch.cat([v[:1], v, v[-1:]])
        second = second[2:] - 2 * v + second[:-2]
        attended = torch.softmax(v @ A[0, layer - 1] @ v.T, dim=-1) @ v @ V[0, layer - 1].T
        reaction = torch.tanh(v @ W[0, layer - 1].T) @ U[0, layer - 1].T
        want = v + x[0, layer] / 2 * second + y[0, layer] * attended + reaction + exchange[layer][0]
        torch.testing.assert_close(after[layer - 1], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("total", [1.0, 1.2])
def test_past_the_condition_the_bound_breaks_and_at_it_it_stands(total):
    """The control for the condition: 2r + ΔtC = 1.2, alternating signs, nothing but diffusion and outflow."""
    u = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(4).view(1, 8, 1)
    none = torch.zeros(1, 1, dtype=torch.float64)
    after = one_step(u, diffusive=total / 2, strength=0.0, V=none, extra=lambda v: -total / 2 * v, ends="periodic")
    assert (after.abs().max().item() <= 1 - total / 2 + 1e-12) == (total <= 1)


def test_a_long_run_ends_below_the_levels_of_the_theorem():
    """limsup m_l ≤ m̄_l: links 1.5 · identity, weak attention and network, 3000 steps; and it is not far below."""
    made = systems.seeded(
        lambda: coupled(2, 3, 1, 4, steps=1, dt=0.2, diffusion=0.01, strength=0.1, link=1.5, activation="tanh")
    )
    _, A, R, C = made.requires_grad_(False).equation.terms
    for place, block in enumerate(("1", "2", "3")):
        R.terms[block].load_state_dict({k: 0.2 * v for k, v in R.terms[block].state_dict().items()})
        C.exchange[place].bias.copy_(0.1 * normal(0, "bias", place, size=(2,)))
    u = normal(0, "u", size=(1, 5, 8))
    run = solve(made.equation, u, steps=3000, dt=0.2, keep=lambda v: None).final
    sizes = [part.norm(dim=-1).max().item() for part in run.split(2, dim=-1)]
    level = sizes[0]
    for block in (1, 2, 3):
        grow, force = bounds_of(A.terms[str(block)], R.terms[str(block)])
        force += (C.exchange[block - 1].bias - C.exchange[block].bias).norm().item()
        level = (1.5 * level + force) / (1.5 - grow)
        assert 0.2 * level < sizes[block] <= level


# Eq 3 and 14, line 33.


CASES = [(0.25, 0.01), (0.5, 0.05), (2.0, 0.1), (0.3, 0.02), (1.5, 0.55), (0.5, 0.1), (2.2, 1.205), (2.2, 1.15)]


@pytest.mark.parametrize("form", laws.SIGNS)
@pytest.mark.parametrize(("beta", "decay"), CASES)
def test_every_form_rests_where_its_signs_say(form, beta, decay):
    """The last four: roots below 1, no root, two roots above 1, and growth that stops at once (eq 3)."""
    want = laws.resting_information(form, beta, decay)
    theta = laws.train_channel(form, theta=0.02, beta=beta, decay=decay, eta=0.1, steps=9000)[-1]
    theta = theta.nan_to_num(1e9, posinf=1e9)  # a weight too large for a float
    found = laws.channel_information(theta).item()
    if math.isinf(want):
        assert found > 3
    else:
        assert found == pytest.approx(want, abs=1e-4)


def test_roots_that_are_not_below_one_are_no_rest():
    assert laws.resting_information("eq 3", 3, 2.1) == math.inf  # both roots above 1
    assert laws.resting_information("eq 3", 3, 2) == math.inf  # roots 1 and 2, growth below 1
    assert laws.resting_information("eq 3", 1.5, 0.5) == 0  # roots 1/2 and 1, decay just below 1
    assert laws.resting_information("eq 3", 0, 0) == math.inf
    with pytest.raises(ValueError, match="beta and decay must be at least 0"):
        laws.resting_information("eq 3", -1, 0)


def test_the_loss_of_the_scalar_channel_is_half_the_error_of_the_best_guess():
    theta, draws = 1.5, normal(0, "draws", size=(2, 400_000))
    x, z = draws
    t = theta * x + z
    guess = t * (x @ t) / (t @ t)
    assert (x - guess).square().mean().item() / 2 == pytest.approx(
        laws.channel_loss(torch.tensor(theta)).item(), rel=0.01
    )


@pytest.fixture(scope="module")
def updates(digits):
    """The last of 55 updates of both orders, when the input has reached the top; and the weights before and after."""
    found = {}
    for order in ("printed", "corrected"):
        model = measure.build(digits, 0, layers=3, width=8, steps=5)
        before = {name: [w.detach().clone() for w in group] for name, group in measure.parts(model).items()}
        settings = {"order": order, "sign": 1, "beta": 0.01, "seed": 0, "passes": 5}
        found[order] = measure.run_algorithm(model, digits, **settings), before, model
    return found


def test_with_earlier_states_as_constants_one_loop_gives_no_gradient_below_the_top(updates):
    """There θ⁺ = (1 − ηλ)θ and no more: the weights below shrink, and learn nothing."""
    record, before, model = updates["printed"]
    top, shrunk = measure.top_parts(model), (1 - 0.1 * 1e-4) ** len(record)
    for name, group in measure.parts(model).items():
        size = record[-1].gradients[name]
        assert (size > 0) if name in top else (size == 0)
        if name not in top:
            for old, new in zip(before[name], group, strict=True):
                torch.testing.assert_close(new.detach(), shrunk * old, rtol=1e-4, atol=1e-6)


def test_the_parts_are_all_weights(updates):
    model = updates["corrected"][2]
    named = [weight for group in measure.parts(model).values() for weight in group]
    assert {id(w) for w in named} == {id(w) for w in model.parameters()}


def test_line_33_written_out(digits):
    """θ⁺ = θ − η(∇L + λθ ∓ β∇Î) by hand, for the first update of the corrected order."""
    batch = shuffled_batches(digits.train, 127, 0, 0)[0]
    part = digits.train.take(batch)
    for sign in (-1, 1):
        mine, theirs = (measure.build(digits, 0, layers=2, width=8, steps=3) for _ in range(2))
        small = type(digits)("first", "own", part, digits.test, digits.classes, digits.symbols)
        settings = {"beta": 0.3, "eta": 0.1, "decay": 0.01, "seed": 0, "batch": 127, "passes": 1}
        measure.run_algorithm(theirs, small, order="corrected", sign=sign, **settings)
        mine.train()
        order = shuffled_batches(part, 127, 0, 0)[0]
        logits = seeded(lambda mine=mine, part=part, order=order: mine(part.x[order]), derive(0, "noise"))
        loss = cross_entropy(logits, part.y[order])
        (loss + sign * 0.3 * channel(mine).seen.square().sum(dim=1).mean() / 2).backward()
        for own, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            step = 0 if own.grad is None else own.grad
            torch.testing.assert_close(own - 0.1 * (step + 0.01 * own), other, rtol=1e-4, atol=1e-5)


# The picture.


def test_turning_the_picture_keeps_heights_and_turns_the_floor():
    x, y, z = (torch.tensor(v, dtype=torch.float64) for v in (1.0, 0.0, 2.0))
    assert laws.turned(x, y, z, 0, 0) == pytest.approx((1.0, 2.0))
    assert laws.turned(x, y, z, 90, 0) == pytest.approx((0.0, 2.0))
    assert laws.turned(x, y, z, 90, 90) == pytest.approx((0.0, 1.0))  # from above


def test_a_score_can_be_asked_after_other_numbers_of_steps(digits):
    model = measure.build(digits, 0, layers=2, width=8, steps=1)
    assert measure.accuracy(model, digits) == pytest.approx(0.1, abs=0.05)  # one step: the top has seen nothing
    assert model.steps == 1
    longer = measure.build(digits, 0, layers=2, width=8, steps=6)
    assert measure.accuracy(model, digits, 6) == measure.accuracy(longer, digits)


def test_the_small_form_of_the_experiment_runs():
    result = measure.run("smoke", 0)
    assert result.status == "finished"
    assert not result.diverged
    numbers = [v for value in result.figures.values() for v in (value if isinstance(value, list) else [value])]
    assert all(math.isfinite(number) for number in numbers)


def test_a_reward_without_end_is_named_as_diverged_and_has_no_accuracy(monkeypatch):
    monkeypatch.setitem(measure.SETTINGS, "beta", 1e6)
    result = measure.run("smoke", 0)
    assert {"printed/reward", "corrected/reward"} <= set(result.diverged)
    for key, updates in result.diverged.items():
        assert f"{key}/accuracy" not in result.figures
        assert result.figures[f"{key}/done"] == updates < 2 * 11
