"""One student's notebook, and what in it is the student's."""

import ast
import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property

from grading import reading, syntax
from grading.kit import Exercise, Kit, bare

MARK = re.compile(r"<!-- (ex-[\w-]+|chapter) -->")
POINTS = re.compile(r"^\*[\d.]+ points?\*$", re.MULTILINE)  # the end of a question
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
        return reading.read(self.content, self.kit.name, self.notes)

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
            source = cell["source"] if syntax.parses(cell["source"]) else syntax.without_magics(cell["source"])
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
        return own if asked <= syntax.defined(own) else self.cells

    @cached_property
    def functions(self) -> list[ast.FunctionDef]:
        """The functions that the student's cells define at their top level, in order."""
        return syntax.functions(self.cells)

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
                fits = shown < reading.PICTURES and reading.shown(one)
                found.append(("picture", one) if fits else ("text", reading.LEFT_OUT))
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
        aliases = syntax.aliases(tree)
        called = {syntax.whole(node.func, aliases) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        held = {syntax.whole(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
        held |= set(aliases.values())
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}  # vars(laws)["basin_edge"]
        found = [
            f"uses {name}"
            for name in exercise.forbidden
            if name.rpartition(".")[2] in said or any(syntax.same_name(one, name) for one in held)
        ]
        found += [f"calls {name}" for name in SUSPECT if name in called]
        targets = [t for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets]
        if any("check" in syntax.whole(target, aliases).split(".") for target in targets):
            found.append("changes the check")
        if self.shape(exercise) == syntax.shape(syntax.parsed(exercise.solutions), exercise.names):
            found.append("is the book's own solution")
        own = {syntax.shape([node], [node.name]) for node in self.functions}
        for node in syntax.parsed(exercise.checks):  # a second way to the answer stands there for all to see
            if isinstance(node, ast.FunctionDef):
                called = node.name in held and node.name not in self.defined
                found += [f"uses the check's {node.name}"] if called or syntax.shape([node], [node.name]) in own else []
        return found

    def shape(self, exercise: Exercise) -> str:
        return syntax.shape(self.functions, exercise.names)
