"""The claims of the two papers, as data/claims.yml holds them: words, places, printed figures and the name of a rule.

No verdict stands here. `reading` is what was settled of a printed statement before the run that decides, with its day;
`fault` is one name for one slip of the papers that stands in several entries. What is compared, with which tolerance and controls, is our choice and stands in `protocol` and
`evidence`; and so is whether our repair adds hypotheses to the printed statement (`condition`) or puts another in its
place (`replacement`). A fault in the file is a ValueError that names the line, the claim and the field.
"""

import datetime
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from pdebook.ledger.record import data_folder
from pdebook.ledger.sources import experiments
from pdelab.options import choose

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
NEEDED = {  # what a rule must be told of each comparison; the others compare nothing
    "reproduced": ("figure", "control", "printed", "tolerance"),
    "at_least": ("figure", "control", "printed"),
    "at_most": ("figure", "control", "printed"),
    "greater": ("figure", "control"),
}

STRICT = ConfigDict(extra="forbid", strict=True)  # 3 is no text and 1e-2, which YAML reads as text, is no number
Names = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class Compare(TypedDict, total=False):
    """A recorded figure, the recorded controls beside it, and the name of the printed figure in `printed`."""

    __pydantic_config__ = STRICT

    figure: str
    control: Annotated[Names, Field(min_length=1)]
    printed: str
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Evidence(Compare, total=False):
    """Where a rule finds its evidence: one comparison, or several in `compare`; rows: a name for each value."""

    experiment: str
    scale: Literal["book", "paper"]
    rows: list[str]
    compare: Annotated[list[Compare], Field(min_length=1)]


class Dated(TypedDict):
    """A day and words: a reply of the authors, whole; or what we settled before the run that decides."""

    __pydantic_config__ = STRICT

    date: datetime.date
    text: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=STRICT)
class Claim:
    """One entry of claims.yml, in its order of fields."""

    id: str
    title: str
    where: str
    kind: Literal[*KINDS]
    says: str
    chapter: str
    rule: Literal[*RULE_KINDS]
    printed: dict[str, Any] = Field(default_factory=dict)
    protocol: str = ""
    control: str = ""
    repair: Literal[*REPAIRS] = "none"
    corrected: str = ""
    reason: str = ""
    evidence: Evidence = Field(default_factory=dict)
    fault: str = ""
    reading: Dated | None = None
    reply: Dated | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "Claim":
        """The fields fit together: the rule the kind, the evidence the rule, and words stand where they are needed."""
        if self.kind not in RULE_KINDS[self.rule]:
            raise ValueError(f"rule: {self.rule} is not for a {self.kind}, but for a {RULE_KINDS[self.rule][0]}")
        if (self.repair != "none") != bool(self.corrected):
            raise ValueError("corrected: it goes with a repair, and a repair with 'corrected'")
        if (self.rule == "untestable") != bool(self.reason):
            raise ValueError("reason: it goes with the rule untestable, and the other way round")

        compares = {*NEEDED[self.rule], "rows", "compare"} if self.rule in NEEDED else set()
        compares |= {"tolerance"} if "printed" in compares else set()
        experiment = {"experiment", "scale"} if self.rule not in ("checked", "untestable") else set()
        given = set(self.evidence).union(*self.evidence.get("compare", []))
        if unread := sorted(given - compares - experiment):
            raise ValueError(f"evidence: the rule {self.rule} reads no {', '.join(unread)}; remove it")
        if beside := sorted(set(self.evidence) & set(Compare.__annotations__) if "compare" in self.evidence else ()):
            raise ValueError(f"evidence: {', '.join(beside)} beside 'compare'; put it into the comparisons")

        for one in self.comparisons if self.evidence else ():
            needed = NEEDED.get(self.rule, ())
            if missing := [name for name in needed if name not in one]:
                raise ValueError(f"evidence: the rule {self.rule} needs {', '.join(missing)} too")
            if "printed" in needed and one["printed"] not in self.printed:
                raise ValueError(f"evidence.printed: it names {one['printed']!r}, which the field 'printed' lacks")
        return self

    @property
    def anchor(self) -> str:
        """Its place in the ledger."""
        return f"claim-{selector(self.id)}"

    @property
    def box_anchor(self) -> str:
        """The place of its verdict box in the chapter."""
        return f"box-{selector(self.id)}"

    @property
    def comparisons(self) -> list[Compare]:
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


