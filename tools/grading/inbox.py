"""The files of a class, however they were exported: one submission per student, of several files the newest."""

import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from grading.kit import Kit
from grading.reading import LARGEST
from grading.submissions import Submission

NOTEBOOK = re.compile(r"\.(ipynb(\.\w+)?|json)$", re.IGNORECASE)  # as browsers and mail programs rename them
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?$")
CANVAS = re.compile(r"^(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_\d+_")
LOCKED = "This file is locked with a password. Hand it in without one."
LINK = "This is a link to another place. Hand in the file itself."

Read = Callable[[], bytes | str]  # the start of a file, or words where it cannot be read


def read_class(place: Path, kit: Kit) -> Iterator[Submission]:
    """The submissions in a folder or a zip, one per student, in order of their names; each is read when it is due."""
    found = entries(place, kit)
    twice = Counter(student for student, _ in found)
    for student, number in sorted(found):
        files, called = found[student, number], student if twice[student] == 1 else f"{student} {number}"
        submission = Submission(called, number, kit, files[-1][1]() if files else None)
        if len(files) > 1:
            submission.notes.append(f"Of {len(files)} notebooks {files[-1][0]} was graded.")
        yield submission


def entries(place: Path, kit: Kit) -> dict[tuple[str, str], list[tuple[str, Read]]]:
    """(student, number) -> name of the file and a function that reads it, for each notebook; the last is the newest."""
    files_in = list(_files(place))
    tops = {name.parts[0] for name, _ in files_in}
    inside = [len(name.parts) > 2 or (len(name.parts) > 1 and CANVAS.match(name.name)) for name, _ in files_in]
    if len(tops) == 1 and all(inside):  # one folder around them all
        files_in = [(PurePosixPath(*name.parts[1:]), read) for name, read in files_in]
    found: dict[tuple[str, str], list[tuple[str, Read]]] = {}
    for name, read in files_in:
        entry = found.setdefault(_who(name), [])
        if NOTEBOOK.search(name.name) or read is _link:
            entry.append((name.name, read))

    own = re.compile(rf"(?<![^\W_]){re.escape(kit.name)}(?![^\W_])")  # hw1 is not in hw10

    def age(file: tuple) -> tuple:
        """Files before links, notebooks before other JSON, the assignment's name before others, and of these the last
        by name and number: the tenth download, "hw1 (10)", and in Canvas the tenth attempt, "hw1-10"."""
        name, read = file
        stem = NOTEBOOK.sub("", name)
        parts = re.split(r"(\d+)", stem)
        parts[1::2] = [int(part[-18:]) for part in parts[1::2]]
        plain, renamed = name.lower().endswith(".ipynb"), ".ipynb." in name.lower()
        return read is not _link, plain or renamed, bool(own.search(stem)), plain, parts

    return {who: sorted(files, key=age) for who, files in found.items()}


def _link() -> str:
    return LINK


def _files(place: Path) -> Iterator[tuple[PurePosixPath, Read]]:
    """The path inside the place, and a function that reads it, of every file, in order."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            inside = PurePosixPath(path.relative_to(place).as_posix())
            if (path.is_symlink() or path.is_file()) and not _junk(inside):
                yield inside, _link if path.is_symlink() else partial(_start, partial(path.open, "rb"))
        return

    try:
        archive = zipfile.ZipFile(place)
    except zipfile.BadZipFile as error:
        raise ValueError(f"SUBMISSIONS must be a folder or a whole zip file; {place} is neither: {error}") from error
    for info in sorted(archive.infolist(), key=lambda one: one.filename):
        inside = PurePosixPath(*(part for part in PurePosixPath(info.filename).parts if part not in ("..", "/")))
        if inside.parts and not info.is_dir() and not _junk(inside):
            link, locked = stat.S_ISLNK(info.external_attr >> 16), info.flag_bits & 1
            read = partial(_start, partial(archive.open, info))
            yield inside, _link if link else (lambda: LOCKED) if locked else read


def _start(opened: Callable) -> bytes | str:
    """As much of the file as is read, for a bomb ends here; words where it cannot be: the next one is graded."""
    try:
        with opened() as file:
            return file.read(LARGEST + 1)
    except Exception as error:  # a damaged member of a zip raises whatever its damage leads to
        return f"This file is damaged and cannot be read ({error}). Hand it in again."


def _junk(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _who(path: PurePosixPath) -> tuple[str, str]:
    """Name and number of the student, from Canvas's file names, Moodle's folders, or the first folder or the file."""
    if match := CANVAS.match(path.name):
        return match["name"], match["id"]
    for part in path.parts[:-1]:
        if match := MOODLE.match(part):
            return match["name"], match["id"]
    file = NOTEBOOK.sub("", path.name) if NOTEBOOK.search(path.name) else path.stem
    return (path.parts[0] if len(path.parts) > 1 else file), ""
