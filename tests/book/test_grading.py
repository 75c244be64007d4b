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
import struct
import zipfile
from pathlib import Path

import assignment
import grade
import nbformat
import pytest
from exercises import BOOK, chapters, exercises, read_source, says, stub
from grading import codec, isolation, report
from grading.judge import Judge, Worker
from grading.kit import Kit, Unknown, catalogue, facts, make
from grading.submissions import Submission, read_class, without_magics

import pdelab

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


def heavy(notebook):
    """With outputs of 200 MB."""
    held = json.loads(nbformat.writes(notebook))
    code = next(cell for cell in held["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * (200 << 20)}]
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
        "200-mb": heavy(right),
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
    "200-mb": (4, 4, "All checks passed", ""),
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


def write(folder, files):
    for name, file in files.items():
        (folder / name).mkdir(parents=True)
        content = file if isinstance(file, bytes) else nbformat.writes(file).encode()
        (folder / name / "hw1.ipynb").write_bytes(content)


@pytest.fixture(scope="module")
def graded(tmp_path_factory, kit, handed):
    """The class, graded once: the rows of grades.csv by student, and the folder."""
    folder = tmp_path_factory.mktemp("class")
    write(folder / "handed-in", class_of_thirty(handed))
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
    outcome = report.Outcome(RATE, 4, "All checks passed.", answer=submission.answer(kit.exercises[0]))
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
    rows = list(csv.DictReader((folder / "graded" / "marks.csv").read_text(encoding="utf-8").splitlines()))
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
    outcomes = [report.Outcome(one.label, one.points, "") for one in kit.exercises]
    marks = {"ada": {RATE: report.Mark(1.0), HALF: report.Mark(None, "Why?")}}
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
    monkeypatch.setattr(Judge, "outcomes", lambda *_: [count.append(1), *[report.Outcome("x", 0, "")] * 3][1:])
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
        report.read_marks(f"label,answer,points\n{row}\n", kit, keys)


def test_marks_that_a_spreadsheet_saved_with_semicolons_are_not_passed_over(kit):
    with pytest.raises(ValueError, match="must begin with the line label,answer,points,comment"):
        report.read_marks(f"label;answer;points\n{WORDS};abc123;1\n", kit, {})


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
    filled, missing = report.fill(text, kit, {student: 7.5, "nobody": 1.0}, {student: number})
    before, after = (list(csv.reader(one.splitlines())) for one in (text, filled))
    column = next(n for n, name in enumerate(before[0]) if name.startswith(("hw1", "Grade")))
    changed = [(r, c) for r, row in enumerate(before) for c, value in enumerate(row) if after[r][c] != value]
    assert [(c, after[r][c]) for r, c in changed] == [(column, "7.5")]
    assert missing == ["nobody"]
    assert ("\r\n" in filled) == ("\r\n" in text)


def test_a_gradebook_without_the_column_is_refused(kit):
    with pytest.raises(ValueError, match="a column hw1"):
        report.fill("Student,ID\nAda,1\n", kit, {}, {})


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


ALL = catalogue()
CODED = [(path.stem, one) for path in chapters() for one in exercises(read_source(path), path.stem) if one.coded]


@pytest.fixture(scope="module")
def judged():
    """(judge, worker) of a chapter, whose setup both run once."""
    made = {}

    def of(chapter):
        if chapter not in made:
            judge = Judge(make(chapter, [chapter], "0"), "secret")
            made[chapter] = judge, Worker(judge.hidden)
        return made[chapter]

    yield of
    for _, worker in made.values():
        worker.close()


@pytest.mark.parametrize(("chapter", "one"), CODED, ids=[one.label for _, one in CODED])
def test_every_known_answer_is_judged_as_in_the_kernel(judged, chapter, one):
    """Solution, stub and wrong answers of the book, through the pipe: the same verdict and the same words."""
    judge, worker = judged(chapter)
    exercise = next(e for e in judge.kit.exercises if e.label == one.label)
    solution = "\n\n".join(cell.source for cell in one.solutions if cell.cell_type == "code")
    known = [(solution, "All checks passed."), (stub(solution), "is yours to write")]
    known += [(f"{solution}\n\n{cell.source}", says(cell)) for cell in one.wrong]
    for number, (source, words) in enumerate(known):
        worker.begin(chapter, exercise.setup, [(1, source)])
        passed, said = judge._checked(exercise, worker)
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


@pytest.mark.parametrize(
    "cell",
    [
        PIPE.format('b"[" * 200000 + b"\\n"'),
        PIPE.format('b\'{"problems": 5, "functions": 5}\\n\''),
        PIPE.format('b\'{"problems": [], "functions": 5}\\n\''),
        'raise Exception("\\ud800")',
        "def decay_rate(k, n):\n    return " + " + ".join(["k"] * 3000),
    ],
)
def test_no_submission_stops_the_class(kit, handed, tmp_path, cell):
    files = {"first": answered(handed, extra=[cell]), "second": answered(handed)}
    write(tmp_path / "handed-in", files)
    grade.grade(kit, tmp_path / "handed-in", tmp_path / "graded")
    text = (tmp_path / "graded" / "grades.csv").read_text(encoding="utf-8")
    rows = {row["student"]: row for row in csv.DictReader(text.splitlines())}
    assert (rows["second"][RATE], rows["second"][HALF]) == ("4", "4")


@pytest.mark.skipif(isolation.kind() == isolation.HOOK, reason="no namespaces here")
def test_a_submission_that_forks_without_end_is_stopped_and_the_next_is_graded(kit, handed, tmp_path, monkeypatch):
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    write(tmp_path / "handed-in", {"first": answered(handed, extra=[bomb]), "second": answered(handed)})
    monkeypatch.setattr("grading.judge.START", 30.0)
    grade.grade(kit, tmp_path / "handed-in", tmp_path / "graded")
    text = (tmp_path / "graded" / "grades.csv").read_text(encoding="utf-8")
    assert [(row[RATE], row[HALF]) for row in csv.DictReader(text.splitlines())] == [("0", "0"), ("4", "4")]
    assert "took longer" in (tmp_path / "graded" / "feedback" / "first.html").read_text(encoding="utf-8")


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


@pytest.mark.parametrize(("chapter", "one"), CODED, ids=[one.label for _, one in CODED])
def test_what_the_page_shows_of_an_answer_is_flagged_as_an_answer(chapter, one):
    """The book's own solution, and every function that its check compares with, under the name that is asked for."""
    exercise = ALL[one.label]
    kit = Kit("hw1", "0", [exercise])

    def flags(source):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        return Submission("ada", "", kit, nbformat.writes(notebook).encode()).flags(exercise)

    solution = "\n\n".join(exercise.solutions)
    assert "is the book's own solution" in flags(f"# mine\n{solution}")
    assert "is the book's own solution" not in flags("\n\n".join(exercise.stubs))
    held = [node for source in exercise.checks for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for node in held:
        words = f"uses the check's {node.name}"
        assert words in flags(f"{exercise.names[0]} = {node.name}")
        node.name = exercise.names[0]
        assert words in flags(ast.unparse(node))


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
    outcomes = [report.Outcome(one.label, 0, "") for one in kit.exercises]
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
