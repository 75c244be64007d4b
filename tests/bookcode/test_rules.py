"""The rules: what each makes of a record made by hand, and that none can be fooled by one weak search."""

import datetime
import inspect
import math
from dataclasses import replace

import pytest
from made_claims import EVIDENCE, STRICT, attack_run, entry, findings, paired, recorded, spread, verdict_of

from pdebook.ledger import Claim, claims, judge, read_claims, rules
from pdebook.ledger.record import Key, Result, Store, interval, summarise, value_of


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_what_was_cut_stands_beside_the_number(store):
    for seed, (figures, controls) in enumerate(paired(spread(0.97), spread(0.5))):
        cut = {"cut": "300 of 5000 training steps"}
        store.save(Result("e", cut, "book", seed, "finished", figures, controls))
    found = judge(Claim(**entry(rule="reproduced", printed={"cosine": 0.97}, evidence=EVIDENCE)), store)
    assert found.verdict == "holds"
    assert "cut to 300 of 5000 training steps" in found.ruling.because
    assert "cut to 300 of 5000 training steps" in found.ruling.ours


@pytest.mark.parametrize(
    ("ours", "copy", "verdict"),
    [
        (spread(0.97), spread(0.5), "holds"),
        (spread(0.97), spread(0.972), "trivial"),
        (spread(0.6), spread(0.5), "fails"),
        (spread(0.6), spread(0.97), "fails"),
        (spread(0.97, 0.01), spread(0.5), "undecided"),
        (spread(0.97), spread(0.97, 0.01), "undecided"),
    ],
)
def test_reproduced_needs_the_printed_figure_and_a_control_without_it(store, ours, copy, verdict):
    recorded(store, paired(ours, copy))
    assert verdict_of(store, printed={"cosine": 0.97}, evidence=EVIDENCE) == verdict


@pytest.mark.parametrize(
    ("ours", "copy", "verdict"),
    [
        (spread(0.99), spread(0.5), "holds"),
        (spread(0.99), spread(0.98), "trivial"),
        (spread(0.9), spread(0.5), "fails"),
        (spread(0.97), spread(0.5), "undecided"),
        (spread(0.99), spread(0.97), "undecided"),
    ],
)
def test_thresholds_are_met_by_the_whole_interval(store, ours, copy, verdict):
    recorded(store, paired(ours, copy))
    assert verdict_of(store, rule="at_least", printed={"cosine": 0.97}, evidence=STRICT) == verdict
    recorded(store, paired([-x for x in ours], [-x for x in copy]), "mirrored")
    evidence = STRICT | {"experiment": "mirrored"}
    assert verdict_of(store, rule="at_most", printed={"cosine": -0.97}, evidence=evidence) == verdict


@pytest.mark.parametrize(("rule", "sign"), [("at_least", 1), ("at_most", -1)])
def test_a_threshold_may_give_way_by_half_a_printed_digit(store, rule, sign):
    recorded(store, paired([sign * x for x in spread(0.9699, 1e-5)], [-1.0 * sign] * 3))
    printed = {"cosine": sign * 0.970}
    assert verdict_of(store, rule=rule, printed=printed, evidence=STRICT | {"tolerance": 0.0005}) == "holds"
    assert verdict_of(store, rule=rule, printed=printed, evidence=STRICT) == "fails"


@pytest.mark.parametrize("rule", ["at_least", "reproduced"])
def test_fewer_than_three_seeds_are_not_yet_a_measurement(store, rule):
    for seeds, words in ((1, "1 seed is recorded"), (2, "2 seeds are recorded")):
        recorded(store, paired((0.97,) * seeds, (0.1,) * seeds))
        found = judge(Claim(**entry(rule=rule, printed={"cosine": 0.97}, evidence=EVIDENCE)), store)
        assert found.verdict == "not yet measured"
        assert found.ruling.because == f"{words}; a verdict needs at least 3"


def test_lists_are_compared_layer_by_layer(store):
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho"}
    recorded(store, [({"rho": [1.0, 0.9]}, {"copy": [1.0, 1.0]})] * 3)
    assert verdict_of(store, printed={"rho": [1.0, 0.9]}, evidence=evidence) == "holds"
    assert verdict_of(store, printed={"rho": [1.0, 0.8]}, evidence=evidence) == "fails"
    with pytest.raises(ValueError, match="X-1: 2 values are ours, 2 control, 3 printed"):
        verdict_of(store, printed={"rho": [1.0, 0.9, 0.8]}, evidence=evidence)


