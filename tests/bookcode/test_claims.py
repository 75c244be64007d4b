"""claims.yml: every claim of the papers is there, and a fault in the file is refused by name."""

import datetime
import re
from pathlib import Path

import pytest
import yaml
from made_claims import entry

from pdebook.evidence.run import find
from pdebook.ledger import Verdict, read_claims
from pdebook.ledger.claims import NEEDED, read_as
from pdebook.ledger.record import Store, names_in, recorded_in

ROOT = Path(__file__).parents[2]

# The claims of the two papers, of the review (R) and of the summaries (S): none may be lost, more may come.
IDS = """
P2-thesis-residual P2-thesis-norm
P2-def3.1 P2-eq2 P2-eq4 P2-eq5 P2-eq6 P2-eq7 P2-eq8 P2-eq9 P2-eq10 P2-eq18 P2-eq18-diffusion P2-eq19
P1-eq1 P1-eq3 P1-eq14 P1-eq4/17
P1-eq6/7 P1-eq8 P1-eq9-11 P1-eq12/13 P1-eq16 P1-eq18/19 P1-eq20 P1-alg1 P1-eq22/23 P1-map
P2-thm3.2 P2-thm3.3 P2-thm3.4 P2-thm3.5 P2-cor3.7 P1-thm1 P1-thm2 P1-thm2-lax P1-eq24
P2-fig2 P2-align-mse P2-align-cos P2-align-spec
P2-fidelity-T P2-fidelity-PDE P2-fig4-contrast P2-grad P2-ib-contrast P2-att-cos P2-att-kl
P2-spectrum P2-entropy P2-effdim P2-mi P2-fig9-path P2-sparsity P2-magnitude P2-diversity P2-diversity-dip
P1-table2 P1-table3 P1-fig2-curves P1-colour P1-stable P1-attention P1-ib P1-gradflow P1-perturb
P1-fig7 P1-fig8 P1-fig9 P1-appB
R-disc R-arch R-limit R-align S-ln S-res S-ffn
""".split()

CLAIMS = {claim.id: claim for claim in read_claims()}


def test_every_claim_of_the_papers_has_an_entry():
    assert not set(IDS) - set(CLAIMS)


@pytest.mark.parametrize("claim_id", CLAIMS)
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
    for page in (ROOT / "book").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(rf"(P[12]|R|S)-[\w./-]+[\s`*:]+({words})\b", text), page.name


def claims_file(tmp_path, *entries):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


def evidence(rule="greater", **named):
    """A measurement with this evidence, of an experiment that exists."""
    return {"rule": rule, "evidence": {"experiment": "tables", **named}}


