"""The crowd: attention as a field made by a law of tokens; its constants, its limit, and the circle in closed form.

Att[μ](q) = V ∫ e^{qᵀAy} y μ(dy) / ∫ e^{qᵀAy} μ(dy). Laws here are atoms y (…, atom, d) with masses (…, atom); equal
masses are tokens. Everywhere x = ‖A‖R², where all atoms and queries lie in the ball of radius R.
"""

import math

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import ive, spherical_in
from torch import Tensor

from pdebook.evidence.sphere import groups as groups  # both for the page and the attacks
from pdebook.evidence.systems import read as read
from pdelab.formulas import centres, growth

# The field


def law_part(x: Tensor, p: float, root: float = 1.0, exponent: float = 1.0) -> Tensor:
    """√(1+x²) e^{2x/p} for p ≥ 2 and (1+2x) e^{2x} for p = 1: what a unit of W_p does to the field, for ‖V‖ = 1."""
    if p != 1 and not p >= 2:
        raise ValueError(f"p must be 1 or at least 2, where there is a bound; not {p}")
    steep = 1 + 2 * x if p == 1 else (1 + x**2).sqrt()
    return root * steep * torch.exp(exponent * 2 * x / p)


def rate_of(a, v, R, p: float = math.inf, f=0.0, **parts: float) -> Tensor:
    """K_p = v(x + √(1+x²) e^{2x/p}) + f, x = aR²; parts: factors of x, of the root and of its exponent."""
    x = a * R**2
    first = parts.pop("x_part", 1.0)
    return v * (first * x + law_part(x, p, **parts)) + f


def reach(R, b, T, f0=0.0) -> Tensor:
    """R_T = e^{bT}R + f₀(e^{bT} − 1)/b: how far a token that starts in the ball of radius R can be at time T."""
    return torch.exp(b * T) * R + f0 * growth(b, T)


# Layers and samples


def layers_bound(K, M, K_t, T, layers: int) -> Tensor:
    """½(M + K_t/K)(e^{KT} − 1) T/L: Euler's error after L layers, whatever the number of tokens."""
    return (M + K_t / K) * torch.expm1(K * T) * T / (2 * layers)


def noise_bound(n: int, x, v, R, exponent: float = 1.0, count: float = 1.0) -> Tensor:
    """e^{2x} v R √(N+3)/N: bounds √E|Att[μ^N](u_i) − Att[μ](u_i)|² for N independent tokens, the query one of them.

    exponent, count: factors of 2x and of N + 3, 1 but for an attack.
    """
    return torch.exp(exponent * 2 * x) * v * R * math.sqrt(count * (n + 3)) / n


def largest_noise_bound(n: int, x, v, R, root: float = 1.0) -> Tensor:
    """2e^{2x} v R [1/N + √(2/N)(1 + √ln 2N)]: bounds E max_i|Att[μ^N](u_i) − Att[μ](u_i)|."""
    return 2 * torch.exp(2 * x) * v * R * (1 / n + root * math.sqrt(2 / n) * (1 + math.sqrt(math.log(2 * n))))


def chance_of_distance_one(n: int) -> float:
    """P(W_∞(μ^N, μ) = 1) for μ = ½δ_0 + ½δ_e, |e| = 1: all samples but those with N/2 tokens at each atom."""
    return 1.0 if n % 2 else 1 - math.exp(math.lgamma(n + 1) - 2 * math.lgamma(n / 2 + 1) - n * math.log(2))


def transport_cost(y: Tensor, z: Tensor) -> float:
    """W_1 of two clouds of equal weights, (n, d) and (m, d), m a multiple of n: the best assignment, exactly."""
    if not len(y) or len(z) % len(y):
        raise ValueError(f"z must have a multiple of the atoms of y; not {len(z)} for {len(y)}")
    copies = y.repeat_interleave(len(z) // len(y), dim=0)
    if y.shape[1] == 1:
        return (copies.flatten().sort().values - z.flatten().sort().values).abs().mean().item()
    cost = torch.cdist(copies, z, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].mean())


# On the circle


def mode_rate(k, beta: float, v: float = 1.0, noise: float = 0.0) -> np.ndarray:
    """λ_k = k² (v I_k(β)/(β I_0(β)) − D): the growth of cos kθ on the even crowd, D the noise."""
    k = np.asarray(k)
    return k**2 * (v * ive(k, beta) / (beta * ive(0, beta)) - noise)


def harmonic_rate(degree: int, beta: float) -> float:
    """λ_ℓ = ℓ(ℓ+1) i_ℓ(β)/(β i_0(β)): the growth of a spherical harmonic on the even crowd of the sphere in space."""
    return float(degree * (degree + 1) * spherical_in(degree, beta) / (beta * spherical_in(0, beta)))


def fastest_mode(beta: float) -> int:
    """k* = argmax_k λ_k, about √(2β)."""
    return int(np.argmax(mode_rate(np.arange(math.ceil(4 * math.sqrt(beta)) + 4), beta)))


def noise_threshold(beta: float) -> float:
    """D_c = I_1(β)/(β I_0(β)): with more noise than this every mode of the even crowd decays."""
    return float(mode_rate(1, beta))


