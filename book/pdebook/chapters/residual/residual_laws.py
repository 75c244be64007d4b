"""What a skip keeps of the input: laws of wide random stacks, forwards and backwards.  (P2 Theorem 3.4)

One layer, with f a random branch that is as long as its input and LN the LayerNorm without gain, bias or ε:

| kind | layer | ρ_ℓ | ‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ |
|---|---|---|---|
| bare | f(h) | 0 after one layer | 1 |
| norm | LN(f(h)) | 0 after one layer | 1 |
| skip | h + α f(h) | (1 + α²)^(−ℓ/2) | (1 + α²)^((L−ℓ)/2) |
| pre-LN | h + α f(LN(h)) | (1 + α²ℓ)^(−1/2) | √((1 + α²L)/(1 + α²ℓ)) |
| post-LN | LN(h + α f(h)) | (1 + α²)^(−ℓ/2) | 1 |
| leaky | (1 − α) h + α f(h) | ((1 − α)/r)^ℓ, r² = (1 − α)² + α² | r^(L−ℓ) |

The laws are limits for width n → ∞ at fixed depth, for an input of unit variance and a gradient ∂loss/∂h_L that were
both chosen before the weights.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from pdebook.chapters.residual import two_inputs
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.metrics.stability import state_gradients
from pdelab.models import simulator
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory

WIDTH, INPUTS = 256, 8
DEPTHS = (2, 4, 8, 16, 32, 64)
KINDS = ("bare", "norm", "skip", "pre-LN", "post-LN", "leaky")
BRANCHES = ("linear", "relu", "sign")
SCALES = {"1/L": lambda layers: 1 / layers, "1/√L": lambda layers: layers**-0.5, "1": lambda layers: 1.0}


def normalised(h: Tensor) -> Tensor:
    """LN(h) with gain 1, bias 0 and ε = 0: mean zero and length √n."""
    return layer_norm(h, h.shape[-1:], eps=0.0)


def draw_branch(h: Tensor, branch: str, generator: torch.Generator) -> Tensor:
    """f(h) with fresh weights, E|f|² = |h|². linear: Wh. relu: √2 W₂ max(W₁h, 0). sign: ±h, a fair coin for each input.

    All three have E[f | h] = 0. In the first two f points in a direction of its own; in the third it never does.
    """
    n = h.shape[-1]
    if branch == "sign":
        return h * (2.0 * torch.randint(2, h.shape[:-1], generator=generator).unsqueeze(-1) - 1)
    for k in range(1 if branch == "linear" else 2):
        W = torch.randn(n, n, generator=generator, dtype=torch.float64) / math.sqrt(n)
        h = (math.sqrt(2) * torch.relu(h) if k else h) @ W.T
    return h


def random_stack(
    kind: str, alpha: float, layers: int, start: Tensor, seed: int, *, branch: str = "relu", gain: float = 1.0
) -> list[Tensor]:
    """h_0, …, h_L through layers with fresh weights, start (input, feature). gain multiplies every branch."""
    if kind not in KINDS or branch not in BRANCHES:
        raise ValueError(f"kind must be one of {', '.join(KINDS)} and branch one of {', '.join(BRANCHES)}")
    generator, states = stream(seed, "stack", layers), [start]
    for _ in range(layers):
        h = states[-1]
        f = gain * draw_branch(normalised(h) if kind == "pre-LN" else h, branch, generator)
        h = f if kind in ("bare", "norm") else (1 - alpha if kind == "leaky" else 1) * h + alpha * f
        states.append(normalised(h) if kind in ("norm", "post-LN") else h)
    return states


def random_inputs(seed: int, width: int = WIDTH, inputs: int = INPUTS) -> Tensor:
    """N(0, 1) in every entry: (input, feature)."""
    return normal(seed, "inputs", width, size=(inputs, width))


def cosines(states: Sequence[Tensor], other: Tensor | None = None) -> Tensor:
    """ρ_ℓ = ⟨h_ℓ, h_0⟩ / (|h_ℓ||h_0|), mean over the inputs: (layer,). other: in place of h_0."""
    start = states[0] if other is None else other
    return torch.stack([torch.cosine_similarity(h, start, dim=-1).mean() for h in states])


def fidelities(
    kind: str, alpha: float, layers: int, seed: int, *, width: int = WIDTH, branch: str = "relu"
) -> list[float]:
    """ρ_0, …, ρ_L of a random stack, mean over 8 inputs."""
    return cosines(random_stack(kind, alpha, layers, random_inputs(seed, width), seed, branch=branch)).tolist()


def fidelity_law(kind: str, alpha: float, layer: Tensor | float) -> Tensor:
    """skip, post-LN: (1 + α²)^(−ℓ/2). pre-LN: (1 + α²ℓ)^(−1/2). bare, norm: 1 at ℓ = 0 and then 0. leaky: see above.

    >>> fidelity_law("skip", 1.0, 2).item()
    0.5
    """
    layer = torch.as_tensor(layer, dtype=torch.float64)
    if kind in ("bare", "norm"):
        return (layer == 0).double()
    if kind == "leaky":
        return ((1 - alpha) / math.hypot(1 - alpha, alpha)) ** layer
    return (1 + alpha**2 * layer) ** -0.5 if kind == "pre-LN" else (1 + alpha**2) ** (-layer / 2)


def spread(width: int = WIDTH, inputs: int = INPUTS) -> float:
    """4/√(mn): four standard deviations of the mean cosine of m inputs of n features, from above.

    >>> spread(256, 1)
    0.25
    """
    return 4 / math.sqrt(width * inputs)


def attack_laws(seed: int, attempts: int = 48) -> tuple[Tensor, Tensor]:
    """|ρ_L − law| in units of its spread for random kinds, branches, depths up to 32 and α up to 1.5: at most 1.

    Second: the same for a wrong law, the square of ours, which a search that is worth anything must refute.
    """
    generator = stream(seed, "laws")
    kinds = torch.randint(3, (attempts,), generator=generator).tolist()
    depths = torch.randint(1, 33, (attempts,), generator=generator).tolist()
    found, law = [], []
    for number, (kind, L) in enumerate(zip(kinds, depths, strict=True)):
        alpha = 1.5 * torch.rand((), generator=generator).item()
        name, branch = KINDS[2 + kind], BRANCHES[number % 2]
        found.append(fidelities(name, alpha, L, 1000 * seed + number, branch=branch)[-1])
        law.append(fidelity_law(name, alpha, L))
    found, law = torch.tensor(found, dtype=torch.float64), torch.stack(law)
    return (found - law).abs() / spread(), (found - law**2).abs() / spread()


@lru_cache(maxsize=256)
def gradients(
    kind: str, alpha: float, layers: int, seed: int, *, width: int = WIDTH, gain: float = 1.0
) -> tuple[float, ...]:
    """‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ for ℓ = 0, …, L, linear branches, loss = ⟨w, h_L⟩ with a random w."""
    start = random_inputs(seed, width).unsqueeze(1).requires_grad_(True)  # (input, one token, feature)
    run = Trajectory.of(random_stack(kind, alpha, layers, start, seed, branch="linear", gain=gain))
    found = state_gradients(run, (run.final * normal(seed, "w", width, size=run.final.shape)).sum())
    return tuple((found / found[-1]).tolist())


def gradient_law(kind: str, alpha: float, layers: int, gain: float = 1.0) -> Tensor:
    """‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ for ℓ = 0, …, L; the table above, and g^(L−ℓ) for a bare stack of gain g.

    >>> gradient_law("bare", 1.0, 2, gain=0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    layer = torch.arange(layers + 1, dtype=torch.float64)
    if kind == "pre-LN":
        a = (alpha * gain) ** 2
        return ((1 + a * layers) / (1 + a * layer)).sqrt()
    factors = {
        "bare": gain,
        "skip": math.hypot(1, alpha * gain),
        "leaky": math.hypot(1 - alpha, alpha * gain),
    }
    return factors.get(kind, 1.0) ** (layers - layer)


def gradient_spread(layers: int, width: int = WIDTH, inputs: int = INPUTS) -> float:
    """L/n + 4√(L/(2mn)), for the logarithm of a gradient of m inputs in n dimensions.

    The square of its length is a product of L factors with relative variance at most 2/(mn), and LayerNorm takes two
    of n directions away at each layer, so that the logarithm of the length is lower by 1/n.
    """
    return layers / width + 4 * math.sqrt(layers / (2 * width * inputs))


def rectified_law(start: Tensor) -> float:
    """mean(h_0) / (rms(h_0) √π): the ρ of every layer max(√2 Wh, 0) on an input that is nowhere negative.

    Rectified Gaussian numbers max(z, 0) give 1/π, absolute values |z| give √2/π.
    """
    return (start.mean() / (start.square().mean().sqrt() * math.sqrt(math.pi))).item()


def rectified_stack(start: Tensor, layers: int, seed: int) -> list[Tensor]:
    """h ← max(√2 Wh, 0), W fresh with variance 1/n: the states h_0, …, h_L of a ReLU network of He's scale."""
    generator, states, n = stream(seed, "rectified weights"), [start], start.shape[-1]
    for _ in range(layers):
        W = torch.randn(n, n, generator=generator, dtype=torch.float64) * math.sqrt(2 / n)
        states.append(torch.relu(states[-1] @ W.T))
    return states


def worst_input(width: int, seed: int, layers: int = 1, alpha: float = 1.0) -> float:
    """ρ_L of the input that is chosen after the weights, to keep ρ high, for linear branches with one shared W.

    It is a real eigenvector of W, which an odd width always has: h stays on its line, and ρ = ±1 at every depth.
    """
    W = torch.randn(width, width, generator=stream(seed, "late"), dtype=torch.float64) / math.sqrt(width)
    values, vectors = torch.linalg.eig(W)
    real = vectors[:, values.imag.abs().argmin()].real
    h = real
    for _ in range(layers):
        h = h + alpha * W @ h
    return torch.cosine_similarity(h, real, dim=0).abs().item()


# Blocks of attention and FFN.


def corner_gradients(corner: str, depth: int, seed: int, *, gain: float = 1.0, tokens: int = 8) -> list[float]:
    """‖∂loss/∂u_ℓ‖ / ‖∂loss/∂u_L‖ for ℓ = 0, …, L of an untrained corner of the 2×2, width 32, in torch's first scale.

    loss = ⟨w, u_L⟩ with a random w. gain multiplies every matrix.
    """
    model = simulator(corner, 32, depth, 4, 128, seed=seed).double().requires_grad_(False)
    for weights in model.parameters():
        weights.mul_(gain if weights.ndim > 1 else 1.0)
    run = model.trajectory(normal(seed, "tokens", size=(4, tokens, 32)).requires_grad_(True))
    found = state_gradients(run, (run.final * normal(seed, "w", size=run.final.shape)).sum())
    return (found / found[-1]).tolist()


def bare_gain(gain: float = 1.0) -> float:
    """g⁴/(9√2): how much a layer of attention and FFN without a skip shrinks a gradient at the start.

    Each of its four matrices has variance g²/(3 fan-in), a factor g/√3; ReLU lets half of the squares through.

    >>> round(1 / bare_gain(), 1), round(bare_gain(3**0.5), 3)
    (12.7, 0.707)
    """
    return gain**4 / (9 * math.sqrt(2))


@experiment("residual_laws", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Random residual stacks beside their laws: fidelity, gradients, two inputs (P2 thm 3.4).

    One seed. `off` is a difference from a law in units of its theoretical spread, at most 1 if the law holds.
    """
    figures: dict[str, float | list[float]] = {}
    far = []
    for name, scaled in SCALES.items():
        for kind in ("skip", "pre-LN", "post-LN"):
            found = [fidelities(kind, scaled(L), L, seed)[-1] for L in DEPTHS]
            law = [fidelity_law(kind, scaled(L), L).item() for L in DEPTHS]
            figures[f"fidelity {kind} {name}"] = found
            far += [abs(a - b) / spread() for a, b in zip(found, law, strict=True)]
    search, wrong = attack_laws(seed)
    figures["off fidelity"] = max(far)
    figures["off fidelity, search"] = search.max().item()
    figures["fidelity bare"] = [fidelities("bare", 1.0, L, seed)[-1] for L in DEPTHS]
    steep, steep_wrong = [], []
    for kind in KINDS:
        gains = [gradients(kind, 1.0, L, seed)[0] for L in DEPTHS]
        figures[f"gradient {kind}"] = gains
        for L, g in zip(DEPTHS, gains, strict=True):
            law = gradient_law(kind, 1.0, L)[0].item()
            steep.append(abs(math.log(g / law)) / gradient_spread(L))
            if kind in ("skip", "pre-LN") and L > 2:
                steep_wrong.append(abs(math.log(g / math.sqrt(law))) / gradient_spread(L))
    figures["off gradient"] = max(steep)
    for corner in ("bare", "norm", "residual", "residual_norm"):
        for gain in (1.0, math.sqrt(3)):
            found = [corner_gradients(corner, L, seed, gain=gain)[0] for L in DEPTHS]
            figures[f"{corner} gain {gain:.3g}/gradient"] = found
    for name in two_inputs.NETWORKS:
        figures[f"correlation {name}"] = two_inputs.simulate(name, seed)
    rectified = torch.relu(normal(seed, "rectified input", size=(1, 2048)))
    figures["rectified"] = cosines(rectified_stack(rectified, 8, seed)).tolist()
    stranger = torch.relu(normal(seed, "stranger", size=(1, 2048)))
    return Result(
        experiment="residual_laws",
        configuration={"width": WIDTH, "inputs": INPUTS, "depths": list(DEPTHS), "alpha of the gradients": 1.0},
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls={
            "off the squared law, search": wrong.max().item(),
            "off the root of the gradient law": min(steep_wrong),
            "fidelity, branch ±h": fidelities("skip", 0.25, 16, seed, branch="sign")[-1],
            "rectified, another input": cosines(rectified_stack(rectified, 8, seed), stranger).tolist(),
        },
    )
