"""An option is one of a few names, or an error that lists them."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any


def choose(option: str, given: str, known: Mapping[str, Any] | Collection[str]) -> Any:
    """known[given], or `given` itself where `known` is no mapping; else a ValueError that says what would work.

    >>> choose("colour", "red", {"red": "#f00", "blue": "#00f"}), choose("colour", "red", ("red", "blue"))
    ('#f00', 'red')
    >>> choose("colour", "bleu", ("red", "blue"))
    Traceback (most recent call last):
    ValueError: colour must be one of red, blue; not 'bleu' (did you mean blue?)
    """
    if given not in known:
        near = ", ".join(get_close_matches(str(given), known))
        hint = f" (did you mean {near}?)" if near else ""
        raise ValueError(f"{option} must be one of {', '.join(known)}; not {given!r}{hint}")
    return known[given] if isinstance(known, Mapping) else given
