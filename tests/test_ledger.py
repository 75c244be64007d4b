import math
import re
from pathlib import Path

import pytest
import yaml

from pdelab import ledger
from pdelab.ledger import Claim, Verdict, judge, read_claims
from pdelab.results import Result, Store

ROOT = Path(__file__).parents[1]

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
        ({"rule": "looks_right"}, "unknown rule 'looks_right'; the rules are checked, attacked"),
        ({"verdict": "holds"}, "a verdict is computed"),
        ({"rule": "attacked"}, "attacked is not for a measurement"),
        ({"kind": "opinion"}, "kind must be one of"),
        ({"notes": "?"}, r"unknown fields \['notes'\]"),
        ({"repair": "hope"}, "repair must be one of"),
        ({"repair": "condition"}, "'corrected' goes with a repair"),
        ({"kind": "theorem", "rule": "untestable"}, "'reason' goes with"),
    ],
)
def test_a_faulty_entry_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ValueError, match=f"claim X-1: .*{words}"):
        read_claims(claims_file(tmp_path, entry(**change)))


def test_a_missing_field_and_a_double_id_are_refused(tmp_path):
    short = {key: value for key, value in entry().items() if key != "says"}
    with pytest.raises(ValueError, match=r"\['says'\] are missing"):
        read_claims(claims_file(tmp_path, short))
    with pytest.raises(ValueError, match="stand twice: X-1"):
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


@pytest.mark.parametrize(
    ("ours", "copy", "verdict"),
    [(0.97, 0.5, "holds"), (0.97, 0.972, "trivial"), (0.6, 0.5, "fails"), (0.6, 0.97, "fails")],
)
def test_reproduced_needs_the_printed_figure_and_a_control_without_it(store, ours, copy, verdict):
    recorded(store, [({"cosine": ours + noise}, {"copy": copy}) for noise in (-0.001, 0.0, 0.001)])
    assert verdict_of(store, printed={"cosine": 0.97}, evidence=EVIDENCE) == verdict


@pytest.mark.parametrize(
    ("ours", "copy", "verdict"), [(0.99, 0.5, "holds"), (0.99, 0.98, "trivial"), (0.9, 0.5, "fails")]
)
def test_thresholds_are_met_by_the_whole_interval(store, ours, copy, verdict):
    runs = [({"cosine": ours + noise}, {"copy": copy + noise}) for noise in (-0.001, 0.0, 0.001)]
    recorded(store, runs)
    assert verdict_of(store, rule="at_least", printed={"cosine": 0.97}, evidence=EVIDENCE) == verdict
    mirrored = [({"cosine": -f["cosine"]}, {"copy": -c["copy"]}) for f, c in runs]
    recorded(store, mirrored, "mirrored")
    evidence = EVIDENCE | {"experiment": "mirrored"}
    assert verdict_of(store, rule="at_most", printed={"cosine": -0.97}, evidence=evidence) == verdict


def test_one_seed_decides_nothing(store):
    recorded(store, [({"cosine": 0.99}, {"copy": 0.1})])
    for rule in ("at_least", "reproduced"):
        assert verdict_of(store, rule=rule, printed={"cosine": 0.97}, evidence=EVIDENCE) == "not yet measured"


@pytest.mark.parametrize(
    ("difference", "shuffled", "verdict"), [(2.0, 0.0, "holds"), (2.0, 2.0, "trivial"), (0.0, 0.0, "fails")]
)
def test_a_difference_is_above_zero_with_its_whole_interval(store, difference, shuffled, verdict):
    recorded(store, [({"gap": difference + n}, {"shuffled": shuffled + n}) for n in (-0.1, 0.0, 0.1)])
    evidence = {"experiment": "e", "figure": "gap", "control": "shuffled"}
    assert verdict_of(store, rule="greater", evidence=evidence) == verdict


def test_lists_are_compared_layer_by_layer(store):
    evidence = EVIDENCE | {"figure": "rho", "printed": "rho"}
    recorded(store, [({"rho": [1.0, 0.9]}, {"copy": [1.0, 1.0]})] * 2)
    assert verdict_of(store, printed={"rho": [1.0, 0.9]}, evidence=evidence) == "holds"
    assert verdict_of(store, printed={"rho": [1.0, 0.8]}, evidence=evidence) == "fails"
    with pytest.raises(ValueError, match="X-1: 2 values are ours, 2 control, 3 printed"):
        verdict_of(store, printed={"rho": [1.0, 0.9, 0.8]}, evidence=evidence)


