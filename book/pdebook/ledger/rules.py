"""The rules of the ledger: each turns the recorded evidence on a claim into a verdict. None is typed.

A rule is a function (claim, results) -> Ruling; its documentation, which the ledger prints, begins with one line that
says it all. It is asked only where evidence was recorded, so `results` is never empty.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pdebook.ledger.claims import Claim, Compare
from pdebook.ledger.record import Key, Result, Summary, finished, interval, summarise


class Verdict(StrEnum):
    HOLDS = "holds"
    CONDITIONS = "holds with conditions"
    TRIVIAL = "trivial"
    FAILS = "fails"
    UNDECIDED = "undecided"
    UNTESTABLE = "not testable as stated"
    UNMEASURED = "not yet measured"


MEANINGS = {
    Verdict.HOLDS: "as printed, by the rule of its entry, in everything we tried",
    Verdict.CONDITIONS: "not as printed, but under added hypotheses; proof in the chapter, and no test contradicts it",
    Verdict.TRIVIAL: "a control that lacks what the claim is about scores as well",
    Verdict.FAILS: "a counterexample or a measurement contradicts it",
    Verdict.UNDECIDED: "measured, and the evidence allows both answers",
    Verdict.UNTESTABLE: "what is printed leaves open what would have to be measured",
    Verdict.UNMEASURED: "no evidence is recorded yet, or not of enough seeds",
}

FINDINGS = ("printed_holds", "printed_fails", "repair_holds", "repair_fails", "undecided")  # of a test marked `claim`
MIN_SEEDS = 3  # finished runs that an interval needs before it decides anything
ROLES = ("printed", "corrected", "lemma")  # of a statement in an attack; a lemma, a step of a proof, decides nothing
ROUNDING = 1e-6  # the reference solutions of an attack are exact to about 1e-9, relative to the bound
SHRUNK = 0.9  # a constant of a bound, made ten per cent smaller, must let the bound be broken
CLEAR = 1e-3  # a violation by more than this is no slip of an integrator, even if one seed alone has it


@dataclass(frozen=True)
class Comparison:
    """One printed figure with ours and its controls': a Summary for each printed value."""

    figure: str
    printed: tuple[float, ...]
    ours: tuple[Summary, ...]
    controls: dict[str, tuple[Summary, ...]]
    verdict: Verdict


@dataclass(frozen=True)
class Ruling:
    """What a rule makes of the evidence; `repaired`: our corrected statement was tested too and stood.

    `ours` and `control` are the two parts of the evidence in words, for the table; `because` is both.
    unusable: there is evidence, but it is damaged or does not fit together.
    """

    verdict: Verdict
    because: str
    repaired: bool = False
    ours: str = ""
    control: str = ""
    comparisons: tuple[Comparison, ...] = ()
    unusable: bool = False


