"""MyST as plain Markdown, with the numbers that the built pages have."""

import re

import pytest
from exercises import ROOT
from plain import numbers, pages, parts, plain

HTML = ROOT / "_build" / "html" / "book"
SHOWN = re.compile(r'class="(?:caption-number|eqno)">(?:(\w+)\.? )?\(?([\d.]+)')


@pytest.mark.parametrize("page", pages())
def test_everything_has_the_number_of_the_built_page(page):
    built = SHOWN.findall((HTML / f"{page}.html").read_text(encoding="utf-8"))
    shown = sorted((kind.replace("Fig", "Figure") or "Equation", number) for kind, number in built)
    assert sorted((name.kind, name.number) for name in numbers().values() if name.page == page) == shown


def test_a_directive_becomes_a_quotation_with_its_number_and_a_hint_a_click():
    text = """````{exercise} Rate, ★★, 20 min
:label: ex-first-rate

Find $r$
of {eq}`eq-first-heat`.

:::{admonition} Hint 1
:class: dropdown
Look.
:::

:::{admonition} Hint 2
:class: dropdown
Closer.
:::
````
After."""
    assert plain(text, "first_look").splitlines() == [
        "> **Exercise 1.1 (Rate, ★★, 20 min).**",
        ">",
        "> Find $r$",
        "> of (1.1).",
        "",
        "<details><summary>Hint 1</summary>",
        "",
        "Look.",
        "",
        "</details>",
        "",
        "<details><summary>Hint 2</summary>",
        "",
        "Closer.",
        "",
        "</details>",
        "",
        "After.",
    ]


def test_a_formula_is_one_line_with_its_number_and_none_breaks_in_a_quotation():
    text = "```{math}\n:label: eq-first-heat\na = b\n+ c\n```\n> see $x +\ny$"
    assert plain(text, "first_look") == "$$ a = b + c \\tag{1.1} $$\n\n> see $x + y$"


def test_references_become_words():
    links = "{doc}`the ledger <ledger>` {doc}`notation` {prf:ref}`prop-first-ends` {ref}`here <x>`"
    assert plain(links, "first_look") == "*the ledger* *Notation* Proposition 1.1 here"
    assert plain("{cite:p}`zhang2024unified`", "first_look") == "(Zhang, 2024)"
    assert plain("{cite:t}`vanleer1974towards`", "first_look") == "van Leer (1974)"
    assert plain("{cite:t}`garciatrillos2015rate`", "first_look") == "García Trillos and Slepčev (2015)"
    assert plain("so[^why].\n\n[^why]: Because.", "first_look") == "so (see the note *why*).\n\n*Note (why).* Because."


@pytest.mark.parametrize(("title", "heading"), [("", "Remark"), (" T", "Remark (T)")])
def test_a_block_without_a_label_has_its_kind_as_heading(title, heading):
    assert plain(f"```{{prf:remark}}{title}\na\n```", "first_look") == f"> **{heading}.**\n>\n> a"


def test_a_block_ends_with_as_many_marks_as_it_began():
    (block,) = parts("::::{admonition} T\n:class: tip\na\n:::{admonition} U\nb\n:::\n::::")
    assert (block.kind, block.title, block.options, len(block.body)) == ("admonition", "T", {"class": "tip"}, 4)


def test_a_formula_in_a_list_stays_in_its_entry():
    text = "1. A law,\n\n   ```{math}\n   :label: eq-first-heat\n   a = b\n   ```\n\n   and more."
    assert plain(text, "first_look") == "1. A law,\n\n   $$ a = b \\tag{1.1} $$\n\n   and more."
