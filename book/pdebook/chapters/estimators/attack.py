"""An adversary against the ruler: information through noise by quadrature, its rise with the scale, the scale law."""

import math

import torch
from torch import Tensor

from pdebook.evidence import quadrature
from pdebook.evidence.adversary import Statement, attack
from pdelab.formulas import per_example

NODES = {1: (8.0, 141), 2: (6.0, 41)}  # features -> reach and number of nodes per axis
SMALL = -3.0  # least log s: below, both sides are so small that rounding would decide


def normal_nodes(d: int) -> tuple[Tensor, Tensor]:
    """Nodes (node, feature) and weights of the trapezoid rule for a standard normal variable."""
    nodes, weights = (torch.cartesian_prod(*[x] * d).reshape(-1, d) for x in quadrature.even(*NODES[d]))
    return nodes, weights.prod(dim=1)


def through_noise(points: Tensor) -> Tensor:
    """I(X; T + Z) of points (batch, n, d), each equally likely: no sampling."""
    nodes, weights = normal_nodes(points.shape[-1])
    gaps = points.unsqueeze(2) - points.unsqueeze(1)
    exponent = gaps.square().sum(dim=-1, keepdim=True) / 2 + gaps @ nodes.T
    lost = torch.logsumexp(-exponent, dim=2) @ weights
    return math.log(points.shape[1]) - lost.mean(dim=1)


def rise(points: Tensor, log_scale: Tensor, log_factor: Tensor, *, factor: float = 1.0) -> Tensor:
    """I(X; sT + Z) ≤ I(X; s'T + Z) for s < s'; the score is e^{I − I'}."""
    small = per_example(log_scale.exp()) * points
    large = factor * per_example(log_factor.square().exp()) * small
    return torch.exp(through_noise(small) - through_noise(large))


def scale_law(points: Tensor, log_scale: Tensor) -> Tensor:
    """I(X; sT + Z) ≤ ½ log det(1 + s²Σ), Σ the covariance of the points."""
    points = per_example(log_scale.clamp(min=SMALL).exp()) * points
    centred = points - points.mean(dim=1, keepdim=True)
    covariance = centred.mT @ centred / points.shape[1]
    law = torch.linalg.slogdet(torch.eye(points.shape[2], dtype=points.dtype) + covariance).logabsdet / 2
    return through_noise(points) / law


SIZES = ({"n": 2, "d": 1}, {"n": 5, "d": 1}, {"n": 3, "d": 2})
LESS = {"batch": 16, "steps": 60}

run = attack(
    "attack_estimators",
    {
        "rise": Statement(
            rise, {"points": "n d", "log_scale": "", "log_factor": ""}, SIZES, shrink=("factor",), each=True, **LESS
        ),
        "scale law": Statement(scale_law, {"points": "n d", "log_scale": ""}, SIZES, each=True, **LESS),
    },
)
