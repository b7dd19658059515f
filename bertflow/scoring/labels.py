"""From cosines to the probability of a match, by labelled pairs: isotonic or logistic.

Both rise with the cosine, so they leave every ranking as it is. The probability is one among pairs as they were
labelled: where matches are rarer than there, it is too high.

    isotonic    a staircase, no shape assumed; wants a thousand pairs
    logistic    1 / (1 + exp(-(slope s + intercept)));  for fewer

Source: Zadrozny & Elkan 2002; Platt 1999.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from bertflow.errors import DataError
from bertflow.registry import lookup

Float64 = NDArray[np.float64]
ENOUGH = 1000
"""Labelled pairs from which "auto" is isotonic."""
FEWEST = 20
"""Labelled pairs below which nothing is fitted."""


@dataclass(frozen=True)
class Isotonic:
    """A rising line through knots, flat outside them."""

    cosines: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, cosines: Float64) -> Float64:
        """Probabilities, in [0, 1]."""
        return np.interp(cosines, self.cosines, self.values)


@dataclass(frozen=True)
class Logistic:
    """The logistic function of ``slope * cosine + intercept``."""

    slope: float
    intercept: float

    def __call__(self, cosines: Float64) -> Float64:
        """Probabilities, in (0, 1)."""
        return expit(self.slope * cosines + self.intercept)


Curve = Isotonic | Logistic
CURVES: Mapping[str, type[Isotonic] | type[Logistic]] = {"isotonic": Isotonic, "logistic": Logistic}


def _fit_isotonic(cosines: Float64, labels: NDArray[np.int64]) -> Isotonic:
    # n pairs cannot show a probability of 0 or 1.
    edge = 1 / (len(labels) + 2)
    fitted = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip").fit(cosines, labels)
    return Isotonic(tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))


def _fit_logistic(cosines: Float64, labels: NDArray[np.int64]) -> Logistic:
    # Standardized, so that the mild penalty, which keeps the slope finite where labels can be separated, has one
    # meaning for cosines between 0 and 1 and for those between 0.90 and 0.95.
    mean, deviation = cosines.mean(), cosines.std()
    fitted = LogisticRegression().fit(((cosines - mean) / deviation)[:, None], labels)
    slope = float(fitted.coef_[0, 0]) / deviation
    return Logistic(slope, float(fitted.intercept_[0]) - slope * mean)


FITS: Mapping[str, Callable[[Float64, NDArray[np.int64]], Curve]] = {
    "isotonic": _fit_isotonic,
    "logistic": _fit_logistic,
}
"""How a curve is fitted, by name."""


@dataclass(frozen=True)
class Probability:
    """A fitted curve, and what it was fitted on.

    Attributes:
        method: A row of ``CURVES``.
        curve: Cosines -> probabilities.
        n: Labelled pairs.
        matches: Those labelled 1.
    """

    method: str
    curve: Curve
    n: int
    matches: int

    @classmethod
    def fit(cls, cosines: NDArray[np.floating], labels: NDArray[np.integer], method: str = "auto") -> "Probability":
        """Fit to labelled pairs (n,), labels 0 and 1.

        Raises:
            UnknownNameError: For an unknown method.
            DataError: If there are fewer than ``FEWEST`` pairs, only one label, or matches have no higher cosines.
        """
        s, y = np.asarray(cosines, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        if s.shape != y.shape or s.ndim != 1 or len(s) < FEWEST:
            raise DataError(
                f"A probability needs at least {FEWEST} cosines and as many labels, got shapes {s.shape} and "
                f"{y.shape}. Label more pairs."
            )
        if set(np.unique(y).tolist()) != {0, 1}:
            raise DataError(f"Labels should be 0 and 1, both of them, got {np.unique(y).tolist()}. Repair the labels.")
        if s[y == 1].mean() <= s[y == 0].mean():
            raise DataError(
                f"Matches should have higher cosines, but their mean is {s[y == 1].mean():.3f} and that of the others "
                f"{s[y == 0].mean():.3f}. Are the labels the wrong way round? Else cosines say nothing here."
            )
        name = ("isotonic" if len(s) >= ENOUGH else "logistic") if method == "auto" else method
        return cls(name, lookup("method", FITS, name)(s, y), len(y), int(y.sum()))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"method": self.method, "curve": vars(self.curve), "n": self.n, "matches": self.matches}
