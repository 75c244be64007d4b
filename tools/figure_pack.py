"""The figures of the pages as files, for slides: their numbers, captions, alt texts and licence beside them.

    python tools/figure_pack.py [PAGE …]      to _build/figures/; all pages without a name

Each figure is an SVG by its label, or a PNG where it has very many points. figures.csv has page, number, caption, alt
text and licence; README.md says how to give credit. What a page draws in the browser has no file: take it from there.
"""

import argparse
import base64
import csv
import io
import re
import sys
from pathlib import Path

import nbformat
from exercises import BOOK, ROOT, page_name, sources
from plain import numbers, plain
from publishing import citation

from pdelab.files import write_atomically

FOLDER = ROOT / "_build" / "figures"
HEAD = ("file", "page", "figure", "caption", "alt", "licence")
LICENCE = "CC BY 4.0"


def figures(page: str) -> dict[str, tuple[bytes, dict[str, str]]]:
    """File name -> picture and what is to be said of it, for each numbered figure of a page that is stored as one."""
    found = {}
    numbered = iter([one.number for one in numbers().values() if one.page == page and one.kind == "Figure"])
    for cell in nbformat.read(BOOK / f"{page}.ipynb", 4).cells:
        shown = cell.metadata.get("mystnb", {})
        if "figure" not in shown:
            continue
        number = next(numbered)
        pictures = [picture(out.get("data", {})) for out in cell.outputs]
        pictures = [one for one in pictures if one]
        if len(pictures) != 1:
            continue
        ((ending, content),) = pictures
        name = f"{shown['figure'].get('name') or f'{page}-{number}'}.{ending}".replace("/", "-")
        caption = plain(shown["figure"]["caption"], page)
        words = {"page": page, "figure": number, "caption": caption, "alt": shown["image"]["alt"], "licence": LICENCE}
        found[name] = content, {"file": name} | words
    return found


def picture(data: dict) -> tuple[str, bytes] | None:
    """The ending of a file and its content, where a cell's output is a picture."""
    if "image/svg+xml" in data:
        return "svg", data["image/svg+xml"].encode()
    return ("png", base64.b64decode(data["image/png"])) if "image/png" in data else None


def write(pages: list[str], folder: Path) -> int:
    """The pictures, figures.csv and README.md; how many pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    writer = csv.DictWriter(table, HEAD)
    writer.writeheader()
    count = 0
    for page in pages:
        for name, (content, words) in figures(page).items():
            (folder / name).write_bytes(content)
            writer.writerow({key: re.sub(r"\s+", " ", text) for key, text in words.items()})
            count += 1
    write_atomically(folder / "figures.csv", table.getvalue())
    made = citation()
    credit = f'The pdelab authors, "Transformers as PDEs", version {made["version"]}, figure N, CC BY 4.0'
    write_atomically(
        folder / "README.md",
        "# Figures\n\nThe text and figures of the book are under the Creative Commons Attribution 4.0 licence,\n"
        "https://creativecommons.org/licenses/by/4.0/. Use and change them freely; give credit, for example\n\n"
        f"    {credit}\n\nand say so if you changed one. figures.csv has number, caption and alt text of each file.\n",
    )
    return count


def main() -> int:
    known = [page_name(path) for path in sources()]
    parser = argparse.ArgumentParser(description="figures as files")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="first_look, evidence/stability, …")
    pages = parser.parse_args().pages or known
    if unknown := [page for page in pages if page not in known]:
        parser.error(f"no such page: {', '.join(unknown)}; pages: {', '.join(known)}")
    count = write(pages, FOLDER)
    print(f"{count} figures, figures.csv and README.md in {FOLDER.relative_to(ROOT)}.")
    print("Next: put them on your slides with the line of credit in README.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
