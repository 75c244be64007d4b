"""Attention as an integral operator: kernel, quadrature and heads. (P2 eq 5, 19; P1 eq 9-11)"""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pdebook.chapters.continuum_limit.continuum import slope
from pdebook.chapters.interaction import clustering, kernels
from pdebook.evidence.adversary import attention
from pdelab import Interaction, MasterEquation, Reaction, SharedOutputInteraction, solve
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
    A, _ = kernels.matrices(0, WIDTH)
    change = (kernels.kernel(other, A) - kernels.kernel(u, A))[0, 0, 1].abs().item()
    evidence("printed", holds=change < 1e-12, fails=change > 1e-3)


@pytest.mark.claim("P2-eq5")
def test_how_much_of_u_does_attention_of_a_library_subtract_from_the_integral(evidence):
    """Fit theirs = ∫K u dy − c u: printed is c = 1."""
    u, A = tokens(), torch.eye(WIDTH, dtype=torch.float64) / math.sqrt(WIDTH)
    integral = (kernels.kernel(u, A) / u.shape[1]) @ u  # the midpoint rule, V = I
    away = integral - scaled_dot_product_attention(u, u, u)
    c = ((away * u).sum() / (u * u).sum()).item()
    assert (away - c * u).abs().max() < 1e-12, "nothing but a multiple of u may be left"
    evidence("printed", holds=abs(c - 1) < 1e-10, fails=abs(c - 1) > 1e-3)


def test_a_step_of_one_of_the_integral_minus_u_is_attention_without_a_residual_connection():
    """u + 1 · (∫K u dy − u): this is where the printed −u is at home."""
    u, A = tokens(), torch.eye(WIDTH, dtype=torch.float64) / math.sqrt(WIDTH)
    step = solve(lambda v: kernels.weights(v, A) @ v - v, u, steps=1, dt=1.0).final
    torch.testing.assert_close(step, scaled_dot_product_attention(u, u, u), rtol=0, atol=1e-12)


def test_the_softmax_kernel_between_two_values_tends_to_one_when_one_of_them_fills_the_field():
    """Its mean over the field is 1. A kernel of the two values alone would then be 1 for every field."""
    A, _ = kernels.matrices(0, WIDTH)
    found = {}
    for n in (2, 2000):
        u = tokens(1, seed=1).expand(1, n, WIDTH).clone()  # b
        u[:, 0] = tokens(1, seed=2)[0, 0]  # a
        found[n] = kernels.kernel(u, A)[0, 0, 1].item()
    other = 2 - found[2]  # K(a, a) when there is one a and one b: the two have the mean 1
    assert abs(found[2] - 1) > 1e-2
    # N = 2000: K(a, b) = 1/(1 + (r − 1)/N) with the same r = K(a, a)/K(a, b)
    assert found[2000] == pytest.approx(1 / (1 + (other / found[2] - 1) / 2000), rel=1e-10)


@pytest.mark.claim("P2-eq5")
def test_is_the_normalised_integral_without_minus_u_what_a_library_computes(evidence):
    u, A = tokens(), torch.eye(WIDTH, dtype=torch.float64) / math.sqrt(WIDTH)
    K = kernels.kernel(u, A)
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
    A, _ = kernels.matrices(1, WIDTH)
    dt, steps = 0.1, 150
    run = solve(lambda v: kernels.weights(v, A) @ v - v, u, steps=steps, dt=dt, keep=clustering.diameter)
    q = clustering.factor(run.states[0], A)
    worst = max((d / (run.states[0] * (1 - dt * (1 - q)) ** n)).item() for n, d in enumerate(run.states))
    left = (run.states[-1] / run.states[0]).item()
    evidence("repair", holds=worst <= 1 + 1e-12 and left < 1e-3, fails=worst > 1 + 1e-6 or left > 0.5)


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
    turn, gaps = kernels.orthogonal(0, "shared", width=WIDTH), []
    for W in (theirs.out_proj.weight, turn, 1e-4 * turn, 1e4 * turn):
        size = torch.linalg.matrix_norm(W, 2)
        gaps.append(((printed(True, theirs, u, W) - wanted) / size).abs().max().item())
    evidence("printed", holds=max(gaps) < 1e-10, fails=min(gaps) > 1e-3)


def test_what_the_printed_sum_leaves_over_is_minus_h_w_o_u_and_fades_with_w_o():
    """So with W_O = εQ and values of size 1/ε the printed form comes as near to multi-head attention as one likes."""
    u, theirs = tokens(), library()
    wanted, turn = theirs(u, u, u, need_weights=False)[0], kernels.orthogonal(0, "shared", width=WIDTH)
    for size in (1.0, 1e-3, 1e-6):
        left = printed(True, theirs, u, size * turn) - wanted
        torch.testing.assert_close(left / size, -HEADS * u @ turn.T, rtol=0, atol=1e-13 / size)


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
    gaps, W = [], kernels.orthogonal(0, "leak", width=WIDTH)
    for heads in (1, 4):
        term = SharedOutputInteraction(WIDTH, heads).double().requires_grad_(False)
        term.qkv.weight[2 * heads * WIDTH :] = 0
        term.out.weight.copy_(W)
        J = jacobian(term, tokens(3)).reshape(3 * WIDTH, 3 * WIDTH)
        gaps.append(abs(kernels.largest_growth(J) - heads * kernels.largest_growth(-W)))
    assert kernels.largest_growth(-W) > 0.1, "the leak must have a growing mode"
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
    W = kernels.orthogonal(0, "shared", width=WIDTH)
    gap = (printed(False, theirs, u, W) - theirs(u, u, u, need_weights=False)[0]).abs().max().item()
    evidence("repair", holds=gap < 1e-10, fails=gap > 1e-6)


