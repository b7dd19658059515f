"""What does word frequency do to embeddings? The bias that BERT-flow was made against.

    words      by frequency rank: length, distance to and product with the nearest neighbors      (the paper's table 1)
    sentences  by the mean log frequency of their words: the same, before and after calibration
    plane      the first two directions of the SVD, to be colored by log frequency

Where frequent words lie near the origin and rare ones far out and sparsely, the length and the distance rise from bin
to bin. Neighbors are looked for among all rows, under the measure that is shown.

Source: Li et al. 2020, arXiv:2011.05864, section 2.2 and table 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.static import words_of
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Float64, nearest
from bertflow.geometry.report import GeometrySection, listed
from bertflow.tables import Table
from bertflow.training.rows import seeded_order

RANKS = ((0, 100), (100, 500), (500, 5000), (5000, 10000))
"""The paper's bins of words by frequency rank, from 0, the end left out."""
NEAREST = (3, 5, 7)
"""The paper's numbers of neighbors."""
FIFTHS = ("rarest fifth", "second", "third", "fourth", "most frequent fifth")
"""Bins of sentences."""
LOOKED_AT = 500
"""Rows of a bin whose neighbors are looked for, at most."""
SHOWN_K = 5
"""Of the numbers of neighbors, the one that is drawn."""
INSIDE = 0.99
"""Share of the points up to which the frame of the plane reaches, on each side."""
MARGIN = 0.1
"""Of the frame, over its width."""


@dataclass(frozen=True)
class Bin:
    """Rows of similar frequency.

    Attributes:
        name: Which.
        n: How many rows.
        log_frequency: Mean natural logarithm of their relative frequency.
        length: Mean length of the rows.
        distance: Mean Euclidean distance to the k nearest, by k.
        product: Mean dot product with the k rows of largest product, by k.
    """

    name: str
    n: int
    log_frequency: float
    length: float
    distance: Mapping[int, float]
    product: Mapping[int, float]


def bins(
    x: NDArray[np.floating],
    groups: Mapping[str, NDArray[np.int64]],
    log_frequency: Float64,
    looked_at: int = LOOKED_AT,
    seed: int = 0,
) -> tuple[Bin, ...]:
    """Length and neighborhood of groups of rows.

    Args:
        x: All rows (n, dim), among which neighbors are looked for.
        groups: Row numbers by the name of the group; empty groups are left out.
        log_frequency: Of each row (n,).
        looked_at: Rows of a group whose neighbors are looked for, at most; a seeded choice.
        seed: Of that choice.
    """
    rows64: Float64 = np.asarray(x, dtype=np.float64)
    lengths, found = np.linalg.norm(rows64, axis=1), []
    for name, rows in groups.items():
        if not len(rows):
            continue
        chosen = rows[np.sort(seeded_order(len(rows), seed)[:looked_at])]
        far = np.sqrt(np.maximum(-nearest(rows64, max(NEAREST), "euclidean", chosen)[1], 0))
        products = nearest(rows64, max(NEAREST), "dot", chosen)[1]
        found.append(
            Bin(
                name=name,
                n=len(rows),
                log_frequency=float(log_frequency[rows].mean()),
                length=float(lengths[rows].mean()),
                distance={k: float(far[:, :k].mean()) for k in NEAREST},
                product={k: float(products[:, :k].mean()) for k in NEAREST},
            )
        )
    return tuple(found)


