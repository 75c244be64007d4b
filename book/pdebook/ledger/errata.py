"""The errata of the two papers: slips, read from data/errata.yml, and the statements that the ledger refutes.

A slip is a sign, an index, a reference, a word: what was meant is clear, or nothing was printed. Whether a statement
fails is not decided here; the ledger's rules do that.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdebook.kit.page import Page, reply_text, typeset
from pdebook.ledger.claims import check_reply, read_claims, read_entries
from pdebook.ledger.pages import Outcome, Verdict
from pdebook.ledger.record import data_folder

PAPERS = ("P1", "P2")
KINDS = ("sign", "index", "formula", "number", "notation", "reference", "missing", "wording", "unfinished")


@dataclass(frozen=True)
class Slip:
    """One entry of errata.yml; `copy`: the conversion of the copy we read may have caused it."""

    id: str
    where: str
    kind: str
    printed: str
    right: str
    claim: str = ""
    chapter: str = ""
    copy: bool = False
    reply: dict = field(default_factory=dict)

    @property
    def paper(self) -> str:
        return self.where.split()[0]

    @property
    def anchor(self) -> str:
        return f"erratum-{self.id.lower()}"


def read_errata(path: Path | str | None = None) -> list[Slip]:
    """The entries of errata.yml, each checked; a fault is a ValueError that names the entry and the field."""
    path = Path(path) if path is not None else data_folder() / "errata.yml"
    claims = {claim.id for claim in read_claims()}
    slips = [_slip(entry, claims) for entry in read_entries(path)]
    ids = [slip.id for slip in slips]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        raise ValueError(f"{path.name}: these ids are there twice: {twice}")
    return slips


def _slip(entry: dict, claims: set[str]) -> Slip:
    name = f"erratum {entry.get('id', '(an entry without id)')}"
    known = Slip.__dataclass_fields__
    if unknown := set(entry) - set(known):
        raise ValueError(f"{name}: unknown fields {sorted(unknown)}; known are {sorted(known)}")
    if missing := {"id", "where", "kind", "printed", "right"} - set(entry):
        raise ValueError(f"{name}: the fields {sorted(missing)} are missing")
    if wrong := [key for key, value in entry.items() if not isinstance(value, known[key].type)]:
        raise ValueError(f"{name}: {wrong[0]} must be a {known[wrong[0]].type.__name__}; not {entry[wrong[0]]!r}")
    slip = Slip(**entry)
    for option, given, allowed in (("paper", slip.paper, PAPERS), ("kind", slip.kind, KINDS)):
        if given not in allowed:
            raise ValueError(f"{name}: unknown {option} {given!r}; it must be one of {', '.join(allowed)}")
    if slip.claim and slip.claim not in claims:
        raise ValueError(f"{name}: no claim is called {slip.claim!r}")
    check_reply(name, slip.reply)
    return slip


def slips(paper: str, path: Path | str | None = None) -> Page:
    """The slips of one paper as a page: what is printed, what would be right, and where the book takes it up."""
    if paper not in PAPERS:
        raise ValueError(f"paper must be one of {', '.join(PAPERS)}; not {paper!r}")
    anchors = {claim.id: claim.anchor for claim in read_claims()}
    found = [slip for slip in read_errata(path) if slip.paper == paper]
    items = []
    for slip in found:
        seen = "in the copy we read; its conversion to text may be the cause" if slip.copy else ""
        parts = [("Printed", typeset(slip.printed)), ("Right", typeset(slip.right)), ("Note", seen)]
        if slip.claim:
            parts.append(("See", f'<a href="ledger.ipynb#{anchors[slip.claim]}">{html.escape(slip.claim)}</a>'))
        if slip.chapter:
            parts.append(("See", f'<span class="chapter">{html.escape(slip.chapter)}</span>'))
        items.append(_item(slip.anchor, f"{html.escape(slip.where)} <small>{slip.kind}</small>", parts, slip.reply))
    return _listed(items, "\n".join(f"{slip.where}: {slip.printed} -> {slip.right}" for slip in found))


def statements(outcomes: Sequence[Outcome], paper: str, verdict: Verdict, *, measured: bool = False) -> Page:
    """The statements of one paper with this verdict, with what is true instead, as the ledger has it.

    measured: its measurements in place of its equations and theorems; each with how we measured, since a verdict on a
    figure is one on our sizes and our reading of what is not printed.
    """
    found = [o for o in outcomes if o.claim.id.startswith(f"{paper}-") and o.verdict == verdict]
    found = [o for o in found if (o.claim.kind == "measurement") == measured]
    items = []
    for o in found:
        claim = o.claim
        instead = "True instead" if o.ruling.repaired else "Proposed instead, not yet tested"
        parts = [
            ("Printed", typeset(claim.says)),
            (instead, typeset(claim.corrected)),
            ("How we measured", typeset(claim.protocol) if measured else ""),
            ("Evidence", typeset(o.ruling.because)),
            ("Chapter", f'<span class="chapter" data-box="{claim.box_anchor}">{html.escape(claim.chapter)}</span>'),
        ]
        title = f'<a href="ledger.ipynb#{claim.anchor}">{html.escape(claim.id)}</a> {html.escape(claim.title)}'
        place = f"{title} <small>{html.escape(claim.where)}</small>"
        items.append(_item(f"statement-{claim.anchor}", place, parts, claim.reply))
    return _listed(items, "\n".join(f"{o.claim.id}: {o.claim.title}" for o in found))


def _item(anchor: str, title: str, parts: list[tuple[str, str]], reply: dict) -> str:
    rows = [*parts, ("The authors' reply", reply_text(reply))]
    body = "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows if text)
    return f'<li id="{anchor}"><p>{title}</p><dl>{body}</dl></li>'


def _listed(items: list[str], text: str) -> Page:
    inside = f"<ol>{''.join(items)}</ol>" if items else "<p>None.</p>"
    return Page(f'<div class="errata mathjax_process">{inside}</div>', text or "None.")
