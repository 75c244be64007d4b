"""Public files: fetched once, checked each time they are opened, kept in one folder.

The folder is the one that PDELAB_DATA names, else the user's cache directory. A file that is there and whole is used
without asking the network; one that is there and wrong is refused, never used and never deleted; `get` replaces it,
and only after the new one has arrived whole.

| name | files | without network |
|---|---|---|
| mnist | four of mnist/ | digits-pixels, digits-rows |
| newsgroups | sklearn/20news-bydate_py3.pkz, made by scikit-learn | synthetic-topics |
| tinyshakespeare | tinyshakespeare/input.txt | synthetic-characters |
"""

import hashlib
import io
import os
import pickle
import sys
import tempfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pooch
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import RequestException

pooch.get_logger().setLevel("ERROR")  # what went wrong is said in our own words

RETRIES = 1  # how often an address is asked again before the next one
TIMEOUT = 30.0  # seconds without a byte


class DataMissing(RuntimeError):
    """A public file that is not here and could not be had; the message says how to put it there by hand."""


class DataDamaged(ValueError):
    """A file in the cache that is not the one that was published."""


def folder() -> Path:
    """PDELAB_DATA, or the user's cache directory."""
    named = os.environ.get("PDELAB_DATA")
    return Path(named).expanduser().absolute() if named else Path(pooch.os_cache("pdelab"))


def _make_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise DataMissing(
            f"the data folder {directory} cannot be written ({error}); name another one with PDELAB_DATA"
        ) from error


@dataclass(frozen=True)
class File:
    """A published file: where it stands in the cache, the addresses to try in order, what it must be."""

    path: str
    urls: tuple[str, ...]
    sha256: str
    bytes: int

    @property
    def place(self) -> Path:
        return folder() / self.path

    def check(self, path: Path) -> None:
        """DataDamaged unless the file is, byte for byte, the published one."""
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataDamaged(f"{path} cannot be read ({error}); {_repair(self)}") from error
        if found != self.sha256:
            raise DataDamaged(
                f"{path} is not the published file: {path.stat().st_size} bytes with sha256 {found}, "
                f"expected {self.bytes} bytes with sha256 {self.sha256}; {_repair(self)}"
            )

    def download(self) -> None:
        """Put the file in its place in one move, from the first address that gives it whole."""
        place, failures = self.place, []
        _make_writable(place.parent)
        for url in self.urls:
            keeper = pooch.create(
                path=place.parent,
                base_url="",
                registry={place.name: self.sha256},
                urls={place.name: url},
                retry_if_failed=RETRIES,
            )
            transfer = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
            try:
                keeper.fetch(place.name, downloader=transfer)
            except (ValueError, RequestException) as error:  # ValueError: what came has another checksum
                words = "no connection" if isinstance(error, RequestsConnectionError) else error
                failures.append(f"{url}: {words}")
            except OSError as error:
                raise DataMissing(
                    f"{place} cannot be written ({error}); name another folder with PDELAB_DATA"
                ) from error
            else:
                place.chmod(0o644)  # pooch's temporary files are for their owner only
                return
        raise DataMissing(_by_hand(self, failures))

    def instructions(self) -> str:
        return f"  {self.place}\n    from {' or '.join(self.urls)}"


@dataclass(frozen=True)
class Newsgroups(File):
    """The 20 Newsgroups as scikit-learn keeps them: a compressed pickle, checked by what it says.

    Its bytes depend on the versions that wrote it, so sha256 is that of the content (`newsgroups_digest`). A pickle can
    run code when it is opened: this one is first read by an unpickler that knows only lists, strings and arrays, and
    scikit-learn sees it only if that went well. Put a file there only from a source that you trust all the same.
    """

    texts: tuple[int, int] = (0, 0)

    def check(self, path: Path) -> None:
        try:
            content = read_newsgroups(path)
            texts = tuple(len(content[part]["data"]) for part in ("train", "test"))
            found = newsgroups_digest(content)
        except Exception as error:  # a damaged pickle can fail in any way
            raise DataDamaged(
                f"{path} is not scikit-learn's cache of the 20 Newsgroups ({type(error).__name__}: {error}); "
                f"{_repair(self)}"
            ) from error
        if (texts, found) != (self.texts, self.sha256):
            raise DataDamaged(
                f"{path} does not hold the published texts: {texts[0]} for training and {texts[1]} for test with "
                f"sha256 {found}, expected {self.texts[0]} and {self.texts[1]} with sha256 {self.sha256}; "
                f"{_repair(self)}"
            )

    def download(self) -> None:
        """Let scikit-learn fetch and pack the texts in a folder of its own; move the file when it is whole."""
        from sklearn.datasets import fetch_20newsgroups

        place = self.place
        _make_writable(place.parent)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".newsgroups-") as home:
            made = Path(home) / place.name
            try:
                fetch_20newsgroups(data_home=home, n_retries=1 + RETRIES)
                self.check(made)
            except (OSError, HTTPException, DataDamaged) as error:
                raise DataMissing(_by_hand(self, [f"{self.urls[0]}: {error}"])) from error
            os.replace(made, place)

    def instructions(self) -> str:
        return (
            f"  {self.place}\n    which, where there is a network, "
            f"sklearn.datasets.fetch_20newsgroups(data_home=FOLDER) makes in FOLDER from {self.urls[0]}"
        )


class _Fields(dict):
    """Stands in for scikit-learn's Bunch, a dictionary whose attributes we do not need."""

    def __setstate__(self, state):
        pass


class _PlainUnpickler(pickle.Unpickler):
    """Reads lists, strings, arrays and Bunches; anything else, and so any function to call, is refused."""

    known = {  # noqa: RUF012
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("sklearn.utils", "Bunch"): _Fields,
        ("sklearn.utils._bunch", "Bunch"): _Fields,
    }

    def find_class(self, module: str, name: str):
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place in a file of texts")
        return self.known[module, name]


