"""The feed-forward term by itself and beside attention: u' = R(u) = W₂ φ(W₁ u + b₁) + b₂ − κu.  (P2 eq 6; P1 eq 12-13)

Its Jacobian at random weights, its Lipschitz constants as bounded, sampled and hunted for, the order that schemes keep
across the kinks of ReLU, and what becomes of clusters of tokens when attention pulls the other way.
"""

import math
from collections.abc import Callable, Sequence

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pdebook.evidence.adversary import ascend
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.stacks import slope
from pdebook.evidence.trained import TASKS, build, fit, look
from pdebook.ledger.record import Figures, Result
from pdelab.field import Field
from pdelab.integrators import RK4, Euler, Heun
from pdelab.metrics.jacobian import lipschitz, logarithmic_norm
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

WIDTH, HIDDEN = 32, 128
SCHEMES = {"Euler": Euler, "Heun": Heun, "RK4": RK4}


def gaussian(
    seed: int, width: int = WIDTH, hidden: int = HIDDEN, *, gain: float = 1.0, biases: float = 0.0, **options
) -> Reaction:
    """A reaction with weights N(0, gain²/fan-in) and biases N(0, biases²), in double precision."""
    made = Reaction(width, hidden, **options).double().requires_grad_(False)
    for name, value in made.named_parameters():
        scale = biases if value.ndim == 1 else gain / math.sqrt(value.shape[1])
        value.copy_(scale * normal(seed, "reaction", name, size=value.shape))
    return made


def with_weights(inner: Tensor, outer: Tensor, *, activation: str = "tanh", leak: bool = False, **options) -> Reaction:
    """R[u]_i = W₂ φ(W₁ u_i) with the given W₁ (hidden, width) and W₂ (width, hidden), without biases."""
    hidden, width = inner.shape
    made = Reaction(width, hidden, activation=activation, leak=leak, bias=False, **options)
    made = made.to(inner).requires_grad_(False)
    made.inner.weight.copy_(inner)
    made.outer.weight.copy_(outer)
    return made


# The Jacobian at random weights.


def trace_law(width: int, hidden: int, inner: float, outer: float) -> float:
    """√(½ m d v₁ v₂): the standard deviation of Tr(W₂ diag(relu'(W₁u + b₁)) W₁), v the variances of the weights."""
    return math.sqrt(hidden * width * inner * outer / 2)


