"""P1's Algorithm 1 as a program, with its signs and its order of loops to choose.  (P1 §2.2.4; eq 14-16, 20)"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Key, Result
from pdelab import datasets
from pdelab.bottleneck import channel, with_bottleneck
from pdelab.datasets.base import Dataset, shuffled_batches
from pdelab.field import token_mean
from pdelab.integrators import Euler
from pdelab.models import Model, coupled
from pdelab.options import choose
from pdelab.seeds import derive, seeded
from pdelab.status import Status
from pdelab.terms.coupling import SideBySide
from pdelab.training import evaluate


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
    groups = {"embedding": list(model.embed.parameters())}
    for block in range(1, coupling.layers):
        own = [terms.terms[str(block)] for terms in inside if isinstance(terms, SideBySide)]
        groups[f"layer {block}"] = [weight for term in own for weight in term.parameters()]
        groups[f"link into {block}"] = list(coupling.exchange[block - 1].parameters())
    if coupling.outflow:
        groups["outflow"] = list(coupling.exchange[-1].parameters())
    return groups | {"readout": list(model.readout.parameters())}


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

    def learn() -> list[Update]:
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

    return seeded(learn, derive(seed, "noise"))


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


SIZES = {
    Scale.SMOKE: {"passes": 2, "layers": 2, "width": 8, "steps": 4},
    Scale.BOOK: {"passes": 24, "layers": 3, "width": 16, "steps": 8},
}
SETTINGS = {"beta": 0.01, "eta": 0.2, "decay": 1e-4, "batch": 127}


@experiment("algorithm1", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Algorithm 1 on digits: the printed and the corrected order of its loops, and both signs in line 33.

    ORDER/SIGN/…: accuracy: after as many steps as training has used (printed: all time steps; corrected: one run).
    accuracy in one run: after `steps` steps in either order. done: how many updates there were. Where the loss was no
    longer finite there is no accuracy, and `diverged` says after how many updates.
    """
    size, data, figures, diverged = dict(SIZES[scale]), datasets.load("digits-rows"), {}, {}
    passes = size.pop("passes")
    whole = passes * (len(data.train) // SETTINGS["batch"])

    for order in ("printed", "corrected"):
        for word, sign in (("reward", -1), ("penalty", 1)):
            model = build(data, seed, **size)
            record = run_algorithm(model, data, order=order, sign=sign, seed=seed, passes=passes, **SETTINGS)

            if len(record) == whole:
                used = passes if order == "printed" else model.steps
                figures[Key(order, word, "accuracy")] = accuracy(model, data, used)
                figures[Key(order, word, "accuracy in one run")] = accuracy(model, data)
            else:
                diverged[Key(order, word)] = len(record)

            figures[Key(order, word, "information")] = [update.information for update in record]
            figures[Key(order, word, "losses")] = [update.loss for update in record]
            figures[Key(order, word, "done")] = len(record)
            for part in parts(model):
                largest = max(update.gradients[part] for update in record)
                figures[Key(order, word, "largest gradient", part)] = largest

    settings = {"passes": passes, **size, **SETTINGS, "data": data.name}
    controls = {"chance": 1 / data.classes}
    return Result("algorithm1", settings, scale, seed, Status.FINISHED, figures, controls, diverged)
