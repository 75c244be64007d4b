"""Record the evidence that the ledger reads: seeds of the experiments, and findings of the tests marked `claim`.

python tools/record.py                     everything
python tools/record.py continuum           some experiments only, without the tests
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import torch

from pdelab.results import Store

ROOT = Path(__file__).resolve().parents[1]
# modules of pdelab.experiments with run(seed) -> Result, and their seeds
EXPERIMENTS = {
    "heat_ends": range(5),
    "start_tokens": range(5),
    "continuum": range(5),
    "attack_continuum": range(5),
    "attack_existence": range(5),
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        print(f"No such experiment: {', '.join(unknown)}. There are: {', '.join(EXPERIMENTS)}.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)  # the models are small, and two threads get in each other's way
    store = Store()
    for name in names or EXPERIMENTS:
        experiment = import_module(f"pdelab.experiments.{name}")
        for seed in EXPERIMENTS[name]:
            result = experiment.run(seed)
            path = store.save(result)
            print(f"recorded {path.relative_to(store.folder)}, {result.seconds:.1f} s", flush=True)
    if not names:
        pytest = [sys.executable, "-m", "pytest", "tests", "-q", "-m", "claim", "--record-claims"]
        if status := subprocess.run(pytest, cwd=ROOT).returncode:
            return status
    print("Recorded. Next: make notebooks, so that the pages show it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
