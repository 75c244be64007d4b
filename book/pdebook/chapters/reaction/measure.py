"""What is measured of the feed-forward term: constants, the order that schemes keep across kinks, and clusters.

Constants are bounded, sampled and hunted for; the layers of a trained Transformer are treated in the same way as random
ones.  (P2 eq 6; P1 eq 12-13)
"""

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pdebook.chapters.reaction.laws import (
    HIDDEN,
    WIDTH,
    gaussian,
    product_constants,
    rescaled,
    slopes_of,
    traces,
    tug_of_war,
    two_crowds,
)
from pdebook.evidence.adversary import Start, ascend
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import slope
from pdebook.evidence.trained import TASKS, build, fit, look
from pdebook.ledger.record import Figures, Result
from pdelab.field import Field
from pdelab.formulas import Constants
from pdelab.integrators import RK4, Euler, Heun
from pdelab.metrics.jacobian import lipschitz, logarithmic_norm
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.status import Status
from pdelab.terms.reaction import Reaction

Score = Callable[..., Tensor]
SCHEMES = {"Euler": Euler, "Heun": Heun, "RK4": RK4}
ORDER_STEPS = (8, 16, 32, 64, 128)
PULLS = (0.2, 0.4, 0.8, 1.6)
GAIN = 2.0


# How steep does it get?


def secants(term: Reaction, seed: int, batch: int, size: float) -> tuple[Start, Score, Score]:
    """Starts z and v for an ascent, |R(z + v) − R(z − v)|/2|v| and ⟨v, R(z + v) − R(z − v)⟩/2|v|².

    Secants, since the Lipschitz constant is their supremum and since ‖J(u)‖ of ReLU has no gradient to climb.
    """
    weight = term.inner.weight
    start = {k: size * normal(seed, "steepest", k, size=(batch, 1, term.width)).to(weight) for k in "zv"}

    def change(z: Field, v: Field) -> tuple[Field, Tensor]:
        return (term(z + v) - term(z - v)).squeeze(1) / 2, v.squeeze(1)

    def length(z: Field, v: Field) -> Tensor:
        rate, v = change(z, v)
        return rate.norm(dim=-1) / v.norm(dim=-1)

    def along(z: Field, v: Field) -> Tensor:
        rate, v = change(z, v)
        return (rate * v).sum(dim=-1) / v.square().sum(dim=-1)

    return start, length, along


def steepest(term: Reaction, seed: int, *, batch: int = 64, steps: int = 200, size: float = 1.0) -> tuple[float, float]:
    """The largest |R(z) − R(w)|/|z − w| and ⟨z − w, R(z) − R(w)⟩/|z − w|² that ascent over pairs of states finds."""
    start, length, along = secants(term, seed, batch, size)
    return ascend(length, start, steps=steps).max().item(), ascend(along, start, steps=steps).max().item()


def hunted(term: Reaction, seed: int, *, batch: int = 64, steps: int = 200, size: float = 1.0) -> Constants[float]:
    """What an adversary finds of λ₋, λ and K: `steepest`, and the least rate along the difference of two states."""
    start, _, along = secants(term, seed, batch, size)
    lowest = ascend(lambda z, v: -along(z, v), start, steps=steps).max().item()
    lipschitz, upper = steepest(term, seed, batch=batch, steps=steps, size=size)
    return Constants(-lowest, upper, lipschitz)


def any_slopes(term: Reaction, seed: int, *, starts: int = 32, rounds: int = 25) -> Constants[float]:
    """λ₋, λ and K that some diagonal Θ with entries in [s₋, s₊] gives W₂ΘW₁ − κ, whether or not two states have it.

    Directions x and v, and slopes, in turn, each the best for the other: the slope of unit k is the largest if
    (c_k·x)(w_k·v) > 0, else the least. No bound that knows of the slopes alone can be better than this.
    """
    least, most = slopes_of(term)
    inner, outer = term.inner.weight.double(), term.outer.weight.double()
    eye = torch.eye(term.width, dtype=torch.float64)

    def matrix(x: Tensor, v: Tensor) -> Tensor:
        gain = (x @ outer) * (v @ inner.mT)
        return outer * torch.where(gain > 0, most, least).unsqueeze(-2) @ inner - float(term.leak) * eye

    def rate(sign: int) -> float:
        v = normal(seed, "slopes", size=(starts, term.width))
        for _ in range(rounds):
            J = matrix(sign * v, v)
            values, vectors = torch.linalg.eigh(sign * (J + J.mT) / 2)
            v = vectors[..., -1]
        return sign * values[..., -1].max().item()

    x, v = normal(seed, "slopes", "both", size=(2, starts, term.width))
    for _ in range(rounds):
        U, values, Vh = torch.linalg.svd(matrix(x, v))
        x, v = U[..., 0], Vh[..., 0, :]
    return Constants(rate(-1), rate(1), values[..., 0].max().item())


