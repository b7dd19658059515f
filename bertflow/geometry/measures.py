"""Measures of a cloud of embeddings: a number, what it says, and its value for a perfect Gaussian.

Cosines of unrelated embeddings. With unit rows u_i and their sum s,

    mean of cos(x_i, x_j) over i != j  =  (|s|^2 - n) / (n (n - 1))

exactly, over all pairs, in O(n d). The same sum splits into coordinates, (s_c^2 - sum_i u_ic^2) / (n (n - 1)): a few
coordinates often hold most of it.

    uniformity            log mean over pairs of exp(-2 |u_i - u_j|^2); the lower, the more uniform
    partition isotropy    min Z(a) / max Z(a), with Z(a) = sum over rows of exp(a . x), over unit vectors a

The minimum and maximum of Z are taken over the eigenvectors of X^T X, each with both signs, since the sign of an
eigenvector is arbitrary. Z is computed in the log domain, and rows are divided by their root mean square length: Z
depends on the scale, and for rows of length 27 only the largest term of the sum would count.

A measure is a diagnosis, not the goal: no single measure ranks encoders by how well they compare sentences.

Source: Ethayarajh 2019, arXiv:1909.00512, section 4 (cosine, there of a sample of pairs); Timkey & van Schijndel 2021,
arXiv:2109.04404, equation 3 (coordinates); Wang & Isola 2020, arXiv:2005.10242, equation 2 (uniformity); Mu & Viswanath
2018, arXiv:1702.01417, section 2 (partition function, there with one sign and without scaling).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from bertflow.geometry.cloud import BLOCK, Cloud, Float64, K, hubness
from bertflow.geometry.report import GeometrySection, listed, rounded
from bertflow.geometry.spectrum import (
    gaussian_effective_rank,
    gaussian_iso_score,
    gaussian_participation,
    gaussian_top_share,
    iso_score,
    outlier_dimensions,
    participation,
    spectral_rank,
    top_share,
)
from bertflow.tables import Table

CHANCE_OUTLIERS = 0.00135
"""Share of a normal sample above three standard deviations."""


def mean_cosine(cloud: Cloud) -> float:
    """Mean cosine of two different rows, over all pairs; 0 is isotropic, 1 is one direction."""
    return float(cosine_by_coordinate(cloud).sum())


def cosine_by_coordinate(cloud: Cloud) -> Float64:
    """What each coordinate adds to the mean cosine (dim,); their sum is the mean cosine."""
    totals = cloud.totals
    return (np.square(totals.unit_sum) - totals.unit_square_sum) / (cloud.n * (cloud.n - 1))


def largest_cosine_share(cloud: Cloud) -> float:
    """What the coordinate that adds most to the mean cosine adds to it; 0 is isotropic."""
    return float(cosine_by_coordinate(cloud).max())


def mean_length_share(cloud: Cloud) -> float:
    """Length of the mean over the root mean square length of the rows, in [0, 1]; 0 is centered."""
    moments = cloud.moments
    return float(np.linalg.norm(moments.mean) / np.sqrt(moments.mean_square_norm))


def random_cosines(cloud: Cloud, pairs: int = 20_000, seed: int = 0) -> Float64:
    """Cosines of random pairs of different sampled rows (pairs,)."""
    rng, n = np.random.default_rng(seed), len(cloud.sample)
    first = rng.integers(n, size=pairs)
    second = (first + 1 + rng.integers(n - 1, size=pairs)) % n
    return np.einsum("pd,pd->p", cloud.sample[first], cloud.sample[second])


def uniformity(cloud: Cloud) -> float:
    """Log mean of exp(-2 |u - v|^2) over all pairs of different sampled rows; at most 0."""
    return cloud.once("uniformity", lambda: _uniformity(cloud.sample))


def _uniformity(units: Float64) -> float:
    n, total = len(units), 0.0
    for start in range(0, n, BLOCK):
        cosines = units[start : start + BLOCK] @ units[start:].T
        # Above the diagonal: each pair once.
        total += float(np.triu(np.exp(4 * cosines - 4), k=1).sum())
    return math.log(2 * total / (n * (n - 1)))


def gaussian_uniformity(n: int, dim: int) -> float:
    """The uniformity of an isotropic Gaussian, nearly: cosines are N(0, 1/dim), so -4 + 8/dim, whatever n."""
    return -4 + 8 / dim


def partition_isotropy(cloud: Cloud) -> float:
    """Smallest over largest partition function, in (0, 1]; 1 is isotropic."""
    z = log_partition(cloud)
    return float(np.exp(z.min() - z.max()))


def log_partition(cloud: Cloud) -> Float64:
    """Log Z(a) for the eigenvectors a of X^T X, then for their opposites (2 dim,)."""
    moments = cloud.moments
    second = moments.covariance + np.outer(moments.mean, moments.mean)
    directions = np.linalg.eigh(second)[1] / np.sqrt(moments.mean_square_norm)
    z = np.full(2 * cloud.dim, -np.inf)
    for block in cloud.blocks():
        along = block @ directions
        found = np.concatenate([logsumexp(along, axis=0), logsumexp(-along, axis=0)])
        z = np.logaddexp(z, found)
    return z


@dataclass(frozen=True)
class Measure:
    """One number for a cloud.

    Attributes:
        title: As tables call it.
        says: What it means, in words.
        of: Computes it.
        gaussian: Its value, or nearly, for n rows of an isotropic Gaussian of dim dimensions.
    """

    title: str
    says: str
    of: Callable[[Cloud], float]
    gaussian: Callable[[int, int], float]


MEASURES: Mapping[str, Measure] = {
    "mean_cosine": Measure(
        "mean cosine",
        "cosine of two sentences that have nothing to do with each other; near 1 all point one way",
        mean_cosine,
        lambda n, dim: 0.0,
    ),
    "largest_cosine_share": Measure(
        "of it, by one coordinate",
        "what the coordinate that adds most to the mean cosine adds",
        largest_cosine_share,
        lambda n, dim: 0.0,
    ),
    "mean_length_share": Measure(
        "length of the mean",
        "over the root mean square length of the embeddings; 0 is centered",
        mean_length_share,
        lambda n, dim: 1 / math.sqrt(n),
    ),
    "partition_isotropy": Measure(
        "partition isotropy",
        "smallest over largest partition function; 1 looks alike from all directions",
        partition_isotropy,
        lambda n, dim: 1.0,
    ),
    "iso_score": Measure(
        "IsoScore",
        "share of the directions that are used, by the participation ratio; 0 is one direction",
        iso_score,
        gaussian_iso_score,
    ),
    "participation_ratio": Measure(
        "participation ratio",
        "over how many directions the variance is spread; large directions decide",
        participation,
        gaussian_participation,
    ),
    "effective_rank": Measure(
        "effective rank",
        "over how many directions the variance is spread; small directions count too",
        spectral_rank,
        gaussian_effective_rank,
    ),
    "top_1_share": Measure(
        "variance in 1 direction",
        "share of the variance along the largest direction",
        top_share,
        gaussian_top_share,
    ),
    "top_10_share": Measure(
        "variance in 10 directions",
        "share of the variance along the ten largest directions",
        lambda cloud: top_share(cloud, 10),
        lambda n, dim: gaussian_top_share(n, dim, 10),
    ),
    "outlier_dimensions": Measure(
        "outlier dimensions",
        "coordinates three standard deviations larger than the others",
        lambda cloud: float(len(outlier_dimensions(cloud))),
        lambda n, dim: CHANCE_OUTLIERS * dim,
    ),
    "uniformity": Measure(
        "uniformity",
        "log mean of exp(-2 distance^2) on the sphere; the lower, the more evenly spread",
        uniformity,
        gaussian_uniformity,
    ),
    "hub_skewness": Measure(
        "hub skewness",
        f"of how often a sentence is among the {K} nearest of others; large with few hubs",
        lambda cloud: hubness(cloud).skewness,
        lambda n, dim: 1 / math.sqrt(K),
    ),
    "orphans": Measure(
        "orphans",
        f"share of sentences that are among the {K} nearest of none",
        lambda cloud: hubness(cloud).orphans,
        lambda n, dim: math.exp(-K),
    ),
}


def measured(cloud: Cloud) -> dict[str, float]:
    """Every measure of a cloud, by its name in ``MEASURES``."""
    return {name: measure.of(cloud) for name, measure in MEASURES.items()}


def of_gaussian(n: int, dim: int) -> dict[str, float]:
    """Every measure of an isotropic Gaussian, or nearly.

    Hubness is that of neighbors drawn at random: a Gaussian has a little more of it.
    """
    return {name: measure.gaussian(n, dim) for name, measure in MEASURES.items()}


def show_measures(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """Every measure, by system, beside that of a Gaussian of the last system's width."""
    found = {name: measured(cloud) for name, cloud in clouds.items()}
    last = list(clouds.values())[-1]
    gaussian = of_gaussian(last.n, last.dim)
    lines = tuple(
        (row.title, *(rounded(found[name][key], 3) for name in found), rounded(gaussian[key], 3), row.says)
        for key, row in MEASURES.items()
    )
    return GeometrySection(
        f"Two sentences that have nothing to do with each other have a mean cosine of "
        f"{listed({name: row['mean_cosine'] for name, row in found.items()})}; the column Gaussian is what {last.n:,} "
        f"rows of an isotropic Gaussian of {last.dim} dimensions would have, or nearly.",
        {"values": found, "gaussian": gaussian, "n": last.n},
        table=Table(("measure", *found, "Gaussian", "what it says"), lines),
    )
