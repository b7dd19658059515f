"""What word frequency does to embeddings: the bias against which BERT-flow was made.

    words      by frequency rank: length, distance to and product with the nearest neighbors      (the paper's table 1)
    sentences  by the mean log frequency of their words: the same, before and after calibration
    plane      the first two directions of the SVD, colored by log frequency

Where frequent words lie near the origin, and rare words far out and sparsely, length and distance rise from bin to bin.
Neighbors are searched for among all rows, by the measure that is shown.

Source: Li et al. 2020, arXiv:2011.05864, section 2.2 and table 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LinearRegression

from bertflow.array_types import Float64, Floats, Int64
from bertflow.correlation import FEWEST, fisher_interval, spearman
from bertflow.data.corpus import drawn_rows, words_of
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Clouds, Counts, nearest
from bertflow.geometry.measures import mean_length_share
from bertflow.geometry.report import GeometrySection, attributes, listed
from bertflow.tables import MISSING, Table

RANKS = ((0, 100), (100, 500), (500, 5000), (5000, 10000))
"""The paper's bins of words by frequency rank: first rank, and the rank after the last."""
NEAREST = (3, 5, 7)
"""The paper's numbers of neighbors."""
FIFTHS = ("rarest fifth", "second", "third", "fourth", "most frequent fifth")
"""Bins of sentences."""
LOOKED_AT = 500
"""Largest number of rows of a bin whose neighbors are searched for."""
SHOWN_K = 5
"""Number of neighbors in the pictures."""
SAME_LENGTH = 1e-5
"""Rows whose lengths differ by less than this share have one length, up to rounding."""
INSIDE = 0.99
"""Quantile of the points up to which the frame of the plane reaches, on each side."""
MARGIN = 0.1
"""Width of the margin over that of the frame."""


@dataclass(frozen=True)
class Bin:
    """Rows of similar frequency.

    Attributes:
        name: Name of the bin.
        n: Number of rows.
        log_frequency: Mean natural logarithm of their relative frequency.
        length: Mean Euclidean length of the embeddings. Where it is the same in all rows, word frequency does not
            decide how far from the origin they lie.
        distance: Mean Euclidean distance to the nearest embeddings. The larger, the emptier the space around them.
        product: Mean dot product with the embeddings where it is largest. It grows with the lengths, which a cosine
            does not.
    """

    name: str
    n: int
    log_frequency: float
    length: float
    distance: Mapping[int, float]
    product: Mapping[int, float]

    def cells(self, ks: Sequence[int]) -> list[str]:
        """Length, distances and products for tables."""
        values = [self.length, *(self.distance[k] for k in ks), *(self.product[k] for k in ks)]
        return [f"{value:.2f}" for value in values]


NEIGHBORHOOD = {name: attributes(Bin)[name] for name in ("length", "distance", "product")}
"""What the numbers of a bin are, and how to read them."""


def bins(x: Floats, groups: Mapping[str, Int64], log_frequency: Float64) -> tuple[Bin, ...]:
    """Length and neighborhood of groups of rows.

    Args:
        x: All rows (n, dim), among which neighbors are searched for.
        groups: Row numbers by the name of the group; empty groups are left out. Neighbors are searched for of at most
            ``LOOKED_AT`` rows of a group.
        log_frequency: Log frequency of each row (n,).
    """
    x64: Float64 = np.asarray(x, dtype=np.float64)
    found = []
    for name, rows in groups.items():
        if len(rows):
            chosen = rows[drawn_rows(len(rows), LOOKED_AT, 0)]
            far, near = (nearest(x64, max(NEAREST), by, chosen)[1] for by in ("euclidean", "dot"))
            distance, product = ({k: float(side[:, :k].mean()) for k in NEAREST} for side in (-far, near))
            length = float(np.linalg.norm(x64[rows], axis=1).mean())
            found.append(Bin(name, len(rows), float(log_frequency[rows].mean()), length, distance, product))
    return tuple(found)


@dataclass(frozen=True)
class LengthTrend:
    """How the length of rows goes with log frequency: below 0, what is frequent lies near the origin.

    Attributes:
        n: Number of rows that have a frequency.
        spearman: Spearman's correlation of both; None where all rows have one length, as after scaling to it.
        low: Lower end of its 95 % interval (``bertflow.correlation.fisher_interval``).
        high: Upper end.
    """

    n: int
    spearman: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, x: Floats, log_frequency: Float64) -> "LengthTrend":
        """Trend of rows (n, dim) with their log frequencies (n,), NaN where there is none."""
        known = np.isfinite(log_frequency)
        lengths = np.linalg.norm(np.asarray(x, dtype=np.float64)[known], axis=1)
        frequency, n = log_frequency[known], len(lengths)
        if n < FEWEST or np.ptp(lengths) <= SAME_LENGTH * lengths.max() or not np.ptp(frequency):
            return cls(n)
        value = spearman(lengths, frequency)
        return cls(n, value, *fisher_interval(value, n))

    def __str__(self) -> str:
        """The correlation and its interval, for tables and sentences."""
        if self.spearman is None:
            return MISSING
        ends = "" if self.low is None or self.high is None else f" ({self.low:+.2f} to {self.high:+.2f})"
        return f"{self.spearman:+.2f}{ends}"


