"""A cloud of embeddings, its nearest neighbors, and the numbers that describe it.

    all rows   in blocks    moments, cosines, partition function   O(n d^2), a block in memory
    sample     unit rows    nearest neighbors, uniformity          O(m^2 d), in blocks, at most SAMPLE rows

What needs every pair of rows uses a sample; reports give its size. With unit rows u_i and their sum s,

    mean cosine           mean of cos(x_i, x_j) over i != j  =  (|s|^2 - n) / (n (n - 1)), exactly, over all pairs
    by coordinate         the same sum split into (s_c^2 - sum_i u_ic^2) / (n (n - 1))
    uniformity            log mean over pairs of exp(-2 |u_i - u_j|^2); the lower, the more uniform
    partition isotropy    min Z(a) / max Z(a), with Z(a) = sum over rows of exp(a . x), over unit vectors a

The minimum and maximum of Z are taken over the eigenvectors of X^T X, each with both signs, since the sign of an
eigenvector is arbitrary. Z is computed in the log domain, and rows are divided by their root mean square length: Z
depends on the scale, and for rows of length 27 only the largest term of the sum would count.

With the shares p of the variance along the d principal directions,

    participation ratio  PR = 1 / sum(p^2)            from 1 to d
    IsoScore             (PR - 1) / (d - 1)           from 0 to 1
    effective rank       exp(-sum(p log p))           from 1 to d

The published IsoScore rotates, normalizes and takes a distance to the vector of ones; it equals the closed form above.
A finite sample of a perfect Gaussian is not perfectly isotropic: n rows give about 1 / (1 + d/n), so a score stands
beside ``gaussian_iso_score(n, d)``.

Hubs are embeddings that are neighbors of many others, orphans are neighbors of none. With N_k(x) = how many others have
x among their k nearest, and neighbors drawn at random, N_k would be Poisson with mean k: skewness 1/sqrt(k), and a
share of exp(-k) orphans. A search in a space with hubs returns the same few answers again and again, and never the
orphans.

A measure is a diagnosis, not the goal: no single measure ranks encoders by how well they compare sentences.

Source: Ethayarajh 2019, arXiv:1909.00512, section 4 (cosine, there of a sample of pairs); Timkey & van Schijndel 2021,
arXiv:2109.04404, equation 3 (coordinates); Wang & Isola 2020, arXiv:2005.10242, equation 2 (uniformity); Mu & Viswanath
2018, arXiv:1702.01417, section 2 (partition function, there with one sign and without scaling); Rudman et al. 2022,
arXiv:2108.07344 (IsoScore); Roy & Vetterli 2007 (effective rank, there of singular values); Kovaleva et al. 2021,
arXiv:2105.06990 (outlier dimensions); Radovanovic et al. 2010, "Hubs in space", JMLR 11 (skewness); Flexer & Schnitzer
2015 (orphans, hub occupancy); Feldbauer et al. 2018 (Robin Hood index).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics.pairwise import euclidean_distances

from bertflow.errors import DataError
from bertflow.moments import Float64, Moments, require_finite
from bertflow.registry import lookup
from bertflow.similarity import unit_rows
from bertflow.training.rows import Embeddings, seeded_order, take

ROWS = 4096
"""Rows of a block."""
SAMPLE = 10_000
"""Largest sample for measures of all pairs."""
BLOCK = 512
"""Rows that are compared with all others at a time."""
K = 10
"""Neighbors of a row."""
OUTLIER = 3.0
"""Standard deviations, over the coordinates, above which a coordinate is an outlier."""


class Cloud:
    """Rows (n, dim), n >= 2, of embeddings.

    Args:
        x: An array, a memory map, or an ``EmbeddingStore``; nothing is copied.
        seed: Random seed for the sample.
        sample: Largest sample for measures of all pairs.

    Attributes:
        n: Number of rows.
        dim: Their width.

    Raises:
        DataError: If there are fewer than two rows; and, once they are read, for a NaN, an infinity, or a row of length
            zero, whose cosine is not defined.
    """

    def __init__(self, x: Embeddings, seed: int = 0, sample: int = SAMPLE) -> None:
        self._x, self._seed, self._most = x, seed, sample
        self.n = len(x)
        if self.n < 2:
            raise DataError(f"A cloud needs at least 2 embeddings, got {self.n}. Give more sentences.")
        self.dim = int(self.rows(np.zeros(1, dtype=np.int64)).shape[1])

    def rows(self, index: NDArray[np.int64]) -> Float64:
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
    def sample_index(self) -> NDArray[np.int64]:
        """Row numbers of the sample, rising: all rows, or a seeded choice."""
        if self.n <= self._most:
            return np.arange(self.n)
        return np.sort(seeded_order(self.n, self._seed)[: self._most])

    @cached_property
    def sample(self) -> Float64:
        """The sampled rows, scaled to length one (m, dim)."""
        rows = self.rows(self.sample_index)
        require_finite(rows)
        return unit_rows(rows)

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
    def occurrences(self) -> NDArray[np.int64]:
        """N_k of each sampled row (m,): how often it is among the ``K`` nearest of others, by cosine."""
        return np.bincount(nearest(self.sample, K)[0].ravel(), minlength=len(self.sample))


CLOSENESS: Mapping[str, Callable[[Float64, Float64], Float64]] = {
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -euclidean_distances(a, b),
}
"""Closeness, largest for the nearest rows: (m, dim), (n, dim) -> (m, n). For unit rows ``dot`` is the cosine."""


def nearest(
    x: Float64, k: int = K, by: str = "dot", queries: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], Float64]:
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
    closeness = lookup("closeness", CLOSENESS, by)
    if not 1 <= k < len(x):
        raise DataError(f"The {k} nearest of {len(x)} embeddings are wanted. Give at least {k + 1} sentences.")
    queries = np.arange(len(x)) if queries is None else queries
    found = []
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        near = closeness(x[rows], x)
        near[np.arange(len(rows)), rows] = -np.inf
        found.append(torch.from_numpy(near).topk(k))
    return torch.cat([part.indices for part in found]).numpy(), torch.cat([part.values for part in found]).numpy()


def mean_cosine(cloud: Cloud) -> float:
    """Mean cosine of two different rows, over all pairs; 0 is isotropic, 1 is one direction."""
    return float(cloud.cosine_by_coordinate.sum())


def mean_length_share(cloud: Cloud) -> float:
    """Length of the mean over the root mean square length of the rows, in [0, 1]; 0 is centered."""
    return float(np.linalg.norm(cloud.moments.mean) / math.sqrt(cloud.moments.mean_square_norm))


def log_partition(cloud: Cloud) -> Float64:
    """Log Z(a) for the eigenvectors a of X^T X, then for their opposites (2 dim,)."""
    directions = cloud.directions / math.sqrt(cloud.moments.mean_square_norm)
    z = np.full(2 * cloud.dim, -np.inf)
    for block in cloud.blocks():
        along = block @ directions
        z = np.logaddexp(z, logsumexp(np.hstack([along, -along]), axis=0))
    return z


def participation(cloud: Cloud) -> float:
    """Number of directions over which the variance is spread, 1 to d; squares are summed, so large directions count."""
    return float(1 / np.square(cloud.variance_shares).sum())


def gaussian_participation(n: int, dim: int) -> float:
    """The participation ratio of n rows of an isotropic Gaussian: the ratio of the expectations.

    With m = n - 1 degrees of freedom E tr(S)^2 = d^2 + 2 d/m and E |S|^2 = d + d (d + 1)/m.
    """
    return (dim * (n - 1) + 2) / (n + dim)


def iso_score(cloud: Cloud) -> float:
    """IsoScore, 0 (one direction) to 1 (all alike).

    Raises:
        DataError: For rows of one dimension, which are always isotropic.
    """
    if cloud.dim < 2:
        raise DataError("IsoScore needs embeddings of at least 2 dimensions, got 1. Keep more directions.")
    return (participation(cloud) - 1) / (cloud.dim - 1)


def gaussian_iso_score(n: int, dim: int) -> float:
    """IsoScore of n rows of an isotropic Gaussian."""
    return (gaussian_participation(n, dim) - 1) / (dim - 1)


def gaussian_effective_rank(n: int, dim: int) -> float:
    """The effective rank of n rows of an isotropic Gaussian: m exp(-m / 2M), m the smaller of n - 1 and d, M the other.

    Source: Page 1993, arXiv:gr-qc/9305007, equation 14, the mean entropy of a random spectrum.
    """
    small, large = sorted((n - 1, dim))
    return small * math.exp(-small / (2 * large))


def gaussian_top_share(n: int, dim: int, k: int) -> float:
    """Share of the variance in k directions of n rows of an isotropic Gaussian, at most.

    It is k times the edge of the Marchenko-Pastur law.
    """
    return min(1.0, k * (1 + math.sqrt(dim / n)) ** 2 / dim)


def outlier_dimensions(cloud: Cloud) -> list[int]:
    """Coordinates whose root mean square lies ``OUTLIER`` standard deviations above that of the others.

    Mean and standard deviation are taken over the coordinates; an isotropic cloud has none.
    """
    sizes = np.sqrt(np.square(cloud.moments.mean) + np.diag(cloud.moments.covariance))
    return np.flatnonzero(sizes - sizes.mean() > OUTLIER * sizes.std()).tolist()


def hub_skewness(cloud: Cloud) -> float:
    """Skewness of N_k; 1/sqrt(k) for neighbors drawn at random."""
    return float(stats.skew(cloud.occurrences)) if np.ptp(cloud.occurrences) else 0.0
