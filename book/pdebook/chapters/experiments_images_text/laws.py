"""Ten layers of a Transformer beside ten states of pure diffusion: what is known without a model.  (P1 tables 2, 3)

P1's PDE model here repeats u ← u + h (u_{c+1} − 2u_c + u_{c−1}); it prints neither h nor the axis. We take h = 0.1
along the features and along the tokens. Tables: the correlation of successive states (table 2), and that of the
Transformer's and the diffused state at equal depth (table 3). For white noise the first is a closed form.
"""

import math

import torch
from torch import Tensor

from pdelab.field import Field, check_boundary, laplacian, laplacian_eigenvalues
from pdelab.solver import Trajectory

STEP = 0.1  # h = D Δt/Δx²: of the round numbers the one with which white noise comes nearest to the printed column
STATES = 10
AXES = ("features", "tokens")


def diffuse(u: Field, axis: str, states: int = STATES, step: float = STEP, boundary: str = "reflecting") -> Trajectory:
    """u ← u + h (u_{c+1} − 2u_c + u_{c−1}), c along the tokens or the features; the first state is u."""
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}; not {axis!r}")

    def second(v: Field) -> Field:
        return laplacian(v, boundary) / v.shape[1] ** 2  # Δx = 1

    course = [u]
    for _ in range(states - 1):
        last = course[-1]
        course.append(last + step * (second(last) if axis == "tokens" else second(last.mT).mT))
    return Trajectory.of(course)


def white_noise(n: int, states: int = STATES, step: float = STEP, boundary: str = "reflecting") -> Tensor:
    """c_{2m+1}/√(c_{2m} c_{2m+2}) with c_m = (1/n) Σ_k g_k^m, g_k = 1 + hλ_k: table 2 for white noise, (states − 1,).

    λ_k: the eigenvalues of the second difference on n places with Δx = 1. On a ring of more than m places c_m is the
    constant coefficient of (h z + 1 − 2h + h/z)^m.

    >>> white_noise(64, states=2, boundary="periodic").item() == 0.8 / math.sqrt(0.66)
    True
    """
    check_boundary(boundary)
    g = 1 + step * laplacian_eigenvalues(n, boundary) / n**2
    c = torch.stack([(g**m).mean() for m in range(2 * states)])
    even, odd = c[::2], c[1::2]
    return odd[:-1] / (even[:-1] * even[1:]).sqrt()


def fading(n: int, states: int = STATES, step: float = STEP) -> Tensor:
    """a_m/√a_{2m} with a_m = (n c_m − 1)/(n − 1): what m updates leave of a correlation, (states,).

    For zero-mean vectors v, w of n features in a random order the mean of ⟨v, Gᵐw⟩ is a_m⟨v, w⟩ and that of |Gᵐw|² is
    a_{2m}|w|², G the update with reflecting ends. So table 3 is that of a copy of the first state times this.
    """
    g = 1 + step * laplacian_eigenvalues(n) / n**2
    a = torch.stack([((g**m).sum() - 1) / (n - 1) for m in range(2 * states)])
    return a[:states] / a[::2].sqrt()


def best_step(printed: list[float], n: int, steps: Tensor | None = None) -> tuple[float, float]:
    """The h with which white noise comes nearest to a printed column, and the root mean square distance there.

    Without `steps` every h below 1/2, where the update is stable, in thousandths.
    """
    steps = torch.arange(0.001, 0.4995, 0.001, dtype=torch.float64) if steps is None else steps
    target = torch.tensor(printed, dtype=torch.float64)
    errors = [(white_noise(n, len(printed) + 1, h) - target).square().mean().sqrt().item() for h in steps.tolist()]
    best = min(range(len(errors)), key=errors.__getitem__)
    return steps[best].item(), errors[best]


def root_mean_square(values: list[float], printed: list[float]) -> float:
    """√mean (v − p)², the distance of a measured column from a printed one."""
    return math.sqrt(sum((v - p) ** 2 for v, p in zip(values, printed, strict=True)) / len(printed))
