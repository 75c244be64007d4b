"""What every metric of states must do: ignore padding, take any dtype and device, refuse what is no state."""

import math
from functools import partial

import pytest
import torch
from systems import field, padded

from pdelab import Status, solve
from pdelab.metrics import similarity, spectrum, stability
from pdelab.metrics.base import norm, per_layer

PAIRS = {
    "mse": similarity.mse,
    "nmse": similarity.nmse,
    "cka": similarity.cka,
    "spectral similarity": spectrum.spectral_similarity,
    "spectral similarity, mean": partial(spectrum.spectral_similarity, over="mean"),
}
for centre in similarity.CENTRES:
    PAIRS |= {
        f"cosine, {centre}": partial(similarity.cosine, centre=centre),
        f"cosine of states, {centre}": partial(similarity.cosine, centre=centre, over="state"),
        f"pearson, {centre}": partial(similarity.pearson, centre=centre),
        f"spearman, {centre}": partial(similarity.spearman, centre=centre),
    }
SINGLES = {
    f.__name__: f
    for f in (
        *(spectrum.power, spectrum.amplitude, spectrum.spectrum, spectrum.cumulative_energy),
        *(stability.energy, stability.mean_energy, stability.fluctuation, stability.nonuniformity),
    )
}
REDUCIBLE = {
    name: f
    for name, f in (
        PAIRS | {name: lambda u, v, mask=None, f=f, **how: f(u, mask, **how) for name, f in SINGLES.items()}
    ).items()
    if name.split(",")[0] not in ("nmse", "cka", "power", "amplitude", "spectrum", "cumulative_energy")
    and "spectral" not in name
}
PAIRS |= {f"median {name}": partial(f, reduce="median") for name, f in PAIRS.items() if name in REDUCIBLE}
METRICS = PAIRS | {name: lambda u, v, mask=None, f=f: f(u, mask) for name, f in SINGLES.items()}
SPECTRAL = [f for name, f in METRICS.items() if "spectr" in name or name in ("power", "amplitude", "cumulative_energy")]
EACH = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
PAIR = pytest.mark.parametrize("metric", PAIRS.values(), ids=PAIRS.keys())
SINGLE = pytest.mark.parametrize("metric", SINGLES.values(), ids=SINGLES.keys())


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@EACH
def test_padding_changes_nothing(metric):
    u, v = field(3, 6, seed=1), field(3, 6, seed=2)
    (wide_u, mask), (wide_v, _) = (padded(w.split(1), (0, 3, 1), 9) for w in (u, v))
    close(metric(wide_u, wide_v, mask), metric(u, v))


@EACH
def test_what_padded_places_hold_and_where_they_are_changes_nothing(metric):
    sequences = [[field(1, n, seed=n + k) for n in (6, 4, 5, 4)] for k in (0, 10)]
    one, other = ((0, 2, 1, 0), 7, math.nan), ((3, 0, 2, 4), 10, 1e6)
    values = []
    for starts, tokens, fill in (one, other):
        (u, mask), (v, _) = (padded(s, starts, tokens, fill) for s in sequences)
        values.append(metric(u, v, mask))
    assert values[0].isfinite().all()
    close(*values)


@pytest.mark.parametrize("name", METRICS)
def test_half_precision_is_raised_to_float32(name):
    metric = METRICS[name]
    u, v = (field(3, 300, seed=s, dtype=torch.bfloat16) for s in (1, 2))
    value = metric(u, v)
    assert value.dtype == torch.float32
    # a mean that is taken off orders equal entries by rounding. Where two neighbouring ranks of n are swapped, Σd²
    # moves by 2n at most and 1 − 6Σd²/(n³ − n) by 12/n², here 8e-6: room for a dozen
    swaps = 12 if name.removeprefix("median ") in ("spearman, all", "spearman, position") else 0
    atol = 1e-5 + swaps * 12 / u[0].numel() ** 2
    torch.testing.assert_close(value, metric(u.double(), v.double()).float(), rtol=1e-4, atol=atol)


@EACH
def test_it_runs_on_the_meta_device_and_keeps_the_dtype(metric):
    u, v = field(3, 6).to("meta"), field(3, 6).to("meta")
    assert metric(u, v).is_meta
    assert metric(u, v).dtype == torch.float64


@EACH
def test_with_a_mask_too_unless_it_must_know_the_lengths(metric):
    u, mask = field(3, 6).to("meta"), torch.ones(3, 6, dtype=torch.bool, device="meta")
    if metric in SPECTRAL:
        with pytest.raises(ValueError, match="mask must hold data"):
            metric(u, u, mask)
    else:
        assert metric(u, u, mask).is_meta


@EACH
@pytest.mark.parametrize(
    ("u", "mask", "message"),
    [
        (torch.ones(2, 3), None, "u must have shape"),
        (torch.full((2, 3, 4), math.nan), None, "u holds NaN"),
        (torch.ones(2, 3, 4, dtype=torch.int64), None, "u must hold floating-point"),
        (torch.ones(2, 3, 4), torch.ones(2, 4, dtype=torch.bool), "mask must be a bool tensor"),
        ([1.0], None, "u must be a torch.Tensor"),
    ],
)
def test_what_is_no_state_is_refused(metric, u, mask, message):
    with pytest.raises(ValueError, match=message):
        metric(u, u, mask)


