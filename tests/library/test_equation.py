import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import (
    SEQUENCES,
    WIDTH,
    Mixing,
    Potential,
    assert_padding_changes_nothing,
    equation,
    field,
    layered,
    padded,
    seeded,
    wave,
)

from pdelab import Diffusion, Interaction, Layered, MasterEquation, Reaction, SpatialStabilization, laplacian
from pdelab.field import positions


def averaged(first, second, s=0.5):
    """A copy of `first` whose every weight is (1 − s)·first + s·second."""
    mean = copy.deepcopy(first)
    with torch.no_grad():
        for weight, a, b in zip(mean.parameters(), first.parameters(), second.parameters(), strict=True):
            weight.copy_((1 - s) * a + s * b)
    return mean


def test_the_rate_is_the_sum_of_the_terms():
    u, whole = field(), equation()
    torch.testing.assert_close(whole(u, 0.3), sum(term(u, 0.3) for term in whole.terms), rtol=0, atol=0)


@pytest.mark.parametrize("masked", [True, False])
def test_the_shares_sum_to_the_rate(masked):
    u, mask = padded(fill=0.0) if masked else (field(), None)
    shares = equation().rates(u, 0.3, mask)
    assert list(shares) == ["A", "R", "D", "S"]
    torch.testing.assert_close(sum(shares.values()), equation()(u, 0.3, mask), rtol=0, atol=1e-14)


def test_terms_with_one_symbol_are_added():
    first, second = SpatialStabilization(0.3), SpatialStabilization(0.5)
    u = field()
    shares = MasterEquation(first, Diffusion(0.1), second).rates(u)
    assert list(shares) == ["S", "D"]
    torch.testing.assert_close(shares["S"], SpatialStabilization(0.8)(u), rtol=0, atol=1e-14)


@given(order=st.permutations(range(4)))
def test_the_order_of_the_terms_does_not_change_the_sum(order):
    whole, u = equation(), field()
    terms = list(whole.terms)
    torch.testing.assert_close(MasterEquation(*(terms[i] for i in order))(u), whole(u), rtol=0, atol=1e-13)


def test_one_equation_is_the_same_at_every_time():
    whole = equation()
    assert whole.at(0.0) is whole.at(17.3) is whole


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
def test_padding_changes_nothing(interpolation):
    u, mask = padded()
    with torch.no_grad():
        for f in (equation(), layered(interpolation=interpolation)):
            assert_padding_changes_nothing(f(u, 0.05, mask), mask, [f(one, 0.05) for one in SEQUENCES])


@pytest.mark.parametrize("dt", [0.1, 0.7, 1 / 3, 1 / 49, 1.0])
def test_layer_l_acts_from_l_dt_to_the_next(dt):
    whole = layered(8, dt)
    for layer, one in enumerate(whole.equations):
        assert whole.at(layer * dt) is one  # 3 · 0.1 is above 0.3, and 0.3/0.1 is below 3
        assert whole.at(layer * dt + 0.5 * dt) is one
        assert whole.at(layer * dt + 0.999 * dt) is one


@given(layer=st.integers(0, 7), dt=st.floats(1e-3, 1e3))
def test_the_layer_at_a_step_of_solve_is_that_step(layer, dt):
    whole = Layered([MasterEquation(Diffusion(float(k))) for k in range(8)], dt)
    assert whole.at(layer * dt) is whole.equations[layer]
    assert whole.at(sum([dt] * layer)) is whole.equations[layer]


def test_float_times_fall_on_their_layers():
    whole = layered(5, 0.1)
    for time, layer in (
        (3 * 0.1, 3),
        (0.3, 3),
        (0.1 + 0.2, 3),
        (0.7 - 0.4, 3),
        (0.2999, 2),
        (-1.0, 0),
        (0.5, 4),
        (99.0, 4),
    ):
        assert whole.at(time) is whole.equations[layer]


