"""How alike two embeddings are: larger is more alike, so distances are negated.

Each row of ``SIMILARITIES`` has one function for pairs (row i of ``a`` with row i of ``b``), one for all against all.
Everything is computed in float64: correlations are of ranks, and rounding makes ties.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from bertflow.array_types import Float64, Floats
from bertflow.errors import DataError

Paired = Callable[[Floats, Floats], Float64]
OUT = "Leave the row out."
TIE = 1e-12
"""Cosines this close are equal: those of equal rows have other last digits in another block."""
AT_A_TIME = 4096
"""Pairs of rows that are turned into float64 at a time."""


def unit_rows(x: Floats, first_row: int = 0) -> Float64:
    """Rows scaled to length one.

    Args:
        x: Rows (n, dim), or one of them (dim,).
        first_row: Number of the first row, for messages.

    Raises:
        DataError: If a row has length zero, for which the cosine is not defined, or is not finite.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore"):  # refused below
        norms = np.linalg.norm(x, axis=-1, keepdims=True)
    if not np.isfinite(norms).all():
        row = first_row + int(np.flatnonzero(~np.isfinite(norms[..., 0]))[0])
        raise DataError(f"Cosine needs finite embeddings, but row {row} is not, or its length is not. Leave it out.")
    if not norms.all():
        row = first_row + int(np.flatnonzero(norms[..., 0] == 0)[0])
        raise DataError(f"Cosine needs embeddings of length above zero, but row {row} is all zeros. Leave it out.")
    return x / norms


def unit_cosines(a: Float64, b: Float64) -> Float64:
    """Cosines of pairs (n,), of rows (n, dim) that have length one.

    By the distance, not the product: equal rows then give exactly 1, and stay tied when they are ranked.
    """
    return 1 - np.square(a - b).sum(1) / 2


def _paired_cosine(a: Floats, b: Floats) -> Float64:
    a, b = np.broadcast_arrays(a, b)
    found = np.empty(len(a))
    for start in range(0, len(a), AT_A_TIME):
        rows = slice(start, start + AT_A_TIME)
        found[rows] = unit_cosines(unit_rows(a[rows], start), unit_rows(b[rows], start))
    return found


def _minus_distances(a: Floats, b: Floats, metric: str) -> Float64:
    from scipy.spatial.distance import cdist  # slow to import, and most need cosines alone

    return -cdist(a, b, metric)


def _finite(similarity: Paired) -> Paired:
    """A similarity in float64 that refuses rows that are not finite, or so large that their similarity is not."""

    def checked(a: Floats, b: Floats) -> Float64:
        sides = [np.asarray(x, dtype=np.float64) for x in (a, b)]
        for side, x in zip(("first", "second"), sides, strict=True):
            if len(odd := np.flatnonzero(~np.isfinite(x).all(-1))):
                raise DataError(f"A similarity needs finite embeddings, but row {odd[0]} of the {side} is not. {OUT}")
        with np.errstate(over="ignore", invalid="ignore"):
            found = similarity(*sides)
        if len(large := np.argwhere(~np.isfinite(found))):
            raise DataError(
                f"The similarity of row {' and '.join(map(str, large[0]))} is too large for a number. {OUT}"
            )
        return found

    return checked


@dataclass(frozen=True)
class Similarity:
    """One similarity: ``paired`` is (n, dim), (n, dim) -> (n,); ``matrix`` is (n, dim), (m, dim) -> (n, m)."""

    paired: Paired
    matrix: Paired


COSINE = Similarity(_paired_cosine, lambda a, b: unit_rows(a) @ unit_rows(b).T)
SIMILARITIES: Mapping[str, Similarity] = {
    "cosine": COSINE,
    "dot": Similarity(_finite(lambda a, b: np.einsum("nd,nd->n", a, b)), _finite(lambda a, b: a @ b.T)),
    "euclidean": Similarity(
        _finite(lambda a, b: -np.linalg.norm(a - b, axis=1)), _finite(partial(_minus_distances, metric="euclidean"))
    ),
    "manhattan": Similarity(
        _finite(lambda a, b: -np.abs(a - b).sum(1)), _finite(partial(_minus_distances, metric="cityblock"))
    ),
}
