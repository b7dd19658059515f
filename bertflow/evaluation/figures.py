"""Figures of tasks and suites; of STS under every aggregation and both correlations.

    all      one correlation over all pairs of the task
    mean     the mean of the correlations of the sub-sets
    wmean    the same, each sub-set weighted by its number of pairs

The aggregation moves STS numbers by twenty points. Each one is a weighted sum of correlations over disjoint groups of
pairs, and so is a sub-set's own score; for ``all`` there is one group. A task is therefore one or two partitions into
groups, and a ``Meter`` reads all scores of a partition under any weights on its pairs: all weights one for the score
itself, how often each pair was drawn for a bootstrap replicate, one pair left out for the jackknife.

Retrieval, which guards against calibrators that help STS and harm search, has means over queries. Ties are counted
against the system: the rank of the right text is one more than the number of other texts that are at least as similar,
so that a collapsed encoder finds nothing. The cosines of random pairs of texts should lie near zero: they say whether a
threshold means anything. Binary pairs have the area under the ROC curve: the share of (positive, negative) couples that
are in the right order, ties counting half. 0.5 is chance. It is the paper's measure for QNLI.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.correlation import CORRELATIONS, MidRanks, Resamples, Weights, jackknife, weighted_correlations
from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import TASKS
from bertflow.evaluation.significance import (
    Figure,
    Members,
    generator,
    pair_weights,
    sentence_numbers,
    sentence_weights,
)
from bertflow.similarity import SIMILARITIES, unit_cosines, unit_rows

Float64 = NDArray[np.float64]
Sides = Iterable[tuple[str, NDArray[np.float32], NDArray[np.float32]]]
"""For each system its name, and the embeddings of the first and of the second texts."""
BLOCK = 256
"""Queries that are ranked at a time: 256 x 10,000 texts take 20 MB."""
RANDOM_PAIRS = 20_000
"""Random pairs of texts whose cosine is looked at."""
SUBSET = "subset"
"""Takes the place of an aggregation for the score of one sub-set."""


@dataclass(frozen=True)
class Aggregation:
    """One row of the table.

    Attributes:
        weights: Sizes of the groups -> their weights, which sum to one.
        meaning: What the caption of a table says.
    """

    weights: Callable[[NDArray[np.intp]], Float64]
    meaning: str


AGGREGATIONS: Mapping[str, Aggregation] = {
    "all": Aggregation(lambda sizes: np.ones(1), "one correlation over all pairs of a task"),
    "mean": Aggregation(lambda sizes: np.full(len(sizes), 1 / len(sizes)), "mean over the sub-sets of a task"),
    "wmean": Aggregation(
        lambda sizes: sizes / sizes.sum(), "mean over the sub-sets of a task, weighted by their pairs"
    ),
}


@dataclass(frozen=True)
class Reading:
    """One score of a partition: its aggregation, its sub-set if it is one, pairs, and the weight of each group."""

    aggregation: str
    subset: str
    n: int
    weights: Float64


@dataclass(frozen=True)
class Partition:
    """Disjoint groups of pairs, and the scores that are read off them."""

    groups: tuple[Members, ...]
    readings: tuple[Reading, ...]


def partitions(subsets: Sequence[str], named: bool = True, together: bool = True) -> list[Partition]:
    """The partitions of a task: all pairs together, then its sub-sets.

    Args:
        subsets: The sub-set of each pair.
        named: Whether these names are the task's sub-sets; where they are not, only ``all`` can be read.
        together: Whether all pairs can be ranked together; where sub-sets have different scales they cannot.
    """
    members = members_of(subsets)
    by_subset = [name for name in AGGREGATIONS if name != "all"]
    n = len(subsets)
    # With a single sub-set all aggregations are one number.
    names = ["all", *by_subset] if named and len(members) == 1 else ["all"]
    whole = Partition((np.arange(n, dtype=np.intp),), tuple(Reading(name, "", n, np.ones(1)) for name in names))
    if not named or len(members) == 1:
        return [whole]
    sizes = np.array([len(group) for group in members.values()], dtype=np.intp)
    readings = [Reading(name, "", n, AGGREGATIONS[name].weights(sizes)) for name in by_subset]
    units = zip(members, sizes, np.eye(len(sizes)), strict=True)
    readings += [Reading(SUBSET, name, int(size), unit) for name, size, unit in units]
    split = Partition(tuple(members.values()), tuple(readings))
    return [whole, split] if together else [split]


def members_of(subsets: Sequence[str]) -> dict[str, Members]:
    """Which pairs belong to each sub-set, in the order in which the sub-sets first appear."""
    names = np.array(subsets)
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(subsets)}


@dataclass(frozen=True)
class ScoredTask:
    """A task, and how similar each of k systems finds its pairs.

    Attributes:
        pairs: The task's pairs, n of them.
        similarity: A row of ``SIMILARITIES``.
        similarities: (k, n).
    """

    pairs: Pairs
    similarity: str
    similarities: Float64

    def partitions(self) -> list[Partition]:
        """The ways in which its pairs are grouped."""
        row = TASKS.get(self.pairs.task)
        # The hub's copies of STS12-16 are one set each: their sub-sets are not named.
        named = row is None or len(row.pairs) == 1 or len(set(self.pairs.subsets)) > 1
        return partitions(self.pairs.subsets, named, together=row is None or row.aggregation == "all")


class Meter:
    """One correlation on one partition of a task: everything that is read off it, for all systems.

    Args:
        name: A row of ``CORRELATIONS``.
        task: The task with the k systems' similarities.
        partition: Its groups and readings.
    """

    def __init__(self, name: str, task: ScoredTask, partition: Partition) -> None:
        scores = CORRELATIONS[name]
        self.name, self.task, self.partition = name, task, partition
        self._mix = np.stack([reading.weights for reading in partition.readings])
        self._scores = [
            (members, scores(task.pairs.target[members]), [scores(one[members]) for one in task.similarities])
            for members in partition.groups
        ]

    def under(self, weights: Weights) -> Float64:
        """Values (readings, k, rows) for each row of ``weights`` (rows, n)."""
        by_group = np.empty((len(self._scores), len(self.task.similarities), len(weights)))
        for group, (members, gold, systems) in enumerate(self._scores):
            taken = weights if len(self._scores) == 1 else weights.take(members, axis=1)  # one group holds all pairs
            by_group[group] = weighted_correlations(gold, systems, taken)
        return np.einsum("ag,gkr->akr", self._mix, by_group)

    def influence(self) -> Float64:
        """What each pair adds to each value (readings, k, n), from the exact jackknife of its group."""
        gold, similarities = self.task.pairs.target, self.task.similarities
        result = np.zeros((len(self._mix), *similarities.shape))
        for group, members in enumerate(self.partition.groups):
            for system, scores in enumerate(similarities):
                without = jackknife(self.name, gold[members], scores[members])
                added = (without.mean() - without) * (len(members) - 1) / len(members)
                result[:, system, members] = self._mix[:, [group]] * added
        return result


def _resampled(under: Callable[[Any], Float64], ones: Any, weights: Iterable[Any]) -> tuple[Float64, Float64]:
    """What ``under`` gives for weights of one, and its replicates, along the last axis, for those of each resample."""
    values = under(ones)
    return values[..., 0], np.concatenate([values[..., :0], *map(under, weights)], axis=-1)


def _readings(meters: Sequence[Meter], weights: Weights) -> Float64:
    return np.stack([meter.under(weights) for meter in meters])


def task_figures(task: ScoredTask, resamples: int, seed: int) -> list[Figure]:
    """Every aggregation and every sub-set of one task, under both correlations.

    Resamples are drawn within the groups of each partition; the seed is used together with the task's name.
    """
    figures, pairs = [], task.pairs
    for partition in task.partitions():
        meters = [Meter(name, task, partition) for name in CORRELATIONS]
        weights = pair_weights(partition.groups, resamples, generator(seed, pairs.task))
        values, replicates = _resampled(partial(_readings, meters), np.ones((1, len(pairs))), weights)
        for at, meter in enumerate(meters):
            influence = meter.influence() if resamples else np.zeros((len(values[at]), *task.similarities.shape))
            metric = f"{task.similarity}_{meter.name}"
            for reading, value, drawn, added in zip(
                partition.readings, values[at], replicates[at], influence, strict=True
            ):
                how = (pairs.task, pairs.split, reading.aggregation, reading.subset, metric, reading.n)
                ranked_together = meter.name == "spearman" and reading.aggregation == "all"
                between = np.corrcoef(rankdata(task.similarities, axis=1)) if ranked_together else None
                measured = (value, drawn, added, None if between is None else np.atleast_2d(between))
                figures.append(Figure(*how, *measured))
    return figures


def suite_figures(suite: str, tasks: Sequence[ScoredTask], resamples: int, seed: int) -> list[Figure]:
    """The mean over tasks, for each aggregation that all of them have, under both correlations.

    The tasks are resampled together, by sentence: they share text, so their errors are not independent.
    """
    meters = [[Meter(name, task, part) for part in task.partitions() for name in CORRELATIONS] for task in tasks]
    sides = [(task.pairs.first, task.pairs.second) for task in tasks]
    weights = sentence_weights(sentence_numbers(sides), resamples, generator(seed, suite))
    ones = [np.ones((1, len(task.pairs))) for task in tasks]
    values, replicates = _resampled(lambda rows: np.stack([*_means(meters, rows).values()]), ones, weights)
    n, split = sum(len(task.pairs) for task in tasks), "+".join(dict.fromkeys(task.pairs.split for task in tasks))
    return [
        Figure(suite, split, aggregation, "", f"{tasks[0].similarity}_{name}", n, values[at], replicates[at])
        for at, (aggregation, name) in enumerate(_means(meters, ones))
    ]


def _means(meters: Sequence[Sequence[Meter]], weights: Sequence[Weights]) -> dict[tuple[str, str], Float64]:
    """Means over tasks (k, rows) by (aggregation, correlation), of the aggregations that every task has."""
    tasks = [
        {
            (reading.aggregation, meter.name): values
            for meter in task
            for reading, values in zip(meter.partition.readings, meter.under(rows), strict=True)
            if reading.aggregation in AGGREGATIONS
        }
        for task, rows in zip(meters, weights, strict=True)
    ]
    shared = [key for key in tasks[0] if all(key in task for task in tasks)]
    return {key: np.mean([task[key] for task in tasks], axis=0) for key in shared}


def retrieval_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """hit@1, the share of queries whose right text is most similar; MRR, the mean of 1 / its rank; random cosines."""
    by_system = [
        (right_ranks(queries, texts, similarity), random_pair_cosines(texts, generator(seed, "random pairs")))
        for _, queries, texts in sides
    ]
    ranks, cosines = (np.stack(found) for found in zip(*by_system, strict=True))
    ranked = {"hit@1": (ranks == 1).astype(np.float64), "mrr": 1 / ranks}
    random = {
        "random_median_cosine": np.median(cosines, axis=1),
        "random_p95_cosine": np.quantile(cosines, 0.95, axis=1),
    }
    n, nothing = cosines.shape[1], np.empty((len(cosines), 0))
    return [
        *(mean_figure(pairs.task, metric, by_query, resamples, seed) for metric, by_query in ranked.items()),
        *(Figure(pairs.task, "test", "all", "", metric, n, values, nothing) for metric, values in random.items()),
    ]


def binary_figures(pairs: Pairs, sides: Sides, similarity: str, resamples: int, seed: int) -> list[Figure]:
    """The area under the ROC curve, with its resamples."""
    scores = np.stack([SIMILARITIES[similarity].paired(first, second) for _, first, second in sides])
    positive = pairs.target == 1
    ranks = [MidRanks(row) for row in scores]
    weights = pair_weights(
        [np.flatnonzero(positive), np.flatnonzero(~positive)], resamples, generator(seed, pairs.task)
    )
    values, replicates = _resampled(
        lambda rows: np.stack([weighted_auc(row, positive, rows) for row in ranks]), np.ones((1, len(pairs))), weights
    )
    influence = np.stack([placements(row, positive) for row in scores])
    n = len(positive)
    return [Figure(pairs.task, "own", "all", "", f"{similarity}_auc", n, values, replicates, influence)]


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


def random_pair_cosines(x: NDArray[np.floating], rng: np.random.Generator, pairs: int = RANDOM_PAIRS) -> Float64:
    """Cosines of random pairs of different rows (pairs,)."""
    first = rng.integers(0, len(x), pairs)
    second = (first + rng.integers(1, len(x), pairs)) % len(x)
    units = unit_rows(x)  # each row is in many pairs
    blocks = (slice(start, start + BLOCK) for start in range(0, pairs, BLOCK))
    return np.concatenate([unit_cosines(units[first[rows]], units[second[rows]]) for rows in blocks])


def mean_figure(task: str, metric: str, by_query: Float64, resamples: int, seed: int) -> Figure:
    """The mean of a number (k, n) over the queries."""
    n, values = by_query.shape[1], by_query.mean(1)
    weights = pair_weights([np.arange(n, dtype=np.intp)], resamples, generator(seed, task))
    replicates = _resampled(lambda rows: by_query @ rows.T / n, np.ones((1, n)), weights)[1]
    return Figure(task, "test", "all", "", metric, n, values, replicates, influence=by_query - values[:, None])


def weighted_auc(ranks: MidRanks, positive: NDArray[np.bool_], weights: Weights) -> Float64:
    """The area for each row of ``weights`` (rows, n), in [0, 1]; scikit-learn's takes one row at a time."""
    above = weights[:, positive].sum(1)
    below = weights[:, ~positive].sum(1)
    # A score is 2 rank / total - 1. The mean rank of the positives, less their mean rank among themselves, counts the
    # negatives below them.
    total = above + below
    mean_score = np.vecdot(weights[:, positive], ranks.under(Resamples(weights))[:, positive]) / above
    return ((mean_score + 1) * total / 2 - above / 2) / below


def placements(scores: Float64, positive: NDArray[np.bool_]) -> Float64:
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