def test_constant_layers_have_the_rate_and_the_shares_of_the_layer_that_acts():
    whole, u = layered(), field()
    for t in (0.0, 0.05, 0.1, 0.19, 0.25, 3 * 0.1):
        acts = whole.at(t)
        assert torch.equal(whole(u, t), acts(u, t))
        assert all(torch.equal(share, acts.rates(u, t)[name]) for name, share in whole.rates(u, t).items())


def test_linear_layers_are_the_layer_itself_at_the_nodes():
    whole, u = layered(4, interpolation="linear"), field()
    for layer, one in enumerate(whole.equations):
        assert torch.equal(whole(u, layer * 0.1), one(u, layer * 0.1))


@pytest.mark.parametrize("s", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("layer", [0, 1])
def test_between_nodes_linear_layers_have_the_averaged_weights(layer, s):
    whole, u, t = layered(3, interpolation="linear"), field(), (layer + s) * 0.1
    between = averaged(whole.equations[layer], whole.equations[layer + 1], s)
    torch.testing.assert_close(whole(u, t), between(u, t), rtol=0, atol=1e-12)


def test_coefficients_are_averaged_as_weights_are():
    ends = [torch.full((WIDTH,), value, dtype=torch.float64) for value in (0.1, 0.3)]
    whole = Layered([MasterEquation(Diffusion(d)) for d in ends], 1.0, "linear")
    torch.testing.assert_close(whole(field(), 0.5), Diffusion(0.2)(field()), rtol=0, atol=1e-12)


def test_linear_layers_are_continuous_and_constant_layers_jump():
    u, hair = field(), 1e-7
    jumps = {}
    for interpolation in ("constant", "linear"):
        whole = layered(3, interpolation=interpolation)
        jumps[interpolation] = [
            (whole(u, t + hair) - whole(u, t - hair)).abs().max().item() for t in (0.1, 0.2, 0.15, 0.25)
        ]
    assert max(jumps["linear"]) < 1e-4
    assert min(jumps["constant"][:2]) > 0.1


def test_after_the_last_node_the_last_weights_stay():
    whole, u = layered(3, interpolation="linear"), field()
    for t in (0.2, 0.25, 7.0):
        assert torch.equal(whole(u, t), whole.equations[-1](u, t))


def test_every_weight_of_both_neighbours_gets_a_gradient():
    whole = layered(3, interpolation="linear")
    whole(field(), 0.13).square().sum().backward()
    reached = [[w.grad is not None and w.grad.abs().max() > 0 for w in one.parameters()] for one in whole.equations]
    assert not any(reached[0])
    assert all(reached[1])
    assert all(reached[2])


def test_linear_layers_have_no_list_of_terms():
    whole = layered(interpolation="linear")
    for ask in (whole.at, lambda t: whole.rates(field(), t)):
        with pytest.raises(ValueError, match="interpolation='constant'"):
            ask(0.0)


def test_linear_layers_that_do_not_match_are_refused():
    reaction, wider = MasterEquation(Reaction(WIDTH, 5)), MasterEquation(Reaction(WIDTH, 6))
    diffusion, both = MasterEquation(Diffusion(0.1)), MasterEquation(Reaction(WIDTH, 5), Diffusion(0.1))
    for pair in itertools.permutations((reaction, wider, diffusion), 2):
        with pytest.raises(ValueError, match="equations must have the same weights"):
            Layered(pair, interpolation="linear")
    with pytest.raises(ValueError, match="same weights and settings"):  # a number is a setting and has no straight line
        Layered([diffusion, MasterEquation(Diffusion(0.3))], interpolation="linear")
    Layered([reaction, diffusion, both])  # each on its own interval


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: MasterEquation(), "terms must be"),
        (lambda: MasterEquation(torch.nn.Linear(2, 2)), "terms must be.*Linear"),
        (lambda: MasterEquation(Diffusion), "terms must be"),
        (lambda: Layered([]), "equations must be"),
        (lambda: Layered([Diffusion(1.0)]), "equations must be"),
        (lambda: Layered([MasterEquation(Diffusion(1.0))], interpolation="cubic"), "interpolation must be.*'cubic'"),
        (lambda: Layered([MasterEquation(Diffusion(1.0))], dt=0.0), "dt must be a positive number"),
        (lambda: Layered([MasterEquation(Diffusion(1.0))], dt=float("nan")), "dt must be a positive number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


@pytest.mark.parametrize("f", [equation(), layered(), layered(interpolation="linear")])
@pytest.mark.parametrize("u", [torch.ones(5, WIDTH), torch.ones(1, 5, WIDTH + 1), torch.ones(1, 0, WIDTH)])
def test_a_field_of_wrong_shape_is_refused(f, u):
    with pytest.raises(ValueError, match=r"^u must have shape"):
        f(u.double(), 0.05)


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
def test_equations_run_on_the_meta_device_and_keep_the_dtype(interpolation):
    whole = layered(interpolation=interpolation)
    assert whole.float()(field(dtype=torch.float32), 0.05).dtype == torch.float32
    assert whole.to("meta")(field(dtype=torch.float32).to("meta"), 0.05).shape == (2, 5, WIDTH)


def test_the_weights_of_an_equation_are_those_of_its_terms():
    made = seeded(lambda: MasterEquation(Interaction(WIDTH), Mixing(torch.eye(WIDTH)), Potential()))
    assert {name.split(".")[1] for name, _ in made.named_parameters()} == {"0"}


def test_the_two_papers_are_two_presets_of_one_class():
    later, earlier = MasterEquation.later(WIDTH, 2, 7), MasterEquation.earlier(WIDTH, 2, 7)
    assert type(later) is type(earlier) is MasterEquation
    assert [term.symbol for term in later.terms] == ["A", "R", "D", "S"]
    assert [term.symbol for term in earlier.terms] == ["D", "A", "R"]
    assert [term.leak for term in later.terms[:2]] == [True, True]
    assert [term.leak for term in earlier.terms[1:]] == [False, False]


def test_the_later_equation_is_the_earlier_one_less_twice_u_plus_stabilization():
    """With α = 1, the same weights and the same D: P2's right-hand side is P1's − 2u + S."""
    later = seeded(lambda: MasterEquation.later(WIDTH, 2, 7, diffusion=0.02, stabilization=0.5))
    earlier = seeded(lambda: MasterEquation.earlier(WIDTH, 2, 7, diffusion=0.02))
    u = field()
    torch.testing.assert_close(
        later(u), earlier(u) - 2 * u + SpatialStabilization(0.5)(u), rtol=0, atol=1e-13, check_dtype=True
    )


def test_the_earlier_equation_is_built_from_its_printed_parts():
    """D∂²u + αA(u) + FFN(u) + g(x, t), part by part."""
    made = seeded(lambda: MasterEquation.earlier(WIDTH, 2, 7, diffusion=0.02, strength=0.3, source=wave))
    _, attention, network = made.terms
    u, t = field(), 0.4
    by_hand = 0.02 * laplacian(u) + 0.3 * (attention(u) / 0.3) + network.outer(torch.relu(network.inner(u)))
    torch.testing.assert_close(made(u, t), by_hand + wave(positions(u), t), rtol=0, atol=1e-13)
    plain = seeded(lambda: MasterEquation.earlier(WIDTH, 2, 7, diffusion=0.02))
    torch.testing.assert_close(attention(u), 0.3 * plain.terms[1](u), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"boundary": "open"}, "boundary must be one of"), ({"activation": "swish"}, "activation must be one of")],
)
@pytest.mark.parametrize("preset", [MasterEquation.later, MasterEquation.earlier])
def test_a_preset_refuses_what_its_terms_refuse(preset, options, words):
    with pytest.raises(ValueError, match=words):
        preset(WIDTH, 2, 7, **options)
