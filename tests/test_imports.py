"""One direction: a file imports only from files above it; `import pdelab` stays cheap."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pdelab"

# top to bottom; a folder stands for its files
ORDER = [
    "field",
    "terms.base",
    "terms.diffusion",
    "integrators",
    "solver",
    "results",
    "experiments.heat_ends",
    "experiments.start_tokens",
    "ledger",
    "plots",
    "interactive",
    "check",
]


def modules():
    paths = [p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"]
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in paths}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pdelab."):
            yield node.module.removeprefix("pdelab.")


def test_every_module_has_its_place():
    assert sorted(modules()) == sorted(ORDER)


def test_a_file_imports_only_from_files_above_it():
    for name, path in modules().items():
        below = [other for other in imported(path) if ORDER.index(other) >= ORDER.index(name)]
        assert not below, f"{name} imports {below}"


def test_no_module_has_the_name_of_something_exported():
    import pdelab

    assert not set(pdelab._EXPORTS) & {name.split(".")[-1] for name in ORDER}
    assert all(getattr(pdelab, name) is not None for name in pdelab.__all__)


def test_importing_pdelab_loads_neither_torch_nor_matplotlib():
    code = "import sys, pdelab; print([m for m in ('torch', 'matplotlib', 'ipywidgets', 'scipy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    import pdelab

    assert not hasattr(pdelab, "no_such_thing")
