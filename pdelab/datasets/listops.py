"""ListOps: nested lists of digits under MIN, MAX, MED and SM; the value of the whole is the answer.

[MAX 2 9 [MIN 4 7 ] 0 ]  =  max(2, 9, min(4, 7), 0)  =  9

A node at depth d (the root's is 1) is an operator with probability ¼ and else a digit; at the greatest depth it is
always a digit. The root is drawn like every other node. An operator has 2 … max_arguments arguments; its kind, their
number and the digits are uniform. A tree of o operators and n digits has the length 2o + n, and is accepted if
min_length < 2o + n < max_length. MED is the median, cut to an integer; SM is the sum modulo 10.

This is the definition of the Long Range Arena (Tay et al. 2021, its file lra_benchmarks/data/listops.py), made after
that of the original ListOps (Nangia and Bowman 2018). Both of them keep each tree once. Here trees are independent, and
`load` sees to it that no test example occurs in training; at the Arena's lengths no tree comes twice anyway.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pdelab.datasets.base import Dataset, Examples, majority
from pdelab.datasets.listops_grammar import GRAMMARS, Grammar, acceptance, grammar_named, length_law, mean_length
from pdelab.datasets.listops_text import OPERATORS, SYMBOLS, evaluate, read_tsv, to_text
from pdelab.options import choose, instance, seed_of, whole
from pdelab.seeds import derive

__all__ = ["GRAMMARS", "OPERATORS", "SYMBOLS", "Grammar", "acceptance", "controls", "evaluate", "features", "generate"]
__all__ += ["length_law", "load", "mean_length", "read_tsv", "seen", "to_text"]

_CLOSE, _ZERO = SYMBOLS.index("]"), SYMBOLS.index("0")

# Trees are drawn in blocks of this many, one after the other from one stream: memory stays bounded, and the size is
# part of what a seed means.
_BLOCK = 8192


class _Bits:
    """Choices from raw bits by integer arithmetic: the same with every version of numpy, on every machine.

    numpy promises the stream of PCG64 itself, and not what its generators make of it.
    """

    def __init__(self, seed: int):
        self.source = np.random.PCG64(seed)

    def words(self, n: int) -> np.ndarray:
        """n words of 32 bits."""
        return self.source.random_raw((n + 1) // 2).astype("<u8", copy=False).view("<u4")[:n]

    def below(self, bound: int, n: int) -> np.ndarray:
        """⌊bound·w/2³²⌋ ∈ {0, …, bound − 1}: no value's probability is off by more than 2⁻³² (bound is at most 30)."""
        product = self.words(n).astype(np.uint64)
        product *= np.uint64(bound)
        product >>= np.uint64(32)
        return product.astype(np.uint8)


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each of the groups of these sizes starts, and where the last one ends: (group + 1,)."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Σ of each group, as a difference of running sums: exact modulo 2⁶⁴, and no loop over groups."""
    running = np.zeros(len(values) + 1, dtype=np.uint64 if values.dtype == np.uint64 else np.int64)
    np.cumsum(values, out=running[1:])
    return np.diff(running[starts])


@dataclass(frozen=True)
class _Level:
    """All nodes of one depth, tree by tree, and each tree's from left to right.

    | what | shape |
    |---|---|
    | operator | (node,), True where a node is an operator |
    | arguments | (operator,), how many |
    | nodes, operators | (tree,), how many of the nodes and operators are each tree's |
    """

    operator: np.ndarray
    arguments: np.ndarray
    nodes: np.ndarray
    operators: np.ndarray

    def of(self, tree: np.ndarray) -> "_Level":
        """The part of some of the trees; tree: (tree,), True for those."""
        operator, arguments = self.operator[tree.repeat(self.nodes)], self.arguments[tree.repeat(self.operators)]
        return _Level(operator, arguments, self.nodes[tree], self.operators[tree])


def _draw(grammar: Grammar, bits: _Bits, trees: int) -> tuple[np.ndarray, list[_Level]]:
    """The shapes of trees, without kinds and digits: the length of each, and the nodes depth by depth.

    A tree that has reached max_length is not drawn any further; its length is given as max_length.
    """
    limit = np.iinfo(np.int64).max if grammar.max_length is None else grammar.max_length
    threshold = round(grammar.probability * 2**32)
    length, nodes, levels = np.zeros(trees, dtype=np.int64), np.ones(trees, dtype=np.int64), []
    for _ in range(1, grammar.max_depth):
        starts = _starts(nodes)
        operator = bits.words(starts[-1]) < threshold  # (node,)
        operators = _sums(operator, starts)  # (tree,)
        starts = _starts(operators)
        arguments = bits.below(grammar.max_arguments - 1, starts[-1]) + np.uint8(2)  # (operator,)
        levels.append(_Level(operator, arguments, nodes, operators))
        length += nodes + operators
        nodes = _sums(arguments, starts)
        too_long = length + nodes >= limit
        length[too_long], nodes[too_long] = limit, 0
    none = np.zeros_like(nodes)
    levels.append(_Level(np.zeros(nodes.sum(), dtype=bool), np.zeros(0, dtype=np.uint8), nodes, none))
    return length + nodes, levels


# Ten fields of six bits, one for each digit.
_ONES = np.uint64(sum(1 << 6 * digit for digit in range(10)))
_FIELD = np.array([1 << 6 * digit for digit in range(10)], dtype=np.uint64)


