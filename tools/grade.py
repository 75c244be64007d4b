"""Grade the submissions of a class.

    python tools/grade.py hw1 SUBMISSIONS [--gradebook export.csv] [--marks marks.csv] [--out FOLDER]

SUBMISSIONS is a folder or a zip, as Canvas or Moodle exports it, or one folder per student. Every submission runs in a
process of its own. Stopped by Ctrl-C, the same command goes on; what did not change is not graded again. Written are
grades.csv, feedback/STUDENT.html, answers/LABEL.html to read with marks.csv to fill in (points, which for code replace
the machine's, and a comment), and a copy of the gradebook with its column filled.
"""

import argparse
import csv
import hashlib
import json
import re
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from assignment import FOLDER
from exercises import ROOT
from grading import isolation, report, tables
from grading import marks as marking
from grading.gradebook import fill
from grading.inbox import entries, read_class
from grading.judge import Judge, Outcome
from grading.kit import Kit
from grading.marks import Marks
from grading.process import CannotStart
from grading.submissions import Submission
from grading.tables import Style
from tqdm import tqdm

import pdelab
from pdelab.files import write_atomically

NAMED = 5  # of the students who handed in nothing


def secret_of(folder: Path) -> str:
    """The course's own, made once: from it the inputs are drawn that no student has seen."""
    path = folder / "secret"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16) + "\n")
        path.chmod(0o600)
    return path.read_text(encoding="utf-8").strip()


def _bytes(text: str) -> bytes:
    """Also of a name that is no UTF-8."""
    return text.encode("utf-8", "backslashreplace")


class Records:
    """The outcome of each submission on disk, so that a run goes on where it was stopped."""

    def __init__(self, folder: Path, kit: Kit, secret: str):
        self.folder = folder
        self.of_kit = kit.checksum + secret  # another version or another assignment: graded again

    def path(self, submission: Submission) -> Path:
        return self.folder / f"{file_name(submission.student)}.json"

    def digest(self, submission: Submission) -> str:
        return hashlib.sha256(_bytes(f"{self.of_kit}{submission.student}\n{submission.digest}")).hexdigest()

    def read(self, submission: Submission) -> list[Outcome] | None:
        path = self.path(submission)
        if not path.exists():
            return None
        held = json.loads(path.read_text(encoding="utf-8"))
        return [Outcome(**one) for one in held["outcomes"]] if held["of"] == self.digest(submission) else None

    def write(self, submission: Submission, outcomes: Sequence[Outcome]) -> None:
        held = {"of": self.digest(submission), "outcomes": [asdict(one) for one in outcomes]}
        write_atomically(self.path(submission), json.dumps(held) + "\n")


def file_name(student: str) -> str:
    """A name that a file can have; two students never share one."""
    plain = re.sub(r"[^\w-]+", "_", student).strip("_")[:60]
    return plain if plain == student else f"{plain}-{hashlib.sha256(_bytes(student)).hexdigest()[:8]}"


