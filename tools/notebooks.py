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

from pdebook.kit.play import without_script
from pdelab.files import write_atomically

RUN_TIMES = ROOT / "data" / "run_times.json"
COST = """import resource, sys
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
unit = 1e6 if sys.platform == "darwin" else 1e3
print(sum(one.ru_utime + one.ru_stime for one in used), max(one.ru_maxrss for one in used) / unit)"""
PICTURE = "fig-me-terms", BOOK / "_static" / "four_terms.svg"  # the README's, from the chapter that draws it
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook):
    """Run every cell in order: the notebook, the seconds of CPU and the MB of memory that it took.

    Live widgets are left out of what is stored, their plain HTML stays; the script of the playground is the book's,
    not the page's: a change to it leaves the notebooks as they are.
    """
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
    notebook.cells.append(nbformat.v4.new_code_cell(COST))
    client.execute()
    seconds, memory = map(float, notebook.cells.pop().outputs[0].text.split())
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(WIDGET, None)
            if "text/html" in data:
                data["text/html"] = without_script(data["text/html"])
    nbformat.validate(notebook)
    return notebook, seconds, memory


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
            notebook, busy, memory = execute(instructor_edition(read_source(known[name])))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"stopped. book/{name}.ipynb is unchanged.\n\n{error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"interrupted. book/{name}.ipynb is unchanged; run make notebooks again to go on.", file=sys.stderr)
            return 130
        seconds = min(time.perf_counter() - started, busy)  # beside other work the clock shows more than the page takes
        write_atomically(BOOK / f"{name}.ipynb", nbformat.writes(notebook) + "\n")
        keep_picture(notebook)
        note_cost(name, seconds=(seconds, 10), MB=(memory, 100))
        print(f"{seconds:.1f} s, {memory:.0f} MB")
    print("Stored. Next: look at the diff, then make test.")
    return 0


def keep_picture(notebook) -> None:
    figure, file = PICTURE
    for cell in notebook.cells:
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == figure:
            write_atomically(file, cell.outputs[0].data["image/svg+xml"] + "\n")


def note_cost(name: str, **costs: tuple[float, int]) -> None:
    """Store what a page took, note_cost("papers", seconds=(3.2, 10)): 3.2, rounded up to a multiple of 10.

    A stored cost changes only upwards or by half: the noise of a machine makes no diff.
    """
    noted = json.loads(RUN_TIMES.read_text()) if RUN_TIMES.exists() else {}
    old = noted.get(name, {})
    new = {what: step * math.ceil(value / step) for what, (value, step) in costs.items()}
    kept = {what: v if v > old.get(what, 0) or v <= old[what] / 2 else old[what] for what, v in new.items()}
    if kept != old:
        write_atomically(RUN_TIMES, json.dumps(dict(sorted((noted | {name: kept}).items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
