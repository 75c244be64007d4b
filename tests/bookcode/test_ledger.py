"""The ledger as the book shows it: every claim, its verdict, its evidence and where that is."""

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_claims import EVIDENCE, attack_run, entry, findings, paired, recorded, spread

from pdebook import ledger
from pdebook.kit.page import typeset
from pdebook.ledger import Claim, Verdict, judge, pages, read_claims
from pdebook.ledger.claims import FAULTS
from pdebook.ledger.record import Result, Store

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claim in read_claims()}


def outcome(name):
    return judge(CLAIMS[name])


def first(compare):
    return compare[:1]


def second(compare):
    return compare[1:]


def test_no_verdict_of_another_reading_is_typed():
    words = "|".join(v.value for v in Verdict)
    texts = {c.id: f"{c.protocol} {c.reading['text'] if c.reading else ''} {c.control}" for c in CLAIMS.values()}
    assert not [name for name, text in texts.items() if re.search(rf"\*({words})\*", text)]


def test_what_the_rule_says_otherwise_is_computed_and_shown():
    found = outcome("P2-sparsity")
    assert [name for name, _ in found.others] == [other["name"] for other in found.claim.others]
    changed = {k: v for k, v in found.claim.others[0].items() if k != "name"}
    by_hand = replace(found.claim, others=[], evidence=found.claim.evidence | changed)
    assert found.others[0][1] == judge(by_hand).verdict
    assert "The same rule otherwise" in ledger.table([found])._repr_html_()
    assert ledger.rows([found])[0]["otherwise"].startswith("LayerNorm after each addition: ")


def test_every_other_reading_has_a_verdict_where_its_runs_are_recorded():
    for claim in CLAIMS.values():
        recorded_ones = [
            other["name"]
            for other in claim.others
            if Store().load(
                other.get("experiment", claim.evidence["experiment"]),
                other.get("scale", claim.evidence.get("scale", "book")),
            )
        ]
        shown = [name for name, _ in outcome(claim.id).others] if claim.others else []
        assert [name for name in shown if not name.startswith("at the papers' size")] == recorded_ones, claim.id


def made(store, scale, value, control):
    for seed in range(3):
        figures = {"cosine": value + 0.001 * seed}
        configuration = {"data": "listops-1000", "width": 8, "depth": 2, "settings": {"steps": 5}}
        store.save(Result("e", configuration, scale, seed, "finished", figures, control))


def test_a_verdict_names_its_size_and_what_the_rule_says_at_the_papers_size(store):
    made(store, "book", 0.97, {"copy": 0.1, "noise": 0.1})
    claim = Claim(**entry(printed={"cosine": 0.97}, evidence=EVIDENCE | {"control": ["copy", "noise"]}))
    found = judge(claim, store)
    size = "ListOps, up to 1,000 tokens, width 8, 2 layers, 5 steps, 3 seeds"
    assert (found.size, found.others) == (size, ())
    made(store, "paper", 0.5, {"copy": 0.1})
    found = judge(claim, store)
    assert found.others == ((f"at the papers' size, {size}, without the controls noise", Verdict.FAILS),)
    assert ledger.rows([found])[0]["size"] == size
    assert f"<dt>Decided at</dt><dd>{size}</dd>" in ledger.table([found])._repr_html_()


def test_a_reading_and_a_slip_stand_in_the_entry(store):
    claim = Claim(**entry(reading={"date": datetime.date(2026, 1, 31), "text": "so"}, fault="minus-u"))
    page = ledger.table([judge(claim, store)])._repr_html_()
    assert "<dt>Settled on 2026-01-31</dt><dd>so</dd>" in page
    assert "<dt>One slip in several entries</dt><dd>the -u beside" in page


def test_an_entry_links_to_the_state_of_the_playground_that_shows_it(store):
    claim = Claim(**entry(see={"at": "beta=6&norm=none", "look": "$a<b$"}))
    link = '<a href="playground.ipynb#beta=6&amp;norm=none">in the playground</a>'
    assert f"<dt>See it</dt><dd>{link}: \\(a&lt;b\\)</dd>" in ledger.table([judge(claim, store)])._repr_html_()


