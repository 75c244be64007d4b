"""Run the text sources book/NAME.md and store the executed notebooks book/NAME.ipynb.

    python tools/notebooks.py                  every chapter
    python tools/notebooks.py first_look       one chapter

The stored notebook is the instructor edition of its source. Running an unchanged source again gives an empty diff.
"""

import json
import math
import sys
import time

import nbformat
from exercises import BOOK, ROOT, instructor_edition, read_source, sources
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from pdelab.results import write_atomically

RUN_TIMES = ROOT / "data" / "run_times.json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook):
    """Run every cell in order; live widgets are left out of what is stored, their plain HTML stays."""
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(BOOK)}},
        extra_arguments=["--log-level=ERROR"],  # or the kernel warns of its own local transport
    )
    client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    nbformat.validate(notebook)
    return notebook


def main(names: list[str]) -> int:
    known = {path.stem: path for path in sources()}
    if unknown := [name for name in names if name not in known]:
        print(f"No such chapter: {', '.join(unknown)}. There are: {', '.join(known)}.", file=sys.stderr)
        return 2
    times = json.loads(RUN_TIMES.read_text()) if RUN_TIMES.exists() else {}
    for name in names or known:
        print(f"running book/{name}.md … ", end="", flush=True)
        started = time.perf_counter()
        try:
            notebook = execute(instructor_edition(read_source(known[name])))
        except CellExecutionError as error:
            print(f"stopped. book/{name}.ipynb is unchanged.\n\n{error}", file=sys.stderr)
            return 1
        seconds = time.perf_counter() - started
        write_atomically(BOOK / f"{name}.ipynb", nbformat.writes(notebook) + "\n")
        times[name] = 5 * math.ceil(seconds / 5)  # rounded up to 5 s, so that noise makes no diff
        print(f"{seconds:.1f} s")
    write_atomically(RUN_TIMES, json.dumps(dict(sorted(times.items())), indent=1) + "\n")
    print("Stored. Next: look at the diff, then make test.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
