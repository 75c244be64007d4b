import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import WIDTH, field, padded, seeded

from pdelab import Reaction
from pdelab.field import positions
from pdelab.terms.reaction import ACTIVATIONS, SLOPES

FUNCTIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}


def reaction(**options):
    return seeded(lambda: Reaction(WIDTH, 7, **options), spread=0.5)


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


def test_the_constants_of_one_unit_are_its_extreme_slopes():
    """d = m = 1 with W₂W₁ = 2: slopes between 2s₋ and 2s₊, and 1 less with a leak."""
    for activation, (least, most) in SLOPES.items():
        for leak in (False, True):
            term = Reaction(1, 1, activation=activation, leak=leak)
            term.inner.weight.data.fill_(-1.0)
            term.outer.weight.data.fill_(-2.0)
            found = term.constants()
            assert found == pytest.approx((2 * least - leak, 2 * most - leak, 2 * most + leak))


def test_the_leak_lowers_both_rates_by_one_and_raises_the_lipschitz_bound_by_one():
    plain, leaking = reaction().constants(), reaction(leak=True).constants()
    assert leaking == pytest.approx((plain.lower - 1, plain.upper - 1, plain.lipschitz + 1))
