"""Are embeddings of the space that a calibrator was fitted on? What its moments tell, where nothing else is known.

    length      root mean square length of the rows, over that of the fit
    mean        correlation of the two means, over the coordinates
    sizes       correlation of the logarithms of the root mean square, over the coordinates
    spectrum    overlap of the covariances, tr(AB) / (|A| |B|): 1 if they are proportional

Every encoder leaves a mark in its coordinates: some are large and some far from zero, whatever the text. Other text of
the same encoder changes the last three less, on average, than another encoder does (benchmarks/EXPLORED.md). Of few
coordinates nothing can be said but their lengths.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from bertflow.array_types import Float64, Floats
from bertflow.errors import DataError, logger
from bertflow.maps import unit
from bertflow.moments import BLOCK, UNIT, Moments

LONGER = 3.0
"""Ratio of lengths from which rows are of another space. Other text was up to 2.6 times as long."""
CERTAIN, DOUBTFUL = 0.12, 0.35
"""Averages of mean, sizes and spectrum below which a space is another, or perhaps another."""
TYPICAL = 0.47
"""The least average that was measured for other text of several kinds by the same encoder."""
FEWEST, NARROWEST = 16, 128
"""Rows and coordinates below which only lengths are compared."""
SOME = 16
"""Rows whose lengths are looked at first."""
FAR = 1.5
"""Ratio of lengths from which rows of unit length are refused."""


@dataclass(frozen=True)
class Likeness:
    """Rows beside the moments of a fit; what could not be compared is 1.

    Attributes:
        length: Root mean square length of the rows, over that of the fit.
        mean: Correlation of the means over the coordinates, in [-1, 1].
        sizes: Correlation of the log root mean squares over the coordinates, in [-1, 1].
        spectrum: Overlap of the covariances, about 0 to 1.
    """

    length: float
    mean: float = 1.0
    sizes: float = 1.0
    spectrum: float = 1.0

    @property
    def average(self) -> float:
        """Mean of the three that do not depend on length."""
        return (self.mean + self.sizes + min(self.spectrum, 1.0)) / 3

    def __str__(self) -> str:
        return (
            f"over the coordinates the means correlate by {self.mean:.2f} and the sizes by {self.sizes:.2f}, and the "
            f"covariances overlap by {self.spectrum:.2f}: {self.average:.2f} on average, where other text by the same "
            f"encoder has {TYPICAL} or more"
        )


def likeness(rows: Floats, moments: Moments) -> Likeness:
    """Compare rows (n, dim) with those of a fit; rows of zeros do not count.

    Where the rows of the fit had unit length, the rows are brought to unit length first, as they are when calibrated.
    """
    x = np.asarray(rows, dtype=np.float64)
    x = x[x.any(1)]
    if not len(x) or not moments.mean_square_norm:
        return Likeness(1.0)
    if moments.unit:
        x = unit(torch.from_numpy(x)).numpy()
    seen = Moments.of(x)
    length = math.sqrt(seen.mean_square_norm / moments.mean_square_norm)
    if seen.n < FEWEST or seen.dim < NARROWEST:
        return Likeness(length)
    squares = (np.diagonal(side.covariance) + np.square(side.mean) for side in (seen, moments))
    sizes = (np.log(np.maximum(np.sqrt(one), np.finfo(np.float64).tiny)) for one in squares)
    return Likeness(
        length,
        _correlation(seen.mean, moments.mean),
        _correlation(*sizes),
        _overlap(x, seen, moments),
    )


def require_alike(rows: Floats, moments: Moments, what: str, do: str, any_text: bool = False) -> None:
    """Refuse rows that are clearly not of the space of a fit, or log that they may not be.

    Args:
        rows: Embeddings (n, dim), of many kinds of text.
        moments: Moments of the fit.
        what: What was wanted, as the beginning of a sentence that goes on ", but ...".
        do: What the user can do, as a sentence.
        any_text: Whether the rows may all be of one narrow kind of text; only their lengths are then refused.

    Raises:
        DataError: With what differs, and by how much.
    """
    found = likeness(rows, moments)
    factor = max(found.length, 1 / found.length)
    if factor > LONGER or (found.average < CERTAIN and not any_text):
        lengths = f"they are {factor:.3g} times as {'long' if found.length > 1 else 'short'}"
        differs = lengths if factor > LONGER else str(found)
        raise DataError(f"{what}, but the embeddings at hand are others: {differs}. {do}")
    if found.average < (CERTAIN if any_text else DOUBTFUL):
        logger.warning("%s, but the embeddings at hand may be others: %s. %s", what, found, do)


def require_lengths(rows: Floats, moments: Moments) -> None:
    """Refuse rows that all have unit length where those of a fit were far from it; one row is enough to tell.

    Raises:
        DataError: With the length of the rows of the fit.
    """
    length = math.sqrt(moments.mean_square_norm)
    shortest, longest = moments.lengths or (length, length)
    if not length or shortest <= 1 <= longest or 1 / FAR < length < FAR:
        return
    starts = (0, *range(SOME, len(rows), BLOCK))  # some rows first: they tell of nearly all that these are not of one
    if all(_have_unit_length(rows[a:b]) for a, b in pairwise((*starts, len(rows)))) and rows.any():
        raise DataError(
            f"All {len(rows):,} rows have unit length, but the calibrator was fitted on rows {length:.3g} long (root "
            "mean square), and cannot know what their lengths were. Give rows as the encoder makes them; or fit on "
            "rows of unit length, and the calibrator brings all rows to unit length itself."
        )


def _have_unit_length(rows: Floats) -> bool:
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    return bool(((np.abs(lengths - 1) <= UNIT) | ~rows.any(1)).all())


def _overlap(x: Float64, seen: Moments, moments: Moments) -> float:
    # A covariance of few rows looks larger than it is, by the squares of each row's own length.
    own = np.square(np.square(x - seen.mean).sum(1)).sum()
    square = (np.square(seen.scatter).sum() - own) / (seen.n * (seen.n - 1))
    product = float((seen.covariance * moments.covariance).sum()) * seen.n / (seen.n - 1)
    scale = math.sqrt(max(float(square), 0.0)) * float(np.linalg.norm(moments.covariance))
    return product / scale if scale else 1.0


def _correlation(a: Float64, b: Float64) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale else 1.0
