"""The first two moments of a cloud of embeddings, in float64.

Every closed-form calibrator, and several measures of isotropy, are functions of these alone:

    n,  mean = (1/n) sum x,  scatter = sum (x - mean)(x - mean)^T

Two clouds merge exactly (Chan, Golub & LeVeque 1979): with d = mean_b - mean_a,

    mean = mean_a + d n_b/n,   scatter = scatter_a + scatter_b + d d^T n_a n_b / n

so moments stream over batches and add up over machines. The shortest and the longest row are kept beside them: whether
all rows have unit length is a fact that merging keeps.

Queries are short and documents long, so they lie in different places. Moments of both are merged role by role, never
across: the gap between the means would become covariance. ``gap`` is the difference of the means.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Float64, Floats, Int64
from bertflow.errors import DataError

BLOCK = 8192
"""Rows that are read at a time."""
CACHED = 1024
"""Rows that are turned into float64 at a time: with fewer the product slows down, more do not fit the cache."""
SCALE = (1e-100, 1e100)
"""Range of the largest number of embeddings: its square neither vanishes nor overflows."""


QUERIES = "queries."
"""Prefix of the names of arrays of queries."""
UNIT = 5e-3
"""Largest distance from 1 of the length of a row of unit length: cut to bfloat16 it is off by 2^-8."""


_KINDS = {"n": ("int64", 1), "mean": ("float64", 1), "scatter": ("float64", 2), "lengths": ("float64", 1)}
_BY_ROLE = {before + name: kind for before in ("", QUERIES) for name, kind in _KINDS.items()}


def require_scale(what: str, value: float, scale: tuple[float, float] = SCALE) -> None:
    """Refuse embeddings of which ``value`` is outside of ``scale``, unless it is 0; ``what`` says what it is.

    Raises:
        DataError: With both bounds, and what to do.
    """
    if not (value == 0 or scale[0] <= value <= scale[1]):
        raise DataError(
            f"The {what} of the embeddings should lie between {scale[0]:g} and {scale[1]:g}, got {value:.3g}. "
            "Multiply all of them by one number."
        )


def all_finite(x: Floats) -> bool:
    """Whether no number is NaN or infinite: then their sum is finite, which one pass without memory tells."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum())) or bool(np.isfinite(x).all())


def odd_rows(x: Floats) -> Int64:
    """Which rows of ``x`` (n,) or (n, dim) hold a NaN or an infinity."""
    if all_finite(x):
        return np.empty(0, np.int64)
    return np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))


def require_finite(x: Floats, first_row: int = 0) -> None:
    """Refuse a NaN or an infinity in the rows of ``x``, which are numbered from ``first_row``.

    Raises:
        DataError: The message names the first such place.
    """
    if not all_finite(x):
        row, column = np.argwhere(~np.isfinite(x))[0]
        found = "NaN" if np.isnan(x[row, column]) else x[row, column]
        raise DataError(
            f"Embeddings must be finite, but row {first_row + row}, column {column} holds {found}. "
            "Look for a half-precision overflow in the encoder, or leave the row out."
        )


def _require_usable(x: Floats) -> None:
    """Refuse rows (n, dim) with a number that is not finite, or whose largest is outside of ``SCALE``."""
    require_finite(x)
    row, column = np.unravel_index(np.argmax(np.abs(x)), x.shape)
    require_scale(f"largest number (row {row})", abs(float(x[row, column])))


