"""Where a flow starts: the moments of the training rows, and the affine map that they give.

The Gaussian of full covariance that a flow is compared with is the whitening of the same rows.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow.affine import AffineMap, whitening_map
from bertflow.errors import DataError, NullDirectionWarning
from bertflow.moments import BLOCK, Moments, require_finite
from bertflow.training.batches import Embeddings, take
from bertflow.training.presets import Recipe


def gathered(x: Embeddings, index: NDArray[np.int64]) -> Tensor:
    """The rows of ``x`` at ``index`` as a tensor, float32 or float64.

    Raises:
        DataError: If they are no matrix, or one holds a NaN or infinity; the message names the row.
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
        # They are not left out here, whatever the whitening says.
        warnings.simplefilter("ignore", NullDirectionWarning)
        whitening = whitening_map(moments)
    identity = np.eye(moments.dim)
    return AffineMap(np.zeros(moments.dim), identity, identity), whitening
