import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import WIDTH, field, padded, seeded, without_double_on_the_device

from pdelab import Reaction
from pdelab.field import positions
from pdelab.formulas import reaction_constants, reaction_scales
from pdelab.metrics.jacobian import lipschitz
from pdelab.terms.reaction import ACTIVATIONS, SLOPES, GatedReaction

FUNCTIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}


def reaction(**options):
    return seeded(lambda: Reaction(WIDTH, 7, **options), spread=0.5)


def with_weights(inner, outer):
    term = Reaction(inner.shape[1], len(inner)).double().requires_grad_(False)
    term.inner.weight.copy_(inner)
    term.outer.weight.copy_(outer)
    return term


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_two_affine_maps_with_the_activation_between(activation, bias):
    term, u = reaction(activation=activation, bias=bias), field()
    inner = torch.einsum("ha,bia->bih", term.inner.weight, u) + (term.inner.bias if bias else 0)
    outer = torch.einsum("ah,bih->bia", term.outer.weight, FUNCTIONS[activation](inner)) + (
        term.outer.bias if bias else 0
    )
    torch.testing.assert_close(term(u), outer, rtol=0, atol=1e-12)


def test_the_jacobian_is_block_diagonal_in_tokens():
    """Token i reacts to itself alone, and to itself with every feature."""
    term = reaction(activation="tanh", leak=True)
    jacobian = torch.autograd.functional.jacobian(term, field(batch=1)).squeeze(3).squeeze(0)  # (5, d, 5, d)
    for i in range(5):
        for j in range(5):
            assert (jacobian[i, :, j] == 0).all() if i != j else (jacobian[i, :, j] != 0).all()


@given(order=st.permutations(range(5)))
def test_permuting_the_tokens_permutes_the_rates(order):
    term, u = reaction(), field()
    torch.testing.assert_close(term(u[:, order]), term(u)[:, order], rtol=0, atol=1e-13)


def test_leak_subtracts_u_exactly():
    u = field()
    assert torch.equal(reaction(leak=True)(u), reaction()(u) - u)


def test_the_source_gets_the_positions_and_the_time():
    seen = []

    def source(x, t):
        seen.append((x, t))
        return (x * t).unsqueeze(-1).expand(-1, -1, WIDTH)

    u, mask = padded(fill=0.0)
    rate = reaction(source=source)(u, 0.75, mask)
    ((x, t),) = seen
    assert t == 0.75
    assert torch.equal(x, positions(u, mask))
    added = (rate - reaction()(u, 0.75, mask))[mask]
    torch.testing.assert_close(added, (0.75 * x).unsqueeze(-1).expand_as(u)[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("source", [lambda x, t: torch.sin(x), lambda x, t: 1.0])
def test_a_source_that_gives_no_field_is_refused(source):
    """With as many tokens as features broadcasting would let it through, on the wrong axis."""
    with pytest.raises(ValueError, match="source must give a field"):
        reaction(source=source)(field(1, WIDTH, WIDTH))


@pytest.mark.parametrize(("width", "hidden"), [(0, 4), (4, 0), (-1, 3)])
def test_sizes_below_one_are_refused(width, hidden):
    with pytest.raises(ValueError, match=r"(width|hidden) must be a whole number of at least 1"):
        Reaction(width, hidden)


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"activation must be one of relu, gelu, tanh; not 'swish'"):
        Reaction(4, 4, activation="swish")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_slopes_are_the_tightest_bounds_of_difference_quotients(activation):
    x = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    y = FUNCTIONS[activation](x)
    near = (y[1:] - y[:-1]) / (x[1:] - x[:-1])
    far = (y[400:] - y[:-400]) / (x[400:] - x[:-400])
    least, most = SLOPES[activation]
    assert near.min().item() == pytest.approx(least, abs=1e-4)
    assert near.max().item() == pytest.approx(most, abs=1e-4)
    assert least - 1e-9 <= far.min() <= far.max() <= most + 1e-9


def one_unit(inner, outer, **options):
    term = Reaction(1, 1, **options).requires_grad_(False)
    term.inner.weight.fill_(inner)
    term.outer.weight.fill_(outer)
    return term


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize(("activation", "slopes"), SLOPES.items())
def test_the_constants_of_one_unit_are_its_extreme_slopes(activation, slopes, leak):
    """d = m = 1 with W₂W₁ = ±2: slopes between 2s₋ and 2s₊ or their negatives, and 1 less with a leak."""
    for sign in (-1, 1):
        lower, upper = sorted(sign * 2 * slope - leak for slope in slopes)
        found = one_unit(-1.0, -2.0 * sign, activation=activation, leak=leak).constants()
        assert found == pytest.approx((lower, upper, max(-lower, upper)), abs=1e-12)


def test_the_leak_lowers_both_rates_by_one_and_changes_the_lipschitz_bound_by_at_most_one():
    plain, leaking = reaction().constants(), reaction(leak=True).constants()
    assert leaking[:2] == pytest.approx((plain.lower - 1, plain.upper - 1))
    assert abs(leaking.lipschitz - plain.lipschitz) <= 1 + 1e-12
    assert -leaking.lipschitz <= leaking.lower <= leaking.upper <= leaking.lipschitz


def test_units_that_lead_nowhere_do_not_count():
    """w_k = 0 or c_k = 0: the scales of such a unit could be made better for ever."""
    inner, outer = (layer.weight.detach() for layer in (reaction().inner, reaction().outer))
    none, some = torch.zeros(1, WIDTH).to(inner), torch.ones(1, WIDTH).to(inner)
    others = with_weights(torch.cat([inner, none, some]), torch.cat([outer, some.T, none.T], dim=1))
    assert others.constants() == pytest.approx(with_weights(inner, outer).constants(), rel=1e-9)
    for pair in ((0 * inner, outer), (inner, 0 * outer), (0 * inner, 0 * outer)):
        assert with_weights(*pair).constants() == (0, 0, 0)


def test_the_constants_are_computed_where_there_is_double_precision(monkeypatch):
    term = reaction().float()
    without_double_on_the_device(monkeypatch)
    assert term.constants(steps=2).lipschitz > 0


def test_the_constants_do_not_depend_on_gradients_modes_or_precision():
    term = reaction()
    expected = term.constants()
    assert term.requires_grad_(True).constants() == expected
    with torch.inference_mode():
        assert term.constants() == expected
    assert term.float().constants() == pytest.approx(expected, rel=1e-5)
    assert all(parameter.grad is None for parameter in term.parameters())


@pytest.mark.parametrize("scale", [1e-150, 1e-12, 1e12, 1e150])
def test_the_constants_follow_the_size_of_the_weights(scale):
    W1, W2 = (layer.weight.detach() for layer in (reaction().inner, reaction().outer))
    expected = with_weights(W1, W2).constants()
    for inner, outer in ((scale, 1.0), (1.0, scale), (scale, 1 / scale)):
        found = with_weights(inner * W1, outer * W2).constants()
        assert found == pytest.approx([inner * outer * x for x in expected], rel=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e200])
