"""How many directions an embedding keeps, and whether it needs a calibrator at all.

The flow acts on all directions; the embedding keeps the first k of its coordinates, largest variance of x first. Fewer
are better for similarity, more for search. None of the criteria that were tried finds k without labels (shares of
variance, participation ratio, effective rank, the knee of the spectrum, penalized likelihood, the contrast of nearest
neighbors): the encoder with the steepest spectrum wants the most directions. So k is one number, which loses nowhere.

Whether a calibrator is needed, the participation ratio of the plain mean pooling says in most of what was measured:

    PR = (sum of variances)^2 / (sum of their squares),   from 1 to dim

Above ``CALIBRATED`` lay only poolings of layers that had been tuned for sentences. One tuned encoder was at hand, so it
could not be validated on another, and on text of one narrow kind it fails: it warns, and does not act
(benchmarks/EXPLORED.md).
"""

import numpy as np

from bertflow.moments import Moments
from bertflow.training.presets import Recipe

KEPT = 128
"""Directions that "auto" keeps, where there are as many."""
CALIBRATED = 75.0
"""Participation ratio of a mean pooling above which calibration costs similarity, as far as was seen."""


def kept_directions(recipe: Recipe, rank: int) -> int:
    """How many of the flow's ``rank`` coordinates the embedding keeps."""
    wanted = recipe.n_components
    if not isinstance(wanted, str):
        return wanted
    return min(rank, KEPT) if wanted == "auto" and recipe.start == "whitening" else rank


def participation_ratio(moments: Moments) -> float:
    """Over how many directions the variance is spread."""
    covariance = moments.covariance
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())
