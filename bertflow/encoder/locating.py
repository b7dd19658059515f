"""Where a model lies: in a folder, in a run of ``finetune`` that is done, or on the hub; and what kind of folder it is.

A hub id becomes a local folder first (the hub's cache), so that all that follows reads files. Three kinds of folder are
known by the file they hold:

    bertflow_encoder.json   written by ``TransformerEncoder.save``: pooling, max_length, prompt, identity
    modules.json            a sentence-transformers folder: it names its pooling
    config.json             a plain transformers folder
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from typing_extensions import TypedDict

from bertflow.encoder import ENCODER, known_as
from bertflow.encoder.folders import DOWNLOAD, RECORD_FILE, WEIGHTS, EncoderRecord, ModelFolder, StConfig
from bertflow.errors import DataError, UsageError, logger
from bertflow.places import expand
from bertflow.records import FileName, Size, read_record, require_whole
from bertflow.registry import several

LONGEST_NAME = 255
"""Characters that the name of a folder may have."""


ST_PACKAGE = "sentence_transformers."
ST_POOLINGS: Mapping[str, str] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last-token"}
"""sentence-transformers' pooling mode -> ours."""


class EndOfRun(TypedDict, total=False):
    """What the record of a run tells of its end; ``options`` has a group for the kind of training."""

    status: str
    options: dict[str, Any]


