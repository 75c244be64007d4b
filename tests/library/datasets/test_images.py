"""Images as sequences: the same numbers in another order, and files that are what they say."""

import gzip
import struct

import pytest
import torch
from sklearn.datasets import load_digits

from pdelab.datasets import images
from pdelab.datasets.base import majority
from pdelab.datasets.cache import DataDamaged


def idx(shape, values, kind=8):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(values)


def packed(content: bytes) -> bytes:
    """Compressed without the time of day: it would be part of a test's name."""
    return gzip.compress(content, mtime=0)


def test_an_idx_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx((2, 3, 2), range(244, 256))))
    assert images.read_idx(path, 3).tolist() == torch.arange(244, 256).reshape(2, 3, 2).tolist()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (packed(idx((2, 2), range(4))), "must begin with"),
        (packed(idx((2, 2, 1), range(4), kind=9)), "must begin with"),
        (packed(idx((2, 2, 1), range(3))), "in all"),
        (packed(idx((2, 2, 1), range(5))), "in all"),
        (packed(idx((2, 2, 1), range(4))[:10]), "in all"),
        (packed(b""), "must begin with"),
        (packed(idx((2, 2, 1), range(4)))[:-9], "gzip"),
        (packed(idx((2, 2, 1), range(4)))[:-8] + bytes(8), "gzip"),
        (b"not compressed", "gzip"),
        (b"", "must begin with"),
    ],
)
def test_an_idx_file_that_is_not_whole_is_refused_by_name(tmp_path, content, fault):
    path = tmp_path / "bad-idx.gz"
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match=fault) as error:
        images.read_idx(path, 3)
    assert str(path) in str(error.value)


def test_a_patch_is_a_block_of_the_image():
    image = torch.arange(3 * 12 * 8).reshape(3, 12, 8)
    patches = images.patches(image)
    assert patches.shape == (3, 6, 16)
    for i in range(3):
        for j in range(2):
            block = image[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
            assert torch.equal(patches[:, 2 * i + j].reshape(3, 4, 4), block)


def test_patches_must_fill_the_image():
    with pytest.raises(ValueError, match=r"side.*8 × 10.*not 4"):
        images.patches(torch.zeros(1, 8, 10))


def test_training_pixels_have_mean_0_and_variance_1_and_the_test_follows_them():
    train, test = torch.tensor([[[0, 4], [8, 16]]]), torch.tensor([[[2, 0], [16, 12]]])
    scaled, followed = images.standardised(train, test, 16)
    mean, deviation = (train / 16).mean(), (train / 16).std(correction=0)
    torch.testing.assert_close(scaled, (train / 16 - mean) / deviation)
    torch.testing.assert_close(followed, (test / 16 - mean) / deviation)


def test_every_digit_is_used_once_and_forty_of_each_class_are_the_test():
    data = images.load("digits-rows")
    assert (len(data.train), len(data.test)) == (1397, 400)
    assert data.test.y.bincount().tolist() == [40] * 10
    assert majority(data) == pytest.approx(0.1)
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    bunch = load_digits()
    levels = x.unique()  # 17 grey values in increasing order
    found = sorted(zip(torch.searchsorted(levels, x).flatten(1).tolist(), y.tolist(), strict=True))
    assert found == sorted(zip(bunch.data.astype(int).tolist(), bunch.target.tolist(), strict=True))
    torch.testing.assert_close(data.train.x.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.x.std(), torch.tensor(1.0), atol=1e-4, rtol=0)


def test_digits_hold_the_same_numbers_by_pixels_and_by_rows():
    by_rows, by_pixels = images.load("digits-rows"), images.load("digits-pixels")
    assert by_pixels.test.x.shape == (400, 64, 1)
    assert torch.equal(by_pixels.test.x.reshape(400, 8, 8), by_rows.test.x)
    assert torch.equal(by_pixels.train.x.reshape(-1, 8, 8), by_rows.train.x)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """Files of MNIST's size with other content: cheap, and no image is like the next."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        number = torch.arange(count).reshape(-1, 1, 1)
        values = (number + 7 * torch.arange(28).reshape(28, 1) + torch.arange(28)).to(torch.uint8)
        for kind, shape, content in (("images-idx3", (count, 28, 28), values), ("labels-idx1", (count,), number % 10)):
            data = idx(shape, content.to(torch.uint8).numpy().tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(data, 1))
    return folder


def test_mnist_holds_the_same_numbers_by_pixels_rows_and_patches(mnist, monkeypatch):
    monkeypatch.setattr(images, "fetch", lambda path: mnist / path.removeprefix("mnist/"))
    rows = images.load("mnist-rows")
    assert (rows.source, rows.classes, rows.length, rows.features) == ("public", 10, 28, 28)
    assert (len(rows.train), len(rows.test)) == (60_000, 10_000)
    assert rows.test.y[:12].tolist() == [*range(10), 0, 1]
    pixels = images.load("mnist-pixels").test
    assert torch.equal(pixels.x.reshape(-1, 28, 28), rows.test.x)
    patches = images.load("mnist-patches").test
    assert patches.x.shape == (10_000, 49, 16)
    squares = torch.nn.functional.unfold(rows.test.x[:50].unsqueeze(1), 4, stride=4).transpose(1, 2)
    assert torch.equal(patches.x[:50], squares)
    assert torch.equal(patches.y, rows.test.y)


def test_a_share_of_the_test_images_is_spread_over_all_of_them():
    every, some = images.load("digits-rows"), images.load("digits-rows", test=100)
    assert torch.equal(some.test.x, every.test.x[::4])
    assert torch.equal(some.test.y, every.test.y[::4])
    assert torch.equal(some.train.x, every.train.x)
    uneven = images.load("digits-rows", test=150).test.x
    assert torch.equal(uneven[[0, 1, 2, -1]], every.test.x[[0, 2, 5, 397]])
    for number in (0, 401, 2.5):
        with pytest.raises(ValueError, match=f"test must be a whole number from 1 to 400; not {number}"):
            images.load("digits-rows", test=number)


def test_mnist_of_another_size_is_refused(mnist, monkeypatch):
    """Test images in place of the training images."""
    monkeypatch.setattr(
        images, "fetch", lambda path: mnist / path.removeprefix("mnist/").replace("train-images", "t10k-images")
    )
    with pytest.raises(DataDamaged, match="60000 images"):
        images.load("mnist-rows")


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"mnist-patches.*not 'digits-patches'"):
        images.load("digits-patches")
