"""Assignments for nbgrader and otter: the form that their documents ask for, and nothing of a solution outside it."""

import ast
import re

import assignment
import pytest
import yaml
from grading.kit import make

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