def words_by_rank(
    vectors: NDArray[np.floating], words: Sequence[str], counts: Mapping[str, int], looked_at: int = LOOKED_AT
) -> tuple[Bin, ...]:
    """The paper's table 1: word embeddings by the frequency rank of their words.

    Args:
        vectors: One row a word (n, dim).
        words: The word of each row; distinct.
        counts: How often words occur. Ranks are taken among the words that have both a vector and a count.
        looked_at: Words of a bin whose neighbors are looked for, at most.

    Raises:
        DataError: If fewer words have both than the bins need for their neighbors.
    """
    known = [row for row, word in enumerate(words) if counts.get(word)]
    if len(known) <= max(NEAREST):
        raise DataError(
            f"{len(known)} of {len(words)} words of the vocabulary have a count; {max(NEAREST) + 1} are wanted. Give a "
            "frequency list of the encoder's language, in lower case."
        )
    ranked = np.array(sorted(known, key=lambda row: -counts[words[row]]))
    total = sum(counts.values())
    logs = np.log([max(counts.get(word, 0), 1) / total for word in words])
    groups = {f"{first:,} to {last - 1:,}": ranked[first:last] for first, last in RANKS}
    return bins(vectors, groups, logs, looked_at)


def log_frequencies(sentences: Sequence[str], counts: Mapping[str, int]) -> Float64:
    """Mean log frequency of the words of each sentence (n,); NaN for a sentence without words.

    A word without a count counts as one that occurred once.
    """
    total = sum(counts.values())
    found = [[max(counts.get(word, 0), 1) for word in words_of(sentence.lower())] for sentence in sentences]
    return np.array([np.log(np.array(row) / total).mean() if row else np.nan for row in found])


def fifths(log_frequency: Float64) -> dict[str, NDArray[np.int64]]:
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
    moments = cloud.moments
    second = moments.covariance + np.outer(moments.mean, moments.mean)
    directions = np.linalg.eigh(second)[1][:, ::-1][:, :2]
    directions = directions * np.where(moments.mean @ directions < 0, -1.0, 1.0)
    return cloud.rows(cloud.sample_index) @ directions


def explained_by(coordinates: Float64, log_frequency: Float64) -> float:
    """Share of the variance of the log frequency that a linear function of the coordinates explains, in [0, 1]."""
    known = np.isfinite(log_frequency)
    target = log_frequency[known] - log_frequency[known].mean()
    given = coordinates[known] - coordinates[known].mean(0)
    left = target - given @ np.linalg.lstsq(given, target, rcond=None)[0]
    return float(1 - left @ left / (target @ target)) if target.any() else 0.0


def show_frequency_plane(clouds: Mapping[str, Cloud], log_frequency: Float64, counted: str) -> GeometrySection:
    """Every sentence in the plane of the two largest singular directions, colored by log frequency."""
    points = {name: _scaled(plane(cloud)) for name, cloud in clouds.items()}
    index = next(iter(clouds.values())).sample_index
    frequency = log_frequency[index]
    explained = {name: explained_by(xy, frequency) for name, xy in points.items()}
    frame, outside = _frame(points)
    return GeometrySection(
        "If colors are sorted in space, frequency is what the largest directions encode: the two of them explain "
        f"{listed({name: 100 * value for name, value in explained.items()}, 0, ' %')} of the variance of the mean log "
        f"word frequency ({counted}); the cross is the origin, and {outside} points lie beyond the frame.",
        {"explained": explained, "counts": counted, "beyond_the_frame": outside},
        lambda plots: plots.scatters(
            points,
            plots.Axis("first singular direction"),
            plots.Axis("second"),
            frequency,
            "mean log word frequency",
            frame,
        ),
        f"Sentences in the plane of the two largest singular directions, colored by word frequency; a panel for each "
        f"of {', '.join(points)}.",
    )


