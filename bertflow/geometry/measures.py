"""The table of measures: a number for a cloud of embeddings, what it says, and what a perfect Gaussian would have.

A measure is a diagnosis, not the goal: no single one of them ranks encoders by how well they compare sentences.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bertflow.geometry.cloud import Cloud
from bertflow.geometry.cosine import largest_cosine_share, mean_cosine, mean_length_share
from bertflow.geometry.neighbors import K, hubness
from bertflow.geometry.partition import partition_isotropy
from bertflow.geometry.spectrum import (
    effective_rank,
    gaussian_effective_rank,
    gaussian_iso_score,
    gaussian_participation,
    gaussian_top_share,
    iso_score,
    outlier_dimensions,
    participation,
    top_share,
)
from bertflow.geometry.uniformity import gaussian_uniformity, uniformity

CHANCE_OUTLIERS = 0.00135
"""Share of a normal sample above three standard deviations."""


@dataclass(frozen=True)
class Measure:
    """One number for a cloud.

    Attributes:
        title: As tables call it.
        says: What it means, in words.
        of: Computes it.
        gaussian: Its value, or nearly, for n rows of an isotropic Gaussian of dim dimensions.
        sampled: Whether it looks at ``Cloud.sample`` instead of all rows.
    """

    title: str
    says: str
    of: Callable[[Cloud], float]
    gaussian: Callable[[int, int], float]
    sampled: bool = False


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
        effective_rank,
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
        sampled=True,
    ),
    "hub_skewness": Measure(
        "hub skewness",
        f"of how often a sentence is among the {K} nearest of others; large with few hubs",
        lambda cloud: hubness(cloud).skewness,
        lambda n, dim: 1 / math.sqrt(K),
        sampled=True,
    ),
    "orphans": Measure(
        "orphans",
        f"share of sentences that are among the {K} nearest of none",
        lambda cloud: hubness(cloud).orphans,
        lambda n, dim: math.exp(-K),
        sampled=True,
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
