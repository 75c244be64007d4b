"""What a student gets beside the notebooks: the package as a wheel, what to install, how to start, and a first test.

Nothing of it needs the repository, which holds all solutions.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
from exercises import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pdelab.files import commit, write_atomically

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
WHEEL = f"pdelab-{VERSION}-py3-none-any.whl"

FIRST = f'''# Is the package here, in the version of this notebook?
try:
    import pdelab
except ModuleNotFoundError as error:
    error._render_traceback_ = lambda: [
        "pdelab is not installed: put {WHEEL} beside this notebook, "
        "run  %pip install {WHEEL}  and restart the kernel."
    ]
    raise
if pdelab.__version__ != "{VERSION}":
    print(f"This notebook was made with pdelab {VERSION}, and {{pdelab.__version__}} is installed: "
          "where they disagree, install the former.")'''

TRY = """import platform

import matplotlib.pyplot as plt
import torch
from pdebook import check
from pdelab import Diffusion, solve

spike = torch.zeros(1, 32, 1)
spike[0, 16] = 1.0
run = solve(Diffusion(1.0, boundary="reflecting"), spike, steps=200, dt=2e-4)
plt.plot(run.final[0, :, 0])
plt.xlabel("token")
plt.ylabel("heat")

check.close(float(run.final.sum()), 1.0, "no heat is lost", rtol=1e-4)
check.that(float(run.final.max()) < 0.5, "heat spreads")
print(f"Ready: Python {platform.python_version()}, torch {torch.__version__}, "
      f"pdelab {pdelab.__version__}.")"""

START = f"""# Start

You need Python 3.11 or later and 3 GB of disk (7 GB on Linux, with PyTorch's default build). In a terminal, in this
folder:

Linux and macOS

    python3 -m venv env
    env/bin/python -m pip install -r requirements.txt
    env/bin/jupyter lab check_setup.ipynb

Windows

    py -m venv env
    env\\Scripts\\python -m pip install -r requirements.txt
    env\\Scripts\\jupyter lab check_setup.ipynb

Then *Run > Run All Cells*: the last cell should begin with ✓ and end with "Ready". On Linux the smaller
build of PyTorch without CUDA will do: add `--extra-index-url` and the address that
https://pytorch.org/get-started/locally/ gives for CPU.

Google Colab: open a notebook there, upload `{WHEEL}` with the folder icon on the left, and run

    %pip install {WHEEL}

in a cell of its own. Colab has PyTorch already.

In the notebooks, a function that is yours to write says so. Write it, run the check below it, and read what it answers.
Code is under the MIT licence, text and figures under CC BY 4.0; both are inside the wheel.
"""


def stamped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with the version that it was made with, and before its own code a cell that looks for it."""
    cell = new_code_cell(
        FIRST, id="cell-package", metadata={"tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    )
    first = next((n for n, one in enumerate(notebook.cells) if one.cell_type == "code"), len(notebook.cells))
    notebook.cells.insert(first, cell)
    notebook.metadata["pdelab"] = {"version": VERSION, "commit": commit()}
    return notebook


def check_setup() -> nbformat.NotebookNode:
    title = new_markdown_cell(
        "# Is everything ready?\n\nRun both cells. The last line should begin with *Ready*.", id="cell-title"
    )
    notebook = new_notebook(cells=[title, new_code_cell(TRY, id="cell-try")])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return stamped(notebook)


def requirements() -> str:
    """The wheel, JupyterLab, and all that the package imports, in the versions that the book was made with."""
    wanted = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]} | {"jupyterlab"}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return "\n".join([f"./{WHEEL}", *(line for line in lock if line.partition("==")[0] in wanted)]) + "\n"


def write(folder: Path) -> None:
    """All but the chapters."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("pdelab-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True)
    write_atomically(folder / "requirements.txt", requirements())
    write_atomically(folder / "START.md", START)
    write_atomically(folder / "check_setup.ipynb", nbformat.writes(check_setup()) + "\n")
