"""The editions of every chapter: one kernel a chapter runs the solutions, the stubs and the wrong answers."""

import ast
import os
import re
import subprocess
import sys

import nbformat
import pytest
from editions import EDITIONS, edition
from exercises import (
    BOOK,
    ROOT,
    chapters,
    code_folded,
    exercises,
    instructor_edition,
    page_name,
    read_source,
    says,
    setup_cells,
    sources,
    stub,
    student_edition,
    tagged,
)
from nbclient import NotebookClient

CHAPTERS = {path.stem: exercises(read_source(path), path.stem) for path in chapters()}
CODED = {name: [e for e in found if e.coded] for name, found in CHAPTERS.items() if any(e.coded for e in found)}


def run(cells):
    """Run code in one kernel, going on after errors; for each cell, its first error as (name, message) or None."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", allow_errors=True, extra_arguments=["--log-level=ERROR"]
    ).execute()
    errors = [[o for o in cell.outputs if o.output_type == "error"] for cell in notebook.cells]
    return [(found[0].ename, found[0].evalue) if found else None for found in errors]


@pytest.fixture(scope="module", params=CODED)
def attempts(request):
    """(exercise, kind, expected words, error at the check) for every answer of a chapter, good and bad."""
    name = request.param
    cells = [cell.source for cell in setup_cells(read_source(BOOK / f"{name}.md"))]
    start, plan = len(cells), []
    for exercise in CODED[name]:
        answers = [("solution", "", [c.source for c in exercise.solutions if c.cell_type == "code"])]
        answers.append(("stub", "", [stub(source) for source in answers[0][2]]))
        answers += [("wrong", says(c), [*answers[0][2], c.source]) for c in exercise.wrong]
        for kind, words, sources_ in answers:
            cells += ["\n\n".join(sources_), "\n\n".join(c.source for c in exercise.checks)]
            plan.append((exercise.label, kind, words))
    errors = run(cells)
    assert errors[:start] == [None] * start, "the setup cells of the chapter do not run by themselves"
    assert errors[start::2] == [None] * len(plan), "an answer must be a definition that runs"
    return [(*planned, error) for planned, error in zip(plan, errors[start + 1 :: 2], strict=True)]


def test_some_chapter_has_an_exercise_in_code():
    assert CODED


def test_solutions_pass_their_checks(attempts):
    assert not [a for a in attempts if a[1] == "solution" and a[3] is not None]


def test_stubs_fail_with_not_implemented(attempts):
    assert all(error[0] == "NotImplementedError" for _, kind, _, error in attempts if kind == "stub")


def test_every_wrong_answer_is_caught_with_words_that_help(attempts):
    wrong = [(label, words, error) for label, kind, words, error in attempts if kind == "wrong"]
    assert wrong
    for label, words, error in wrong:
        assert error is not None, f"{label}: the check let the wrong answer pass that should hear '{words}'"
        assert error[0] == "NotYet"
        assert words in error[1], f"{label}: '{words}' is not in the message: {error[1]}"


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_student_edition_leaks_no_solution(name):
    source = read_source(BOOK / f"{name}.md")
    stored = nbformat.read(BOOK / f"{name}.ipynb", 4)
    text = "\n".join(cell.source for cell in student_edition(stored).cells)
    hidden = [cell for cell in source.cells if tagged(cell, "solution") or tagged(cell, "wrong")]
    public = {line.strip() for cell in source.cells if cell not in hidden for line in cell.source.splitlines()}
    for cell in hidden:
        kept = stub(cell.source) if cell.cell_type == "code" else ""
        secret = {line.strip() for line in cell.source.splitlines() if line.strip()} - public
        secret -= {line.strip() for line in kept.splitlines()}
        assert secret, "a solution with nothing to hide"
        assert not secret & {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_student_edition_differs_only_at_its_exercises(name):
    stored = nbformat.read(BOOK / f"{name}.ipynb", 4)
    for mine, theirs in zip(stored.cells, student_edition(stored).cells, strict=True):
        if tagged(mine, "solution"):
            assert mine.source != theirs.source
        elif tagged(mine, "check"):
            assert (mine.source, theirs.outputs) == (theirs.source, [])
        else:
            assert mine == theirs


def test_first_look_handed_out_fails_at_its_stubs_and_nowhere_else():
    edition = student_edition(instructor_edition(read_source(BOOK / "first_look.md")))
    code = [cell for cell in edition.cells if cell.cell_type == "code"]
    errors = run([cell.source for cell in code])
    failed = [(tagged(cell, "check"), error[0]) for cell, error in zip(code, errors, strict=True) if error]
    assert failed == [(True, "NotImplementedError")] * 2


@pytest.mark.parametrize("name", [page_name(path) for path in sources()])
@pytest.mark.parametrize("which", EDITIONS)
def test_notebooks_to_work_in_are_plain_markdown(name, which):
    cells = edition(name, which).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert not re.findall(r"\{[a-z:]+\}`|^[>\s]*(?:`{3,}|:{3,})\{.*|\[\^|^\([\w-]+\)=", text, re.MULTILINE)
    assert all(len(formula.splitlines()) == 1 for formula in re.findall(r"\$\$.*?\$\$", text, re.DOTALL))
    for cell in cells:
        if cell.cell_type == "code":
            folded = code_folded(cell) or tagged(cell, "check")
            assert cell.metadata.get("jupyter", {}).get("source_hidden", False) == folded
            assert "<svg" not in str(cell.outputs)  # a viewer that does not trust the notebook shows its letters alone


@pytest.mark.parametrize("name", CHAPTERS)
def test_an_exercise_says_its_level_and_its_minutes(name):
    for title in re.findall(r"^`+\{exercise\} (.*)$", (BOOK / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(r", ★{1,4}, (\d+ min|open)", title), title


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_stub_says_what_goes_in_and_out_and_not_how(name):
    """Types, shapes and units: no formula, or the docstring would be the answer."""
    for cell in read_source(BOOK / f"{name}.md").cells:
        if tagged(cell, "solution") and cell.cell_type == "code":
            for function in ast.parse(cell.source).body:
                words = ast.get_docstring(function) or ""
                assert not re.search(r"[√²³^*]|\w / \w|[^=≤≥]= *[\w(]+ *[-+/·]", words), (function.name, words)


QUESTION = "```{exercise}\n:label: ex-a\nHow?\n```"


def chapter(*cells):
    made = [nbformat.v4.new_markdown_cell(QUESTION)]
    for tag, source in cells:
        cell = nbformat.v4.new_code_cell(source)
        cell.metadata["tags"] = [tag]
        made.append(cell)
    return nbformat.v4.new_notebook(cells=made)


GOOD = ("solution", "def f():\n    return 1")
CHECK = ("check", "f()")
WRONG = ("wrong", "# says: no\ndef f():\n    return 2")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([CHECK], "no cell tagged 'solution'"),
        ([GOOD, WRONG, WRONG], "needs a cell tagged 'check'"),
        ([GOOD, CHECK, WRONG], "at least two"),
        ([GOOD, CHECK, WRONG, ("wrong", "def f(): pass")], "must start with"),
        ([GOOD, CHECK, WRONG, ("wrong", "# says:\ndef f(): pass")], "must start with"),
        ([("solution", "# nothing"), CHECK, WRONG, WRONG], "functions only"),
        ([("solution", "%time f()"), CHECK, WRONG, WRONG], "not plain Python"),
        ([("solution", "x = 1"), CHECK, WRONG, WRONG], "functions only"),
    ],
)
def test_an_incomplete_exercise_is_refused_by_name(cells, words):
    with pytest.raises(ValueError, match=f"chapter, exercise ex-a.*{words}"):
        exercises(chapter(*cells), "chapter")


def test_a_setting_leaves_the_solutions_out_of_the_pages(tmp_path):
    build = [sys.executable, "tools/build_book.py", "--output", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env=os.environ | {"BOOK_SOLUTIONS": "left out"}, check=True, capture_output=True)
    page = (tmp_path / "_build" / "html" / "book" / "first_look.html").read_text(encoding="utf-8")
    assert "One end of each kind" in page
    assert "Show the solution" not in page
    assert '<span class="n">ghosts</span>' in page  # the check stays
    assert '<span class="nf">decay_rate</span>' not in page  # and the definition does not


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path):
    build = [sys.executable, "tools/build_book.py", "--output", str(tmp_path)]
    run = subprocess.run(build, cwd=ROOT, env=os.environ | {"BOOK_SOLUTIONS": "maybe"}, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "BOOK_SOLUTIONS must be one of: behind a click, left out; not 'maybe'.\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```{exercise}\nHow?\n```", "a :label:"),
        (QUESTION + "\n" + QUESTION, "a cell of its own"),
        ("```{solution} ex-a\nSo.\n```", "needs the tag 'solution'"),
    ],
)
def test_exercises_that_would_be_overlooked_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        exercises(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]), "chapter")


@pytest.mark.parametrize(
    "solution",
    [
        'def f(x): "doc"; return SECRET',
        'def f(x):\n    """doc"""; return SECRET',
        "def f(x):\n    # SECRET\n    return SECRET",
        "@cache\ndef f(\n    x,\n): return SECRET",
        "def f(x):\n    @cache\n    def g(): return SECRET\n    return g()",
    ],
)
def test_a_stub_compiles_and_hides_the_body_however_it_is_written(solution):
    made = stub(solution)
    compile(made, "stub", "exec")
    assert "SECRET" not in made
    assert made.startswith("@cache" if solution.startswith("@") else "def f(x):")
