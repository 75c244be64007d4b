"""The coupled system, Algorithm 1 and training with a bottleneck.  (P1 eq 3/14, 4/17-20, 22/23, Algorithm 1, fig 9)"""

import math

import pytest
import torch
from systems import seeded
from torch.nn.functional import cross_entropy

from pdelab import Reaction, coupled, datasets, solve
from pdelab.experiments import algorithm1, attack_coupled, bottleneck
from pdelab.experiments import coupled_flow as flow
from pdelab.experiments.adversary import ROUNDING, SHRUNK
from pdelab.experiments.continuum import slope
from pdelab.experiments.scales import HERE, Scale
from pdelab.metrics import information
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.models import Bottleneck
from pdelab.seeds import normal
from pdelab.terms.coupling import Coupling

LAYERS = (4, 8, 16, 32)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits-rows")


def system(layers=3, *, dt=0.1, spread=0.4, width=3, steps=4, **options):
    build = lambda: coupled(width, layers, 1, 5, steps=steps, dt=dt, diffusion=0.02, strength=0.7, **options)  # noqa: E731
    return seeded(build, spread=spread).requires_grad_(False)


# Readings of l and t.


@pytest.mark.claim("P1-eq4/17")
def test_with_l_and_t_both_as_depth_the_top_layer_is_that_of_a_residual_network(evidence):
    """F(0) = 0: with biases the layers that still wait for the input move as well, whatever the input is."""
    found = [flow.readings(seed, (16,), bias=False) for seed in range(3)]
    off = [one["twice"][0] for one in found]
    evidence("printed", holds=max(off) < 0.1, fails=min(off) > 0.5)
    assert all(one["residual"][0] < 0.1 for one in found)  # the control: what a residual network itself reaches


@pytest.mark.claim("P1-eq4/17")
def test_with_t_as_relaxation_the_top_layer_follows_the_depth_flow_to_first_order(evidence):
    found = [slope(LAYERS, flow.readings(seed, LAYERS)["relaxed"]) for seed in range(3)]
    evidence("repair", holds=max(abs(order + 1) for order in found) < 0.2, fails=max(found) > -0.5)


