"""Candidate lists: each query has texts of its own, some right and some wrong, which a system ranks.

    MAP   mean over queries of average precision: the mean precision at the ranks of the right texts
    MRR   mean over queries of 1 / rank of the first right text

Queries without a right or without a wrong candidate say nothing of a ranking, and are left out and counted: the "clean"
convention of TREC-QA. Ties are counted against the system: among equal scores the wrong texts come first. A candidate
that stands in its list twice counts twice, as there; how many do is said.

Source: Wang, Smith & Mitamura 2007, D07-1003, for the data and both measures; Rao, He & Lin 2016,
doi:10.1145/2983323.2983872, section 4.1, for "clean" against "raw", which differ by several points.
"""

import logging

import numpy as np
from numpy.typing import NDArray

from bertflow.data.pairs import Pairs
from bertflow.errors import DataError
from bertflow.evaluation.figures import Sides, mean_figure
from bertflow.evaluation.significance import Figure
from bertflow.similarity import SIMILARITIES

logger = logging.getLogger("bertflow")


def candidate_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """MAP and MRR of k systems, with their resamples of queries.

    Raises:
        DataError: If no query has both a right and a wrong candidate.
    """
    lists = lists_of(pairs)
    labelled = set(zip(pairs.first, pairs.second, pairs.target.tolist(), strict=True))
    distinct = {candidate[:2] for candidate in labelled}
    if twice := len(pairs) - len(distinct):
        logger.warning(
            "%s: %d candidates stand in their list more than once, and count each time; %d have both labels.",
            *(pairs.task, twice, len(labelled) - len(distinct)),
        )
    scores = [SIMILARITIES[similarity].paired(first, second) for _, first, second in sides]
    ranks = [[right_places(row[at], pairs.target[at]) for at in lists] for row in scores]
    by_query = {
        "map": np.array([[average_precision(places) for places in row] for row in ranks]),
        "mrr": np.array([[1 / places[0] for places in row] for row in ranks]),
    }
    return [mean_figure(pairs.task, metric, values, resamples, seed) for metric, values in by_query.items()]


def lists_of(pairs: Pairs) -> list[NDArray[np.intp]]:
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
        logger.info("%s: %d of %d queries lack a right or a wrong candidate; left out.", pairs.task, left, len(lists))
    return kept


def right_places(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Ranks of the right candidates of one list, from 1 and rising; among equal scores the wrong ones come first."""
    return 1 + np.flatnonzero(labels[np.lexsort((labels, -scores))])


def average_precision(ranks: NDArray[np.int64]) -> float:
    """Mean precision at the ranks of the right answers, which rise."""
    return sum(place / rank for place, rank in enumerate(ranks.tolist(), start=1)) / len(ranks)
