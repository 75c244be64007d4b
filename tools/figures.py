"""Figures on their way from a notebook to a page, a phone and a notebook to work in."""

import base64
import html
import re

WIDE = 440  # points; a wider figure would have letters below 10 pixels on a phone, so there it scrolls


def mark_wide(cell) -> None:
    """Give a figure of several panels the class `wide`."""
    for output in cell.get("outputs", []):
        drawn = output.get("data", {}).get("image/svg+xml", "")
        width = re.match(r'<svg[^>]* width="([\d.]+)pt"', drawn)
        pixels = output.get("metadata", {}).get("image/png", {}).get("width", 0)  # four for three points
        if max(float(width[1]) if width else 0, 0.75 * pixels) > WIDE:
            options = cell.metadata.setdefault("mystnb", {})
            options["image"] = options.get("image", {}) | {"classes": "wide"}


def frame_wide(body: str) -> str:
    """A box that scrolls around each wide figure of a page, and around nothing else of it."""
    return re.sub(r'<img [^>]*class="[^"]*\bwide\b[^>]*>', r'<div class="scrolls">\g<0></div>', body)


def show_untrusted(cell) -> None:
    """SVG as a picture in HTML: JupyterLab shows that, with its words, also in a notebook that was not run yet."""
    alt = html.escape(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", ""))
    for output in cell.outputs:
        if drawn := output.get("data", {}).pop("image/svg+xml", None):
            packed = base64.b64encode(drawn.encode()).decode()
            output["data"]["text/html"] = f'<img alt="{alt}" src="data:image/svg+xml;base64,{packed}">'
