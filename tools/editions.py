"""Write the student and instructor notebooks of every chapter.

    python tools/editions.py                     both editions, to _build/editions/
    python tools/editions.py --lab student       your own copies in work/, then JupyterLab
    python tools/editions.py --lab instructor -- --no-browser

A copy in work/ that exists already is yours and is never written over.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from exercises import BOOK, ROOT, chapters, student_edition
from pybtex.database import parse_file

from pdelab.files import write_atomically

EDITIONS = {"student": student_edition, "instructor": lambda notebook: notebook}


def edition(name: str, which: str):
    """From the executed notebook, which is the instructor edition, so that figures show before anything is run."""
    notebook = captioned(EDITIONS[which](nbformat.read(BOOK / f"{name}.ipynb", 4)))
    bibliography = parse_file(str(BOOK / "references.bib")).entries
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = readable(cell.source, bibliography)
    return notebook


def captioned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Each figure's caption in a cell below it, numbered: JupyterLab does not show the one in a cell's metadata."""
    numbers, cells = {}, []
    for cell in notebook.cells:
        cells.append(cell)
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            numbers[figure["name"]] = len(numbers) + 1
            below = nbformat.v4.new_markdown_cell(f"**Figure {len(numbers)}.** {figure['caption']}")
            below["id"] = f"{cell['id']}-caption"
            cells.append(below)
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\{numref\}`([^`]+)`", lambda match: f"Figure {numbers[match[1]]}", cell.source)
    notebook.cells = cells
    return notebook


def readable(text: str, bibliography) -> str:
    """Citations and links to pages as words: JupyterLab has neither the bibliography nor the other pages."""

    def cited(match: re.Match) -> str:
        form, names = match[1], []
        for key in match[2].split(","):
            entry = bibliography[key.strip()]
            people = [" ".join(person.last_names) for person in entry.persons["author"]]
            who = people[0] + (f" and {people[1]}" if len(people) == 2 else " et al." if len(people) > 2 else "")
            names.append(f"{who} ({entry.fields['year']})" if form == "t" else f"{who}, {entry.fields['year']}")
        return "; ".join(names) if form == "t" else f"({'; '.join(names)})"

    def page(match: re.Match) -> str:
        if match[1]:
            return f"*{match[1]}*"
        heading = re.search(r"^# (.+)$", (BOOK / f"{match[2]}.md").read_text(encoding="utf-8"), re.MULTILINE)
        return f"*{heading[1]}*"

    text = re.sub(r"\{cite:([pt])\}`([^`]+)`", cited, text)
    return re.sub(r"\{doc\}`(?:([^`<]+) <)?([\w/]+)>?`", page, text)


def write_all(folder: Path, which: str, *, keep: bool) -> list[Path]:
    """One notebook a chapter; those that were written."""
    written = []
    for path in chapters():
        target = folder / f"{path.stem}.ipynb"
        if keep and target.exists():
            print(f"  {target.relative_to(ROOT)} is yours already, kept (delete it to start afresh)")
            continue
        if not path.with_suffix(".ipynb").exists():
            raise SystemExit(f"book/{path.stem}.ipynb is missing. Next: make notebooks CHAPTER={path.stem}")
        write_atomically(target, nbformat.writes(edition(path.stem, which)) + "\n")
        written.append(target)
        print(f"  {target.relative_to(ROOT)} written")
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description="student and instructor notebooks")
    parser.add_argument("--lab", choices=EDITIONS, help="prepare work/ with this edition and open JupyterLab")
    parser.add_argument("--prepare", action="store_true", help="with --lab: prepare work/ only")
    parser.add_argument("options", nargs="*", help="with --lab: options for JupyterLab, after --")
    options = parser.parse_args()
    if options.lab is None:
        for which in EDITIONS:
            write_all(ROOT / "_build" / "editions" / which, which, keep=False)
        print("Next: hand out _build/editions/student, keep _build/editions/instructor.")
        return 0
    work = ROOT / "work"
    written = write_all(work, options.lab, keep=True)
    if written:  # our own notebooks, so their stored sliders may run before a cell does
        subprocess.run([sys.executable, "-m", "jupyter", "trust", *written], check=True, stdout=subprocess.DEVNULL)
    if options.prepare:
        print("Next: open work/ in JupyterLab.")
        return 0
    print("JupyterLab starts on work/, which git ignores. Stop it with Ctrl-C.", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "jupyter", "lab", str(work), *options.options])


if __name__ == "__main__":
    sys.exit(main())
