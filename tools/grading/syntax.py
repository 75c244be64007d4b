"""What Python code says, without running it: its functions, their shapes, and what its names stand for."""

import ast
import copy
from collections.abc import Sequence

Cells = Sequence[tuple[int, str]]  # number and code


def parsed(sources: Sequence[str]) -> list[ast.stmt]:
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


def aliases(tree: ast.Module) -> dict[str, str]:
    """What a name stands for, of imports and of other names: L -> laws, b -> laws.basin_edge."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
            found |= {one.asname or one.name: module + one.name for one in node.names if one.asname or module}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            found |= {one.id: whole(node.value, found) for one in node.targets if isinstance(one, ast.Name)}
    return found


def whole(node: ast.expr, known: dict[str, str]) -> str:
    """The name as it would be without aliases."""
    first, dot, rest = ast.unparse(node).partition(".")
    return known.get(first, first) + dot + rest


def _plain_value(node: ast.stmt) -> bool:
    """x = 3 or f = lambda x: x, and nothing that runs."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return isinstance(node.value, ast.Lambda) or not any(isinstance(one, ast.Call) for one in ast.walk(node))


def functions(cells: Cells) -> list[ast.FunctionDef]:
    return [node for _, source in cells for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def defined(cells: Cells) -> set[str]:
    return {node.name for node in functions(cells)}


def same_name(held: str, wanted: str) -> bool:
    """Whether the code's name is the one that is wanted, as maps.two_cycle or two_cycle alone."""
    return held == wanted or held == wanted.rpartition(".")[2] or held.endswith(f".{wanted}")


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def without_magics(source: str) -> str:
    """Python alone: lines for IPython or the shell are left out, and a cell in another language is empty.

    >>> without_magics("%matplotlib inline\\nx = 1\\n!pip install y")
    '\\nx = 1\\n'
    """
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%"):
        source = rest if first.split()[0] in ("%%time", "%%timeit", "%%capture") else ""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))
