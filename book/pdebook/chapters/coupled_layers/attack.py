"""An adversary against the step condition of the coupled system.  (P1 eq 20 with all its terms)

One step: the largest token of every layer over what the bound allows. Many steps: the same with the bound iterated, so
that an error of the lower layers would show above.
"""

import torch
from torch import Tensor

from pdebook.evidence.adversary import Statement, attack, over_decades
from pdelab.field import BOUNDARIES, laplacian
from pdelab.formulas import attention, longest, norm2, per_example

TERMS = ("kept", "turned", "value", "reaction", "inflow", "bias")  # what the bound adds up; each is needed

# l layers above a held input, k = l + 1 blocks in all; 3 numbers per block are the shares of its step
VARY = {"u": "k n d", "A": "l d d", "V": "l d d", "W": "l d d", "U": "l d d"}
VARY |= {"b": "k d", "E": "k d d", "numbers": "k 3"}
SIZES = [{"l": 2, "k": 3, "n": 4, "d": 1, "3": 3}, {"l": 3, "k": 4, "n": 3, "d": 2, "3": 3}]


def shares(numbers: Tensor, total: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """2DΔt/Δx² and Δt C with a sum below `total`, and αΔt, for every block: numbers (batch, block, 3)."""
    parts = total * torch.softmax(torch.cat([numbers[..., :2], 0 * numbers[..., :1]], dim=-1), dim=-1)
    return parts[..., 0], parts[..., 1], numbers[..., 2].exp()


def link_matrices(E: Tensor, top: Tensor) -> Tensor:
    """C · identity − E."""
    return per_example(top) * torch.eye(E.shape[-1]).to(E) - E


def one_step(u, A, V, W, U, b, E, numbers, *, ends: str, total: float = 1.0) -> Tensor:
    """One step of all layers but the held first; u (batch, block, token, feature), Δt inside every number.

    The link out of block l is C_l − E_l, with C_l so that 2DΔt/Δx² + Δt C_l < total: 1 in the theorem.
    """
    diffusive, top, strength = shares(numbers, total)
    own = u[:, 1:]
    tokens, width = own.shape[-2:]

    spatial = laplacian(own.reshape(-1, tokens, width), ends).view_as(own) / tokens**2
    reaction = torch.tanh(own @ W.mT) @ U.mT
    given = u @ link_matrices(E, top).mT + b.unsqueeze(-2)

    inside = per_example(diffusive[:, 1:]) / 2 * spatial + per_example(strength[:, 1:]) * attention(own, A, V)
    return own + inside + reaction + given[:, :-1] - given[:, 1:]


def next_bound(m: Tensor, V, W, U, b, E, numbers, *, total: float = 1.0, **shrunk: float) -> Tensor:
    """(1 − Δt c_l + Δt α_l‖V_l‖ + Δt ρ_l) m_l + Δt‖W_{l−1,l}‖ m_{l−1} + Δt|b_{l−1,l} − b_{l,l+1}| for l ≥ 1.

    m (batch, block): largest tokens, the held input first; c_l = C_l − ‖E_l‖, in the terms `kept` and `turned`.
    shrunk: factors of the TERMS.
    """
    _, top, strength = shares(numbers, total)
    own = m[:, 1:]

    added = {
        "kept": (1 - top[:, 1:]) * own,
        "turned": norm2(E)[:, 1:] * own,
        "value": strength[:, 1:] * norm2(V) * own,
        "reaction": norm2(U) * norm2(W) * own,
        "inflow": norm2(link_matrices(E, top))[:, :-1] * m[:, :-1],
        "bias": (b[:, :-1] - b[:, 1:]).norm(dim=-1),
    }
    return sum(shrunk.get(term, 1.0) * added[term] for term in TERMS)


def step(u, A, V, W, U, b, E, numbers, *, ends: str, steps: int = 1, total: float = 1.0, **shrunk: float) -> Tensor:
    """max_i|u_{l,i}| after a step is at most `next_bound`, in every layer; after many, at most the bound iterated."""
    bound, scores = longest(u), []

    for _ in range(steps):
        after = one_step(u, A, V, W, U, b, E, numbers, ends=ends, total=total)
        allowed = next_bound(bound, V, W, U, b, E, numbers, total=total, **shrunk)
        bound = torch.cat([bound[:, :1], allowed], dim=1)
        scores.append((longest(after) / bound[:, 1:]).amax(dim=1))
        u = torch.cat([u[:, :1], after], dim=1)

    return torch.stack(scores).amax(dim=0)


def many(**system) -> Tensor:
    """max_i|u_{l,i}| after each of eight steps is at most the bound iterated so often, in every layer."""
    return step(**system, steps=8)


ENDS = {"ends": BOUNDARIES}
START = over_decades(-1.5, 0.5, *VARY)
PAST = {"condition": {"total": 1.2}}  # a step a fifth longer than the condition allows

run = attack(
    "attack_coupled",
    {
        "step": Statement(step, VARY, SIZES, ENDS, START, wrong=PAST, shrink=TERMS, batch=48),
        "many": Statement(many, VARY, SIZES, ENDS, START, wrong=PAST, shrink=TERMS, batch=24, steps=60),
    },
)
