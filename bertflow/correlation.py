"""Spearman, Pearson, and their uncertainty.

Both correlations are one formula, of *scores* s(a) and s(b) with a weight w on each pair:

    r = sum w s(a) s(b) / sqrt( sum w s(a)^2  sum w s(b)^2 ),     s of mean zero under w

For Pearson a score is the value; for Spearman it is the mid-rank, as in ``scipy.stats.spearmanr``. A bootstrap resample
is a weight: how often each pair was drawn. Mid-ranks under a weight come from one cumulative sum over the sorted
values, so a resample costs O(n) and no sorting, and is exact.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from bertflow.errors import DataError

Float64 = NDArray[np.float64]
FEWEST = 3
"""Fewer pairs than this have no correlation worth the name."""
NO_VARIANCE = 1e-20
"""Below this share of the full sample's variance the values of a resample are all equal, up to rounding."""
NO_VARIANCE_LEFT = 1e-13
"""Likewise without one pair, whose share was subtracted: what is left of equal values is rounding of the whole."""
JACKKNIFE_BLOCK = 64
"""Pairs left out at a time: small enough that their signs stay in the processor's cache."""


class Scores(Protocol):
    """What is correlated, taken anew under each row of weights."""

    def under(self, weights: Float64) -> Float64:
        """Scores (rows, n) of weighted mean zero, for ``weights`` (rows, n) that are not negative."""
        ...


class Values:
    """The values themselves: Pearson."""

    def __init__(self, values: NDArray[np.floating]) -> None:
        scaled = _scaled(values)
        centered = scaled - scaled.mean()
        self._values = centered / max(float(centered.std()), np.finfo(np.float64).tiny)

    def under(self, weights: Float64) -> Float64:
        """Distance from the weighted mean."""
        means = weights @ self._values / weights.sum(1)
        return self._values - means[:, None]


def _scaled(values: NDArray[np.floating]) -> Float64:
    """Values over a power of two that is as large as the largest: exact, and their squares are no infinity."""
    exponent = np.frexp(np.abs(values).max(initial=0.0))[1]
    return np.ldexp(np.asarray(values, dtype=np.float64), -exponent)


class MidRanks:
    """Ranks, ties sharing their mean rank: Spearman."""

    def __init__(self, values: NDArray[np.floating]) -> None:
        _, self._group, sizes = np.unique(values, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._group, kind="stable")
        self._last = np.cumsum(sizes) - 1

    def under(self, weights: Float64) -> Float64:
        """Mid-ranks less their mean, as if each value stood there ``weights`` times; scaled to lie within (-1, 1)."""
        until = np.cumsum(weights[:, self._order], axis=1)[:, self._last]  # weight up to and with each distinct value
        total = until[:, -1:]
        middle = until.copy()
        middle[:, 1:] += until[:, :-1]
        return ((middle - total) / total)[:, self._group]


CORRELATIONS: Mapping[str, Callable[[NDArray[np.floating]], Scores]] = {"spearman": MidRanks, "pearson": Values}
"""What each correlation takes the scores of."""


def weighted_correlation(a: Float64, b: Float64, weights: Float64) -> Float64:
    """Correlation of scores ``a`` and ``b`` (rows, n) for each row of ``weights``.

    Returns:
        In [-1, 1], one a row; NaN where the weighted values have no variance.
    """
    weighted = weights * a
    variances = np.stack((np.einsum("rn,rn->r", weighted, a), np.einsum("rn,rn,rn->r", weights, b, b)))
    variances[variances <= NO_VARIANCE * weights.sum(1)] = np.nan
    return np.clip(np.einsum("rn,rn->r", weighted, b) / np.sqrt(variances.prod(0)), -1.0, 1.0)


