"""An adversary against three information phases along the depth.  (P2 Theorem 3.5)

Printed: I(Y; u_t) rises first while I(X; u_t) is kept; at the end I(X; u_t) falls. Inputs here are finitely many, so
information is counted and not estimated. Half of the systems start from an embedding that hides two bits: only there
is I(Y; u₀) < H(Y), so that a rise is not ruled out by the largest value that there is. Corrected: I(Y; u) cannot rise
from layer to layer; the flow with ε > 0 is a bijection of the whole state, so neither changes; two solutions approach
each other no faster than e^{−Kt}; a layer u + Δt F(u) with q = Δt·Lip F < 1 brings states together by 1 − q at
most, and is undone by iteration at the rate q.

Of two informations I' ≤ I the score is e^{I' − I}.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from pdebook.chapters.information.laws import (
    BITS,
    KINDS,
    TIMES,
    WIDTH,
    ahead,
    along_flow,
    along_stack,
    back,
    equation,
    start,
)
from pdebook.evidence import countable
from pdebook.evidence.adversary import Statement, attack
from pdebook.evidence.systems import MATRICES, push
from pdelab.field import Field, laplacian, token_mean
from pdelab.formulas import centred, longest, norm2, per_example
from pdelab.integrators import RK4
from pdelab.metrics.information import binned_information, channel_information, entropy, rows, usable_information
from pdelab.seeds import stream

# Bounds, by gradient ascent.


def information(joint: Tensor) -> Tensor:
    """I of a table of probabilities (batch, y, u)."""
    outer = joint.sum(dim=-1, keepdim=True) * joint.sum(dim=-2, keepdim=True)
    return torch.xlogy(joint, joint / outer).sum(dim=(-1, -2))


def processing(joint, first, second, aside, *, again: bool = False, bound: float = 1.0) -> Tensor:
    """I(Y; U₂) ≤ I(Y; U₁) for chains Y – X – U₁ – U₂ of random maps.

    By logits: p(y, x), p(u₁|x), p(u₂|u₁). again: U₂ reads X by p(u₂|x), the logits `aside`, and not U₁.
    """
    p = joint.flatten(1).softmax(dim=1).view_as(joint)  # (batch, y, x)
    one = p @ first.softmax(dim=-1)
    two = p @ aside.softmax(dim=-1) if again else one @ second.softmax(dim=-1)
    return information(two) / (bound * information(one))


def approach(u, v, A, V, W, U, numbers, *, ends: str, steps: int = 16, **shrunk: float) -> Tensor:
    """‖u(T) − v(T)‖ ≥ e^{−KT}‖u(0) − v(0)‖ for u' = Att + FFN − κu + DΔu + S if |u_i|, |v_i| ≤ R on the way.

    K = ‖V‖(√N + ‖A‖R²(1 + √N)) + ‖U‖‖W‖ + κ + 4N²|D| + γ/√ε in the Euclidean norm.
    numbers (batch, 5): ln κ, ln 4N²|D|, ln γ/√ε, ln ε and the place of KT in (0, 1), so that RK4 is exact to 1e-9.
    """
    tokens = u.shape[-2]
    root = math.sqrt(tokens)
    leak, slow, pull, eps = numbers[:, :4].exp().T

    def rate(w: Tensor, t: float, mask: None) -> Tensor:
        smoothed = per_example(slow) / (4 * tokens**2) * laplacian(w.flatten(0, 1), ends).view_as(w)
        rest = centred(w)
        variance = rest.square().sum(dim=(-1, -2)) / tokens  # spread(w)² has no gradient where tokens agree
        stabilised = per_example(pull / (1 + variance / eps).sqrt()) * rest
        return push(w, A, V, W, U) - per_example(leak) * w + smoothed - stabilised

    def constant(R: Tensor) -> Tensor:
        parts = {
            "value": norm2(V) * root,
            "scores": norm2(V) * norm2(A) * R**2 * (1 + root),
            "network": norm2(U) * norm2(W),
            "leak": leak,
            "diffusion": slow,
            "stabilization": pull,
        }
        return sum(shrunk.get(name, 1.0) * part for name, part in parts.items())

    both = torch.stack([u, v])  # (2, batch, token, feature)
    R = longest(both).amax(dim=0)
    T = torch.sigmoid(numbers[:, 4]) / constant(R).detach()

    for _ in range(steps):
        both = RK4().step(rate, both, 0.0, per_example(T / steps))
        R = torch.maximum(R, longest(both).amax(dim=0))
    return torch.log((u - v).norm(dim=(-1, -2)) / (both[0] - both[1]).norm(dim=(-1, -2))) / (constant(R) * T)


def attention_alone(seed: int, **drawn: Tensor) -> dict[str, Tensor]:
    """Every second system starts with little but attention; of two features, where it draws states together fastest.

    Tokens ±e₁, scores that vanish there, A ~ e₁e₂ᵀ + e₂e₁ᵀ, and V ~ −A: what differs along ±e₂ decays at 2‖V‖‖A‖R².
    """
    drawn = {name: x.clone() for name, x in drawn.items()}
    some, (tokens, width) = slice(None, None, 2), drawn["u"].shape[1:]
    drawn["W"][some] *= 1e-3
    drawn["numbers"][some, :3] -= 10.0
    if width != 2:
        return drawn

    one, two = torch.eye(2, dtype=torch.float64)
    swap, sign = torch.eye(2, dtype=torch.float64).flip(0), (-1.0) ** torch.arange(tokens).unsqueeze(-1)
    drawn["u"][some] = sign * one + 1e-3 * drawn["u"][some]
    drawn["v"][some] = drawn["u"][some] + 1e-3 * sign * two
    drawn["A"][some] = 20 * swap + 0.01 * drawn["A"][some]
    drawn["V"][some] = -swap + 0.01 * drawn["V"][some]
    return drawn


def branch(u: Tensor, V: Tensor, W: Tensor, U: Tensor, leak: Tensor) -> Tensor:
    """F(u) = mean u Vᵀ + tanh(u Wᵀ) Uᵀ − κu, attention to all tokens alike; Lip F = ‖V‖ + ‖U‖‖W‖ + κ."""
    return u.mean(dim=-2, keepdim=True) @ V.mT + torch.tanh(u @ W.mT) @ U.mT - per_example(leak) * u


def layer_of(V, W, U, numbers, *, value=1.0, network=1.0, leak=1.0) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Δt F and q = Δt·Lip F; numbers (batch, 2): ln κ and the place of q in (0, 1). The rest shrinks parts of Lip F."""
    kappa, q = numbers[:, 0].exp(), torch.sigmoid(numbers[:, 1])
    dt = q / (norm2(V) + norm2(U) * norm2(W) + kappa)
    claimed = dt * (value * norm2(V) + network * norm2(U) * norm2(W) + leak * kappa)
    return lambda u: per_example(dt) * branch(u, V, W, U, kappa), claimed


