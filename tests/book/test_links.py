"""How the book turns what a notebook stores into links."""

from pathlib import Path

import book_extension
import pytest

from pdebook import ledger

ROOT = Path(__file__).parents[2]
TITLES = {"first_look": "Heat & tokens", "ledger": "The ledger"}
BOXED = {"first_look": {"box-p1-eq8"}}
OPTIONS = {"repository_url": "https://github.com/us/book", "repository_branch": "trunk"}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ('<span class="chapter">first_look</span>', '<a href="first_look.html">Heat &amp; tokens</a>'),
        ('<span class="chapter">later_on</span>', "later on (to come)"),
        (
            '<span class="chapter" data-box="box-p1-eq8">first_look</span>',
            '<a href="first_look.html#box-p1-eq8">Heat &amp; tokens</a>',
        ),
        (
            '<span class="chapter" data-box="box-other">first_look</span>',
            '<a href="first_look.html">Heat &amp; tokens</a>',
        ),
        ('<span class="chapter" data-box="box-p1-eq8">later_on</span>', "later on (to come)"),
        (
            '<option value="first_look" data-words="first look">first look</option>',
            '<option value="first_look" data-words="Heat &amp; tokens">Heat &amp; tokens</option>',
        ),
        ('<option value="fails" data-words="fails">fails</option>',) * 2,
        ('<a href="ledger.ipynb#claim-p1-eq8">x</a>', '<a href="ledger.html#claim-p1-eq8">x</a>'),
    ],
)
def test_a_chapter_becomes_a_link_to_its_box_if_both_are_there(stored, shown):
    assert book_extension.link_pages(stored, TITLES, BOXED) == shown


def test_a_page_of_evidence_is_one_folder_further_down():
    stored = '<span class="chapter">first_look</span> <a href="ledger.ipynb#claim-p1-eq8">x</a>'
    shown = '<a href="../first_look.html">Heat &amp; tokens</a> <a href="../ledger.html#claim-p1-eq8">x</a>'
    assert book_extension.link_pages(stored, TITLES, BOXED, "../") == shown


def test_a_place_in_the_code_is_a_link_only_where_the_repository_is_known():
    stored = '<code class="source">tests/test_a.py::test_b</code>'
    assert book_extension.link_sources(stored, {"repository_url": ""}, {}) == stored
    address = "https://github.com/us/book/blob/trunk/tests/test_a.py"
    assert book_extension.link_sources(stored, OPTIONS, {}) == f'<a href="{address}">{stored}</a>'
    assert book_extension.link_sources("<code>no place</code>", OPTIONS, {}) == "<code>no place</code>"
    lines = {"tests/test_a.py::test_b": 12}
    assert book_extension.link_sources(stored, OPTIONS, lines) == f'<a href="{address}#L12">{stored}</a>'


def test_every_piece_of_evidence_leads_to_the_line_where_it_begins():
    lines = book_extension.lines(ROOT)
    for row in ledger.rows(ledger.judge_all()):
        for place in row["from"].split():
            file, _, name = place.partition("::")
            begins = (ROOT / file).read_text(encoding="utf-8").splitlines()[lines[place] - 1]
            assert begins.startswith((f"def {name}(", f"{name} = ")), place


def test_the_boxes_of_a_notebook_are_found(tmp_path):
    (tmp_path / "one.ipynb").write_text(r'{"text/html": "<section id=\"box-p1-eq6-7\" class=\"x\">"}')
    (tmp_path / "two.ipynb").write_text("{}")
    assert book_extension.boxes(tmp_path) == {"one": {"box-p1-eq6-7"}, "two": set()}
