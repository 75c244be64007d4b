"""One direction: a file imports only from files above it; `import pdelab` stays cheap."""

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import pdelab

PACKAGE = Path(pdelab.__file__).parent

# top to bottom; x.* stands for all files of a folder, which may import each other (Python itself refuses a circle)
ORDER = [
    "seeds",
    "field",
    "terms.base",
    "terms.interaction",
    "terms.reaction",
    "terms.diffusion",
    "terms.stabilization",
    "terms.coupling",
    "equation",
    "integrators",
    "solver",
    "models",
    "metrics.*",
    "results",
    "page",
    "datasets.*",
    "checkpoints",
    "training",
    "experiments.*",
    "claims",
    "rules",
    "ledger",
    "errata",
    "plots",
    "interactive",
    "check",
    "cli",
]


def modules():
    paths = [p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"]
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in paths}


def place(name):
    return next((i for i, pattern in enumerate(ORDER) if fnmatchcase(name, pattern)), None)


def imported(text):
    """The modules of pdelab that a file's text imports from; `import pdelab` by itself loads none of them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "pdelab":
            yield from (pdelab._EXPORTS.get(alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pdelab."):
            module = node.module.removeprefix("pdelab.")
            known = modules()
            yield from (f"{module}.{a.name}" if f"{module}.{a.name}" in known else module for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("pdelab.") for a in node.names if a.name.startswith("pdelab."))


def test_every_module_has_its_place_and_every_place_a_module():
    found = modules()
    assert not [name for name in found if place(name) is None]
    assert not [pattern for pattern in ORDER if not any(fnmatchcase(name, pattern) for name in found)]


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_file_imports_only_from_files_above_it(name):
    folder = ORDER[place(name)].endswith("*")
    allowed = {other for other in modules() if place(other) < place(name) or (folder and place(other) == place(name))}
    allowed |= {other.rpartition(".")[0] for other in allowed}  # a folder's own functions, such as datasets.load
    assert set(imported(modules()[name].read_text(encoding="utf-8"))) - {"__version__"} <= allowed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from pdelab.field import Field, laplacian", ["field", "field"]),
        ("from pdelab import solve", ["solver"]),
        ("from pdelab.terms import diffusion", ["terms.diffusion"]),
        ("import pdelab.terms.diffusion", ["terms.diffusion"]),
        ("import torch, pdelab", []),
    ],
)
def test_an_import_is_seen_however_it_is_written(text, names):
    assert list(imported(text)) == names


def test_no_module_has_the_name_of_something_exported():
    assert not set(pdelab._EXPORTS) & {name.split(".")[-1] for name in modules()}
    assert all(getattr(pdelab, name) is not None for name in pdelab.__all__)


def test_importing_pdelab_loads_neither_torch_nor_matplotlib():
    heavy = ("torch", "matplotlib", "ipywidgets", "scipy", "sklearn", "pooch")
    code = f"import sys, pdelab; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(pdelab, "no_such_thing")
