"""The figure pack: each stored picture of a page, with the words that belong to it."""

import csv

import figure_pack
import nbformat
from exercises import BOOK
from plain import plain


def test_every_stored_picture_of_a_page_comes_with_its_words(tmp_path):
    cells = nbformat.read(BOOK / "first_look.ipynb", 4).cells
    drawn = [cell.metadata.mystnb for cell in cells if "image/svg+xml" in str(cell.get("outputs"))]
    assert drawn
    assert figure_pack.write(["first_look"], tmp_path) == len(drawn)
    rows = list(csv.DictReader((tmp_path / "figures.csv").open(encoding="utf-8", newline="")))
    for row, shown in zip(rows, drawn, strict=True):
        assert row["file"] == f"{shown['figure']['name']}.svg"
        assert b"<svg" in (tmp_path / row["file"]).read_bytes()
        assert row["figure"].startswith("1.")
        assert (row["caption"], row["alt"]) == (plain(shown["figure"]["caption"], "first_look"), shown["image"]["alt"])
        assert row["licence"] == "CC BY 4.0"
    assert "CC BY 4.0" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_figure_has_the_number_of_its_page(tmp_path):
    """The captions that stand below figures in the notebooks to work in are counted elsewhere."""
    from editions import edition

    said = [c.source for c in edition("first_look", "instructor").cells if c.source.startswith("**Figure ")]
    for _, words in figure_pack.figures("first_look").values():
        assert f"**Figure {words['figure']}.** {words['caption']}" in said