def correlation(name: str, a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The correlation ``name`` of two samples (n,), in [-1, 1].

    Raises:
        DataError: If the samples differ in length, are fewer than three, not finite or all equal.
    """
    for label, values in (("first", a), ("second", b)):
        _refuse(label, np.asarray(values), len(a))
    ones = np.ones((1, len(a)))
    scores = CORRELATIONS[name]
    return float(weighted_correlation(scores(a).under(ones), scores(b).under(ones), ones)[0])


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's correlation, ties sharing their mean rank; see ``correlation`` for what is refused."""
    return correlation("spearman", a, b)


def pearson(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Pearson's correlation; see ``correlation`` for what is refused."""
    return correlation("pearson", a, b)


def _refuse(label: str, values: NDArray[np.floating], n: int) -> None:
    if values.ndim != 1 or len(values) != n:
        raise DataError(f"A correlation needs two samples of one length, got {n} values and shape {values.shape}.")
    if n < FEWEST:
        raise DataError(f"A correlation needs at least {FEWEST} pairs, got {n}. Score more pairs together.")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"A correlation needs finite numbers, but value {at} of the {label} sample is {values[at]}.")
    if values.min() == values.max():
        raise DataError(f"A correlation needs variance, but all {n} values of the {label} sample are {values[0]}.")


def jackknife(name: str, a: NDArray[np.floating], b: NDArray[np.floating]) -> Float64:
    """The correlation with pair i left out, for each i; exact, (n,). NaN where the rest has no variance."""
    covariance, variance_a, variance_b = _WITHOUT_ONE[name](a.astype(np.float64), b.astype(np.float64))
    variances = np.stack((variance_a, variance_b))
    variances[variances <= NO_VARIANCE_LEFT * len(a)] = np.nan
    return np.clip(covariance / np.sqrt(variances.prod(0)), -1.0, 1.0)


def _without_one_value(a: Float64, b: Float64) -> tuple[Float64, Float64, Float64]:
    a, b = ((x - x.mean()) / x.std() for x in map(_scaled, (a, b)))
    rest = 1 + 1 / (len(a) - 1)  # the mean of the others moves by -a_i / (n - 1)
    return a @ b - rest * a * b, a @ a - rest * a * a, b @ b - rest * b * b


def _without_one_rank(a: Float64, b: Float64) -> tuple[Float64, Float64, Float64]:
    """With s_ij = sign(a_i - a_j), the centered mid-rank of j is half the sum of s_ji over i.

    Without i it loses s_ji / 2. So the sum of products of ranks without pair i is that of all, less the pair's own,
    corrected by one row of signs: n^2 operations in blocks, and no rank is taken twice.
    """
    n = len(a)
    ranks = np.stack([rankdata(values) - (n + 1) / 2 for values in (a, b)])
    total = ranks @ ranks.T
    parts = []
    for start in range(0, n, JACKKNIFE_BLOCK):
        block = slice(start, start + JACKKNIFE_BLOCK)
        signs = [np.sign(values[block, None] - values) for values in (a, b)]
        with_ranks = [sign @ ranks.T for sign in signs]  # [sign of a or b][pair, rank of a or b]
        parts.append(
            [
                total[x, y]
                - ranks[x, block] * ranks[y, block]
                + (with_ranks[x][:, y] + with_ranks[y][:, x]) / 2
                + np.einsum("in,in->i", signs[x], signs[y]) / 4
                for x, y in ((0, 1), (0, 0), (1, 1))
            ]
        )
    covariance, variance_a, variance_b = np.concatenate(parts, axis=1)
    return covariance, variance_a, variance_b


_WITHOUT_ONE: Mapping[str, Callable[[Float64, Float64], tuple[Float64, Float64, Float64]]] = {
    "spearman": _without_one_rank,
    "pearson": _without_one_value,
}
"""Covariance and both variances without each pair, times the same constant."""


@dataclass(frozen=True)
class Interval:
    """Where a figure lies with the confidence asked for."""

    low: float
    high: float


def percentile_interval(replicates: Float64, level: float = 0.95) -> Interval | None:
    """The middle ``level`` of the bootstrap replicates; None where one of them is NaN."""
    if not np.isfinite(replicates).all():
        return None
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def fisher_interval(value: float, n: int, level: float = 0.95) -> Interval | None:
    """Interval of Spearman's correlation of ``n`` independent pairs, by Fisher's z; None for fewer than four, or for 1.

    Source: Bonett & Wright 2000, Psychometrika 65, 23-28, for the standard error sqrt((1 + value^2 / 2) / (n - 3)).
    """
    if n < FEWEST + 1 or abs(value) >= 1:
        return None
    half = ndtri((1 + level) / 2) * np.sqrt((1 + value**2 / 2) / (n - 3))
    return Interval(float(np.tanh(np.arctanh(value) - half)), float(np.tanh(np.arctanh(value) + half)))


def bca_interval(
    value: float, replicates: Float64, influence: Float64 | None = None, level: float = 0.95
) -> Interval | None:
    """Bias-corrected and accelerated bootstrap interval; bias-corrected alone without ``influence``.

    Args:
        value: The figure on the full sample.
        replicates: The figure on each resample.
        influence: What each pair adds to the figure: the jackknife's mean less its value without the pair, times
            (n - 1) / n. Only the skewness of these numbers matters.
        level: Confidence, in (0, 1).

    Returns:
        None where a replicate or an influence is NaN: some resample had no variance, so nothing can be said.

    Source: Efron 1987, "Better bootstrap confidence intervals", equations 6.7 and 7.3, as ``scipy.stats.bootstrap``.
    """
    influence = np.zeros(1) if influence is None else influence
    if not (np.isfinite(replicates).all() and np.isfinite(influence).all()):
        return None
    below = (np.mean(replicates < value) + np.mean(replicates <= value)) / 2
    if below in (0.0, 1.0):  # every replicate on one side: the bias correction is infinite
        return percentile_interval(replicates, level)
    bias = ndtri(below)
    square = float(np.square(influence).sum())
    acceleration = float((influence**3).sum()) / (6 * square**1.5) if square else 0.0
    shifted = bias + ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
    low, high = np.quantile(replicates, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return Interval(float(low), float(high))