def constants_found(term: Reaction, u: Field, seed: int, *, steps: int = 200) -> Figures:
    """Beside the bounds by the norms: the largest ‖J‖ and μ(J) at the tokens u (token, 1, feature), and by ascent."""
    bound = product_constants(term)
    size = u.square().mean().sqrt().item()
    found_K, found_rate = steepest(term, seed, steps=steps, size=size)
    return {
        "K bound": bound.lipschitz,
        "K ascent": found_K,
        "K sampled": lipschitz(term, u).max().item(),
        "λ bound": bound.upper,
        "λ ascent": found_rate,
        "λ sampled": logarithmic_norm(term, u).max().item(),
    }


# Orders and clusters


def order_errors(activation: str, scheme: str, seed: int, steps: Sequence[int] = ORDER_STEPS) -> list[float]:
    """Root mean square over 256 tokens of |u^n − u(1)| for a random reaction with 4 features and 16 hidden units."""
    term = gaussian(seed, 4, 16, gain=1.5, biases=0.5, activation=activation)
    u0 = normal(seed, "tokens", size=(1, 256, 4))

    def end(n: int, integrator) -> Field:
        return solve(term, u0, steps=n, dt=1 / n, integrator=integrator, keep=lambda u: None).final

    exact = end(16 * max(steps), RK4())
    gaps = (end(n, SCHEMES[scheme]()) - exact for n in steps)
    return [gap.square().sum(dim=-1).mean().sqrt().item() for gap in gaps]


def clusters(u: Field, gap: float = 0.1) -> int:
    """How many groups the tokens of u (1, token, feature) form when any two closer than `gap` belong together."""
    near = torch.cdist(u[0], u[0]) < gap
    return int(connected_components(near.numpy(), directed=False, return_labels=False))


def clusters_left(seed: int, strength: float, gain: float | None, *, sharpness: float = 0.0, time: float = 60.0) -> int:
    """How many clusters two crowds form in the end."""
    rate, steps = tug_of_war(strength, gain, sharpness), int(5 * time)
    run = solve(rate, two_crowds(seed), steps=steps, dt=time / steps, integrator=RK4(), keep=lambda u: None)
    return clusters(run.final)


def merging_pull(seed: int, gain: float, *, rounds: int = 8) -> float:
    """The α at which two crowds begin to end as one, by bisection in [0, β − 1]; close to it they take long."""
    low, high = 0.0, gain - 1
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if clusters_left(seed, middle, gain, time=400.0) > 1 else (low, middle)
    return (low + high) / 2


