"""One source per chapter, three editions.

A chapter's source book/NAME.md marks the cells of its exercises with tags:

    solution   the answer: functions in a code cell, or a markdown cell for an answer in words
    check      a code cell that calls pdebook.check on the answer
    wrong      a plausible wrong answer, whose first line is  # says: WORDS  and which the check must refuse with these
               words in its message; at least two for each solution in code. They appear in no edition.

From it come the instructor edition (everything but the wrong answers: what the book commits, tests and renders) and the
student edition (functions reduced to a stub that raises NotImplementedError, answers in words to a place for yours).
"""

import ast
import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

import jupytext
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
EXERCISE = re.compile(r"^```+\{exercise(?:-start)?\}.*\n(?::label:\s*(\S+))?", re.MULTILINE)
SAYS = "# says:"
PARTS = {"solution": "solutions", "check": "checks", "wrong": "wrong"}  # of an exercise, by tag


def chapters() -> list[Path]:
    """The text sources of the book's own pages that are notebooks: those with a jupytext header."""
    return _notebooks("*.md")


def sources() -> list[Path]:
    """Every text source that is a notebook: the pages, and the evidence behind them."""
    return [*chapters(), *_notebooks("evidence/*.md")]


def _notebooks(pattern: str) -> list[Path]:
    paths = sorted(BOOK.glob(pattern))
    return [path for path in paths if path.read_text(encoding="utf-8").startswith("---\njupytext:")]


def page_name(path: Path) -> str:
    """first_look, or evidence/stability: what a page is called in the commands and the table of contents."""
    return path.relative_to(BOOK).with_suffix("").as_posix()


def read_source(path: Path) -> NotebookNode:
    notebook = jupytext.read(path)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"  # fixed ids keep the diff of an unchanged notebook empty
    return notebook


def tagged(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def code_folded(cell: NotebookNode) -> bool:
    """Whether pages and notebooks show what a cell prints or draws, and its code only on a click."""
    shut = any(tagged(cell, tag) for tag in ("hide-input", "asserts"))
    return shut or cell.source.startswith("ledger.case_file(")


@dataclass
class Exercise:
    """One exercise of a chapter, in the order of its source."""

    label: str
    solutions: list[NotebookNode] = field(default_factory=list)
    checks: list[NotebookNode] = field(default_factory=list)
    wrong: list[NotebookNode] = field(default_factory=list)
    starters: list[NotebookNode] = field(default_factory=list)  # code to begin with, without a tag of ours

    @property
    def coded(self) -> bool:
        return any(cell.cell_type == "code" for cell in self.solutions)


def exercises(notebook: NotebookNode, name: str) -> list[Exercise]:
    """The exercises of a chapter's source, each complete or refused by name."""
    found: list[Exercise] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            labels = EXERCISE.findall(cell.source)
            if "" in labels or len(labels) > 1:
                raise ValueError(f"{name}: an exercise needs a cell of its own and a :label: as its first option")
            if "{solution" in cell.source and not tagged(cell, "solution"):
                raise ValueError(f"{name}: a cell with a solution directive needs the tag 'solution'")
            found += [Exercise(label) for label in labels]
        for tag in PARTS:
            if tagged(cell, tag):
                if not found:
                    raise ValueError(f"{name}: a cell tagged {tag!r} stands before the first exercise with a :label:")
                getattr(found[-1], PARTS[tag]).append(cell)
        if found and cell.cell_type == "code" and not any(tagged(cell, tag) for tag in (*PARTS, "setup", "asserts")):
            found[-1].starters.append(cell)
    for exercise in found:
        where = f"{name}, exercise {exercise.label}"
        if not exercise.solutions:
            raise ValueError(f"{where}: there is no cell tagged 'solution'")
        if exercise.coded and not exercise.checks:
            raise ValueError(f"{where}: a solution in code needs a cell tagged 'check'")
        if exercise.coded and len(exercise.wrong) < 2:
            raise ValueError(f"{where}: a solution in code needs at least two cells tagged 'wrong'")
        for cell in exercise.wrong:
            if not says(cell):
                raise ValueError(f"{where}: a cell tagged 'wrong' must start with '{SAYS} words of its message'")
        for cell in exercise.solutions:
            if cell.cell_type == "code":
                stub(cell.source, where)
    return found


def says(cell: NotebookNode) -> str:
    """The words that a wrong answer must hear; empty if its first line names none."""
    first = cell.source.splitlines()[0]
    return first.removeprefix(SAYS).strip() if first.startswith(SAYS) else ""


def setup_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """What exercises may rely on: the first code cell and those tagged 'setup'."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for number, cell in enumerate(code) if number == 0 or tagged(cell, "setup")]


def stub(source: str, where: str = "solution") -> str:
    """The solution's functions with decorators, signature and docstring kept and the body replaced.

    >>> print(stub('def f(x):\\n    return 2 * x'))
    def f(x):
        raise NotImplementedError('f is yours to write: replace this line, then run the check')
    """
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{where}: the solution is not plain Python ({error})") from error
    if not nodes or not all(isinstance(node, ast.FunctionDef) for node in nodes):
        raise ValueError(f"{where}: a solution holds functions only, at least one")
    for node in nodes:
        message = f"{node.name} is yours to write: replace this line, then run the check"
        kept = node.body[:1] if ast.get_docstring(node) is not None else []
        node.body = kept + ast.parse(f"raise NotImplementedError({message!r})").body
    return "\n\n\n".join(ast.unparse(node) for node in nodes)


def instructor_edition(notebook: NotebookNode) -> NotebookNode:
    edition = copy.deepcopy(notebook)
    edition.cells = [cell for cell in edition.cells if not tagged(cell, "wrong")]
    return edition


def student_edition(notebook: NotebookNode) -> NotebookNode:
    """Solutions out, stubs in; what the other cells showed when the book was made stays."""
    edition = instructor_edition(notebook)
    for cell in edition.cells:
        if tagged(cell, "solution"):
            cell.source = stub(cell.source) if cell.cell_type == "code" else "*Your answer:*"
        if cell.cell_type == "code" and (tagged(cell, "solution") or tagged(cell, "check")):
            cell.outputs, cell.execution_count = [], None
        if tagged(cell, "check"):
            cell.metadata.tags.append("raises-exception")  # or Run All would stop at the first stub
    return edition
