"""Words: what is counted and cut, and a corpus whose information is known by heart."""

import math

import pytest
import torch

from pdelab.datasets import texts
from pdelab.datasets.base import majority


def table(share):
    """p(w | c) word by word, from the rule as it is told: (topic, word)."""
    p = torch.full((20, 300), (1 - share) / 300, dtype=torch.float64)
    for topic in range(20):
        p[topic, 10 * topic : 10 * topic + 10] += share / 10
    return p


@pytest.mark.parametrize("share", [0.01, texts.SHARE, 0.5, 0.99])
def test_the_information_of_a_word_is_the_sum_over_the_joint_table(share):
    given = table(share)
    joint, word = given / 20, given.mean(dim=0)
    information = (joint * (given / word).log()).sum().item()
    assert texts.topics_information(share) == pytest.approx(information, rel=1e-12)


def test_sampled_words_carry_the_information_of_the_formula():
    examples = texts.topics(train=1, test=4000, seed=5).test
    given = table(texts.SHARE)
    told = (given / given.mean(dim=0)).log()[examples.y.unsqueeze(1), (examples.x - 1).clamp(min=0)][examples.mask]
    error = told.std() / math.sqrt(len(told))
    assert error < 0.005
    assert abs(told.mean() - texts.topics_information()) < 4 * error


def test_a_share_beyond_0_and_1_is_refused():
    with pytest.raises(ValueError, match=r"share.*not 1.5"):
        texts.topics_information(1.5)


def test_counting_the_words_of_each_block_is_the_rule_of_bayes():
    data = texts.topics(train=1, test=500, seed=1)
    likelihood = table(texts.SHARE).log()[:, (data.test.x - 1).clamp(min=0)]  # (topic, example, token)
    score = (likelihood * data.test.mask).sum(dim=-1)
    best = score >= score.max(dim=0).values - 1e-9
    point = best[data.test.y, torch.arange(500)] / best.sum(dim=0)
    assert texts.topics_bayes(data) == pytest.approx(point.double().mean().item())


def test_the_topics_can_nearly_always_be_found_and_never_guessed():
    data = texts.topics()
    assert 0.9 < texts.topics_bayes(data) < 0.97
    assert majority(data) < 0.08
    assert (data.length, data.symbols, data.classes) == (64, 301, 20)


def test_documents_have_16_to_64_words_and_all_words_occur():
    data = texts.topics()
    length = data.train.mask.sum(dim=1)
    assert (length.min().item(), length.max().item()) == (16, 64)
    assert data.train.x.unique().tolist() == list(range(301))
    assert not torch.equal(data.train.x[:2000], data.test.x)
    assert not torch.equal(texts.topics(seed=1).test.x, data.test.x)


@pytest.mark.parametrize("options", [{"train": 0}, {"test": -1}, {"train": 2.5}])
def test_impossible_counts_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        texts.load("synthetic-topics", **options)


def test_the_rule_is_known_for_the_synthetic_topics_only():
    data = texts.topics(train=1, test=1)
    object.__setattr__(data, "name", "newsgroups")
    with pytest.raises(ValueError, match=r"synthetic-topics.*not newsgroups"):
        texts.topics_bayes(data)


def test_the_vocabulary_is_ordered_by_frequency_then_alphabet():
    words = [["b", "a", "c"], ["b", "d", "b"]]
    assert texts.vocabulary(words, 3) == {"b": 2, "a": 3, "c": 4}
    assert texts.vocabulary(words, 100) == {"b": 2, "a": 3, "c": 4, "d": 5}


def test_a_text_is_cut_padded_and_never_empty():
    x, mask = texts.encode([["b", "a", "b", "b"], [], ["zebra"]], {"b": 2, "a": 3}, length=3)
    assert x.tolist() == [[2, 3, 2], [1, 0, 0], [1, 0, 0]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [True, False, False]]


@pytest.mark.parametrize("options", [{"length": 0}, {"words": 0}])
def test_newsgroups_of_no_length_or_no_words_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        texts.load("newsgroups", **options)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"newsgroups, synthetic-topics; not 'topics'"):
        texts.load("topics")
