"""Words: what is counted and cut, and a corpus whose information is known by heart."""

import io
import math
import tarfile

import pytest
import torch
from sklearn.datasets import _twenty_newsgroups as sklearn_newsgroups
from sklearn.datasets import fetch_20newsgroups, load_files

from pdelab.datasets import texts
from pdelab.datasets.base import majority
from pdelab.datasets.cache import DataDamaged


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


HEAD = "From: someone@nasa.gov\nSubject: orbit\n\n"
POSTS = {  # the files of the archive, in another order than that of their names
    "20news-bydate-test/rec.autos/104": HEAD + "> the quoted moon\nthe wheel",
    "20news-bydate-train/sci.space/11": HEAD + "The orbit, the moon!",
    "20news-bydate-train/sci.space/2": HEAD,
    "20news-bydate-train/rec.autos/103": HEAD + "the car\r\nJohn wrote:\n| all this\ncaf\xe9\n\n-- \nJohn\n",
    "20news-bydate-test/sci.space/9": "no header at all",
}


def packed(path, posts):
    """An archive with the layout of the published one: folders and, in them, posts in latin1."""
    with tarfile.open(path, "w:gz") as archive:
        for folder in dict.fromkeys(name.rsplit("/", depth)[0] for depth in (2, 1) for name in posts):
            member = tarfile.TarInfo(folder)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        for name, text in posts.items():
            content = text.encode("latin1")
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def archive(tmp_path, monkeypatch):
    path = packed(tmp_path / "20news-bydate.tar.gz", POSTS)
    monkeypatch.setattr(texts, "fetch", lambda name: path)
    return path


def test_the_archive_holds_what_scikit_learn_finds_in_its_folders(archive, tmp_path):
    with tarfile.open(archive) as packed_posts:
        packed_posts.extractall(tmp_path, filter="data")
    for part, posts in texts.read_posts(archive).items():
        bunch = load_files(tmp_path / f"20news-bydate-{part}", encoding="latin1")
        found = zip(bunch.data, (bunch.target_names[i] for i in bunch.target), strict=True)
        assert sorted(posts) == sorted(found)


def through_scikit_learn(archive, folder, monkeypatch):
    """The posts as scikit-learn's own loader gives them, from this archive in place of a download."""

    def copied(metadata, dirname, **options):
        copy = folder / "copy.tar.gz"
        copy.write_bytes(archive.read_bytes())
        return copy

    monkeypatch.setattr(sklearn_newsgroups, "_fetch_remote", copied)
    options = {"remove": ("headers", "footers", "quotes"), "data_home": folder}
    return {part: fetch_20newsgroups(subset=part, **options) for part in ("train", "test")}


def test_newsgroups_are_the_posts_of_scikit_learn_s_loader_without_headers_footers_and_quotes(
    archive, tmp_path, monkeypatch
):
    data = texts.load("newsgroups", length=5, words=100)
    for part, bunch in through_scikit_learn(archive, tmp_path, monkeypatch).items():
        own = texts.read_posts(archive)[part]
        named = [(text, bunch.target_names[i]) for text, i in zip(bunch.data, bunch.target, strict=True)]
        assert sorted((texts.body(text), group) for text, group in own) == sorted(named)
        assert sorted(getattr(data, part).y.tolist()) == sorted(bunch.target.tolist())


def test_newsgroups_are_coded_in_an_order_that_depends_on_their_texts_alone(archive):
    data = texts.load("newsgroups", length=3, words=2)
    assert (data.source, data.classes, data.symbols) == ("public", 20, 4)
    # the vocabulary is "the" and, first by the alphabet of those seen once, "caf"
    train = zip(data.train.x.tolist(), data.train.y.tolist(), data.train.mask.sum(dim=1).tolist(), strict=True)
    assert {tuple(x): (y, length) for x, y, length in train} == {
        (2, 1, 2): (1, 3),
        (2, 1, 3): (0, 3),
        (1, 0, 0): (1, 1),
    }
    packed(archive, dict(sorted(POSTS.items())))
    again = texts.load("newsgroups", length=3, words=2)
    for part in ("train", "test"):
        one, other = getattr(data, part), getattr(again, part)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


SIGNED = [
    "",
    "no empty line",
    "a: b\n\nwords\n\n\n",
    "a: b\n\n\nwords",
    "a: b\n\n---\nwords",
    "a: b\n\nwords\n--\nme\n",
    "a: b\n\nwords\n\nmore\n - \nme",
    "a: b\n\nIn article <1> he writes:\n> so\n|or\nand I said: no\nyes\n",
    "a: b\n\n \n\n",
]


@pytest.mark.parametrize("post", SIGNED)
def test_a_body_is_what_scikit_learn_leaves_of_a_post(post):
    text = sklearn_newsgroups.strip_newsgroup_header(post)
    text = sklearn_newsgroups.strip_newsgroup_footer(text)
    assert texts.body(post) == sklearn_newsgroups.strip_newsgroup_quoting(text)


@pytest.mark.parametrize("keep", [0, 20, 200])
def test_an_archive_that_is_not_whole_is_refused_by_name(archive, keep):
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataDamaged, match=r"is not a whole tar\.gz file") as error:
        texts.read_posts(archive)
    assert str(archive) in str(error.value)


def test_an_archive_of_something_else_is_refused(archive):
    packed(archive, {"20news-bydate-train/sci.space/11": HEAD, "notes/a/b": "x", "20news-bydate-test/readme": "x"})
    with pytest.raises(DataDamaged, match="it has 1 for train, 0 for test"):
        texts.read_posts(archive)
