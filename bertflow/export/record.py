"""What an exported folder says about itself, in ``bertflow_export.json``.

It names the encoder by its weights, the pooling and the calibrator, so that a folder can be told from another years
later, and so that whoever has only the folder knows how a sentence has to be prepared.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertflow.errors import DataError
from bertflow.files import read_json, write_json

RECORD = "bertflow_export.json"
FORMAT = 1


def write_record(folder: Path, target: str, description: dict[str, Any], dim: int, facts: dict[str, Any]) -> None:
    """Write the record.

    Args:
        folder: The export.
        target: What was written.
        description: ``describe()`` of what was exported.
        dim: Width of its embeddings.
        facts: What was found while it was written.
    """
    record = {
        "format": FORMAT,
        "target": target,
        "describe": description,
        "dim": dim,
        "facts": facts,
        "versions": {name: version(name) for name in ("bertflow", "torch", "transformers")},
    }
    write_json(folder / RECORD, record)


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record.

    Raises:
        DataError: If the folder holds none, or one of a later format.
    """
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder} is no exported encoder: it holds no {RECORD}. Write one with `bertflow export`.")
    record: dict[str, Any] = read_json(folder / RECORD)
    if record.get("format") != FORMAT:
        raise DataError(f"{folder / RECORD} is of a format this bertflow does not know. Was it written by a later one?")
    return record
