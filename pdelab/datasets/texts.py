"""Texts with one of 20 topics each: real posts, and a corpus whose information about its topics is known.

newsgroups (public): the 20 Newsgroups by date, without headers, signatures and quoted lines, which would give the group
away by names and addresses; 11,314 posts to train on and 7,532 later ones as test.

synthetic-topics (made by a rule): a document has 16 to 64 words. Each word is, with probability a, one of the ten words
of its topic, else any of all W = 300 words:

    p(w | c) = a/b · [w in the block of c] + (1 − a)/W,      b = 10 words a block.

Symbol 0 is padding; in the newsgroups 1 stands for every word that is not in the vocabulary.
"""

import hashlib
import math
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from pdelab.datasets.base import Dataset, Examples
from pdelab.datasets.cache import DataDamaged, fetch
from pdelab.options import choose, instance, number, whole
from pdelab.seeds import stream

NAMES = ("newsgroups", "synthetic-topics")
PADDING, UNKNOWN = 0, 1

TOPICS = 20
BLOCK = 10  # b, words of a topic's own
SHARED = 100  # words that are no topic's own
WORDS = TOPICS * BLOCK + SHARED  # W
SHARE = 0.2  # a, at which the best rule finds about 95 % of the topics
SHORTEST, LONGEST = 16, 64


def tokenise(text: str) -> list[str]:
    """Runs of letters and digits in lower case.

    >>> tokenise("Re: it's NASA's 2nd.")
    ['re', 'it', 's', 'nasa', 's', '2nd']
    """
    return re.findall(r"[a-z0-9]+", instance("text", text, str).lower())


def vocabulary(texts: Iterable[list[str]], words: int) -> dict[str, int]:
    """The most frequent words, numbered from 2 in order of frequency; among equals the alphabet decides."""
    words = whole("words", words)
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    return {word: number for number, word in enumerate(ranked, start=2)}


def encode(texts: list[list[str]], numbers: dict[str, int], length: int) -> tuple[Tensor, Tensor]:
    """x and mask, (example, token): the first `length` words of each text, padded at the end.

    A text without a word becomes one unknown word, so that every sequence has a real token.
    """
    length = whole("length", length)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, list) for text in texts):
        raise ValueError(f"texts must be at least one list of words; not {texts!r:.80}")
    coded = [[numbers.get(word, UNKNOWN) for word in text[:length]] or [UNKNOWN] for text in texts]
    longest = max(map(len, coded))
    x = torch.tensor([code + [PADDING] * (longest - len(code)) for code in coded])
    return x, x != PADDING


def read_posts(path: Path) -> dict[str, list[tuple[str, str]]]:
    """{"train": [(text, group), …], "test": …} of a tar file with a post in each 20news-bydate-PART/GROUP/NUMBER.

    Nothing is unpacked. The posts are bytes without a stated encoding; latin1 reads any.
    """
    posts: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                place = PurePosixPath(member.name).parts[-3:]
                part = place[0].removeprefix("20news-bydate-")
                if member.isfile() and len(place) == 3 and part in posts:
                    posts[part].append((archive.extractfile(member).read().decode("latin1"), place[1]))
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataDamaged(f"{path} is not a whole tar.gz file ({error})") from error
    if not all(posts.values()):
        counts = ", ".join(f"{len(some)} for {part}" for part, some in posts.items())
        raise DataDamaged(f"{path} must hold posts in 20news-bydate-train and 20news-bydate-test; it has {counts}")
    return posts


