"""Figures of pairs that are not graded: retrieval, candidate lists, binary labels.

    retrieval    hit@1, MRR      each query has one right text among all texts; and cosines of random pairs of texts
    candidates   MAP, MRR        each query has texts of its own, some right and some wrong
    binary       ROC AUC         the share of (positive, negative) couples in the right order, ties counting half

MRR is the mean over queries of 1 / rank of the first right text, MAP that of the average precision: the mean precision
at the ranks of the right texts. Ties are counted against the system: among equal scores the wrong texts come first, so
that a collapsed encoder finds nothing. Retrieval guards against calibrators that help STS and harm search; the cosines
of random pairs should lie near zero: they say whether a threshold means anything. An AUC of 0.5 is chance; it is the
paper's measure for QNLI.

Queries whose candidates are all right or all wrong say nothing of a ranking, and are left out and counted: the "clean"
convention of TREC-QA. A candidate that stands in its list twice counts twice, as there; how many do is said.

Source of candidate lists: Wang, Smith & Mitamura 2007, D07-1003, for the data and both measures; Rao, He & Lin 2016,
doi:10.1145/2983323.2983872, section 4.1, for "clean" against "raw", which differ by several points.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.array_types import Bools, Float64, Floats, Int64, Intp
from bertflow.correlation import MidRanks, Resamples, Weights
from bertflow.data.pairs import Pairs
from bertflow.errors import DataError, logger
from bertflow.evaluation.sides import Sides
from bertflow.evaluation.significance import Figure, generator, pair_weights, resampled
from bertflow.similarity import SIMILARITIES, unit_cosines, unit_rows

BLOCK = 256
"""Queries that are ranked at a time: 256 x 10,000 texts take 20 MB."""
RANDOM_PAIRS = 20_000
"""Random pairs of texts whose cosine is looked at."""


def retrieval_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """hit@1, the share of queries whose right text is most similar; MRR, the mean of 1 / its rank; random cosines."""
    by_system = [
        (right_ranks(queries, texts, similarity), random_pair_cosines(texts, generator(seed, "random pairs")))
        for _, queries, texts in sides
    ]
    ranks, cosines = map(np.stack, zip(*by_system, strict=True))
    ranked = {"hit@1": (ranks == 1).astype(np.float64), "mrr": 1 / ranks}
    random = zip(("random_median_cosine", "random_p95_cosine"), np.quantile(cosines, (0.5, 0.95), 1), strict=True)
    n, nothing = cosines.shape[1], cosines[:, :0]
    return [
        *(mean_figure(pairs.task, metric, by_query, resamples, seed) for metric, by_query in ranked.items()),
        *(Figure(pairs.task, "test", "all", "", metric, n, values, nothing) for metric, values in random),
    ]


def binary_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """The area under the ROC curve, with its resamples."""
    scores = np.stack([SIMILARITIES[similarity].paired(first, second) for _, first, second in sides])
    positive = pairs.target == 1
    ranks = list(map(MidRanks, scores))
    weights = pair_weights([*map(np.flatnonzero, (positive, ~positive))], resamples, generator(seed, pairs.task))
    values, replicates = resampled(
        lambda rows: np.stack([weighted_auc(row, positive, rows) for row in ranks]), np.ones((1, len(pairs))), weights
    )
    influence = np.stack([placements(row, positive) for row in scores])
    return [Figure(pairs.task, "own", "all", "", f"{similarity}_auc", len(positive), values, replicates, influence)]


def right_ranks(queries: Floats, texts: Floats, similarity: str = "cosine") -> Intp:
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


def random_pair_cosines(x: Floats, rng: np.random.Generator, pairs: int = RANDOM_PAIRS) -> Float64:
    """Cosines of random pairs of different rows (pairs,)."""
    first = rng.integers(0, len(x), pairs)
    rows, unit = np.stack([first, first + rng.integers(1, len(x), pairs)]) % len(x), unit_rows(x)
    return np.concatenate([unit_cosines(*unit[part]) for part in np.array_split(rows, 1 + pairs // BLOCK, 1)])


def mean_figure(task: str, metric: str, by_query: Float64, resamples: int, seed: int) -> Figure:
    """The mean of a number (k, n) over the queries."""
    n, values = by_query.shape[1], by_query.mean(1)
    weights = pair_weights([np.arange(n, dtype=np.intp)], resamples, generator(seed, task))
    replicates = resampled(lambda rows: by_query @ rows.T / n, np.ones((1, n)), weights)[1]
    return Figure(task, "test", "all", "", metric, n, values, replicates, influence=by_query - values[:, None])


def weighted_auc(ranks: MidRanks, positive: Bools, weights: Weights) -> Float64:
    """The area for each row of ``weights`` (rows, n), in [0, 1]; scikit-learn's takes one row at a time."""
    right, total = weights[:, positive], weights.sum(1)
    above = right.sum(1)
    # A score is 2 rank / total - 1. The mean rank of the positives, less their mean rank among themselves, counts the
    # negatives below them.
    mean_score = np.vecdot(right, ranks.under(Resamples(weights))[:, positive]) / above
    return ((mean_score + 1) * total - above) / 2 / (total - above)


