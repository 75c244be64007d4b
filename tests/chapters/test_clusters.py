"""Clusters: the adaptive run against fixed steps, counting groups, the first token as leader, what is measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pdebook.chapters.clusters import attack, laws, measure
from pdebook.chapters.interaction import laws as interaction
from pdebook.evidence.adversary import ROUNDING, live
from pdebook.evidence.sphere import sphere_rate
from pdelab.formulas import circle_rate
from pdelab.integrators import flow
from pdelab.seeds import normal


@pytest.mark.parametrize("causal", [False, True])
def test_adaptive_steps_agree_with_short_fixed_ones(causal):
    theta = normal(0, "angles", size=(6,))
    found = laws.follow_angles(theta, 3.0, [0.0, 2.0], causal=causal)
    fixed = flow(lambda t: circle_rate(t, 3.0, causal=causal), theta, T=2.0, steps=400)
    np.testing.assert_allclose(found[0], theta)
    np.testing.assert_allclose(found[1], fixed, atol=1e-6)


def test_the_mean_cosine_is_that_of_all_pairs():
    theta = normal(1, "angles", size=(5,)).numpy()
    pairs = [math.cos(a - b) for i, a in enumerate(theta) for j, b in enumerate(theta) if i != j]
    assert laws.mean_cosine(theta) == pytest.approx(np.mean(pairs))


def test_groups_are_counted_around_the_circle():
    assert laws.groups(np.array([-0.05, 0.05, 2 * math.pi + 0.1])) == 1
    assert laws.groups(np.array([0.0, 0.1, 2.0, 2.1, -2.0])) == 3
    assert laws.groups(np.linspace(0, 2 * math.pi, 100, endpoint=False)) == 1


def test_the_masked_flow_is_tangent_and_keeps_the_first_token():
    u = normalize(normal(0, "sphere", size=(7, 4)), dim=-1)
    rate = sphere_rate(u, 2.0, causal=True)
    assert (rate[0] == 0).all()
    assert (rate * u).sum(dim=-1).abs().max() < 1e-15
    later = u.clone()
    later[4:] = normalize(normal(1, "later", size=(3, 4)), dim=-1)
    torch.testing.assert_close(sphere_rate(later, 2.0, causal=True)[:4], rate[:4])


def test_two_tokens_behind_a_mask_close_up_at_half_the_speed():
    u = interaction.equal_angles(2, 0.3)
    masked = sphere_rate(u, 5.0, causal=True)
    closing = masked[0] @ u[1] + u[0] @ masked[1]
    assert closing.item() == pytest.approx(interaction.angle_rate(u, 5.0).item() / 2, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 3.0])
@pytest.mark.parametrize("n", [2, 8])
def test_every_token_comes_to_the_first_within_the_bound(beta, n):
    u = normalize(normal(n, "tokens", size=(n, 3)), dim=-1)
    u = u * (u @ u[0]).sign()[:, None]  # on the first token's side
    start = (u @ u[0]).min().item()
    for T in (1.0, 5.0, 40.0):
        end = flow(lambda v: sphere_rate(v, beta, causal=True), u, T=T, steps=int(20 * T))
        assert (end @ u[0]).min() >= laws.lead_bound(start, beta, n, [T])[0] - 1e-6


def test_two_tokens_behind_a_mask_follow_the_bound_exactly_and_wait_twice_as_long():
    wait = 2 * interaction.waiting_time(3.0, 2, 0.8)
    assert laws.lead_bound(0.0, 3.0, 2, [wait])[0] == pytest.approx(0.8, rel=1e-6)


def test_the_bound_is_attained_where_all_others_stand_together():
    u = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8]], dtype=torch.float64)
    rate = (sphere_rate(u, 2.0, causal=True) @ u[0])[-1].item()
    assert rate == pytest.approx((1 - 0.36) * laws.lead_rate(0.6, 2.0, 4).item(), rel=1e-12)


def test_all_statements_withstand_a_short_search():
    worst = live(attack.run, batch=8, steps=10, seed=7)
    assert 0.9 < max(worst.values()) <= 1 + ROUNDING


@pytest.mark.parametrize("name", attack.run.statements)
def test_the_false_neighbours_fall(name):
    statement = replace(attack.run.statements[name], batch=24, each=False)
    for neighbour, change in statement.neighbours.items():
        assert statement.breaks(7, **change) > 0, neighbour


def test_the_questions_have_the_answers_they_ask_for():
    x = torch.tensor([[3, 1, 4, 1]])
    assert measure.first(x).tolist() == [[3, 3, 3, 3]]
    assert measure.before(x).tolist() == [[3, 3, 1, 4]]


def test_likeness_begins_with_the_embedding_and_strangers_share_positions_only():
    found = measure.likeness(measure.network(0), 0)
    assert {len(values) for values in found.values()} == {measure.LAYERS + 1}
    assert all(abs(values[0]) < 0.2 for values in found.values())
