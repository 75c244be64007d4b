"""The ledger: every claim of the two papers, and the verdict that the evidence gives.

`data/claims.yml` holds words, places, printed figures and, for each claim, the name of a rule. The evidence is in the
Results: measured figures with their controls, attacks on a theorem, findings of named tests. A rule turns evidence into
a verdict; none is typed. One judgement is ours and stands in the claim: whether our repair adds hypotheses to the
printed statement (`condition`) or puts another in its place (`replacement`).
"""

import html
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import yaml

from pdelab.results import Result, Store, Summary, data_folder, summarise


class Verdict(StrEnum):
    HOLDS = "holds"
    CONDITIONS = "holds with conditions"
    TRIVIAL = "trivial"
    FAILS = "fails"
    UNDECIDED = "undecided"
    UNTESTABLE = "not testable as stated"
    UNMEASURED = "not yet measured"


MEANINGS = {
    Verdict.HOLDS: "as printed, in everything we tried",
    Verdict.CONDITIONS: "not as printed, but under added hypotheses; proof in the chapter, and no test contradicts it",
    Verdict.TRIVIAL: "a control that knows nothing scores as well",
    Verdict.FAILS: "a counterexample or a measurement contradicts it",
    Verdict.UNDECIDED: "measured, and the evidence allows both answers",
    Verdict.UNTESTABLE: "what is printed leaves open what would have to be measured",
    Verdict.UNMEASURED: "no evidence is recorded yet",
}

KINDS = ("construction", "theorem", "measurement")
REPAIRS = ("condition", "replacement", "none")
FINDINGS = ("printed_holds", "printed_fails", "repair_holds", "repair_fails", "undecided")  # of a test marked `claim`
MIN_SEEDS = 3  # finished runs that an interval needs before it decides anything


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

    @property
    def anchor(self) -> str:
        return "claim-" + re.sub(r"[^a-z0-9]+", "-", self.id.lower())  # a dot would be no selector


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


def slug(claim_id: str) -> str:
    """A claim's id as part of a file name or an address: P1-eq6/7 becomes P1-eq6-7."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", claim_id)


def check_name(claim_id: str) -> str:
    """The name under which the outcomes of a claim's tests are recorded."""
    return f"check-{slug(claim_id)}"


@dataclass(frozen=True)
class Ruling:
    """What a rule makes of the evidence; `repaired`: our corrected statement was tested too and stood."""

    verdict: Verdict
    because: str
    repaired: bool = False


@dataclass(frozen=True)
class Outcome:
    """A claim and its ruling, with the tests or the experiment that gave the evidence."""

    claim: Claim
    ruling: Ruling
    sources: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return self.ruling.verdict


# Rules: (claim, results) -> Ruling. They are asked only where evidence was recorded, so `results` is never empty.


