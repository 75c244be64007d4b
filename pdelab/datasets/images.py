"""Handwritten digits as sequences: an image is read pixel by pixel, row by row or patch by patch.

| name | tokens × features | train / test | source |
|---|---|---|---|
| digits-pixels, digits-rows | 64 × 1, 8 × 8 | 1,397 / 400 | scikit-learn's digits, built in |
| mnist-pixels, mnist-rows, mnist-patches | 784 × 1, 28 × 28, 49 × 16 | 60,000 / 10,000 | MNIST, public |

Grey values are divided by the largest one (16 or 255), then by one shift and one scale for all pixels brought to mean 0
and variance 1 over the training images; the test images get the same shift and scale.
"""

import gzip
import math
import zlib
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from pdelab.datasets.base import Dataset, Examples
from pdelab.datasets.cache import DataDamaged, fetch
from pdelab.field import described
from pdelab.options import choose, whole
from pdelab.seeds import stream

PATCH = 4  # the side of a patch of MNIST, in pixels
TEST_OF_EACH = 40  # of each of the ten digits of scikit-learn, the images kept for the test


def pixels(images: Tensor) -> Tensor:
    """(example, row, column) → (example, row·column, 1), row after row."""
    return images.flatten(1).unsqueeze(-1)


def rows(images: Tensor) -> Tensor:
    """(example, row, column): a row is a token, its pixels the features."""
    return images


def patches(images: Tensor, side: int = PATCH) -> Tensor:
    """(example, row, column) → (example, patch, side²): squares from left to right, top to bottom, each row by row."""
    if not isinstance(images, Tensor) or images.ndim != 3:
        raise ValueError(f"images must be a tensor (example, row, column); not {described(images)}")
    side = whole("side", side)
    n, height, width = images.shape
    if height % side or width % side:
        raise ValueError(f"side must divide the image, {height} × {width}; not {side}")
    squares = images.reshape(n, height // side, side, width // side, side).transpose(2, 3)
    return squares.reshape(n, -1, side * side)


_FORMS = {"pixels": pixels, "rows": rows, "patches": patches}
NAMES = ("digits-pixels", "digits-rows", "mnist-pixels", "mnist-rows", "mnist-patches")


def read_idx(path: Path, dimensions: int) -> Tensor:
    """A gzipped idx file of bytes: 0, 0, 8, the number of dimensions, each dimension in four bytes, the values."""
    try:
        content = gzip.decompress(Path(path).read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataDamaged(f"{path} is not a whole gzip file ({error})") from error
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise DataDamaged(f"{path} must begin with the bytes {magic.hex(' ')}; not {content[:4].hex(' ')}")
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DataDamaged(f"{path} must hold {shape} values after {start} bytes; it has {len(content)} bytes in all")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].reshape(shape)


def standardised(train: Tensor, test: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """(x/largest − μ)/σ with μ and σ of all training pixels; both exact, since the grey values are counted."""
    counts = train.flatten().to(torch.uint8).bincount(minlength=largest + 1).double()
    values = torch.arange(len(counts), dtype=torch.float64) / largest
    mean = (counts @ values) / counts.sum()
    deviation = ((counts @ (values - mean) ** 2) / counts.sum()).sqrt()
    table = ((values - mean) / deviation).float()  # grey value → number
    return table[train.int()], table[test.int()]


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """40 images of each digit, drawn once and for all, are the test."""
    bunch = load_digits()
    images, y = torch.from_numpy(bunch.images).to(torch.uint8), torch.from_numpy(bunch.target).long()
    order = torch.rand(len(y), generator=stream(0, "digits", "split"), dtype=torch.float64).argsort()
    held = torch.cat([order[y[order] == digit][:TEST_OF_EACH] for digit in range(10)])
    test = torch.zeros(len(y), dtype=torch.bool)
    test[held] = True
    return *standardised(images[~test], images[test], 16), y[~test], y[test]


def _mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = [], []
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        paths = [fetch(f"mnist/{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
        images.append(read_idx(paths[0], 3))
        labels.append(read_idx(paths[1], 1).long())
        if images[-1].shape != (count, 28, 28) or labels[-1].shape != (count,) or labels[-1].max() > 9:
            raise DataDamaged(f"{paths[0]} and {paths[1]} must hold {count} images of 28 × 28 with labels 0 to 9")
    return *standardised(*images, 255), *labels


def load(name: str, *, test: int | None = None) -> Dataset:
    """One of NAMES: continuous tokens, ten classes, no padding.

    test: keep so many of the test images, evenly spaced (MNIST's first 5,000 are the easier half); None: all.
    """
    choose("name", name, NAMES)
    origin, form = name.split("-")
    train, held, y_train, y_held = _digits() if origin == "digits" else _mnist()
    tokens = _FORMS[form]
    source = "built in" if origin == "digits" else "public"
    tested = Examples(tokens(held), y_held)
    if test is not None:
        test = whole("test", test, most=len(tested))
        tested = tested.take(torch.arange(test) * len(tested) // test)
    return Dataset(name, source, Examples(tokens(train), y_train), tested, classes=10)