# the intervals of three seeds: ± 2.48 half a spread; the paired difference has its own
@pytest.mark.parametrize(
    ("ours", "control", "verdict"),
    [
        (spread(2.0), spread(0.0), "holds"),  # a control of no difference, as it should be
        (spread(2.0), spread(-1.0), "holds"),
        (spread(2.0), spread(1.0), "holds"),  # above zero too, but half as much in every seed
        (spread(2.0, 0.5), spread(1.0, 0.5), "holds"),  # the intervals overlap; the difference is 1 in every seed
        (spread(2.0), spread(2.0), "trivial"),  # the same
        (spread(2.0), spread(3.0), "trivial"),  # more
        (spread(2.0), (2.001, 2.0, 1.999), "trivial"),  # not to be told apart
        (spread(2.0), (4.0, 2.0, 0.0), "undecided"),  # it may be nothing, or as much
        (spread(2.0), spread(0.0, 5.0), "undecided"),
        (spread(-2.0), spread(0.0), "fails"),
        (spread(-2.0), spread(-3.0), "fails"),  # more than the control, but not above zero
        (spread(2.0, 5.0), spread(-1.0), "undecided"),
    ],
)
def test_a_difference_must_be_above_zero_and_above_the_control_seed_by_seed(store, ours, control, verdict):
    recorded(store, paired(ours, control, "gap", "shuffled"))
    evidence = {"experiment": "e", "figure": "gap", "control": "shuffled"}
    assert verdict_of(store, rule="greater", evidence=evidence) == verdict


@pytest.mark.parametrize(
    ("ours", "control", "verdict"),
    [
        ((2.0, 2.0), (0.0, 1.0), "holds"),
        ((2.0, 2.0), (0.0, 2.0), "trivial"),  # as much in one value is as much
        ((2.0, 2.0), (9.0, 0.0), "trivial"),
        ((2.0, -2.0), (0.0, 0.0), "fails"),
    ],
)
def test_a_difference_of_several_values_must_pass_in_each(store, ours, control, verdict):
    values = [[list(one) for one in zip(*map(spread, some), strict=True)] for some in (ours, control)]
    recorded(store, paired(*values, "gap", "c"))
    assert verdict_of(store, rule="greater", evidence={"experiment": "e", "figure": "gap", "control": "c"}) == verdict


def test_of_several_controls_one_that_shows_as_much_makes_a_difference_trivial(store):
    recorded(store, [({"gap": a}, {"c": 0.0, "d": a + 1}) for a in spread(2.0)])
    evidence = {"experiment": "e", "figure": "gap", "control": ["c", "d"]}
    assert verdict_of(store, rule="greater", evidence=evidence) == "trivial"
    assert verdict_of(store, rule="greater", evidence=evidence | {"control": "c"}) == "holds"


def test_a_seed_that_diverged_has_no_part_in_the_paired_difference(store):
    recorded(store, paired(spread(2.0), spread(1.0), "gap", "c"))
    store.save(Result("e", {}, "book", 3, "diverged", {"gap": math.nan}, {"c": 1.0}))
    assert verdict_of(store, rule="greater", evidence={"experiment": "e", "figure": "gap", "control": "c"}) == "holds"


TWO = {
    "experiment": "e",
    "compare": [
        {"figure": "pearson", "control": "copy_pearson", "printed": "pearson", "tolerance": 0.05},
        {"figure": "spearman", "control": "copy_spearman", "printed": "spearman", "tolerance": 0.05},
    ],
}
GOOD, BAD, VAGUE = spread(0.5), spread(0.9), spread(0.5, 0.05)


@pytest.mark.parametrize(
    ("pearson", "spearman", "verdict"),
    [  # each column: ours, its control
        ((GOOD, BAD), (GOOD, BAD), "holds"),
        ((GOOD, BAD), (GOOD, GOOD), "trivial"),  # one comparison that a control passes too is enough
        ((GOOD, GOOD), (GOOD, GOOD), "trivial"),
        ((GOOD, BAD), (BAD, BAD), "fails"),
        ((BAD, BAD), (VAGUE, BAD), "fails"),
        ((GOOD, BAD), (VAGUE, BAD), "undecided"),
        ((GOOD, GOOD), (VAGUE, BAD), "undecided"),
        ((GOOD, BAD), (GOOD, VAGUE), "undecided"),
    ],
)
def test_several_printed_figures_make_one_verdict(store, pearson, spearman, verdict):
    """Fails if one fails, else undecided if one is, else trivial if one is; holds only if all hold."""
    runs = [
        ({"pearson": a, "spearman": b}, {"copy_pearson": c, "copy_spearman": d})
        for a, b, c, d in zip(pearson[0], spearman[0], pearson[1], spearman[1], strict=True)
    ]
    for order, experiment in ((TWO["compare"], "e"), (TWO["compare"][::-1], "mirrored")):
        recorded(store, runs, experiment)
        evidence = {"experiment": experiment, "compare": order}
        assert verdict_of(store, printed={"pearson": 0.5, "spearman": 0.5}, evidence=evidence) == verdict


