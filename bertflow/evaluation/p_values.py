"""P-values of differences: Williams' test, the paired bootstrap, and Holm's correction of several."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from bertflow.array_types import Float64


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


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of several p-values, in the order given; None stays None and does not count.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    corrected: list[float | None] = [None] * len(p_values)
    rising = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, at) in enumerate(rising):
        largest = max(largest, p * (len(rising) - rank))
        corrected[at] = min(1.0, largest)
    return corrected


def bootstrap_p(replicates: Float64) -> float:
    """Two-sided p-value of a difference: how rarely its replicates (resamples,) lie on one side of zero."""
    fewer = min(int((replicates <= 0).sum()), int((replicates >= 0).sum()))
    return min(1.0, 2 * (fewer + 1) / (len(replicates) + 1))
