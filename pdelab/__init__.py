"""pdelab: read a Transformer as a discretised PDE,  ∂u/∂t = A[u] + R[u] + D[u] + S[u].

Depth is time, tokens are space. Names are loaded when first used, so that `import pdelab` costs little.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

# name -> module that defines it; a module never has the name of something exported here
_EXPORTS = {
    "CorrectedStabilization": "terms.stabilization",
    "Coupling": "terms.coupling",
    "CrankNicolson": "integrators",
    "Diffusion": "terms.diffusion",
    "Diverged": "solver",
    "Euler": "integrators",
    "ExponentialDiffusion": "integrators",
    "FeatureDiffusion": "terms.diffusion",
    "Heun": "integrators",
    "ImplicitDiffusion": "integrators",
    "Interaction": "terms.interaction",
    "Layered": "equation",
    "LayerNormRate": "terms.stabilization",
    "LieEuler": "integrators",
    "MasterEquation": "equation",
    "Place": "training",
    "PreNorm": "terms.stabilization",
    "RK4": "integrators",
    "Reaction": "terms.reaction",
    "Settings": "training",
    "SideBySide": "terms.coupling",
    "SharedOutputInteraction": "terms.interaction",
    "SpatialStabilization": "terms.stabilization",
    "Status": "status",
    "Strang": "integrators",
    "Term": "terms.base",
    "Trajectory": "solver",
    "coupled": "models",
    "from_torch": "convert",
    "laplacian": "field",
    "probe": "probing",
    "record": "recording",
    "simulator": "models",
    "solve": "solver",
    "solve_density": "crowd",
    "train": "training",
    "transformer": "models",
}
_MODULES = (
    "bottleneck",
    "checkpoints",
    "convert",
    "crowd",
    "datasets",
    "equation",
    "evaluation",
    "field",
    "files",
    "formulas",
    "integrators",
    "layers",
    "metrics",
    "models",
    "options",
    "pretrained",
    "probing",
    "reading",
    "recording",
    "report",
    "seeds",
    "solver",
    "status",
    "terms",
    "tracing",
    "training",
    "watching",
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