def test_counts_by_kind_and_by_source_add_up_and_a_slip_that_has_a_name_stands_in_several_entries():
    outcomes = ledger.judge_all()
    kinds, sources = ledger.by_kind(outcomes), ledger.by_source(outcomes)
    assert list(sources) == ["P1", "P2", "R", "S"]
    for verdict, n in ledger.counts(outcomes).items():
        assert sum(found[verdict] for found in kinds.values()) == n
        assert sum(found[verdict] for found in sources.values()) == n
    named = [name for claim in CLAIMS.values() for name in claim.fault]
    assert all(named.count(name) > 1 for name in FAULTS)
    assert all(o.fallen for found in ledger.by_fault(outcomes).values() for o in found)


def test_the_estimator_that_has_no_vote_on_the_texts_is_the_one_that_is_saturated():
    """At 95 per cent of H(Y), which `bins30_layer` is, with the labels in another order, in some layer at the end."""
    claim = CLAIMS["P1-ib"]
    results = Store().load("reference-text", "paper")
    estimators = results[0].configuration["deciding"]
    saturated = set()
    for r in results:
        for kind in ("transformer", "linear"):
            for layer in range(1, 5):
                top = r.controls[f"{kind}/information/shuffled_bins30_layer/{layer}"][-1]
                known = {e: r.controls[f"{kind}/information/shuffled_{e}/{layer}"][-1] for e in estimators}
                saturated |= {e for e, value in known.items() if value > 0.95 * top}
    rows = claim.evidence["rows"]
    assert [rows[estimators.index(e)] for e in saturated] == claim.evidence["without"]


@pytest.mark.parametrize("one", [first, second])
def test_noise_in_either_unit_gives_the_verdict_of_both(one):
    claim = next(c for c in read_claims() if c.id == "P1-perturb")
    alone = replace(claim, evidence=claim.evidence | {"compare": one(claim.evidence["compare"])})
    assert judge(alone).verdict == judge(claim).verdict


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


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
        claim = replace(claim, evidence=evidence, others=[])
        outcome = judge(claim, store)
        assert outcome.verdict == "holds"
        assert [len(one.ours) for one in outcome.ruling.comparisons] == [len(columns[n]) for n in names]
        worse = columns | {names[1]: [*columns[names[1]][:-1], columns[names[1]][-1] - 0.1]}
        recorded(store, [(worse, noise)] * 3, claim_id)
        assert judge(claim, store).verdict == "fails"


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


def test_an_attack_is_split_into_ours_and_control(store):
    recorded(store, [attack_run(printed_a=(2, {}), corrected_b=(0, {"K": 7, "bound": 1}))])
    (row,) = ledger.rows([judge(Claim(**entry(kind="theorem", rule="attacked", evidence={"experiment": "e"})), store)])
    assert row["ours"] == "broken: 1 of 1 printed statement (100 starts); 0 of 1 corrected statement (100 starts)"
    assert row["control"] == "2 of 2 false neighbours broken in every seed"


def test_the_table_of_an_attack_names_every_statement_and_neighbour(store):
    recorded(store, [attack_run(printed_a=(2, {}), corrected_b=(0, {"K": k, "a<b": 3})) for k in (7, 0)])
    page = ledger.attack_table("e", store)
    assert repr(page).split("\n")[1:] == [
        "statement | attempts | violations | worst | false neighbours that fell",
        "b | 200 | 0 | 0.99 | a<b; NOT K",
        "a (printed) | 200 | 4 | 1.5 | ",
    ]
    assert "b</th><td>200</td><td>0</td><td>0.99</td><td>a&lt;b; NOT K</td>" in page.markup
    with pytest.raises(ValueError, match="nothing is recorded of 'other'; record it with: pdelab run other"):
        ledger.attack_table("other", store)


def test_steps_of_the_proof_stand_last_in_the_table_of_an_attack(store):
    figures, controls = attack_run(lemma_step=(0, {"K": 7, "M": 7}), corrected_b=(0, {"K": 7}))
    counted = {"lemma/step/settings": 2, "lemma/step/broken_in/K": 2, "lemma/step/broken_in/M": 1}
    recorded(store, [(figures | counted, controls)])
    assert repr(ledger.attack_table("e", store)).split("\n")[2:] == [
        "b | 100 | 0 | 0.99 | K",
        "step (a step of the proof) | 100 | 0 | 0.99 | K, M (1 of 2 in each of 2 settings)",
    ]


def test_every_source_of_evidence_is_a_place_in_the_repository():
    for outcome in ledger.judge_all():
        (row,) = ledger.rows([outcome])
        assert bool(row["from"]) == bool(outcome.sources)
        for place in row["from"].split():
            file, _, name = place.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text or f"\n{name} = " in text, place


