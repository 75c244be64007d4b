"""What a run measured, kept so that nothing is lost and nothing damaged is believed.

A Result is one run of one experiment with one seed. A Store is a folder of JSON files, one per Result, each written in
one move and sealed with a checksum of its content: a file that was cut short or edited by hand is reported, never read.
"""

import hashlib
import json
import math
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import numpy as np

import pdelab
from pdelab.files import check_writable, commit, write_atomically
from pdelab.options import choose
from pdelab.status import Status

Figures = dict[str, float | list[float]]

STATUSES = (Status.FINISHED, Status.DIVERGED)  # an interrupted run has no Result
SWEPT = 3600  # seconds; writing a result takes less than one
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Scale(StrEnum):
    """smoke: seconds, to see that it runs. book: what the chapters show, on a CPU. paper: the papers' sizes."""

    SMOKE = "smoke"
    BOOK = "book"
    PAPER = "paper"


class Key(str):
    """The name of a figure from its parts, MODEL/figure or ROLE/STATEMENT/violations: a string, as the files have it.

    >>> Key("corrected", "lipschitz", "worst"), Key("corrected", "lipschitz", "worst").parts
    ('corrected/lipschitz/worst', ('corrected', 'lipschitz', 'worst'))
    """

    def __new__(cls, *parts: object) -> "Key":
        return super().__new__(cls, "/".join(map(str, parts)))

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.split("/"))


class DamagedResult(ValueError):
    """A result file that is not what was written."""


def environment() -> dict[str, str]:
    """Where a number comes from: versions, machine and commit."""
    versions = {"pdelab": pdelab.__version__} | {name: version(name) for name in ("torch", "numpy")}
    system = f"{platform.system()} {platform.machine()}"
    return versions | {"python": platform.python_version(), "system": system, "commit": commit()}


@dataclass(frozen=True)
class Result:
    """One run: `figures` holds what was measured, `controls` the same measured on something that knows nothing.

    A run of several models names its figures MODEL/figure; `diverged` names the models that did not finish, with the
    step that failed, and their figures are absent. `weights` holds what a page runs: MODEL -> its weights as text.
    """

    experiment: str
    configuration: dict
    scale: str
    seed: int
    status: str
    figures: Figures
    controls: Figures = field(default_factory=dict)
    diverged: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=environment)
    seconds: float = 0.0
    weights: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("experiment", "scale"):
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
                raise ValueError(f"{name} names a file, so it must be letters, digits, '.', '_' or '-'; not {value!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0; not {self.seed!r}")
        choose("status", self.status, STATUSES)
        for name in ("figures", "controls"):
            for key, value in getattr(self, name).items():
                numbers = value if isinstance(value, list) else [value]
                if not all(isinstance(number, int | float) for number in numbers):
                    raise ValueError(
                        f"{name}[{key!r}] must be a number or a list of numbers, try float(…); not {value!r}"
                    )


def _encode(value):
    """JSON has no NaN or infinity, and a diverged run has both."""
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": str(value)}
    return value


def _decode(value):
    if isinstance(value, dict):
        if value.keys() == {"nonfinite"}:
            return _NONFINITE[value["nonfinite"]]
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decode(v) for v in value]
    return value


