"""The notebooks of a class, however they were exported, and what in them is the student's."""

import ast
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from grading.kit import Exercise, Kit, bare

LARGEST = 500 << 20  # bytes of one notebook
MARK = re.compile(r"<!-- (ex-[\w-]+) -->")
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?$")
CANVAS = re.compile(r"^(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_\d+_")
SUSPECT = ("exec", "eval", "open", "compile", "__import__", "getattr", "globals")


@dataclass
class Submission:
    """One student's notebook. cells: number and code of the student's own cells; fault: why there is nothing to run."""

    student: str
    number: str  # in the course's system, where the name of the file tells it
    kit: Kit
    content: bytes | None
    notes: list[str] = field(default_factory=list)
    sections: dict[int, str | None] = field(default_factory=dict)  # cell -> chapter of the exercise that it follows

    @cached_property
    def _read(self) -> tuple[list[dict], str]:
        """The cells of the notebook, or the words for a file that is none."""
        if self.content is None:
            return [], "There is no notebook (.ipynb) in this submission."
        if not self.content.strip():
            return [], "This file is empty."
        if len(self.content) > LARGEST:
            return [], f"This file has more than {LARGEST >> 20} MB. Clear its outputs and hand it in again."
        try:
            held = json.loads(_text(self.content, self.notes))
            cells = held["cells"] if "cells" in held else [c for sheet in held["worksheets"] for c in sheet["cells"]]
            plain = [_plain(cell) for cell in cells]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [], "This file is not a notebook, whatever its name says. Download it again as .ipynb."
        return plain, ""

    @property
    def fault(self) -> str:
        return self._read[1]

    @cached_property
    def cells(self) -> list[tuple[int, str]]:
        """What is not the setup or a check as handed out, and parses; a cell that does not is noted by its line."""
        own, section = [], None
        chapters = {one.label: one.chapter for one in self.kit.exercises}
        for number, cell in enumerate(self._read[0], start=1):
            if cell["kind"] == "markdown" and (mark := MARK.search(cell["source"])):
                section = chapters.get(mark[1])
            if cell["kind"] != "code" or bare(cell["source"]) in self.kit.given:
                continue
            source = cell["source"] if _parses(cell["source"]) else without_magics(cell["source"])
            try:
                ast.parse(source)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                line = getattr(error, "lineno", None)
                self.notes.append(f"Cell {number} is not Python: line {line}, {getattr(error, 'msg', error)}.")
                continue
            if source.strip():
                own.append((number, source))
                self.sections[number] = section
        return own

    def cells_of(self, exercise: Exercise) -> list[tuple[int, str]]:
        """The cells that stand among the exercises of its chapter, or before any; all of them if these do not do."""
        own = [(n, source) for n, source in self.cells if self.sections[n] in (exercise.chapter, None)]
        asked = {one for other in self.kit.exercises if other.chapter == exercise.chapter for one in other.names}
        return own if asked <= _defines(own) else self.cells

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        """The functions that the student's cells define at their top level, in order."""
        return _functions(self.cells)

    @property
    def defined(self) -> list[str]:
        return [node.name for node in self.functions]

    def times(self, name: str) -> int:
        return self.defined.count(name)

    def code(self, exercise: Exercise) -> str:
        """The answer's functions as they count: the last of each name."""
        last = {node.name: node for node in self.functions if node.name in exercise.names}
        return "\n\n\n".join(ast.unparse(last[name]) for name in exercise.names if name in last)

    def words(self, exercise: Exercise) -> str:
        """The student's text between the exercise and the next one."""
        found, inside = [], False
        for cell in self._read[0]:
            if cell["kind"] != "markdown":
                continue
            if mark := MARK.search(cell["source"]):
                inside = mark[1] == exercise.label
                continue
            if inside:
                found.append(re.sub(r"^\*Your answer:\*\s*", "", cell["source"].strip()))
        return "\n\n".join(part for part in found if part)

    def flags(self, exercise: Exercise) -> list[str]:
        """What a person should look at; never a deduction."""
        tree = ast.parse("\n".join(source for _, source in self.cells))
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        held = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
        found = [f"uses {name}" for name in exercise.forbidden if any(_names(one, name) for one in held)]
        found += [f"calls {name}" for name in SUSPECT if name in called]
        targets = [t for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets]
        if any(ast.unparse(target).split(".")[0] == "check" for target in targets):
            found.append("changes the check")
        return found

    def shape(self, exercise: Exercise) -> str:
        """The answer without its docstrings and names of variables' places: equal for copies."""
        made = []
        for name in exercise.names:
            last = next((node for node in reversed(self.functions) if node.name == name), None)
            if last is not None:
                body = last.body[1:] if ast.get_docstring(last) is not None else last.body
                made.append(ast.dump(ast.Module(body, [])))
        return "\n".join(made)