@pytest.mark.claim("P1-eq4/17")
def test_over_the_layers_only_the_two_end_terms_are_left(evidence):
    off = []
    for seed in range(5):
        term = seeded(lambda: Coupling(3, 5, inflow=True, outflow=True), seed=seed, spread=0.5)
        u = normal(seed, "u", size=(2, 4, 15))
        blocks, rates = u.split(3, dim=-1), term(u).split(3, dim=-1)
        left = term.exchange[0](blocks[0]) - term.exchange[-1](blocks[-1])
        off.append((sum(rates) - left).abs().max().item())
    evidence("repair", holds=max(off) < 1e-12, fails=max(off) > 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_at_rest_the_coupled_system_is_a_stack_of_implicit_residual_layers(seed):
    """u_l = u_{l−1} + F(u_l)/c."""
    F, u0 = flow.branch(seed), normal(seed, "u0", size=(2, 5, 4))
    relaxed = flow.follow_layers(F, u0, layers=6, rate=6.0, dt=1 / 6, steps=200)
    torch.testing.assert_close(relaxed[-1], flow.implicit_stack(F, u0, 6, 1 / 6), rtol=0, atol=1e-10)
    assert (relaxed[-1] - flow.explicit_stack(F, u0, 6, 1 / 6)).abs().max() > 1e-3


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_after_as_many_steps_as_layers_the_top_holds_the_input_untouched(layers):
    """Δt c = 1 and F(0) = 0: no layer has worked on it."""
    F, u0 = flow.branch(0, bias=False), normal(0, "u0", size=(2, 5, 4))
    top = flow.follow_layers(F, u0, layers, rate=float(layers), dt=1 / layers, steps=layers)[-1]
    torch.testing.assert_close(top, u0, rtol=0, atol=1e-14)
    later = flow.follow_layers(F, u0, layers, rate=float(layers), dt=1 / layers, steps=layers + 1)[-1]
    assert (later - u0).abs().max() > 1e-3


@pytest.mark.parametrize("turn", [0.3, 1.0])
def test_the_share_that_has_arrived_is_a_binomial_tail(turn):
    still = flow.branch(0, bias=False, size=0.0)
    u0 = torch.ones(1, 2, 4, dtype=torch.float64)
    for steps in (2, 3, 7):
        top = flow.follow_layers(still, u0, 3, rate=turn, dt=1.0, steps=steps)[-1]
        torch.testing.assert_close(top, flow.share_arrived(3, steps, turn) * u0, rtol=0, atol=1e-14)


# Affine exchange.


@pytest.mark.claim("P1-eq18/19")
def test_an_affine_exchange_does_what_layernorm_does(evidence):
    at_one, at_four = flow.layernorm_fit_errors((1.0, 4.0))
    evidence("printed", holds=at_four < 0.05, fails=at_four > 0.5)
    assert at_one < 0.3  # the control: at the scale it was fitted to, the best affine map is not far off


@pytest.mark.claim("P1-eq18/19")
def test_without_any_exchange_every_layer_still_is_a_residual_block(evidence):
    made = system(link=0.0, spread=0.0)
    u = normal(0, "u", size=(1, 4, 12))
    moved = solve(made.equation, u, steps=1, dt=0.1).final - u
    branch = sum(term(u) for term in made.equation.terms[:-1])
    off = (moved - 0.1 * branch).abs().max().item()
    evidence("repair", holds=off < 1e-12, fails=off > 1e-6)


@pytest.mark.claim("P1-eq18/19")
def test_outflow_adds_damping_and_inflow_only_forcing(evidence):
    """The logarithmic norm of one layer's rate moves by −c with the outflow and not at all with the inflow."""
    react, u = seeded(lambda: Reaction(3, 5, activation="tanh")), normal(0, "u", size=(1, 4, 3))
    forcing, c = normal(0, "inflow", size=(1, 4, 3)), 0.8
    rates = {
        "alone": lambda v: react(v),
        "outflow": lambda v: react(v) - c * v,
        "inflow": lambda v: react(v) + forcing,
    }
    found = {name: logarithmic_norm(rate, u).item() for name, rate in rates.items()}
    damped, forced = found["outflow"] - found["alone"], found["inflow"] - found["alone"]
    evidence(
        "repair",
        holds=abs(damped + c) < 1e-9 and abs(forced) < 1e-9,
        fails=abs(damped + c) > 1e-3 or abs(forced) > 1e-3,
    )


def test_no_affine_map_is_layernorm_on_inputs_of_several_sizes_and_both_signs():
    """LN(sx) = sign(s) LN(x), so an affine map that agreed with it would have to be constant and odd: zero."""
    x = normal(0, "x", size=(40, 5))
    scaled = torch.cat([s * x for s in (1, 3, -1, -3)])
    normed = torch.nn.functional.layer_norm(scaled, (5,), eps=0.0)
    torch.testing.assert_close(normed[:40], normed[40:80], rtol=0, atol=1e-12)
    off = (flow.affine_fit(scaled, normed)(scaled) - normed).norm() / normed.norm()
    assert off > 0.3


# Derivatives.


@pytest.mark.claim("P1-eq22/23")
def test_the_printed_matrix_is_the_derivative_from_one_layer_to_the_next(evidence):
    made, off = system(), []
    for seed in range(3):
        u = normal(seed, "u", size=(1, 4, 12))
        J = flow.step_jacobian(made, u)
        for block in (1, 2):
            printed = flow.printed_jacobian(made, u, block)
            off.append(((J[block + 1, block] - printed).norm() / printed.norm()).item())
    evidence("printed", holds=max(off) < 1e-9, fails=min(off) > 0.1)


@pytest.mark.claim("P1-eq22/23")
def test_it_is_the_derivative_within_a_layer_and_between_layers_there_is_the_link(evidence):
    made, off = system(), []
    links = [link.weight for link in made.equation.terms[-1].exchange]
    for seed in range(3):
        u = normal(seed, "u", size=(1, 4, 12))
        J = flow.step_jacobian(made, u)
        for block in (1, 2, 3):
            off.append((J[block, block] - flow.printed_jacobian(made, u, block)).abs().max().item())
            between = torch.kron(torch.eye(4, dtype=torch.float64), made.dt * links[block - 1])
            off.append((J[block, block - 1] - between).abs().max().item())
        off.append(max(J[2, 0].abs().max().item(), J[1, 2].abs().max().item()))  # no other pair of layers
    evidence("repair", holds=max(off) < 1e-12, fails=max(off) > 1e-6)


@pytest.mark.claim("P1-eq22/23")
def test_over_k_links_in_n_steps_the_derivative_is_of_order_k(evidence):
    """∂u_{l+k}^n/∂u_l^0 = C(n, k) Δt^k W…W (1 + O(Δt)), attention and network and all."""
    u, off = normal(0, "u", size=(1, 3, 12)), []
    for links in (1, 2):
        for dt in (1e-4, 1e-5):
            made = system(dt=dt)
            weights = [link.weight for link in made.equation.terms[-1].exchange]
            leading = (
                math.comb(5, links) * dt**links * torch.linalg.multi_dot([*weights[links:0:-1], torch.eye(3).double()])
            )
            J = flow.link_gradient(made, u, steps=5, start=1, end=1 + links)
            want = torch.kron(torch.eye(3, dtype=torch.float64), leading)
            off.append(((J - want).norm() / want.norm()).item())
    first, finer = max(off[0::2]), max(off[1::2])
    evidence("repair", holds=finer < 1e-3 and 5 < first / finer < 20, fails=finer > 0.1)


def test_path_counting_is_exact_for_layers_that_are_alike():
    """u_l' = a u_l + w u_{l−1}."""
    a, w, dt, layers, steps = -0.3, 0.8, 0.2, 4, 6
    M = (1 + dt * a) * torch.eye(layers) + dt * w * torch.diag(torch.ones(layers - 1), -1)
    power = torch.linalg.matrix_power(M.double(), steps)
    for k in range(layers):
        assert power[k, 0].item() == pytest.approx(flow.paths(steps, k, dt, w, a), rel=1e-6)


# The step.


@pytest.mark.parametrize("steps", [1, 4])
def test_the_bound_of_the_coupled_step_stands_and_is_reached(steps):
    found = attack_coupled.attack(0, steps, batch=8, climb=30)
    assert found.max() <= 1 + ROUNDING
    assert (found > SHRUNK).any()


@pytest.mark.parametrize("term", attack_coupled.TERMS)
def test_without_one_of_its_terms_the_bound_breaks(term):
    assert attack_coupled.broken_without(0, term) > 0


def test_the_step_of_the_attack_is_that_of_the_package():
    """One layer of the attack's system against Coupling, Interaction and Reaction with the same weights."""
    parts = attack_coupled.systems(0, "same", 1, 2, 4, 2)
    u, A, V, W, U, b, E, numbers = parts
    x, top, y = flow.shares(numbers)
    links = flow.link_matrices(E, top)
    term = Coupling(2, 3, inflow=True, outflow=True).double().requires_grad_(False)
    for k, link in enumerate(term.exchange):
        link.weight.copy_(links[0, k])
        link.bias.copy_(b[0, k])
    exchange = term(torch.cat(list(u[0]), dim=-1).unsqueeze(0)).split(2, dim=-1)
    after = flow.one_step(u, A, V, W, U, b, E, numbers, "reflecting")[0]
    for layer in (1, 2):
        v = u[0, layer]
        second = torch.cat([v[:1], v, v[-1:]])
        second = second[2:] - 2 * v + second[:-2]
        attended = torch.softmax(v @ A[0, layer - 1] @ v.T, dim=-1) @ v @ V[0, layer - 1].T
        reaction = torch.tanh(v @ W[0, layer - 1].T) @ U[0, layer - 1].T
        want = v + x[0, layer] / 2 * second + y[0, layer] * attended + reaction + exchange[layer][0]
        torch.testing.assert_close(after[layer - 1], want, rtol=0, atol=1e-12)


# Eq 3 and 14, line 33.


@pytest.mark.claim("P1-eq3/14")
def test_the_sign_of_eq_3_makes_weights_decay(evidence):
    theta = algorithm1.follow("eq 3", decay=0.5, eta=0.01, steps=1000, loss=None)
    assert theta[-1].item() == pytest.approx(1.005**1000, rel=1e-9)
    evidence("printed", holds=theta[-1] < 1, fails=theta[-1] > 1)


@pytest.mark.claim("P1-eq3/14")
def test_the_sign_of_eq_14_makes_weights_decay(evidence):
    theta = algorithm1.follow("eq 14", decay=0.5, eta=0.01, steps=1000, loss=None)
    evidence("printed", holds=theta[-1] < 1, fails=theta[-1] > 1)


@pytest.mark.claim("P1-eq3/14")
def test_the_corrected_flow_shrinks_weights_and_information(evidence):
    theta = algorithm1.follow("corrected", decay=0.5, eta=0.01, steps=1000, loss=None)
    exact = math.exp(-5)
    compressed = algorithm1.channel_information(algorithm1.follow("corrected", beta=0.5, eta=0.01, loss=None))
    falls = bool((compressed.diff() < 0).all())
    off = abs(theta[-1].item() / exact - 1)
    evidence("repair", holds=off < 0.02 and falls, fails=off > 0.1 or not falls)


@pytest.mark.claim("P1-eq3/14")
def test_the_corrected_flow_rests_where_the_closed_form_says(evidence):
    off = []
    for beta, decay in ((0.25, 0.0), (0.5, 0.05), (0.1, 0.1)):
        theta = algorithm1.follow("corrected", beta=beta, decay=decay, eta=0.05, steps=4000)[-1]
        want = algorithm1.resting_information("corrected", beta, decay)
        off.append(abs(algorithm1.channel_information(theta).item() - want))
    evidence("repair", holds=max(off) < 1e-6, fails=max(off) > 1e-2)


@pytest.mark.claim("P1-alg1")
def test_line_33_compresses(evidence):
    """I at the end with β = 0.5 against I with β = 0, both with λ = 0.05."""
    paths = [algorithm1.follow("line 33", beta=beta, decay=0.05, eta=0.05, steps=4000) for beta in (0.5, 0.0)]
    pressed, free = (algorithm1.channel_information(path[-1]).item() for path in paths)
    evidence("printed", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.claim("P1-alg1")
def test_with_the_opposite_sign_it_does(evidence):
    paths = [algorithm1.follow("corrected", beta=beta, decay=0.05, eta=0.05, steps=4000) for beta in (0.5, 0.0)]
    pressed, free = (algorithm1.channel_information(path[-1]).item() for path in paths)
    evidence("repair", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.parametrize("form", algorithm1.SIGNS)
@pytest.mark.parametrize(("beta", "decay"), [(0.25, 0.01), (0.5, 0.05), (2.0, 0.1), (0.3, 0.02)])
def test_every_form_rests_where_its_signs_say(form, beta, decay):
    want = algorithm1.resting_information(form, beta, decay)
    theta = algorithm1.follow(form, theta=0.3, beta=beta, decay=decay, eta=0.2, steps=5000)[-1]
    found = algorithm1.channel_information(theta).item()
    if math.isinf(want):
        assert found > 3
    else:
        assert found == pytest.approx(want, abs=1e-4)


def test_the_loss_of_the_scalar_channel_is_half_the_error_of_the_best_guess():
    theta, draws = 1.5, normal(0, "draws", size=(2, 400_000))
    x, z = draws
    t = theta * x + z
    guess = t * (x @ t) / (t @ t)
    assert (x - guess).square().mean().item() / 2 == pytest.approx(
        algorithm1.channel_loss(torch.tensor(theta)).item(), rel=0.01
    )


@pytest.fixture(scope="module")
def updates(digits):
    """The first update of both orders, after the input could have reached the top."""
    found = {}
    for order in ("printed", "corrected"):
        model = algorithm1.build(digits, 0, layers=3, width=8, steps=5)
        found[order] = algorithm1.run_algorithm(model, digits, order=order, sign=1, beta=0.01, seed=0, passes=5)[-1]
    return found


@pytest.mark.claim("P1-alg1")
def test_one_loop_for_time_and_weights_trains_every_layer(updates, evidence):
    below = [
        size for name, size in updates["printed"].gradients.items() if name not in ("layer 3", "link into 3", "readout")
    ]
    evidence("printed", holds=min(below) > 1e-9, fails=max(below) == 0)
    assert updates["printed"].gradients["layer 3"] > 0  # the control: the top layer does learn


@pytest.mark.claim("P1-alg1")
def test_two_loops_do(updates, evidence):
    sizes = updates["corrected"].gradients.values()
    evidence("repair", holds=min(sizes) > 1e-9, fails=min(sizes) == 0)


@pytest.mark.claim("P1-alg1")
def test_line_37_is_reached_by_runs_that_are_still_finite(evidence):
    met, failed = algorithm1.diverges_at(20.0, 0.15, steps=200)
    evidence("printed", holds=met and failed is None, fails=met and failed is not None)


@pytest.mark.claim("P1-alg1")
def test_a_step_that_meets_the_corrected_condition_stays_finite(evidence):
    """Δt c = 0.75 and 1: the condition of the coupled theorem, known before the loop."""
    failed = [algorithm1.diverges_at(c, 0.15, steps=1000)[1] for c in (5.0, 1 / 0.15)]
    evidence("repair", holds=failed == [None, None], fails=any(step is not None for step in failed))


def test_line_33_written_out(digits):
    """θ⁺ = θ − η(∇L + λθ ∓ β∇Î) by hand, for the first update of the corrected order."""
    batch = algorithm1.shuffled_batches(digits.train, 127, 0, 0)[0]
    part = digits.train.take(batch)
    for sign in (-1, 1):
        mine, theirs = (algorithm1.build(digits, 0, layers=2, width=8, steps=3) for _ in range(2))
        small = type(digits)("first", "own", part, digits.test, digits.classes, digits.symbols)
        settings = {"beta": 0.3, "eta": 0.1, "decay": 0.01, "seed": 0, "batch": 127, "passes": 1}
        algorithm1.run_algorithm(theirs, small, order="corrected", sign=sign, **settings)
        mine.train()
        order = algorithm1.shuffled_batches(part, 127, 0, 0)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(algorithm1.derive(0, "noise"))
            loss = cross_entropy(mine(part.x[order]), part.y[order])
        channel = next(m for m in mine.modules() if isinstance(m, Bottleneck))
        (loss + sign * 0.3 * channel.seen.square().sum(dim=1).mean() / 2).backward()
        for own, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            step = 0 if own.grad is None else own.grad
            torch.testing.assert_close(own - 0.1 * (step + 0.01 * own), other, rtol=1e-4, atol=1e-5)


# The picture.


@pytest.mark.claim("P1-fig9")
def test_in_one_step_an_impulse_reaches_the_next_layer_through_the_exchange_alone(evidence):
    linked, apart = (flow.impulse(steps=1, link=link)[1] for link in (1.0, 0.0))
    next_layer, without, beyond = linked[1].max().item(), apart[1].max().item(), linked[2:].max().item()
    evidence("printed", holds=next_layer > 1e-3 and without == beyond == 0, fails=without > 0 or next_layer == 0)
    elsewhere = linked[1].clone()
    elsewhere[5] = 0
    assert elsewhere.max() == 0  # the link does not move tokens
    assert linked[1, 5].item() == pytest.approx(0.5)  # Δt W times the impulse


def test_turning_the_picture_keeps_heights_and_turns_the_floor():
    x, y, z = (torch.tensor(v, dtype=torch.float64) for v in (1.0, 0.0, 2.0))
    assert flow.turned(x, y, z, 0, 0) == pytest.approx((1.0, 2.0))
    assert flow.turned(x, y, z, 90, 0) == pytest.approx((0.0, 2.0))
    assert flow.turned(x, y, z, 90, 90) == pytest.approx((0.0, 1.0))  # from above


# Training with a bottleneck.


def test_vib_and_club_penalties_are_the_divergences_they_stand_for(digits):
    model = bottleneck.build("coupled", bottleneck.SIZES[Scale.SMOKE], digits, 0).train()
    part = digits.train.take(slice(0, 20))
    model(part.x)
    mean = bottleneck.channel(model).seen.detach().double()
    assert bottleneck.vib_penalty(model, part, beta=1.0).item() == pytest.approx(
        information.vib(mean, torch.zeros_like(mean)).item(), rel=1e-5
    )
    normals = torch.distributions.Normal(mean, 1.0)
    divergence = torch.distributions.kl_divergence(normals, torch.distributions.Normal(0.0, 1.0)).sum(dim=1).mean()
    assert bottleneck.vib_penalty(model, part, beta=2.0).item() == pytest.approx(2 * divergence.item(), rel=1e-5)
    pairs = [(mean[i] - mean[j]).square().sum().item() / 2 for i in range(20) for j in range(20) if i != j]
    assert bottleneck.club_penalty(model, part, beta=2.0).item() == pytest.approx(2 * sum(pairs) / 380, rel=1e-5)


def test_the_plane_encloses_the_information_and_knows_chance(digits):
    model = bottleneck.build("transformer", bottleneck.SIZES[Scale.SMOKE], digits, 0).eval()
    with torch.no_grad():
        for weight in bottleneck.channel(model).mean.parameters():
            weight.mul_(20)
        seen = bottleneck.plane(model, digits.test, digits.classes)
    assert seen["lower"] - 5 * seen["error"] < seen["information"] < seen["upper"] + 5 * seen["error"]
    assert seen["information"] < seen["vib"]
    assert seen["about_label"] < 0.1
    assert seen["about_label"] <= seen["counted_label"]
    assert 0 < seen["accuracy"] < 0.4


def test_shuffled_labels_keep_the_inputs_and_the_shares_of_the_classes(digits):
    other = bottleneck.with_shuffled_labels(digits, 0)
    assert torch.equal(other.train.x, digits.train.x)
    assert torch.equal(other.test.y.bincount(), digits.test.y.bincount())
    assert (other.test.y == digits.test.y).double().mean() < 0.25


def test_a_large_beta_leaves_less_information_than_none(digits):
    size, left = bottleneck.SIZES[Scale.SMOKE], {}
    for beta in (0.0, 3.0):
        _, record = bottleneck.fit("transformer", size, digits, 0, HERE, "x", beta)
        left[beta] = record.watched[-1].looked["vib"]
    assert left[3.0] < left[0.0]


@pytest.mark.parametrize("name", ["bottleneck", "algorithm1"])
def test_the_small_form_of_the_experiment_runs(name):
    result = {"bottleneck": bottleneck, "algorithm1": algorithm1}[name].run("smoke", 0)
    assert result.status == "finished"
    assert not result.diverged
    numbers = [v for value in result.figures.values() for v in (value if isinstance(value, list) else [value])]
    assert all(math.isfinite(number) for number in numbers)
