"""Depth as time: when does a deep stack of layers have a limit, and how fast is it reached?  (P2 Theorem 3.2, eq 10-12)

One block is A[u] + R[u] without biases, attention with one head and a tanh network. A stack of L blocks is a `Layered`
equation, and its branch scale is the step: H⁺ = H + Δt F_ℓ(H) is `solve(stack, u0, steps=L, dt=Δt)`. The weights of
layer ℓ are either smooth in depth, θ(s) = cos(πs) θ₀ + sin(πs) θ₁ at s = ℓ/L, or drawn anew for each layer. Both have
the same law at every layer, N(0, 1/fan-in): the two differ in nothing but how layers depend on each other.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.func import functional_call

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import (
    DEPTHS,
    HIDDEN,
    TIME,
    TOKENS,
    WIDTH,
    block,
    distance,
    empty_block,
    layer,
    on_sphere,
    random_tokens,
    slope,
    smooth_path,
    stack,
)
from pdebook.ledger.record import Result
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.integrators import RK4, Euler, Heun, Integrator, LieEuler
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory, solve
from pdelab.terms.stabilization import LayerNormRate

SCALES: dict[str, Callable[[int], float]] = {
    "1/L": lambda layers: TIME / layers,
    "1/√L": lambda layers: TIME / math.sqrt(layers),
    "1": lambda layers: TIME,
}
ROUGHNESS = {"smooth": 0.0, "fresh": 1.0}
SCHEMES: dict[str, type[Integrator]] = {"Euler": Euler, "Lie": LieEuler, "Heun": Heun, "RK4": RK4}


def limit_rate(seed: int) -> Callable[[Field, float], Field]:
    """F(u, t) = A[u] + R[u] with the weights θ(t/T): what a stack with smooth weights and Δt = T/L converges to."""
    path, empty = smooth_path(seed), empty_block()
    return lambda u, t: functional_call(empty, path(t / TIME), (u, t))


def limit(seed: int, u0: Field, steps: int = 128) -> Trajectory:
    """The limit, by RK4: at 128 steps its error is far below that of any stack here."""
    return solve(limit_rate(seed), u0, steps=steps, dt=TIME / steps, integrator=RK4())


def doubling(weights: str, scale: str, seed: int, depths: Sequence[int] = DEPTHS) -> list[float]:
    """‖H_L − H_2L‖/‖H_0‖ for each depth L: it must tend to 0 if the stacks have a limit."""
    u0, roughness = random_tokens(seed), ROUGHNESS[weights]

    def output(layers: int) -> Field:
        dt = SCALES[scale](layers)
        return solve(stack(layers, seed, dt=dt, roughness=roughness), u0, steps=layers, dt=dt).final

    ends = {layers: output(layers) for layers in sorted({*depths, *(2 * n for n in depths)})}
    return [distance(ends[layers], ends[2 * layers], u0) for layers in depths]


def scheme_errors(scheme: str, seed: int, depths: Sequence[int] = DEPTHS, u0: Field | None = None) -> list[float]:
    """‖H_L − u(T)‖/‖u₀‖ of L smooth layers against their limit."""
    u0 = random_tokens(seed) if u0 is None else u0
    end = limit(seed, u0).final
    runs = (solve(stack(n, seed), u0, steps=n, dt=TIME / n, integrator=SCHEMES[scheme]()) for n in depths)
    return [distance(run.final, end, u0) for run in runs]


NODES, REFINED = 8, (16, 32)


def refined_errors(scheme: str, seed: int, steps: Sequence[int] = REFINED) -> list[float]:
    """The error of a scheme on one fixed equation: the weights of 8 layers joined by straight lines.

    Every kink of the weights falls between two steps, so a scheme of order p keeps its order.
    """
    u0, equation = random_tokens(seed), stack(NODES, seed, linear=True)
    end = solve(equation, u0, steps=128, dt=TIME / 128, integrator=RK4()).final
    runs = (solve(equation, u0, steps=n, dt=TIME / n, integrator=SCHEMES[scheme]()) for n in steps)
    return [distance(run.final, end, u0) for run in runs]


def watched(u: Field) -> float:
    """The feature of one token that the pictures follow."""
    return u[0, 0, 7].item()


def path(layers: int, weights: str, scale: str, seed: int) -> tuple[float, ...]:
    """The watched feature after 0…L layers with smooth or fresh weights and branches scaled by 1/L, 1/√L or 1."""
    dt = SCALES[scale](layers)
    made = stack(layers, seed, dt=dt, roughness=ROUGHNESS[weights])
    return solve(made, random_tokens(seed), steps=layers, dt=dt, keep=watched).states


@lru_cache(maxsize=256)
def paths(layers: int, scheme: str, roughness: float, seed: int, draws: int = 3) -> tuple[tuple[float, ...], ...]:
    """The watched feature after 0…L layers of step T/L, one path for each draw of the rough part."""
    u0, linear = random_tokens(seed), scheme == "Heun"
    runs = (
        solve(
            stack(layers, seed, roughness=roughness, draw=draw, linear=linear),
            u0,
            steps=layers,
            dt=TIME / layers,
            integrator=SCHEMES[scheme](),
            keep=watched,
        )
        for draw in range(draws)
    )
    return tuple(run.states for run in runs)


def cosines(seed: int, layers: int = 64, width: int = 512, inputs: int = 8) -> list[float]:
    """⟨H_L, H_0⟩/(|H_L||H_0|) for branches W₂ relu(W₁h) with fresh weights and |branch| ≈ |h|, scales 1/L, 1/√L and 1.

    Theory for width → ∞: (1 + α²)^(−L/2).
    """
    start = normal(seed, "inputs", size=(inputs, width))
    states = dict.fromkeys(SCALES, start)
    generator = stream(seed, "wide")
    for _ in range(layers):
        inner, outer = (torch.randn(width, width, generator=generator, dtype=torch.float64) for _ in range(2))
        for name, u in states.items():
            branch = torch.relu(u @ inner.T * math.sqrt(2 / width)) @ outer.T / math.sqrt(width)
            states[name] = u + SCALES[name](layers) * branch
    return [torch.cosine_similarity(u, start).mean().item() for u in states.values()]


def cosine_law(layers: int = 64) -> list[float]:
    return [(1 + scale(layers) ** 2) ** (-layers / 2) for scale in SCALES.values()]


def interpolate(states: Sequence[Field], tau: float, rounding: Callable[[float], int] = math.floor) -> Field:
    """u^L = h^(k) + (τ − k)(h^(k+1) − h^(k)), k = ⌊τ⌋, and h^(L) at τ = L.  (P2 eq 10, with floors)

    rounding=math.ceil is the printed form. It asks for h^(L+1) when τ > L − 1, and then raises IndexError.
    """
    k = rounding(tau)
    if k == tau and k == len(states) - 1 and rounding is math.floor:
        return states[k]
    return states[k] + (tau - k) * (states[k + 1] - states[k])


def sphere_rate(rate: Callable[[Field, float], Field]) -> Callable[[Field, float], Field]:
    """G(u) = (I − uuᵀ/d) P F(u), P = I − 11ᵀ/d, token by token: the limit of post-LayerNorm."""

    def along(u: Field, t: float) -> Field:
        f = rate(u, t)
        f = f - f.mean(dim=-1, keepdim=True)
        return f - u * (u * f).mean(dim=-1, keepdim=True)  # the mean over d features is the sum divided by d

    return along


def post_norm_errors(
    seed: int, depths: Sequence[int] = DEPTHS, *, uneven: float = 0.0, bias: float = 0.0, eps: float = 0.0
) -> list[float]:
    """u⁺ = LN(u + Δt F_ℓ(u)) against the flow on the sphere: ‖H_L − u(T)‖/‖u₀‖ for each depth.

    LN stands after attention and after FFN. Over the features its gains run from 1 − uneven to 1 + uneven, its bias
    from −bias to bias: an even bias would only shift the sphere, since the next LN takes it off again.
    """
    u0 = on_sphere(random_tokens(seed))
    end = solve(sphere_rate(limit_rate(seed)), u0, steps=128, dt=TIME / 128, integrator=RK4()).final
    path, errors = smooth_path(seed), []
    for layers in depths:
        dt = TIME / layers
        norm = LayerNormRate(WIDTH, 1 / dt, eps).double().requires_grad_(False)
        norm.norm.weight.copy_(torch.linspace(1 - uneven, 1 + uneven, WIDTH))
        norm.norm.bias.copy_(torch.linspace(-bias, bias, WIDTH))
        blocks = [layer(path(n / layers)).terms for n in range(layers)]
        made = Layered([MasterEquation(a, norm, r, norm) for a, r in blocks], dt)
        run = solve(made, u0, steps=layers, dt=dt, integrator=LieEuler())
        errors.append(distance(run.final, end, u0))
    return errors


# Space: the number of tokens grows, the depth stays.

WORDS, FINE = 16, 2187
COUNTS = (9, 27, 81, 243)


def smooth_embedding(seed: int, tokens: int, width: int = 4) -> Field:
    """E(x) + P(x) at the cell centres x_i = (i + ½)/N, every feature a cosine cos(ωx + φ): (1, token, feature)."""
    x = (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens
    frequency = 1 + 3 * torch.rand(width, generator=stream(seed, "ω"), dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(width, generator=stream(seed, "φ"), dtype=torch.float64)
    return torch.cos(x.unsqueeze(-1) * frequency + phase).unsqueeze(0)


def vocabulary_embedding(seed: int, tokens: int, width: int = 4, sentences: int = 32) -> Field:
    """E(w_i) + P(x_i): words looked up in a table, plus the smooth field as position: (sentence, token, feature)."""
    table = normal(seed, "table", size=(WORDS, width))
    words = torch.randint(WORDS, (sentences, tokens), generator=stream(seed, "words", tokens))
    return table[words] + smooth_embedding(seed, tokens, width)


def every_word_everywhere(seed: int, cells: int = 81, width: int = 4) -> Field:
    """The law of (word, position) itself: every word at many positions, as one sequence: (1, token, feature)."""
    table = normal(seed, "table", size=(WORDS, width))
    return (table.unsqueeze(0) + smooth_embedding(seed, cells, width)[0].unsqueeze(1)).reshape(1, -1, width)


def through_layers(u0: Field, seed: int, layers: int = 8) -> Field:
    """u(T) after 8 layers of one shared block: the same for every number of tokens."""
    width = u0.shape[-1]
    equation = block(width, 2 * width)
    for name, value in equation.named_parameters():
        value.copy_(normal(seed, "space", name, size=value.shape) / math.sqrt(value.shape[1]))
    return solve(equation, u0, steps=layers, dt=TIME / layers, keep=lambda u: None).final


def space_errors(kind: str, seed: int, counts: Sequence[int] = COUNTS) -> list[float]:
    """|∫u_N(x, T)dx − ∫u(x, T)dx| for N tokens, as root mean square over sentences."""
    smooth = kind == "smooth"
    fine = smooth_embedding(seed, FINE) if smooth else every_word_everywhere(seed)
    exact = through_layers(fine, seed).mean(dim=1)
    embed = smooth_embedding if smooth else vocabulary_embedding
    means = [through_layers(embed(seed, n), seed).mean(dim=1) for n in counts]
    return [((mean - exact) ** 2).sum(dim=-1).mean().sqrt().item() for mean in means]


def largest_jump(u: Field) -> float:
    """max_i |u_{i+1} − u_i|: of the samples of one continuous field it tends to 0 as N grows."""
    return (u[:, 1:] - u[:, :-1]).norm(dim=-1).max().item()


# The bound beside the error.


def sampled_constants(
    rate: Callable[[Field, float], Field], run: Trajectory, every: int = 16
) -> tuple[float, float, float]:
    """K, M and K_t met along a trajectory of one sequence: ‖∂F/∂u‖₂, ‖F‖ and ‖∂F/∂t‖, each the largest of a few."""
    K = M = K_t = 0.0
    for t, u in list(zip(run.times, run.states, strict=True))[::every]:
        jacobian = torch.autograd.functional.jacobian(lambda v, t=t: rate(v, t), u)
        K = max(K, torch.linalg.matrix_norm(jacobian.reshape(u.numel(), u.numel()), 2).item())
        M = max(M, rate(u, t).norm().item())
        K_t = max(K_t, ((rate(u, t + 1e-5) - rate(u, t - 1e-5)).norm() / 2e-5).item())
    return K, M, K_t


def error_bound(K: float, M: float, K_t: float, T: float, dt: float, inconsistency: float = 0.0) -> float:
    """B = (ε + ½(KM + K_t)Δt)(e^{KT} − 1)/K, with T in place of the fraction at K = 0.

    >>> error_bound(K=0, M=1, K_t=2, T=1, dt=0.1)
    0.1
    """
    growth = math.expm1(K * T) / K if K else T
    return (inconsistency + (K * M + K_t) * dt / 2) * growth


@experiment("continuum", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Errors and orders of the limit of many layers, and of many tokens (P2 thm 3.2).

    One seed: doubling for six kinds of stacks, orders of schemes, post-LayerNorm, wide fresh stacks, tokens.
    """
    figures: dict[str, float | list[float]] = {}
    for weights in ("smooth", "fresh"):
        for branch in SCALES:
            figures[f"{weights} {branch}"] = doubling(weights, branch, seed)
    for scheme in ("Euler", "Lie"):
        figures[f"error {scheme}"] = scheme_errors(scheme, seed)
        figures[f"slope {scheme}"] = slope(DEPTHS, figures[f"error {scheme}"])
    for scheme in ("Euler", "Heun", "RK4"):
        figures[f"slope {scheme}, linear weights"] = slope(REFINED, refined_errors(scheme, seed))
    figures["slope smooth 1/L"] = slope(DEPTHS, figures["smooth 1/L"])
    figures["slope fresh 1/L"] = slope(DEPTHS, figures["fresh 1/L"])
    figures["slope fresh 1/√L"] = slope(DEPTHS, figures["fresh 1/√L"])
    figures["slope post-LayerNorm"] = slope(DEPTHS, post_norm_errors(seed))
    figures["cosines"] = cosines(seed)
    for kind in ("smooth", "vocabulary"):
        figures[f"space {kind}"] = space_errors(kind, seed)
        figures[f"slope space {kind}"] = slope(COUNTS, figures[f"space {kind}"])
    return Result(
        experiment="continuum",
        configuration={
            "tokens": TOKENS,
            "width": WIDTH,
            "hidden": HIDDEN,
            "time": TIME,
            "depths": list(DEPTHS),
            "token_counts": list(COUNTS),
        },
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls={"post-LayerNorm with uneven gain": slope(DEPTHS, post_norm_errors(seed, uneven=0.5))},
    )
