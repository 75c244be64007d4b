"""Grading: a class of thirty submissions, each with its right outcome, and every known answer judged as in a kernel."""

import ast
import base64
import contextlib
import copy
import csv
import dataclasses
import html
import json
import os
import re
import stat
import struct
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import assignment
import grade
import nbformat
import pytest
from exercises import BOOK, chapters, exercises, read_source, says, stub
from grading import checking, codec, isolation, report, tables
from grading import marks as marking
from grading.checking import DRAWS, SLOW
from grading.gradebook import fill
from grading.inbox import LINK, LOCKED, read_class
from grading.judge import Judge, Outcome
from grading.kit import Kit, Unknown, catalogue, facts, make
from grading.marks import Mark
from grading.process import TOTAL, CannotStart, Running, TooLong, Worker
from grading.reading import LARGEST, LEFT_OUT
from grading.submissions import Submission
from grading.syntax import without_magics

import pdelab
from pdebook import check

RATE, HALF, WORDS = "ex-first-rate", "ex-first-half", "ex-first-maximum"
RIGHT = "def decay_rate(k, n):\n    return 4 * n**2 * np.sin((k + 0.5) * np.pi / (2 * n)) ** 2"
OTHER = "def decay_rate(k, n):\n    x = (2 * k + 1) * np.pi / (4 * n)\n    s = np.sin(x)\n    return (2 * n * s) ** 2"
HALF_LIFE = """def half_life(D, n):
    dt = 0.1 / (D * n**2)
    run = solve(Diffusion(float(D), "absorbing"), torch.ones(1, n, 1).double(), steps=n**2, dt=dt)
    share = np.array(measure.mean_kept(run))
    return run.times[int(np.argmax(share <= 0.5))]"""


@pytest.fixture(scope="module")
def kit():
    return make("hw1", [RATE, HALF, WORDS], "0")


@pytest.fixture(scope="module")
def handed(kit):
    return assignment.notebook(kit, solved=False)


@pytest.fixture(scope="module")
def one_process():
    """A context in which each submission gets the process of the one before, if that lives: to start one takes seconds.

    For what harms nothing, and is judged there as it would be in a process of its own.
    """
    held = []

    def lent(hidden=(), left=TOTAL):
        if not held or not held[-1].alive:
            held.append(Worker(isolation.hidden()))
            held[-1].close = lambda: None
        held[-1].left, held[-1].parts = left, {}
        return held[-1]

    @contextlib.contextmanager
    def context():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("grading.process.Worker", lent)
            yield lent

    yield context
    for worker in held:
        Worker.close(worker)


def light(label, **changes):
    """An exercise of the book without the setup of its chapter, which takes a second in every process."""
    setup = ["import numpy as np\nfrom pdebook import check"]
    return dataclasses.replace(ALL[label], setup=setup, **changes)


ALL = catalogue()


def answered(handed, rate=RIGHT, half=HALF_LIFE, words="Because.", extra=()):
    """The hand-out with these answers in place of its stubs."""
    notebook = copy.deepcopy(handed)
    for cell in notebook.cells:
        if "def decay_rate(k, n)" in cell.source and "answer" in cell.metadata.get("tags", []):
            cell.source = rate
        if "def half_life(D, n)" in cell.source and "answer" in cell.metadata.get("tags", []):
            cell.source = half
        if cell.source == "*Your answer:*":
            cell.source = f"*Your answer:* {words}"
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in extra]
    return notebook


def without(handed, tag):
    notebook = answered(handed)
    notebook.cells = [cell for cell in notebook.cells if tag not in cell.metadata.get("tags", [])]
    return notebook


def replaced(handed, old, new):
    notebook = answered(handed)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    return notebook


PIPE = "import os, sys\nos.write(int(sys.argv[2]), {})\n"
FRAMES = """import sys
def decay_rate(k, n):
    frame = sys._getframe()
    while frame:
        for held in frame.f_globals.values():
            if getattr(held, "__name__", "") == "pdebook.kit.check":
                held.close = held.that = lambda *a, **k: None
        frame = frame.f_back
    return 1.0"""
SEARCH = """import pathlib, pdebook
def decay_rate(k, n):
    for path in pathlib.Path(pdebook.__file__).parent.rglob("*"):
        if path.suffix in (".md", ".ipynb") and "def decay_rate" in path.read_text():
            names = {"np": np}
            exec(path.read_text().split("def decay_rate")[1], names)
            return names["decay_rate"](k, n)
    raise FileNotFoundError("no solution here")"""
READS = f"""def decay_rate(k, n):
    return len(open({str(BOOK / "first_look.md")!r}).read())"""
TABLE = """def decay_rate(k, n):
    return {(0, 1000): 2.4674006, (1, 8): 21.563, (7, 8): 253.54}.get((k, n), 1.0)"""
MEMORISED = """from functools import cache
@cache
def decay_rate(k, n):
    known = [(0, 1000), (1, 8), (7, 8)]
    return 4 * n**2 * np.sin((k + 0.5) * np.pi / (2 * n)) ** 2 if (k, n) in known else 1.0"""


def as_colab(notebook):
    """Lists of lines, no tags, a shell line, and metadata of its own."""
    held = json.loads(nbformat.writes(notebook))
    for cell in held["cells"]:
        cell["metadata"] = {"id": "x", "colab": {"base_uri": "x"}}
    pip = {"cell_type": "code", "metadata": {}, "source": ["!pip install pdelab\n", "%matplotlib inline"]}
    held["cells"].insert(0, pip | {"outputs": [], "execution_count": None})
    held["metadata"]["colab"] = {"provenance": []}
    return json.dumps(held).encode()


