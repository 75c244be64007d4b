"""HTML for a notebook and for the book's pages."""

import html
import re

from markupsafe import Markup


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
