"""The ledger: every claim of the two papers, and the verdict that the evidence gives.

`data/claims.yml` holds words, places, printed figures and, for each claim, the name of a rule. The evidence is in the
Results: measured figures with their controls, attacks on a theorem, outcomes of named tests. A rule turns evidence into
a verdict. No verdict is written down anywhere.
"""

import html
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
    UNTESTABLE = "not testable as stated"
    UNMEASURED = "not yet measured"


MEANINGS = {
    Verdict.HOLDS: "as printed, in everything we tried",
    Verdict.CONDITIONS: "not as printed, but with hypotheses that we state and prove enough",
    Verdict.TRIVIAL: "a control that knows nothing scores as well",
    Verdict.FAILS: "a counterexample or a measurement contradicts it",
    Verdict.UNTESTABLE: "what is printed leaves open what would have to be measured",
    Verdict.UNMEASURED: "no evidence is recorded yet",
}

KINDS = ("construction", "theorem", "measurement")
REPAIRS = ("condition", "replacement", "none")
SHOWS = ("printed_holds", "printed_fails", "repair_holds")  # what a test marked `claim` shows when it passes


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
        return "claim-" + slug(self.id).lower()


def slug(claim_id: str) -> str:
    """A claim's id as part of a file name or an address: P1-eq6/7 becomes P1-eq6-7."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", claim_id)


def check_name(claim_id: str) -> str:
    """The name under which the outcomes of a claim's tests are recorded."""
    return f"check-{slug(claim_id)}"


@dataclass(frozen=True)
class Outcome:
    """A claim with what its rule made of the evidence."""

    claim: Claim
    verdict: Verdict
    because: str
    sources: tuple[str, ...] = ()  # the tests or the experiment that gave the evidence


# Rules: (claim, results) -> (verdict, reason in words). Evidence was recorded, so `results` is never empty.