def column(*values, seeds=3):
    """Seeds of a list of values; each has its own spread about its mean: 4.3 s/√3 = 2.48 of half the range at 95 %."""
    return [[mean + (seed - 1) * half for mean, half in values] for seed in range(seeds)]


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        ([(0.5, 0.001)] * 10, "holds", ""),
        # 0.06 outside of ± 0.05, with an interval of ± 0.0025 alone and of ± 0.0081 among ten
        ([(0.5, 0.001)] * 9 + [(0.611, 0.001)], "fails", "; 1 of 10 values miss, the farthest by 0.061"),
        # an interval of ± 0.0025 misses by 0.005; among ten it does not
        ([(0.5, 0.001)] * 9 + [(0.555, 0.001)], "undecided", ""),
        ([(0.5, 0.001), (0.555, 0.001)], "fails", "; 1 of 2 values miss, the farthest by 0.005"),
        ([(0.555, 0.001)], "fails", ""),  # alone: there is nothing to correct for
        ([(0.7, 0.001)] * 10, "fails", "; 10 of 10 values miss, the farthest by 0.15"),
    ],
)
def test_one_of_many_values_misses_only_if_it_does_at_the_level_for_all_of_them(store, values, verdict, words):
    recorded(store, [({"rho": row}, {"copy": [0.0] * len(row)}) for row in column(*values)])
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho", "tolerance": 0.05}
    found = judge(Claim(**entry(printed={"rho": [0.5] * len(values)}, evidence=evidence)), store)
    assert found.verdict == verdict
    assert (words in found.ruling.because) if words else " miss" not in found.ruling.because.partition("; a value")[0]


def test_the_level_for_many_values_is_bonferroni_s():
    alone, among = interval([1.0, 2.0, 3.0]), interval([1.0, 2.0, 3.0], among=10)
    assert (among.high - 2) / (alone.high - 2) == pytest.approx(14.0890 / 4.30265, rel=1e-4)  # t₀.₉₉₇₅(2)/t₀.₉₇₅(2)


def test_values_are_counted_over_all_comparisons_of_a_claim(store):
    rows = column(*[(0.5, 0.001)] * 4, (0.555, 0.001))
    recorded(store, [({"a": row, "b": row}, {"c": [0.0] * 5}) for row in rows])
    two = [{"figure": name, "control": "c", "printed": "p", "tolerance": 0.05} for name in "ab"]
    found = judge(Claim(**entry(printed={"p": 0.5}, evidence={"experiment": "e", "compare": two})), store)
    assert "at the level for 10 values at once" in found.ruling.because


def test_a_control_that_passes_too_is_named_with_what_ours_has_over_it(store):
    recorded(store, paired(spread(0.99), spread(0.98)))
    found = judge(Claim(**entry(rule="at_least", printed={"cosine": 0.97}, evidence=STRICT)), store)
    assert found.verdict == "trivial"
    assert found.ruling.because.endswith("; copy shows as much, ours less it 0.01 [0.01, 0.01] (3 seeds)")


def test_only_the_direction_of_a_difference_is_tested_and_it_is_said(store):
    recorded(store, paired(spread(2.0), spread(1.0), "gap", "c"))
    evidence = {"experiment": "e", "figure": "gap", "control": "c"}
    found = judge(Claim(**entry(rule="greater", evidence=evidence)), store)
    assert found.ruling.because.startswith("direction only; ")


VOTES = {"experiment": "e", "figure": "best/gap", "control": "best/untrained_gap", "votes": "vote"}


def voted(store, votes, theirs=((1, 1, 1), (1, 1, 1), (1, 1, 1)), filled=9.0):
    """Three seeds of three values: 2 where it votes, else what was filled in; the control is 1."""
    for seed, (mine, other) in enumerate(zip(votes, theirs, strict=True)):
        figures = {"best/gap": [2.0 if v else filled for v in mine], "best/vote": list(mine)}
        controls = {"best/untrained_gap": [1.0 if v else filled for v in other], "best/untrained_vote": list(other)}
        store.save(Result("e", {}, "book", seed, "finished", figures, controls))
    return judge(Claim(**entry(rule="greater", evidence=VOTES)), store)


def test_a_value_that_was_filled_in_is_left_blank_and_decides_nothing(store):
    found = voted(store, [(1, 1, 1)] * 3)
    assert found.verdict == "holds"
    assert found.ruling.ours == "2 [2, 2], 2 [2, 2], 2 [2, 2] (3 seeds)"
    found = voted(store, [(1, 0, 1), (1, 1, 1), (1, 0, 1)], filled=-9.0)
    assert found.verdict == "holds"
    assert found.ruling.ours == "2 [2, 2], no vote, 2 [2, 2] (3 seeds)"
    assert voted(store, [(0, 0, 0)] * 3).verdict == "undecided"


def test_a_control_without_a_vote_shows_nothing_there(store):
    assert voted(store, [(1, 1, 1)] * 3, [(1, 0, 1)] * 3).verdict == "holds"
    assert voted(store, [(1, 1, 1)] * 3, [(0, 0, 0)] * 3).verdict == "undecided"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, "the votes best/vote on best/gap are missing for seed 0"),
        ({"best/vote": 1.0}, "best/vote has 1 votes on 2 values of best/gap, seed 0"),
        ({"best/vote": [1.0] * 3}, "best/vote has 3 votes on 2 values of best/gap, seed 0"),
    ],
)
def test_votes_that_do_not_fit_are_refused_by_claim_and_name(store, figures, words):
    recorded(store, [({"best/gap": [2.0, 2.0]} | figures, {"best/untrained_gap": [1.0, 1.0]})] * 3)
    with pytest.raises(ValueError, match=f"^claim X-1: {words}$"):
        judge(Claim(**entry(rule="greater", evidence=VOTES)), store)