def read_entries(path: Path, what: str, build: Callable) -> list:
    """The entries of one of our YAML files, each built.

    A fault names file, line and entry: "data/claims.yml, line 7: claim P1-eq8: kind: must be …".
    """
    loader, nodes = _parse(path)
    built = []
    for node in nodes:
        lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
        names = [value.value for key, value in node.value if key.value == "id"]
        try:
            entry = loader.construct_object(node, deep=True)
            built.append(build(**{str(field): value for field, value in entry.items()}))
        except (ValueError, yaml.MarkedYAMLError) as fault:
            first = node.start_mark.line + 1
            name = f"{what} {names[0] if names else '(an entry without id)'}"
            places = [(lines.get(re.split(r"\W", words)[0], first), words) for words in _faults(fault)]
            raise ValueError("\n".join(f"{path}, line {line}: {name}: {words}" for line, words in places)) from None
    return built


def _parse(path: Path) -> tuple[_Loader, list[yaml.MappingNode]]:
    """The loader and a node for each entry; what YAML cannot read is a ValueError with its place and what works."""
    text = path.read_text(encoding="utf-8")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        raise ValueError(f"{path}, line {line}: character {fault.character:#x} is not allowed; remove it") from None
    except yaml.MarkedYAMLError as fault:
        place = f"{path}, line {fault.problem_mark.line + 1}, column {fault.problem_mark.column + 1}"
        raise ValueError(f"{place}: {fault.problem or fault.context}; {_ADVICE}") from None

    nodes = root.value if isinstance(root, yaml.SequenceNode) else [None]
    if not all(isinstance(node, yaml.MappingNode) for node in nodes):
        raise ValueError(f"{path} must be a list of entries, each with fields such as id, title and rule")
    return loader, nodes


_ADVICE = "indent with spaces; words with a colon, a backslash or a leading sign go on lines of their own after >-"


def _faults(error: Exception) -> list[str]:
    """What is wrong with an entry, each fault beginning with its field."""
    if isinstance(error, ValidationError):
        return [_in_words(fault) for fault in error.errors()]
    return [str(getattr(error, "problem", error))]


def _in_words(fault: dict) -> str:
    """The field, what it must be and what it is not."""
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "value_error":
        return f"{field}: {fault['ctx']['error']}" if field else str(fault["ctx"]["error"])
    if fault["type"] == "missing":
        return f"{field}: is missing"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        why = "a verdict is computed from evidence" if field == "verdict" else "there is no such field"
        return f"{field}: {why}; remove it"
    return f"{field}: {re.sub(r'^[A-Z][a-z]+ should', 'must', fault['msg'])}; not {fault['input']!r}"


def slug(claim_id: str) -> str:
    """A claim's id as part of a file name or an address: P1-eq6/7 becomes P1-eq6-7."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", claim_id)


def selector(name: str) -> str:
    """An id as part of an anchor: P1-eq6/7 becomes p1-eq6-7; a dot would be no selector."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def check_name(claim_id: str) -> str:
    """The name under which the outcomes of a claim's tests are recorded."""
    return f"check-{slug(claim_id)}"


def read_claims(path: Path | str | None = None) -> list[Claim]:
    """The entries of claims.yml, each checked; a fault is a ValueError that names the line, the claim and the field."""
    path = Path(path) if path is not None else data_folder() / "claims.yml"

    def build(**entry) -> Claim:
        claim = Claim(**entry)
        if claim.evidence:
            choose("evidence.experiment:", claim.evidence.get("experiment"), experiments())
        return claim

    claims = read_entries(path, "claim", build)
    refuse_twins(path, claims)
    return claims


def by_anchor(entries: Iterable) -> dict[str, list[str]]:
    """The ids behind each anchor; a second id under one anchor would share its page entry and its files."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(entry.anchor, []).append(entry.id)
    return found


def refuse_twins(path: Path, entries: Iterable) -> None:
    if twins := [ids for ids in by_anchor(entries).values() if len(ids) > 1]:
        raise ValueError(f"{path}: these ids are the same, or look the same in an address: {twins}; change one of each")
