"""ListOps at the Long Range Arena's setting: examples a second, ours over a plain recursive generator's.

The plain generator draws one tree at a time, throws it away if its length is not accepted, and evaluates by recursion:
once with the fast sorted(), once with numpy.median, as the Arena's own program does. Each of the three gives
padded arrays of symbols and the answers. Ours makes more examples in a turn: its smallest unit is a block of draws.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from harness import Row, spread, timed

from pdelab.datasets.listops import GRAMMARS, SYMBOLS, generate

GRAMMAR = GRAMMARS["listops-arena"]
SYMBOL = {symbol.removeprefix("["): i for i, symbol in enumerate(SYMBOLS)} | {
    i: SYMBOLS.index(str(i)) for i in range(10)
}


def rows(device: str, quick: bool) -> Iterator[Row]:
    examples, repeats = (20, 2) if quick else (300, 7)
    generate(GRAMMAR, 1000, 0)  # the first call also computes the acceptance and touches fresh memory
    for name, median, target in (("sorted()", sorted_median, "≥ 30"), ("numpy.median", numpy_median, "")):
        pairs = [
            (rate(partial(generate, GRAMMAR), 30 * examples, seed), rate(partial(plain, median=median), examples, seed))
            for seed in range(repeats)
        ]
        ratios = [ours / theirs for ours, theirs in pairs]
        yield spread("ListOps at the Arena's setting, examples a second", f"plain recursion, {name}", ratios, target)


def rate(make: Callable[[int, int], object], count: int, seed: int) -> float:
    return count / timed(lambda: make(count, seed))


def tree(depth=1):
    """A digit, or (operator, arguments); and its length."""
    if depth == GRAMMAR.max_depth or random.random() >= GRAMMAR.probability:
        return random.randrange(10), 1
    arguments, length = [], 2
    for _ in range(random.randint(2, GRAMMAR.max_arguments)):
        argument, size = tree(depth + 1)
        arguments.append(argument)
        length += size
    return (random.choice(GRAMMAR.operators), arguments), length


def write(node, symbols):
    if isinstance(node, int):
        symbols.append(SYMBOL[node])
        return
    symbols.append(SYMBOL[node[0]])
    for argument in node[1]:
        write(argument, symbols)
    symbols.append(SYMBOL["]"])


def numpy_median(values):
    return int(np.median(values))


def sorted_median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2


def value(node, median):
    if isinstance(node, int):
        return node
    values = [value(argument, median) for argument in node[1]]
    match node[0]:
        case "MIN":
            return min(values)
        case "MAX":
            return max(values)
        case "MED":
            return median(values)
        case _:
            return sum(values) % 10


def plain(count, seed, median):
    random.seed(seed)
    x, y = np.zeros((count, GRAMMAR.max_length), dtype=np.int32), np.zeros(count, dtype=np.int64)
    made = 0
    while made < count:
        root, length = tree()
        if GRAMMAR.min_length < length < GRAMMAR.max_length:
            symbols = []
            write(root, symbols)
            x[made, :length] = symbols
            y[made] = value(root, median)
            made += 1
    return x, y
