"""What random stacks do as layers, or tokens, are added: orders of convergence, or none.  (P2 Theorem 3.2, eq 10-12)"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from pdebook.chapters.continuum_limit.laws import (
    SCALES,
    every_word_everywhere,
    limit,
    limit_rate,
    smooth_embedding,
    sphere_rate,
    vocabulary_embedding,
)
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import (
    DEPTHS,
    HIDDEN,
    TIME,
    TOKENS,
    WIDTH,
    block,
    distance,
    layer,
    on_sphere,
    random_tokens,
    slope,
    smooth_path,
    stack,
)
from pdebook.evidence.systems import randomised
from pdebook.ledger.record import Result
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.formulas import norm2
from pdelab.integrators import RK4, Euler, Heun, Integrator, LieEuler
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.stabilization import LayerNormRate

ROUGHNESS = {"smooth": 0.0, "fresh": 1.0}
SCHEMES: dict[str, type[Integrator]] = {"Euler": Euler, "Lie": LieEuler, "Heun": Heun, "RK4": RK4}

NODES, REFINED = 8, (16, 32)  # every step ends at a node or between two
COUNTS, FINE = (9, 27, 81, 243), 2187  # tokens; the finest count stands for the integral

# More layers


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


@lru_cache(maxsize=256)
def paths(
    layers: int, scheme: str, roughness: float, seed: int, scale: str = "1/L", draws: int = 3
) -> tuple[tuple[float, ...], ...]:
    """The watched feature after 0…L layers, branches scaled by 1/L, 1/√L or 1: one path a draw of the rough part."""
    u0, dt, linear = random_tokens(seed), SCALES[scale](layers), scheme == "Heun"

    def path(draw: int) -> tuple[float, ...]:
        made = stack(layers, seed, dt=dt, roughness=roughness, draw=draw, linear=linear)
        return solve(made, u0, steps=layers, dt=dt, integrator=SCHEMES[scheme](), keep=watched).states

    if roughness:
        return tuple(path(draw) for draw in range(draws))
    return (path(0),) * draws


def cosines(seed: int, layers: int = 64, width: int = 512, inputs: int = 8) -> list[float]:
    """⟨H_L, H_0⟩/(|H_L||H_0|) for branches W₂ relu(W₁h) with fresh weights and |branch| ≈ |h|, scales 1/L, 1/√L and 1.

    Theory for width → ∞: `cosine_law`.
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


def post_norm_errors(
    seed: int, depths: Sequence[int] = DEPTHS, *, uneven: float = 0.0, bias: float = 0.0, eps: float = 0.0
) -> list[float]:
    """u⁺ = LN(u + Δt F_ℓ(u)) against the flow on the sphere: ‖H_L − u(T)‖/‖u₀‖ for each depth.

    LN stands after attention and after FFN. Over the features its gains run from 1 − uneven to 1 + uneven, its bias
    from −bias to bias: an even bias would only shift the sphere, since the next LN takes it off again.
    """
    u0 = on_sphere(random_tokens(seed))
    end = solve(sphere_rate(limit_rate(seed)), u0, steps=128, dt=TIME / 128, integrator=RK4()).final
    weights, errors = smooth_path(seed), []

    for layers in depths:
        dt = TIME / layers
        norm = LayerNormRate(WIDTH, 1 / dt, eps).double().requires_grad_(False)
        norm.norm.weight.copy_(torch.linspace(1 - uneven, 1 + uneven, WIDTH))
        norm.norm.bias.copy_(torch.linspace(-bias, bias, WIDTH))

        blocks = [layer(weights(n / layers)).terms for n in range(layers)]
        made = Layered([MasterEquation(a, norm, r, norm) for a, r in blocks], dt)
        run = solve(made, u0, steps=layers, dt=dt, integrator=LieEuler())
        errors.append(distance(run.final, end, u0))
    return errors


# More tokens


def through_layers(u0: Field, seed: int, layers: int = 8) -> Field:
    """u(T) after 8 layers of one shared block: the same for every number of tokens."""
    width = u0.shape[-1]
    equation = randomised(block(width, 2 * width), seed, "space")
    return solve(equation, u0, steps=layers, dt=TIME / layers, keep=lambda u: None).final


def space_errors(kind: str, seed: int, counts: Sequence[int] = COUNTS) -> list[float]:
    """|∫u_N(x, T)dx − ∫u(x, T)dx| for N tokens, as root mean square over sentences; kind: smooth or vocabulary."""
    smooth = kind == "smooth"
    fine = smooth_embedding(seed, FINE) if smooth else every_word_everywhere(seed)
    exact = through_layers(fine, seed).mean(dim=1)

    embed = smooth_embedding if smooth else vocabulary_embedding
    means = [through_layers(embed(seed, n), seed).mean(dim=1) for n in counts]
    return [((mean - exact) ** 2).sum(dim=-1).mean().sqrt().item() for mean in means]


# The constants of the bound, beside the error


def sampled_constants(
    rate: Callable[[Field, float], Field], run: Trajectory, every: int = 16
) -> tuple[float, float, float]:
    """K, M and K_t met along a trajectory of one sequence: ‖∂F/∂u‖₂, ‖F‖ and ‖∂F/∂t‖, each the largest of a few."""
    K = M = K_t = 0.0
    for t, u in list(zip(run.times, run.states, strict=True))[::every]:
        jacobian = torch.autograd.functional.jacobian(lambda v, t=t: rate(v, t), u)
        K = max(K, norm2(jacobian.reshape(u.numel(), u.numel())).item())
        M = max(M, rate(u, t).norm().item())
        K_t = max(K_t, ((rate(u, t + 1e-5) - rate(u, t - 1e-5)).norm() / 2e-5).item())
    return K, M, K_t


@experiment("continuum", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Errors and orders of the limit of many layers, and of many tokens (P2 thm 3.2).

    One seed: doubling for six kinds of stacks, orders of schemes, post-LayerNorm, wide fresh stacks, tokens.
    """
    figures: dict[str, float | list[float]] = {}
    for weights in ROUGHNESS:
        for branch in SCALES:
            figures[f"{weights} {branch}"] = doubling(weights, branch, seed)

    for scheme in ("Euler", "Lie"):
        figures[f"error {scheme}"] = scheme_errors(scheme, seed)
        figures[f"slope {scheme}"] = slope(DEPTHS, figures[f"error {scheme}"])
    for scheme in ("Euler", "Heun", "RK4"):
        figures[f"slope {scheme}, linear weights"] = slope(REFINED, refined_errors(scheme, seed))

    for name in ("smooth 1/L", "fresh 1/L", "fresh 1/√L"):
        figures[f"slope {name}"] = slope(DEPTHS, figures[name])
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
        status=Status.FINISHED,
        figures=figures,
        controls={"post-LayerNorm with uneven gain": slope(DEPTHS, post_norm_errors(seed, uneven=0.5))},
    )
