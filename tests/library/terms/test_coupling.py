import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import field, seeded

from pdelab import Coupling, Diffusion, Interaction, Reaction, SideBySide, solve


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
    with pytest.raises(ValueError, match=r"(width|layers) must be a whole number of at least"):
        Coupling(width, layers)


@given(width=st.integers(1, 3), layers=st.integers(2, 5), seed=st.integers(0, 999))
@pytest.mark.parametrize("inflow", [False, True])
@pytest.mark.parametrize("outflow", [False, True])
def test_the_exchanges_add_up_to_the_two_end_terms(inflow, outflow, width, layers, seed):
    """Σ_l C_l = C_{0,1}(u_0) − C_{L,L+1}(u_L), each 0 unless it is given."""
    term = seeded(lambda: Coupling(width, layers, inflow=inflow, outflow=outflow), spread=0.5)
    u = field(width=width * layers, seed=seed)
    states, rates = (x.unflatten(-1, (layers, width)) for x in (u, term(u)))
    entering = term.exchange[0](states[..., 0, :]) if inflow else 0.0
    leaving = term.exchange[layers - 1](states[..., -1, :]) if outflow else 0.0
    want = torch.zeros_like(states[..., 0, :]) + entering - leaving
    torch.testing.assert_close(rates.sum(dim=-2), want, rtol=0, atol=1e-12)
    if inflow:
        assert (rates[..., 0, :] == 0).all()


def test_each_layer_feels_its_own_term_and_nothing_of_the_others():
    terms = [seeded(lambda: Reaction(2, 5)), None, Diffusion(0.3)]
    u = field(width=6)
    parts = u.split(2, dim=-1)
    want = torch.cat([terms[0](parts[0]), torch.zeros_like(parts[1]), terms[2](parts[2])], dim=-1)
    torch.testing.assert_close(SideBySide(terms, 2)(u), want, rtol=0, atol=0)
    assert SideBySide(terms, 2).symbol == "R"


@pytest.mark.parametrize("terms", [[], [None], [None, "A"]])
def test_layers_without_a_term_are_refused(terms):
    with pytest.raises(ValueError, match="terms must hold at least one Term"):
        SideBySide(terms, 2)


def test_layers_may_share_one_term():
    """One module in two places is one set of weights."""
    shared = Interaction(2)
    both = SideBySide([shared, shared], 2)
    assert len(list(both.parameters())) == len(list(shared.parameters()))
