"""A training kept on disk: written in one move, sealed with a checksum, and refused by any run but its own."""

import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from pdelab.datasets.base import Dataset
from pdelab.files import write_atomically


class RefusedCheckpoint(ValueError):
    """A checkpoint that is damaged, or belongs to another run."""


class UnusableFolder(ValueError):
    """A folder that another run uses, or that cannot be written."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for this run alone; freed also when the process is killed."""
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        words = f"folder {folder} is in use by another run; wait for it, or name another folder"
        raise UnusableFolder(words) from error
    except OSError as error:
        raise UnusableFolder(f"folder {folder} cannot be written ({error}); name another folder") from error
    try:
        for part in folder.glob(".*.part"):  # what a killed process had not finished writing
            part.unlink()
        yield
    finally:
        lock.release()


def fingerprint(model: nn.Module, data: Dataset, settings: dict, seed: int) -> dict:
    """What makes a run this run."""
    examples = [value for part in (data.train, data.test) for value in vars(part).values() if value is not None]
    return {
        "settings": settings,
        "seed": seed,
        "data": f"{data.name} {_checksum(examples)}",
        "model": _architecture(model),
        "first weights": _checksum(model.state_dict().values()),
    }


def identity(name: str, value: object) -> str:
    """What the argument `name` was given, in words that are the same in a new process and differ for another value.

    A function has its name, a functools.partial that and its arguments, a dataclass its fields; tensors and modules
    have checksums. What is known by its address alone, such as a lambda, is refused.

    >>> from pdelab.seeds import derive
    >>> identity("look", partial(derive, seed=3))
    'pdelab.seeds.derive(seed=3)'
    """

    def of(value: object) -> str:
        return identity(name, value)

    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {_checksum([value])}"
    if isinstance(value, nn.Module):
        return f"module {_architecture(value)} {_checksum(value.state_dict().values())}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(of(one) for one in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}={of(one)}" for key, one in value.items())
    if isinstance(value, partial):
        given = [*value.args, *([value.keywords] if value.keywords else [])]
        return f"{of(value.func)}({', '.join(map(of, given))})"

    kind = value if isinstance(value, FunctionType) else type(value)
    if "<" not in kind.__qualname__:  # else defined inside a function, or a lambda
        known = f"{kind.__module__}.{kind.__qualname__}"
        if kind is value:
            # the functions of a notebook are all of one module, and a cell may be edited
            if kind.__module__ != "__main__":
                return known
            return f"{known} {_code(value.__code__)} {of([value.__defaults__, value.__kwdefaults__])}"
        if is_dataclass(kind):
            return f"{known}({of({field.name: getattr(value, field.name) for field in fields(value)})})"
    raise ValueError(
        f"{name} must be a function of a module, a functools.partial of one, or a dataclass, for a run kept in a "
        f"folder: a checkpoint could not tell this {type(value).__name__} from another"
    )


def _code(code: CodeType) -> str:
    """A checksum of what a function does, the same wherever it lies in memory."""
    plain = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return f"{zlib.crc32(code.co_code + repr((plain, code.co_names)).encode()):08x}"


def _constant(one: object) -> str:
    """Its repr, but for a set, whose order differs from one process to the next."""
    return repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)


def _checksum(tensors: Iterable[Tensor]) -> str:
    total = 0
    for value in tensors:
        total = zlib.crc32(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), total)
    return f"{total:08x}"


def _architecture(model: nn.Module) -> str:
    """A checksum of every part's name, type and plain settings: models of equal weights can still differ in these."""
    plain = (bool, int, float, str)
    passing = (Tensor, type(None))  # what a module noted in its last call, such as Bottleneck.seen

    def own(module: nn.Module) -> dict:
        values = {key: value for key, value in vars(module).items() if key != "training" and not key.startswith("_")}
        lasting = {key: value for key, value in values.items() if not isinstance(value, passing)}
        return {key: value if isinstance(value, plain) else type(value).__name__ for key, value in lasting.items()}

    parts = [(name, type(module).__name__, own(module)) for name, module in model.named_modules()]
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def save(path: Path, own: dict, model: nn.Module, optimiser: torch.optim.Optimizer, record: dict) -> None:
    """Weights, optimiser and record of the run with this fingerprint, in one move."""
    buffer = io.BytesIO()
    content = {"fingerprint": own, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save(content | {"record": record}, buffer)
    # torch does not check its own file for flipped bits, so the checksum stands in front
    seal = hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    write_atomically(path, seal + b"\n" + buffer.getvalue())


def load(
    path: Path,
    own: dict,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    read: Callable[[dict], Any] = lambda record: record,
) -> Any:
    """read(record); weights and optimiser are put back, and `own` becomes the fingerprint of the run as it began."""
    seal, _, payload = path.read_bytes().partition(b"\n")
    if hashlib.sha256(payload).hexdigest().encode() != seal:
        raise RefusedCheckpoint(f"{path} is cut short or damaged; delete it to begin again")
    # on the CPU, where the record was; weights and optimiser move to the model's device as they are put back
    with _in_our_words(path):
        content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        record = read(content["record"])
        content = {name: dict(content[name]) for name in ("fingerprint", "model", "optimiser")}
    other = [key for key, value in own.items() if content["fingerprint"].get(key) != value]
    # a cell that is run again has the model as the interrupted run left it
    if other == ["first weights"] and _checksum(content["model"].values()) == own["first weights"]:
        other = []
    if other:
        if "settings" in other:
            before, now = content["fingerprint"]["settings"], own["settings"]
            either = before | now
            changed = [key for key in either if not (key in before and key in now and before[key] == now[key])]
            other[other.index("settings")] = f"settings ({', '.join(changed)})"
        raise RefusedCheckpoint(
            f"{path} is of a run with other {' and '.join(other)}; name another folder, or delete it to begin again"
        )
    with _in_our_words(path):
        model.load_state_dict(content["model"])
        optimiser.load_state_dict(content["optimiser"])
    own["first weights"] = content["fingerprint"]["first weights"]
    return record


@contextmanager
def _in_our_words(path: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, OSError, torch.OutOfMemoryError):  # no fault of the checkpoint
        raise
    except Exception as error:  # of whatever kind; torch would advise to load it without its safeguard
        raise RefusedCheckpoint(
            f"{path} was written by another version or is no checkpoint of a training ({type(error).__name__}); "
            "name another folder, or delete it to begin again"
        ) from None