def read_newsgroups(path: Path) -> dict:
    """train and test, each with data, target and target_names; nothing in the file is run."""
    return _PlainUnpickler(io.BytesIO(zlib.decompress(path.read_bytes()))).load()


def fixed_order(texts: list[str], targets: list[int]) -> list[tuple[str, int]]:
    """(text, class) in the order of the texts' sha256: mixed, and the same whoever packed the file."""
    return sorted(
        zip(texts, map(int, targets), strict=True),
        key=lambda pair: (hashlib.sha256(pair[0].encode()).digest(), pair[1]),
    )


def newsgroups_digest(content: dict) -> str:
    """sha256 over all texts with the names of their groups, whatever order the file has them in."""
    total = hashlib.sha256()
    for part in ("train", "test"):
        names = content[part]["target_names"]
        for text, target in fixed_order(content[part]["data"], content[part]["target"]):
            total.update(hashlib.sha256(f"{part} {names[target]} {text}".encode()).digest())
    return total.hexdigest()


@dataclass(frozen=True)
class Source:
    """Files that belong together, what stands in for them without network, and whom to thank."""

    name: str
    files: tuple[File, ...]
    builtin: str
    credit: str


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST_FILES = (
    ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
)
_MNIST = Source(
    name="mnist",
    files=tuple(
        File(f"mnist/{name}", tuple(mirror + name for mirror in _MNIST_MIRRORS), sha256, size)
        for name, sha256, size in _MNIST_FILES
    ),
    builtin="digits-pixels and digits-rows",
    credit="MNIST by Y. LeCun, C. Cortes and C. Burges, from NIST's handwriting; CC BY-SA 3.0",
)
_NEWSGROUPS = Source(
    name="newsgroups",
    files=(
        Newsgroups(
            path="sklearn/20news-bydate_py3.pkz",
            urls=("https://ndownloader.figshare.com/files/5975967",),
            sha256="b766269b3d427d55d695165ac55d14148d2bbad5babc53feb2fc894398c41c1b",
            bytes=15_283_416,
            texts=(11_314, 7_532),
        ),
    ),
    builtin="synthetic-topics",
    credit="20 Newsgroups by K. Lang, the by-date form by J. Rennie; posts of their writers, no licence stated",
)
_TINYSHAKESPEARE = Source(
    name="tinyshakespeare",
    files=(
        File(
            path="tinyshakespeare/input.txt",
            urls=("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
            sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            bytes=1_115_394,
        ),
    ),
    builtin="synthetic-characters",
    credit="plays of Shakespeare, in the public domain, put together by A. Karpathy for char-rnn",
)
SOURCES = {source.name: source for source in (_MNIST, _NEWSGROUPS, _TINYSHAKESPEARE)}


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}; not {name!r}")
    return SOURCES[name]


def _of(file: File) -> Source:
    return next(source for source in SOURCES.values() if file in source.files)


def _repair(file: File) -> str:
    return f"delete it, or replace it with: pdelab data get {_of(file).name}"


def _by_hand(file: File, failures: list[str]) -> str:
    """What to do where the network does not give the file: every missing file, its place and its address."""
    source = _of(file)
    missing = [other for other in source.files if not other.place.is_file()] or [file]
    reasons = "".join(f"\n  {failure}" for failure in failures)
    return (
        f"{source.name} is not here, or not whole"
        + (f", and could not be downloaded:{reasons}" if failures else f"; get it with: pdelab data get {source.name}")
        + "\nBy hand, put here\n"
        + "\n".join(other.instructions() for other in missing)
        + "\nor name another folder with PDELAB_DATA."
        + f"\nWithout any network, {source.builtin} can be used: built in, smaller, and named so in every result."
    )


def fetch(path: str) -> Path:
    """The place of one file, such as fetch("mnist/train-images-idx3-ubyte.gz"): whole, or an error.

    DataDamaged if it is there and wrong; DataMissing if it is not there and cannot be had.
    """
    files = {file.path: file for source in SOURCES.values() for file in source.files}
    if path not in files:
        raise ValueError(f"path must be one of {', '.join(files)}; not {path!r}")
    file = files[path]
    if not file.place.exists():
        file.download()
    file.check(file.place)
    return file.place


def get(name: str) -> list[Path]:
    """The files of mnist, newsgroups or tinyshakespeare; those missing or damaged are downloaded, the others kept."""
    files = _source(name).files
    for file in files:
        try:
            whole = file.place.exists()
            if whole:
                file.check(file.place)
        except DataDamaged:
            whole = False
        if not whole:
            file.download()
    return [file.place for file in files]


def verify(name: str) -> list[Path]:
    """The files of a source, each checked now and none downloaded; DataMissing or DataDamaged says what is wrong."""
    files = _source(name).files
    for file in files:
        if not file.place.exists():
            raise DataMissing(_by_hand(file, []))
        file.check(file.place)
    return [file.place for file in files]


@dataclass(frozen=True)
class Entry:
    """A source as it is now. state: present, missing or damaged; bytes: what its files weigh as published."""

    name: str
    state: str
    bytes: int
    folder: Path
    credit: str
    problem: str = ""


def listing() -> list[Entry]:
    """Every public source, checked now."""
    entries = []
    for source in SOURCES.values():
        state, problem = "present", ""
        try:
            verify(source.name)
        except DataMissing as error:
            state, problem = "missing", str(error)
        except DataDamaged as error:
            state, problem = "damaged", str(error)
        size = sum(file.bytes for file in source.files)
        entries.append(Entry(source.name, state, size, source.files[0].place.parent, source.credit, problem))
    return entries
