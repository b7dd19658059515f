"""What labeled pairs teach: the probability of a match, and the cosine from which a pair is a match.

The curves of the probability are a row each: isotonic assumes no shape and needs about a thousand pairs, logistic is
for fewer. A threshold is chosen for a wanted precision or recall:

    precision(t) = matches of cosine t or more / all pairs of cosine t or more     chosen: the lowest t that reaches it
    recall(t)    = matches of cosine t or more / all matches                       chosen: the highest t that reaches it

Two intervals: of the cosine, from resamples of the pairs, in each of which it is chosen again; and of precision and
recall at the cosine that was chosen, which are binomial. Precision holds for pairs as they were labeled: where matches
are rarer it is lower. A false-match rate says nothing about pairs that resemble each other: it counts random pairs.

Source: Zadrozny & Elkan 2002 (isotonic); Platt 1999 (logistic); Clopper & Pearson 1934 (binomial intervals).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from bertflow.array_types import Float64, Int64
from bertflow.errors import DataError, UsageError

REDRAWN = 1000
"""Resamples of the labeled pairs."""


@dataclass(frozen=True)
class Isotonic:
    """A rising line through knots, flat outside them; assumes no shape, needs about a thousand pairs."""

    cosines: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (all(np.diff(self.cosines) > 0) and len(self.cosines) == len(self.values)):
            raise DataError("the knots of its probability should rise, a value for each. Fit again.")

    def __call__(self, cosines: Float64) -> Float64:
        """Probabilities, in [0, 1]."""
        return np.interp(cosines, self.cosines, self.values)

    @classmethod
    def fit(cls, cosines: Float64, labels: Int64) -> "Isotonic":
        """Fit to labeled pairs (n,)."""
        edge = 1 / (len(labels) + 2)  # n pairs cannot show a probability of 0 or 1
        fitted = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(cosines, labels)
        return cls(tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))


@dataclass(frozen=True)
class Logistic:
    """The logistic function of ``slope * cosine + intercept``; for fewer pairs."""

    slope: float
    intercept: float

    def __call__(self, cosines: Float64) -> Float64:
        """Probabilities, in (0, 1)."""
        return expit(self.slope * cosines + self.intercept)

    @classmethod
    def fit(cls, cosines: Float64, labels: Int64) -> "Logistic":
        """Fit to labeled pairs (n,)."""
        # Standardized, so that the mild penalty, which keeps the slope finite where labels can be separated, means the
        # same for cosines between 0 and 1 and for those between 0.90 and 0.95.
        mean, deviation = cosines.mean(), cosines.std()
        fitted = LogisticRegression().fit(((cosines - mean) / deviation)[:, None], labels)
        slope = float(fitted.coef_[0, 0]) / deviation
        return cls(slope, float(fitted.intercept_[0]) - slope * mean)


CURVES: Mapping[str, type[Isotonic] | type[Logistic]] = {"isotonic": Isotonic, "logistic": Logistic}


@dataclass(frozen=True)
class Probability:
    """Cosines -> probability of a match, among pairs as they were labeled: where matches are rarer, it is too high.

    Attributes:
        method: A row of ``CURVES``.
        curve: Cosines -> probabilities.
        n: Number of labeled pairs.
        matches: How many of them are labeled 1.
    """

    method: str
    curve: Isotonic | Logistic
    n: int
    matches: int


def require_target(wanted: str, target: float, labeled: bool) -> None:
    """Refuse a precision or recall that no threshold can have, or that needs labeled pairs where there are none.

    Raises:
        UsageError: If it is out of range, or there are no labels.
    """
    if not 0 < target <= 1:
        raise UsageError(f"A {wanted} lies above 0 and is at most 1, got {target:g}.")
    if not labeled:
        raise UsageError(f"A {wanted} needs labeled pairs. Add --labels FILE, with --fit_on TEXT.")


@dataclass(frozen=True)
class Share:
    """A share of some pairs, with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, part: float, whole: int, level: float) -> "Share":
        """``part`` of ``whole``, by Clopper and Pearson; of nothing it is unknown, from 0 to 1."""
        if not whole:
            return cls(float("nan"), 0.0, 1.0)
        low = beta.ppf((1 - level) / 2, part, whole - part + 1) if part else 0.0
        high = beta.ppf((1 + level) / 2, part + 1, whole - part) if part < whole else 1.0
        return cls(part / whole, float(low), float(high))

    def __str__(self) -> str:
        """The share and its interval: "0.904 (0.871 to 0.931)"."""
        value = "unknown" if np.isnan(self.value) else f"{self.value:.3f}"
        return f"{value} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Passing:
    """The labeled pairs that pass at a cosine.

    Attributes:
        matches: How many of them are matches.
        others: How many of them are not.
        precision: Share of matches among those that pass.
        recall: Share of the matches that pass.
        passed_others: Share of the other pairs that pass.
    """

    matches: int
    others: int
    precision: Share
    recall: Share
    passed_others: Share

    def __str__(self) -> str:
        """One line."""
        return f"precision {self.precision}, recall {self.recall}"


