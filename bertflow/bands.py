"""Closed forms that are not affine: bands of coordinates, each scaled to unit length.

    y = affine(x)      z = [w_1 u(y_1..k), w_2 u(y_k+1..), ...]      u(y) = y / |y|

With weights 1 and sqrt(c), the cosine of two rows is the mean of the cosines of their bands, weighted 1 to c:

    cos(z) = (cos_1 + c cos_2) / (1 + c)

So the tail of small variances counts as much as it is told to, whatever its number of directions and their noise.
Blocks of several layers are such maps side by side.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from bertflow.affine import AffineMap, whitening_map
from bertflow.errors import UsageError
from bertflow.moments import Float64, Moments

HEAD = 4
"""The first of two bands holds one in so many of the directions."""


class BandMap(nn.Module):
    """Bands of an affine map's coordinates, each scaled to unit length and weighted, row by row.

    * Forward: (n, dim_in) -> (n, dim_out), in the precision of ``x`` (float32 for anything shorter). A band of zeros
      stays zero.
    * Log-det, inverse: none, since the lengths are lost.
    * Valid when: the affine map is, and weights are finite.

    Args:
        affine: Makes the coordinates, dim_in -> dim_out.
        bands: Number of coordinates in each band; they sum to dim_out.
        weights: Length of each band of z, (bands,).
    """

    weights: Tensor

    def __init__(self, affine: AffineMap, bands: Sequence[int], weights: Float64) -> None:
        super().__init__()
        if sum(bands) != affine.dim_out:
            raise UsageError(f"Bands of {list(bands)} coordinates are not the {affine.dim_out} of the affine map.")
        self.affine, self.bands = affine, list(bands)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "BandMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        return cls(AffineMap.from_spec(spec["affine"]), spec["bands"], np.zeros(len(spec["bands"])))

    def spec(self) -> dict[str, Any]:
        """What ``from_spec`` needs, ready for JSON."""
        return {"affine": self.affine.spec(), "bands": self.bands}

    @property
    def dim_in(self) -> int:
        """Width of the embeddings."""
        return self.affine.dim_in

    @property
    def dim_out(self) -> int:
        """Width of the result."""
        return self.affine.dim_out

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        bands = self.affine(x).split(self.bands, 1)
        return torch.cat([_unit(band) * self.weights[at].to(band.dtype) for at, band in enumerate(bands)], 1)

    def inverse(self, z: Tensor) -> NoReturn:
        """Refused.

        Raises:
            UsageError: With what has an inverse.
        """
        raise UsageError(
            "Bands are scaled to unit length, so the embeddings before are lost and there is no inverse. Use whitening "
            "or ridge, which have one."
        )


def _unit(rows: Tensor) -> Tensor:
    # The largest entry becomes 1 first: squares of large or small numbers leave the range of a float.
    rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return rows / rows.square().sum(1, keepdim=True).sqrt().clamp_min(1)


def two_band_map(moments: Moments, c: float = 0.5) -> BandMap:
    """Whitening, then two bands: the quarter of the directions with the largest variance, and the others.

    Args:
        moments: Moments of the raw embeddings; null directions are left out.
        c: Weight of the second band in the cosine; that of the first is 1.

    Raises:
        DataError: As ``whitening_map``.
    """
    whitening = whitening_map(moments)
    head = max(1, whitening.dim_out // HEAD)
    bands = [head, whitening.dim_out - head][: whitening.dim_out]  # a single direction has no tail
    return BandMap(whitening, bands, np.sqrt([1.0, c])[: len(bands)])


def side_by_side(maps: Sequence[AffineMap | BandMap]) -> AffineMap | BandMap:
    """One map of all blocks: each is mapped by its own, and the results are joined.

    Args:
        maps: All affine, or all of bands; the first one takes the first ``dim_in`` coordinates, and so on.
    """
    affine = [one.affine if isinstance(one, BandMap) else one for one in maps]
    joined = AffineMap(
        torch.cat([one.shift for one in affine]).numpy(),
        torch.block_diag(*(one.weight for one in affine)).numpy(),
        torch.block_diag(*(one.inverse_weight for one in affine)).numpy(),
    )
    banded = [one for one in maps if isinstance(one, BandMap)]
    if not banded:
        return joined
    weights = torch.cat([one.weights for one in banded])
    return BandMap(joined, [band for one in banded for band in one.bands], weights.numpy())
