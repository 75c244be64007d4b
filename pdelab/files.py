"""Files that are whole or absent, and the commit that the code came from."""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """The old file or the new one, never half of either, whenever the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())

        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException as fault:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(fault, OSError) and fault.filename is None:  # a full disk does not say of which file it speaks
            fault.filename = str(path)
        raise


def check_writable(folder: Path) -> None:
    """Make the folder if it is missing; OSError that names it, if a file of 64 kB cannot be written there."""
    trial = folder / f".trial-{os.getpid()}"
    try:
        write_atomically(trial, bytes(2**16))
        trial.unlink()
    except OSError as error:
        raise type(error)(error.errno, f"nothing can be written here: {error.strerror}", str(folder)) from error


@cache
def commit() -> str:
    """The commit of the package's source, marked -dirty if Python files changed since; "unknown" outside its checkout.

    The package may be installed inside the checkout of another project, whose commit says nothing about it.
    """
    package = Path(__file__).resolve().parent
    if shutil.which("git") is None:
        return "unknown"

    git = ["git", "-C", str(package.parent)]
    asked = [*git, "rev-parse", "--show-toplevel", "--short=12", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True)
    if found.returncode:
        return "unknown"

    checkout, head = found.stdout.splitlines()
    if Path(checkout).resolve() != package.parent:
        return "unknown"

    changed = subprocess.run([*git, "status", "--porcelain", "--", "*.py"], capture_output=True, text=True).stdout
    return head + ("-dirty" if changed else "")
