"""What the ledger reads of an attack, counted by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pdebook.evidence.adversary import ROUNDING, Statement, ascend, attack, in_turn, live, over_decades
from pdebook.ledger.record import Scale


def triangle(u: Tensor, v: Tensor, *, first: float = 1.0, second: float = 1.0, sharper: float = 1.0) -> Tensor:
    """|u + v| ≤ |u| + |v|."""
    return (u + v).norm(dim=-1) * sharper / (first * u.norm(dim=-1) + second * v.norm(dim=-1))


TRIANGLE = Statement(triangle, {"u": "d", "v": "d"}, [{"d": 1}, {"d": 3}], shrink=("first", "second"), batch=8)


def test_a_bound_that_is_true_and_sharp_stands_and_each_of_its_constants_shrunk_falls():
    figures, broken = TRIANGLE.attempt(seed=0)
    assert figures["attempts"] == 16
    assert figures["violations"] == 0
    assert figures["worst"] == pytest.approx(1, abs=1e-3)
    assert broken.keys() == {"first", "second"}
    assert min(broken.values()) > 0


def test_a_bound_that_is_false_falls():
    figures, _ = replace(TRIANGLE, over={"sharper": (1.0, 1.01)}).attempt(seed=0)
    assert figures["attempts"] == 32
    assert figures["violations"] > 0


def test_a_statement_without_neighbours_of_its_own_is_measured_against_its_bound_shrunk():
    _, broken = replace(TRIANGLE, shrink=()).attempt(seed=0)
    assert broken["bound"] > 0
    loose = replace(TRIANGLE, shrink=(), over={"sharper": (0.5,)})
    assert loose.attempt(seed=0)[1] == {"bound": 0}


def test_a_false_neighbour_that_is_true_is_never_broken():
    never = replace(TRIANGLE, shrink=(), wrong={"halved": {"sharper": 0.5}})
    assert never.attempt(seed=0)[1] == {"halved": 0}


def drawn(seed: int, *, size: float = 0.5) -> Tensor:
    """A statement that draws for itself."""
    return torch.tensor([size, 0.9 * size], dtype=torch.float64)


def test_a_statement_that_draws_for_itself_is_asked_once_for_each_setting():
    statement = Statement(drawn, over={"size": (0.5, 1.2)}, wrong={"large": {}})
    assert statement.search(0).tolist() == [0.5, 0.45, 1.2, pytest.approx(1.08)]
    assert Statement(drawn, wrong={"large": {"size": 3.0}}).attempt(0)[1] == {"large": 2}


@pytest.mark.parametrize(("share", "violated"), [(0.5, 0), (2.0, 1)])
def test_rounding_is_no_violation(share, violated):
    statement = Statement(lambda seed: torch.tensor([1 + share * ROUNDING], dtype=torch.float64))
    assert statement.attempt(0)[0]["violations"] == violated


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_score_that_is_not_finite_is_refused_by_name(bad):
    def lemma(seed):
        return torch.tensor([0.5, bad])

    with pytest.raises(ValueError, match="lemma must give finite scores"):
        Statement(lemma).attempt(0)


def test_a_statement_that_was_never_tried_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Statement(lambda seed: torch.empty(0)).attempt(0)


def test_the_starts_depend_on_the_seed_the_size_and_the_name_alone():
    first, again, other = ([start for _, start in TRIANGLE.searches(seed)] for seed in (0, 0, 1))
    assert all(torch.equal(a["u"], b["u"]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0]["u"], other[0]["u"])
    assert [start["u"].shape for start in first] == [(8, 1), (8, 3)]
    root = Statement(triangle, {"u": "d /d", "v": "d"}, [{"d": 4}])
    ((_, halved),) = root.searches(0)
    ((_, whole),) = replace(root, vary={"u": "d", "v": "d"}).searches(0)
    torch.testing.assert_close(halved["u"], whole["u"] / 2)


def test_sizes_of_starts():
    ones = {"u": torch.ones(6, 2, dtype=torch.float64), "v": torch.ones(6, dtype=torch.float64)}
    assert in_turn(u=(1.0, 10.0))(0, **ones)["u"][:, 0].tolist() == [1, 10, 1, 10, 1, 10]
    sized = over_decades(-2, 1, "v")(0, **ones)
    assert torch.equal(sized["u"], ones["u"])
    assert ((sized["v"] >= 0.01) & (sized["v"] <= 10)).all()
    assert len(set(sized["v"].tolist())) == 6


def test_an_attack_names_role_statement_and_neighbour_in_its_figures():
    printed = replace(TRIANGLE, shrink=(), over={"sharper": (1.01,)}, printed=True)
    run = attack("attack_triangle", {"ours": TRIANGLE, "theirs": printed}, lambda seed: ({"more": seed}, {}))
    result = run("book", 3)
    assert (result.experiment, result.scale, result.seed) == ("attack_triangle", Scale.BOOK, 3)
    assert result.figures["corrected/ours/violations"] == 0
    assert result.figures["printed/theirs/violations"] > 0
    assert result.figures["more"] == 3
    assert result.controls.keys() >= {"corrected/ours/broken/first", "corrected/ours/broken/second"}
    assert live(run, batch=2, steps=3).keys() == {"ours", "theirs"}
    assert TRIANGLE.says == "|u + v| ≤ |u| + |v|."


def test_a_step_of_a_proof_is_recorded_as_a_lemma():
    run = attack("attack_triangle", {"step": replace(TRIANGLE, lemma=True)})
    result = run("book", 3)
    assert result.figures["lemma/step/violations"] == 0
    assert result.controls.keys() == {"lemma/step/broken/first", "lemma/step/broken/second"}
    assert replace(TRIANGLE, lemma=True, printed=True).role == "lemma"


def test_it_is_counted_in_how_many_settings_a_neighbour_falls():
    half = replace(TRIANGLE, over={"sharper": (0.85, 1.0)}, wrong={"less": {"first": 0.8, "second": 0.8}}, each=True)
    figures, broken = half.attempt(0)
    assert figures["settings"] == 4
    assert figures["broken_in/less"] == 4
    assert figures["broken_in/first"] == 2
    assert broken["less"] > half.fallen(0, first=0.8, second=0.8)[1] == 4
    assert replace(half, each=False).fallen(0, first=0.8, second=0.8)[1] == 1
    _, one = replace(half, each=False).attempt(0)
    assert set(one) == set(broken) == {"less", "first", "second"}
    bound = replace(TRIANGLE, shrink=(), over={"sharper": (0.5, 1.0)}, each=True)
    assert bound.attempt(0)[0]["broken_in/bound"] == 2


def test_ascent_finds_the_top_of_a_hill_stops_when_told_and_says_of_nan_that_it_found_nothing():
    zeros = {"x": torch.zeros(3, dtype=torch.float64)}
    top = ascend(lambda x: -((x - 2) ** 2), zeros, steps=400)
    torch.testing.assert_close(top, torch.zeros(3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert ascend(lambda x: -((x - 2) ** 2), zeros, steps=400, until=-3.0).max() < -2
    assert ascend(lambda x: x * math.nan, {"x": torch.zeros(2)}, steps=2).tolist() == [-math.inf, -math.inf]