def test_weights_without_constants_are_refused(value):
    term = one_unit(1.0, 1.0).double()
    for layer in (term.inner, term.outer):
        layer.weight.fill_(value)
    with pytest.raises(ValueError, match="the weights must be finite"):
        term.constants()


@pytest.mark.parametrize("steps", [-1, 1.5, True, "many", None, torch.nan])
def test_steps_that_are_no_number_are_refused(steps):
    with pytest.raises(ValueError, match="steps must be a whole number of at least 0"):
        reaction().constants(steps)


def test_the_constants_are_differentiable_in_the_weights():
    term = seeded(lambda: Reaction(3, 5).double(), 2)
    W1, W2 = (layer.weight.detach().requires_grad_(True) for layer in (term.inner, term.outer))
    scales = reaction_scales(W1, W2, SLOPES["gelu"], 1.0)
    assert torch.autograd.gradcheck(lambda a, b: reaction_constants(a, b, SLOPES["gelu"], 1.0, scales), (W1, W2))


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "silu"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_reaction_is_the_product_of_two_networks_as_llamas_write_it(activation, bias):
    term = seeded(lambda: GatedReaction(WIDTH, 7, activation=activation, bias=bias), spread=0.5)
    u, phi = field(), getattr(torch.nn.functional, activation)
    torch.testing.assert_close(term(u), term.outer(phi(term.inner(u)) * term.gate(u)), rtol=0, atol=0)
    if not bias:
        W1, W3, W2 = (layer.weight for layer in (term.inner, term.gate, term.outer))
        token = u[1, 3]
        torch.testing.assert_close(term(u)[1, 3], W2 @ (phi(W1 @ token) * (W3 @ token)), rtol=0, atol=1e-12)


def test_the_slope_of_a_gated_reaction_has_no_bound_and_so_it_has_no_constants():
    """relu gate: R(su) = s²R(u) for s > 0, and slopes grow with s."""
    term = seeded(lambda: GatedReaction(WIDTH, 7, activation="relu"), spread=0.5)
    u = field()
    torch.testing.assert_close(term(100 * u), 1e4 * term(u), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        lipschitz(term, 100 * u, steps=500), 100 * lipschitz(term, u, steps=500), rtol=1e-9, atol=0
    )
    with pytest.raises(ValueError, match="has no constants for all states"):
        term.constants()
