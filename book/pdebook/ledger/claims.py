"""The claims of the two papers, as data/claims.yml holds them: words, places, printed figures and the name of a rule.

No verdict stands here. What is compared, with which tolerance and controls, is our choice and stands in `protocol` and
`evidence`; and so is whether our repair adds hypotheses to the printed statement (`condition`) or puts another in its
place (`replacement`). A fault in the file is a ValueError that names the claim and the field.
"""

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pdebook.ledger.record import Scale, data_folder
from pdebook.ledger.sources import experiments

KINDS = ("construction", "theorem", "measurement")
REPAIRS = ("condition", "replacement", "none")
RULE_KINDS = {  # which kinds of claims a rule is for
    "checked": ("construction",),
    "attacked": ("theorem",),
    "reproduced": ("measurement",),
    "at_least": ("measurement",),
    "at_most": ("measurement",),
    "greater": ("measurement",),
    "untestable": KINDS,
}
COMPARISON = ("figure", "control", "printed", "tolerance")  # what one comparison of a measurement may name


@dataclass(frozen=True)
class Claim:
    """One entry of claims.yml, in its order of fields."""

    id: str
    title: str
    where: str
    kind: str
    says: str
    chapter: str
    rule: str
    printed: dict = field(default_factory=dict)
    protocol: str = ""
    control: str = ""
    repair: str = "none"
    corrected: str = ""
    reason: str = ""
    evidence: dict = field(default_factory=dict)
    reply: dict = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Its place in the ledger."""
        return f"claim-{_selector(self.id)}"

    @property
    def box_anchor(self) -> str:
        """The place of its verdict box in the chapter."""
        return f"box-{_selector(self.id)}"

    @property
    def comparisons(self) -> list[dict]:
        """What a measurement compares: the list `compare`, or the evidence itself where there is one comparison."""
        return self.evidence.get("compare", [self.evidence])


class Printed(float):
    """A figure with the digits that were printed: 0.970 is not 0.97."""

    text: str

    def __str__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """YAML whose decimal numbers remember how they were written."""


def _printed_float(loader: _Loader, node: yaml.ScalarNode) -> Printed:
    value = Printed(loader.construct_yaml_float(node))
    value.text = node.value
    return value


_Loader.add_constructor("tag:yaml.org,2002:float", _printed_float)


def read_entries(path: Path) -> list[dict]:
    """The entries of one of our YAML files."""
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path.name} must be a list of entries, each with fields such as id, title and rule")
    return entries


def slug(claim_id: str) -> str:
    """A claim's id as part of a file name or an address: P1-eq6/7 becomes P1-eq6-7."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", claim_id)


