"""From nothing to a model: a new Python that imports pdelab and builds one, beside one that imports torch."""

import subprocess
import sys
import time
from collections.abc import Iterator

from harness import Row, spread

OURS = "import pdelab; pdelab.transformer(128, 6, 4, 512)"
THEIRS = "import torch"


def rows(device: str, quick: bool) -> Iterator[Row]:
    seconds(OURS), seconds(THEIRS)  # the files are read once before
    ratios = [seconds(OURS) / seconds(THEIRS) for _ in range(1 if quick else 9)]
    yield spread("import pdelab and build a model", "import torch", ratios, "≤ 1.10")


def seconds(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun
