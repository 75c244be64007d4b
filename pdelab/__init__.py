"""pdelab: read a Transformer as a discretised PDE,  ∂u/∂t = A[u] + R[u] + D[u] + S[u].

Depth is time, tokens are space. Names are loaded when first used, so that `import pdelab` costs little.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

# name -> module that defines it; a module never has the name of something exported here
_EXPORTS = {
    "Diffusion": "terms.diffusion",
    "Euler": "integrators",
    "Result": "results",
    "Store": "results",
    "Trajectory": "solver",
    "explore": "interactive",
    "laplacian": "field",
    "solve": "solver",
    "summarise": "results",
}
_MODULES = (
    "check",
    "experiments",
    "field",
    "integrators",
    "interactive",
    "ledger",
    "plots",
    "results",
    "solver",
    "terms",
)

__all__ = [*_EXPORTS, *_MODULES]

try:
    __version__ = version("pdelab")
except PackageNotFoundError:  # the folder is on the path without having been installed
    __version__ = "unknown"


def __getattr__(name: str):
    if name in _EXPORTS:
        return getattr(import_module(f"pdelab.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return import_module(f"pdelab.{name}")
    raise AttributeError(f"module 'pdelab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
