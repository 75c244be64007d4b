"""What grading leaves behind: grades.csv, feedback pages, answers side by side, gradebooks filled in."""

import csv
import html
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grading.judge import Outcome
from grading.kit import Exercise, Kit
from pdelab.files import write_atomically

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "pre{overflow-x:auto;border:1px solid #8888;padding:.7em}article{border-top:1px solid #8888;margin-top:1.5em}"
    ".text,.comment{white-space:pre-wrap;overflow-wrap:anywhere}img{max-width:100%}"
)
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # nothing on a page runs or is fetched


class Mark(NamedTuple):
    """What a person gave: points, or none, and words to the student."""

    points: float | None
    comment: str = ""


Class = Mapping[str, Sequence[Outcome]]  # student -> outcomes in the order of the kit
Marks = Mapping[str, Mapping[str, Mark]]  # student -> label -> mark
COLUMNS = ["label", "answer", "points", "comment"]


def page(title: str, body: str) -> str:
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    head += f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return f"{head}<h1>{html.escape(title)}</h1>{body}\n"


def feedback(kit: Kit, student: str, outcomes: Sequence[Outcome], marks: Mapping[str, Mark]) -> str:
    """What the student gets: points, the check's own words and a person's; no flag, no drawn input, no solution."""
    parts, scored = [], _points(kit, outcomes, marks)
    for exercise, outcome in zip(kit.exercises, outcomes, strict=True):
        points, comment = scored[exercise.label], marks.get(exercise.label, Mark(None)).comment
        read = "to be read" if points is None else f"{points:g}"
        said = f"<p class=comment>{html.escape(comment)}</p>" if comment else ""
        parts.append(
            f"<article><h2>{html.escape(exercise.title)}</h2><p><b>{read} of {exercise.points:g}</b></p>"
            f"<p>{html.escape(outcome.words)}</p>{said}</article>"
        )
    return page(f"{kit.name}: {student}", "".join(parts))


def side_by_side(exercise: Exercise, answers: Iterable[tuple[str, Outcome]], seed: int) -> str:
    """All answers to one exercise, in a random order and without names; the rubric stands on top."""
    shuffled = sorted(answers, key=lambda one: one[0])
    random.Random(seed).shuffle(shuffled)
    cards = []
    for key, outcome in shuffled:
        verdict = f"<p><b>{outcome.points:g} points by the machine.</b> {html.escape(outcome.words)}</p>"
        shown = "".join(_part(kind, content) for kind, content in outcome.answer)
        cards.append(f"<article><h2>Answer {key}</h2>{verdict if exercise.coded else ''}{shown}</article>")
    own = "The machine's points stand where marks.csv has none." if exercise.coded else "none is given"
    rubric = f"<p><b>Rubric.</b> {html.escape(exercise.rubric or own)}</p>"
    return page(exercise.title, f"<p>{exercise.points:g} points.</p>{rubric}{''.join(cards)}")


def _part(kind: str, content: str) -> str:
    """Text and code as they are typed, for nothing in them to run; a picture, which is known to be a PNG."""
    if kind == "picture":
        return f'<p><img alt="a plot of this answer" src="data:image/png;base64,{html.escape(content)}"></p>'
    return f"<pre class={'text' if kind == 'text' else 'code'}>{html.escape(content)}</pre>"


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


def table(kit: Kit, graded: Class, extra: Mapping[str, Mapping[str, str]], marks: Marks) -> str:
    """grades.csv: a row per student; an answer in words has no points until a person gave them."""
    rows, sums = [], totals(kit, graded, marks)
    for student, outcomes in graded.items():
        points = _points(kit, outcomes, marks.get(student, {}))
        shown = {label: "" if value is None else f"{value:g}" for label, value in points.items()}
        seconds = f"{sum(outcome.seconds for outcome in outcomes):.1f}"
        rows.append({"student": student, "total": f"{sums[student]:g}", **shown, "seconds": seconds, **extra[student]})
    return _csv(rows)


def totals(kit: Kit, graded: Class, marks: Marks) -> dict[str, float]:
    """student -> points so far."""
    found = {student: _points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()}
    return {student: sum(one for one in points.values() if one is not None) for student, points in found.items()}


def _points(kit: Kit, outcomes: Sequence[Outcome], marks: Mapping[str, Mark]) -> dict[str, float | None]:
    """label -> points, by a person or else by the machine; None where nobody gave any yet."""
    found: dict[str, float | None] = {}
    for one, outcome in zip(kit.exercises, outcomes, strict=True):
        given = marks.get(one.label, Mark(None)).points
        found[one.label] = outcome.points if given is None and one.coded else given
    return found


def unmarked(kit: Kit, graded: Class, marks: Marks) -> int:
    """How many answers wait for a person."""
    scored = [_points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()]
    return sum(one is None for points in scored for one in points.values())


def marks_to_fill(kit: Kit, graded: Class, keys: Mapping[tuple[str, str], str], marks: Marks) -> str:
    """marks.csv: a row per answer, by the key under which it stands on its page; what is filled in stays."""
    rows = []
    for exercise in sorted(kit.exercises, key=lambda one: (one.coded, one.label)):
        for key, student in sorted((keys[student, exercise.label], student) for student in graded):
            points, comment = marks.get(student, {}).get(exercise.label, Mark(None))
            shown = "" if points is None else f"{points:g}"
            rows.append(dict(zip(COLUMNS, (exercise.label, key, shown, comment), strict=True)))
    return _csv(rows)


def read_marks(text: str, kit: Kit, keys: Mapping[tuple[str, str], str]) -> dict[str, dict[str, Mark]]:
    """student -> label -> what a person gave; a wrong row is named."""
    whose = {(label, key): student for (student, label), key in keys.items()}
    most = {one.label: one.points for one in kit.exercises}
    rows = csv.DictReader(io.StringIO(text))
    if not set(COLUMNS[:3]) <= set(rows.fieldnames or ()):  # or a list of other separators would be read as empty
        raise ValueError(f"marks.csv must begin with the line {','.join(COLUMNS)}; not {text.partition(chr(10))[0]!r}")

    found: dict[str, dict[str, Mark]] = {}
    for number, row in enumerate(rows, start=2):
        given, comment = (row["points"] or "").strip(), (row.get("comment") or "").strip()
        if not (given or comment):
            continue
        student = whose.get((row["label"], row["answer"]))
        try:
            points = float(given) if given else None
        except ValueError:
            points = -1.0
        if student is None or not 0 <= (points or 0) <= most[row["label"]]:
            raise ValueError(f"marks.csv, line {number}: label, answer and points from 0 to the most; not {row}")
        comment = comment[1:] if comment == _harmless(comment[1:]) else comment
        found.setdefault(student, {})[row["label"]] = Mark(points, comment)
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
