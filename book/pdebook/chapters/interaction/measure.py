"""How alike the tokens become in deep random stacks of attention, with and without the other parts of a layer."""

import math

import torch

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import Field
from pdelab.metrics.stability import nonuniformity
from pdelab.seeds import normal, stream
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

TOKENS, WIDTH, HEADS, HIDDEN, LAYERS = 16, 32, 4, 64, 12

# what each layer has beside attention
STACKS: dict[str, dict[str, bool]] = {
    "attention alone": {},
    "with FFN": {"ffn": True},
    "with LayerNorm": {"norm": True},
    "with skip": {"skip": True},
    "with skip, FFN, LayerNorm": {"skip": True, "ffn": True, "norm": True},
}


def random_layer(seed: int, number: int) -> tuple[Interaction, Reaction]:
    """Attention with four heads and a tanh network, no biases, weights N(0, 1/fan-in) of their own in every layer."""
    terms = Interaction(WIDTH, HEADS, bias=False), Reaction(WIDTH, HIDDEN, activation="tanh", bias=False)
    generator = stream(seed, "layer", number)
    for term in terms:
        term.double().requires_grad_(False)
        for weight in term.parameters():
            fresh = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(fresh / math.sqrt(weight.shape[1]))
    return terms


def states(
    seed: int, *, skip: bool = False, ffn: bool = False, norm: bool = False, mixing: bool = True, layers: int = LAYERS
) -> list[Field]:
    """u⁺ = [u +] A(LN(u)), then [u +] FFN(LN(u)), each part if asked for: the input and the state after each layer.

    mixing=False is the control: every token attends to itself alone.
    """
    u = normal(seed, "tokens", size=(1, TOKENS, WIDTH))
    path = [u]
    for number in range(layers):
        attend, react = random_layer(seed, number)
        for term in (attend, react) if ffn else (attend,):
            v = torch.nn.functional.layer_norm(u, (WIDTH,)) if norm else u
            alone = term is attend and not mixing
            rate = term(v.transpose(0, 1)).transpose(0, 1) if alone else term(v)  # a batch of tokens, each by itself
            u = u + rate if skip else rate
        path.append(u)
    return path


def nonuniformities(seed: int, **parts: bool) -> list[float]:
    """‖u − 1μ‖/‖u‖ of the input and after each layer: 1 for centred tokens, 0 where all are equal."""
    return [nonuniformity(u).item() for u in states(seed, **parts)]


@experiment("collapse", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """How alike the tokens become in deep random stacks of attention, with and without the other parts.

    The control is the same stack with every token attending to itself alone.
    """
    return Result(
        experiment="collapse",
        configuration={"tokens": TOKENS, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "layers": LAYERS},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures={name: nonuniformities(seed, **parts) for name, parts in STACKS.items()},
        controls={name: nonuniformities(seed, mixing=False, **parts) for name, parts in STACKS.items()},
    )
