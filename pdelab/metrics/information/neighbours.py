"""Mutual information from distances to the nearest neighbours (Kraskov, Stögbauer and Grassberger 2004)."""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from pdelab.metrics.information.estimate import Estimate, sample_pair
from pdelab.options import whole
from pdelab.seeds import stream

AT_ONCE = 2**18  # distances held at once, so that memory does not grow with n² and the working set stays in the cache
PART = 500  # samples that a part has at least if n allows it, for the error
SPLITS = 24
SORTED = 400  # samples of one feature each from which a tree is faster than all distances
GROUP = 8  # rows of distances are searched in groups of so many, a power of 2


def ksg(x: Tensor, y: Tensor, k: int = 3, *, splits: int = SPLITS) -> Estimate:
    """Î = ψ(k) + ψ(n) − mean of ψ(n_x + 1) + ψ(n_y + 1), in nats.  (Kraskov 2004, first estimator)

    ε_i is the distance of sample i to its k-th neighbour in (x, y), n_x the number of other samples with
    |x − x_i| < ε_i and n_y likewise; |·| is the largest coordinate throughout. x, y: (sample, feature) or (sample,).

    Unchanged if x and y are both scaled by one number. In many dimensions it is far too low: below 1 for 2.3 nats with
    2,000 samples of 16 + 16 Gaussian features. It is at most ψ(n) − ψ(k), which y = x gives. It is made for densities:
    k + 1 equal samples are refused.

    The n terms of the mean are not independent, since neighbours count the same samples: their standard deviation over
    √n is a fifth to a third smaller than the spread of Î. So the error is measured on parts, as Holmes and Nemenman do
    (2019). The samples are dealt at random into g ≥ 2 disjoint parts of m, and V_m is the variance of Î over the parts:
    a mean over several deals, with `splits` degrees of freedom in all. m V_m grows a little with m, by half as much
    each time that m is doubled, so the error is (v/n)^½ with v = m V_m + ½ max(0, m V_m − ½m V_{m/2}). On Gaussian
    pairs it is within 10 % of the spread, and from one sample to the next it scatters by a fifth of itself. splits=0
    leaves it out (NaN): for 500, 1,000, 2,000 and 5,000 samples 30, 70, 25 and 9 times as fast with one feature each,
    16, 20, 4 and 1.4 times with 16. Fewer than 4k + 4 samples have no such parts, and the error is NaN too.

    >>> from pdelab.seeds import normal
    >>> x = normal(0, "signal", size=(500,))
    >>> print(ksg(x, x + normal(0, "noise", size=(500,))))  # ½ log 2 = 0.347
    0.392 ± 0.046 nats (KSG, k=3, 500 samples)
    """
    x, y = sample_pair(x, y)
    n = len(x)
    k = whole("k", k, 1, n - 1)  # a sample has n − 1 neighbours
    splits = whole("splits", splits, 0, 10**4)
    value = _values(x.T.unsqueeze(0), y.T.unsqueeze(0), k).item()
    most = torch.digamma(torch.tensor([n, k], dtype=torch.float64)).diff().neg().item()
    return Estimate(value, _error(x, y, k, splits), n, f"KSG, k={k}", most)


