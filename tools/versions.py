"""Run tests with the lowest versions that pyproject.toml allows, and with the newest that pip finds.

    python tools/versions.py                                both: the library, its tests and examples
    python tools/versions.py lowest --torch 2.13.0          one, with this torch
    python tools/versions.py newest -- tests/chapters       other tests

Each is an environment of its own in _build/versions; the tools for testing are the newest in both.
"""

import argparse
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTING = ("pytest", "pytest-xdist", "hypothesis", "nbval", "infomeasure")


def requirements(which: str, torch: str | None) -> list[str]:
    """What to install: NAME==LOWEST, or the declared range; torch in the version that was asked for.

    >>> [line for which in ("lowest", "newest") for line in requirements(which, "2.13.0") if "torch" in line]
    ['torch==2.13.0', 'torch==2.13.0']
    >>> all("==" in line for line in requirements("lowest", None))
    True
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted = [f"torch=={torch}" if torch and line.startswith("torch>=") else line for line in declared]
    return [line.replace(">=", "==") for line in wanted] if which == "lowest" else wanted


def run(which: str, torch: str | None, tests: list[str]) -> int:
    folder = ROOT / "_build" / "versions" / which
    python = folder / "bin" / "python"
    venv.create(folder, clear=True, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    print(f"{which}: installing", flush=True)
    if code := subprocess.run([*install, "-e", ROOT, *requirements(which, torch), *TESTING]).returncode:
        return code
    subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"], check=True)
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="run tests with the lowest and the newest versions")
    parser.add_argument("which", nargs="?", choices=("lowest", "newest", "both"), default="both")
    parser.add_argument("--torch", help="this version of torch, in place of the lowest or the newest")
    parser.add_argument("tests", nargs="*", default=["tests/library", "pdelab"], help="what pytest runs; after --")
    given = parser.parse_args()
    both = ("lowest", "newest") if given.which == "both" else (given.which,)
    codes = {which: run(which, given.torch, given.tests) for which in both}
    for which, code in codes.items():
        print(f"{which}: {'passed' if code == 0 else 'FAILED'}")
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
