import math

import pytest
import torch
from hypothesis import given
from scipy import stats
from systems import field, fields, padded
from torch.nn.functional import cosine_similarity, mse_loss

from pdelab import solve
from pdelab.metrics.similarity import CENTRES, cka, cosine, fidelity, inter_layer, mse, nmse, pearson, spearman

CORRELATIONS = {
    "cosine": cosine,
    "cosine of states": lambda u, v, mask=None, **options: cosine(u, v, mask, over="state", **options),
    "pearson": pearson,
    "spearman": spearman,
}
EACH = pytest.mark.parametrize("metric", CORRELATIONS.values(), ids=CORRELATIONS.keys())


def close(a, b, atol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), b, rtol=0, atol=atol)


def pair(*shape):
    """Two states that have something in common."""
    u = field(*shape, seed=1)
    return u, u + field(*shape, seed=2)


def rotation(width, seed=0):
    return torch.linalg.qr(field(1, width, width, seed=seed)[0])[0]


@EACH
@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_state_is_exactly_like_itself_and_exactly_unlike_its_negative(metric, centre, dtype):
    u = field(3, 6, dtype=dtype)
    assert metric(u, u.clone(), centre=centre) == 1
    assert metric(u, -u, centre=centre) == -1


@EACH
@pytest.mark.parametrize("centre", CENTRES)
def test_order_and_positive_scale_do_not_matter(metric, centre):
    u, v = pair(3, 6)
    want = metric(u, v, centre=centre)
    close(metric(v, u, centre=centre), want)
    close(metric(3 * u, 1e-9 * v, centre=centre), want)
    close(metric(1e-30 * u.float(), 1e30 * v.float(), centre=centre), want, atol=1e-6)


@EACH
@pytest.mark.parametrize("centre", CENTRES)
def test_independent_states_score_zero(metric, centre):
    u, v = field(40, 50, 20, seed=1), field(40, 50, 20, seed=2)
    assert abs(metric(u, v, centre=centre)) < 4 / math.sqrt(u.numel())


@EACH
def test_it_is_scipys_or_torchs(metric):
    u, v = pair(3, 6)
    flat = list(zip(u.flatten(1).numpy(), v.flatten(1).numpy(), strict=True))
    want = {
        "cosine": cosine_similarity(u, v, dim=-1).mean(),
        "cosine of states": cosine_similarity(u.flatten(1), v.flatten(1)).mean(),
        "pearson": sum(stats.pearsonr(a, b).statistic for a, b in flat) / 3,
        "spearman": sum(stats.spearmanr(a, b).statistic for a, b in flat) / 3,
    }
    (name,) = (name for name, f in CORRELATIONS.items() if f is metric)
    close(want[name], metric(u, v))


@EACH
def test_sequences_of_several_lengths_each_count_by_their_own_tokens(metric):
    u, v = ([field(1, n, seed=n + k) for n in (6, 4, 5)] for k in (0, 10))
    (wide_u, mask), (wide_v, _) = padded(u, (0, 2, 1)), padded(v, (0, 2, 1))
    alone = torch.stack([metric(a, b) for a, b in zip(u, v, strict=True)])
    weights = torch.tensor([6.0, 4.0, 5.0] if metric is cosine else [1.0, 1.0, 1.0], dtype=torch.float64)
    close(metric(wide_u, wide_v, mask), weights @ alone / weights.sum())


def test_ties_share_their_rank():
    u, v = (field(2, 8, seed=s).mul(2).round() for s in (1, 2))
    want = [stats.spearmanr(a, b).statistic for a, b in zip(u.flatten(1), v.flatten(1), strict=True)]
    close(sum(want) / 2, spearman(u, v))


def test_spearman_does_not_see_a_monotone_map():
    u, v = pair(3, 6)
    assert spearman(u.exp(), v**3) == spearman(u, v)
    assert spearman(u, u.exp()) == 1


def test_pearson_does_not_see_a_shift():
    u, v = pair(3, 6)
    close(pearson(u + 3, v - 5), pearson(u, v))


@EACH
def test_centring_removes_what_the_position_alone_says(metric):
    """A shared profile makes unrelated states look alike; without it they score as before it was added."""
    u, v, profile = field(30, 6, seed=1), field(30, 6, seed=2), 10 * field(1, 6, seed=3)
    assert metric(u + profile, v + profile) > 0.9
    close(metric(u + profile, v + profile, centre="position"), metric(u, v, centre="position"), atol=1e-10)
    offset = profile[:, :1]
    close(metric(u + offset, v + offset, centre="all"), metric(u, v, centre="all"), atol=1e-10)


