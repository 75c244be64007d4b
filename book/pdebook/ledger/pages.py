"""The ledger: every claim of the two papers, and the verdict that the evidence gives.

The claims are read by `claims`; the evidence is in the Results: measured figures with their controls, attacks on
a theorem, findings of named tests. A rule of `rules` turns evidence into a verdict. Here the claims are judged
and shown: `case_file` in a chapter, `table` for all of them, `rows` for the command line.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from pdebook.kit import page
from pdebook.kit.page import Page, typeset
from pdebook.ledger.claims import FAULTS, KINDS, NEEDED, Claim, check_name, read_as, read_claims, slug
from pdebook.ledger.record import Result, Store, data_folder, recorded_in, size_of
from pdebook.ledger.rules import RULES, Comparison, Ruling, Verdict, attacks
from pdebook.ledger.sources import experiments

_MODELS = {"other": "2nd Transformer", "printed": "P2 eq 4", "earlier": "P1 eq 1"}  # names of models, as chapters say


@dataclass(frozen=True)
class Outcome:
    """A claim and its ruling, with the tests or the experiment that gave the evidence.

    size: at which it was decided; others: what the same rule says under other readings, and at the papers' size.
    """

    claim: Claim
    ruling: Ruling
    sources: tuple[str, ...] = ()
    size: str = ""
    others: tuple[tuple[str, Verdict], ...] = ()

    @property
    def verdict(self) -> Verdict:
        return self.ruling.verdict

    @property
    def fallen(self) -> bool:
        """The statement does not stand as printed."""
        return self.verdict in (Verdict.FAILS, Verdict.CONDITIONS)

    @property
    def instead(self) -> str:
        """What our own statement may be called: true only where it was tested too and stood."""
        return "True instead" if self.ruling.repaired else "Proposed instead, not yet tested"


def judge(claim: Claim, store: Store | None = None) -> Outcome:
    """The claim's rule over its recorded evidence; `not yet measured` where none is recorded.

    A construction's evidence are the findings of its tests, recorded as check-ID; the other kinds name their experiment
    in `evidence: {experiment, scale, …}`, where the scale is book unless it is named.
    """
    return _judge(claim, (store or Store()).load)


def _judge(claim: Claim, load: Callable[..., list[Result]]) -> Outcome:
    rule = RULES[claim.rule]
    if claim.rule == "untestable":
        return Outcome(claim, rule(claim, []))
    if claim.kind == "construction":
        results = load(check_name(claim.id))
    else:
        named = claim.evidence.get("experiment")
        results = load(named, claim.evidence.get("scale", "book")) if named else []
    if not results:
        others = tuple(_otherwise(claim, load)) if claim.evidence else ()
        return Outcome(claim, Ruling(Verdict.UNMEASURED, "no evidence is recorded yet"), others=others)
    sources = tuple(dict.fromkeys(name for r in results for name in r.configuration.get("tests", [r.experiment])))
    if claim.kind == "construction":
        return Outcome(claim, rule(claim, results), sources)
    return Outcome(claim, rule(claim, results), sources, size_of(results), tuple(_otherwise(claim, load)))


def _otherwise(claim: Claim, load: Callable[..., list[Result]]) -> Iterable[tuple[str, Verdict]]:
    """What the claim's rule says of its other readings, and of runs at the papers' size where the book's decide.

    There it has the controls that were run at that size; those that were not are named.
    """
    for other in claim.others:
        read = read_as(claim, other)
        results = load(read.evidence["experiment"], read.evidence.get("scale", "book"))
        if results:
            yield other["name"], RULES[claim.rule](read, results).verdict
    if claim.rule not in NEEDED or claim.evidence.get("scale", "book") != "book":
        return
    results = load(claim.evidence["experiment"], "paper")
    if not results or not all(recorded_in(r, one["figure"]) for r in results for one in claim.comparisons):
        return

    def run(name: str) -> bool:
        return all(recorded_in(r, name, control=True) for r in results)

    compare = [one | {"control": [name for name in one["control"] if run(name)]} for one in claim.comparisons]
    lacking = [name for one in claim.comparisons for name in one["control"] if not run(name)]
    if all(one["control"] for one in compare):
        words = f"at the papers' size, {size_of(results)}"
        words += f", {results[0].configuration['cut']}" if "cut" in results[0].configuration else ""
        words += f", without the controls {', '.join(map(_in_words, lacking))}" if lacking else ""
        kept = {key: value for key, value in claim.evidence.items() if key in ("experiment", "rows", "without")}
        yield words, RULES[claim.rule](replace(claim, evidence=kept | {"compare": compare}, others=[]), results).verdict


def _in_words(name: str) -> str:
    return name.partition("/")[0].replace("_", " ")


def judge_all(claims: Iterable[Claim] | None = None, store: Store | None = None) -> list[Outcome]:
    """Every claim; one whose evidence is damaged or does not fit together is not measured, and the others stand."""
    load = cache((store or Store()).load)  # many claims share an experiment

    def judged(claim: Claim) -> Outcome:
        try:
            return _judge(claim, load)
        except ValueError as fault:
            words = f"its evidence cannot be used: {fault}"
            return Outcome(claim, Ruling(Verdict.UNMEASURED, words, unusable=True))

    return [judged(claim) for claim in (claims if claims is not None else read_claims())]


def those(outcomes: Iterable[Outcome], verdict: str | None = None, chapter: str | None = None) -> list[Outcome]:
    """Those with this verdict and of this chapter; None takes all."""
    return [o for o in outcomes if verdict in (None, o.verdict.value) and chapter in (None, o.claim.chapter)]


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many claims have each verdict, in the order of Verdict."""
    found = Counter(o.verdict for o in outcomes)
    return {verdict.value: found[verdict] for verdict in Verdict}


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """How many constructions, theorems and measurements have each verdict."""
    return {kind: counts([o for o in outcomes if o.claim.kind == kind]) for kind in KINDS}


