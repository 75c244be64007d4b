"""HTML for a notebook and for the book's pages."""

import html
import re


class Page:
    """HTML that a notebook displays; formulas are typeset by the page or by JupyterLab."""

    def __init__(self, markup: str, text: str):
        self.markup, self.text = markup, text

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.text


def typeset(text: str) -> str:
    """Escape for HTML; $…$ becomes the delimiters that both MathJax and JupyterLab read."""
    return re.sub(r"\$([^$]+)\$", r"\\(\1\\)", html.escape(text, quote=False))


def reply_text(reply: dict) -> str:
    """A reply of the authors as it is printed: with its day, whole, as sent."""
    if not reply:
        return ""
    paragraphs = "".join(f"<p>{typeset(part)}</p>" for part in reply["text"].strip().split("\n\n"))
    return f'<blockquote class="reply"><p>{reply["date"].isoformat()}</p>{paragraphs}</blockquote>'
