"""Spearman, Pearson, and their uncertainty.

Both correlations are one formula, of *scores* s(a) and s(b) with a weight w on each pair:

    r = sum w s(a) s(b) / sqrt( sum w s(a)^2  sum w s(b)^2 ),     s of mean zero under w

For Pearson a score is the value; for Spearman it is the mid-rank, as in ``scipy.stats.spearmanr``. A bootstrap resample
is a weight: how often each pair was drawn. Mid-ranks under a weight come from one cumulative sum over the sorted
values, so a resample costs O(n) and no sorting, and is exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from bertflow.array_types import Float64, Floats, Intp
from bertflow.errors import DataError

Weights = NDArray[np.number[Any]]
"""A row (n,) for each resample, int64 or float64: whole numbers add up ten times as fast as others."""
FEWEST = 3
"""Fewest pairs of a correlation."""
NO_VARIANCE = 1e-20
"""Share of the full sample's variance below which the values of a resample are all equal, up to rounding."""
NO_VARIANCE_LEFT = 1e-13
"""Share where one pair was subtracted: what is left of equal values is rounding of the whole."""
TAILS = (0.025, 0.975)
"""Shares below the ends of an interval of 95 %."""
AT_A_TIME = 2**14
"""Weights at a time: with all that is made of them they stay in the processor's cache, and in memory at hand."""


class Resamples:
    """Rows of weights (rows, n), with what every score needs of them.

    Attributes:
        weights: The weights that were given, not negative.
        total: Sum of each row (rows, 1).
        shares: Share of each pair in that sum (rows, n).
    """

    def __init__(self, weights: Weights) -> None:
        self.weights, self.total = weights, weights.sum(1, keepdims=True)
        self.shares = weights / self.total


class Values:
    """The values themselves: Pearson."""

    def __init__(self, values: Floats) -> None:
        scaled = _scaled(values)
        centered = scaled - scaled.mean()
        self._values = centered / max(float(centered.std()), np.finfo(np.float64).tiny)

    def under(self, resamples: Resamples) -> Float64:
        """Distance from the weighted mean."""
        return self._values - np.vecdot(resamples.shares, self._values)[:, None]


def _scaled(values: Floats) -> Float64:
    """Values over a power of two that is as large as the largest: exact, and their squares stay finite."""
    exponent = np.frexp(np.abs(values).max(initial=0.0))[1]
    return np.ldexp(np.asarray(values, dtype=np.float64), -exponent)


class MidRanks:
    """Ranks, ties sharing their mean rank: Spearman.

    Attributes:
        below: Number of values below each one (n,).
        equal: Number of its equals, itself included (n,).
    """

    def __init__(self, values: NDArray[np.number[Any]]) -> None:
        self._order = np.argsort(values, kind="stable")
        _, self._which, times = np.unique(values, return_inverse=True, return_counts=True)
        until = times.cumsum()
        self._last, self.below, self.equal = until - 1, (until - times)[self._which], times[self._which]

    def under(self, resamples: Resamples) -> Float64:
        """Mid-ranks less their mean, as if each value stood there ``weights`` times; scaled to lie within (-1, 1)."""
        return (self.twice_below(resamples.weights) - resamples.total) / resamples.total

    def twice_below(self, weights: Weights) -> Weights:
        """Twice the weight below each value, and once that of its equals (rows, n)."""
        until = weights.take(self._order, axis=1).cumsum(axis=1).take(self._last, axis=1)
        until[:, 1:] += until[:, :-1]
        return until.take(self._which, axis=1)


Scores: TypeAlias = MidRanks | Values
"""What is correlated; ``under`` gives the scores (rows, n), of weighted mean zero under each row of weights."""
CORRELATIONS: Mapping[str, type[Scores]] = {"spearman": MidRanks, "pearson": Values}
"""What each correlation takes the scores of."""


