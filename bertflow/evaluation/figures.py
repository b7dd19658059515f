"""Figures: one number for each of k systems, with all that is needed to say how sure it is.

A task gives a figure for each aggregation and each sub-set, a suite the mean over its tasks; each under both
correlations. Whatever is derived from figures (rows, intervals, differences) is the same for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.correlation import CORRELATIONS, Interval, bca_interval
from bertflow.evaluation.aggregation import AGGREGATIONS
from bertflow.evaluation.bootstrap import generator, pair_weights, sentence_numbers, sentence_weights
from bertflow.evaluation.meter import Meter, ScoredTask

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Figure:
    """One metric of one task, sub-set or suite, for k systems.

    Attributes:
        task: Task or suite.
        split: Which part of the task was scored.
        aggregation: A row of ``AGGREGATIONS``, or "subset".
        subset: The sub-set, where the aggregation is "subset".
        metric: As mteb spells it: "cosine_spearman".
        n: Pairs, or queries.
        values: (k,), in [-1, 1].
        replicates: (k, resamples), paired: column r is the same resample for all systems.
        influence: (k, n), what each pair adds; None for a mean over tasks, which is resampled by sentence.
        between: (k, k), Spearman of the systems with each other on the same pairs, where the values are Spearman's on
            all pairs together; else None.
    """

    task: str
    split: str
    aggregation: str
    subset: str
    metric: str
    n: int
    values: Float64
    replicates: Float64
    influence: Float64 | None = None
    between: Float64 | None = None

    def interval(self, system: int, less: int | None = None) -> Interval | None:
        """95 % interval of one system's value, or of that value less another system's.

        Bias-corrected and accelerated (BCa) rather than percentile: a resample has more ties than the sample, which
        lowers its rank correlation, and a mean over small sub-sets by a third of a point. Means over tasks, resampled
        by sentence, are bias-corrected only. None without resamples, or where one had no variance.
        """
        value, replicates, influence = self.values[system], self.replicates[system], self.influence
        if less is not None:
            value, replicates = value - self.values[less], replicates - self.replicates[less]
        if not len(replicates):
            return None
        if influence is None:
            return bca_interval(float(value), replicates)
        added = influence[system] if less is None else influence[system] - influence[less]
        return bca_interval(float(value), replicates, added)


def task_figures(task: ScoredTask, resamples: int, seed: int) -> list[Figure]:
    """Every aggregation and every sub-set of one task, under both correlations.

    Args:
        task: The task, scored by all systems.
        resamples: How many bootstrap resamples of its pairs, drawn within the groups of each partition; 0 for none.
        seed: Of the resamples, together with the task's name.
    """
    figures = []
    for partition in task.partitions():
        meters = [Meter(name, task, partition) for name in CORRELATIONS]
        rng = generator(seed, task.pairs.task)
        blocks = [[meter.under(rows) for meter in meters] for rows in pair_weights(partition.groups, resamples, rng)]
        for at, meter in enumerate(meters):
            values = meter.values()
            replicates = np.concatenate([np.empty((*values.shape, 0)), *(block[at] for block in blocks)], axis=2)
            influence = meter.influence() if resamples else np.zeros((len(values), *task.similarities.shape))
            metric = f"{task.similarity}_{meter.name}"
            for row, reading in enumerate(partition.readings):
                how = (task.pairs.task, task.pairs.split, reading.aggregation, reading.subset, metric, reading.n)
                ranked_together = meter.name == "spearman" and reading.aggregation == "all"
                between = _between(task.similarities) if ranked_together else None
                figures.append(Figure(*how, values[row], replicates[row], influence[row], between))
    return figures


def _between(similarities: Float64) -> Float64:
    """Spearman of each system with each other (k, k)."""
    return np.atleast_2d(np.corrcoef(rankdata(similarities, axis=1)))


def suite_figures(suite: str, tasks: Sequence[ScoredTask], resamples: int, seed: int) -> list[Figure]:
    """The mean over tasks, for each aggregation that all of them have, under both correlations.

    The tasks are resampled together, by sentence: they share text, so their errors are not independent.
    """
    meters = [[Meter(name, task, part) for part in task.partitions() for name in CORRELATIONS] for task in tasks]
    values = _means(meters, [np.ones((1, len(task.pairs.target))) for task in tasks])
    sides = [(task.pairs.first, task.pairs.second) for task in tasks]
    resampled = sentence_weights(sentence_numbers(sides), resamples, generator(seed, suite))
    blocks = [_means(meters, weights) for weights in resampled]
    n, split = sum(len(task.pairs) for task in tasks), "+".join(dict.fromkeys(task.pairs.split for task in tasks))
    figures = []
    for (aggregation, correlation), value in values.items():
        drawn = [np.empty((len(value), 0)), *(block[aggregation, correlation] for block in blocks)]
        replicates = np.concatenate(drawn, axis=1)
        metric = f"{tasks[0].similarity}_{correlation}"
        figures.append(Figure(suite, split, aggregation, "", metric, n, value[:, 0], replicates))
    return figures


def _means(meters: Sequence[Sequence[Meter]], weights: Sequence[Float64]) -> dict[tuple[str, str], Float64]:
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
