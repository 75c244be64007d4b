"""An adversary against three information phases along the depth.  (P2 Theorem 3.5)

Printed: I(Y; u_t) rises first while I(X; u_t) is kept; at the end I(X; u_t) falls. Inputs here are finitely many, so
information is counted and not estimated. Half of the systems start from an embedding that hides two bits: only there
is I(Y; u₀) < H(Y), so that a rise is not ruled out by the largest value that there is. Corrected: I(Y; u) cannot rise
from layer to layer; the flow with ε > 0 is a bijection of the whole state, so neither changes; two solutions approach
each other no faster than e^{−Kt}; a layer u + Δt F(u) with q = Δt·Lip F < 1 brings states together by 1 − q at
most, and is undone by iteration at the rate q.

Each corrected statement is a ratio, at most 1 if it is true; of two informations I' ≤ I it is e^{I' − I}. The controls
are false statements next to the true ones, which the same search must break.
"""

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pdebook.chapters.information import countable
from pdebook.chapters.information.invertible import ahead, master, recovery
from pdebook.chapters.stability.attack import FEATURES, centred, push
from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.equation import MasterEquation
from pdelab.field import Field, laplacian, token_mean
from pdelab.formulas import norm2
from pdelab.metrics.information import binned_information, channel_information, entropy, rows, usable_information
from pdelab.models import simulator, transformer
from pdelab.seeds import derive, normal, stream
from pdelab.solver import solve

BITS, WIDTH = 6, 4
TIMES = 6  # states looked at after the start, at equal distances in depth
SEEN = 0.1  # nats: a change of an estimate that counts as one


# Ratios for gradient ascent, at most 1 each.


def _information(joint: Tensor) -> Tensor:
    """I of a table of probabilities (batch, y, u)."""
    outer = joint.sum(dim=-1, keepdim=True) * joint.sum(dim=-2, keepdim=True)
    return torch.xlogy(joint, joint / outer).sum(dim=(-1, -2))


def processing_ratio(joint: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """I(Y; U₂)/I(Y; U₁) for chains Y – X – U₁ – U₂ of random maps, given by logits: p(y, x), p(u₁|x), p(u₂|u₁)."""
    p = joint.flatten(1).softmax(dim=1).view_as(joint)  # (batch, y, x)
    after = p @ first.softmax(dim=-1)
    return _information(after @ second.softmax(dim=-1)) / _information(after)


def attack_processing(seed: int, batch: int = 64, steps: int = 150) -> Tensor:
    found = []
    for inner, outer in ((4, 3), (3, 4), (2, 6)):
        shapes = {"joint": (3, 5), "first": (5, inner), "second": (inner, outer)}
        start = [2 * normal(seed, "processing", inner, k, size=(batch, *shape)) for k, shape in shapes.items()]
        found.append(ascend(processing_ratio, *start, steps=steps, rate=0.2))
    return torch.cat(found)


def approach_ratio(u: Tensor, v: Tensor, *rest: Tensor, steps: int = 16) -> Tensor:
    """ln(‖u₀ − v₀‖/‖u_T − v_T‖)/KT for u' = Att + FFN − κu + DΔu + S: at most 1, K for the tokens met, |u_i| ≤ R.

    K = ‖V‖(√N + ‖A‖R²(1 + √N)) + ‖U‖‖W‖ + κ + 4N²|D| + γ/√ε in the Euclidean norm.
    numbers (batch, 5): ln κ, ln 4N²|D|, ln γ/√ε, ln ε and the place of KT in (0, 1), so that RK4 is exact to 1e-9.
    """
    *system, numbers = rest
    A, V, W, U = system
    tokens = u.shape[-2]
    leak, slow, pull, soft = (numbers[:, k].exp().view(-1, 1, 1) for k in range(4))
    root = math.sqrt(tokens)

    def rate(w: Tensor) -> Tensor:
        rest = centred(w)
        size = rest.square().sum(dim=(-1, -2), keepdim=True) / tokens
        spread = slow / (4 * tokens**2) * laplacian(w)
        return push(w, *system) - leak * w + spread - pull * rest / (1 + size / soft).sqrt()

    def constant(R: Tensor) -> Tensor:
        attention = norm2(V) * (root + norm2(A) * R**2 * (1 + root))
        return attention + norm2(U) * norm2(W) + (leak + slow + pull).flatten()

    def longest(*states: Tensor) -> Tensor:
        return torch.stack([w.norm(dim=-1).amax(dim=-1) for w in states]).amax(dim=0)

    gap, R = (u - v).norm(dim=(-1, -2)), longest(u, v)
    T = torch.sigmoid(numbers[:, 4]) / constant(R).detach()
    dt = (T / steps).view(-1, 1, 1)
    for _ in range(steps):
        u, v = (_rk4(rate, w, dt) for w in (u, v))
        R = torch.maximum(R, longest(u, v))
    return torch.log(gap / (u - v).norm(dim=(-1, -2))) / (constant(R) * T)


def _rk4(rate, u: Tensor, dt: Tensor) -> Tensor:
    k1 = rate(u)
    k2 = rate(u + dt / 2 * k1)
    k3 = rate(u + dt / 2 * k2)
    return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rate(u + dt * k3))