def placements(scores: Float64, positive: Bools) -> Float64:
    """What each pair adds to the area (n,): its share of couples in the right order, less the mean, over its kind's n.

    Source: DeLong et al. 1988, "Comparing the areas under two or more correlated ROC curves", section 3.
    """
    all_ranks, result = rankdata(scores), np.empty(len(scores))
    for kind in (positive, ~positive):
        others = len(scores) - kind.sum()
        lower = (all_ranks[kind] - rankdata(scores[kind])) / others  # share of the other kind that lies below
        share = lower if kind is positive else 1 - lower
        result[kind] = (share - share.mean()) / kind.sum()
    return result


def candidate_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """MAP and MRR of k systems, with their resamples of queries.

    Raises:
        DataError: If no query has both a right and a wrong candidate.
    """
    lists = lists_of(pairs)
    labeled = set(zip(pairs.first, pairs.second, pairs.target.tolist(), strict=True))
    distinct = {candidate[:2] for candidate in labeled}
    if twice := len(pairs) - len(distinct):
        logger.warning(
            "%s: %d candidates are in their list more than once and count each time; %d have both labels.",
            *(pairs.task, twice, len(labeled) - len(distinct)),
        )
    scores = [SIMILARITIES[similarity].paired(first, second) for _, first, second in sides]
    ranks = [[right_places(row[at], pairs.target[at]) for at in lists] for row in scores]
    by_query = {
        "map": np.array([[average_precision(places) for places in row] for row in ranks]),
        "mrr": np.array([[1 / places[0] for places in row] for row in ranks]),
    }
    return [mean_figure(pairs.task, metric, values, resamples, seed) for metric, values in by_query.items()]


def lists_of(pairs: Pairs) -> list[Intp]:
    """The pairs of each query that has a right and a wrong candidate, in the order of the file."""
    queries: dict[str, list[int]] = {}
    for at, query in enumerate(pairs.first):
        queries.setdefault(query, []).append(at)
    lists = [np.array(rows) for rows in queries.values()]
    kept = [at for at in lists if len(set(pairs.target[at].tolist())) == 2]
    if not kept:
        raise DataError(
            f"{pairs.task} should hold queries with right and with wrong texts, but none of its {len(lists)} has both. "
            "Give a row for each candidate, with label 1 or 0."
        )
    if left := len(lists) - len(kept):
        logger.info("%s: %d of %d queries are left out: no right or no wrong candidate.", pairs.task, left, len(lists))
    return kept


def right_places(scores: Floats, labels: NDArray[np.integer]) -> Int64:
    """Ranks of the right candidates of one list, from 1 and rising; among equal scores the wrong ones come first."""
    return 1 + np.flatnonzero(labels[np.lexsort((labels, -scores))])


def average_precision(ranks: Int64) -> float:
    """Mean precision at the ranks of the right answers, which rise."""
    return sum(place / rank for place, rank in enumerate(ranks.tolist(), start=1)) / len(ranks)


UNGRADED: Mapping[str, Callable[[Pairs, Sides, str, int, int], list[Figure]]] = {
    "retrieval": retrieval_figures,
    "candidates": candidate_figures,
    "binary": binary_figures,
}
"""Kind of pairs -> what is measured on it."""
