"""Mutual information from distances to the nearest neighbours (Kraskov, Stögbauer and Grassberger 2004)."""

import torch
from torch import Tensor

from pdelab.metrics.information.estimate import Estimate, sample_pair
from pdelab.options import whole

AT_ONCE = 2**18  # distances held at once, so that memory does not grow with n² and the working set stays in the cache


def ksg(x: Tensor, y: Tensor, k: int = 3) -> Estimate:
    """Î = ψ(k) + ψ(n) − mean of ψ(n_x + 1) + ψ(n_y + 1), in nats.  (Kraskov 2004, first estimator)

    ε_i is the distance of sample i to its k-th neighbour in (x, y), n_x the number of other samples with
    |x − x_i| < ε_i and n_y likewise; |·| is the largest coordinate throughout. x, y: (sample, feature) or (sample,).

    Unchanged if x and y are both scaled by one number. In many dimensions it is far too low: below 1 for 2.3 nats with
    2,000 samples of 16 + 16 Gaussian features. It is made for densities: k + 1 equal samples are refused.

    >>> from pdelab.seeds import normal
    >>> x = normal(0, "signal", size=(500,))
    >>> print(ksg(x, x + normal(0, "noise", size=(500,))))  # ½ log 2 = 0.347
    0.392 ± 0.036 nats (KSG, k=3, 500 samples)
    """
    x, y = sample_pair(x, y)
    n = len(x)
    k = whole("k", k, 1, n - 1)  # a sample has n − 1 neighbours
    xs, ys = x.T.contiguous(), y.T.contiguous()  # one feature after the other: (feature, sample)
    chunk = max(1, AT_ONCE // n)
    local = torch.cat([_counted(xs, ys, range(i, min(i + chunk, n)), k) for i in range(0, n, chunk)])
    pointwise = torch.digamma(local.new_tensor([float(k), float(n)])).sum() - local
    return Estimate.mean_of(pointwise, f"KSG, k={k}")


def _counted(xs: Tensor, ys: Tensor, chosen: range, k: int) -> Tensor:
    """ψ(n_x + 1) + ψ(n_y + 1) for the chosen samples."""
    dx, dy = _distances(xs, chosen), _distances(ys, chosen)  # (chosen, sample)
    reach = torch.maximum(dx, dy).topk(k, dim=1, largest=False).values[:, -1:]
    if not reach.is_meta and (reach == 0).any():
        raise ValueError(
            f"x and y hold {k + 1} or more equal samples; KSG needs a density (labels: discrete_information)"
        )
    return sum(torch.digamma((d < reach).sum(dim=1).to(xs.dtype) + 1) for d in (dx, dy))


def _distances(xs: Tensor, chosen: range) -> Tensor:
    """max over features of |x_i − x_j|, infinite from a sample to itself; a running maximum needs one plane, not d."""
    here = xs[:, chosen.start : chosen.stop]
    largest = (here[0].unsqueeze(1) - xs[0]).abs_()
    for mine, all_ in zip(here[1:], xs[1:], strict=True):
        torch.maximum(largest, (mine.unsqueeze(1) - all_).abs_(), out=largest)
    own = torch.arange(len(chosen), device=xs.device)
    largest[own, own + chosen.start] = torch.inf
    return largest
