"""How Gaussian is z? A flow is done when its latent is standard normal; these numbers say where it is not.

The squared norms should be chi-square with as many degrees of freedom as z has dimensions; each dimension should have
mean 0, variance 1, skewness 0 and excess kurtosis 0; different dimensions should not covary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Gaussianity:
    """Departures of n rows of z from N(0, I); every number is 0 for a perfect fit and endless rows.

    Attributes:
        n: How many rows were looked at.
        norm_ks: Largest gap between the distribution of |z|^2 and chi-square, in [0, 1] (Kolmogorov-Smirnov).
        mean: Root mean square of the means of the dimensions.
        variance: Root mean square of their variances less 1.
        skewness: Root mean square of their skewnesses.
        kurtosis: Root mean square of their excess kurtoses.
        covariance: Root mean square of the covariances of different dimensions.
        sampling: What ``mean`` and ``covariance`` would be for n rows of N(0, I): 1 / sqrt(n).
    """

    n: int
    norm_ks: float
    mean: float
    variance: float
    skewness: float
    kurtosis: float
    covariance: float
    sampling: float


def gaussianity(z: NDArray[np.floating]) -> Gaussianity:
    """Measure the rows z (n, dim), n >= 2."""
    z = np.asarray(z, dtype=np.float64)
    n, dim = z.shape
    covariance = np.cov(z, rowvar=False, bias=True).reshape(dim, dim)
    standard = (z - z.mean(0)) / np.sqrt(np.diag(covariance).clip(min=np.finfo(np.float64).tiny))
    return Gaussianity(
        n=n,
        norm_ks=float(stats.kstest(np.square(z).sum(1), stats.chi2(dim).cdf).statistic),
        mean=_rms(z.mean(0)),
        variance=_rms(np.diag(covariance) - 1),
        skewness=_rms((standard**3).mean(0)),
        kurtosis=_rms((standard**4).mean(0) - 3),
        covariance=_rms(covariance[~np.eye(dim, dtype=bool)]),
        sampling=float(1 / np.sqrt(n)),
    )


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0
