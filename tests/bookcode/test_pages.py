"""Nothing that stands in a field of claims.yml, errata.yml or a Result becomes markup on the pages made from them."""

import datetime
from dataclasses import fields
from html.parser import HTMLParser

import pytest
from book_extension import link_pages, link_sources
from made_claims import attack_run, findings, spread

from pdebook import errata, ledger
from pdebook.ledger import Claim, Verdict, judge, pages
from pdebook.ledger.errata import Slip
from pdebook.ledger.record import Result

HARM = """</dd></p><script>harm()</script><img src=x onerror=harm()>" onclick="harm()" ' | `harm` """
HARM += "[a](javascript:harm()) ![b](javascript:harm()) {{ 7 * 7 }} <!-- --> &lt;b&gt;"
DAY = datetime.date(2026, 1, 31)


class Skeleton(HTMLParser):
    """The tags of a page with the names of their attributes, and all text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.addresses, self.text = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *(name for name, _ in attributes)))
        self.addresses += [value for name, value in attributes if name in ("href", "src")]

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_comment(self, data):
        self.tags.append("comment")

    def handle_data(self, data):
        self.text += data


def a_claim(words, **changes):
    """A claim with these words in every field that takes words."""
    free = dict.fromkeys(("title", "where", "says", "chapter", "protocol", "control", "corrected"), words)
    free |= {key: {"date": DAY, "text": words} for key in ("reading", "reply")}
    fixed = {"kind": "construction", "rule": "checked", "repair": "replacement", "fault": ["minus-u"]}
    free["see"] = {"at": words, "look": words}
    return Claim(**({"id": f"P1-{words}", "printed": {words: words}} | free | fixed | changes))


def a_measurement(words):
    evidence = {"experiment": words, "figure": words, "control": [words], "printed": words, "rows": [words, words]}
    changes = {"kind": "measurement", "rule": "at_least", "evidence": evidence, "printed": {words: [0.9, 0.9]}}
    changes["others"] = [{"name": words, "rows": [words, f"again {words}"]}]
    return a_claim(words, **changes)


def an_untestable(words):
    return a_claim(words, rule="untestable", reason=words)


def a_slip(words):
    free = dict.fromkeys(("id", "printed", "right", "chapter"), words)
    reply = {"date": DAY, "text": words}
    return Slip(**free, where=f"P1 {words}", kind="sign", claim=f"P1-{words}", copy=True, reply=reply)


def test_every_field_is_filled_here():
    """A field that a claim or an erratum gets must be filled here too, or it could become markup unseen."""
    for field in fields(Claim):
        assert any(getattr(make(HARM), field.name) for make in (a_measurement, an_untestable)), field.name
    assert all(getattr(a_slip(HARM), field.name) for field in fields(Slip))


class Records:
    """A store that takes any name."""

    def __init__(self, words):
        tests = {f"{words}{n}": "printed_fails" for n in (1, 2)}
        self.findings = Result("e", {"tests": tests}, "tests", 0, "finished", findings(printed_fails=2))
        self.runs = [
            Result("e", {}, "book", seed, "finished", {words: [0.5, a]}, {words: [0.1, 0.1]})
            for seed, a in enumerate(spread(0.9))
        ]
        name = words.replace("/", "")  # which divides the name of a figure
        figures, controls = attack_run(**{f"printed_{name}": (2, {name: 7})})
        self.attack = Result("e", {}, "book", 0, "finished", figures, controls)

    def load(self, experiment, scale=None):
        if experiment.startswith("check-"):
            return [self.findings]
        return [self.attack] if experiment.endswith("attack") else self.runs


def pages_of(words, monkeypatch):
    """Each page that is made from claims, errata and Results, under its name."""
    store, claims = Records(words), [a_claim(words), a_measurement(words), an_untestable(words)]
    monkeypatch.setattr(pages, "read_claims", lambda: claims[:1])
    monkeypatch.setattr(errata, "read_claims", lambda: claims[:1])
    monkeypatch.setattr(errata, "read_errata", lambda path: [a_slip(words)])
    outcomes = [judge(claim, store) for claim in claims]
    assert [o.verdict for o in outcomes] == [Verdict.FAILS, Verdict.FAILS, Verdict.UNTESTABLE]
    made = {
        "table": ledger.table(outcomes),
        "case": ledger.case_file({claims[0].id: words}, store),
        "attack": ledger.attack_table(f"{words} attack", store),
        "slips": errata.slips("P1"),
        "equations": errata.statements(outcomes, "P1", Verdict.FAILS),
        "measurements": errata.statements(outcomes, "P1", Verdict.FAILS, measured=True),
    }
    return {name: page._repr_html_() for name, page in made.items()}


@pytest.mark.parametrize("name", ["table", "case", "attack", "slips", "equations", "measurements"])
def test_hostile_words_give_the_tags_of_harmless_words(monkeypatch, name):
    harmed, tame = (Skeleton(pages_of(words, monkeypatch)[name]) for words in (HARM, "tame"))
    assert harmed.tags == tame.tags
    ours = ("ledger.ipynb#claim-p1-", "playground.ipynb#")
    assert not [address for address in harmed.addresses if not address.startswith(ours)]
    assert "[a](javascript:harm())" in harmed.text
    assert "{{ 7 * 7 }}" in harmed.text


def test_the_book_makes_no_markup_of_hostile_words_either(monkeypatch):
    """The build turns names of chapters and places in the code into links."""
    for markup in pages_of(HARM, monkeypatch).values():
        linked = link_pages(markup, {"ledger": "The ledger"}, {})
        linked = link_sources(linked, {"repository_url": "https://example.org"}, {})
        assert Skeleton(linked).tags == Skeleton(markup).tags
