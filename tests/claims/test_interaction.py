"""What the papers state of attention: the kernel, the −u and the sum over heads.  (P2 eq 5, 19; P1 eq 9-11)"""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pdebook.chapters.interaction import laws
from pdebook.evidence.adversary import ROUNDING
from pdelab import Interaction, MasterEquation, Reaction, SharedOutputInteraction, solve
from pdelab.formulas import attention, attention_contraction, attention_weights, diameter, norm2
from pdelab.integrators import flow
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal

WIDTH, HEADS = 6, 3


def tokens(count=12, width=WIDTH, seed=0):
    return normal(seed, "tokens", size=(1, count, width))


def library(bias=False):
    """torch's own multi-head attention with weights N(0, 1/fan-in)."""
    made = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True).double().requires_grad_(False)
    made.in_proj_weight.copy_(normal(0, "qkv", size=(3 * WIDTH, WIDTH)) / math.sqrt(WIDTH))
    made.out_proj.weight.copy_(normal(0, "out", size=(WIDTH, WIDTH)) / math.sqrt(WIDTH))
    return made


def heads_of(theirs, u):
    """W_Oʰ, P^h, W_Vʰ of each head: lists."""
    size = WIDTH // HEADS
    query, key, value = (w.split(size) for w in theirs.in_proj_weight.split(WIDTH))
    maps = [
        (u @ q.T @ (u @ k.T).transpose(1, 2) / math.sqrt(size)).softmax(dim=-1) for q, k in zip(query, key, strict=True)
    ]
    return theirs.out_proj.weight.split(size, dim=1), maps, value


# P2-eq5: the kernel and the −u


@pytest.mark.claim("P2-eq5")
def test_does_the_kernel_of_two_positions_depend_on_their_two_values_alone(evidence):
    u = tokens()
    other = u.clone()
    other[:, 5] += 1
    A, _ = laws.matrices(0, WIDTH)
    change = (laws.kernel(other, A) - laws.kernel(u, A))[0, 0, 1].abs().item()
    evidence("printed", holds=change < 1e-12, fails=change > 1e-3)


@pytest.mark.claim("P2-eq5")
def test_how_much_of_u_does_attention_of_a_library_subtract_from_the_integral(evidence):
    """Fit theirs = ∫K u dy − c u: printed is c = 1."""
    u, A = tokens(), torch.eye(WIDTH, dtype=torch.float64) / math.sqrt(WIDTH)
    integral = (laws.kernel(u, A) / u.shape[1]) @ u  # the midpoint rule, V = I
    away = integral - scaled_dot_product_attention(u, u, u)
    c = ((away * u).sum() / (u * u).sum()).item()
    assert (away - c * u).abs().max() < 1e-12, "nothing but a multiple of u may be left"
    evidence("printed", holds=abs(c - 1) < 1e-10, fails=abs(c - 1) > 1e-3)


@pytest.mark.claim("P2-eq5")
def test_is_the_normalised_integral_without_minus_u_what_a_library_computes(evidence):
    u, A = tokens(), torch.eye(WIDTH, dtype=torch.float64) / math.sqrt(WIDTH)
    K = laws.kernel(u, A)
    one = (K.mean(dim=-1) - 1).abs().max().item()
    gap = (K / u.shape[1] @ u - scaled_dot_product_attention(u, u, u)).abs().max().item()
    evidence("repair", holds=max(one, gap) < 1e-12, fails=max(one, gap) > 1e-6)


@pytest.mark.claim("P2-eq5")
def test_does_an_euler_step_keep_u_with_weight_one_less_a_dt_for_every_minus_u(evidence):
    """Without branches, what is left of u after a step is the weight of the identity."""
    dt, u, gaps = 0.3, tokens(), []
    for leaks in range(3):
        terms = Interaction(WIDTH, leak=leaks > 0, bias=False), Reaction(WIDTH, 8, leak=leaks > 1, bias=False)
        equation = MasterEquation(*terms).double().requires_grad_(False)
        terms[0].out.weight.zero_()
        terms[1].outer.weight.zero_()
        gaps.append((solve(equation, u, steps=1, dt=dt).final - (1 - leaks * dt) * u).abs().max().item())
    evidence("repair", holds=max(gaps) < 1e-12, fails=max(gaps) > 1e-6)


