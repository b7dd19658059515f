"""How near are embeddings to an isotropic Gaussian: their spectrum, and for the latent of a flow its squared lengths.

The spectrum is a function of the moments alone: over how many directions is the variance spread?

With the variances v_1 >= ... >= v_d along the principal directions and their shares p = v / sum(v),

    participation ratio  PR = 1 / sum(p^2)            from 1 to d
    IsoScore             (PR - 1) / (d - 1)           from 0 to 1
    effective rank       exp(-sum(p log p))           from 1 to d

The published IsoScore rotates, normalizes and takes a distance to the vector of ones; it equals the closed form above.
A finite sample of a perfect Gaussian is not perfectly isotropic: n rows give about 1 / (1 + d/n), so a score stands
beside ``gaussian_iso_score(n, d)``.

For z ~ N(0, I) of d dimensions |z|^2 / d has the quantiles of chi-square with d degrees of freedom, over d: the points
of the plot then lie on the diagonal. If they rise more steeply, some embeddings lie far out.

Source: Rudman et al. 2022, arXiv:2108.07344 (IsoScore); Roy & Vetterli 2007 (effective rank, there of singular values);
Kovaleva et al. 2021, arXiv:2105.06990 (outlier dimensions).
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertflow.affine import principal_directions
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Float64
from bertflow.geometry.report import GeometrySection, listed
from bertflow.moments import Moments
from bertflow.tables import Table
from bertflow.training.recipe import Gaussianity, gaussianity
from bertflow.training.rows import entropy_rank

OUTLIER = 3.0
"""Standard deviations, over the coordinates, above which a coordinate is an outlier."""
NULL = 1e-5
"""Singular values below this share of the largest are not drawn."""
LEVELS = np.linspace(0.01, 0.99, 99)
"""Probabilities of the quantiles."""
DEPARTURES: Mapping[str, str] = {
    "mean": "means",
    "covariance": "covariances",
    "sampling": "of them, by chance",
    "variance": "variances",
    "skewness": "skewness",
    "kurtosis": "excess kurtosis",
    "norm_ks": "lengths (KS)",
}
"""Departures of a latent from N(0, I), 0 for none, and their column titles."""
HISTORY: Mapping[str, str] = {"train/bits_per_dim": "training", "val/bits_per_dim": "held out"}
"""Columns of metrics.csv that are drawn, and what they are called."""
History = Mapping[str, tuple[Float64, Float64]]
"""Steps and bits per dimension, by what they were measured on."""


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


def spectral_rank(cloud: Cloud) -> float:
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


@dataclass(frozen=True)
class Latent:
    """How far rows are from N(0, I).

    Attributes:
        expected: Quantiles (99,) of |z|^2 / d for chi-square.
        observed: Those of the rows.
        departures: Departures of the moments of the rows.
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


def read_history(path: Path) -> History:
    """Steps and bits per dimension, by what they were measured on.

    Raises:
        DataError: If fewer than two values of any were logged.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for column, name in HISTORY.items():
        points = [(float(row["step"]), float(row[column])) for row in rows if row.get(column)]
        if len(points) > 1:
            steps, bits = np.array(points).T
            found[name] = (steps, bits)
    if not found:
        raise DataError(f"{path} should hold bits per dimension, but fewer than two values were logged. Train longer.")
    return found


def show_spectrum(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """Singular values of the centered rows, over the largest."""
    spectra = {name: singular_spectrum(cloud.moments) for name, cloud in clouds.items()}
    ratios = {name: participation(cloud) for name, cloud in clouds.items()}
    drawn = {name: values[values > NULL] for name, values in spectra.items()}
    return GeometrySection(
        "The flatter a line, the more directions carry the variance; it is spread over as many as "
        f"{listed(ratios, 0)} (participation ratio).",
        {"participation_ratio": ratios, "singular_values": {name: row.tolist() for name, row in spectra.items()}},
        lambda plots: plots.curves(
            {name: (np.arange(1.0, len(values) + 1), values) for name, values in drawn.items()},
            plots.Axis("direction"),
            plots.Axis("singular value over the largest", log=True),
        ),
        f"Singular values by direction on a logarithmic scale, a line for each of {', '.join(spectra)}.",
    )


def show_latents(found: Mapping[str, Latent], order: Sequence[str]) -> GeometrySection:
    """Quantiles of the squared length of the latent, and the departures of its moments.

    Args:
        found: The latent of some systems.
        order: All systems of the report, so that each has one color throughout.
    """
    header = ("system", *DEPARTURES.values())
    lines = tuple((name, *(f"{getattr(row.departures, key):.3f}" for key in DEPARTURES)) for name, row in found.items())
    spreads = {name: row.spread for name, row in found.items()}
    return GeometrySection(
        "For a Gaussian latent the points lie on the grey line; the middle 90 % of the squared lengths are "
        f"{listed(spreads, 1)} times as wide as those of chi-square.",
        {
            name: {
                "spread": row.spread,
                "expected": row.expected.tolist(),
                "observed": row.observed.tolist(),
                "departures": vars(row.departures),
            }
            for name, row in found.items()
        },
        lambda plots: plots.curves(
            {name: (row.expected, row.observed) for name, row in found.items()},
            plots.Axis("quantile of chi-square, over its degrees of freedom"),
            plots.Axis("of the squared length, over dim"),
            reference="a Gaussian",
            order=order,
        ),
        f"Quantiles of the squared length of the latent against those of chi-square, for {', '.join(found)}.",
        Table(header, lines),
    )


def show_training(history: History) -> GeometrySection:
    """Bits per dimension over the steps of the training."""
    ends = {name: (float(bits[0]), float(bits[-1]), float(bits.min())) for name, (_, bits) in history.items()}
    told = "; ".join(f"{name} from {first:.3f} to {last:.3f}" for name, (first, last, _) in ends.items())
    return GeometrySection(
        f"Falling lines are a better density: bits per dimension go, {told}. A better density is not yet a better "
        "similarity.",
        {name: {"first": first, "last": last, "least": least} for name, (first, last, least) in ends.items()},
        lambda plots: plots.curves(
            dict(history), plots.Axis("step of the optimizer"), plots.Axis("bits per dimension")
        ),
        f"Bits per dimension over the steps of the training: {', '.join(history)}.",
    )
