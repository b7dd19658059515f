"""Which differences between systems are more than chance.

Every pair of systems gets, on each task and suite, the difference with its paired bootstrap interval and p-value. Two
correlations with the same gold scores are dependent; Williams' test takes that into account, but assumes normal
variables, so with ranks it is approximate and the bootstrap leads. Over the tasks of one pair of systems the p-values
are corrected by Holm's method.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from bertflow.evaluation.figures import Figure

Float64 = NDArray[np.float64]
COMPARED = ("spearman", "hit@1", "mrr", "auc")
"""How the metrics end that systems are ranked by."""
LEVEL = 0.05
"""Differences whose corrected p-value is below this are called separable."""


@dataclass(frozen=True)
class Difference:
    """The first system's value less the second's, on one task or suite.

    Attributes:
        task: Task or suite.
        aggregation: A row of ``AGGREGATIONS``.
        metric: As mteb spells it: "cosine_spearman".
        first: A system.
        second: Another.
        difference: In correlation, not in percent.
        ci_low: Lower end of the 95 % interval; None where there is none.
        ci_high: Upper end.
        p_bootstrap: Two-sided, from the paired bootstrap; None without resamples.
        p_bootstrap_holm: The same, corrected over the tasks; a suite stands alone.
        p_williams: Williams' test, two-sided; None for means of several correlations.
        p_williams_holm: The same, corrected over the tasks.
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
    p_bootstrap_holm: float | None
    p_williams: float | None
    p_williams_holm: float | None

    @property
    def separable(self) -> bool | None:
        """Whether the difference is more than chance; None where nothing was resampled."""
        return None if self.p_bootstrap_holm is None else self.p_bootstrap_holm < LEVEL

    def seen_from(self, system: str) -> "Difference":
        """The same difference with ``system``, one of the two, as the first."""
        if system == self.first:
            return self
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            ci_low=None if self.ci_high is None else -self.ci_high,
            ci_high=None if self.ci_low is None else -self.ci_low,
        )


def williams(r12: float, r13: float, r23: float, n: int) -> tuple[float, float]:
    """Williams' T2 for two dependent correlations r12 and r13 that share variable 1.

    Args:
        r12: Correlation of the gold scores with the first system.
        r13: Correlation of the gold scores with the second system.
        r23: Correlation of the systems with each other.
        n: Pairs, at least 4.

    Returns:
        t with n - 3 degrees of freedom, and its two-sided p-value; (0, 1) for two systems that rank alike.

    Source: Steiger 1980, "Tests for comparing elements of a correlation matrix", equation 7.
    """
    if r12 == r13:
        return 0.0, 1.0
    determinant = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    spread = 2 * (n - 1) / (n - 3) * determinant + ((r12 + r13) / 2) ** 2 * (1 - r23) ** 3
    statistic = (r12 - r13) * math.sqrt((n - 1) * (1 + r23) / max(spread, np.finfo(float).tiny))
    return statistic, float(2 * student.sf(abs(statistic), n - 3))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of several p-values, in the order given.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    corrected = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    result = np.empty(len(p_values))
    result[order] = corrected
    return [float(p) for p in result]


def bootstrap_p(replicates: Float64) -> float:
    """Two-sided p-value of a difference: how rarely its replicates (resamples,) lie on one side of zero."""
    fewer = min(int((replicates <= 0).sum()), int((replicates >= 0).sum()))
    return min(1.0, 2 * (fewer + 1) / (len(replicates) + 1))


def differences(systems: Sequence[str], figures: Sequence[Figure], suites: Collection[str] = ()) -> list[Difference]:
    """All pairs of systems on all figures of whole tasks and suites that are ranked by; sub-sets are left out.

    Args:
        systems: Names of the k systems.
        figures: Their figures.
        suites: Names of the suites among the figures: each stands alone in Holm's correction.
    """
    kept = [figure for figure in figures if figure.metric.endswith(COMPARED) and not figure.subset]
    families = dict.fromkeys((figure.aggregation, figure.metric) for figure in kept)
    found = []
    for first, second in combinations(range(len(systems)), 2):
        rows = [_difference(systems, figure, first, second) for figure in kept]
        for family in families:
            found += _corrected([row for row in rows if (row.aggregation, row.metric) == family], suites)
    return found


def _difference(systems: Sequence[str], figure: Figure, first: int, second: int) -> Difference:
    interval = figure.interval(first, less=second)
    replicates = figure.replicates[first] - figure.replicates[second]
    drawn = bool(len(replicates)) and bool(np.isfinite(replicates).all())
    one, other = float(figure.values[first]), float(figure.values[second])
    p_williams = None
    if figure.between is not None and figure.n > 3:
        p_williams = williams(one, other, float(figure.between[first, second]), figure.n)[1]
    return Difference(
        task=figure.task,
        aggregation=figure.aggregation,
        metric=figure.metric,
        first=systems[first],
        second=systems[second],
        difference=one - other,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        p_bootstrap=bootstrap_p(replicates) if drawn else None,
        p_bootstrap_holm=None,
        p_williams=p_williams,
        p_williams_holm=None,
    )


def _corrected(rows: Sequence[Difference], suites: Collection[str]) -> list[Difference]:
    """Rows with Holm's correction over the tasks; a suite is one hypothesis of its own."""
    family = [row for row in rows if row.task not in suites]
    alone = [replace(row, p_bootstrap_holm=row.p_bootstrap) for row in rows if row.task in suites]
    bootstrap = _holm_of_known([row.p_bootstrap for row in family])
    known = _holm_of_known([row.p_williams for row in family])
    family = [
        replace(row, p_bootstrap_holm=p, p_williams_holm=q) for row, p, q in zip(family, bootstrap, known, strict=True)
    ]
    return [*family, *alone]


def _holm_of_known(p_values: Sequence[float | None]) -> list[float | None]:
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]
