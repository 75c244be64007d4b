"""Record the evidence that the ledger reads: seeds of the experiments, and findings of the tests marked `claim`.

python tools/record.py
"""

import subprocess
import sys
from pathlib import Path

import torch

from pdelab.experiments import heat_ends, start_tokens
from pdelab.results import Store

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = (heat_ends, start_tokens)
SEEDS = range(5)


def main() -> int:
    torch.set_num_threads(1)  # the models are small, and two threads get in each other's way
    store = Store()
    for experiment in EXPERIMENTS:
        for seed in SEEDS:
            path = store.save(experiment.run(seed))
            print(f"recorded {path.relative_to(store.folder)}", flush=True)
    tests = subprocess.run([sys.executable, "-m", "pytest", "tests", "-q", "-m", "claim", "--record-claims"], cwd=ROOT)
    if tests.returncode:
        return tests.returncode
    print("Recorded. Next: make notebooks, so that the pages show it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
