"""How sure a figure is, and which differences between systems are more than chance.

Pairs are resampled with the same weights for all systems, so that their differences are paired:

    by pair        how often each pair was drawn, with replacement, within its group; a task's own interval
    by sentence    each distinct sentence draws g ~ Gamma(1/2), a pair weighs the sum of its two sentences' g, which is
                   Exp(1): the weight of the Bayesian bootstrap. The same pair has the same weight in every task, and
                   pairs that share one sentence move together with correlation 1/2. For means over tasks, which share
                   text.

Every pair of systems gets, on each task and suite, the difference with its paired bootstrap interval and p-value. Two
correlations with the same gold scores are dependent; Williams' test takes that into account, but assumes normal
variables, so with ranks it is approximate and the bootstrap leads. Over the tasks of one pair of systems the p-values
are corrected by Holm's method.

Source: Efron 1979 for the bootstrap of pairs; Rubin 1981, "The Bayesian bootstrap", for the weights by sentence.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from bertflow.array_types import Float64, Int64, Intp
from bertflow.correlation import bca_interval
from bertflow.data.pairs import Pairs
from bertflow.errors import how_many
from bertflow.evaluation.p_values import bootstrap_p, holm, williams
from bertflow.text_keys import hash_text, text_key

BLOCK = 25
"""Resamples at a time: enough to be vectorised, few enough to stay in the processor's cache."""
AT_A_TIME = 2**17
"""Pairs that are drawn at a time, which stay in the cache as well; the numbers that are drawn are the same."""
UNIT = 2**36
"""A weight of 1 by sentence, as whole numbers, which add up faster: so fine that no digit of a figure changes (1e-12),
and few enough bits that the sum over 50 million pairs fits."""
COMPARED = ("spearman", "hit@1", "map", "mrr", "auc")
"""Endings of the metrics by which systems are compared."""
LEVEL = 0.05
"""Differences whose corrected p-value is below this are called separable."""
A_TEST = round(20 / LEVEL)
"""Fewest resamples for each test: the smallest p-value is 2 / (resamples + 1), and is corrected by the tests."""


def enough(resamples: int, tests: int) -> int:
    """So many resamples that Holm's correction over ``tests`` tasks can find a difference; 0 stays 0."""
    return max(resamples, tests * A_TEST) if resamples else 0


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator for one task: what it draws does not depend on which other tasks are scored."""
    return np.random.default_rng([seed, hash_text(name)])


def pair_weights(groups: Sequence[Intp], resamples: int, rng: np.random.Generator) -> Iterator[Int64]:
    """Blocks of rows (<= BLOCK, n): how often each pair was drawn within its group; the groups hold all n pairs."""
    n = sum(map(len, groups))
    for start in range(0, resamples, BLOCK):
        rows = min(BLOCK, resamples - start)
        weights = np.zeros((rows, n), dtype=np.int64)
        for members in groups:
            size = len(members)
            step = max(1, AT_A_TIME // max(1, size))
            for some in (weights[at : at + step] for at in range(0, rows, step)):
                drawn = rng.integers(0, size, (len(some), size)) + size * np.arange(len(some))[:, None]
                some[:, members] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        yield weights


def resampled(under: Callable[[Any], Float64], ones: Any, weights: Iterable[Any]) -> tuple[Float64, Float64]:
    """What ``under`` gives for weights of one, and its replicates, along the last axis, for those of each resample."""
    values = under(ones)
    return values[..., 0], np.concatenate([values[..., :0], *map(under, weights)], axis=-1)


def sentence_numbers(tasks: Sequence[Pairs]) -> list[Intp]:
    """For each task, the numbers (2, n) of its pairs' sentences: one number for one text, whatever the task."""
    numbers: dict[str, int] = {}
    return [
        np.array(
            [[numbers.setdefault(text_key(text), len(numbers)) for text in side] for side in (one.first, one.second)]
        )
        for one in tasks
    ]


def sentence_weights(numbers: Sequence[Intp], resamples: int, rng: np.random.Generator) -> Iterator[list[Int64]]:
    """Blocks of rows for several tasks at once: for each task, weights (<= BLOCK, n), in units of ``UNIT``."""
    sentences = 1 + max(int(pairs.max()) for pairs in numbers)
    for start in range(0, resamples, BLOCK):
        # Half the square of a standard normal number is Gamma(1/2).
        draws = rng.standard_normal((min(BLOCK, resamples - start), sentences)) ** 2 / 2
        whole = np.rint(draws * UNIT).astype(np.int64)
        yield [whole.take(pairs[0], axis=1) + whole.take(pairs[1], axis=1) for pairs in numbers]


class Place(NamedTuple):
    """Where a number stands: task or suite, a row of ``AGGREGATIONS`` or ``subset``, metric."""

    task: str
    aggregation: str
    metric: str


@dataclass(frozen=True)
class Measurement:
    """What was measured, and on what.

    Attributes:
        task: Task or suite.
        split: Which part of it.
        aggregation: A row of ``AGGREGATIONS``, or ``subset`` for one sub-set alone.
        subset: Which sub-set, else empty.
        metric: Name of the metric in mteb: ``cosine_spearman``.
        n: Pairs, or queries.
    """

    task: str
    split: str
    aggregation: str
    subset: str
    metric: str
    n: int

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.task, self.aggregation, self.metric)

    @property
    def counted(self) -> str:
        """How many pairs, or queries."""
        return how_many(self.n, "pairs" if self.metric.endswith(("_spearman", "_pearson", "_auc")) else "queries")