@dataclass(frozen=True)
class Moments:
    """Count, mean (dim,) and scatter matrix (dim, dim) of the rows seen.

    Attributes:
        lengths: Length of the shortest row that is not all zeros, and of the longest; both 0 where all are. None where
            they are not known, as for some columns.
        queries: Moments of queries, where they have a mean of their own; the others are then those of documents.

    Raises:
        DataError: If the shapes do not fit together, a number is not finite, or a variance is below 0.
    """

    n: int
    mean: Float64
    scatter: Float64
    lengths: tuple[float, float] | None = None
    queries: "Moments | None" = None

    def __post_init__(self) -> None:
        fits = self.n >= 0 and self.scatter.shape == (self.mean.size, self.mean.size) == 2 * self.mean.shape
        finite = fits and np.isfinite(self.mean).all() and np.isfinite(self.scatter).all()
        if not (finite and (np.diagonal(self.scatter) >= 0).all()):
            raise DataError(
                "Moments are a count, a mean (dim,) and a scatter (dim, dim) of finite numbers, none of its diagonal "
                f"below 0; got a count of {self.n}, shapes {self.mean.shape} and {self.scatter.shape}. Compute them "
                "from the rows."
            )

    @classmethod
    def of(cls, x: Floats) -> "Moments":
        """Moments of the rows of ``x`` (n, dim), in blocks, so that memory does not grow with n.

        A number that cannot be used shows in the length of its row, so only then all are looked at.

        Raises:
            DataError: If ``x`` is not a matrix with rows and columns, holds a NaN or infinity (the message names the
                row), or its largest number is outside of ``SCALE``.
        """
        if x.ndim != 2 or not x.size:
            raise DataError(f"Moments need a matrix (n, dim) with rows, got shape {tuple(x.shape)}.")
        from scipy.linalg.blas import dsyrk  # half of a product, added in place

        dim, shortest, longest = x.shape[1], math.inf, 0.0
        mean, scatter = np.zeros(dim), np.zeros((dim, dim), order="F")
        rows = np.empty((min(CACHED, len(x)) + 1, dim))
        for n in range(0, len(x), CACHED):
            more = len(x[n : n + CACHED])
            block = rows[:more]
            block[:] = x[n : n + CACHED]
            with np.errstate(over="ignore", invalid="ignore"):
                lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
            if not lengths.max() <= SCALE[1]:
                _require_usable(x)
            shortest = min(shortest, float(lengths.min(where=lengths > 0, initial=np.inf)))
            longest = max(longest, float(lengths.max()))
            own = block.mean(0)
            block -= own
            rows[more] = (own - mean) * math.sqrt(n * more / (n + more))  # what merging adds is that of one more row
            scatter = dsyrk(1.0, rows[: more + 1].T, beta=1.0, c=scatter, overwrite_c=True, lower=True)
            mean += (own - mean) * (more / (n + more))
        if longest < math.sqrt(dim) * SCALE[0]:
            _require_usable(x)
        lower = np.tril(scatter)
        return cls(len(x), mean, lower + np.tril(lower, -1).T, (shortest, longest) if longest else (0.0, 0.0))

    @classmethod
    def merged(cls, parts: Iterable["Moments"]) -> "Moments":
        """All ``parts`` as one."""
        return reduce(cls.merge, parts)

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both clouds together.

        Raises:
            DataError: If the dimensions differ.
        """
        if self.dim != other.dim:
            raise DataError(
                f"Moments of dimension {self.dim} and {other.dim} cannot be merged. Same encoder, same pooling?"
            )
        n = self.n + other.n
        gap = other.mean - self.mean
        asked = [side.queries for side in (self, other) if side.queries]
        return Moments(
            n,
            self.mean + gap * (other.n / n),
            self.scatter + other.scatter + np.outer(gap, gap) * (self.n * other.n / n),
            self._lengths_with(other),
            Moments.merged(asked) if asked else None,
        )

    def with_queries(self, queries: "Moments") -> "Moments":
        """Moments of documents, these, and of queries."""
        return replace(self, queries=queries)

    @property
    def gap(self) -> Float64 | None:
        """Mean of the queries less that of the documents (dim,); None without queries."""
        return None if self.queries is None else self.queries.mean - self.mean

    def _lengths_with(self, other: "Moments") -> tuple[float, float] | None:
        sides = [side.lengths for side in (self, other) if side.n]
        known = [side for side in sides if side is not None]
        if not known or len(known) < len(sides):
            return None
        return min((shortest for shortest, _ in known if shortest), default=0.0), max(longest for _, longest in known)

    @property
    def dim(self) -> int:
        """Width of the rows."""
        return len(self.mean)

    @property
    def covariance(self) -> Float64:
        """Maximum-likelihood covariance (dim, dim): the scatter over n, not n - 1."""
        return self.scatter / self.n

    @property
    def mean_square_norm(self) -> float:
        """Mean of ``|x|^2``."""
        return float(np.trace(self.scatter) / self.n + self.mean @ self.mean)

    @property
    def unit(self) -> bool:
        """Whether all rows have unit length, as exactly as half precision can say; rows of zeros do not count."""
        return self.lengths is not None and all(abs(length - 1) <= UNIT for length in self.lengths)

    def part(self, start: int, stop: int) -> "Moments":
        """The moments of the columns from ``start`` to before ``stop``."""
        return Moments(self.n, self.mean[start:stop], self.scatter[start:stop, start:stop])

    def arrays(self) -> dict[str, Float64 | Int64]:
        """What is written to disk."""
        lengths = {} if self.lengths is None else {"lengths": np.array(self.lengths)}
        asked = {QUERIES + name: array for name, array in (self.queries.arrays() if self.queries else {}).items()}
        return {"n": np.array([self.n], dtype=np.int64), "mean": self.mean, "scatter": self.scatter, **lengths, **asked}

    ARRAYS: ClassVar[Mapping[str, tuple[str, int]]] = _BY_ROLE
    """Type and number of dimensions of each array that is written to disk."""
    OPTIONAL: ClassVar[tuple[str, ...]] = ("lengths", *(name for name in _BY_ROLE if name.startswith(QUERIES)))
    """Arrays that are left out where they are not known."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Moments":
        """The inverse of ``arrays``.

        Raises:
            DataError: If their shapes do not belong together, or ``n`` is negative.
        """
        asked = {name.removeprefix(QUERIES): arrays[name] for name in arrays if name.startswith(QUERIES)}
        n, mean, scatter = (arrays[name] for name in cls.ARRAYS if name not in cls.OPTIONAL)
        lengths = arrays.get("lengths")
        odd = lengths is not None and (lengths.shape != (2,) or not 0 <= lengths[0] <= lengths[1])
        if odd or n.shape != (1,) or n[0] < 0 or scatter.shape != 2 * mean.shape or not len(mean):
            raise DataError(
                f"Moments need a count, a mean (dim,) and a scatter matrix (dim, dim), got {n}, {mean.shape} and "
                f"{scatter.shape}{f', and lengths of {lengths}' if odd else ''}. Fit again."
            )
        shortest_longest = None if lengths is None else (float(lengths[0]), float(lengths[1]))
        return cls(int(n[0]), mean, scatter, shortest_longest, cls.from_arrays(asked) if asked else None)
