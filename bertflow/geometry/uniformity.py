"""Uniformity and alignment: are embeddings spread over the sphere, and do paraphrases stay together on it?

    uniformity  log mean over pairs of exp(-2 |u_i - u_j|^2)      the lower, the more uniform
    alignment   mean over paraphrases of |u - v|^2                the lower, the closer

One is easily bought with the other: calibration improves uniformity and often worsens alignment, so neither is read
alone. ``separation`` reads both at once: how often is a paraphrase more similar than a random pair?

Source: Wang & Isola 2020, arXiv:2005.10242, equations 1 and 2; Gao et al. 2021, arXiv:2104.08821, section 7.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.geometry.cloud import Cloud, Float64
from bertflow.similarity import unit_rows

BLOCK = 512
"""Rows whose cosines with all others are in memory together."""


def uniformity(cloud: Cloud) -> float:
    """Log mean of exp(-2 |u - v|^2) over all pairs of different sampled rows; at most 0."""
    return cloud.once("uniformity", lambda: _uniformity(cloud.sample))


def _uniformity(units: Float64) -> float:
    n, total = len(units), 0.0
    for start in range(0, n, BLOCK):
        cosines = units[start : start + BLOCK] @ units[start:].T
        # Above the diagonal: each pair once.
        total += float(np.triu(np.exp(4 * cosines - 4), k=1).sum())
    return math.log(2 * total / (n * (n - 1)))


def gaussian_uniformity(n: int, dim: int) -> float:
    """The uniformity of an isotropic Gaussian, nearly: cosines are N(0, 1/dim), so -4 + 8/dim, whatever n."""
    return -4 + 8 / dim


def alignment(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Mean squared distance of unit rows of pairs (n, dim), (n, dim), in [0, 4]; unrelated isotropic rows have 2."""
    return float(np.square(unit_rows(x) - unit_rows(y)).sum(1).mean())


def separation(paraphrases: Float64, random: Float64) -> float:
    """Probability that a paraphrase has a higher cosine than a random pair, ties half; 0.5 is chance, 1 is perfect."""
    ranks = rankdata(np.concatenate([paraphrases, random]))[: len(paraphrases)]
    above = ranks.sum() - len(paraphrases) * (len(paraphrases) + 1) / 2
    return float(above / (len(paraphrases) * len(random)))
