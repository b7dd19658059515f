"""Who is whose neighbor? Hubs are embeddings that are neighbors of many; orphans are neighbors of none.

    N_k(x) = how many others have x among their k nearest

If neighbors were drawn at random, N_k would be Poisson with mean k: skewness 1/sqrt(k), and exp(-k) orphans. A search
over a space with hubs returns the same few answers again and again, and never those of the orphans.

Source: Radovanovic et al. 2010, "Hubs in space", JMLR 11 (skewness); Flexer & Schnitzer 2015 (orphans, hub occupancy);
Feldbauer et al. 2018 (Robin Hood index).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, Float64
from bertflow.registry import lookup

BLOCK = 512
"""Rows whose closeness to all others is in memory together."""
K = 10
"""Neighbors of a row."""


def _dot(a: Float64, b: Float64) -> Float64:
    return a @ b.T


def _minus_square_distance(a: Float64, b: Float64) -> Float64:
    return 2 * a @ b.T - np.square(a).sum(1)[:, None] - np.square(b).sum(1)


CLOSENESS: Mapping[str, Callable[[Float64, Float64], Float64]] = {
    "dot": _dot,
    "euclidean": _minus_square_distance,
}
"""What is largest for the nearest, (m, dim), (n, dim) -> (m, n); of unit rows ``dot`` is the cosine."""


def nearest(
    x: Float64, k: int = K, by: str = "dot", queries: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Float64]:
    """The k nearest other rows of rows, in blocks.

    Args:
        x: Rows (n, dim), n > k.
        k: How many.
        by: A row of ``CLOSENESS``.
        queries: Whose neighbors are looked for, among all rows; all by default.

    Returns:
        Their indices and their closeness, nearest first; (m, k) each.

    Raises:
        DataError: If there are no k other rows.
    """
    closeness = lookup("closeness", CLOSENESS, by)
    if not 1 <= k < len(x):
        raise DataError(f"The {k} nearest of {len(x)} embeddings are wanted. Give at least {k + 1} sentences.")
    queries = np.arange(len(x)) if queries is None else queries
    found, values = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        near = closeness(x[rows], x)
        near[np.arange(len(rows)), rows] = -np.inf
        best = np.argpartition(near, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        found[start : start + BLOCK] = best
        values[start : start + BLOCK] = np.take_along_axis(near, best, axis=1)
    return found, values


@dataclass(frozen=True)
class Hubness:
    """How unequally neighbors are dealt out.

    Attributes:
        k: Neighbors of a row.
        n: Rows looked at.
        skewness: Of N_k; 1/sqrt(k) for neighbors drawn at random.
        orphans: Share of rows that are nobody's neighbor, in [0, 1].
        hub_share: Share of all neighbor places that rows with N_k >= 2k take, in [0, 1].
        robin_hood: Share of all places that would have to be moved so that all rows had as many, in [0, 1].
        most: The largest N_k.
        counts: N_k of every row (n,).
    """

    k: int
    n: int
    skewness: float
    orphans: float
    hub_share: float
    robin_hood: float
    most: int
    counts: NDArray[np.int64]


def hubness(cloud: Cloud, k: int = K) -> Hubness:
    """Hubness of the sampled rows by cosine."""
    return cloud.once(("hubness", k), lambda: _hubness(cloud, k))


def _hubness(cloud: Cloud, k: int) -> Hubness:
    n = len(cloud.sample)
    counts = np.bincount(nearest(cloud.sample, k)[0].ravel(), minlength=n)
    deviations = counts - counts.mean()
    spread = np.sqrt(np.square(deviations).mean())
    return Hubness(
        k=k,
        n=n,
        skewness=float((deviations**3).mean() / spread**3) if spread else 0.0,
        orphans=float((counts == 0).mean()),
        hub_share=float(counts[counts >= 2 * k].sum() / (k * n)),
        robin_hood=float(np.abs(deviations).sum() / (2 * k * n)),
        most=int(counts.max()),
        counts=counts,
    )
