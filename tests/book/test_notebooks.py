"""What nbval itself does not check: it compares nothing in a cell that was never run, and knows no text sources."""

import json
import re

import nbformat
import notebooks
import pictures
import pytest
from exercises import BOOK, ROOT, exercises, instructor_edition, page_name, read_source, sources

NAMES = [page_name(path) for path in sources()]


def stored(name):
    return nbformat.read(BOOK / f"{name}.ipynb", 4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_a_text_source_and_the_other_way_round():
    stored = [page_name(path) for path in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts]
    assert sorted(stored) == sorted(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if "/" in name])
def test_evidence_has_no_exercises(name):
    """They are the chapter's: the editions hold no evidence."""
    assert not exercises(read_source(BOOK / f"{name}.md"), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_notebook_is_what_its_source_says(name):
    source = instructor_edition(read_source(BOOK / f"{name}.md"))
    wanted, found = ([(c.cell_type, c.source, c.metadata) for c in nb.cells] for nb in (source, stored(name)))
    assert found == wanted, f"book/{name}.md was edited: run make notebooks CHAPTER={name}"


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_notebook_was_run_in_order_and_without_error(name):
    cells = code_cells(stored(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("name", NAMES)
def test_no_warning_is_stored(name):
    """What a library writes to stderr depends on the machine; it has no place on a page."""
    written = [o.text for cell in code_cells(stored(name)) for o in cell.outputs if o.get("name") == "stderr"]
    assert written == []


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_may_fail_or_be_skipped(name):
    forbidden = {"raises-exception", "nbval-raises-exception", "nbval-skip"}
    assert not [cell.source for cell in code_cells(stored(name)) if forbidden & set(cell.metadata.get("tags", []))]


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_picture_has_alternative_text(name):
    for cell in code_cells(stored(name)):
        if pictures.found(cell.outputs):
            assert len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) > 20, cell.source


@pytest.mark.parametrize("name", NAMES)
def test_no_words_of_a_figure_name_black_or_white_which_change_places_in_the_dark(name):
    for cell in code_cells(stored(name)):
        shown = cell.metadata.get("mystnb", {})
        words = [shown.get("image", {}).get("alt", ""), shown.get("figure", {}).get("caption", "")]
        words += [out["data"].get("text/html", "").partition("<script")[0] for out in cell.outputs if "data" in out]
        said = re.sub(r"data:[^\"']*|<svg.*?</svg>|style=\"[^\"]*\"", "", " ".join(words), flags=re.DOTALL)
        assert not re.findall(r".{30}\b(?:black|white)\b(?![ -](?:noise|box))", said, flags=re.IGNORECASE), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebooks_need_no_widget_manager_and_name_no_machine(name):
    text = (BOOK / f"{name}.ipynb").read_text(encoding="utf-8")
    assert "widget-view+json" not in text
    assert not re.search(r"/(home|root|Users|tmp)/", text)


@pytest.mark.parametrize("name", NAMES)
def test_the_run_time_given_is_the_one_measured(name):
    measured = json.loads((ROOT / "data" / "run_times.json").read_text())[name]["seconds"]
    pages = {f"{name}.md": r"\*\*Run time\*\*\s+under\s+(\d+)\s+s"}
    if "/" not in name and name != "intro":
        pages["intro.md"] = rf"`{name}`.*under (\d+) s"
    texts = {page: (BOOK / page).read_text(encoding="utf-8") for page in pages}
    given = {page: [int(n) for n in re.findall(words, texts[page])] for page, words in pages.items()}
    assert list(given.values())[-1], f"{list(pages)[-1]} gives no run time for {name}"
    assert all(measured <= seconds <= 90 for found in given.values() for seconds in found)


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_prose_begins_like_a_comment(name):
    """A per cent sign at the start of a line hides the line from the page."""
    assert not re.findall(r"^%.*", (BOOK / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_picture_of_the_readme_is_the_one_of_its_chapter():
    figure, file = notebooks.PICTURE
    named = {
        cell.metadata.get("mystnb", {}).get("figure", {}).get("name"): cell
        for cell in code_cells(stored("master_equation"))
    }
    cell = named[figure]
    assert cell.outputs[0].data["image/svg+xml"] + "\n" == file.read_text(encoding="utf-8")
    assert file.relative_to(ROOT).as_posix() in (ROOT / "README.md").read_text(encoding="utf-8")