def test_votes_on_a_figure_without_a_model_are_found(store):
    recorded(
        store, [({"gap": [2.0, 9.0], "vote": [1, 0]}, {"untrained_gap": [1.0, 9.0], "untrained_vote": [1, 1]})] * 3
    )
    found = judge(Claim(**entry(rule="greater", evidence=VOTES | {"figure": "gap", "control": "untrained_gap"})), store)
    assert (found.verdict, found.ruling.ours) == ("holds", "2 [2, 2], no vote (3 seeds)")


def test_a_row_that_the_entry_leaves_out_decides_nothing(store):
    recorded(store, [({"gap": [2.0, -2.0]}, {"c": [0.0, 0.0]})] * 3)
    evidence = {"experiment": "e", "figure": "gap", "control": "c", "rows": ["probe", "noise"]}
    assert verdict_of(store, rule="greater", evidence=evidence) == "fails"
    reading = {"date": datetime.date(2026, 1, 31), "text": "It is saturated."}
    left_out = entry(rule="greater", evidence=evidence | {"without": ["noise"]}, reading=reading)
    found = judge(Claim(**left_out), store)
    assert found.verdict == "holds"
    assert found.ruling.ours == "2 [2, 2], no vote (3 seeds)"


def test_a_figure_may_be_put_together_from_recorded_ones(store):
    for seed, a in enumerate(spread(0.5)):
        figures = {"with/rho": [1.0, a + 0.2], "without/rho": [1.0, a], "with/size": 100.0, "without/size": 1.0}
        store.save(Result("e", {}, "book", seed, "finished", figures, {"c": 0.1}))
    figure = "with/rho[-1] less without/rho[-1]"
    evidence = {"experiment": "e", "figure": figure, "control": "c"}
    found = judge(Claim(**entry(rule="greater", evidence=evidence)), store)
    assert (found.verdict, found.ruling.ours) == ("holds", "0.2 [0.2, 0.2] (3 seeds)")
    (result, *_) = store.load("e")
    assert value_of(result, "log10 with/size less log10 without/size plus c") == pytest.approx(2.1)
    assert value_of(result, "with/rho less without/rho") == pytest.approx([0.0, 0.2])
    with pytest.raises(ValueError, match="figure 'with/rho less nobody/rho' is missing"):
        summarise([result], "with/rho less nobody/rho")


def test_one_comparison_in_a_list_is_judged_like_one_without(store):
    recorded(store, paired(spread(0.97), spread(0.5)))
    single = {key: value for key, value in EVIDENCE.items() if key != "experiment"}
    listed = {"experiment": "e", "compare": [single]}
    one, other = (judge(Claim(**entry(printed={"cosine": 0.97}, evidence=e)), store) for e in (EVIDENCE, listed))
    assert one.ruling == other.ruling
    assert one.ruling.because == "ours 0.97 [0.968, 0.972] (3 seeds); copy 0.5 [0.498, 0.502] (3 seeds)"


@pytest.mark.parametrize(
    ("copy", "noise", "verdict"),
    [
        (spread(0.5), spread(0.1), "holds"),
        (spread(0.97), spread(0.1), "trivial"),
        (spread(0.1), spread(0.97), "trivial"),
        (spread(0.97), spread(0.97, 0.01), "trivial"),
        (spread(0.1), spread(0.97, 0.01), "undecided"),
    ],
)
def test_of_several_controls_one_that_passes_makes_a_figure_trivial(store, copy, noise, verdict):
    runs = [({"cosine": a}, {"copy": b, "noise": c}) for a, b, c in zip(spread(0.97), copy, noise, strict=True)]
    recorded(store, runs)
    evidence = EVIDENCE | {"control": ["copy", "noise"]}
    assert verdict_of(store, printed={"cosine": 0.97}, evidence=evidence) == verdict


@pytest.mark.parametrize(("finished", "diverged"), [(0, 3), (3, 4), (3, 3), (2, 1)])
def test_runs_that_diverged_decide_nothing(store, finished, diverged):
    recorded(store, [({"cosine": [0.97]}, {"copy": [0.1]})] * finished)
    for seed in range(finished, finished + diverged):
        store.save(Result("e", {}, "book", seed, "diverged", {"cosine": math.nan}))
    assert verdict_of(store, printed={"cosine": 0.97}, evidence=EVIDENCE) == "undecided"