def words_by_rank(words: Sequence[str], vectors: Floats, counts: Counts) -> tuple[Bin, ...]:
    """The paper's table 1: word embeddings by the frequency rank of their words.

    Args:
        words: Distinct words.
        vectors: Their vectors (n, dim).
        counts: How often words occur. Ranks are taken among the words that have both a vector and a count.

    Raises:
        DataError: If too few words have both for the numbers of neighbors.
    """
    known = [row for row, word in enumerate(words) if counts.get(word)]
    if len(known) <= max(NEAREST):
        raise DataError(
            f"{len(known)} of {len(words)} words of the vocabulary have a count; {max(NEAREST) + 1} are wanted. "
            "Give a frequency list of the encoder's language, in lower case."
        )
    ranked = np.array(sorted(known, key=lambda row: -counts[words[row]]))
    logs = np.log(np.array([max(counts.get(word, 0), 1) for word in words]) / sum(counts.values()))
    return bins(vectors, {f"{first:,} to {last - 1:,}": ranked[first:last] for first, last in RANKS}, logs)


def log_frequencies(sentences: Sequence[str], counts: Counts) -> Float64:
    """Mean log frequency of the words of each sentence (n,); NaN for a sentence without words.

    A word without a count counts as one that occurred once.
    """
    total = sum(counts.values())
    found = [[max(counts.get(word, 0), 1) for word in words_of(sentence.lower())] for sentence in sentences]
    return np.array([np.log(np.array(row) / total).mean() if row else np.nan for row in found])


def fifths(log_frequency: Float64) -> dict[str, Int64]:
    """Rows in five bins of equal size by rising log frequency; rows without one are in none."""
    order = np.argsort(log_frequency, kind="stable")[: int(np.isfinite(log_frequency).sum())]
    return dict(zip(FIFTHS, np.array_split(order, len(FIFTHS)), strict=True))


def plane(cloud: Cloud) -> Float64:
    """The sampled rows (not scaled) in the plane of the two largest singular directions of all rows (m, 2).

    The rows are not centered, so a cone shows as a cloud beside the origin; the mean lies at positive coordinates.

    Raises:
        DataError: For rows of one dimension.
    """
    if cloud.dim < 2:
        raise DataError(f"A plane needs embeddings of at least 2 dimensions, got {cloud.dim}. Keep more directions.")
    directions = cloud.directions[:, :2]
    return cloud.rows(cloud.sample_index) @ (directions * np.where(cloud.moments.mean @ directions < 0, -1.0, 1.0))


def explained_by(coordinates: Float64, log_frequency: Float64) -> float:
    """Share of the variance of the log frequency that a linear function of the coordinates explains, in [0, 1]."""
    known = np.isfinite(log_frequency)
    given, target = coordinates[known], log_frequency[known]
    return float(LinearRegression().fit(given, target).score(given, target)) if np.ptp(target) else 0.0


def show_plane(clouds: Clouds, log_frequency: Float64, counted: str) -> GeometrySection:
    """Every sentence in the plane of the two largest singular directions, colored by log frequency."""
    planes = {name: plane(cloud) for name, cloud in clouds.items()}
    # Of root mean square length one, so that clouds of different scale share their axes.
    points = {name: xy / np.sqrt(np.square(xy).sum(1).mean()) for name, xy in planes.items()}
    frequency = log_frequency[next(iter(clouds.values())).sample_index]
    explained = {name: explained_by(xy, frequency) for name, xy in points.items()}
    frame, outside = _frame(points)
    percent = {name: 100 * value for name, value in explained.items()}
    return GeometrySection(
        f"The two largest directions explain {listed(percent, 0, ' %')} of the variance of the mean log word frequency "
        f"({counted}). The more they explain, the more the colors are sorted. The cross is the origin; "
        f"{_beside(clouds)}. {outside} points lie beyond the frame.",
        {"explained": explained, "counts": counted, "beyond_the_frame": outside},
        lambda plots: plots.scatters(
            points, "first singular direction", "second", frequency, "mean log word frequency", frame
        ),
        f"Sentences in the plane of the two largest singular directions, colored by word frequency; a panel for each "
        f"of {', '.join(points)}.",
    )


