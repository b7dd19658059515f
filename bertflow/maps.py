"""What is fitted: one kind of map, from rows to rows, and how it is kept.

    AffineMap                        a closed form (``bertflow.affine``), also of several layers side by side
    FlowMap                          a flow after an affine start (``bertflow.flow.glow``)
    BandMap   z = [w_1 u(y_1..k), w_2 u(y_k+1..), ...]    bands of another map's coordinates, y = inner(x)
    RoleMap   z = inner(x - gap) for queries, inner(x) for documents: each role about its own mean
    UnitMap   z = inner(u(x))                             rows of unit length before another map; u(x) = x / |x|

With weights 1 and sqrt(c), the cosine of two rows is the mean of the cosines of their bands, weighted 1 to c:

    cos(z) = (cos_1 + c cos_2) / (1 + c)

So the tail of small variances counts as much as it is told to, whatever its number of directions and their noise.

A map that was fitted on rows of unit length, as the collections of vector databases hold them, brings every row to unit
length first. So it takes what the encoder makes, and what the database has, and gives the same.

A map is kept as its class and sizes (``map_spec``), and its numbers as tensors. The sizes are compared with the tensors
before a map is built, so that a damaged record costs neither memory nor time.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertflow.affine import AffineMap
from bertflow.array_types import Float64
from bertflow.errors import UsageError, reason_of
from bertflow.registry import flat_options, lookup

if TYPE_CHECKING:
    from bertflow.flow.glow import FlowMap

HEAD = 4
"""Directions for each one in the first of two bands."""
SAVE = "Save the calibrator again."

FittedMap: TypeAlias = "AffineMap | BandMap | FlowMap"
"""What is fitted to rows: a row-wise torch module."""
RowMap: TypeAlias = "FittedMap | RoleMap | UnitMap"
"""What a calibrator does to a row, of any length."""


class _Around(nn.Module):
    """A map around another one, of the same widths."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    @property
    def dim_in(self) -> int:
        """Width of the embeddings."""
        return self.inner.dim_in

    @property
    def dim_out(self) -> int:
        """Width of the result."""
        return self.inner.dim_out

    def spec(self) -> dict[str, Any]:
        """What ``from_spec`` needs, ready for JSON."""
        return {"inner": map_spec(self.inner)}


class BandMap(_Around):
    """Bands of another map's coordinates, each scaled to unit length and weighted, row by row.

    * Forward: (n, dim_in) -> (n, dim_out), in the precision of ``x`` (float32 for anything shorter). A band of zeros
      stays zero.
    * Log-det, inverse: none, since the lengths are lost.
    * Valid when: the inner map is, and weights are finite.

    Args:
        inner: Makes the coordinates, dim_in -> dim_out.
        bands: Number of coordinates in each band; they sum to dim_out.
        weights: Length of each band of z, (bands,).
    """

    weights: Tensor

    def __init__(self, inner: "AffineMap | FlowMap", bands: Sequence[int], weights: Float64) -> None:
        super().__init__(inner)
        if sum(bands) != inner.dim_out:
            raise UsageError(f"Bands of {list(bands)} coordinates are not the {inner.dim_out} of the map before.")
        self.bands = list(bands)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "BandMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        return cls(_made(spec["inner"]), spec["bands"], np.zeros(len(spec["bands"])))

    def spec(self) -> dict[str, Any]:
        """What ``from_spec`` needs, ready for JSON."""
        return {**super().spec(), "bands": self.bands}

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        bands = self.inner(x).split(self.bands, 1)
        return torch.cat([unit(band) * self.weights[at].to(band.dtype) for at, band in enumerate(bands)], 1)

    def inverse(self, z: Tensor) -> NoReturn:
        """Refused.

        Raises:
            UsageError: With what has an inverse.
        """
        raise UsageError(
            "Bands are scaled to unit length, so the embeddings before are lost and there is no inverse. Use whitening "
            "or ridge, which have one."
        )


class RoleMap(_Around):
    """Queries are moved by the gap between the means of the two roles before another map, row by row.

    * Forward: (n, dim_in) -> (n, dim_out): documents x as the inner map, queries as x - gap.
    * Log-det, inverse: those of the inner map, for documents.
    * Valid when: the inner map is, and the gap is finite.

    Args:
        inner: Was fitted on documents, and on queries that were moved.
        gap: Mean of the queries less that of the documents, (dim_in,).
    """

    gap: Tensor

    def __init__(self, inner: FittedMap, gap: Float64) -> None:
        super().__init__(inner)
        self.register_buffer("gap", torch.tensor(gap, dtype=torch.float64))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "RoleMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        inner = _made(spec["inner"])
        return cls(inner, np.zeros(inner.dim_in))

    def forward(self, x: Tensor, query: Tensor | float = 0.0) -> Tensor:
        """(n, dim_in) -> (n, dim_out); ``query`` is 1 for queries, 0 for documents."""
        x = x if x.dtype == torch.float64 else x.float()
        return cast(Tensor, self.inner(x - query * self.gap.to(x.dtype)))

    def inverse(self, z: Tensor) -> Tensor:
        """(n, dim_out) -> (n, dim_in), of documents."""
        return cast(Tensor, self.inner.inverse(z))


