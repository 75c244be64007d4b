"""What attention does to the spread of the tokens, and the adversary against it. (P2 eq 5)"""

import math

import pytest
import torch

from pdebook.chapters.interaction import attack as attack_interaction
from pdebook.chapters.interaction import clustering, kernels
from pdebook.evidence.adversary import ROUNDING, SHRUNK, attention
from pdelab.seeds import normal
from pdelab.terms.interaction import Interaction

# Contraction


def test_the_diameter_is_the_largest_distance():
    u = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]], dtype=torch.float64)
    assert clustering.diameter(u).item() == pytest.approx(5)


def test_dobrushin_is_zero_for_equal_rows_and_one_for_rows_that_share_nothing():
    assert clustering.dobrushin(torch.full((3, 3), 1 / 3)).item() == pytest.approx(0, abs=1e-7)
    assert clustering.dobrushin(torch.eye(3)).item() == 1


def test_two_opposite_tokens_meet_the_contraction_bound_exactly():
    for delta in (0.3, 2.0, 5.0):
        u = torch.tensor([[[delta / 2], [-delta / 2]]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        allowed = clustering.factor(clustering.diameter(u), one) * delta
        assert clustering.diameter(attention(u, one, one)).item() == pytest.approx(allowed.item(), rel=1e-12)


@pytest.mark.parametrize("heads", [1, 4])
def test_the_bounds_of_several_heads_add_up_to_a_bound(heads):
    term = Interaction(8, heads, bias=False).double().requires_grad_(False)
    for n, weight in enumerate(term.parameters()):
        weight.copy_(normal(0, "weight", n, size=tuple(weight.shape)))
    for size in (0.01, 0.3, 3.0):
        u = size * normal(0, "u", size=(1, 6, 8))
        delta = clustering.diameter(u).item()
        assert clustering.diameter(term(u)).item() <= clustering.heads_factor(term, delta) * delta


def test_the_bound_of_one_head_is_that_of_its_score_and_value_matrices():
    term = Interaction(3, bias=False).double().requires_grad_(False)
    query, key, value = term.qkv.weight.chunk(3)
    A, V = query.T @ key / math.sqrt(3), term.out.weight @ value
    wanted = torch.linalg.matrix_norm(V, 2) * clustering.factor(torch.tensor(1.7, dtype=torch.float64), A)
    assert clustering.heads_factor(term, 1.7) == pytest.approx(wanted.item(), rel=1e-12)
    u = normal(0, "u", size=(1, 5, 3))
    torch.testing.assert_close(term(u), attention(u, A, V), rtol=0, atol=1e-12)  # these are its A and V


def test_the_diameter_falls_with_the_third_power():
    """δ⁺ ≤ ‖A‖δ³/4, so log δ at least triples from layer to layer once δ is small."""
    A, _ = kernels.matrices(0)
    V = torch.eye(2, dtype=torch.float64)
    found = clustering.diameters(0.5 * normal(0, "u", size=(6, 2)), A, V, 2)
    assert found[1] <= found[0] ** 3 / 4
    assert found[2] <= found[1] ** 3 / 4


def test_two_leaders_multiply_the_spread_by_the_root_of_half_the_tokens_and_keep_the_diameter():
    u, A, V = clustering.two_leaders(32)
    moved = attention(u, A, V)
    assert (clustering.spread(moved) / clustering.spread(u)).item() == pytest.approx(math.sqrt(16), rel=1e-4)
    assert clustering.diameter(moved) <= clustering.diameter(u)


def test_spread_and_share_add_up():
    """‖u‖² = N|μ|² + Nσ²."""
    u = normal(0, "u", size=(7, 3))
    assert (clustering.share(u) ** 2 + 7 * clustering.spread(u) ** 2 / u.norm() ** 2).item() == pytest.approx(1)


def test_causal_attention_draws_every_token_to_the_first_within_the_bound():
    u = normal(0, "u", size=(1, 6, 3))
    A, _ = kernels.matrices(0, 3)
    for _ in range(20):
        moved = kernels.weights(u, A, causal=True) @ u
        assert torch.equal(moved[:, 0], u[:, 0])
        distance = (u - u[:, :1]).norm(dim=-1).max()
        assert (moved - moved[:, :1]).norm(dim=-1).max() <= clustering.causal_factor(u, A) * distance * (1 + 1e-12)
        u = moved


# Stacks


def test_a_control_that_attends_to_itself_does_not_mix_tokens():
    one, two = (clustering.states(0, mixing=False, layers=2)[-1] for _ in range(2))
    assert torch.equal(one, two)
    query = clustering.random_layer(0, 0)[0]
    u = clustering.states(0, layers=1)[0]
    alone = torch.cat([query(u[:, i : i + 1]) for i in range(clustering.TOKENS)], dim=1)
    torch.testing.assert_close(clustering.states(0, mixing=False, layers=1)[-1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parts", clustering.STACKS.values(), ids=clustering.STACKS)
def test_layers_do_what_their_formula_says(parts):
    u, after = clustering.states(3, layers=1, **parts)
    attend, react = clustering.random_layer(3, 0)
    norm = torch.nn.LayerNorm(clustering.WIDTH, elementwise_affine=False) if parts.get("norm") else lambda v: v
    keep = float(parts.get("skip", False))
    wanted = keep * u + attend(norm(u))
    if parts.get("ffn"):
        wanted = keep * wanted + react(norm(wanted))
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-12)


def test_attention_without_skip_collapses_and_with_skip_it_does_not_so_soon():
    alone, skip = (clustering.nonuniformities(7, **clustering.STACKS[k]) for k in ("attention alone", "with skip"))
    assert alone[6] < 1e-12
    assert skip[6] > 0.1


# The sphere


@pytest.mark.parametrize(("n", "gamma"), [(2, -1.0), (3, -0.5), (5, 0.0), (5, 0.7), (4, 1.0)])
def test_equal_angles_have_the_gram_matrix_asked_for(n, gamma):
    u = clustering.equal_angles(n, gamma)
    wanted = (1 - gamma) * torch.eye(n, dtype=torch.float64) + gamma
    torch.testing.assert_close(u @ u.T, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", [-0.6, 1.1])
def test_angles_that_do_not_exist_are_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma must lie between"):
        clustering.equal_angles(3, gamma)


def test_the_flow_on_the_sphere_is_tangent():
    u = torch.nn.functional.normalize(normal(0, "u", size=(6, 3)), dim=-1)
    rate = clustering.sphere_rate(u, 2.0)
    assert (rate * u).sum(dim=-1).abs().max() < 1e-14


def test_lengths_stay_one_also_where_tokens_repel():
    u = clustering.follow_tokens(clustering.equal_angles(3, 0.3), 1.0, [0.0, 6.0, 12.0], 240, -1.0)[-1]
    assert u.norm(dim=-1).numpy() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("n", "beta", "gamma"), [(2, 1.0, 0.1), (5, 4.0, 0.0), (8, 0.5, -0.1)])
def test_tokens_with_equal_angles_follow_the_law_and_keep_equal_angles(n, beta, gamma, sign):
    times = [0.0, 1.0, 2.0, 3.0]
    states = clustering.follow_tokens(clustering.equal_angles(n, gamma), beta, times, 50, sign)
    law = clustering.follow_law(gamma, beta, n, times, 50, sign)
    for u, wanted in zip(states, law, strict=True):
        others = (u @ u.T)[~torch.eye(n, dtype=torch.bool)]
        assert others.numpy() == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_rate_of_the_angle_follows_the_law_where_a_token_sees_almost_only_itself(n):
    """At β = 150 the weight of the others is as small as e⁻³⁰⁰, and the rate must still be right in relative terms."""
    gamma = torch.linspace(-0.9 / (n - 1), 0.9, 12, dtype=torch.float64)
    found = clustering.angle_rate(clustering.equal_angles(n, gamma), 150.0)
    # e^{βγ} magnifies a rounding of γ by β: 150 · 2⁻⁵² and some operations
    torch.testing.assert_close(found, clustering.angle_law(gamma, 150.0, n), rtol=1e-12 * n, atol=0)


@pytest.mark.parametrize(("beta", "n"), [(0.0, 3), (2.0, 2), (4.0, 8)])
def test_tokens_reach_the_cosine_after_the_waiting_time(beta, n):
    wait = clustering.waiting_time(beta, n, 0.7)
    assert clustering.follow_law(0.0, beta, n, [0.0, wait], 400)[-1] == pytest.approx(0.7, abs=1e-7)


def test_two_tokens_without_scores_wait_as_the_exact_solution_says():
    """β = 0, n = 2: γ' = 1 − γ², so γ = tanh t."""
    assert clustering.waiting_time(0.0, 2, 0.5) == pytest.approx(math.atanh(0.5), rel=1e-9)


def test_a_long_wait_is_e_to_the_beta_over_two_beta_for_two_tokens():
    """½e^β ∫e^{−βγ}(1 + γ² + …)dγ = e^β/2β · (1 + 2/β² + …)."""
    for beta in (12.0, 24.0):
        share = clustering.waiting_time(beta, 2) * 2 * beta / math.exp(beta)
        assert share == pytest.approx(1 + 2 / beta**2, abs=2 * 24 / beta**4)


def test_angles_on_the_circle_are_followed_past_a_full_turn():
    turns = torch.linspace(0, 9, 30, dtype=torch.float64)
    found = clustering.angles_of([clustering.on_circle(t.reshape(1)) for t in turns])
    torch.testing.assert_close(found[:, 0], turns, rtol=0, atol=1e-12)


# The adversary


@pytest.mark.parametrize("kind", attack_interaction.SPREAD)
def test_bounds_on_the_spread_withstand_the_attack_and_smaller_ones_do_not(kind):
    steps = 20 if kind == "flow" else 60  # each is an integration
    worst = attack_interaction.attack_spread(kind, 7, batch=16, steps=steps).max()
    assert SHRUNK < worst <= 1 + ROUNDING


@pytest.mark.parametrize("attack", [attack_interaction.attack_midpoint, attack_interaction.attack_sample])
def test_bounds_on_the_quadrature_withstand_the_attack_and_smaller_ones_do_not(attack):
    worst = attack(7, batch=16, steps=80).max()
    assert SHRUNK < worst <= 1 + ROUNDING


def test_the_exact_mean_square_over_samples_is_that_of_many_draws():
    u, q = normal(0, "u", size=(1, 2, 2)), normal(0, "q", size=(1, 1, 2))
    A, V = (x.unsqueeze(0) for x in kernels.matrices(0))
    odds, n = torch.tensor([0.4], dtype=torch.float64), 4
    ratio = attack_interaction.sample_ratio(u, odds, q, A, V, n)
    heads = torch.rand(40000, n, generator=torch.Generator().manual_seed(0)) < odds.sigmoid()
    drawn = torch.where(heads.unsqueeze(-1), u[0, 0], u[0, 1])  # (draw, token, feature)
    mass = torch.stack([odds.sigmoid(), 1 - odds.sigmoid()], dim=-1)
    exact = kernels.read(q[0], u[0], A[0], V[0], mass[0])
    rms = (kernels.read(q[0], drawn, A[0], V[0]) - exact).square().sum(dim=-1).mean().sqrt()
    R = max(u.norm(dim=-1).max(), q.norm())
    assert (rms / kernels.sample_bound(n, A, V, R)).item() == pytest.approx(ratio.item(), rel=0.02)


def test_a_search_over_layers_counts_only_starts_of_which_the_theorem_speaks():
    """Two tokens just beyond the edge q = 1 fly apart; that is no counterexample."""
    one, v = torch.ones(1, attack_interaction.LAYERS, 1, 1, dtype=torch.float64), torch.tensor([1.5]).double()
    edge = math.sqrt(4 * math.atanh(1 / 1.5))
    found = {}
    for share in (0.9999, 1.0001):
        pair = torch.tensor([[[0.5], [-0.5]]], dtype=torch.float64) * share * edge
        found[share] = attack_interaction.layers_ratio(pair, one, one, torch.zeros(1).double(), v.log()).item()
    assert 0.99 < found[0.9999] <= 1
    assert found[1.0001] == 0


def test_the_law_of_the_angle_stands_and_wrong_laws_fall():
    assert attack_interaction.attack_angles(7, batch=16).max() <= 1 + ROUNDING
    for wrong in attack_interaction.WRONG:
        assert (attack_interaction.attack_angles(7, batch=16, law=wrong) > 1.01).float().mean() > 0.9
