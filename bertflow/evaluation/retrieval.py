"""Retrieval: does a query find its one right text among all texts?

    hit@1   share of queries whose right text is most similar
    MRR     mean of 1 / rank of the right text

Ties are counted against the system: the rank of the right text is one more than the number of other texts that are at
least as similar, so that a collapsed encoder finds nothing. Beside them stand the median and the 95th percentile of the
cosine of random pairs of texts, which should lie near zero: they say whether a threshold means anything.

It guards against calibrators that help STS and harm search.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.evaluation.bootstrap import generator, pair_weights
from bertflow.evaluation.encoding import encode_sets
from bertflow.evaluation.figures import Figure
from bertflow.evaluation.leaks import SystemFacts
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import Material, make_rows
from bertflow.evaluation.significance import differences
from bertflow.similarity import SIMILARITIES, unit_rows

Float64 = NDArray[np.float64]
BLOCK = 256
"""Queries that are ranked at a time: 256 x 10,000 texts take 20 MB."""
RANDOM_PAIRS = 20_000
"""Random pairs of texts whose cosine is looked at."""


def evaluate_retrieval(
    systems: Mapping[str, SentenceEncoder],
    pairs: Pairs,
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Report:
    """Rank all texts for each query, by every system.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report.
        pairs: Queries, each with its one right text.
        similarity: A row of ``SIMILARITIES``.
        resamples: Bootstrap resamples of the queries, for the intervals; 0 for none.
        seed: Of the resamples and the random pairs.
        progress: Show a bar on stderr.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For embeddings that are not finite, or of length zero.
    """
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    [sides] = encode_sets(systems, [pairs], similarity, progress)
    by_system = [
        (right_ranks(queries, texts, similarity), random_cosines(texts, generator(seed, "random pairs")))
        for _, queries, texts in sides
    ]
    ranks, cosines = (np.stack(found) for found in zip(*by_system, strict=True))
    figures = [
        _mean_figure(pairs.task, "hit@1", (ranks == 1).astype(np.float64), resamples, seed),
        _mean_figure(pairs.task, "mrr", 1 / ranks, resamples, seed),
    ]
    for metric, values in (
        ("random_median_cosine", np.median(cosines, axis=1)),
        ("random_p95_cosine", np.quantile(cosines, 0.95, axis=1)),
    ):
        figures.append(
            Figure(pairs.task, "test", "all", "", metric, cosines.shape[1], values, np.empty((len(facts), 0)))
        )
    materials = {pairs.task: Material(pairs.sentences, "raw", pairs.source)}
    return Report(
        rows=tuple(make_rows(facts, figures, materials)),
        differences=tuple(differences(list(systems), figures)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric="hit@1",
    )


def right_ranks(
    queries: NDArray[np.floating], texts: NDArray[np.floating], similarity: str = "cosine"
) -> NDArray[np.intp]:
    """The rank of text i for query i, among all texts, from 1; ties against it. (n, dim), (n, dim) -> (n,)."""
    if similarity == "cosine":  # scaled once, not once a block
        queries, texts, similarity = unit_rows(queries), unit_rows(texts), "dot"
    matrix = SIMILARITIES[similarity].matrix
    ranks = np.empty(len(queries), dtype=np.intp)
    for start in range(0, len(queries), BLOCK):
        scores = matrix(queries[start : start + BLOCK], texts)
        right = np.diagonal(scores, offset=start)
        ranks[start : start + BLOCK] = (scores >= right[:, None]).sum(1)
    return ranks


def random_cosines(x: NDArray[np.floating], rng: np.random.Generator) -> Float64:
    """Cosines of random pairs of different rows."""
    first = rng.integers(0, len(x), RANDOM_PAIRS)
    second = (first + rng.integers(1, len(x), RANDOM_PAIRS)) % len(x)
    return SIMILARITIES["cosine"].paired(x[first], x[second])


def _mean_figure(task: str, metric: str, by_query: Float64, resamples: int, seed: int) -> Figure:
    """The mean of a number (k, n) over the queries."""
    n = by_query.shape[1]
    everything = (np.arange(n, dtype=np.intp),)
    means = [rows @ by_query.T / n for rows in pair_weights(everything, resamples, generator(seed, task))]
    replicates = np.concatenate([np.empty((0, len(by_query))), *means]).T
    values = by_query.mean(1)
    return Figure(task, "test", "all", "", metric, n, values, replicates, influence=by_query - values[:, None])
