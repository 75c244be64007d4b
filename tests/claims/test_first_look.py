"""What P1 states of the two ends of a sequence.  (P1 eq 6 and 7)"""

import pytest
import torch

from pdebook.chapters.first_look import measure


@pytest.mark.claim("P1-eq6/7")
@pytest.mark.parametrize("boundary", ["reflecting", "periodic"])
def test_ends_that_let_nothing_out_mix_tokens_and_keep_their_mean(boundary, evidence):
    u0 = measure.random_tokens(seed=3)
    run = measure.evolve(u0, boundary)
    kept = torch.allclose(run.final.mean(dim=1), u0.mean(dim=1), rtol=1e-12)
    mixed = (run.final.std(dim=1) / u0.std(dim=1)).max().item()
    evidence("repair", holds=kept and mixed < 0.5, fails=not kept)


@pytest.mark.claim("P1-eq6/7")
@pytest.mark.parametrize("norm_first", [True, False])
def test_states_at_start_and_end_tokens_of_a_trained_encoder(norm_first, evidence):
    """Zero ends mean length 0 from the embedding to the last layer; tokens like the others mean about 1."""
    model, accuracy = measure.train(norm_first, seed=0)
    assert accuracy > 0.9, "an encoder that learned nothing says nothing"
    ratios = measure.end_lengths(model)
    evidence("printed", holds=max(ratios) < 0.05, fails=min(ratios) > 0.5)