def traces(seed: int, u: Tensor, hidden: int, *, draws: int = 2000, kind: str = "normal") -> tuple[Tensor, float]:
    """The trace of the Jacobian of a ReLU network at one token u (feature,), for fresh weights: (draw,), and its law.

    kind: "normal", N(0, 1/fan-in) without biases, or "torch", uniform on ±1/√fan-in with biases, as nn.Linear draws.
    """
    width, generator = len(u), stream(seed, "trace", kind, hidden)

    def weights(*size: int, fan_in: int) -> Tensor:
        if kind == "normal":
            return torch.randn(*size, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
        return (2 * torch.rand(*size, generator=generator, dtype=torch.float64) - 1) / math.sqrt(fan_in)

    inner, outer = weights(draws, hidden, width, fan_in=width), weights(draws, width, hidden, fan_in=hidden)
    bias = 0.0 if kind == "normal" else weights(draws, hidden, fan_in=width)
    active = (inner @ u + bias > 0).to(u)  # (draw, hidden)
    found = torch.einsum("nk,nak,nka->n", active, outer, inner)
    part = 1.0 if kind == "normal" else 1 / 3  # the variance of a uniform number on (−1, 1)
    return found, trace_law(width, hidden, part / width, part / hidden)


def typical_constants(width: int, hidden: int) -> tuple[float, float, float]:
    """‖J‖, μ(J) and ‖W₁‖‖W₂‖ of a ReLU network with weights N(0, 1/fan-in), in the limit of large width.

    With c = m/2d active units per feature: ‖J‖² = (d/m) min_z (1 + z)(1 + cz)²/z, and
    μ(J) = √(d/m) min_y (c y/(1 − y²) + 1/(2y)): edges of a product and of a difference of two Wishart matrices.
    """
    c = hidden / (2 * width)
    z = (math.sqrt(c * c + 8 * c) - c) / (4 * c)  # 2cz² + cz = 1
    squared = (1 + z) * (1 + c * z) ** 2 / z
    # c (1 + s)/(1 − s)² = 1/(2s), s = y²
    s = (-(1 + c) + math.sqrt((1 + c) ** 2 + (2 * c - 1))) / (2 * c - 1) if c != 0.5 else 1 / 3
    y = math.sqrt(s)
    product = (1 + math.sqrt(hidden / width)) * (1 + math.sqrt(width / hidden))
    root = math.sqrt(width / hidden)
    return math.sqrt(squared) * root, root * (c * y / (1 - s) + 1 / (2 * y)), product


# How steep does it get?


def steepest(term: Reaction, seed: int, *, batch: int = 64, steps: int = 200, size: float = 1.0) -> tuple[float, float]:
    """The largest |R(z + v) − R(z − v)|/2|v| and ⟨v, R(z + v) − R(z − v)⟩/2|v|² that ascent over z and v finds.

    Secants, since the Lipschitz constant is their supremum and since ‖J(u)‖ of ReLU has no gradient to climb.
    """
    weight = term.inner.weight
    starts = [size * normal(seed, "steepest", k, size=(batch, 1, term.width)).to(weight) for k in "zv"]

    def change(z: Field, v: Field) -> tuple[Field, Tensor]:
        return (term(z + v) - term(z - v)).squeeze(1) / 2, v.squeeze(1)

    def length(z: Field, v: Field) -> Tensor:
        rate, v = change(z, v)
        return rate.norm(dim=-1) / v.norm(dim=-1)

    def along(z: Field, v: Field) -> Tensor:
        rate, v = change(z, v)
        return (rate * v).sum(dim=-1) / v.square().sum(dim=-1)

    return tuple(ascend(score, *starts, steps=steps).max().item() for score in (length, along))


def constants_found(term: Reaction, u: Field, seed: int, *, steps: int = 200) -> Figures:
    """Beside the bounds on K and λ: the largest of ‖J‖ and μ(J) at the tokens u (token, 1, feature), and by ascent."""
    bound = term.constants()
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


# Kinks.


def clock(kinks: Sequence[float], strengths: Sequence[float]) -> Reaction:
    """R(u) = (1, Σ_k s_k relu(u₁ − τ_k)): a ReLU reaction with the time as its first feature, so u₂' has kinks at τ_k.

    The exact solution from (0, 0) is u₂ = ½ Σ_k s_k relu(t − τ_k)².
    """
    made = Reaction(2, len(kinks)).double().requires_grad_(False)
    made.inner.weight.copy_(torch.tensor([[1.0, 0.0]]).expand(len(kinks), 2))
    made.inner.bias.copy_(-torch.as_tensor(kinks, dtype=torch.float64))
    made.outer.weight.zero_()
    made.outer.weight[1] = torch.as_tensor(strengths, dtype=torch.float64)
    made.outer.bias.copy_(torch.tensor([1.0, 0.0]))
    return made


def kink_error(theta: Tensor) -> Tensor:
    """B(θ) = ½(1 − θ)² − (4(½ − θ)₊ + (1 − θ))/6: what Simpson's rule misses of relu(s − θ) on [0, 1]; |B| ≤ 1/24."""
    return (1 - theta) ** 2 / 2 - (4 * torch.relu(0.5 - theta) + (1 - theta)) / 6


def clock_error(kinks: Sequence[float], strengths: Sequence[float], steps: int, time: float = 1.0) -> float:
    """u₂(T) − u₂^n of RK4 for the clock network: measured, not from the formula."""
    u0 = torch.zeros(1, 1, 2, dtype=torch.float64)
    run = solve(clock(kinks, strengths), u0, steps=steps, dt=time / steps, integrator=RK4(), keep=lambda u: None)
    exact = sum(s * max(time - tau, 0.0) ** 2 / 2 for tau, s in zip(kinks, strengths, strict=True))
    return exact - run.final[0, 0, 1].item()


ORDER_STEPS = (8, 16, 32, 64, 128)


def order_errors(activation: str, scheme: str, seed: int, steps: Sequence[int] = ORDER_STEPS) -> list[float]:
    """Root mean square over 256 tokens of |u^n − u(1)| for a random reaction with 4 features and 16 hidden units."""
    term = gaussian(seed, 4, 16, gain=1.5, biases=0.5, activation=activation)
    u0 = normal(seed, "tokens", size=(1, 256, 4))

    def end(n: int, integrator) -> Field:
        return solve(term, u0, steps=n, dt=1 / n, integrator=integrator, keep=lambda u: None).final

    exact = end(16 * max(steps), RK4())
    gaps = (end(n, SCHEMES[scheme]()) - exact for n in steps)
    return [gap.square().sum(dim=-1).mean().sqrt().item() for gap in gaps]


# Clusters.


def double_well(gain: float, leak: bool = True) -> Reaction:
    """R(u) = β tanh(u) − u on one feature: for β > 1 it rests at 0, which repels, and at ±u*, which attract."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return with_weights(one, gain * one, leak=leak)


def well(gain: float, pull: float = 0.0) -> float:
    """The u* > 0 with β tanh u* = (1 + α) u*, by Newton's method from above; 0 if β ≤ 1 + α."""
    slope = (1 + pull) / gain
    if slope >= 1:
        return 0.0
    u = 1 / slope  # above u*, where tanh(u) − slope·u is concave and falls: Newton comes down to u* and never passes it
    for _ in range(60):
        u -= (math.tanh(u) - slope * u) / (1 / math.cosh(u) ** 2 - slope)
    return u


def merging_law(gain: float) -> float:
    """α_c = β tanh(u_c)/u_c − 1 with cosh²(u_c) = β: two equal clusters withstand uniform averaging up to α_c."""
    u = math.acosh(math.sqrt(gain))
    return gain * math.tanh(u) / u - 1


def pull(strength: float, sharpness: float = 0.0, width: int = 1) -> Callable[[Field], Field]:
    """α(Σ_j p_ij u_j − u_i), p_i = softmax_j(a u_i·u_j): P2 eq 5 with V = I and a strength; a = 0 takes the mean."""
    attention = Interaction(width, bias=False).double().requires_grad_(False)
    eye = torch.eye(width, dtype=torch.float64)
    root = math.sqrt(sharpness * math.sqrt(width)) * eye  # the term divides the scores by √width
    attention.qkv.weight.copy_(torch.cat([root, root, eye]))
    attention.out.weight.copy_(eye)
    return lambda u: strength * (attention(u) - u)


def tug_of_war(strength: float, gain: float | None, sharpness: float = 0.0) -> Callable[[Field], Field]:
    """u_i' = α(Σ_j p_ij u_j − u_i) + β tanh(u_i) − u_i, one feature; gain=None leaves the reaction out."""
    attention = pull(strength, sharpness)
    if gain is None:
        return attention
    reaction = double_well(gain)
    return lambda u: attention(u) + reaction(u)


def planar(gain: float, turn: float, activation: str = "tanh", leak: bool = True) -> Reaction:
    """R(u) = g Q φ(u) − κu on two features, Q the rotation by `turn` degrees."""
    angle = math.radians(turn)
    rows = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    rotation = torch.tensor(rows, dtype=torch.float64)
    return with_weights(torch.eye(2, dtype=torch.float64), gain * rotation, activation=activation, leak=leak)


def two_crowds(seed: int, tokens: int = 32, shift: float = 0.01) -> Field:
    """As many tokens right as left of 0, at N(±1, 0.3²), mirror images but for a small shift: (1, token, 1)."""
    right = 1 + 0.3 * normal(seed, "crowd", size=(tokens // 2,))
    return torch.cat([right, -right]).view(1, -1, 1) + shift


def spread(u: Field) -> Tensor:
    """σ = √(mean_i |u_i − ū|²) of each example: (batch,)."""
    return (u - u.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1).sqrt()


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


# Experiments.

PULLS = (0.2, 0.4, 0.8, 1.6)
GAIN = 2.0


@experiment("reactions", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """The feed-forward term: traces, constants, orders across kinks, clusters against attention (P2 eq 6, P1 eq 12-13).

    One seed. Controls: smooth activations for the kinks, attention without a reaction and with a contracting one.
    """
    figures: dict[str, float | list[float]] = {}
    u = normal(seed, "token", size=(16,))
    for kind in ("normal", "torch"):
        found, law = traces(seed, u, 64, kind=kind)
        figures[f"trace sd / law, {kind}"] = found.std().item() / law
        figures[f"trace negative, {kind}"] = (found < 0).double().mean().item()
    tokens = normal(seed, "tokens", size=(64, 1, WIDTH))
    for activation in ("relu", "gelu", "tanh"):
        term = gaussian(seed, activation=activation, bias=False)
        figures |= {f"{activation} {key}": value for key, value in constants_found(term, tokens, seed).items()}
    controls: dict[str, float | list[float]] = {}
    for activation in ("relu", "gelu", "tanh"):
        for scheme in SCHEMES:
            fitted = slope(ORDER_STEPS, order_errors(activation, scheme, seed))
            (figures if activation == "relu" else controls)[f"slope {activation} {scheme}"] = fitted
    figures["clusters, attention and reaction"] = [float(clusters_left(seed, a, GAIN)) for a in PULLS]
    figures["merging pull"] = merging_pull(seed, GAIN)
    figures["clusters, sharp attention and reaction"] = [
        float(clusters_left(seed, a, GAIN, sharpness=2.0)) for a in PULLS
    ]
    controls["clusters, attention alone"] = [float(clusters_left(seed, a, None)) for a in PULLS]
    controls["clusters, sharp attention alone"] = [float(clusters_left(seed, a, None, sharpness=2.0)) for a in PULLS]
    controls["clusters, contracting reaction"] = [float(clusters_left(seed, a, 0.5)) for a in PULLS]
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
        status="finished",
        figures=figures,
        controls=controls,
    )


def layers_found(model, examples, seed: int) -> Figures:
    """`constants_found` and the traces for the feed-forward part of every layer, at the inputs that it gets."""
    with torch.no_grad():
        states = look(model, examples).states
    found: dict[str, list[float]] = {}
    for number, (u, equation) in enumerate(zip(states, model.equation.equations, strict=False)):
        attention, reaction = equation.terms
        with torch.no_grad():
            tokens = reaction.norm(u + attention(u)).flatten(0, 1)  # what the network sees in a pre-LayerNorm block
        pick = torch.randperm(len(tokens), generator=stream(seed, "pick", number))[:64]
        network = reaction.term
        blocks = constants_found(network, tokens[pick].unsqueeze(1), seed, steps=100)
        active = (network.inner(tokens) > 0).to(tokens)
        trace = active @ (network.outer.weight.T * network.inner.weight).sum(dim=1)
        blocks |= {"trace": trace.mean().item(), "trace negative": (trace < 0).double().mean().item()}
        for key, value in blocks.items():
            found.setdefault(key, []).append(value)
    return found


@experiment("reactions_trained", Scale.SMOKE, Scale.BOOK)
def trained(scale: Scale, seed: int, work: Workplace) -> Result:
    """Lipschitz constants and traces of the feed-forward layers of a trained Transformer, and of the untrained one."""
    task = TASKS["images"][scale]
    data = task.load(seed)
    model, record = fit("transformer", task, data, seed, work)
    common = {"experiment": "reactions_trained", "configuration": task.configuration(), "scale": scale, "seed": seed}
    if record.status == Status.DIVERGED:
        return Result(
            **common, status="diverged", figures={}, diverged={"transformer": record.stopped_at or record.step}
        )
    probe = data.test.take(slice(0, task.probe))
    before = build("transformer", task, data, seed)
    model, before = (m.cpu().requires_grad_(False) for m in (model, before))
    return Result(
        **common,
        status="finished",
        figures={"accuracy": record.accuracy, **layers_found(model, probe, seed)},
        controls={f"untrained {key}": value for key, value in layers_found(before, probe, seed).items()},
    )
