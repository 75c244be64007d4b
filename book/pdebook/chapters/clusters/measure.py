"""Do the tokens of a trained network gather? Two questions about one sequence, put to one causal network.

Sequences of 16 symbols out of 8. Every token answers: "which symbol is the first of all?", where all answers agree, or
"which symbol stands before me?", where each token has its own. The network is a Transformer with a causal mask
and LayerNorm last in every layer.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Figures, Key, Result
from pdelab.models import Model, transformer, with_ends
from pdelab.seeds import derive, stream
from pdelab.status import Status

SYMBOLS, LENGTH, WIDTH, LAYERS, HEADS, HIDDEN = 8, 16, 32, 6, 4, 64
STEPS, BATCH, RATE, PROBE = 200, 64, 2e-3, 200


def first(x: Tensor) -> Tensor:
    """For every token the first symbol of its sequence: (batch, token)."""
    return x[:, :1].expand_as(x)


def before(x: Tensor) -> Tensor:
    """For every token the symbol before it, and for the first token its own: (batch, token)."""
    return torch.cat([x[:, :1], x[:, :-1]], dim=1)


QUESTIONS = {"first": first, "before": before}


def sequences(count: int, generator: torch.Generator) -> Tensor:
    """Random symbols: (count, token)."""
    return torch.randint(0, SYMBOLS, (count, LENGTH), generator=generator)


def network(seed: int) -> Model:
    """The network at its first weights, the same for every question."""
    core = transformer(WIDTH, LAYERS, HEADS, HIDDEN, norm="post", causal=True, seed=derive(seed, "core"))
    ends = {"outputs": SYMBOLS, "symbols": SYMBOLS, "length": LENGTH, "pool": False}
    return with_ends(core, WIDTH, **ends, seed=derive(seed, "ends"))


def trained(question, seed: int, steps: int = STEPS) -> tuple[Model, float]:
    """The network after training, and its accuracy on fresh sequences; question: (batch, token) → (batch, token)."""
    model, generator = network(seed), stream(seed, "sequences")
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(steps):
        x = sequences(BATCH, generator)
        optimiser.zero_grad()
        cross_entropy(model(x).flatten(0, 1), question(x).flatten()).backward()
        optimiser.step()

    with torch.no_grad():
        x = sequences(PROBE, stream(seed, "probe"))
        return model, (model(x).argmax(dim=-1) == question(x)).double().mean().item()


@torch.no_grad()
def likeness(model: Model, seed: int) -> dict[str, list[float]]:
    """Mean cosines per state, the embedding first: of two tokens of a sequence, of a token with its first token, and of
    two tokens of different sequences ("strangers")."""
    run = model.trajectory(sequences(PROBE, stream(seed, "probe")))
    apart = ~torch.eye(LENGTH, dtype=torch.bool)
    found: dict[str, list[float]] = {"pairs": [], "with_first": [], "strangers": []}
    for u in run.states:
        u = normalize(u, dim=-1)
        own, other = u @ u.mT, u @ u.roll(1, dims=0).mT  # (batch, token, token)
        found["pairs"].append(own[:, apart].mean().item())
        found["with_first"].append(own[:, 0, 1:].mean().item())
        found["strangers"].append(other[:, apart].mean().item())
    return found


@experiment("gathering", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Whether the tokens of a causal network gather, for a question with one answer and one with many.

    One seed: both questions; as controls the untrained network, and tokens of different sequences.
    """
    figures: Figures = {}
    controls: Figures = {}
    models = {"untrained": (network(seed), None)} | {name: trained(ask, seed) for name, ask in QUESTIONS.items()}
    for name, (model, accuracy) in models.items():
        found = likeness(model, seed)
        controls[Key(name, "strangers")] = found.pop("strangers")
        kept = controls if accuracy is None else figures
        kept |= {Key(name, figure): values for figure, values in found.items()}
        if accuracy is not None:
            figures[Key(name, "accuracy")] = accuracy

    return Result(
        experiment="gathering",
        configuration={
            "symbols": SYMBOLS,
            "length": LENGTH,
            "width": WIDTH,
            "layers": LAYERS,
            "heads": HEADS,
            "hidden": HIDDEN,
            "steps": STEPS,
            "batch": BATCH,
            "rate": RATE,
            "probe": PROBE,
        },
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )
