import datetime
import inspect
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pdebook import ledger
from pdebook.evidence.run import find
from pdebook.kit.page import typeset
from pdebook.ledger import Claim, Verdict, claims, judge, pages, read_claims, rules
from pdebook.ledger.record import Result, Store

ROOT = Path(__file__).parents[2]

# Every claim of the two papers, of the review (R) and of the summaries (S). The ledger covers all of them.
IDS = """
P2-def3.1 P2-eq2 P2-eq4 P2-eq5 P2-eq6 P2-eq7 P2-eq8 P2-eq9 P2-eq10 P2-eq18 P2-eq19
P1-eq1 P1-eq3/14 P1-eq4/17 P1-eq6/7 P1-eq8 P1-eq9-11 P1-eq12/13 P1-eq16 P1-eq18/19 P1-eq20 P1-alg1 P1-eq22/23 P1-map
P2-thm3.2 P2-thm3.3 P2-thm3.4 P2-thm3.5 P2-cor3.7 P1-thm1 P1-thm2 P1-eq24
P2-align-mse P2-align-cos P2-align-spec P2-fidelity-T P2-fidelity-PDE P2-grad P2-ib-contrast P2-att-cos P2-att-kl
P2-spectrum P2-entropy P2-effdim P2-mi P2-sparsity P2-magnitude P2-diversity
P1-table2 P1-table3 P1-attention P1-ib P1-gradflow P1-perturb P1-fig7 P1-fig8 P1-fig9 P1-appB
R-disc R-arch R-limit S-ln S-res
""".split()

CLAIMS = {claim.id: claim for claim in read_claims()}


def test_every_claim_of_the_papers_has_an_entry():
    assert sorted(CLAIMS) == sorted(IDS)


@pytest.mark.parametrize("claim_id", IDS)
def test_every_entry_says_what_would_settle_it(claim_id):
    claim = CLAIMS[claim_id]
    assert len(claim.says) > 40
    assert claim.protocol or claim.reason
    assert claim.control or claim.kind != "measurement"
    assert all(text.count("$") % 2 == 0 for text in (claim.says, claim.protocol, claim.corrected, claim.control))


def test_no_verdict_is_typed_in_the_claims_or_in_the_pages():
    """The verdict words may be explained (notation, intro, ledger) but no page says one of a claim's id."""
    assert "verdict:" not in (ROOT / "data" / "claims.yml").read_text(encoding="utf-8")
    words = "|".join(v.value for v in Verdict)
    for page in (ROOT / "book").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(rf"(P[12]|R|S)-[\w./-]+[\s`*:]+({words})\b", text), page.name


def with_held(compare):
    return [one | {"control": [*one["control"], one["figure"].replace("/", "-held/")]} for one in compare]


def first(compare):
    return compare[:1]


def second(compare):
    return compare[1:]


OTHER_READINGS = [  # what a claim says of its verdict had we chosen otherwise
    ("P2-align-cos", {"figure": "distilled_printed/overall_cosine"}, "holds"),
    (
        "P2-align-spec",
        {"control": [f"{kind}/overall_mean_spectral" for kind in ("copy", "untrained_printed", "untrained_bare")]},
        "undecided",
    ),
    (
        "P2-ib-contrast",
        {"figure": "listops-best/early_contrast", "control": "listops-best/untrained_early_contrast"},
        "trivial",
    ),
    ("P2-spectrum", {"control": ["untrained_earlier/energy_gain", "shuffled/energy_gain"]}, "holds"),
    (
        "P2-entropy",
        {"figure": "listops-transformer/entropy_drop", "control": "listops-transformer/untrained_entropy_drop"},
        "undecided",
    ),
    (
        "P2-sparsity",
        {"figure": "rows-residual_norm/sparsity_fall", "control": "rows-residual_norm/untrained_sparsity_fall"},
        "holds",
    ),
    ("P2-magnitude", with_held, "trivial"),
    ("P2-magnitude", first, "trivial"),
    ("P2-diversity", first, "trivial"),
    ("P1-table2", first, "fails"),
    ("P1-table2", second, "trivial"),
    ("P1-gradflow", first, "holds"),
]