@dataclass(frozen=True)
class LabeledThreshold:
    """A cosine from which a pair counts as a match.

    Attributes:
        value: The cosine.
        low: Lower end of its interval.
        high: Upper end.
        wanted: "precision" or "recall".
        target: What was wanted of it.
        passing: The labeled pairs that pass at the cosine, with precision and recall.
        level: Confidence of the intervals.
    """

    value: float
    low: float
    high: float
    wanted: str
    target: float
    passing: Passing
    level: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"cosine {self.value:.4f} ({100 * self.level:.0f} % interval {self.low:.4f} to {self.high:.4f}) for a "
            f"{self.wanted} of {self.target:g} (on the labeled pairs {self.passing})"
        )


@dataclass(frozen=True)
class Labeled:
    """Cosines of labeled pairs, the highest first.

    Attributes:
        matches: Cosines of pairs labeled 1.
        others: Cosines of pairs labeled 0.
    """

    matches: tuple[float, ...]
    others: tuple[float, ...]

    @classmethod
    def of(cls, cosines: Float64, labels: Int64) -> "Labeled":
        """The pairs by their label."""
        matches, others = (tuple(np.sort(cosines[labels == label])[::-1].tolist()) for label in (1, 0))
        return cls(matches, others)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.matches) + len(self.others)

    def passing(self, cosine: float, level: float = 0.95) -> Passing:
        """Which pairs have this cosine or a higher one."""
        passed, others = (int((np.array(side) >= cosine).sum()) for side in (self.matches, self.others))
        shares = ((passed, passed + others), (passed, len(self.matches)), (others, len(self.others)))
        return Passing(passed, others, *(Share.of(part, whole, level) for part, whole in shares))

    def threshold(self, wanted: str, target: float, seed: int = 0, level: float = 0.95) -> LabeledThreshold:
        """The cosine from which pairs have a precision or recall.

        Args:
            wanted: "precision" or "recall".
            target: What is wanted of it, in (0, 1].
            seed: Random seed for the resamples.
            level: Confidence of the intervals.

        Raises:
            UsageError: If it is out of range, or no cosine reaches it.
        """
        require_target(wanted, target, len(self) > 0)
        cosines = np.concatenate([self.matches, self.others])
        order = np.argsort(-cosines, kind="stable")
        cosines, labels = cosines[order], (order < len(self.matches)).astype(np.float64)
        last = np.append(cosines[1:] < cosines[:-1], True)  # of those that are equal
        n, rng = len(cosines), np.random.default_rng(seed)

        def chosen(weights: Float64) -> float | None:
            passed, matches = np.cumsum(weights)[last], np.cumsum(weights * labels)[last]
            whole = np.maximum(passed, 1) if wanted == "precision" else max(matches[-1], 1)
            reached = np.flatnonzero(matches / whole >= target)
            if not len(reached):
                return None
            return float(cosines[last][reached[-1 if wanted == "precision" else 0]])

        value = chosen(np.ones(n))
        if value is None:
            best = max((self.passing(cosine) for cosine in cosines[last]), key=lambda one: one.precision.value)
            raise UsageError(
                f"No cosine has a precision of {target:g} on the {n:,} labeled pairs: the highest is "
                f"{best.precision}. Ask for less."
            )
        drawn = (chosen(np.bincount(rng.integers(0, n, n), minlength=n).astype(float)) for _ in range(REDRAWN))
        found = [float(cosines[0]) if one is None else one for one in drawn]
        low, high = (float(end) for end in np.quantile(found, ((1 - level) / 2, (1 + level) / 2)))
        return LabeledThreshold(value, low, high, wanted, target, self.passing(value, level), level)
