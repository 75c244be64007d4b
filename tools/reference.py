"""The reference page, from the docstrings of pdelab: a line `{api} MODULE [NAME …]` becomes the module's entries.

Each entry names the pages whose code uses it, and at the end of these pages stands what they use.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

import nbformat
from typeset import typeset

import pdelab

ROOT = Path(__file__).resolve().parents[1]
PLACE = re.compile(r"^\{api\} ([\w.]+)((?: \w+)*)$", re.MULTILINE)
CHOSEN = ROOT / "book" / "api.md"


def public(module, chosen: list[str]) -> dict[str, object]:
    """Classes and functions that the module defines and explains, in its order."""
    own = {name: thing for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
    return {
        name: thing
        for name, thing in own.items()
        if callable(thing) and inspect.getdoc(thing) and (name in chosen if chosen else not name.startswith("_"))
    }


def address(thing) -> str:
    """What a user imports: pdelab.solve, pdelab.metrics.similarity.cosine."""
    exported = f"pdelab.{pdelab._EXPORTS.get(thing.__name__)}" == thing.__module__
    return f"{'pdelab' if exported else thing.__module__}.{thing.__name__}"


@cache
def documented() -> dict[str, object]:
    """Address -> what the reference page describes."""
    found = {}
    for module, names in PLACE.findall(CHOSEN.read_text(encoding="utf-8")):
        things = public(importlib.import_module(module), names.split())
        found |= {address(thing): thing for thing in things.values()}
    return found


def entries(text: str) -> str:
    """The page with every line {api} replaced."""
    return PLACE.sub(lambda line: "\n".join(_module(line[1], line[2].split())), text)


def _module(name: str, chosen: list[str]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"### {name.removeprefix('pdelab.')}\n\n{prose(module.__doc__ or '', ())}\n"
    for thing in public(module, chosen).values():
        yield _entry("class" if inspect.isclass(thing) else "function", address(thing), thing)


def _entry(kind: str, name: str, thing) -> str:
    parts = [prose(inspect.getdoc(thing), _parameters(thing))]
    if kind == "class":
        parts += [_entry("method", key, method) for key, method in _methods(thing).items()]
    if pages := [_link(page) for page in pages_with().get(name, ())]:
        parts.append(f"Used on: {', '.join(pages)}.")
    fence = ":::::" if kind == "class" else "::::"  # a class holds its methods
    text = "\n".join(f"{part}\n" for part in parts)
    return f"{fence}{{py:{kind}}} {name}{_signature(thing)}\n{text}{fence}\n"


def _methods(cls: type) -> dict[str, object]:
    """The public methods that the class itself defines and explains; `forward` is told by the class."""
    own = {key: getattr(value, "__func__", value) for key, value in vars(cls).items() if callable(getattr(cls, key))}
    return {
        key: method
        for key, method in own.items()
        if not key.startswith("_") and key != "forward" and inspect.getdoc(method)
    }


def _link(page: str) -> str:
    part, _, name = page.rpartition("/")
    words = name.replace("_", " ")
    return f"{{doc}}`{words} ({part}) <{page}>`" if part else f"{{doc}}`{words} <{page}>`"


def _parameters(thing) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return ()


def _signature(thing) -> str:
    """Names and defaults; what the arguments are, the text says."""
    try:
        whole = inspect.signature(thing)
    except (TypeError, ValueError):
        return "()"
    bare = [
        one.replace(annotation=one.empty, default=_default(one.default))
        for one in whole.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return str(whole.replace(parameters=bare, return_annotation=whole.empty))


class _Word(str):
    __slots__ = ()
    __repr__ = str.__str__


def _default(value):
    if isinstance(value, Enum):
        return _Word(f"{type(value).__name__}.{value.name}")
    if value is inspect.Parameter.empty or isinstance(value, (bool, int, float, str, type(None), tuple)):
        return value
    if "FACTORY" in type(value).__name__:  # of a dataclass: made anew for each
        return _Word("…")
    return _Word(getattr(value, "__name__", f"{type(value).__name__}()"))


def prose(text: str, parameters: tuple[str, ...]) -> str:
    """Markdown of a docstring: paragraphs, arguments as a list, examples and aligned lines as code."""
    return "\n\n".join(_block(block, parameters) for block in re.split(r"\n\s*\n", text.strip("\n")))


def _block(block: str, parameters: tuple[str, ...]) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return f"```python\n{inspect.cleandoc(block)}\n```"
    if lines[0].startswith("|"):
        return block  # a table
    if any(re.search(r"\S {3,}\S", line) for line in lines):
        return f"```text\n{block}\n```"
    made: list[str] = []
    for line in lines:
        named = re.match(r"(\w+(?:, \w+)*): ", line)
        if named and set(named[1].split(", ")) <= set(parameters):
            names = ", ".join(f"`{name}`" for name in named[1].split(", "))
            made.append(f"- {names}: {line[named.end() :]}")
        elif made and not (made[-1].startswith("- ") and made[-1].endswith(".") and line[:1].isupper()):
            made[-1] += f" {line.strip()}"
        elif made:  # a sentence after the arguments
            made += ["", line.strip()]
        else:
            made.append(line.strip())
    first, rest = made[0], made[1:]
    blank = [] if first.startswith("- ") else [""]
    return "\n".join([_set(first), *blank, *(_set(line) for line in rest)])


def _set(line: str) -> str:
    item = re.match(r"- [^:]*: ", line)
    start = item.end() if item else 0
    return line[:start] + typeset(line[start:])


@cache
def pages_with() -> dict[str, tuple[str, ...]]:
    """Address -> the pages whose code uses it, chapters before evidence."""
    found: dict[str, list[str]] = {}
    paths = sorted((ROOT / "book").rglob("*.ipynb"), key=lambda path: (path.parent.name == "evidence", path))
    for path in paths:
        page = path.relative_to(ROOT / "book").with_suffix("").as_posix()
        for name in used_on(path):
            found.setdefault(name, []).append(page)
    return {name: tuple(pages) for name, pages in found.items()}


@cache
def used_on(path: Path) -> tuple[str, ...]:
    """The documented things that a notebook's code names, in alphabetical order."""
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    tree = ast.parse("\n".join(re.sub(r"^[%!].*", "", source, flags=re.MULTILINE) for source in cells))
    where: dict[str, str] = {}  # a name on the page -> what it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pdelab":
            where |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            where |= {one.asname or one.name: one.name for one in node.names if one.name.split(".")[0] == "pdelab"}
    of = {id(thing): name for name, thing in documented().items()}
    found = {of.get(id(thing)) for thing in map(_thing, _dotted(tree, where))}
    return tuple(sorted(found - {None}))


def _dotted(tree: ast.AST, where: dict[str, str]) -> set[str]:
    names = set(where.values())
    for node in ast.walk(tree):
        tail = []
        while isinstance(node, ast.Attribute):
            tail.insert(0, node.attr)
            node = node.value
        if tail and isinstance(node, ast.Name) and node.id in where:
            names.add(".".join([where[node.id], *tail]))
    return names


@cache
def _thing(dotted: str):
    """The object of this name, or None."""
    at, parts = pdelab, dotted.split(".")[1:]
    for part in parts:
        at = getattr(at, part, None)
    return at


def footer(path: Path) -> str:
    """A paragraph for the end of a page: what its code uses of the library, each with its place in the reference."""
    links = [f"{{py:obj}}`{name.rsplit('.', 1)[1]} <{name}>`" for name in used_on(path)]
    return f"**From the library on this page:** {', '.join(links)}." if links else ""
