"""What P1 states of coupled layers, their training flow and Algorithm 1.  (P1 eq 3/14, 4/17-19, 22/23, Alg 1, fig 9)"""

import math

import pytest
import torch
from coupled_systems import layer_rate, system
from systems import seeded

from pdebook.chapters.coupled_layers import laws, measure
from pdebook.evidence.stacks import slope
from pdelab import coupled, datasets
from pdelab.metrics.jacobian import jacobian, logarithmic_norm
from pdelab.seeds import normal
from pdelab.terms.coupling import Coupling

LAYERS = (4, 8, 16, 32)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits-rows")


def orders(reading):
    return [slope(LAYERS, laws.readings(seed, LAYERS)[reading]) for seed in range(3)]


@pytest.mark.claim("P1-eq4/17")
def test_with_both_as_depth_the_top_follows_the_depth_flow_if_every_layer_starts_at_zero(evidence):
    """P1 prints neither what t is nor where the layers start: this start, and the next."""
    found = orders("twice, from zero")
    evidence("printed", holds=max(abs(order + 1) for order in found) < 0.2, fails=min(found) > -0.5)


@pytest.mark.claim("P1-eq4/17")
def test_with_both_as_depth_the_top_follows_the_depth_flow_if_every_layer_starts_at_the_input(evidence):
    found = orders("twice, from the input")
    evidence("printed", holds=max(abs(order + 1) for order in found) < 0.2, fails=min(found) > -0.5)
    assert max(abs(order + 1) for order in orders("residual")) < 0.2  # the control: the residual network itself


@pytest.mark.claim("P1-eq4/17")
def test_started_at_the_input_layers_that_vary_with_l_are_a_residual_network_to_first_order(evidence):
    """Δt c = 1. The control has its links cut: layer L then applies F_L alone, L times."""
    off = {1: [], 0: []}
    for share, found in off.items():
        for number in LAYERS:
            F, u0 = laws.varying(0, number), normal(0, "u0", size=(2, 5, 4))
            want = laws.explicit_stack(F, u0, number, 1 / number)
            top = laws.follow_layers(F, u0, number, share * float(number), 1 / number, number, start="input")[-1]
            found.append(((top - want).norm() / (want - u0).norm()).item())
    evidence("repair", holds=abs(slope(LAYERS, off[1]) + 1) < 0.2, fails=slope(LAYERS, off[1]) > -0.5)
    assert min(off[0]) > 0.5


@pytest.mark.claim("P1-eq4/17")
def test_with_t_as_relaxation_the_top_layer_follows_the_depth_flow_to_first_order(evidence):
    found = [slope(LAYERS, laws.readings(seed, LAYERS)["relaxed"]) for seed in range(3)]
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


@pytest.mark.claim("P1-eq18/19")
def test_an_affine_exchange_does_what_layernorm_does(evidence):
    """Fitted and tried on inputs of many sizes."""
    off = [laws.layernorm_pooled_error(seed) for seed in range(3)]
    evidence("printed", holds=max(off) < 0.05, fails=min(off) > 0.5)
    (at_one,) = laws.layernorm_fit_errors((1.0,))
    assert at_one < 0.3  # the control: on inputs of nearly one size the best affine map is not far off


@pytest.mark.claim("P1-eq18/19")
def test_without_any_exchange_every_layer_still_has_the_identity_of_a_residual_block(evidence):
    """∂u_l⁺/∂u_l → I as Δt → 0 with all links cut, and nothing passes between layers."""
    off, passed, u = [], [], normal(0, "u", size=(1, 4, 12))
    for dt in (1e-2, 1e-3):
        made = seeded(lambda dt=dt: coupled(3, 3, 1, 5, steps=1, dt=dt, diffusion=0.02, link=0.0)).requires_grad_(False)
        J = laws.step_jacobian(made, u)
        off.append(max(torch.linalg.matrix_norm(J[k, k] - torch.eye(12), 2).item() for k in (1, 2, 3)))
        passed.append(max(J[k, k - 1].abs().max().item() for k in (1, 2, 3)))
    evidence(
        "repair",
        holds=off[1] < 0.01 and 5 < off[0] / off[1] < 20 and max(passed) == 0,
        fails=off[1] > 0.5 or max(passed) > 1e-3,
    )