def checked(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Named tests decide: each finds that the printed form holds or fails, or the same of our repair."""
    found = {name: results[0].figures.get(name) for name in (*FINDINGS, "broken")}
    if len(results) > 1 or results[0].status != "finished" or not all(_is_count(n) for n in found.values()):
        raise ValueError(f"the findings on {claim.id} must be one finished result of counts; not {found}")
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
        return Ruling(Verdict.UNMEASURED, words, ours=words)
    if found["printed_fails"]:
        verdict = _fallen(claim, repaired)
    elif found["undecided"]:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.HOLDS if found["printed_holds"] else Verdict.UNMEASURED
    return Ruling(verdict, words, repaired, ours=words)


@dataclass(frozen=True)
class Attacked:
    """What all seeds found of one statement.

    violations: how often it was broken, in `fallen_in` seeds. neighbours: its false neighbours, by name; standing:
    those of them that the search of some seed did not break. everywhere: those that fell in every setting of every
    seed, where that was counted; settings: how many there are, 0 where it was not.
    """

    role: str
    name: str
    attempts: int
    violations: int
    fallen_in: int
    worst: float
    neighbours: tuple[str, ...]
    standing: tuple[str, ...]
    settings: int = 0
    everywhere: tuple[str, ...] = ()

    @property
    def fell(self) -> bool:
        """Broken by more than an integrator may err, or with several seeds."""
        return self.fallen_in >= MIN_SEEDS or (self.fallen_in > 0 and self.worst > 1 + CLEAR)

    @property
    def stood(self) -> bool:
        """Never broken, by a search that broke every false neighbour of this very statement in every seed.

        A search that breaks no false neighbour may simply be weak: that it broke nothing then proves nothing.
        """
        return not self.violations and bool(self.neighbours) and not self.standing


def attacks(results: Sequence[Result]) -> list[Attacked]:
    """Every statement that was attacked, printed or corrected or a lemma, each with its own false neighbours.

    Read from the figures ROLE/STATEMENT/attempts, …/violations and …/worst, and from the controls
    ROLE/STATEMENT/broken/NEIGHBOUR, which count how often a false neighbour was broken in place of the statement. Where
    a statement counted it, …/settings and …/broken_in/NEIGHBOUR say in how many of its settings.
    """
    first = results[0]
    recorded = [[key for key in r.figures if key.endswith("/attempts")] for r in results]
    if any(set(keys) != set(recorded[0]) for keys in recorded):
        raise ValueError(f"the seeds of {first.experiment} attacked different statements; record all of them anew")
    if any(r.configuration != first.configuration for r in results):
        raise ValueError(f"the seeds of {first.experiment} were attacked with different settings; record all anew")
    if any(r.status != "finished" for r in results):
        raise ValueError(f"{first.experiment} has a seed that did not finish; record it anew")
    rounding, shrunk = first.configuration.get("rounding", 0.0), first.configuration.get("shrunk", SHRUNK)
    if not 0 <= rounding <= ROUNDING or not SHRUNK <= shrunk < 1:
        raise ValueError(
            f"{first.experiment} allowed {rounding} for rounding and shrank constants to {shrunk}; "
            f"at most {ROUNDING} and at least {SHRUNK} would count"
        )

    found = []
    for key in recorded[0]:
        role, name, *rest = Key(key).parts
        if role not in ROLES or len(rest) != 1:
            raise ValueError(f"{first.experiment}: {key} must be printed/STATEMENT/attempts, corrected/… or lemma/…")
        own = Key(role, name, "broken", "")
        broken = [{k.removeprefix(own): n for k, n in r.controls.items() if k.startswith(own)} for r in results]
        for result, numbers in zip(results, broken, strict=True):
            _check_counts(result, Key(role, name), numbers, rounding)
        attempts, violations, worst = (
            [r.figures[Key(role, name, what)] for r in results] for what in ("attempts", "violations", "worst")
        )
        neighbours = tuple(dict.fromkeys(neighbour for one in broken for neighbour in one))
        settings = min(r.figures.get(Key(role, name, "settings"), 0) for r in results)
        in_all = [n for n in neighbours if all(_in_all(r, Key(role, name), n) for r in results)]
        found.append(
            Attacked(
                role,
                name,
                attempts=int(sum(attempts)),
                violations=int(sum(violations)),
                fallen_in=sum(n > 0 for n in violations),
                worst=max(worst),
                neighbours=neighbours,
                standing=tuple(n for n in neighbours if not all(one.get(n, 0) > 0 for one in broken)),
                settings=int(settings),
                everywhere=tuple(in_all) if settings else (),
            )
        )
    return found


def _in_all(result: Result, statement: str, neighbour: str) -> bool:
    """The neighbour fell in every setting of this seed, where that was counted."""
    settings, fell = (result.figures.get(Key(statement, *what)) for what in (("settings",), ("broken_in", neighbour)))
    return settings is not None and fell == settings


def _is_count(number: object) -> bool:
    return isinstance(number, int | float) and number >= 0 and number % 1 == 0


def _check_counts(result: Result, statement: str, broken: dict[str, float], rounding: float) -> None:
    """Refuse numbers that no search gives: no attempts, what is no count of them, a worst that lies."""
    attempts, violations, worst = (
        result.figures.get(Key(statement, what)) for what in ("attempts", "violations", "worst")
    )
    counts = _is_count(attempts) and all(_is_count(n) and n <= attempts for n in (violations, *broken.values()))
    scored = isinstance(worst, int | float) and math.isfinite(worst)
    if not counts or not scored or attempts < 1 or "" in broken or (worst > 1 + rounding) != (violations > 0):
        raise ValueError(
            f"{result.experiment}, seed {result.seed}: {statement} has {attempts} attempts, {violations} violations, "
            f"the worst score {worst} and the broken neighbours {broken}, which do not fit each other; record it anew"
        )


def attacked(claim: Claim, results: Sequence[Result]) -> Ruling:
    """A search tried to break every statement, printed and ours; to stand, it must outlive its own false neighbours.

    One violation in any seed breaks a statement; a printed one falls if it is clear, or found with three seeds. That
    none was found counts only where the same search broke every false neighbour of this very statement in every seed: a
    wrong law in its place, or its bound with one constant smaller. The claim holds if all its printed statements stand.
    If one is broken it fails, or holds with conditions if our repair only adds hypotheses and ours all stand. Steps of
    a proof, theirs or ours, are counted apart and decide nothing.
    """
    printed, corrected, lemmas = ([one for one in attacks(results) if one.role == role] for role in ROLES)
    found = printed + corrected
    parts = [
        f"{sum(one.violations for one in some)} in {sum(one.attempts for one in some)} attempts on "
        f"{len(some)} {role} statement{'s' if len(some) > 1 else ''}"
        for role, some in (("printed", printed), ("corrected", corrected))
        if some
    ]
    ours = "violations: " + ("; ".join(parts) or "no statement was attacked")

    unbroken = [one for one in found if not one.violations]  # a statement that fell needs no neighbour any more
    neighbours, standing = (sum(len(getattr(one, of)) for one in unbroken) for of in ("neighbours", "standing"))
    control = f"{neighbours - standing} of {neighbours} false neighbours broken in every seed"
    doubts = [f"{one.name}, where {', '.join(one.standing)} stood" for one in unbroken if one.standing]
    doubts += [f"{one.name}, which has no false neighbour" for one in unbroken if not one.neighbours]
    if doubts:
        control += f"; the search proves nothing of {'; nor of '.join(doubts)}"
    if lemmas:
        some = f"{sum(one.stood for one in lemmas)} of {len(lemmas)} step{'s' if len(lemmas) > 1 else ''}"
        control += f"; apart from these, {some} of the proof stood"

    words = {"because": f"{ours}; {control}", "ours": ours, "control": control}
    enough = len(results) >= MIN_SEEDS  # one violation breaks a statement; that it stands takes more than one search
    if not enough:
        words["because"] += f"; a verdict that something stands needs at least {MIN_SEEDS} seeds"
    repaired = enough and bool(corrected) and all(one.stood for one in corrected)
    if any(one.fell for one in printed):
        return Ruling(_fallen(claim, repaired), repaired=repaired, **words)
    # a repair that only adds hypotheses says less than what is printed: both cannot stand apart
    contradicted = claim.repair == "condition" and any(one.violations for one in corrected)
    if contradicted or any(one.violations for one in printed):
        return Ruling(Verdict.UNDECIDED, repaired=repaired, **words)
    held = enough and bool(printed) and all(one.stood for one in printed)
    return Ruling(Verdict.HOLDS if held else Verdict.UNMEASURED, repaired=repaired, **words)


def _fallen(claim: Claim, repaired: bool) -> Verdict:
    """The printed statement fell: it holds with conditions if our repair only adds hypotheses, and stood."""
    return Verdict.CONDITIONS if repaired and claim.repair == "condition" else Verdict.FAILS


# (interval, printed figure, tolerance) -> yes, no, or None where the interval allows both
Passes = Callable[[Summary, float, float], bool | None]


def _compared(claim: Claim, results: Sequence[Result], passes: Passes) -> Ruling:
    """Every comparison of the claim, and what they come to.

    The claim fails if one comparison fails, and is undecided if one is; else it is trivial if all are, and holds if one
    is not. While fewer than MIN_SEEDS are recorded it is not yet measured; runs most of which diverged decide nothing.
    """
    if len(results) < MIN_SEEDS:
        some = "1 seed is" if len(results) == 1 else f"{len(results)} seeds are"
        return Ruling(Verdict.UNMEASURED, f"{some} recorded; a verdict needs at least {MIN_SEEDS}")
    ended = [r for r in results if r.status == "finished"]
    diverged = len(results) - len(ended)
    if len(ended) < MIN_SEEDS or diverged >= len(ended):
        count = f"{len(ended)} finished seeds, {diverged} not"
        return Ruling(Verdict.UNDECIDED, f"{count}; at least {MIN_SEEDS} must finish, and more than half of all")
    asked = [(one["figure"], False) for one in claim.comparisons]
    asked += [(name, True) for one in claim.comparisons for name in one["control"]]
    for name, control in asked:
        for one in _layers(summarise(results, name, control=control)):
            if one.diverged >= one.seeds:
                return Ruling(Verdict.UNDECIDED, f"{name} diverged with {one.diverged} of {len(results)} seeds")
    found = tuple(_comparison(claim, one, results, passes) for one in claim.comparisons)
    verdicts = [one.verdict for one in found]
    first = (Verdict.FAILS, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.TRIVIAL)
    verdict = next(v for v in first if v in verdicts)
    several = len(found) > 1
    because = "; ".join(
        (f"{_words(one.figure)} {one.verdict}: " if several else "")
        + f"ours {_means(one.ours)}; "
        + "; ".join(f"{_words(name)} {_means(summaries)}" for name, summaries in one.controls.items())
        for one in found
    )
    ours = "; ".join((f"{_words(one.figure)} " if several else "") + _intervals(one.ours) for one in found)
    if cut := ended[0].configuration.get("cut"):
        because, ours = (f"{words}; cut to {cut}" for words in (because, ours))
    control = "; ".join(
        (f"{_words(one.figure)}, " if several else "") + f"{_words(name)} {_intervals(summaries)}"
        for one in found
        for name, summaries in one.controls.items()
    )
    return Ruling(verdict, because, ours=ours, control=control, comparisons=found)


def _comparison(claim: Claim, one: Compare, results: Sequence[Result], passes: Passes) -> Comparison:
    """One comparison: every layer must pass; trivial when a control passes too, undecided where either allows both."""
    ours = _layers(summarise(results, one["figure"]))
    controls = {name: _layers(summarise(results, name, control=True)) for name in one["control"]}
    printed = claim.printed[one["printed"]] if claim.rule != "greater" else 0.0
    targets = tuple(printed) if isinstance(printed, list) else (printed,) * len(ours)
    _check_lengths(claim, one, ours, controls, targets)
    slack = one.get("tolerance", 0.0)

    def all_pass(summaries: tuple[Summary, ...], targets: tuple[float, ...]) -> bool | None:
        pairs = zip(summaries, targets, strict=True)
        return _all([passes(s, target, slack) if s.seeds >= MIN_SEEDS else None for s, target in pairs])

    mine = all_pass(ours, targets)
    if claim.rule == "greater":
        theirs = [_as_large(control, _differences(results, one["figure"], name)) for name, control in controls.items()]
    else:
        theirs = [all_pass(control, targets) for control in controls.values()]

    if mine is False:
        verdict = Verdict.FAILS
    elif mine is None:
        verdict = Verdict.UNDECIDED
    elif True in theirs:
        verdict = Verdict.TRIVIAL
    else:
        verdict = Verdict.UNDECIDED if None in theirs else Verdict.HOLDS
    return Comparison(one["figure"], () if claim.rule == "greater" else targets, ours, controls, verdict)


def _check_lengths(claim: Claim, one: Compare, ours: tuple, controls: dict[str, tuple], targets: tuple) -> None:
    """As many values of ours as of each control, printed figures and named rows, and none that is NaN."""
    for control in controls.values():
        if not len(ours) == len(control) == len(targets):
            raise ValueError(
                f"claim {claim.id}: {len(ours)} values are ours, {len(control)} control, {len(targets)} printed"
            )
    rows = claim.evidence.get("rows", [])
    if rows and len(rows) != len(ours):
        raise ValueError(f"claim {claim.id}: rows has {len(rows)} names, and {one['figure']} has {len(ours)} values")
    if not all(math.isfinite(s.mean) for values in (ours, *controls.values()) for s in values if s.seeds):
        raise ValueError(
            f"claim {claim.id}: a finished run recorded NaN or infinity; a run that has no figure must say diverged"
        )


def _differences(results: Sequence[Result], figure: str, control: str) -> tuple[Summary, ...]:
    """Ours minus the control's, seed by seed: the interval of the paired difference, one per value."""
    both = [r for r in finished(results, figure) if r in finished(results, control, control=True)]
    pairs = [(_listed_values(r.figures[figure]), _listed_values(r.controls[control])) for r in both]
    rows = [[a - b for a, b in zip(ours, theirs, strict=True)] for ours, theirs in pairs]
    return tuple(interval(column) for column in zip(*rows, strict=True))


def _as_large(control: tuple[Summary, ...], differences: tuple[Summary, ...]) -> bool | None:
    """Does the control show as much as ours?  No if ours is larger by the paired difference, in every value.

    Yes if in one value it does: there the difference is nowhere above zero, or the control is itself above zero and
    the difference does not tell them apart. Else the evidence allows both.
    """

    def one(theirs: Summary, difference: Summary) -> bool | None:
        if difference.seeds < MIN_SEEDS:
            return None
        if difference.low > 0:
            return False
        return True if difference.high <= 0 or theirs.low > 0 else None

    answers = [one(theirs, difference) for theirs, difference in zip(control, differences, strict=True)]
    return True if True in answers else None if None in answers else False


def _all(answers: Sequence[bool | None]) -> bool | None:
    """No if one is no, else None if one is open, else yes."""
    return False if False in answers else None if None in answers else True


def reproduced(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our interval lies within `tolerance` of the printed figure, and the control's does not."""

    def passes(s: Summary, target: float, tolerance: float) -> bool | None:
        if target - tolerance <= s.low and s.high <= target + tolerance:
            return True
        return False if s.high < target - tolerance or s.low > target + tolerance else None

    return _compared(claim, results, passes)


def at_least(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval reaches the printed threshold, less `tolerance` for rounding, and the control's does not."""
    return _compared(claim, results, lambda s, p, slack: s.low >= p - slack or (False if s.high < p - slack else None))


def at_most(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval keeps to the printed threshold, plus `tolerance` for rounding, and the control's does not."""
    return _compared(claim, results, lambda s, p, slack: s.high <= p + slack or (False if s.low > p + slack else None))


def greater(claim: Claim, results: Sequence[Result]) -> Ruling:
    """The stated difference is above zero with its whole interval, and so is what it has over each control.

    Ours and a control's are subtracted seed by seed, and the interval is that of the differences. If it does not reach
    above zero, or a control that is itself above zero cannot be told from ours, the claim is trivial. A figure of
    several values must pass in each. Direction only: how large the difference is, is not tested.
    """
    return _compared(claim, results, lambda s, _bar, _slack: s.low > 0 or (False if s.high <= 0 else None))


def untestable(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Nothing printed can be tested; the entry gives the reason."""
    return Ruling(Verdict.UNTESTABLE, claim.reason)


RULES: dict[str, Callable[[Claim, Sequence[Result]], Ruling]] = {
    rule.__name__: rule for rule in (checked, attacked, reproduced, at_least, at_most, greater, untestable)
}


def _layers(summary: Summary | list[Summary]) -> tuple[Summary, ...]:
    if summary == []:
        raise ValueError("a figure that decides a claim is an empty list; record it anew")
    return tuple(summary) if isinstance(summary, list) else (summary,)


def _listed_values(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _listed(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{n} {words}" for n, words in counted if n) or "none"


def _means(summaries: tuple[Summary, ...]) -> str:
    """In brief: of a list the means alone."""
    if len(summaries) == 1:
        return str(summaries[0])
    return "[" + ", ".join(f"{s.mean:.3g}" for s in summaries) + f"] ({summaries[0].seeds} seeds)"


def _intervals(summaries: tuple[Summary, ...]) -> str:
    """In full: each value with its interval, the seeds once."""
    return ", ".join(s.value for s in summaries) + f" ({summaries[-1].runs})"
