"""Build the HTML book with warnings as errors, then say which page to open."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    print("Building the book …", flush=True)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", str(ROOT), "-W", "-n", "--keep-going", "-q"]
    if subprocess.run(command).returncode:
        print("The book was not built: mend the warnings above, then run make book again.", file=sys.stderr)
        return 1
    print(f"The book is built. Open {(ROOT / '_build' / 'html' / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
