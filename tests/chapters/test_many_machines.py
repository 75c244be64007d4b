"""What a run costs, counted on paper, is what PyTorch counts while it runs."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pdebook.chapters.many_machines.laws import Operations, Stack, costs, probe_operations, rates, training_bytes
from pdelab import probe
from pdelab.models import transformer
from pdelab.seeds import normal

STACKS = [
    Stack(layers=3, width=32, hidden=128, tokens=64, batch=2),
    Stack(layers=3, width=32, hidden=128, tokens=128, batch=2),
    Stack(layers=12, width=64, hidden=96, tokens=40, batch=1),
]


def built(stack: Stack, seed: int = 0):
    return transformer(width=stack.width, depth=stack.layers, heads=4, hidden=stack.hidden, norm="pre", seed=seed)


def field(stack: Stack):
    return torch.randn(stack.batch, stack.tokens, stack.width, requires_grad=True)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_operations_are_those_that_torch_counts(stack):
    model, u = built(stack), field(stack)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the fused kernel counts as none
        out = model(u)
        assert counter.get_total_flops() == stack.forward().total
        out.sum().backward()
    assert counter.get_total_flops() == stack.training_step().total


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_bytes_are_those_that_the_backward_pass_keeps(stack):
    model, u = built(stack), field(stack)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept, alive = {}, []

    def pack(saved):
        alive.append(saved)  # so that no address is used twice
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        out = model(u)
    measured = sum(size for place, size in kept.items() if place not in weights)
    on_paper = training_bytes(stack) - 16 * stack.weights
    assert out.shape == u.shape
    # beside them one state, and of every head and norm a number or two per token
    assert on_paper < measured < on_paper + 4 * stack.fields * (1 / stack.layers + 16 / stack.width)


def test_weights_are_those_of_the_matrices():
    model = built(STACKS[0])
    matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    assert matrices == STACKS[0].weights


def test_llama_70b_has_its_weights():
    """80 layers of width 8,192 with 64 heads of which 8 have keys; 70.6 billion with embedding and readout."""
    stack = Stack(layers=80, width=8192, hidden=28_672, tokens=1, keys=8 / 64, gated=True)
    assert stack.weights + 2 * 128_256 * 8192 == pytest.approx(70.6e9, rel=1e-3)


def test_two_measurements_give_the_rates_and_too_near_ones_are_refused():
    short, long = Operations(8e9, 1e9), Operations(8e9, 64e9)
    given = (5e10, 2e10)
    found = rates((short, short.seconds(*given)), (long, long.seconds(*given)))
    assert found == pytest.approx(given)
    with pytest.raises(ValueError, match="further apart"):
        rates((short, 1.0), (long, 0.9))


class Layered(nn.Module):
    """A stack in which every layer, attention and feed-forward network, is one module, as in published networks."""

    def __init__(self, stack: Stack):
        super().__init__()
        alone = Stack(1, stack.width, stack.hidden, stack.tokens)
        self.layers = nn.ModuleList(built(alone, seed) for seed in range(stack.layers))

    def forward(self, u):
        for layer in self.layers:
            u = layer(u)
        return u


@pytest.mark.parametrize(("layers", "width", "tokens"), [(6, 16, 16), (12, 16, 16), (6, 32, 24)])
def test_a_probe_has_the_operations_of_so_many_passes(layers, width, tokens):
    stack = Stack(layers=layers, width=width, hidden=4 * width, tokens=tokens)
    model, u = Layered(stack), normal(0, "tokens", size=(1, tokens, width)).float()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        report = probe(model, u, loss=lambda out: out.square().mean(), progress=False)
    assert not any(run.note for run in report.runs.values())  # none of the controls is missing
    assert len(report.names) == layers
    assert "→" in report.scheme
    assert counter.get_total_flops() == pytest.approx(probe_operations(stack).total, rel=0.02)


def test_hours_are_the_operations_at_the_rates():
    rows = costs(core=1e10, gpu=1e13)
    assert len(rows) == 6
    for _, operations, _, core, gpu in rows:  # two digits are shown
        assert 3600 * 1e10 * float(core) == pytest.approx(float(operations), rel=0.1)
        assert 3600 * 1e13 * float(gpu) == pytest.approx(float(operations), rel=0.1)
