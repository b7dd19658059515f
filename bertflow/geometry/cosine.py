"""How narrow is the cone? Cosines of embeddings that have nothing to do with each other.

With unit rows u_i and their sum s,

    mean of cos(x_i, x_j) over i != j  =  (|s|^2 - n) / (n (n - 1))

exactly, over all pairs, in O(n d). The same sum falls apart into coordinates, (s_c^2 - sum_i u_ic^2) / (n (n - 1)): a
few coordinates often hold most of it.

Source: Ethayarajh 2019, arXiv:1909.00512, section 4 (there a sample of pairs); Timkey & van Schijndel 2021,
arXiv:2109.04404, equation 3 (the contributions of coordinates).
"""

import numpy as np

from bertflow.geometry.cloud import Cloud, Float64


def mean_cosine(cloud: Cloud) -> float:
    """Mean cosine of two different rows, over all pairs; 0 is isotropic, 1 is one direction."""
    return float(cosine_by_coordinate(cloud).sum())


def cosine_by_coordinate(cloud: Cloud) -> Float64:
    """What each coordinate adds to the mean cosine (dim,); their sum is the mean cosine."""
    totals = cloud.totals
    return (np.square(totals.unit_sum) - totals.unit_square_sum) / (cloud.n * (cloud.n - 1))


def largest_cosine_share(cloud: Cloud) -> float:
    """What the coordinate that adds most to the mean cosine adds to it; 0 is isotropic."""
    return float(cosine_by_coordinate(cloud).max())


def mean_length_share(cloud: Cloud) -> float:
    """Length of the mean over the root mean square length of the rows, in [0, 1]; 0 is centered."""
    moments = cloud.moments
    return float(np.linalg.norm(moments.mean) / np.sqrt(moments.mean_square_norm))


def random_cosines(cloud: Cloud, pairs: int = 20_000, seed: int = 0) -> Float64:
    """Cosines of random pairs of different sampled rows (pairs,)."""
    rng, n = np.random.default_rng(seed), len(cloud.sample)
    first = rng.integers(n, size=pairs)
    second = (first + 1 + rng.integers(n - 1, size=pairs)) % n
    return np.einsum("pd,pd->p", cloud.sample[first], cloud.sample[second])
