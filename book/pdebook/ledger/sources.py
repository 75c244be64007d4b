"""Which experiments there are, and on which line each is defined: read from the sources, nothing is imported.

An experiment is a function under @experiment("NAME", …) or an assignment run = attack("NAME", …), so that a search for
"NAME" leads to it.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """Where an experiment is defined: the module, the name in it, and the line of the definition."""

    module: str
    function: str
    line: int

    @property
    def place(self) -> str:
        """The file and the name in it, as a test is named: book/pdebook/chapters/scheme/attack.py::run."""
        return f"book/{self.module.replace('.', '/')}.py::{self.function}"


@cache
def experiments() -> dict[str, Source]:
    """NAME -> its Source, chapter by chapter."""
    found: dict[str, Source] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)

        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for call in _calls(node):
                function = node.name if isinstance(node, ast.FunctionDef) else node.targets[0].id
                found[call.args[0].value] = Source(module, function, node.lineno)
    return found


def _calls(node: ast.stmt) -> list[ast.Call]:
    """The calls experiment("NAME", …) and attack("NAME", …) that make an experiment of a definition."""
    if isinstance(node, ast.FunctionDef):
        made = node.decorator_list
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        made = [node.value]
    else:
        made = []
    return [call for call in made if isinstance(call, ast.Call) and _names_one(call)]


def _names_one(call: ast.Call) -> bool:
    known = isinstance(call.func, ast.Name) and call.func.id in ("experiment", "attack")
    return known and bool(call.args) and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