def test_a_row_leads_to_the_box_of_a_chapter_that_is_here():
    rows = {row["claim"]: row for row in ledger.rows(ledger.judge_all())}
    assert rows["P1-eq6/7"]["box"] == "book/first_look.html#box-p1-eq6-7"
    assert rows["R-disc"]["box"] in ("", "book/beyond.html#box-r-disc")


def test_outcomes_are_chosen_by_verdict_and_chapter_and_grouped_in_the_book_s_order():
    outcomes = ledger.judge_all()
    chosen = ledger.those(outcomes, chapter="diffusion")
    assert {o.claim.chapter for o in chosen} == {"diffusion"}
    assert ledger.those(outcomes) == outcomes
    for verdict in Verdict:
        both = ledger.those(outcomes, verdict.value, "diffusion")
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
    assert "first look: 1 holds" in words


def test_the_map_has_a_mark_a_claim_that_leads_to_its_entry_and_tells_verdicts_apart_without_colour():
    outcomes = ledger.judge_all()
    page = ledger.verdict_map(outcomes)
    found = re.findall(r'#(claim-[\w-]+)".*?mark-([\w-]+)">(.)<', page.markup)
    wanted = [(o.claim.anchor, ledger.slug(o.verdict), pages.MARKS[o.verdict.value]) for o in outcomes]
    assert sorted(found) == sorted(wanted)
    assert len(set(pages.MARKS.values())) == len(Verdict)
    assert repr(page) == ledger.summary(outcomes)


def test_a_reply_is_printed_whole_with_its_date(tmp_path, store):
    path = tmp_path / "claims.yml"
    path.write_text(
        yaml.safe_dump([entry(reply={"date": datetime.date(2026, 1, 31), "text": "We meant <c>.\n\nYours"})])
    )
    page = ledger.table(ledger.judge_all(read_claims(path), store))._repr_html_()
    assert "<p>2026-01-31</p><p>We meant &lt;c&gt;.</p><p>Yours</p>" in page


@pytest.mark.parametrize(
    ("found", "label"), [({"repair_holds": 1}, "True instead"), ({}, "Proposed instead, not yet tested")]
)
def test_our_own_statement_is_called_true_only_if_tested(store, found, label):
    recorded(store, [(findings(printed_fails=1, **found), {})], "check-X-1")
    claim = Claim(**entry(kind="construction", rule="checked", repair="replacement", corrected="that"))
    assert f"<dt>{label}</dt><dd>that</dd>" in ledger.table([judge(claim, store)])._repr_html_()


def test_recorded_findings_are_those_of_tests_that_exist():
    """A test that was renamed or removed must not go on giving evidence; `make record` writes the findings anew."""
    for claim_id in CLAIMS:
        for result in Store().load(ledger.check_name(claim_id)):
            for node in result.configuration["tests"]:
                file, _, name = node.partition("::")
                assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), node


def test_the_box_and_the_table_show_claim_verdict_and_evidence(store):
    recorded(store, [(findings(printed_fails=2, repair_holds=1), {})], "check-P1-eq6-7")
    box = ledger.case_file({"P1-eq6/7": "a reason & more"}, store=store)
    line = box._repr_html_().partition("</summary>")[0]
    assert "verdict-fails" in line
    assert "a reason &amp; more" in line
    assert "2 against it, 1 for the repair" in box._repr_html_()
    assert 'id="box-p1-eq6-7"' in box._repr_html_()
    assert repr(box).startswith("P1-eq6/7: fails")
    table = ledger.table(ledger.judge_all(store=store))._repr_html_()
    assert all(f'id="{CLAIMS[claim_id].anchor}"' in table for claim_id in CLAIMS)
    with pytest.raises(ValueError, match=r"unknown: \['P9'\]"):
        ledger.case_file({"P9": ""})


def test_formulas_and_markup_in_a_claim_are_escaped(monkeypatch, store):
    assert typeset("$a<b$ & c") == r"\(a&lt;b\) &amp; c"
    monkeypatch.setattr(pages, "read_claims", lambda: [Claim(**entry(id='"<b>'))])
    page = ledger.case_file({'"<b>': ""}, store)._repr_html_()
    assert 'aria-label="Verdict on &#34;&lt;b&gt;"' in page
    assert "<b>" not in page


def test_a_file_is_read_once_for_all_claims(monkeypatch):
    seen, read = [], Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: seen.append(path) or read(self, path))
    ledger.judge_all()
    assert seen
    assert len(set(seen)) == len(seen)
