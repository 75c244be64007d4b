"""What a worker cannot reach, by the strongest means that this machine has.

- `namespaces`: Linux's unshare. No network, no process but its own, empty folders in place of the repository, the home
  folder and the submissions; all else is read only, but for a folder of 64 MB. What it starts ends with it, and is at
  most 400 processes, on Linux 6.14 or later or where you are not root. It has no right to undo any of this.
- `audit hook`: Python refuses to open those folders, the network and other programs. It stops slips and curiosity; it
  is no boundary, and whoever wants to gets past it in two lines.

To grade people whom you do not trust where there are no namespaces, grade inside a container without a network.
"""

import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

MEMORY, PROCESSOR, FILE, PROCESSES = 6 << 30, 300, 16 << 20, 400  # bytes, seconds, bytes, number
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child")
DROP = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
NAMESPACES, HOOK = "namespaces", "audit hook"


@cache
def kind() -> str:
    """Which means there is."""
    if not all(map(shutil.which, ("unshare", "setpriv", "prlimit"))):
        return HOOK
    tries = f"mount -t tmpfs none /mnt && {shlex.join(DROP)} true"
    tried = subprocess.run([*UNSHARE, "sh", "-c", tries], capture_output=True, timeout=20)
    return HOOK if tried.returncode else NAMESPACES


def kept() -> list[Path]:
    """What a worker needs of the folders that are hidden: Python, the library, the book's own code, and the records."""
    root = Path(__file__).resolve().parents[2]
    own = (Path(__file__).parent, root / "pdelab", root / "book" / "pdebook", root / "data")
    return [path.resolve() for path in (Path(sys.base_prefix), Path(sys.prefix), *own)]


def hidden(*folders: Path) -> list[Path]:
    """The repository, with its solutions, the home folder and those that are named, each before what lies in it."""
    root = Path(__file__).resolve().parents[2]
    return sorted({path.resolve() for path in (root, Path.home(), *folders)} - {Path("/")}, key=lambda path: path.parts)


def command(folders: Sequence[Path], read: int, write: int) -> list[str]:
    """How to start a worker that cannot read these folders, but for what it needs of them."""
    start = [sys.executable, "-I", str(Path(__file__).with_name("worker.py").resolve()), str(read), str(write)]
    if kind() == HOOK:
        return start

    needed = [folder for folder in kept() if any(folder.is_relative_to(one) for one in folders)]
    needed = [one for one in needed if not any(one != other and one.is_relative_to(other) for other in needed)]
    # the worker's own folder first, small and in memory; then what it needs, out of the way of what is hidden
    lines = ["set -e", "here=$(pwd)", 'mount -t tmpfs -o size=64m none "$here"', 'cd "$here"']
    for number, folder in enumerate(needed):
        lines += [f"mkdir -p keep/{number}", f"mount --rbind {shlex.quote(str(folder))} keep/{number}"]
    for folder in map(shlex.quote, map(str, folders)):
        lines.append(
            f"if [ -d {folder} ]; then mount -t tmpfs none {folder}; "
            f"elif [ -e {folder} ]; then mount --bind /dev/null {folder}; fi"
        )
    for number, folder in enumerate(map(shlex.quote, map(str, needed))):
        lines += [f"mkdir -p {folder}", f"mount --rbind keep/{number} {folder}", f"mount -o remount,bind,ro {folder}"]
        lines.append(f"mount -o remount,bind,ro keep/{number}")
    # nothing but its own folder can be written: a submission that rewrites the library would run in the judge
    lines += [
        "mount -t proc none /proc",
        # the namespace's own number where the kernel has one; elsewhere it cannot be written, and prlimit must do
        f"echo {PROCESSES} > /proc/sys/kernel/pid_max || true",
        "mount -o remount,bind,ro /proc",
        "mount --rbind / /",
        "mount -o remount,bind,ro /",
        # root in here, without the right to mount: or it would look below what hides the folders
        "exec " + shlex.join(["prlimit", f"--nproc={PROCESSES}", *DROP, *start]),
    ]
    return [*UNSHARE, "sh", "-c", "\n".join(lines)]


def limit() -> None:
    """Called in the new process before the worker starts: memory, processor time, and the size of a file."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
