"""Examples: rows that belong together, padding trimmed, batches that follow from the seed."""

import pytest
import torch

from pdelab.datasets.base import Dataset, Examples, majority, shuffled_batches

X = torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 0]])
Y = torch.tensor([0, 1, 1])


def test_taking_some_trims_the_padding_that_none_of_them_needs():
    some = Examples(X, Y, X > 0).take(torch.tensor([1, 0]))
    assert some.x.tolist() == [[3, 0], [1, 2]]
    assert some.y.tolist() == [1, 0]
    assert some.mask.tolist() == [[True, False], [True, True]]
    answers = Examples(X, X, X > 0).take(slice(0, 2))
    assert answers.y.shape == (2, 2)


def test_without_a_mask_every_token_is_real():
    some = Examples(X, Y).take(slice(1, 3))
    assert some.mask is None
    assert some.x.shape == (2, 4)


def test_batches_in_order_cover_everything_once():
    parts = list(Examples(X, Y, X > 0).batches(2))
    assert [len(part) for part in parts] == [2, 1]
    assert torch.cat([part.y for part in parts]).tolist() == Y.tolist()


@pytest.mark.parametrize(("y", "mask"), [(Y[:2], None), (Y, torch.ones(3, 2, dtype=torch.bool))])
def test_rows_that_do_not_belong_together_are_refused(y, mask):
    with pytest.raises(ValueError, match="one row per example"):
        Examples(X, y, mask)


@pytest.mark.parametrize(
    ("x", "y", "mask", "words"),
    [
        (X.numpy(), Y, None, "x must be a torch.Tensor"),
        (X, Y.float(), None, "y must be whole numbers"),
        (X, torch.ones(3, 2, 2, dtype=torch.long), None, "no one-hot"),
        (X, Y, (X > 0).float(), "mask must be bool"),
    ],
)
def test_what_is_no_example_is_refused_by_name(x, y, mask, words):
    with pytest.raises(ValueError, match=words):
        Examples(x, y, mask)


def test_examples_print_as_their_shapes():
    assert repr(Examples(X, Y, X > 0)) == "Examples(x (3, 4), y (3,), mask)"


def test_padding_before_a_sequence_is_refused():
    with pytest.raises(ValueError, match="padding is at the end"):
        Examples(X, Y, X.flip(1) > 0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="size of a batch must be at most the 3 examples"):
        shuffled_batches(Examples(X, Y), 4, 0, 0)


def test_examples_move_to_another_device():
    assert Examples(X, Y, X > 0).to("meta").mask.is_meta


def test_a_data_set_knows_its_length_and_the_answer_of_who_knows_nothing():
    data = Dataset("made", "synthetic", Examples(X, Y, X > 0), Examples(X[:2, :2], Y[:2]), classes=2, symbols=7)
    assert data.length == 4
    assert data.features is None
    assert majority(data) == 0.5


def test_the_source_of_a_data_set_is_one_of_those_we_name():
    with pytest.raises(ValueError, match="source must be one of"):
        Dataset("made", "the internet", Examples(X, Y), Examples(X, Y), classes=2)
