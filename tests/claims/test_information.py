"""What P1 states of its bound on information, in closed form and by descent.  (P1 eq 16)"""

import pytest
import torch

from pdebook.chapters.information import laws
from pdelab.seeds import stream


def models(seed, number, **fixed):
    """Random q(t|x) = N(ax, v) and q(t) = N(0, w)."""
    generator = stream(seed, "models")
    for a, v, w in torch.rand(number, 3, generator=generator).tolist():
        drawn = {"a": 3 * a - 1, "v": 0.05 * 100**v, "w": 0.05 * 100**w}
        yield laws.Gaussians(**(drawn | {k: f(drawn) if callable(f) else f for k, f in fixed.items()}))


@pytest.mark.claim("P1-eq16")
def test_eq16_stays_below_the_information_for_every_q(evidence):
    excess = [(m.value() - laws.pair_information()).item() for m in models(0, 400)]
    evidence("printed", holds=max(excess) <= 1e-9, fails=max(excess) > 0.1)


@pytest.mark.claim("P1-eq16")
def test_eq16_is_the_information_less_one_divergence_plus_another(evidence):
    """Closed form against divergences from torch.distributions, averaged over x by quadrature."""
    gaps = []
    for m in models(1, 100):
        given, alone = m.divergences()
        gaps.append((m.value() - (laws.pair_information() - given + alone)).abs().item() / (1 + given.item()))
    evidence("repair", holds=max(gaps) < 1e-9, fails=max(gaps) > 1e-3)


@pytest.mark.claim("P1-eq16")
@pytest.mark.parametrize(
    ("kind", "fixed", "side"),
    [
        ("exact marginal", {"w": 1.25}, -1),
        ("consistent marginal", {"w": lambda q: q["a"] ** 2 + q["v"]}, -1),
        ("exact conditional", {"a": 1.0, "v": 0.25}, 1),
    ],
)
def test_eq16_bounds_the_information_if_one_of_its_models_is_right(kind, fixed, side, evidence):
    excess = torch.stack([m.value() - laws.pair_information() for m in models(2, 400, **fixed)])
    worst = (-side * excess).max().item()
    assert excess.abs().max() > 0.1  # not all of them are exact
    evidence("repair", holds=worst <= 1e-9, fails=worst > 1e-3)


@pytest.mark.claim("P1-eq16")
def test_eq16_may_replace_the_information_while_its_models_descend_too(evidence):
    found = laws.descend(400, over="phi")
    assert max(found["true"]) == pytest.approx(min(found["true"]))
    evidence("printed", holds=min(found["eq16"]) > -1, fails=min(found["eq16"]) < -50)


@pytest.mark.claim("P1-eq16")
def test_descending_on_eq16_with_a_fixed_q_brings_the_information_down(evidence):
    """From four slopes, on both sides of the parabola's top at 5/4, until Ĩ < −100: I at the end less at the start."""
    risen = []
    for start in (0.5, 1.0, 1.3, 2.0):
        found = laws.descend(400, over="theta", start=start)
        assert found["eq16"][-1] < -100
        assert all(value <= truth + 1e-12 for value, truth in zip(found["eq16"], found["true"], strict=True))
        risen.append(found["true"][-1] - found["true"][0])
    evidence("printed", holds=max(risen) < 0, fails=min(risen) > 0.5)
