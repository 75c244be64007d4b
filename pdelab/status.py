"""How a run ended: of a solve, of a training, of an experiment."""

from enum import StrEnum


class Status(StrEnum):
    """finished; diverged: a state or a loss was not finite, which is a result; interrupted: it can go on."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
