"""The table of measures, and the sections of a report that are made of whole clouds.

A measure is one function of a cloud, whose docstring is what the report says of it, beside its title, and what n rows
of an isotropic Gaussian of d dimensions have.

    partition isotropy    min Z(a) / max Z(a), with Z(a) = sum over rows of exp(a . x), over unit vectors a

The minimum and maximum of Z are taken over the eigenvectors of X^T X, each with both signs, since the sign of an
eigenvector is arbitrary. Z is computed in the log domain, and rows are divided by their root mean square length: Z
depends on the scale, and for rows of length 27 only the largest term of the sum would count.

With the shares p of the variance along the d principal directions,

    participation ratio  PR = 1 / sum(p^2)            from 1 to d
    IsoScore             (PR - 1) / (d - 1)           from 0 to 1
    effective rank       exp(-sum(p log p))           from 1 to d

The published IsoScore rotates, normalizes and takes a distance to the vector of ones; it equals the closed form above.
A finite sample of a perfect Gaussian is not perfectly isotropic: n rows give about 1 / (1 + d/n), or more exactly, with
m = n - 1, the ratio of E tr(S)^2 = d^2 + 2 d/m and E |S|^2 = d + d (d + 1)/m; k directions hold at most k times the
edge of the Marchenko-Pastur law.

Hubs are embeddings that are neighbors of many others, orphans are neighbors of none. With N_k(x) = how many others have
x among their k nearest, and neighbors drawn at random, N_k would be Poisson with mean k: skewness 1/sqrt(k), and a
share of exp(-k) orphans. A search in a space with hubs returns the same few answers, and never the orphans.

A measure is a diagnosis, not the goal: no single measure ranks encoders by how well they compare sentences.

Source: Mu & Viswanath 2018, arXiv:1702.01417, section 2 (partition function, there with one sign and without scaling);
Rudman et al. 2022, arXiv:2108.07344 (IsoScore); Roy & Vetterli 2007 (effective rank, there of singular values); Page
1993, arXiv:gr-qc/9305007, equation 14 (that of a Gaussian); Kovaleva et al. 2021, arXiv:2105.06990 (outlier
dimensions); Radovanovic et al. 2010, "Hubs in space", JMLR 11 (skewness); Flexer & Schnitzer 2015 (orphans).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from bertflow.array_types import Float64
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Clouds, K
from bertflow.geometry.report import GeometrySection, docstring, listed, rounded
from bertflow.tables import Table
from bertflow.training.auto import entropy_rank

CHANCE_OUTLIERS = 0.00135
"""Share of a normal sample above three standard deviations."""
OUTLIER = 3.0
"""Standard deviations, over the coordinates, above which a coordinate is an outlier."""
NULL = 1e-5
"""Singular values below this share of the largest are not drawn."""

Measured = Callable[[Cloud], float]


@dataclass(frozen=True)
class Measure:
    """One number for a cloud.

    Attributes:
        title: Its name in tables.
        of: The function that computes it; its docstring says what it is and how to read it, in two sentences.
        gaussian: Its value, or nearly, for n rows of an isotropic Gaussian of dim dimensions.
    """

    title: str
    of: Measured
    gaussian: Callable[[int, int], float]


MEASURES: dict[str, Measure] = {}
"""Measures by their names in JSON, in the order of the report."""


def measure(
    title: str, gaussian: Callable[[int, int], float] = lambda n, dim: 0.0, name: str = ""
) -> Callable[[Measured], Measured]:
    """Puts a function into ``MEASURES``, by its own name or another one."""

    def added(function: Measured) -> Measured:
        MEASURES[name or function.__name__] = Measure(title, function, gaussian)
        return function

    return added


def gaussian_participation(n: int, dim: int) -> float:
    """The participation ratio of n rows of an isotropic Gaussian: the ratio of the expectations."""
    return (dim * (n - 1) + 2) / (n + dim)


def gaussian_effective_rank(n: int, dim: int) -> float:
    """The effective rank of n rows of an isotropic Gaussian, with m the smaller of n - 1 and d: m exp(-m / 2M)."""
    small, large = sorted((n - 1, dim))
    return small * math.exp(-small / (2 * large))


def gaussian_top_share(n: int, dim: int, k: int) -> float:
    """Share of the variance in k directions of n rows of an isotropic Gaussian, at most."""
    return min(1.0, k * (1 + math.sqrt(dim / n)) ** 2 / dim)


@measure("mean cosine")
def mean_cosine(cloud: Cloud) -> float:
    """Mean cosine of two sentences that have nothing to do with each other.

    It should be near 0; near 1 all sentences point the same way.
    """
    return float(cloud.cosine_by_coordinate.sum())


@measure("of it, by one coordinate")
def largest_cosine_share(cloud: Cloud) -> float:
    """The part of the mean cosine that comes from a single coordinate.

    If it is nearly all of it, a few coordinates make the cone.
    """
    return float(cloud.cosine_by_coordinate.max())


@measure("length of the mean", lambda n, dim: 1 / math.sqrt(n))
def mean_length_share(cloud: Cloud) -> float:
    """Length of the mean embedding over the root mean square length of all.

    At 0 the cloud lies around the origin; near 1 it lies far to one side of it.
    """
    return float(np.linalg.norm(cloud.moments.mean) / math.sqrt(cloud.moments.mean_square_norm))


def log_partition(cloud: Cloud) -> Float64:
    """Log Z(a) for the eigenvectors a of X^T X, then for their opposites (2 dim,)."""
    directions = cloud.directions / math.sqrt(cloud.moments.mean_square_norm)
    z = np.full(2 * cloud.dim, -np.inf)
    for block in cloud.blocks():
        along = block @ directions
        z = np.logaddexp(z, logsumexp(np.hstack([along, -along]), axis=0))
    return z


@measure("partition isotropy", lambda n, dim: 1.0)
def partition_isotropy(cloud: Cloud) -> float:
    """Smallest over largest partition function, over all principal directions.

    At 1 the cloud looks alike from all sides; near 0 one side differs.
    """
    return math.exp(-np.ptp(log_partition(cloud)))


@measure("IsoScore", lambda n, dim: (gaussian_participation(n, dim) - 1) / (dim - 1))
def iso_score(cloud: Cloud) -> float:
    """Share of the directions that the variance uses, from the participation ratio.

    At 1 all are used alike; at 0 there is only one.
    """
    if cloud.dim < 2:
        raise DataError("IsoScore needs embeddings of at least 2 dimensions, got 1. Keep more directions.")
    return (participation(cloud) - 1) / (cloud.dim - 1)


@measure("participation ratio", gaussian_participation, "participation_ratio")
def participation(cloud: Cloud) -> float:
    """Over how many directions the variance is spread, from the squares of their shares. Large directions decide it."""
    return float(1 / np.square(cloud.variance_shares).sum())


@measure("effective rank", gaussian_effective_rank, "effective_rank")
def rank_by_entropy(cloud: Cloud) -> float:
    """Over how many directions the variance is spread, from the entropy of their shares.

    Small directions count here too.
    """
    return entropy_rank(cloud.variance_shares)


@measure("variance in 1 direction", lambda n, dim: gaussian_top_share(n, dim, 1))
def top_1_share(cloud: Cloud) -> float:
    """Share of all variance that lies along the largest direction.

    A large value means that one direction decides most distances.
    """
    return float(cloud.variance_shares[0])


@measure("variance in 10 directions", lambda n, dim: gaussian_top_share(n, dim, 10))
def top_10_share(cloud: Cloud) -> float:
    """Share of all variance that lies along the ten largest directions.

    For a cloud without preferred directions it is 10 over the dimension, or a little more.
    """
    return float(cloud.variance_shares[:10].sum())


@measure("outlier dimensions", lambda n, dim: CHANCE_OUTLIERS * dim)
def outlier_dimensions(cloud: Cloud) -> float:
    """Number of coordinates whose size is three standard deviations above that of the others.

    They weigh most in every cosine, whatever the sentences say.
    """
    sizes = np.sqrt(np.square(cloud.moments.mean) + np.diag(cloud.moments.covariance))
    return float((sizes - sizes.mean() > OUTLIER * sizes.std()).sum())


@measure("uniformity", lambda n, dim: -4 + 8 / dim)  # nearly: cosines are N(0, 1/dim)
def uniformity(cloud: Cloud) -> float:
    """Log of the mean of exp(-2 distance^2) over pairs, with all embeddings scaled to length one.

    The lower, the more evenly they lie on the sphere.
    """
    return cloud.uniformity


@measure("hub skewness", lambda n, dim: 1 / math.sqrt(K))
def hub_skewness(cloud: Cloud) -> float:
    """Skewness of how often a sentence is among the 10 nearest of others.

    If it is large, a few sentences come up in nearly every search.
    """
    return float(stats.skew(cloud.occurrences)) if np.ptp(cloud.occurrences) else 0.0


@measure("orphans", lambda n, dim: math.exp(-K))
def orphans(cloud: Cloud) -> float:
    """Share of sentences that are among the 10 nearest of no other. A search that shows 10 results never shows them."""
    return float((cloud.occurrences == 0).mean())


def measured(cloud: Cloud) -> dict[str, float]:
    """Every measure of a cloud, by its name in ``MEASURES``."""
    return {name: row.of(cloud) for name, row in MEASURES.items()}


def of_gaussian(n: int, dim: int) -> dict[str, float]:
    """Every measure of an isotropic Gaussian, or nearly."""
    return {name: row.gaussian(n, dim) for name, row in MEASURES.items()}


def show_measures(clouds: Clouds) -> GeometrySection:
    """Every measure, by system, beside that of a Gaussian of the last system's width."""
    found = {name: measured(cloud) for name, cloud in clouds.items()}
    last = list(clouds.values())[-1]
    columns = {**found, "Gaussian": of_gaussian(last.n, last.dim)}
    lines = (
        (row.title, *(rounded(values[key], 3 if abs(values[key]) < 10 else 1) for values in columns.values()))
        for key, row in MEASURES.items()
    )
    cosines = {name: values["mean_cosine"] for name, values in found.items()}
    return GeometrySection(
        f"Two sentences that have nothing to do with each other have a mean cosine of {listed(cosines)}. The column "
        f"Gaussian is what {last.n:,} rows of an isotropic Gaussian of {last.dim} dimensions would have, or nearly.",
        {"values": found, "gaussian": columns["Gaussian"], "n": last.n},
        table=Table(("measure", *columns), tuple(lines)),
        explained={row.title: docstring(row.of) for row in MEASURES.values()},
    )


