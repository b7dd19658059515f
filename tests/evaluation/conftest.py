"""Toy systems and pairs, small enough to be scored again by a plain loop."""

import numpy as np
import pytest

from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.text_keys import hash_texts

WORDS = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "sings"]


class ToyEncoder(AbstractEncoder):
    """Sums of random word vectors; remembers what it was asked to embed."""

    def __init__(self, dim=6, seed=0, name="toy", hashes=(), labels=()):
        rng = np.random.default_rng(seed)
        self.dim, self.name, self.seed, self.labels, self.asked = dim, name, seed, list(labels), []
        self.vectors = {word: rng.normal(size=dim) for word in WORDS}
        self.hashes = None if hashes is None else np.array(hashes, dtype=np.uint64)

    def _encode(self, sentences, *_):
        self.asked += sentences
        rows = [sum((self.vectors[word] for word in text.split()), np.zeros(self.dim)) for text in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def describe(self):
        return {"encoder": self.name, "pooling": "mean", "max_length": 128, "seed": self.seed, "labels": self.labels}

    def fitted_hashes(self):
        return self.hashes


def toy_pairs(task="toy", sizes=(20, 15, 25), seed=0, split="test"):
    """Random pairs of the words above with random scores of few levels, so that there are ties."""
    rng = np.random.default_rng([seed, len(task), ord(task[-1])])
    n = sum(sizes)
    sides = [tuple(" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in range(n)) for _ in range(2)]
    subsets = tuple(f"part{at}" for at, size in enumerate(sizes) for _ in range(size))
    gold = rng.integers(0, 11, n) / 2
    return Pairs(task, *sides, gold, split=split, subsets=subsets if len(sizes) > 1 else (), source=f"{task}.tsv")


@pytest.fixture
def pairs():
    return toy_pairs()


@pytest.fixture
def sts7():
    """The seven tasks in small: each with sub-sets, except the last two."""
    sizes = dict.fromkeys(("sts12", "sts13", "sts14", "sts15", "sts16"), (12, 9))
    return [toy_pairs(task, part) for task, part in {**sizes, "stsb": (20,), "sickr": (25,)}.items()]


@pytest.fixture
def seen_half(pairs):
    """Hashes of every second distinct sentence of the pairs, and their share by key."""
    distinct = sorted({*pairs.first, *pairs.second})
    return hash_texts(distinct[::2]), len(distinct[::2]) / len(distinct)
