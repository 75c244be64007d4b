"""HTML for a notebook and for the book's pages."""

import html
import re
from collections.abc import Iterable, Sequence

from markupsafe import Markup

ROW, COLUMN = 'th scope="row"', 'th scope="col"'  # the headings of a table, as a screen reader wants them


class Page:
    """HTML that a notebook displays; formulas are typeset by the page or by JupyterLab."""

    def __init__(self, markup: str, text: str):
        self.markup, self.text = str(markup), text

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.text


def typeset(text: str) -> Markup:
    r"""Escape for HTML; $…$ becomes the delimiters that both MathJax and JupyterLab read.

    >>> print(typeset("$a<b$ & c"))
    \(a&lt;b\) &amp; c
    """
    return Markup(re.sub(r"\$([^$]+)\$", r"\\(\1\\)", html.escape(text, quote=False)))


def table(rows: Iterable[Sequence[object]], head: Sequence[str], caption: str = "") -> Page:
    """A real table: one row per sequence of words or numbers already rounded; formulas are written $…$.

    >>> table([("Euler", 1), ("Heun", 2)], ["method", "order"], "How fast the error falls")
    How fast the error falls
    method | order
    Euler | 1
    Heun | 2
    """
    lines = [[str(word) for word in row] for row in rows]
    if wrong := [line for line in lines if len(line) != len(head)]:
        raise ValueError(f"each row needs {len(head)} entries, as many as head has; not {wrong[0]}")

    def cells(words: Iterable[str], tag: str) -> str:
        return "".join(f"<{tag}>{typeset(word)}</{tag.split()[0]}>" for word in words)

    body = "".join(f"<tr>{cells(line[:1], ROW)}{cells(line[1:], 'td')}</tr>\n" for line in lines)
    title = f"<caption>{typeset(caption)}</caption>" if caption else ""
    label = html.escape(caption or ", ".join(head))
    markup = (
        f'<div class="measured mathjax_process" role="region" tabindex="0" aria-label="{label}">\n'
        f"<table>{title}\n<thead><tr>{cells(head, COLUMN)}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )
    text = "\n".join([caption] * bool(caption) + [" | ".join(line) for line in [list(head), *lines]])
    return Page(markup, text)
