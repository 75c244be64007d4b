"""The notebooks of a class, however they were exported, and what in them is the student's."""

import ast
import base64
import binascii
import copy
import hashlib
import json
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from grading.kit import Exercise, Kit, bare

LARGEST, PARTS = 50 << 20, 1_000_000  # bytes of one notebook, and the lists and dicts in it: each takes memory
PICTURE, PIXELS, PICTURES = 4 << 20, 60_000_000, 12  # bytes and pixels of one, and how many of one answer are shown
NOTEBOOK = re.compile(r"\.(ipynb(\.\w+)?|json)$", re.IGNORECASE)  # as browsers and mail programs rename them
INLINE = re.compile(r"data:image/[\w.+-]+;base64,([\w+/=]*)")
ATTACHED = re.compile(r"!\[[^\]]*\]\(\s*attachment:([^)\s]*)[^)]*\)")
MARK = re.compile(r"<!-- (ex-[\w-]+|chapter) -->")
POINTS = re.compile(r"^\*[\d.]+ points?\*$", re.MULTILINE)  # the end of a question
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?$")
CANVAS = re.compile(r"^(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_\d+_")
LEFT_OUT = (
    f"(A picture is left out, as it is no PNG or JPEG of at most {PICTURE >> 20} MB, or comes after {PICTURES} others: "
    "look into the notebook.)"
)
LINK = "This is a link to another place. Hand in the file itself."
SUSPECT = ("exec", "eval", "open", "compile", "__import__", "getattr", "globals", "vars", "importlib.import_module")