@pytest.mark.parametrize("lost", ["cosine", "copy"])
@pytest.mark.parametrize("values", [0.97, [0.97, 0.98]])
def test_a_model_that_diverged_with_every_seed_leaves_the_claim_undecided(store, lost, values):
    for seed in range(3):
        figures = {name: values for name in ("bare/cosine", "bare/copy") if not name.endswith(lost)}
        kept = {name.replace("bare", "other"): value for name, value in figures.items()}
        store.save(Result("e", {}, "book", seed, "finished", kept, kept, diverged={"bare": 3}))
    names = {name: f"{'bare' if name == lost else 'other'}/{name}" for name in ("cosine", "copy")}
    evidence = EVIDENCE | {"figure": names["cosine"], "control": names["copy"]}
    found = judge(Claim(**entry(printed={"cosine": values}, evidence=evidence)), store)
    assert found.verdict == "undecided"
    assert found.ruling.because == f"bare/{lost} diverged with 3 of 3 seeds"


@pytest.mark.parametrize("lost", ["cosine", "copy"])
def test_a_model_that_diverged_with_half_of_the_seeds_leaves_the_claim_undecided(store, lost):
    names = {name: f"{'bare' if name == lost else 'other'}/{name}" for name in ("cosine", "copy")}
    for seed in range(6):
        tables = {names["cosine"]: 0.97}, {names["copy"]: 0.5}
        diverged = {"bare": 3} if seed < 3 else {}
        kept = [{k: v for k, v in table.items() if not (diverged and k.startswith("bare"))} for table in tables]
        store.save(Result("e", {}, "book", seed, "finished", *kept, diverged=diverged))
    evidence = EVIDENCE | {"figure": names["cosine"], "control": names["copy"]}
    found = judge(Claim(**entry(printed={"cosine": 0.97}, evidence=evidence)), store)
    assert (found.verdict, found.ruling.because) == ("undecided", f"bare/{lost} diverged with 3 of 6 seeds")