def weighted_correlations(one: Scores, others: Sequence[Scores], weights: Weights) -> Float64:
    """Correlation of ``one`` with each of k others (k, rows) for each row of ``weights`` (rows, n).

    Returns:
        In [-1, 1]; NaN where the weighted values have no variance.
    """
    parts = np.array_split(weights, min(len(weights), math.ceil(weights.size / AT_A_TIME)))
    return np.concatenate([_correlations(one, others, Resamples(rows)) for rows in parts], axis=1)


def _correlations(one: Scores, others: Sequence[Scores], resamples: Resamples) -> Float64:
    scores = one.under(resamples)
    weighted, variance = resamples.shares * scores, _variance(scores, resamples)
    found = np.empty((len(others), len(scores)))
    for at, other in enumerate(others):  # one by one: what each gives does not depend on what stands beside it
        theirs = other.under(resamples)
        found[at] = np.vecdot(weighted, theirs) / np.sqrt(variance * _variance(theirs, resamples))
    return np.clip(found, -1.0, 1.0)


def _variance(scores: Float64, resamples: Resamples) -> Float64:
    """Weighted variance (rows,); NaN where there is none."""
    variance = np.vecdot(resamples.shares, np.square(scores))
    variance[variance <= NO_VARIANCE] = np.nan
    return variance


def correlation(name: str, a: Floats, b: Floats) -> float:
    """The correlation ``name`` of two samples (n,), in [-1, 1].

    Raises:
        DataError: If the samples differ in length, are fewer than three, not finite or all equal.
    """
    one, other = (CORRELATIONS[name](_sample(*given, len(a))) for given in (("first", a), ("second", b)))
    return float(weighted_correlations(one, [other], np.ones((1, len(a))))[0, 0])


def spearman(a: Floats, b: Floats) -> float:
    """Spearman's correlation, ties sharing their mean rank; see ``correlation`` for what is refused."""
    return correlation("spearman", a, b)


def _sample(label: str, given: Floats, n: int) -> Floats:
    """A sample of ``n`` values that has a correlation."""
    values = np.asarray(given)
    if values.ndim != 1 or len(values) != n:
        raise DataError(f"A correlation needs two samples of one length, got {n} values and shape {values.shape}.")
    if n < FEWEST:
        raise DataError(f"A correlation needs at least {FEWEST} pairs, got {n}. Score more pairs together.")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"A correlation needs finite numbers, but value {at} of the {label} sample is {values[at]}.")
    if values.min() == values.max():
        raise DataError(f"A correlation needs variance, but all {n} values of the {label} sample are {values[0]}.")
    return values


def jackknife(name: str, a: Floats, b: Floats) -> Float64:
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
    """With s_ij = sign(a_i - a_j), twice the centered mid-rank of j is the sum of s_ji over i.

    Without i it loses s_ji. So the sum of products of ranks without pair i is that of all, less the pair's own,
    corrected by the sums over j of s_ij times a rank, and of s_ij times the same of b. All are whole numbers: exact up
    to 300,000 pairs, where they no longer fit into a float.
    """
    sides, n = (MidRanks(a), MidRanks(b)), len(a)
    ranks = np.concatenate([side.twice_below(np.ones((1, n))) - n for side in sides])
    with_ranks = [side.twice_below(ranks) for side in sides]  # [sign of a or b][rank of a or b, pair]
    total = ranks @ ranks.T
    covariance, variance_a, variance_b = (
        (total[x, y] - ranks[x] * ranks[y] + with_ranks[x][y] + with_ranks[y][x] + signs) / 4
        for x, y, signs in ((0, 1, _agreement(*sides)), *((x, x, n - sides[x].equal) for x in (0, 1)))
    )
    return covariance, variance_a, variance_b


def _agreement(one: MidRanks, other: MidRanks) -> Intp:
    """Sum over j of sign(a_i - a_j) sign(b_i - b_j) for each i (n,)."""
    a, b, n = one.below, other.below, len(one.below)
    tied = one.equal + other.equal - MidRanks(a * n + b).equal
    return 2 * (_below(a, b) + _below(-a, -b)) - (n - tied)


