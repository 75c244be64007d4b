"""Values that travel between the judge and a worker, as JSON: numbers, words, arrays as npy, functions by their number.

Nothing that a worker sends can run anything: there is no pickle in what it says. The judge's own objects (a model, an
integrator) go to the worker pickled, which is safe in that direction. A function stays where it is, and the other side
gets one that calls it.
"""

import base64
import inspect
import io
import json
import pickle
from collections.abc import Callable

import numpy as np

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
LONGEST = 64 << 20  # bytes of one message
REPLY = 16 << 20  # and of one from a submission, which may need 25 times as much once it is read


class CannotTravel(TypeError):
    """A value of a kind that is not sent."""


class Codec:
    """Encodes and decodes for one side of the pipe.

    call: call(number, arguments) runs a function of the other side. objects: whether this side may send its objects
    pickled, and so the other side must trust it; a side that may not also refuses to read them.
    """

    def __init__(self, call: Callable, *, objects: bool, reads_objects: bool):
        self.call, self.objects, self.reads_objects = call, objects, reads_objects
        self.functions: list[Callable] = []

    def encode(self, value) -> object:
        """The value in what JSON has; a kind that cannot travel is refused."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int | float) and not isinstance(value, np.generic):
            return {"number": repr(value), "whole": isinstance(value, int)}
        if isinstance(value, complex):
            raise CannotTravel("a complex number")
        if isinstance(value, list | tuple):
            return {"list": [self.encode(one) for one in value], "tuple": isinstance(value, tuple)}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(one)] for key, one in value.items()]}
        if hasattr(value, "detach"):
            return {"array": _packed(value.detach().cpu().numpy()), "tensor": True}
        if isinstance(value, np.ndarray | np.generic):
            return {"array": _packed(np.asarray(value)), "tensor": False}
        if self.objects and not _local(value):
            return {"object": base64.b64encode(pickle.dumps(value)).decode()}
        if callable(value):
            self.functions.append(value)
            name = getattr(value, "__name__", "function")
            return {"function": len(self.functions) - 1, "name": name, "parameters": _parameters(value)}
        raise CannotTravel(f"a value of type {type(value).__name__}")

    def snapshot(self, value) -> object:
        """What of the value can change in place: its arrays, in lists and dicts; None for all else."""
        if isinstance(value, list | tuple):
            return {"list": [self.snapshot(one) for one in value], "tuple": isinstance(value, tuple)}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.snapshot(one)] for key, one in value.items()]}
        array = isinstance(value, np.ndarray) or hasattr(value, "detach")
        return self.encode(value) if array else None

    def decode(self, sent: object) -> object:
        """The value again; arrays and tensors are copies."""
        if sent is None or isinstance(sent, bool | str):
            return sent
        if "number" in sent:
            return int(sent["number"]) if sent["whole"] else float(sent["number"])
        if "list" in sent:
            values = [self.decode(one) for one in sent["list"]]
            return tuple(values) if sent["tuple"] else values
        if "dict" in sent:
            return {self.decode(key): self.decode(one) for key, one in sent["dict"]}
        if "array" in sent:
            return _unpacked(sent["array"], sent["tensor"])
        if "function" in sent:
            return self._remote(sent["function"], sent["name"], sent["parameters"])
        if "object" in sent and self.reads_objects:
            return pickle.loads(base64.b64decode(sent["object"]))
        raise CannotTravel("what was sent")

    def _remote(self, number: int, name: str, parameters: list[str]) -> Callable:
        """A function that runs on the other side, with the parameters of the one there: solvers ask for them."""
        signature = (
            inspect.Signature([inspect.Parameter(str(p), POSITIONAL) for p in parameters]) if parameters else None
        )

        def function(*arguments, **named):
            bound = signature.bind(*arguments, **named).args if signature else arguments
            return self.call(number, bound)

        function.__name__ = str(name)
        if signature:
            function.__signature__ = signature
        return function


def _parameters(function: Callable) -> list[str]:
    """The names of its parameters without a default, in order; none where they cannot be told."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = all(one.kind is POSITIONAL for one in found)
    return [one.name for one in found if one.default is inspect.Parameter.empty] if plain else []


def _local(value) -> bool:
    """Whether a function has no place in a module from which the other side could import it."""
    return type(value).__name__ in ("function", "builtin_function_or_method", "method", "partial")


def _packed(array: np.ndarray) -> str:
    if array.dtype.kind not in "biuf":
        raise CannotTravel(f"an array of type {array.dtype}")
    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return base64.b64encode(held.getvalue()).decode()


def _unpacked(text: str, tensor: bool):
    array = np.lib.format.read_array(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    if not tensor:
        return array
    import torch

    return torch.from_numpy(array.copy())


def line(message: dict, longest: int = LONGEST) -> bytes:
    """One message, ready to be written."""
    text = json.dumps(message).encode() + b"\n"
    if len(text) > longest:
        raise CannotTravel(f"more than {longest >> 20} MB")
    return text