@EACH
@pytest.mark.parametrize("ragged", [False, True])
def test_a_control_that_knows_only_the_position_scores_zero(metric, ragged):
    v, profile = field(7, 6, seed=1, dtype=torch.float32), field(1, 6, seed=2, dtype=torch.float32)
    u, mask = profile.expand(7, -1, -1), None
    if ragged:
        lengths, starts = (6, 4, 5, 6, 1, 2, 3), (1, 2, 0, 0, 3, 4, 2)
        v, mask = padded([row[None, :n] for row, n in zip(v, lengths, strict=True)], starts)
        u, _ = padded([profile[:, :n] for n in lengths], starts)
    assert metric(u, v, mask, centre="position") == 0
    assert metric(v, u, mask, centre="position") == 0


def test_a_place_that_only_one_sequence_has_is_left_out_of_the_centred_cosine():
    u, v = pair(3, 6)
    longer = [[w[:1], w[1:2, :4], w[2:, :4]] for w in (u, v)]
    (wide_u, mask), (wide_v, _) = (padded(w, (0, 2, 3)) for w in longer)
    close(cosine(u[:, :4], v[:, :4], centre="position"), cosine(wide_u, wide_v, mask, centre="position"))


@EACH
def test_a_zero_state_has_no_value(metric):
    u = field()
    assert metric(u, torch.zeros_like(u)).isnan()
    assert metric(torch.zeros_like(u), torch.zeros_like(u), centre="all").isnan()


@pytest.mark.parametrize("metric", [pearson, spearman])
def test_a_constant_state_has_no_correlation(metric):
    assert metric(field(), torch.full_like(field(), 0.1)).isnan()


@given(u=fields())
def test_errors_are_zero_for_equal_states_and_torchs_for_others(u):
    v = u.flip(1) + 1
    assert mse(u, u.clone()) == 0
    close(mse_loss(u, v), mse(u, v))


def test_the_error_of_the_mean_is_the_variance():
    v = field(3, 6)
    mean = v.mean(dim=(0, 1)).expand_as(v)
    close(1.0, nmse(mean, v))
    close(4.0, nmse(2 * mean - v, v))
    close(v.var(dim=(0, 1), correction=0).mean(), mse(mean, v))
    assert nmse(v, torch.ones_like(v)) == math.inf
    assert nmse(torch.ones_like(v), torch.ones_like(v)).isnan()


def gram_cka(x, y):
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) with the Gram matrices K = XXᵀ: the second method."""
    n = len(x)
    centring = torch.eye(n, dtype=x.dtype) - 1 / n
    k, l_ = (centring @ z @ z.T @ centring for z in (x, y))
    return (k * l_).sum() / ((k * k).sum() * (l_ * l_).sum()).sqrt()


def test_cka_is_the_one_of_gram_matrices_also_for_states_of_different_width():
    u, v = field(3, 6, 4, seed=1), field(3, 6, 7, seed=2)
    close(gram_cka(u.flatten(0, 1), v.flatten(0, 1)), cka(u, v))


def test_cka_sees_neither_rotation_nor_scale_nor_shift():
    u, v = pair(3, 6)
    close(cka(5 * u @ rotation(4) + 2, v @ rotation(4, 1)), cka(u, v))
    close(1.0, cka(u, -2 * u @ rotation(4)))
    close(cka(u, v), cka(1e-30 * u.float(), 1e30 * v.float()).double(), atol=1e-6)
    assert cka(u, u.clone()) == 1
    assert cka(u, u * torch.tensor([1.0, 1.0, 1.0, 9.0])) < 0.95  # it does see a scale of one feature
    assert cka(u, torch.ones_like(u)).isnan()


def test_cka_of_independent_states_is_small_with_many_samples_and_large_with_few():
    assert cka(field(50, 40, 4, seed=1), field(50, 40, 4, seed=2)) < 4 * 4 / 2000
    assert cka(field(1, 5, 500, seed=1), field(1, 5, 500, seed=2)) > 0.9


def test_fidelity_and_inter_layer_of_a_rotation_are_cosines_of_its_angle():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    run = solve(lambda u: u @ turn.T, field(2, 3, 2), steps=4, dt=0.5)
    angle = math.atan(0.5) * torch.arange(5, dtype=torch.float64)  # an Euler step turns by arctan Δt
    for over in ("token", "state"):
        close(torch.cos(angle), fidelity(run, over=over))
        close(torch.cos(angle[1]).expand(4), inter_layer(run, over=over))
    assert fidelity(run)[0] == 1
    close(mse(run.states[1], run.states[0]), fidelity(run, mse)[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cosine(field(), field(), over="batch"), "over must be one of"),
        (lambda: pearson(field(), field(), centre="mean"), "centre must be one of"),
        (lambda: spearman(field(1), field(1), centre="position"), "centre='position' needs at least two"),
        (lambda: fidelity(field()), "run must be a Trajectory"),
        (lambda: inter_layer(field()), "run must be a Trajectory"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