@pytest.mark.claim("P1-eq18/19")
def test_inflow_is_a_forcing_and_outflow_damps_by_the_symmetric_part_of_its_link(evidence):
    """Logarithmic norm of layer 2: another u_1 shifts it by 0, the outflow W by minus a mean of λ((W + Wᵀ)/2)."""
    made, still = system(spread=0.6), system(spread=0.6)
    W = made.equation.terms[-1].exchange[2].weight
    still.equation.terms[-1].exchange[2].weight.zero_()
    low, *_, high = torch.linalg.eigvalsh((W + W.T) / 2).tolist()
    forced, damped = [], []
    for seed in range(3):
        u, other = (normal(seed, name, size=(1, 4, 12)) for name in ("u", "other"))
        other[..., 6:9] = u[..., 6:9]
        own = [
            logarithmic_norm(layer_rate(m, v, 2), u[..., 6:9]).item() for m, v in ((made, u), (made, other), (still, u))
        ]
        forced.append(abs(own[1] - own[0]))
        damped.append(own[0] - own[2])
    inside = [-high - 1e-9 <= shift <= -low + 1e-9 for shift in damped]
    evidence("repair", holds=max(forced) < 1e-9 and all(inside), fails=max(forced) > 1e-3 or not all(inside))
    assert high - low > 0.1  # the link is no multiple of the identity, and the shift no −c of one number
    assert max(damped) - min(damped) > 1e-3


@pytest.mark.claim("P1-eq22/23")
def test_the_printed_matrix_is_the_derivative_from_one_layer_to_the_next(evidence):
    made, off = system(), []
    for seed in range(3):
        u = normal(seed, "u", size=(1, 4, 12))
        J = laws.step_jacobian(made, u)
        for block in (1, 2):
            printed = laws.printed_jacobian(made, u, block)
            off.append(((J[block + 1, block] - printed).norm() / printed.norm()).item())
    evidence("printed", holds=max(off) < 1e-9, fails=min(off) > 0.1)


@pytest.mark.claim("P1-eq22/23")
def test_it_is_the_derivative_within_a_layer_and_between_layers_there_is_the_link(evidence):
    made, off = system(), []
    links = [link.weight for link in made.equation.terms[-1].exchange]
    for seed in range(3):
        u = normal(seed, "u", size=(1, 4, 12))
        J = laws.step_jacobian(made, u)
        for block in (1, 2, 3):
            off.append((J[block, block] - laws.printed_jacobian(made, u, block)).abs().max().item())
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
            J = laws.link_gradient(made, u, steps=5, start=1, end=1 + links)
            want = torch.kron(torch.eye(3, dtype=torch.float64), leading)
            off.append(((J - want).norm() / want.norm()).item())
    first, finer = max(off[0::2]), max(off[1::2])
    evidence("repair", holds=finer < 1e-3 and 5 < first / finer < 20, fails=finer > 0.1)


@pytest.mark.claim("P1-eq22/23")
def test_at_rest_the_derivative_from_layer_to_layer_is_a_resolvent(evidence):
    """∂u_l/∂u_{l−1} = (I − F'/c)⁻¹ = I + F'/c + O(c⁻²): the printed identity, with 1/c for Δt and without C'."""
    off, beyond, identity = [], {8.0: [], 32.0: []}, torch.eye(12, dtype=torch.float64)
    for seed in range(3):
        F, u0 = laws.branch(seed), normal(seed, "u0", size=(1, 3, 4))
        for c, found in beyond.items():
            J = jacobian(lambda v, F=F, c=c: laws.implicit_stack(F, v, 1, 1 / c), u0)[0].reshape(12, 12)
            slopes = jacobian(F, laws.implicit_stack(F, u0, 1, 1 / c))[0].reshape(12, 12)
            off.append((J - torch.linalg.inv(identity - slopes / c)).abs().max().item())
            found.append(torch.linalg.matrix_norm(J - identity - slopes / c, 2).item())
    evidence("repair", holds=max(off) < 1e-12, fails=max(off) > 1e-6)
    for coarse, fine in zip(*beyond.values(), strict=True):
        assert 8 < coarse / fine < 32  # (32/8)² up to higher orders


