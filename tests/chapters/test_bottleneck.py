"""Training with a bottleneck: the penalties, the information plane and its controls.  (P1 eq 14, fig 8)"""

import math

import pytest
import torch

from pdebook.chapters.bottleneck import measure
from pdebook.evidence.experiment import HERE, Scale
from pdelab import datasets, transformer
from pdelab.bottleneck import channel
from pdelab.metrics import information
from pdelab.models import with_ends


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits-rows")


def test_vib_and_club_penalties_are_the_divergences_they_stand_for(digits):
    model = measure.build("coupled", measure.SIZES[Scale.SMOKE], digits, 0).train()
    part = digits.train.take(slice(0, 20))
    model(part.x)
    mean = channel(model).seen.detach().double()
    assert measure.vib_penalty(model, part, beta=1.0).item() == pytest.approx(
        information.vib(mean, torch.zeros_like(mean)).item(), rel=1e-5
    )
    normals = torch.distributions.Normal(mean, 1.0)
    divergence = torch.distributions.kl_divergence(normals, torch.distributions.Normal(0.0, 1.0)).sum(dim=1).mean()
    assert measure.vib_penalty(model, part, beta=2.0).item() == pytest.approx(2 * divergence.item(), rel=1e-5)
    pairs = [(mean[i] - mean[j]).square().sum().item() / 2 for i in range(20) for j in range(20) if i != j]
    assert measure.club_penalty(model, part, beta=2.0).item() == pytest.approx(2 * sum(pairs) / 380, rel=1e-5)


def test_the_plane_encloses_the_information_and_knows_chance(digits):
    model = measure.build("transformer", measure.SIZES[Scale.SMOKE], digits, 0).eval()
    with torch.no_grad():
        for weight in channel(model).mean.parameters():
            weight.mul_(20)
        seen = measure.plane(model, digits.test)
    assert seen["lower"] - 5 * seen["error"] < seen["information"] < seen["upper"] + 5 * seen["error"]
    assert seen["information"] < seen["vib"]
    assert seen["about_label"] < 0.1
    assert seen["about_label"] <= seen["counted_label"]
    assert 0 < seen["accuracy"] < 0.4


def test_shuffled_labels_keep_the_inputs_and_the_shares_of_the_classes(digits):
    other = measure.with_shuffled_labels(digits, 0)
    assert torch.equal(other.train.x, digits.train.x)
    assert torch.equal(other.test.y.bincount(), digits.test.y.bincount())
    assert (other.test.y == digits.test.y).double().mean() < 0.25


def test_a_large_beta_leaves_less_information_than_none(digits):
    size, left = measure.SIZES[Scale.SMOKE], {}
    for beta in (0.0, 3.0):
        _, record = measure.fit("transformer", size, digits, 0, HERE, "x", beta)
        left[beta] = record.watched[-1].looked["vib"]
    assert left[3.0] < left[0.0]


def test_a_model_without_a_bottleneck_is_told_how_to_get_one():
    core = transformer(8, 1, 2, 16)
    for model in (core, with_ends(core, 8, outputs=2, length=4, features=3)):
        with pytest.raises(ValueError, match="with_bottleneck makes one"):
            channel(model)


def test_every_beta_and_every_control_has_its_place_in_the_plane():
    result, size = measure.run("smoke", 0), measure.SIZES[Scale.SMOKE]
    assert (result.status, result.diverged) == ("finished", {})
    for kind in measure.KINDS:
        for beta in size.betas:
            assert len(result.figures[f"{kind}/beta {beta:g}/information"]) == len(size.settings.watch)
            assert len(result.figures[f"{kind}/beta {beta:g}/by_layer"]) == len(
                result.controls[f"{kind}/untrained/by_layer"]
            )
    controls = ("shuffled, beta 0", "shuffled, beta 0.1", "printed sign, beta 0.1", "club, beta 0.1")
    assert {name.split("/")[1] for name in result.controls} == {*controls, "untrained"}
    numbers = [value for values in (result.figures | result.controls).values() for value in values]
    assert all(math.isfinite(number) for number in numbers)