def ring_rates(clusters: int, beta: float) -> np.ndarray:
    """Λ_q = Σ_m p_m (cos φ_m − β sin²φ_m)(cos qφ_m − 1), φ_m = 2πm/K, p = softmax(β cos φ): for q = 1, …, K − 1.

    The growth of cos qφ_j in the places of K equal clusters, evenly spaced: a push that turns all alike, q = 0, stays.
    """
    phi, pull = _ring(clusters, beta)
    return (np.cos(np.outer(np.arange(1, clusters), phi)) - 1) @ pull


def tightening(clusters: int, beta: float) -> float:
    """Σ_m p_m (cos φ_m − β sin²φ_m): the rate at which tokens of one group of a ring approach each other."""
    return float(_ring(clusters, beta)[1].sum())


def _ring(clusters: int, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """φ_m and p_m (cos φ_m − β sin²φ_m)."""
    phi = 2 * np.pi * np.arange(clusters) / clusters
    weight = np.exp(beta * (np.cos(phi) - 1))
    return phi, weight * (np.cos(phi) - beta * np.sin(phi) ** 2) / weight.sum()


def series(beta: float, least: float = 1e-17) -> Tensor:
    """I_k(β)/I_0(β) for k = 0, 1, …, as long as they are above `least`: what e^{β cos s} leaves of mode k."""
    weights = ive(np.arange(int(20 + 3 * beta)), beta) / ive(0, beta)
    return torch.from_numpy(weights[weights > least])


def rate_by_modes(theta: Tensor, beta: float, *, causal: bool = False) -> Tensor:
    """θ_i' = (1/β) ∂_θ log(k_β * μ) at θ_i, by the Fourier series of k_β: (…, token).

    The same numbers as `formulas.circle_rate`, with N times the length of the series in place of N² operations.
    """
    z = torch.polar(torch.ones_like(theta), theta)
    seen = torch.arange(1, theta.shape[-1] + 1, dtype=theta.dtype)  # by token i, behind a mask
    power, crowd, slope = torch.ones_like(z), torch.ones_like(theta), torch.zeros_like(theta)
    for k, weight in enumerate(series(beta)[1:].tolist(), start=1):
        power = power * z
        mean = power.cumsum(dim=-1) / seen if causal else power.mean(dim=-1, keepdim=True)
        wave = power * mean.conj()  # the mean of e^{ik(θ_i − φ)} over the tokens φ that are seen
        crowd = crowd + 2 * weight * wave.real
        slope = slope - 2 * weight * k * wave.imag
    return slope / crowd / beta


def cell_rate(k, beta: float, cells: int) -> np.ndarray:
    """λ_k sin(kΔθ/2)/(kΔθ/2), Δθ = 2π/M: the same growth on M cells, with exact time."""
    return mode_rate(k, beta) * np.sinc(np.asarray(k) / cells)


def bumps(edges: Tensor) -> Tensor:
    """∫_0^θ ρ of a smooth law with two unequal bumps, ρ = (1 + 0.6 cos(θ − ½) + 0.3 cos 2θ)/2π up to a constant."""
    waves = 0.6 * torch.sin(edges - 0.5) + 0.15 * torch.sin(2 * edges)
    return (edges + waves + 0.6 * math.sin(0.5)) / (2 * math.pi)


def bump(edges: Tensor) -> Tensor:
    """∫_0^θ ρ of one bump about π, ρ = (1 − cos θ)²/3π."""
    return (1.5 * edges - 2 * torch.sin(edges) + torch.sin(2 * edges) / 4) / (3 * math.pi)


def cell_means(cells: int, primitive=bumps) -> Tensor:
    """The means over M cells of a law on the circle given by its primitive: (1, cell)."""
    edges = 2 * math.pi * torch.arange(cells + 1, dtype=torch.float64) / cells
    return (primitive(edges).diff() * cells / (2 * math.pi)).unsqueeze(0)


def at_quantiles(n: int, primitive=bumps, places: Tensor | None = None) -> Tensor:
    """Angles θ_i with mass (i + ½)/N behind them, or `places` in (0, 1): (N,). By halving, to rounding."""
    goal = centres(n) if places is None else places
    low, high = torch.zeros_like(goal), torch.full_like(goal, 2 * math.pi)
    for _ in range(60):
        middle = (low + high) / 2
        below = primitive(middle) < goal
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def circle_cost(theta: Tensor, rho: Tensor) -> float:
    """W_1 on the circle between tokens at angles (N,) and cell means (cell,): min_c ∫|F − G − c| dθ.

    F and G are the two distribution functions. The difference is piecewise linear: sampled on a grid much finer than
    both, where c is the median.
    """
    cells, fine = len(rho), 8 * max(len(rho), len(theta))
    x = 2 * math.pi * centres(fine)
    F = torch.searchsorted(theta.remainder(2 * math.pi).sort().values, x, right=True) / len(theta)

    G = torch.cat([rho.new_zeros(1), rho.cumsum(0) / rho.sum()])
    place = x * cells / (2 * math.pi)
    cell = place.long()
    G = G[cell] + (place - cell) * (G[cell + 1] - G[cell])
    apart = F - G
    return (apart - apart.median()).abs().mean().item() * 2 * math.pi
