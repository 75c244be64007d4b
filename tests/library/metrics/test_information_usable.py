import math
import subprocess
import sys

import pytest
import torch

from pdelab.metrics.information.usable import usable_information
from pdelab.seeds import normal, stream


def corners(n=400, seed=0):
    """x of four equally frequent corners (±1, ±1), a little spread, and y = 1 where both signs agree."""
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double().repeat(n // 4, 1)
    return x + 0.1 * normal(seed, "corners", size=(n, 2)), (x.prod(dim=1) > 0).long()


def labels(counts, seed=0):
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return y[torch.randperm(len(y), generator=stream(seed, "labels"))]


def test_a_line_sees_nothing_in_exclusive_or_and_all_of_it_in_the_product():
    x, y = corners()
    alone = usable_information(x, y, seed=0)
    assert alone.value < 3 * alone.error
    assert abs(alone.value) < 0.02
    added = usable_information(torch.cat([x, x.prod(dim=1, keepdim=True)], dim=1), y, seed=0, strength=100.0)
    assert abs(added.value - math.log(2)) < 0.02


def test_a_function_of_the_samples_can_raise_it_but_not_the_information():
    """t ↦ t₁t₂ forgets (two corners become one) and so cannot raise I(T; Y); the probe gains nevertheless."""
    x, y = corners()
    before, after = (usable_information(t, y, seed=0) for t in (x, x.prod(dim=1, keepdim=True)))
    assert after.value - before.value > 10 * math.hypot(before.error, after.error)
    assert after.value <= math.log(2)  # I(T; Y) = H(Y) before and after: the corners stay apart


@pytest.mark.parametrize("counts", [(100, 100), (150, 50), (100, 60, 40)])
def test_of_classes_that_lie_apart_it_is_the_entropy_of_the_classes(counts):
    y = labels(counts)
    t = 10 * torch.nn.functional.one_hot(y).double() + 0.1 * normal(0, "apart", size=(len(y), len(counts)))
    p = torch.tensor(counts).double() / sum(counts)
    found = usable_information(t, y, seed=0, strength=1000.0)
    assert abs(found.value - torch.special.entr(p).sum().item()) < 0.02


def test_it_is_the_information_where_the_best_predictor_is_in_the_family():
    """t|y ~ N(±μ, 1): log p(y|t) is the logistic function of 2μt, so I(T; Y) = log 2 − E log(1 + e^{−2μ(μ + z)})."""
    n, mu = 4000, 0.8
    y = labels((n // 2, n // 2))
    t = mu * (2.0 * y.double() - 1).unsqueeze(1) + normal(0, "noise", size=(n, 1))
    z, step = torch.linspace(-10, 10, 4001, dtype=torch.float64), 20 / 4000
    weight = (-z.square() / 2).exp() / math.sqrt(2 * math.pi) * step
    want = math.log(2) - (weight * torch.nn.functional.softplus(-2 * mu * (mu + z))).sum().item()
    found = usable_information(t, y, seed=0)
    assert abs(found.value - want) < 4 * found.error
    assert found.error < want / 20
    assert found.samples == n


def unrelated(width, seed):
    return usable_information(normal(seed, "t", size=(200, width)), labels((120, 80), seed), seed=seed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [2, 30])
def test_of_shuffled_labels_it_is_never_significantly_positive(width, seed):
    found = unrelated(width, seed)
    assert found.value < 3 * found.error


def test_what_is_learned_of_noise_costs_on_the_fold_held_out():
    found = [unrelated(30, seed) for seed in range(6)]
    assert sum(x.value for x in found) < -3 * math.hypot(*(x.error for x in found))


def test_units_and_names_of_the_classes_do_not_matter_and_the_seed_decides():
    y = labels((60, 40))
    t = y.double().unsqueeze(1) + normal(0, "t", size=(100, 3))
    found = usable_information(t, y, seed=1)
    assert found == usable_information(t, y, seed=1)
    assert found.value != usable_information(t, y, seed=2).value
    other = usable_information(1000 * t + 7, 5 - 3 * y, seed=1)
    assert other.value == pytest.approx(found.value, abs=1e-4)
    single = usable_information(t.float().requires_grad_(), y.bool(), seed=1)
    assert single.value == pytest.approx(found.value, abs=1e-4)


def test_a_constant_feature_is_harmless():
    y = labels((60, 40))
    t = y.double().unsqueeze(1) + normal(0, "t", size=(100, 1))
    wide = torch.cat([t, torch.ones(100, 1)], dim=1)
    narrow, wider = (usable_information(x, y, seed=0).value for x in (t, wide))
    assert wider == pytest.approx(narrow, abs=1e-4)


def test_one_sample_far_on_the_wrong_side_costs_much_but_not_everything():
    y = labels((60, 40))
    t = 10.0 * y.unsqueeze(1) + normal(0, "t", size=(100, 1))
    t[0] = 1e4 * (1 - 2 * y[0])
    found = usable_information(t, y, seed=0)
    assert -math.inf < found.value < -10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"t": torch.zeros(10, 1, 1)}, "^t must be a tensor of samples"),
        ({"t": torch.full((10, 1), torch.nan)}, "^t must be finite"),
        ({"y": normal(0, "y", size=(10,))}, "^y must hold each class at least folds"),
        ({"y": torch.zeros(9).long()}, "^y must have one label for each of the 10 samples"),
        ({"y": torch.zeros(10).long()}, "^y must hold at least two classes"),
        (
            {"y": torch.tensor([0] * 6 + [7] * 4)},
            "^y must hold each class at least folds = 5 times; .* occurs 4 times",
        ),
        ({"folds": 1}, "^folds must be"),
        ({"strength": 0}, "^strength must be"),
    ],
)
def test_bad_input_is_named(change, words):
    good = {"t": normal(0, "t", size=(10, 1)), "y": torch.arange(10) % 2}
    with pytest.raises(ValueError, match=words):
        usable_information(**{**good, **change}, seed=0)


def test_importing_it_does_not_load_scikit_learn():
    code = "import sys, pdelab.metrics.information.usable; print('sklearn' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
