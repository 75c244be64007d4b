import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import SEQUENCES, WIDTH, field, padded, seeded, without_double_on_the_device
from torch import nn

from pdelab import Interaction, PreNorm, SharedOutputInteraction
from pdelab.formulas import attention, attention_lipschitz, diameter, longest, norm2
from pdelab.terms.interaction import rotated


def interaction(**options):
    return seeded(lambda: Interaction(WIDTH, options.pop("heads", 2), **options), spread=0.5)


def torch_attention(ours):
    """nn.MultiheadAttention with our weights."""
    theirs = nn.MultiheadAttention(ours.width, ours.heads, bias=ours.out.bias is not None, batch_first=True).double()
    theirs.load_state_dict(
        {"in_proj_weight": ours.qkv.weight, "out_proj.weight": ours.out.weight}
        | ({"in_proj_bias": ours.qkv.bias, "out_proj.bias": ours.out.bias} if ours.out.bias is not None else {})
    )
    return theirs


def heads_one_by_one(term, u, mask=None):
    """W_Oʰ, P^h and W_Vʰ u + b_Vʰ of each head, from the formula: lists of (width, d_h), (b, n, n), (b, n, d_h)."""
    size = term.width // term.heads
    value_weight, value_bias = term.qkv.weight[2 * term.width :], term.qkv.bias[2 * term.width :]
    blocks = term.out.weight.split(size, dim=1)
    values = (u @ value_weight.T + value_bias).split(size, dim=-1)
    return blocks, term.weights(u, mask).unbind(1), values


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_it_is_torch_multihead_attention(heads, bias, masked):
    term = interaction(heads=heads, bias=bias)
    u, mask = padded(fill=0.0) if masked else (field(), None)
    real = mask if masked else torch.ones(u.shape[:2], dtype=torch.bool)
    output, weights = torch_attention(term)(
        u, u, u, key_padding_mask=~mask if masked else None, average_attn_weights=False
    )
    torch.testing.assert_close(term(u, mask=mask)[real], output[real], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        term.weights(u, mask).transpose(1, 2)[real], weights.transpose(1, 2)[real], rtol=0, atol=1e-12
    )


@given(seed=st.integers(0, 10**6), heads=st.sampled_from([1, 2, 4]), causal=st.booleans(), size=st.floats(0.01, 30))
def test_rows_sum_to_one(seed, heads, causal, size):
    term = interaction(heads=heads, causal=causal)
    u, mask = padded([size * field(1, n, seed=seed + n) for n in (5, 3, 1)], (0, 2, 3), tokens=6)
    weights = term.weights(u, mask)
    assert weights.shape == (3, heads, 6, 6)
    assert (weights >= 0).all()
    rows = weights.transpose(1, 2)[mask]  # (real token, head, token)
    torch.testing.assert_close(rows.sum(dim=-1), torch.ones_like(rows[..., 0]), rtol=0, atol=1e-12)
    assert (weights.transpose(2, 3).transpose(1, 2)[~mask].transpose(1, 2)[:, 0] >= 0).all()
    seen = weights * ~mask[:, None, None, :]
    assert (seen.transpose(1, 2)[mask] == 0).all()  # a real token never looks at a padded place


def test_zero_query_weights_give_the_mean_over_tokens():
    """Without queries every score is equal, and the integral of P2 eq 5 is a plain mean."""
    term = interaction()
    with torch.no_grad():
        term.qkv.weight[:WIDTH] = 0
        term.qkv.bias[:WIDTH] = 0
    u, mask = padded()
    for row, one in enumerate(SEQUENCES):
        mean = one.mean(dim=1, keepdim=True)
        value = mean @ term.qkv.weight[2 * WIDTH :].T + term.qkv.bias[2 * WIDTH :]
        want = value @ term.out.weight.T + term.out.bias
        got = term(u, mask=mask)[row, mask[row]]
        torch.testing.assert_close(got, want[0].expand_as(got), rtol=0, atol=1e-12)


