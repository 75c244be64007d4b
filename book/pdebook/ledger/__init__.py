"""The ledger: claims, the record of what was measured, the rules that judge, and the pages. It imports no torch."""

from pdebook.ledger.claims import Claim, by_anchor, check_name, read_claims, slug
from pdebook.ledger.pages import (
    COLUMNS,
    Outcome,
    Page,
    attack_table,
    box,
    by_chapter,
    counts,
    judge,
    judge_all,
    rows,
    side_by_side,
    summary,
    table,
    those,
)
from pdebook.ledger.rules import FINDINGS, MEANINGS, RULES, Comparison, Ruling, Verdict

__all__ = [
    "COLUMNS",
    "FINDINGS",
    "MEANINGS",
    "RULES",
    "Claim",
    "Comparison",
    "Outcome",
    "Page",
    "Ruling",
    "Verdict",
    "attack_table",
    "box",
    "by_anchor",
    "by_chapter",
    "check_name",
    "counts",
    "judge",
    "judge_all",
    "read_claims",
    "rows",
    "side_by_side",
    "slug",
    "summary",
    "table",
    "those",
]