PAIR = evidence(figure="f", control="c")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "looks_right"}, "rule: must be 'checked', 'attacked', .*; not 'looks_right'"),
        ({"verdict": "holds"}, "verdict: a verdict is computed from evidence; remove it"),
        ({"rule": "attacked"}, "rule: attacked is not for a measurement, but for a theorem"),
        ({"kind": "opinion"}, "kind: must be 'construction', 'theorem' or 'measurement'; not 'opinion'"),
        ({"notes": "?"}, "notes: there is no such field; remove it"),
        ({"repair": "hope"}, "repair: must be 'condition', 'replacement' or 'none'; not 'hope'"),
        ({"title": 3}, "title: must be a valid string; not 3"),
        ({"printed": [1]}, r"printed: must be a valid dictionary; not \[1\]"),
        (
            evidence("reproduced", figure="f", control="c", printed="p", tolerance=0.1),
            "evidence.printed: it names 'p', which the field 'printed' lacks",
        ),
        (evidence(figure="f", control="c", tolerance="1e-2"), "evidence.tolerance: must be a valid number; not '1e-2'"),
        (evidence(figur="f"), "evidence.figur: there is no such field; remove it"),
        (
            {"kind": "theorem"} | evidence("attacked", figure="f"),
            "evidence: the rule attacked reads no figure; remove it",
        ),
        (
            evidence(figure="f", control="c", compare=[{"figure": "f", "control": "c"}]),
            "evidence: control, figure beside 'compare'; put it into the comparisons",
        ),
        (evidence(compare=[]), "evidence.compare: must have at least 1 item"),
        (evidence(compare=[{"figure": "f"}]), "evidence: the rule greater needs control too"),
        (evidence(compare=[{"figure": "f", "control": []}]), "evidence.compare.0.control: must have at least 1 item"),
        (evidence(figure="f", control=3), "evidence.control: must be a valid list; not 3"),
        (
            evidence(compare=[{"figure": "f", "control": "c", "by": "layer"}]),
            "evidence.compare.0.by: there is no such field; remove it",
        ),
        (
            evidence(compare=[{"figure": "f", "control": "c", "scale": "paper"}]),
            "evidence.compare.0.scale: there is no such field; remove it",
        ),
        (evidence(figure="f", control="c", rows="layer"), "evidence.rows: must be a valid list; not 'layer'"),
        (
            evidence(experiment="tabels", figure="f", control="c"),
            "evidence.experiment: must be one of .*heat_ends, .*; not 'tabels'",
        ),
        ({"rule": "greater", "evidence": {"figure": "f", "control": "c"}}, "evidence.experiment: must be .*; not None"),
        (
            evidence(scale="big", figure="f", control="c"),
            "evidence.scale: must be 'book' or 'paper'; not 'big'",
        ),
        (
            {"kind": "construction"} | evidence("checked"),
            "evidence: the rule checked reads no experiment; remove it",
        ),
        (
            {"reason": "vague"} | evidence("untestable"),
            "evidence: the rule untestable reads no experiment; remove it",
        ),
        ({"reply": {"date": "soon", "text": "No."}}, "reply.date: must be a valid date; not 'soon'"),
        ({"reply": {"date": datetime.date(2026, 1, 31), "text": ""}}, "reply.text: must have at least 1 character"),
        (
            evidence("reproduced", figure="f", control="c"),
            "evidence: the rule reproduced needs printed, tolerance too",
        ),
        ({"repair": "condition"}, "corrected: it goes with a repair"),
        ({"corrected": "so"}, "corrected: it goes with a repair"),
        ({"kind": "theorem", "rule": "untestable"}, "reason: it goes with the rule untestable"),
        ({"reason": "vague"}, "reason: it goes with the rule untestable"),
        ({"fault": "a slip"}, "fault: a slip is not among minus-u, "),
        ({"see": {"at": "beta=6"}}, "see.look: is missing"),
        ({"see": {"at": "beta=600", "look": "so"}}, "see.at: beta must be a number from 0 to 25; not 600"),
        ({"see": {"at": "bet=6", "look": "so"}}, "see.at: there is no setting 'bet'"),
        ({"see": {"at": "norm=none&beta=6", "look": "so"}}, "see.at: the playground writes 'beta=6&norm=none'"),
        ({"see": {"at": "beta=four", "look": "so"}}, "see.at: beta must be a number from 0 to 25; not 'four'"),
        ({"reading": {"text": "so"}}, "reading.date: is missing"),
        ({"others": [{"figure": "f"}]}, "others.0.name: is missing"),
        (
            {"kind": "construction", "rule": "checked", "others": [{"name": "n"}]},
            "others: the rule checked has one reading; remove it",
        ),
        (
            evidence(figure="f", control="c") | {"others": [{"name": "n", "experiment": "tabels"}]},
            "others.experiment: must be one of .*; not 'tabels'",
        ),
        (PAIR | {"others": [{"name": "n", "only": ["f", "typo"]}]}, "others.0.only: typo is not among the figures f$"),
        (
            PAIR | {"others": [{"name": "n", "control": "d"}, {"name": "n", "control": "e"}]},
            "others.1.name: 'n' is the name of another reading, too",
        ),
        (PAIR | {"others": [{"name": "n"}]}, "others.0: 'n' changes nothing"),
        (PAIR | {"others": [{"name": "n", "only": "f", "scale": "book"}]}, "others.0: 'n' changes nothing"),
        ({"others": [{"name": "n", "figure": "f"}]}, "others.0: there is no evidence"),
        (PAIR | {"others": [{"name": "n", "without": ["a"]}]}, "others.0: evidence.without: a is not among the rows"),
        (
            evidence(figure="f", control="c", without=["typo"]),
            r"evidence.without: typo is not among the rows \(none\)$",
        ),
        (
            evidence(figure="f", control="c", rows=["a", "b"], without=["typo"]),
            "evidence.without: typo is not among the rows a, b$",
        ),
        (
            evidence(figure="f", control="c", rows=["a", "b"], without=["a"]),
            "evidence.without: what does not count needs a reason in 'reading'",
        ),
        (evidence(figure="f", control="c", votes=""), "evidence.votes: must have at least 1 character"),
        (
            evidence(figure="f less g", control="c", votes="v"),
            "evidence.votes: no votes are recorded on 'f less g', which is put together",
        ),
        (
            evidence(compare=[{"figure": "f", "control": ["c", "d[0]"], "votes": "v"}]),
            r"evidence.votes: no votes are recorded on 'd\[0\]', which is put together",
        ),
    ],
)
def test_a_faulty_entry_is_refused_by_name(tmp_path, change, words):
    with pytest.raises(ValueError, match=rf"^\S+claims.yml, line \d+: claim X-1: {words}"):
        read_claims(claims_file(tmp_path, entry(**change)))


@pytest.mark.parametrize("text", ["", "id: X-1", "- one\n- two"])
def test_a_file_that_is_no_list_of_entries_is_refused(tmp_path, text):
    path = tmp_path / "claims.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^\S+claims.yml must be a list of entries"):
        read_claims(path)


def test_a_printed_figure_keeps_its_digits(tmp_path):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump([entry()]) + "  printed: {cosine: 0.970}\n")
    (claim,) = read_claims(path)
    assert str(claim.printed["cosine"]) == "0.970"
    assert claim.printed["cosine"] == 0.97