def _selector(claim_id: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", claim_id.lower())  # a dot would be no selector


def check_name(claim_id: str) -> str:
    """The name under which the outcomes of a claim's tests are recorded."""
    return f"check-{slug(claim_id)}"


def read_claims(path: Path | str | None = None) -> list[Claim]:
    """The entries of claims.yml, each checked; a fault is a ValueError that names the claim and the field."""
    path = Path(path) if path is not None else data_folder() / "claims.yml"
    claims = [_claim(entry) for entry in read_entries(path)]
    twice = [ids for ids in by_anchor(claims).values() if len(ids) > 1]
    if twice:
        raise ValueError(f"{path.name}: these ids are the same, or look the same in a file name: {twice}")
    return claims


def by_anchor(claims: Iterable[Claim]) -> dict[str, list[str]]:
    """The ids behind each anchor; a second id under one anchor would share its page entry and its files."""
    found: dict[str, list[str]] = {}
    for claim in claims:
        found.setdefault(claim.anchor, []).append(claim.id)
    return found


def _claim(entry: dict) -> Claim:
    name = f"claim {entry.get('id', '(an entry without id)')}"
    known = Claim.__dataclass_fields__
    if "verdict" in entry:
        raise ValueError(f"{name}: a verdict is computed from evidence; remove the field 'verdict'")
    if unknown := set(entry) - set(known):
        raise ValueError(f"{name}: unknown fields {sorted(unknown)}; known are {sorted(known)}")
    if missing := {"id", "title", "where", "kind", "says", "chapter", "rule"} - set(entry):
        raise ValueError(f"{name}: the fields {sorted(missing)} are missing")
    wrong = [key for key, value in entry.items() if not isinstance(value, known[key].type)]
    if wrong:
        raise ValueError(f"{name}: {wrong[0]} must be a {known[wrong[0]].type.__name__}; not {entry[wrong[0]]!r}")
    claim = Claim(**entry)
    for option, given, allowed in (
        ("kind", claim.kind, KINDS),
        ("rule", claim.rule, tuple(RULE_KINDS)),
        ("repair", claim.repair, REPAIRS),
    ):
        if given not in allowed:
            raise ValueError(f"{name}: unknown {option} {given!r}; it must be one of {', '.join(allowed)}")
    if claim.kind not in RULE_KINDS[claim.rule]:
        raise ValueError(f"{name}: the rule {claim.rule} is not for a {claim.kind}")
    if (claim.repair != "none") != bool(claim.corrected):
        raise ValueError(f"{name}: 'corrected' goes with a repair, and a repair with 'corrected'")
    if (claim.rule == "untestable") != bool(claim.reason):
        raise ValueError(f"{name}: 'reason' goes with the rule untestable, and the other way round")
    if claim.evidence:
        _check_evidence(name, claim)
    check_reply(name, claim.reply)
    return claim


def _check_evidence(name: str, claim: Claim) -> None:
    """Evidence must name all that its rule reads, and nothing that no rule reads."""
    evidence = claim.evidence
    if claim.rule in ("checked", "untestable"):
        raise ValueError(f"{name}: the rule {claim.rule} reads no evidence; remove the field 'evidence'")
    if "experiment" not in evidence:
        raise ValueError(f"{name}: evidence needs ['experiment'] for the rule {claim.rule}")
    for key, known in (("experiment", list(experiments())), ("scale", [scale.value for scale in Scale])):
        if key in evidence and evidence[key] not in known:
            raise ValueError(f"{name}: unknown {key} {evidence[key]!r} in evidence; there are {', '.join(known)}")
    measured = claim.kind == "measurement"
    if unknown := set(evidence) - {"experiment", "scale"} - ({"compare", "rows", *COMPARISON} if measured else set()):
        raise ValueError(f"{name}: the rule {claim.rule} reads no {sorted(unknown)} in evidence")
    if not measured:
        return
    if "compare" in evidence and (both := set(evidence) & set(COMPARISON)):
        raise ValueError(f"{name}: evidence has 'compare' and {sorted(both)} beside it; put them into its comparisons")
    rows = evidence.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise ValueError(f"{name}: rows must be a list of names, one for each value of a figure; not {rows!r}")
    compared = claim.comparisons
    if not isinstance(compared, list) or not compared or not all(isinstance(one, dict) for one in compared):
        raise ValueError(f"{name}: compare must be a list of comparisons, each with {', '.join(COMPARISON)}")
    for one in compared:
        _check_comparison(name, claim, one)


def _check_comparison(name: str, claim: Claim, one: dict) -> None:
    needed = {"figure", "control"}
    needed |= {"printed"} if claim.rule != "greater" else set()
    needed |= {"tolerance"} if claim.rule == "reproduced" else set()
    if missing := needed - set(one):
        raise ValueError(f"{name}: evidence needs {sorted(missing)} for the rule {claim.rule}")
    beside = set() if "compare" in claim.evidence else {"experiment", "scale", "rows"}
    if unknown := set(one) - set(COMPARISON) - beside:
        raise ValueError(f"{name}: a comparison has no {sorted(unknown)}; it has {', '.join(COMPARISON)}")
    controls = one["control"] if isinstance(one["control"], list) else [one["control"]]
    if not controls or not all(isinstance(control, str) for control in controls):
        raise ValueError(f"{name}: control must be the name of a recorded control, or a list of names")
    if "printed" in needed and one["printed"] not in claim.printed:
        raise ValueError(f"{name}: evidence names {one['printed']!r}, which the field 'printed' lacks")
    if not isinstance(one.get("tolerance", 0), int | float):  # YAML reads 1e-2 as text, 0.01 as a number
        raise ValueError(f"{name}: tolerance must be a number such as 0.01; not {one['tolerance']!r}")


def check_reply(name: str, reply: dict) -> None:
    """A reply of the authors is a day and their words, whole."""
    if not reply:
        return
    if set(reply) != {"date", "text"} or not isinstance(reply["date"], datetime.date) or not reply["text"]:
        raise ValueError(f"{name}: a reply has a date such as 2026-01-31 and a text, and nothing else")