def _functions(cells: list[tuple[int, str]]) -> list[ast.FunctionDef]:
    return [node for _, source in cells for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def _defines(cells: list[tuple[int, str]]) -> set[str]:
    return {node.name for node in _functions(cells)}


def _names(held: str, wanted: str) -> bool:
    """Whether the code's name is the one that is wanted, as maps.two_cycle or two_cycle alone."""
    return held == wanted or held == wanted.rpartition(".")[2] or held.endswith(f".{wanted}")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _text(content: bytes, notes: list[str]) -> str:
    for encoding in ("utf-8-sig", "utf-16"):
        if encoding == "utf-16" and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            continue
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    notes.append("The file is not in UTF-8; it was read as Latin-1.")
    return content.decode("latin-1")


def _plain(cell: dict) -> dict:
    source = cell.get("source", cell.get("input", ""))
    source = "".join(source) if isinstance(source, list) else source
    return {"kind": cell["cell_type"], "source": source.replace("\r\n", "\n").replace("\r", "\n")}


def without_magics(source: str) -> str:
    """Python alone: lines for IPython or the shell are left out, and a cell in another language is empty.

    >>> without_magics("%matplotlib inline\\nx = 1\\n!pip install y")
    '\\nx = 1\\n'
    """
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%"):
        source = rest if first.split()[0] in ("%%time", "%%timeit", "%%capture") else ""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))


def read_class(place: Path, kit: Kit) -> Iterator[Submission]:
    """The submissions in a folder or a zip, one per student, in order of their names; the last notebook counts."""
    files_in = list(_files(place))
    tops = {name.parts[0] for name, _ in files_in}
    inside = [len(name.parts) > 2 or (len(name.parts) > 1 and CANVAS.match(name.name)) for name, _ in files_in]
    if len(tops) == 1 and all(inside):  # one folder around them all
        files_in = [(PurePosixPath(*name.parts[1:]), read) for name, read in files_in]
    found: dict[tuple[str, str], list] = {}
    for name, read in files_in:
        entry = found.setdefault(_who(name), [])
        if name.suffix == ".ipynb":
            entry.append((name.name, read))
    twice = Counter(student for student, _ in found)
    for student, number in sorted(found):
        files, called = found[student, number], student if twice[student] == 1 else f"{student} {number}"
        submission = Submission(called, number, kit, files[-1][1]() if files else None)
        if len(files) > 1:
            submission.notes.append(f"Of {len(files)} notebooks {files[-1][0]} was graded.")
        yield submission


def _files(place: Path):
    """(path inside the place, function that reads it) for all files, in order."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            inside = PurePosixPath(path.relative_to(place).as_posix())
            if path.is_file() and not path.is_symlink() and not _junk(inside):
                yield inside, path.read_bytes
        return
    if not zipfile.is_zipfile(place):
        raise ValueError(f"SUBMISSIONS must be a folder or a zip file; {place} is neither")
    archive = zipfile.ZipFile(place)
    for info in sorted(archive.infolist(), key=lambda one: one.filename):
        inside = PurePosixPath(info.filename)
        if not info.is_dir() and not _junk(inside):

            def read(info=info) -> bytes:
                with archive.open(info) as file:
                    return file.read(LARGEST + 1)  # a bomb ends here

            yield inside, read


def _junk(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _who(path: PurePosixPath) -> tuple[str, str]:
    """Name and number of the student, from Canvas's file names, Moodle's folders, or the first folder or the file."""
    if match := CANVAS.match(path.name):
        return match["name"], match["id"]
    for part in path.parts[:-1]:
        if match := MOODLE.match(part):
            return match["name"], match["id"]
    return (path.parts[0] if len(path.parts) > 1 else path.stem), ""
