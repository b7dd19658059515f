"""What the moments of a text say before a flow is trained: where it starts, and what "auto" keeps.

A flow starts from an affine map of the moments of its training rows; whitening of the same rows is the Gaussian of full
covariance that a flow is compared with. The flow acts on all directions; the embedding keeps the first k of its
coordinates, largest variance of x first. In most of what was measured, the spectrum tells what k should be:

    effective rank = exp(entropy of the shares of variance),   from 1 to dim          (Roy & Vetterli 2007)

Where a few directions hold the variance (a plain masked-language-model BERT, [CLS] of an inner layer), meaning lies in
the others, and all are kept. Where it is spread, the tail is noise to similarity, which keeps the first quarter, while
search needs the tail: it is scaled apart, as a band of its own (``bertflow.maps``). The spectrum is that of the plain
mean pooling, as below.

In most of what was measured, the spread of the plain mean pooling tells whether a calibrator is needed:

    participation ratio = (sum of variances)^2 / (sum of their squares),   from 1 to dim

Above ``CALIBRATED`` there were only layers tuned for sentences: there, calibration costs similarity, and "auto" changes
nothing. Pooling by token frequency has a wider spread, so where the encoder is at hand, its plain mean is used instead.
The bound fails on text of one narrow kind, and search gains on those layers too (benchmarks/EXPLORED.md). Recipes for
search, and users who name a number of directions, or "all", skip this check.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import entr

from bertflow.affine import AffineMap, identity_map, whitening_map
from bertflow.array_types import Float64
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, without_null_warnings
from bertflow.maps import head_of
from bertflow.moments import Moments, require_scale
from bertflow.training.recipe import Recipe

STEEP = 60.0
"""Effective rank of the plain mean pooling up to which "auto" keeps all directions: at most 45 in a small plain BERT
and 56 in a RoBERTa, at least 64 in the inner layers of MiniLM (benchmarks/EXPLORED.md)."""
CALIBRATED = 75.0
"""Participation ratio of a mean pooling above which calibration cost similarity in all that was measured."""
LOOKED_AT = 4096
"""Sentences that a plain mean is computed from."""
SCALES: Mapping[str, tuple[float, float]] = {"whitening": (1e-30, 1e30), "none": (1e-4, 1e8)}
"""Start of a flow -> between which the root mean square norm lies. Whitening only has to fit into float32. Without it
the flow sees the numbers as they are: larger ones have squares that float32 does not sum, smaller ones are lost beside
the shifts that it starts with."""


@dataclass(frozen=True)
class Directions:
    """What a calibrated embedding keeps of the directions that the flow acts on.

    Attributes:
        kept: How many of the flow's coordinates.
        banded: Whether their tail becomes a band of its own.
        left_alone: Why the embeddings are left as they are, in words; None where they are not.
    """

    kept: int
    banded: bool = False
    left_alone: str | None = None


def kept_directions(recipe: Recipe, rank: int, plain: Moments) -> Directions:
    """What a recipe keeps of ``rank`` directions; "auto" looks at the moments of the plain mean pooling."""
    if recipe.n_components != "auto" or recipe.start != "whitening":
        return Directions(rank if isinstance(recipe.n_components, str) else recipe.n_components)
    if not recipe.tail and (spread := participation_ratio(plain)) > CALIBRATED:
        return Directions(
            rank,
            left_alone=f"left alone: the variance is spread over {spread:.0f} directions (participation ratio, above "
            f"{CALIBRATED:g}), as in layers that were tuned for sentences. Calibration makes their similarity worse, "
            "but can help search. To calibrate them, give purpose: search or all, or n_components: all, or a number",
        )
    banded = effective_rank(plain) > STEEP
    return Directions(head_of(rank) if banded and not recipe.tail else rank, banded and recipe.tail > 0)


def participation_ratio(moments: Moments) -> float:
    """Number of directions over which the variance is spread."""
    shares = moments.covariance / np.trace(moments.covariance)  # the squares of variances would overflow
    return float(1 / np.square(shares).sum())


def effective_rank(moments: Moments) -> float:
    """Number of directions that the variance takes, by its entropy."""
    variances = np.linalg.eigvalsh(moments.covariance).clip(0)
    return entropy_rank(variances / variances.sum())


def entropy_rank(shares: Float64) -> float:
    """The exponential of the entropy of shares of variance, which sum to 1."""
    return float(np.exp(entr(shares).sum()))


def plain_moments(encoder: SentenceEncoder | None, sentences: Sequence[str] | None) -> Moments | None:
    """Moments of the plain mean of the layers that a pooling by token frequency reads; None for other poolings."""
    if not isinstance(encoder, TransformerEncoder) or not sentences:
        return None
    pooling = parse_pooling(encoder.describe()["pooling"])
    if not pooling.counted:
        return None
    plain = str(replace(pooling, tokens="mean"))
    sample = sentences[:: max(1, len(sentences) // LOOKED_AT)][:LOOKED_AT]
    return Moments.of(encoder.encode_poolings(sample, [plain])[plain])


def affine_start(moments: Moments, recipe: Recipe) -> tuple[AffineMap, AffineMap]:
    """The affine map before the flow, and the whitening that is the Gaussian to compare with.

    Raises:
        DataError: If there are fewer directions than 2, or than the recipe wants, or float32 does not hold the numbers.
    """
    require_scale("root mean square norm", math.sqrt(moments.mean_square_norm), SCALES[recipe.start])
    if recipe.start == "whitening":
        whitening = whitening_map(moments)
        if whitening.dim_out < 2 <= moments.dim:
            raise DataError(
                f"A flow needs 2 directions or more, but {moments.n} rows of dimension {moments.dim} have rank 1. Fit "
                "on more sentences, leave out rows that are far from all others, or use whitening."
            )
        wanted = recipe.n_components
        if not isinstance(wanted, str) and not 1 <= wanted <= whitening.dim_out:
            raise DataError(
                f"{wanted} directions were to be kept, but {moments.n} rows of dimension {moments.dim} "
                f"have rank {whitening.dim_out}. Choose 1 to that, or fit on more sentences."
            )
        return whitening, whitening
    with without_null_warnings():  # they stay here; the warning would say that they are dropped
        whitening = whitening_map(moments)
    return identity_map(moments.dim), whitening