@dataclass
class Submission:
    """One student's notebook. cells: number and code of the student's own cells; fault: why there is nothing to run."""

    student: str
    number: str  # in the course's system, where the name of the file tells it
    kit: Kit
    content: bytes | str | None  # words where it cannot be read
    notes: list[str] = field(default_factory=list)
    sections: dict[int, str | None] = field(default_factory=dict)  # cell -> chapter of the exercise that it follows

    @cached_property
    def _read(self) -> tuple[list[dict], str]:
        """The cells of the notebook, or the words for a file that is none."""
        if isinstance(self.content, str):
            return [], self.content
        if self.content is None:
            return [], "There is no notebook (.ipynb) in this submission."
        if not self.content.strip():
            return [], "This file is empty."
        if len(self.content) > LARGEST:
            return [], f"This file has more than {LARGEST >> 20} MB. Clear its outputs and hand it in again."
        if self.content.count(b"[") + self.content.count(b"{") > PARTS:
            return [], f"This file has more than {PARTS:,} parts. Clear its outputs and hand it in again."
        try:
            held = json.loads(_text(self.content, self.notes))
            cells = held["cells"] if "cells" in held else [c for sheet in held["worksheets"] for c in sheet["cells"]]
            plain = [_plain(cell) for cell in cells]
            sheet = held.get("metadata", {}).get("pdelab", {}).get("assignment", self.kit.name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
            return [], "This file is not a notebook, whatever its name says. Download it again as .ipynb."
        if sheet != self.kit.name:
            return [], f"This notebook is of the sheet {str(sheet)[:40]}, not of {self.kit.name}."
        return plain, ""

    @property
    def digest(self) -> str:
        held = self.content if isinstance(self.content, bytes) else repr(self.content).encode()
        return hashlib.sha256(held).hexdigest()

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

    def answer(self, exercise: Exercise) -> list[tuple[str, str]]:
        """What a person reads: text, code and pictures between the exercise and the next one, as (kind, content)."""
        found, inside, shown = [], False, 0
        stubs = {bare(source) for source in ("\n".join(exercise.stubs), *exercise.stubs)}
        for cell in self._read[0]:
            source = cell["source"]
            if cell["kind"] == "markdown" and (mark := MARK.search(source)):
                inside = mark[1] == exercise.label
                typed = POINTS.split(source, maxsplit=1)[1:] if inside else ()  # into the cell of the question
                found += [("text", one.strip()) for one in typed]
            elif inside and cell["kind"] == "markdown":
                found.append(("text", re.sub(r"^\*Your answer[^*\n]*:\*", "", source.strip()).strip()))
            elif inside and bare(source) not in self.kit.given | stubs:
                found.append(("code", source.strip()))
            for one in cell["pictures"] if inside else ():
                fits = shown < PICTURES and _shown(one)
                found.append(("picture", one) if fits else ("text", LEFT_OUT))
                shown += fits
        if exercise.coded and not any(kind == "code" for kind, _ in found):  # it stands elsewhere
            found.append(("code", self.code(exercise)))
        return [one for one in found if one[1]]

    def asked(self, exercise: Exercise) -> bool:
        """Whether the question still stands in the notebook, so that what follows it can be found."""
        marks = (MARK.search(cell["source"]) for cell in self._read[0] if cell["kind"] == "markdown")
        return any(mark and mark[1] == exercise.label for mark in marks)

    def flags(self, exercise: Exercise) -> list[str]:
        """What a person should look at; never a deduction."""
        tree = ast.parse("\n".join(source for _, source in self.cells))
        aliases = _aliases(tree)
        called = {_whole(node.func, aliases) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        held = {_whole(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
        held |= set(aliases.values())
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}  # vars(laws)["basin_edge"]
        found = [
            f"uses {name}"
            for name in exercise.forbidden
            if name.rpartition(".")[2] in said or any(_names(one, name) for one in held)
        ]
        found += [f"calls {name}" for name in SUSPECT if name in called]
        targets = [t for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets]
        if any("check" in _whole(target, aliases).split(".") for target in targets):
            found.append("changes the check")
        if self.shape(exercise) == shape(_parsed(exercise.solutions), exercise.names):
            found.append("is the book's own solution")
        own = {shape([node], [node.name]) for node in self.functions}
        for node in _parsed(exercise.checks):  # a second way to the answer stands there for all to see
            if isinstance(node, ast.FunctionDef):
                called = node.name in held and node.name not in self.defined
                found += [f"uses the check's {node.name}"] if called or shape([node], [node.name]) in own else []
        return found

    def shape(self, exercise: Exercise) -> str:
        return shape(self.functions, exercise.names)


def _parsed(sources: Sequence[str]) -> list[ast.stmt]:
    return ast.parse("\n".join(sources)).body


def shape(nodes: Sequence[ast.stmt], names: Sequence[str]) -> str:
    """The bodies of these functions, the last of each name, without docstrings, spacing and the names of their own
    variables: equal for copies; nothing of code that is nested too deeply."""
    last = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    try:
        held = [_unnamed(last[name]) for name in names if name in last]
        bodies = [node.body[1:] if ast.get_docstring(node) is not None else node.body for node in held]
        return "\n".join(ast.dump(ast.Module(body, [])) for body in bodies)
    except (RecursionError, MemoryError, ValueError):
        return ""


def definitions(source: str) -> str:
    """Of a cell its imports, functions, classes and plain values: what is left of one that does not end."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    held = [node for node in ast.parse(source).body if isinstance(node, kept) or _plain_value(node)]
    return "\n".join(map(ast.unparse, held))


def _unnamed(function: ast.FunctionDef) -> ast.FunctionDef:
    """With a number in place of each parameter and variable, in the order in which they appear."""
    function, own = copy.deepcopy(function), {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            own.setdefault(node.arg if isinstance(node, ast.arg) else node.id, f"_{len(own)}")
    for node in ast.walk(function):
        if isinstance(node, ast.arg | ast.Name):
            key = "arg" if isinstance(node, ast.arg) else "id"
            setattr(node, key, own.get(getattr(node, key), getattr(node, key)))
    return function


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What a name stands for, of imports and of other names: L -> laws, b -> laws.basin_edge."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
            found |= {one.asname or one.name: module + one.name for one in node.names if one.asname or module}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            found |= {one.id: _whole(node.value, found) for one in node.targets if isinstance(one, ast.Name)}
    return found


def _whole(node: ast.expr, aliases: dict[str, str]) -> str:
    """The name as it would be without aliases."""
    first, dot, rest = ast.unparse(node).partition(".")
    return aliases.get(first, first) + dot + rest


def _plain_value(node: ast.stmt) -> bool:
    """x = 3 or f = lambda x: x, and nothing that runs."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return isinstance(node.value, ast.Lambda) or not any(isinstance(one, ast.Call) for one in ast.walk(node))


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
    plain, pictures = source.replace("\r\n", "\n").replace("\r", "\n"), _pictures(cell)
    if cell["cell_type"] == "markdown":
        attached = cell.get("attachments") or {}
        pictures += [""] * sum(one not in attached for one in ATTACHED.findall(plain))
        pictures += INLINE.findall(plain)
        plain = INLINE.sub("picture", ATTACHED.sub("(picture)", plain))
    return {"kind": cell["cell_type"], "source": plain, "pictures": pictures}


def _pictures(cell: dict) -> list[str]:
    """The PNGs and JPEGs that a cell shows or has attached, as base64; nothing for a picture of another kind."""
    try:
        held = [output.get("data", {}) for output in cell.get("outputs", [])] + [*cell.get("attachments", {}).values()]
        shown = [one for one in held if any(kind.startswith("image/") for kind in one)]
        return ["".join("".join(one.get("image/png", one.get("image/jpeg", ""))).split()) for one in shown]
    except (AttributeError, TypeError):
        return []


def _shown(picture: str) -> bool:
    """Whether it is a PNG or a JPEG, and no larger than a page can bear."""
    try:
        held = base64.b64decode(picture, validate=True) if len(picture) * 3 // 4 <= PICTURE else b""
        width, height = _size(held)
    except (binascii.Error, struct.error, ValueError):
        return False
    return 0 < width * height <= PIXELS


def _size(held: bytes) -> tuple[int, int]:
    """Width and height as a PNG or a JPEG states them; every other kind can hold a script or an address."""
    if held.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack(">II", held[16:24])
    at = 2 if held.startswith(b"\xff\xd8") else len(held)
    while at < len(held):  # from segment to segment, to the one that states the size
        mark, kind, length = struct.unpack(">BBH", held[at : at + 4])
        if mark != 0xFF:
            break
        if kind in range(0xC0, 0xD0) and kind not in (0xC4, 0xC8, 0xCC):
            return struct.unpack(">HH", held[at + 5 : at + 9])
        at += 2 + length
    return 0, 0


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
    """The submissions in a folder or a zip, one per student, in order of their names; each is read when it is due."""
    found = entries(place, kit)
    twice = Counter(student for student, _ in found)
    for student, number in sorted(found):
        files, called = found[student, number], student if twice[student] == 1 else f"{student} {number}"
        submission = Submission(called, number, kit, files[-1][1]() if files else None)
        if len(files) > 1:
            submission.notes.append(f"Of {len(files)} notebooks {files[-1][0]} was graded.")
        yield submission


def entries(place: Path, kit: Kit) -> dict[tuple[str, str], list]:
    """(student, number) -> name of the file and a function that reads it, for each notebook; the last is the newest."""
    files_in = list(_files(place))
    tops = {name.parts[0] for name, _ in files_in}
    inside = [len(name.parts) > 2 or (len(name.parts) > 1 and CANVAS.match(name.name)) for name, _ in files_in]
    if len(tops) == 1 and all(inside):  # one folder around them all
        files_in = [(PurePosixPath(*name.parts[1:]), read) for name, read in files_in]
    found: dict[tuple[str, str], list] = {}
    for name, read in files_in:
        entry = found.setdefault(_who(name), [])
        if NOTEBOOK.search(name.name) or read is _link:
            entry.append((name.name, read))

    own = re.compile(rf"(?<![^\W_]){re.escape(kit.name)}(?![^\W_])")  # hw1 is not in hw10

    def age(file: tuple) -> tuple:
        """Files before links, notebooks before other JSON, the assignment's name before others, and of these the last
        by name and number: the tenth download, "hw1 (10)", and in Canvas the tenth attempt, "hw1-10"."""
        name, read = file
        stem = NOTEBOOK.sub("", name)
        parts = re.split(r"(\d+)", stem)
        parts[1::2] = [int(part[-18:]) for part in parts[1::2]]
        plain, renamed = name.lower().endswith(".ipynb"), ".ipynb." in name.lower()
        return read is not _link, plain or renamed, bool(own.search(stem)), plain, parts

    return {who: sorted(files, key=age) for who, files in found.items()}


def _link() -> str:
    return LINK


def _files(place: Path):
    """(path inside the place, function that reads it) for all files, in order."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            inside = PurePosixPath(path.relative_to(place).as_posix())
            if (path.is_symlink() or path.is_file()) and not _junk(inside):
                yield inside, _link if path.is_symlink() else lambda path=path: _start(path.open("rb"))
        return
    if not zipfile.is_zipfile(place):
        raise ValueError(f"SUBMISSIONS must be a folder or a zip file; {place} is neither")
    archive = zipfile.ZipFile(place)
    for info in sorted(archive.infolist(), key=lambda one: one.filename):
        inside = PurePosixPath(*(part for part in PurePosixPath(info.filename).parts if part not in ("..", "/")))
        if inside.parts and not info.is_dir() and not _junk(inside):
            link = stat.S_ISLNK(info.external_attr >> 16)
            yield inside, _link if link else lambda info=info: _start(archive.open(info))


def _start(file) -> bytes:
    """As much of the file as is read: a bomb ends here."""
    with file:
        return file.read(LARGEST + 1)


def _junk(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _who(path: PurePosixPath) -> tuple[str, str]:
    """Name and number of the student, from Canvas's file names, Moodle's folders, or the first folder or the file."""
    if match := CANVAS.match(path.name):
        return match["name"], match["id"]
    for part in path.parts[:-1]:
        if match := MOODLE.match(part):
            return match["name"], match["id"]
    file = NOTEBOOK.sub("", path.name) if NOTEBOOK.search(path.name) else path.stem
    return (path.parts[0] if len(path.parts) > 1 else file), ""
