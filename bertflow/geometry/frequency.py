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

from bertflow.encoder.word_vectors import words_of
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Float64
from bertflow.geometry.neighbors import nearest
from bertflow.training.batches import seeded_order

RANKS = ((0, 100), (100, 500), (500, 5000), (5000, 10000))
"""The paper's bins of words by frequency rank, from 0, the end left out."""
NEAREST = (3, 5, 7)
"""The paper's numbers of neighbors."""
FIFTHS = ("rarest fifth", "second", "third", "fourth", "most frequent fifth")
"""Bins of sentences."""
LOOKED_AT = 500
"""Rows of a bin whose neighbors are looked for, at most."""


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
