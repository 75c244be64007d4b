"""The book's own code: what its pages use, what its evidence is made with, and the ledger of its claims.

It stands on `pdelab`, the library, which knows nothing of it. Names are loaded when first used.
"""

from importlib import import_module

_NAMES = {
    "Result": "ledger.record",
    "Store": "ledger.record",
    "digit": "chapters.trained_corners.digit",
    "explore": "kit.interactive",
    "play": "kit.play",
    "summarise": "ledger.record",
    "table": "kit.page",
}
_MODULES = {
    "check": "kit.check",
    "errata": "ledger.errata",
    "ledger": "ledger",
    "plots": "kit.plots",
}

__all__ = [*_NAMES, *_MODULES]


def __getattr__(name: str):
    if name in _NAMES:
        return getattr(import_module(f"pdebook.{_NAMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"pdebook.{_MODULES[name]}")
    raise AttributeError(f"module 'pdebook' has no attribute {name!r}")
