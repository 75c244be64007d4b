"""The project's own promises: set-up with clear words, one version, exact pins, nothing foreign in its files."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest
import yaml
from packaging.requirements import Requirement

import pdelab

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
MESSAGE = re.compile(r"^pdelab: .+\.$")


@pytest.fixture
def bare(tmp_path):
    """A project folder and a PATH with the shell's own tools and no Python."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "grep", "tail", "mkdir", "chmod", "cat", "rm"):
        (tools / name).symlink_to(shutil.which(name))
    return tmp_path


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def set_up(folder, **environment):
    run = subprocess.run(
        [shutil.which("sh"), "tools/setup.sh"],
        cwd=folder,
        env={"PATH": str(folder / "bin")} | environment,
        capture_output=True,
        text=True,
    )
    said = [line for line in run.stderr.splitlines() if line.strip()]
    return run.returncode, said


def test_without_python_one_sentence_says_so(bare):
    code, said = set_up(bare)
    assert code == 1
    assert len(said) == 1
    assert MESSAGE.match(said[0])
    assert "no Python was found; install Python 3.11 or later" in said[0]
    assert "python9" in set_up(bare, PYTHON="python9")[1][0]


def test_a_python_that_is_too_old_is_named(bare):
    script(bare / "bin" / "python3", 'case "$1" in --version) echo "Python 3.8.10";; *) exit 1;; esac')
    code, said = set_up(bare)
    assert code == 1
    assert len(said) == 1
    assert MESSAGE.match(said[0])
    assert "Python 3.8.10 is too old" in said[0]


FAKE_VENV = """case "$1 $2" in
  "-m venv") mkdir -p .venv/bin; printf '#!/bin/sh\\n%s\\n' '{pip}' > .venv/bin/python; chmod +x .venv/bin/python;;
  "--version ") echo "Python 3.12.1";;
esac"""


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        ("ERROR: Failed to establish a new connection: Name or service not known", "check the network connection"),
        ("ERROR: No space left on device", "could not be installed: ERROR: No space left on device"),
        ("ERROR: ResolutionImpossible: for help visit the documentation", "could not be installed"),
    ],
)
def test_a_failed_download_is_one_sentence_and_the_rest_is_in_a_log(bare, complaint, words):
    pip = f'case "$1" in -c) exit 0;; esac; echo "{complaint}" >\\&2; exit 1'.replace("\\&", "&")
    script(bare / "bin" / "python3", FAKE_VENV.format(pip=pip))
    code, said = set_up(bare)
    assert code == 1
    assert len(said) == 1
    assert MESSAGE.match(said[0])
    assert words in said[0]
    assert complaint in (bare / ".venv" / "setup.log").read_text()
    assert not (bare / ".venv" / "ready").exists()


def test_an_environment_without_pip_is_made_anew(bare):
    script(bare / "bin" / "python3", FAKE_VENV.format(pip="exit 0"))
    (bare / ".venv" / "bin").mkdir(parents=True)
    script(bare / ".venv" / "bin" / "python", 'case "$1" in -c) exit 0;; *) exit 1;; esac')
    assert set_up(bare) == (0, [])


def test_python_without_venv_is_told_what_to_install(bare):
    script(bare / "bin" / "python3", 'case "$1 $2" in "-m venv") exit 1;; "--version ") echo "Python 3.12.1";; esac')
    assert "install its venv module" in set_up(bare)[1][0]


def test_a_finished_set_up_leaves_its_stamp(bare):
    script(bare / "bin" / "python3", FAKE_VENV.format(pip="exit 0"))
    assert set_up(bare) == (0, [])
    assert (bare / ".venv" / "ready").read_text().strip() == str(bare.resolve())


def test_a_folder_that_was_moved_is_set_up_again(bare):
    script(bare / "bin" / "python3", FAKE_VENV.format(pip="exit 0"))
    set_up(bare)
    (bare / ".venv" / "ready").write_text("/somewhere/else\n")
    (bare / ".venv" / "old").touch()
    script(bare / "bin" / "python3", "rm -rf .venv; " + FAKE_VENV.format(pip="exit 0"))
    assert set_up(bare) == (0, [])
    assert not (bare / ".venv" / "old").exists()


def test_a_python_that_does_not_run_is_named(bare):
    script(bare / "bin" / "python 3.12", "echo not installed >&2; exit 127")
    code, said = set_up(bare, PYTHON="python 3.12")
    assert code == 1
    assert MESSAGE.match(said[0])
    assert "python 3.12 does not run" in said[0]


def test_the_lock_is_exact_and_names_no_cuda():
    pins = [line for line in LOCK if line and not line.startswith("#")]
    assert all(re.match(r"^[a-z0-9._-]+==[\w.!]+( ;.*)?$", line) for line in pins)
    assert "torch==2.13.0" in pins
    assert not [line for line in pins if re.match(r"nvidia|cuda|triton", line)]