def test_seeds_that_all_diverged_reproduce_nothing(store):
    for seed in (0, 1):
        store.save(Result("e", {}, "book", seed, "diverged", {"cosine": math.nan}, {"copy": 0.1}))
    assert verdict_of(store, printed={"cosine": 0.97}, evidence=EVIDENCE) == "fails"


@pytest.mark.parametrize(
    ("printed", "corrected", "repair", "verdict"),
    [
        (0, 0, "condition", "holds"),
        (3, 0, "condition", "holds with conditions"),
        (3, 0, "replacement", "fails"),
        (3, 1, "condition", "fails"),
    ],
)
def test_a_theorem_is_judged_by_the_attack_on_it(store, printed, corrected, repair, verdict):
    figures = {"printed_attempts": 100, "printed_violations": printed}
    figures |= {"corrected_attempts": 100, "corrected_violations": corrected}
    recorded(store, [(figures, {})])
    theorem = {"kind": "theorem", "rule": "attacked", "repair": repair, "corrected": "instead"}
    assert verdict_of(store, **theorem, evidence={"experiment": "e"}) == verdict


@pytest.mark.parametrize(
    ("holds", "fails", "mended", "failed", "repair", "verdict"),
    [
        (2, 0, 0, 0, "none", "holds"),
        (0, 1, 1, 0, "condition", "holds with conditions"),
        (0, 1, 1, 0, "replacement", "fails"),
        (1, 1, 0, 0, "none", "fails"),
        (2, 0, 0, 1, "none", "not yet measured"),
        (0, 0, 1, 0, "replacement", "not yet measured"),
    ],
)
def test_a_construction_is_judged_by_its_tests(store, holds, fails, mended, failed, repair, verdict):
    figures = {"printed_holds": holds, "printed_fails": fails, "repair_holds": mended, "failed": failed}
    recorded(store, [(figures, {})], "check-X-1")
    corrected = "" if repair == "none" else "instead"
    assert verdict_of(store, kind="construction", rule="checked", repair=repair, corrected=corrected) == verdict


def test_without_evidence_a_claim_is_not_yet_measured(store):
    assert verdict_of(store) == "not yet measured"


def test_recorded_tests_are_those_that_exist(request):
    """Adding, renaming or removing evidence without recording it again would leave the ledger with stale words."""
    recorded_tests = {
        (claim_id, node, shows)
        for claim_id in IDS
        for result in Store().load(ledger.check_name(claim_id))
        for node, shows in result.configuration["tests"].items()
    }
    collected = {
        (mark.args[0], item.nodeid, mark.kwargs["shows"])
        for item in request.session.items
        for mark in item.iter_markers("claim")
    }
    assert {claim_id for claim_id, *_ in collected} <= set(IDS)
    assert {shows for *_, shows in collected} <= set(ledger.SHOWS)
    assert collected <= recorded_tests, "run make record"
    gone = {node for _, node, _ in recorded_tests if f"def {node.split('::')[1].split('[')[0]}(" not in source_of(node)}
    assert not gone, "run make record"


def source_of(node):
    path = ROOT / node.split("::")[0]
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_the_box_and_the_table_show_claim_verdict_and_evidence():
    box = ledger.box("P1-eq6/7")
    assert "verdict-fails" in box._repr_html_()
    assert "3 against it, 1 for the repair" in box._repr_html_()
    assert repr(box).startswith("P1-eq6/7: fails")
    table = ledger.table()._repr_html_()
    assert all(f'id="{CLAIMS[claim_id].anchor}"' in table for claim_id in IDS)
    with pytest.raises(ValueError, match=r"unknown: \['P9'\]"):
        ledger.box("P9")


def test_formulas_and_markup_in_a_claim_are_escaped():
    assert ledger._typeset("$a<b$ & c") == r"\(a&lt;b\) &amp; c"
