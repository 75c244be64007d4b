"""ListOps at the Long Range Arena's setting: examples a second, ours and a plain recursive generator's.

    python benchmarks/listops.py [--examples 300] [--repeats 7]

The plain generator draws one tree at a time, throws it away if its length is not accepted, and evaluates by recursion:
once with numpy.median, as the Arena's own program does, and once with the faster sorted(). Each of the three gives
padded arrays of symbols and the answers. They take turns, so that a busy moment of the machine hits all of them; a
ratio compares neighbours in time. Ours makes more examples in a turn because its smallest unit is a block of draws.
"""

import argparse
import random
import statistics
import time

import numpy as np

from pdelab.datasets.listops import GRAMMARS, SYMBOLS, generate

GRAMMAR = GRAMMARS["listops-arena"]
SYMBOL = {symbol.removeprefix("["): i for i, symbol in enumerate(SYMBOLS)} | {
    i: SYMBOLS.index(str(i)) for i in range(10)
}


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


def rate(make, count, seed):
    start = time.perf_counter()
    make(count, seed)
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=300, help="of the plain generators in a turn; ours: 30 times")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    contestants = {
        "plain, numpy.median": (lambda n, seed: plain(n, seed, numpy_median), given.examples),
        "plain, sorted()": (lambda n, seed: plain(n, seed, sorted_median), given.examples),
        "pdelab": (lambda n, seed: generate(GRAMMAR, n, seed), 30 * given.examples),
    }
    generate(GRAMMAR, 1000, 0)  # the first call also computes the acceptance and touches fresh memory
    rates = {name: [] for name in contestants}
    for seed in range(given.repeats):
        for name, (make, count) in contestants.items():
            rates[name].append(rate(make, count, seed))
    print(f"{GRAMMAR.name}: examples a second, median of {given.repeats} [least, most]; and pdelab's ratio to it")
    for name, own in rates.items():
        ratio = [ours / theirs for ours, theirs in zip(rates["pdelab"], own, strict=True)]
        print(
            f"{name:20s} {statistics.median(own):8.0f} [{min(own):.0f}, {max(own):.0f}]"
            f"   {statistics.median(ratio):5.1f}× [{min(ratio):.1f}, {max(ratio):.1f}]"
        )


if __name__ == "__main__":
    main()