@pytest.mark.claim("P2-eq5")
def test_does_the_printed_flow_with_identity_values_bring_all_tokens_together_as_fast_as_the_bound(evidence):
    u = 0.5 * tokens()
    A, _ = laws.matrices(1, WIDTH)
    dt, steps = 0.1, 150
    run = solve(lambda v: attention_weights(v, A) @ v - v, u, steps=steps, dt=dt, keep=diameter)
    q = attention_contraction(A, run.states[0])
    worst = max((d / (run.states[0] * (1 - dt * (1 - q)) ** n)).item() for n, d in enumerate(run.states))
    left = (run.states[-1] / run.states[0]).item()
    evidence("repair", holds=worst <= 1 + ROUNDING and left < 1e-3, fails=worst > 1 + ROUNDING or left > 0.5)


@pytest.mark.claim("P2-eq5")
def test_does_the_printed_flow_shrink_the_diameter_as_fast_as_the_bound_for_other_values(evidence):
    """W_V = ±0.9 times a rotation, or any matrix of norm 3: whenever q < 1."""
    found = []
    for seed, size in ((0, 0.9), (1, 0.9), (2, 3.0), (3, 3.0)):
        A, V = laws.matrices(seed, WIDTH)
        V = size * (laws.orthogonal(seed, "values", width=WIDTH) if size < 1 else V)
        u = tokens(seed=seed) * (0.3 if size > 1 else 0.5)
        u = u / diameter(u) * (0.8 if size > 1 else 3.0)
        q = size * attention_contraction(A, diameter(u)).item()
        assert q < 1, "the theorem must speak of this start"
        for T in (0.5, 4.0):
            left = diameter(flow(lambda v, A=A, V=V: attention(v, A, V) - v, u, T=T, steps=200)) / diameter(u)
            found.append(left.item() / math.exp(-(1 - q) * T))
    evidence("repair", holds=max(found) <= 1 + ROUNDING, fails=max(found) > 1 + ROUNDING)


@pytest.mark.claim("P2-eq5")
def test_does_the_flow_without_minus_u_keep_as_much_of_the_diameter_as_the_bound(evidence):
    """Values that push tokens together, V = −I and −V Vᵀ; two opposite tokens come within a hundredth of the bound."""
    found = []
    for seed in range(4):
        A, V = laws.matrices(seed, WIDTH)
        V = -torch.eye(WIDTH, dtype=torch.float64) if seed % 2 else -V @ V.T
        u = tokens(seed=seed)
        for T in (1.0, 30.0):
            left = diameter(flow(lambda v, A=A, V=V: attention(v, A, V), u, T=T, steps=2000)).item()
            found.append(left / laws.algebraic_bound(diameter(u).item(), T, norm2(A).item() * norm2(V).item()))
    one, pair = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    near = diameter(flow(lambda v: attention(v, one, -one), pair, T=100.0, steps=2000)).item()
    found.append(near / laws.algebraic_bound(2.0, 100.0, 1.0))
    assert found[-1] < 1.01, "the bound must be within reach"
    evidence("repair", holds=min(found) >= 1 - ROUNDING, fails=min(found) < 1 - ROUNDING)


# P1-eq9-11 and P2-eq19: several heads


@pytest.mark.claim("P1-eq9-11")
def test_is_the_concatenated_form_that_of_a_library_and_the_sum_over_row_blocks(evidence):
    """In P1's convention, with rows for tokens: Q_i = uW_i^Q, and W^O is the transpose of torch's matrix."""
    u, theirs = tokens(), library()
    out, maps, value = heads_of(theirs, u)
    heads = [P @ (u @ w.T) for P, w in zip(maps, value, strict=True)]
    concatenated = torch.cat(heads, dim=-1) @ theirs.out_proj.weight.T
    summed = sum(head @ block.T for head, block in zip(heads, out, strict=True))
    wanted = theirs(u, u, u, need_weights=False)[0]
    gap = max((found - wanted).abs().max().item() for found in (concatenated, summed))
    evidence("printed", holds=gap < 1e-12, fails=gap > 1e-6)


def printed(leak, theirs, u, W):
    """P2 eq 19 with the output matrix W and full-width heads that read what torch's heads read."""
    out, maps, value = heads_of(theirs, u)
    inside = [torch.linalg.solve(W, block @ w) for block, w in zip(out, value, strict=True)]  # W_O⁻¹ W_Oʰ W_Vʰ
    return sum(P @ u @ v.T - (u if leak else 0) for P, v in zip(maps, inside, strict=True)) @ W.T


