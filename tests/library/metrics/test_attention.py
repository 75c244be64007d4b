import math
from functools import partial

import pytest
import torch
from scipy import stats
from systems import WIDTH, field, padded, seeded
from torch.nn.functional import cosine_similarity, kl_div

from pdelab import Interaction, solve
from pdelab.metrics.attention import cosine, entropy, kl, uniform
from pdelab.metrics.base import per_layer

METRICS = {
    f"{f.__name__}, {heads}": partial(f, heads=heads) for f in (cosine, kl, entropy) for heads in ("each", "mean")
}
PAIRS = {name: f for name, f in METRICS.items() if f.func in (cosine, kl)}
EACH = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
PAIR = pytest.mark.parametrize("metric", PAIRS.values(), ids=PAIRS.keys())


def value(metric, P, Q, mask=None):
    return metric(P, Q, mask) if metric.func in (cosine, kl) else metric(P, mask)


def maps(batch=2, heads=3, tokens=5, seed=0, dtype=torch.float64):
    scores = torch.randn(batch, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return scores.softmax(dim=-1)


def embed(P, starts, tokens, fill=math.nan):
    """Each example's maps in a wider one, `fill` in the rows and columns of padding; and the mask."""
    wide, n = P.new_full((*P.shape[:2], tokens, tokens), fill), P.shape[-1]
    mask = torch.zeros(len(P), tokens, dtype=torch.bool)
    for row, start in enumerate(starts):
        wide[row, :, start : start + n, start : start + n] = P[row]
        mask[row, start : start + n] = True
    return wide, mask


def close(a, b, atol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), b, rtol=0, atol=atol)


@EACH
@pytest.mark.parametrize("fill", [math.nan, 7.0])
def test_padding_changes_nothing(metric, fill):
    P, Q = maps(seed=1), maps(seed=2)
    (wide, mask), (other, _) = (embed(x, (1, 3), 9, fill) for x in (P, Q))
    close(value(metric, P, Q), value(metric, wide, other, mask))


@EACH
def test_each_sequence_counts_by_its_own_queries(metric):
    P, Q = ([maps(1, tokens=n, seed=n + k) for n in (5, 2)] for k in (0, 10))
    wide, other = (torch.cat([embed(one, (1,), 7)[0] for one in x]) for x in (P, Q))
    mask = torch.cat([embed(one, (1,), 7)[1] for one in P])
    alone = [value(metric, a, b) for a, b in zip(P, Q, strict=True)]
    close((5 * alone[0] + 2 * alone[1]) / 7, value(metric, wide, other, mask))


@EACH
def test_it_takes_half_precision_and_the_meta_device(metric):
    P, Q = (maps(tokens=200, seed=s) for s in (1, 2))
    low = value(metric, P.bfloat16(), Q.bfloat16())
    assert low.dtype == torch.float32
    torch.testing.assert_close(low.double(), value(metric, P, Q), rtol=2e-2, atol=1e-3)
    assert value(metric, P.to("meta"), Q.to("meta"), torch.ones(2, 200, dtype=torch.bool, device="meta")).is_meta


def test_it_is_torchs_or_scipys():
    P, Q = maps(seed=1), maps(seed=2)
    for average, heads in ((lambda x: x, "each"), (lambda x: x.mean(1, keepdim=True), "mean")):
        p, q = average(P), average(Q)
        close(cosine_similarity(p, q, dim=-1).mean(), cosine(P, Q, heads=heads))
        close(kl_div(q.log(), p, reduction="sum") / p[..., 0].numel(), kl(P, Q, heads=heads))
        close(stats.entropy(p.numpy(), axis=-1).mean(), entropy(P, heads=heads))


@PAIR
def test_a_map_is_exactly_like_itself(metric):
    assert metric(maps(), maps()) == (1 if metric.func is cosine else 0)


def test_heads_in_another_order_are_the_same_in_the_mean_only():
    P = maps()
    assert cosine(P, P.flip(1), heads="mean") == pytest.approx(1, abs=1e-15)
    assert cosine(P, P.flip(1), heads="each") < 0.99
    assert kl(P, maps(heads=1), heads="mean").isfinite()  # averages also of different numbers of heads


@pytest.mark.parametrize("causal", [False, True])
def test_the_uniform_map_has_the_largest_entropy(causal):
    P, mask = embed(maps(), (1, 3), 9)
    Q = uniform(P, mask, causal=causal)
    close(mask[:, None].double().expand(-1, 3, -1), Q.sum(-1))
    want = sum(math.log(n) for n in range(1, 6)) / 5 if causal else math.log(5)
    close(want, entropy(Q, mask))
    assert Q.shape == P.shape


@pytest.mark.parametrize("heads", ["each", "mean"])
def test_distance_to_uniform_is_log_n_minus_entropy(heads):
    P = maps()
    close(math.log(5) - entropy(P, heads=heads), kl(P, uniform(P), heads=heads))


def test_a_row_that_sees_one_key_has_no_entropy_and_is_far_from_all_others():
    one = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4)
    assert entropy(one) == 0
    assert kl(one, one.roll(1, dims=-1)) == math.inf
    assert kl(one, one.clone()) == 0
    assert cosine(one, one.roll(1, dims=-1)) == 0
    assert kl(maps(), uniform(maps(), causal=True)) == math.inf  # it sees what a causal map cannot


def test_the_maps_of_a_run_are_measured_layer_by_layer():
    u, mask = padded([field(1, n, seed=n) for n in (6, 4)], (0, 2))
    term = seeded(lambda: Interaction(WIDTH, 2, causal=True))
    run = solve(term, u, steps=3, dt=0.1, mask=mask, attention=True)
    close(torch.stack([entropy(P, mask) for P in run.attention]), per_layer(entropy, run, of="attention"))
    assert (per_layer(kl, run, run, of="attention") == 0).all()
    assert not per_layer(entropy, run, of="attention").requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy(2 * maps()), "P must have rows that sum to 1"),
        (lambda: entropy(-maps()), "P must be a softmax"),
        (lambda: entropy(maps() * math.nan), "P must be a softmax"),
        (lambda: kl(maps(), 2 * maps()), "Q must have rows that sum to 1"),
        (lambda: kl(maps(), maps(heads=2)), "Q must have the shape of P"),
        (lambda: entropy(maps()[0]), "P must have shape"),
        (lambda: entropy(maps()[:, :, :3]), "P must have shape"),
        (lambda: uniform(torch.ones(1, 1, 2, 2, dtype=torch.int64)), "P must hold floating-point"),
        (lambda: entropy(maps(), torch.ones(2, 4, dtype=torch.bool)), "mask must be a bool tensor"),
        (lambda: entropy(maps(), torch.arange(5).expand(2, 5) < 3), "sum to 1 over the real keys"),
        (lambda: cosine(maps(), maps(), heads="all"), "heads must be one of"),
    ],
)
def test_what_is_no_map_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_values_of_each_row_have_the_mean_and_the_median_of_the_metric():
    P = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [3], [2]])
    P = P.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(dim=-1)
    for metric in (entropy, partial(kl, P.flip(1)), partial(cosine, P.flip(1))):
        values = metric(P, mask=mask, reduce="none")
        assert values.shape == (3, 2, 5)
        assert (values.isnan() == ~mask.unsqueeze(1)).all()
        torch.testing.assert_close(values.nanmean(), metric(P, mask=mask))
        torch.testing.assert_close(values[~values.isnan()].quantile(0.5), metric(P, mask=mask, reduce="median"))
