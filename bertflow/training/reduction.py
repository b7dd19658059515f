"""How many directions an embedding keeps, and whether it is better left alone.

The flow acts on all directions; the embedding keeps the first k of its coordinates, largest variance of x first. What
k should be, the spectrum says in most of what was measured:

    effective rank = exp(entropy of the shares of variance),   from 1 to dim          (Roy & Vetterli 2007)

Where a few directions hold the variance (a plain masked-language-model BERT, [CLS] of an inner layer), meaning lies in
the others, and all are kept. Where it is spread, the tail is noise to similarity, and "auto" keeps ``KEPT``. Search
wants all in any case.

Whether a calibrator is needed, the spread of the plain mean pooling says in most of what was measured:

    participation ratio = (sum of variances)^2 / (sum of their squares),   from 1 to dim

Above ``CALIBRATED`` lay only layers that had been tuned for sentences: there, calibration costs similarity, and
"auto" changes nothing. Pooling by token frequency spreads wider, so where the encoder is at hand, its plain mean is
looked at instead. The bound fails on text of one narrow kind, and search gains on those layers too
(benchmarks/EXPLORED.md): whoever names a number of directions, or "all", is not asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import entr

from bertflow.encoder.pooling import parse_pooling
from bertflow.moments import Float64, Moments
from bertflow.training.presets import Recipe

if TYPE_CHECKING:
    from bertflow.encoder.transformer import SentenceEncoder

KEPT = 96
"""Directions that "auto" keeps of a spectrum that is spread."""
STEEP = 62.0
"""Effective rank up to which "auto" keeps all directions."""
CALIBRATED = 75.0
"""Participation ratio of a mean pooling above which calibration costs similarity, as far as was seen."""
LOOKED_AT = 4096
"""Sentences that a plain mean is computed of."""


def kept_directions(recipe: Recipe, rank: int, spectrum: float) -> int:
    """How many of the flow's coordinates the embedding keeps.

    Args:
        recipe: May name a number, or all.
        rank: Of the flow.
        spectrum: Effective rank of the rows.
    """
    wanted = recipe.n_components
    if not isinstance(wanted, str):
        return wanted
    return min(rank, KEPT) if _chooses(recipe) and spectrum > STEEP else rank


def reason_to_leave(recipe: Recipe, spread: float) -> str | None:
    """Why nothing is changed, in words; None where a calibrator is wanted, or may help.

    Args:
        recipe: Only one that leaves the directions to us may end in nothing.
        spread: Participation ratio of the plain mean pooling.
    """
    if not _chooses(recipe) or spread <= CALIBRATED:
        return None
    return (
        f"left alone: the variance is spread over {spread:.0f} directions (participation ratio, above {CALIBRATED:g}), "
        "as in layers that were tuned for sentences already, where calibration costs similarity. To calibrate in any "
        "case, which can help search, give n_components: all, or a number"
    )


def participation_ratio(moments: Moments) -> float:
    """Over how many directions the variance is spread."""
    covariance = moments.covariance
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def effective_rank(moments: Moments) -> float:
    """How many directions the variance takes, by its entropy."""
    variances = np.linalg.eigvalsh(moments.covariance).clip(0)
    return entropy_rank(variances / variances.sum())


def entropy_rank(shares: Float64) -> float:
    """The exponential of the entropy of some shares of variance, which sum to 1."""
    return float(np.exp(entr(shares).sum()))


def plain_spread(encoder: "SentenceEncoder | None", sentences: Sequence[str] | None) -> float | None:
    """Participation ratio of the plain mean of the layers that a pooling by token frequency reads; else None."""
    from bertflow.encoder.transformer import TransformerEncoder

    if not isinstance(encoder, TransformerEncoder) or not sentences:
        return None
    pooling = parse_pooling(encoder.describe()["pooling"])
    if not pooling.counted:
        return None
    plain = str(replace(pooling, tokens="mean"))
    sample = sentences[:: max(1, len(sentences) // LOOKED_AT)][:LOOKED_AT]
    return participation_ratio(Moments.of(encoder.encode_poolings(sample, [plain])[plain]))


def _chooses(recipe: Recipe) -> bool:
    return recipe.n_components == "auto" and recipe.start == "whitening"
