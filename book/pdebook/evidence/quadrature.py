"""E f(z) ≈ Σ_k w_k f(z_k) for a standard normal z: nodes and weights, Σ_k w_k = 1."""

import numpy as np
import torch
from torch import Tensor


def gauss(nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss's rule: exact for polynomials of degree 2·nodes − 1.

    >>> z, w = gauss(3)
    >>> round((w * z**4).sum().item(), 12)
    3.0
    """
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.tensor(z), torch.tensor(w / w.sum())


def even(reach: float, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes at equal distances from −reach to reach: the trapezoid rule, for bounded f that may be steep."""
    z = torch.linspace(-reach, reach, nodes, dtype=torch.float64)
    w = torch.exp(-(z**2) / 2)
    return z, w / w.sum()