@pytest.mark.claim("P2-eq19")
def test_is_the_printed_sum_over_full_width_heads_that_of_a_library(evidence):
    """With values chosen so that the integrals agree, for output matrices of any size, in units of that size."""
    u, theirs = tokens(), library()
    wanted = theirs(u, u, u, need_weights=False)[0]
    turn, gaps = laws.orthogonal(0, "shared", width=WIDTH), []
    for W in (theirs.out_proj.weight, turn, 1e-4 * turn, 1e4 * turn):
        size = torch.linalg.matrix_norm(W, 2)
        gaps.append(((printed(True, theirs, u, W) - wanted) / size).abs().max().item())
    evidence("printed", holds=max(gaps) < 1e-10, fails=min(gaps) > 1e-3)


@pytest.mark.claim("P2-eq19")
def test_can_the_printed_sum_over_narrow_heads_reach_what_concatenation_does(evidence):
    u, theirs = tokens(), library()
    term = SharedOutputInteraction(WIDTH, HEADS, head_width=WIDTH // HEADS, leak=False).double()
    rank, full = (torch.linalg.matrix_rank(rate[0]).item() for rate in (term(u), theirs(u, u, u)[0]))
    assert full == WIDTH, "the control must have full rank"
    evidence("printed", holds=rank == full, fails=rank <= WIDTH // HEADS)


@pytest.mark.claim("P2-eq19")
def test_does_the_printed_form_hold_minus_h_times_the_output_of_u(evidence):
    """W_V = 0 leaves that alone. With an orthogonal W_O some mode grows, at a rate proportional to H."""
    gaps, W = [], laws.orthogonal(0, "leak", width=WIDTH)
    for heads in (1, 4):
        term = SharedOutputInteraction(WIDTH, heads).double().requires_grad_(False)
        term.qkv.weight[2 * heads * WIDTH :] = 0
        term.out.weight.copy_(W)
        J = jacobian(term, tokens(3)).reshape(3 * WIDTH, 3 * WIDTH)
        gaps.append(abs(laws.largest_growth(J) - heads * laws.largest_growth(-W)))
    assert laws.largest_growth(-W) > 0.1, "the leak must have a growing mode"
    evidence("repair", holds=max(gaps) < 1e-10, fails=max(gaps) > 1e-3)


@pytest.mark.claim("P2-eq19")
def test_does_a_block_of_the_output_for_each_head_give_concatenation(evidence):
    u, theirs = tokens(), library()
    out, maps, value = heads_of(theirs, u)
    rate = sum(P @ u @ (block @ w).T for block, P, w in zip(out, maps, value, strict=True))
    gap = (rate - theirs(u, u, u, need_weights=False)[0]).abs().max().item()
    evidence("repair", holds=gap < 1e-12, fails=gap > 1e-6)


@pytest.mark.claim("P2-eq19")
def test_is_the_printed_sum_without_minus_u_a_reparametrisation_for_full_width_heads(evidence):
    u, theirs = tokens(), library()
    W = laws.orthogonal(0, "shared", width=WIDTH)
    gap = (printed(False, theirs, u, W) - theirs(u, u, u, need_weights=False)[0]).abs().max().item()
    evidence("repair", holds=gap < 1e-10, fails=gap > 1e-6)


@pytest.mark.claim("P2-eq19")
def test_is_every_printed_sum_without_minus_u_and_of_full_width_a_multi_head_attention(evidence):
    """The other way round: values W_V,h of full width and one W_O, against concatenation followed by the blocks W_O."""
    term = SharedOutputInteraction(WIDTH, HEADS, leak=False).double().requires_grad_(False)
    u = tokens()
    query, key, value = (part.reshape(HEADS, WIDTH, WIDTH) for part in term.qkv.weight.chunk(3))
    scores = [(u @ q.T) @ (u @ k.T).transpose(-1, -2) / WIDTH**0.5 for q, k in zip(query, key, strict=True)]
    heads = torch.cat([s.softmax(-1) @ (u @ v.T) for s, v in zip(scores, value, strict=True)], dim=-1)
    gap = (heads @ torch.cat([term.out.weight] * HEADS, dim=1).T - term(u)).abs().max().item()
    evidence("repair", holds=gap < 1e-10, fails=gap > 1e-6)