@pytest.mark.parametrize(("name", "change", "verdict"), OTHER_READINGS)
def test_what_a_claim_says_of_another_reading_is_what_its_rule_says(name, change, verdict):
    claim = next(c for c in read_claims() if c.id == name)
    changed = change if isinstance(change, dict) else {"compare": change(claim.evidence["compare"])}
    other = replace(claim, evidence=claim.evidence | changed)
    assert judge(other).verdict.value == verdict


def test_every_verdict_that_a_claim_names_is_computed_here():
    words = "|".join(v.value for v in Verdict)
    named = [(c.id, word) for c in read_claims() for word in re.findall(rf"\*({words})\*", c.protocol)]
    assert sorted(named) == sorted((name, verdict) for name, _, verdict in OTHER_READINGS)


@pytest.mark.parametrize("one", [first, second])
def test_noise_in_either_unit_gives_the_verdict_of_both(one):
    claim = next(c for c in read_claims() if c.id == "P1-perturb")
    alone = replace(claim, evidence=claim.evidence | {"compare": one(claim.evidence["compare"])})
    assert judge(alone).verdict == judge(claim).verdict


def entry(**changes):
    given = {"id": "X-1", "title": "A claim", "where": "here", "kind": "measurement", "says": "so"}
    return given | {"chapter": "c", "rule": "reproduced"} | changes


def claims_file(tmp_path, *entries):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "looks_right"}, "unknown rule 'looks_right'; it must be one of checked, attacked"),
        ({"verdict": "holds"}, "a verdict is computed"),
        ({"rule": "attacked"}, "attacked is not for a measurement"),
        ({"kind": "opinion"}, "unknown kind 'opinion'"),
        ({"notes": "?"}, r"unknown fields \['notes'\]"),
        ({"repair": "hope"}, "unknown repair 'hope'"),
        (
            {"evidence": {"experiment": "tables", "figure": "f", "control": "c", "printed": "p", "tolerance": 0.1}},
            "names 'p'",
        ),
        (
            {
                "rule": "greater",
                "evidence": {"experiment": "tables", "figure": "f", "control": "c", "tolerance": "1e-2"},
            },
            "tolerance must be a number",
        ),
        ({"printed": [1]}, r"printed must be a dict; not \[1\]"),
        ({"evidence": {"experiment": "tables", "figur": "f"}}, r"reads no \['figur'\] in evidence"),
        (
            {"kind": "theorem", "rule": "attacked", "evidence": {"experiment": "tables", "figure": "f"}},
            r"attacked reads no \['figure'\]",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "figure": "f", "control": "c", "compare": []}},
            r"'compare' and \['control', 'figure'\] beside it",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "compare": []}},
            "compare must be a list of comparisons",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "compare": [{"figure": "f"}]}},
            r"evidence needs \['control'\]",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "compare": [{"figure": "f", "control": []}]}},
            "control must be the name",
        ),
        (
            {
                "rule": "greater",
                "evidence": {"experiment": "tables", "compare": [{"figure": "f", "control": "c", "by": "layer"}]},
            },
            r"a comparison has no \['by'\]",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "figure": "f", "control": "c", "rows": "layer"}},
            "rows must be a list of names",
        ),
        (
            {
                "rule": "greater",
                "evidence": {"experiment": "tables", "compare": [{"figure": "f", "control": "c", "scale": "paper"}]},
            },
            r"a comparison has no \['scale'\]",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tabels", "figure": "f", "control": "c"}},
            "unknown experiment 'tabels' in evidence; there are heat_ends",
        ),
        (
            {"rule": "greater", "evidence": {"experiment": "tables", "scale": "big", "figure": "f", "control": "c"}},
            "unknown scale 'big' in evidence; there are smoke, book, paper",
        ),
        (
            {"kind": "construction", "rule": "checked", "evidence": {"experiment": "tables"}},
            "checked reads no evidence; remove the field 'evidence'",
        ),
        (
            {"rule": "untestable", "reason": "vague", "evidence": {"experiment": "tables"}},
            "untestable reads no evidence; remove the field 'evidence'",
        ),
        ({"reply": {"date": "soon", "text": "No."}}, "a reply has a date such as"),
        (
            {"evidence": {"experiment": "tables", "figure": "f", "control": "c"}},
            r"evidence needs \['printed', 'tolerance'\]",
        ),
        ({"repair": "condition"}, "'corrected' goes with a repair"),
        ({"kind": "theorem", "rule": "untestable"}, "'reason' goes with"),
    ],
)
def test_a_faulty_entry_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ValueError, match=f"claim X-1: .*{words}"):
        read_claims(claims_file(tmp_path, entry(**change)))