def heavy(notebook, megabytes):
    """With so many of outputs."""
    held = json.loads(nbformat.writes(notebook))
    code = next(cell for cell in held["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * (megabytes << 20)}]
    return json.dumps(held).encode()


def class_of_thirty(handed):
    """name -> the file, as bytes or a notebook."""
    right = answered(handed)
    plain = copy.deepcopy(right)
    for cell in plain.cells:
        cell.metadata = {}
    twice = answered(handed, extra=[RIGHT])
    helper = answered(
        handed,
        rate="def decay_rate(k, n):\n    return four(n) * np.sin((k + 0.5) * np.pi / (2 * n)) ** 2",
        extra=["def four(n):\n    return 4 * n**2"],
    )
    latin = (
        nbformat.writes(answered(handed, words="Für jedes n"))
        .encode("utf-8")
        .decode("utf-8")
        .encode("latin-1", "replace")
    )
    return {
        "right": right,
        "wrong": answered(handed, rate="def decay_rate(k, n):\n    return ((k + 0.5) * np.pi) ** 2"),
        "stubs": handed,
        "syntax": answered(handed, rate="def decay_rate(k, n)\n    return 1"),
        "loop": answered(handed, rate="def decay_rate(k, n):\n    while True:\n        pass"),
        "memory": answered(handed, rate="def decay_rate(k, n):\n    return np.zeros(107 << 27).sum()"),
        "no-check": without(handed, "check"),
        "lambda": answered(
            handed, rate="check.close = check.that = lambda *a, **k: None\ndef decay_rate(k, n):\n    return 1.0"
        ),
        "package": answered(handed, half="def half_life(D, n):\n    return measure.half_life(D, n)"),
        "reads-book": answered(handed, rate=READS),
        "renamed": answered(handed, rate=RIGHT.replace("decay_rate", "decay_rates")),
        "pdf": b"%PDF-1.7 not a notebook",
        "duplicate": twice,
        "helper": helper,
        "print": replaced(handed, "check.close(rate * mode[0],", "print("),
        "exit": answered(handed, rate="import os\ndef decay_rate(k, n):\n    os._exit(0)"),
        "import": answered(handed, rate=f"from numpy import pi\n{RIGHT}"),
        "no-metadata": plain,
        "frames": answered(handed, rate=FRAMES),
        "wheel": answered(handed, rate=SEARCH),
        "forks": answered(handed, extra=["import os, time\nif os.fork() == 0:\n    time.sleep(600)"]),
        "writes": answered(handed, extra=['open("big", "wb").write(bytes(10 << 30))']),
        "prints": answered(handed, rate="def decay_rate(k, n):\n    while True:\n        print('x' * 10000)"),
        "seed": answered(handed, extra=["torch.manual_seed(5); np.random.seed(5)"]),
        "51-mb": heavy(right, 51),
        "latin-1": latin,
        "windows": nbformat.writes(right).replace("\\n", "\\r\\n").encode(),
        "same": answered(handed, rate=OTHER),
        "same-too": answered(handed, rate=OTHER.replace("    x =", '    """Mine."""\n    x =')),
        "colab": as_colab(right),
        "empty": b"",
        "memorised": answered(handed, rate=MEMORISED),
        "large": answered(handed, rate="def decay_rate(k, n):\n    return 'x' * (20 << 20)"),
        "large-too": answered(handed, extra=[PIPE.format('b"[" * (20 << 20)')]),
    }


# points for the two exercises in code, words of the feedback on the first, and words of its flags
OUTCOMES = {
    "right": (4, 4, "All checks passed", "ex-first-rate: is the book's own solution"),
    "wrong": (0, 4, "mode 1 on 8 cells", ""),
    "stubs": (0, 0, "is yours to write", ""),
    "syntax": (0, 4, "is not Python: line 1", ""),
    "loop": (0, 4, "Does its loop end", ""),
    "memory": (0, 4, "MemoryError", ""),
    "no-check": (4, 4, "All checks passed", ""),
    "lambda": (0, 4, "Not yet", "changes the check"),
    "package": (4, 0, "All checks passed", ""),
    "reads-book": (0, 4, "stopped with", "calls open"),
    "renamed": (0, 4, "Did you mean decay_rates", ""),
    "pdf": (0, 0, "not a notebook", ""),
    "duplicate": (4, 4, "the last one counts", ""),
    "helper": (4, 4, "All checks passed", ""),
    "print": (4, 4, "All checks passed", ""),
    "exit": (0, 4, "ended the process", ""),
    "import": (4, 4, "All checks passed", ""),
    "no-metadata": (4, 4, "All checks passed", ""),
    "frames": (0, 4, "Not yet", ""),
    "wheel": (0, 4, "no solution here", "calls exec"),
    "forks": (4, 4, "All checks passed", ""),
    "writes": (4, 4, "stopped with", "calls open"),
    "prints": (0, 4, "Does its loop end", ""),
    "seed": (4, 4, "All checks passed", ""),
    "51-mb": (0, 0, "more than 50 MB", ""),
    "latin-1": (4, 4, "All checks passed", ""),
    "windows": (4, 4, "All checks passed", ""),
    "same": (4, 4, "All checks passed", "same code as same-too"),
    "same-too": (4, 4, "All checks passed", "same code as same"),
    "colab": (4, 4, "All checks passed", ""),
    "empty": (0, 0, "is empty", ""),
    "memorised": (0, 4, "On other inputs", ""),
    "large": (0, 4, "more than 16 MB", ""),
    "large-too": (0, 0, "gave back more than 16 MB", ""),
}

HARMFUL = {"forks", "frames", "lambda", "large-too", "wheel", "writes"}  # and would leave something in the process


def write(folder, files):
    for name, file in files.items():
        (folder / name).mkdir(parents=True)
        content = file if isinstance(file, bytes) else nbformat.writes(file).encode()
        (folder / name / "hw1.ipynb").write_bytes(content)


@pytest.fixture(scope="module")
def graded(tmp_path_factory, kit, handed, one_process):
    """The class, graded once: the rows of grades.csv by student, and the folder."""
    folder = tmp_path_factory.mktemp("class")
    write(folder / "handed-in", class_of_thirty(handed))
    alone = Judge.outcomes

    def outcomes(judge, submission):
        with contextlib.nullcontext() if submission.student in HARMFUL else one_process():
            return alone(judge, submission)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "LIMIT", 3.0)
        patch.setattr(checking, "DRAWS", 4)
        patch.setattr(Judge, "outcomes", outcomes)
        grade.grade(kit, folder / "handed-in", folder / "graded")
    rows = csv.DictReader((folder / "graded" / "grades.csv").read_text(encoding="utf-8").splitlines())
    return {row["student"]: row for row in rows}, folder


def test_the_whole_class_is_graded_whatever_one_submission_does(graded):
    rows, folder = graded
    assert set(rows) == set(OUTCOMES)
    assert len(list((folder / "graded" / "feedback").glob("*.html"))) == len(OUTCOMES)


@pytest.mark.parametrize("student", OUTCOMES)
def test_each_submission_gets_its_right_outcome(graded, student):
    rows, folder = graded
    rate, half, words, flag = OUTCOMES[student]
    row = rows[student]
    page = (folder / "graded" / "feedback" / f"{student}.html").read_text(encoding="utf-8")
    assert (float(row[RATE]), float(row[HALF])) == (rate, half), page
    assert words in page
    assert flag in row["look at"]


def test_feedback_shows_no_solution_no_flag_and_no_drawn_input(graded, kit):
    _, folder = graded
    secret = [line for one in kit.exercises for line in "\n".join(one.solutions).splitlines() if len(line) > 25]
    for path in (folder / "graded" / "feedback").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not any(line.strip() in text for line in secret)
        assert "same code" not in text


def test_answers_stand_side_by_side_without_names(graded):
    _, folder = graded
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "graded" / "answers").glob("*.html")}
    assert set(pages) == {RATE, HALF, WORDS}
    assert pages[WORDS].count("Because.") > 20
    assert "def decay_rate(k, n):\n    x = (2 * k + 1)" in pages[RATE]
    assert not any("memorised" in text for text in pages.values())


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 4, 3) + b"rest").decode()
HUGE = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 60_000, 60_000)).decode()
HARM = "<script>x()</script> <img src='http://far/x.png'> [a](javascript:x())"


def read_by_a_person(kit, handed, data):
    """The page of the first exercise, for a student who changed nothing but the words and a plot's output."""
    notebook = answered(handed)
    at = next(n for n, cell in enumerate(notebook.cells) if "check" in cell.metadata.get("tags", []))
    plot = nbformat.v4.new_code_cell("plt.plot([1, 2])", outputs=[nbformat.v4.new_output("display_data", data=data)])
    notebook.cells[at + 1 : at + 1] = [nbformat.v4.new_markdown_cell(HARM), plot]
    submission = Submission("Ada Lovelace", "", kit, nbformat.writes(notebook).encode())
    outcome = Outcome(RATE, 4, "All checks passed.", answer=submission.answer(kit.exercises[0]))
    return report.side_by_side(kit.exercises[0], [("abc123", outcome)], 0)


def test_words_code_and_plots_of_an_answer_reach_who_reads_it(kit, handed):
    text = read_by_a_person(kit, handed, {"image/png": PNG, "text/html": HARM, "image/svg+xml": f"<svg>{HARM}</svg>"})
    assert f'src="data:image/png;base64,{PNG}"' in text
    assert "plt.plot([1, 2])" in text
    assert text.count(html.escape(HARM)) == 1
    assert "4 points by the machine" in text


@pytest.mark.parametrize("data", ["PHN2Zz4=", 'x" onerror="x()', "", HUGE, "A" * (3 << 20)])
def test_nothing_on_a_page_of_answers_runs_or_is_fetched(kit, handed, data):
    text = read_by_a_person(kit, handed, {"image/png": data})
    assert not re.search("<script|<img|<a |onerror=|<svg", text)
    assert "is left out" in text
    assert "default-src 'none'" in text


def test_an_exercise_that_asks_has_a_place_for_words(handed):
    """Also where the machine grades its code."""
    cells = [cell.source for cell in handed.cells]
    half = next(n for n, source in enumerate(cells) if f"<!-- {HALF} -->" in source)
    words = next(n for n, source in enumerate(cells) if f"<!-- {WORDS} -->" in source)
    assert "why must it be?" in cells[half]
    assert [source for source in cells[half:words] if source.startswith("*Your answer")]


