"""The rules of the ledger: each turns the recorded evidence on a claim into a verdict. None is typed.

A rule is a function (claim, results) -> Ruling; its documentation, which the ledger prints, begins with one line that
says it all. It is asked only where evidence was recorded, so `results` is never empty.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pdebook.ledger.claims import ROLES, Claim, Compare
from pdebook.ledger.record import Key, Result, Summary, as_list, finished, interval, recorded_in, summarise, value_of


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
    Verdict.TRIVIAL: "a control that lacks what the claim is about scores as well, in one comparison at least",
    Verdict.FAILS: "a counterexample contradicts it, or a measurement at our size and in the reading of its entry",
    Verdict.UNDECIDED: "measured, and the evidence allows both answers",
    Verdict.UNTESTABLE: "what is printed leaves open what would have to be measured",
    Verdict.UNMEASURED: "no evidence is recorded yet, or not of enough seeds",
}

FINDINGS = ("printed_holds", "printed_fails", "repair_holds", "repair_fails", "undecided")  # of a test marked `claim`
MIN_SEEDS = 3  # finished runs that an interval needs before it decides anything
ROUNDING = 1e-6  # the reference solutions of an attack are exact to about 1e-9, relative to the bound
SHRUNK = 0.9  # a constant of a bound, made ten per cent smaller, must let the bound be broken
CLEAR = 1e-3  # a violation by more than this is no slip of an integrator, even if one seed alone has it


@dataclass(frozen=True)
class Comparison:
    """One printed figure with ours and its controls': a Summary for each printed value, blank where none counts.

    missed: in words, how many values miss and how far; beaten: which controls show as much, and by how much less.
    """

    figure: str
    printed: tuple[float, ...]
    ours: tuple[Summary, ...]
    controls: dict[str, tuple[Summary, ...]]
    verdict: Verdict
    missed: str = ""
    beaten: str = ""


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
    _check_alike(results)
    first = results[0]
    rounding, found = first.configuration.get("rounding", 0.0), []
    for key in _attempted(first):
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


def _attempted(result: Result) -> list[str]:
    return [key for key in result.figures if key.endswith("/attempts")]


def _check_alike(results: Sequence[Result]) -> None:
    """Refuse seeds that attacked other statements, with other settings, or did not finish; and settings too kind."""
    first = results[0]
    if any(set(_attempted(r)) != set(_attempted(first)) for r in results):
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


def _in_reading(claim: Claim, found: Sequence[Attacked]) -> Sequence[Attacked]:
    """The statements that count in the claim's reading, in the roles it gives them; all, where it names none."""
    if not (named := claim.evidence.get("statements")):
        return found
    known = {one.name: one for one in found}
    if unknown := [name for names in named.values() for name in names if name not in known]:
        raise ValueError(f"claim {claim.id}: {', '.join(unknown)} was not attacked; recorded are {', '.join(known)}")
    return [replace(known[name], role=role) for role, names in named.items() for name in names]


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
    a proof, theirs or ours, are counted apart and decide nothing. Where the entry names statements, only these count.
    Statements are counted, and how often the search was started; starts are no sample, so how many of them break a
    statement is no frequency.
    """
    read = _in_reading(claim, attacks(results))
    printed, corrected, lemmas = ([one for one in read if one.role == role] for role in ROLES)
    found = printed + corrected
    parts = [
        f"{sum(one.violations > 0 for one in some)} of {len(some)} {role} statement{'s' if len(some) > 1 else ''} "
        f"({sum(one.attempts for one in some)} starts)"
        for role, some in (("printed", printed), ("corrected", corrected))
        if some
    ]
    ours = "broken: " + ("; ".join(parts) or "no statement was attacked")

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


@dataclass(frozen=True)
class Band:
    """What a value may be: from `low` to `high`; `above`: strictly more than `low`."""

    low: float
    high: float
    above: bool = False

    def holds(self, s: Summary) -> bool:
        """The whole interval lies inside."""
        return (s.low > self.low if self.above else s.low >= self.low) and s.high <= self.high

    def misses(self, s: Summary) -> bool:
        """The whole interval lies outside."""
        return (s.high <= self.low if self.above else s.high < self.low) or s.low > self.high

    def short(self, s: Summary) -> float:
        """By how much the mean lies outside; at most 0 inside."""
        return max(self.low - s.mean, s.mean - self.high)


Bands = Callable[[float, float], Band]  # printed figure, tolerance


def _compared(claim: Claim, results: Sequence[Result], bands: Bands) -> Ruling:
    """Every comparison of the claim, and what they come to.

    The claim fails if one comparison fails, and is undecided if one is; else it is trivial if one is, and holds only
    if every comparison holds. While fewer than MIN_SEEDS are recorded it is not yet measured; runs most of which
    diverged decide nothing. With m values side by side, one misses only if its interval at the level 1 − 0.05/m does.
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

    measured = [Measured(claim, one, results) for one in claim.comparisons]
    among = sum(len(one.deciding) for one in measured)
    found = tuple(_comparison(claim, one, bands, among) for one in measured)
    verdicts = [one.verdict for one in found]
    verdict = next(v for v in (Verdict.FAILS, Verdict.UNDECIDED, Verdict.TRIVIAL, Verdict.HOLDS) if v in verdicts)
    because, ours, control = _in_words(claim, found, among)
    if cut := ended[0].configuration.get("cut"):
        because, ours = (f"{words}; cut to {cut}" for words in (because, ours))
    return Ruling(verdict, because, ours=ours, control=control, comparisons=found)


