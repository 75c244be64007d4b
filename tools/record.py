"""Record the evidence that the ledger reads: seeds of the experiments, and outcomes of the tests marked `claim`.

python tools/record.py                     everything
python tools/record.py continuum           some experiments only, without the tests
"""

import subprocess
import sys
from importlib import import_module

from pdelab.results import Store

# a module of pdelab.experiments with run(seed) -> Result, and its seeds
EXPERIMENTS = {
    "heat_ends": range(5),
    "continuum": range(5),
    "attack_continuum": range(5),
    "attack_existence": range(5),
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        print(f"No such experiment: {', '.join(unknown)}. There are: {', '.join(EXPERIMENTS)}.", file=sys.stderr)
        return 2
    store = Store()
    for name in names or EXPERIMENTS:
        experiment = import_module(f"pdelab.experiments.{name}")
        for seed in EXPERIMENTS[name]:
            result = experiment.run(seed)
            print(f"{name}, seed {seed}: {store.save(result).name}, {result.seconds:.1f} s", flush=True)
    if not names:
        tests = subprocess.run([sys.executable, "-m", "pytest", "tests", "-q", "-m", "claim", "--record-claims"])
        if tests.returncode:
            return tests.returncode
    print("Recorded. Next: make notebooks, so that the pages show it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
