"""Mutual information by nearest neighbours: `ksg` beside infomeasure's and, of one feature each, scikit-learn's.

All compute the same estimator with k = 3 on the same float32 samples; none measures an error. Memory is the most that
the process grew during a call.
"""

from collections.abc import Iterator
from functools import partial

from harness import Row, compare, peak_memory, peer, spread
from torch import Tensor

from pdelab.metrics.information import ksg
from pdelab.seeds import normal

SAME = 1e-4  # the peers take distances in float64, where a few are in another order
MOST = 100  # MB


def pair(n: int, d: int) -> tuple[Tensor, Tensor]:
    """d independent pairs with correlation 0.5, each feature of variance 1."""
    x, z = (normal(0, name, n, d, size=(n, d)) for name in ("x", "z"))
    y = 0.5 * x + 0.75**0.5 * z
    return (x / x.std(0, correction=0)).float(), (y / y.std(0, correction=0)).float()


def rows(device: str, quick: bool) -> Iterator[Row]:
    infomeasure, sklearn = peer("infomeasure"), peer("sklearn.feature_selection")

    def ours(x: Tensor, y: Tensor) -> float:
        return ksg(x.to(device), y.to(device), splits=0).value

    def metric(x: Tensor, y: Tensor) -> float:
        return float(infomeasure.mutual_information(x.numpy(), y.numpy(), approach="metric", k=3, noise_level=0))

    def regression(x: Tensor, y: Tensor) -> float:  # it scales the samples, adds noise of 1e-10, and cuts at 0
        return float(sklearn.mutual_info_regression(x.numpy(), y.numpy()[:, 0], n_neighbors=3, random_state=0)[0])

    for d, name, theirs, target in (
        (16, "infomeasure", metric, "≤ 0.05"),
        (1, "infomeasure", metric, "≤ 0.7"),
        (1, "scikit-learn", regression, "≤ 0.35"),
    ):
        given = pair(2_000, d)
        yield compare(
            f"KSG, {d} + {d} features, 2,000 samples",
            name,
            partial(ours, *given),
            partial(theirs, *given),
            target=target,
            repeats=3 if quick else 15,
            device=device,
            agree=SAME,
        )

    x, y = (v.to(device) for v in pair(1_000 if quick else 10_000, 16))
    held = peak_memory(lambda: ksg(x, y, splits=0), device) / 2**20
    work, note = f"KSG, 16 + 16 features, {len(x):,} samples: memory", f"{held:.0f} MB"
    yield spread(work, f"{MOST} MB", [held / MOST], "≤ 1", note)
