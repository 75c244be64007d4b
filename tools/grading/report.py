"""What grading leaves behind: grades.csv, feedback pages, answers in words side by side, gradebooks filled in."""

import csv
import html
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grading.judge import Outcome
from grading.kit import Exercise, Kit
from pdelab.files import write_atomically

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "pre{overflow-x:auto;border:1px solid #8888;padding:.7em}article{border-top:1px solid #8888;margin-top:1.5em}"
)
Class = Mapping[str, Sequence[Outcome]]  # student -> outcomes in the order of the kit


def page(title: str, body: str) -> str:
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f"{head}<h1>{html.escape(title)}</h1>{body}\n"


def feedback(kit: Kit, student: str, outcomes: Sequence[Outcome], marks: Mapping[str, float]) -> str:
    """What the student gets: points and the check's own words; no flag, no drawn input, no solution."""
    parts = []
    for exercise, outcome in zip(kit.exercises, outcomes, strict=True):
        points = marks.get(exercise.label, outcome.points)
        read = exercise.coded or exercise.label in marks
        scored = f"{points:g} of {exercise.points:g}" if read else f"to be read, of {exercise.points:g}"
        parts.append(
            f"<article><h2>{html.escape(exercise.title)}</h2><p><b>{scored}</b></p>"
            f"<p>{html.escape(outcome.words)}</p></article>"
        )
    return page(f"{kit.name}: {student}", "".join(parts))


def side_by_side(exercise: Exercise, answers: Iterable[tuple[str, str]], seed: int) -> str:
    """All answers in words to one exercise, in a random order and without names; the rubric stands on top."""
    shuffled = sorted(answers)
    random.Random(seed).shuffle(shuffled)
    cards = [
        f"<article><h2>Answer {key}</h2><pre style='white-space:pre-wrap'>{html.escape(text)}</pre></article>"
        for key, text in shuffled
    ]
    rubric = f"<p><b>Rubric.</b> {html.escape(exercise.rubric or 'none is given')}</p>"
    return page(exercise.title, f"<p>{exercise.points:g} points.</p>{rubric}{''.join(cards)}")


