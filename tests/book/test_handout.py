"""What a student is handed runs from an empty folder with the wheel alone; only what is theirs to write fails."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from html import unescape

import handout
import nbformat
import pytest
from book_extension import exercise_tables
from editions import edition
from exercises import BOOK, ROOT, exercises, read_source, tagged
from grading.kit import catalogue, facts, make

PAGES = ("first_look", "stabilization")

RUN = """
import sys, nbformat
from nbclient import NotebookClient
for name in sys.argv[1:]:
    notebook = nbformat.read(name, 4)
    notebook.cells.append(nbformat.v4.new_code_cell("import pdebook; print(pdelab.__file__, pdebook.__file__)"))
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    nbformat.write(notebook, name)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The hand-out in an empty folder, run by a fresh Python that has the wheel and of this one only the dependencies.

    A .pth file names this environment's packages; what is installed in it for editing is found by .pth files of its
    own, which are not read there, so that pdelab and pdebook come from the wheel or not at all.
    """
    folder, home = tmp_path_factory.mktemp("student"), tmp_path_factory.mktemp("fresh")
    handout.write(folder)
    for name in PAGES:
        nbformat.write(edition(name, "student"), folder / f"{name}.ipynb")
    venv.create(home / "env", with_pip=False, symlinks=os.name != "nt")
    python = home / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, folder / handout.WHEEL], check=True)
    (site,) = (home / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JUPYTER"))}
    names = ["check_setup.ipynb", *(f"{name}.ipynb" for name in PAGES)]
    subprocess.run([python, "-c", RUN, *names], cwd=folder, env=clean, check=True, timeout=400)
    return {name.removesuffix(".ipynb"): nbformat.read(folder / name, 4) for name in names}, site, folder


def failed(notebook):
    """(cell, name of the error) of each cell that stopped."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell, out.ename) for cell in code for out in cell.outputs if out.output_type == "error"]


def said(cell):
    return "".join(out.get("text", "") for out in cell.outputs)


def test_the_package_comes_from_the_wheel(ran):
    notebooks, site, _ = ran
    for notebook in notebooks.values():
        assert said(notebook.cells[-1]).split() == [
            str(site / "pdelab" / "__init__.py"),
            str(site / "pdebook" / "__init__.py"),
        ]


def test_check_setup_says_that_all_is_ready(ran):
    notebook = ran[0]["check_setup"]
    assert not failed(notebook)
    assert said(notebook.cells[-2]).count("✓") == 2
    assert said(notebook.cells[-2]).endswith(f"pdelab {handout.VERSION}.\n")


@pytest.mark.parametrize("name", PAGES)
def test_only_the_stubs_fail(ran, name):
    notebook = ran[0][name]
    coded = sum(one.coded for one in exercises(read_source(BOOK / f"{name}.md"), name))
    assert coded
    assert [(tagged(cell, "check"), error) for cell, error in failed(notebook)] == [
        (True, "NotImplementedError")
    ] * coded
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert (first.source, said(first)) == (handout.FIRST, "")


def test_the_folder_holds_what_start_md_names(ran):
    text = (ran[2] / "START.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"[\w.-]+\.(?:txt|ipynb|whl)", text)):
        assert (ran[2] / name).exists(), name
    pins = (ran[2] / "requirements.txt").read_text().splitlines()
    assert pins[0] == f"./{handout.WHEEL}"
    assert {re.split("[<>=]", line)[0] for line in handout.PROJECT["dependencies"]} <= {
        line.partition("==")[0] for line in pins
    }


def test_the_wheel_has_both_licences_and_no_chapter(ran):
    with zipfile.ZipFile(ran[2] / handout.WHEEL) as wheel:
        names = wheel.namelist()
        (about,) = [name for name in names if name.endswith("/METADATA")]
        assert "License-Expression: MIT AND CC-BY-4.0\n" in wheel.read(about).decode()
    assert {"LICENSE", "LICENSE-TEXT"} == {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert not [name for name in names if name.endswith((".md", ".ipynb"))]


def first_cell(version):
    """What the first cell prints, and its error, where pdelab has this version; None: where there is none."""
    code = "import sys, types\n"
    if version is None:
        code += "sys.modules['pdelab'] = None\n"
    else:
        code += f"sys.modules['pdelab'] = types.SimpleNamespace(__version__={version!r})\n"
    code += f"try:\n    exec({handout.FIRST!r})\nexcept ModuleNotFoundError as e:\n    print(*e._render_traceback_())"
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_first_cell_says_what_to_install_and_when_versions_differ():
    assert first_cell(handout.VERSION) == ""
    assert f"made with pdelab {handout.VERSION}, and 0.0.1 is installed" in first_cell("0.0.1")
    missing = first_cell(None)
    assert missing.count("\n") == 1
    assert f"%pip install {handout.WHEEL}" in missing


def test_a_student_notebook_is_stamped():
    held = edition("first_look", "student").metadata["pdelab"]
    assert held["version"] == handout.VERSION
    assert re.match(r"[0-9a-f]{12}|unknown", held["commit"])
    assert "pdelab" not in json.dumps(edition("first_look", "instructor").metadata)


# The page for instructors


HTML = ROOT / "_build" / "html" / "book" / "instructors.html"


def test_the_page_lists_every_exercise_and_every_aim():
    page = HTML.read_text(encoding="utf-8")
    shown = re.findall(r'<span class="pre">(ex-[\w-]+)</span></code></p></td>', page)
    assert sorted(shown) == sorted(catalogue())
    words = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", page))).replace("’", "'")
    for aims in facts(BOOK)["aims"].values():
        assert not [aim for aim in aims.values() if aim not in words]


def test_a_row_has_level_time_points_aim_and_kind():
    (row,) = [line for line in exercise_tables().splitlines() if "`ex-first-rate`" in line]
    cells = row.replace("\N{NO-BREAK SPACE}", " ").strip("| ").split(" | ")
    assert cells[0] == "{ref}`One end of each kind <ex-first-rate>`"
    assert cells[2:] == ["★★", "20 min", "4", "1", "code"]


def test_the_commands_of_the_page_exist_and_print_what_it_shows():
    """make knows them, and the words that the page shows are those of the tools."""
    text = (BOOK / "instructors.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"editions", "assignment", "grade", "figures"} <= set(re.findall(r"make (\w+)", text)) <= targets
    kit = make("hw1", re.search(r'EXERCISES="(.*?)"', text)[1].split(), "0")
    for one in kit.exercises:
        assert f"\n{one.label}: {one.kind}, {one.points:g} points\n" in text
    coded = sum(one.coded for one in kit.exercises)
    assert f"{len(kit.exercises)} exercises, {coded} of them graded by the machine, {kit.points:g} points." in text


def test_every_chapter_is_in_the_plan_of_a_term_or_named_for_seminars():
    text = (BOOK / "instructors.md").read_text(encoding="utf-8")
    plans = text[text.index("## Plans") : text.index("## What students ask")]
    assert set(facts(BOOK)["aims"]) <= set(re.findall(r"\{doc\}`(\w+)`", plans))
