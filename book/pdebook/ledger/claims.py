"""The claims of the two papers, as data/claims.yml holds them: words, places, printed figures and the name of a rule.

No verdict stands here. What is compared, with which tolerance and controls, is our choice and stands in `protocol` and
`evidence`; and so is whether our repair adds hypotheses to the printed statement (`condition`) or puts another in its
place (`replacement`). `reading` is what was settled before the run that decides, with its day; `others` are further
readings, whose verdicts are computed beside it. `fault` is one name for one slip that stands in several entries; `see`
is a state of the playground that shows the reason. A fault in the file is a ValueError that names the line, the claim
and the field.
"""

import datetime
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Required

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from pdebook.kit.play import at
from pdebook.ledger.record import data_folder, names_in
from pdebook.ledger.sources import experiments
from pdelab.options import choose

KINDS = ("construction", "theorem", "measurement")
REPAIRS = ("condition", "replacement", "none")
ROLES = ("printed", "corrected", "lemma")  # of a statement in an attack; a lemma, a step of a proof, decides nothing
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

FAULTS = {  # slips that stand in more than one entry, under one name each
    "minus-u": "the -u beside the network in a block with a residual connection",
    "network-diffuses": "a network that acts on each position by itself is said to diffuse over positions",
    "norm-dissipates": "LayerNorm is taken for a force on the whole field that removes its energy",
    "residual-twice": "the residual connection is a term of its own, though it is the time derivative already",
    "two-clocks": "the index of a layer and the time of its own evolution, or of training, are one",
    "features-as-positions": "the Laplacian runs over the features in place of the positions",
    "any-matrix": "a diffusion matrix of any kind, where only some make the equation well posed or the scheme stable",
    "no-field": "tokens of a vocabulary are taken for values of a field that is continuous in the position",
    "information-falls": "the information of a state that is a function of its input is said to fall or to rise",
}
STRICT = ConfigDict(extra="forbid", strict=True)  # 3 is no text and 1e-2, which YAML reads as text, is no number
Names = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class Compare(TypedDict, total=False):
    """A recorded figure, the recorded controls beside it, and the name of the printed figure in `printed`.

    A figure may be put together: "residual/fidelity[-1] less norm/fidelity[-1]". votes: the figure, under the same
    model, that is 1 for each value that counts in a seed and 0 for each that was filled in; not beside figures that
    are put together.
    """

    __pydantic_config__ = STRICT

    figure: str
    control: Annotated[Names, Field(min_length=1)]
    printed: str
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    votes: Annotated[str, Field(min_length=1)]


class Evidence(Compare, total=False):
    """Where a rule finds its evidence: one comparison, or several in `compare`; rows: a name for each value.

    without: rows that do not count, for a reason that `reading` gives. statements: of an attack, those that count, by
    their role in this reading; without it all count, in the role in which they were recorded.
    """

    experiment: str
    statements: Annotated[dict[Literal[*ROLES], list[str]], Field(min_length=1)]
    scale: Literal["book", "paper"]
    rows: list[str]
    without: list[str]
    compare: Annotated[list[Compare], Field(min_length=1)]


class Other(Evidence, total=False):
    """Another reading: its name, and what of the evidence it changes.

    only: the figures that it keeps; repair: what our statement is to the printed one in this reading.
    """

    name: Required[Annotated[str, Field(min_length=1)]]
    only: Names
    repair: Literal["condition", "replacement"]


class Dated(TypedDict):
    """A day and words: a reply of the authors, whole; or what we settled before the run that decides."""

    __pydantic_config__ = STRICT

    date: datetime.date
    text: Annotated[str, Field(min_length=1)]


