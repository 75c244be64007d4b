"""Finitely many tokens on a circle or a sphere: when they meet, and what a causal mask changes.

Attention with A = βI and V = I moves tokens of length 1 by u_i' = (I − u_iu_iᵀ) Σ_j p_ij u_j with the weights
p_i = softmax_j(β⟨u_i, u_j⟩). Behind a causal mask the sum is over j ≤ i: the first token sees itself alone and stays.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from pdebook.evidence import sphere
from pdelab.formulas import circle_rate


def follow_angles(theta: Tensor, beta: float, times: Sequence[float], *, causal: bool = False) -> np.ndarray:
    """The angles of tokens (token,) on the circle at the times 0 ≤ t_1 < …: (time, token).

    Steps of a length that adapts: groups wait for long, and meet within a moment.
    """

    def rate(t: float, angles: np.ndarray) -> np.ndarray:
        return circle_rate(torch.from_numpy(angles), beta, causal=causal).numpy()

    ends = (0.0, max(times))
    run = solve_ivp(rate, ends, theta.double().numpy(), "LSODA", t_eval=times, rtol=1e-8, atol=1e-10)
    return run.y.T


def mean_cosine(theta: np.ndarray) -> np.ndarray:
    """The mean of cos(θ_i − θ_j) over all pairs i ≠ j: (…, token) → (…,); 1 where all tokens are in one place."""
    n = theta.shape[-1]
    length = np.abs(np.exp(1j * theta).sum(axis=-1)) ** 2  # Σ_ij cos(θ_i − θ_j)
    return (length - n) / (n * (n - 1))


def groups(theta: np.ndarray, gap: float = 0.2) -> int:
    """How many groups stand on the circle, two being apart where an arc longer than `gap` is empty."""
    return sphere.groups(torch.from_numpy(theta), gap).item()


def lead_rate(m, beta, n: int, *, others: float = 1.0, exponent: float = 1.0):
    """κ = 1/(1 + (n−1)e^{β(1−m)}): the least weight of the first of n tokens for one whose cosine with it is m."""
    m, beta = (torch.as_tensor(x, dtype=torch.float64) for x in (m, beta))
    return 1 / (1 + others * (n - 1) * torch.exp(exponent * beta * (1 - m)))


def lead_bound(m: float, beta: float, n: int, times: Sequence[float]) -> np.ndarray:
    """y' = (1 − y²)κ(y), y(0) = m, κ as in `lead_rate`: a floor under the smallest cosine with the first token."""

    def rate(t: float, y: np.ndarray) -> np.ndarray:
        return (1 - y**2) * lead_rate(y, beta, n).numpy()

    return solve_ivp(rate, (0.0, max(times)), [m], t_eval=times, rtol=1e-9, atol=1e-12).y[0]
