"""Data: each source with its public full form and a small form that needs no network.

A Dataset's name says which one it is, and stands in every result and figure made from it.
"""

from difflib import get_close_matches
from importlib import import_module

from pdelab.datasets.base import Dataset

# name -> module that makes it, loaded when it is asked for
_NAMES = {
    "digits-pixels": "images",
    "digits-rows": "images",
    "mnist-pixels": "images",
    "mnist-rows": "images",
    "mnist-patches": "images",
    "newsgroups": "texts",
    "synthetic-topics": "texts",
    "synthetic-characters": "characters",
    "tinyshakespeare": "characters",
}


def _modules() -> dict[str, str]:
    """_NAMES and every grammar of listops, by its own list."""
    return _NAMES | dict.fromkeys(import_module("pdelab.datasets.listops").GRAMMARS, "listops")


def names() -> list[str]:
    """Every name that `load` knows."""
    return list(_modules())


def load(name: str, **options) -> Dataset:
    """The data set of that name; the options, such as length=, are those of the `load` of its own module.

    >>> load("digits-rows").train.x.shape                     # (example, token, feature)
    torch.Size([1397, 8, 8])
    """
    modules = _modules()
    if name not in modules:
        near = get_close_matches(name, modules) or [known for known in modules if known.startswith(name)]
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        raise ValueError(f"name must be one of {', '.join(modules)}; not {name!r}{hint}")
    return import_module(f"pdelab.datasets.{modules[name]}").load(name, **options)
