"""Running text: the next symbol, and a source whose entropy is known."""

import math

import pytest
import torch

from pdelab.datasets import characters
from pdelab.seeds import stream


def entropy_rate():
    """h = −Σ_ab π(ab) Σ_c P(c | ab) ln P(c | ab), in nats: what is unknown of a symbol if all before it is known."""
    return (characters.stationary().flatten() @ torch.special.entr(characters.chain()[1]).sum(dim=1)).item()


def test_the_rule_gives_each_pair_four_followers_with_probabilities_that_sum_to_1():
    P = characters.transition()
    assert P.shape == (729, 27)
    torch.testing.assert_close(P.sum(dim=1), torch.ones(729, dtype=torch.float64))
    assert ((P > 0).sum(dim=1) == 4).all()


def test_the_long_run_distribution_is_the_only_eigenvector_at_1():
    P = characters.transition()
    step = torch.zeros(27, 27, 27, 27, dtype=torch.float64)  # (a, b) → (b, c)
    for b in range(27):
        step[:, b, b, :] = P.reshape(27, 27, 27)[:, b]
    values, vectors = torch.linalg.eig(step.reshape(729, 729).T)
    at_one = (values - 1).abs() < 1e-9
    assert at_one.sum() == 1
    vector = vectors[:, at_one].squeeze(1).real
    torch.testing.assert_close(characters.stationary().flatten(), vector / vector.sum(), atol=1e-10, rtol=0)
    assert values.abs().sort(descending=True).values[1] < 0.99  # and every start leads there soon


def test_the_entropy_rate_follows_from_the_entropies_of_blocks():
    """H(c | ab) = H(abc) − H(ab), summed over all 27³ blocks."""
    pi = characters.stationary()
    abc = (pi.unsqueeze(-1) * characters.transition().reshape(27, 27, 27)).flatten()
    entropies = [-(p[p > 0] * p[p > 0].log()).sum().item() for p in (abc, pi.flatten())]
    assert entropy_rate() == pytest.approx(entropies[0] - entropies[1])
    assert 0 < entropy_rate() < math.log(4)


def test_sampled_text_is_as_surprising_as_the_entropy_rate_says():
    text = characters.sample(2000, 64, stream(3, "test"))
    surprise = -characters.transition()[text[:, :-2] * 27 + text[:, 1:-1], text[:, 2:]].log()
    assert surprise.isfinite().all()  # nothing that the rule forbids
    window = surprise.mean(dim=1)  # windows are independent, symbols of one are not
    error = window.std() / math.sqrt(len(window))
    assert error < 0.005
    assert abs(window.mean() - entropy_rate()) < 4 * error


def test_a_window_starts_anywhere_in_the_endless_text():
    """Symbols are as frequent at a window's start as at its end, and as the stationary distribution says."""
    count = 20_000
    text = characters.sample(count, 10, stream(4, "test"))
    expected = characters.stationary().sum(dim=1)
    for place in (0, 1, 9):
        found = text[:, place].bincount(minlength=27)
        chi2 = ((found - count * expected) ** 2 / (count * expected)).sum()
        assert chi2 < 26 + 5 * math.sqrt(52)


def test_the_answer_is_the_next_symbol():
    data = characters.load("synthetic-characters", train=5, test=3, length=7)
    assert data.train.x.shape == data.train.y.shape == (5, 7)
    assert torch.equal(data.train.x[:, 1:], data.train.y[:, :-1])
    assert (data.classes, data.symbols) == (27, 27)
    assert not torch.equal(data.train.x[:3], data.test.x)


def test_windows_of_one_symbol_are_possible():
    data = characters.load("synthetic-characters", train=4, test=1, length=1)
    assert data.train.x.shape == data.train.y.shape == (4, 1)


@pytest.fixture
def play(tmp_path, monkeypatch):
    text = "".join(chr(ord("a") + i * i % 23) for i in range(1000))
    (tmp_path / "input.txt").write_text(text)
    monkeypatch.setattr(characters, "fetch", lambda path: tmp_path / "input.txt")
    return text


def test_windows_lie_side_by_side_and_the_last_tenth_is_the_test(play):
    data = characters.load("tinyshakespeare", length=16)
    alphabet = sorted(set(play))
    assert data.symbols == data.classes == len(alphabet)
    for examples, text in ((data.train, play[:900]), (data.test, play[900:])):
        read = ["".join(alphabet[i] for i in part.flatten().tolist()) for part in (examples.x, examples.y)]
        assert read == [text[: len(read[0])], text[1 : len(read[0]) + 1]]
        assert len(text) - len(read[0]) <= 16


def test_windows_longer_than_the_test_text_are_refused(play):
    with pytest.raises(ValueError, match=r"length must be below the 100 .* not 100"):
        characters.load("tinyshakespeare", length=100)


@pytest.mark.parametrize("options", [{"train": 0}, {"test": 0}, {"length": 0}, {"length": 1.5}])
def test_impossible_counts_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        characters.load("synthetic-characters", **options)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"tinyshakespeare; not 'shakespeare'"):
        characters.load("shakespeare")
