"""What grading leaves behind: grades.csv, feedback pages, answers side by side, gradebooks filled in."""

import contextlib
import csv
import hashlib
import html
import io
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
    """What a person gave: points, or none, and words to the student; before: points for an answer that has changed."""

    points: float | None
    comment: str = ""
    before: str = ""


class Style(NamedTuple):
    """How a spreadsheet writes a table: what stands between columns, and whether numbers have a decimal comma."""

    separator: str = ","
    comma: bool = False

    def number(self, points: float) -> str:
        return f"{points:g}".replace(".", ",") if self.comma else f"{points:g}"


Class = Mapping[str, Sequence[Outcome]]  # student -> outcomes in the order of the kit
Marks = Mapping[str, Mapping[str, Mark]]  # student -> label -> mark
COLUMNS = ["label", "answer", "points", "comment", "before", "of"]
LETTERS = str.maketrans("0123456789", "ghijklmnop")
END = re.compile(r" \(.*\)$")  # of a column's name: a number in Canvas, a kind in Moodle


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
    """Text and code as they are typed, for nothing in them to run; a picture, which is known to be a PNG or JPEG."""
    if kind == "picture":
        source = f"data:image/{'jpeg' if content.startswith('/9j/') else 'png'};base64,{html.escape(content)}"
        return f'<p><img alt="a picture of this answer" src="{source}"></p>'
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
            for student in together if len(together) > 1 else ():  # all are named once, beside the first
                others = together[:1] if student != together[0] else together[1:]
                found.setdefault(student, []).append(f"{exercise.label}: same code as {', '.join(others)}")
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
    """label -> points, by a person or else by the machine, 0 for no words; None where nobody gave any yet."""
    found: dict[str, float | None] = {}
    for one, outcome in zip(kit.exercises, outcomes, strict=True):
        given = marks.get(one.label, Mark(None)).points
        machine = one.coded or not (outcome.answer or outcome.flags)
        found[one.label] = (outcome.points if one.coded else 0.0) if given is None and machine else given
    return found


def unmarked(kit: Kit, graded: Class, marks: Marks) -> int:
    """How many answers wait for a person."""
    scored = [_points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()]
    return sum(one is None for points in scored for one in points.values())


def marks_to_fill(kit: Kit, graded: Class, keys: Mapping, marks: Marks, style: Style) -> str:
    """marks.csv: a row per answer, by the key under which it stands on its page; what is filled in stays.

    of: which answer it was, for the points move to `before` when another is handed in.
    """
    now = digests(kit, graded)
    rows = []
    for exercise in sorted(kit.exercises, key=lambda one: (one.coded, one.label)):
        for key, student in sorted((keys[student, exercise.label], student) for student in graded):
            points, comment, before = marks.get(student, {}).get(exercise.label, Mark(None))
            shown = "" if points is None else style.number(points)
            values = (exercise.label, key, shown, comment, before, now[student, exercise.label])
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return _csv(rows, style.separator)


def digests(kit: Kit, graded: Class) -> dict[tuple[str, str], str]:
    """(student, label) -> digest of the answer that a person reads."""
    return {
        (student, one.label): short(json.dumps(outcome.answer), 8)
        for student, outcomes in graded.items()
        for one, outcome in zip(kit.exercises, outcomes, strict=True)
    }


