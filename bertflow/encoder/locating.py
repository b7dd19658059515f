"""Where a model lies: in a folder, in a run of ``finetune`` that is done, or on the hub.

A hub id becomes a local folder first (the hub's cache), so that all that follows reads files.
"""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from typing_extensions import TypedDict

from bertflow.errors import DataError, UsageError
from bertflow.records import read_record

LONGEST_NAME = 255
"""Characters that the name of a folder may have."""
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of weight files; the first that matches is what transformers loads."""


class EndOfRun(TypedDict, total=False):
    """What the record of a run tells of its end; ``options`` has a group for the kind of training."""

    status: str
    options: dict[str, Any]


def locate(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: in a run of `finetune` that is done its encoder; one on the hub is downloaded.

    Raises:
        DataError: If a folder is missing.
        UsageError: If the hub does not give the model, or a folder was given together with a revision.
    """
    given = Path(model).expanduser()
    if max(map(len, given.parts), default=0) > LONGEST_NAME:
        raise UsageError(f"The name of a model should be short, got {str(model)[:40]!r}... Give a folder, or a hub id.")
    if given.is_dir():
        if revision is not None:
            raise UsageError(f"A revision ({revision!r}) is for hub ids, but {model} is a folder. Leave it out.")
        return given / "encoder" if _is_fine_tuned(given) else given
    # A hub id is "name" or "owner/name": what begins or nests as a path, or whose parent is here, cannot be one.
    nested = str(model).count("/") > 1 or (given.parent != Path() and given.parent.is_dir())
    if nested or given.is_absolute() or str(model).startswith((".", "~")):
        raise DataError(f"The model folder {model} does not exist. Give an existing folder, or a hub id.")
    wanted = ["*.json", "*.txt", "*.model", "*.jinja", "README.md"]
    try:
        folder = Path(snapshot_download(str(model), revision=revision, allow_patterns=[*wanted, WEIGHTS[0]]))
        if not list(folder.rglob(WEIGHTS[0])):
            folder = Path(snapshot_download(str(model), revision=revision, allow_patterns=[*wanted, WEIGHTS[1]]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        at = f" at revision {revision!r}" if revision else ""
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise UsageError(
            f"The model {str(model)!r}{at} is not a folder here, and cannot be loaded from the hub: {reason}. "
            "Check the name and the network, or give the folder of a downloaded model."
        ) from error
    return folder


def _is_fine_tuned(folder: Path) -> bool:
    """Whether this is a run of `finetune` that is done, without a flow beside the encoder."""
    if not os.path.lexists(folder / "run.json") or os.path.lexists(folder / "bertflow.json"):
        return False
    run = read_record(folder / "run.json", EndOfRun, "training run", "Train again.")
    return run.get("status") == "done" and "finetune" in run.get("options", {})