def _seal(content: dict) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def data_folder() -> Path:
    """The project's data/ in a checkout, or the copy inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "data"
    return inside if inside.is_dir() else package.parents[1] / "data"


class Store:
    """A folder of results: EXPERIMENT/SCALE-seedSEED.json. Without a folder: the book's own record."""

    def __init__(self, folder: Path | str | None = None):
        self.folder = Path(folder) if folder is not None else data_folder() / "results"

    def path(self, experiment: str, scale: str, seed: int) -> Path:
        return self.folder / experiment / f"{scale}-seed{seed}.json"

    def check_writable(self) -> None:
        """OSError that names the folder, where no result could be saved: better known before than after a long run.

        What a killed process had not finished writing is swept away, once it is old enough to be nobody's.
        """
        check_writable(self.folder)
        for part in self.folder.glob("*/.*.part"):
            if time.time() - part.stat().st_mtime > SWEPT:
                part.unlink(missing_ok=True)

    def save(self, result: Result) -> Path:
        content = _encode(asdict(result))
        path = self.path(result.experiment, result.scale, result.seed)
        text = json.dumps({"sha256": _seal(content), "result": content}, indent=1, sort_keys=True, allow_nan=False)
        write_atomically(path, text + "\n")
        return path

    def read(self, path: Path) -> Result:
        """One file, or DamagedResult with its name and what is wrong with it."""
        again = "make it again with pdelab run, or restore it if it is of the book's record"
        if not path.is_file():  # a folder, or a pipe, which one would wait for
            raise DamagedResult(f"{path} is no file; {again}")
        try:
            sealed = json.loads(path.read_text(encoding="utf-8"))
            content, seal = sealed["result"], sealed["sha256"]
            intact = _seal(content) == seal
        # not readable, not JSON, not ours, too deep, or a number that JSON does not have
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedResult(f"{path} is not a whole result file ({error}); {again}") from error
        if not intact:
            raise DamagedResult(f"{path} was changed after it was written (its checksum differs); {again}")
        try:
            result = Result(**_decode(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedResult(f"{path} does not hold a Result ({error}); {again}") from error
        place = self.path(result.experiment, result.scale, result.seed)
        if path.parts[-2:] != place.parts[-2:]:
            raise DamagedResult(f"{path} holds {result.experiment}, {result.scale}, seed {result.seed}; {again}")
        return result

    def load(self, experiment: str, scale: str | None = None) -> list[Result]:
        """Every recorded seed of an experiment, in order of scale and seed; empty when none was recorded.

        DamagedResult if one of them cannot be trusted: the others alone would pass for the whole.
        """
        found, damaged = self.survey(experiment, scale)
        for fault in damaged.values():
            raise fault
        return found

    def survey(
        self, experiment: str | None = None, scale: str | None = None
    ) -> tuple[list[Result], dict[Path, DamagedResult]]:
        """The results that are whole, by experiment, scale and seed, and every file that cannot be trusted."""
        found, damaged = [], {}
        files = "*.json" if scale is None else f"{scale}-seed*.json"
        folders = self.folder.glob("*") if experiment is None else [self.folder / Path(experiment).name]
        for path in sorted(path for folder in folders for path in folder.glob(files)):
            try:
                found.append(self.read(path))
            except DamagedResult as fault:
                damaged[path] = fault
        return sorted(found, key=lambda r: (r.experiment, r.scale, r.seed)), damaged


def in_words(results: Sequence[Result]) -> str:
    """Which seeds are recorded, and what was cut from them: for a page to say."""
    if not results:
        return "nothing recorded"
    cuts = sorted({r.configuration.get("cut", "all training steps") for r in results})
    seeds = ("seed " if len(results) == 1 else "seeds ") + ", ".join(str(r.seed) for r in results)
    return f"{seeds}; {' / '.join(cuts)}"


_DATA = {  # what the papers call them, with the number of tokens; ListOps only where its name does not tell the largest
    "listops-128": "ListOps, 97 to 160 tokens",
    "listops-arena": "ListOps, 501 to 1,999 tokens",
    "listops-original": "ListOps, from 2 tokens on",
    "digits-rows": "digits, 8 tokens",
    "digits-patches": "digits, 16 tokens",
    "mnist-rows": "MNIST, 28 tokens",
    "mnist-patches": "MNIST, 49 tokens",
    "mnist-pixels": "MNIST, 784 tokens",
    "newsgroups": "20 Newsgroups",
    "synthetic-topics": "made-up texts",
}


def size_of(results: Sequence[Result]) -> str:
    """The size at which something was measured: data, width, layers, training steps and seeds, as recorded.

    >>> size_of([Result("e", {"data": "listops-32-nosm", "width": 32, "depth": 6}, "book", 0, "finished", {})])
    'ListOps, up to 32 tokens, width 32, 6 layers, 1 seed'
    """
    c = results[0].configuration
    data = c.get("data", "")
    data = data.removesuffix("-nosm")  # the operators are others, the lengths are not
    largest = re.fullmatch(r"listops-(\d+)", data)
    named = f"ListOps, up to {int(largest[1]):,} tokens" if largest else data
    words = [_DATA.get(data, named)] if data else []
    settings = c.get("settings")
    steps = settings.get("steps") if isinstance(settings, dict) else None
    several = c.get("depths")
    layers = "{} layers" if not several else f"{several[0]} to {several[-1]} layers"
    sized = ((c.get("width"), "width {}"), (c.get("depth"), layers), (steps, "{:,} steps"))
    words += [form.format(number) for number, form in sized if isinstance(number, int)]
    return ", ".join([*words, "1 seed" if len(results) == 1 else f"{len(results)} seeds"])


def mean_and_range(values: Sequence[float], digits: int = 3) -> str:
    """Mean (least to largest).

    >>> mean_and_range([0.25, 0.5, 0.75])
    '0.500 (0.250 to 0.750)'
    """
    mean = math.fsum(values) / len(values)
    return f"{mean:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


@dataclass(frozen=True)
class Summary:
    """mean and 95 % interval over the seeds that finished; `diverged` counts those that did not."""

    mean: float
    low: float
    high: float
    seeds: int
    diverged: int

    @property
    def value(self) -> str:
        """The mean, from two seeds on with its interval; empty where no seed finished."""
        spread = f" [{self.low:.3g}, {self.high:.3g}]" if self.seeds > 1 else ""
        return f"{self.mean:.3g}{spread}" if self.seeds else ""

    @property
    def runs(self) -> str:
        """How many seeds it is of."""
        finished = {0: "no finished seed", 1: "1 seed"}.get(self.seeds, f"{self.seeds} seeds")
        return finished + (f", {self.diverged} diverged" if self.diverged else "")

    def __str__(self) -> str:
        return f"{self.value} ({self.runs})" if self.seeds else self.runs


def interval(values: Sequence[float], diverged: int = 0, among: int = 1) -> Summary:
    """mean ± t₀.₉₇₅(n−1) · s/√n, Student's interval for the mean of n independent runs.

    among: with m intervals side by side, each at the level 1 − 0.05/m (Bonferroni): then all of them hold their means
    at once in 95 of 100 records. One value has no spread: its interval is the whole line, and so is that of values of
    which some are infinite.

    >>> print(interval([1.0, 2.0, 3.0]))
    2 [-0.484, 4.48] (3 seeds)
    """
    n = len(values)
    if n == 0:
        return Summary(math.nan, math.nan, math.nan, 0, diverged)
    infinite = any(map(math.isinf, values))
    mean = (sum if infinite else math.fsum)(values) / n  # fsum refuses inf - inf, which is NaN
    if n > 1 and len(set(values)) == 1:  # infinities, too
        return Summary(values[0], values[0], values[0], n, diverged)
    if n == 1 or (infinite and not any(map(math.isnan, values))):
        return Summary(mean, -math.inf, math.inf, n, diverged)
    from scipy.special import stdtrit  # the quantile of Student's t

    s = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stdtrit(n - 1, 1 - 0.025 / among)) * s / math.sqrt(n)
    return Summary(mean, mean - half, mean + half, n, diverged)


_TERM = re.compile(r"(?P<log>log10 )?(?P<name>.+?)(?:\[(?P<index>-?\d+)\])?")


def _terms(figure: str) -> list[tuple[float, re.Match]]:
    """Sign and parts of each term of a figure that may be put together from recorded ones."""
    words = re.split(r" (less|plus) ", figure)
    signs = [1.0, *(-1.0 if word == "less" else 1.0 for word in words[1::2])]
    return [(sign, _TERM.fullmatch(term)) for sign, term in zip(signs, words[::2], strict=True)]


def names_in(figure: str) -> list[str]:
    """The recorded figures that a figure is made of: itself, or those of "log10 A[-1] less B plus C".

    >>> names_in("residual/fidelity[-1] less norm/fidelity[-1]")
    ['residual/fidelity', 'norm/fidelity']
    """
    return [term["name"] for _, term in _terms(figure)]


def recorded_in(result: Result, figure: str, *, control: bool = False) -> bool:
    return all(_table(result, name, figure, control) is not None for name in names_in(figure))


def _table(result: Result, name: str, figure: str, control: bool) -> Figures | None:
    """Where a name is recorded; what is put together of several may take from figures and controls alike."""
    tables = [result.controls if control else result.figures]
    if len(_terms(figure)) > 1:
        tables += [result.figures, result.controls]
    return next((table for table in tables if name in table), None)


def value_of(result: Result, figure: str, *, control: bool = False) -> float | list[float]:
    """A figure (or control) of one run: as recorded, or put together: "log10 A[-1] less log10 B[-1]".

    ValueError that names figure and seed, where a part is missing, has no logarithm or another shape than the others.
    """
    terms = _terms(figure)
    values = [_value_of_term(result, term, figure, control) for _, term in terms]
    shapes = [_shape(value) for value in values]
    if len(set(shapes)) > 1:
        parts = ", ".join(f"{term['name']} is {shape}" for (_, term), shape in zip(terms, shapes, strict=True))
        raise ValueError(f"figure {figure!r}, seed {result.seed}: its parts have no common shape: {parts}")
    if names_in(figure) == [figure]:
        return values[0]
    total = [0.0] * len(as_list(values[0]))
    for (sign, _), value in zip(terms, values, strict=True):
        total = [sofar + sign * v for sofar, v in zip(total, as_list(value), strict=True)]
    return total if isinstance(values[0], list) else total[0]


def _value_of_term(result: Result, term: re.Match, figure: str, control: bool) -> float | list[float]:
    """One term: what is recorded, or one value of it, or its logarithm."""
    name, where = term["name"], f"figure {figure!r}, seed {result.seed}"
    table = _table(result, name, figure, control)
    if table is None:
        raise ValueError(f"{where}: {name} is missing")
    value = table[name]
    if term["index"]:
        place = int(term["index"])
        if not isinstance(value, list) or not -len(value) <= place < len(value):
            raise ValueError(f"{where}: {name} is {_shape(value)}, which has no place {place}")
        value = value[place]
    if not term["log"]:
        return value
    if low := [v for v in as_list(value) if v <= 0]:
        raise ValueError(f"{where}: {name}, {_shape(value)}, has no log10 where it is {low[0]}")
    return [math.log10(v) for v in value] if isinstance(value, list) else math.log10(value)


def _shape(value: float | list[float]) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else "a number"


def as_list(value: float | list[float]) -> list[float]:
    """The values of a figure, one where it is a number."""
    return value if isinstance(value, list) else [value]


def finished(results: Sequence[Result], figure: str, *, control: bool = False) -> list[Result]:
    """The runs that count for a figure (or control): finished, and in which no model that it needs diverged."""
    models = {name.split("/")[0] for name in names_in(figure)}
    ended = [r for r in results if r.status == "finished" and not models & set(r.diverged)]
    return [r for r in ended if not r.diverged or recorded_in(r, figure, control=control)]


def summarise(
    results: Sequence[Result], figure: str, *, control: bool = False, among: int = 1
) -> Summary | list[Summary]:
    """A figure (or control) over seeds: one Summary, or one per layer where the figure is a list.

    A figure may be put together from recorded ones, as `value_of` reads it. among: as of `interval`.

    Only finished runs enter the mean; the diverged ones are counted beside it, and so is a run in which some model
    diverged and the figure, which may need that model, is missing. Results of several scales or configurations are
    refused: their mean would mean nothing.
    """
    if not results:
        raise ValueError("results is empty; record the experiment first")
    if len({(r.experiment, r.scale, json.dumps(_encode(r.configuration), sort_keys=True)) for r in results}) > 1:
        raise ValueError("results must share one experiment, scale and configuration; choose one with load(…, scale=…)")
    counted = finished(results, figure, control=control)
    diverged = len(results) - len(counted)
    missing = [r.seed for r in counted if not recorded_in(r, figure, control=control)]
    if missing:
        known = sorted(set().union(*(r.controls if control else r.figures for r in counted)))
        raise ValueError(f"figure {figure!r} is missing for seeds {missing}; recorded are {', '.join(known) or 'none'}")
    values = [value_of(r, figure, control=control) for r in counted]
    shapes: dict[str, list[int]] = {}
    for r, value in zip(counted, values, strict=True):
        shapes.setdefault(_shape(value), []).append(r.seed)
    if len(shapes) > 1:
        found = ", ".join(f"{shape} for seeds {seeds}" for shape, seeds in shapes.items())
        raise ValueError(f"figure {figure!r} has no common shape: {found}")
    if values and isinstance(values[0], list):
        return [interval(column, diverged, among) for column in zip(*values, strict=True)]
    return interval(values, diverged, among)


def mean_and_half(results: Sequence[Result], figure: str, *, control: bool = False) -> np.ndarray:
    """(mean, half the 95 % interval), one column per layer: what a picture with error bars needs.

    The half is NaN where there is none, as of one seed alone.
    """
    found = summarise(results, figure, control=control)
    found = found if isinstance(found, list) else [found]
    halves = np.array([(s.high - s.low) / 2 for s in found])
    return np.stack([[s.mean for s in found], np.where(np.isfinite(halves), halves, np.nan)])
