"""What an estimate of information is: a number in nats with its standard error, and a test against zero."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdelab.field import Field, Mask, described, token_mean
from pdelab.metrics.base import clean, precise
from pdelab.options import choose, function, whole
from pdelab.seeds import stream

ROWS = ("tokens", "mean", "whole")
SATURATED = 0.95  # of a ceiling


@dataclass(frozen=True)
class Estimate:
    """A value in nats and its standard error, from so many samples.

    For an estimate that is the mean of one number i(x, t) = log p(x, t)/p(x)p(t) a sample, the error is their standard
    deviation over √samples; those of `ksg` depend on each other, and its error is measured in another way. The error
    says how far the value would move with other samples; it does not know the bias, and at independence, where i = 0
    for every sample, it is too small: there `permutation_test` is the one to ask.
    ceiling: the most that the method can give on such samples, whatever they depend on, as log n; infinite if unknown.
    """

    value: float
    error: float
    samples: int
    method: str
    ceiling: float = math.inf

    @classmethod
    def mean_of(cls, pointwise: Tensor, method: str, less: float = 0.0, ceiling: float = math.inf) -> "Estimate":
        """The mean of one number a sample, (n,), `less` a known bias."""
        number = len(pointwise)
        error = pointwise.std().item() / number**0.5 if number > 1 else math.nan
        return cls(pointwise.mean().item() - less, error, number, method, ceiling)

    @property
    def saturated(self) -> bool:
        """Whether the value is 95 % of its ceiling or more: then it says how many samples or bins there were."""
        return 0 < SATURATED * self.ceiling <= self.value

    @property
    def bits(self) -> float:
        return self.value / math.log(2)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        words = f", saturated: at most {self.ceiling:.3f}" if self.saturated else ""
        return f"{self.value:.3f} ± {self.error:.3f} nats ({self.method}, {self.samples} samples{words})"


@dataclass(frozen=True)
class Permuted:
    """An estimate beside the same estimator on samples whose pairing was destroyed.

    p = (1 + #{shuffled ≥ value}) / (1 + number of shuffles): the chance of a value this large without dependence.
    """

    value: float
    shuffled: tuple[float, ...]

    @property
    def p(self) -> float:
        return (1 + sum(other >= self.value for other in self.shuffled)) / (1 + len(self.shuffled))

    @property
    def null(self) -> float:
        """What the estimator gives on average where there is nothing: its bias at independence."""
        return sum(self.shuffled) / len(self.shuffled)

    @property
    def excess(self) -> float:
        """value − null. At independence it is 0 on average; elsewhere the bias need not be that of independence."""
        return self.value - self.null


def permutation_test(
    estimator: Callable[[Tensor, Tensor], Estimate | float | Tensor],
    x: Tensor,
    y: Tensor,
    *,
    shuffles: int = 99,
    seed: int = 0,
) -> Permuted:
    """estimator(x, y) beside estimator(x, y∘π) for random permutations π of the samples.

    The smallest p that can come out is 1/(shuffles + 1). Samples must be independent of each other: tokens of one text
    are not. No error is needed here: `partial(ksg, splits=0)` is the faster estimator.

    >>> from functools import partial
    >>> from pdelab.metrics.information import ksg
    >>> x = torch.linspace(0, 1, 50, dtype=torch.float64).sin()
    >>> permutation_test(partial(ksg, splits=0), x, x.square() + 1, shuffles=19).p
    0.05
    """
    shuffles = whole("shuffles", shuffles)
    function("estimator", estimator)
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor) or not value.ndim or not len(value):
            raise ValueError(f"{name} must be a tensor of samples; not {described(value)}")
    if len(x) != len(y):
        raise ValueError(f"y must have as many samples as x, {len(x)}; not {len(y)}")
    generator = stream(seed, "permutation test")
    orders = (torch.randperm(len(y), generator=generator).to(y.device) for _ in range(shuffles))

    def value(y: Tensor) -> float:
        given = estimator(x, y)
        try:
            return float(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"estimator must give one number; not {described(given)}") from error

    found = Permuted(value(y), tuple(value(y[order]) for order in orders))
    if not all(map(math.isfinite, (found.value, *found.shuffled))):
        raise ValueError("estimator must give finite numbers; NaN and infinity cannot be compared")
    return found


def samples(x: Tensor, name: str = "x", at_least: int = 2) -> Tensor:
    """x as (sample, feature) in float32 at least; (n,) is one feature. ValueError if it is no such thing."""
    if not isinstance(x, Tensor) or x.ndim not in (1, 2):
        raise ValueError(
            f"{name} must be a tensor of samples, (sample, feature) or (sample,); not {described(x)}"
            + (" (`rows` makes samples of a field)" if isinstance(x, Tensor) and x.ndim == 3 else "")
        )
    if x.is_complex():
        raise ValueError(f"{name} must be real; it is {x.dtype}")
    x = precise(x if x.ndim == 2 else x.unsqueeze(-1))
    if len(x) < at_least or x.shape[1] < 1:
        raise ValueError(f"{name} must have at least {at_least} samples of one feature; not {tuple(x.shape)}")
    if not x.is_meta and not torch.isfinite(x).all():
        raise ValueError(f"{name} must be finite; it holds NaN or infinite values")
    return x


def sample_pair(x: Tensor, y: Tensor, at_least: int = 2) -> tuple[Tensor, Tensor]:
    """x and y as samples of one dtype, cut off from what they were computed from: estimates are plain numbers."""
    x, y = samples(x, "x", at_least), samples(y, "y", at_least)
    if len(x) != len(y):
        raise ValueError(f"y must have as many samples as x, {len(x)}; not {len(y)}")
    if x.device != y.device:
        raise ValueError(f"x and y must be on one device; not {x.device} and {y.device}")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.detach().to(dtype), y.detach().to(dtype)


def labels(y: Tensor | Sequence[int], number: int | None = None, name: str = "y") -> Tensor:
    """Any finite set of labels as 0, 1, 2, …, (n,); rows of a matrix are one label each."""
    if not isinstance(y, Tensor | Sequence) or isinstance(y, str):
        raise ValueError(f"{name} must be a tensor or a list of labels; not {type(y).__name__}")
    try:
        y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be labels that are numbers; not {y!r}") from error
    if y.ndim not in (1, 2) or not len(y):
        raise ValueError(f"{name} must be labels, (sample,), or rows of them; not of shape {tuple(y.shape)}")
    if number is not None and len(y) != number:
        raise ValueError(f"{name} must have one label for each of the {number} samples; not {len(y)}")
    if y.is_floating_point() and not torch.isfinite(y).all():
        raise ValueError(f"{name} must be finite; it holds NaN or infinite values")
    return torch.unique(y, dim=0, return_inverse=True)[1]


def rows(u: Field, mask: Mask | None = None, of: str = "mean") -> Tensor:
    """Samples (n, feature) of a field (batch, token, feature), whose padding is left out.

    mean: the mean over the real tokens, one sample a sequence (what a pooled readout sees).
    tokens: every real token a sample; those of one sequence are not independent.
    whole: the state of a sequence in full, (batch, token · feature); padding is 0.
    """
    choose("of", of, ROWS)
    u = clean(u, mask)
    if of == "mean":
        return token_mean(u, mask).squeeze(1)
    if of == "tokens":
        return u.flatten(0, 1) if mask is None else u[mask]
    return u.flatten(1)
