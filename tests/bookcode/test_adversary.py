"""What the ledger reads of an attack, counted by hand."""

import math

import pytest
import torch

from pdebook.evidence.adversary import ROUNDING, ascend, attack_result
from pdebook.evidence.experiment import Scale

RATIOS = {"first": torch.tensor([0.5, 0.95, 1.1]), "second": torch.tensor([0.2, 1.0])}


def result(**options):
    return attack_result("name", Scale.BOOK, 3, **{"corrected": RATIOS} | options)


def test_violations_and_the_control_are_counted_by_statement():
    figures = result().figures
    assert (figures["corrected_attempts"], figures["corrected_violations"]) == (5, 1)
    assert (figures["control_attempts"], figures["control_violations"]) == (5, 3)
    assert figures["worst"] == figures["worst_first"] == pytest.approx(1.1)
    assert figures["worst_second"] == 1
    assert result().controls == {"shrunk_first": 2, "shrunk_second": 1}


@pytest.mark.parametrize(("share", "violated"), [(0.5, 0), (2.0, 1)])
def test_rounding_is_no_violation(share, violated):
    ratio = torch.tensor([1 + share * ROUNDING], dtype=torch.float64)
    assert result(corrected={"one": ratio}).figures["corrected_violations"] == violated


def test_printed_statements_are_counted_and_absent_where_none_is_attacked():
    figures = result(printed={"a": torch.tensor([True, False]), "b": torch.tensor([True, True])}).figures
    assert (figures["printed_attempts"], figures["printed_violations"]) == (4, 3)
    assert (figures["a_violations"], figures["b_violations"]) == (1, 2)
    assert not [name for name in result().figures if name.startswith("printed")]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_ratio_that_is_not_finite_is_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"corrected\['lemma'\] must hold finite ratios"):
        result(corrected={"lemma": torch.tensor([0.5, bad])})


def test_a_statement_that_was_never_tried_is_refused():
    with pytest.raises(ValueError, match="one an attempt"):
        result(corrected={"lemma": torch.empty(0)})


def test_ascent_finds_the_top_of_a_hill_and_a_search_of_nothing_but_nan_says_so():
    top = ascend(lambda x: -((x - 2) ** 2), torch.zeros(3, dtype=torch.float64), steps=400)
    torch.testing.assert_close(top, torch.zeros(3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert ascend(lambda x: x * math.nan, torch.zeros(2), steps=2).tolist() == [-math.inf, -math.inf]
