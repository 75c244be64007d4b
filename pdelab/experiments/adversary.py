"""What every attack on a theorem shares: random starts, gradient ascent, and a count of what broke.

An attack makes the ratio of what happens to what a statement allows as large as it can; above 1 the statement is false.
The control is the same bound shrunk to 90 %: a search that cannot break that would prove nothing.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pdelab.experiments.scales import Scale
from pdelab.results import Result

ROUNDING = 1e-6  # the reference solutions are exact to about 1e-9, relative to the bound
SHRUNK = 0.9


def attention(u: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """Att(u)_i = Σ_j p_ij V u_j, p_i = softmax_j(u_iᵀ A u_j), in a batch: u (…, token, feature), A and V (…, d, d)."""
    scores = u @ A @ u.transpose(-1, -2)
    return scores.softmax(dim=-1) @ u @ V.transpose(-1, -2)


def norm2(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)


def longest(u: Tensor) -> Tensor:
    """max_i |u_i| over the tokens."""
    return u.norm(dim=-1).amax(dim=-1)


def ascend(score: Callable[..., Tensor], *start: Tensor, steps: int = 100, rate: float = 0.05) -> Tensor:
    """The largest score each member of the batch reached on its way up, by Adam on the inputs."""
    inputs = [x.clone().requires_grad_(True) for x in start]
    best = start[0].new_full(start[0].shape[:1], -torch.inf)
    adam = torch.optim.Adam(inputs, lr=rate)
    for _ in range(steps):
        value = score(*inputs)
        best = torch.maximum(best, value.detach().nan_to_num(-torch.inf))
        adam.zero_grad()
        (-value).nan_to_num(0.0).sum().backward()
        adam.step()
    return best


def attack_result(
    name: str,
    scale: Scale,
    seed: int,
    *,
    corrected: Mapping[str, Tensor],
    printed: Mapping[str, Tensor] | None = None,
    figures: Mapping[str, float] | None = None,
    controls: Mapping[str, float] | None = None,
    configuration: Mapping[str, object] | None = None,
) -> Result:
    """The Result of one seed of an attack, as the rule `attacked` reads it.

    corrected: for each of our statements the ratio value/bound of every attempt, violated above 1 + ROUNDING.
    printed: for each printed statement whether each attempt broke it (bool). figures, controls: further numbers.
    The control counts the attempts that pass a bound shrunk to SHRUNK, for each statement apart. A ratio that is not
    finite is refused: NaN > 1 is False, and a search that found nothing but NaN would pass for one that found no fault.
    """
    for key, found in corrected.items():
        if not len(found) or not torch.isfinite(found).all():
            raise ValueError(f"corrected[{key!r}] must hold finite ratios, one an attempt; not {found}")
    ratios = torch.cat(list(corrected.values()))
    printed = printed or {}
    broken = {f"{key}_violations": int(found.sum()) for key, found in printed.items()}
    against = {
        "printed_attempts": sum(len(found) for found in printed.values()),
        "printed_violations": sum(broken.values()),
        **broken,
    }
    return Result(
        experiment=name,
        configuration={"rounding": ROUNDING, "shrunk": SHRUNK, **(configuration or {})},
        scale=scale,
        seed=seed,
        status="finished",
        figures={
            **(against if printed else {}),
            "corrected_attempts": len(ratios),
            "corrected_violations": int((ratios > 1 + ROUNDING).sum()),
            "control_attempts": len(ratios),
            "control_violations": int((ratios > SHRUNK).sum()),
            "worst": ratios.max().item(),
            **{f"worst_{key}": found.max().item() for key, found in corrected.items()},
            **(figures or {}),
        },
        controls={
            **{f"shrunk_{key}": int((found > SHRUNK).sum()) for key, found in corrected.items()},
            **(controls or {}),
        },
    )
