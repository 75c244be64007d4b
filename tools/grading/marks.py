"""marks.csv: points and comments of a person, each with the answer that it was given for."""

import csv
import io
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from grading.judge import Class
from grading.kit import Kit
from grading.tables import Style, short, style, typed, written

COLUMNS = ["label", "answer", "points", "comment", "before", "comment before", "of"]


class Mark(NamedTuple):
    """What a person gave: points, or none, and words to the student.

    before, comment_before: points and words for an answer that has changed since.
    """

    points: float | None = None
    comment: str = ""
    before: str = ""
    comment_before: str = ""

    @property
    def outdated(self) -> str:
        """What was given for another answer and has to be given again, in words; none where nothing has."""
        if self.points is None and self.before:
            return f"another answer than the one marked {self.before}: mark it again"
        if self.points is None and self.comment_before and not self.comment:
            return "another answer than the one commented on: read it again"
        return ""


Marks = Mapping[str, Mapping[str, Mark]]  # student -> label -> mark


def to_fill(kit: Kit, graded: Class, keys: Mapping, marks: Marks, style: Style) -> str:
    """marks.csv: a row per answer, by the key under which it stands on its page; what is filled in stays.

    of: which answer it was, for points and comment move to the columns `before` when another is handed in.
    """
    now = digests(kit, graded)
    rows = []
    for exercise in sorted(kit.exercises, key=lambda one: (one.coded, one.label)):
        for key, student in sorted((keys[student, exercise.label], student) for student in graded):
            points, *words = marks.get(student, {}).get(exercise.label, Mark())
            shown = "" if points is None else style.number(points)
            values = (exercise.label, key, shown, *words, now[student, exercise.label])
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return written(rows, style.separator)


def digests(kit: Kit, graded: Class) -> dict[tuple[str, str], str]:
    """(student, label) -> digest of the answer that a person reads."""
    return {
        (student, one.label): short(json.dumps(outcome.answer), 8)
        for student, outcomes in graded.items()
        for one, outcome in zip(kit.exercises, outcomes, strict=True)
    }


def read(text: str, kit: Kit, keys: Mapping[tuple[str, str], str], now: Mapping = MappingProxyType({})) -> Marks:
    """student -> label -> what a person gave; a wrong row is named. now: the digests of the answers as they are."""
    whose = {(label, key): student for (student, label), key in keys.items()}
    rows = csv.DictReader(io.StringIO(text), delimiter=style(text).separator)
    if not set(COLUMNS[:3]) <= set(rows.fieldnames or ()):  # or a list of other separators would be read as empty
        head = ",".join(COLUMNS[:4])
        raise ValueError(f"marks.csv must begin with the line {head}; not {text.partition(chr(10))[0]!r}")

    most = {one.label: one.points for one in kit.exercises}
    found: dict[str, dict[str, Mark]] = {}
    lines: dict[tuple[str, str], int] = {}  # of each answer
    for number, row in enumerate(rows, start=2):
        label, key, points, *words, of = ((row.get(name) or "").strip() for name in COLUMNS)
        if not any((label, key, points, *words)):
            continue
        if (first := lines.setdefault((label, key), number)) != number:
            raise ValueError(
                f"marks.csv, lines {first} and {number}: two rows for the answer {key} to {label}: delete one of them"
            )
        if not any((points, *words)):
            continue
        if (student := whose.get((label, key))) is None:
            raise ValueError(
                f"marks.csv, line {number}: no answer {key} to {label} is among the submissions: "
                "is this the whole class?"
            )
        if not 0 <= _number(points) <= most[label]:
            raise ValueError(f"marks.csv, line {number}: label, answer and points from 0 to the most; not {row}")
        changed = bool(of) and of != now.get((student, label), of)
        found.setdefault(student, {})[label] = _mark(points, *words, changed=changed)
    return found


def _number(points: str) -> float:
    """0 where there are none, -1 where they are no number."""
    try:
        return float(points.replace(",", ".") or 0)
    except ValueError:
        return -1.0


def _mark(points: str, comment: str, before: str, comment_before: str, *, changed: bool) -> Mark:
    """What a row says; where the answer has changed, all of it was given before."""
    comment, comment_before = map(typed, (comment, comment_before))
    if changed:
        return Mark(None, "", points or before, comment or comment_before)
    return Mark(_number(points) if points else None, comment, before, comment_before)


def merged(first: Marks, second: Marks) -> Marks:
    """Both; where both gave something, the second counts. A new comment takes the place of an earlier one."""
    found = {student: dict(marks) for student, marks in first.items()}
    for student, marks in second.items():
        for label, new in marks.items():
            old = found.setdefault(student, {}).get(label, Mark())
            points = old.points if new.points is None else new.points
            comment = new.comment or old.comment
            before = (new.before or old.before) if points is None else ""
            comment_before = "" if comment else new.comment_before or old.comment_before
            found[student][label] = Mark(points, comment, before, comment_before)
    return found
