"""P1's Algorithm 1 as a program, with its signs and its order of loops to choose.  (P1 §2.2.4; eq 3, 14-16, 20)

The scalar channel T = θX + Z, X and Z ~ N(0, 1), asked for Y = X, has every quantity in closed form:
½E(Y − E[Y|T])² = 1/(2(1 + θ²)) and I(X; T) = ½ ln(1 + θ²). There the signs can be judged without an estimator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdebook.chapters.scheme import laws as scheme
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab import datasets
from pdelab.datasets.base import Dataset, shuffled_batches
from pdelab.field import token_mean
from pdelab.integrators import Euler
from pdelab.models import Bottleneck, Model, coupled, with_bottleneck
from pdelab.seeds import derive
from pdelab.terms.base import choose
from pdelab.terms.coupling import SideBySide
from pdelab.training import evaluate

# What multiplies ∇L, λθ and β∇I in dθ/dt.
SIGNS = {
    "eq 3": (-1, +1, -1),
    "eq 14": (-1, -1, -1),
    "line 33": (-1, -1, +1),
    "corrected": (-1, -1, -1),
}


# The scalar channel.


def channel_loss(theta: Tensor) -> Tensor:
    """½E(X − E[X|T])² = 1/(2(1 + θ²))."""
    return 1 / (2 * (1 + theta**2))


def channel_information(theta: Tensor) -> Tensor:
    """I(X; T) = ½ ln(1 + θ²)."""
    return torch.log1p(theta**2) / 2


def follow(
    form: str,
    *,
    theta: float = 1.0,
    beta: float = 0.0,
    decay: float = 0.0,
    eta: float = 0.01,
    steps: int = 1000,
    loss: Callable[[Tensor], Tensor] | None = channel_loss,
) -> Tensor:
    """θ after 0, 1, …, n steps θ⁺ = θ + η(s₁∇L + s₂λθ + s₃β∇I) with the signs of that form; loss=None: L = 0.

    A step of line 33, or one Euler step Δt = η of the flow of eq 3 or 14 (in which P1's own η, that stands before ∇L
    only, is 1).
    """
    first, second, third = choose("form", form, SIGNS)
    value, path = torch.tensor(theta, dtype=torch.float64, requires_grad=True), [theta]
    for _ in range(steps):
        gain = 0.0 if loss is None else torch.autograd.grad(loss(value), value)[0]
        learned = torch.autograd.grad(channel_information(value), value)[0]
        with torch.no_grad():
            value += eta * (first * gain + second * decay * value + third * beta * learned)
        path.append(value.item())
    return torch.tensor(path, dtype=torch.float64)


def resting_information(form: str, beta: float, decay: float) -> float:
    """I at rest on the scalar channel, from a small θ > 0: −½ ln q with q² + s₃βq + s₂λ = 0; ∞ if it never rests.

    With q = 1/(1 + θ²), dθ/dt = θ(q² + s₂λ + s₃βq) for the signs s₂ of λθ and s₃ of β∇I; β and λ are at least 0. If the
    bracket is negative just below q = 1, θ goes to 0. If it is positive there, θ grows and q falls to the largest root
    below 1; both roots lie on the same side of 1 where there are two, and without one below 1 θ goes to infinity.

    >>> round(resting_information("corrected", 0.25, 0.0), 3), resting_information("line 33", 0.25, 0.0)
    (0.693, inf)
    """
    _, second, third = choose("form", form, SIGNS)
    if beta < 0 or decay < 0:
        raise ValueError(f"beta and decay must be at least 0; not {beta!r} and {decay!r}")
    at_one, slope = 1 + second * decay + third * beta, 2 + third * beta  # the bracket at q = 1 and its derivative there
    if at_one < 0 or (at_one == 0 and slope > 0):
        return 0.0
    under = beta**2 - 4 * second * decay
    if under < 0:
        return math.inf
    root = (-third * beta + math.sqrt(under)) / 2
    return -math.log(root) / 2 if 0 < root < 1 else math.inf


# The loop on data.


@dataclass(frozen=True)
class Update:
    """What one pass through lines 8-33 saw: the loss, the upper bound ½E|μ|² on I, and ‖∇L‖ of each part."""

    loss: float
    information: float
    gradients: dict[str, float]


def build(data: Dataset, seed: int, *, layers: int = 3, width: int = 16, steps: int = 8, size: int = 4) -> Model:
    """The coupled system between an embedding and a noisy readout T = μ + Z; Δt = 1/2, every link starts as 1."""
    core = coupled(width, layers, 2, 2 * width, steps=steps, dt=0.5, link=1.0, seed=derive(seed, "core"))
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_bottleneck(core, width, size, seed=derive(seed, "ends"), **ends)


def parts(model: Model) -> dict[str, list[nn.Parameter]]:
    """The weights of embedding, of layer 1 … L (attention and network), of each link, of the readout: all of them."""
    *inside, coupling = model.equation.terms
    found = {"embedding": list(model.embed.parameters())}
    for block in range(1, coupling.layers):
        own = [terms.terms[str(block)] for terms in inside if isinstance(terms, SideBySide)]
        found[f"layer {block}"] = [weight for term in own for weight in term.parameters()]
        found[f"link into {block}"] = list(coupling.exchange[block - 1].parameters())
    if coupling.outflow:
        found["outflow"] = list(coupling.exchange[-1].parameters())
    return found | {"readout": list(model.readout.parameters())}


def top_parts(model: Model) -> tuple[str, ...]:
    """The parts that u_L^{n+1} depends on within one step: the last layer, the two links at it, and the readout."""
    last = model.equation.terms[-1].layers - 1
    return f"layer {last}", f"link into {last}", "outflow", "readout"


def step_share(model: Model, tokens: int) -> float:
    """max_l 2D_lΔt/Δx² + Δt C_l, C_l the largest eigenvalue of the symmetric part of W_{l,l+1}: at most 1 is allowed.

    It needs the weights alone, so it can be asked before the first step.
    """
    *inside, coupling = model.equation.terms
    (diffusion,) = (terms for terms in inside if terms.symbol == "D")
    shares = []
    for block in range(int(coupling.inflow), coupling.layers):
        rate = 2 * float(diffusion.terms[str(block)].coefficient) * tokens**2
        if block < len(coupling.exchange):
            W = coupling.exchange[block].weight.detach().double()
            rate += torch.linalg.eigvalsh((W + W.T) / 2)[-1].item()
        shares.append(model.dt * rate)
    return max(shares)


def channel(model: Model) -> Bottleneck:
    return next(module for module in model.readout.modules() if isinstance(module, Bottleneck))


def run_algorithm(
    model: Model,
    data: Dataset,
    *,
    order: str,
    sign: int,
    beta: float,
    seed: int,
    eta: float = 0.1,
    decay: float = 1e-4,
    passes: int = 8,
    batch: int = 127,
) -> list[Update]:
    """Algorithm 1 in place on the model: order="printed", one loop for t and θ; or "corrected", two.  (P1 §2.2.4)

    sign: of β∇Î inside the bracket of line 33, −1 as printed, +1 corrected. Î is VIB's ½E|μ|², an upper bound of I for
    the channel T = μ + Z (line 32 is another thing; see the chapter on information).
    printed: `passes` time steps; in each, every mini-batch's state moves one Δt and θ is updated once. The gradient
    treats the states before that step as constants.
    corrected: `passes` epochs; for every mini-batch the whole run of `model.steps` steps from u₀, then one update; and
    before the loop, `step_share` of the links as they are then must be at most 1.
    """
    choose("order", order, {"printed": 0, "corrected": 0})
    if data.train.mask is not None:
        raise ValueError("data must have sequences of one length: Algorithm 1 knows no padding")
    share = step_share(model, data.length)  # in place of line 37
    if order == "corrected" and share > 1:
        raise ValueError(f"dt must be at most {model.dt / share:.3g} for these links and diffusion; not {model.dt!r}")
    batches = [data.train.take(rows) for rows in shuffled_batches(data.train, batch, seed, 0)]
    groups, record = parts(model), []
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(derive(seed, "noise"))
        with torch.no_grad():
            states = [model.embed(part.x) for part in batches]  # line 2
        for n in range(passes):  # line 7
            for b, part in enumerate(batches):  # line 8
                if order == "printed":
                    u = Euler().step(model.equation, states[b], n * model.dt, model.dt)  # lines 9-29
                    states[b] = u.detach()
                    logits = model.readout(token_mean(u).squeeze(1))
                else:
                    logits = model(part.x)
                loss = cross_entropy(logits, part.y)  # line 31
                information = channel(model).seen.square().sum(dim=1).mean() / 2  # in place of line 32
                if not torch.isfinite(loss + information):
                    return record  # a reward without end, or a step too large, is a result too
                record.append(_update(model, groups, loss, information, sign * beta, eta, decay))  # line 33
    return record


def _update(model, groups, loss: Tensor, information: Tensor, weight: float, eta: float, decay: float) -> Update:
    """θ⁺ = θ − η(∇L + λθ + weight ∇Î).  (P1 Algorithm 1, line 33)"""
    weights = list(model.parameters())
    toward = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
    compress = torch.autograd.grad(information, weights, allow_unused=True, materialize_grads=True)
    sizes = dict(zip(map(id, weights), (g.square().sum().item() for g in toward), strict=True))
    with torch.no_grad():
        for theta, one, two in zip(weights, toward, compress, strict=True):
            theta -= eta * (one + decay * theta + weight * two)
    gradients = {name: math.sqrt(sum(sizes[id(w)] for w in group)) for name, group in groups.items()}
    return Update(loss.item(), information.item(), gradients)


def accuracy(model: Model, data: Dataset, steps: int | None = None) -> float:
    """On the test set, by a whole run from u₀, without noise; steps: of that run, those of the model unless told."""
    model.eval()
    kept, model.steps = model.steps, model.steps if steps is None else steps
    try:
        return evaluate(model, data.test).accuracy
    finally:
        model.steps = kept


# Line 37.


def diverges_at(outflow: float, dt: float, steps: int = 1000) -> tuple[bool, int | None]:
    """Whether eq 21 is met (D = 0, W_O = 1, α = 1), and the step at which a layer with outflow c is no longer finite.

    Line 37 stands after step number `steps`: a run that fails has failed by then.
    """
    u = torch.ones(1, 6, 1, dtype=torch.float64)
    still = torch.zeros(1, 1, dtype=torch.float64)
    for n in range(1, steps + 1):
        u = scheme.one_step(u, diffusive=0.0, strength=dt, V=still, extra=lambda w: -dt * outflow * w)
        if not torch.isfinite(u).all():
            return scheme.printed_condition(0.0, dt, 1.0), n
    return scheme.printed_condition(0.0, dt, 1.0), None


SIZES = {
    Scale.SMOKE: {"passes": 2, "layers": 2, "width": 8, "steps": 4},
    Scale.BOOK: {"passes": 24, "layers": 3, "width": 16, "steps": 8},
}
SETTINGS = {"beta": 0.01, "eta": 0.2, "decay": 1e-4, "batch": 127}


@experiment("algorithm1", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Algorithm 1 on digits: the printed and the corrected order of its loops, and both signs in line 33.

    KEY/…: order, then sign. accuracy: after as many steps as training has used (printed: all time steps; corrected: one
    run). accuracy in one run: after `steps` steps in either order. done: how many updates there were. Where the loss
    was no longer finite there is no accuracy, and `diverged` says after how many updates.
    """
    size, data, figures, diverged = dict(SIZES[scale]), datasets.load("digits-rows"), {}, {}
    passes = size.pop("passes")
    for order in ("printed", "corrected"):
        for word, sign in (("reward", -1), ("penalty", 1)):
            model = build(data, seed, **size)
            record = run_algorithm(model, data, order=order, sign=sign, seed=seed, passes=passes, **SETTINGS)
            key = f"{order}/{word}"
            used = passes if order == "printed" else model.steps
            if len(record) == passes * (len(data.train) // SETTINGS["batch"]):
                figures[f"{key}/accuracy"] = accuracy(model, data, used)
                figures[f"{key}/accuracy in one run"] = accuracy(model, data)
            else:
                diverged[key] = len(record)
            figures |= {
                f"{key}/information": [update.information for update in record],
                f"{key}/losses": [update.loss for update in record],
                f"{key}/done": len(record),
            }
            for part in parts(model):
                figures[f"{key}/largest gradient/{part}"] = max(update.gradients[part] for update in record)
    settings = {"passes": passes, **size, **SETTINGS, "data": data.name}
    controls = {"chance": 1 / data.classes}
    return Result("algorithm1", settings, scale, seed, "finished", figures, controls, diverged)
