"""How alike two embeddings are: larger is more alike, so distances are negated.

Each row of ``SIMILARITIES`` has one function for pairs (row i of ``a`` with row i of ``b``), one for all against all.
Everything is computed in float64: correlations are of ranks, and rounding makes ties.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from bertflow.errors import DataError

Array = NDArray[np.floating]


def unit_rows(x: Array, first_row: int = 0) -> NDArray[np.float64]:
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


def _paired_cosine(a: Array, b: Array) -> NDArray[np.float64]:
    # By the distance, not the product: equal rows then give exactly 1, and stay tied when they are ranked.
    return 1 - np.square(unit_rows(a) - unit_rows(b)).sum(1) / 2


def _paired_dot(a: Array, b: Array) -> NDArray[np.float64]:
    return np.einsum("nd,nd->n", np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))


def _difference(a: Array, b: Array) -> NDArray[np.float64]:
    return np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)


@dataclass(frozen=True)
class Similarity:
    """One similarity: ``paired`` is (n, dim), (n, dim) -> (n,); ``matrix`` is (n, dim), (m, dim) -> (n, m)."""

    paired: Callable[[Array, Array], NDArray[np.float64]]
    matrix: Callable[[Array, Array], NDArray[np.float64]]


SIMILARITIES: Mapping[str, Similarity] = {
    "cosine": Similarity(_paired_cosine, lambda a, b: unit_rows(a) @ unit_rows(b).T),
    "dot": Similarity(_paired_dot, lambda a, b: np.asarray(a, np.float64) @ np.asarray(b, np.float64).T),
    "euclidean": Similarity(
        lambda a, b: -np.linalg.norm(_difference(a, b), axis=1), lambda a, b: -cdist(a, b, "euclidean")
    ),
    "manhattan": Similarity(lambda a, b: -np.abs(_difference(a, b)).sum(1), lambda a, b: -cdist(a, b, "cityblock")),
}
