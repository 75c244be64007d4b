"""What the papers and a summary state of the feed-forward term.  (P2 eq 6; P1 eq 12-13; S)"""

import pytest
import torch

from pdelab import Diffusion, Interaction, Reaction, solve
from pdelab.field import positions
from pdelab.metrics.jacobian import influence
from pdelab.seeds import normal, seeded

# P2-eq6 and P1-eq12/13: what the term is


def encoder_layer(seed=0, width=6, hidden=20):
    """PyTorch's own layer with attention silenced and without norms: u + linear2(relu(linear1(u)))."""
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    layer = seeded(lambda: torch.nn.TransformerEncoderLayer(width, 2, hidden, **options), seed)
    layer.norm1 = layer.norm2 = torch.nn.Identity()
    torch.nn.init.zeros_(layer.self_attn.out_proj.weight)
    return layer.requires_grad_(False)


def sharing(layer, **options):
    """The term with the weights of the layer."""
    term = Reaction(layer.linear1.in_features, layer.linear1.out_features, **options).double().requires_grad_(False)
    for mine, theirs in ((term.inner, layer.linear1), (term.outer, layer.linear2)):
        mine.load_state_dict(theirs.state_dict())
    return term


def outputs_that_move(term, u, batch, token, feature):
    """Which (batch, token) move when one number of u does."""
    moved = u.clone()
    moved[batch, token, feature] += 0.1
    return (term(moved) - term(u)).abs().amax(dim=-1)


@pytest.mark.claim("P2-eq6")
def test_does_the_printed_reaction_move_only_the_token_that_was_touched(evidence):
    u = normal(1, "u", size=(3, 5, 6))
    others = torch.ones(3, 5, dtype=torch.bool)
    others[1, 2] = False
    layer = encoder_layer(1)

    def printed(u):
        return layer(u) - 2 * u  # FFN(u) − u, with the FFN of PyTorch's own layer, u + FFN(u)

    torch.testing.assert_close(sharing(layer, leak=True)(u), printed(u), rtol=0, atol=1e-12)
    moved = torch.stack([outputs_that_move(printed, u, 1, 2, feature) for feature in range(6)])
    assert moved[:, 1, 2].min() > 1e-3, "the touched token must be seen to move"
    mixing = outputs_that_move(seeded(lambda: Interaction(6, 2), 0).double(), u, 1, 2, 0)
    assert mixing[1].min() > 1e-9, "attention must be seen to mix"
    found = moved[:, others].max().item()
    evidence("printed", holds=found == 0, fails=found > 1e-9)


@pytest.mark.claim("P2-eq6")
def test_is_one_step_of_the_printed_reaction_the_feed_forward_half_of_a_residual_block(evidence):
    layer, u = encoder_layer(), normal(2, "u", size=(2, 5, 6))
    step = solve(sharing(layer, leak=True), u, steps=1, dt=1.0).final
    gap = ((step - layer(u)).norm() / u.norm()).item()
    evidence("printed", holds=gap < 1e-12, fails=gap > 0.1)


@pytest.mark.claim("P2-eq6")
def test_is_one_step_without_the_leak_the_feed_forward_half_of_a_residual_block(evidence):
    layer, u = encoder_layer(), normal(2, "u", size=(2, 5, 6))
    step = solve(sharing(layer), u, steps=1, dt=1.0).final
    gap = ((step - layer(u)).norm() / u.norm()).item()
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P2-eq6")
def test_does_a_wider_network_make_the_printed_step_the_feed_forward_half_of_a_residual_block(evidence):
    """2d units more, ±u, so that the network is FFN(u) + u; then FFN(u) − u as printed, at dt = 1."""
    layer, u = encoder_layer(), normal(2, "u", size=(2, 5, 6))
    wider = Reaction(6, 20 + 12, leak=True).double().requires_grad_(False)
    eye, none = torch.eye(6).double(), torch.zeros(12).double()
    wider.inner.weight[:] = torch.cat([layer.linear1.weight, eye, -eye])
    wider.inner.bias[:] = torch.cat([layer.linear1.bias, none])
    wider.outer.weight[:] = torch.cat([layer.linear2.weight, eye, -eye], dim=1)
    wider.outer.bias[:] = layer.linear2.bias
    step = solve(wider, u, steps=1, dt=1.0).final
    gap = ((step - layer(u)).norm() / u.norm()).item()
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P1-eq12/13")
def test_is_the_printed_network_that_of_a_reference_library(evidence):
    layer, u = encoder_layer(4), normal(4, "u", size=(2, 5, 6))
    W1, b1, W2, b2 = layer.linear1.weight.T, layer.linear1.bias, layer.linear2.weight.T, layer.linear2.bias
    printed = (u @ W1 + b1).clamp(min=0) @ W2 + b2  # tokens are rows
    gap = max((printed - other).abs().max().item() for other in (layer(u) - u, sharing(layer)(u)))
    evidence("printed", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P1-eq12/13")
def test_does_the_printed_term_with_its_input_act_on_each_token_alone(evidence):
    def source(x, t):
        return torch.sin(5 * x).unsqueeze(-1).expand(-1, -1, 6) + t

    layer, u = encoder_layer(5), normal(5, "u", size=(1, 7, 6))

    def printed(u):
        return layer(u) - u + source(positions(u), 0.0)  # with the FFN of PyTorch's own layer

    torch.testing.assert_close(sharing(layer, source=source)(u), printed(u), rtol=0, atol=1e-12)
    table = influence(printed, u)[0]
    off = table[~torch.eye(7, dtype=torch.bool)].max().item()
    assert table.diagonal().min() > 0.01
    evidence("printed", holds=off == 0, fails=off > 1e-9)


# S-ffn: is the network a local diffusion?


@pytest.mark.claim("S-ffn")
def test_does_the_network_move_anything_between_positions_as_diffusion_does(evidence):
    """One token is changed; after eight layers, how much did its neighbours move?"""
    u = normal(6, "u", size=(1, 7, 6))
    changed = u.clone()
    changed[0, 3] += 1
    moved = []
    for term, dt in ((Reaction(6, 20).double(), 1.0), (Diffusion(1.0), 0.001)):
        first, second = (solve(term, start, steps=8, dt=dt).final for start in (u, changed))
        moved.append((first - second)[0, 2].abs().max().item())
    assert moved[1] > 1e-3, "diffusion must move them"
    evidence("printed", holds=moved[0] > 1e-9, fails=moved[0] == 0)


@pytest.mark.claim("S-ffn")
def test_does_the_network_treat_waves_of_every_length_alike(evidence):
    """δu = cos(kπx)e about a constant state: its growth must not depend on k, as that under diffusion does."""
    term, base = Reaction(6, 20, activation="tanh").double(), normal(7, "u", size=(1, 1, 6))
    x, e = positions(base.expand(1, 32, 6)), normal(7, "e", size=(6,))
    u = base.expand(1, 32, 6).contiguous()
    gains = {"network": [], "diffusion": []}
    for k in (1, 4, 12):
        wave = torch.cos(k * torch.pi * x).reshape(1, -1, 1) * e
        for name, rate in (("network", term), ("diffusion", Diffusion(1e-3))):
            change = torch.func.jvp(rate, (u,), (wave,))[1]
            gains[name].append((change.norm() / wave.norm()).item())
    spread = {name: max(found) / min(found) - 1 for name, found in gains.items()}
    assert spread["diffusion"] > 10, "diffusion must damp fine waves more"
    evidence("repair", holds=spread["network"] < 1e-9, fails=spread["network"] > 1e-3)