@pytest.mark.parametrize("name", REDUCIBLE)
def test_the_values_that_are_not_reduced_have_the_mean_and_the_median_of_the_metric(name):
    metric = REDUCIBLE[name]
    (u, mask), (v, _) = (padded([field(1, n, seed=n + k) for n in (6, 4, 5)], (0, 2, 1), 7) for k in (0, 10))
    values = metric(u, v, mask, reduce="none")
    assert values.shape in {(3,), (3, 7)}
    by_example = name in ("energy", "fluctuation")  # examples count alike there, in the others tokens do
    mean = values.nanmean(dim=1).mean() if by_example else values.nanmean()
    close(metric(u, v, mask), mean)
    close(metric(u, v, mask, reduce="median"), values[~values.isnan()].quantile(0.5))
    if values.ndim == 2 and "position" not in name:
        assert (values.isnan() == ~mask).all()


# where a mean is subtracted, it is common to the examples
@pytest.mark.parametrize("name", [n for n in REDUCIBLE if not n.endswith((", all", ", position"))])
def test_the_values_of_each_example_are_those_of_the_example_alone(name):
    metric, u, v = REDUCIBLE[name], field(3, 5, seed=1), field(3, 5, seed=2)
    values = metric(u, v, reduce="none")
    close(values, torch.cat([metric(u[n : n + 1], v[n : n + 1], reduce="none") for n in range(3)]))
    close(values.reshape(3, -1).mean(dim=1), torch.stack([metric(u[n : n + 1], v[n : n + 1]) for n in range(3)]))


def test_one_giant_token_moves_the_mean_as_far_as_it_is_long_and_not_the_median():
    u = torch.ones(2, 5, 1, dtype=torch.float64)
    u[0, 0] = 100
    assert stability.energy(u) == pytest.approx((1e4 / 2 + 9 / 2) / 10)
    assert stability.energy(u, reduce="median") == 0.5
    run = solve(lambda u: 0 * u, u, steps=2, dt=1.0)
    assert per_layer(stability.energy, run, reduce="median").tolist() == [0.5] * 3
    assert per_layer(stability.energy, run, reduce="none").shape == (3, 2, 5)


def test_the_median_of_what_does_not_exist_is_nan_and_an_unknown_reduction_is_refused():
    u = torch.zeros(1, 3, 2)
    assert similarity.cosine(u, field(1, 3, 2, dtype=torch.float32), reduce="median").isnan()
    with pytest.raises(ValueError, match="reduce must be one of mean, median, none"):
        stability.energy(u, reduce="max")


@PAIR
def test_states_of_different_shape_are_refused(metric):
    with pytest.raises(ValueError, match="v must have the shape of u"):
        metric(field(2, 5), field(2, 4))


@PAIR
def test_two_runs_are_compared_layer_by_layer(metric):
    one, other = (solve(f, field(3, 6, seed=s), steps=3, dt=0.1) for s, f in ((1, torch.sin), (2, torch.cos)))
    want = torch.stack([metric(u, v) for u, v in zip(one.states, other.states, strict=True)])
    close(per_layer(metric, one, other), want, atol=0)
    close(per_layer(metric, one, other.final)[-1], want[-1], atol=0)


@SINGLE
def test_a_run_is_measured_at_every_state_with_its_mask(metric):
    u, mask = padded([field(1, n, seed=n) for n in (6, 4)], (0, 1), 7)
    run = solve(lambda u, t, mask: -u, u, steps=3, dt=0.1, mask=mask)
    values = per_layer(metric, run)
    assert len(values) == 4
    close(values[0], metric(u, mask))


def test_a_diverged_run_gives_the_values_it_has_and_gradients_are_not_recorded():
    run = solve(lambda u: u**3, torch.full((1, 1, 1), 1e60, dtype=torch.float64, requires_grad=True), steps=9, dt=1)
    values = per_layer(similarity.mse, run, run)
    assert run.status == Status.DIVERGED
    assert values.shape == (len(run.states),)
    assert not values.requires_grad


def test_options_reach_the_metric():
    run = solve(torch.sin, field(3, 6), steps=1, dt=0.1)
    value = per_layer(spectrum.spectrum, run, bins=2)
    assert value.shape == (2, 2)


def test_runs_that_do_not_fit_are_refused():
    u, mask = padded()
    run = solve(lambda u: -u, field(), steps=3, dt=0.1)
    shorter = solve(lambda u: -u, field(), steps=1, dt=0.1)
    masked = solve(lambda u, t, mask: -u, u, steps=3, dt=0.1, mask=mask)
    kept = solve(lambda u: -u, field(), steps=3, dt=0.1, keep=lambda u: 0.0)
    for other, options, message in (
        (shorter, {}, "4 in run, 2 in other"),
        (masked, {}, "same mask"),
        (kept, {}, "other must hold states"),
        (3, {}, "other must be a Trajectory"),
        (None, {"of": "attention"}, "run holds no attention"),
        (None, {"of": "maps"}, "of must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            per_layer(similarity.mse, run, other, **options)
    with pytest.raises(ValueError, match="run must be a Trajectory"):
        per_layer(similarity.mse, field())


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30, math.inf])
def test_the_norm_survives_numbers_whose_squares_do_not(size):
    assert norm(torch.tensor([3.0, 4.0]) * size).item() == pytest.approx(5 * size, rel=1e-6)