def _beside(clouds: Clouds) -> str:
    """Where the clouds lie: beside the origin where their mean is longer than their rows stray from it."""
    beside = [name for name, cloud in clouds.items() if mean_length_share(cloud) > math.sqrt(0.5)]
    around = [name for name in clouds if name not in beside]
    parts = [(beside, "beside it"), (around, "around it")]
    return " and ".join(
        f"{', '.join(names)} {'lies' if len(names) == 1 else 'lie'} {where}" for names, where in parts if names
    )


def _frame(points: Mapping[str, Float64]) -> tuple[Float64, int]:
    """Corners (2, 2) that leave out the ends of every coordinate, and how many points they leave out."""
    ends = np.array([np.quantile(xy, [1 - INSIDE, INSIDE], axis=0) for xy in points.values()])
    low, high = ends[:, 0].min(0).clip(max=0), ends[:, 1].max(0)
    margin = MARGIN * (high - low)
    frame = np.stack([low - margin, high + margin])
    return frame, sum(int(((xy < frame[0]) | (xy > frame[1])).any(1).sum()) for xy in points.values())


def show_sentences(clouds: Clouds, log_frequency: Float64) -> GeometrySection:
    """Length and neighborhood of sentences, in five bins of word frequency."""
    frequency = log_frequency[next(iter(clouds.values())).sample_index]
    groups = fifths(frequency)
    rows_of = {name: cloud.rows(cloud.sample_index) for name, cloud in clouds.items()}
    found = {name: bins(x, groups, frequency) for name, x in rows_of.items()}
    trends = {name: LengthTrend.of(x, frequency) for name, x in rows_of.items()}
    distances = {name: np.array([row.distance[SHOWN_K] for row in rows]) for name, rows in found.items()}
    rises = {name: 100 * (values[0] / values[-1] - 1) for name, values in distances.items()}
    told = ", ".join(
        f"{abs(value):.0f} % {'larger' if value > 0 else 'smaller'} ({name})" for name, value in rises.items()
    )
    return GeometrySection(
        "Compared with sentences of the most frequent words, those of the rarest words have a distance to their "
        f"{SHOWN_K} nearest that is {told}. A level line treats both alike. Spearman's correlation of length and "
        f"frequency, with its 95 % interval: {', '.join(f'{name} {trend}' for name, trend in trends.items())}.",
        {**found, "length_and_frequency": trends},
        lambda plots: plots.curves(
            {name: values / values.mean() for name, values in distances.items()},
            "sentences by the mean log frequency of their words",
            f"distance to the {SHOWN_K} nearest, over its mean",
            ticks=tuple(groups),
        ),
        f"Mean distance to the nearest sentences by bins of word frequency, a line for each of {', '.join(found)}.",
        Table(
            ("system", "sentences", "length", f"distance to {SHOWN_K} nearest", f"product with {SHOWN_K}"),
            tuple((name, row.name, *row.cells([SHOWN_K])) for name, rows in found.items() for row in rows),
        ),
        explained=NEIGHBORHOOD,
    )


def show_words(words: Sequence[str], vectors: Floats, counts: Counts) -> GeometrySection:
    """The paper's table 1, on this encoder's word embeddings; see ``words_by_rank``."""
    rows, known = words_by_rank(words, vectors, counts), np.array([counts.get(word, 0) for word in words])
    trend = LengthTrend.of(vectors, np.log(np.where(known > 0, known, np.nan)))
    lines = {
        "length": [row.length for row in rows],
        f"distance to the {SHOWN_K} nearest": [row.distance[SHOWN_K] for row in rows],
        f"product with the {SHOWN_K} largest": [row.product[SHOWN_K] for row in rows],
    }
    measured = [f"distance, {k} nearest" for k in NEAREST] + [f"product, {k} largest" for k in NEAREST]
    header = ("frequency rank", "words", "length", *measured)
    return GeometrySection(
        "The paper finds that rarer words are longer and farther from their nearest; here lengths are "
        f"{' / '.join(f'{value:.2f}' for value in lines['length'])} by rank, which "
        f"{'rise' if all(np.diff(lines['length']) > 0) else 'do not rise'} throughout. Spearman of length and log "
        f"frequency over {trend.n:,} words, with its 95 % interval: {trend}.",
        {"bins": rows, "length_and_frequency": trend},
        lambda plots: plots.curves(lines, "words by frequency rank", "mean", ticks=[row.name for row in rows]),
        "Mean length, distance to and product with the nearest, of word embeddings by bins of frequency rank.",
        Table(header, tuple((row.name, f"{row.n:,}", *row.cells(NEAREST)) for row in rows)),
        explained=NEIGHBORHOOD,
    )
