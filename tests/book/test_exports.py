"""Assignments for nbgrader and otter: the form that their documents ask for, and nothing of a solution outside it.

And private exercises, which are tried before they are handed out.
"""

import ast
import dataclasses
import re
import shutil

import assignment
import pytest
import yaml
from grading.kit import Kit, make

from pdebook import check

LABELS = ["ex-first-rate", "ex-first-maximum", "ex-sb-cycle"]
NBGRADER = {"schema_version", "grade", "solution", "locked", "task", "grade_id", "points"}  # of its schema 3


@pytest.fixture(scope="module")
def kit():
    return make("hw1", LABELS, "0")


@pytest.fixture(scope="module")
def whole():
    return make("all", ["first_look", "stabilization", "interaction", "diffusion"], "0")


def test_nbgrader_finds_metadata_of_its_schema(whole):
    ids, points = [], 0
    for cell in assignment.for_nbgrader(whole).cells:
        if not (mark := cell.metadata.get("nbgrader")):
            continue
        assert set(mark) <= NBGRADER
        assert mark["schema_version"] == 3
        assert all(isinstance(mark[key], bool) for key in ("grade", "solution", "locked", "task"))
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", mark["grade_id"])
        assert ("points" in mark) == mark["grade"]
        assert cell.cell_type == "code" or (mark["grade"] and mark["solution"])  # markdown: both or refused
        ids.append(mark["grade_id"])
        points += mark.get("points", 0)
    assert len(set(ids)) == len(ids) > len(whole.exercises)
    assert points == pytest.approx(whole.points)


def outside(source, begin, end):
    """What is left of a cell when all between the marks is taken out, and what is taken out."""
    inside = re.findall(rf"^ *{begin}\n(.*?)^ *{end}$", source, re.DOTALL | re.MULTILINE)
    return re.sub(rf"^( *){begin}\n.*?^ *{end}$", r"\1...", source, flags=re.DOTALL | re.MULTILINE), inside


@pytest.mark.parametrize(
    ("export", "begin", "end"),
    [
        (assignment.for_nbgrader, "### BEGIN SOLUTION", "### END SOLUTION"),
        (assignment.for_otter, "# BEGIN SOLUTION", "# END SOLUTION"),
    ],
)
def test_what_is_taken_out_of_an_answer_is_the_body_of_its_functions(whole, export, begin, end):
    answers = [cell for cell in export(whole).cells if "answer" in cell.metadata.get("tags", [])]
    coded = [one for one in whole.exercises if one.coded]
    assert len(answers) == len(coded)
    for cell, one in zip(answers, coded, strict=True):
        ast.parse(cell.source)
        left, inside = outside(cell.source, begin, end)
        assert len(inside) == len(one.names)
        bodies = ast.parse(left).body
        assert [node.name for node in bodies] == one.names
        for node in bodies:
            assert len(node.body) == 1 + (ast.get_docstring(node) is not None)


def test_otter_finds_its_blocks_one_in_another(kit):
    """Raw cells open and close in order; a question has its name and points, and is by hand where it asks for words."""
    cells = assignment.for_otter(kit).cells
    first, *_ = cells
    assert first.cell_type == "raw"
    assert first.source.startswith("# ASSIGNMENT CONFIG\n")
    assert yaml.safe_load(first.source) == {"name": "hw1", "tests": {"ok_format": False}}
    opened, questions, held = [], [], []
    for cell in cells[1:]:
        if cell.cell_type != "raw":
            held.append((tuple(opened), cell.cell_type))
            continue
        verb, block = cell.source.partition("\n")[0].removeprefix("# ").split()
        if verb == "BEGIN":
            assert (block == "QUESTION") == (not opened)
            opened.append(block)
            if block == "QUESTION":
                questions.append(yaml.safe_load(cell.source))
        else:
            assert opened.pop() == block
    assert not opened
    assert questions == [
        {"name": one.label, "points": one.points} | ({} if one.coded else {"manual": True}) for one in kit.exercises
    ]
    assert held.count((("QUESTION", "TESTS"), "code")) == sum(len(one.checks) for one in kit.exercises)
    assert held.count((("QUESTION", "SOLUTION"), "markdown")) == 1


def test_an_otter_test_passes_the_solution_and_refuses_the_stub(kit, capsys):
    (one,) = [one for one in kit.exercises if one.label == "ex-first-rate"]
    cells = assignment.for_otter(kit).cells
    (test,) = [cell.source for cell in cells if cell.source.startswith("def test_ex_first_rate(env)")]
    env = {}
    for source in [*one.setup, *one.solutions, test]:
        exec(source, env)
    env["test_ex_first_rate"](env)
    for source in one.stubs:
        exec(source, env)
    with pytest.raises(NotImplementedError):
        env["test_ex_first_rate"](env)


# Private exercises


MINE = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Mine

```{code-cell} ipython3
import numpy as np
from pdebook import check
```

```{exercise} Twice, ★, 5 min, run and plot
:label: ex-mine-twice

Double $x$, provided that it is a number.
```

