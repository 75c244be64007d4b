"""The page of sizes: how long each page of the book is to read, to look through, to load and to run.

    python tools/sizes.py        writes book/sizes.md, with its date, and prints the table; the book must be built

words: of the prose, without code, solutions and what is behind a click; a formula in a line is a word; formulas: those;
cells: code cells that are shown open, and the lines of the longest; screens: height of the built page at 1366 × 768 px,
all folds closed; minutes: 120 words a minute, the pace of mathematics, and one for each displayed formula and figure,
to the next five, exercises read and not done; kB: what the browser loads, uncompressed; ready and typeset: milliseconds
until the page can be used and until its formulas are set, from a disk, on two busy cores; seconds and MB:
what the notebook took when it last ran.
"""

import json
import math
import re
import sys
from datetime import date

from browser import launch
from exercises import ROOT, code_folded, page_name, read_source, sources, tagged
from notebooks import RUN_TIMES
from plain import parts

HTML = ROOT / "_build" / "html"
HEAD = "page words formulas cells longest figures screens minutes kB ready typeset seconds MB".split()
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


def opened(names: list[str]) -> dict[str, dict[str, int]]:
    """Of each built page, opened at 1366 × 768 px with all folds closed: screens, kB, and milliseconds."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name in names:
            context = browser.new_context(viewport={"width": 1366, "height": 768})
            page = context.new_page()
            loaded = []
            session = context.new_cdp_session(page)
            session.send("Network.enable")
            session.on("Network.dataReceived", lambda event, loaded=loaded: loaded.append(event["dataLength"]))
            page.goto((HTML / "book" / f"{name}.html").as_uri(), wait_until="load")
            page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise : null")
            typeset = page.evaluate("performance.now()")
            ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
            height = page.evaluate("document.documentElement.scrollHeight")
            times = {"ready": round(ready, -2), "typeset": round(typeset, -2)}
            found[name] = {"screens": height / 768, "kB": sum(loaded) / 1000, **times}
            context.close()
        browser.close()
    return {name: {word: round(value) for word, value in row.items()} for name, row in found.items()}


def main() -> int:
    known = {page_name(path): path for path in sources()}
    if missing := [name for name in known if not (HTML / "book" / f"{name}.html").exists()]:
        print(f"Not built: {', '.join(missing)}. Next: make book", file=sys.stderr)
        return 1
    times = json.loads(RUN_TIMES.read_text())
    seen = opened(list(known))
    lines = []
    for name, path in known.items():
        row = measured(path) | {"page": f"[{name}]({name}.ipynb)"} | seen[name]
        row |= {"seconds": times.get(name, {}).get("seconds", ""), "MB": times.get(name, {}).get("MB", "")}
        lines.append([str(row[word]) for word in HEAD])
    chapters = [line for line in lines if "evidence/" not in line[0]]
    total = ["chapters", *(str(sum(int(line[k]) for line in chapters)) for k in (1, 2, 3))]
    lines.append(total + [""] * (len(HEAD) - len(total)))
    text = "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, ["---"] * len(HEAD), *lines])
    words = __doc__.partition("\n\nwords: ")[2].replace("\n", " ").strip()
    answer = f"How long each page is to read, to look through, to load and to run, on {date.today():%d %B %Y}."
    (ROOT / "book" / "sizes.md").write_text(f"# Sizes\n\n{answer}\n\n{text}\n\n*Words*: {words}\n", encoding="utf-8")
    print(f"{text}\nWritten to book/sizes.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
