"""Build the HTML book with warnings as errors, then say which page to open.

python tools/build_book.py [--output FOLDER]      FOLDER/_build/html; the project's own without it
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS = ("behind a click", "left out")


def build(output: Path) -> subprocess.CompletedProcess:
    """Warnings are errors; all that is said goes into what is given back."""
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT, "--path-output", output]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([*command, "-W", "-n", "--keep-going", "-q"], **options)


def main() -> int:
    parser = argparse.ArgumentParser(description="build the HTML book")
    parser.add_argument("--output", type=Path, default=ROOT, help="where _build/html goes")
    output = parser.parse_args().output.resolve()
    if (wanted := os.environ.get("BOOK_SOLUTIONS")) and wanted not in SOLUTIONS:
        print(f"BOOK_SOLUTIONS must be one of: {', '.join(SOLUTIONS)}; not {wanted!r}.", file=sys.stderr)
        return 2
    print("Building the book …", flush=True)
    for printed in (output / "_build" / "html").glob("*.pdf"):
        printed.unlink()  # of another build, perhaps with solutions
    kept = output / "_build" / ".doctrees"  # what an earlier build read
    again = kept.exists()
    run = build(output)
    if run.returncode and again:  # a label that moved to another page is found twice there: read every page anew
        shutil.rmtree(kept)
        run = build(output)
    if run.returncode:
        shutil.rmtree(kept, ignore_errors=True)  # or the next build would read what changed alone, and find no fault
        print(run.stdout, file=sys.stderr)
        print("The book was not built: mend what is said above, then run make book again.", file=sys.stderr)
        return 1
    print(f"The book is built. Open {(output / '_build' / 'html' / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