def show_sentences_by_frequency(clouds: Mapping[str, Cloud], log_frequency: Float64) -> GeometrySection:
    """Length and neighborhood of sentences, in five bins of word frequency."""
    index = next(iter(clouds.values())).sample_index
    frequency = log_frequency[index]
    groups = fifths(frequency)
    found = {name: bins(cloud.rows(cloud.sample_index), groups, frequency) for name, cloud in clouds.items()}
    distances = {name: _relative([row.distance[SHOWN_K] for row in rows]) for name, rows in found.items()}
    rises = {name: 100 * (values[0] / values[-1] - 1) for name, values in distances.items()}
    lines = tuple(
        (name, row.name, f"{row.length:.2f}", f"{row.distance[SHOWN_K]:.2f}", f"{row.product[SHOWN_K]:.2f}")
        for name, rows in found.items()
        for row in rows
    )
    return GeometrySection(
        "A level line treats rare and frequent words alike; sentences of the rarest words are farther from their "
        f"{SHOWN_K} nearest than those of the most frequent by {listed(rises, 0, ' %')}.",
        {name: [vars(row) for row in rows] for name, rows in found.items()},
        lambda plots: plots.curves(
            {name: (np.arange(float(len(values))), values) for name, values in distances.items()},
            plots.Axis("sentences by the mean log frequency of their words", ticks=tuple(groups)),
            plots.Axis(f"distance to the {SHOWN_K} nearest, over its mean"),
        ),
        f"Mean distance to the nearest sentences by bins of word frequency, a line for each of {', '.join(found)}.",
        Table(
            ("system", "sentences", "length", f"distance to {SHOWN_K} nearest", f"product with {SHOWN_K}"),
            lines,
        ),
    )


def show_words_by_frequency(rows: Sequence[Bin]) -> GeometrySection:
    """The paper's table 1, on this encoder's word embeddings."""
    lengths = [row.length for row in rows]
    rising = all(np.diff(lengths) > 0)
    far = [row.distance[SHOWN_K] for row in rows]
    return GeometrySection(
        "The paper finds that rarer words are longer and farther from their nearest; here lengths are "
        f"{' / '.join(f'{value:.2f}' for value in lengths)} by rank, which {'rise' if rising else 'do not rise'} "
        "throughout.",
        {"bins": [vars(row) for row in rows]},
        lambda plots: plots.curves(
            {
                "length": (np.arange(float(len(rows))), np.array(lengths)),
                f"distance to the {SHOWN_K} nearest": (np.arange(float(len(rows))), np.array(far)),
                f"product with the {SHOWN_K} largest": (
                    np.arange(float(len(rows))),
                    np.array([row.product[SHOWN_K] for row in rows]),
                ),
            },
            plots.Axis("words by frequency rank", ticks=tuple(row.name for row in rows)),
            plots.Axis("mean"),
        ),
        "Mean length, distance to and product with the nearest, of word embeddings by bins of frequency rank.",
        _words_table(rows),
    )


def _words_table(rows: Sequence[Bin]) -> Table:
    header = ["frequency rank", "words", "length"]
    header += [f"distance, {k} nearest" for k in NEAREST] + [f"product, {k} largest" for k in NEAREST]
    lines = [
        (
            row.name,
            f"{row.n:,}",
            f"{row.length:.2f}",
            *(f"{row.distance[k]:.2f}" for k in NEAREST),
            *(f"{row.product[k]:.2f}" for k in NEAREST),
        )
        for row in rows
    ]
    return Table(tuple(header), tuple(lines))


def _scaled(points: Float64) -> Float64:
    """Points of root mean square length one, so that clouds of different scale share their axes."""
    return points / np.sqrt(np.square(points).sum(1).mean())


def _frame(points: Mapping[str, Float64]) -> tuple[Float64, int]:
    """Corners (2, 2) that leave out the ends of every coordinate, and how many points they leave out."""
    ends = [np.quantile(xy, [1 - INSIDE, INSIDE], axis=0) for xy in points.values()]
    low, high = np.min([end[0] for end in ends] + [np.zeros(2)], axis=0), np.max([end[1] for end in ends], axis=0)
    margin = MARGIN * (high - low)
    frame = np.stack([low - margin, high + margin])
    outside = sum(int(((xy < frame[0]) | (xy > frame[1])).any(1).sum()) for xy in points.values())
    return frame, outside


def _relative(values: list[float]) -> Float64:
    return np.array(values) / np.mean(values)
