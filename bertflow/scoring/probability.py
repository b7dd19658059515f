"""Cosines -> probability of a match, learned from labelled pairs: the curves, one row for each method."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from bertflow.errors import DataError

Float64 = NDArray[np.float64]


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
    def fit(cls, cosines: Float64, labels: NDArray[np.int64]) -> "Isotonic":
        """Fit to labelled pairs (n,)."""
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
    def fit(cls, cosines: Float64, labels: NDArray[np.int64]) -> "Logistic":
        """Fit to labelled pairs (n,)."""
        # Standardized, so that the mild penalty, which keeps the slope finite where labels can be separated, means the
        # same for cosines between 0 and 1 and for those between 0.90 and 0.95.
        mean, deviation = cosines.mean(), cosines.std()
        fitted = LogisticRegression().fit(((cosines - mean) / deviation)[:, None], labels)
        slope = float(fitted.coef_[0, 0]) / deviation
        return cls(slope, float(fitted.intercept_[0]) - slope * mean)


CURVES: Mapping[str, type[Isotonic] | type[Logistic]] = {"isotonic": Isotonic, "logistic": Logistic}


@dataclass(frozen=True)
class Probability:
    """Cosines -> probability of a match, among pairs as they were labelled: where matches are rarer, it is too high.

    Attributes:
        method: A row of ``CURVES``.
        curve: Cosines -> probabilities.
        n: Number of labelled pairs.
        matches: How many of them are labelled 1.

    Source: Zadrozny & Elkan 2002 (isotonic); Platt 1999 (logistic).
    """

    method: str
    curve: Isotonic | Logistic
    n: int
    matches: int
