import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import field, seeded

from pdelab import Coupling, solve


def coupling(width, layers):
    return seeded(lambda: Coupling(width, layers), spread=0.5)


@given(width=st.integers(1, 4), layers=st.integers(2, 6), seed=st.integers(0, 999))
def test_the_exchanges_add_up_to_zero_over_the_layers(width, layers, seed):
    u = field(width=width * layers, seed=seed)
    rates = coupling(width, layers)(u).unflatten(-1, (layers, width))
    torch.testing.assert_close(rates.sum(dim=-2), torch.zeros_like(rates[..., 0, :]), rtol=0, atol=1e-12)


def test_the_sum_over_layers_is_conserved_along_the_depth():
    u0 = field(width=6)
    run = solve(coupling(2, 3), u0, steps=20, dt=0.1)
    total = [u.unflatten(-1, (3, 2)).sum(dim=-2) for u in (run.states[0], run.final)]
    torch.testing.assert_close(total[1], total[0], rtol=0, atol=1e-11)
    assert (run.final - u0).abs().max() > 0.1


def test_layer_l_gets_from_the_layer_below_and_gives_to_the_layer_above():
    """∂C_l/∂u_{l−1} = W_{l−1,l}, ∂C_l/∂u_l = −W_{l,l+1}, every other block is zero (P1 eq 18-19)."""
    width, layers = 2, 4
    term = coupling(width, layers)
    jacobian = torch.autograd.functional.jacobian(term, field(1, 1, width * layers)).reshape(
        width * layers, width * layers
    )
    blocks = jacobian.reshape(layers, width, layers, width).transpose(1, 2)  # (to, from, width, width)
    links = [link.weight for link in term.exchange]
    for to in range(layers):
        for source in range(layers):
            want = torch.zeros(width, width, dtype=torch.float64)
            if source == to - 1:
                want = links[source]
            elif source == to and to < layers - 1:
                want = -links[to]
            torch.testing.assert_close(blocks[to, source], want, rtol=0, atol=1e-14)


def test_the_biases_flow_with_the_weights():
    term = coupling(2, 3)
    rest = term(torch.zeros(1, 1, 6, dtype=torch.float64)).flatten()
    first, second = (link.bias for link in term.exchange)
    torch.testing.assert_close(rest, torch.cat([-first, first - second, second]), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("width", "layers"), [(0, 3), (2, 1), (2, 0)])
def test_too_few_features_or_layers_are_refused(width, layers):
    with pytest.raises(ValueError, match="width must be at least 1 and layers at least 2"):
        Coupling(width, layers)
