"""Put exercises of several chapters, and your own, into one notebook to hand out.

    python tools/assignment.py hw1 ex-sb-cycle ex-di-matrix stabilization [--private FOLDER] [--export nbgrader|otter]

writes _build/assignments/hw1/: student/hw1.ipynb to hand out, and for you hw1_solution.ipynb and kit.json, which
tools/grade.py reads. A chapter's name stands for all its exercises. FOLDER holds *.md in the form of the chapters, with
exercises that are never in git. With --export comes hw1_nbgrader.ipynb, a source for `nbgrader generate_assignment`, or
hw1_otter.ipynb, a master for `otter assign`; both run checks inside the student's kernel, where a line switches them
off.
"""

import argparse
import ast
import copy
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import handout
import nbformat
import yaml
from exercises import ROOT, SAYS
from grading import checking, isolation
from grading.kit import Exercise, Kit, make
from grading.process import Worker
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from plain import pages, plain, title

import pdelab
from pdelab.files import write_atomically

FOLDER = ROOT / "_build" / "assignments"


def notebook(kit: Kit, *, solved: bool) -> nbformat.NotebookNode:
    """The exercises one after another, each chapter's setup before its first."""
    head = f"# {kit.name}\n\nYour name:\n\n{kit.points:g} points. Made with pdelab {kit.version}."
    cells = [new_markdown_cell(head)]
    begun: set[str] = set()
    for exercise in kit.exercises:
        if exercise.chapter not in begun:
            begun.add(exercise.chapter)
            symbols = f"\n\n**Symbols.** {exercise.symbols.strip()}" if exercise.symbols else ""
            where = f"<!-- chapter -->\n## {_chapter(exercise)}{symbols}"
            cells.append(new_markdown_cell(where, metadata={"tags": ["setup"]}))
            cells += [_code(source, "setup") for source in exercise.setup]
        cells += _cells(exercise, solved=solved)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    made = new_notebook(cells=copy.deepcopy(cells))
    made.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    made = handout.stamped(made)
    made.metadata["pdelab"] |= {"assignment": kit.name}
    return made


def _cells(exercise: Exercise, *, solved: bool) -> list:
    """The question, marked so that the grader finds what follows it; a stub and a check, or a place for words."""
    text = plain(exercise.text, exercise.chapter)
    question = [new_markdown_cell(f"<!-- {exercise.label} -->\n{text}\n\n*{_points(exercise)}*")]
    question += [_code(source, "starter") for source in exercise.starters]
    if not exercise.coded:
        answers = [plain(source, exercise.chapter) for source in exercise.solutions] if solved else ["*Your answer:*"]
        return [*question, *map(new_markdown_cell, answers)]
    answer = exercise.solutions if solved else exercise.stubs
    coded = [_code("\n\n\n".join(answer), "answer"), *(_code(source, "check") for source in exercise.checks)]
    words = "*Your answer to the questions in words, and your plot (add cells for its code below):*"
    return [*question, *coded, *([new_markdown_cell(words)] if exercise.asks else [])]


def _points(exercise: Exercise) -> str:
    return f"{exercise.points:g} point{'s' * (exercise.points != 1)}"


def _chapter(exercise: Exercise) -> str:
    """Where an exercise comes from: the chapter by its number and title, with a link where the book is published."""
    if exercise.chapter not in pages():
        return exercise.chapter
    number, name = pages()[exercise.chapter], title(exercise.chapter)
    place = f"Chapter {number}: {name}" if number else name
    address = os.environ.get("BOOK_ADDRESS", "").rstrip("/")
    return f"[{place}]({address}/book/{exercise.chapter}.html)" if address else place


def _code(source: str, tag: str):
    cell = new_code_cell(source)
    cell.metadata["tags"] = [tag, "raises-exception"] if tag == "check" else [tag]
    if tag in ("setup", "check"):
        cell.metadata["jupyter"] = {"source_hidden": True}
    return cell


# For other graders


def _parts(cells: list, kit: Kit) -> Iterator[tuple[Exercise | None, str, Any]]:
    """(exercise, part, cell) of a solved sheet: question, starter, answer, check or words; setup is of no exercise."""
    marks, one = {f"<!-- {exercise.label} -->": exercise for exercise in kit.exercises}, None
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        starts = marks.get(cell.source.partition("\n")[0])
        one = starts or (None if "setup" in tags else one)
        tagged = [tag for tag in ("starter", "answer", "check") if tag in tags]
        yield one, "question" if starts else "".join(tagged) or "words", cell


def for_nbgrader(kit: Kit) -> nbformat.NotebookNode:
    """Solutions between nbgrader's marks; answers, checks and words with its metadata (schema 3)."""
    made = notebook(kit, solved=True)
    for number, (one, part, cell) in enumerate(_parts(made.cells, kit)):
        if one is None or part in ("question", "starter"):
            continue
        mark = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
        mark["grade_id"] = f"{one.label}-{number}"
        if part == "answer":
            cell.source = _marked(one, "### BEGIN SOLUTION", "### END SOLUTION")
            mark["solution"] = True
        elif part == "check":
            mark |= {"grade": True, "locked": True, "points": one.points / len(one.checks)}
        else:
            mark |= {"grade": True, "solution": True, "points": 0 if one.coded else one.points}
        cell.metadata["nbgrader"] = mark
    return made


