"""Evidence on the claim about information during training, from the recorded runs."""

import pytest

from pdebook.chapters.estimators import measure
from pdebook.ledger.record import Store


@pytest.mark.claim("P1-fig8")
def test_does_information_fall_in_training(evidence):
    recorded = measure.decide(Store().load("information_training", "book"))
    evidence("printed", **recorded["printed"])


@pytest.mark.claim("P1-fig8")
def test_is_the_truth_constant_while_estimates_disagree(evidence):
    recorded = measure.decide(Store().load("information_training", "book"))
    evidence("repair", **recorded["repair"])