def test_every_extra_is_installed_in_the_range_that_readers_get():
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {"book", "test"} <= set(extras)
    for text in [*PYPROJECT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(distribution(requirement.name).version), text


def test_versions_and_names_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PYPROJECT["project"]["version"] == distribution("pdelab").version
    assert pdelab.__version__ == citation["version"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == f"{citation['version']} ({citation['date-released']})"
    assert PYPROJECT["project"]["license"] == " AND ".join(citation["license"]) == "MIT AND CC-BY-4.0"
    assert PYPROJECT["project"]["license-files"] == ["LICENSE", "LICENSE-TEXT"]
    assert (ROOT / "LICENSE").exists()
    assert "CC BY 4.0" in (ROOT / "LICENSE-TEXT").read_text()


def test_make_help_lists_every_command_of_the_readme():
    listed = set(
        re.findall(r"^  make (\w+)", subprocess.check_output(["make", "help"], cwd=ROOT, text=True), re.MULTILINE)
    )
    named = set(re.findall(r"(?:^|`)make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"book", "test", "lab", "notebooks", "clean", "help"} <= listed
    assert named <= listed


SOURCES = [*(ROOT / "pdelab").rglob("*.py"), *(ROOT / "book" / "pdebook").rglob("*.py")]
NEEDS_EXTRA = {ROOT / "book" / "pdebook" / "evidence" / "cluster.py": "cluster"}


def imported(nodes):
    """The modules, and the names taken from them, which may be modules too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def plain(requirements):
    return {Requirement(text).name.lower().replace("_", "-") for text in requirements}


def test_everything_that_is_imported_is_declared():
    """A package that comes only as a dependency of another may be gone with its next release."""
    declared, known = plain(PYPROJECT["project"]["dependencies"]), packages_distributions()
    for path in SOURCES:
        extra = PYPROJECT["project"]["optional-dependencies"].get(NEEDS_EXTRA.get(path), ())
        names = {name.partition(".")[0] for name in imported(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))}
        for name in names - sys.stdlib_module_names - {"pdelab", "pdebook"}:
            assert plain(known[name]) & (declared | plain(extra)), f"{path.name}: {name}"


def test_a_file_that_needs_an_extra_is_imported_by_functions_alone():
    """Else no command would begin without the extra."""
    late = {f"pdebook.evidence.{path.stem}" for path in NEEDS_EXTRA}
    everywhere = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    assert late <= {name for tree in everywhere for name in imported(ast.walk(tree))}
    assert not late & {name for tree in everywhere for name in imported(tree.body)}


def test_the_project_speaks_of_itself_alone():
    """No path of one machine, in any file that git knows."""
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    own = re.compile(r"(^|[\s\"'(=])/(home|root|Users|work)/")
    for name in filter(None, files):
        text = (ROOT / name).read_text(encoding="utf-8", errors="ignore") if (ROOT / name).exists() else ""
        assert not own.search(text), name


def test_ci_runs_everything_and_forgives_nothing():
    text = (ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in text
    assert "export CI=true" in text
    assert text.rstrip().endswith("make test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(("status", "written"), [("OK", 1), ("TESTS_FAILED", 1), ("INTERRUPTED", 0)])
def test_findings_are_recorded_by_tests_that_ran_to_their_end(monkeypatch, status, written):
    record = []
    monkeypatch.setattr(conftest, "record", lambda *found: record.append(found))
    option = SimpleNamespace(record_claims=True)
    config = SimpleNamespace(option=option, findings={"X-1": {"test": {"printed_holds"}}}, skipped=[])
    conftest.pytest_sessionfinish(SimpleNamespace(config=config), pytest.ExitCode[status])
    assert len(record) == written


def test_one_image_serves_devcontainer_binder_and_grading():
    """Binder takes the root's Dockerfile unless there is a folder for it."""
    files = set(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n"))
    assert [name for name in files if name.endswith("Dockerfile")] == ["Dockerfile"]
    assert not [name for name in files if name.startswith(("binder/", ".binder/"))]
    folder = ROOT / ".devcontainer"
    given = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    assert (folder / given["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"WORKDIR {given['workspaceFolder']}\n" in text
    copied = " ".join(re.findall(r"^COPY --chown=reader (.*) \S+$", text, re.MULTILINE)).split()
    assert "requirements.lock" in copied
    assert all((ROOT / name).exists() for name in copied)


def test_publishing_leaves_solutions_out_where_it_is_asked_to():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["test"]["steps"]
    does = [step.get("run") or step["uses"].partition("@")[0] for step in steps]
    tests, build = does.index("bash .ci/run"), does.index("make book")
    assert tests < build < does.index("actions/upload-pages-artifact")
    assert steps[build]["env"] == {"BOOK_SOLUTIONS": "${{ vars.BOOK_SOLUTIONS }}"}
    assert steps[build]["if"] == "vars.BOOK_SOLUTIONS != ''"