def attack_approach(seed: int, batch: int = 24, steps: int = 40) -> Tensor:
    found = []
    for tokens, width in ((2, 1), (4, 2)):
        sizes = {"u": (tokens, width)} | dict.fromkeys(FEATURES[1:], (width, width))
        name = ("approach", tokens)
        u, *system = [0.5 * normal(seed, *name, k, size=(batch, *shape)) for k, shape in sizes.items()]
        v = 0.5 * normal(seed, *name, "v", size=u.shape)
        found.append(ascend(approach_ratio, u, v, *system, normal(seed, *name, size=(batch, 5)), steps=steps, rate=0.1))
    return torch.cat(found)


def _layer(u: Tensor, V: Tensor, W: Tensor, U: Tensor, leak: Tensor) -> Tensor:
    """F(u) = mean u Vᵀ + tanh(u Wᵀ) Uᵀ − κu, attention to all tokens alike; Lipschitz with `_steepest`."""
    network = torch.tanh(u @ W.transpose(-1, -2)) @ U.transpose(-1, -2)
    return u.mean(dim=-2, keepdim=True) @ V.transpose(-1, -2) + network - leak * u


def _steepest(V: Tensor, W: Tensor, U: Tensor, leak: Tensor) -> Tensor:
    return norm2(V) + norm2(U) * norm2(W) + leak.flatten()


def layer_ratio(u: Tensor, v: Tensor, V: Tensor, W: Tensor, U: Tensor, numbers: Tensor) -> Tensor:
    """(1 − q)‖u − v‖ over the distance after one layer u + Δt F(u), q = Δt·Lip F < 1: at most 1."""
    leak, q = numbers[:, :1].exp().unsqueeze(-1), torch.sigmoid(numbers[:, 1])
    dt = (q / _steepest(V, W, U, leak)).view(-1, 1, 1)
    after = u - v + dt * (_layer(u, V, W, U, leak) - _layer(v, V, W, U, leak))
    return (1 - q) * (u - v).norm(dim=(-1, -2)) / after.norm(dim=(-1, -2))


def undo_ratio(u: Tensor, V: Tensor, W: Tensor, U: Tensor, numbers: Tensor, iterations: int = 4) -> Tensor:
    """‖v_k − u‖ over q^k/(1 − q)·‖v₁ − v₀‖ for v ← w − Δt F(v) from v₀ = w = u + Δt F(u): at most 1."""
    leak, q = numbers[:, :1].exp().unsqueeze(-1), torch.sigmoid(numbers[:, 1])
    dt = (q / _steepest(V, W, U, leak)).view(-1, 1, 1)
    w = u + dt * _layer(u, V, W, U, leak)
    v = w - dt * _layer(w, V, W, U, leak)
    allowed = (v - w).norm(dim=(-1, -2)) * q**iterations / (1 - q)
    for _ in range(iterations - 1):
        v = w - dt * _layer(v, V, W, U, leak)
    return (v - u).norm(dim=(-1, -2)) / allowed


def _layers(seed: int, name: str, batch: int, tokens: int = 4, width: int = 2) -> list[Tensor]:
    weights = [0.5 * normal(seed, name, k, size=(batch, width, width)) for k in "VWU"]
    return [*weights, normal(seed, name, "numbers", size=(batch, 2))]


