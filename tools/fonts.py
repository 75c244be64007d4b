"""A font cache of the project's own.

matplotlib keeps one cache a user, shared by all environments. A cache that another environment left half-made, or one
that is being built, writes warnings into a notebook's output, and then a notebook differs from its stored form.
"""

import os
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / "_build" / "matplotlib"


def prepare() -> None:
    """Make the cache before any kernel starts; kernels inherit where it is."""
    CACHE.mkdir(parents=True, exist_ok=True)
    os.environ["MPLCONFIGDIR"] = str(CACHE)
    import matplotlib.font_manager  # noqa: F401  (building the cache is what importing it does)
