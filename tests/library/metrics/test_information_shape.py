import math

import pytest
import torch
from scipy.spatial.distance import pdist

from pdelab.metrics.information import shape
from pdelab.metrics.information.shape import (
    DIMENSIONS,
    DIVERSITIES,
    diversity,
    effective_dimension,
    magnitude,
    sparsity,
)
from pdelab.seeds import normal

ALL = {
    **{kind: lambda t, kind=kind: effective_dimension(t, kind) for kind in DIMENSIONS},
    **{kind: lambda t, kind=kind: diversity(t, kind) for kind in DIVERSITIES},
    "sparsity": lambda t: sparsity(t, 0.3),
    "relative sparsity": lambda t: sparsity(t, 0.3, relative=True),
    "magnitude": magnitude,
}
EACH = pytest.mark.parametrize("metric", ALL.values(), ids=ALL.keys())
DEGREE = {"variance": 2, "distance": 1, "magnitude": 1}  # what a factor c does: c to this power
UNROTATED = (*DIMENSIONS, *DIVERSITIES)
UNSHIFTED = (*DIMENSIONS, "variance", "distance")


def close(a, b, rtol=1e-10):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=rtol, atol=0)


def samples(n=30, width=5, seed=0):
    return normal(seed, "samples", size=(n, width)) * torch.arange(1, width + 1) + 1


def spectrum(*eigenvalues, n=40):
    """Samples whose covariance has these eigenvalues, turned at random and far from the origin."""
    d = len(eigenvalues)
    z = normal(0, "spectrum", size=(n, d))
    z = torch.linalg.qr(z - z.mean(dim=0))[0]  # orthonormal columns of mean 0
    turn = torch.linalg.qr(normal(0, "turn", size=(d, d)))[0]
    return z * torch.tensor(eigenvalues, dtype=z.dtype).sqrt() @ turn + 10


@pytest.mark.parametrize("kind", DIMENSIONS)
@pytest.mark.parametrize("k", [1, 3, 6])
def test_k_equal_eigenvalues_are_k_dimensions(kind, k):
    close(effective_dimension(spectrum(*[2.0] * k, *[0.0] * (6 - k)), kind), k)


def test_dimensions_of_a_known_spectrum():
    t = spectrum(4.0, 2.0, 1.0, 1.0)
    close(effective_dimension(t), 64 / 22)
    close(effective_dimension(t, "entropy"), 2 ** (0.5 * 1 + 0.25 * 2 + 2 * 0.125 * 3))
    assert effective_dimension(t) < effective_dimension(t, "entropy")


@pytest.mark.parametrize(("n", "d"), [(5, 3), (20, 20), (10, 60)])
def test_the_participation_ratio_of_white_samples_falls_short_as_derived(n, d):
    """With S the scatter matrix, Wishart of m = n − 1 degrees: E tr S² = m d (m + d + 1), E (tr S)² = m d (m d + 2).

    tr S does not depend on the shape S/tr S, so the expectation of the quotient is the quotient of the expectations.
    """
    drawn = [effective_dimension(normal(k, "white", n, d, size=(n, d))) for k in range(300)]
    inverse = 1 / torch.stack(drawn)
    want = (n + d) / ((n - 1) * d + 2)
    assert abs(inverse.mean() - want) < 4 * inverse.std() / math.sqrt(300)
    assert abs(want - (1 / d + 1 / n)) < 1 / n**2 + 2 / (n * d)
    assert inverse.mean() > 1 / d + 4 * inverse.std() / math.sqrt(300)


@pytest.mark.parametrize("kind", DIMENSIONS)
def test_no_dimension_exceeds_the_features_or_the_samples_less_one(kind):
    for n, d in ((3, 50), (50, 3)):
        value = effective_dimension(normal(0, "few", size=(n, d)), kind)
        assert 1 < value < min(d, n - 1) + 1e-9
    close(effective_dimension(samples(2), kind), 1)


@EACH
def test_a_factor_does_what_the_docstring_says(metric):
    (name,) = (name for name, f in ALL.items() if f is metric)
    t = samples()
    if name == "sparsity":
        assert metric(0.1 * t) > metric(t) > metric(10 * t)
        return
    close(metric(-7 * t), 7 ** DEGREE.get(name, 0) * metric(t))


@EACH
def test_rotations_and_shifts_are_seen_by_some_and_not_by_others(metric):
    (name,) = (name for name, f in ALL.items() if f is metric)
    t, turn = samples(), torch.linalg.qr(normal(0, "turn", size=(5, 5)))[0]
    for moved, unseen in ((t @ turn, UNROTATED), (t + 5, UNSHIFTED)):
        if name in unseen:
            close(metric(moved), metric(t))
        else:
            assert abs(metric(moved) / metric(t) - 1) > 1e-3