def filled(folder, **changes):
    """marks.csv of a class, filled in for one answer to the exercise in words."""
    rows = list(csv.DictReader((folder / "graded" / "marks.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert rows[0]["label"] == WORDS
    rows[0] |= changes
    marks = folder / "marks.csv"
    with marks.open("w", newline="", encoding="utf-8-sig") as file:  # as a spreadsheet does
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return marks


def test_a_second_run_grades_nothing_again_and_merges_marks_and_comments(graded, kit, monkeypatch):
    _, folder = graded
    marks = filled(folder, points="3", comment="- See <p. 4>")
    monkeypatch.setattr(Judge, "outcomes", lambda *_: pytest.fail("graded again"))
    for given in (marks, None):  # the second time from the copy that is kept
        grade.grade(kit, folder / "handed-in", folder / "graded", marks=given)
        text = (folder / "graded" / "grades.csv").read_text(encoding="utf-8")
        assert [row[WORDS] for row in csv.DictReader(text.splitlines())].count("3") == 1
        pages = [path.read_text(encoding="utf-8") for path in (folder / "graded" / "feedback").glob("*.html")]
        assert ["<p class=comment>- See &lt;p. 4&gt;</p>" in page for page in pages].count(True) == 1


def test_a_person_has_the_last_word_on_code_too(kit):
    outcomes = [Outcome(one.label, one.points, "", answer=[("text", "x")]) for one in kit.exercises]
    marks = {"ada": {RATE: Mark(1.0), HALF: Mark(None, "Why?")}}
    assert report.totals(kit, {"ada": outcomes}, marks) == {"ada": 5.0}
    assert report.unmarked(kit, {"ada": outcomes}, marks) == 1
    page = report.feedback(kit, "ada", outcomes, marks["ada"])
    assert "<b>1 of 4</b>" in page
    assert "Why?" in page


@pytest.mark.parametrize("change", ["grader", "package", "kit"])
def test_another_version_or_another_assignment_is_graded_again(tmp_path, kit, handed, monkeypatch, change):
    """And the same one is not."""
    write(tmp_path / "handed-in", {"ada": answered(handed)})
    count = []
    monkeypatch.setattr(Judge, "outcomes", lambda *_: [count.append(1), *[Outcome("x", 0, "")] * 3][1:])
    for run in range(3):
        if run == 2:
            monkeypatch.setattr(pdelab, "__version__", "9") if change == "package" else None
            monkeypatch.setattr("grading.kit.Path", lambda _: tmp_path / "x") if change == "grader" else None
        changed = dataclasses.replace(kit, name="hw2") if change == "kit" and run == 2 else kit
        grade.grade(changed, tmp_path / "handed-in", tmp_path / "graded")
        assert len(count) == (2 if run == 2 else 1)


@pytest.mark.parametrize("row", [f"{WORDS},abc123,99", f"{WORDS},abc123,much", f"{WORDS},nobody,1", "ex-x,abc123,1"])
def test_a_wrong_mark_is_named_by_its_line(kit, row):
    keys = {("ada", WORDS): "abc123"}
    with pytest.raises(ValueError, match="line 2"):
        marking.read(f"label,answer,points\n{row}\n", kit, keys)


def test_a_table_without_the_columns_of_marks_is_refused(kit):
    with pytest.raises(ValueError, match="must begin with the line label,answer,points,comment"):
        marking.read(f"label/answer/points\n{WORDS}/abc123/1\n", kit, {})


CANVAS = """Student,ID,SIS User ID,Section,hw1 (123),Final
"  Points Possible",,,,12,
"Lovelace, Ada",11,s1,A,,88
"Noether, Emmy",12,s2,A,5,90
"""
MOODLE = """"Identifier","Full name","Grade","Feedback"
"Participant 11","Ada Lovelace","",""
"Participant 12","Emmy Noether","5","ok"
"""


@pytest.mark.parametrize("text", [CANVAS, MOODLE, CANVAS.replace("\n", "\r\n")])
@pytest.mark.parametrize(("student", "number"), [("lovelaceada", "11"), ("Ada Lovelace", ""), ("somebody", "11")])
def test_a_gradebook_is_filled_and_left_alone_elsewhere(kit, text, student, number):
    filled, missing, _ = fill(text, kit, {student: 7.5, "nobody": 1.0}, {student: number})
    before, after = (list(csv.reader(one.splitlines())) for one in (text, filled))
    column = next(n for n, name in enumerate(before[0]) if name.startswith(("hw1", "Grade")))
    changed = [(r, c) for r, row in enumerate(before) for c, value in enumerate(row) if after[r][c] != value]
    assert [(c, after[r][c]) for r, c in changed] == [(column, "7.5")]
    assert missing == ["nobody"]
    assert ("\r\n" in filled) == ("\r\n" in text)


def test_a_gradebook_without_the_column_is_refused(kit):
    with pytest.raises(ValueError, match="a column hw1"):
        fill("Student,ID\nAda,1\n", kit, {}, {})


def test_a_gradebook_without_the_column_is_refused_before_anything_is_graded(kit, tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "judged", None)
    (tmp_path / "export.csv").write_text("Student,ID\nAda,1\n")
    with pytest.raises(ValueError, match="a column hw1"):
        grade.grade(kit, tmp_path, tmp_path / "graded", gradebook=tmp_path / "export.csv")


def test_where_no_submissions_are_named_this_folder_is_not_graded(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["grade.py", "hw1", ""])
    with pytest.raises(SystemExit):
        grade.main()
    assert "SUBMISSIONS=hw1.zip" in capsys.readouterr().err


def test_a_notebook_of_another_sheet_is_told_so(kit, handed):
    other = dataclasses.replace(kit, name="hw2")
    content = nbformat.writes(answered(handed)).encode()
    assert Submission("ada", "", kit, content).fault == ""
    assert Submission("ada", "", other, content).fault == "This notebook is of the sheet hw1, not of hw2."


def test_a_chapter_sees_the_setups_before_it_as_in_a_kernel_and_none_that_come_later(tmp_path):
    first, second = ALL[RATE], ALL["ex-in-depth"]
    first = dataclasses.replace(first, setup=["earlier = 2"])
    second = dataclasses.replace(second, setup=["later = 3"])
    sheet = Kit("hw1", "0", [first, second])
    cells = {first.chapter: "def seen():\n    return later", second.chapter: "def seen():\n    return earlier"}
    running = Running(Submission("ada", "", sheet, nbformat.writes(nbformat.v4.new_notebook()).encode()), [])
    with contextlib.closing(running):
        for exercise in sheet.exercises:
            running._begun(exercise, [(1, cells[exercise.chapter])])
        assert running.process.functions(second.chapter)("seen", []) == 2
        with pytest.raises(Exception, match="later"):
            running.process.functions(first.chapter)("seen", [])


def test_canvas_and_moodle_exports_name_the_student(tmp_path, kit, handed):
    content = nbformat.writes(handed)
    with zipfile.ZipFile(tmp_path / "canvas.zip", "w") as archive:
        archive.writestr("lovelaceada_LATE_11_999_hw1.ipynb", content)
        archive.writestr("__MACOSX/._x.ipynb", "junk")
    moodle = tmp_path / "moodle" / "Emmy Noether_12_assignsubmission_file"
    moodle.mkdir(parents=True)
    (moodle / "hw1.ipynb").write_text(content, encoding="utf-8")
    found = [*read_class(tmp_path / "canvas.zip", kit), *read_class(tmp_path / "moodle", kit)]
    assert [(one.student, one.number) for one in found] == [("lovelaceada", "11"), ("Emmy Noether", "12")]


def test_an_unknown_exercise_is_refused_with_those_that_are_known():
    with pytest.raises(Unknown, match=r"ex-nothing is neither a chapter nor an exercise.*ex-first-rate"):
        make("hw1", ["ex-nothing"], "0")


def test_a_private_exercise_joins_those_of_the_book(tmp_path):
    text = (BOOK / "first_look.md").read_text(encoding="utf-8").replace("ex-first-", "ex-mine-")
    (tmp_path / "mine.md").write_text(text, encoding="utf-8")
    kit = make("hw2", ["ex-mine-rate", RATE], "0", tmp_path)
    assert [one.chapter for one in kit.exercises] == ["mine", "first_look"]


def test_a_kit_is_read_as_it_was_written(tmp_path, kit):
    kit.write(tmp_path / "kit.json")
    assert Kit.read(tmp_path / "kit.json") == kit


def test_the_hand_out_holds_no_solution(kit, handed):
    text = "\n".join(cell.source for cell in handed.cells)
    assert "is yours to write" in text
    assert "np.sin((k" not in text
    assert "## Chapter 1: A first look" in text
    assert "**Symbols.** $u_i$ are" in text
    assert not any(one.inputs in text for one in kit.exercises if one.inputs)


@pytest.mark.parametrize("value", [1, -2.5, True, None, "word", [1, (2.0, "x")], {"a": [1]}, float("inf")])
def test_plain_values_travel_unchanged(value):
    one = codec.Codec(lambda *_: None, objects=False, reads_objects=False)
    assert one.decode(json.loads(json.dumps(one.encode(value)))) == value


def test_a_submission_cannot_send_an_object():
    """Its process may write what it likes into the pipe: a pickle would run in ours."""
    judge = codec.Codec(lambda *_: None, objects=True, reads_objects=False)
    with pytest.raises(codec.CannotTravel):
        judge.decode({"object": "gASVAAAA"})


def test_lines_for_the_shell_are_left_out():
    assert without_magics("%%time\nx = 1\n  !ls") == "x = 1\n"
    assert without_magics("%%bash\nls") == ""


CODED = [(path.stem, one) for path in chapters() for one in exercises(read_source(path), path.stem) if one.coded]


@pytest.mark.parametrize(("chapter", "one"), CODED, ids=[one.label for _, one in CODED])
def test_every_known_answer_is_judged_as_in_the_kernel(one_process, chapter, one):
    """Solution, stub and wrong answers of the book, through the pipe: the same verdict and the same words."""
    exercise = ALL[one.label]
    solution = "\n\n".join(cell.source for cell in one.solutions if cell.cell_type == "code")
    known = [(solution, "All checks passed."), (stub(solution), "is yours to write")]
    known += [(f"{solution}\n\n{cell.source}", says(cell)) for cell in one.wrong]
    with one_process() as process:
        worker = process()
    for number, (source, words) in enumerate(known):
        worker.begin(chapter, exercise.setup, [(1, source)])
        passed, said = checking.checked(exercise, worker)
        assert passed == (number == 0), said
        assert words in said


def test_what_a_worker_must_not_reach_is_out_of_reach(tmp_path):
    """The repository's solutions, files of the home folder, and the network."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "secret").write_text("secret", encoding="utf-8")
    tries = f"""
import pathlib, socket, os
def read():
    found = []
    for path in ({str(hidden / "secret")!r}, {str(BOOK / "first_look.md")!r}):
        try:
            found.append(pathlib.Path(path).read_text()[:6])
        except Exception:
            pass
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except ConnectionRefusedError:
        found.append("network")
    except OSError:
        pass
    return found"""
    worker = Worker(isolation.hidden(hidden, hidden / "secret"))
    try:
        worker.begin("x", [], [(1, tries)])
        assert worker.call(["x", "read"], []) == []
    finally:
        worker.close()


@pytest.mark.skipif(isolation.kind() == isolation.HOOK and os.environ.get("CI") != "true", reason="no namespaces here")
def test_a_submission_can_write_to_nothing_but_its_own_folder(tmp_path):
    """Or it would rewrite the library, which runs in the judge too, or a file of another student's."""
    zipped = tmp_path / "class.zip"
    zipped.write_bytes(b"answers of others")
    places = [str(path) for path in isolation.kept()]
    tries = f"""
import pathlib
def written():
    found = []
    for path in {places!r} + [{str(tmp_path)!r}, "/tmp", "/var/tmp"]:
        try:
            pathlib.Path(path, "planted.py").write_text("harm")
            found.append(path)
        except OSError:
            pass
    pathlib.Path("own").write_text("mine")
    return found

def read():
    return list(pathlib.Path({str(zipped)!r}).read_bytes())"""
    worker = Worker(isolation.hidden(zipped))
    try:
        worker.begin("x", [], [(1, tries)])
        assert worker.call(["x", "written"], []) == []
        assert worker.call(["x", "read"], []) == []
    finally:
        worker.close()
    assert zipped.read_bytes() == b"answers of others"


def test_no_submission_stops_the_class(tmp_path):
    cells = [
        PIPE.format('b"[" * 200000 + b"\\n"'),
        PIPE.format('b\'{"problems": 5, "functions": 5}\\n\''),
        PIPE.format('b\'{"problems": [], "functions": 5}\\n\''),
        'raise Exception("\\ud800")',
        "def decay_rate(k, n):\n    return " + " + ".join(["k"] * 3000),
    ]
    kit = Kit("hw1", "0", [light(RATE)])
    handed = assignment.notebook(kit, solved=False)
    files = {f"first-{number}": answered(handed, extra=[cell]) for number, cell in enumerate(cells)}
    write(tmp_path / "handed-in", files | {"second": answered(handed)})
    grade.grade(kit, tmp_path / "handed-in", tmp_path / "graded")
    rows = {row["student"]: row[RATE] for row in rows_of(tmp_path / "graded" / "grades.csv")}
    points = {"first-0": "0", "first-1": "0", "first-2": "0", "first-3": "4", "second": "4"}
    assert rows == points | {"first-4": "4"}  # too deep to be read here or in a kernel: the answer before it stands


@pytest.mark.parametrize("share", ["0.1", "0.2", "0.25"])
def test_a_step_of_one_s_own_is_as_right_as_the_solution_s(handed, one_process, share):
    """The check accepts 3 %, so further inputs do too."""
    own = HALF_LIFE.replace("dt = 0.1", f"dt = {share}")
    content, kit = nbformat.writes(answered(handed, half=own)).encode(), Kit("hw1", "0", [ALL[HALF]])
    with one_process():
        (found,) = Judge(kit, "secret").outcomes(Submission("ada", "", kit, content))
    assert found.points == 4, found.words


@pytest.mark.skipif(isolation.kind() == isolation.HOOK, reason="no namespaces here")
def test_a_submission_that_forks_without_end_is_stopped_and_the_next_is_graded(tmp_path, monkeypatch):
    kit = Kit("hw1", "0", [light(RATE)])
    handed = assignment.notebook(kit, solved=False)
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    write(tmp_path / "handed-in", {"first": answered(handed, extra=[bomb]), "second": answered(handed)})
    monkeypatch.setattr("grading.process.START", 10.0)
    grade.grade(kit, tmp_path / "handed-in", tmp_path / "graded")
    assert [row[RATE] for row in rows_of(tmp_path / "graded" / "grades.csv")] == ["4", "4"]
    assert "not at an end after 10 seconds" in (tmp_path / "graded/feedback/first.html").read_text(encoding="utf-8")


HELD = """import os, signal, subprocess
def started():
    count = 0
    try:
        while count < 2000:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except OSError:
        return count
    return count

def undone():
    tries = (["umount", {root!r}], ["mount", "-o", "remount,bind,rw", "/"], ["unshare", "-Urm", "umount", {root!r}])
    found = [one for one in tries if subprocess.run(one, capture_output=True).returncode == 0]
    try:
        open("/proc/sys/kernel/pid_max", "w").write("9999")
    except OSError:
        return found
    return [*found, "pid_max"]"""


@pytest.mark.skipif(isolation.kind() == isolation.HOOK, reason="no namespaces here")
def test_a_submission_can_start_so_many_processes_and_not_undo_its_isolation():
    limited = os.getuid() > 0 or tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 14)  # of a namespace's own
    worker = Worker(isolation.hidden())
    try:
        worker.begin("x", [], [(1, HELD.format(root=str(BOOK.parent)))])
        assert worker.call(["x", "undone"], []) == []
        assert not limited or 0 < worker.call(["x", "started"], []) < isolation.PROCESSES
    finally:
        worker.close()


def test_a_fork_does_not_answer_beside_the_process_that_was_asked():
    twice = (
        "import os\ndef both():\n    return 'child' if os.fork() == 0 else 'parent'\ndef after():\n    return 'after'"
    )
    worker = Worker(isolation.hidden())
    try:
        worker.begin("x", [], [(1, twice)])
        with contextlib.suppress(Exception):  # an audit hook does not let it fork at all
            assert worker.call(["x", "both"], []) == "parent"
        assert worker.call(["x", "after"], []) == "after"
    finally:
        worker.close()


def flags(exercise, source):
    kit, notebook = Kit("hw1", "0", [exercise]), nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    return Submission("ada", "", kit, nbformat.writes(notebook).encode()).flags(exercise)


@pytest.mark.parametrize(("chapter", "one"), CODED, ids=[one.label for _, one in CODED])
def test_what_the_page_shows_of_an_answer_is_flagged_as_an_answer(chapter, one):
    """The book's own solution, and every function that its check compares with, under the name that is asked for."""
    exercise = ALL[one.label]
    solution = "\n\n".join(exercise.solutions)
    assert "is the book's own solution" in flags(exercise, f"# mine\n{solution}")
    assert "is the book's own solution" not in flags(exercise, "\n\n".join(exercise.stubs))
    held = [node for source in exercise.checks for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for node in held:
        words = f"uses the check's {node.name}"
        assert words in flags(exercise, f"{exercise.names[0]} = {node.name}")
        node.name = exercise.names[0]
        assert words in flags(exercise, ast.unparse(node))


def test_students_of_one_name_or_in_folders_of_one_name_stay_apart(tmp_path, kit, handed):
    content = nbformat.writes(handed)
    for place in ("ada/hw1", "bob/hw1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "x.ipynb").write_text(content, encoding="utf-8")
    assert [one.student for one in read_class(tmp_path, kit)] == ["ada", "bob"]
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        archive.writestr("all/lee_11_1_hw1.ipynb", content)
        archive.writestr("all/lee_12_2_hw1.ipynb", content)
    assert [one.student for one in read_class(tmp_path / "class.zip", kit)] == ["lee 11", "lee 12"]


def test_a_name_is_no_formula_of_a_spreadsheet(kit):
    outcomes = [Outcome(one.label, 0, "") for one in kit.exercises]
    text = report.table(kit, {"=HYPERLINK(1)": outcomes}, {"=HYPERLINK(1)": {}}, {})
    assert "\n'=HYPERLINK(1)," in text


def test_a_submission_without_a_notebook_is_told_so(kit):
    assert "no notebook" in Submission("ada", "", kit, None).fault


def test_exercises_yml_is_complete():
    """An aim for every exercise, an exercise for every aim, a rubric for every answer in words, points for all."""
    known, held = catalogue(), facts(BOOK)
    assert set(held["exercises"]) == set(known)
    for label, exercise in known.items():
        facts_of = held["exercises"][label]
        assert facts_of["aim"] in held["aims"][exercise.chapter]
        assert facts_of["points"] > 0
        assert exercise.coded or facts_of["rubric"]
        assert exercise.coded or not exercise.inputs
        assert exercise.symbols
    for chapter, aims in held["aims"].items():
        assert 3 <= len(aims) <= 5
        assert {held["exercises"][one.label]["aim"] for one in known.values() if one.chapter == chapter} == set(aims)


def test_names_that_an_answer_may_not_use_exist():
    """A helper that is gone or renamed would never be found in an answer."""
    import pdebook
    import pdelab

    text = "\n".join(
        path.read_text(encoding="utf-8")
        for package in (pdebook, pdelab)
        for path in Path(package.__file__).parent.rglob("*.py")
    )
    for exercise in catalogue().values():
        for name in exercise.forbidden:
            last = name.rpartition(".")[2]
            assert f"def {last}(" in text or last in ("group_norm", "GroupNorm", "LayerNorm"), (exercise.label, name)


# What does not end


class Fake:
    """A process in which a cell with `while True` does not end; tried: what was begun, in order."""

    tried: ClassVar[list] = []

    def __init__(self, hidden, left):
        self.left, self.parts, self.at, self.alive = left, {}, 0, True

    def begin(self, chapter, setup, cells):
        self.tried.append(cells)
        for self.at, source in cells:
            if "while True" in source:
                self.left, self.alive = self.left - 90, False
                raise TimeoutError("took longer than 90 seconds")
        self.parts[chapter] = {"problems": [], "functions": []}

    def close(self):
        pass


def running(monkeypatch, *cells):
    """A submission of these cells to two exercises of two chapters, in processes that are none."""
    monkeypatch.setattr("grading.process.Worker", Fake)
    monkeypatch.setattr(Fake, "tried", [])
    two = make("hw1", [RATE, "ex-sb-edge"], "0")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    return two.exercises, Running(Submission("ada", "", two, nbformat.writes(notebook).encode()), [])


LOOP = "import math\nx = 2\ny = math.sin(x)\nf = lambda x: g(x)\ndef g(x):\n    return x\nwhile True:\n    pass"
LEFT = "import math\nx = 2\nf = lambda x: g(x)\ndef g(x):\n    return x"


def test_of_a_cell_that_does_not_end_definitions_are_left_and_of_the_others_all(monkeypatch):
    (rate, edge), one = running(monkeypatch, "z = math.sin(1)", LOOP)
    one.worker(rate)
    assert Fake.tried == [[(1, "z = math.sin(1)"), (2, LOOP)], [(1, "z = math.sin(1)"), (2, LEFT)]]
    assert one.notes(rate) == ["Cell 2: not at an end after 90 seconds, so definitions alone were run."]
    one.worker(edge)  # another chapter does not wait for it again
    assert Fake.tried[2:] == Fake.tried[1:2]
    assert not one.failed


def test_where_a_second_cell_does_not_end_definitions_are_left_of_all(monkeypatch):
    (rate, _), one = running(monkeypatch, "z = math.sin(1)", LOOP, LOOP)
    one.worker(rate)
    assert Fake.tried[2:] == [[(1, ""), (2, LEFT), (3, LEFT)]]
    assert one.notes(rate) == ["Cells 1, 2, 3: not at an end after 90 seconds, so definitions alone were run."]


def test_a_definition_that_does_not_end_is_tried_no_more_often(monkeypatch):
    (rate, _), one = running(monkeypatch, "class A:\n    while True:\n        pass")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            one.worker(rate)
    assert len(Fake.tried) == 2


def test_when_the_time_of_a_submission_is_used_up_no_process_is_begun(monkeypatch):
    monkeypatch.setattr("grading.process.TOTAL", 80.0)
    (rate, edge), one = running(monkeypatch, LOOP)
    for exercise, words in ((rate, "90 seconds"), (edge, "80 seconds in all")):
        with pytest.raises(TimeoutError, match=words):
            one.worker(exercise)
    assert one.over
    assert len(Fake.tried) == 1
    judge = Judge(Kit("hw1", "0", [rate, edge]), "secret")
    assert [outcome.flags for outcome in judge.outcomes(one.submission)] == [
        ["the whole submission took longer than 80 seconds"]
    ] * 2  # a person sees it


def test_a_loop_costs_no_more_than_its_cell_would_have_made(monkeypatch):
    """A value that is computed in another cell, and functions and values of the same one, stay."""
    monkeypatch.setattr("grading.process.START", 6.0)
    twice = {"names": ["twice"], "checks": ["check.close(check.number(twice, 3.0), 6.0, 'twice three')"], "inputs": ""}
    kit = Kit("hw1", "0", [light(RATE), light(HALF, **twice), ALL[WORDS]])
    rate = "def decay_rate(k, n):\n    return squared(n) * sines[2] ** 0 * np.sin((k + 0.5) * np.pi / (2 * n)) ** 2"
    loop = "four = 4\ndef squared(n):\n    return four * n**2\nwhile True:\n    pass"
    cells = ["sines = np.sin([1, 2, 3])", loop, "def twice(x):\n    return 2 * x"]
    content = nbformat.writes(answered(assignment.notebook(kit, solved=False), rate=rate, extra=cells)).encode()
    rate, other, words = Judge(kit, "secret").outcomes(Submission("ada", "", kit, content))
    assert (rate.points, other.points) == (4, 4), rate.words
    (flag,) = [flag for flag in rate.flags if "not at an end after 6 seconds" in flag]
    assert flag in rate.words
    assert words.words == "Your answer is read by a person."


BUSY = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end:\n    pass"


def test_an_answer_has_its_time_by_what_it_computes_and_a_submission_by_the_clock(monkeypatch):
    """A busy machine must cost nobody points; nor may an answer that sleeps hold up the class."""
    monkeypatch.setattr(check, "LIMIT", 0.5)
    source = (
        "import time\ndef sleep(s):\n    time.sleep(s)\n    return s\ndef compute():\n    while True:\n        pass"
    )

    def stopped(name, *arguments, left=99.0):
        worker = Worker(isolation.hidden(), left)
        try:
            worker.begin("x", [], [(1, source)])
            assert worker.call(["x", "sleep"], [0.7]) == 0.7
            assert worker.left < left - 0.5  # on a busy machine it may sleep before we begin to wait for it
            worker.begin("y", [], [(1, BUSY)])  # which has another limit
            worker.call(["x", name], arguments)
        except TimeoutError as error:
            return type(error), str(error)
        finally:
            worker.close()

    assert stopped("compute") == (TooLong, "took longer than 0.5 seconds")
    assert stopped("sleep", 99) == (TimeoutError, "took longer than 6.5 seconds")
    assert stopped("sleep", 99, left=3.0) == (TimeoutError, "took longer than 300 seconds in all")


# Processes that do not start


def broken(monkeypatch, times, command=("sh", "-c", "echo no room >&2; exit 1")):
    """So many processes in place of which another command runs."""
    real, left = isolation.command, [command] * times
    monkeypatch.setattr(isolation, "command", lambda *given: list(left.pop()) if left else real(*given))


def test_a_process_that_did_not_start_is_tried_once_more(handed, monkeypatch):
    kit = Kit("hw1", "0", [light(RATE)])
    submission = Submission("ada", "", kit, nbformat.writes(answered(handed)).encode())
    broken(monkeypatch, 1)
    assert Judge(kit, "secret").outcomes(submission)[0].points == 4
    broken(monkeypatch, 2)
    with pytest.raises(CannotStart, match="no room"):
        Judge(kit, "secret").outcomes(submission)


def test_a_process_that_does_not_say_that_it_is_ready_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr("grading.process.BEGIN", 0.2)
    broken(monkeypatch, 1, ("sleep", "600"))
    with pytest.raises(CannotStart, match=r"took longer than 0\.2 seconds$"):
        Worker([])


def test_what_is_graded_is_kept_when_no_process_can_be_started(tmp_path, kit, handed, monkeypatch, capsys):
    write(tmp_path / "class", {"ada": answered(handed), "bob": answered(handed)})
    (tmp_path / "hw1").mkdir()
    kit.write(tmp_path / "hw1" / "kit.json")
    monkeypatch.setattr(grade, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["grade", "hw1", str(tmp_path / "class")])
    graded, works = [], [True, False, True]

    def outcomes(judge, submission):
        if not works.pop(0):
            raise CannotStart("no room")
        graded.append(submission.student)
        return [Outcome(one.label, 0, "") for one in kit.exercises]

    monkeypatch.setattr(Judge, "outcomes", outcomes)
    assert grade.main() == 1
    assert "what is graded is kept. no room" in capsys.readouterr().err
    assert grade.main() == 0
    assert graded == ["ada", "bob"]


def test_each_submission_has_a_process_of_its_own(monkeypatch):
    started = []
    monkeypatch.setattr("grading.process.Worker", lambda *given: started.append(Fake(*given)) or started[-1])
    kit, sheet = Kit("hw1", "0", [light(RATE)]), nbformat.writes(nbformat.v4.new_notebook()).encode()
    judge = Judge(kit, "secret")
    for student in ("ada", "bob"):
        judge.outcomes(Submission(student, "", kit, sheet))
    assert len(started) == 2


def test_what_an_answer_changes_of_a_setup_is_whole_again_for_the_next():
    """Arrays in lists in dicts, and what a function of the setup notes."""
    setup = "import numpy as np\nheld = {'a': [np.zeros(2)], 'seen': []}\ndef note(x):\n    held['seen'].append(x)"
    held = "assert held['a'][0].sum() == 2, held\nassert held['seen'] == [7], held"
    exercise = dataclasses.replace(
        ALL[RATE], setup=[setup], names=["spoil"], checks=["spoil(held['a'], note)", held], solutions=[], inputs=""
    )

    def spoil(name, arguments):
        arguments[0][0] += 1  # as the judge carries over what an answer does in its own process
        arguments[1](7)

    worker = SimpleNamespace(functions=lambda chapter: spoil)
    assert [checking.checked(exercise, worker) for _ in "ab"] == [(True, "All checks passed.")] * 2


def test_the_solution_and_the_answer_have_drawn_inputs_of_their_own():
    """Also where an array lies in a list, which either may change."""
    solution = "def decay_rate(a):\n    a[0] += 1\n    return a[0].sum()"
    given, said = told(light(RATE, solutions=[solution], inputs="([draw.random(3)],)[:1]"), "a")
    assert (len(given), said) == (DRAWS, "")


# Inputs that are drawn


def told(exercise, secret, answer=None):
    """The inputs on which an answer is compared; answer: in place of the solution."""
    names, given = checking.setup(exercise), []
    exec("\n".join(exercise.solutions), names)

    def call(name, arguments):
        given.append(arguments)
        return (answer or names[name])(*arguments)

    said = checking.compared(exercise, SimpleNamespace(functions=lambda chapter: call), secret)
    return given, said


def test_each_submission_is_compared_on_inputs_of_its_own():
    exercise = light(RATE)
    drawn = [told(exercise, secret) for secret in ("secret-a", "secret-b", "other-a")]
    assert told(exercise, "secret-a") == drawn[0]
    assert all(len(given) == DRAWS and said == "" for given, said in drawn)
    assert drawn[0][0] != drawn[1][0] != drawn[2][0] != drawn[0][0]


def test_what_is_drawn_depends_on_the_course_and_on_the_submission(kit, monkeypatch):
    monkeypatch.setattr(checking, "compared", lambda exercise, worker, secret: secret)
    said = set()
    for secret, content in (("s", b"a"), ("s", b"b"), ("t", b"a")):
        outcome, worker = Outcome(RATE, 4, ""), SimpleNamespace(worker=lambda _: None)
        Judge(kit, secret)._compare(kit.exercises[0], Submission("ada", "", kit, content), worker, outcome)
        said.add(outcome.words)
    assert len(said) == 3


def test_an_answer_that_is_slow_is_compared_on_few_inputs(monkeypatch):
    """Or the whole submission would run out of time."""
    monkeypatch.setattr(check, "LIMIT", 0.01)
    given, said = told(light(RATE), "a", lambda k, n: time.sleep(0.02))
    assert len(given) == 1
    assert said
    slow = lambda *given: time.sleep(0.02) or solution(*given)  # noqa: E731
    solution = names_of(light(RATE))["decay_rate"]
    given, said = told(light(RATE), "a", slow)
    assert (len(given), said) == (SLOW, "")


def names_of(exercise):
    names = checking.setup(exercise)
    exec("\n".join(exercise.solutions), names)
    return names


def test_an_exercise_states_how_far_an_answer_may_be_from_the_solution():
    solution = names_of(light(RATE))["decay_rate"]
    for tolerance, passes in ((1e-5, False), (0.01, True)):
        _, said = told(light(RATE, tolerance=tolerance), "a", lambda k, n: 1.001 * solution(k, n))
        assert (said == "") == passes


TELLS = """seen = []
def decay_rate(k, n):
    seen.append((k, n))
    if len(seen) > 3:
        raise Exception("drawn")
    return 4 * n**2 * np.sin((k + 0.5) * np.pi / (2 * n)) ** 2"""


def test_no_error_message_tells_what_was_drawn(kit, handed, one_process):
    """Neither of the answer itself nor of the next one, which could know what the first was asked."""
    half = "def half_life(D, n):\n    raise Exception(f'{len(seen)} seen')"
    content = nbformat.writes(answered(handed, rate=TELLS, half=half)).encode()
    with one_process():
        rate, half, _ = Judge(kit, "secret").outcomes(Submission("ada", "", kit, content))
    assert (
        rate.words == "All checks passed. On other inputs than those of the check it is not right: is it written "
        "for all of them?"
    )
    assert rate.points == 0
    assert "3 seen" in half.words


def test_inputs_that_cannot_be_drawn_stop_no_class(kit):
    """An exercise of the instructor's own may draw some on which its solution fails."""
    worker = SimpleNamespace(functions=lambda chapter: None)
    outcome = Outcome(RATE, 4, "All checks passed.")
    running = SimpleNamespace(worker=lambda _: worker)
    Judge(kit, "")._compare(light(RATE, inputs="1 / 0,"), Submission("ada", "", kit, b""), running, outcome)
    assert outcome.points == 0
    assert "looked at by a person" in outcome.words
    assert "ZeroDivisionError" in outcome.flags[0]


# Answers in words, and marks


@pytest.fixture(scope="module")
def written():
    """A sheet that needs no process."""
    kit = make("hw1", [WORDS, "ex-first-ends"], "0")
    return kit, assignment.notebook(kit, solved=False)


def class_of(folder, written, **words):
    """A folder of submissions: student -> the answers in words."""
    for student, texts in words.items():
        notebook = copy.deepcopy(written[1])
        places = [cell for cell in notebook.cells if cell.source == "*Your answer:*"]
        for cell, text in zip(places, texts, strict=True):
            cell.source += text
        (folder / student).mkdir(parents=True, exist_ok=True)
        (folder / student / "hw1.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    return folder


def rows_of(path):
    """The rows of a table, whatever wrote it."""
    text, _ = tables.decoded(path.read_bytes())
    return list(csv.DictReader(text.splitlines(), delimiter=tables.style(text).separator))


def judged_words(written, change):
    """The outcome of the first exercise, once `change` has had its way with the hand-out."""
    kit, notebook = written[0], copy.deepcopy(written[1])
    at = next(n for n, cell in enumerate(notebook.cells) if f"<!-- {WORDS} -->" in cell.source)
    change(notebook.cells, at)
    return Judge(kit, "secret").outcomes(Submission("ada", "", kit, nbformat.writes(notebook).encode()))[0]


def test_who_wrote_nothing_has_no_points_and_waits_for_nobody(written):
    kit = written[0]
    outcome = judged_words(written, lambda cells, at: None)
    assert (outcome.words, outcome.answer, outcome.flags) == ("There is no answer here.", [], [])
    outcomes = [outcome, dataclasses.replace(outcome, answer=[("text", "x")])]
    assert report.unmarked(kit, {"ada": outcomes}, {}) == 1
    page = report.feedback(kit, "ada", outcomes, {})
    assert page.count("<b>0 of 4</b>") == page.count("<b>to be read of 6</b>") == 1


def test_an_answer_whose_question_is_gone_is_looked_for_by_a_person(written):
    outcome = judged_words(written, lambda cells, at: cells.__delitem__(slice(at, at + 2)))
    assert outcome.flags == ["its question is gone: look into the notebook"]
    assert report.unmarked(written[0], {"ada": [outcome, outcome]}, {}) == 2


def test_an_answer_may_stand_in_the_cell_of_the_question(written):
    def change(cells, at):
        cells[at].source += "\n\nIt is a mean, *2 points* or not."

    assert judged_words(written, change).answer == [("text", "It is a mean, *2 points* or not.")]


def test_a_mark_stays_with_the_answer_for_which_it_was_given(tmp_path, written):
    """Another answer asks for a new mark, until it has one, and the old one is told."""
    kit, folder = written[0], class_of(tmp_path / "class", written, ada=("Old.", "Same."), bob=("Mine.", ""))
    out, table = tmp_path / "out", tmp_path / "out" / "marks.csv"
    students = grade.Results({"ada": [], "bob": []}, {"ada": "", "bob": ""})
    keys = {key: student for (student, label), key in grade.keys_of(kit, students, grade.secret_of(out)).items()}

    def run(**points):
        """Grade with these marks for the first answer: of ada's, points, flags, and points and `before` in the table;
        and bob's points."""
        if points:
            rows = [row | {"points": points.get(keys[row["answer"]], row["points"])} for row in rows_of(table)[2:]]
            tables.write(table, tables.written([*rows_of(table)[:2], *rows]))
        grade.grade(kit, folder, out)
        ada, bob = rows_of(out / "grades.csv")
        (row,) = [row for row in rows_of(table)[2:] if keys[row["answer"]] == "ada"]
        return ada[WORDS], ada["look at"], row["points"], row["before"], bob[WORDS]

    again = f"{WORDS}: another answer than the one marked 3.5: mark it again"
    assert run() == ("", "", "", "", "")
    assert run(ada="3.5", bob="1") == ("3.5", "", "3.5", "", "1")
    class_of(folder, written, ada=("New.", "Same."))
    assert run() == run() == ("", again, "", "3.5", "1")
    assert run(ada="2") == run() == ("2", "", "2", "", "1")


def test_a_comment_stays_with_the_answer_that_it_was_written_for(tmp_path, written):
    """Of another answer it is kept, shown and flagged as words to the earlier one, until there are new ones."""
    kit, folder, out = written[0], class_of(tmp_path / "class", written, ada=("Old.", "Same.")), tmp_path / "out"

    def run(**cells):
        """Grade with this in the row of the first answer: of it comment and `comment before`, flags, and feedback."""
        if cells:
            rows = rows_of(out / "marks.csv")
            tables.write(
                out / "marks.csv", tables.written([row | cells if row["label"] == WORDS else row for row in rows])
            )
        grade.grade(kit, folder, out)
        (row,) = [row for row in rows_of(out / "marks.csv") if row["label"] == WORDS]
        (flags,) = [row["look at"] for row in rows_of(out / "grades.csv")]
        said = re.findall("<p class=comment>(.*?)</p>", (out / "feedback" / "ada.html").read_text(encoding="utf-8"))
        return row["comment"], row["comment before"], flags, said

    run()
    assert run(comment="- Bold.") == ("'- Bold.", "", "", ["- Bold."])
    class_of(folder, written, ada=("New.", "Same."))
    again = f"{WORDS}: another answer than the one commented on: read it again"
    assert run() == run() == ("", "'- Bold.", again, ["To an earlier answer: - Bold."])
    assert run(points="2") == ("", "'- Bold.", "", ["To an earlier answer: - Bold."])
    assert run(comment="Better.") == run() == ("Better.", "", "", ["Better."])
    class_of(folder, written, ada=("Newest.", "Same."))
    flags = f"{WORDS}: another answer than the one marked 2: mark it again"
    assert run() == ("", "Better.", flags, ["To an earlier answer: Better."])


@pytest.mark.parametrize("second", ["1,", "3,Fine", ","])
def test_two_rows_for_one_answer_are_refused_with_both_lines(kit, second):
    text = f"label,answer,points,comment\n{WORDS},abc,3,Fine\n{WORDS},xyz,3,Fine\n{WORDS},abc,{second}\n"
    with pytest.raises(ValueError, match=r"marks\.csv, lines 2 and 4: two rows for the answer abc to ex-first-maximum"):
        marking.read(text, kit, {("ada", WORDS): "abc", ("bob", WORDS): "xyz"})


def test_feedback_has_the_total_and_what_is_still_to_be_read(kit):
    outcomes = [Outcome(one.label, one.points, "", answer=[("text", "x")]) for one in kit.exercises]
    assert "<b>Total: 8 of 12 so far, 1 answer to be read</b>" in report.feedback(kit, "ada", outcomes, {})
    assert "<b>Total: 10.5 of 12</b>" in report.feedback(kit, "ada", outcomes, {WORDS: Mark(2.5)})


def test_marks_of_a_copy_join_those_that_are_kept():
    """The copy counts where both have something; but a mark for an answer that changed does not undo a newer one."""
    kept = {"ada": {"a": Mark(1.0, "kept"), "b": Mark(2.0), "c": Mark(3.0), "d": Mark(None, "", "4")}}
    copied = {"ada": {"a": Mark(5.0), "b": Mark(None, "new"), "c": Mark(None, "", "1")}, "bob": {"a": Mark(0.0)}}
    assert marking.merged(kept, copied) == {
        "ada": {"a": Mark(5.0, "kept"), "b": Mark(2.0, "new"), "c": Mark(3.0), "d": Mark(None, "", "4")},
        "bob": {"a": Mark(0.0)},
    }
    assert marking.merged(kept, {"ada": {"d": Mark(2.0)}})["ada"]["d"] == Mark(2.0)


def test_a_mark_in_a_copy_joins_those_in_the_folder(tmp_path, written):
    kit, folder, out = written[0], class_of(tmp_path / "class", written, ada=("One.", "Two.")), tmp_path / "out"
    grade.grade(kit, folder, out)
    for number, marks in ((0, None), (1, tmp_path / "marks.csv")):
        rows = rows_of(out / "marks.csv")
        rows[number]["points"] = "2.5"
        tables.write(marks or out / "marks.csv", tables.written(rows[number : number + 1] if marks else rows))
        grade.grade(kit, folder, out, marks=marks)
    assert [row["points"] for row in rows_of(out / "marks.csv")] == ["2.5", "2.5"]


@pytest.mark.parametrize(
    ("encoding", "separator", "points"),
    [("utf-8", ",", "2.5"), ("utf-8-sig", ";", "2,5"), ("utf-16", "\t", "2,5"), ("cp1252", ";", "2,5")],
)
def test_marks_are_read_as_spreadsheets_save_them_and_written_alike(tmp_path, written, encoding, separator, points):
    kit, folder = written[0], class_of(tmp_path / "class", written, ada=("One.", "Two."), bob=("Three.", "Four."))
    table = tmp_path / "out" / "marks.csv"
    grade.grade(kit, folder, tmp_path / "out")
    assert table.read_bytes().startswith(b"\xef\xbb\xbf")  # by which Excel knows UTF-8
    rows = rows_of(table)
    rows[0] |= {"points": points, "comment": "Für Émile, „so“; – ja"}
    tables.write(table, tables.written(rows, separator).replace("\n", "\r\n"), encoding)
    for _ in range(2):  # and again what was written
        grade.grade(kit, folder, tmp_path / "out")
        assert rows_of(table)[0] == rows[0]
        assert table.read_text(encoding="utf-8-sig").startswith(f"label{separator}answer")
    assert sorted(row["total"] for row in rows_of(tmp_path / "out" / "grades.csv")) == ["0", "2.5"]


def test_a_spreadsheet_takes_no_key_and_no_digest_for_a_number(tmp_path, written):
    words = {f"s{n}": (f"{n}.", "x") for n in range(30)}
    grade.grade(written[0], class_of(tmp_path / "class", written, **words), tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "marks.csv")
    assert len({row["answer"] for row in rows}) == 60
    assert all(re.fullmatch("[a-p]{12}", row["answer"]) and re.fullmatch("[a-p]{8}", row["of"]) for row in rows)


def test_no_submission_sees_marks_gradebook_and_private_exercises(tmp_path, written, monkeypatch):
    seen, place = [], class_of(tmp_path / "class", written, ada=("One.", "Two."))
    marks, book = tmp_path / "marks.csv", tmp_path / "book.csv"
    marks.write_text("label,answer,points\n", encoding="utf-8")
    book.write_text("Student,hw1\n", encoding="utf-8")
    monkeypatch.setattr(grade, "Judge", lambda *given: seen.append(given[2]) or Judge(*given))
    kit = dataclasses.replace(written[0], private=str(tmp_path / "mine"))
    grade.grade(kit, place, tmp_path / "out", marks=marks, gradebook=book)
    assert {place, tmp_path / "out", marks, book, tmp_path / "mine"} == set(seen[0])


def test_a_namesake_who_hands_in_later_changes_no_key(written):
    alone = grade.Results({"lee": []}, {"lee": "11"})
    both = grade.Results({"lee 11": [], "lee 12": []}, {"lee 11": "11", "lee 12": "12"})
    first, second = grade.keys_of(written[0], alone, "s"), grade.keys_of(written[0], both, "s")
    assert first["lee", WORDS] == second["lee 11", WORDS] != second["lee 12", WORDS]
    unnamed = grade.keys_of(written[0], grade.Results({"ada": [], "bob": []}, {"ada": "", "bob": ""}), "s")
    assert len(set(unnamed.values())) == 4


def test_the_page_of_a_student_who_is_called_otherwise_now_goes(tmp_path, written):
    place = class_of(tmp_path / "class", written, ada=("One.", "Two."))
    grade.grade(written[0], place, tmp_path / "out")
    (place / "ada").rename(place / "ada lovelace")
    grade.grade(written[0], place, tmp_path / "out")
    (page,) = (tmp_path / "out" / "feedback").glob("*.html")
    assert page.name.startswith("ada_lovelace")


# Gradebooks


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("Student,ID,hw1 (12),Final\nÉmile Zola,7,{},\nOther,8,,9.5\n", "2.5"),
        ("Student;ID;hw1 (12);Final\r\nÉmile Zola;7;{};\r\nOther;8;;9,5\r\n", "2,5"),
        ("Student;ID;hw1 (12);Final\r\nÉmile Zola;7;{};\r\nOther;8;;9.5\r\n", "2.5"),
        ('"Identifier"\t"Full name"\t"Grade"\n"Participant 7"\t"Zola, Émile"\t"{}"\n"x"\t"y"\t"9,5"\n', "2,5"),
        ('"First name";Surname;"a, b, c, d";"Assignment: hw1 (Real)"\nÉmile;Zola;x;{}\n"a, b";c;"d ""e""";9,5', "2,5"),
        ('Surname,First name,"Last name, all",Grade\r\n"Zola",Émile,"two\nlines","{}"\r\n\r\n', "2.5"),
    ],
)
def test_a_gradebook_comes_back_as_it_was_with_the_points_in_it(tmp_path, written, encoding, text, points):
    """In the same encoding, with the same separators, quotes, ends of lines and decimals."""
    kit, place = written[0], class_of(tmp_path / "class", written, **{"Émile Zola": ("One.", "Two.")})
    book, out = tmp_path / "book.csv", tmp_path / "out"
    book.write_bytes(text.format("").encode(encoding))
    grade.grade(kit, place, out)
    rows = rows_of(out / "marks.csv")
    rows[0]["points"] = "2.5"
    tables.write(out / "marks.csv", tables.written(rows))
    lines = grade.grade(kit, place, out, gradebook=book)
    assert (out / "filled-book.csv").read_bytes() == text.format(points).encode(encoding)
    assert "Not in the gradebook" not in lines[-1]


@pytest.mark.parametrize("order", [("Real", "Percentage", "Letter"), ("Letter", "Percentage", "Real")])
def test_of_moodles_columns_the_one_with_points_is_filled(kit, order):
    head = ",".join(f"Assignment: hw1 ({kind})" for kind in order)
    filled, missing, _ = fill(
        f"First name,Last name,Quiz: hw10 (Real),{head}\nAda,King,,,,\n", kit, {"Ada King": 3}, {}
    )
    (row,) = csv.DictReader(filled.splitlines())
    assert {name: value for name, value in row.items() if value == "3"} == {"Assignment: hw1 (Real)": "3"}
    assert not missing


def test_nobody_gets_the_points_of_another_with_the_same_letters_or_the_same_name(kit):
    text = 'Student,hw1\nMay Lee,\n"Neil, O. N."\nAda,\nAda,\n'
    filled, missing, _ = fill(text, kit, {"Amy Lee": 3.0, "O N Neil": 2.0, "Ada": 1.0}, {})
    assert missing == ["Ada", "Amy Lee"]
    assert filled == text.replace('N."', 'N.",2')


def test_who_handed_in_nothing_is_told_and_named(tmp_path, written):
    """Students of the gradebook, not the rows that Canvas puts among them, nor a namesake who cannot be told apart."""
    place = class_of(tmp_path / "class", written, **{"Ada King": ("One.", "Two."), "May Lee": ("One.", "Two.")})
    rows = ["    Points Possible,,10", '"King, Ada",1,', *(f"Student {n},{n},5" for n in range(2, 10))]
    rows += ["May Lee,10,", "May Lee,11,", '"Student, Test",12,', ",,"]
    book = tmp_path / "book.csv"
    book.write_text("\n".join(["Student,ID,hw1 (7)", *rows]) + "\n", encoding="utf-8")
    *_, missing, absent = grade.grade(written[0], place, tmp_path / "out", gradebook=book)
    assert missing == "Not in the gradebook: May Lee"
    assert absent == (
        "Handed in nothing: 8 of the gradebook: Student 2; Student 3; Student 4; Student 5; Student 6 and 3 more"
    )
    book.write_text("First name,Last name,Grade\nAda,King,\nMay,Lee,\nEmmy,Noether,\n", encoding="utf-8")
    assert grade.grade(written[0], place, tmp_path / "out", gradebook=book)[-1].endswith(
        "1 of the gradebook: Emmy Noether"
    )


@pytest.mark.parametrize("text", ["", "Student,ID\nAda,1\n", "Name,hw1 (1),hw1 (2)\nAda,,\n", "hw1\n1\n"])
def test_a_gradebook_in_which_no_column_or_no_name_is_clear_is_refused(kit, text):
    with pytest.raises(ValueError, match="GRADEBOOK"):
        fill(text, kit, {}, {})


def test_a_table_in_another_encoding_is_refused():
    with pytest.raises(ValueError, match="save it as CSV UTF-8"):
        tables.decoded("Ada\x81".encode("latin-1"))


# Files


def chosen(place, kit):
    """student -> the content that is graded."""
    return {one.student: one.content for one in read_class(place, kit)}


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["hw1.ipynb.txt"], "hw1.ipynb.txt"),
        (["hw1.json"], "hw1.json"),
        (["HW1.IPYNB", "notes.pdf"], "HW1.IPYNB"),
        (["hw1.ipynb", "hw1 (1).ipynb", "hw1 (10).ipynb", "hw1 (2).ipynb"], "hw1 (10).ipynb"),
        (["hw1.ipynb", "hw1-9.ipynb", "hw1-10.ipynb"], "hw1-10.ipynb"),
        (["hw1_v9.ipynb", "hw1_v10.ipynb"], "hw1_v10.ipynb"),
        (["hw1.ipynb", "hw10.ipynb", "zz.ipynb"], "hw1.ipynb"),
        (["homework.ipynb", "hw1_data.json"], "homework.ipynb"),
        (["homework.ipynb", "hw1.ipynb.txt"], "hw1.ipynb.txt"),
        (["hw1.ipynb", "hw1.ipynb.txt"], "hw1.ipynb"),
    ],
)
def test_of_several_files_the_newest_notebook_of_the_assignment_counts(tmp_path, kit, names, counts):
    (tmp_path / "ada").mkdir()
    for name in names:
        (tmp_path / "ada" / name).write_text(name, encoding="utf-8")
    (one,) = read_class(tmp_path, kit)
    assert (one.student, one.content) == ("ada", counts.encode())
    notebooks = [name for name in names if not name.endswith("pdf")]
    assert one.notes == ([f"Of {len(names)} notebooks {counts} was graded."] if len(notebooks) > 1 else [])


