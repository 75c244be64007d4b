"""A network that reads a text, as layers u ↦ u⁺ which can be put together otherwise.

| network | reads | its choices | loss, in nats |
|---|---|---|---|
| smollm2 | two pieces of 128 tokens | every next token | of the token that follows |
| minilm | 16 sentences, and each in other words | which says the same as which | of the right one, both ways |

The loss of minilm is of the kind it was trained with: softmax over 20 times the cosines of the embeddings, an embedding
being the mean over the tokens of the last state. By chance it is log 16 = 2.77. At the smallest scale both are small
random networks of torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize

from pdebook.evidence.experiment import Scale
from pdebook.ledger.record import data_folder
from pdelab import pretrained
from pdelab.field import Field, Mask, token_mean
from pdelab.recording import Recording, record
from pdelab.seeds import derive, seeded, stream

LENGTH = {Scale.SMOKE: 12, Scale.BOOK: 128}  # tokens of each of two pieces that are read from left to right
PAIRS = {Scale.SMOKE: 4, Scale.BOOK: 16}
LONGEST = 16  # tokens of a sentence
SHARPNESS = 20.0  # of the softmax over cosines, as minilm was trained

Layer = Callable[[Field], Field]


@cache
def _stored() -> dict[str, dict]:
    return yaml.safe_load((data_folder() / "texts.yml").read_text(encoding="utf-8"))


def texts() -> dict[str, str]:
    """The texts by name, in the order of the seeds."""
    return {name: entry["text"] for name, entry in _stored()["texts"].items()}


def text_of(seed: int) -> str:
    """Seed n reads the n-th text, and begins again after the last."""
    return list(texts().values())[seed % len(texts())]


def pairs_of(seed: int) -> list[str]:
    """The n-th set of sentences, each followed by the same in other words."""
    sets = list(_stored()["pairs"].values())
    return [sentence for pair in sets[seed % len(sets)] for sentence in pair]


@dataclass(frozen=True)
class Network:
    """Φ_0, …, Φ_{L−1} on one text: u_{l+1} = Φ_l(u_l), and what is read off u_L.

    read: u_L ↦ logits, (question, choice). targets: the right choice of each question. tokens: the ids, row by row.
    embed: u_L ↦ one vector a sentence, where sentences are compared.
    """

    layers: tuple[Layer, ...]
    start: Field
    read: Callable[[Field], Tensor]
    targets: Tensor
    tokens: list[int]
    mask: Mask | None = None
    embed: Callable[[Field], Tensor] | None = None

    def run(self, layers: Sequence[Layer] | None = None) -> Field:
        """u_L, with other layers in place of its own."""
        u = self.start
        for layer in self.layers if layers is None else layers:
            u = layer(u)
        return u

    def loss(self, u: Field) -> Tensor:
        """Mean over the questions, from the last state."""
        return cross_entropy(self.read(u), self.targets)

    @torch.no_grad()
    def divergence(self, u: Field, v: Field) -> float:
        """KL of what is said with the last state v from what is said with u, in nats a question."""
        p, q = (log_softmax(self.read(x), dim=-1) for x in (u, v))
        return kl_div(q, p, reduction="batchmean", log_target=True).item()


def read_on(model: nn.Module, ids: Tensor, head: nn.Module) -> Network:
    """A network that says what comes next. ids: (piece, token); head: from the last state to logits."""
    rec = record(model, {"input_ids": ids}, whole=True)
    return Network(
        layers=tuple(map(rec.layer, range(len(rec.names)))),
        start=rec.trajectory.states[0],
        read=lambda u: head(u)[:, :-1].flatten(0, 1),
        targets=ids[:, 1:].flatten(),
        tokens=ids.flatten().tolist(),
    )


def compare(model: nn.Module, inputs: dict[str, Tensor]) -> Network:
    """A network that says which sentences belong together, 0 and 1, 2 and 3, …. inputs: ids and attention_mask."""
    rec = record(model, inputs, whole=True)
    mask = inputs["attention_mask"].bool()

    def embed(u: Field) -> Tensor:
        return normalize(token_mean(u, mask).squeeze(1), dim=-1)

    def read(u: Field) -> Tensor:
        one = embed(u)
        cosines = SHARPNESS * one[0::2] @ one[1::2].T
        return torch.cat([cosines, cosines.T])

    return Network(
        layers=tuple(map(rec.layer, range(len(rec.names)))),
        start=rec.trajectory.states[0],
        read=read,
        targets=torch.arange(len(mask) // 2, device=mask.device).repeat(2),
        tokens=inputs["input_ids"].flatten().tolist(),
        mask=mask,
        embed=embed,
    )


# The two networks


@cache
def _loaded(name: str) -> pretrained.Pretrained:
    return pretrained.load(name)


def shuffled(tokens: Tensor, mask: Mask | None, seed: int) -> Tensor:
    """The real tokens of every row in a random order, but for the first and, where there is padding, the last."""
    ids = tokens.clone()
    for row, own in enumerate(ids):
        real = len(own) if mask is None else int(mask[row].sum())
        last = real if mask is None else real - 1  # what begins and ends a sentence stays where it is
        order = torch.randperm(last - 1, generator=stream(seed, "tokens", row)) + 1
        ids[row, 1:last] = own[order.to(own.device)]
    return ids


def language_model(scale: Scale, seed: int, weights: int | None = None) -> tuple[nn.Module, Tensor, nn.Module]:
    """smollm2, the ids of two pieces of a text, and its head. weights: the seed of random ones in place of its own."""
    if scale is Scale.SMOKE:
        model = seeded(lambda: Tiny(causal=True), derive(weights or 0, "tiny"))
        ids, head = _numbers(text_of(seed).split()), model.head
    else:
        given = _loaded("smollm2") if weights is None else pretrained.untrained("smollm2", weights)
        model, ids = given.model, given.tokenizer(text_of(seed))["input_ids"]
        head = nn.Sequential(model.model.norm, model.lm_head)
    return model.eval(), torch.tensor(ids[: 2 * LENGTH[scale]]).view(2, -1), head


def language(scale: Scale, seed: int, *, weights: int | None = None, mixed: bool = False) -> Network:
    """smollm2 on a text, as layers. mixed: with its tokens shuffled."""
    model, ids, head = language_model(scale, seed, weights)
    return read_on(model, shuffled(ids, None, seed) if mixed else ids, head)


def sentence_model(scale: Scale, seed: int, weights: int | None = None) -> tuple[nn.Module, dict[str, Tensor]]:
    """minilm, and the ids of a set of pairs with their mask; arguments as of `language_model`."""
    chosen = pairs_of(seed)[: 2 * PAIRS[scale]]
    if scale is Scale.SMOKE:
        model = seeded(lambda: Tiny(causal=False), derive(weights or 0, "tiny"))
        ids = [torch.tensor(_numbers(sentence.split())) for sentence in chosen]
        inputs = {
            "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True),
            "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        }
        return model.eval(), inputs
    given = _loaded("minilm") if weights is None else pretrained.untrained("minilm", weights)
    return given.model.eval(), _filled(given.inputs(chosen, length=LONGEST))


def sentences(scale: Scale, seed: int, *, weights: int | None = None, mixed: bool = False) -> Network:
    """minilm on a set of pairs, as layers. mixed: with the tokens of each sentence shuffled."""
    model, inputs = sentence_model(scale, seed, weights)
    if mixed:
        inputs = inputs | {"input_ids": shuffled(inputs["input_ids"], inputs["attention_mask"], seed)}
    return compare(model, inputs)


def _filled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Filled up to LONGEST tokens, so that all sets have tables of one shape."""
    missing = LONGEST - inputs["input_ids"].shape[1]
    return {name: nn.functional.pad(ids, (0, missing)) for name, ids in inputs.items()}


