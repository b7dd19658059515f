"""The table of measures; the sections of a report that are made of whole clouds, and of a flow and its training.

For z ~ N(0, I) of d dimensions |z|^2 / d has the quantiles of chi-square with d degrees of freedom, over d: the points
of the plot then lie on the diagonal. If they rise more steeply, some embeddings lie far out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertflow.geometry import cloud as shape
from bertflow.geometry.cloud import Cloud, K
from bertflow.geometry.explained import LATENT
from bertflow.geometry.report import GeometrySection, listed, rounded
from bertflow.moments import Float64
from bertflow.tables import Table
from bertflow.training.record import gaussianity
from bertflow.training.rows import entropy_rank

CHANCE_OUTLIERS = 0.00135
"""Share of a normal sample above three standard deviations."""
NULL = 1e-5
"""Singular values below this share of the largest are not drawn."""
LEVELS = np.linspace(0.01, 0.99, 99)
"""Probabilities of the quantiles."""
DEPARTURES: Mapping[str, str] = dict(
    zip(("mean", "covariance", "sampling", "variance", "skewness", "kurtosis", "norm_ks"), LATENT, strict=True)
)
"""Departures of a latent from N(0, I), 0 for none, and their column titles."""


@dataclass(frozen=True)
class Measure:
    """One number for a cloud.

    Attributes:
        title: Its name in tables.
        says: What it is and how to read it, in two sentences.
        of: The function that computes it.
        gaussian: Its value, or nearly, for n rows of an isotropic Gaussian of dim dimensions.
    """

    title: str
    says: str
    of: Callable[[Cloud], float]
    gaussian: Callable[[int, int], float] = lambda n, dim: 0.0


MEASURES: Mapping[str, Measure] = {
    "mean_cosine": Measure(
        "mean cosine",
        "Mean cosine of two sentences that have nothing to do with each other. It should be near 0; near 1 all "
        "sentences point the same way.",
        shape.mean_cosine,
    ),
    "largest_cosine_share": Measure(
        "of it, by one coordinate",
        "The part of the mean cosine that comes from a single coordinate. If it is nearly all of it, a few "
        "coordinates make the cone.",
        lambda cloud: float(cloud.cosine_by_coordinate.max()),
    ),
    "mean_length_share": Measure(
        "length of the mean",
        "Length of the mean embedding over the root mean square length of all. At 0 the cloud lies around the "
        "origin; near 1 it lies far to one side of it.",
        shape.mean_length_share,
        lambda n, dim: 1 / math.sqrt(n),
    ),
    "partition_isotropy": Measure(
        "partition isotropy",
        "Smallest over largest partition function, over all principal directions. At 1 the cloud looks alike from "
        "all sides; near 0 one side differs.",
        lambda cloud: math.exp(-np.ptp(shape.log_partition(cloud))),
        lambda n, dim: 1.0,
    ),
    "iso_score": Measure(
        "IsoScore",
        "Share of the directions that the variance uses, from the participation ratio. At 1 all are used alike; at "
        "0 there is only one.",
        shape.iso_score,
        shape.gaussian_iso_score,
    ),
    "participation_ratio": Measure(
        "participation ratio",
        "Over how many directions the variance is spread, from the squares of their shares. Large directions decide "
        "it.",
        shape.participation,
        shape.gaussian_participation,
    ),
    "effective_rank": Measure(
        "effective rank",
        "Over how many directions the variance is spread, from the entropy of their shares. Small directions count "
        "here too.",
        lambda cloud: entropy_rank(cloud.variance_shares),
        shape.gaussian_effective_rank,
    ),
    "top_1_share": Measure(
        "variance in 1 direction",
        "Share of all variance that lies along the largest direction. A large value means that one direction "
        "decides most distances.",
        lambda cloud: float(cloud.variance_shares[0]),
        lambda n, dim: shape.gaussian_top_share(n, dim, 1),
    ),
    "top_10_share": Measure(
        "variance in 10 directions",
        "Share of all variance that lies along the ten largest directions. For a cloud without preferred directions "
        "it is 10 over the dimension, or a little more.",
        lambda cloud: float(cloud.variance_shares[:10].sum()),
        lambda n, dim: shape.gaussian_top_share(n, dim, 10),
    ),
    "outlier_dimensions": Measure(
        "outlier dimensions",
        "Number of coordinates whose size is three standard deviations above that of the others. They weigh most in "
        "every cosine, whatever the sentences say.",
        lambda cloud: float(len(shape.outlier_dimensions(cloud))),
        lambda n, dim: CHANCE_OUTLIERS * dim,
    ),
    "uniformity": Measure(
        "uniformity",
        "Log of the mean of exp(-2 distance^2) over pairs, with all embeddings scaled to length one. The lower, the "
        "more evenly they lie on the sphere.",
        lambda cloud: cloud.uniformity,
        lambda n, dim: -4 + 8 / dim,  # nearly: cosines are N(0, 1/dim)
    ),
    "hub_skewness": Measure(
        "hub skewness",
        f"Skewness of how often a sentence is among the {K} nearest of others. If it is large, a few sentences come "
        "up in nearly every search.",
        shape.hub_skewness,
        lambda n, dim: 1 / math.sqrt(K),
    ),
    "orphans": Measure(
        "orphans",
        f"Share of sentences that are among the {K} nearest of no other. A search that shows {K} results never shows "
        "them.",
        lambda cloud: float((cloud.occurrences == 0).mean()),
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
        (row.title, *(_short(values[key]) for values in [*found.values(), gaussian])) for key, row in MEASURES.items()
    )
    return GeometrySection(
        f"Two sentences that have nothing to do with each other have a mean cosine of "
        f"{listed({name: row['mean_cosine'] for name, row in found.items()})}. The column Gaussian is what {last.n:,} "
        f"rows of an isotropic Gaussian of {last.dim} dimensions would have, or nearly.",
        {"values": found, "gaussian": gaussian, "n": last.n},
        table=Table(("measure", *found, "Gaussian"), lines),
        explained={row.title: row.says for row in MEASURES.values()},
    )


def _short(value: float) -> str:
    """Three decimals, or one where there are two digits before them."""
    return rounded(value, 3 if abs(value) < 10 else 1)


def show_spectrum(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """Singular values of the centered rows, over the largest."""
    spectra = {name: np.sqrt(cloud.variance_shares / cloud.variance_shares[0]) for name, cloud in clouds.items()}
    ratios = {name: shape.participation(cloud) for name, cloud in clouds.items()}
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


def show_hubs(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """How often each sentence is among the nearest neighbors of others."""
    counts = {name: cloud.occurrences for name, cloud in clouds.items()}
    most = {name: int(row.max()) for name, row in counts.items()}
    orphans = {name: MEASURES["orphans"].of(cloud) for name, cloud in clouds.items()}
    n = len(next(iter(counts.values())))
    at_least = {name: np.arange(1.0, most[name] + 1) for name in counts}
    return GeometrySection(
        f"The farther a line reaches to the right, the larger the largest hub: a sentence that is among the {K} "
        f"nearest of {', '.join(f'{value} ({name})' for name, value in most.items())} of {n:,} sentences. The share "
        f"of sentences that are neighbors of no other is {listed(orphans, 3)}.",
        {
            name: {"k": K, "n": n, "skewness": shape.hub_skewness(cloud), "orphans": orphans[name], "most": most[name]}
            for name, cloud in clouds.items()
        },
        lambda plots: plots.curves(
            {name: (at, (counts[name] >= at[:, None]).mean(1)) for name, at in at_least.items()},
            f"at least so often among the {K} nearest of others",
            "share of sentences",
            log="xy",
        ),
        "Share of the sentences that are at least so often among the nearest of others, on logarithmic scales, a line "
        f"for each of {', '.join(counts)}.",
    )


def length_quantiles(z: NDArray[np.floating]) -> tuple[Float64, Float64]:
    """Quantiles (99,) of |z|^2 / dim: those of chi-square, and those of the rows z (n, dim)."""
    z = np.asarray(z, dtype=np.float64)
    dim = z.shape[1]
    return stats.chi2(dim).ppf(LEVELS) / dim, np.quantile(np.square(z).sum(1) / dim, LEVELS)


def length_spread(expected: Float64, observed: Float64) -> float:
    """Distance of the 5 % and 95 % quantiles over that of chi-square; 1 for a Gaussian, above 1 heavy tails."""
    low, high = np.searchsorted(LEVELS, [0.05 - 1e-9, 0.95 - 1e-9])
    return float((observed[high] - observed[low]) / (expected[high] - expected[low]))


def show_latents(latents: Mapping[str, NDArray[np.floating]], order: Sequence[str]) -> GeometrySection:
    """Quantiles of the squared length of the latent, and the departures of its moments.

    Args:
        latents: Rows z (n, dim) of each system that should map to a Gaussian.
        order: All systems of the report, so that each has one color throughout.
    """
    quantiles = {name: length_quantiles(z) for name, z in latents.items()}
    spreads = {name: length_spread(*pair) for name, pair in quantiles.items()}
    departures = {name: vars(gaussianity(z)) for name, z in latents.items()}
    return GeometrySection(
        "A Gaussian would lie on the grey line. The width of the middle 90 % of the squared lengths, over "
        f"that of chi-square, is {listed(spreads, 1)}; above 1 some embeddings lie far out.",
        {
            name: {
                "spread": spreads[name],
                "expected": expected,
                "observed": observed,
                "departures": departures[name],
            }
            for name, (expected, observed) in quantiles.items()
        },
        lambda plots: plots.curves(
            quantiles,
            "quantile of chi-square / degrees of freedom",
            "quantile of squared length / dim",
            reference="a Gaussian",
            order=order,
        ),
        f"Quantiles of the squared length of the latent against those of chi-square, for {', '.join(latents)}.",
        Table(
            ("system", *DEPARTURES.values()),
            tuple((name, *(f"{found[key]:.3f}" for key in DEPARTURES)) for name, found in departures.items()),
        ),
        explained=LATENT,
    )
