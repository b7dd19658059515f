"""A cloud of embeddings, and its nearest neighbors.

    rows in blocks --one pass--> moments, sum of unit rows              all rows, O(n d^2), a block in memory
                   --sample----> unit rows, nearest neighbors           at most SAMPLE rows, O(m^2 d), in blocks

What needs every pair of rows uses a sample; reports give its size.

Hubs are embeddings that are neighbors of many others, orphans are neighbors of none. With

    N_k(x) = how many others have x among their k nearest

and neighbors drawn at random, N_k would be Poisson with mean k: skewness 1/sqrt(k), and a share of exp(-k) orphans. A
search in a space with hubs returns the same few answers again and again, and never the orphans.

Source: Radovanovic et al. 2010, "Hubs in space", JMLR 11 (skewness); Flexer & Schnitzer 2015 (orphans, hub occupancy);
Feldbauer et al. 2018 (Robin Hood index).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.geometry.report import GeometrySection, listed
from bertflow.moments import Moments, require_finite
from bertflow.registry import lookup
from bertflow.store.store import EmbeddingStore
from bertflow.training.rows import seeded_order

Float64 = NDArray[np.float64]
Found = TypeVar("Found")
ROWS = 4096
"""Rows of a block."""
SAMPLE = 10_000
"""Largest sample for measures of all pairs."""
BLOCK = 512
"""Rows whose closeness to all others is in memory together."""
K = 10
"""Neighbors of a row."""


@dataclass(frozen=True)
class Totals:
    """What one pass over the rows adds up.

    Attributes:
        moments: Moments of the rows.
        unit_sum: Sum of the rows scaled to length one, (dim,).
        unit_square_sum: Sum of their squares, coordinate by coordinate, (dim,).
    """

    moments: Moments
    unit_sum: Float64
    unit_square_sum: Float64

    def plus(self, other: "Totals") -> "Totals":
        """The totals of both parts."""
        return Totals(
            self.moments.merge(other.moments),
            self.unit_sum + other.unit_sum,
            self.unit_square_sum + other.unit_square_sum,
        )


class Cloud:
    """Rows (n, dim), n >= 2, of embeddings.

    Args:
        x: An array, a memory map, or an ``EmbeddingStore``; nothing is copied.
        seed: Random seed for the sample.
        sample: Largest sample for measures of all pairs.

    Attributes:
        n: How many rows there are.
        dim: Their width.

    Raises:
        DataError: If there are fewer than two rows; and, once they are read, for a NaN, an infinity, or a row of length
            zero, whose cosine is not defined.
    """

    def __init__(self, x: NDArray[np.floating] | EmbeddingStore, seed: int = 0, sample: int = SAMPLE) -> None:
        self._x, self._seed, self._most = x, seed, sample
        self._found: dict[Hashable, Any] = {}
        self.n = len(x)
        if self.n < 2:
            raise DataError(f"A cloud needs at least 2 embeddings, got {self.n}. Give more sentences.")
        self.dim = int(self.rows(np.zeros(1, dtype=np.int64)).shape[1])

    def rows(self, index: NDArray[np.int64]) -> Float64:
        """Some rows, in the order asked for."""
        found = self._x.rows(index) if isinstance(self._x, EmbeddingStore) else self._x[index]
        return np.asarray(found, dtype=np.float64)

    def blocks(self) -> Iterator[Float64]:
        """All rows, a block at a time."""
        for start in range(0, self.n, ROWS):
            stop = min(start + ROWS, self.n)
            if isinstance(self._x, EmbeddingStore):
                block = self.rows(np.arange(start, stop))
            else:
                block = np.asarray(self._x[start:stop], dtype=np.float64)
            _require_usable(block, start)
            yield block

    def once(self, what: Hashable, compute: Callable[[], Found]) -> Found:
        """The result of ``compute``, computed once for each name."""
        if what not in self._found:
            self._found[what] = compute()
        found: Found = self._found[what]
        return found

    @cached_property
    def totals(self) -> Totals:
        """One pass over all rows."""
        return reduce(Totals.plus, map(_totals, self.blocks()))

    @property
    def moments(self) -> Moments:
        """Count, mean and scatter of all rows."""
        return self.totals.moments

    @cached_property
    def sample_index(self) -> NDArray[np.int64]:
        """Row numbers of the sample, rising: all rows, or a seeded choice."""
        if self.n <= self._most:
            return np.arange(self.n)
        return np.sort(seeded_order(self.n, self._seed)[: self._most])

    @cached_property
    def sample(self) -> Float64:
        """The sampled rows, scaled to length one (m, dim)."""
        rows = self.rows(self.sample_index)
        _require_usable(rows, 0)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _totals(block: Float64) -> Totals:
    units = block / np.linalg.norm(block, axis=1, keepdims=True)
    return Totals(Moments.of(block), units.sum(0), np.square(units).sum(0))


def _require_usable(block: Float64, first_row: int) -> None:
    require_finite(block, first_row)
    zero = ~block.any(1)
    if zero.any():
        raise DataError(
            f"Cosine needs embeddings of length above zero, but row {first_row + int(zero.argmax())} is all zeros. "
            "Leave it out."
        )


def _dot(a: Float64, b: Float64) -> Float64:
    return a @ b.T


def _minus_square_distance(a: Float64, b: Float64) -> Float64:
    return 2 * a @ b.T - np.square(a).sum(1)[:, None] - np.square(b).sum(1)


CLOSENESS: Mapping[str, Callable[[Float64, Float64], Float64]] = {
    "dot": _dot,
    "euclidean": _minus_square_distance,
}
"""Closeness, largest for the nearest rows: (m, dim), (n, dim) -> (m, n). For unit rows ``dot`` is the cosine."""


def nearest(
    x: Float64, k: int = K, by: str = "dot", queries: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Float64]:
    """The k nearest other rows of rows, in blocks.

    Args:
        x: Rows (n, dim), n > k.
        k: Number of neighbors.
        by: A row of ``CLOSENESS``.
        queries: Rows whose neighbors are looked for, among all rows; all by default.

    Returns:
        Their indices and their closeness, nearest first; (m, k) each.

    Raises:
        DataError: If there are fewer than k other rows.
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
    """How unequally neighbor places are shared.

    Attributes:
        k: Neighbors of a row.
        n: Number of rows.
        skewness: Skewness of N_k; 1/sqrt(k) for neighbors drawn at random.
        orphans: Share of rows that are neighbors of no other, in [0, 1].
        most: The largest N_k.
        counts: N_k of every row (n,).
    """

    k: int
    n: int
    skewness: float
    orphans: float
    most: int
    counts: NDArray[np.int64]


