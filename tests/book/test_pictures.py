"""The comparison of notebooks notices another picture, and only that: tests/pictures.py, tests/conftest.py."""

import os
import subprocess
import sys
from copy import deepcopy

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pictures
import pytest
from exercises import ROOT
from nbclient import NotebookClient

from pdebook.kit import drawn

DRAW = """import matplotlib.pyplot as plt, numpy as np
from pdebook import plots
plots.use_style()
x = np.linspace(0, 6, 200)
_ = plt.plot(x, np.{curve}(x))
_ = plt.axis([0, 6, -1.1, 1.1])"""
WARN = "\nimport warnings; warnings.warn('a name will go', FutureWarning)"
REPLACED = ["itself", "another figure", "a blank figure", "one pixel", "nothing", "itself, and a warning"]


def blank(width, height):
    return {"image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"></svg>'}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the comparison says of a notebook whose every cell draws the same; its stored pictures were replaced."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(DRAW.format(curve=c)) for c in ("sin", "cos")])
    NotebookClient(notebook, kernel_name="python3", extra_arguments=["--log-level=ERROR"]).execute()
    sine, cosine = notebook.cells
    size = pictures.pictures(sine.outputs)[0].size

    notebook.cells = [nbformat.from_dict(deepcopy(sine) | {"id": f"cell-{n}"}) for n in range(len(REPLACED))]
    stored = {name: cell.outputs[0].data for name, cell in zip(REPLACED, notebook.cells, strict=True)}
    stored["another figure"].update(cosine.outputs[0].data)
    stored["a blank figure"].update(blank(*size))
    stored["one pixel"].update(blank(1, 1))
    del stored["nothing"]["image/svg+xml"]
    notebook.cells[-1].source += WARN

    folder = tmp_path_factory.mktemp("notebook")
    nbformat.write(notebook, folder / "replaced.ipynb")
    options = ["--nbval", "--nbval-current-env", "-c", os.devnull, "--rootdir", folder, "-rA"]
    beside = ROOT / "tests" / "children.py"  # brings conftest.py, as for the book, whose notebooks are not below it
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("tests", "tools", "book", ""))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, beside, folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize("name", ["itself", "itself, and a warning"])
def test_the_same_picture_passes(said, name):
    assert f"PASSED replaced.ipynb::Cell {REPLACED.index(name)}" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another figure", "picture 1 shows something else"),
        ("a blank figure", "picture 1 shows something else"),
        ("one pixel", "the stored one (1, 1)"),
        ("nothing", "1 pictures, stored are 0"),
    ],
)
def test_another_picture_fails_and_the_words_say_why(said, name, words):
    number = REPLACED.index(name)
    assert f"FAILED replaced.ipynb::Cell {number}" in said
    assert words in said.partition(f"Cell {number}: Cell outputs differ")[2].partition("Cell outputs differ")[0]


def test_a_warning_is_shown(said):
    assert "PytestWarning" in said
    assert "a name will go" in said


def figure(curve):
    fig, ax = plt.subplots()
    ax.plot(np.linspace(0, 6, 200), curve)
    ax.axis([0, 6, -1.1, 1.1])
    data, _ = drawn.picture(fig)
    plt.close(fig)
    return pictures.in_pixels(*data.popitem())


def test_a_curve_that_moves_by_a_twentieth_of_its_axis_is_another_picture():
    sine = np.sin(np.linspace(0, 6, 200))
    assert pictures.distance(figure(sine), figure(sine + 1e-6)) == 0
    assert pictures.distance(figure(sine), figure(sine + 0.11)) > pictures.TOLERANCE


def test_a_figure_is_drawn_as_svg_the_same_each_time_and_a_dense_cloud_as_sharp_png():
    def cloud(points):
        fig, ax = plt.subplots(figsize=(4, 3))
        ax.scatter(*np.random.default_rng(0).normal(size=(2, points)))
        found = drawn.picture(fig)
        plt.close(fig)
        return found

    (data, noted), again = cloud(20), cloud(20)
    assert list(data) == list(noted) == ["image/svg+xml"]
    assert (data, noted) == again

    data, noted = cloud(5000)
    assert list(data) == list(noted) == ["image/png"]
    assert pictures.in_pixels(*data.popitem()).width == pytest.approx(2 * noted["image/png"]["width"], abs=1)


def described(curve):
    fig, ax = plt.subplots()
    ax.semilogy(np.linspace(0, 6, 200), curve)
    found = drawn.describe(fig)
    plt.close(fig)
    return found


def test_the_numbers_behind_a_figure_notice_what_the_eye_does_not():
    curve = np.exp(np.linspace(0, 6, 200))
    stored = described(curve)
    assert pictures.moved(described(curve * (1 + 1e-6)), stored) == ""
    assert "numbers behind it" in pictures.moved(described(curve * 1.5), stored)
    assert "numbers behind it" in pictures.moved(described(curve**1.1), stored)
    assert "199 points, stored are 200" in pictures.moved(described(np.where(curve > 1, curve, np.nan)), stored)
    assert "other axes or curves" in pictures.moved([], stored)


def test_every_kind_of_artist_is_described():
    fig, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], [3, 5])
    left.scatter([1, 2, 3], [1, 1, 4])
    left.fill_between([0, 1], [0, 1])
    left.bar([1], [2])
    right.imshow([[0.0, 1.0], [2.0, 3.0]])
    ax, image = (one["artists"] for one in drawn.describe(fig))
    plt.close(fig)
    assert ax[0] == [2, 1.5, 0.5, 4.0, 1.0]
    assert ax[1][:2] == [3, 2.0]
    assert len(ax) == 4
    assert image == [[4, 1.5, 1.118]]


@pytest.mark.parametrize("path", sorted((ROOT / "book").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_every_stored_picture_has_its_numbers(path):
    outputs = [one for cell in nbformat.read(path, as_version=4).cells for one in cell.get("outputs", [])]
    assert None not in pictures.drawn(outputs)
