"""Tables as spreadsheets read and write them: encodings, separators, decimals, and no formula from a stranger."""

import contextlib
import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pdelab.files import write_atomically

LETTERS = str.maketrans("0123456789", "ghijklmnop")


class Style(NamedTuple):
    """How a spreadsheet writes a table: what stands between columns, and whether numbers have a decimal comma."""

    separator: str = ","
    comma: bool = False

    def number(self, points: float) -> str:
        return f"{points:g}".replace(".", ",") if self.comma else f"{points:g}"


def short(text: str, length: int) -> str:
    """A digest in letters alone: a spreadsheet would take 12e45678 for a number."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest().translate(LETTERS)[:length]


def decoded(content: bytes) -> tuple[str, str]:
    """The text of a table and its encoding, as spreadsheets write them."""
    known = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    marked = [name for mark, name in known.items() if content.startswith(mark)]
    for encoding in (*marked, "utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode(encoding), encoding
    raise ValueError("a table is neither in UTF-8 nor in Windows' own encoding: save it as CSV UTF-8")


def style(text: str) -> Style:
    """Comma, semicolon or tab, whichever the first line has most of outside quotes; and how numbers are written."""
    separator = max(",;\t", key=re.sub('"[^"]*"', "", text.partition("\n")[0]).count)
    return Style(separator, separator != "," and bool(re.search(r"\d,\d", text)))


def written(rows: Sequence[Mapping], separator: str = ",") -> str:
    """Rows of the same columns as CSV."""
    made = io.StringIO()
    writer = csv.DictWriter(made, fieldnames=list(rows[0]), lineterminator="\n", delimiter=separator)
    writer.writeheader()
    writer.writerows({key: harmless(value) for key, value in row.items()} for row in rows)
    return made.getvalue()


def harmless(text: str) -> str:
    """No formula for a spreadsheet: a student may be called =HYPERLINK(…)."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def typed(text: str) -> str:
    """What stood there before `harmless` was applied."""
    return text[1:] if text == harmless(text[1:]) else text


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode(encoding, "backslashreplace"))  # half an emoji is no reason to stop
