"""What the ends of the sequence do to its mean: zero ends (P1 eq 7) against reflecting ends.

A sequence of N random tokens diffuses, ∂u/∂t = ∂²u/∂x², up to t = 0.2. The figure is the share of the initial mean
that is left, ⟨m(t), m(0)⟩ / |m(0)|² with m = the mean over tokens.
"""

import torch

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import Field
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion

TOKENS, FEATURES, TIME, STEPS = 32, 16, 0.2, 512


def random_tokens(seed: int) -> Field:
    """u₀ ~ N(1, 1) in every entry, as embeddings whose mean is not zero: (1, token, feature)."""
    generator = torch.Generator().manual_seed(seed)
    return 1 + torch.randn(1, TOKENS, FEATURES, generator=generator, dtype=torch.float64)


def evolve(u0: Field, boundary: str) -> Trajectory:
    return solve(Diffusion(1.0, boundary), u0, steps=STEPS, dt=TIME / STEPS)


def mean_kept(trajectory: Trajectory) -> list[float]:
    """⟨m(t), m(0)⟩ / |m(0)|² for every stored t; 1 where diffusion only moves things about."""
    means = torch.stack([u.mean(dim=1).flatten() for u in trajectory.states])  # (time, batch · feature)
    return (means @ means[0] / means[0].dot(means[0])).tolist()


@experiment("heat_ends", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """What zero ends and reflecting ends leave of a sequence's mean (P1 eq 7).

    One seed: zero ends as printed, reflecting ends as the control.
    """
    u0 = random_tokens(seed)
    absorbing, reflecting = (evolve(u0, boundary) for boundary in ("absorbing", "reflecting"))
    return Result(
        experiment="heat_ends",
        configuration={"tokens": TOKENS, "features": FEATURES, "time": TIME, "steps": STEPS, "coefficient": 1.0},
        scale=scale,
        seed=seed,
        status=max(absorbing.status, reflecting.status, key=lambda status: status is Status.DIVERGED).value,
        figures={"mean_kept": mean_kept(absorbing)[-1]},
        controls={"reflecting_ends": mean_kept(reflecting)[-1]},
    )