# Kernel and quadrature


def test_weights_are_those_of_the_attention_that_the_adversaries_use():
    u = tokens(5, 3)
    A, V = kernels.matrices(2, 3)
    torch.testing.assert_close(kernels.weights(u, A) @ u @ V.T, attention(u, A, V), rtol=0, atol=1e-14)
    torch.testing.assert_close(kernels.read(u, u, A, V), attention(u, A, V), rtol=0, atol=1e-14)


def test_causal_weights_stop_at_the_diagonal_and_sum_to_one():
    u = tokens(5, 3)
    P = kernels.weights(u, kernels.matrices(2, 3)[0], causal=True)
    assert (P.triu(1) == 0).all()
    torch.testing.assert_close(P.sum(dim=-1), torch.ones_like(P[..., 0]), rtol=0, atol=1e-14)


def test_masses_count_tokens():
    """Two equal tokens are one of twice the mass."""
    u = tokens(3, 2)
    A, V = kernels.matrices(3)
    twice = torch.cat([u, u[:, 1:2]], dim=1)
    mass = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(kernels.read(u, u, A, V, mass), kernels.read(u, twice, A, V), rtol=0, atol=1e-14)


def test_the_reference_integrates_polynomials_on_each_half_exactly():
    x, w = kernels.gauss()
    assert w.sum().item() == pytest.approx(1, abs=1e-14)
    assert (w * x**9).sum().item() == pytest.approx(0.1, abs=1e-14)
    assert (w * (x < 0.5) * x**2).sum().item() == pytest.approx(1 / 24, abs=1e-14)


def test_the_constants_of_the_smooth_field_bound_it():
    x = kernels.centres(2000)
    u = kernels.smooth(x)
    first = (u[1:] - u[:-1]) * 2000
    second = (first[1:] - first[:-1]) * 2000
    for found, bound in zip((u, first, second), kernels.SMOOTH.values(), strict=True):
        assert found.norm(dim=-1).max() <= bound


def test_a_jump_at_the_edge_of_a_cell_costs_nothing():
    A, V = kernels.matrices(4)
    counts = (8, 24, 80, 240)  # even: ½ lies between two cells
    assert slope(counts, kernels.grid_errors(kernels.jump, A, V, counts)) == pytest.approx(-2, abs=0.05)


@pytest.mark.parametrize(("field", "order"), [(kernels.smooth, 2), (kernels.jump, 1)])
def test_tokens_on_a_grid_converge_with_the_order_of_the_midpoint_rule(field, order):
    A, V = kernels.matrices(4)
    assert slope(kernels.COUNTS, kernels.grid_errors(field, A, V)) == pytest.approx(-order, abs=0.05)


def test_random_tokens_converge_like_a_sample():
    A, V = kernels.matrices(4)
    # an error from 256 draws is known to about 0.06, as squares of errors have longer tails than a Gaussian's (0.044);
    # over a range of 27 that makes about 0.03 in the slope
    assert slope(kernels.COUNTS, kernels.sample_errors(kernels.smooth, A, V, 4)) == pytest.approx(-0.5, abs=0.1)


def test_errors_stay_below_their_bounds():
    for seed in range(5):
        A, V = kernels.matrices(seed, size=0.5)
        grid, sample = kernels.grid_errors(kernels.smooth, A, V), kernels.sample_errors(kernels.smooth, A, V, seed)
        for n, e, s in zip(kernels.COUNTS, grid, sample, strict=True):
            assert e <= kernels.midpoint_bound(n, A, V, **kernels.SMOOTH)
            assert s <= kernels.sample_bound(n, A, V, kernels.SMOOTH["R"])


def test_random_matrices_have_the_norms_asked_for():
    A, V = kernels.matrices(5, 4, size=3.0)
    assert torch.linalg.matrix_norm(A, 2).item() == pytest.approx(3)
    assert torch.linalg.matrix_norm(V, 2).item() == pytest.approx(1)


def test_an_orthogonal_matrix_has_eigenvalues_on_the_circle_and_a_rotation_no_growth():
    Q = kernels.orthogonal(0, "Q", width=8)
    torch.testing.assert_close(Q @ Q.T, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-12)
    assert -1 - 1e-12 < kernels.largest_growth(-Q) < 1 + 1e-12
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert kernels.largest_growth(turn) == pytest.approx(0, abs=1e-12)
