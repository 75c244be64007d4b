"""Run the text sources book/NAME.md and store the executed notebooks book/NAME.ipynb.

    python tools/notebooks.py                  every chapter
    python tools/notebooks.py first_look       one chapter
    python tools/notebooks.py evidence/crowd   one page of evidence

The stored notebook is the instructor edition of its source. Running an unchanged source again gives an empty diff.
"""

import json
import math
import sys
import time

import fonts
import nbformat
from exercises import BOOK, ROOT, instructor_edition, page_name, read_source, sources
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from pdelab.files import write_atomically

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
        coalesce_streams=True,  # or printed lines are cut where the kernel happened to send them
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
    fonts.prepare()
    known = {page_name(path): path for path in sources()}
    if unknown := [name for name in names if name not in known]:
        print(f"No such chapter: {', '.join(unknown)}. There are: {', '.join(known)}.", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"running book/{name}.md … ", end="", flush=True)
        started = time.perf_counter()
        try:
            notebook = execute(instructor_edition(read_source(known[name])))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"stopped. book/{name}.ipynb is unchanged.\n\n{error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"interrupted. book/{name}.ipynb is unchanged; run make notebooks again to go on.", file=sys.stderr)
            return 130
        seconds = time.perf_counter() - started
        write_atomically(BOOK / f"{name}.ipynb", nbformat.writes(notebook) + "\n")
        note_run_time(name, seconds)
        print(f"{seconds:.1f} s")
    print("Stored. Next: look at the diff, then make test.")
    return 0


def note_run_time(name: str, seconds: float) -> None:
    """Rounded up to 10 s, and changed only upwards or by half: the noise of a busy machine makes no diff."""
    times = json.loads(RUN_TIMES.read_text()) if RUN_TIMES.exists() else {}
    rounded, noted = 10 * math.ceil(seconds / 10), times.get(name, 0)
    if rounded > noted or rounded <= noted / 2:
        times[name] = rounded
        write_atomically(RUN_TIMES, json.dumps(dict(sorted(times.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