@pytest.mark.parametrize("text", ["", "id: X-1", "- one\n- two"])
def test_a_file_that_is_no_list_of_entries_is_refused(tmp_path, text):
    path = tmp_path / "claims.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"claims.yml must be a list of entries"):
        read_claims(path)


def test_a_printed_figure_keeps_its_digits(tmp_path):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump([entry()]) + "  printed: {cosine: 0.970}\n")
    (claim,) = read_claims(path)
    assert str(claim.printed["cosine"]) == "0.970"
    assert claim.printed["cosine"] == 0.97


def test_a_missing_field_and_a_double_id_are_refused(tmp_path):
    short = {key: value for key, value in entry().items() if key != "says"}
    with pytest.raises(ValueError, match=r"\['says'\] are missing"):
        read_claims(claims_file(tmp_path, short))
    with pytest.raises(ValueError, match="X-1"):
        read_claims(claims_file(tmp_path, entry(), entry()))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def recorded(store, runs, experiment="e"):
    for seed, (figures, controls) in enumerate(runs):
        store.save(Result(experiment, {}, "book", seed, "finished", figures, controls))


def verdict_of(store, **changes):
    return judge(Claim(**entry(**changes)), store).verdict


EVIDENCE = {"experiment": "e", "figure": "cosine", "control": "copy", "printed": "cosine", "tolerance": 0.005}
STRICT = {key: value for key, value in EVIDENCE.items() if key != "tolerance"}


def spread(centre, half=0.001):
    """Three values with this mean; Student's interval reaches 2.48 times `half` to either side."""
    return centre - half, centre, centre + half


def paired(ours, control, figure="cosine", name="copy"):
    return [({figure: a}, {name: b}) for a, b in zip(ours, control, strict=True)]


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


@pytest.mark.parametrize(
    ("difference", "shuffled", "verdict"),
    [
        (spread(2.0), spread(0.0), "holds"),  # a control of no difference, as it should be
        (spread(2.0), spread(0.0, 5.0), "undecided"),  # it may be as large as ours
        (spread(2.0, 0.5), spread(0.0, 0.5), "undecided"),  # it ends between our low end and our mean
        (spread(2.0), spread(-1.0), "holds"),
        (spread(2.0), spread(1.0), "trivial"),
        (spread(-2.0), spread(0.0), "fails"),
        (spread(2.0, 5.0), spread(-1.0), "undecided"),
    ],
)
def test_a_difference_is_above_zero_with_its_whole_interval(store, difference, shuffled, verdict):
    recorded(store, paired(difference, shuffled, "gap", "shuffled"))
    evidence = {"experiment": "e", "figure": "gap", "control": "shuffled"}
    assert verdict_of(store, rule="greater", evidence=evidence) == verdict


def test_lists_are_compared_layer_by_layer(store):
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho"}
    recorded(store, [({"rho": [1.0, 0.9]}, {"copy": [1.0, 1.0]})] * 3)
    assert verdict_of(store, printed={"rho": [1.0, 0.9]}, evidence=evidence) == "holds"
    assert verdict_of(store, printed={"rho": [1.0, 0.8]}, evidence=evidence) == "fails"
    with pytest.raises(ValueError, match="X-1: 2 values are ours, 2 control, 3 printed"):
        verdict_of(store, printed={"rho": [1.0, 0.9, 0.8]}, evidence=evidence)


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
        ((GOOD, BAD), (GOOD, GOOD), "holds"),
        ((GOOD, GOOD), (GOOD, GOOD), "trivial"),
        ((GOOD, BAD), (BAD, BAD), "fails"),
        ((BAD, BAD), (VAGUE, BAD), "fails"),
        ((GOOD, BAD), (VAGUE, BAD), "undecided"),
        ((GOOD, GOOD), (VAGUE, BAD), "undecided"),
        ((GOOD, BAD), (GOOD, VAGUE), "undecided"),
    ],
)
def test_several_printed_figures_make_one_verdict(store, pearson, spearman, verdict):
    """Fails if one fails, else undecided if one is, else trivial if all are, else holds."""
    runs = [
        ({"pearson": a, "spearman": b}, {"copy_pearson": c, "copy_spearman": d})
        for a, b, c, d in zip(pearson[0], spearman[0], pearson[1], spearman[1], strict=True)
    ]
    for order, experiment in ((TWO["compare"], "e"), (TWO["compare"][::-1], "mirrored")):
        recorded(store, runs, experiment)
        evidence = {"experiment": experiment, "compare": order}
        assert verdict_of(store, printed={"pearson": 0.5, "spearman": 0.5}, evidence=evidence) == verdict


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


