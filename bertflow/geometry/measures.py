"""The table of measures; the sections of a report that are made of whole clouds, and of a flow and its training.

For z ~ N(0, I) of d dimensions |z|^2 / d has the quantiles of chi-square with d degrees of freedom, over d: the points
of the plot then lie on the diagonal. If they rise more steeply, some embeddings lie far out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertflow.data.pairs import ANY_SCALE, parse_score
from bertflow.data.tables import open_table
from bertflow.errors import DataError
from bertflow.geometry import cloud as shape
from bertflow.geometry.cloud import Cloud, K
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
"""Columns of metrics.csv that are drawn, and their names."""


@dataclass(frozen=True)
class Measure:
    """One number for a cloud.

    Attributes:
        title: Its name in tables.
        says: What it means, in words.
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
        "cosine of two sentences that have nothing to do with each other; near 1 all point one way",
        shape.mean_cosine,
    ),
    "largest_cosine_share": Measure(
        "of it, by one coordinate",
        "what the coordinate that adds most to the mean cosine adds",
        lambda cloud: float(cloud.cosine_by_coordinate.max()),
    ),
    "mean_length_share": Measure(
        "length of the mean",
        "over the root mean square length of the embeddings; 0 is centered",
        shape.mean_length_share,
        lambda n, dim: 1 / math.sqrt(n),
    ),
    "partition_isotropy": Measure(
        "partition isotropy",
        "smallest over largest partition function; 1 looks alike from all directions",
        lambda cloud: math.exp(-np.ptp(shape.log_partition(cloud))),
        lambda n, dim: 1.0,
    ),
    "iso_score": Measure(
        "IsoScore",
        "share of the directions that are used, by the participation ratio; 0 is one direction",
        shape.iso_score,
        shape.gaussian_iso_score,
    ),
    "participation_ratio": Measure(
        "participation ratio",
        "over how many directions the variance is spread; large directions decide",
        shape.participation,
        shape.gaussian_participation,
    ),
    "effective_rank": Measure(
        "effective rank",
        "over how many directions the variance is spread; small directions count too",
        lambda cloud: entropy_rank(cloud.variance_shares),
        shape.gaussian_effective_rank,
    ),
    "top_1_share": Measure(
        "variance in 1 direction",
        "share of the variance along the largest direction",
        lambda cloud: float(cloud.variance_shares[0]),
        lambda n, dim: shape.gaussian_top_share(n, dim, 1),
    ),
    "top_10_share": Measure(
        "variance in 10 directions",
        "share of the variance along the ten largest directions",
        lambda cloud: float(cloud.variance_shares[:10].sum()),
        lambda n, dim: shape.gaussian_top_share(n, dim, 10),
    ),
    "outlier_dimensions": Measure(
        "outlier dimensions",
        "coordinates three standard deviations larger than the others",
        lambda cloud: float(len(shape.outlier_dimensions(cloud))),
        lambda n, dim: CHANCE_OUTLIERS * dim,
    ),
    "uniformity": Measure(
        "uniformity",
        "log mean of exp(-2 distance^2) on the sphere; the lower, the more evenly spread",
        lambda cloud: cloud.uniformity,
        lambda n, dim: -4 + 8 / dim,  # nearly: cosines are N(0, 1/dim)
    ),
    "hub_skewness": Measure(
        "hub skewness",
        f"of how often a sentence is among the {K} nearest of others; large with few hubs",
        shape.hub_skewness,
        lambda n, dim: 1 / math.sqrt(K),
    ),
    "orphans": Measure(
        "orphans",
        f"share of sentences that are among the {K} nearest of none",
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
        (row.title, *(rounded(values[key], 3) for values in [*found.values(), gaussian]), row.says)
        for key, row in MEASURES.items()
    )
    return GeometrySection(
        f"Two sentences that have nothing to do with each other have a mean cosine of "
        f"{listed({name: row['mean_cosine'] for name, row in found.items()})}; the column Gaussian is what {last.n:,} "
        f"rows of an isotropic Gaussian of {last.dim} dimensions would have, or nearly.",
        {"values": found, "gaussian": gaussian, "n": last.n},
        table=Table(("measure", *found, "Gaussian", "what it says"), lines),
    )


def show_spectrum(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """Singular values of the centered rows, over the largest."""
    spectra = {name: np.sqrt(cloud.variance_shares / cloud.variance_shares[0]) for name, cloud in clouds.items()}
    ratios = {name: shape.participation(cloud) for name, cloud in clouds.items()}
    drawn = {name: values[values > NULL] for name, values in spectra.items()}
    return GeometrySection(
        "The flatter a line, the more directions carry the variance; it is spread over as many as "
        f"{listed(ratios, 0)} (participation ratio).",
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
        f"A line that reaches far to the right has hubs, sentences that are neighbors of very many: the largest is "
        f"among the {K} nearest of {', '.join(f'{value} ({name})' for name, value in most.items())} of {n:,} "
        f"sentences, and the share of sentences that are neighbors of no other is {listed(orphans, 3)}.",
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
        "For a Gaussian latent the points lie on the grey line; the middle 90 % of the squared lengths are "
        f"{listed(spreads, 1)} times as wide as those of chi-square.",
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
            "quantile of chi-square, over its degrees of freedom",
            "of the squared length, over dim",
            reference="a Gaussian",
            order=order,
        ),
        f"Quantiles of the squared length of the latent against those of chi-square, for {', '.join(latents)}.",
        Table(
            ("system", *DEPARTURES.values()),
            tuple((name, *(f"{found[key]:.3f}" for key in DEPARTURES)) for name, found in departures.items()),
        ),
    )


def read_history(run: Path | None) -> dict[str, tuple[Float64, Float64]]:
    """Steps and bits per dimension from the metrics.csv of a run, by the rows on which they were measured.

    Raises:
        DataError: If it is not the folder of a run, or fewer than two values of any were logged.
    """
    if run is None or not (path := run / "metrics.csv").is_file():
        raise DataError(f"{run.name if run else 'This'} is not the folder of a training run.")
    table, found = open_table(path), {}
    (step,) = table.require([["step"]], "Is it the log of a training?")
    for column, name in HISTORY.items():
        rows = table.read((step, column)) if column in table.columns else ()
        logged = ((partial(table.bad, number), cells) for number, cells in rows if cells[1])
        points = [[parse_score(cell, ANY_SCALE, bad) for cell in cells] for bad, cells in logged]
        if len(points) > 1:
            steps, bits = np.array(points).T
            found[name] = (steps, bits)
    if not found:
        raise DataError(f"{path} should hold bits per dimension, but fewer than two values were logged. Train longer.")
    return found


def show_training(history: Mapping[str, tuple[Float64, Float64]]) -> GeometrySection:
    """Bits per dimension over the steps of the training."""
    ends = {name: {"first": bits[0], "last": bits[-1], "least": bits.min()} for name, (_, bits) in history.items()}
    told = "; ".join(f"{name} from {row['first']:.3f} to {row['last']:.3f}" for name, row in ends.items())
    return GeometrySection(
        f"Falling lines are a better density: bits per dimension go, {told}. A better density is not yet a better "
        "similarity.",
        ends,
        lambda plots: plots.curves(history, "step of the optimizer", "bits per dimension"),
        f"Bits per dimension over the steps of the training: {', '.join(history)}.",
    )
