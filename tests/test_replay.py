"""The code still gives the numbers of the book: seed 0 of the quickest experiments, run again."""

from dataclasses import replace

import pytest
import replay

from pdebook.ledger.record import Result
from pdelab.datasets import cache

QUICK = 15.0  # seconds, as recorded: together about a minute; `python tools/replay.py` runs the rest
RECORD = {name: result for name, result in replay.recorded().items() if result.seconds <= QUICK}


def needed(result):
    """The pretrained networks that an experiment reads."""
    return result.configuration.get("weights", [])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.weights] if needed(r) else []) for name, r in RECORD.items()]
)
def test_a_quick_experiment_gives_what_is_recorded(name):
    for network in needed(RECORD[name]):
        cache.get(network)
    differences, _ = replay.replay(RECORD[name])
    assert not differences


def test_the_quick_ones_are_of_several_kinds():
    assert len(RECORD) >= 6
    assert any(name.startswith("attack_") for name in RECORD)


BEFORE = Result(
    "e", {}, "book", 0, "finished", {"a": 1.0, "b": [1.0, 2.0], "corrected/x/worst": 0.9}, {"x/broken/k": 3}
)


@pytest.mark.parametrize(
    ("figures", "word"),
    [
        ({"a": 1.0 + 1e-4}, "a: 1.0 was recorded"),
        ({"b": [1.0]}, "b: "),
        ({"c": 1.0}, "c is new"),
        ({"corrected/x/worst": 0.88}, "worst"),
        ({"a": float("nan")}, "a: "),
    ],
)
def test_a_difference_is_named(figures, word):
    (found,) = replay.differences(BEFORE, replace(BEFORE, figures=BEFORE.figures | figures))
    assert word in found


def test_rounding_and_the_number_of_broken_neighbours_are_no_difference():
    figures = {"a": 1.0 + 1e-9, "b": [1.0, 2.0], "corrected/x/worst": 0.902}
    assert not replay.differences(BEFORE, replace(BEFORE, figures=figures, controls={"x/broken/k": 1}))
    assert replay.differences(BEFORE, replace(BEFORE, controls={"x/broken/k": 0}))