def test_the_claims_with_two_printed_columns_can_be_compared_in_both(tmp_path, store):
    for claim_id, names in (("P1-table2", ("transformer", "pde")), ("P1-table3", ("pearson", "spearman"))):
        claim = CLAIMS[claim_id]
        evidence = {
            "experiment": claim_id,
            "compare": [{"figure": n, "control": f"{n}_noise", "printed": n, "tolerance": 0.005} for n in names],
        }
        columns = {name: [float(value) for value in claim.printed[name]] for name in names}
        noise = {f"{name}_noise": [0.0] * len(values) for name, values in columns.items()}
        recorded(store, [(columns, noise)] * 3, claim_id)
        outcome = judge(replace(claim, evidence=evidence), store)
        assert outcome.verdict == "holds"
        assert [len(one.ours) for one in outcome.ruling.comparisons] == [len(columns[n]) for n in names]
        worse = columns | {names[1]: [*columns[names[1]][:-1], columns[names[1]][-1] - 0.1]}
        recorded(store, [(worse, noise)] * 3, claim_id)
        assert judge(replace(claim, evidence=evidence), store).verdict == "fails"


def test_a_row_has_the_printed_figure_ours_and_the_control_with_intervals(store):
    recorded(store, paired(spread(0.97), spread(0.5)))
    claim = Claim(**entry(printed={"cosine": 0.97}, evidence=EVIDENCE))
    (row,) = ledger.rows([judge(claim, store)])
    assert list(row) == list(ledger.COLUMNS)
    assert row["printed"] == "cosine 0.97"
    assert row["ours"] == "0.97 [0.968, 0.972] (3 seeds)"
    assert row["control"] == "copy 0.5 [0.498, 0.502] (3 seeds)"
    assert (row["verdict"], row["rule"], row["from"], row["box"]) == ("holds", "reproduced", "e", "")
    page = ledger.table([judge(claim, store)])._repr_html_()
    assert '<th scope="col">printed</th><th scope="col">ours</th><th scope="col">copy</th>' in page
    assert "<td>0.97</td><td>0.97 [0.968, 0.972]</td><td>0.5 [0.498, 0.502]</td>" in page


def test_a_list_is_shown_with_an_interval_for_each_value(store):
    recorded(store, [({"rho": [1.0, a]}, {"copy": [0.0, 0.0]}) for a in spread(0.9)])
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho"}
    outcome = judge(Claim(**entry(printed={"rho": [1.0, 0.9]}, evidence=evidence)), store)
    (row,) = ledger.rows([outcome])
    assert row["ours"] == "1 [1, 1], 0.9 [0.898, 0.902] (3 seeds)"
    shown = '<th scope="row">2</th><td>0.9</td><td>0.9 [0.898, 0.902]</td>'
    assert shown in ledger.table([outcome])._repr_html_()
    named = judge(replace(outcome.claim, evidence=evidence | {"rows": ["L0", "a<b"]}), store)
    assert shown.replace(">2<", ">a&lt;b<") in ledger.table([named])._repr_html_()
    assert ledger.side_by_side(named).startswith("X-1, mean of 3 seeds: L0 to a<b\n")
    with pytest.raises(ValueError, match="X-1: rows has 1 names, and rho has 2 values"):
        judge(replace(outcome.claim, evidence=evidence | {"rows": ["L0"]}), store)


def test_the_columns_of_a_box_have_names_that_differ():
    for outcome in ledger.judge_all():
        for one in outcome.ruling.comparisons:
            names = ["printed", "ours", *(pages._apart(control, one.figure) for control in one.controls)]
            assert len(set(names)) == len(names), outcome.claim.id
    assert pages._apart("other_best/least", "best/least") == "2nd Transformer"
    assert pages._apart("untrained_printed/mse", "best/mse") == "untrained P2 eq 4"
    assert pages._apart("post_after/copy_pearson", "post_after/features_pearson") == "copy pearson"
    assert pages._apart("c", "c") == "c"