def _in_words(claim: Claim, found: Sequence[Comparison], among: int) -> tuple[str, str, str]:
    """Why, ours and the controls', for the table."""
    several = len(found) > 1
    because = "; ".join(
        (f"{_words(one.figure)} {one.verdict}: " if several else "")
        + f"ours {_means(one.ours)}; "
        + "; ".join(f"{_words(name)} {_means(summaries)}" for name, summaries in one.controls.items())
        + one.missed
        + one.beaten
        for one in found
    )
    if claim.rule == "greater":
        because = f"direction only; {because}"
    if among > 1 and any(one.verdict in (Verdict.FAILS, Verdict.UNDECIDED) for one in found):
        because += f"; a value misses if its interval does at the level for {among} values at once"
    ours = "; ".join((f"{_words(one.figure)} " if several else "") + _intervals(one.ours) for one in found)
    control = "; ".join(
        (f"{_words(one.figure)}, " if several else "") + f"{_words(name)} {_intervals(summaries)}"
        for one in found
        for name, summaries in one.controls.items()
    )
    return because, ours, control


class Measured:
    """One comparison's values: ours, the controls' and the paired differences, at any level.

    `deciding`: the places of the values that count. Not among them are rows that the entry leaves out (`without`), and
    those for which fewer than MIN_SEEDS have a vote (`votes`): they are left blank.
    """

    def __init__(self, claim: Claim, one: Compare, results: Sequence[Result]):
        self.claim, self.one, self.results = claim, one, results
        rows = claim.evidence.get("rows", [])
        full = _layers(summarise(results, one["figure"]))
        if rows and len(rows) != len(full):
            raise ValueError(
                f"claim {claim.id}: rows has {len(rows)} names, and {one['figure']} has {len(full)} values"
            )
        left_out = {place for place, row in enumerate(rows) if row in claim.evidence.get("without", [])}
        voting = self._voting(one["figure"], control=False)
        blank = {n for n, seeds in enumerate(voting) if len(seeds) < MIN_SEEDS} if voting else set()
        self.deciding = [n for n in range(len(full)) if n not in left_out | blank]

    def ours(self, among: int = 1) -> tuple[Summary, ...]:
        return self._summaries(self.one["figure"], False, among)

    def control(self, name: str, among: int = 1) -> tuple[Summary, ...]:
        return self._summaries(name, True, among)

    def difference(self, name: str, among: int = 1) -> tuple[Summary, ...]:
        """Ours minus the control's, seed by seed: the interval of the paired difference, one per value."""
        mine, theirs = self._columns(self.one["figure"], False), self._columns(name, True)
        both = zip(mine, theirs, strict=True)
        return tuple(interval([a[s] - b[s] for s in a if s in b], among=among) for a, b in both)

    def _summaries(self, name: str, control: bool, among: int) -> tuple[Summary, ...]:
        found = _layers(summarise(self.results, name, control=control, among=among))
        if not self.one.get("votes"):
            return tuple(s if n in self.deciding else interval([]) for n, s in enumerate(found))
        columns = [list(column.values()) for column in self._columns(name, control)]
        many = [column if n in self.deciding and len(column) >= MIN_SEEDS else [] for n, column in enumerate(columns)]
        return tuple(interval(column, found[0].diverged, among) for column in many)

    def _columns(self, name: str, control: bool) -> list[dict[int, float]]:
        """For each value {seed: number}, of the seeds that finished and have a vote."""
        runs = finished(self.results, name, control=control)
        rows = {r.seed: as_list(value_of(r, name, control=control)) for r in runs}
        voting = self._voting(name, control)
        width = len(next(iter(rows.values()), []))
        return [{seed: row[n] for seed, row in rows.items() if not voting or seed in voting[n]} for n in range(width)]

    def _voting(self, name: str, control: bool) -> list[set[int]]:
        """For each value the seeds in which it has a vote; empty where the comparison names no votes."""
        if not (votes := self.one.get("votes")):
            return []
        *model, theirs = Key(name).parts
        named = Key(*model, theirs.removesuffix(Key(self.one["figure"]).parts[-1]) + votes)
        rows = {}
        for r in finished(self.results, name, control=control):
            if not recorded_in(r, named, control=control):
                raise ValueError(f"claim {self.claim.id}: the votes {named} on {name} are missing for seed {r.seed}")
            rows[r.seed] = as_list(value_of(r, named, control=control))
            values = as_list(value_of(r, name, control=control))
            if len(rows[r.seed]) != len(values):
                raise ValueError(
                    f"claim {self.claim.id}: {named} has {len(rows[r.seed])} votes on {len(values)} values of {name}, "
                    f"seed {r.seed}"
                )
        return [{seed for seed, row in rows.items() if row[n] > 0} for n in range(len(next(iter(rows.values()))))]


