"""Attention by position alone: p_ij = softmax_j(⟨P(x_i), P(x_j)⟩/τ), and how its diffusivity depends on |P'|².

P(x) holds pairs a_m(cos ω_m x, sin ω_m x). Then |P|² = Σa_m² and |P'|² = Σa_m²ω_m² are constant in x, and the score is
κ(x_i − x_j)/τ with κ(r) = Σ a_m² cos ω_m r. Near r = 0 it is a parabola, so the kernel is nearly a Gaussian of variance
τ/|P'|²: D = ½m₂V falls with |P'|². P2 eq 8 has the factor |P'|² in front.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import Field
from pdelab.formulas import centres
from pdelab.metrics.diffusivity import diffusivity, moment
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import stream

TAU, PAIRS = 0.02, 16
SCALES = (1.0, 1.4, 2.0, 2.8, 4.0)  # all frequencies are multiplied by these


def spread_frequencies(seed: int, pairs: int = PAIRS, low: float = 10.0, high: float = 40.0) -> Tensor:
    """ω_m drawn evenly from [low, high]: with many of them the kernel has one peak."""
    return low + (high - low) * torch.rand(pairs, generator=stream(seed, "frequencies"), dtype=torch.float64)


def commensurate_frequencies(pairs: int = 4) -> Tensor:
    """2π, 4π, 6π, …: the kernel recurs at every period of the slowest wave."""
    return 2 * torch.pi * torch.arange(1, pairs + 1, dtype=torch.float64)


def encode(x: Tensor, omega: Tensor) -> Tensor:
    """P(x) = M^{−½}(cos ω_m x, sin ω_m x): |P| = 1, |P'|² = mean of ω². x (token,) → (token, 2M)."""
    angle = x.unsqueeze(-1) * omega
    return torch.cat([angle.cos(), angle.sin()], dim=-1) / len(omega) ** 0.5


def weights(P: Tensor, tau: float = TAU) -> Tensor:
    """softmax_j(⟨P_i, P_j⟩/τ): (token, token)."""
    return (P @ P.T / tau).softmax(dim=-1)


def centre_row(omega: Tensor, tokens: int, tau: float = TAU) -> tuple[Tensor, Tensor]:
    """r_j = x_j − x_c and p_cj of the token in the middle."""
    x = centres(tokens)
    c = tokens // 2
    P = encode(x, omega)
    return x - x[c], (P @ P[c] / tau).softmax(dim=-1)


def second_moment(r: Tensor, p: Tensor) -> float:
    """m₂ = Σ_j p_j r_j²."""
    return (p * r**2).sum().item()


def gaussian_moment(r: Tensor, g: Tensor | float, tau: Tensor | float = TAU) -> Tensor:
    """G(g) = Σ_j q_j r_j², q_j ∝ e^{−g r_j²/2τ}: the second moment of the Gaussian on the same tokens, r (…, token)."""
    return ((-g * r**2 / (2 * tau)).softmax(dim=-1) * r**2).sum(-1)


def exponent(slopes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value over log |P'|², by least squares."""
    return float(np.polyfit(np.log(slopes), np.log(np.abs(values)), 1)[0])


def sweep(omega: Tensor, tokens: int = 2048, scales: Sequence[float] = SCALES) -> tuple[list[float], dict]:
    """|P'|² for each scale of the frequencies, and m₂ and the variance of the weights at the token in the middle."""
    slopes, moments, variances = [], [], []
    for scale in scales:
        r, p = centre_row(scale * omega, tokens)
        slopes.append((scale * omega).square().mean().item())
        moments.append(second_moment(r, p))
        variances.append((p.square().mean() - p.mean() ** 2).item())
    return slopes, {"moment": moments, "weights": variances, "constant": [1.0] * len(slopes)}


def exponents(omega: Tensor, tokens: int = 2048, scales: Sequence[float] = SCALES) -> dict[str, float]:
    """The exponent of |P'|² in D = ½m₂ ("measured"), and in |P'|²σ²_att of P2 eq 8 under each reading of σ²_att."""
    slopes, factors = sweep(omega, tokens, scales)
    printed = {name: exponent(slopes, np.multiply(slopes, values)) for name, values in factors.items()}
    return {"measured": exponent(slopes, factors["moment"]), **printed}


def block(P: Tensor, V: Tensor, ffn=None, tau: float = TAU):
    """u ↦ w + FFN(w + P), w = u + p(P) u Vᵀ: a residual layer that attends by position; without ffn the first half."""
    p = weights(P, tau)

    def layer(u: Field) -> Field:
        w = u + p @ u @ V.T
        return w if ffn is None else w + ffn(w + P[..., : u.shape[-1]])

    return layer


def layer_diffusivity(omega: Tensor, V: Tensor, ffn=None, tokens: int = 128, tau: float = TAU) -> float:
    """D = ½ Σ_y (y − x)² (1/d) tr J(x, y) of `block` at the token in the middle, from its Jacobian."""
    u = torch.zeros(1, tokens, len(V), dtype=torch.float64)
    J = jacobian(block(encode(centres(tokens), omega), V, ffn, tau), u)
    return diffusivity(J)[0, tokens // 2].item()


def varying_length(seed: int, tokens: int, tau: float = TAU) -> float:
    """m₂|P'|²/τ at the middle for a smooth random P whose length |P| varies: 1 if the law held without |P| = const."""
    x, c = centres(tokens), tokens // 2
    omega = spread_frequencies(seed)
    phase = 2 * torch.pi * torch.rand(PAIRS, generator=stream(seed, "phases"), dtype=torch.float64)
    angle = x.unsqueeze(-1) * omega + phase
    P, slope = angle.cos() * (2 / PAIRS) ** 0.5, -omega * angle.sin() * (2 / PAIRS) ** 0.5
    p = (P @ P[c] / tau).softmax(dim=-1)
    return second_moment(x - x[c], p) * slope[c].square().sum().item() / tau


@experiment("position_kernel", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """How diffusion by attention depends on the slope of the positions, beside three readings of P2 eq 8.

    One seed is one draw of 16 frequencies. Controls: frequencies whose kernel recurs, and a grid that is too coarse.
    """
    omega = spread_frequencies(seed)
    found = exponents(omega)
    V = torch.eye(2, dtype=torch.float64)
    P = encode(centres(256), omega)
    maps = weights(P).reshape(1, 1, 256, 256)
    return Result(
        experiment="position_kernel",
        configuration={"pairs": PAIRS, "tau": TAU, "tokens": 2048, "scales": list(SCALES)},
        scale=scale,
        seed=seed,
        status="finished",
        figures={
            "exponent": found["measured"],
            **{f"printed_exponent_{name}": found[name] for name in ("constant", "moment", "weights")},
            "jacobian_over_half_m2": 2 * layer_diffusivity(omega, V, tokens=256) / moment(maps, 2)[0, 0, 128].item(),
        },
        controls={
            "recurring_kernel_exponent": exponents(commensurate_frequencies(), scales=(1, 2, 4, 8))["measured"],
            **{f"{n}_tokens_exponent": exponents(omega, tokens=n)["measured"] for n in (64, 256)},
            "varying_length_ratio": varying_length(seed, 2048),
        },
    )
