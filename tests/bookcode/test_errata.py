import datetime
import re
from pathlib import Path

import pytest
import yaml

from pdebook import errata, ledger
from pdebook.ledger import Verdict

ROOT = Path(__file__).parents[2]
SLIPS = errata.read_errata()
CLAIMS = {claim.id: claim for claim in ledger.read_claims()}


def test_both_papers_have_entries_and_each_says_what_is_printed_and_what_would_be_right():
    assert {slip.paper for slip in SLIPS} == {"P1", "P2"}
    for slip in SLIPS:
        assert slip.printed != slip.right
        assert all(text.count("$") % 2 == 0 for text in (slip.printed, slip.right)), slip.id
        assert re.search(r"§|eqs? |appendix|Definition", slip.where), f"{slip.id} names no place"


def test_an_entry_quotes_a_few_words_at_most():
    for slip in SLIPS:
        for quoted in re.findall(r'"([^"]+)"', slip.printed):
            assert len(quoted.split()) <= 6, slip.id


def test_an_entry_leads_to_a_claim_of_its_own_paper_or_to_a_page():
    for slip in SLIPS:
        if slip.claim:
            assert slip.claim.startswith(slip.paper)
        if slip.chapter:
            assert (ROOT / "book" / f"{slip.chapter}.md").exists()


def entry(**changes):
    return {"id": "P1-e1", "where": "P1 eq 1", "kind": "sign", "printed": "$+a$", "right": "$-a$"} | changes


def errata_file(tmp_path, *entries):
    path = tmp_path / "errata.yml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "crime"}, "kind: must be 'sign', 'index', .*; not 'crime'"),
        ({"where": "P3 eq 1"}, r"where: must match pattern '.*P1\|P2.*'; not 'P3 eq 1'"),
        ({"claim": "P1-eq99"}, "claim: claims.yml has no claim 'P1-eq99'"),
        ({"verdict": "fails"}, "verdict: a verdict is computed from evidence; remove it"),
        ({"notes": "?"}, "notes: there is no such field; remove it"),
        ({"printed": 3}, "printed: must be a valid string; not 3"),
        ({"copy": "yes"}, "copy: must be a valid boolean; not 'yes'"),
        ({"reply": {"text": "no date"}}, "reply.date: is missing"),
    ],
)
def test_a_faulty_entry_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ValueError, match=rf"^\S+errata.yml, line \d+: erratum P1-e1: {words}"):
        errata.read_errata(errata_file(tmp_path, entry(**change)))


def test_a_missing_field_and_a_double_id_are_refused(tmp_path):
    short = {key: value for key, value in entry().items() if key != "right"}
    with pytest.raises(ValueError, match=r"^\S+errata.yml, line 1: erratum P1-e1: right: is missing$"):
        errata.read_errata(errata_file(tmp_path, short))
    with pytest.raises(ValueError, match=r"errata.yml: these ids are the same"):
        errata.read_errata(errata_file(tmp_path, entry(), entry()))


def test_the_page_shows_each_slip_of_its_paper_with_a_link(tmp_path):
    path = errata_file(tmp_path, entry(claim="P1-eq8", copy=True), entry(id="P2-e1", where="P2 eq 2"))
    page = errata.slips("P1", path)._repr_html_()
    assert "<dt>Printed</dt><dd>\\(+a\\)</dd>\n<dt>Right</dt><dd>\\(-a\\)</dd>" in page
    assert '<a href="ledger.ipynb#claim-p1-eq8">P1-eq8</a>' in page
    assert "conversion to text" in page
    assert "P2" not in page
    with pytest.raises(ValueError, match="paper must be one of P1, P2"):
        errata.slips("P3")


def test_a_reply_stands_beside_its_entry_whole_and_with_its_date(tmp_path):
    reply = {"date": datetime.date(2026, 1, 31), "text": "Thank you.\n\nThe sign is meant."}
    page = errata.slips("P1", errata_file(tmp_path, entry(reply=reply)))._repr_html_()
    assert "<p>2026-01-31</p><p>Thank you.</p><p>The sign is meant.</p></blockquote></dd>\n</dl></li>" in page


@pytest.mark.parametrize("verdict", list(Verdict))
def test_statements_are_those_of_the_ledger(verdict):
    outcomes = ledger.judge_all()
    for paper in errata.PAPERS:
        own = [o.claim for o in outcomes if o.verdict == verdict and o.claim.id.startswith(f"{paper}-")]
        for measured in (False, True):
            page = errata.statements(outcomes, paper, verdict, measured=measured)._repr_html_()
            listed = re.findall(r'<li id="statement-(claim-[\w-]+)"', page)
            assert listed == [claim.anchor for claim in own if (claim.kind == "measurement") == measured]
            assert page.count("<dt>How we measured</dt>") == (len(listed) if measured else 0)
            assert listed or "None." in page


def test_the_page_tells_slips_from_statements_and_says_how_a_reply_is_printed():
    text = " ".join((ROOT / "book" / "errata.md").read_text(encoding="utf-8").split())
    for words in ("in full beside it, unedited and with its date", "an issue in the book's repository"):
        assert words in text
    replies = [entry.reply for entry in (*SLIPS, *CLAIMS.values()) if entry.reply]
    assert ("None stands here yet" in text) == (not replies)
    for paper in errata.PAPERS:
        assert f'errata.slips("{paper}")' in text
        for verdict in ("FAILS", "CONDITIONS"):
            assert f'errata.statements(outcomes, "{paper}", ledger.Verdict.{verdict})' in text
        assert f'errata.statements(outcomes, "{paper}", ledger.Verdict.FAILS, measured=True)' in text
