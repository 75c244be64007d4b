"""A figure as SVG: sharp at any size, the same bytes at every run."""

import io
import re
import warnings
import xml.etree.ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
DPI = 192  # of what stays an image: two dots to each pixel of a page

ET.register_namespace("", SVG[1:-1])
ET.register_namespace("xlink", HREF[1:].partition("}")[0])


def svg(figure: Figure, letters: str = "path", **save) -> ET.Element:
    """The figure as a tree without prolog, date, comments and idle ids, its numbers short.

    letters: "path" draws them, alike on every screen; "none" leaves words, which a script can change.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": letters, "svg.hashsalt": "pdelab"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that matplotlib's font lacks is drawn by the browser
        figure.savefig(buffer, format="svg", dpi=DPI, metadata=nothing, **save)
    root = ET.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}style", f"{SVG}metadata"):
                parent.remove(child)
    for defs in [child for child in root if child.tag == f"{SVG}defs" and len(child) == 0]:
        root.remove(defs)
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    used = set(re.findall(r"#([\w-]+)", ET.tostring(root, encoding="unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
        for name in {"d", "x", "y"} & set(element.attrib):
            element.set(name, _shorten(element.get(name)))
        element.text, element.tail = (element.text or "").strip() or None, None
    return root


def _shorten(numbers: str) -> str:
    """Coordinates to a tenth of a point: finer than a screen shows."""
    numbers = re.sub(r"\s+", " ", numbers).strip()
    return re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), numbers)
