"""A cloud of embeddings, and its nearest neighbors: what the measures are computed from.

    all rows   in blocks    moments, cosines, partition function   O(n d^2), a block in memory
    sample     unit rows    nearest neighbors, uniformity          O(m^2 d), in blocks, at most SAMPLE rows

What needs every pair of rows uses a sample; reports give its size. With unit rows u_i and their sum s,

    mean cosine           mean of cos(x_i, x_j) over i != j  =  (|s|^2 - n) / (n (n - 1)), exactly, over all pairs
    by coordinate         the same sum split into (s_c^2 - sum_i u_ic^2) / (n (n - 1))
    uniformity            log mean over pairs of exp(-2 |u_i - u_j|^2); the lower, the more uniform

Source: Ethayarajh 2019, arXiv:1909.00512, section 4 (cosine, there of a sample of pairs); Timkey & van Schijndel 2021,
arXiv:2109.04404, equation 3 (coordinates); Wang & Isola 2020, arXiv:2005.10242, equation 2 (uniformity).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import torch
from sklearn.metrics.pairwise import euclidean_distances

from bertflow.array_types import Float64, Int64
from bertflow.data.corpus import drawn_rows
from bertflow.errors import DataError
from bertflow.evaluation.ungraded import random_pair_cosines
from bertflow.moments import Moments, require_finite
from bertflow.similarity import unit_rows
from bertflow.training.batches import Embeddings, take

ROWS = 4096
"""Rows of a block."""
SAMPLE = 10_000
"""Largest sample for measures of all pairs."""
BLOCK = 512
"""Rows that are compared with all others at a time."""
K = 10
"""Neighbors of a row."""


class Cloud:
    """Rows (n, dim), n >= 2, of embeddings.

    Args:
        x: An array, a memory map, or an ``EmbeddingStore``; nothing is copied.

    Attributes:
        n: Number of rows.
        dim: Their width.

    Raises:
        DataError: If there are fewer than two rows; and, once they are read, for a NaN, an infinity, or a row of length
            zero, whose cosine is not defined.
    """

    def __init__(self, x: Embeddings) -> None:
        self._x, self.n = x, len(x)
        if self.n < 2:
            raise DataError(f"A cloud needs at least 2 embeddings, got {self.n}. Give more sentences.")
        self.dim = int(self.rows(np.zeros(1, dtype=np.int64)).shape[1])

    def rows(self, index: Int64) -> Float64:
        """The rows at ``index``, in that order."""
        return np.asarray(take(self._x, index), dtype=np.float64)

    def blocks(self) -> Iterator[Float64]:
        """All rows, a block at a time."""
        for start in range(0, self.n, ROWS):
            block = self.rows(np.arange(start, min(start + ROWS, self.n)))
            require_finite(block, start)
            yield block

    @cached_property
    def moments(self) -> Moments:
        """Count, mean and scatter of all rows."""
        return Moments.merged(map(Moments.of, self.blocks()))

    @cached_property
    def directions(self) -> Float64:
        """Eigenvectors of X^T X as columns (dim, dim), largest first: the rows are not centered."""
        mean = self.moments.mean
        return np.linalg.eigh(self.moments.covariance + np.outer(mean, mean))[1][:, ::-1]

    @cached_property
    def variance_shares(self) -> Float64:
        """Share of the variance along each principal direction (dim,), falling; they sum to 1.

        Raises:
            DataError: If all rows are equal.
        """
        variance = np.linalg.eigvalsh(self.moments.covariance)[::-1].clip(0)
        if not variance.any():
            raise DataError(f"All {self.n} rows are equal, so they have no spectrum. Give different sentences.")
        return variance / variance.sum()

    @cached_property
    def cosine_by_coordinate(self) -> Float64:
        """What each coordinate adds to the mean cosine of different rows (dim,); their sum is the mean cosine."""
        total, squares = np.zeros(self.dim), np.zeros(self.dim)
        for at, block in enumerate(self.blocks()):
            units = unit_rows(block, at * ROWS)
            total += units.sum(0)
            squares += np.square(units).sum(0)
        return (np.square(total) - squares) / (self.n * (self.n - 1))

    @cached_property
    def sample_index(self) -> Int64:
        """Row numbers of the sample, rising: all rows, or a random choice, always the same."""
        return np.array(drawn_rows(self.n, SAMPLE, 0))

    @cached_property
    def sample(self) -> Float64:
        """The sampled rows, scaled to length one (m, dim)."""
        rows = self.rows(self.sample_index)
        require_finite(rows)
        return unit_rows(rows)

    @cached_property
    def random_cosines(self) -> Float64:
        """Cosines of random pairs of different sampled rows."""
        return random_pair_cosines(self.sample, np.random.default_rng(0))

    @cached_property
    def uniformity(self) -> float:
        """Log mean of exp(-2 |u - v|^2) over all pairs of different sampled rows; at most 0."""
        m, total = len(self.sample), 0.0
        for start in range(0, m, BLOCK):
            cosines = self.sample[start : start + BLOCK] @ self.sample[start:].T
            # Above the diagonal: each pair once.
            total += float(np.triu(np.exp(4 * cosines - 4), k=1).sum())
        return math.log(2 * total / (m * (m - 1)))

    @cached_property
    def occurrences(self) -> Int64:
        """N_k of each sampled row (m,): how often it is among the ``K`` nearest of others, by cosine."""
        return np.bincount(nearest(self.sample, K)[0].ravel(), minlength=len(self.sample))


Clouds = Mapping[str, Cloud]
"""Clouds by the name of their system."""
Counts = Mapping[str, int]
"""How often words occur."""
CLOSENESS: Mapping[str, Callable[[Float64, Float64], Float64]] = {
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -euclidean_distances(a, b),
}
"""Closeness, largest for the nearest rows: (m, dim), (n, dim) -> (m, n). For unit rows ``dot`` is the cosine."""


def nearest(x: Float64, k: int = K, by: str = "dot", queries: Int64 | None = None) -> tuple[Int64, Float64]:
    """The k nearest other rows of each row, in blocks.

    Args:
        x: Rows (n, dim), n > k.
        k: Number of neighbors.
        by: A row of ``CLOSENESS``.
        queries: Rows (m,) whose neighbors are searched for, among all rows (default: all).

    Returns:
        Their indices and their closeness, nearest first; (m, k) each.

    Raises:
        DataError: If there are fewer than k other rows.
    """
    if not 1 <= k < len(x):
        raise DataError(f"The {k} nearest of {len(x)} embeddings are wanted. Give at least {k + 1} sentences.")
    queries = np.arange(len(x)) if queries is None else queries
    found = []
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        near = CLOSENESS[by](x[rows], x)
        near[np.arange(len(rows)), rows] = -np.inf
        found.append(torch.from_numpy(near).topk(k))
    return torch.cat([part.indices for part in found]).numpy(), torch.cat([part.values for part in found]).numpy()