@given(order=st.permutations(range(5)))
def test_permuting_the_tokens_permutes_the_rates(order):
    term, u = interaction(), field()
    torch.testing.assert_close(term(u[:, order]), term(u)[:, order], rtol=0, atol=1e-12)
    torch.testing.assert_close(term.weights(u[:, order]), term.weights(u)[:, :, order][..., order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_weights_times_values_summed_over_heads_is_the_rate(causal, masked):
    """Concatenation followed by W_O is the sum over heads of each head's own block of W_O."""
    term = interaction(causal=causal)
    u, mask = padded(fill=0.0) if masked else (field(), None)
    rate = (
        sum(P @ value @ block.T for block, P, value in zip(*heads_one_by_one(term, u, mask), strict=True))
        + term.out.bias
    )
    real = mask if masked else torch.ones(u.shape[:2], dtype=torch.bool)
    torch.testing.assert_close(term(u, mask=mask)[real], rate[real], rtol=0, atol=1e-12)


def test_weights_are_the_softmax_of_scaled_scores():
    term, u = interaction(), field()
    q, k, _ = (u @ term.qkv.weight.T + term.qkv.bias).split(WIDTH, dim=-1)
    for head, (a, b) in enumerate(zip(q.split(2, dim=-1), k.split(2, dim=-1), strict=True)):
        scores = torch.einsum("bia,bja->bij", a, b) / math.sqrt(2)
        P = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
        torch.testing.assert_close(term.weights(u)[:, head], P, rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [True, False])
def test_a_causal_token_ignores_what_comes_after_it(masked):
    term = interaction(causal=True)
    u, mask = padded() if masked else (field(), None)
    tokens = u.shape[1]
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    assert (term.weights(u, mask)[..., later] == 0).all()
    for j in range(tokens):
        changed = u.clone()
        changed[:, j] += 1
        assert torch.equal(term(changed, mask=mask)[:, :j], term(u, mask=mask)[:, :j])


def test_a_causal_term_is_torch_attention_with_a_causal_mask():
    term, u = interaction(causal=True), field()
    past = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    torch.testing.assert_close(term(u), torch_attention(term)(u, u, u, attn_mask=past)[0], rtol=0, atol=1e-12)


def test_the_first_causal_token_sees_itself_alone():
    term, u = interaction(causal=True), field()
    torch.testing.assert_close(term(u)[:, :1], term(u[:, :1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fill", [0.0, -7.0, math.nan])
def test_masked_tokens_influence_neither_weights_nor_rate(fill):
    term = interaction()
    u, mask = padded(fill=fill)
    for row, one in enumerate(SEQUENCES):
        real = mask[row]
        torch.testing.assert_close(
            term.weights(u, mask)[row][:, real][..., real], term.weights(one)[0], rtol=0, atol=1e-12
        )
        torch.testing.assert_close(term(u, mask=mask)[row, real], term(one)[0], rtol=0, atol=1e-12)


def test_leak_subtracts_u_once_and_strength_multiplies_the_rest():
    u = field()
    plain = interaction()(u)
    torch.testing.assert_close(interaction(leak=True)(u), plain - u, rtol=0, atol=0)
    torch.testing.assert_close(interaction(strength=0.3)(u), 0.3 * plain, rtol=0, atol=1e-15)
    torch.testing.assert_close(interaction(strength=0.3, leak=True)(u), 0.3 * plain - u, rtol=0, atol=1e-15)


def test_weights_of_the_normalised_field_are_those_of_its_layer_norm():
    term, u = PreNorm(interaction(), WIDTH).double(), field()
    normal = nn.functional.layer_norm(u, (WIDTH,))
    torch.testing.assert_close(term.weights(u), interaction().weights(normal), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("width", "heads"), [(4, 3), (4, 8)])
def test_heads_that_do_not_divide_the_width_are_refused(width, heads):
    with pytest.raises(ValueError, match=r"heads must divide width"):
        Interaction(width, heads)


@pytest.mark.parametrize(("width", "heads"), [(4, 0), (0, 1), (4, -2), (4.0, 2), (4, True), (10**12, 1)])
def test_sizes_must_be_whole_numbers_that_a_memory_holds(width, heads):
    with pytest.raises(ValueError, match=r"(width|heads) must be a whole number (of at least 1|from 1 to)"):
        Interaction(width, heads)


@pytest.mark.parametrize(
    "u",
    [torch.ones(5, WIDTH), torch.ones(1, 5, WIDTH + 1), torch.ones(1, 0, WIDTH), torch.full((1, 2, WIDTH), math.nan)],
)
@pytest.mark.parametrize("wrap", [lambda term: term, lambda term: PreNorm(term, WIDTH)])
def test_weights_refuse_what_is_not_a_field_of_their_width(u, wrap):
    with pytest.raises(ValueError, match=r"^u "):
        wrap(Interaction(WIDTH)).weights(u)


# P2 eq 19 as printed: one output matrix for all heads.


@pytest.mark.parametrize(
    "term",
    [
        interaction(heads=1),
        interaction(heads=4, strength=-0.3),
        seeded(lambda: SharedOutputInteraction(WIDTH, 3, head_width=2, leak=False), spread=0.5),
    ],
    ids=["one head", "four heads", "shared output"],
)
def test_the_contraction_of_a_term_bounds_what_it_leaves_of_the_diameter(term):
    for size in (0.01, 0.3, 3.0):
        u = size * field()
        allowed = [term.contraction(delta) * delta for delta in diameter(u).tolist()]
        assert (diameter(term(u)) <= torch.tensor(allowed, dtype=u.dtype)).all()


def test_the_contraction_of_one_head_is_that_of_its_score_and_value_matrices():
    term, delta = interaction(heads=1, bias=False), torch.tensor(1.7, dtype=torch.float64)
    query, key, value = term.qkv.weight.chunk(3)
    A, V = query.T @ key / math.sqrt(WIDTH), term.out.weight @ value
    torch.testing.assert_close(term(field()), attention(field(), A, V), rtol=0, atol=1e-12)
    wanted = norm2(V) * torch.tanh(norm2(A) * delta**2 / 4)
    assert term.contraction(1.7) == pytest.approx(wanted.item(), rel=1e-12)


def test_a_causal_term_has_no_contraction():
    with pytest.raises(ValueError, match="causal must be False"):
        interaction(causal=True).contraction(1.0)


# Rotary positions and grouped heads


def llama_attention(q_weight, k_weight, v_weight, o_weight, u, heads, groups, base):
    """Written as decoders of the Llama family do: rotate_half, repeat_kv, a causal mask and a softmax."""
    batch, tokens, width = u.shape
    size = width // heads
    q, k, v = (u @ w.T for w in (q_weight, k_weight, v_weight))
    q = q.view(batch, tokens, heads, size).transpose(1, 2)
    k, v = (x.view(batch, tokens, groups, size).transpose(1, 2) for x in (k, v))

    frequency = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.float64) / size))
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequency)
    cos, sin = (f(torch.cat((angles, angles), dim=-1)) for f in (torch.cos, torch.sin))

    def rotate_half(x):
        return torch.cat((-x[..., size // 2 :], x[..., : size // 2]), dim=-1)

    q, k = (x * cos + rotate_half(x) * sin for x in (q, k))
    repeats = heads // groups
    k, v = (
        x[:, :, None].expand(batch, groups, repeats, tokens, size).reshape(batch, heads, tokens, size) for x in (k, v)
    )
    later = torch.full((tokens, tokens), -torch.inf, dtype=u.dtype).triu(1)
    weights = torch.softmax(q @ k.transpose(2, 3) / size**0.5 + later, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(batch, tokens, width) @ o_weight.T, weights


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rotary_positions_and_grouped_heads_are_those_of_a_llama(groups):
    term = seeded(lambda: Interaction(16, 4, groups=groups, rotary=1e4, causal=True, bias=False), spread=0.5)
    u = field(3, 9, 16)
    q, k, v = term.qkv.weight.split([16, 4 * groups, 4 * groups])
    output, weights = llama_attention(q, k, v, term.out.weight, u, 4, groups, 1e4)
    torch.testing.assert_close(term(u), output, rtol=0, atol=1e-12)
    torch.testing.assert_close(term.weights(u), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_are_those_of_torch_s_own_kernel(causal):
    term = seeded(lambda: Interaction(16, 4, groups=2, causal=causal), spread=0.5)
    u = field(3, 9, 16)
    q, k, v = (x.unflatten(-1, (-1, 4)).transpose(1, 2) for x in term.qkv(u).split([16, 8, 8], dim=-1))
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(term(u), term.out(mixed.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_as_many_groups_as_heads_change_nothing_and_draw_the_same_weights():
    plain, grouped = (seeded(lambda groups=groups: Interaction(8, 4, groups=groups)) for groups in (None, 4))
    assert torch.equal(plain(field(width=8)), grouped(field(width=8)))


def test_rotary_scores_depend_on_the_distance_of_two_tokens_alone():
    """Equal tokens: ⟨q_i, k_j⟩ is constant along the diagonals; a sequence that starts later has the same rate."""
    q, k = (rotated(x.expand(12, 8)) for x in field(2, 1, 8, seed=3))
    scores = q @ k.T
    for distance in range(-11, 12):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)
    assert scores[0].std() > 0.1
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(12))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="groups must divide heads; 3 groups do not divide 4 heads"):
        Interaction(8, 4, groups=3)
    with pytest.raises(ValueError, match="rotary turns pairs of features; heads of width 3"):
        Interaction(6, 2, rotary=1e4)


# The Lipschitz constant


TERMS = {
    "one head": interaction(heads=1),
    "four heads": interaction(heads=4, strength=-0.3),
    "causal, with a leak": interaction(causal=True, leak=True),
    "shared output": seeded(lambda: SharedOutputInteraction(WIDTH, 3), spread=0.5),
    "grouped heads": interaction(heads=4, groups=2),
    "rotary positions": interaction(rotary=3.0, bias=False, leak=True),
    "rotary positions, grouped": interaction(rotary=3.0, bias=False, groups=1),
}


@pytest.mark.parametrize("name", TERMS)
def test_two_states_are_driven_apart_no_faster_than_the_lipschitz_constant(name):
    term = TERMS[name]
    for size in (0.1, 1.0, 4.0):
        u = size * field(64)
        v = u + 0.01 * size * field(64, seed=1)
        R, widest = torch.maximum(longest(u), longest(v)), torch.maximum(diameter(u), diameter(v))
        change, gap = term(u) - term(v), u - v
        for n in range(0, 64, 8):
            most = term.lipschitz(R[n].item())
            close = term.lipschitz(R[n].item(), diameter=widest[n].item())
            assert longest(change)[n] <= close * longest(gap)[n] <= most * longest(gap)[n] * (1 + 1e-12)
            if term.rotary is None:
                assert change[n].norm() <= term.lipschitz(R[n].item(), columns=u.shape[1]) * gap[n].norm()


def test_the_rotary_constant_is_that_of_its_matrices():
    term = interaction(heads=1, rotary=1e4, bias=False)
    query, key, value = term.qkv.weight.chunk(3)
    size = norm2(query) * norm2(key) / math.sqrt(WIDTH)
    want = norm2(term.out.weight @ value) * (1 + 2 * size * 1.7**2)
    assert term.lipschitz(1.7) == pytest.approx(want.item(), rel=1e-12)


def test_with_rotary_positions_a_small_diameter_need_not_shrink():
    """A large mean makes tokens see their neighbours by position alone, where plain attention averages over all."""
    plain, rotary = (Interaction(4, 1, rotary=base, bias=False).double().requires_grad_(False) for base in (None, 1e4))
    eye = torch.eye(4, dtype=torch.float64)
    for term in (plain, rotary):
        term.qkv.weight.copy_(torch.cat([eye, eye, eye]))
        term.out.weight.copy_(eye)
    u = 10 + 1e-2 * field(1, 12)
    bound = plain.contraction(diameter(u).item()) * diameter(u)
    assert diameter(plain(u)) <= bound
    assert diameter(rotary(u)) > 1000 * bound


def test_constants_that_no_theorem_gives_are_refused():
    for term, columns in ((interaction(rotary=1e4), 1.0), (interaction(rotary=1e4, bias=False), 5.0)):
        with pytest.raises(ValueError, match="columns=1 and bias=False only"):
            term.lipschitz(1.0, columns=columns)
    with pytest.raises(ValueError, match="rotary must be None"):
        interaction(rotary=1e4, bias=False).contraction(1.0)


def test_the_lipschitz_constant_of_one_head_is_that_of_its_matrices_and_its_query_bias():
    term = interaction(heads=1)
    query, key, value = term.qkv.weight.chunk(3)
    A, V = query.T @ key / math.sqrt(WIDTH), term.out.weight @ value
    b = key.T @ term.qkv.bias[:WIDTH] / math.sqrt(WIDTH)
    x, x_b = norm2(A) * 1.7**2, (norm2(A) * 1.7 + b.norm()) * 1.7
    assert term.lipschitz(1.7) == pytest.approx((norm2(V) * (x + (1 + x_b**2).sqrt())).item(), rel=1e-12)
    assert term.lipschitz(1.7) == pytest.approx(attention_lipschitz(A, V, 1.7, b=b.norm()).item(), rel=1e-12)
    assert term.lipschitz(1.7) == term.lipschitz(1.7, diameter=100.0)
    close = attention_lipschitz(A, V, 1.7, r=0.1, b=b.norm()).item()
    assert term.lipschitz(1.7, diameter=0.2) == pytest.approx(close, rel=1e-12)


@pytest.mark.parametrize("kind", [Interaction, SharedOutputInteraction])
def test_the_constants_are_computed_where_there_is_double_precision(kind, monkeypatch):
    term = kind(WIDTH, 2, leak=True)
    without_double_on_the_device(monkeypatch)
    assert term.lipschitz(1.0) > 0
    assert term.contraction(1.0) > 0


def test_no_biases_but_that_of_the_queries_change_the_lipschitz_constant():
    term = interaction(heads=2)
    before = term.lipschitz(1.3)
    with torch.no_grad():
        term.qkv.bias[WIDTH:] += 5
        term.out.bias += 5
    assert term.lipschitz(1.3) == before
    with torch.no_grad():
        term.qkv.bias[:WIDTH] += 5
    assert term.lipschitz(1.3) > 2 * before


def test_tokens_in_one_place_have_the_lipschitz_constant_of_the_values():
    term = interaction(heads=1)
    V = term.out.weight @ term.qkv.weight[2 * WIDTH :]
    assert term.lipschitz(3.0, diameter=0.0) == pytest.approx(norm2(V).item(), rel=1e-12)


def shared(**options):
    return seeded(lambda: SharedOutputInteraction(WIDTH, options.pop("heads", 3), **options), spread=0.5)


@pytest.mark.parametrize("options", [{}, {"leak": False}, {"leak": False, "head_width": 2}, {"causal": True}])
@pytest.mark.parametrize("masked", [True, False])
def test_the_shared_output_is_that_of_the_formula(options, masked):
    term = shared(**options)
    u, mask = padded(fill=0.0) if masked else (field(), None)
    values = (u @ term.qkv.weight[2 * 3 * term.head_width :].T).split(term.head_width, dim=-1)
    heads = [P @ value for P, value in zip(term.weights(u, mask).unbind(1), values, strict=True)]
    rate = sum(head - u if term.leak else head for head in heads) @ term.out.weight.T
    real = mask if masked else torch.ones(u.shape[:2], dtype=torch.bool)
    torch.testing.assert_close(term(u, mask=mask)[real], rate[real], rtol=0, atol=1e-12)


def test_with_one_full_head_and_no_leak_both_forms_are_the_same():
    term, usual = shared(heads=1, leak=False), interaction(heads=1, bias=False)
    usual.load_state_dict(term.state_dict())
    torch.testing.assert_close(term(field()), usual(field()), rtol=0, atol=0)


def test_without_values_the_printed_sum_is_minus_h_times_the_output_of_u():
    term, u = shared(heads=5), field()
    with torch.no_grad():
        term.qkv.weight[2 * 5 * WIDTH :] = 0
    torch.testing.assert_close(term(u), -5 * u @ term.out.weight.T, rtol=0, atol=1e-12)


def test_narrow_heads_with_a_shared_output_have_the_rank_of_one_head():
    u = field(1, 12)
    assert torch.linalg.matrix_rank(shared(head_width=2, leak=False)(u)[0]) == 2
    assert torch.linalg.matrix_rank(interaction(bias=False)(u)[0]) == WIDTH


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 0}, "heads must be a whole number of at least 1"),
        ({"head_width": 0, "leak": False}, "head_width must be a whole number from 1 to 4"),
        ({"head_width": WIDTH + 1, "leak": False}, "head_width must be a whole number from 1 to 4"),
        ({"head_width": 2}, "set leak=False"),
    ],
)
def test_a_shared_output_refuses_heads_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        SharedOutputInteraction(WIDTH, **options)