def _below(a: Intp, b: Intp) -> Intp:
    """How many pairs lie below each one in both (n,), in O(n log n).

    In the order of a, each pair is in the right half of some block of 2, of 4, of 8 ... places, and those below it are
    in the left halves. From the largest blocks to the smallest, each block is kept in the order of b, so that a
    cumulative sum counts them. Equals come where they do not count: those in a by falling b, those in b by falling a.
    """
    n = len(a)
    place, found, all_places = np.empty(n, dtype=np.intp), np.zeros(n, dtype=np.intp), np.arange(n)
    place[np.lexsort((-b, a))] = all_places
    here = place[np.lexsort((-place, b))]  # place in a of the pairs, by b
    for level in reversed(range(n.bit_length())):
        left, start = (here >> level) & 1 == 0, here >> level + 1 << level + 1
        lower = np.cumsum(left) - (start >> 1)  # of the left half, so far; blocks before this one have full halves
        found[here[~left]] += lower[~left]
        moved = np.empty(n, dtype=np.intp)
        moved[np.where(left, start + lower - 1, all_places + (1 << level) - lower)] = here
        here = moved
    return found[place]


_WITHOUT_ONE: Mapping[str, Callable[[Float64, Float64], tuple[Float64, Float64, Float64]]] = {
    "spearman": _without_one_rank,
    "pearson": _without_one_value,
}
"""Covariance and both variances without each pair, times the same constant."""


Ends: TypeAlias = tuple[float, float] | tuple[None, None]
"""Between which a figure lies with a confidence of 95 %; None where nothing can be said."""


def percentile_interval(replicates: Float64) -> Ends:
    """The middle 95 % of the bootstrap replicates; None where one of them is NaN."""
    if not np.isfinite(replicates).all():
        return None, None
    low, high = np.quantile(replicates, TAILS)
    return float(low), float(high)


def fisher_interval(value: float, n: int) -> Ends:
    """Interval of Spearman's correlation of ``n`` independent pairs, by Fisher's z; None for fewer than four, or for 1.

    Source: Bonett & Wright 2000, Psychometrika 65, 23-28, for the standard error sqrt((1 + value^2 / 2) / (n - 3)).
    """
    if n < FEWEST + 1 or abs(value) >= 1:
        return None, None
    half = ndtri(TAILS[1]) * np.sqrt((1 + value**2 / 2) / (n - 3))
    return float(np.tanh(np.arctanh(value) - half)), float(np.tanh(np.arctanh(value) + half))


def bca_interval(value: float, replicates: Float64, influence: Float64 | None = None) -> Ends:
    """Bias-corrected and accelerated bootstrap interval; bias-corrected alone without ``influence``.

    Args:
        value: The figure on the full sample.
        replicates: The figure on each resample.
        influence: What each pair adds to the figure: the jackknife's mean less its value without the pair, times
            (n - 1) / n. Only the skewness of these numbers matters.

    Returns:
        None where a replicate or an influence is NaN: some resample had no variance, so nothing can be said.

    Source: Efron 1987, "Better bootstrap confidence intervals", equations 6.7 and 7.3, as ``scipy.stats.bootstrap``.
    """
    influence = np.zeros(1) if influence is None else influence
    if not (np.isfinite(replicates).all() and np.isfinite(influence).all()):
        return None, None
    below = (np.mean(replicates < value) + np.mean(replicates <= value)) / 2
    if below in (0.0, 1.0):  # every replicate on one side: the bias correction is infinite
        return percentile_interval(replicates)
    bias = ndtri(below)
    square = float(np.square(influence).sum())
    acceleration = float((influence**3).sum()) / (6 * square**1.5) if square else 0.0
    shifted = bias + ndtri(np.array(TAILS))
    low, high = np.quantile(replicates, ndtr(bias + shifted / (1 - acceleration * shifted)))
    return float(low), float(high)
