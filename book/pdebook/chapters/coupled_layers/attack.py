"""An adversary against the step condition of the coupled system.  (P1 eq 20 with all its terms)

One step: the largest token of every layer over what the bound allows. Many steps: the same with the bound iterated, so
that an error of the lower layers would show above. Controls: the bound shrunk, and one of its terms left out.
"""

import torch
from torch import Tensor

from pdebook.chapters.coupled_layers.laws import largest, next_bound, one_step
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import BOUNDARIES
from pdelab.seeds import normal, stream

TERMS = ("value", "reaction", "inflow", "bias")
NAMES = ("u", "A", "V", "W", "U", "b", "E", "numbers")


def systems(seed: int, name: object, batch: int, layers: int, tokens: int, width: int) -> list[Tensor]:
    """u, A, V, W, U, b, E, numbers of random systems, each part with its own size from 0.03 to 3."""
    square, blocks = (width, width), layers + 1
    shapes = {"u": (blocks, tokens, width), "b": (blocks, width), "E": (blocks, *square), "numbers": (blocks, 3)}
    shapes |= dict.fromkeys("AVWU", (layers, *square))
    sizes = torch.pow(10, 2 * torch.rand(len(NAMES), batch, generator=stream(seed, name), dtype=torch.float64) - 1.5)
    return [
        sizes[n].view(-1, *[1] * len(shapes[k])) * normal(seed, name, k, size=(batch, *shapes[k]))
        for n, k in enumerate(NAMES)
    ]


def step_ratio(*system: Tensor, ends: str, steps: int = 1) -> Tensor:
    """The largest m_l^n over its bound, over all layers and up to `steps` steps: at most 1."""
    u, A, *rest = system
    bound, found = largest(u), []
    for _ in range(steps):
        after = one_step(u, A, *rest, ends)
        bound = torch.cat([bound[:, :1], next_bound(bound, *rest)], dim=1)
        found.append((largest(after) / bound[:, 1:]).amax(dim=1))
        u = torch.cat([u[:, :1], after], dim=1)
    return torch.stack(found).amax(dim=0)


def attack(seed: int, steps: int, batch: int = 48, climb: int = 100) -> Tensor:
    """The worst ratio of each start, all three kinds of ends, two or three layers."""
    found = []
    for ends in BOUNDARIES:
        for shape in ((2, 4, 1), (3, 3, 2)):
            start = systems(seed, ("coupled", steps, ends, *shape), batch, *shape)
            found.append(ascend(lambda *s, e=ends: step_ratio(*s, ends=e, steps=steps), *start, steps=climb))
    return torch.cat(found)


def broken_without(seed: int, term: str, batch: int = 64) -> int:
    """How many random systems break the bound with one of its TERMS left out: a control."""
    u, A, *rest = systems(seed, ("without", term), batch, 3, 4, 2)
    allowed = next_bound(largest(u), *rest, without=term)
    return int((largest(one_step(u, A, *rest, "reflecting")) > allowed * (1 + 1e-6)).any(dim=1).sum())


@experiment("attack_coupled", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the step bound of the coupled system, one step and many (P1 eq 20)."""
    return attack_result(
        "attack_coupled",
        scale,
        seed,
        corrected={"step": attack(seed, 1), "many": attack(seed, 8, batch=24, climb=60)},
        controls={f"without_{term}": broken_without(seed, term) for term in TERMS},
    )
