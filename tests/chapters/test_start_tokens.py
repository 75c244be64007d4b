import pytest
import torch

from pdebook.chapters.first_look import start_tokens


@pytest.mark.claim("P1-eq6/7")
@pytest.mark.parametrize("norm_first", [True, False])
def test_states_at_start_and_end_tokens_of_a_trained_encoder(norm_first, evidence):
    """Zero ends mean length 0 from the embedding to the last layer; tokens like the others mean about 1."""
    model, accuracy = start_tokens.train(norm_first, seed=0)
    assert accuracy > 0.9, "an encoder that learned nothing says nothing"
    ratios = start_tokens.end_lengths(model)
    evidence("printed", holds=max(ratios) < 0.05, fails=min(ratios) > 0.5)


def test_an_encoder_with_zero_ends_is_seen_as_such():
    """The measurement can come out the other way: with zero end embeddings the first ratio is 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = start_tokens.Encoder(norm_first=True)
    with torch.no_grad():
        model.tokens.weight[[start_tokens.START, start_tokens.END]] = -model.places.weight[[0, -1]]
    assert start_tokens.end_lengths(model)[0] == pytest.approx(0, abs=1e-6)


def test_the_sentences_have_their_ends_and_true_answers():
    symbols, answers = start_tokens.sentences(50, torch.Generator().manual_seed(1))
    assert symbols.shape == (50, start_tokens.LENGTH + 2)
    assert (symbols[:, 0] == start_tokens.START).all()
    assert (symbols[:, -1] == start_tokens.END).all()
    for row, answer in zip(symbols.tolist(), answers.tolist(), strict=True):
        assert (row.count(0) > row.count(1)) == bool(answer)
