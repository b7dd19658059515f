"""A calibrator as a folder: JSON and safetensors, never pickle.

calibrator.json           class and parameters, dimensions, encoder, text digest, n, versions, facts of the fit,
and a checksum of every other file
calibrator.safetensors    the tensors of the fitted map
moments.safetensors       what it was fitted from: every closed form can be refitted exactly
text_hashes.safetensors   which text that was, as hashes; absent when unknown
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar, cast

from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from typing_extensions import TypedDict

from bertflow.array_types import Hashes
from bertflow.errors import DataError, UsageError, reason_of
from bertflow.maps import SAVE, filled_map, map_spec
from bertflow.moments import Moments
from bertflow.records import Checksums, Size, checksums, read_arrays, read_record, require_whole, write_record
from bertflow.registry import lookup, own_code, own_modules
from bertflow.text_keys import digest

RECORD = "calibrator.json"
TENSORS, MOMENTS, TEXT = "calibrator.safetensors", "moments.safetensors", "text_hashes.safetensors"
VERSIONED = ("bertflow", "torch", "nflows", "numpy", "scikit-learn", "transformers")
CalibratorRecord = TypedDict(
    "CalibratorRecord",
    {
        "format": Literal[1],
        "class": str,
        "parameters": dict[str, Any],
        "map": dict[str, Any],
        "dim_in": Size,
        "encoder": dict[str, Any] | None,
        "labels": list[str],
        "text_keys": str | None,
        "facts": dict[str, Any],
        "sha256": Checksums,
        "imports": NotRequired[list[str]],
    },
)
"""What ``calibrator.json`` cannot be read without."""


@dataclass(frozen=True)
class Provenance:
    """What a calibrator was fitted on: by which encoder, and which text.

    Attributes:
        encoder: The encoder's ``describe()``.
        text_hashes: Sorted hashes of the fitting text (``bertflow.text_keys``); None where it is unknown or forgotten.
        labels: Names of labeled data that the encoder or the calibrator was trained on.
    """

    encoder: Mapping[str, Any]
    text_hashes: Hashes | None
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, description: Mapping[str, Any], text_hashes: Hashes | None, *labels: str) -> "Provenance":
        """The provenance by the ``describe()`` of an encoder; ``labels`` are those that the calibrator learned from."""
        return cls(description, text_hashes, (*description.get("labels", ()), *labels))


Kind = TypeVar("Kind")


def write_calibrator(calibrator: Any, folder: Path) -> None:
    """Write a calibrator into an existing folder."""
    module, moments, provenance = calibrator.map, calibrator.moments_, calibrator.provenance_
    save_tensors({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / TENSORS)
    save_file(moments.arrays(), folder / MOMENTS)
    hashes = provenance.text_hashes if provenance else None
    if hashes is not None:
        save_file({"hashes": hashes}, folder / TEXT)
    record = {
        "format": 1,
        "class": type(calibrator).__name__,
        "parameters": calibrator.recorded(),
        "map": map_spec(module),
        "dim_in": module.dim_in,
        "dim_out": module.dim_out,
        "n": moments.n,
        "encoder": dict(provenance.encoder) if provenance else None,
        "labels": list(provenance.labels) if provenance else [],
        "text_keys": None if hashes is None else digest(hashes),
        "facts": calibrator.facts_,
        "versions": {name: version(name) for name in VERSIONED},
        "sha256": checksums(folder, "*.safetensors"),
    }
    imports = own_modules(calibrator, *module.modules())
    write_record(folder / RECORD, record | ({"imports": imports} if imports else {}))


def read_calibrator(folder: Path, kinds: Mapping[str, type[Kind]]) -> Kind:
    """Read a calibrator folder; ``kinds`` are the known classes by their names.

    Raises:
        DataError: If the folder is missing, incomplete, damaged, or of a later format; the message names the file.
    """
    if not folder.is_dir():
        raise DataError(
            f"A calibrator folder was expected at {folder}, but there is none. Give the folder that save() wrote."
        )
    record = read_record(folder / RECORD, CalibratorRecord, "calibrator", SAVE)
    belong = {TENSORS, MOMENTS, *([TEXT] if record["text_keys"] else [])}
    require_whole(folder / RECORD, record["sha256"], belong, "calibrator")
    hashes = read_arrays(folder / TEXT, {"hashes": ("uint64", 1)}, do=SAVE)["hashes"] if TEXT in belong else None
    try:
        with own_code(folder, record.get("imports", [])):
            calibrator: Any = lookup("calibrator class", kinds, record["class"])(**record["parameters"])
            calibrator.map_ = filled_map(record["map"], read_arrays(folder / TENSORS, do=SAVE))
        calibrator.moments_ = Moments.from_arrays(read_arrays(folder / MOMENTS, Moments.ARRAYS, Moments.OPTIONAL, SAVE))
    except (TypeError, RuntimeError, UsageError) as error:
        raise DataError(f"The calibrator folder {folder} is damaged ({reason_of(error)}). {SAVE}") from None
    widths = record["dim_in"], calibrator.map_.dim_in, calibrator.moments_.dim
    if len(set(widths)) > 1 or (hashes is not None and digest(hashes) != record["text_keys"]):
        raise DataError(f"The calibrator folder {folder} is damaged (its files do not belong together). {SAVE}")
    calibrator.n_features_in_, calibrator.facts_ = record["dim_in"], record["facts"]
    made_by, labels = record["encoder"], tuple(record["labels"])
    calibrator.provenance_ = None if made_by is None else Provenance(made_by, hashes, labels)
    return cast(Kind, calibrator)
