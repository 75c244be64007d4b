"""Rows for tables of the three checks of the review: mean and 95 % interval over seeds of every difference.

`Store().load("review_schemes", "book")` and its like give the results; curves come from `mean_and_half(results, key)`.
"""

from collections.abc import Mapping, Sequence

from pdebook.ledger.record import Result, as_list, summarise

Row = tuple[str, ...]

SOLVED = {
    "drift without residual connections": "field-no_residual/drift less field-both/drift",
    "a random term in their place": "field-random_residual/drift less field-both/drift",
    "size without LayerNorm": "field-no_norm/size less field-both/size",
    "a random term in its place": "field-random_norm/size less field-both/size",
    "gradient without LayerNorm": "field-no_norm/gradient less field-both/gradient",
    "the same, a random term": "field-random_norm/gradient less field-both/gradient",
}
RETRAINED = {
    "drift without residual connections": "trained-no_residual/drift less trained-both/drift",
    "size without LayerNorm": "trained-no_norm/size less trained-both/size",
    "gradient without LayerNorm": "trained-no_norm/training_gradient less trained-both/training_gradient",
    "accuracy with both": "trained-both/accuracy",
    "without residual connections": "trained-no_residual/accuracy",
    "without LayerNorm": "trained-no_norm/accuracy",
}
CALLED = {
    "bare": "neither",
    "residual": "residual connections alone",
    "norm": "LayerNorm alone, before the branch",
    "residual_norm": "both, LayerNorm before the branch",
    "norm_after": "LayerNorm alone, after the branch",
    "residual_norm_after": "both, LayerNorm after the branch",
    "again": "control: both, before, other weights and batches",
}
MEASURES = {
    "accuracy": "{}/accuracy",
    "cosine with the input": "{}/fidelity[-1]",
    "distance of tokens from their mean": "{}/nonuniformity[-1]",
    "largest gradient, log10": "log10 {}/gradient_largest",
}
ROLES = {
    "residual connections: cosine with the input": "{0}-residual_norm/fidelity[-1] less {0}-norm/fidelity[-1]",
    "residual connections: tokens apart": "{0}-residual_norm/nonuniformity[-1] less {0}-norm/nonuniformity[-1]",
    "residual connections: accuracy": "{0}-residual_norm/accuracy less {0}-norm/accuracy",
    "LayerNorm: log10 gradient": "log10 {0}-residual/gradient_largest less log10 {0}-residual_norm/gradient_largest",
    "LayerNorm: accuracy": "{0}-residual_norm/accuracy less {0}-residual/accuracy",
    "LayerNorm after the branch: accuracy": "{0}-residual_norm_after/accuracy less {0}-residual/accuracy",
}


def by_cell(results: Sequence[Result], cells: Sequence[str], columns: Mapping[str, str]) -> list[Row]:
    """For each cell its name and one value a column; a column names a list, put together or not, of as many values."""
    found = [[one.value for one in as_list(summarise(results, figure))] for figure in columns.values()]
    return list(zip(cells, *found, strict=True))


def scheme_rows(results: Sequence[Result], *, retrained: bool = False) -> list[Row]:
    """Each scheme and step: the differences of SOLVED, or of RETRAINED, whose names are the head of the table."""
    told = results[0].configuration
    if retrained:
        return by_cell(results, told["retrained_cells"], RETRAINED)
    return by_cell(results, told["cells"], SOLVED)


def corner_rows(results: Sequence[Result], architecture: str, corners: Sequence[str]) -> list[Row]:
    """Each corner of an architecture: its name and the values of MEASURES; `again` is among the corners, too."""
    return [
        (CALLED[corner], *_values(results, MEASURES, f"{architecture}-{corner}", corner == "again"))
        for corner in corners
    ]


def role_rows(results: Sequence[Result], architectures: Sequence[str] = ("vit", "decoder")) -> list[Row]:
    """What each of ROLES comes to, one value for each architecture."""
    return [(name, *(summarise(results, of.format(one)).value for one in architectures)) for name, of in ROLES.items()]


def limit_rows(results: Sequence[Result], start: str, figure: str) -> list[Row]:
    """A trained start and its controls: one row each, one value for each depth. figure: nearness or smoothness."""
    names = {"trained": start} | {word: f"{start}-{word}" for word in ("shuffled", "independent", "untrained")}
    rows = {word: summarise(results, f"{name}/{figure}", control=word != "trained") for word, name in names.items()}
    return [(word, *(one.value for one in row)) for word, row in rows.items()]


def accuracy_rows(results: Sequence[Result], starts: Mapping[str, str]) -> list[Row]:
    """The accuracy of each trained start, which has a name in words: one value for each depth."""
    return [(name, *(one.value for one in summarise(results, f"{start}/accuracy"))) for start, name in starts.items()]


def _values(results: Sequence[Result], columns: Mapping[str, str], model: str, control: bool) -> list[str]:
    return [summarise(results, figure.format(model), control=control).value for figure in columns.values()]