def _comparison(claim: Claim, measured: Measured, bands: Bands, among: int) -> Comparison:
    """One comparison: every value must pass; trivial when a control passes too, undecided where either allows both."""
    one, deciding = measured.one, measured.deciding
    ours = measured.ours()
    controls = {name: measured.control(name) for name in one["control"]}
    printed = claim.printed[one["printed"]] if claim.rule != "greater" else 0.0
    targets = tuple(printed) if isinstance(printed, list) else (printed,) * len(ours)
    _check_lengths(claim, ours, controls, targets)
    allowed = [bands(target, one.get("tolerance", 0.0)) for target in targets]

    def all_pass(at_95: tuple[Summary, ...], at_once: tuple[Summary, ...], places: Sequence[int]) -> bool | None:
        """Yes if every interval lies inside; no if one misses at the level for all values at once; else open."""
        if not places:
            return None
        enough = [n for n in places if at_95[n].seeds >= MIN_SEEDS]
        if any(allowed[n].misses(at_once[n]) for n in enough):
            return False
        return True if len(enough) == len(places) and all(allowed[n].holds(at_95[n]) for n in enough) else None

    at_once = measured.ours(among)
    mine = all_pass(ours, at_once, deciding)
    if claim.rule == "greater":
        theirs = {name: _as_large(measured, name, among) for name in controls}
    else:
        theirs = {
            name: all_pass(found, measured.control(name, among), _with_votes(measured, name))
            for name, found in controls.items()
        }

    verdict = _beside_controls(mine, theirs.values())
    out = [n for n in deciding if at_once[n].seeds >= MIN_SEEDS and allowed[n].misses(at_once[n])]
    missed = beaten = ""
    if out and len(deciding) > 1:
        farthest = max(allowed[n].short(ours[n]) for n in out)
        missed = f"; {len(out)} of {len(deciding)} values miss, the farthest by {farthest:.2g}"
    if verdict is Verdict.TRIVIAL:
        same = [name for name, answer in theirs.items() if answer]
        beaten = "".join(
            f"; {_words(name)} shows as much, ours less it {_means(measured.difference(name))}" for name in same
        )
    return Comparison(
        one["figure"], () if claim.rule == "greater" else targets, ours, controls, verdict, missed, beaten
    )


def _beside_controls(mine: bool | None, theirs: Collection[bool | None]) -> Verdict:
    """Ours passes, does not, or the evidence allows both; and so for each control."""
    if mine is False:
        return Verdict.FAILS
    if mine is None:
        return Verdict.UNDECIDED
    if True in theirs:
        return Verdict.TRIVIAL
    return Verdict.UNDECIDED if None in theirs else Verdict.HOLDS


