"""A meter reads all scores off one partition of a task, under any weights on its pairs.

The score itself is the reading with all weights one; a bootstrap replicate is the reading under how often each pair was
drawn; the jackknife leaves one pair out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.correlation import CORRELATIONS, jackknife, weighted_correlation
from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import TASKS
from bertflow.evaluation.aggregation import Partition, partitions

Float64 = NDArray[np.float64]


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

    def under(self, weights: Float64) -> Float64:
        """Values (readings, k, rows) for each row of ``weights`` (rows, n)."""
        by_group = np.empty((len(self._scores), len(self.task.similarities), len(weights)))
        for group, (members, gold, systems) in enumerate(self._scores):
            columns = weights[:, members]
            gold_scores = gold.under(columns)
            for system, scores in enumerate(systems):
                by_group[group, system] = weighted_correlation(gold_scores, scores.under(columns), columns)
        return np.einsum("ag,gkr->akr", self._mix, by_group)

    def values(self) -> Float64:
        """The values themselves (readings, k)."""
        return self.under(np.ones((1, len(self.task.pairs.target))))[..., 0]

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