@pytest.mark.parametrize(
    ("few", "value", "decided"),
    [
        ("ours", 0.97, "trivial"),  # the control is 0.97
        ("ours", 0.1, "fails"),
        ("control", 0.97, "trivial"),
        ("control", 0.1, "holds"),
    ],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_two_seeds_of_a_model_decide_nothing_though_the_experiment_has_more(store, few, value, decided, layers):
    """The model with this value finishes with two of four seeds, then with three of five; all else is 0.97."""
    for seeds, verdict in ((4, "undecided"), (5, decided)):
        for seed in range(seeds):
            lost = seed in (1, 3)
            figures = {"a/cosine": [0.97] * layers, **({} if lost else {"bare/cosine": [value] * layers})}
            result = Result("e", {}, "book", seed, "finished", figures, figures, {"bare": 9} if lost else {})
            store.save(result)
        names = ("bare/cosine", "a/cosine") if few == "ours" else ("a/cosine", "bare/cosine")
        evidence = EVIDENCE | {"figure": names[0], "control": names[1]}
        assert verdict_of(store, printed={"cosine": [0.97] * layers}, evidence=evidence) == verdict


def test_a_finished_run_without_a_figure_is_an_error(store):
    recorded(store, [({"cosine": math.nan}, {"copy": 0.1})] * 3)
    with pytest.raises(ValueError, match="X-1: a finished run recorded NaN"):
        verdict_of(store, printed={"cosine": 0.97}, evidence=EVIDENCE)


THEOREM = {"kind": "theorem", "rule": "attacked", "evidence": {"experiment": "e"}}
REPAIRED = THEOREM | {"repair": "condition", "corrected": "instead"}


def theorem(store, *runs, **changes):
    recorded(store, runs)
    return judge(Claim(**entry(**REPAIRED | changes)), store).ruling


BROKEN, STANDING = {"K": 9, "transposed": 1}, {"K": 9, "transposed": 0}


@pytest.mark.parametrize(
    ("printed", "corrected", "repair", "verdict", "repaired"),
    [
        ((0, BROKEN), (0, BROKEN), "condition", "holds", True),
        ((3, {}), (0, BROKEN), "condition", "holds with conditions", True),
        (
            (3, STANDING),
            (0, BROKEN),
            "condition",
            "holds with conditions",
            True,
        ),  # it is broken: no neighbour is needed
        ((3, {}), (0, BROKEN), "replacement", "fails", True),
        ((3, {}), (1, BROKEN), "condition", "fails", False),
        ((3, {}), (0, STANDING), "condition", "fails", False),  # a weak search proves nothing of our repair
        ((3, {}), (0, {}), "condition", "fails", False),
        ((0, STANDING), (0, BROKEN), "condition", "not yet measured", True),  # nor of what is printed
        ((0, {}), (0, BROKEN), "condition", "not yet measured", True),
    ],
)
def test_a_theorem_is_judged_by_the_attack_on_it(store, printed, corrected, repair, verdict, repaired):
    found = theorem(store, *[attack_run(printed_a=printed, corrected_b=corrected)] * 3, repair=repair)
    assert (found.verdict, found.repaired) == (verdict, repaired)


def test_a_reading_says_which_statements_count_and_in_which_role(store):
    """One that is left out, or is a step of the proof, decides nothing; ours may be what another sense prints."""
    run = attack_run(printed_a=(3, {}), printed_b=(0, {"K": 1}), corrected_c=(0, {"K": 1}))
    recorded(store, [run] * 3)

    def judged(statements, **changes):
        evidence = {"experiment": "e", "statements": statements}
        return judge(Claim(**entry(**REPAIRED | {"evidence": evidence} | changes)), store)

    assert judged({"printed": ["a", "b"], "corrected": ["c"]}).verdict == "holds with conditions"
    alone = judged({"printed": ["b"], "corrected": ["c"], "lemma": ["a"]}).ruling
    assert (alone.verdict, alone.repaired) == ("holds", True)
    assert "0 of 1 step of the proof stood" in alone.control
    assert judged({"printed": ["c"]}, repair="none", corrected="").verdict == "holds"
    with pytest.raises(ValueError, match="claim X-1: d was not attacked; recorded are c, a, b"):
        judged({"printed": ["d"]})

    others = [{"name": "all", "statements": {"printed": ["a"], "corrected": ["c"]}}]
    others += [{"name": "replaced", "statements": others[0]["statements"], "repair": "replacement"}]
    read = judged({"printed": ["b"], "corrected": ["c"]}, others=others)
    assert read.others == (("all", "holds with conditions"), ("replaced", "fails"))


def test_a_statement_counts_by_its_own_neighbours_and_not_by_those_of_another(store):
    run = attack_run(printed_a=(1, {}), corrected_b=(0, {"K": 99}), corrected_c=(0, {"K": 0}))
    found = theorem(store, run)
    assert (found.verdict, found.repaired) == ("fails", False)
    assert (
        found.control == "1 of 2 false neighbours broken in every seed; the search proves nothing of c, where K stood"
    )


def test_a_neighbour_must_be_broken_in_every_seed(store):
    strong, weak = (attack_run(printed_a=(1, {}), corrected_b=(0, {"K": n})) for n in (9, 0))
    assert theorem(store, strong, strong, strong).repaired
    found = theorem(store, strong, weak, strong)
    assert not found.repaired
    assert "proves nothing of b, where K stood" in found.because


def test_a_neighbour_that_one_seed_did_not_try_stands(store):
    tried, not_tried = (attack_run(printed_a=(1, {}), corrected_b=(0, n)) for n in (BROKEN, {"K": 9}))
    assert "proves nothing of b, where transposed stood" in theorem(store, not_tried, tried).because


def test_one_violation_in_one_seed_breaks_a_statement(store):
    runs = [attack_run(printed_a=(n, BROKEN), corrected_b=(0, BROKEN)) for n in (0, 1, 0)]
    assert theorem(store, *runs).verdict == "holds with conditions"
    runs = [attack_run(printed_a=(1, {}), corrected_b=(n, BROKEN)) for n in (0, 0, 1)]
    assert theorem(store, *runs).verdict == "fails"


def test_without_a_printed_statement_nothing_is_said_of_the_claim(store):
    found = theorem(store, *[attack_run(corrected_b=(0, BROKEN))] * 3)
    assert (found.verdict, found.repaired) == ("not yet measured", True)
    assert theorem(Store(store.folder / "none"), ({}, {})).verdict == "not yet measured"


@pytest.mark.parametrize("lemma", [(0, BROKEN), (0, STANDING), (0, {}), (7, BROKEN)])
@pytest.mark.parametrize(("printed", "corrected"), [((0, BROKEN), (0, BROKEN)), ((3, {}), (0, BROKEN))])
def test_a_step_of_a_proof_decides_nothing_and_is_counted_apart(store, printed, corrected, lemma):
    statements = {"printed_a": printed, "corrected_b": corrected}
    without = theorem(store, *[attack_run(**statements)] * 3)
    found = theorem(store, *[attack_run(**statements, lemma_c=lemma)] * 3)
    assert (found.verdict, found.repaired, found.ours) == (without.verdict, without.repaired, without.ours)
    stood = int(lemma == (0, BROKEN))
    assert found.control == f"{without.control}; apart from these, {stood} of 1 step of the proof stood"


def test_in_how_many_settings_a_neighbour_fell_is_read(store):
    figures, controls = attack_run(corrected_b=(0, {"K": 9, "M": 9}))
    counted = {"corrected/b/settings": 4, "corrected/b/broken_in/K": 4, "corrected/b/broken_in/M": 3}
    (one,) = rules.attacks([Result("e", {}, "book", 0, "finished", figures | counted, controls)])
    assert (one.settings, one.everywhere, one.standing) == (4, ("K",), ())
    (one,) = rules.attacks([Result("e", {}, "book", 0, "finished", figures, controls)])
    assert (one.settings, one.everywhere) == (0, ())


def test_two_seeds_break_a_statement_but_do_not_let_one_stand(store):
    held = attack_run(printed_a=(0, BROKEN), corrected_b=(0, BROKEN))
    assert theorem(store, held, held).verdict == "not yet measured"
    assert "needs at least 3 seeds" in theorem(store, held, held).because
    fallen = attack_run(printed_a=(1, {}), corrected_b=(0, BROKEN))
    assert (theorem(store, fallen).verdict, theorem(store, fallen).repaired) == ("fails", False)


def test_seeds_that_attacked_different_statements_are_refused(store):
    runs = attack_run(printed_a=(0, BROKEN)), attack_run(printed_a=(0, BROKEN), corrected_b=(0, BROKEN))
    with pytest.raises(ValueError, match="the seeds of e attacked different statements"):
        theorem(store, *runs)


def roles_in(claim, results):
    """{statement: role} of what counts in the claim's reading."""
    if named := claim.evidence.get("statements"):
        return {name: role for role, names in named.items() for name in names}
    return {one.name: one.role for one in rules.attacks(results)}


def violated(results, name):
    return any(n for r in results for k, n in r.figures.items() if k.endswith(f"/{name}/violations"))


def fooled(claim, results, rule=rules.attacked):
    """Every (seed, control) that may be set to zero by itself without the rule taking notice.

    To take notice is to change the verdict, or to withdraw our repair, and to name the statement. The neighbours of a
    statement that is broken itself are left out: a violation needs no further proof. A printed statement that stands
    beside one that fell is no ground of the verdict: there it is enough to name it. Steps of a proof, and statements
    that the reading leaves out, decide nothing.
    """
    before, missed, tried = rule(claim, results), [], 0
    roles = roles_in(claim, results)
    fallen = any(violated(results, name) for name, role in roles.items() if role == "printed")
    for number, result in enumerate(results):
        for key in (Key(k) for k in result.controls if "/broken/" in k):
            name = key.parts[1]
            role = roles.get(name)
            if role in (None, "lemma") or violated(results, name):
                continue
            tried += 1
            changed = replace(result, controls=result.controls | {str(key): 0})
            after = rule(claim, [*results[:number], changed, *results[number + 1 :]])
            noticed = (after.verdict, after.repaired) != (before.verdict, before.repaired)
            noticed = noticed or (role == "printed" and fallen)
            if not noticed or f" {name}, where" not in after.because:
                missed.append((result.seed, str(key)))
    return missed, tried


def of_attacks():
    return [claim for claim in read_claims() if claim.rule == "attacked"]


@pytest.mark.parametrize("claim", of_attacks(), ids=lambda claim: claim.id)
def test_no_recorded_search_may_lose_one_false_neighbour_unnoticed(claim):
    results = Store().load(claim.evidence["experiment"], claim.evidence.get("scale", "book"))
    missed, tried = fooled(claim, results)
    assert tried >= len(results) > 0, "no false neighbour is recorded"
    assert missed == []


@pytest.mark.parametrize("claim", of_attacks(), ids=lambda claim: claim.id)
def test_no_recorded_search_may_break_a_corrected_statement_unnoticed(claim):
    results = Store().load(claim.evidence["experiment"], claim.evidence.get("scale", "book"))
    assert rules.attacked(claim, results).repaired == bool(claim.corrected)
    ours = [name for name, role in roles_in(claim, results).items() if role == "corrected"]
    assert bool(ours) == bool(claim.corrected)
    for number, result in enumerate(results):
        for key in (Key("corrected", name, "violations") for name in ours):
            worst = Key(*key.parts[:-1], "worst")
            changed = replace(result, figures=result.figures | {str(key): 1, str(worst): 1.1})
            assert not rules.attacked(claim, [*results[:number], changed, *results[number + 1 :]]).repaired, key


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"violations": -1},
        {"violations": 0.4},
        {"violations": 101, "worst": 1.5},
        {"worst": 7.3},
        {"worst": math.nan},
        {"violations": 1},
    ],
)
def test_numbers_that_no_search_gives_are_refused(wrong):
    claim, (first, *others) = made_attack()
    changed = replace(first, figures=first.figures | {f"corrected/b/{what}": n for what, n in wrong.items()})
    with pytest.raises(ValueError, match=r"corrected/b has .* do not fit each other; record it anew"):
        rules.attacked(claim, [changed, *others])


