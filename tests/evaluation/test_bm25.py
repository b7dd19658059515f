"""BM25; the second voice is a loop over the formula."""

import math
import re

import numpy as np

from bertflow.data.corpus import Answer
from bertflow.evaluation.bm25 import bm25_ranks
from bertflow.written import SEARCHED

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


def test_scripts_without_spaces_are_searched_by_every_two_letters():
    texts = ["今天天气很好。", "我的电脑坏了", "电脑 X1 很贵", "水"]
    answers = [Answer(str(at), text) for at, text in enumerate(texts)]
    right = {"明天天气": frozenset("0"), "电脑坏": frozenset("1"), "X1": frozenset("2"), "水?": frozenset("3")}
    assert [ranks.tolist() for ranks in bm25_ranks(answers, right)] == [[1]] * 4
    assert re.findall(SEARCHED, "今天天气 X1, 水") == ["今天", "天天", "天气", "X1", "水"]
    english = "Don't stop_it: the 2nd naïve café's 3.5 K"
    assert re.findall(SEARCHED, english) == re.findall(r"\w+", english)
