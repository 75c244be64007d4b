import pytest
import torch

from pdebook.chapters.first_look import measure
from pdelab.seeds import seeded


def test_an_encoder_with_zero_ends_is_seen_as_such():
    """The measurement can come out the other way: with zero end embeddings the first ratio is 0."""
    model = seeded(lambda: measure.Encoder(norm_first=True), 0)
    assert measure.end_lengths(model)[0] > 0.5
    measure.set_ends_to_zero(model)
    assert measure.end_lengths(model)[0] == pytest.approx(0, abs=1e-6)


def test_the_sentences_have_their_ends_and_true_answers():
    symbols, answers = measure.sentences(50, torch.Generator().manual_seed(1))
    assert symbols.shape == (50, measure.LENGTH + 2)
    assert (symbols[:, 0] == measure.START).all()
    assert (symbols[:, -1] == measure.END).all()
    for row, answer in zip(symbols.tolist(), answers.tolist(), strict=True):
        assert (row.count(0) > row.count(1)) == bool(answer)
