"""Are the states at start and end tokens zero?  (P1 eq 6 and 7)

P1 sets u = 0 at both ends and says that the ends can be read as the start and end tokens of the sequence. Here small
encoders with learned start and end tokens are trained, and the length of the states at these tokens is compared with
the length at the other tokens: 0 if the ends are zero, about 1 if they are tokens like the others.

The task: sequences of 14 symbols out of 8; is symbol 0 or symbol 1 the more frequent one? The answer is read at the
start token, so the model must carry something there.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result

SYMBOLS, LENGTH, WIDTH, LAYERS, STEPS, BATCH = 8, 14, 32, 2, 200, 64
START, END = SYMBOLS, SYMBOLS + 1


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
        u = self.tokens(symbols) + self.places.weight  # (batch, token, feature)
        found = [u]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found

    def forward(self, symbols: Tensor) -> Tensor:
        return self.readout(self.states(symbols)[-1][:, 0])


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random sequences with start and end token, and which of the symbols 0 and 1 is more frequent (ties left out)."""
    symbols = torch.randint(0, SYMBOLS, (3 * count, LENGTH), generator=generator)
    lead = (symbols == 0).sum(dim=1) - (symbols == 1).sum(dim=1)
    symbols, lead = symbols[lead != 0][:count], lead[lead != 0][:count]
    ends = [symbols.new_full((len(symbols), 1), token) for token in (START, END)]
    return torch.cat([ends[0], symbols, ends[1]], dim=1), (lead > 0).long()


def train(norm_first: bool, seed: int) -> tuple[Encoder, float]:
    """A trained encoder and its accuracy on fresh sequences."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Encoder(norm_first)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        symbols, answers = sentences(BATCH, generator)
        optimiser.zero_grad()
        cross_entropy(model(symbols), answers).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        symbols, answers = sentences(1000, generator)
        return model, (model(symbols).argmax(dim=1) == answers).double().mean().item()


@torch.no_grad()
def end_lengths(model: Encoder, seed: int = 0) -> list[float]:
    """|u| at the start and end token over |u| at the others: one ratio per layer, the embedding first."""
    symbols, _ = sentences(200, torch.Generator().manual_seed(10_000 + seed))
    lengths = [u.norm(dim=-1).mean(dim=0) for u in model.states(symbols)]  # (token,) each
    return [((u[0] + u[-1]) / 2 / u[1:-1].mean()).item() for u in lengths]


@experiment("start_tokens", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """How long the states at start and end tokens of trained encoders are (P1 eq 6 and 7).

    One seed: pre-LayerNorm and post-LayerNorm; as control the same encoder with its ends set to zero.
    """
    figures, controls = {}, {}
    for name, norm_first in (("pre", True), ("post", False)):
        model, accuracy = train(norm_first, seed)
        figures |= {f"{name}_end_length": end_lengths(model, seed), f"{name}_accuracy": accuracy}
        with torch.no_grad():
            model.tokens.weight[[START, END]] = -model.places.weight[[0, -1]]
        controls[f"{name}_zero_ends"] = end_lengths(model, seed)
    return Result(
        experiment="start_tokens",
        configuration={"symbols": SYMBOLS, "length": LENGTH, "width": WIDTH, "layers": LAYERS, "steps": STEPS},
        scale=scale,
        seed=seed,
        status="finished",
        figures=figures,
        controls=controls,
    )
