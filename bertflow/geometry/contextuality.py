"""How contextual are the vectors of a layer? Three measures, each beside its baseline in the same layer.

    self-similarity    mean cosine of the occurrences of one word in different sentences
    intra-sentence     mean cosine of a sentence's words with their mean
    MEV                share of a word's squared singular values in the first one: could one static vector do?
    baseline           the mean cosine of different words; for MEV, of as many occurrences of random words

In an anisotropic layer all vectors are alike, so a high self-similarity says little by itself: what counts is by how
much it exceeds the baseline. A word is a token, special ones left out; vectors are not centered, as in the source. The
source's baseline of MEV is that of one large sample; here random groups have the size of the word's own, since fewer
vectors always share more.

Source: Ethayarajh 2019, arXiv:1909.00512, sections 3.3 and 3.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.geometry.cloud import Float64
from bertflow.geometry.token_states import TokenStates

FEWEST = 5
"""Sentences that a word must stand in."""
MOST_WORDS = 500
"""Words that self-similarity and MEV look at."""
MOST_OCCURRENCES = 50
"""Occurrences of a word that are looked at."""
BASELINE = 1000
"""Different words that the baseline looks at, one occurrence of each."""


@dataclass(frozen=True)
class LayerGeometry:
    """One layer; cosines in [-1, 1], shares in [0, 1].

    Attributes:
        layer: 0 is the embedding layer.
        baseline: Mean cosine of different words in different sentences: the anisotropy of the layer.
        self_similarity: Mean over words.
        intra_sentence: Mean over sentences.
        mev: Mean over words.
        mev_baseline: Mean over groups of random words of the same sizes.
        words: How many words self-similarity and MEV looked at.
        sentences: How many sentences there are.
    """

    layer: int
    baseline: float
    self_similarity: float
    intra_sentence: float
    mev: float
    mev_baseline: float
    words: int
    sentences: int


def contextuality(states: TokenStates, seed: int = 0) -> tuple[LayerGeometry, ...]:
    """Every layer.

    Raises:
        DataError: If no word stands in ``FEWEST`` sentences.
    """
    rng = np.random.default_rng(seed)
    words = _occurrences(states, rng)
    if not words:
        raise DataError(f"No word stands in {FEWEST} of the sentences, so none can be compared with itself. Give more.")
    different = _one_of_each(states.tokens, rng)[:BASELINE]
    random = [rng.choice(len(states.tokens), size=len(rows), replace=False) for rows in words]
    spans = _spans(states.sentences)
    found = []
    for layer, vectors in enumerate(states.layers):
        x = np.asarray(vectors, dtype=np.float64)
        units = x / np.linalg.norm(x, axis=1, keepdims=True)
        found.append(
            LayerGeometry(
                layer=layer,
                baseline=_mean_cosine(units[different]),
                self_similarity=float(np.mean([_mean_cosine(units[rows]) for rows in words])),
                intra_sentence=float(np.mean([_to_the_mean(x[span], units[span]) for span in spans])),
                mev=float(np.mean([explained_by_first(x[rows]) for rows in words])),
                mev_baseline=float(np.mean([explained_by_first(x[rows]) for rows in random])),
                words=len(words),
                sentences=len(spans),
            )
        )
    return tuple(found)


def explained_by_first(x: Float64) -> float:
    """MEV: the largest squared singular value of rows (m, dim) over the sum of all."""
    squares = np.linalg.eigvalsh(x @ x.T)
    return float(squares[-1] / squares.sum())


def _mean_cosine(units: Float64) -> float:
    n = len(units)
    return float((np.square(units.sum(0)).sum() - n) / (n * (n - 1)))


def _to_the_mean(x: Float64, units: Float64) -> float:
    mean = x.mean(0)
    return float((units @ mean / np.linalg.norm(mean)).mean())


def _occurrences(states: TokenStates, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """For each of some words its places, one in each of several sentences."""
    # The first place of every word in every sentence.
    first = np.unique(np.stack([states.tokens, states.sentences]), axis=1, return_index=True)[1]
    tokens = states.tokens[first]
    groups = np.split(first, np.flatnonzero(np.diff(tokens)) + 1)
    often = [rows for rows in groups if len(rows) >= FEWEST]
    chosen = rng.permutation(len(often))[:MOST_WORDS]
    return [rng.permutation(often[word])[:MOST_OCCURRENCES] for word in np.sort(chosen)]


def _one_of_each(tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random place of each different word, in random order."""
    order = rng.permutation(len(tokens))
    return rng.permutation(order[np.unique(tokens[order], return_index=True)[1]])


def _spans(sentences: NDArray[np.int64]) -> Sequence[slice]:
    """The tokens of each sentence of at least two."""
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    ends = [*starts[1:], len(sentences)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True) if end - start > 1]