def checked(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """Named tests decide. Each shows that the printed form holds, that it fails, or that the repair holds."""
    shown = {name: sum(int(r.figures[name]) for r in results) for name in SHOWS}
    broken = sum(int(r.figures["failed"]) for r in results)
    words = _listed(
        (shown["printed_holds"], "for the printed form"),
        (shown["printed_fails"], "against it"),
        (shown["repair_holds"], "for the repair"),
        (broken, "did not pass"),
    )
    words = f"tests: {words}"
    if broken:
        return Verdict.UNMEASURED, words
    if shown["printed_fails"]:
        mended = shown["repair_holds"] and claim.repair == "condition"
        return (Verdict.CONDITIONS if mended else Verdict.FAILS), words
    if shown["printed_holds"]:
        return Verdict.HOLDS, words
    return Verdict.UNMEASURED, words


def attacked(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """An adversary searched for violations of the printed and of the corrected statement."""

    def total(name: str) -> int:
        return sum(int(r.figures[name]) for r in results)

    violations, attempts = total("printed_violations"), total("printed_attempts")
    words = f"printed: {violations} violations in {attempts} attempts"
    repaired = False
    if claim.repair != "none":
        broken, tried = total("corrected_violations"), total("corrected_attempts")
        repaired = broken == 0 and tried > 0
        words += f"; corrected: {broken} in {tried}"
    if attempts == 0:
        return Verdict.UNMEASURED, words
    if violations == 0:
        return Verdict.HOLDS, words
    return (Verdict.CONDITIONS if repaired and claim.repair == "condition" else Verdict.FAILS), words


def _layers(summary: Summary | list[Summary]) -> list[Summary]:
    return summary if isinstance(summary, list) else [summary]


def _compared(claim: Claim, results: Sequence[Result], passes: Callable) -> tuple[Verdict, str]:
    """`passes(low, high, printed)` for ours; trivial when the control passes too. Lists are compared layer by layer."""
    evidence = claim.evidence
    printed = claim.printed[evidence["printed"]] if "printed" in evidence else 0.0
    ours = _layers(summarise(results, evidence["figure"]))
    control = _layers(summarise(results, evidence["control"], control=True))
    targets = printed if isinstance(printed, list) else [printed] * len(ours)
    if not len(ours) == len(control) == len(targets):
        raise ValueError(
            f"claim {claim.id}: {len(ours)} values are ours, {len(control)} control, {len(targets)} printed"
        )

    def all_pass(summaries: list[Summary]) -> bool:
        return all(s.seeds > 0 and passes(s, target) for s, target in zip(summaries, targets, strict=True))

    words = f"ours {_shown(ours)}; {evidence['control'].replace('_', ' ')} {_shown(control)}"
    if any(s.seeds + s.diverged < 2 for s in ours):
        return Verdict.UNMEASURED, f"{words}; one seed decides nothing"
    if not all_pass(ours):
        return Verdict.FAILS, words
    return (Verdict.TRIVIAL if all_pass(control) else Verdict.HOLDS), words


def reproduced(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """Our mean is the printed figure within `tolerance`, and the control's mean is not."""
    tolerance = claim.evidence["tolerance"]
    return _compared(claim, results, lambda s, target: abs(s.mean - target) <= tolerance)


def at_least(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """The lower end of our interval reaches the printed threshold, and the control's does not."""
    return _compared(claim, results, lambda s, target: s.low >= target)


def at_most(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """The upper end of our interval stays below the printed threshold, and the control's does not."""
    return _compared(claim, results, lambda s, target: s.high <= target)


def greater(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """The stated difference is above zero with its whole interval, and the control's is not."""
    return _compared(claim, results, lambda s, _target: s.low > 0)


def untestable(claim: Claim, results: Sequence[Result]) -> tuple[Verdict, str]:
    """Nothing printed can be tested; the entry gives the reason."""
    return Verdict.UNTESTABLE, claim.reason


RULES: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "checked": (checked, ("construction",)),
    "attacked": (attacked, ("theorem",)),
    "reproduced": (reproduced, ("measurement",)),
    "at_least": (at_least, ("measurement",)),
    "at_most": (at_most, ("measurement",)),
    "greater": (greater, ("measurement",)),
    "untestable": (untestable, ("construction", "theorem")),
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
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    claims = [_claim(entry) for entry in entries]
    twice = [claim_id for claim_id, n in Counter(c.id for c in claims).items() if n > 1]
    if twice:
        raise ValueError(f"{path.name}: these ids stand twice: {', '.join(twice)}")
    return claims


def _claim(entry: dict) -> Claim:
    claim_id = entry.get("id", "an entry without id")
    known = set(Claim.__dataclass_fields__)
    if "verdict" in entry:
        raise ValueError(f"claim {claim_id}: a verdict is computed from evidence; remove the field 'verdict'")
    if unknown := set(entry) - known:
        raise ValueError(f"claim {claim_id}: unknown fields {sorted(unknown)}; known are {sorted(known)}")
    needed = {"id", "title", "where", "kind", "says", "chapter", "rule"}
    if missing := needed - set(entry):
        raise ValueError(f"claim {claim_id}: the fields {sorted(missing)} are missing")
    claim = Claim(**entry)
    if claim.kind not in KINDS:
        raise ValueError(f"claim {claim_id}: kind must be one of {', '.join(KINDS)}; not {claim.kind!r}")
    if claim.rule not in RULES:
        raise ValueError(f"claim {claim_id}: unknown rule {claim.rule!r}; the rules are {', '.join(RULES)}")
    if claim.kind not in RULES[claim.rule][1]:
        raise ValueError(f"claim {claim_id}: the rule {claim.rule} is not for a {claim.kind}")
    if claim.repair not in REPAIRS:
        raise ValueError(f"claim {claim_id}: repair must be one of {', '.join(REPAIRS)}; not {claim.repair!r}")
    if (claim.repair != "none") != bool(claim.corrected):
        raise ValueError(f"claim {claim_id}: 'corrected' goes with a repair, and a repair with 'corrected'")
    if (claim.rule == "untestable") != bool(claim.reason):
        raise ValueError(f"claim {claim_id}: 'reason' goes with the rule untestable, and the other way round")
    return claim


def judge(claim: Claim, store: Store | None = None) -> Outcome:
    """The claim's rule over its recorded evidence; `not yet measured` where none is recorded.

    A construction's evidence are the outcomes of its tests, recorded as check-ID; the other kinds name their experiment
    in `evidence: {experiment, scale, …}`.
    """
    store = store or Store()
    rule = RULES[claim.rule][0]
    if claim.rule == "untestable":
        results = []
    else:
        experiment = check_name(claim.id) if claim.kind == "construction" else claim.evidence.get("experiment")
        results = store.load(experiment, claim.evidence.get("scale")) if experiment else []
        if not results:
            return Outcome(claim, Verdict.UNMEASURED, "no evidence is recorded yet")
    sources = [name for r in results for name in r.configuration.get("tests", [r.experiment])]
    return Outcome(claim, *rule(claim, results), tuple(dict.fromkeys(sources)))


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
    claim = outcome.claim
    rows = [
        ("Claim", _typeset(claim.says)),
        ("Printed figure", _typeset(_printed(claim))),
        ("True instead", _typeset(claim.corrected) if outcome.verdict in (Verdict.FAILS, Verdict.CONDITIONS) else ""),
        ("How we test it", _typeset(claim.protocol)),
        ("Control", _typeset(claim.control)),
        ("Evidence", _typeset(outcome.because)),
        ("From", "<br>".join(f"<code>{html.escape(source)}</code>" for source in outcome.sources)),
        ("Chapter", f'<span class="chapter">{claim.chapter}</span>'),
        ("Rule", f"<code>{claim.rule}</code>: {_typeset((RULES[claim.rule][0].__doc__ or '').strip())}"),
    ]
    return "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows if text)


def box(*claim_ids: str, store: Store | None = None) -> Page:
    """A chapter's verdict box, filled from the evidence: box("P1-eq6/7")."""
    known = {claim.id: claim for claim in read_claims()}
    if not claim_ids or (unknown := [i for i in claim_ids if i not in known]):
        raise ValueError(f"box needs ids of claims; unknown: {unknown if claim_ids else 'none given'}")
    outcomes = [judge(known[i], store) for i in claim_ids]
    parts = [
        f'<section class="verdict-box" aria-label="Verdict on {o.claim.id}"><p>{_badge(o.verdict)} '
        f'<a href="ledger.ipynb#{o.claim.anchor}">{o.claim.id}</a>: {html.escape(o.claim.title)} '
        f"({html.escape(o.claim.where)})</p><dl>{_details(o)}</dl></section>"
        for o in outcomes
    ]
    return Page(
        f'<div class="mathjax_process">{"".join(parts)}</div>',
        "\n".join(f"{o.claim.id}: {o.verdict.value} ({o.because})" for o in outcomes),
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