def layer(u, v, V, W, U, numbers, **shrunk: float) -> Tensor:
    """‖g(u) − g(v)‖ ≥ (1 − q)‖u − v‖ for one layer g(u) = u + Δt F(u), q = Δt·Lip F < 1."""
    move, q = layer_of(V, W, U, numbers, **shrunk)
    after = u + move(u) - v - move(v)
    return (1 - q) * (u - v).norm(dim=(-1, -2)) / after.norm(dim=(-1, -2))


def undo(u, V, W, U, numbers, *, iterations: int = 4, **shrunk: float) -> Tensor:
    """‖v_k − u‖ ≤ q^k/(1 − q)·‖v₁ − v₀‖ for v ← w − Δt F(v) from v₀ = w = u + Δt F(u)."""
    move, q = layer_of(V, W, U, numbers, **shrunk)
    w = u + move(u)
    v = w - move(w)
    allowed = (v - w).norm(dim=(-1, -2)) * q**iterations / (1 - q)

    for _ in range(iterations - 1):
        v = w - move(v)
    return (v - u).norm(dim=(-1, -2)) / allowed


def injective(seed: int, *, least: float = 0.1, most: float = 0.99, batch: int = 64) -> Tensor:
    """u ↦ u − q tanh u is injective for q < 1; for q > 1 the root u > 0 of u = q tanh u goes where 0 goes."""
    q = least + (most - least) * torch.rand(batch, generator=stream(seed, "steps"), dtype=torch.float64)
    u = q.clone()
    for _ in range(2000):
        u = q * torch.tanh(u)
    return 2.0 * ((u > 1e-3) & ((u - q * torch.tanh(u)).abs() < 1e-12))


# Counting, in finitely many inputs.

HIDDEN = 2  # bits that a lossy embedding does not show: u₀ tells 16 of 64 inputs apart
THIRD = TIMES // 3  # of the depth
SEEN = 0.1  # nats: a change of an estimate that counts as one


def lossy(number: int) -> bool:
    """Whether a system starts from a lossy u₀: every second block of the KINDS, so that half of each kind do."""
    return number // len(KINDS) % 2 == 1


def course(states: Sequence[Field], y: Tensor | None = None) -> Tensor:
    """Counted I(X; u) or I(Y; u) at every state."""
    return torch.tensor([countable.counted(u, y) for u in states], dtype=torch.float64)