@pytest.mark.claim("P1-eq3")
def test_the_sign_of_eq_3_makes_weights_decay(evidence):
    theta = laws.train_channel("eq 3", decay=0.5, eta=0.01, steps=1000, loss=None)
    assert theta[-1].item() == pytest.approx(1.005**1000, rel=1e-9)
    evidence("printed", holds=theta[-1] < 1, fails=theta[-1] > 1)


@pytest.mark.claim("P1-eq14")
def test_the_sign_of_eq_14_makes_weights_decay(evidence):
    theta = laws.train_channel("eq 14", decay=0.5, eta=0.01, steps=1000, loss=None)
    evidence("printed", holds=theta[-1] < 1, fails=theta[-1] > 1)


def ends_with_and_without(form):
    """I at the end with β = 0.5 and with β = 0, both with λ = 0.05, from θ = 1."""
    paths = [laws.train_channel(form, beta=beta, decay=0.05, eta=0.05, steps=4000) for beta in (0.5, 0.0)]
    return [laws.channel_information(path[-1]).item() for path in paths]


@pytest.mark.claim("P1-eq3")
def test_the_beta_term_of_eq_3_compresses(evidence):
    pressed, free = ends_with_and_without("eq 3")
    evidence("printed", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.claim("P1-eq14")
def test_the_beta_term_of_eq_14_compresses(evidence):
    pressed, free = ends_with_and_without("eq 14")
    evidence("printed", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.claim("P1-eq3")
def test_with_an_upper_bound_in_place_of_the_information_the_flow_compresses_too(evidence):
    """Î = θ²/2 ≥ I: ∂θ = θ(q² − β − λ) rests at q = √(β + λ) if that is below 1, else at θ = 0."""
    off = []
    for beta, decay in ((0.2, 0.05), (0.5, 0.0), (0.7, 0.5)):
        theta = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        for _ in range(4000):
            objective = laws.channel_loss(theta) + (decay + beta) * theta**2 / 2
            theta = (theta - 0.05 * torch.autograd.grad(objective, theta)[0]).detach().requires_grad_(True)
        want = max(-math.log(beta + decay) / 4, 0.0)
        off.append(abs(laws.channel_information(theta).item() - want))
    evidence("repair", holds=max(off) < 1e-6, fails=max(off) > 1e-2)


@pytest.mark.claim("P1-eq3")
def test_the_corrected_flow_shrinks_weights_and_information(evidence):
    theta = laws.train_channel("corrected", decay=0.5, eta=0.01, steps=1000, loss=None)
    exact = math.exp(-5)
    compressed = laws.channel_information(laws.train_channel("corrected", beta=0.5, eta=0.01, loss=None))
    falls = bool((compressed.diff() < 0).all())
    off = abs(theta[-1].item() / exact - 1)
    evidence("repair", holds=off < 0.02 and falls, fails=off > 0.1 or not falls)


@pytest.mark.claim("P1-eq3")
def test_the_corrected_flow_rests_where_the_closed_form_says(evidence):
    off = []
    for beta, decay in ((0.25, 0.0), (0.5, 0.05), (0.1, 0.1)):
        theta = laws.train_channel("corrected", beta=beta, decay=decay, eta=0.05, steps=4000)[-1]
        want = laws.resting_information("corrected", beta, decay)
        off.append(abs(laws.channel_information(theta).item() - want))
    evidence("repair", holds=max(off) < 1e-6, fails=max(off) > 1e-2)


@pytest.mark.claim("P1-alg1")
def test_line_33_compresses(evidence):
    pressed, free = ends_with_and_without("line 33")
    evidence("printed", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.claim("P1-alg1")
def test_with_the_opposite_sign_it_does(evidence):
    pressed, free = ends_with_and_without("corrected")
    evidence("repair", holds=pressed < free - 0.01, fails=pressed > free + 0.01)


@pytest.mark.claim("P1-alg1")
def test_with_two_loops_every_part_gets_a_gradient(digits, evidence):
    """The last of 55 updates, when the input has reached the top."""
    model = measure.build(digits, 0, layers=3, width=8, steps=5)
    last = measure.run_algorithm(model, digits, order="corrected", sign=1, beta=0.01, seed=0, passes=5)[-1]
    sizes = last.gradients.values()
    evidence("repair", holds=min(sizes) > 1e-9, fails=min(sizes) == 0)


@pytest.mark.claim("P1-alg1")
def test_before_the_loop_a_step_that_is_too_long_is_refused(digits, evidence):
    """Two loops, Δt at the limit and 1 % past it; the printed order asks nothing before its loop."""
    refused, settings = {}, {"sign": 1, "beta": 0.01, "seed": 0, "passes": 0}
    for order in ("printed", "corrected"):
        for past in (1.0, 1.01):
            model = measure.build(digits, 0, layers=2, width=8, steps=3)
            model.dt *= past * (1 - 1e-12) / measure.step_share(model, digits.length)
            try:
                measure.run_algorithm(model, digits, order=order, **settings)
                refused[order, past] = False
            except ValueError as error:
                refused[order, past] = "dt must be at most" in str(error)
    stops = [refused["corrected", past] for past in (1.0, 1.01)]
    evidence("repair", holds=stops == [False, True], fails=stops != [False, True])
    assert not refused["printed", 1.01]


@pytest.mark.claim("P1-alg1")
def test_the_laplacian_runs_over_positions(digits, evidence):
    """An impulse in one token and feature of a layer: diffusion moves it to the two neighbours, same feature."""
    model = measure.build(digits, 0, layers=2, width=8, steps=3)
    u = torch.zeros(1, 8, 24)
    u[0, 4, 10] = 1.0
    reached = model.equation.terms[0](u)[0].nonzero().tolist()
    evidence("repair", holds=reached == [[3, 10], [4, 10], [5, 10]], fails=any(place[1] != 10 for place in reached))


@pytest.mark.claim("P1-alg1")
def test_line_37_is_reached_by_runs_that_are_still_finite(evidence):
    met, failed = laws.diverges_at(25.0, 0.15, steps=1000)
    evidence("printed", holds=met and failed is None, fails=met and failed is not None)


@pytest.mark.claim("P1-alg1")
def test_a_step_that_meets_the_corrected_condition_stays_finite(evidence):
    """Δt c = 0.75 and 1: the condition of the coupled theorem, known before the loop."""
    failed = [laws.diverges_at(c, 0.15, steps=1000)[1] for c in (5.0, 1 / 0.15)]
    evidence("repair", holds=failed == [None, None], fails=any(step is not None for step in failed))


@pytest.mark.claim("P1-fig9")
def test_in_one_step_an_impulse_reaches_the_next_layer_through_the_exchange_alone(evidence):
    linked, apart = (laws.impulse(steps=1, link=link)[1] for link in (1.0, 0.0))
    next_layer, without, beyond = linked[1].max().item(), apart[1].max().item(), linked[2:].max().item()
    evidence("printed", holds=next_layer > 1e-3 and without == beyond == 0, fails=without > 0 or next_layer == 0)
    elsewhere = linked[1].clone()
    elsewhere[5] = 0
    assert elsewhere.max() == 0  # the link does not move tokens
    assert linked[1, 5].item() == pytest.approx(0.5)  # Δt W times the impulse
