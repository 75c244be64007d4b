"""The page of sizes: how long each page of the book is to read, to look through and to run.

    python tools/sizes.py        prints the table and writes it to _build/sizes.md; the book must be built

words: of the prose, without code, solutions and what is behind a click; a formula in a line is a word; formulas: those;
cells: code cells that are shown open, and the lines of the longest; screens: height of the built page at 1366 × 768 px,
all folds closed; minutes: 120 words a minute, the pace of mathematics, and one for each displayed formula and figure,
to the next five, exercises read and not done; seconds and MB: what the notebook took when it last ran.
"""

import json
import math
import re
import sys

from browser import launch
from exercises import ROOT, code_folded, page_name, read_source, sources, tagged
from notebooks import RUN_TIMES
from plain import parts

HTML = ROOT / "_build" / "html"
HEAD = ("page", "words", "formulas", "cells", "longest", "figures", "screens", "minutes", "seconds", "MB")
DISPLAYED = re.compile(r"\$\$.*?\$\$", re.DOTALL)
INLINE = re.compile(r"(?<!\$)\$[^$]+\$(?!\$)")


def in_sight(text: str) -> str:
    """The prose without what is behind a click, of directives what is inside; each displayed formula as $$$$."""
    lines = []
    for part in parts(text):
        if isinstance(part, str):
            lines.append(part)
        elif part.kind == "math":
            lines.append("$$$$")
        elif not part.folded:
            lines.append(in_sight("\n".join(part.body)))
    return DISPLAYED.sub("$$$$", "\n".join(lines))


def measured(path) -> dict[str, int]:
    """Counts of one text source: what a reader meets without a click."""
    cells = [cell for cell in read_source(path).cells if not tagged(cell, "solution") and not tagged(cell, "wrong")]
    prose = "\n\n".join(in_sight(cell.source) for cell in cells if cell.cell_type == "markdown")
    displayed = prose.count("$$$$")
    prose = prose.replace("$$$$", "")

    code = [cell for cell in cells if cell.cell_type == "code"]
    shown = [cell.source for cell in code if not code_folded(cell) and not tagged(cell, "check")]
    figures = sum("figure" in cell.metadata.get("mystnb", {}) or "explore(" in cell.source for cell in code)
    words = len(INLINE.sub("x", prose).split())
    return {
        "words": words,
        "formulas": len(INLINE.findall(prose)),
        "cells": len(shown),
        "longest": max((len(source.splitlines()) for source in shown), default=0),
        "figures": figures,
        "minutes": 5 * math.ceil((words / 120 + displayed + figures) / 5),
    }


def heights(names: list[str]) -> dict[str, float]:
    """Screens of 1366 × 768 px that each built page takes, all folds closed."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        for name in names:
            page.goto((HTML / "book" / f"{name}.html").as_uri(), wait_until="load")
            page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise : null")
            found[name] = page.evaluate("document.documentElement.scrollHeight") / 768
        browser.close()
    return found


def main() -> int:
    known = {page_name(path): path for path in sources()}
    if missing := [name for name in known if not (HTML / "book" / f"{name}.html").exists()]:
        print(f"Not built: {', '.join(missing)}. Next: make book", file=sys.stderr)
        return 1
    times = json.loads(RUN_TIMES.read_text())
    screens = heights(list(known))
    lines = []
    for name, path in known.items():
        row = measured(path) | {"page": name, "screens": f"{screens[name]:.0f}"}
        row |= {"seconds": times.get(name, {}).get("seconds", ""), "MB": times.get(name, {}).get("MB", "")}
        lines.append([str(row[word]) for word in HEAD])
    chapters = [line for line in lines if "/" not in line[0]]
    total = ["chapters", *(str(sum(int(line[k]) for line in chapters)) for k in (1, 2, 3))]
    lines.append(total + [""] * (len(HEAD) - len(total)))
    text = "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, ["---"] * len(HEAD), *lines])
    (ROOT / "_build" / "sizes.md").write_text(text + "\n", encoding="utf-8")
    print(f"{text}\nWritten to _build/sizes.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