def test_distance_and_cosine_are_scipys():
    t = samples()
    close(diversity(t, "distance"), pdist(t).mean())
    close(diversity(t, "cosine"), pdist(t, "cosine").mean())


def test_variance_is_half_the_mean_square_distance_per_feature():
    t = samples()
    close(diversity(t), pdist(t, "sqeuclidean").mean() / (2 * t.shape[1]))
    close(diversity(t), t.var(dim=0).mean())


def test_distance_in_parts_is_the_same(monkeypatch):
    t = samples(n=31)
    want = diversity(t, "distance")
    monkeypatch.setattr(shape, "ENTRIES", 4 * 31)
    close(diversity(t, "distance"), want)
    monkeypatch.setattr(shape, "ENTRIES", 1)
    close(diversity(t, "distance"), want)


def test_near_samples_far_from_the_origin_keep_their_distance():
    t = 1000 + torch.arange(30.0).unsqueeze(1) * 2**-10
    close(diversity(t, "distance"), pdist(t.double()).mean(), rtol=1e-6)


def test_opposite_samples_have_the_greatest_cosine_diversity():
    t = samples(3)
    close(diversity(torch.cat([t, -t]), "cosine"), 6 / 5)
    assert abs(diversity(t[:1].expand(4, -1), "cosine")) < 1e-12


def test_sparsity_counts_its_threshold_in():
    t = torch.tensor([[0.0, -1.0], [2.0, 3.0]])
    assert [sparsity(t, threshold).item() for threshold in (0, 0.5, 1, 2, 3)] == [0.25, 0.25, 0.5, 0.75, 1]
    size = math.sqrt(14 / 4)
    assert [sparsity(t, x / size, relative=True).item() for x in (0.9, 1.1, 2.9, 3.1)] == [0.25, 0.5, 0.75, 1]
    assert sparsity(torch.zeros(2, 2), 0.1, relative=True) == 1


@pytest.mark.parametrize("relative", [False, True])
def test_sparsity_of_normal_entries_is_the_error_function(relative):
    t, want = normal(0, "entries", size=(400, 100)), math.erf(0.5 / math.sqrt(2))
    assert abs(sparsity(t, 0.5, relative) - want) < 4 * math.sqrt(want * (1 - want) / t.numel())


def test_what_has_no_value_is_nan():
    equal = torch.full((4, 3), 0.1)
    assert all(effective_dimension(equal, kind).isnan() for kind in DIMENSIONS)
    assert diversity(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), "cosine").isnan()
    assert [diversity(equal, kind).item() for kind in ("variance", "distance")] == [0, 0]


@EACH
def test_half_precision_is_raised_and_gradients_flow(metric):
    (name,) = (name for name, f in ALL.items() if f is metric)
    t = samples()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert metric(t.to(dtype)).dtype == torch.float32
        close(metric(t.to(dtype)), metric(t.to(dtype).double()), rtol=1e-5)
    if "sparsity" not in name:
        assert torch.autograd.gradcheck(metric, samples(6, 3).requires_grad_())


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("sparsity", "variance")])
@pytest.mark.parametrize("c", [1e-30, 1e30])
def test_nothing_is_lost_where_squares_are_beyond_float32(name, c):
    t = samples().float()
    close(ALL[name](c * t), c ** DEGREE.get(name, 0) * ALL[name](t).double(), rtol=1e-5)


@EACH
def test_a_meta_tensor_gives_a_meta_number(metric):
    value = metric(torch.zeros(6, 3, device="meta"))
    assert value.is_meta
    assert value.shape == ()


@EACH
@pytest.mark.parametrize(
    "wrong",
    [
        [[1.0]],
        torch.zeros(2, 3, 4),
        torch.zeros(0, 3),
        torch.zeros(2, 3, dtype=torch.complex64),
        torch.full((2, 2), torch.nan),
    ],
)
def test_what_is_no_sample_is_refused(metric, wrong):
    with pytest.raises(ValueError, match=r"^t "):
        metric(wrong)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: effective_dimension(t, "rank"), "kind must be one of participation, entropy"),
        (lambda t: diversity(t, "entropy"), "kind must be one of variance, distance, cosine"),
        (lambda t: diversity(t[:1]), "t must have at least 2 samples"),
        (lambda t: effective_dimension(t[:1]), "t must have at least 2 samples"),
        (lambda t: sparsity(t, -1), "threshold must be a finite number of at least 0"),
        (lambda t: sparsity(t, math.nan), "threshold must be a finite number of at least 0"),
    ],
)
def test_a_wrong_option_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(samples())
