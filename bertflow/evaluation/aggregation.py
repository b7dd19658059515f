"""Scores of graded tasks and of suites, under every aggregation and both correlations.

    all      one correlation over all pairs of the task
    mean     the mean of the correlations of the sub-sets
    wmean    the same, each sub-set weighted by its number of pairs

The aggregation moves STS numbers by twenty points. Each one is a weighted sum of correlations over disjoint groups of
pairs, and so is a sub-set's own score; for ``all`` there is one group. A task is therefore one or two partitions into
groups, and a ``Meter`` reads all scores of a partition under any weights on its pairs: all weights one for the score
itself, how often each pair was drawn for a bootstrap replicate, one pair left out for the jackknife.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.stats import rankdata

from bertflow.array_types import Float64, Intp
from bertflow.correlation import CORRELATIONS, Weights, jackknife, weighted_correlations
from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import TASKS
from bertflow.evaluation.significance import (
    Figure,
    generator,
    pair_weights,
    resampled,
    sentence_numbers,
    sentence_weights,
)

SUBSET = "subset"
"""Name in place of an aggregation for the score of one sub-set."""


OF_SUBSETS: Mapping[str, Callable[[Intp], Float64]] = {
    "mean": lambda sizes: np.full(len(sizes), 1 / len(sizes)),
    "wmean": lambda sizes: sizes / sizes.sum(),
}
"""Means over the sub-sets of a task: their sizes -> their weights, which sum to one."""
AGGREGATIONS: Mapping[str, str] = {
    "all": "one correlation over all pairs of a task",
    "mean": "mean over the sub-sets of a task",
    "wmean": "mean over the sub-sets of a task, weighted by their pairs",
}
"""Every aggregation, and what the caption of a table says of it."""


@dataclass(frozen=True)
class Reading:
    """One score of a partition: its aggregation, its sub-set if it is one, pairs, and the weight of each group."""

    aggregation: str
    subset: str
    n: int
    weights: Float64


Partition: TypeAlias = tuple[Sequence[Intp], Sequence[Reading]]
"""Disjoint groups of pairs, and the scores that are read off them."""


def members_of(subsets: Sequence[str]) -> dict[str, Intp]:
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
        """The ways in which its pairs are grouped: all together, if they can be ranked so, then by sub-set."""
        row, n, members = TASKS.get(self.pairs.task), len(self.pairs), members_of(self.pairs.subsets)
        alone = len(members) == 1
        # One number for all aggregations; but the hub's copies of STS12-16 are one set each, and do not name theirs.
        names = AGGREGATIONS if alone and (row is None or len(row.pairs) == 1) else ["all"]
        whole: Partition = [np.arange(n, dtype=np.intp)], [Reading(name, "", n, np.ones(1)) for name in names]
        if alone:
            return [whole]
        sizes = np.array([len(group) for group in members.values()], dtype=np.intp)
        readings = [Reading(name, "", n, weights(sizes)) for name, weights in OF_SUBSETS.items()]
        units = zip(members, sizes, np.eye(len(sizes)), strict=True)
        readings += [Reading(SUBSET, name, int(size), unit) for name, size, unit in units]
        split: Partition = [*members.values()], readings
        return [whole, split] if row is None or row.aggregation == "all" else [split]


class Meter:
    """One correlation on one partition of a task: everything that is read off it, for all systems.

    Args:
        name: A row of ``CORRELATIONS``.
        task: The task with the k systems' similarities.
        partition: Its groups and readings.
    """

    def __init__(self, name: str, task: ScoredTask, partition: Partition) -> None:
        scores = CORRELATIONS[name]
        self.name, self.task = name, task
        self.groups, self.readings = partition
        self._mix = np.stack([reading.weights for reading in self.readings])
        self._scores = [
            (members, scores(task.pairs.target[members]), [scores(one[members]) for one in task.similarities])
            for members in self.groups
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
        for group, members in enumerate(self.groups):
            for system, scores in enumerate(similarities):
                without = jackknife(self.name, gold[members], scores[members])
                added = (without.mean() - without) * (len(members) - 1) / len(members)
                result[:, system, members] = self._mix[:, [group]] * added
        return result


def task_figures(task: ScoredTask, resamples: int, seed: int) -> list[Figure]:
    """Every aggregation and every sub-set of one task, under both correlations.

    Resamples are drawn within the groups of each partition; the seed is used together with the task's name.
    """
    figures, pairs = [], task.pairs
    for groups, readings in task.partitions():
        meters = [Meter(name, task, (groups, readings)) for name in CORRELATIONS]
        weights = pair_weights(groups, resamples, generator(seed, pairs.task))
        under = lambda rows, meters=meters: np.stack([meter.under(rows) for meter in meters])  # noqa: E731
        values, replicates = resampled(under, np.ones((1, len(pairs))), weights)
        for at, meter in enumerate(meters):
            influence = meter.influence() if resamples else np.zeros((len(values[at]), *task.similarities.shape))
            metric = f"{task.similarity}_{meter.name}"
            for reading, value, drawn, added in zip(readings, values[at], replicates[at], influence, strict=True):
                how = (pairs.task, pairs.split, reading.aggregation, reading.subset, metric, reading.n)
                ranked_together = meter.name == "spearman" and reading.aggregation == "all"
                ranks = rankdata(task.similarities, axis=1) if ranked_together else None
                between = None if ranks is None else np.atleast_2d(np.corrcoef(ranks))
                figures.append(Figure(*how, value, drawn, added, between))
    return figures


def suite_figures(suite: str, tasks: Sequence[ScoredTask], resamples: int, seed: int) -> list[Figure]:
    """The mean over tasks, for each aggregation that all of them have, under both correlations.

    The tasks are resampled together, by sentence: they share text, so their errors are not independent.
    """
    meters = [[Meter(name, task, part) for part in task.partitions() for name in CORRELATIONS] for task in tasks]
    weights = sentence_weights(sentence_numbers([task.pairs for task in tasks]), resamples, generator(seed, suite))
    ones = [np.ones((1, len(task.pairs))) for task in tasks]
    values, replicates = resampled(lambda rows: np.stack([*_means(meters, rows).values()]), ones, weights)
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
            for reading, values in zip(meter.readings, meter.under(rows), strict=True)
            if reading.aggregation in AGGREGATIONS
        }
        for task, rows in zip(meters, weights, strict=True)
    ]
    shared = [key for key in tasks[0] if all(key in task for task in tasks)]
    return {key: np.mean([task[key] for task in tasks], axis=0) for key in shared}
