"""The closed forms that are affine: center, standardize, whiten, ridge, drop the top directions.

All of them are one map,

    forward:  z = (x - shift) @ weight          inverse:  x = z @ inverse_weight + shift

and differ only in how shift and weight are read off the moments of the data. So there is one map, and one short
function ``Moments -> AffineMap`` for each method. Parameters are float64; a batch is mapped in its own precision.

A direction whose standard deviation is below ``NULL_SHARE`` of the root mean square norm is null: rounding, not
information. Every pooling of one LayerNorm'ed layer has one. Where a method divides by the standard deviation, null
directions are left out and counted, and a note says so.
"""

import math
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertflow.array_types import Float64
from bertflow.errors import DataError, NullDirectionWarning, UsageError
from bertflow.moments import Moments
from bertflow.onednn import linear

NULL_SHARE = 1e-5
"""Standard deviation below this share of the root mean square norm: a null direction."""
EQUAL_SHARE = 1e-13
"""Share of all directions together below which rows are equal: their mean is rounded."""


class AffineMap(nn.Module):
    """z = (x - shift) @ weight, row by row.

    * Forward: (n, dim_in) -> (n, dim_out), in the precision of ``x`` (float32 for anything shorter).
    * Log-det: ``logabsdet``, the log volume change within the span that is kept.
    * Inverse: exact where no direction was left out; else the point of the kept span, other directions at the mean.
    * Valid when: shift, weight and inverse_weight are finite.
    """

    shift: Tensor
    weight: Tensor
    inverse_weight: Tensor

    def __init__(self, shift: Float64, weight: Float64, inverse_weight: Float64) -> None:
        super().__init__()
        for name, array in (("shift", shift), ("weight", weight), ("inverse_weight", inverse_weight)):
            # One memory layout, or a map that was saved and loaded would differ in the last bit of its products.
            self.register_buffer(name, torch.tensor(np.ascontiguousarray(array), dtype=torch.float64))
        self.register_load_state_dict_post_hook(_forget_logabsdet)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "AffineMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        dim_in, dim_out = spec["dim_in"], spec["dim_out"]
        return cls(np.zeros(dim_in), np.zeros((dim_in, dim_out)), np.zeros((dim_out, dim_in)))

    def spec(self) -> dict[str, Any]:
        """What ``from_spec`` needs, ready for JSON."""
        return {"dim_in": self.dim_in, "dim_out": self.dim_out}

    @property
    def dim_in(self) -> int:
        """Width of the embeddings."""
        return self.weight.shape[0]

    @property
    def dim_out(self) -> int:
        """Width of the result."""
        return self.weight.shape[1]

    @cached_property
    def logabsdet(self) -> float:
        """Log |det dz/dx| within the span of the non-zero columns of weight; it takes longer than to map a row."""
        columns = self.weight[:, self.weight.any(0)]
        return float(torch.linalg.slogdet(columns.T @ columns).logabsdet / 2)

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        x = x if x.dtype == torch.float64 else x.float()
        return linear(x - self.shift.to(x.dtype), self.weight.to(x.dtype).t())

    def inverse(self, z: Tensor) -> Tensor:
        """(n, dim_out) -> (n, dim_in)."""
        z = z if z.dtype == torch.float64 else z.float()
        return linear(z, self.inverse_weight.to(z.dtype).t(), self.shift.to(z.dtype))

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density (n,) of rows, in nats, when the non-zero columns of z are standard normal."""
        z = self.forward(x)
        rank = int(self.weight.any(0).sum())
        return self.logabsdet - 0.5 * (z.square().sum(1) + rank * math.log(2 * math.pi))


def _forget_logabsdet(module: nn.Module, _: object) -> None:
    module.__dict__.pop("logabsdet", None)


def identity_map(dim: int) -> AffineMap:
    """Nothing is changed."""
    return AffineMap(np.zeros(dim), np.eye(dim), np.eye(dim))


def center_map(moments: Moments) -> AffineMap:
    """Mean zero, nothing else."""
    identity = np.eye(moments.dim)
    return AffineMap(moments.mean, identity, identity)


def standardize_map(moments: Moments) -> AffineMap:
    """Mean zero and variance one in every coordinate; a null coordinate becomes zero.

    Source: "SN" of Li et al. 2020, arXiv:2011.05864, table 5.
    """
    deviation = np.sqrt(np.diag(_varied(moments).covariance))
    kept = _kept(deviation, moments, "coordinates", "set to zero")
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=kept)
    return AffineMap(moments.mean, np.diag(scale), np.diag(np.where(kept, deviation, 0.0)))


def whitening_map(moments: Moments, dim_out: int | None = None, power: float = 1.0) -> AffineMap:
    """Zero mean and identity covariance; keeps the ``dim_out`` directions of largest variance.

    With covariance ``S = U diag(v) U^T``, the weight is ``W = U diag(v)^(-1/2)``: the PCA form, columns by falling
    variance, the largest entry of each column of U positive. A power p below 1 whitens in part: ``U diag(v)^(-p/2)``.

    Args:
        moments: Moments of the raw embeddings; null directions are left out.
        dim_out: How many directions to keep; all that are not null by default.
        power: Directions are divided by their deviation to this power, from 0 to 1.

    Raises:
        DataError: If fewer than two rows were seen, or ``dim_out`` exceeds the rank; the message gives both.

    Source: Su et al. 2021, arXiv:2103.15316, algorithm 1. They keep null directions; we do not.
    """
    deviation, directions = _kept_directions(moments)
    rank = len(deviation)
    dim_out = rank if dim_out is None else dim_out
    if not 1 <= dim_out <= rank:
        raise DataError(
            f"Whitening to {dim_out} directions was asked for, but {moments.n} rows of dimension {moments.dim} have "
            f"rank {rank}. Choose 1 to {rank}, or fit on more sentences."
        )
    deviation, directions = deviation[:dim_out] ** power, directions[:, :dim_out]
    return AffineMap(moments.mean, directions / deviation, (directions * deviation).T)


def ridge_map(moments: Moments, r: float = 1.0) -> AffineMap:
    """Whitening that lifts small variances less: directions are divided by sqrt(variance + r median variance).

    With r = 0 it is whitening; the larger r is, the more of the spectrum stays as it was. Null directions are left out,
    and the median is that of the others.

    Args:
        moments: Moments of the raw embeddings.
        r: The ridge, in medians of the variances; 0 or more.

    Raises:
        DataError: If fewer than two rows were seen, or all are equal.
    """
    deviation, directions = _kept_directions(moments)
    deviation = np.sqrt(np.square(deviation) + r * np.median(np.square(deviation)))
    return AffineMap(moments.mean, directions / deviation, (directions * deviation).T)


def all_but_the_top_map(moments: Moments, k: int = 3) -> AffineMap:
    """Center, then take out the ``k`` directions of largest variance; one is always left, and a note says so.

    Raises:
        UsageError: If ``k`` is negative.

    Source: Mu & Viswanath 2018, arXiv:1702.01417, algorithm 1. Their code projects on the directions of the uncentered
    matrix; the paper, and we, center first.
    """
    if k < 0:
        raise UsageError(f"All-but-the-top takes out k directions, k >= 0; got k={k}.")
    if k >= moments.dim:
        warnings.warn(
            f"Only {moments.dim - 1} of the k={k} directions can be taken out of {moments.dim}; one is left.",
            stacklevel=3,
        )
        k = moments.dim - 1
    top = principal_directions(_varied(moments))[1][:, :k]
    projection = np.eye(moments.dim) - top @ top.T
    return AffineMap(moments.mean, projection, projection)


def principal_directions(moments: Moments) -> tuple[Float64, Float64]:
    """Standard deviations (dim,), falling, and their directions as columns (dim, dim), signs fixed."""
    variance, directions = np.linalg.eigh(moments.covariance)
    order = np.argsort(-variance, kind="stable")
    deviation, directions = np.sqrt(variance[order].clip(min=0.0)), directions[:, order]
    largest = np.abs(directions).argmax(0)
    return deviation, directions * np.sign(directions[largest, np.arange(len(largest))])


def _kept_directions(moments: Moments) -> tuple[Float64, Float64]:
    """The ``principal_directions`` without null ones, whose number is logged."""
    deviation, directions = principal_directions(_varied(moments))
    rank = int(_kept(deviation, moments, "directions", "left out").sum())
    return deviation[:rank], directions[:, :rank]


def _varied(moments: Moments) -> Moments:
    """Moments of two rows or more, which are not all equal."""
    if moments.n < 2:
        raise DataError(f"A covariance needs at least 2 rows, got {moments.n}. Fit on more sentences.")
    if math.sqrt(np.trace(moments.covariance)) <= EQUAL_SHARE * math.sqrt(moments.mean_square_norm):
        raise DataError(
            f"All {moments.n} rows are equal, so there is nothing to calibrate. Fit on different sentences."
        )
    return moments


def _kept(deviation: Float64, moments: Moments, what: str, how: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which directions are not null; says how many are, and refuses rows without any."""
    kept = deviation > NULL_SHARE * math.sqrt(moments.mean_square_norm)
    if not kept.any():
        raise DataError(
            f"The {moments.n} rows differ by less than {NULL_SHARE:g} of their length, which is taken for rounding. "
            "Subtract one of them from all, in float64, and fit on the result; or fit on different sentences."
        )
    null = int((~kept).sum())
    if null:
        few = f" {moments.n} rows span at most {moments.n - 1}." if moments.n <= moments.dim else ""
        warnings.warn(
            f"{null} of {moments.dim} {what} hold no variance (standard deviation below {NULL_SHARE:g} of the root "
            f"mean square norm) and were {how}.{few}",
            NullDirectionWarning,
            stacklevel=4,
        )
    return kept