@pytest.mark.parametrize("broken", [0.5, -1, math.inf, 101])
def test_a_neighbour_that_no_search_broke_so_often_is_refused(broken):
    claim, (first, *others) = made_attack()
    changed = replace(first, controls=first.controls | {"corrected/b/broken/K": broken})
    with pytest.raises(ValueError, match=r"corrected/b has .* do not fit each other"):
        rules.attacked(claim, [changed, *others])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"configuration": {"rounding": 1000.0}}, "allowed 1000.0 for rounding"),
        ({"configuration": {"shrunk": 1e-9}}, "shrank constants to 1e-09"),
        ({"status": "diverged"}, "did not finish"),
        ({"figures": {"Printed/a/attempts": 5}}, "must be printed/STATEMENT/attempts"),
        ({"figures": {"printed/a/b/attempts": 5}}, "must be printed/STATEMENT/attempts"),
        ({"figures": {"printed/a/attempts": [5]}}, "do not fit each other"),
    ],
)
def test_an_attack_that_says_nothing_is_refused(change, words):
    claim, results = made_attack()
    with pytest.raises(ValueError, match=words):
        rules.attacked(claim, [replace(r, **change) for r in results])


def test_a_printed_statement_that_one_seed_broke_by_less_than_an_integrator_errs_is_undecided():
    claim, results = made_attack()
    stands = {"printed/a/violations": 0, "printed/a/worst": 0.99}
    for worst, verdict in ((1.0005, "undecided"), (1.1, "holds with conditions")):
        first = replace(results[0], figures=results[0].figures | {"printed/a/violations": 1, "printed/a/worst": worst})
        others = [replace(r, figures=r.figures | stands) for r in results[1:]]
        assert rules.attacked(claim, [first, *others]).verdict == verdict


