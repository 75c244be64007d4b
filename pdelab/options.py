"""What an argument may be, or a ValueError that names it, says what was given and what would work."""

import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from numbers import Real
from operator import index
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 10**6  # of a size unless told: a slip of the pen must not fill the memory


def choose(option: str, given: str, known: Mapping[str, Any] | Collection[str]) -> Any:
    """known[given], or `given` itself where `known` is no mapping; else a ValueError that says what would work.

    >>> choose("colour", "red", {"red": "#f00", "blue": "#00f"}), choose("colour", "red", ("red", "blue"))
    ('#f00', 'red')
    >>> choose("colour", "bleu", ("red", "blue"))
    Traceback (most recent call last):
    ValueError: colour must be one of red, blue; not 'bleu' (did you mean blue?)
    """
    if not isinstance(given, str) or given not in known:
        near = ", ".join(get_close_matches(str(given), known))
        hint = f" (did you mean {near}?)" if near else ""
        raise ValueError(f"{option} must be one of {', '.join(known)}; not {given!r}{hint}")
    return known[given] if isinstance(known, Mapping) else given


def whole(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number from `least` to `most`.

    >>> whole("depth", 2.5)
    Traceback (most recent call last):
    ValueError: depth must be a whole number of at least 1; not 2.5
    """
    try:
        found = index(value)
    except (TypeError, ValueError, RuntimeError):  # the last two: of a tensor
        found = None
    truth = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))  # the last: of a tensor
    if found is None or truth or not least <= found <= most:
        low = most == MOST and not (found or 0) > most
        wanted = f"of at least {least}" if low else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {wanted}; not {value!r}")
    return found


def seed_of(seed: Any) -> int:
    """Any whole number, as a seed."""
    return whole("seed", seed, -(2**63), 2**64 - 1)


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> Any:
    """A finite number from `least` to `most`, or above `least`.

    >>> number("dt", float("nan"), 0, above=True)
    Traceback (most recent call last):
    ValueError: dt must be a positive number; not nan
    """
    if type(value) is float and least < value < most:
        return value
    try:
        real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        real = False
    if not real or not least <= value <= most or (above and value == least):
        kind = "positive" if above and least == 0 else "finite"
        low = "" if kind == "positive" or least == -math.inf else f" of at least {least}"
        high = "" if most == math.inf else f" of at most {most}"
        raise ValueError(f"{name} must be a {kind} number{' and'.join(filter(None, (low, high)))}; not {value!r}")
    return value if type(value) in (int, float) else float(value)  # not NumPy's, which a checkpoint cannot hold


def flags(**given: Any) -> None:
    """True or False each: a word such as "no" would count as True.

    >>> flags(causal="no")
    Traceback (most recent call last):
    ValueError: causal must be True or False; not 'no'
    """
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False; not {value!r}")


def positive(name: str, value: Any) -> Any:
    """A finite number above 0."""
    return number(name, value, 0, above=True)


def function(name: str, value: T) -> T:
    """Anything that can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function; not {value!r}")
    return value


def instance(name: str, value: Any, *kinds: type) -> Any:
    """Of one of these classes, or of one made from it."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        article = "an" if wanted[0] in "AEIOU" else "a"
        raise ValueError(f"{name} must be {article} {wanted}; not {type(value).__name__}")
    return value