@experiment("reactions", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """The feed-forward term: traces, constants, orders across kinks, clusters against attention (P2 eq 6, P1 eq 12-13).

    One seed. Controls: smooth activations for the kinks, attention without a reaction and with a contracting one.
    """
    figures: Figures = {}
    controls: Figures = {}

    u = normal(seed, "token", size=(16,))
    for kind in ("normal", "torch"):
        found, law = traces(seed, u, 64, kind=kind)
        figures[f"trace sd / law, {kind}"] = found.std().item() / law
        figures[f"trace negative, {kind}"] = (found < 0).double().mean().item()

    tokens = normal(seed, "tokens", size=(64, 1, WIDTH))
    for activation in ("relu", "gelu", "tanh"):
        term = gaussian(seed, activation=activation, bias=False)
        figures |= {f"{activation} {key}": value for key, value in constants_found(term, tokens, seed).items()}

    for activation in ("relu", "gelu", "tanh"):
        for scheme in SCHEMES:
            fitted = slope(ORDER_STEPS, order_errors(activation, scheme, seed))
            (figures if activation == "relu" else controls)[f"slope {activation} {scheme}"] = fitted

    def groups(gain: float | None, sharpness: float = 0.0) -> list[float]:
        return [float(clusters_left(seed, a, gain, sharpness=sharpness)) for a in PULLS]

    figures["clusters, attention and reaction"] = groups(GAIN)
    figures["merging pull"] = merging_pull(seed, GAIN)
    figures["clusters, sharp attention and reaction"] = groups(GAIN, sharpness=2.0)
    controls["clusters, attention alone"] = groups(None)
    controls["clusters, sharp attention alone"] = groups(None, sharpness=2.0)
    controls["clusters, contracting reaction"] = groups(0.5)

    return Result(
        experiment="reactions",
        configuration={
            "width": WIDTH,
            "hidden": HIDDEN,
            "steps": list(ORDER_STEPS),
            "pulls": list(PULLS),
            "gain": GAIN,
        },
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )


# A trained Transformer


@torch.no_grad()
def feed_forward_parts(model, examples) -> list[tuple[Reaction, Field]]:
    """The feed-forward part of every layer, and the inputs that it gets: (token, feature)."""
    parts = []
    for u, equation in zip(look(model, examples).states, model.equation.equations, strict=False):
        attention, reaction = equation.terms
        tokens = reaction.norm(u + attention(u)).flatten(0, 1)  # what the network sees in a pre-LayerNorm block
        parts.append((reaction.term, tokens))
    return parts


def layers_found(model, examples, seed: int) -> Figures:
    """`constants_found` and the traces for the feed-forward part of every layer, at the inputs that it gets."""
    found: dict[str, list[float]] = {}
    for number, (network, tokens) in enumerate(feed_forward_parts(model, examples)):
        pick = torch.randperm(len(tokens), generator=stream(seed, "pick", number))[:64]
        blocks = constants_found(network, tokens[pick].unsqueeze(1), seed, steps=100)
        active = (network.inner(tokens) > 0).to(tokens)
        trace = active @ (network.outer.weight.T * network.inner.weight).sum(dim=1)
        blocks |= {"trace": trace.mean().item(), "trace negative": (trace < 0).double().mean().item()}

        for key, value in blocks.items():
            found.setdefault(key, []).append(value)
    return found


def bounds_found(model, examples, seed: int) -> Figures:
    """For the feed-forward part of every layer: the bounds with a good T, those by the norms, and what is found.

    found: by an adversary over pairs of states; slopes: by one over the slopes of the units, whether or not two states
    have them. rescaled: of the same network with its units rescaled by factors e^{2ξ}, ξ standard normal.
    """
    found: dict[str, list[float]] = {}
    for number, (network, tokens) in enumerate(feed_forward_parts(model, examples)):
        network = deepcopy(network).double()
        size = tokens.square().mean().sqrt().item()
        best, norms = network.constants(), product_constants(network)
        pairs, slopes = hunted(network, seed, steps=200, size=size), any_slopes(network, seed)

        factors = (2 * normal(seed, "rescaled", number, size=(len(network.inner.weight),))).exp()
        other = rescaled(network, factors)
        tokens = tokens.double().unsqueeze(0)
        apart = (other(tokens) - network(tokens)).norm() / network(tokens).norm()
        other_best, other_norms = other.constants(), product_constants(other)
        layer = {
            "K bound": best.lipschitz,
            "K norms": norms.lipschitz,
            "K found": pairs.lipschitz,
            "K slopes": slopes.lipschitz,
            "λ bound": best.upper,
            "λ norms": norms.upper,
            "λ found": pairs.upper,
            "λ slopes": slopes.upper,
            "λ₋ bound": best.lower,
            "λ₋ norms": norms.lower,
            "λ₋ found": pairs.lower,
            "λ₋ slopes": slopes.lower,
            "rescaled K bound": other_best.lipschitz,
            "rescaled K norms": other_norms.lipschitz,
            "rescaled λ bound": other_best.upper,
            "rescaled λ norms": other_norms.upper,
            "rescaled output, distance": apart.item(),
        }
        for key, value in layer.items():
            found.setdefault(key, []).append(value)
    return found


def measured(name: str, look_at: Callable[..., Figures], scale: Scale, seed: int, work: Workplace) -> Result:
    """look_at(model, examples, seed) of a Transformer trained on digits and, as a control, of the untrained one."""
    task = TASKS["images"][scale]
    data = task.load(seed)
    model, record = fit("transformer", task, data, seed, work)
    common = {"experiment": name, "configuration": task.configuration(), "scale": scale, "seed": seed}
    if record.status == Status.DIVERGED:
        stopped = record.stopped_at or record.step
        return Result(**common, status=Status.DIVERGED, figures={}, diverged={"transformer": stopped})

    probe = data.test.take(slice(0, task.probe))
    before = build("transformer", task, data, seed)
    model, before = (m.cpu().requires_grad_(False) for m in (model, before))
    return Result(
        **common,
        status=Status.FINISHED,
        figures={"accuracy": record.accuracy, **look_at(model, probe, seed)},
        controls={f"untrained {key}": value for key, value in look_at(before, probe, seed).items()},
    )


@experiment("reactions_trained", Scale.SMOKE, Scale.BOOK)
def trained(scale: Scale, seed: int, work: Workplace) -> Result:
    """Lipschitz constants and traces of the feed-forward layers of a trained Transformer, and of the untrained one."""
    return measured("reactions_trained", layers_found, scale, seed, work)


@experiment("reactions_bounds", Scale.SMOKE, Scale.BOOK)
def bounds(scale: Scale, seed: int, work: Workplace) -> Result:
    """Bounds on the constants of trained feed-forward layers beside what adversaries find; also with rescaled units."""
    return measured("reactions_bounds", bounds_found, scale, seed, work)