def _with_votes(measured: Measured, name: str) -> list[int]:
    """The places where ours counts and the control has a value at all."""
    if not measured.one.get("votes"):
        return measured.deciding
    found = measured.control(name)
    return [n for n in measured.deciding if found[n].seeds]


def _check_lengths(claim: Claim, ours: tuple, controls: dict[str, tuple], targets: tuple) -> None:
    """As many values of ours as of each control and printed figures, and none that is NaN."""
    for control in controls.values():
        if not len(ours) == len(control) == len(targets):
            raise ValueError(
                f"claim {claim.id}: {len(ours)} values are ours, {len(control)} control, {len(targets)} printed"
            )
    if not all(math.isfinite(s.mean) for values in (ours, *controls.values()) for s in values if s.seeds):
        raise ValueError(
            f"claim {claim.id}: a finished run recorded NaN or infinity; a run that has no figure must say diverged"
        )


def _as_large(measured: Measured, name: str, among: int) -> bool | None:
    """Does the control show as much as ours?  No if ours is larger by the paired difference, in every value.

    Yes if in one value it does: there the difference is nowhere above zero, or the control is itself above zero and
    the difference does not tell them apart. Else the evidence allows both.
    """
    control, differences, at_once = measured.control(name), measured.difference(name), measured.difference(name, among)

    def one(place: int) -> bool | None:
        if differences[place].seeds < MIN_SEEDS:
            return None
        if differences[place].low > 0:
            return False
        return True if at_once[place].high <= 0 or control[place].low > 0 else None

    answers = [one(place) for place in _with_votes(measured, name)]
    if not answers:
        return None
    return True if True in answers else None if None in answers else False


def reproduced(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our interval lies within `tolerance` of the printed figure, and the control's does not.

    How far ours is from the control's is not tested; where both lie there the entry gives the difference.
    """
    return _compared(claim, results, lambda printed, tolerance: Band(printed - tolerance, printed + tolerance))


def at_least(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval reaches the printed threshold, less `tolerance` for rounding, and the control's does not.

    Ours and the control's then lie on two sides of the threshold; how far apart is not tested. Where both reach it the
    claim is trivial even if ours is larger, and the entry gives the difference.
    """
    return _compared(claim, results, lambda printed, tolerance: Band(printed - tolerance, math.inf))


def at_most(claim: Claim, results: Sequence[Result]) -> Ruling:
    """Our whole interval keeps to the printed threshold, plus `tolerance` for rounding, and the control's does not.

    Ours and the control's then lie on two sides of the threshold; how far apart is not tested. Where both keep to it
    the claim is trivial even if ours is smaller, and the entry gives the difference.
    """
    return _compared(claim, results, lambda printed, tolerance: Band(-math.inf, printed + tolerance))


def greater(claim: Claim, results: Sequence[Result]) -> Ruling:
    """The stated difference is above zero with its whole interval, and so is what it has over each control.

    Ours and a control's are subtracted seed by seed, and the interval is that of the differences. If it does not reach
    above zero, or a control that is itself above zero cannot be told from ours, the claim is trivial. A figure of
    several values must pass in each. Direction only: how large the difference is, is not tested.
    """
    return _compared(claim, results, lambda _printed, _tolerance: Band(0.0, math.inf, above=True))


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


def _words(name: str) -> str:
    return name.replace("_", " ")


def _listed(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{n} {words}" for n, words in counted if n) or "none"


def _means(summaries: tuple[Summary, ...]) -> str:
    """In brief: of a list the means alone."""
    if len(summaries) == 1:
        return str(summaries[0])
    shown = [f"{s.mean:.3g}" if s.seeds else "no vote" for s in summaries]
    return "[" + ", ".join(shown) + f"] ({max(s.seeds for s in summaries)} seeds)"


def _intervals(summaries: tuple[Summary, ...]) -> str:
    """In full: each value with its interval, the seeds once."""
    shown = next((s for s in reversed(summaries) if s.seeds), summaries[-1])
    return ", ".join(_value(s) for s in summaries) + f" ({shown.runs})"


def _value(s: Summary) -> str:
    return s.value or "no vote"