class See(TypedDict):
    """Where the playground shows it: the settings as the address that its link has, and what to look at."""

    __pydantic_config__ = STRICT

    at: Annotated[str, Field(min_length=1)]
    look: Annotated[str, Field(min_length=1)]


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
    fault: Names = Field(default_factory=list)
    reading: Dated | None = None
    others: list[Other] = Field(default_factory=list)
    see: See | None = None
    reply: Dated | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "Claim":
        """The fields fit together: the rule the kind, the evidence the rule, and words stand where they are needed."""
        if self.kind not in RULE_KINDS[self.rule]:
            raise ValueError(f"rule: {self.rule} is not for a {self.kind}, but for a {RULE_KINDS[self.rule][0]}")
        if (self.repair != "none") != bool(self.corrected):
            raise ValueError("corrected: it goes with a repair, and a repair with 'corrected'")
        if unknown := [name for name in self.fault if name not in FAULTS]:
            raise ValueError(f"fault: {', '.join(unknown)} is not among {', '.join(FAULTS)}")
        if self.others and self.rule not in (*NEEDED, "attacked"):
            raise ValueError(f"others: the rule {self.rule} has one reading; remove it")
        if (self.rule == "untestable") != bool(self.reason):
            raise ValueError("reason: it goes with the rule untestable, and the other way round")

        compares = {"statements"} if self.rule == "attacked" else set()
        if self.rule in NEEDED:
            compares = {*NEEDED[self.rule], "rows", "without", "votes", "compare"}
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
            named = [one["figure"], *one["control"]] if "votes" in one else []
            if mixed := [name for name in named if names_in(name) != [name]]:
                raise ValueError(f"evidence.votes: no votes are recorded on {mixed[0]!r}, which is put together")

        without, rows = (self.evidence.get(name, []) for name in ("without", "rows"))
        if unknown := [name for name in without if name not in rows]:
            raise ValueError(
                f"evidence.without: {', '.join(unknown)} is not among the rows {', '.join(rows) or '(none)'}"
            )
        if without and not self.reading:
            raise ValueError("evidence.without: what does not count needs a reason in 'reading', with its day")
        for place, other in enumerate(self.others):
            self._other_agrees(place, other)
        return self

    def _other_agrees(self, place: int, other: Other) -> None:
        """Another reading has a name of its own, keeps figures that there are, fits together and changes something."""
        field = f"others.{place}"
        if other["name"] in [one["name"] for one in self.others[:place]]:
            raise ValueError(f"{field}.name: {other['name']!r} is the name of another reading, too")
        if not self.evidence:
            raise ValueError(f"{field}: there is no evidence that could be read in another way")
        figures = [one["figure"] for one in self.comparisons if "figure" in one]  # an attack has none
        if unknown := [name for name in other.get("only", []) if name not in figures]:
            raise ValueError(f"{field}.only: {', '.join(unknown)} is not among the figures {', '.join(figures)}")
        try:
            read = read_as(self, other)
        except ValidationError as fault:
            raise ValueError("; ".join(f"{field}: {words}" for words in _faults(fault))) from None
        if read._decides_by == self._decides_by:
            raise ValueError(f"{field}: {other['name']!r} changes nothing; remove it, or say what it changes")

    @property
    def _decides_by(self) -> tuple:
        """What of the evidence a rule reads, however it is written."""
        kept = {k: v for k, v in self.evidence.items() if k in ("experiment", "rows", "without", "statements")}
        return self.comparisons, self.evidence.get("scale", "book"), kept, self.repair

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
        own = {key: value for key, value in self.evidence.items() if key in Compare.__annotations__}
        return self.evidence.get("compare", [own])


def read_as(claim: Claim, other: Other) -> Claim:
    """The claim with the evidence of another reading: what `other` names replaces what the entry has."""
    kept = dict(claim.evidence)
    changed = {key: value for key, value in other.items() if key not in ("name", "only", "repair")}
    if "experiment" in changed:  # its statements are others
        kept.pop("statements", None)
    if "compare" in changed or "only" in other:
        kept = {key: value for key, value in kept.items() if key not in Compare.__annotations__}
    if "figure" in changed:
        kept.pop("compare", None)
    if "only" in other:
        changed["compare"] = [one for one in claim.comparisons if one["figure"] in other["only"]]
    return replace(claim, evidence=kept | changed, others=[], repair=other.get("repair", claim.repair))


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
        if claim.see:
            _check_address(claim.see["at"])
        if claim.evidence:
            choose("evidence.experiment:", claim.evidence.get("experiment"), experiments())
            for other in claim.others:  # an entry of its own would be refused in the same words
                choose("others.experiment:", read_as(claim, other).evidence["experiment"], experiments())
        return claim

    claims = read_entries(path, "claim", build)
    refuse_twins(path, claims)
    return claims


def _check_address(address: str) -> None:
    """The settings are there, and written as the playground writes them: copied from its link."""
    try:
        written = at(address).address
    except ValueError as fault:
        raise ValueError(f"see.at: {fault}") from None
    if written != address:
        raise ValueError(f"see.at: the playground writes {written!r}; not {address!r}")


def by_anchor(entries: Iterable) -> dict[str, list[str]]:
    """The ids behind each anchor; a second id under one anchor would share its page entry and its files."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        found.setdefault(entry.anchor, []).append(entry.id)
    return found


def refuse_twins(path: Path, entries: Iterable) -> None:
    if twins := [ids for ids in by_anchor(entries).values() if len(ids) > 1]:
        raise ValueError(f"{path}: these ids are the same, or look the same in an address: {twins}; change one of each")
