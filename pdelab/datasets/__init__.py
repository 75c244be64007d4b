"""Data: each source with its public full form and a small form that needs no network.

A Dataset's name says which one it is, and stands in every result and figure made from it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pdelab.options import choose

if TYPE_CHECKING:
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


def load(name: str, **options) -> "Dataset":
    """The data set of that name; the options, such as length=, are those of the `load` of its own module.

    >>> load("digits-rows").train.x.shape                     # (example, token, feature)
    torch.Size([1397, 8, 8])
    """
    module = choose("name", name, _modules())
    return import_module(f"pdelab.datasets.{module}").load(name, **options)


def __getattr__(name: str):
    if name == "Dataset":  # which loads torch, and the list of public files needs none
        return import_module("pdelab.datasets.base").Dataset
    raise AttributeError(f"module 'pdelab.datasets' has no attribute {name!r}")
