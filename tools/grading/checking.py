"""Whether an answer is right: the official check, and the solution on further inputs.

The answer lives in another process; whatever runs here is the book's or the instructor's own.
"""

import contextlib
import copy
import io
import time
from collections.abc import Callable

import numpy as np

from grading.kit import Exercise
from grading.process import Ended, TooLong, Worker
from pdebook import check

DRAWS, SLOW = 20, 3  # further inputs that an answer must agree on with the solution, and how many if it is slow


def setup(exercise: Exercise) -> dict:
    """The names that the exercise's chapter begins with, made anew: an answer may change what it is given."""
    names = {"__name__": "check"}
    with contextlib.redirect_stdout(io.StringIO()):
        _run(exercise.setup, names, "setup")
    return names


def checked(exercise: Exercise, worker: Worker) -> tuple[bool, str]:
    """Whether the answer passes, and the check's own words."""
    call = worker.functions(exercise.chapter)
    names = setup(exercise) | {name: _proxy(call, name) for name in exercise.names}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            _run(exercise.checks, names, "check")
        except (Exception, check._TooLong) as error:
            count = said.getvalue().count("✓")
            done = f"{count} part{'s' * (count != 1)} passed. " if count else ""
            return False, f"{done}Not yet. {error}"
    return True, "All checks passed."


def compared(exercise: Exercise, worker: Worker, secret: str) -> str:
    """Words for an answer that differs from the solution on inputs drawn from the secret; else none."""
    names = setup(exercise)
    _run(exercise.solutions, names, "solution")
    names["draw"] = np.random.default_rng(list(exercise.seed(secret)))
    name, started = exercise.names[0], time.monotonic()
    answer, solution = worker.functions(exercise.chapter), names[name]

    for count in range(DRAWS):
        if count >= SLOW and time.monotonic() - started > check.LIMIT:
            break
        arguments = eval(exercise.inputs, names)
        want = solution(*copy.deepcopy(arguments))  # each has inputs of its own, which it may change
        try:
            agree = _agree(answer(name, arguments), want, exercise.tolerance)
        except (TimeoutError, Ended):
            raise
        except Exception:
            agree = False
        if not agree:
            return "On other inputs than those of the check it is not right: is it written for all of them?"
    return ""


def _run(sources: list[str], names: dict, what: str) -> None:
    for source in sources:
        exec(compile(source, what, "exec"), names)


def _agree(got: object, want: object, tolerance: float) -> bool:
    """The same numbers up to this share of them, in the same dicts and lists; a list will do for an array."""
    if isinstance(want, dict):
        same = isinstance(got, dict) and got.keys() == want.keys()
        return same and all(_agree(got[k], want[k], tolerance) for k in want)
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(_agree(*both, tolerance) for both in zip(got, want, strict=True))
    got, want = (np.asarray(one.detach() if hasattr(one, "detach") else one, dtype=float) for one in (got, want))
    close = {"rtol": tolerance, "atol": tolerance / 1000, "equal_nan": True}
    return got.shape == want.shape and bool(np.allclose(got, want, **close))


def _proxy(call: Callable, name: str) -> Callable:
    """A function that runs in the worker; a check says of it what it says of one that runs here for too long."""

    def function(*arguments):
        try:
            return call(name, arguments)
        except TooLong as error:
            raise check._TooLong(str(error)) from None

    function.__name__ = name
    return function