def test_a_repair_that_says_less_cannot_fall_where_the_printed_statement_stands():
    claim, results = made_attack()
    figures = {
        **{"printed/a/violations": 0, "printed/a/worst": 0.99},
        **{"corrected/b/violations": 1, "corrected/b/worst": 1.1},
    }
    contradicted = [replace(r, figures=r.figures | figures) for r in results]
    assert rules.attacked(claim, contradicted).verdict == "undecided"


@pytest.mark.parametrize("wrong", [{"printed_fails": 0.9}, {"printed_fails": -1}, {"undecided": math.nan}])
def test_findings_that_are_no_counts_are_refused(wrong):
    found = dict.fromkeys((*rules.FINDINGS, "broken"), 0) | {"printed_holds": 1}
    claim = Claim(**entry(kind="construction", rule="checked"))
    one = Result("check-X-1", {}, "book", 0, "finished", found)
    assert rules.checked(claim, [one]).verdict == "holds"
    for results in ([replace(one, figures=found | wrong)], [one, one], [replace(one, status="diverged")]):
        with pytest.raises(ValueError, match="one finished result of counts"):
            rules.checked(claim, results)


def test_seeds_with_different_settings_are_refused():
    claim, (first, *others) = made_attack()
    with pytest.raises(ValueError, match="were attacked with different settings"):
        rules.attacked(claim, [replace(first, configuration={"shrunk": 0.01}), *others])


def made_attack():
    """Three seeds: what is printed falls or stands, and ours stands; four neighbours that matter."""
    run = attack_run(
        printed_a=(5, {"bound": 5}),
        corrected_b=(0, {"K": 3, "M": 1}),
        corrected_c=(0, {"bound": 9, "transposed": 2}),
    )
    claim = Claim(**entry(**REPAIRED))
    return claim, [Result("e", {}, "book", seed, "finished", *run) for seed in range(3)]


def test_no_made_search_may_lose_one_false_neighbour_unnoticed():
    assert fooled(*made_attack()) == ([], 12)


def test_a_rule_that_adds_up_the_neighbours_of_all_statements_would_be_found_out():
    def pooled(claim, results):
        repaired = any(n for r in results for key, n in r.controls.items() if key.startswith("corrected/"))
        return rules.Ruling("holds", " b, where c, where", repaired)

    missed, tried = fooled(*made_attack(), rule=pooled)
    assert len(missed) == tried == 12


@pytest.mark.parametrize(
    ("found", "repair", "verdict"),
    [
        (findings(printed_holds=2), "none", "holds"),
        (findings(printed_fails=1, repair_holds=1), "condition", "holds with conditions"),
        (findings(printed_fails=1, repair_holds=1, repair_fails=1), "condition", "fails"),
        (findings(printed_fails=1, repair_holds=1), "replacement", "fails"),
        (findings(printed_fails=1, printed_holds=1), "none", "fails"),
        (findings(printed_holds=1, undecided=1), "none", "undecided"),
        (findings(printed_holds=2, broken=1), "none", "not yet measured"),
        (findings(repair_holds=1), "replacement", "not yet measured"),
    ],
)
def test_a_construction_is_judged_by_its_tests(store, found, repair, verdict):
    recorded(store, [(found, {})], "check-X-1")
    corrected = "" if repair == "none" else "instead"
    assert verdict_of(store, kind="construction", rule="checked", repair=repair, corrected=corrected) == verdict


@pytest.mark.parametrize(("scale", "verdict"), [({}, "holds"), ({"scale": "paper"}, "fails")])
def test_results_of_several_scales_are_not_mixed(store, scale, verdict):
    for name, value in (("book", 1.0), ("paper", 0.0), ("smoke", 0.0)):
        for seed in range(3):
            store.save(Result("x", {}, name, seed, "finished", {"ours": value}, {"nothing": 0.0}))
    evidence = {"experiment": "x", "figure": "ours", "control": "nothing", "printed": "value", **scale}
    claim = Claim(**entry(kind="measurement", rule="at_least", printed={"value": 0.9}, evidence=evidence))
    assert judge(claim, store).verdict == verdict


def test_without_evidence_a_claim_is_not_yet_measured(store):
    assert verdict_of(store) == "not yet measured"


def test_the_documentation_of_a_rule_begins_with_one_line_and_it_names_the_kinds_it_is_for():
    assert set(rules.RULES) == set(claims.RULE_KINDS)
    assert all(len(inspect.getdoc(rule).split("\n\n")[0].splitlines()) == 1 for rule in rules.RULES.values())
