"""Where a flow starts, how many directions its embedding keeps, and whether an embedding is better left alone.

A flow starts from an affine map of the moments of its training rows; whitening of the same rows is the Gaussian of full
covariance that a flow is compared with. The flow acts on all directions; the embedding keeps the first k of its
coordinates, largest variance of x first. In most of what was measured, the spectrum tells what k should be:

    effective rank = exp(entropy of the shares of variance),   from 1 to dim          (Roy & Vetterli 2007)

Where a few directions hold the variance (a plain masked-language-model BERT, [CLS] of an inner layer), meaning lies in
the others, and all are kept. Where it is spread, the tail is noise to similarity, and "auto" keeps ``KEPT``. Search
is better with all directions in any case.

Whether a calibrator is needed, the spread of the plain mean pooling tells in most of what was measured:

    participation ratio = (sum of variances)^2 / (sum of their squares),   from 1 to dim

Above ``CALIBRATED`` there were only layers tuned for sentences: there, calibration costs similarity, and "auto" changes
nothing. Pooling by token frequency has a wider spread, so where the encoder is at hand, its plain mean is used instead.
The bound fails on text of one narrow kind, and search gains on those layers too (benchmarks/EXPLORED.md). Users who
name a number of directions, or "all", skip this check.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import Tensor

from bertflow.affine import AffineMap, whitening_map
from bertflow.encoder.pooling import parse_pooling
from bertflow.errors import DataError, NullDirectionWarning
from bertflow.moments import BLOCK, Float64, Moments, require_finite
from bertflow.training.batches import Embeddings, take
from bertflow.training.presets import Recipe

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

KEPT = 96
"""Directions that "auto" keeps of a spread spectrum."""
STEEP = 62.0
"""Effective rank up to which "auto" keeps all directions."""
CALIBRATED = 75.0
"""Participation ratio of a mean pooling above which calibration cost similarity in all that was measured."""
LOOKED_AT = 4096
"""Sentences that a plain mean is computed from."""


def kept_directions(recipe: Recipe, rank: int, spectrum: float) -> int:
    """How many of the flow's coordinates the embedding keeps.

    Args:
        recipe: May name a number, or all.
        rank: Number of directions that the flow acts on.
        spectrum: Effective rank of the rows.
    """
    wanted = recipe.n_components
    if not isinstance(wanted, str):
        return wanted
    return min(rank, KEPT) if _chooses(recipe) and spectrum > STEEP else rank


def reason_to_leave(recipe: Recipe, spread: float) -> str | None:
    """Why the embeddings are left as they are, in words; None where a calibrator is wanted or may help.

    Args:
        recipe: Only one with ``n_components="auto"`` may leave them.
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
    """Number of directions over which the variance is spread."""
    covariance = moments.covariance
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def effective_rank(moments: Moments) -> float:
    """Number of directions that the variance takes, by its entropy."""
    variances = np.linalg.eigvalsh(moments.covariance).clip(0)
    return entropy_rank(variances / variances.sum())


def entropy_rank(shares: Float64) -> float:
    """The exponential of the entropy of shares of variance, which sum to 1."""
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


def gathered(x: Embeddings, index: NDArray[np.int64]) -> Tensor:
    """The rows of ``x`` at ``index`` as a tensor, float32 or float64.

    Raises:
        DataError: If they are not a matrix, or one holds a NaN or infinity; the message names the row.
    """
    rows = take(x, index)
    assert isinstance(rows, Tensor)
    if rows.ndim != 2:
        shape = (len(x), *rows.shape[1:])
        raise DataError(f"A flow is fitted to embeddings (n, dim), n at least 2; got shape {shape}.")
    finite = rows.isfinite().all(1)
    if not finite.all():
        bad = int(finite.int().argmin())
        require_finite(rows[bad : bad + 1].numpy(), first_row=int(index[bad]))
    return rows if rows.dtype == torch.float64 else rows.float()


def moments_of_rows(x: Embeddings, index: NDArray[np.int64]) -> Moments:
    """Moments of some rows, read in blocks, so that memory does not grow with their number.

    Raises:
        DataError: As ``gathered``, and for no rows.
    """
    blocks = [index[start : start + BLOCK] for start in range(0, max(1, len(index)), BLOCK)]
    return Moments.merged(Moments.of(gathered(x, block).numpy()) for block in blocks)


def affine_start(moments: Moments, recipe: Recipe) -> tuple[AffineMap, AffineMap]:
    """The affine map before the flow, and the whitening that is the Gaussian to compare with.

    Raises:
        DataError: If the recipe wants more directions than there are.
    """
    if recipe.start == "whitening":
        whitening = whitening_map(moments)
        wanted = recipe.n_components
        if not isinstance(wanted, str) and not 1 <= wanted <= whitening.dim_out:
            raise DataError(
                f"{wanted} directions were to be kept, but {moments.n} rows of dimension {moments.dim} "
                f"have rank {whitening.dim_out}. Choose 1 to that, or fit on more sentences."
            )
        return whitening, whitening
    with warnings.catch_warnings():
        # Here null directions stay; the warning would say that they are dropped.
        warnings.simplefilter("ignore", NullDirectionWarning)
        whitening = whitening_map(moments)
    identity = np.eye(moments.dim)
    return AffineMap(np.zeros(moments.dim), identity, identity), whitening
