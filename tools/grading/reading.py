"""What a notebook holds: its cells in words, code and pictures, or why it is none."""

import base64
import binascii
import json
import re
import struct

LARGEST, PARTS = 50 << 20, 1_000_000  # bytes of one notebook, and the lists and dicts in it: each takes memory
PICTURE, PIXELS, PICTURES = 4 << 20, 60_000_000, 12  # bytes and pixels of one, and how many of one answer are shown
INLINE = re.compile(r"data:image/[\w.+-]+;base64,([\w+/=]*)")
ATTACHED = re.compile(r"!\[[^\]]*\]\(\s*attachment:([^)\s]*)[^)]*\)")
LEFT_OUT = (
    f"(A picture is left out, as it is no PNG or JPEG of at most {PICTURE >> 20} MB, or comes after {PICTURES} others: "
    "look into the notebook.)"
)


def read(content: bytes | str | None, sheet: str, notes: list[str]) -> tuple[list[dict], str]:
    """The cells of a notebook of this sheet, or the words for a file that is none; notes: what a student should know.

    content: words where the file cannot be read, None where there is none.
    """
    if isinstance(content, str):
        return [], content
    if content is None:
        return [], "There is no notebook (.ipynb) in this submission."
    if not content.strip():
        return [], "This file is empty."
    if len(content) > LARGEST:
        return [], f"This file has more than {LARGEST >> 20} MB. Clear its outputs and hand it in again."
    if content.count(b"[") + content.count(b"{") > PARTS:
        return [], f"This file has more than {PARTS:,} parts. Clear its outputs and hand it in again."
    try:
        held = json.loads(_text(content, notes))
        cells = held["cells"] if "cells" in held else [c for part in held["worksheets"] for c in part["cells"]]
        plain = [_plain(cell) for cell in cells]
        own = held.get("metadata", {}).get("pdelab", {}).get("assignment", sheet)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError):
        return [], "This file is not a notebook, whatever its name says. Download it again as .ipynb."
    if own != sheet:
        return [], f"This notebook is of the sheet {str(own)[:40]}, not of {sheet}."
    return plain, ""


def _text(content: bytes, notes: list[str]) -> str:
    for encoding in ("utf-8-sig", "utf-16"):
        if encoding == "utf-16" and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            continue
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    notes.append("The file is not in UTF-8; it was read as Latin-1.")
    return content.decode("latin-1")


def _plain(cell: dict) -> dict:
    source = cell.get("source", cell.get("input", ""))
    source = "".join(source) if isinstance(source, list) else source
    plain, pictures = source.replace("\r\n", "\n").replace("\r", "\n"), _pictures(cell)
    if cell["cell_type"] == "markdown":
        attached = cell.get("attachments") or {}
        pictures += [""] * sum(one not in attached for one in ATTACHED.findall(plain))
        pictures += INLINE.findall(plain)
        plain = INLINE.sub("picture", ATTACHED.sub("(picture)", plain))
    return {"kind": cell["cell_type"], "source": plain, "pictures": pictures}


def _pictures(cell: dict) -> list[str]:
    """The PNGs and JPEGs that a cell shows or has attached, as base64; nothing for a picture of another kind."""
    try:
        held = [output.get("data", {}) for output in cell.get("outputs", [])] + [*cell.get("attachments", {}).values()]
        shown = [one for one in held if any(kind.startswith("image/") for kind in one)]
        return ["".join("".join(one.get("image/png", one.get("image/jpeg", ""))).split()) for one in shown]
    except (AttributeError, TypeError):
        return []


def shown(picture: str) -> bool:
    """Whether it is a PNG or a JPEG, and no larger than a page can bear."""
    try:
        held = base64.b64decode(picture, validate=True) if len(picture) * 3 // 4 <= PICTURE else b""
        width, height = _size(held)
    except (binascii.Error, struct.error, ValueError):
        return False
    return 0 < width * height <= PIXELS


def _size(held: bytes) -> tuple[int, int]:
    """Width and height as a PNG or a JPEG states them; every other kind can hold a script or an address."""
    if held.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack(">II", held[16:24])
    at = 2 if held.startswith(b"\xff\xd8") else len(held)
    while at < len(held):  # from segment to segment, to the one that states the size
        mark, kind, length = struct.unpack(">BBH", held[at : at + 4])
        if mark != 0xFF:
            break
        if kind in range(0xC0, 0xD0) and kind not in (0xC4, 0xC8, 0xCC):
            return struct.unpack(">HH", held[at + 5 : at + 9])
        at += 2 + length
    return 0, 0