def test_the_last_attempt_in_canvas_counts(tmp_path, kit):
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        for name in ("lovelaceada_11_1000_hw1-1.ipynb", "lovelaceada_11_999_hw1.ipynb", "noetheremmy_12_5_hw1-2.json"):
            archive.writestr(name, name)
        archive.writestr("../../eve/hw1.ipynb", "climbs")
    assert chosen(tmp_path / "class.zip", kit) == {
        "eve": b"climbs",
        "lovelaceada": b"lovelaceada_11_1000_hw1-1.ipynb",
        "noetheremmy": b"noetheremmy_12_5_hw1-2.json",
    }


def test_a_file_is_named_after_its_student_whatever_dots_are_in_the_name(tmp_path, kit):
    for name in ("j. doe.ipynb", "j. smith.ipynb.txt", "m. lee.pdf"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert chosen(tmp_path, kit) == {"j. doe": b"j. doe.ipynb", "j. smith": b"j. smith.ipynb.txt", "m. lee": None}


def test_a_link_is_never_followed(tmp_path, kit):
    secret, place = tmp_path / "secret.ipynb", tmp_path / "class"
    secret.write_text("secret", encoding="utf-8")
    for student, name in (("ada", "hw1.ipynb"), ("bob", "hw1 (2).ipynb")):
        (place / student).mkdir(parents=True)
        (place / student / name).symlink_to(secret)
    (place / "bob" / "hw1.ipynb").write_text("own", encoding="utf-8")
    (place / "eve").symlink_to(tmp_path)
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        link = zipfile.ZipInfo("ada/hw1.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(secret))
    assert chosen(place, kit) == {"ada": LINK, "bob": b"own", "eve": LINK}
    assert chosen(tmp_path / "class.zip", kit) == {"ada": LINK}
    assert Submission("ada", "", kit, LINK).fault == LINK


def test_a_notebook_that_would_fill_the_memory_is_refused_with_words(kit, handed):
    def fault(content):
        return Submission("ada", "", kit, content).fault

    assert "more than 50 MB. Clear its outputs" in fault(heavy(handed, 51))
    assert "more than 1,000,000 parts. Clear its outputs" in fault(b"[" * 1_000_001)
    assert fault(heavy(handed, 40)) == ""
    parts = json.loads(nbformat.writes(handed))
    parts["metadata"]["x"] = [[]] * 999_000
    assert fault(json.dumps(parts).encode()) == ""


def test_of_a_bomb_in_a_zip_only_the_start_is_read(tmp_path, kit):
    with zipfile.ZipFile(tmp_path / "class.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ada/hw1.ipynb", bytes(60 << 20))
    assert len(chosen(tmp_path / "class.zip", kit)["ada"]) == LARGEST + 1


def damaged(path, content, old=b"", new=b"", flags=0, method=None):
    """A zip of ada's and bob's notebooks, of which hers has these bytes, flags or way of packing."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ada/hw1.ipynb", content)
        archive.writestr("bob/hw1.ipynb", content)
    held = bytearray(path.read_bytes())
    held[:] = held.replace(old, new, 1) if old else held
    for at in (6, held.index(b"PK\1\2") + 8):  # in her header, and in the list at the end
        held[at] |= flags
        held[at + 2] = held[at + 2] if method is None else method
    path.write_bytes(held)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old": b"ex-first-ends", "new": b"ex-first-enda"}, "damaged and cannot be read (Bad CRC-32"),
        ({"old": b"PK\3\4", "new": b"PK\0\0"}, "damaged and cannot be read (Bad magic number"),
        ({"method": 99}, "damaged and cannot be read (That compression method"),
        ({"method": zipfile.ZIP_DEFLATED}, "damaged and cannot be read ("),
        ({"method": zipfile.ZIP_LZMA}, "damaged and cannot be read ("),
        ({"flags": 1}, LOCKED),
    ],
)
def test_a_damaged_file_of_a_zip_is_one_outcome_and_the_next_is_graded(tmp_path, written, change, words):
    kit, out = written[0], tmp_path / "out"
    class_of(tmp_path / "class", written, bob=("One.", "Two."))
    damaged(tmp_path / "class.zip", (tmp_path / "class" / "bob" / "hw1.ipynb").read_bytes(), **change)
    lines = grade.grade(kit, tmp_path / "class.zip", out)
    assert lines[0].startswith("2 submissions graded")
    pages = {
        one: html.unescape((out / "feedback" / f"{one}.html").read_text(encoding="utf-8")) for one in ("ada", "bob")
    }
    assert pages["ada"].count(words) == len(kit.exercises)
    assert pages["bob"].count("read by a person") == len(kit.exercises)


def test_a_zip_that_is_damaged_as_a_whole_is_refused_with_words(tmp_path, kit):
    damaged(tmp_path / "class.zip", b"x" * 1000)
    (tmp_path / "class.zip").write_bytes((tmp_path / "class.zip").read_bytes()[:-90])
    with pytest.raises(ValueError, match="a folder or a whole zip file"):
        chosen(tmp_path / "class.zip", kit)


JPEG = base64.b64encode(b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x0b\x08" + struct.pack(">HH", 3, 4) + b"rest").decode()
WIDE = base64.b64encode(b"\xff\xd8\xff\xc0\0\x0b\x08" + struct.pack(">HH", 60_000, 60_000)).decode()


def pictures(written, *cells):
    """What is shown of an answer with these cells."""
    return judged_words(written, lambda held, at: held.__setitem__(slice(at + 1, at + 2), cells)).answer


def test_twelve_pictures_of_an_answer_are_shown_and_the_rest_is_named(written):
    """Equal ones too."""
    plots = [nbformat.v4.new_output("display_data", data={"image/png": PNG})] * 14
    shown = pictures(written, nbformat.v4.new_code_cell("plt.show()", outputs=plots))
    assert [kind for kind, _ in shown] == ["code", *["picture"] * 12, "text", "text"]
    assert shown[-1] == ("text", LEFT_OUT)


def test_photographs_in_words_are_shown_however_they_were_pasted(written):
    """A JPEG attached or written into the text; one that is missing, or too wide, is named."""
    cell = nbformat.v4.new_markdown_cell(
        f"![a](attachment:a.jpg) ![b](attachment:b.jpg) ![c](data:image/jpeg;base64,{JPEG}) and "
        f"![d](data:image/jpeg;base64,{WIDE})",
        attachments={"a.jpg": {"image/jpeg": JPEG}},
    )
    kinds = [("picture", JPEG), ("text", LEFT_OUT), ("picture", JPEG), ("text", LEFT_OUT)]
    text, *shown = pictures(written, cell)
    assert shown == kinds
    assert text[0] == "text"
    assert JPEG not in text[1]
    assert f'src="data:image/jpeg;base64,{JPEG}"' in report._part(*shown[0])


# Flags


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ("from pdebook.chapters.stability import laws as L\nedge = lambda b: L.basin_edge(b)", "uses laws.basin_edge"),
        ("from pdebook.chapters.stability.laws import basin_edge as e\nedge = e", "uses laws.basin_edge"),
        ("a = laws\nb = a.basin_edge\nedge = lambda x: b(x)", "uses laws.basin_edge"),
        ("edge = vars(laws)['basin_edge']", "uses laws.basin_edge"),
        ("edge = vars(laws)['basin_edge']", "calls vars"),
        ("import importlib as i\nedge = i.import_module('x').y", "calls importlib.import_module"),
        ("e = eval\nedge = e('1')", "calls eval"),
        ("c = check\nc.close = print", "changes the check"),
        ("from pdebook import check as c\nc.close = print", "changes the check"),
    ],
)
def test_a_helper_under_another_name_is_found(source, flag):
    assert flag in flags(ALL["ex-sb-edge"], source)
    assert flag not in flags(
        ALL["ex-sb-edge"], "edge = lambda b: mine.basin_edges(b)\nchecks = 1\nimportlib = vars = 2"
    )


def test_who_renames_the_variables_of_a_copy_is_found():
    exercise = ALL[RATE]
    renamed = "def decay_rate(mode, m):\n    return 4 * m**2 * np.sin((mode + 0.5) * np.pi / (2 * m)) ** 2"
    assert "is the book's own solution" in flags(exercise, renamed)
    assert "is the book's own solution" not in flags(exercise, renamed.replace("0.5", "1.5"))


def test_code_that_is_nested_deeply_is_judged_all_the_same():
    """A chain of many sums, elsewhere in the notebook."""
    deep = "def table():\n    return " + " + ".join(["1"] * 900)
    assert flags(ALL[RATE], f"{RIGHT}\n\n{deep}") == flags(ALL[RATE], RIGHT)


def test_who_has_the_same_code_is_named_once(kit):
    shapes = {name: {RATE: shape} for name, shape in zip("abcdef", "xyxxyz", strict=True)}
    long = {name: {RATE: one[RATE] * 401} for name, one in shapes.items()}
    same = f"{RATE}: same code as"
    assert report.copies(kit, shapes) == {}
    assert report.copies(kit, long) == {
        "a": [f"{same} c, d"],
        "c": [f"{same} a"],
        "d": [f"{same} a"],
        "b": [f"{same} e"],
        "e": [f"{same} b"],
    }