def test_every_value_of_a_list_has_a_name():
    several = [(o.claim, c) for o in ledger.judge_all() for c in o.ruling.comparisons if len(c.ours) > 1]
    assert len(several) >= 13
    for claim, comparison in several:
        assert len(claim.evidence["rows"]) == len(comparison.ours), claim.id


def test_printed_ours_and_controls_stand_side_by_side(store):
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho"}
    claim = Claim(**entry(printed={"rho": [1.0, 0.9]}, evidence=evidence))
    assert ledger.side_by_side(judge(claim, store)) == "X-1: no evidence is recorded yet"
    recorded(store, [({"rho": [1.0, a]}, {"copy": [0.0, -3e-5]}) for a in spread(0.9)])
    assert ledger.side_by_side(judge(claim, store)).split("\n") == [
        "X-1, mean of 3 seeds",
        "   1.000  0.900  printed",
        "   1.000  0.900  ours: rho",
        "   0.000 -3e-05  copy",
    ]


def test_an_attack_is_split_into_ours_and_control(store):
    figures = {f"{name}_attempts": 9 for name in ("printed", "corrected", "control")}
    figures |= {"printed_violations": 2, "corrected_violations": 0, "control_violations": 7}
    recorded(store, [(figures, {})])
    (row,) = ledger.rows([judge(Claim(**entry(kind="theorem", rule="attacked", evidence={"experiment": "e"})), store)])
    assert row["ours"] == "violations: 2 in 9 attempts on the printed; 0 in 9 attempts on the corrected"
    assert row["control"] == "violations: 7 in 9 attempts on the false control"


def test_every_rule_has_one_line_and_the_kinds_it_is_for():
    assert set(rules.RULES) == set(claims.RULE_KINDS)
    assert all(len(inspect.getdoc(rule).splitlines()) == 1 for rule in rules.RULES.values())


def test_every_source_of_evidence_is_a_place_in_the_repository():
    for outcome in ledger.judge_all():
        (row,) = ledger.rows([outcome])
        assert bool(row["from"]) == bool(outcome.sources)
        for place in row["from"].split():
            file, _, name = place.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), place


def test_a_row_leads_to_the_box_of_a_chapter_that_is_here():
    rows = {row["claim"]: row for row in ledger.rows(ledger.judge_all())}
    assert rows["P1-eq6/7"]["box"] == "book/first_look.html#box-p1-eq6-7"
    assert rows["R-disc"]["box"] in ("", "book/beyond.html#box-r-disc")


def test_outcomes_are_chosen_by_verdict_and_chapter_and_grouped_in_the_book_s_order():
    outcomes = ledger.judge_all()
    chosen = ledger.choose(outcomes, chapter="diffusion")
    assert {o.claim.chapter for o in chosen} == {"diffusion"}
    assert ledger.choose(outcomes) == outcomes
    for verdict in Verdict:
        both = ledger.choose(outcomes, verdict.value, "diffusion")
        assert len(both) == ledger.counts(chosen)[verdict.value]
    groups = ledger.by_chapter(outcomes)
    assert sum(map(len, groups.values())) == len(outcomes)
    assert list(groups).index("first_look") < list(groups).index("diffusion") < list(groups).index("stability")


def test_the_summary_counts_every_claim(store):
    recorded(store, [(findings(printed_holds=1), {})], "check-P1-eq6-7")
    words = ledger.summary(ledger.judge_all(store=store))
    untestable = sum(claim.rule == "untestable" for claim in CLAIMS.values())
    rest = f"{untestable} not testable as stated, {len(CLAIMS) - 1 - untestable} not yet measured"
    assert words.startswith(f"{len(CLAIMS)} claims: 1 holds, {rest}. By chapter")
    assert "first look: 1 holds;" in words


def test_a_reply_is_printed_whole_with_its_date(tmp_path, store):
    path = claims_file(tmp_path, entry(reply={"date": datetime.date(2026, 1, 31), "text": "We meant <c>.\n\nYours"}))
    page = ledger.table(ledger.judge_all(read_claims(path), store))._repr_html_()
    assert "<p>2026-01-31</p><p>We meant &lt;c&gt;.</p><p>Yours</p>" in page


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
    assert found.ruling.because == f"diverged with every seed: bare/{lost}"


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


