"""A calibrator as a folder that anyone can read: JSON and safetensors, never pickle.

calibrator.json           class and parameters, dimensions, encoder, text digest, n, versions, facts of the fit,
                          and a checksum of every other file
calibrator.safetensors    the tensors of the fitted map
moments.safetensors       what it was fitted from: every closed form can be refitted exactly
text_hashes.safetensors   which text that was, as hashes; absent when unknown
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from typing_extensions import TypedDict

from bertflow.affine import AffineMap
from bertflow.calibration.base import AbstractCalibrator, Provenance
from bertflow.calibration.spelling import CALIBRATORS
from bertflow.errors import DataError
from bertflow.files import atomic_folder, file_sha256, write_json
from bertflow.flow.map import FlowMap
from bertflow.moments import Moments
from bertflow.records import FileName, read_record
from bertflow.registry import lookup
from bertflow.text_keys import digest

FORMAT = 1
RECORD, TENSORS, MOMENTS, TEXT = (
    "calibrator.json",
    "calibrator.safetensors",
    "moments.safetensors",
    "text_hashes.safetensors",
)
VERSIONED = ("bertflow", "torch", "nflows", "numpy", "scikit-learn", "transformers")
CalibratorRecord = TypedDict(
    "CalibratorRecord",
    {
        "format": Literal[1],
        "class": str,
        "parameters": dict[str, Any],
        "map": dict[str, Any],
        "dim_in": int,
        "encoder": dict[str, Any] | None,
        "labels": list[str],
        "text_keys": str | None,
        "facts": dict[str, Any],
        "sha256": dict[FileName, str],
    },
)
"""What ``calibrator.json`` cannot be read without."""
MAPS: Mapping[str, type[AffineMap] | type[FlowMap]] = {"AffineMap": AffineMap, "FlowMap": FlowMap}


def save_calibrator(calibrator: AbstractCalibrator, folder: str | Path) -> None:
    """Write a fitted calibrator; the folder is complete or absent."""
    with atomic_folder(folder) as aside:
        write_calibrator(calibrator, aside)


def write_calibrator(calibrator: AbstractCalibrator, folder: Path) -> None:
    """Write a fitted calibrator into a folder that someone else makes whole."""
    module, provenance = calibrator.map, calibrator.provenance
    save_tensors({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / TENSORS)
    save_file(calibrator.moments_.arrays(), folder / MOMENTS)
    hashes = provenance.text_hashes if provenance else None
    if hashes is not None:
        save_file({"hashes": hashes}, folder / TEXT)
    record = {
        "format": FORMAT,
        "class": type(calibrator).__name__,
        "parameters": calibrator.get_params(),
        "map": {"class": type(module).__name__, **module.spec()},
        "dim_in": calibrator.dim_in,
        "dim_out": calibrator.dim_out,
        "n": calibrator.moments_.n,
        "encoder": dict(provenance.encoder) if provenance else None,
        "labels": list(provenance.labels) if provenance else [],
        "text_keys": None if hashes is None else digest(hashes),
        "facts": calibrator.facts_,
        "versions": {name: version(name) for name in VERSIONED},
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))},
    }
    write_json(folder / RECORD, record)


def load_calibrator(folder: str | Path) -> AbstractCalibrator:
    """Read a calibrator folder.

    Raises:
        DataError: If the folder is missing, incomplete, damaged, or of a later format; the message names the file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"A calibrator folder was expected at {folder}, but there is none. Give the folder that save() wrote."
        )
    record = read_record(folder / RECORD, CalibratorRecord, "calibrator", "Save the calibrator again.")
    try:
        for name, expected in record["sha256"].items():
            _verify(folder / name, expected)
        by_class = {kind.make.__name__: kind.make for kind in CALIBRATORS.values()}
        calibrator = lookup("calibrator class", by_class, record["class"])(**record["parameters"])
        calibrator.map_ = _load_map(record["map"], folder / TENSORS)
        calibrator.moments_ = Moments.from_arrays(load_file(folder / MOMENTS))
        calibrator.n_features_in_ = record["dim_in"]
        calibrator.facts_ = record["facts"]
        calibrator.provenance_ = _load_provenance(record, folder)
    except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"The calibrator folder {folder} is damaged ({error}). Save the calibrator again.") from None
    return calibrator


def _load_map(spec: dict[str, Any], path: Path) -> AffineMap | FlowMap:
    module = lookup("map", MAPS, spec["class"]).from_spec(spec)
    module.load_state_dict(load_tensors(path))
    return module.eval()


def _load_provenance(record: CalibratorRecord, folder: Path) -> Provenance | None:
    if record["encoder"] is None:
        return None
    hashes = load_file(folder / TEXT)["hashes"] if record["text_keys"] else None
    return Provenance(record["encoder"], hashes, tuple(record["labels"]))


def _verify(path: Path, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} is missing from the calibrator folder. Save the calibrator again, or copy it whole.")
    if file_sha256(path) != expected:
        raise DataError(f"{path} is damaged: its checksum is not the one in {RECORD}. Save the calibrator again.")
