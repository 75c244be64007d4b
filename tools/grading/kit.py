"""An assignment: exercises of the book, and of the instructor's own, with all that handing out and grading needs.

kit.json holds solutions, checks and further inputs: it stays with the instructor.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import exercises as book
import yaml

import pdelab

TITLE = re.compile(r"^`+\{exercise\} (.*)$", re.MULTILINE)


class Unknown(ValueError):
    """A label or a chapter that is not there."""


@dataclass
class Exercise:
    """One exercise as the judge needs it. names: the functions asked for, none where the answer is in words.

    tolerance: how far an answer may be from the solution on drawn inputs, as a share of it.
    symbols: what the letters of its chapter stand for, in one line.
    """

    label: str
    title: str
    chapter: str
    points: float
    text: str
    setup: list[str]
    starters: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    solutions: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    inputs: str = ""
    tolerance: float = 1e-5
    forbidden: list[str] = field(default_factory=list)
    rubric: str = ""
    symbols: str = ""

    @property
    def coded(self) -> bool:
        return bool(self.names)

    @property
    def asks(self) -> bool:
        """Whether it wants words, beside code or alone: it has a question that is no hint."""
        return "?" in self.text.partition("{admonition}")[0]

    @property
    def kind(self) -> str:
        """How it is answered: a proof, words or code, with a plot, and whether further inputs are drawn."""
        proof = re.search(r"\b[Pp]rove\b|\b[Ss]how that\b", self.text)
        parts = ["code" if self.coded else "proof" if proof else "words"]
        return ", ".join(parts + ["run and plot"] * ("run and plot" in self.title) + ["drawn"] * bool(self.inputs))

    def seed(self, secret: str) -> bytes:
        """From which further inputs are drawn, others for each secret."""
        return hashlib.sha256(f"{secret}\n{self.label}".encode()).digest()


@dataclass
class Kit:
    """An assignment by its name, with the version of the book, and the private folder, that it comes from."""

    name: str
    version: str
    exercises: list[Exercise]
    private: str = ""

    @property
    def points(self) -> float:
        return sum(one.points for one in self.exercises)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Kit":
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(**held | {"exercises": [Exercise(**one) for one in held["exercises"]]})

    @property
    def given(self) -> set[str]:
        """Code that was handed out and is no answer: setup, starters and checks, without white space around lines."""
        return {bare(source) for one in self.exercises for source in (*one.setup, *one.starters, *one.checks)}

    @property
    def checksum(self) -> str:
        """Of all that outcomes depend on here: the assignment, and the package and the grader that run it."""
        code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
        own = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.sha256(b"\0".join([own, pdelab.__version__.encode(), *code])).hexdigest()


def bare(source: str) -> str:
    """Code without blank lines and white space at the ends of lines, which editors and exports change."""
    return "\n".join(line.rstrip() for line in source.splitlines() if line.strip())


def facts(folder: Path) -> dict:
    """What exercises.yml of a folder says: aims by chapter, and points, inputs and so on by label."""
    path = folder / "exercises.yml"
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def catalogue(private: Path | None = None) -> dict[str, Exercise]:
    """Every exercise of the book by its label, and those of the instructor's folder."""
    held = [facts(folder) for folder in (book.BOOK, private) if folder]
    known = {label: own for one in held for label, own in one.get("exercises", {}).items()}
    symbols = {chapter: own for one in held for chapter, own in one.get("symbols", {}).items()}
    found = {}
    for path in [*book.chapters(), *(_private(private) if private else ())]:
        for exercise in _of(path, known, symbols.get(path.stem, "")):
            if exercise.label in found:
                raise ValueError(
                    f"the label {exercise.label} stands in {found[exercise.label].chapter} and {path.name}"
                )
            found[exercise.label] = exercise
    return found


def _private(folder: Path) -> list[Path]:
    """The instructor's sources: every Markdown file there that has an exercise."""
    found = [path for path in sorted(folder.glob("*.md")) if book.EXERCISE.search(path.read_text(encoding="utf-8"))]
    for path in found:
        if (book.BOOK / path.name).exists():
            raise ValueError(f"{path.name} has the name of a page of the book: call it otherwise")
        if not re.match(r"---\n.*?\n *kernelspec:\n.*?\n---\n", path.read_text(encoding="utf-8"), re.DOTALL):
            raise ValueError(f"{path.name} must begin as a chapter does, with the lines between --- of first_look.md")
    return found


def _of(path: Path, known: dict, symbols: str) -> Iterator[Exercise]:
    """The exercises of one source; what exercises.yml says of them, or for private ones a point each."""
    notebook = book.read_source(path)
    marked = [
        (cell.source, book.EXERCISE.search(cell.source)) for cell in notebook.cells if cell.cell_type == "markdown"
    ]
    texts = [source[begins.start() :] for source, begins in marked if begins]  # without the section that ends there
    setup = [cell.source for cell in book.setup_cells(notebook)]
    for one, text in zip(book.exercises(notebook, path.stem), texts, strict=True):
        own = known.get(one.label) or {}
        if not (title := TITLE.search(text)):
            raise ValueError(f"{path.name}, exercise {one.label}: the title must stand behind ```{{exercise}}")
        code = [cell.source for cell in one.solutions if cell.cell_type == "code"]
        yield Exercise(
            label=one.label,
            title=title[1],
            chapter=path.stem,
            points=own.get("points", 1),
            text=text,
            setup=setup,
            starters=[cell.source for cell in one.starters],
            names=[node.name for source in code for node in ast.parse(source).body],
            stubs=[book.stub(source) for source in code],
            solutions=code or [cell.source for cell in one.solutions],
            checks=[cell.source for cell in one.checks],
            wrong=[cell.source for cell in one.wrong],
            inputs=own.get("inputs", ""),
            tolerance=float(own.get("tolerance", 1e-5)),  # YAML takes 1e-3 for a word
            forbidden=own.get("not", []),
            rubric=own.get("rubric", ""),
            symbols=symbols,
        )


def make(name: str, wanted: Sequence[str], version: str, private: Path | None = None) -> Kit:
    """An assignment of these labels; a chapter's name stands for all its exercises."""
    known = catalogue(private)
    chapters = {one.chapter for one in known.values()}
    chosen: list[Exercise] = []
    for word in wanted:
        if word in known:
            chosen.append(known[word])
        elif word in chapters:
            chosen += [one for one in known.values() if one.chapter == word]
        else:
            labels = ", ".join(sorted(known))
            raise Unknown(
                f"{word} is neither a chapter nor an exercise. Chapters: {', '.join(sorted(chapters))}. "
                f"Exercises: {labels}"
            )
    if doubled := {one.label for one in chosen if chosen.count(one) > 1}:
        raise Unknown(f"named twice: {', '.join(sorted(doubled))}")
    return Kit(name, version, chosen, str(private.resolve()) if private else "")
