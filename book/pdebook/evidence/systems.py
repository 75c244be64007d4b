"""Random systems u' = G(u), attention and a feed-forward network in matrices, that several attacks search."""

import math

import torch
from torch import Tensor

from pdelab.formulas import attention, norm2

MATRICES = {"A": "d d", "V": "d d", "W": "d d", "U": "d d"}  # for `vary` of a Statement


def push(u: Tensor, A: Tensor, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """G(u) = P(u) u Vᵀ + tanh(u Wᵀ) Uᵀ: attention and a feed-forward network, without −u."""
    return attention(u, A, V) + torch.tanh(u @ W.mT) @ U.mT


def allowed_push(tokens: int, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """K = √N ‖V‖ + ‖U‖‖W‖: ‖G(u) − G(μ)‖ ≤ Kσ for every field of N tokens."""
    return math.sqrt(tokens) * norm2(V) + norm2(U) * norm2(W)