SYMBOLS = 50


def _numbers(words: Sequence[str]) -> list[int]:
    return [crc32(word.encode()) % SYMBOLS for word in words]


class Tiny(nn.Module):
    """Six random layers of width 16: LayerNorm first and causal, or LayerNorm last and not."""

    def __init__(self, causal: bool, width: int = 16, depth: int = 6):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=causal)
            for _ in range(depth)
        )
        self.head, self.causal = nn.Linear(width, SYMBOLS), causal

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        u = self.embed(input_ids)
        later = nn.Transformer.generate_square_subsequent_mask(u.shape[1]) if self.causal else None
        padding = None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            u = layer(u, src_mask=later, src_key_padding_mask=padding)
        return self.head(u)


def branches(network: Network) -> tuple[Recording, ...]:
    """A recording of every layer alone: its stages, and rewrite(write, inputs=u) for the layer on another stream."""
    states = [network.start]
    with torch.no_grad():
        for layer in network.layers[:-1]:
            states.append(layer(states[-1]))
    alone = [nn.Sequential(_Alone(layer)) for layer in network.layers]
    return tuple(record(one, u, mask=network.mask, blocks=["0"]) for one, u in zip(alone, states, strict=True))


class _Alone(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.module, self.layer = layer.module, layer

    def forward(self, u: Field) -> Field:
        return self.layer(u)
