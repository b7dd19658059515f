"""A fitted map as it is kept: its class and sizes in a record, its numbers as tensors.

The sizes are compared with the tensors before a map is built, so that a damaged record costs neither memory nor time.
"""

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import TypedDict

from bertflow.encoder.device import BEHIND, Landing, sent
from bertflow.errors import UsageError
from bertflow.flow import GlowConfig
from bertflow.records import KnownBy, Size, check_record
from bertflow.registry import flat_options

if TYPE_CHECKING:
    from bertflow.affine import AffineMap
    from bertflow.bands import BandMap, UnitMap
    from bertflow.flow.glow import FlowMap

FittedMap: TypeAlias = "AffineMap | BandMap | FlowMap"
"""What is fitted to rows: a row-wise torch module."""
RowMap: TypeAlias = "FittedMap | UnitMap"
"""What a calibrator does: that, of rows as they were fitted on."""
SAVE = "Save the calibrator again."


class AffineSpec(TypedDict):
    """Widths of a closed form."""

    dim_in: Size
    dim_out: Size


class GlowSpec(TypedDict):
    """Width and shape of a flow."""

    dim: Size
    config: GlowConfig


AffineRecord = TypedDict("AffineRecord", {"class": Literal["AffineMap"], "dim_in": Size, "dim_out": Size})
FlowRecord = TypedDict(
    "FlowRecord", {"class": Literal["FlowMap"], "affine": AffineSpec, "glow": GlowSpec, "dim_out": Size}
)
InnerRecord = Annotated[AffineRecord | FlowRecord, KnownBy("class")]
BandRecord = TypedDict("BandRecord", {"class": Literal["BandMap"], "inner": InnerRecord, "bands": list[Size]})
UnitRecord = TypedDict(
    "UnitRecord",
    {"class": Literal["UnitMap"], "inner": Annotated[AffineRecord | BandRecord | FlowRecord, KnownBy("class")]},
)
MapSpec = Annotated[AffineRecord | BandRecord | FlowRecord | UnitRecord, KnownBy("class")]
"""Class and ``spec()`` of a map."""


class KeptMap(TypedDict):
    """What holds a map."""

    map: MapSpec


MAPS: Mapping[str, str] = {
    "AffineMap": "bertflow.affine",
    "BandMap": "bertflow.bands",
    "FlowMap": "bertflow.flow.glow",
    "UnitMap": "bertflow.bands",
}
"""Where each class of map lives: those of closed forms need no nflows."""


ROWS = 8192
"""Rows that are mapped at a time."""
_COPIES: WeakKeyDictionary[nn.Module, dict[torch.device, nn.Module]] = WeakKeyDictionary()


@torch.inference_mode()
def in_blocks(function: Callable[[Tensor], Tensor], x: NDArray[np.floating], behind: int = 0) -> NDArray[np.floating]:
    """What a function makes of rows, ``ROWS`` at a time, in the data type of the rows.

    Args:
        function: Some rows -> a row, or a number, for each.
        x: One row or more, (n, dim).
        behind: Blocks that may still be on their way from a GPU while the next one is made.
    """
    landing, mapped = Landing(behind), np.empty(0, x.dtype)
    for start in range(0, len(x), ROWS):
        z = function(torch.from_numpy(np.array(x[start : start + ROWS])))  # what is read-only is not written through
        if not start:
            mapped = np.empty((len(x), *z.shape[1:]), x.dtype)
        landing.put(mapped, slice(start, start + ROWS), z)
        del z  # before the next is made
    landing.finish()
    return mapped


def mapped_on(device: torch.device, fitted: "RowMap", x: NDArray[np.float32]) -> NDArray[np.floating]:
    """What a map makes of rows (n, dim_in) on a device: (n, dim_out), float32, perhaps not finite.

    The map is copied there once.
    """
    copies = _COPIES.setdefault(fitted, {})
    if device not in copies:
        copies[device] = copy.deepcopy(fitted).to(device)
    there = copies[device]
    return in_blocks(lambda block: there(sent(block, device)).float(), x, BEHIND)


def empty_map(spec: Mapping[str, Any]) -> "RowMap":
    """The map that a record describes, with the numbers to be loaded.

    Raises:
        DataError: If the record is of another form.
    """
    check_record({"map": spec}, KeptMap, "The calibrator", "calibrator", SAVE)
    module = import_module(MAPS[spec["class"]])
    made: RowMap = getattr(module, spec["class"]).from_spec(spec)
    return made


def filled_map(spec: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> "RowMap":
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