def hubness(cloud: Cloud, k: int = K) -> Hubness:
    """Hubness of the sampled rows, by cosine."""
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
        most=int(counts.max()),
        counts=counts,
    )


def show_hubs(clouds: Mapping[str, Cloud]) -> GeometrySection:
    """How often each sentence is among the nearest neighbors of others."""
    found = {name: hubness(cloud) for name, cloud in clouds.items()}
    first = next(iter(found.values()))
    steps = {
        name: (np.arange(1.0, row.most + 1), np.array([(row.counts >= at).mean() for at in range(1, row.most + 1)]))
        for name, row in found.items()
    }
    return GeometrySection(
        f"A line that reaches far to the right has hubs, sentences that are neighbors of very many: the largest is "
        f"among the {first.k} nearest of {', '.join(f'{row.most} ({name})' for name, row in found.items())} of "
        f"{first.n:,} sentences, and the share of sentences that are neighbors of no other is "
        f"{listed({name: row.orphans for name, row in found.items()}, 3)}.",
        {name: {key: value for key, value in vars(row).items() if key != "counts"} for name, row in found.items()},
        lambda plots: plots.curves(
            steps,
            plots.Axis(f"at least so often among the {first.k} nearest of others", log=True),
            plots.Axis("share of sentences", log=True),
        ),
        "Share of the sentences that are at least so often among the nearest of others, on logarithmic scales, a line "
        f"for each of {', '.join(found)}.",
    )