def short(text: str, length: int) -> str:
    """A digest in letters alone: a spreadsheet would take 12e45678 for a number."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest().translate(LETTERS)[:length]


def decoded(content: bytes) -> tuple[str, str]:
    """The text of a table and its encoding, as spreadsheets write them."""
    known = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    marked = [name for mark, name in known.items() if content.startswith(mark)]
    for encoding in (*marked, "utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode(encoding), encoding
    raise ValueError("a table is neither in UTF-8 nor in Windows' own encoding: save it as CSV UTF-8")


def style(text: str) -> Style:
    """Comma, semicolon or tab, whichever the first line has most of outside quotes; and how numbers are written."""
    separator = max(",;\t", key=re.sub('"[^"]*"', "", text.partition("\n")[0]).count)
    return Style(separator, separator != "," and bool(re.search(r"\d,\d", text)))


def read_marks(text: str, kit: Kit, keys: Mapping[tuple[str, str], str], now: Mapping = MappingProxyType({})) -> Marks:
    """student -> label -> what a person gave; a wrong row is named. now: the digests of the answers as they are."""
    whose = {(label, key): student for (student, label), key in keys.items()}
    most = {one.label: one.points for one in kit.exercises}
    rows = csv.DictReader(io.StringIO(text), delimiter=style(text).separator)
    if not set(COLUMNS[:3]) <= set(rows.fieldnames or ()):  # or a list of other separators would be read as empty
        head = ",".join(COLUMNS[:4])
        raise ValueError(f"marks.csv must begin with the line {head}; not {text.partition(chr(10))[0]!r}")

    found: dict[str, dict[str, Mark]] = {}
    for number, row in enumerate(rows, start=2):
        given, comment, before, of = ((row.get(name) or "").strip() for name in COLUMNS[2:])
        if not (given or comment or before):
            continue
        student = whose.get((row["label"], row["answer"]))
        try:
            points = float(given.replace(",", ".")) if given else None
        except ValueError:
            points = -1.0
        if student is None:
            raise ValueError(
                f"marks.csv, line {number}: no answer {row['answer']} to {row['label']} is among the submissions: "
                "is this the whole class?"
            )
        if not 0 <= (points or 0) <= most[row["label"]]:
            raise ValueError(f"marks.csv, line {number}: label, answer and points from 0 to the most; not {row}")
        comment = comment[1:] if comment == _harmless(comment[1:]) else comment
        if points is not None and of and of != now.get((student, row["label"]), of):
            points, before = None, given
        found.setdefault(student, {})[row["label"]] = Mark(points, comment, before)
    return found


def merged(first: Marks, second: Marks) -> Marks:
    """Both; where both gave something, the second counts."""
    found = {student: dict(marks) for student, marks in first.items()}
    for student, marks in second.items():
        for label, new in marks.items():
            old = found.setdefault(student, {}).get(label, Mark(None))
            points = old.points if new.points is None else new.points
            before = (new.before or old.before) if points is None else ""
            found[student][label] = Mark(points, new.comment or old.comment, before)
    return found


def fill(text: str, kit: Kit, totals: Mapping[str, float], numbers: Mapping[str, str]) -> tuple[str, list[str]]:
    """A Canvas or Moodle export with the column of this assignment filled in, and the students that are not in it.

    Students are found by their number (Canvas: ID; Moodle: Identifier), else by their name, whatever its order. Rows,
    other columns, and rows of students who handed in nothing stay as they are.
    """
    own = style(text)
    written = _rows(text, own.separator)
    if not text.strip():
        raise ValueError("GRADEBOOK is empty; export it with its rows of students")
    rows = [[_value(field) for field in row[:-1]] for row in written]
    head = [name.strip() for name in rows[0]]
    columns = [n for n, one in enumerate(head) if one == "Grade" or END.sub("", one).split(": ")[-1] == kit.name]
    columns = [n for n in columns if head[n].endswith(" (Real)")] or columns  # and not the percentage beside it
    people = [n for n, name in enumerate(head) if name in ("Student", "Full name", "Name")]
    parts = [n for n, name in enumerate(head) if name in ("First name", "Last name", "Surname")]
    ids = [n for n, name in enumerate(head) if name in ("ID", "Identifier")]
    if len(columns) != 1 or not (people or ids or parts):
        raise ValueError(
            f"GRADEBOOK needs a column {kit.name} (Canvas), or one column Grade or Assignment: {kit.name} (Moodle), "
            f"and the students' names; its columns are {', '.join(head)}"
        )

    left = dict(totals)
    by_number = {_number(row[ids[0]]): n for n, row in enumerate(rows) if n and ids and ids[0] < len(row)}
    by_name: dict[str, list[int]] = {}
    for number, row in enumerate(rows[1:], start=1):
        names = [row[n] for n in people if n < len(row)] + [" ".join(row[n] for n in parts if n < len(row))]
        for order in {order for name in names for order in _orders(name)}:
            by_name.setdefault(order, []).append(number)
    for student in list(left):
        named = by_name.get("".join(_words(student)), [])
        number = by_number.get(numbers.get(student) or "nobody", named[0] if len(named) == 1 else None)
        if number is not None:
            row, points = written[number], own.number(left.pop(student))
            row[-1:-1] = [""] * (columns[0] + 2 - len(row))
            row[columns[0]] = f'"{points}"' if row[columns[0]].startswith('"') else points
    return "".join(own.separator.join(row[:-1]) + row[-1] for row in written), sorted(left)


def _rows(text: str, separator: str) -> list[list[str]]:
    """The rows of a table: the fields as they are written, quotes and all, and behind them the end of the line."""
    found: list[list[str]] = [[]]
    for field, end in re.findall(rf'("(?:[^"]|"")*"|[^{separator}\r\n]*)({separator}|\r\n|[\r\n]|\Z)', text):
        found[-1].append(field)
        if end != separator:
            found[-1].append(end)
            found.append([])
    return found[:-1]


def _value(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _number(text: str) -> str:
    return "".join(letter for letter in text if letter.isdigit())


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())


def _orders(name: str) -> set[str]:
    """A name as one word, from each of its words on: "Lovelace, Ada" is lovelaceada and adalovelace."""
    words = _words(name)
    return {"".join(words[n:] + words[:n]) for n in range(len(words))}


def _csv(rows: Sequence[Mapping], separator: str = ",") -> str:
    made = io.StringIO()
    writer = csv.DictWriter(made, fieldnames=list(rows[0]), lineterminator="\n", delimiter=separator)
    writer.writeheader()
    writer.writerows({key: _harmless(value) for key, value in row.items()} for row in rows)
    return made.getvalue()


def _harmless(text: str) -> str:
    """No formula for a spreadsheet: a student may be called =HYPERLINK(…)."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode(encoding, "backslashreplace"))  # half an emoji is no reason to stop