def checked(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Named tests decide: each finds that the printed form holds or fails, or the same of our repair."""
    found = {name: sum(int(r.figures[name]) for r in results) for name in (*FINDINGS, "broken")}
    words = "tests: " + _listed(
        (found["printed_holds"], "for the printed form"),
        (found["printed_fails"], "against it"),
        (found["repair_holds"], "for the repair"),
        (found["repair_fails"], "against the repair"),
        (found["undecided"], "undecided"),
        (found["broken"], "did not run"),
    )
    repaired = found["repair_holds"] > 0 and found["repair_fails"] == 0
    if found["broken"]:
        return Ruling(Verdict.UNMEASURED, words)
    if found["printed_fails"]:
        return Ruling(_fallen(claim, repaired), words, repaired)
    if found["undecided"]:
        return Ruling(Verdict.UNDECIDED, words, repaired)
    return Ruling(Verdict.HOLDS if found["printed_holds"] else Verdict.UNMEASURED, words, repaired)


def attacked(claim: Claim, results: Sequence[Result]) -> Ruling:
    """An adversary searched for violations of the printed, of the corrected and, as a control, of a false statement."""

    def total(name: str) -> int:
        return sum(int(r.figures.get(name, 0)) for r in results)

    printed, corrected, control = (
        (total(f"{s}_violations"), total(f"{s}_attempts")) for s in ("printed", "corrected", "control")
    )
    words = "violations: " + "; ".join(
        f"{broken} in {tried} attempts on the {statement}"
        for statement, (broken, tried) in (("printed", printed), ("corrected", corrected), ("false control", control))
        if tried
    )
    if not control[0]:
        return Ruling(Verdict.UNMEASURED, f"{words}; the search broke no false statement, so it proves nothing")
    repaired = corrected[0] == 0 and corrected[1] > 0
    if printed[0]:
        return Ruling(_fallen(claim, repaired), words, repaired)
    return Ruling(Verdict.HOLDS if printed[1] else Verdict.UNMEASURED, words, repaired)


def _fallen(claim: Claim, repaired: bool) -> Verdict:
    """The printed statement fell: it holds with conditions if our repair only adds hypotheses, and stood."""
    return Verdict.CONDITIONS if repaired and claim.repair == "condition" else Verdict.FAILS


def _layers(summary: Summary | list[Summary]) -> list[Summary]:
    return summary if isinstance(summary, list) else [summary]


def _compared(claim: Claim, results: Sequence[Result], passes: Callable[[Summary, float], bool | None]) -> Ruling:
    """`passes` says of an interval and a printed figure: yes, no, or None where the interval allows both.

    Every layer of a list must pass. The verdict is trivial when the control passes as well, and undecided when either
    interval allows both answers, seeds are few or most runs diverged.
    """
    evidence = claim.evidence
    finished = [r for r in results if r.status == "finished"]
    diverged = len(results) - len(finished)
    if len(finished) < MIN_SEEDS or diverged > len(finished):
        count = f"{len(finished)} finished seeds, {diverged} not"
        return Ruling(Verdict.UNDECIDED, f"{count}; at least {MIN_SEEDS} must finish, and more than half of all")
    printed = claim.printed[evidence["printed"]] if claim.rule != "greater" else 0.0
    ours = _layers(summarise(results, evidence["figure"]))
    control = _layers(summarise(results, evidence["control"], control=True))
    targets = printed if isinstance(printed, list) else [printed] * len(ours)
    if not len(ours) == len(control) == len(targets):
        raise ValueError(
            f"claim {claim.id}: {len(ours)} values are ours, {len(control)} control, {len(targets)} printed"
        )
    if any(math.isnan(s.mean) for s in (*ours, *control)):
        raise ValueError(f"claim {claim.id}: a finished run recorded NaN; a run that has no figure must say diverged")

    def all_pass(summaries: list[Summary]) -> bool | None:
        answers = [passes(s, target) for s, target in zip(summaries, targets, strict=True)]
        return False if False in answers else None if None in answers else True

    words = f"ours {_shown(ours)}; {evidence['control'].replace('_', ' ')} {_shown(control)}"
    mine, theirs = all_pass(ours), all_pass(control)
    if mine is False:
        return Ruling(Verdict.FAILS, words)
    if mine is None or theirs is None:
        return Ruling(Verdict.UNDECIDED, words)
    return Ruling(Verdict.TRIVIAL if theirs else Verdict.HOLDS, words)


def reproduced(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our interval lies within `tolerance` of the printed figure, and the control's does not."""
    tolerance = claim.evidence["tolerance"]

    def passes(s: Summary, target: float) -> bool | None:
        if target - tolerance <= s.low and s.high <= target + tolerance:
            return True
        return False if s.high < target - tolerance or s.low > target + tolerance else None

    return _compared(claim, results, passes)


def at_least(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval reaches the printed threshold, less `tolerance` for rounding, and the control's does not."""
    slack = claim.evidence.get("tolerance", 0.0)
    return _compared(claim, results, lambda s, p: s.low >= p - slack or (False if s.high < p - slack else None))


def at_most(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval keeps to the printed threshold, plus `tolerance` for rounding, and the control's does not."""
    slack = claim.evidence.get("tolerance", 0.0)
    return _compared(claim, results, lambda s, p: s.high <= p + slack or (False if s.low > p + slack else None))


def greater(claim: Claim, results: Sequence[Result]) -> Ruling:
    """The stated difference is above zero with its whole interval, and the control's is not."""
    return _compared(claim, results, lambda s, _target: s.low > 0 or (False if s.high <= 0 else None))


def untestable(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Nothing printed can be tested; the entry gives the reason."""
    return Ruling(Verdict.UNTESTABLE, claim.reason)


RULES: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "checked": (checked, ("construction",)),
    "attacked": (attacked, ("theorem",)),
    "reproduced": (reproduced, ("measurement",)),
    "at_least": (at_least, ("measurement",)),
    "at_most": (at_most, ("measurement",)),
    "greater": (greater, ("measurement",)),
    "untestable": (untestable, KINDS),
}


def _listed(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{n} {words}" for n, words in counted if n) or "none"


def _shown(summaries: list[Summary]) -> str:
    if len(summaries) == 1:
        return str(summaries[0])
    return "[" + ", ".join(f"{s.mean:.3g}" for s in summaries) + f"] ({summaries[0].seeds} seeds)"


def read_claims(path: Path | str | None = None) -> list[Claim]:
    """The entries of claims.yml, each checked; a fault is a ValueError that names the claim and the field."""
    path = Path(path) if path is not None else data_folder() / "claims.yml"
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path.name} must be a list of entries, each with fields such as id, title and rule")
    claims = [_claim(entry) for entry in entries]
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
        ("rule", claim.rule, tuple(RULES)),
        ("repair", claim.repair, REPAIRS),
    ):
        if given not in allowed:
            raise ValueError(f"{name}: unknown {option} {given!r}; it must be one of {', '.join(allowed)}")
    if claim.kind not in RULES[claim.rule][1]:
        raise ValueError(f"{name}: the rule {claim.rule} is not for a {claim.kind}")
    if (claim.repair != "none") != bool(claim.corrected):
        raise ValueError(f"{name}: 'corrected' goes with a repair, and a repair with 'corrected'")
    if (claim.rule == "untestable") != bool(claim.reason):
        raise ValueError(f"{name}: 'reason' goes with the rule untestable, and the other way round")
    if claim.evidence:
        _check_evidence(name, claim)
    return claim


def _check_evidence(name: str, claim: Claim) -> None:
    """Evidence must name all that its rule reads."""
    needed = {"experiment"}
    if claim.kind == "measurement":
        needed |= {"figure", "control"}
        needed |= {"printed"} if claim.rule != "greater" else set()
        needed |= {"tolerance"} if claim.rule == "reproduced" else set()
    if missing := needed - set(claim.evidence):
        raise ValueError(f"{name}: evidence needs {sorted(missing)} for the rule {claim.rule}")
    if "printed" in needed and claim.evidence["printed"] not in claim.printed:
        raise ValueError(f"{name}: evidence names {claim.evidence['printed']!r}, which the field 'printed' lacks")
    if not isinstance(claim.evidence.get("tolerance", 0), int | float):  # YAML reads 1e-2 as text, 0.01 as a number
        raise ValueError(f"{name}: tolerance must be a number such as 0.01; not {claim.evidence['tolerance']!r}")


def judge(claim: Claim, store: Store | None = None) -> Outcome:
    """The claim's rule over its recorded evidence; `not yet measured` where none is recorded.

    A construction's evidence are the findings of its tests, recorded as check-ID; the other kinds name their experiment
    in `evidence: {experiment, scale, …}`, where the scale is book unless it is named.
    """
    store = store or Store()
    rule = RULES[claim.rule][0]
    if claim.rule == "untestable":
        return Outcome(claim, rule(claim, []))
    if claim.kind == "construction":
        results = store.load(check_name(claim.id))
    else:
        named = claim.evidence.get("experiment")
        results = store.load(named, claim.evidence.get("scale", "book")) if named else []
    if not results:
        return Outcome(claim, Ruling(Verdict.UNMEASURED, "no evidence is recorded yet"))
    sources = [name for r in results for name in r.configuration.get("tests", [r.experiment])]
    return Outcome(claim, rule(claim, results), tuple(dict.fromkeys(sources)))


def judge_all(claims: Iterable[Claim] | None = None, store: Store | None = None) -> list[Outcome]:
    return [judge(claim, store) for claim in (claims if claims is not None else read_claims())]


class Page:
    """HTML that a notebook displays; formulas are typeset by the page or by JupyterLab."""

    def __init__(self, markup: str, text: str):
        self.markup, self.text = markup, text

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.text


def _typeset(text: str) -> str:
    """Escape for HTML; $…$ becomes the delimiters that both MathJax and JupyterLab read."""
    return re.sub(r"\$([^$]+)\$", r"\\(\1\\)", html.escape(text, quote=False))


def _badge(verdict: Verdict) -> str:
    return f'<strong class="verdict verdict-{slug(verdict.value)}">{verdict.value}</strong>'


def _printed(claim: Claim) -> str:
    def number(value) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return "; ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in claim.printed.items())


def _details(outcome: Outcome) -> str:
    """The rows that the box and the ledger share: label and text, empty ones left out."""
    claim, ruling = outcome.claim, outcome.ruling
    fallen = ruling.verdict in (Verdict.FAILS, Verdict.CONDITIONS)
    instead = "True instead" if ruling.repaired else "Proposed instead, not yet tested"
    rows = [
        ("Claim", _typeset(claim.says)),
        ("Printed figure", _typeset(_printed(claim))),
        (instead, _typeset(claim.corrected) if fallen else ""),
        ("How we test it", _typeset(claim.protocol)),
        ("Control", _typeset(claim.control)),
        ("Evidence", _typeset(ruling.because)),
        ("From", "<br>".join(f"<code>{html.escape(source)}</code>" for source in outcome.sources)),
        ("Chapter", f'<span class="chapter">{html.escape(claim.chapter)}</span>'),
        ("Rule", f"<code>{claim.rule}</code>: {_typeset(inspect.getdoc(RULES[claim.rule][0])).replace('`', '')}"),
    ]
    return "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows if text)


def box(*claim_ids: str, store: Store | None = None) -> Page:
    """A chapter's verdict box, filled from the evidence: box("P1-eq6/7")."""
    known = {claim.id: claim for claim in read_claims()}
    unknown = [i for i in claim_ids if i not in known]
    if unknown or not claim_ids:
        raise ValueError(f"box needs ids of claims, such as {next(iter(known))}; unknown: {unknown}")
    outcomes = [judge(known[i], store) for i in claim_ids]
    parts = [
        f'<section class="verdict-box" aria-label="Verdict on {o.claim.id}"><p>{_badge(o.verdict)} '
        f'<a href="ledger.ipynb#{o.claim.anchor}">{o.claim.id}</a>: {html.escape(o.claim.title)} '
        f"({html.escape(o.claim.where)})</p><dl>{_details(o)}</dl></section>"
        for o in outcomes
    ]
    return Page(
        f'<div class="mathjax_process">{"".join(parts)}</div>',
        "\n".join(f"{o.claim.id}: {o.verdict.value} ({o.ruling.because})" for o in outcomes),
    )


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many claims have each verdict, in the order of Verdict."""
    found = Counter(o.verdict for o in outcomes)
    return {verdict.value: found[verdict] for verdict in Verdict}


def table(outcomes: Sequence[Outcome] | None = None) -> Page:
    """The whole ledger as a page: one entry a claim, with its verdict and the evidence behind a click."""
    outcomes = judge_all() if outcomes is None else outcomes
    entries = [
        f'<details class="claim"><summary>{_badge(o.verdict)} <b>{html.escape(o.claim.id)}</b> '
        f"{html.escape(o.claim.title)} <small>{html.escape(o.claim.where)}, {o.claim.kind}</small></summary>"
        f'<dl id="{o.claim.anchor}">{_details(o)}</dl></details>'
        for o in outcomes
    ]
    text = "\n".join(f"{o.claim.id}: {o.verdict.value}" for o in outcomes)
    return Page(f'<div class="ledger mathjax_process">{"".join(entries)}</div>', text)