def copies(kit: Kit, shapes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """student -> flags for answers with the syntax tree of another's, where the answer is long enough to tell."""
    found: dict[str, list[str]] = {}
    for exercise in kit.exercises:
        groups: dict[str, list[str]] = {}
        for student, held in shapes.items():
            if len(shape := held.get(exercise.label, "")) > 400:
                groups.setdefault(shape, []).append(student)
        for together in groups.values():
            for student in together if len(together) > 1 else ():
                others = ", ".join(one for one in together if one != student)
                found.setdefault(student, []).append(f"{exercise.label}: same code as {others}")
    return found


def table(kit: Kit, graded: Class, extra: Mapping[str, Mapping[str, str]], marks: Mapping[str, Mapping]) -> str:
    """grades.csv: a row per student; an answer in words has no points until a person gave them."""
    rows, sums = [], totals(kit, graded, marks)
    for student, outcomes in graded.items():
        points = _points(kit, outcomes, marks.get(student, {}))
        shown = {label: "" if value is None else f"{value:g}" for label, value in points.items()}
        seconds = f"{sum(outcome.seconds for outcome in outcomes):.1f}"
        rows.append({"student": student, "total": f"{sums[student]:g}", **shown, "seconds": seconds, **extra[student]})
    return _csv(rows)


def totals(kit: Kit, graded: Class, marks: Mapping[str, Mapping]) -> dict[str, float]:
    """student -> points so far."""
    found = {student: _points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()}
    return {student: sum(one for one in points.values() if one is not None) for student, points in found.items()}


def _points(kit: Kit, outcomes: Sequence[Outcome], marks: Mapping[str, float]) -> dict[str, float | None]:
    """label -> points, by the machine or by a person; None where nobody gave any yet."""
    both = zip(kit.exercises, outcomes, strict=True)
    return {one.label: outcome.points if one.coded else marks.get(one.label) for one, outcome in both}


def marks_to_fill(kit: Kit, graded: Class, keys: Mapping[tuple[str, str], str], marks: Mapping[str, Mapping]) -> str:
    """marks.csv: a row per answer in words, by the key under which it stands on its page; what is filled in stays."""
    rows = []
    for exercise in (one for one in kit.exercises if not one.coded):
        for student in graded:
            given = marks.get(student, {}).get(exercise.label)
            key = keys[student, exercise.label]
            rows.append({"label": exercise.label, "answer": key, "points": "" if given is None else f"{given:g}"})
    return _csv(sorted(rows, key=lambda row: (row["label"], row["answer"]))) if rows else ""


def read_marks(text: str, kit: Kit, keys: Mapping[tuple[str, str], str]) -> dict[str, dict[str, float]]:
    """student -> label -> points that a person gave; a wrong row is named."""
    whose = {(label, key): student for (student, label), key in keys.items()}
    most = {one.label: one.points for one in kit.exercises}
    found: dict[str, dict[str, float]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        if not (row.get("points") or "").strip():
            continue
        student = whose.get((row.get("label"), row.get("answer")))
        try:
            points = float(row["points"])
        except ValueError:
            points = -1.0
        if student is None or not 0 <= points <= most[row["label"]]:
            raise ValueError(f"marks.csv, line {number}: label, answer and points from 0 to the most; not {row}")
        found.setdefault(student, {})[row["label"]] = points
    return found


def fill(text: str, kit: Kit, totals: Mapping[str, float], numbers: Mapping[str, str]) -> tuple[str, list[str]]:
    """A Canvas or Moodle export with the column of this assignment filled in, and the students that are not in it.

    Students are found by their number (Canvas: ID; Moodle: Identifier), else by their name, whatever its order. Rows,
    other columns, and rows of students who handed in nothing stay as they are.
    """
    dialect = "\r\n" if "\r\n" in text else "\n"
    rows = list(csv.reader(io.StringIO(text)))
    if not rows:
        raise ValueError("GRADEBOOK is empty; export it with its rows of students")
    head = [name.strip().lstrip("\ufeff") for name in rows[0]]
    columns = [n for n, name in enumerate(head) if name == "Grade" or name.split(" (")[0] == kit.name]
    people = [n for n, name in enumerate(head) if name in ("Student", "Full name", "Name")]
    ids = [n for n, name in enumerate(head) if name in ("ID", "Identifier")]
    if len(columns) != 1 or not (people or ids):
        raise ValueError(
            f"GRADEBOOK needs a column {kit.name} (Canvas) or Grade (Moodle), and the students' names; "
            f"its columns are {', '.join(head)}"
        )

    left = dict(totals)
    by_number = {_number(row[ids[0]]): row for row in rows[1:] if ids and ids[0] < len(row)}
    by_name: dict[str, list] = {}
    for row in rows[1:]:
        for name in {_letters(row[n]) for n in people if n < len(row)} - {""}:
            by_name.setdefault(name, []).append(row)
    for student in list(left):
        row = by_number.get(numbers.get(student) or "nobody")
        if row is None and len(found := by_name.get(_letters(student), [])) == 1:
            (row,) = found
        if row is not None:
            row += [""] * (columns[0] + 1 - len(row))
            row[columns[0]] = f"{left.pop(student):g}"
    made = io.StringIO()
    csv.writer(made, lineterminator=dialect).writerows(rows)
    return made.getvalue(), sorted(left)


def _number(text: str) -> str:
    return "".join(letter for letter in text if letter.isdigit())


def _letters(name: str) -> str:
    """A name without its order, case and marks: "Lovelace, Ada" and "ada lovelace" and "lovelaceada" agree."""
    return "".join(sorted(letter for letter in name.casefold() if letter.isalnum()))


def _csv(rows: Sequence[Mapping]) -> str:
    made = io.StringIO()
    writer = csv.DictWriter(made, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return made.getvalue()


def _harmless(text: str) -> str:
    """No formula for a spreadsheet: a student may be called =HYPERLINK(…)."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "backslashreplace"))  # half an emoji is no reason to stop