@dataclass
class Results:
    """Of a class: by student the outcomes, the number in the course's system, and by label the code to compare."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, dict[str, str]] = field(default_factory=dict)


def grade(kit: Kit, place: Path, out: Path, *, marks: Path | None = None, gradebook: Path | None = None) -> list[str]:
    """Grade the class and write everything; gives back lines to print at the end."""
    if gradebook:  # whether it has the column is told now, and not when all is graded
        fill(tables.decoded(gradebook.read_bytes())[0], kit, {}, {})

    secret = secret_of(out)
    hidden = [place, out, *map(Path, filter(None, (marks, gradebook, kit.private)))]
    found = judged(kit, place, Judge(kit, secret, hidden), Records(out / "records", kit, secret))

    keys = keys_of(kit, found, secret)
    given, style = marks_of(kit, found, keys, [out / "marks.csv", marks])

    write_pages(kit, found, out, given, keys, secret)
    write_tables(kit, found, out, given, keys, secret, style)
    lines = summary(kit, found, out, given)
    return [*lines, *filled(kit, found, out, given, gradebook)] if gradebook else lines


def judged(kit: Kit, place: Path, judge: Judge, records: Records) -> Results:
    """Every submission once; what was graded already is read."""
    found = Results()
    with tqdm(read_class(place, kit), total=len(entries(place, kit)), unit="student") as bar:  # one in memory at a time
        for submission in bar:
            bar.set_postfix_str(submission.student[:20])
            outcomes = records.read(submission)
            if outcomes is None:
                outcomes = judge.outcomes(submission)
                records.write(submission, outcomes)
            found.outcomes[submission.student] = outcomes
            found.numbers[submission.student] = submission.number
            found.shapes[submission.student] = {one.label: submission.shape(one) for one in kit.exercises}
    if not found.outcomes:
        raise ValueError(f"SUBMISSIONS has no file; {place} is empty")
    return found


def keys_of(kit: Kit, found: Results, secret: str) -> dict[tuple[str, str], str]:
    """(student, label) -> under what an answer stands on its page: of the number, which a namesake does not change."""
    shared = Counter(found.numbers.values())
    who = {student: number if shared[number] == 1 and number else student for student, number in found.numbers.items()}
    both = ((student, one.label) for student in found.outcomes for one in kit.exercises)
    return {(name, label): tables.short(secret + who[name] + label, 12) for name, label in both}


def marks_of(kit: Kit, found: Results, keys: dict, paths: Sequence[Path | None]) -> tuple[Marks, Style]:
    """What a person filled in, here or there, and how the last table writes it: none of it is ever lost."""
    given, style, now = {}, Style(), marking.digests(kit, found.outcomes)
    for path in paths:
        if path and path.exists():
            text = tables.decoded(path.read_bytes())[0]
            style = tables.style(text)
            given = marking.merged(given, marking.read(text, kit, keys, now))
    return given, style


def write_pages(kit: Kit, found: Results, out: Path, given: Marks, keys: dict, secret: str) -> None:
    """A page for each student, and one for each exercise."""
    for old in (out / "feedback").glob("*.html"):  # of a name that a namesake has changed
        old.unlink()
    for student, outcomes in found.outcomes.items():
        page = report.feedback(kit, student, outcomes, given.get(student, {}))
        tables.write(out / "feedback" / f"{file_name(student)}.html", page)
    for number, exercise in enumerate(kit.exercises):
        answers = [(keys[student, exercise.label], one[number]) for student, one in found.outcomes.items()]
        page = report.side_by_side(exercise, answers, int(secret[:8], 16))
        tables.write(out / "answers" / f"{exercise.label}.html", page)


def write_tables(kit: Kit, found: Results, out: Path, given: Marks, keys: dict, secret: str, style: Style) -> None:
    """marks.csv to fill in, and grades.csv."""
    rows = marking.to_fill(kit, found.outcomes, keys, given, style)
    tables.write(out / "marks.csv", rows, "utf-8-sig")  # by that mark a spreadsheet knows the encoding
    rows = report.table(kit, found.outcomes, beside(kit, found, secret, given), given)
    tables.write(out / "grades.csv", rows)


def beside(kit: Kit, found: Results, secret: str, given: Marks) -> dict[str, dict[str, str]]:
    """What stands in grades.csv beside the points: what a person should look at, and how it was graded."""
    same, made = report.copies(kit, found.shapes), {}
    for student, outcomes in found.outcomes.items():
        flags = [f"{one.label}: {flag}" for one in outcomes for flag in one.flags] + same.get(student, [])
        again = ((label, mark.outdated) for label, mark in given.get(student, {}).items())
        flags += [f"{label}: {words}" for label, words in again if words]
        made[student] = {
            "look at": "; ".join(flags),
            "version": pdelab.__version__,
            "seed": hashlib.sha256(secret.encode()).hexdigest()[:12],
            "isolation": isolation.kind(),
        }
    return made


def summary(kit: Kit, found: Results, out: Path, given: Marks) -> list[str]:
    lines = [f"{len(found.outcomes)} submissions graded; isolation: {isolation.kind()}. See {out / 'grades.csv'}"]
    if isolation.kind() == isolation.HOOK:
        lines.append("An audit hook is no boundary: for strangers' code, grade inside a container.")
    coded = (one for outcomes in found.outcomes.values() for one in outcomes if not one.points)
    if differ := sum(one.words.startswith("All checks passed. ") for one in coded):
        lines.append(f"{differ} answers passed every check, but differ from the solution on other inputs: read these.")
    if unmarked := report.unmarked(kit, found.outcomes, given):
        lines.append(f"{unmarked} answers in words have no marks yet, so totals are partial: read {out / 'answers'},")
        lines.append(f"fill in {out / 'marks.csv'} and run the same command again.")
    return lines


def filled(kit: Kit, found: Results, out: Path, given: Marks, gradebook: Path) -> list[str]:
    """A copy of the gradebook with its column filled, and words on it: who is not in it, and who handed in nothing."""
    text, encoding = tables.decoded(gradebook.read_bytes())
    book = fill(text, kit, report.totals(kit, found.outcomes, given), found.numbers)
    path = out / f"filled-{gradebook.name}"
    tables.write(path, book.text, encoding)
    lines = [f"Gradebook filled: {path}"]
    if book.missing:
        lines.append(f"Not in the gradebook: {', '.join(book.missing)}")
    if book.absent:
        first, more = "; ".join(book.absent[:NAMED]), len(book.absent) - NAMED
        lines.append(
            f"Handed in nothing: {len(book.absent)} of the gradebook: {first}" + f" and {more} more" * (more > 0)
        )
    return lines


def place(text: str) -> Path:
    if not text:  # or it would be this folder
        raise argparse.ArgumentTypeError("name the folder or the zip: make grade NAME=hw1 SUBMISSIONS=hw1.zip")
    return Path(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="grade the submissions of a class")
    parser.add_argument("name", help="of the assignment")
    parser.add_argument("submissions", type=place, help="a folder or a zip")
    parser.add_argument("--gradebook", type=Path, help="a Canvas or Moodle export, of which a filled copy is made")
    parser.add_argument("--marks", type=Path, help="marks.csv with points for answers in words")
    parser.add_argument("--out", type=Path, help="where to write; default: _build/assignments/NAME/graded")
    options = parser.parse_args()
    kit = FOLDER / options.name / "kit.json"
    if not kit.exists():
        parser.error(f"there is no assignment {options.name}. Next: make assignment NAME={options.name} EXERCISES=…")
    for given in (options.submissions, options.gradebook, options.marks):
        if given is not None and not given.exists():
            parser.error(f"{given} does not exist")
    out = (options.out or FOLDER / options.name / "graded").resolve()
    files = {"marks": options.marks, "gradebook": options.gradebook}
    try:
        lines = grade(Kit.read(kit), options.submissions.resolve(), out, **files)
    except (ValueError, csv.Error) as error:
        print(error, file=sys.stderr)
        return 2
    except CannotStart as error:
        print(f"Stopped; what is graded is kept. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. What is graded is kept; the same command goes on.", file=sys.stderr)
        return 130
    print("\n".join(lines).replace(f"{ROOT}/", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