def _error(x: Tensor, y: Tensor, k: int, splits: int) -> float:
    """(v/n)^½, v the variance of a part times its samples, carried on to n from parts and halves of parts."""
    n = len(x)
    if not splits or n < 4 * (k + 1):
        return math.nan
    parts = max(2, n // PART)
    generator = stream(0, "parts of the samples")
    orders = [torch.randperm(n, generator=generator).to(x.device) for _ in range(math.ceil(splits / (parts - 1)))]

    def scaled(parts: int) -> float:
        """m V_m for n samples in so many parts."""
        m = n // parts
        dealt = [order[: parts * m].reshape(parts, m) for order in orders]
        values = [_values(x[one].transpose(1, 2), y[one].transpose(1, 2), k) for one in dealt]
        return m * torch.stack(values).var(dim=1).mean().item()

    whole, half = scaled(parts), scaled(2 * parts)
    return math.sqrt((whole + max(0.0, whole - half) / 2) / n)


def _values(xs: Tensor, ys: Tensor, k: int) -> Tensor:
    """Î of each part; xs, ys: (part, feature, sample)."""
    parts, features, n = xs.shape
    constant = torch.digamma(xs.new_tensor([float(k), float(n)])).sum()
    if features == ys.shape[1] == 1 and n >= SORTED:
        lines = zip(xs.squeeze(1), ys.squeeze(1), strict=True)
        return constant - torch.stack([_sorted(x, y, k).mean() for x, y in lines])

    rows = max(1, AT_ONCE // n)  # of the samples, and of several parts if all of theirs fit
    together = max(1, rows // n)
    found = []
    for i in range(0, parts, together):
        here = xs[i : i + together].contiguous(), ys[i : i + together].contiguous()
        local = [_compared(*here, range(j, min(j + rows, n)), k) for j in range(0, n, rows)]
        found.append(constant - torch.cat(local, dim=1).mean(dim=1))
    return torch.cat(found)


def _terms(reach: Tensor, k: int, near: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
    """ψ(n_x + 1) + ψ(n_y + 1) from the distances to the k-th neighbours and what counts n_x and n_y within them."""
    if (reach == 0).any():
        raise ValueError(
            f"x and y hold {k + 1} or more equal samples; KSG needs a density (labels: discrete_information)"
        )
    return sum(torch.digamma(number.to(reach.dtype) + 1) for number in near())


def _sorted(x: Tensor, y: Tensor, k: int) -> Tensor:
    """The terms of the mean for one feature each, (sample,): neighbours by a tree, and x and y sorted to count."""
    points = torch.stack([x, y], dim=1).cpu().numpy()
    order = points[:, 0].argsort()
    points = points[order]  # what is asked next is then near what was
    tree = cKDTree(points, leafsize=8, balanced_tree=False, compact_nodes=False)
    distances, _ = tree.query(points, k=[k + 1], p=math.inf)  # the first is the sample itself
    reach = distances[:, 0].astype(points.dtype)
    terms = _terms(torch.from_numpy(reach), k, lambda: tuple(_within(one, reach) for one in points.T))
    return terms[order.argsort()].to(x.device)


def _within(x: np.ndarray, reach: np.ndarray) -> Tensor:
    """How many other samples have |x_i − x_j| < ε_i: (sample,)."""
    values, counts = np.unique(x, return_counts=True)
    below = np.concatenate([[0], counts.cumsum()])  # samples below each value
    fenced = np.concatenate([values, [np.inf, np.inf]]).astype(x.dtype)  # also at −1, the last

    def inside(place: np.ndarray) -> np.ndarray:
        return np.abs(x - fenced[place]) < reach

    first = np.searchsorted(values, x - reach)
    last = np.searchsorted(values, x + reach, side="right") - 1
    # |x_i − x_j| and x_i ± ε_i round differently: what decides is the distance, as where all distances are computed
    for place, outwards in ((first, -1), (last, 1)):
        while (wrong := ~inside(place)).any():
            place -= outwards * wrong
        while (more := inside(place + outwards)).any():
            place += outwards * more
    return torch.from_numpy(below[last + 1] - below[first] - 1)


def _compared(xs: Tensor, ys: Tensor, chosen: range, k: int) -> Tensor:
    """The terms of the mean for the chosen samples of each part, (part, chosen), from all distances."""
    dx, dy = _distances(xs, chosen), _distances(ys, chosen)  # (part, chosen, sample)
    reach = _smallest(torch.maximum(dx, dy), k)
    # 0 and 1 in the dtype of the distances: adding up truth values would first make whole numbers of them all
    return _terms(reach.squeeze(-1), k, lambda: tuple(d.lt_(reach).sum(dim=-1) for d in (dx, dy)))


def _smallest(d: Tensor, k: int) -> Tensor:
    """The k-th smallest of each row, (…, 1): the k smallest lie in the k groups whose least are smallest."""
    size = d.shape[-1] // GROUP
    if size < 4 * k:
        return d.topk(k, dim=-1, largest=False).values[..., -1:]
    groups, rest = d[..., : GROUP * size].unflatten(-1, (GROUP, size)), d[..., GROUP * size :]  # a group is a column
    least = groups
    while least.shape[-2] > 1:
        least = torch.minimum(*least.chunk(2, dim=-2))  # several times as fast as amin
    best = least.topk(k, dim=-1, largest=False).indices.expand(*groups.shape[:-1], k)
    few = torch.cat([groups.gather(-1, best).flatten(-2), rest], dim=-1)
    return few.topk(k, dim=-1, largest=False).values[..., -1:]


def _distances(xs: Tensor, chosen: range) -> Tensor:
    """max over features of |x_i − x_j|, infinite from a sample to itself; a running maximum needs two planes, not d."""
    largest = here = None
    for all_ in xs.unbind(dim=1):  # one feature after the other: (part, sample)
        here = torch.sub(all_[:, chosen.start : chosen.stop].unsqueeze(-1), all_.unsqueeze(1), out=here).abs_()
        largest, here = (here, None) if largest is None else (torch.maximum(largest, here, out=largest), here)
    own = torch.arange(len(chosen), device=xs.device)
    largest[:, own, own + chosen.start] = torch.inf
    return largest
