"""The errata of the two papers: slips, read from data/errata.yml, and the statements that the ledger refutes.

A slip is a sign, an index, a reference, a word: what was meant is clear, or nothing was printed. Whether a statement
fails is not decided here; the ledger's rules do that.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from pdebook.kit.page import Page
from pdebook.ledger.claims import STRICT, Dated, read_claims, read_entries, refuse_twins, selector
from pdebook.ledger.pages import Outcome, Verdict, render
from pdebook.ledger.record import data_folder
from pdelab.options import choose

PAPERS = ("P1", "P2")
KINDS = ("sign", "index", "formula", "number", "notation", "reference", "missing", "wording", "unfinished")


@dataclass(frozen=True, config=STRICT)
class Slip:
    """One entry of errata.yml; `copy`: the conversion of the copy we read may have caused it."""

    id: str
    where: Annotated[str, Field(pattern=rf"^({'|'.join(PAPERS)}) ")]
    kind: Literal[*KINDS]
    printed: str
    right: str
    claim: str = ""
    chapter: str = ""
    copy: bool = False
    reply: Dated | None = None

    @property
    def paper(self) -> str:
        return self.where.split()[0]

    @property
    def anchor(self) -> str:
        return f"erratum-{selector(self.id)}"


def read_errata(path: Path | str | None = None) -> list[Slip]:
    """The entries of errata.yml, each checked; a fault is a ValueError that names the line, the entry and the field."""
    path = Path(path) if path is not None else data_folder() / "errata.yml"
    claims = {claim.id for claim in read_claims()}

    def build(**entry) -> Slip:
        slip = Slip(**entry)
        if slip.claim and slip.claim not in claims:
            raise ValueError(f"claim: claims.yml has no claim {slip.claim!r}; name one that it has, or a chapter")
        return slip

    found = read_entries(path, "erratum", build)
    refuse_twins(path, found)
    return found


def slips(paper: str, path: Path | str | None = None) -> Page:
    """The slips of one paper as a page: what is printed, what would be right, and where the book takes it up."""
    choose("paper", paper, PAPERS)
    found = [slip for slip in read_errata(path) if slip.paper == paper]
    text = "\n".join(f"{slip.where}: {slip.printed} -> {slip.right}" for slip in found)
    claims = {claim.id: claim for claim in read_claims()}
    return Page(render("errata.html", slips=found, outcomes=[], claims=claims), text or "None.")


def statements(outcomes: Sequence[Outcome], paper: str, verdict: Verdict, *, measured: bool = False) -> Page:
    """The statements of one paper with this verdict, with what is true instead, as the ledger has it.

    measured: its measurements in place of its equations and theorems; each with how we measured, since a verdict on a
    figure is one on our sizes and our reading of what is not printed.
    """
    found = [o for o in outcomes if o.claim.id.startswith(f"{paper}-") and o.verdict == verdict]
    found = [o for o in found if (o.claim.kind == "measurement") == measured]
    text = "\n".join(f"{o.claim.id}: {o.claim.title}" for o in found)
    return Page(render("errata.html", slips=[], outcomes=found), text or "None.")
