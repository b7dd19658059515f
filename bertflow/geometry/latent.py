"""Is the latent Gaussian? Quantiles of its squared lengths against those of chi-square, and its departures in numbers.

For z ~ N(0, I) of d dimensions |z|^2 / d has the quantiles of chi-square with d degrees of freedom, over d: the points
of the plot then lie on the diagonal. Points that rise more steeply say that some embeddings lie far out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertflow.geometry.cloud import Float64
from bertflow.training.record import Gaussianity, gaussianity

LEVELS = np.linspace(0.01, 0.99, 99)
"""Probabilities of the quantiles."""


@dataclass(frozen=True)
class Latent:
    """How far rows are from N(0, I).

    Attributes:
        expected: Quantiles (99,) of |z|^2 / d for chi-square.
        observed: Those of the rows.
        departures: Of the moments of the rows.
    """

    expected: Float64
    observed: Float64
    departures: Gaussianity

    @classmethod
    def of(cls, z: NDArray[np.floating]) -> "Latent":
        """Look at rows z (n, dim), n >= 2."""
        z = np.asarray(z, dtype=np.float64)
        dim = z.shape[1]
        observed = np.quantile(np.square(z).sum(1) / dim, LEVELS)
        return cls(stats.chi2(dim).ppf(LEVELS) / dim, observed, gaussianity(z))

    @property
    def spread(self) -> float:
        """Distance of the 5 % and 95 % quantiles over that of chi-square; 1 for a Gaussian, above 1 heavy tails."""
        low, high = np.searchsorted(LEVELS, [0.05 - 1e-9, 0.95 - 1e-9])
        return float((self.observed[high] - self.observed[low]) / (self.expected[high] - self.expected[low]))
