"""ListOps as text: its alphabet, the published forms, and an evaluator that shares nothing with the generator's."""

import csv
import re
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from pdelab.datasets.base import Examples
from pdelab.options import flags

OPERATORS = ("MIN", "MAX", "MED", "SM")
SYMBOLS = ("<pad>", *(f"[{name}" for name in OPERATORS), "]", *"0123456789")


def to_text(row: Tensor | np.ndarray, parentheses: bool = False) -> str:
    """A row of x as text: bare, or in the published form, which pairs everything with what stands left of it.

    >>> row = torch.tensor([2, 8, 15, 5, 0])
    >>> to_text(row)
    '[MAX 2 9 ]'
    >>> to_text(row, parentheses=True)
    '( ( ( [MAX 2 ) 9 ) ] )'
    """
    flags(parentheses=parentheses)
    if not isinstance(row, Tensor | np.ndarray) or row.ndim != 1 or "int" not in str(row.dtype):
        raise ValueError(f"row must be a row of x, whole numbers (token,); not {row!r}")
    ids = row.tolist()
    if not all(0 <= i < len(SYMBOLS) for i in ids):
        raise ValueError(f"row must hold symbols 0 to {len(SYMBOLS) - 1}; it has {min(ids)} to {max(ids)}")
    tokens = [SYMBOLS[i] for i in ids if i]
    if not parentheses:
        return " ".join(tokens)
    # Written from the end: how many parentheses stand before an operator is known after its arguments.
    written, arguments = [], []  # arguments: of each operator around this token, those written so far
    for token in reversed(tokens):
        if token.startswith("["):
            if not arguments:
                raise ValueError(f"row must be a whole tree; {token} is not closed in {' '.join(tokens)!r}")
            written += [token, *["("] * (arguments.pop() + 1)]
            continue
        if arguments:
            written.append(")")
            arguments[-1] += 1
        if token == "]":
            written.append(")")
            arguments.append(0)
        written.append(token)
    if arguments:
        raise ValueError(f"row must be a whole tree; it closes more than it opens in {' '.join(tokens)!r}")
    return " ".join(reversed(written))


def _fault(text: str, position: int, expected: str) -> ValueError:
    found = repr(text[position : position + 12]) if position < len(text) else "the end"
    return ValueError(f"text is not a ListOps tree: at position {position} stands {found}, expected {expected}")


_TOKEN = re.compile(r"[()\]]|[^\s()\]]+")
_APPLY = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


def evaluate(text: str) -> int:
    """The value of a tree, from its text alone: a second way, which shares nothing with the one of `generate`.

    Read are the bare form and the published one, with parentheses around everything and what stands left of it; in both
    also the Arena's symbols, where X is the closing bracket and the opening one may be missing.

    >>> evaluate("[MED 1 2 8 [SM 9 8 ] ]"), evaluate("( ( ( [MAX 2 ) 9 ) ] )"), evaluate("MIN 4 7 X")
    (4, 9, 4)
    """
    if not isinstance(text, str):
        raise ValueError(f"text must be a string such as '[MAX 2 9 ]', not {type(text).__name__}")
    operators = []  # those still open: (name, position, opening parentheses before it, values of its arguments so far)
    result, paired = None, None  # paired: whether this text has parentheses; its first operator decides
    opened, due = 0, 0  # opening parentheses just read, and closing ones that must come now
    for token in _TOKEN.finditer(text):
        word, position = token[0], token.start()
        if word == ")" and due:
            due -= 1
            continue
        if due:
            raise _fault(text, position, "')'")
        if result is not None:
            raise _fault(text, position, "the end")
        if word == "(":
            opened += 1
            continue
        name = word.removeprefix("[")
        if name in _APPLY:
            paired = bool(opened) if paired is None else paired
            if paired != bool(opened):
                raise _fault(text, position, "parentheses before every operator or before none")
            operators.append((name, position, opened, []))
            opened = 0
            continue
        if opened:
            raise _fault(text, position, "an operator after '('")
        if word in ("]", "X") and operators:
            name, _, pairs, values = operators.pop()
            if not values:
                raise _fault(text, position, f"an argument of {name}")
            if paired and pairs != len(values) + 1:
                raise _fault(text, position, f"{pairs - 1} arguments of {name}, one less than '(' stand before it")
            value, due = _APPLY[name](values), int(paired)
        elif len(word) == 1 and word in "0123456789":
            value = int(word)
        else:
            raise _fault(text, position, "an operator, a digit or ']'" if operators else "an operator or a digit")
        if operators:
            operators[-1][-1].append(value)
            due += paired
        else:
            result = value
    if operators:
        name, position, _, _ = operators[-1]
        raise _fault(text, len(text), f"']' for {name} at position {position}")
    if due:
        raise _fault(text, len(text), "')'")
    if result is None:
        raise _fault(text, len(text), "an operator or a digit")
    return result


_ID = {word: i for i, symbol in enumerate(SYMBOLS) if i for word in (symbol, symbol.removeprefix("["))} | {
    "X": SYMBOLS.index("]")
}


def read_tsv(path: str | Path) -> Examples:
    """A published file: columns Source and Target, separated by tabs.

    Every answer is checked with `evaluate`, which takes some minutes for the 96,000 lines of the Arena's training file.
    """
    rows, values = [], []
    with open(path, encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file, delimiter="\t")
        missing = {"Source", "Target"} - set(lines.fieldnames or ())
        if missing:
            raise ValueError(f"{path} must have columns Source and Target; {' and '.join(sorted(missing))} is missing")
        for line in lines:
            try:
                value = evaluate(line["Source"])
            except ValueError as fault:
                raise ValueError(f"{path}, line {lines.line_num}: {fault}") from None
            if line["Target"] != str(value):
                raise ValueError(f"{path}, line {lines.line_num}: Target is {line['Target']!r}, the tree's is {value}")
            words = (token for token in _TOKEN.findall(line["Source"]) if token not in "()")
            rows.append(torch.tensor([_ID[word] for word in words], dtype=torch.int32))
            values.append(value)
    if not rows:
        raise ValueError(f"{path} must hold at least one example below its header")
    x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Examples(x, torch.tensor(values), x != 0)
