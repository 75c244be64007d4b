"""Self-checks for the exercises: they say in words what is wrong and what to look at next.

A check cell calls these in the order in which a learner should meet the faults. The first that fails ends the cell with
one message; nothing printed is ever the solution itself.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

LIMIT = 20.0  # seconds that one call of an answer may compute; by the clock, where others compute too, three times that


class NotYet(AssertionError):
    """The answer is not right yet; the message says what to look at."""

    def _render_traceback_(self) -> list[str]:  # IPython shows this in place of a page of traceback
        return [f"Not yet. {self}"]


class _TooLong(BaseException):  # no Exception, or an answer that catches those would go on
    """The answer ran for longer than LIMIT."""


@contextmanager
def _limited() -> Iterator[None]:
    """Stop what runs inside after LIMIT seconds of its own computing, or three times that by the clock.

    Windows and threads have no such alarm, and no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    computed, begun = time.thread_time(), time.monotonic()

    def look(*_):
        if time.thread_time() - computed > LIMIT or time.monotonic() - begun > 3 * LIMIT:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _TooLong

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LIMIT / 20, LIMIT / 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call(f: Callable, *arguments, hint: str = ""):
    """f(*arguments); if it stops with an error or gives back None, that is said in one sentence, with the hint.

    So is an answer that does not end within LIMIT seconds.
    """
    if not callable(f):
        held = f"A function is asked for, and the name holds {type(f).__name__} {str(f)[:40]}."
        raise NotYet(f"{held} Write it with `def` and `return`. {hint}".rstrip())
    try:
        with _limited():
            value = f(*arguments)
    except _TooLong:
        raise NotYet(
            f"{_name(f)} ran for {LIMIT:g} seconds and was stopped. Does its loop end? {hint}".rstrip()
        ) from None
    except NotImplementedError as error:
        line = f"Not yet. {error}"
        error._render_traceback_ = lambda: [line]
        raise
    except Exception as error:
        stopped = f"{_name(f)} stopped with {type(error).__name__}: {error}".rstrip(". ") + "."
        raise NotYet(f"{stopped} {hint}".rstrip()) from error
    if value is None:
        raise NotYet(f"{_name(f)} gave back None. Does it end with `return`, in every case? {hint}".rstrip())
    return value


def _name(f: Callable) -> str:
    return getattr(f, "__name__", "your function")


def _short(argument) -> str:
    """As one would write it, on one line; of a long array, or one of several rows, its shape."""
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_short, argument))}]"
    shape = tuple(getattr(argument, "shape", ()))
    return f"array of shape {shape}" if len(shape) > 1 or sum(shape) > 4 else repr(argument)


def number(f: Callable, *arguments, finite: bool = True, hint: str = "") -> float:
    """f(*arguments), which must be one real number; what else may happen is said in one sentence."""
    value = call(f, *arguments, hint=hint)
    what = f"{_name(f)}({', '.join(map(_short, arguments))})"
    found = _numbers(value, what)
    if found.shape != ():
        raise NotYet(f"{what} should be one number; you give back {type(value).__name__} of shape {found.shape}.")
    if finite and not np.isfinite(found):
        raise NotYet(f"{what} is {float(found)}, not a finite number. {hint}".rstrip())
    return float(found)


def array(f: Callable, *arguments, hint: str = "") -> np.ndarray:
    """f(*arguments) as an array of finite numbers in double precision; lists and tensors do as well."""
    found = _numbers(call(f, *arguments, hint=hint), f"what {_name(f)} gives back")
    if not np.all(np.isfinite(found)):
        raise NotYet(f"{_name(f)} gives back NaN or infinite values. {hint}".rstrip())
    return found


def truth(f: Callable, *arguments, hint: str = "") -> bool:
    """f(*arguments), which must be one True or False."""
    found = np.asarray(call(f, *arguments, hint=hint))
    if found.shape != () or found.dtype.kind not in "bif":
        kind = f"an array of shape {found.shape}; is a .all() or .any() missing?" if found.shape else f"{found}."
        raise NotYet(f"{_name(f)} should give back one True or False; you give back {kind} {hint}".rstrip())
    return bool(found)


def close(got, want, what: str, *, hint: str = "", rtol: float = 1e-6, atol: float = 1e-9) -> None:
    """|got − want| ≤ atol + rtol·|want| in every entry, or a message that names `what` and gives the `hint`."""
    got, want = _numbers(got, what), _numbers(want, "the expected value")
    if got.shape != want.shape:
        raise NotYet(f"{what}: the shape is {got.shape}, it should be {want.shape}.")
    if not np.all(np.isfinite(got)):
        raise NotYet(f"{what}: the answer holds NaN or infinite values.")
    if np.allclose(got, want, rtol=rtol, atol=atol):
        print(f"✓ {what}")
        return
    worst = np.unravel_index(np.argmax(np.abs(got - want)), got.shape)
    place = f" at index {tuple(int(i) for i in worst)}" if got.ndim else ""
    message = f"{what}: you have {got[worst]:.6g}{place}, it should be {want[worst]:.6g}."
    raise NotYet(" ".join(part for part in (message, _diagnosis(got, want, rtol, atol), hint) if part))


def that(condition: bool, what: str, *, hint: str = "") -> None:
    """`condition` must hold; `what` says it in words."""
    if not condition:
        raise NotYet(f"{what}: this does not hold. {hint}".rstrip())
    print(f"✓ {what}")


def _numbers(value, what: str) -> np.ndarray:
    if value is None:
        raise NotYet(f"{what}: your function gave back None. Does it end with `return`?")
    if isinstance(value, list | tuple):
        value = [_plain(entry) for entry in value]
    value = _plain(value)
    if isinstance(value, str):
        raise NotYet(f"{what}: expected a number or an array of numbers, not str.")
    try:
        found = np.asarray(value)
        if np.iscomplexobj(found):
            raise NotYet(f"{what}: expected real numbers, not complex ones.")
        return found.astype(float)
    except (TypeError, ValueError):
        raise NotYet(f"{what}: expected a number or an array of numbers, not {type(value).__name__}.") from None


def _plain(value):
    """A tensor as an array in double precision, so that nothing is rounded on the way; all else as it is."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value if value.is_complex() else value.double()).numpy()


def _diagnosis(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
    """The commonest slips, recognised by the numbers alone."""
    if np.allclose(-got, want, rtol=rtol, atol=atol):
        return "The size is right and the sign is wrong."
    if got.ndim == 2 and got.T.shape == want.shape and np.allclose(got.T, want, rtol=rtol, atol=atol):
        return "This is the transpose of the answer."
    if np.allclose(got, want, rtol=1e-3, atol=0):
        return "That is right to one part in a thousand: a small term, or rounding in single precision?"
    if got.ndim == 0 and got and want:
        return f"Yours is {got / want:.4g} times the answer."
    return ""
