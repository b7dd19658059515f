"""How the sub-sets of a task become one score: the protocol that moves STS numbers by twenty points.

    all      one correlation over all pairs of the task
    mean     the mean of the correlations of the sub-sets
    wmean    the same, each sub-set weighing as much as it has pairs

Every one is a weighted sum of correlations over disjoint groups of pairs, and so is a sub-set's own score; for ``all``
there is one group. A task is therefore one or two partitions into groups, each with the scores that are read off it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Members = NDArray[np.intp]
SUBSET = "subset"
"""What stands in the place of an aggregation where a score is that of one sub-set."""


@dataclass(frozen=True)
class Aggregation:
    """One row of the table.

    Attributes:
        weights: Sizes of the groups -> their weights, which sum to one.
        meaning: What the caption of a table says.
        by_subset: Whether the groups are the sub-sets, or all pairs together.
    """

    weights: Callable[[NDArray[np.intp]], Float64]
    meaning: str
    by_subset: bool = True


AGGREGATIONS: Mapping[str, Aggregation] = {
    "all": Aggregation(lambda sizes: np.ones(1), "one correlation over all pairs of a task", by_subset=False),
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
    members = _members(subsets)
    by_subset = [name for name, row in AGGREGATIONS.items() if row.by_subset]
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


def _members(subsets: Sequence[str]) -> dict[str, Members]:
    """Which pairs belong to each sub-set, in the order in which the sub-sets first appear."""
    names, number = np.unique(np.asarray(subsets), return_inverse=True)
    number_of = {str(name): at for at, name in enumerate(names)}
    return {name: np.flatnonzero(number == number_of[name]) for name in dict.fromkeys(subsets)}
