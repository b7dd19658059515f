"""BM25; the second voice is a loop over the formula."""

import math
import re

import numpy as np

from bertflow.data.corpus import Answer
from bertflow.evaluation.bm25 import bm25_ranks

ANSWERS = [
    Answer("a", "the dog runs in the garden"),
    Answer("b", "the cat sleeps", ("Where is the dog?", "Where is the cat of the house?")),
    Answer("c", "a bird"),
    Answer("d", "???"),
]
TEXTS = {"a": ANSWERS[0].phrases, "b": ANSWERS[1].phrases, "c": ANSWERS[2].phrases, "d": ANSWERS[3].phrases}


def words(text):
    return re.findall(r"\w+", text.lower())


def score(question, text, every):
    mean, counts = np.mean([len(words(one)) for one in every]), words(text)
    total = 0.0
    for word in words(question):
        found = sum(word in words(one) for one in every)
        count = counts.count(word)
        if count:
            idf = math.log(1 + (len(every) - found + 0.5) / (found + 0.5))
            total += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(counts) / mean))
    return total


def test_ranks_are_those_of_a_loop():
    right = {"Where does the dog run, dog?": frozenset("a"), "the cat": frozenset("ab"), "garden": frozenset("a")}
    every = [phrase for phrases in TEXTS.values() for phrase in phrases]
    for (question, names), found in zip(right.items(), bm25_ranks(ANSWERS, right), strict=True):
        best = {name: max(score(question, text, every) for text in texts) for name, texts in TEXTS.items()}
        wrong = [best[name] for name in best if name not in names]
        own = sorted((best[name] for name in names), reverse=True)
        assert found.tolist() == [sum(one >= mine - 1e-12 for one in wrong) + k for k, mine in enumerate(own, start=1)]


def test_a_question_without_known_words_comes_last():
    (ranks,) = bm25_ranks(ANSWERS, {"zebra": frozenset("c")})
    assert ranks.tolist() == [4]


def test_texts_without_words_rank_nothing():
    (ranks,) = bm25_ranks([Answer("a", "!"), Answer("b", "?")], {"zebra": frozenset("a")})
    assert ranks.tolist() == [2]
