"""How ListOps trees are drawn: the grammars by name, and the exact law of their lengths."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pdelab.datasets.listops_text import OPERATORS
from pdelab.options import choose, instance, number, whole


@dataclass(frozen=True)
class Grammar:
    """Which trees are drawn, and which are accepted: min_length < 2·operators + digits < max_length; None: no bound."""

    name: str
    operators: tuple[str, ...]
    max_depth: int
    max_arguments: int
    min_length: int | None = None
    max_length: int | None = None
    probability: float = 0.25

    def __post_init__(self):
        if not isinstance(self.operators, tuple) or not self.operators or not set(self.operators) <= set(OPERATORS):
            raise ValueError(f"operators must be a tuple of some of {', '.join(OPERATORS)}; not {self.operators!r}")
        whole("max_depth", self.max_depth)  # 1: a digit alone
        whole("max_arguments", self.max_arguments, 2, 31)  # what six bits can rank
        for name, least in (("min_length", 0), ("max_length", 1)):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least)
        if not 0 < number("probability", self.probability) < 1:
            raise ValueError(f"probability must lie between 0 and 1; not {self.probability}")

    def accepts(self, length: np.ndarray) -> np.ndarray:
        low = 0 if self.min_length is None else self.min_length
        return (length > low) & (True if self.max_length is None else length < self.max_length)


def _with_and_without_sum(*grammars: Grammar) -> dict[str, Grammar]:
    """Each grammar, and beside it the one without SM: the sum modulo 10 is by far the hardest of the four to learn."""
    nosm = (replace(g, name=f"{g.name}-nosm", operators=OPERATORS[:-1]) for g in grammars)
    return {g.name: g for g in (*grammars, *nosm)}


GRAMMARS = _with_and_without_sum(
    Grammar("listops-arena", OPERATORS, max_depth=10, max_arguments=10, min_length=500, max_length=2000),
    # P2 says "length 1000" and no more: here the Arena's trees of at most 1000 tokens.
    Grammar("listops-1000", OPERATORS, max_depth=10, max_arguments=10, min_length=500, max_length=1001),
    # The Arena's trees of about 128 tokens: long, and short enough to be learned on a CPU.
    Grammar("listops-128", OPERATORS, max_depth=10, max_arguments=10, min_length=96, max_length=161),
    # Bare digits are left out: among the published trees, each kept once, there can be ten of them at most.
    Grammar("listops-original", OPERATORS, max_depth=20, max_arguments=5, min_length=1),
    Grammar("listops-260", OPERATORS, max_depth=6, max_arguments=6, min_length=60, max_length=260),
    Grammar("listops-130", OPERATORS, max_depth=5, max_arguments=5, min_length=30, max_length=130),
    Grammar("listops-65", OPERATORS, max_depth=4, max_arguments=5, min_length=15, max_length=65),
    # Small enough to train on a CPU. A list of digits alone has at most max_arguments + 2 tokens: all trees are nested.
    Grammar("listops-32", OPERATORS, max_depth=4, max_arguments=5, min_length=7, max_length=33),
    Grammar("listops-16", OPERATORS, max_depth=3, max_arguments=4, min_length=6, max_length=17),
)


def grammar_named(grammar: Grammar | str) -> Grammar:
    if isinstance(grammar, Grammar):
        return grammar
    return choose("grammar", grammar, GRAMMARS)


@lru_cache(maxsize=32)
def length_law(grammar: Grammar) -> tuple[np.ndarray, float]:
    """p_n = P(length = n) of one tree before it is accepted or not, and the rest P(length ≥ len(p)).

    Let f_d be the law at depth d, and f_d^{*a} its a-fold convolution. At the greatest depth f = δ₁, and above it

        f_d = (1 − q) δ₁ + q δ₂ * mean of f_{d+1}^{*a} over a = 2 … max_arguments,        q = probability.

    All lengths below max_length are given: longer subtrees have no part in them, so that cutting the laws there loses
    nothing. Without max_length the array grows until the rest is below 1e-12, or has 2¹⁸ entries. The convolutions are
    done by Fourier transform, which leaves rounding errors of about 1e-17 in each entry.

    >>> p, rest = length_law(Grammar("", ("MIN",), max_depth=2, max_arguments=2))   # a digit, or [MIN a b ]
    >>> p.round(12).tolist(), round(rest, 12)
    ([0.0, 0.75, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0], 0.0)
    """
    size = 8 if instance("grammar", grammar, Grammar).max_length is None else max(2, grammar.max_length)
    while True:
        p = _law(grammar, size)
        rest = max(0.0, 1 - p.sum())
        if grammar.max_length is not None or rest < 1e-12 or size >= 2**18:
            p.flags.writeable = False  # it is kept for the next call
            return p, rest
        size *= 2


def _law(grammar: Grammar, size: int) -> np.ndarray:
    padded = 1 << (2 * size - 1).bit_length()  # room for a whole product, so that nothing wraps around
    digit = np.zeros(size)
    digit[1] = 1
    law = digit
    for _ in range(grammar.max_depth - 1):
        factor, power, total = np.fft.rfft(law, padded), law, np.zeros(size)
        for _ in range(2, grammar.max_arguments + 1):
            power = np.fft.irfft(np.fft.rfft(power, padded) * factor, padded)[:size]
            total += power
        operator = np.zeros(size)
        operator[2:] = np.maximum(total, 0)[:-2] / (grammar.max_arguments - 1)
        law = (1 - grammar.probability) * digit + grammar.probability * operator
    return law


def acceptance(grammar: Grammar) -> float:
    """P(min_length < length < max_length), the share of trees that are accepted.

    >>> round(acceptance(GRAMMARS["listops-arena"]), 5)
    0.08276
    """
    p, rest = length_law(grammar)
    return float(p[grammar.accepts(np.arange(len(p)))].sum()) + (rest if grammar.max_length is None else 0.0)


def mean_length(grammar: Grammar) -> float:
    """E[length | accepted]; without max_length, of the lengths that `length_law` gives.

    >>> round(mean_length(GRAMMARS["listops-arena"]), 2)
    1035.02
    """
    p, _ = length_law(grammar)
    n = np.arange(len(p))
    accepted = np.where(grammar.accepts(n), p, 0)
    return float(n @ accepted / accepted.sum())