@lru_cache(maxsize=1)  # four statements look at one count
def counts(seed: int, number: int = 24, layers: str = "as they are") -> dict[str, Tensor]:
    """All that is counted, (system, state): I(X; u) and I(Y; u) of flows and of stacks; `H(Y)` (system, 1).

    layers: what the count must notice. "merging": after the start, states are rounded to whole numbers, which merges
    some. "reading the input": after the start, layers know all bits of the input, also those that u₀ hides.
    """
    tables: dict[str, list[Tensor]] = {"flow X": [], "flow Y": [], "stack X": [], "stack Y": [], "H(Y)": []}

    for n in range(number):
        u0, y = start(seed, n, hidden=HIDDEN if lossy(n) else 0)
        tables["H(Y)"].append(torch.tensor([entropy(y).value], dtype=torch.float64))
        for name, along in (("flow", along_flow), ("stack", along_stack)):
            states = along(seed, n, u0)
            if layers == "merging":
                states = [states[0], *(u.round() for u in states[1:])]
            elif layers == "reading the input":
                states = [states[0], *along(seed, n, start(seed, n)[0])[1:]]
            tables[f"{name} X"].append(course(states))
            tables[f"{name} Y"].append(course(states, y))
    return {name: torch.stack(table) for name, table in tables.items()}


def room(seed: int) -> Tensor:
    """H(Y) − I(Y; u₀), one for each system: how far I(Y; u) could rise."""
    return (counts(seed)["H(Y)"] - counts(seed)["flow Y"])[:, 0]  # flow and stack of one number start alike


def rise(seed: int) -> Tensor:
    """I(Y; u) is larger after the first third of the depth than at the start, wherever it is below H(Y) there."""
    seen = torch.cat([counts(seed)[k][room(seed) > SEEN] for k in ("flow Y", "stack Y")])
    return 2.0 * (seen[:, THIRD] <= seen[:, 0] + 1e-9)


def fall(seed: int) -> Tensor:
    """I(X; u) is smaller at the end of a flow than after two thirds of it."""
    seen = counts(seed)["flow X"]
    return 2.0 * (seen[:, -1] >= seen[:, -1 - THIRD] - 1e-9)


def stack(seed: int, *, instead: Callable[[int], Tensor] | None = None, **options: object) -> Tensor:
    """I(X; u_{l+1}) ≤ I(X; u_l) and I(Y; u_{l+1}) ≤ I(Y; u_l) in stacks of layers."""
    if instead is not None:
        return instead(seed)
    return torch.cat([counts(seed, **options)[k].diff(dim=1).exp().flatten() for k in ("stack X", "stack Y")])


def constant(seed: int, *, instead: Callable[[int], Tensor] | None = None, **options: object) -> Tensor:
    """I(X; u_t) = I(X; u₀) and I(Y; u_t) = I(Y; u₀) along flows."""
    if instead is not None:
        return instead(seed)
    seen = (counts(seed, **options)[k] for k in ("flow X", "flow Y"))
    return torch.cat([(each - each[:, :1]).abs().amax(dim=1).exp() for each in seen])


def recovered(seed: int, *, digits: int | None = None, number: int = 6, steps: int = 96) -> Tensor:
    """max|v(1) − u₀| ≤ 10⁻⁴ max|u₀| for v run backward from u(1), both by RK4 with 96 steps.

    digits: of the end, so many decimals are kept on the way back.
    """
    errors = []
    for n in range(number):
        own, (u0, _) = equation(seed, n), start(seed, n)
        end = ahead(own, u0, 1.0, steps).final
        end = end if digits is None else end.round(decimals=digits)
        returned = back(own, end, 1.0, steps).final
        errors.append((returned - u0).abs().max() / u0.abs().max())
    return torch.stack(errors) / 1e-4  # the kinks of ReLU cost RK4 its order; what is lost would show at order 1


# False neighbours of what is counted: the score is above 1 where an estimate changes by more than SEEN.


def mean_rises(seed: int, number: int = 12) -> Tensor:
    """I(Y; mean u) cannot rise with depth: but the mean of a layer is no function of the mean before it."""
    scores = []
    for n in range(number):
        u0, y = start(seed, n)
        seen = course([token_mean(u) for u in along_flow(seed, n, u0)], y)
        scores.append((seen.max() - seen[0] - SEEN).exp())
    return torch.stack(scores)


def input_again(seed: int, number: int = 12) -> Tensor:
    """I(Y; u) cannot rise, whatever a layer reads: but here the first layer reads X and not the lossy u₀."""
    scores = []
    for n in range(number):
        blind, y = start(seed, n, hidden=HIDDEN)
        seen = course([blind, along_flow(seed, n, start(seed, n)[0])[1]], y)
        scores.append((seen[1] - seen[0] - SEEN).exp())
    return torch.stack(scores)


