"""Over how many directions is the variance spread? Everything here is a function of the moments alone.

With the variances v_1 >= ... >= v_d along the principal directions and their shares p = v / sum(v),

    participation ratio  PR = 1 / sum(p^2)            from 1 to d
    IsoScore             (PR - 1) / (d - 1)           from 0 to 1
    effective rank       exp(-sum(p log p))           from 1 to d

The published IsoScore rotates, normalizes and takes a distance to the vector of ones; it equals the closed form above.
A finite sample of a perfect Gaussian is not perfectly isotropic: n rows give about 1 / (1 + d/n), so a score stands
beside ``gaussian_iso_score(n, d)``.

Source: Rudman et al. 2022, arXiv:2108.07344 (IsoScore); Roy & Vetterli 2007 (effective rank, there of singular values);
Kovaleva et al. 2021, arXiv:2105.06990 (outlier dimensions).
"""

import math

import numpy as np

from bertflow.affine import principal_directions
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Float64
from bertflow.moments import Moments
from bertflow.training.reduction import entropy_rank

OUTLIER = 3.0
"""Standard deviations, over the coordinates, above which a coordinate is an outlier."""


def variance_shares(moments: Moments) -> Float64:
    """Share of the variance along each principal direction (d,), falling; they sum to 1.

    Raises:
        DataError: If all rows are equal.
    """
    variance = np.square(principal_directions(moments)[0])
    if not variance.sum():
        raise DataError(f"All {moments.n} rows are equal, so they have no spectrum. Give different sentences.")
    return variance / variance.sum()


def singular_spectrum(moments: Moments) -> Float64:
    """Singular values of the centered rows over the largest of them (d,), falling from 1."""
    shares = variance_shares(moments)
    return np.sqrt(shares / shares[0])


def participation(cloud: Cloud) -> float:
    """Over how many directions the variance is spread, 1 to d: sums of squares decide, so large directions count."""
    return float(1 / np.square(_shares(cloud)).sum())


def iso_score(cloud: Cloud) -> float:
    """IsoScore, 0 (one direction) to 1 (all alike).

    Raises:
        DataError: For rows of one dimension, which are always isotropic.
    """
    if cloud.dim < 2:
        raise DataError("IsoScore needs embeddings of at least 2 dimensions, got 1. Keep more directions.")
    return (participation(cloud) - 1) / (cloud.dim - 1)


def gaussian_iso_score(n: int, dim: int) -> float:
    """What IsoScore is for n rows of an isotropic Gaussian: the ratio of the expectations in the participation ratio.

    With m = n - 1 degrees of freedom E tr(S)^2 = d^2 + 2 d/m and E |S|^2 = d + d (d + 1)/m.
    """
    return (gaussian_participation(n, dim) - 1) / (dim - 1)


def gaussian_participation(n: int, dim: int) -> float:
    """The participation ratio of n rows of an isotropic Gaussian."""
    return (dim * (n - 1) + 2) / (n + dim)


def effective_rank(cloud: Cloud) -> float:
    """Exponential of the entropy of the variance shares, 1 to d: small directions count more than in participation."""
    return entropy_rank(_shares(cloud))


def gaussian_effective_rank(n: int, dim: int) -> float:
    """The effective rank of n rows of an isotropic Gaussian: m exp(-m / 2M), m the smaller of n - 1 and d, M the other.

    Source: Page 1993, arXiv:gr-qc/9305007, equation 14, the mean entropy of a random spectrum.
    """
    small, large = sorted((n - 1, dim))
    return small * math.exp(-small / (2 * large))


def top_share(cloud: Cloud, k: int = 1) -> float:
    """Share of the variance in the k largest directions, in [0, 1]."""
    return float(_shares(cloud)[:k].sum())


def gaussian_top_share(n: int, dim: int, k: int = 1) -> float:
    """``top_share`` of n rows of an isotropic Gaussian, at most: k times the edge of the Marchenko-Pastur law."""
    return min(1.0, k * (1 + math.sqrt(dim / n)) ** 2 / dim)


def outlier_dimensions(cloud: Cloud) -> list[int]:
    """Coordinates whose root mean square lies ``OUTLIER`` standard deviations above that of the others.

    Mean and standard deviation are taken over the coordinates; an isotropic cloud has none.
    """
    moments = cloud.moments
    sizes = np.sqrt(np.square(moments.mean) + np.diag(moments.covariance))
    return np.flatnonzero(sizes - sizes.mean() > OUTLIER * sizes.std()).tolist()


def _shares(cloud: Cloud) -> Float64:
    return cloud.once("variance shares", lambda: variance_shares(cloud.moments))
