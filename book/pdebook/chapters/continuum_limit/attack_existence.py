"""An adversary against existence and uniqueness:  ∂u/∂t = D ∂²u/∂x² + α Att(u) + R(u).  (P1 Theorem 1)

Printed: suitable initial and boundary values and Lipschitz A and R are enough. The search varies what is not mentioned,
the matrix D and the space that u₀ is taken from. Corrected: D with its spectrum in the right half-plane, u₀ continuous,
attention locally Lipschitz. There the search looks for two solutions from one start, for solutions that separate faster
than the proof allows, and for methods that do not agree.

The control is the backward heat equation: the search must find growth without bound.
"""

import math

import torch
from torch import Tensor

from pdebook.chapters.continuum_limit.continuum import smooth_embedding
from pdebook.evidence.adversary import ROUNDING, SHRUNK, ascend
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.equation import MasterEquation
from pdelab.field import laplacian_eigenvalues
from pdelab.formulas import attention, longest, norm2
from pdelab.integrators import RK4, ExponentialDiffusion, ImplicitDiffusion
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

MOMENT = 2e-5  # a short time, in which a well-posed equation moves a smooth field little


def growth(D: Tensor, tokens: int, t: float = MOMENT) -> Tensor:
    """max_k ‖e^{tλ_k D}‖ over the modes of N reflecting tokens, D (…, d, d): how much time t can enlarge a field."""
    rates = laplacian_eigenvalues(tokens)[:: max(1, tokens // 64)]
    return torch.stack([norm2(torch.linalg.matrix_exp(t * rate * D)) for rate in rates]).amax(dim=0)


def grows_without_bound(D: Tensor) -> Tensor:
    """True where a finer grid, 1024 tokens in place of 256, lets the same short time enlarge a field 100 times more."""
    return growth(D, 1024) > 100 * growth(D, 256)


def kernel_mass(D: Tensor) -> Tensor:
    """C_D = ∫‖G(z)‖dz of the heat kernel G(z) = (4πD)^{−1/2} e^{−z²D⁻¹/4}: ‖e^{tD∂²}u‖ ≤ C_D ‖u‖ in max norm, all t."""
    rates, basis = torch.linalg.eig(D)
    reach = 12 / (1 / rates).real.amin(dim=-1).sqrt()  # beyond this the kernel is below e^{−36}
    s = torch.linspace(-1, 1, 2001, dtype=D.dtype)
    total = torch.zeros_like(reach)
    for point in s:
        z = (point * reach).unsqueeze(-1)
        values = torch.exp(-(z**2) / (4 * rates)) / torch.sqrt(4 * math.pi * rates)
        total = total + norm2((basis * values.unsqueeze(-2)) @ torch.linalg.inv(basis))
    return total * reach * (s[1] - s[0])


def normaliser_is_infinite(power: Tensor, score: Tensor) -> Tensor:
    """Whether ∫exp(a·u(1)u(y))dy has no bound for u(y) = y^{−q}, q < ½, which lies in L²(0, 1).

    The part over (0, 1/n) alone is at least exp(a n^q)/n. True where that passes e^{100} for some n up to 10^{100}.
    """
    n = torch.logspace(1, 100, 100, dtype=torch.float64).unsqueeze(-1)
    return (score * n**power - n.log()).amax(dim=0) > 100


def right_half_plane(seed: int, batch: int) -> Tensor:
    """Random 2×2 matrices with both eigenvalues λ, Re λ > 0: real or complex pairs, in a random basis."""
    basis = normal(seed, "basis", size=(batch, 2, 2))
    real = 0.05 + torch.rand(batch, 2, generator=stream(seed, "real"), dtype=torch.float64)
    turn = normal(seed, "turn", size=(batch,)) * (torch.arange(batch) % 2)
    inner = torch.diag_embed(torch.where((torch.arange(batch) % 2 == 1).unsqueeze(-1), real[:, :1], real))
    inner[:, 0, 1], inner[:, 1, 0] = turn, -turn
    return basis @ inner @ torch.linalg.inv(basis)


def attack_semigroup(seed: int, batch: int = 64) -> Tensor:
    """‖e^{−sD}‖/C_D for many s and D with spectrum in the right half-plane: at most 1 if the proof is sound."""
    D = right_half_plane(seed, batch)
    worst = torch.stack([norm2(torch.linalg.matrix_exp(-s * D)) for s in torch.logspace(-3, 2, 60)]).amax(dim=0)
    return torch.maximum(worst, growth(D, 1024)) / kernel_mass(D)


def separation_ratio(
    u: Tensor, v: Tensor, A: Tensor, V: Tensor, W: Tensor, *, coefficient: float, steps: int = 16, T: float = 0.5
) -> Tensor:
    """max_i|u_i(T) − v_i(T)| / (e^{KT} max_i|u_i(0) − v_i(0)|) for two starts of one equation: at most 1.

    Diffusion is exact and the rest one Euler step. K = ‖V‖(1 + 2‖A‖R²) + ‖W‖, R the longest token met.
    """
    diffusion, dt = Diffusion(coefficient), T / steps
    gap, radius = longest(u - v), torch.maximum(longest(u), longest(v))
    for _ in range(steps):
        u, v = (
            diffusion.exact(w + dt * (attention(w, A, V) + torch.tanh(w) @ W.transpose(-1, -2)), dt) for w in (u, v)
        )
        radius = torch.maximum(radius, torch.maximum(longest(u), longest(v)))
    K = norm2(V) * (1 + 2 * norm2(A) * radius**2) + norm2(W)
    return longest(u - v) / (gap * torch.exp(K * T))


def attack_separation(seed: int, batch: int = 32, steps: int = 40) -> Tensor:
    """The worst ratio of each pair of starts, without diffusion and with some."""
    found = []
    for coefficient in (0.0, 0.01):
        u, v = (0.5 * normal(seed, coefficient, k, size=(batch, 4, 2)) for k in "uv")
        A, V, W = (0.3 * normal(seed, coefficient, k, size=(batch, 2, 2)) for k in "AVW")
        found.append(ascend(lambda *x, c=coefficient: separation_ratio(*x, coefficient=c), u, v, A, V, W, steps=steps))
    return torch.cat(found)


def equation(seed: int, coefficient: float) -> MasterEquation:
    """P1 eq 1 with a ReLU network, which is Lipschitz and not smooth."""
    terms = Diffusion(coefficient), Interaction(4, bias=False), Reaction(4, 8, bias=False)
    made = MasterEquation(*terms).double().requires_grad_(False)
    for name, value in made.named_parameters():
        value.copy_(normal(seed, "existence", name, size=value.shape) / math.sqrt(value.shape[1]))
    return made


def attack_agreement(seed: int, fields: int = 8) -> Tensor:
    """Distance of two methods at Δt/4 over their distance at Δt: about ¼ if both tend to one solution."""
    shrinking = []
    for number in range(fields):
        f, u0 = equation(100 * seed + number, 0.05), smooth_embedding(100 * seed + number, 32)
        gaps = []
        for steps in (16, 64):
            implicit, exponential = (
                solve(f, u0, steps=steps, dt=0.2 / steps, integrator=method, keep=lambda u: None).final
                for method in (ImplicitDiffusion(), ExponentialDiffusion())
            )
            gaps.append((implicit - exponential).abs().max())
        shrinking.append(gaps[1] / gaps[0])
    return torch.stack(shrinking)


def attack_return(seed: int, fields: int = 16) -> Tensor:
    """max|error| after going forward to t = 1 and back, N tokens without diffusion: 0 if no two solutions meet."""
    found = []
    for number in range(fields):
        terms = equation(100 * seed + number, 0.0).terms
        rate = MasterEquation(*list(terms)[1:])
        u0 = smooth_embedding(100 * seed + number, 12)
        there = solve(rate, u0, steps=64, dt=1 / 64, integrator=RK4(), keep=lambda u: None).final
        back = solve(
            lambda u, rate=rate: -rate(u), there, steps=64, dt=1 / 64, integrator=RK4(), keep=lambda u: None
        ).final
        found.append((back - u0).abs().max())
    return torch.stack(found)


@experiment("attack_existence", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the existence theorem, as printed and as corrected (P1 thm 1).

    One seed of every attack; `worst` is the largest ratio that the corrected statement allowed.
    """
    batch = 64
    matrices = grows_without_bound(normal(seed, "D", size=(batch, 2, 2)))
    powers = 0.5 * torch.rand(batch, generator=stream(seed, "q"), dtype=torch.float64)
    fields = normaliser_is_infinite(powers, normal(seed, "a", size=(batch,)))
    ratios = {"semigroup": attack_semigroup(seed), "separation": attack_separation(seed)}
    agreement, returned = attack_agreement(seed), attack_return(seed)
    violations = [
        *(found > 1 + ROUNDING for found in ratios.values()),
        agreement > 0.5,
        returned > 1e-4,  # ReLU's kinks cost RK4 its order; a second solution would be seen at order 1
    ]
    return Result(
        experiment="attack_existence",
        configuration={"matrices": batch, "fields": batch, "moment": MOMENT, "rounding": ROUNDING},
        scale=scale,
        seed=seed,
        status="finished",
        figures={
            # the printed theorem asks nothing of D; "appropriate" data may exclude fields in L², counted apart
            "printed_attempts": len(matrices),
            "printed_violations": int(matrices.sum()),
            "corrected_attempts": sum(len(found) for found in violations),
            "corrected_violations": int(sum(found.sum() for found in violations)),
            "control_attempts": sum(len(found) for found in ratios.values()),
            "control_violations": int(sum((found > SHRUNK).sum() for found in ratios.values())),
            "worst": max(found.max().item() for found in ratios.values()),
            "fields_without_normaliser": int(fields.sum()),
            "worst_agreement": agreement.max().item(),
            "worst_return": returned.max().item(),
            **{f"worst_{name}": found.max().item() for name, found in ratios.items()},
        },
        controls={"backward_heat_grows": float(grows_without_bound(torch.tensor([[-1.0]], dtype=torch.float64)))},
    )
