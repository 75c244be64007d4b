"""What residual connections and LayerNorm do to a trained model: the 2×2 of both, all else equal.  (P2 thm 3.4)

bare: u ← Att(u), u ← FFN(u). norm: each followed by LayerNorm. residual: u ← u + Att(u), u ← u + FFN(u).
residual_norm: both, a post-LayerNorm Transformer.
"""

from pdelab.experiments.scales import Scale, Workplace, experiment
from pdelab.experiments.tasks import TASKS, measure
from pdelab.results import Result

CORNERS = ("bare", "norm", "residual", "residual_norm")


def _corners(name: str, scale: Scale, seed: int, work: Workplace) -> Result:
    task = TASKS[name][scale]
    found = measure(CORNERS, task, task.load(), seed, work)
    return Result(
        experiment=f"corners-{name}",
        configuration=task.configuration(),
        scale=scale,
        seed=seed,
        status="finished" if found.models else "diverged",
        figures=found.figures,
        controls=found.controls,
        diverged=found.diverged,
    )


@experiment(*Scale)
def images(scale: Scale, seed: int, work: Workplace) -> Result:
    """The trained 2×2 of residual connections and LayerNorm on images: accuracy, fidelity, gradients, collapse."""
    return _corners("images", scale, seed, work)


@experiment(*Scale)
def listops(scale: Scale, seed: int, work: Workplace) -> Result:
    """The trained 2×2 of residual connections and LayerNorm on ListOps: accuracy, fidelity, gradients, collapse."""
    return _corners("listops", scale, seed, work)
