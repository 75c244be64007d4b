import math

import pytest
import torch
from hypothesis import given
from systems import WIDTH, field, fields, layered, padded
from torch import nn

from pdelab import Diffusion, Interaction, solve
from pdelab.metrics.base import per_layer
from pdelab.metrics.stability import (
    energy,
    fluctuation,
    gradient_norms,
    mean_energy,
    nonuniformity,
    stable_rank,
    state_gradients,
)


def close(a, b, atol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), b, rtol=1e-12, atol=atol)


@given(u=fields())
def test_energy_is_that_of_the_mean_and_of_the_fluctuation(u):
    close(energy(u), mean_energy(u) + fluctuation(u))
    close(u.square().sum(-1).mean() / 2, energy(u))
    close(u.var(dim=1, correction=0).sum(-1).mean() / 2, fluctuation(u))


@given(u=fields())
def test_a_step_changes_the_energy_by_the_product_with_the_midpoint(u):
    after = u + torch.sin(u)
    close((((after + u) / 2) * (after - u)).sum(-1).mean(), energy(after) - energy(u), atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_tokens_do_not_fluctuate_at_all(dtype):
    u = field(3, 1, dtype=dtype).expand(-1, 7, -1)
    assert fluctuation(u) == 0
    assert nonuniformity(u) == 0
    assert stable_rank(u) == pytest.approx(1, abs=1e-5)


def test_tokens_of_mean_zero_are_all_fluctuation():
    u = torch.cat([field(3, 4), -field(3, 4)], dim=1)
    assert mean_energy(u) == 0
    assert nonuniformity(u) == 1


@pytest.mark.parametrize("metric", [nonuniformity, stable_rank])
def test_the_size_of_the_field_does_not_matter(metric):
    for size in (1e-30, 1e30):
        assert metric(size * field().float()) == pytest.approx(metric(field()).item(), rel=1e-5)


@given(u=fields())
def test_nonuniformity_is_the_share_of_the_fluctuation_in_the_energy(u):
    u = u[:1]
    value, share = nonuniformity(u), (fluctuation(u) / energy(u)).sqrt()
    assert torch.isclose(value, share, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert value.isnan() or 0 <= value <= 1 + 1e-12


def test_each_sequence_counts_once_by_its_own_length():
    sequences = [field(1, n, seed=n) for n in (6, 4, 5)]
    u, mask = padded(sequences, (0, 2, 1))
    for metric in (energy, mean_energy, fluctuation, nonuniformity, stable_rank):
        close(sum(metric(s) for s in sequences) / 3, metric(u, mask))


def test_the_stable_rank_counts_directions_of_equal_size():
    assert stable_rank(torch.eye(4).expand(2, 4, 4)) == pytest.approx(4)
    u = field(1, 9)
    singular = torch.linalg.svdvals(u[0])
    close((singular.square().sum() / singular[0] ** 2), stable_rank(u))


def test_a_zero_state_has_energy_zero_and_neither_rank_nor_uniformity():
    u = torch.zeros(2, 3, 4)
    assert energy(u) == mean_energy(u) == fluctuation(u) == 0
    assert nonuniformity(u).isnan()
    assert stable_rank(u).isnan()


def test_heat_flow_makes_tokens_one():
    values = per_layer(nonuniformity, solve(Diffusion(0.1), field(), steps=60, dt=0.1))
    assert (values.diff() < 0).all()
    assert values[-1] < 0.01 * values[0]


def test_attention_that_only_averages_quarters_the_fluctuation_and_keeps_the_mean():
    """P_ij = 1/N and W_V = W_O = 1: du/dt = μ − u, so a step of Δt = ½ multiplies V by ¼."""
    term, eye = Interaction(WIDTH, leak=True, bias=False).double(), torch.eye(WIDTH, dtype=torch.float64)
    term.qkv.weight.data, term.out.weight.data = torch.cat([0 * eye, 0 * eye, eye]), eye
    run = solve(term, field(), steps=5, dt=0.5)
    close(fluctuation(field()) * 0.25 ** torch.arange(6, dtype=torch.float64), per_layer(fluctuation, run))
    close(mean_energy(field()).expand(6), per_layer(mean_energy, run))


def test_gradient_norms_are_those_of_all_entries_together():
    layer = nn.Linear(3, 2).double()
    layer(field(1, 4, 3)).square().sum().backward()
    flat = torch.cat([p.grad.flatten() for p in layer.parameters()])
    groups = {"layer": layer.parameters(), "bias": [layer.bias.grad, None], "none": [None, nn.Linear(1, 1).weight]}
    whole = gradient_norms(groups)
    rms = gradient_norms(groups | {"layer": layer.parameters()}, "rms")
    assert whole["layer"] == pytest.approx(flat.norm().item(), rel=1e-12)
    assert rms["layer"] == pytest.approx(flat.square().mean().sqrt().item(), rel=1e-12)
    assert whole["bias"] == pytest.approx(layer.bias.grad.norm().item(), rel=1e-12)
    assert math.isnan(whole["none"])
    assert math.isnan(rms["none"])
    assert isinstance(whole["bias"], float)


@pytest.mark.parametrize(("size", "dtype"), [(2.0**-100, torch.float32), (2.0, torch.bfloat16), (0.0, torch.float32)])
def test_gradients_too_small_to_be_squared_have_a_norm(size, dtype):
    gradients = [torch.full((64,), size, dtype=dtype), torch.full((4, 9), size, dtype=dtype)]
    assert gradient_norms({"g": gradients}) == {"g": 10 * size}
    assert gradient_norms({"g": gradients}, "rms") == {"g": size}


def test_the_gradient_at_every_state_of_a_decay_is_known():
    """du/dt = −u, loss = ½|u_L|²: ∂loss/∂u_l = (1 − Δt)^(L − l) u_L."""
    u0 = field().requires_grad_()
    run = solve(lambda u: -u, u0, steps=3, dt=0.5)
    loss = run.final.square().sum() / 2
    close(run.final.detach().norm() * torch.tensor([0.125, 0.25, 0.5, 1.0]).double(), state_gradients(run, loss))
    loss.backward()  # the graph is still there
    close(0.125 * run.final.detach(), u0.grad)


def test_state_gradients_ignore_padding_and_states_after_the_loss():
    u, mask = padded([field(1, 6, seed=1), field(1, 4, seed=2)], (0, 2), fill=0.0)
    run = solve(layered(), u.requires_grad_(), steps=3, dt=0.1, mask=mask)
    alone = [solve(layered(), u[i : i + 1, m].detach().requires_grad_(), steps=3, dt=0.1) for i, m in enumerate(mask)]
    want = torch.stack([state_gradients(a, a.states[2].exp().sum()) for a in alone]).square().sum(0).sqrt()
    found = state_gradients(run, run.states[2].exp().sum())  # e⁰ = 1 has a slope where padding is, too
    close(want, found)
    assert found[3] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_norms({"a": [torch.ones(2)]}, "mean"), "normalise must be one of"),
        (lambda: gradient_norms({"a": torch.ones(2)}), r"groups\['a'\] must be a list of tensors"),
        (lambda: state_gradients(solve(torch.sin, field(), steps=1, dt=1), torch.ones(())), "loss must be one number"),
        (
            lambda: state_gradients(solve(torch.sin, field(), steps=1, dt=1), torch.ones((), requires_grad=True)),
            r"states \[0, 1\] have none",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