def locate(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: in a run of `finetune` that is done its encoder; one on the hub is downloaded.

    Raises:
        DataError: If a folder is missing, or a file was given.
        UsageError: If the hub does not give the model, or a folder was given together with a revision.
    """
    given = expand(model)
    if max(map(len, given.parts), default=0) > LONGEST_NAME:
        raise UsageError(f"The name of a model should be short, got {str(model)[:40]!r}... Give a folder, or a hub id.")
    if given.is_dir():
        if revision is not None:
            raise UsageError(f"A revision ({revision!r}) is for hub ids, but {model} is a folder. Leave it out.")
        return given / "encoder" if _is_fine_tuned(given) else given
    if given.is_file():
        do = f"Take `bertflow fix --vectors {model}`" if given.suffix in (".npy", ".parquet") else "Give a folder"
        raise DataError(f"{model} is a file, but a model is a folder or a hub id. {do}.")
    # A hub id is "name" or "owner/name": what begins or nests as a path, or whose parent is here, cannot be one.
    nested = str(model).count("/") > 1 or (given.parent != Path() and given.parent.is_dir())
    if nested or given.is_absolute() or str(model).startswith((".", "~")):
        raise DataError(f"The model folder {model} does not exist. Give an existing folder, or a hub id.")
    wanted = ["*.json", "*.txt", "*.model", "*.jinja", "README.md"]
    try:
        for weights in WEIGHTS:
            folder = Path(snapshot_download(str(model), revision=revision, allow_patterns=[*wanted, weights]))
            if any(folder.rglob(weights)):
                break
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


def open_model(model: str | Path, revision: str | None = None) -> ModelFolder:
    """Find a model, and read what its folder says.

    Args:
        model: A folder, or a hub id such as ``bert-base-uncased``.
        revision: Branch, tag or commit on the hub.

    Raises:
        DataError: If a folder is missing or is not a model folder.
        UsageError: If the hub does not give the model, or a folder was given together with a revision.
    """
    place = locate(model, revision)
    name = known_as(place.resolve()) if expand(model).is_dir() else str(model)
    if os.path.lexists(place / RECORD_FILE):
        record = read_record(place / RECORD_FILE, EncoderRecord, "saved encoder", "Save the encoder again.")
        if above := record.get("weights_above"):
            require_whole(place / RECORD_FILE, above, above, "export", place.parent)
        weights = {path.name for path in place.glob(WEIGHTS[0])}
        listed = record["sha256"]
        require_whole(place / RECORD_FILE, listed, {*listed, *weights, "config.json"}, "encoder")
        return ModelFolder(place, record["encoder"], dict(record))
    if os.path.lexists(place / "modules.json"):
        if os.path.lexists(place / ENCODER / RECORD_FILE):  # an export, whose weights are its saved encoder's, too
            if os.path.lexists(place / "calibrator"):
                raise DataError(f"{place} is a calibrated encoder, not a raw one. Open it with bertflow.load.")
            return open_model(place / ENCODER)
        # The classes of sentence-transformers have moved, so theirs are known by package and name.
        moved = re.compile(r"^sentence_transformers\..*\.")
        modules = [(moved.sub(ST_PACKAGE, row.type), place / row.path) for row in read_modules(place)]
        file = place / "config_sentence_transformers.json"
        settings = read_record(file, StConfig, "configuration", DOWNLOAD) if os.path.lexists(file) else StConfig()
        path, length = st_transformer(place, dict(modules))
        return ModelFolder(path, name, modules=modules, settings=settings, length=length)
    if not (place / "config.json").exists():
        inside = place / ENCODER  # as `fix` and `finetune` write it
        do = f"Give the folder in it, {inside}." if inside.is_dir() else "Give the folder with the weights."
        if (place / "calibrator").is_dir() and inside.is_dir():
            do = "It looks like a calibrated encoder that was copied without its bertflow.json: copy it whole."
        raise DataError(f"{place} is not a model folder: it holds no config.json. {do}")
    return ModelFolder(place, name)


@dataclass(frozen=True)
class StModuleRow:
    """One module in ``modules.json`` of a sentence-transformers folder."""

    type: str
    path: FileName
    name: str


class StPooling(TypedDict, total=False):
    """What matters to us in ``1_Pooling/config.json``; an earlier form has a flag for each mode instead."""

    pooling_mode: str | list[str] | None


class StTransformer(TypedDict, total=False):
    """What matters to us in ``sentence_bert_config.json``."""

    max_seq_length: Size | None
    do_lower_case: bool | None


def read_modules(folder: Path) -> list[StModuleRow]:
    """The modules of a sentence-transformers folder, in order.

    Raises:
        DataError: If ``modules.json`` is missing or damaged.
    """
    return read_record(folder / "modules.json", list[StModuleRow], "list of modules", DOWNLOAD)


def st_transformer(folder: Path, modules: Mapping[str, Path]) -> tuple[Path, int | None]:
    """Where a sentence-transformers folder keeps its transformer, and the longest sentence if it says so, in tokens."""
    path = modules.get(ST_PACKAGE + "Transformer")
    if path is None:
        raise DataError(
            f"{folder / 'modules.json'} names no Transformer, but {', '.join(modules)}. Give another encoder."
        )
    settings = path / "sentence_bert_config.json"
    there = os.path.lexists(settings)
    said = read_record(settings, StTransformer, "configuration", DOWNLOAD) if there else StTransformer()
    if said.get("do_lower_case"):
        raise DataError(
            f"{settings} asks for do_lower_case. Set it in tokenizer_config.json, where the tokenizer reads it."
        )
    return path, said.get("max_seq_length")


def st_pooling(path: Path) -> str:
    """The pooling in a sentence-transformers ``1_Pooling/config.json``, of either schema."""
    config = read_record(path, StPooling, "pooling", DOWNLOAD)
    legacy = [re.sub("^pooling_mode_|_tokens?$", "", key) for key, on in config.items() if on and "_mode_" in key]
    modes = several(config.get("pooling_mode") or legacy)
    if len(modes) != 1 or modes[0] not in ST_POOLINGS:
        raise DataError(
            f"{path} asks for the pooling {' + '.join(modes) or 'none'}, but one of {', '.join(ST_POOLINGS)} is "
            "wanted. Give a pooling of your own."
        )
    return ST_POOLINGS[modes[0]]


def own_pooling(folder: ModelFolder) -> str:
    """The pooling that the folder asks for; ``mean`` where it asks for none.

    Raises:
        DataError: If a sentence-transformers folder asks for more than one of our poolings.
    """
    pooling = str(folder.record.get("pooling", "mean"))
    for kind, path in folder.modules:
        if kind == ST_PACKAGE + "Pooling":
            pooling = st_pooling(path / "config.json")
        elif kind == ST_PACKAGE + "Normalize":
            said = "%s: Normalize is skipped; embeddings keep their length, cosines are the same."
            logger.warning(said, folder.name)
        elif kind != ST_PACKAGE + "Transformer":
            raise DataError(
                f"{folder.name} has a module {kind}, which bertflow cannot run: it reads Transformer, Pooling and "
                f"Normalize. Give the pooling yourself, as pooling={pooling!r}, which reads the transformer alone."
            )
    return pooling