def by_source(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """How many claims of each paper, P1 and P2, of the review (R) and of the summaries (S) have each verdict."""
    sources = sorted({o.claim.id.partition("-")[0] for o in outcomes})
    return {source: counts([o for o in outcomes if o.claim.id.startswith(f"{source}-")]) for source in sources}


def by_fault(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Under each slip that stands in several entries those that do not stand as printed; the slip in words."""
    fallen = [o for o in outcomes if o.fallen]
    return {words: [o for o in fallen if name in o.claim.fault] for name, words in FAULTS.items()}


def by_chapter(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes under their chapters: first those that the book has, in its order, then those to come."""
    contents = data_folder().parent / "_toc.yml"  # not there in an installed package
    parts = yaml.safe_load(contents.read_text(encoding="utf-8"))["parts"] if contents.exists() else []
    here = [page["file"].removeprefix("book/") for part in parts for page in part["chapters"]]
    named = list(dict.fromkeys(o.claim.chapter for o in outcomes))
    ordered = [name for name in here if name in named] + [name for name in named if name not in here]
    return {name: [o for o in outcomes if o.claim.chapter == name] for name in ordered}


def summary(outcomes: Sequence[Outcome]) -> str:
    """The ledger in a few sentences, for someone who cannot see its picture."""

    def listed(some: Sequence[Outcome]) -> str:
        return ", ".join(f"{n} {verdict}" for verdict, n in counts(some).items() if n)

    chapters = "; ".join(f"{name.replace('_', ' ')}: {listed(some)}" for name, some in by_chapter(outcomes).items())
    return f"{len(outcomes)} claims: {listed(outcomes)}. By chapter: {chapters}."


COLUMNS = (
    *("claim", "verdict", "chapter", "title", "where", "kind", "rule"),
    *("printed", "ours", "control", "because", "size", "otherwise", "fault", "settled", "box", "from"),
)


def rows(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    """One row of plain text a claim: what is printed, ours and the control's with 95 % intervals, verdict, places."""
    found = []
    for o in outcomes:
        claim, ruling = o.claim, o.ruling
        places = " ".join(_place(source) for source in o.sources)
        words = (claim.id, o.verdict.value, claim.chapter, claim.title, claim.where, claim.kind, claim.rule)
        settled = f"{claim.reading['date']}: {claim.reading['text']}" if claim.reading else ""
        words += (_printed(claim), ruling.ours, ruling.control, ruling.because, o.size)
        words += ("; ".join(f"{name}: {verdict}" for name, verdict in o.others), " ".join(claim.fault), settled)
        words += (_box_address(claim), places)
        found.append(dict(zip(COLUMNS, words, strict=True)))
    return found


def _place(source: str) -> str:
    """Where the code of a piece of evidence is: a test names its file, an experiment is looked up."""
    known = experiments()
    return known[source].place if source in known else source


def _box_address(claim: Claim) -> str:
    """The claim's verdict box in the book, if its chapter is here and has one."""
    chapter = data_folder().parent / "book" / f"{claim.chapter}.md"
    text = chapter.read_text(encoding="utf-8") if chapter.exists() else ""
    boxed = re.findall(r"^ledger\.(?:box|case_file)\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    return f"book/{claim.chapter}.html#{claim.box_anchor}" if any(f'"{claim.id}"' in ids for ids in boxed) else ""


def _printed(claim: Claim) -> str:
    def number(value) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return "; ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in claim.printed.items())


def _columns(one: Comparison) -> list[tuple[str, list[str]]]:
    """What stands side by side for each value of a comparison: printed, ours and each control, under its heading."""
    shown = [("printed", [str(printed) for printed in one.printed])] if one.printed else []
    measured = {"ours": one.ours} | {_apart(name, one.figure): found for name, found in one.controls.items()}
    return shown + [(heading, [summary.value for summary in found]) for heading, found in measured.items()]


def _apart(control: str, figure: str) -> str:
    """What tells a control's name from that of the figure, in words; all of it where nothing does.

    >>> _apart("linear/untrained_label_gap", "linear/label_gap"), _apart("rows-bare-shuffled/drop", "rows-bare/drop")
    ('untrained', 'shuffled')
    """
    if " less " in control:
        return control.replace("_", " ")
    model, _, name = control.rpartition("/")
    own, _, mine = figure.rpartition("/")
    parts = [model.removeprefix(own).removesuffix(own).strip("_-"), name.removesuffix(mine).strip("_")]
    words = " ".join(part for part in parts if part) or control
    return " ".join(_MODELS.get(word, word) for word in words.replace("_", " ").split())


def render(template: str, **values: object) -> str:
    """A page, or a part of one, from a file of templates/; what is not HTML already is escaped."""
    return _templates().get_template(template).render(values).strip()


@cache
def _templates() -> Environment:
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    made = Environment(loader=PackageLoader("pdebook.ledger"), autoescape=True, **options)
    made.filters |= {
        "typeset": typeset,
        "slug": slug,
        "place": _place,
        "printed": _printed,
        "columns": _columns,
        "fault": lambda names: "; ".join(FAULTS[name] for name in names),
        "words": lambda name: name.replace("_", " "),
        "rule_words": lambda rule: inspect.getdoc(RULES[rule]).replace("`", ""),
    }
    return made


def case_file(reasons: Mapping[str, str], store: Store | None = None) -> Page:
    """A chapter's claims, one line each: the verdict that the evidence gives, the reason in words, details on a click.

    case_file({"P1-eq6/7": "A trained start token is as long as the others."})
    """
    known = {claim.id: claim for claim in read_claims()}
    unknown = [i for i in reasons if i not in known]
    if unknown or not reasons:
        raise ValueError(f"case_file needs ids of claims, such as {next(iter(known))}; unknown: {unknown}")
    outcomes = judge_all([known[i] for i in reasons], store)
    text = "\n".join(f"{o.claim.id}: {o.verdict.value} ({o.ruling.because})" for o in outcomes)
    return Page(render("case_file.html", outcomes=outcomes, reasons=reasons), text)


def attack_table(experiment: str, store: Store | None = None) -> Page:
    """Every statement that an experiment attacked: attempts, violations, the worst score, and its false neighbours.

    Steps of a proof stand last and are called so: they are no part of what a claim is judged by.
    """
    results = (store or Store()).load(experiment, "book")
    if not results:
        raise ValueError(f"nothing is recorded of {experiment!r}; record it with: pdelab run {experiment}")
    head = ("statement", "attempts", "violations", "worst", "false neighbours that fell")
    lines = []
    roles = {"corrected": "", "printed": " (printed)", "lemma": " (a step of the proof)"}
    for one in sorted(attacks(results), key=lambda one: one.role == "lemma"):
        fallen = [n for n in one.neighbours if n not in one.standing]
        words = ", ".join(fallen) + (f"; NOT {', '.join(one.standing)}" if one.standing else "")
        if one.settings > 1:
            words += f" ({len(one.everywhere)} of {len(one.neighbours)} in each of {one.settings} settings)"
        role = roles[one.role]
        lines.append((one.name + role, str(one.attempts), str(one.violations), f"{one.worst:.4g}", words))
    caption = f"{experiment}, {len(results)} seeds; above 1 a statement is false"
    return page.table(lines, head, caption)


MARKS = dict(zip((verdict.value for verdict in Verdict), "●◆▲✕■✚○", strict=True))  # told apart without colour


def verdict_map(outcomes: Sequence[Outcome] | None = None) -> Page:
    """All claims at a glance: a line per chapter, a mark per claim that leads to its entry in the ledger."""
    outcomes = judge_all() if outcomes is None else outcomes
    values = {"counts": counts(outcomes), "groups": by_chapter(outcomes), "marks": MARKS}
    return Page(render("map.html", **values), summary(outcomes))


def table(outcomes: Sequence[Outcome] | None = None) -> Page:
    """The whole ledger as a page: one entry per claim, the evidence behind a click, and a filter above the entries."""
    outcomes = judge_all() if outcomes is None else outcomes
    menus = {
        "Verdict": {"": "all"} | {slug(verdict): verdict for verdict, n in counts(outcomes).items() if n},
        "Chapter": {"": "all"} | {name: name.replace("_", " ") for name in by_chapter(outcomes)},
        "Kind": {"": "all"} | {kind: kind for kind in KINDS},
        "Source": {"": "all"} | {source: source for source in by_source(outcomes)},
    }
    script = files("pdebook.ledger").joinpath("ledger.js").read_text(encoding="utf-8")
    text = "\n".join(f"{o.claim.id}: {o.verdict.value}" for o in outcomes)
    return Page(render("table.html", outcomes=outcomes, menus=menus, script=script), text)
