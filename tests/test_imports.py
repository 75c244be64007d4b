"""Three rooms, one direction: import-linter holds the contracts; `import pdelab` stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

import pdelab

ROOT = Path(__file__).parents[1]


def test_every_contract_of_import_linter_is_kept():
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_types_of_the_core_agree():
    command = [str(Path(sys.executable).parent / "basedpyright")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def modules_of(folder: str) -> list[str]:
    paths = (ROOT / folder).rglob("*.py")
    return sorted({path.stem for path in paths if path.name != "__init__.py"})


def test_no_module_has_the_name_of_something_exported():
    assert not set(pdelab._EXPORTS) & set(modules_of("pdelab"))
    assert all(getattr(pdelab, name) is not None for name in pdelab.__all__)


def loaded_by(code: str, *names: str) -> list[str]:
    """Which of the packages a fresh process has loaded after the code."""
    asked = f"import sys; {code}; print(*(name for name in {names} if name in sys.modules))"
    return subprocess.check_output([sys.executable, "-c", asked], text=True).split()


def test_importing_pdelab_loads_neither_torch_nor_matplotlib():
    heavy = ("torch", "matplotlib", "ipywidgets", "scipy", "sklearn", "pooch", "pydantic", "pdebook")
    assert not loaded_by("import pdelab", *heavy)


@pytest.mark.parametrize("name", modules_of("book/pdebook/ledger"))
def test_a_module_of_the_ledger_loads_no_torch(name):
    assert not loaded_by(f"import pdebook.ledger.{name}", "torch")


READING = ("--help", "run --help", "probe --help", "claims", "results", "results heat_ends", "data list")


@pytest.mark.parametrize("words", READING)
def test_a_command_that_only_reads_loads_no_torch(words):
    code = (
        f"from click.testing import CliRunner; from pdebook.cli import main; CliRunner().invoke(main, {words.split()})"
    )
    assert loaded_by(code, "torch", "pdebook.cli") == ["pdebook.cli"]


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(pdelab, "no_such_thing")
