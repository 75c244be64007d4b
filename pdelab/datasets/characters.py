"""Running text, a symbol a token, and the question which symbol comes next: y[:, i] follows x[:, i].

tinyshakespeare (public): 65 different characters; the first 90 % are for training, the last 10 % the test.

synthetic-characters (made by a rule): a Markov chain of order 2 on 27 symbols. After each pair one of four symbols
follows, with probabilities drawn once and for all; so the entropy rate, which no loss undercuts on average, is known.
"""

from functools import cache

import torch
from torch import Tensor

from pdelab.datasets.base import Dataset, Examples
from pdelab.datasets.cache import fetch
from pdelab.options import choose, instance, whole
from pdelab.seeds import stream

NAMES = ("synthetic-characters", "tinyshakespeare")

SYMBOLS = 27
FOLLOWERS = 4


@cache
def chain() -> tuple[Tensor, Tensor]:
    """The rule: what may follow the pair ab, and how likely it is; both (27·27, 4), row 27a + b."""
    generator = stream(0, "synthetic-characters", "rule")
    order = torch.rand(SYMBOLS**2, SYMBOLS, generator=generator, dtype=torch.float64).argsort(dim=1)
    weights = 1 + (16 * torch.rand(SYMBOLS**2, FOLLOWERS, generator=generator, dtype=torch.float64)).floor()
    return order[:, :FOLLOWERS], weights / weights.sum(dim=1, keepdim=True)


def transition() -> Tensor:
    """P(c | ab): (27·27, 27)."""
    following, probability = chain()
    return probability.new_zeros(SYMBOLS**2, SYMBOLS).scatter(1, following, probability)


@cache
def stationary() -> Tensor:
    """π(ab), how often a pair occurs in the long run: (27, 27), π(bc) = Σ_a π(ab) P(c | ab)."""
    P = transition().reshape(SYMBOLS, SYMBOLS, SYMBOLS)
    pi = P.new_full((SYMBOLS, SYMBOLS), SYMBOLS**-2.0)
    for _ in range(10_000):
        new = torch.einsum("ab,abc->bc", pi, P)
        if torch.allclose(new, pi, rtol=0, atol=1e-16):
            return new / new.sum()
        pi = new
    raise RuntimeError("the chain's long-run distribution did not settle")


def sample(count: int, length: int, generator: torch.Generator) -> Tensor:
    """`count` stretches of `length` symbols, each starting anywhere in the endless text: (example, token)."""

    count, length = whole("count", count), whole("length", length)
    instance("generator", generator, torch.Generator)

    def uniform() -> Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64)

    following, probability = chain()
    steps = probability.cumsum(dim=1)
    steps[:, -1] = 1.0  # whatever rounding made of the sum
    pair = torch.searchsorted(stationary().flatten().cumsum(dim=0), uniform(), right=True).clamp(max=SYMBOLS**2 - 1)
    text = [pair // SYMBOLS, pair % SYMBOLS]
    for _ in range(length - 2):
        choice = torch.searchsorted(steps[pair], uniform().unsqueeze(1), right=True)
        text.append(following[pair].gather(1, choice).squeeze(1))
        pair = text[-2] * SYMBOLS + text[-1]
    return torch.stack(text[:length], dim=1)


def _windows(text: Tensor) -> Examples:
    """(example, token + 1) → x without the last symbol, y without the first."""
    return Examples(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def synthetic(train: int = 4_000, test: int = 1_000, length: int = 64, seed: int = 0) -> Dataset:
    """Windows of the Markov text; the rule is always the same one, the seed chooses the text."""
    whole("length", length)
    whole("train", train)
    whole("test", test)
    name = "synthetic-characters"
    parts = (
        _windows(sample(n, length + 1, stream(seed, name, part))) for part, n in (("train", train), ("test", test))
    )
    return Dataset(name, "synthetic", *parts, classes=SYMBOLS, symbols=SYMBOLS)


def shakespeare(length: int = 128) -> Dataset:
    """Windows of `length` characters side by side, none shared; what is left over at the end is dropped.

    Characters are numbered in the order of their codes.
    """
    whole("length", length)
    path = fetch("tinyshakespeare/input.txt")
    text = path.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    numbers = {character: i for i, character in enumerate(alphabet)}
    codes = torch.tensor([numbers[character] for character in text])
    cut = len(codes) * 9 // 10
    if len(codes) - cut <= length:
        raise ValueError(f"length must be below the {len(codes) - cut} characters of the test part; not {length}")
    parts = (_windows(part.unfold(0, length + 1, length)) for part in (codes[:cut], codes[cut:]))
    return Dataset("tinyshakespeare", "public", *parts, classes=len(alphabet), symbols=len(alphabet))


def load(name: str, **options: int) -> Dataset:
    """synthetic-characters (train=4_000, test=1_000, length=64, seed=0) or tinyshakespeare (length=128)."""
    choose("name", name, NAMES)
    return synthetic(**options) if name == "synthetic-characters" else shakespeare(**options)
