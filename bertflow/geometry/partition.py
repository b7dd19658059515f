"""Isotropy by the partition function: does a cloud look alike from all directions?

    Z(a) = sum over rows of exp(a . x),     I = min Z(a) / max Z(a) over unit vectors a

The minimum and maximum are taken over the eigenvectors of X^T X, each with both signs, since an eigenvector has none.
Z is computed in the log domain, and rows are divided by their root mean square length: Z depends on the scale, and rows
of length 27 would leave nothing of the sum but its largest term.

Source: Mu & Viswanath 2018, arXiv:1702.01417, section 2 (there one sign, and the scale that the vectors have).
"""

import numpy as np
from scipy.special import logsumexp

from bertflow.geometry.cloud import Cloud, Float64


def partition_isotropy(cloud: Cloud) -> float:
    """Smallest over largest partition function, in (0, 1]; 1 is isotropic."""
    z = log_partition(cloud)
    return float(np.exp(z.min() - z.max()))


def log_partition(cloud: Cloud) -> Float64:
    """Log Z(a) for the eigenvectors a of X^T X, then for their opposites (2 dim,)."""
    moments = cloud.moments
    second = moments.covariance + np.outer(moments.mean, moments.mean)
    directions = np.linalg.eigh(second)[1] / np.sqrt(moments.mean_square_norm)
    z = np.full(2 * cloud.dim, -np.inf)
    for block in cloud.blocks():
        along = block @ directions
        found = np.concatenate([logsumexp(along, axis=0), logsumexp(-along, axis=0)])
        z = np.logaddexp(z, found)
    return z