def show_spectrum(clouds: Clouds) -> GeometrySection:
    """Singular values of the centered rows, over the largest."""
    spectra = {name: np.sqrt(cloud.variance_shares / cloud.variance_shares[0]) for name, cloud in clouds.items()}
    ratios = {name: participation(cloud) for name, cloud in clouds.items()}
    drawn = {name: values[values > NULL] for name, values in spectra.items()}
    return GeometrySection(
        "The flatter a line, the more directions carry the variance. The number of directions in use (participation "
        f"ratio) is {listed(ratios, 0)}.",
        {"participation_ratio": ratios, "singular_values": spectra},
        lambda plots: plots.curves(
            {name: (np.arange(1.0, len(values) + 1), values) for name, values in drawn.items()},
            "direction",
            "singular value over the largest",
            log="y",
        ),
        f"Singular values by direction on a logarithmic scale, a line for each of {', '.join(spectra)}.",
    )


def show_hubs(clouds: Clouds) -> GeometrySection:
    """How often each sentence is among the nearest neighbors of others."""
    counts = {name: cloud.occurrences for name, cloud in clouds.items()}
    most = {name: int(row.max()) for name, row in counts.items()}
    alone = {name: orphans(cloud) for name, cloud in clouds.items()}
    n = len(next(iter(counts.values())))
    ranges = {name: np.arange(1.0, most[name] + 1) for name in counts}
    lines = {name: (at, (counts[name] >= at[:, None]).mean(1)) for name, at in ranges.items()}
    return GeometrySection(
        f"The farther a line reaches to the right, the larger the largest hub: a sentence that is among the {K} "
        f"nearest of {', '.join(f'{value} ({name})' for name, value in most.items())} of {n:,} sentences. The share "
        f"of sentences that are neighbors of no other is {listed(alone, 3)}.",
        {
            name: {"k": K, "n": n, "skewness": hub_skewness(cloud), "orphans": alone[name], "most": most[name]}
            for name, cloud in clouds.items()
        },
        lambda plots: plots.curves(
            lines, f"at least so often among the {K} nearest of others", "share of sentences", log="xy"
        ),
        "Share of the sentences that are at least so often among the nearest of others, on logarithmic scales, a line "
        f"for each of {', '.join(counts)}.",
    )
