"""The two ends of a sequence: what they do to its mean, and whether the states there are zero.  (P1 eq 6 and 7)

P1 sets u = 0 at both ends and says that the ends can be read as the start and end tokens of the sequence.

Heat: a sequence of N random tokens diffuses, ∂u/∂t = ∂²u/∂x², up to t = 0.2. The figure is the share of the initial
mean that is left, ⟨m(t), m(0)⟩ / |m(0)|² with m = the mean over tokens.

Start tokens: small encoders with learned start and end tokens are trained, and the length of the states at these tokens
is compared with the length at the others: 0 if the ends are zero, about 1 if they are tokens like the others. The task:
sequences of 14 symbols out of 8; is symbol 0 or symbol 1 the more frequent one? The answer is read at the start token,
so the model must carry something there.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import Field
from pdelab.seeds import seeded
from pdelab.solver import Trajectory, solve
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion

TOKENS, FEATURES, TIME, HEAT_STEPS = 32, 16, 0.2, 512
SYMBOLS, LENGTH, WIDTH, LAYERS, TRAINING_STEPS, BATCH = 8, 14, 32, 2, 200, 64
START, END = SYMBOLS, SYMBOLS + 1

# Heat


def random_tokens(seed: int) -> Field:
    """u₀ ~ N(1, 1) in every entry, as embeddings whose mean is not zero: (1, token, feature)."""
    generator = torch.Generator().manual_seed(seed)
    return 1 + torch.randn(1, TOKENS, FEATURES, generator=generator, dtype=torch.float64)


def evolve(u0: Field, boundary: str) -> Trajectory:
    """∂u/∂t = ∂²u/∂x² up to t = 0.2, by Euler."""
    return solve(Diffusion(1.0, boundary), u0, steps=HEAT_STEPS, dt=TIME / HEAT_STEPS)


def mean_kept(trajectory: Trajectory) -> list[float]:
    """⟨m(t), m(0)⟩ / |m(0)|² for every stored t; 1 where diffusion only moves things about."""
    means = torch.stack([u.mean(dim=1).flatten() for u in trajectory.states])  # (time, batch · feature)
    return (means @ means[0] / means[0].dot(means[0])).tolist()


@experiment("heat_ends", Scale.BOOK)
def heat_ends(scale: Scale, seed: int, work: Workplace) -> Result:
    """What zero ends and reflecting ends leave of a sequence's mean (P1 eq 7).

    One seed: zero ends as printed, reflecting ends as the control.
    """
    u0 = random_tokens(seed)
    absorbing, reflecting = (evolve(u0, boundary) for boundary in ("absorbing", "reflecting"))

    return Result(
        experiment="heat_ends",
        configuration={"tokens": TOKENS, "features": FEATURES, "time": TIME, "steps": HEAT_STEPS, "coefficient": 1.0},
        scale=scale,
        seed=seed,
        status=max(absorbing.status, reflecting.status, key=lambda status: status is Status.DIVERGED),
        figures={"mean_kept": mean_kept(absorbing)[-1]},
        controls={"reflecting_ends": mean_kept(reflecting)[-1]},
    )


# Start and end tokens


class Encoder(nn.Module):
    """Token and position embeddings, a torch encoder, and a readout at the start token."""

    def __init__(self, norm_first: bool):
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS + 2, WIDTH)
        self.places = nn.Embedding(LENGTH + 2, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).layers
        self.readout = nn.Linear(WIDTH, 2)

    def states(self, symbols: Tensor) -> list[Tensor]:
        """The embedding and the state after every layer: (batch, token, feature) each."""
        states = [self.tokens(symbols) + self.places.weight]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states

    def forward(self, symbols: Tensor) -> Tensor:
        return self.readout(self.states(symbols)[-1][:, 0])


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random sequences with start and end token, and which of the symbols 0 and 1 is more frequent (ties left out)."""
    symbols = torch.randint(0, SYMBOLS, (3 * count, LENGTH), generator=generator)
    lead = (symbols == 0).sum(dim=1) - (symbols == 1).sum(dim=1)
    symbols, lead = symbols[lead != 0][:count], lead[lead != 0][:count]

    start, end = (symbols.new_full((len(symbols), 1), token) for token in (START, END))
    return torch.cat([start, symbols, end], dim=1), (lead > 0).long()


def train(norm_first: bool, seed: int) -> tuple[Encoder, float]:
    """A trained encoder and its accuracy on fresh sequences."""
    generator = torch.Generator().manual_seed(seed)
    model = seeded(lambda: Encoder(norm_first), seed)

    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(TRAINING_STEPS):
        symbols, answers = sentences(BATCH, generator)
        optimiser.zero_grad()
        cross_entropy(model(symbols), answers).backward()
        optimiser.step()

    model.eval()
    with torch.no_grad():
        symbols, answers = sentences(1000, generator)
        return model, (model(symbols).argmax(dim=1) == answers).double().mean().item()


@torch.no_grad()
def set_ends_to_zero(model: Encoder) -> None:
    """The embeddings of the start and the end token, places included, become 0."""
    model.tokens.weight[[START, END]] = -model.places.weight[[0, -1]]


@torch.no_grad()
def end_lengths(model: Encoder, seed: int = 0) -> list[float]:
    """|u| at the start and end token over |u| at the others: one ratio per layer, the embedding first."""
    symbols, _ = sentences(200, torch.Generator().manual_seed(10_000 + seed))
    lengths = [u.norm(dim=-1).mean(dim=0) for u in model.states(symbols)]  # (token,) each
    return [((u[0] + u[-1]) / 2 / u[1:-1].mean()).item() for u in lengths]


@experiment("start_tokens", Scale.BOOK)
def start_tokens(scale: Scale, seed: int, work: Workplace) -> Result:
    """How long the states at start and end tokens of trained encoders are (P1 eq 6 and 7).

    One seed: pre-LayerNorm and post-LayerNorm; as control the same encoder with its ends set to zero.
    """
    figures, controls = {}, {}
    for name, norm_first in (("pre", True), ("post", False)):
        model, accuracy = train(norm_first, seed)
        figures |= {f"{name}_end_length": end_lengths(model, seed), f"{name}_accuracy": accuracy}
        set_ends_to_zero(model)
        controls[f"{name}_zero_ends"] = end_lengths(model, seed)

    return Result(
        experiment="start_tokens",
        configuration={"symbols": SYMBOLS, "length": LENGTH, "width": WIDTH, "layers": LAYERS, "steps": TRAINING_STEPS},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures=figures,
        controls=controls,
    )
