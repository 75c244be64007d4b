"""One function for all data: by name, and the name says where it comes from."""

import pytest
import torch

from pdelab import datasets
from pdelab.field import check_mask

BUILT_IN = ["digits-pixels", "digits-rows", "synthetic-topics", "synthetic-characters"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"digits-rows.*tinyshakespeare.*not 'cifar'"):
        datasets.load("cifar")


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_built_in_needs_no_network_and_is_always_the_same(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path))
    assert name in datasets.names()
    data, again = datasets.load(name), datasets.load(name)
    assert data.name == name
    assert data.source == ("synthetic" if name.startswith("synthetic") else "built in")
    for part in ("train", "test"):
        one, other = getattr(data, part), getattr(again, part)
        assert all(
            torch.equal(value, getattr(other, key))
            for key, value in vars(one).items()
            if isinstance(value, torch.Tensor)
        )
        assert one.y.min() >= 0
        assert one.y.max() < data.classes
        if data.symbols:
            assert one.x.min() >= 0
            assert one.x.max() < data.symbols
        if one.mask is not None:
            check_mask(one.mask, one.x.unsqueeze(-1).float())
            assert torch.equal(one.mask, one.x != 0)
    assert list(tmp_path.iterdir()) == []
