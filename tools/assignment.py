"""Put exercises of several chapters, and your own, into one notebook to hand out.

    python tools/assignment.py hw1 ex-sb-cycle ex-di-matrix stabilization [--private FOLDER]

writes _build/assignments/hw1/: student/hw1.ipynb to hand out, and for you hw1_solution.ipynb and kit.json, which
tools/grade.py reads. A chapter's name stands for all its exercises. FOLDER holds *.md in the form of the chapters, with
exercises that are never in git.
"""

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat
from exercises import ROOT
from grading.kit import Exercise, Kit, Unknown, make
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from plain import plain

import pdelab
from pdelab.files import write_atomically

FOLDER = ROOT / "_build" / "assignments"


def notebook(kit: Kit, *, solved: bool) -> nbformat.NotebookNode:
    """The exercises one after another, each chapter's setup before its first."""
    cells = [new_markdown_cell(f"# {kit.name}\n\nYour name:\n\n{kit.points:g} points. Made with pdelab {kit.version}.")]
    begun: set[str] = set()
    for exercise in kit.exercises:
        if exercise.chapter not in begun:
            begun.add(exercise.chapter)
            cells += [_code(source, "setup") for source in exercise.setup]
        cells += _cells(exercise, solved=solved)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number:03d}"
    made = new_notebook(cells=copy.deepcopy(cells))
    made.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    made.metadata["pdelab"] = {"assignment": kit.name, "version": kit.version}
    return made


def _cells(exercise: Exercise, *, solved: bool) -> list:
    """The question, marked so that the grader finds what follows it; a stub and a check, or a place for words."""
    text = plain(exercise.text, exercise.chapter)
    points = f"*{exercise.points:g} point{'s' * (exercise.points != 1)}*"
    question = [new_markdown_cell(f"<!-- {exercise.label} -->\n{text}\n\n{points}")]
    question += [_code(source, "starter") for source in exercise.starters]
    if not exercise.coded:
        answers = [plain(source, exercise.chapter) for source in exercise.solutions] if solved else ["*Your answer:*"]
        return [*question, *map(new_markdown_cell, answers)]
    answer = exercise.solutions if solved else exercise.stubs
    return [*question, _code("\n\n\n".join(answer), "answer"), *(_code(source, "check") for source in exercise.checks)]


def _code(source: str, tag: str):
    cell = new_code_cell(source)
    cell.metadata["tags"] = [tag, "raises-exception"] if tag == "check" else [tag]
    if tag in ("setup", "check"):
        cell.metadata["jupyter"] = {"source_hidden": True}
    return cell


def name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise argparse.ArgumentTypeError(f"a name has letters, digits, - and _ only; not {text!r}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="one notebook of exercises to hand out")
    parser.add_argument("name", type=name)
    parser.add_argument("exercises", nargs="+", metavar="EXERCISE", help="a label such as ex-sb-cycle, or a chapter")
    parser.add_argument("--private", type=Path, help="a folder of exercises of your own")
    options = parser.parse_args()
    if options.private is not None and not options.private.is_dir():
        parser.error(f"--private must be a folder; {options.private} is none")
    try:
        kit = make(options.name, options.exercises, pdelab.__version__, options.private)
    except Unknown as error:
        parser.error(str(error))
    folder = FOLDER / kit.name
    (folder / "student").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "student" / f"{kit.name}.ipynb", nbformat.writes(notebook(kit, solved=False)) + "\n")
    write_atomically(folder / f"{kit.name}_solution.ipynb", nbformat.writes(notebook(kit, solved=True)) + "\n")
    kit.write(folder / "kit.json")
    coded = sum(one.coded for one in kit.exercises)
    print(f"{len(kit.exercises)} exercises, {coded} of them graded by the machine, {kit.points:g} points.")
    print(f"Hand out {(folder / 'student').relative_to(ROOT)}; keep the rest.")
    print(f"Next: make grade NAME={kit.name} SUBMISSIONS=zip-or-folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