def attack_layer(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    u, v = (normal(seed, "layer", k, size=(batch, 4, 2)) for k in "uv")
    return ascend(layer_ratio, u, v, *_layers(seed, "layer", batch), steps=steps)


def attack_undo(seed: int, batch: int = 64, steps: int = 100) -> Tensor:
    u = normal(seed, "undo", size=(batch, 4, 2))
    return ascend(undo_ratio, u, *_layers(seed, "undo", batch), steps=steps)


# Counting: all strings of six bits, a random embedding, random labels.


def start(seed: int, number: int, *, places: bool = True, bits: int = BITS, hidden: int = 0) -> tuple[Field, Tensor]:
    """u₀ = E(x) + P for every x, (2^bits, bits, WIDTH), and labels Y of three kinds, random in X.

    hidden: for so many of the last bits both symbols get one vector, so that I(Y; u₀) < H(Y).
    """
    table, where = (normal(seed, "start", number, k, size=n) for k, n in (("E", (2, WIDTH)), ("P", (bits, WIDTH))))
    labels = torch.randint(3, (2**bits,), generator=stream(seed, "labels", number))
    shown = countable.inputs(bits)
    shown[:, bits - hidden :] = 0
    return table[shown] + (where if places else 0.0), labels


def equation(seed: int, number: int) -> MasterEquation:
    """A random equation of P2 eq 4: γ to 2, ε from 0.05 to 1, D to 0.02, three activations in turn."""
    g, e, d = torch.rand(3, generator=stream(seed, "flow", number)).tolist()
    kind = ("tanh", "relu", "gelu")[number % 3]
    return master(derive(seed, number), gamma=2 * g, eps=0.05 * 20**e, diffusion=0.02 * d, gain=1.5, activation=kind)


def flow(seed: int, number: int, u0: Field) -> list[Field]:
    """States of a random flow at TIMES + 1 times in [0, 1]."""
    return list(ahead(equation(seed, number), u0, 1.0, 8 * TIMES).states[::8])


def returned(seed: int, number: int = 6, steps: int = 96) -> Tensor:
    """max|error|/max|u₀| after going forward to t = 1 and back, for each of so many flows."""
    return torch.tensor([recovery(equation(seed, n), start(seed, n)[0], 1.0, steps) for n in range(number)])


GAIN = 3.0  # of the stacks' matrices: without a skip smaller ones bring all states together to rounding
KINDS = ("pre", "post", "none", "bare", "sign", "rounded")


@torch.no_grad()
def layers(seed: int, number: int, u0: Field) -> list[Field]:
    """States of a random stack of TIMES layers: LayerNorm before, after or none, no skip, and two that lose.

    sign: every layer is followed by the sign of each entry. rounded: by rounding to whole numbers.
    """
    kind, own = KINDS[number % len(KINDS)], derive(seed, "stack", number)
    sizes = {"width": WIDTH, "depth": TIMES, "heads": 2, "hidden": 8, "seed": own}
    if kind == "bare":
        model = simulator("bare", **sizes)
    else:
        model = transformer(**sizes, norm=kind if kind in ("pre", "post") else "none")
    model = model.double()
    for weights in model.parameters():
        weights.mul_(GAIN if weights.ndim > 1 else 1.0)
    if kind not in ("sign", "rounded"):
        return list(solve(model.equation, u0, steps=TIMES, dt=1.0, integrator=model.integrator).states)
    merge = torch.sign if kind == "sign" else torch.round
    found = [u0]
    for equation in model.equation.equations:
        found.append(merge(model.integrator.step(equation, found[-1], 0.0, 1.0)))
    return found


def course(states: list[Field], y: Tensor | None = None) -> Tensor:
    """Counted I(X; u) or I(Y; u) at every state."""
    return torch.tensor([countable.counted(u, y) for u in states], dtype=torch.float64)


HIDDEN = 2  # bits that a lossy embedding does not show: u₀ tells 16 of 64 inputs apart


def lossy(number: int) -> bool:
    """Whether a system starts from a lossy u₀: every second block of the KINDS, so that half of each kind do."""
    return number // len(KINDS) % 2 == 1


def counts(seed: int, number: int = 24) -> dict[str, Tensor]:
    """All that is counted, (system, state): I(X; u) and I(Y; u) of flows and of stacks; `H(Y)` (system, 1)."""
    found: dict[str, list[Tensor]] = {"flow X": [], "flow Y": [], "stack X": [], "stack Y": [], "H(Y)": []}
    for n in range(number):
        u0, y = start(seed, n, hidden=HIDDEN if lossy(n) else 0)
        found["H(Y)"].append(torch.tensor([entropy(y).value], dtype=torch.float64))
        for name, states in (("flow", flow(seed, n, u0)), ("stack", layers(seed, n, u0))):
            found[f"{name} X"].append(course(states))
            found[f"{name} Y"].append(course(states, y))
    return {name: torch.stack(found[name]) for name in found}


# Controls: false statements that the search must break, as (attempts, broken).


def changes(seed: int, estimate, number: int = 12) -> Tensor:
    """Whether an estimate of I(X; u_t) moves by more than SEEN along a flow, where the truth is constant."""
    found = []
    for n in range(number):
        seen = [float(estimate(rows(u, of="whole"))) for u in flow(seed, n, start(seed, n)[0])]
        found.append(max(seen) - min(seen) > SEEN)
    return torch.tensor(found)


def pooling_loses(seed: int, number: int = 12) -> Tensor:
    """'The mean over tokens keeps I(X; ·)': broken where the mean of an embedding without places tells less."""
    fields = (start(seed, n, places=False)[0] for n in range(number))
    return torch.tensor([countable.counted(token_mean(u)) < countable.counted(u) - SEEN for u in fields])


def pooled_rises(seed: int, number: int = 12) -> Tensor:
    """'I(Y; mean u) cannot rise with depth': broken, since the mean of a layer is no function of the mean before it."""
    found = []
    for n in range(number):
        u0, y = start(seed, n)
        seen = course([token_mean(u) for u in flow(seed, n, u0)], y)
        found.append((seen.max() - seen[0]).item() > SEEN)
    return torch.tensor(found)


def input_again(seed: int, number: int = 12) -> Tensor:
    """'I(Y; u) cannot rise, whatever a layer reads': broken where the first layer reads X and not the lossy u₀."""
    found = []
    for n in range(number):
        blind, y = start(seed, n, hidden=HIDDEN)
        seen = course([blind, *flow(seed, n, start(seed, n)[0])[1:]], y)
        found.append((seen[1] - seen[0]).item() > SEEN)
    return torch.tensor(found)


def usable_rises(seed: int, number: int = 6) -> Tensor:
    """'What a linear probe can use cannot rise with depth': broken on the parity of two bits, which needs a product."""
    found = []
    for n in range(number):
        u0, _ = start(seed, n, bits=8)
        x = countable.inputs(8)
        y = x[:, 0] ^ x[:, 1]
        states = layers(seed, n * len(KINDS), u0)[:3]  # a Transformer with LayerNorm before its branches
        first, *later = (usable_information(rows(u, of="whole"), y, seed=seed).value for u in states)
        found.append(max(later) > max(first, 0.0) + SEEN)
    return torch.tensor(found)


def large_steps(seed: int, batch: int = 64) -> Tensor:
    """'u − Δt K tanh u is injective for every Δt': the root u > 0 of u = ΔtK tanh u goes where 0 goes, if ΔtK > 1."""
    q = 1.1 + 2 * torch.rand(batch, generator=stream(seed, "large"), dtype=torch.float64)
    u = q.clone()
    for _ in range(2000):
        u = q * torch.tanh(u)
    return (u > 1e-3) & ((u - q * torch.tanh(u)).abs() < 1e-12)


COUNTED = (
    "stack",
    "constant",
)  # ratios that are 1 wherever nothing is lost: a bound shrunk to 90 % tests nothing there


@experiment("attack_information", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for rising or falling information along the depth, as printed and as corrected (P2 thm 3.5).

    Printed: `rise`, I(Y; u) is larger after the first third than at the start, tried only where there is room for it,
    I(Y; u₀) < H(Y) − SEEN; `fall`, I(X; u) is smaller at the end than after two thirds. returned: the largest error of
    a start recovered by backward integration, which is no ratio and counted nowhere. controls: the share of attempts
    that broke each false statement.
    """
    seen = counts(seed)
    third = TIMES // 3
    room = seen["flow Y"][:, 0] < seen["H(Y)"][:, 0] - SEEN  # flow and stack of one number start alike
    rise = torch.cat([(seen[k][:, third] <= seen[k][:, 0] + 1e-9)[room] for k in ("flow Y", "stack Y")])
    fall = seen["flow X"][:, -1] >= seen["flow X"][:, -1 - third] - 1e-9
    controls = {
        "pooling loses": pooling_loses(seed),
        "pooled rises": pooled_rises(seed),
        "input again": input_again(seed),
        "bins change": changes(seed, partial(binned_information, bins=2, limits=(-1.0, 1.0))),
        "noise changes": changes(seed, partial(channel_information, noise=1.0)),
        "usable rises": usable_rises(seed),
        "large steps": large_steps(seed),
    }
    constant = [(seen[k] - seen[k][:, :1]).abs().amax(dim=1).exp() for k in ("flow X", "flow Y")]
    made = attack_result(
        "attack_information",
        scale,
        seed,
        printed={"rise": rise, "fall": fall},
        corrected={
            "processing": attack_processing(seed),
            "stack": torch.cat([seen[k].diff(dim=1).exp().flatten() for k in ("stack X", "stack Y")]),
            "constant": torch.cat(constant),
            "approach": attack_approach(seed),
            "layer": attack_layer(seed),
            "undo": attack_undo(seed),
        },
        figures={
            "control_attempts": sum(len(found) for found in controls.values()),
            "control_violations": int(sum(found.sum() for found in controls.values())),
            "returned": returned(seed).max().item(),
            "rise_attempts": len(rise),
            "room": (seen["H(Y)"][:, 0] - seen["flow Y"][:, 0])[room].min().item(),
            "stack_lost": int((seen["stack X"][:, -1] < seen["stack X"][:, 0] - SEEN).sum()),
        },
        controls={name: found.double().mean().item() for name, found in controls.items()},
        configuration={
            "bits": BITS,
            "hidden": HIDDEN,
            "width": WIDTH,
            "times": TIMES,
            "seen": SEEN,
            "kinds": list(KINDS),
        },
    )
    kept = {name: value for name, value in made.controls.items() if name not in {f"shrunk_{key}" for key in COUNTED}}
    return replace(made, controls=kept)