```{code-cell} ipython3
:tags: [solution]

def twice(x):
    \"\"\"A number.\"\"\"
    return 2 * x
```

```{code-cell} ipython3
:tags: [check]

check.close(check.number(twice, 3.0), 6.0, "twice three", hint="What does doubling mean?")
```

```{code-cell} ipython3
:tags: [wrong]

# says: What does doubling mean
def twice(x):
    return x**2
```

```{code-cell} ipython3
:tags: [wrong]

# says: Does its loop end
def twice(x):
    while True:
        pass
```
"""
FACTS = "exercises: {ex-mine-twice: {points: 2.5, inputs: 'float(draw.normal()),', tolerance: 1e-3}}"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """made(text, facts, name): the exit code of `make assignment` with this private exercise, and its folder."""

    def make_one(text=MINE, facts=FACTS, name="mine.md"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / "README.md").write_text("# Not an exercise\n", encoding="utf-8")
        (tmp_path / "exercises.yml").write_text(facts, encoding="utf-8")
        monkeypatch.setattr(assignment, "FOLDER", assignment.ROOT / "_build" / "tried" / tmp_path.name)
        argv = ["assignment", "hw1", "ex-first-maximum", "ex-mine-twice", "--private", str(tmp_path)]
        monkeypatch.setattr("sys.argv", argv)
        try:
            return assignment.main(), assignment.FOLDER / "hw1"
        except SystemExit as stopped:
            return stopped.code, assignment.FOLDER / "hw1"

    yield make_one
    shutil.rmtree(assignment.ROOT / "_build" / "tried", ignore_errors=True)


def test_a_private_exercise_is_tried_and_the_sheet_says_what_it_holds(made, monkeypatch, capsys, tmp_path):
    """Its solution, also on drawn inputs, and its wrong answers, of which one does not end."""
    monkeypatch.setattr(check, "LIMIT", 0.5)
    code, folder = made()
    assert code == 0
    said = capsys.readouterr().out
    assert "\nex-mine-twice: code, run and plot, drawn, 2.5 points\n" in f"\n{said}"
    assert "ex-first-maximum: proof, 4 points\n" in said
    assert "2 exercises, 1 of them graded by the machine, 6.5 points." in said
    kit = Kit.read(folder / "kit.json")
    assert (kit.private, kit.exercises[1].tolerance) == (str(tmp_path), 0.001)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return 2 * x", "return 3 * x", "the check says of the solution: Not yet. twice three: you have 9"),
        ("return x**2", "return x + x", "of the wrong answer that says 'What does doubling mean': All checks passed."),
        (
            "says: What does doubling",
            "says: Does halving",
            "that says 'Does halving mean': Not yet. twice three: you have 9",
        ),
        ("hint=", "what=", "the check says of the solution: Not yet. close() got multiple values"),
        ("import numpy", "import numpies", "ModuleNotFoundError: No module named 'numpies'"),
        ("float(draw.normal()),", "1 / 0,", "ZeroDivisionError: division by zero"),
        ("return 2 * x", "return 2 * x if x == 3 else np.random.normal()", "the solution fails on drawn inputs"),
    ],
)
def test_a_private_exercise_that_would_be_judged_wrong_is_not_handed_out(made, capsys, old, new, words):
    assert old in MINE + FACTS
    code, folder = made(MINE.replace(old, new), FACTS.replace(old, new))
    assert code == 2
    said = capsys.readouterr().err
    assert "mine.md, exercise ex-mine-twice: " in said
    assert words in said
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": MINE.partition("---\n\n")[2]}, "mine.md must begin as a chapter does"),
        ({"text": MINE.replace("exercise} Twice", "exercise}\nTwice")}, "needs a cell of its own and a :label:"),
        ({"text": MINE.replace("exercise} Twice, ★, 5 min, run and plot", "exercise-start}")}, "the title must stand"),
        ({"text": MINE.replace("ex-mine-twice", "ex-first-rate")}, "the label ex-first-rate stands in first_look and"),
        ({"name": "sizes.md"}, "sizes.md has the name of a page of the book"),
        ({"facts": "exercises: ["}, "expected the node content"),
    ],
)
def test_a_private_folder_that_cannot_be_read_is_refused_with_words(made, capsys, change, words):
    assert made(**change)[0] == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("text", "kind"), [("Show that", "proof"), ("Prove it.", "proof"), ("Provided that", "words")])
def test_an_exercise_in_words_may_ask_for_a_proof(kit, text, kind):
    (one,) = [one for one in kit.exercises if not one.coded]
    assert dataclasses.replace(one, text=text).kind == kind


def test_without_facts_a_private_exercise_has_one_point(made, capsys, monkeypatch):
    monkeypatch.setattr(assignment, "tried", lambda kit: None)
    assert made(facts="# none yet\n")[0] == 0
    assert "ex-mine-twice: code, run and plot, 1 point\n" in capsys.readouterr().out
