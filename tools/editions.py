"""Write the student and instructor notebooks of every chapter.

    python tools/editions.py                     both editions and what students install, to _build/editions/
    python tools/editions.py --lab student       your own copies in work/, then JupyterLab
    python tools/editions.py --lab instructor -- --no-browser

A copy in work/ that exists already is yours and is never written over.
"""

import argparse
import os
import re
import sys
from pathlib import Path

import handout
import nbformat
from exercises import BOOK, ROOT, chapters, code_folded, student_edition, tagged
from figures import show_untrusted
from plain import numbers, plain

from pdelab.files import write_atomically

EDITIONS = {"student": student_edition, "instructor": lambda notebook: notebook}


def edition(name: str, which: str) -> nbformat.NotebookNode:
    """From the executed notebook, which is the instructor edition, so that figures show before anything is run.

    Plain Markdown with the numbers of the pages, captions below their figures, and code that is no part of the story
    folded, so that JupyterLab, VS Code and Colab show what the pages show.
    """
    notebook = EDITIONS[which](nbformat.read(BOOK / f"{name}.ipynb", 4))
    figures = iter([one.number for one in numbers().values() if one.page == name and one.kind == "Figure"])
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, name)
            continue
        if code_folded(cell) or tagged(cell, "check"):
            cell.metadata["jupyter"] = {"source_hidden": True}
        # a viewer that does not trust the notebook would show the labels of a figure to play with, and no drawing
        for output in cell.outputs:
            if re.search("pdelab-(explore|play|digit)", output.get("data", {}).get("text/html", "")):
                output["data"] = {"text/plain": "Run this cell for the figure to play with."}
        show_untrusted(cell)
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            below = nbformat.v4.new_markdown_cell(f"**Figure {next(figures)}.** {plain(figure['caption'], name)}")
            below["id"] = f"{cell['id']}-caption"
            cells.append(below)
    notebook.cells = cells
    return handout.stamped(notebook) if which == "student" else notebook


def write_all(folder: Path, which: str, *, keep: bool) -> None:
    """One notebook per chapter; with `keep`, what exists is left as it is."""
    for path in chapters():
        target = folder / f"{path.stem}.ipynb"
        if keep and target.exists():
            print(f"  {target.relative_to(ROOT)} is yours already, kept (delete it to start afresh)")
            continue
        if not path.with_suffix(".ipynb").exists():
            raise SystemExit(f"book/{path.stem}.ipynb is missing. Next: make notebooks CHAPTER={path.stem}")
        write_atomically(target, nbformat.writes(edition(path.stem, which)) + "\n")
        print(f"  {target.relative_to(ROOT)} written")


def main() -> int:
    parser = argparse.ArgumentParser(description="student and instructor notebooks")
    parser.add_argument("--lab", choices=EDITIONS, help="prepare work/ with this edition and open JupyterLab")
    parser.add_argument("--prepare", action="store_true", help="with --lab: prepare work/ only")
    parser.add_argument("options", nargs="*", help="with --lab: options for JupyterLab, after --")
    options = parser.parse_args()
    if options.lab is None:
        for which in EDITIONS:
            write_all(ROOT / "_build" / "editions" / which, which, keep=False)
        handout.write(ROOT / "_build" / "editions" / "student")
        print("  the wheel, requirements.txt, START.md and check_setup.ipynb written beside the student notebooks")
        print("Next: hand out _build/editions/student, keep _build/editions/instructor.")
        return 0
    work = ROOT / "work"
    write_all(work, options.lab, keep=True)
    if options.prepare:
        print("Next: open work/ in JupyterLab.")
        return 0
    print("JupyterLab starts on work/, which git ignores. Stop it with Ctrl-C.", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "jupyter", "lab", str(work), *options.options])


if __name__ == "__main__":
    sys.exit(main())
