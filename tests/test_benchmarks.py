"""Each benchmark runs at its smallest size, where both sides must give the same; the table says what was measured."""

import importlib
import math
import re
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WITH_WEIGHTS = ("pretrained",)
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in ("harness", "run"))


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.weights] if name in WITH_WEIGHTS else []) for name in NAMES]
)
def test_every_row_has_a_ratio_within_its_spread_and_both_sides_agree(name):
    rows = list(importlib.import_module(name).rows("cpu", quick=True))
    assert rows
    for row in rows:
        assert row.work
        assert row.peer
        assert 0 <= row.low <= row.ratio <= row.high < math.inf or unmeasured(row), row
        assert re.fullmatch(r"([≤≥] [0-9.]+)?", row.target), row


def unmeasured(row):
    """Memory where the system does not say how much a process holds."""
    return "memory" in row.work and math.isnan(row.ratio) and not importlib.import_module("harness").PROC.exists()


def test_the_states_and_maps_are_those_of_transformer_lens():
    """Which is causal, in one layer after another; a map more or a state less is seen too."""
    transformer = importlib.import_module("transformer")
    own, lens = transformer.lens_pair(12)
    u, _ = transformer.fields(12, 2, "cpu")
    torch.testing.assert_close(transformer.seen(own, u), transformer.cached(lens, u), rtol=1e-5, atol=1e-5)


def test_sides_that_differ_are_not_compared():
    harness = importlib.import_module("harness")
    with pytest.raises(AssertionError, match="not close"):
        harness.compare("a", "b", lambda: torch.ones(3), lambda: torch.zeros(3), agree=1e-3)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not say")
def test_memory_is_what_was_held_at_most():
    harness = importlib.import_module("harness")
    found = harness.peak_memory(lambda: [torch.ones(2**22), torch.ones(2**22)])  # 16 MB each
    assert 30e6 < found < 50e6


def test_where_the_system_does_not_say_memory_is_unknown_and_no_target_is_missed(monkeypatch, tmp_path):
    harness, run = importlib.import_module("harness"), importlib.import_module("run")
    monkeypatch.setattr(harness, "PROC", tmp_path / "none")
    monkeypatch.setattr(run, "CPUINFO", tmp_path / "none")
    rows = list(importlib.import_module("solvers").recomputed("cpu", quick=True))
    assert [row.work.split()[-1] for row in rows if math.isnan(row.ratio)] == ["memory"]
    assert unmeasured(rows[-1])
    assert rows[-1].met is None
    assert "(unknown kind)" in run.page(rows, "cpu")


def test_a_probe_is_timed_on_two_threads_beside_its_promises():
    seen, before = [], torch.get_num_threads()
    probed = importlib.import_module("pretrained").probed
    rows = probed(lambda: seen.append(torch.get_num_threads()), lambda: torch.ones(300, 300).exp(), "cpu", "small")
    found = {row.target: row for row in rows}
    assert seen == [2]
    assert torch.get_num_threads() == before
    assert list(found) == ["", "≤ 120", "≤ 4"]
    assert found["≤ 120"].met
    assert found["≤ 4"].ratio > 0.05


def test_a_missing_peer_is_one_sentence():
    harness = importlib.import_module("harness")
    with pytest.raises(harness.NotInstalled, match=r"no_such_peer is not installed: pip install .* brings every peer"):
        harness.peer("no_such_peer")


def test_the_page_says_what_is_missed():
    harness, run = importlib.import_module("harness"), importlib.import_module("run")
    rows = [harness.Row("w", "p", ratio, ratio, ratio, "≤ 0.9") for ratio in (0.5, 1.0)]
    text = run.page(rows, "cpu")
    assert "Of 2 targets 1 are missed." in text
    assert "≤ 0.9, met" in text
    assert "≤ 0.9, missed" in text
    assert "notebooks took" in text
