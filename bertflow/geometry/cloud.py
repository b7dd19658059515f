"""A cloud of embeddings, and what several measures share, each computed once.

    rows in blocks --one pass--> moments, sum of unit rows, norms       all rows, O(n d^2), a block in memory
                   --sample----> unit rows, nearest neighbors           at most SAMPLE rows, O(m^2 d), in blocks

What needs every pair of rows looks at a sample, and says how large it was.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.moments import Moments, require_finite
from bertflow.training.batches import Store, seeded_order

Float64 = NDArray[np.float64]
Found = TypeVar("Found")
ROWS = 4096
"""Rows of a block."""
SAMPLE = 10_000
"""Rows that measures of all pairs look at, at most."""


@dataclass(frozen=True)
class Totals:
    """What one pass over the rows adds up.

    Attributes:
        moments: Of the rows.
        unit_sum: Sum of the rows scaled to length one, (dim,).
        unit_square_sum: Sum of their squares, coordinate by coordinate, (dim,).
        norm_sum: Sum of the lengths of the rows.
    """

    moments: Moments
    unit_sum: Float64
    unit_square_sum: Float64
    norm_sum: float

    def plus(self, other: "Totals") -> "Totals":
        """The totals of both parts."""
        return Totals(
            self.moments.merge(other.moments),
            self.unit_sum + other.unit_sum,
            self.unit_square_sum + other.unit_square_sum,
            self.norm_sum + other.norm_sum,
        )


class Cloud:
    """Rows (n, dim), n >= 2, of embeddings.

    Args:
        x: In memory, memory-mapped, or an ``EmbeddingStore``; nothing is copied.
        seed: Of the sample.
        sample: Rows that measures of all pairs look at, at most.

    Attributes:
        n: How many rows there are.
        dim: Their width.

    Raises:
        DataError: If there are fewer than two rows; and, once they are read, for a NaN, an infinity, or a row of length
            zero, of which cosine says nothing.
    """

    def __init__(self, x: NDArray[np.floating] | Store, seed: int = 0, sample: int = SAMPLE) -> None:
        self._x, self._seed, self._most = x, seed, sample
        self._found: dict[Hashable, Any] = {}
        self.n = len(x)
        if self.n < 2:
            raise DataError(f"A cloud needs at least 2 embeddings, got {self.n}. Give more sentences.")
        self.dim = int(self.rows(np.zeros(1, dtype=np.int64)).shape[1])

    def rows(self, index: NDArray[np.int64]) -> Float64:
        """Some rows, in the order asked for."""
        found = self._x.rows(index) if isinstance(self._x, Store) else self._x[index]
        return np.asarray(found, dtype=np.float64)

    def blocks(self) -> Iterator[Float64]:
        """All rows, a block at a time."""
        for start in range(0, self.n, ROWS):
            stop = min(start + ROWS, self.n)
            if isinstance(self._x, Store):
                block = self.rows(np.arange(start, stop))
            else:
                block = np.asarray(self._x[start:stop], dtype=np.float64)
            _require_usable(block, start)
            yield block

    def once(self, what: Hashable, compute: Callable[[], Found]) -> Found:
        """What ``compute`` gives, computed the first time that it is asked for by this name."""
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
        """Which rows the sample is: all of them, or a seeded choice, rising."""
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
    norms = np.linalg.norm(block, axis=1)
    units = block / norms[:, None]
    return Totals(Moments.of(block), units.sum(0), np.square(units).sum(0), float(norms.sum()))


def _require_usable(block: Float64, first_row: int) -> None:
    require_finite(block, first_row)
    zero = ~block.any(1)
    if zero.any():
        raise DataError(
            f"Cosine needs embeddings of length above zero, but row {first_row + int(zero.argmax())} is all zeros. "
            "Leave it out."
        )