def for_otter(kit: Kit) -> nbformat.NotebookNode:
    """A master notebook for otter assign: raw cells around question, solution and tests."""
    made, asked = notebook(kit, solved=True), None  # and the exercise whose question is open
    cells = [_raw("ASSIGNMENT CONFIG", {"name": kit.name, "tests": {"ok_format": False}})]
    for one, part, cell in _parts(made.cells, kit):
        beside = part == "words" and (one is None or one.coded)  # words beside code, which otter does not grade
        if asked and (part == "question" or beside):
            cells.append(_raw("END QUESTION"))
            asked = None
        if part == "question":
            asked = one
            config = {"name": one.label, "points": one.points} | ({} if one.coded else {"manual": True})
            cells += [_raw("BEGIN QUESTION", config), cell]
        elif part == "check":
            cells += [_raw("BEGIN TESTS"), _tested(one, cell), _raw("END TESTS")]
        elif part == "starter" or beside:
            cells.append(cell)
        else:
            if part == "answer":
                cell.source = _marked(one, "# BEGIN SOLUTION", "# END SOLUTION")
            cells += [_raw("BEGIN SOLUTION"), cell, _raw("END SOLUTION")]
    made.cells = [*cells, *([_raw("END QUESTION")] if asked else [])]
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number:03d}"
    return made


def _marked(exercise: Exercise, begin: str, end: str) -> str:
    """The solution with its functions' bodies between marks; signature and docstring stay with the student."""
    lines = "\n\n\n".join(exercise.solutions).splitlines()
    for function in reversed(ast.parse("\n".join(lines)).body):
        held = function.body[1:] if ast.get_docstring(function) is not None else function.body
        first, indent = held[0].lineno - 1, " " * held[0].col_offset
        lines[first : function.end_lineno] = [
            indent + begin,
            *lines[first : function.end_lineno],
            indent + end,
        ]
    return "\n".join(lines)


def _raw(begin: str, config: dict | None = None):
    return new_raw_cell(f"# {begin}" + (f"\n{yaml.safe_dump(config, sort_keys=False).strip()}" if config else ""))


def _tested(exercise: Exercise, cell):
    """A check as otter's test by exceptions, on the names of the student's notebook."""
    test = re.sub(r"\W", "_", exercise.label)
    return new_code_cell(f"def test_{test}(env):\n    exec({cell.source!r}, dict(env))")


EXPORTS = {"nbgrader": for_nbgrader, "otter": for_otter}


def name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise argparse.ArgumentTypeError(f"a name has letters, digits, - and _ only; not {text!r}")
    return text


def tried(kit: Kit) -> None:
    """The private solutions pass their checks as they will be graded, and each wrong answer hears its words."""
    for exercise in (one for one in kit.exercises if one.coded and one.chapter not in pages()):
        try:
            fault = _fault(exercise)
        except Exception as error:  # of the setup, or of the inputs
            fault = f"{type(error).__name__}: {error}"
        if fault:
            raise ValueError(f"{exercise.chapter}.md, exercise {exercise.label}: {fault}")


def _fault(exercise: Exercise) -> str:
    """What is wrong with an exercise, in words; none where its answers are judged as they should be."""
    answer = "\n\n".join(exercise.solutions)
    wrong = [(one.partition("\n")[0].removeprefix(SAYS).strip(), f"{answer}\n\n{one}") for one in exercise.wrong]
    checking.setup(exercise)  # here first, where its error has words
    worker = Worker(isolation.hidden())
    try:
        for words, source in [("", answer), *wrong]:
            if not worker.alive:  # the answer before did not end
                worker.close()
                worker = Worker(isolation.hidden())
            worker.begin(exercise.chapter, exercise.setup, [(1, source)])
            passed, said = checking.checked(exercise, worker)
            if passed == bool(words) or words not in said:
                what = f"the wrong answer that says {words!r}" if words else "the solution"
                return f"the check says of {what}: {said}"
            if exercise.inputs and not words and checking.compared(exercise, worker, "secret"):
                return "the solution fails on drawn inputs"
    finally:
        worker.close()
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="one notebook of exercises to hand out")
    parser.add_argument("name", type=name)
    parser.add_argument("exercises", nargs="+", metavar="EXERCISE", help="a label such as ex-sb-cycle, or a chapter")
    parser.add_argument("--private", type=Path, help="a folder of exercises of your own")
    parser.add_argument("--export", choices=EXPORTS, help="write it for another grader too")
    options = parser.parse_args()
    if options.private is not None and not options.private.is_dir():
        parser.error(f"--private must be a folder; {options.private} is none")
    try:
        kit = make(options.name, options.exercises, pdelab.__version__, options.private)
        tried(kit)
    except (ValueError, yaml.YAMLError) as error:
        parser.error(str(error))
    folder = FOLDER / kit.name
    (folder / "student").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "student" / f"{kit.name}.ipynb", nbformat.writes(notebook(kit, solved=False)) + "\n")
    write_atomically(folder / f"{kit.name}_solution.ipynb", nbformat.writes(notebook(kit, solved=True)) + "\n")
    kit.write(folder / "kit.json")
    if options.export:
        path = folder / f"{kit.name}_{options.export}.ipynb"
        write_atomically(path, nbformat.writes(EXPORTS[options.export](kit)) + "\n")
        print(f"For {options.export}: {path.relative_to(ROOT)}, which holds the solutions.")
    for one in kit.exercises:
        print(f"{one.label}: {one.kind}, {_points(one)}")
    coded = sum(one.coded for one in kit.exercises)
    print(f"{len(kit.exercises)} exercises, {coded} of them graded by the machine, {kit.points:g} points.")
    print(f"Hand out {(folder / 'student').relative_to(ROOT)}; keep the rest.")
    print(f"Next: make grade NAME={kit.name} SUBMISSIONS=zip-or-folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