def _ranked(at_most: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The argument of this rank, 0 being the smallest: the number of digits v that have at most `rank` arguments ≤ v.

    Bit 5 of the field 32 + rank − at_most_v says whether v is one of them; the product with 1 in every field adds the
    ten answers up in the last.
    """
    fields = (rank.astype(np.uint64) + np.uint64(32)) * _ONES - at_most
    yes = (fields >> np.uint64(5)) & _ONES
    return (yes * _ONES >> np.uint64(54)).astype(np.uint8) & np.uint8(63)


def _value(kind: np.ndarray, arguments: np.ndarray, starts: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The values of operators from those of their arguments.

    kind, arguments: (operator,); starts: (operator + 1,); value: (argument,). MIN, MED and MAX ask for ranks: the sum
    of the arguments' fields counts how often each digit occurs, and its product with 1 in every field counts how many
    arguments are at most v, for all ten v at once. No sorting, and no loop over operators.
    """
    at_most = _sums(_FIELD[value], starts) * _ONES  # (operator,)
    last = arguments - np.uint8(1)
    is_max, is_med = kind == OPERATORS.index("MAX"), kind == OPERATORS.index("MED")
    low = np.where(is_med, last // 2, last * is_max)
    high = np.where(is_med, arguments // 2, last * is_max)
    middle = (_ranked(at_most, low) + _ranked(at_most, high)) // 2
    return np.where(kind == OPERATORS.index("SM"), _sums(value, starts) % 10, middle).astype(np.uint8)


def _finish(grammar: Grammar, bits: _Bits, length: np.ndarray, levels: list[_Level]) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and digits for trees whose shapes are drawn: symbols (tree, longest) as uint8, and values (tree,).

    Values and lengths of subtrees come from the deepest level up, places in the text from the root down.
    """
    kinds = np.array([OPERATORS.index(name) for name in grammar.operators], dtype=np.uint8)
    value, size = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)  # (node,), of the level below
    drawn = []
    for level in reversed(levels):
        starts = _starts(level.arguments)
        kind = kinds[bits.below(len(kinds), len(level.arguments))]  # (operator,)
        values, sizes = _value(kind, level.arguments, starts, value), _sums(size, starts) + 2
        below, at = size, np.flatnonzero(level.operator)
        value = bits.below(10, len(level.operator))  # (node,)
        symbol, size = value + np.uint8(_ZERO), np.ones(len(value), dtype=np.int64)
        symbol[at], value[at], size[at] = kind + np.uint8(1), values, sizes
        drawn.append((symbol, at, sizes, level.arguments, starts, below))

    width = int(length.max(initial=0))
    text = np.zeros(len(length) * width, dtype=np.uint8)
    place = np.arange(len(length)) * width  # (node,), where each node's part of the text starts
    for symbol, at, sizes, arguments, starts, below in reversed(drawn):
        text[place] = symbol
        place = place[at]  # (operator,)
        text[place + sizes - 1] = _CLOSE
        before = _starts(below)
        place = before[:-1] + (place + 1 - before[starts[:-1]]).repeat(arguments)
    return text.reshape(len(length), width), value


def _blocks(grammar: Grammar, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The accepted trees of one block after the other: symbols (tree, longest) as uint8, and values (tree,)."""
    bits = _Bits(derive(seed, "listops", grammar.name))
    while True:
        length, levels = _draw(grammar, bits, _BLOCK)
        accepted = grammar.accepts(length)
        yield _finish(grammar, bits, length[accepted], [level.of(accepted) for level in levels])


def generate(grammar: Grammar | str, count: int, seed: int) -> Examples:
    """The first `count` accepted trees of a seed: x (example, longest) with 0 for padding, y ∈ {0, …, 9}.

    x is int32: 96,000 examples of the Arena take 1 GB with their mask, and a fifth more while they are made. The
    examples are a function of (grammar, seed) alone: asking for more of them changes none of the first.

    >>> few = generate("listops-16", 2, seed=0)
    >>> [to_text(row) for row in few.x]
    ['[SM [MAX 4 5 ] [MED 7 1 ] ]', '[SM 8 [MIN 1 8 ] ]']
    """
    grammar = grammar_named(grammar)
    count, seed = whole("count", count), seed_of(seed)
    if acceptance(grammar) < 1e-6:
        raise ValueError(
            f"grammar {grammar.name!r} accepts less than one tree in a million; "
            f"change min_length {grammar.min_length}, max_length {grammar.max_length} or max_depth {grammar.max_depth}"
        )
    parts, have = [], 0
    blocks = _blocks(grammar, seed)
    while have < count:
        text, value = (part[: count - have] for part in next(blocks))
        parts.append((text[:, : np.count_nonzero(text.any(axis=0))], value))
        have += len(value)
    x = np.zeros((count, max(text.shape[1] for text, _ in parts)), dtype=np.int32)
    end = 0
    for text, _ in parts:
        start, end = end, end + len(text)
        x[start:end, : text.shape[1]] = text
    x = torch.from_numpy(x)
    return Examples(x, torch.from_numpy(np.concatenate([value for _, value in parts]).astype(np.int64)), x != 0)


def seen(train: Examples, test: Examples) -> Tensor:
    """Which test examples occur in training: (test example,).

    Rows are compared by h = Σ_j m_j x_j modulo 2⁶⁴ with fixed random m_j. Equal rows have equal h, so none of them is
    missed; of a hundred million pairs of different rows one is mistaken for equal with probability below 1e-10.
    """
    instance("train", train, Examples)
    instance("test", test, Examples)
    factors = np.random.PCG64(0).random_raw(max(train.x.shape[1], test.x.shape[1]))

    def hashes(examples: Examples) -> np.ndarray:
        parts = examples.x.split(4096)  # uint64 copies of all rows at once would be twice the size of the data
        return np.concatenate([part.numpy().astype(np.uint64) @ factors[: part.shape[1]] for part in parts])

    return torch.from_numpy(np.isin(hashes(test), hashes(train)))


def load(name: str = "listops-32-nosm", train: int | None = None, test: int = 2000, seed: int = 0) -> Dataset:
    """Train and test examples of a grammar, from streams of their own; no test example occurs in training.

    train: 96,000 for the Arena's and 20,000 for the others unless told. A test example that training has is replaced
    by the next one of the test stream, so short trees are rarer in the test set than in training.
    """
    grammar = choose("name", name, GRAMMARS)
    if train is None:
        train = 96_000 if "arena" in grammar.name else 20_000
    whole("train", train)
    whole("test", test)
    known = generate(grammar, train, derive(seed, "train"))
    drawn = test
    while True:
        fresh = generate(grammar, drawn, derive(seed, "test"))
        new = (~seen(known, fresh)).nonzero().flatten()
        if len(new) >= test:
            return Dataset(name, "generated", known, fresh.take(new[:test]), classes=10, symbols=len(SYMBOLS))
        if drawn > 100 * test:
            raise ValueError(f"train must leave trees for the test set; of {name} almost all are among the {train}")
        drawn = 2 * drawn


def features(x: Tensor) -> np.ndarray:
    """What a glance at the sequence gives, without evaluating anything below the root: (example, feature).

    How often each symbol occurs, the length, the root, the number of nested arguments of the root; of the root's own
    digits how often each occurs, their number, smallest, largest, median and sum modulo 10.
    """
    return np.concatenate([_features(part.numpy()) for part in instance("x", x, Tensor).split(4096)])


def _features(x: np.ndarray) -> np.ndarray:
    n = len(x)
    rows = np.arange(n)[:, None]

    def occurrences(symbol: np.ndarray, where: np.ndarray) -> np.ndarray:
        places = (rows * len(SYMBOLS) + symbol)[where]
        return np.bincount(places, minlength=n * len(SYMBOLS)).reshape(n, len(SYMBOLS))

    opens, closes = (x > 0) & (x < _CLOSE), x == _CLOSE
    depth = np.cumsum(opens.astype(np.int16) - closes, axis=1) - opens  # operators around each token
    counts = occurrences(x, x > 0)  # (example, symbol)
    nested = (opens & (depth == 1)).sum(axis=1)
    digits = occurrences(x, (x >= _ZERO) & (depth <= 1))[:, _ZERO:]  # (example, digit), of the root's own
    own = digits.sum(axis=1)
    at_most = digits.cumsum(axis=1)

    def ranked(rank: np.ndarray) -> np.ndarray:
        return (at_most <= rank[:, None]).sum(axis=1)  # 10 where the root has no digit of its own

    middle = (ranked((own - 1) // 2) + ranked(own // 2)) // 2
    columns = [counts.sum(axis=1), x[:, 0], nested, own, ranked(0 * own), ranked(own - 1), middle]
    return np.column_stack([counts[:, 1:], digits, *columns, digits @ np.arange(10) % 10])


def controls(data: Dataset) -> dict[str, float]:
    """Test accuracies without composition, fitted on the training examples; no accuracy means anything without them.

    majority: the commonest answer. root_operator: the commonest answer for each first symbol. boosted_tree: gradient
    boosting on `features`, which see the root's own digits and only count what lies deeper.
    """
    # scikit-learn takes as long to import as torch, and nothing else here needs it
    from sklearn.ensemble import HistGradientBoostingClassifier

    instance("data", data, Dataset)
    answers = np.zeros((len(SYMBOLS), data.classes), dtype=np.int64)
    np.add.at(answers, (data.train.x[:, 0].numpy(), data.train.y.numpy()), 1)
    by_root = torch.from_numpy(answers.argmax(axis=1))[data.test.x[:, 0].long()]
    tree = HistGradientBoostingClassifier(max_iter=50, early_stopping=False, random_state=0)
    tree.fit(features(data.train.x), data.train.y.numpy())
    return {
        "majority": majority(data),
        "root_operator": (by_root == data.test.y).double().mean().item(),
        "boosted_tree": float((tree.predict(features(data.test.x)) == data.test.y.numpy()).mean()),
    }