class UnitMap(_Around):
    """Rows are scaled to unit length before another map, row by row.

    * Forward: (n, dim_in) -> (n, dim_out), in the precision of ``x`` (float32 for anything shorter). A row of zeros
      stays zero, and is mapped as such.
    * Log-det: that of the inner map, at the row of unit length.
    * Inverse: that of the inner map, scaled to unit length; the lengths before are lost.
    * Valid when: the inner map is.

    Args:
        inner: Maps rows of unit length.
    """

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "UnitMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        return cls(_made(spec["inner"]))

    def forward(self, x: Tensor, *query: Tensor | float) -> Tensor:
        """(n, dim_in) -> (n, dim_out); where the inner map has roles, ``query`` is as there."""
        return cast(Tensor, self.inner(unit(x), *query))

    def inverse(self, z: Tensor) -> Tensor:
        """(n, dim_out) -> (n, dim_in), of unit length."""
        return unit(self.inner.inverse(z))


def fitted_map(module: RowMap) -> FittedMap:
    """The map that was fitted, without what rows go through before it."""
    while isinstance(module, UnitMap | RoleMap):
        module = module.inner
    return module


def gap_of(module: RowMap) -> Tensor | None:
    """How far queries are moved (dim_in,); None for a map without roles."""
    return next((one.gap for one in module.modules() if isinstance(one, RoleMap)), None)


def of_role(module: RowMap, query: bool) -> Callable[[Tensor], Tensor]:
    """What a map makes of the rows of one role; without roles all are alike."""
    return (lambda rows: module(rows, 1.0)) if query and gap_of(module) is not None else module.forward


def unit(rows: Tensor) -> Tensor:
    """Rows (n, dim) of unit length, those of zeros as they are; float32 for anything shorter."""
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # The largest entry becomes 1 first: squares of large or small numbers leave the range of a float.
    rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return rows / rows.square().sum(1, keepdim=True).sqrt().clamp_min(1)


def two_bands(inner: "AffineMap | FlowMap", c: float) -> BandMap:
    """The first quarter of the coordinates, those of largest variance, and the others.

    Args:
        inner: Makes the coordinates, the most important ones first.
        c: Weight of the second band in the cosine; that of the first is 1.
    """
    head = head_of(inner.dim_out)
    bands = [head, inner.dim_out - head][: inner.dim_out]  # a single direction has no tail
    return BandMap(inner, bands, np.sqrt([1.0, c])[: len(bands)])


def head_of(dim: int) -> int:
    """How many of ``dim`` directions are the head."""
    return max(1, dim // HEAD)


def side_by_side(maps: Sequence[AffineMap | BandMap]) -> AffineMap | BandMap:
    """One map of all blocks: each is mapped by its own, and the results are joined.

    Args:
        maps: All affine, or all of bands; the first one takes the first ``dim_in`` coordinates, and so on.
    """
    inner = [one.inner if isinstance(one, BandMap) else one for one in maps]
    affine = [one for one in inner if isinstance(one, AffineMap)]
    assert len(affine) == len(maps), "blocks are closed forms"
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


MAPS: Mapping[str, str] = {
    "AffineMap": "bertflow.affine",
    "BandMap": "bertflow.maps",
    "FlowMap": "bertflow.flow.glow",
    "RoleMap": "bertflow.maps",
    "UnitMap": "bertflow.maps",
}
"""Class of map -> where it lives: nflows is loaded for a flow alone."""


def map_spec(module: RowMap) -> dict[str, Any]:
    """Class and sizes of a map, ready for JSON; its numbers are the ``state_dict``."""
    return {"class": type(module).__name__, **module.spec()}


def empty_map(spec: Mapping[str, Any]) -> RowMap:
    """The map that a record describes, with the numbers to be loaded.

    Raises:
        UsageError: If the record is of another form.
    """
    try:
        made: RowMap = _made(spec)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the record of its map cannot be used: {reason_of(error)}") from None
    return made


def _made(spec: Mapping[str, Any]) -> Any:
    module = lookup("class of maps", MAPS, spec["class"])
    return getattr(import_module(module), spec["class"]).from_spec(spec)


def filled_map(spec: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> RowMap:
    """The map that a record describes, with its numbers.

    Raises:
        UsageError: If the record describes a larger map: it is not even built, which would take memory and time.
        RuntimeError: If it describes another one.
    """
    largest = max((size for array in arrays.values() for size in array.shape), default=0)
    for name, value in flat_options(spec):
        most = len(arrays) if name.endswith(("levels", "depth")) else largest
        if type(value) is int and value > most:
            raise UsageError(f"map.{name} is {value}, but the tensors are made for {most} at most")
    module, tensors = empty_map(spec), {name: torch.tensor(array) for name, array in arrays.items()}
    for name, wanted in module.state_dict().items():  # else numbers would be rounded without a word
        taken = {wanted.dtype, torch.float64 if wanted.is_floating_point() else wanted.dtype}
        if name in tensors and tensors[name].dtype not in taken:
            raise UsageError(f"{name} should be {wanted.dtype}, but is {tensors[name].dtype}")
    module.load_state_dict(tensors)
    return module.eval()