# lines that quote another post, or introduce a quotation
_QUOTED = re.compile(r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>")


def body(post: str) -> str:
    """The post without its header, its signature and what it quotes, as far as lines tell.

    The header ends at the first empty line. The signature is what follows the last line of nothing but hyphens or
    spaces; a post without such a line is kept whole.
    """
    text = instance("post", post, str).partition("\n\n")[2]
    lines = text.strip().split("\n")
    signature = max((i for i, line in enumerate(lines) if not line.strip().strip("-")), default=0)
    kept = lines[:signature] if signature else text.split("\n")
    return "\n".join(line for line in kept if not _QUOTED.search(line))


def newsgroups(length: int = 256, words: int = 10_000) -> Dataset:
    """The first `length` words of each post; the vocabulary is the `words` most frequent ones of the training posts.

    Posts stand in the order of the sha256 of their bodies: mixed, and the same in whatever order the file has them.
    """
    whole("length", length)
    whole("words", words)
    posts = read_posts(fetch("newsgroups/20news-bydate.tar.gz"))
    groups = sorted({group for some in posts.values() for _, group in some})
    parts, answers = [], []
    for part in ("train", "test"):
        pairs = [(body(text), groups.index(group)) for text, group in posts[part]]
        pairs.sort(key=lambda pair: (hashlib.sha256(pair[0].encode()).digest(), pair[1]))
        parts.append([tokenise(text) for text, _ in pairs])
        answers.append(torch.tensor([group for _, group in pairs]))

    numbers = vocabulary(parts[0], words)
    examples = []
    for texts, y in zip(parts, answers, strict=True):
        x, mask = encode(texts, numbers, length)
        examples.append(Examples(x, y, mask))
    return Dataset("newsgroups", "public", *examples, classes=TOPICS, symbols=len(numbers) + 2)


def topics_information(share: float = SHARE) -> float:
    """I(word; topic) in nats, what one word tells about the topic on average.

    With p_own = a/b + (1 − a)/W for a word of the document's topic, p_other = (1 − a)/W for one of another topic, and
    p_mean = a/(Kb) + (1 − a)/W for one of some topic when the document's, one of K, is not known:

        I = b p_own ln(p_own/p_mean) + (K − 1) b p_other ln(p_other/p_mean);   shared words tell nothing.

    >>> topics_information(share=0.0), topics_information(share=1.0) == math.log(20)
    (0.0, True)
    """
    number("share", share, 0, 1)
    own, other = share / BLOCK + (1 - share) / WORDS, (1 - share) / WORDS
    mean = share / (TOPICS * BLOCK) + (1 - share) / WORDS
    told = BLOCK * own * math.log(own / mean)
    return told + (TOPICS - 1) * BLOCK * other * math.log(other / mean) if other else told


def _topics(count: int, generator: torch.Generator) -> Examples:
    def below(n: int, *shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) * n).long()

    y = below(TOPICS, count)
    length = SHORTEST + below(LONGEST - SHORTEST + 1, count)
    shape = (count, LONGEST)
    own = torch.rand(*shape, generator=generator, dtype=torch.float64) < SHARE
    word = torch.where(own, y.unsqueeze(1) * BLOCK + below(BLOCK, *shape), below(WORDS, *shape))
    mask = torch.arange(LONGEST) < length.unsqueeze(1)
    return Examples(torch.where(mask, word + 1, PADDING), y, mask)


def topics(train: int = 8_000, test: int = 2_000, seed: int = 0) -> Dataset:
    """Synthetic documents; word w is the symbol w + 1, and the block of topic c the words 10c to 10c + 9."""
    whole("train", train)
    whole("test", test)
    parts = (_topics(n, stream(seed, "synthetic-topics", part)) for part, n in (("train", train), ("test", test)))
    return Dataset("synthetic-topics", "synthetic", *parts, classes=TOPICS, symbols=WORDS + 1)


def topics_bayes(data: Dataset) -> float:
    """Test accuracy of the best possible rule on synthetic-topics, which no model can beat but by luck.

    ln p(words | c) = n_c ln(p_own/p_other) + const with n_c the words from the block of c, and all topics are equally
    likely beforehand: the rule names the topic with the most words. Topics that tie share the point.
    """
    if instance("data", data, Dataset).name != "synthetic-topics":
        raise ValueError(f"data must be synthetic-topics, whose rule is known; not {data.name}")
    x, y = data.test.x, data.test.y
    block = torch.where((x != PADDING) & (x <= TOPICS * BLOCK), (x - 1) // BLOCK, TOPICS)  # TOPICS: no block
    counts = x.new_zeros(len(x), TOPICS + 1).scatter_add(1, block, torch.ones_like(x))[:, :TOPICS]
    best = counts == counts.max(dim=1, keepdim=True).values
    return (best.gather(1, y.unsqueeze(1)).squeeze(1) / best.sum(dim=1)).double().mean().item()


def load(name: str, **options: int) -> Dataset:
    """newsgroups (length=256, words=10_000) or synthetic-topics (train=8_000, test=2_000, seed=0)."""
    choose("name", name, NAMES)
    return newsgroups(**options) if name == "newsgroups" else topics(**options)
