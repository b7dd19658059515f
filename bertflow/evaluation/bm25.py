"""BM25: words in common, rare ones more. It needs no encoder, and is the plain row beside those that do.

Source: Robertson & Zaragoza 2009, equation 3.15, with log(1 + (n - found + 0.5) / (found + 0.5)) for a word, which is
never negative.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from bertflow.array_types import Float64, Int64
from bertflow.data.corpus import Answer
from bertflow.data.pairs import Pairs
from bertflow.similarity import TIE
from bertflow.written import SEARCHED

BM25 = "bm25"
"""What its row is called."""
K1, B = 1.2, 0.75
"""How fast more of a word counts less, and how much of the length of a text is taken into account."""


def bm25_ranks(answers: Iterable[Answer], right: Mapping[str, frozenset[str]]) -> list[Int64]:
    """Ranks of the right answers of each question, rising, from 1; of equal scores wrong ones first.

    An answer is as good as the best of its text and its past questions.

    Args:
        answers: All of them.
        right: The ids of the right answers of each question.
    """
    known = list(answers)
    at, starts = {one.id: row for row, one in enumerate(known)}, [0, *accumulate(len(one.phrases) for one in known)]
    ranks = []
    phrases = [phrase for one in known for phrase in one.phrases]
    for names, row in zip(right.values(), bm25_scores(phrases, [*right]), strict=True):
        best = np.maximum.reduceat(row, starts[:-1])
        mine = [at[name] for name in names]
        own = np.sort(best[mine])[::-1]
        best[mine] = -np.inf
        ranks.append((best >= own[:, None] - TIE).sum(1) + np.arange(1, len(mine) + 1))
    return ranks


def bm25_ranks_of_pairs(pairs: Pairs) -> Int64:
    """Ranks (n,) of the one right text of each query among all texts."""
    right = {query: frozenset({str(at)}) for at, query in enumerate(pairs.first)}
    return np.concatenate(bm25_ranks((Answer(str(at), text) for at, text in enumerate(pairs.second)), right))


def bm25_values(pairs: Pairs) -> dict[str, float]:
    """hit@1 and MRR of queries, each with its one right text among all texts."""
    ranks = bm25_ranks_of_pairs(pairs)
    return {"hit@1": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


def bm25_scores(texts: Sequence[str], questions: Sequence[str]) -> Iterable[Float64]:
    """For each question the scores (n,) of all texts."""
    words = CountVectorizer(token_pattern=SEARCHED).fit([*texts, "_"])  # it refuses texts without a word
    counts = words.transform(texts).astype(np.float64).tocoo()
    found, lengths = np.bincount(counts.col, minlength=counts.shape[1]), np.asarray(counts.sum(1))[:, 0]
    idf = np.log(1 + (len(texts) - found + 0.5) / (found + 0.5))
    saturated = counts.data + K1 * (1 - B + B * lengths / (lengths.mean() or 1))[counts.row]
    counts.data = idf[counts.col] * counts.data * (K1 + 1) / saturated
    weights = counts.tocsc()
    for row in words.transform(questions):
        yield np.asarray((weights @ row.T).todense(), dtype=np.float64)[:, 0]