def usable_rises(seed: int, number: int = 6) -> Tensor:
    """What a linear probe can use cannot rise with depth: but the parity of two bits needs a product of them."""
    x, scores = countable.inputs(8), []
    for n in range(number):
        u0, _ = start(seed, n, bits=8)
        states = along_stack(seed, n * len(KINDS), u0)[:3]  # a Transformer with LayerNorm before its branches
        first, *later = (usable_information(rows(u, of="whole"), x[:, 0] ^ x[:, 1], seed=seed).value for u in states)
        scores.append(math.exp(max(later) - max(first, 0.0) - SEEN))
    return torch.tensor(scores, dtype=torch.float64)


def pooling(seed: int, number: int = 12) -> Tensor:
    """I(X; mean u) = I(X; u): but the mean of an embedding without places tells less."""
    fields = (start(seed, n, places=False)[0] for n in range(number))
    return torch.tensor([countable.counted(u) - countable.counted(token_mean(u)) - SEEN for u in fields]).exp()


def estimate_moves(seed: int, estimate: Callable[[Tensor], object], number: int = 12) -> Tensor:
    """An estimate of I(X; u_t) is constant along a flow, as the truth is."""
    scores = []
    for n in range(number):
        seen = [float(estimate(rows(u, of="whole"))) for u in along_flow(seed, n, start(seed, n)[0])]
        scores.append(math.exp(max(seen) - min(seen) - SEEN))
    return torch.tensor(scores, dtype=torch.float64)


bins = partial(estimate_moves, estimate=partial(binned_information, bins=2, limits=(-1.0, 1.0)))
noise = partial(estimate_moves, estimate=partial(channel_information, noise=1.0))


def beside(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """room: the least that I(Y; u) could have risen by where a rise was looked for. stack_lost: stacks that lose X."""
    seen, free = counts(seed)["stack X"], room(seed)
    return {"room": free[free > SEEN].min().item(), "stack_lost": int((seen[:, -1] < seen[:, 0] - SEEN).sum())}, {}


TABLES = [{"y": 3, "x": 5, "a": a, "b": b} for a, b in ((4, 3), (3, 4), (2, 6))]
LAYER = {"V": "d d", "W": "d d", "U": "d d", "numbers": "2"}
PARTS = ("value", "network", "leak")
FOUR = [{"n": 4, "d": 2, "2": 2}]
FEW = 2 * len(KINDS)  # systems of a false neighbour: every kind, from a whole and from a lossy start

run = attack(
    "attack_information",
    {
        "rise": Statement(rise, printed=True),
        "fall": Statement(fall, printed=True),
        "processing": Statement(
            processing,
            {"joint": "y x", "first": "x a", "second": "a b", "aside": "x b"},
            TABLES,
            wrong={"input again": {"again": True}},
            shrink=("bound",),
            batch=64,
            steps=150,
            rate=0.2,
        ),
        "stack": Statement(
            stack,
            wrong={
                "of the mean": {"instead": mean_rises},
                "input again": {"instead": input_again},
                "usable": {"instead": usable_rises},
                "layers that read the input": {"layers": "reading the input", "number": FEW},
            },
        ),
        "constant": Statement(
            constant,
            wrong={
                "pooling": {"instead": pooling},
                "bins": {"instead": bins},
                "noise": {"instead": noise},
                "layers that merge": {"layers": "merging", "number": FEW},
            },
        ),
        "recovered": Statement(recovered, wrong={"from three digits": {"digits": 3, "number": 2}}),
        "approach": Statement(
            approach,
            {"u": "n d", "v": "n d"} | MATRICES | {"numbers": "5"},
            [{"n": 2, "d": 1, "5": 5}, {"n": 2, "d": 2, "5": 5}, {"n": 4, "d": 2, "5": 5}],
            {"ends": ("reflecting", "periodic")},
            start=attention_alone,
            # not sharp: attention is near √N only where the scores are large, and then their part of K is larger
            wrong={"value halved": {"value": 0.5}, "scores less a quarter": {"scores": 0.75}},
            shrink=("network", "leak", "diffusion", "stabilization"),
            batch=8,
            steps=40,
            rate=0.1,
        ),
        "layer": Statement(layer, {"u": "n d", "v": "n d"} | LAYER, FOUR, shrink=PARTS, batch=64),
        "undo": Statement(undo, {"u": "n d"} | LAYER, FOUR, shrink=PARTS, batch=64),
        "injective": Statement(injective, wrong={"every step": {"least": 1.1, "most": 3.1}}),
    },
    extra=beside,
    bits=BITS,
    hidden=HIDDEN,
    width=WIDTH,
    times=TIMES,
    seen=SEEN,
    kinds=list(KINDS),
)