@pytest.mark.parametrize(
    ("printed", "corrected", "control", "repair", "verdict"),
    [
        (0, 0, 9, "condition", "holds"),
        (3, 0, 9, "condition", "holds with conditions"),
        (3, 0, 9, "replacement", "fails"),
        (3, 1, 9, "condition", "fails"),
        (0, 0, 0, "condition", "not yet measured"),
    ],
)
def test_a_theorem_is_judged_by_the_attack_on_it(store, printed, corrected, control, repair, verdict):
    found = {"printed": printed, "corrected": corrected, "control": control}
    figures = {f"{name}_attempts": 100 for name in found} | {f"{name}_violations": n for name, n in found.items()}
    recorded(store, [(figures, {})])
    theorem = {"kind": "theorem", "rule": "attacked", "repair": repair, "corrected": "instead"}
    assert verdict_of(store, **theorem, evidence={"experiment": "e"}) == verdict


def findings(**counts):
    return dict.fromkeys((*ledger.FINDINGS, "broken"), 0) | counts


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


@pytest.mark.parametrize(
    ("found", "label"), [({"repair_holds": 1}, "True instead"), ({}, "Proposed instead, not yet tested")]
)
def test_our_own_statement_is_called_true_only_if_tested(store, found, label):
    recorded(store, [(findings(printed_fails=1, **found), {})], "check-X-1")
    claim = Claim(**entry(kind="construction", rule="checked", repair="replacement", corrected="that"))
    assert f"<dt>{label}</dt><dd>that</dd>" in ledger.table([judge(claim, store)])._repr_html_()


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


def test_recorded_findings_are_those_of_tests_that_exist():
    """A test that was renamed or removed must not go on giving evidence; `make record` writes the findings anew."""
    for claim_id in IDS:
        for result in Store().load(ledger.check_name(claim_id)):
            for node in result.configuration["tests"]:
                file, _, name = node.partition("::")
                assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), node


def test_the_box_and_the_table_show_claim_verdict_and_evidence(store):
    recorded(store, [(findings(printed_fails=2, repair_holds=1), {})], "check-P1-eq6-7")
    box = ledger.box("P1-eq6/7", store=store)
    assert "verdict-fails" in box._repr_html_()
    assert "2 against it, 1 for the repair" in box._repr_html_()
    assert 'id="box-p1-eq6-7"' in box._repr_html_()
    assert repr(box).startswith("P1-eq6/7: fails")
    table = ledger.table(ledger.judge_all(store=store))._repr_html_()
    assert all(f'id="{CLAIMS[claim_id].anchor}"' in table for claim_id in IDS)
    with pytest.raises(ValueError, match=r"unknown: \['P9'\]"):
        ledger.box("P9")


def test_formulas_and_markup_in_a_claim_are_escaped(monkeypatch, store):
    assert typeset("$a<b$ & c") == r"\(a&lt;b\) &amp; c"
    monkeypatch.setattr(ledger, "read_claims", lambda: [Claim(**entry(id='"<b>'))])
    page = ledger.box('"<b>', store=store)._repr_html_()
    assert 'aria-label="Verdict on &quot;&lt;b&gt;"' in page
    assert "<b>" not in page


def test_a_file_is_read_once_for_all_claims(monkeypatch):
    seen, read = [], Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: seen.append(path) or read(self, path))
    ledger.judge_all()
    assert seen
    assert len(set(seen)) == len(seen)


def test_an_experiment_has_the_scale_that_a_claim_names():
    for claim in CLAIMS.values():
        if claim.evidence:
            assert claim.evidence.get("scale", "book") in find(claim.evidence["experiment"]).scales, claim.id


def test_claims_name_recorded_figures_and_controls():
    """Also where the verdict waits for the paper's size: the book's runs have the same figures."""
    seen = 0
    for claim in read_claims():
        if claim.rule not in ("reproduced", "at_least", "at_most", "greater") or not claim.evidence:
            continue
        results = Store().load(claim.evidence["experiment"], "book")
        assert results, claim.id
        for result in results:
            for one in claim.comparisons:
                controls = one["control"] if isinstance(one["control"], list) else [one["control"]]
                assert one["figure"] in result.figures, claim.id
                assert set(controls) <= set(result.controls), claim.id
        seen += 1
    assert seen >= 23  # the nine claims on ListOps, eight on information and six on images and text