def test_every_fault_of_an_entry_is_named_at_once(tmp_path):
    path = tmp_path / "claims.yml"
    text = "# two entries\n- {id: X-1, title: t, where: w, says: s}\n\n- id: X-2\n  title: t\n  where: w\n"
    path.write_text(f"{text}  kind: opinion\n  says: s\n  chapter: c\n  rule: looks_right\n  notes: '?'\n")
    with pytest.raises(ValueError, match="claim X-1: kind: is missing") as error:
        read_claims(path)
    assert [line.partition(": ")[0] for line in str(error.value).splitlines()] == [f"{path}, line 2"] * 3
    path.write_text(path.read_text().replace("s}", "s, kind: construction, chapter: c, rule: checked}"))
    with pytest.raises(ValueError, match="claim X-2: kind: must be") as error:
        read_claims(path)
    said = [line.split(": ")[:3] for line in str(error.value).splitlines()]
    assert said == [
        [f"{path}, line {n}", "claim X-2", field] for n, field in ((7, "kind"), (10, "rule"), (11, "notes"))
    ]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        (
            "  title: The law: a claim",
            "line 3, column 17",
            "mapping values are not allowed here; indent with spaces; words",
        ),
        ('  title: "$\\Omega$"', "line 3, column 13", "found unknown escape character 'O'; indent .* after >-"),
        ("  title: `a`", "line 3, column 10", "found character '`' that cannot start any token; indent"),
        ("\ttitle: a", "line 3, column 1", r"found character '\\t' that cannot start any token; indent with spaces"),
        (" title: a", "line 3, column 2", "expected <block end>, .*; indent"),
        ("  title: [a", r"line 4, column \d+", "expected ',' or ']', .*; indent"),
        ("  title: \x07", "line 3", "character 0x7 is not allowed; remove it"),
        ("  title: !!set a", "line 2", "claim X-1: expected a mapping node"),
        ("  title: 2026-02-31", "line 2", "claim X-1: day is out of range for month"),
        ("  3: a", "line 3", "claim X-1: 3: there is no such field; remove it"),
    ],
)
def test_what_yaml_cannot_read_has_a_place_and_an_advice(tmp_path, line, place, words):
    path = tmp_path / "claims.yml"
    path.write_text(f"# claims\n- id: X-1\n{line}\n  where: here\n")
    with pytest.raises(ValueError, match=rf"(?m)^\S+claims.yml, {place}: {words}"):
        read_claims(path)


def test_a_missing_field_and_a_double_id_are_refused(tmp_path):
    short = {key: value for key, value in entry().items() if key != "says"}
    with pytest.raises(ValueError, match=r"^\S+claims.yml, line 1: claim X-1: says: is missing$"):
        read_claims(claims_file(tmp_path, short))
    with pytest.raises(ValueError, match="X-1"):
        read_claims(claims_file(tmp_path, entry(), entry()))


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
        for result in Store().load(claim.evidence["experiment"], "book"):  # the run that decides may be still to come
            for one in claim.comparisons:
                assert recorded_in(result, one["figure"]), claim.id
                assert all(recorded_in(result, name, control=True) for name in one["control"]), claim.id
                for name, control in ((one["figure"], False), *((name, True) for name in one["control"])):
                    own = one["figure"].rpartition("/")[2]
                    votes = name.removesuffix(own) + one["votes"] if "votes" in one else name
                    assert recorded_in(result, votes, control=control), (claim.id, votes)
            seen += result.seed == 0
    assert seen >= 29


# what may stand before a figure's own name: of which model, data, weights, unit or axis it is
PREFIXES = ("untrained_", "shuffled_", "all_", "relative_", "features_", "y_", "untrained_y_")
PREFIXES += ("whole_", "blended_", "halved_")  # of which step, and refined how
WRITTEN = {"log10_gradient_norm_ratio": "log10_gradient_{n}_ratio"}  # put together from parts
WRITTEN |= {"gradient_rms_spread": "gradient_{kind}_spread"}
WRITTEN |= {f"{word}y_ratio0.03": "ratio{RATIO}" for word in ("", "untrained_")}
WRITTEN |= {f"{word}y_level6.0": "level{LEVEL}" for word in ("", "untrained_")}


def places(name):
    """The files in which a search for the name of a figure, as a text that ends there, finds it."""
    words = {WRITTEN.get(name, name), *(name.removeprefix(prefix) for prefix in PREFIXES)}
    sources = [path for folder in ("chapters", "evidence") for path in (ROOT / "book/pdebook" / folder).rglob("*.py")]
    return [path for path in sources if any(f'{word}"' in path.read_text(encoding="utf-8") for word in words)]


def test_a_search_for_a_figure_leads_to_the_code_that_computes_it():
    named = {
        name.rpartition("/")[2]
        for claim in CLAIMS.values()
        if claim.rule in NEEDED and claim.evidence
        for read in (claim, *(read_as(claim, other) for other in claim.others))
        for one in read.comparisons
        for figure in (one["figure"], *one["control"])
        for name in names_in(figure)
    }
    assert len(named) > 40
    assert not [name for name in named if not places(name)]
    assert not places("a_figure_that_nobody_computes")
    assert set(WRITTEN) <= named