@dataclass(frozen=True)
class Figure(Measurement):
    """One metric of one task, sub-set or suite, for k systems.

    Attributes:
        values: (k,), in [-1, 1].
        replicates: (k, resamples), paired: column r is the same resample for all systems.
        influence: (k, n), what each pair adds; None for a mean over tasks, which is resampled by sentence.
        between: (k, k), Spearman of the systems with each other on the same pairs, where the values are Spearman's on
            all pairs together; else None. NaN for a mean over seeds, which ranks no pairs.
    """

    values: Float64
    replicates: Float64
    influence: Float64 | None = None
    between: Float64 | None = None

    def interval(self, system: int, less: int | None = None) -> tuple[float | None, float | None]:
        """Ends of the 95 % interval of one system's value, or of that value less another system's.

        Bias-corrected and accelerated (BCa) rather than percentile: a resample has more ties than the sample, which
        lowers its rank correlation, and a mean over small sub-sets by a third of a point. Means over tasks, resampled
        by sentence, are bias-corrected only. None without resamples, or where one had no variance.
        """

        def of(x: Float64) -> Float64:
            return x[system] if less is None else x[system] - x[less]

        drawn, added = of(self.replicates), None if self.influence is None else of(self.influence)
        return bca_interval(float(of(self.values)), drawn, added) if len(drawn) else (None, None)


@dataclass(frozen=True)
class Difference:
    """The first system's value minus the second's, on one task or suite.

    Attributes:
        task: Task or suite.
        aggregation: A row of ``AGGREGATIONS``.
        metric: Name of the metric in mteb: "cosine_spearman".
        first: A system.
        second: Another.
        difference: Difference of correlations, not in percent.
        ci_low: Lower end of the 95 % interval; None where there is none.
        ci_high: Upper end.
        p_bootstrap: Two-sided, from the paired bootstrap; None without resamples.
        p_williams: Williams' test, two-sided; None for means of several correlations, or over seeds.
        p_bootstrap_holm: The first p-value, corrected over the tasks; a suite is corrected alone.
        p_williams_holm: The second one, likewise.
    """

    task: str
    aggregation: str
    metric: str
    first: str
    second: str
    difference: float
    ci_low: float | None
    ci_high: float | None
    p_bootstrap: float | None
    p_williams: float | None
    p_bootstrap_holm: float | None = None
    p_williams_holm: float | None = None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.task, self.aggregation, self.metric)

    @property
    def separable(self) -> bool | None:
        """Whether the difference is more than chance; None where nothing was resampled."""
        return None if self.p_bootstrap_holm is None else self.p_bootstrap_holm < LEVEL

    @property
    def verdict(self) -> str:
        """Whether it is significant, in words; where the p-value and the interval disagree, which decides."""
        words = "a significant difference" if self.separable else "no significant difference"
        excludes_zero = self.ci_low is not None and self.ci_high is not None and (self.ci_low > 0 or self.ci_high < 0)
        if self.separable == excludes_zero:
            return words
        corrected = "" if self.p_bootstrap_holm == self.p_bootstrap else " after Holm's correction over the tasks"
        return f"{words} (p = {self.p_bootstrap_holm:.2g}{corrected}; this decides, not the interval)"

    def seen_from(self, system: str) -> "Difference":
        """This difference with ``system``, one of the two, as the first."""
        if system == self.first:
            return self
        # 0.0 - x, since -x would show a difference of zero as -0.0.
        low, high = (None if end is None else 0.0 - end for end in (self.ci_high, self.ci_low))
        return replace(
            self, first=system, second=self.first, difference=0.0 - self.difference, ci_low=low, ci_high=high
        )


def differences(systems: Sequence[str], figures: Sequence[Figure], suites: Collection[str] = ()) -> list[Difference]:
    """All pairs of systems on all figures of whole tasks and suites that are ranked by; sub-sets are left out.

    Args:
        systems: Names of the k systems.
        figures: Their figures.
        suites: Names of the suites among the figures: each is a family of its own in Holm's correction.
    """
    kept = [figure for figure in figures if figure.metric.endswith(COMPARED) and not figure.subset]
    families = dict.fromkeys((figure.aggregation, figure.metric) for figure in kept)
    found = []
    for first, second in combinations(range(len(systems)), 2):
        rows = [difference(systems, figure, first, second) for figure in kept]
        for family in families:
            members = [row for row in rows if (row.aggregation, row.metric) == family]
            tasks = [row for row in members if row.task not in suites]
            for group in (tasks, *([row] for row in members if row.task in suites)):
                bootstrap, known = (holm([getattr(row, p) for row in group]) for p in ("p_bootstrap", "p_williams"))
                for row, p, q in zip(group, bootstrap, known, strict=True):
                    found.append(replace(row, p_bootstrap_holm=p, p_williams_holm=q))
    return found


def difference(systems: Sequence[str], figure: Figure, first: int, second: int) -> Difference:
    """One difference, not yet corrected."""
    replicates = figure.replicates[first] - figure.replicates[second]
    drawn = bool(len(replicates)) and bool(np.isfinite(replicates).all())
    one, other = float(figure.values[first]), float(figure.values[second])
    p_williams = None
    between = None if figure.between is None else float(figure.between[first, second])
    if between is not None and not math.isnan(between) and figure.n > 3:
        p_williams = williams(one, other, between, figure.n)[1]
    measured = (figure.task, figure.aggregation, figure.metric, systems[first], systems[second], one - other)
    interval = figure.interval(first, less=second)
    p_bootstrap = bootstrap_p(replicates) if drawn else None
    return Difference(*measured, *interval, p_bootstrap=p_bootstrap, p_williams=p_williams)
