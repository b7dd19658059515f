"""What a sentence-transformers folder says: its modules, where its transformer lies, which pooling it asks for."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from bertflow.errors import DataError
from bertflow.records import FileName, Size, read_record

DOWNLOAD = "Download or copy the whole folder again."
ST_PACKAGE = "sentence_transformers."
ST_POOLINGS: Mapping[str, str] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last-token"}
"""sentence-transformers' pooling mode -> ours."""


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


@dataclass(frozen=True)
class StConfig:
    """What matters to us in ``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


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
    said = StTransformer()
    if os.path.lexists(settings):
        said = read_record(settings, StTransformer, "configuration", DOWNLOAD)
    if said.get("do_lower_case"):
        raise DataError(
            f"{settings} asks for do_lower_case. Set it in tokenizer_config.json, where the tokenizer reads it."
        )
    return path, said.get("max_seq_length")


def st_pooling(path: Path) -> str:
    """The pooling in a sentence-transformers ``1_Pooling/config.json``, of either schema."""
    config = read_record(path, StPooling, "pooling", DOWNLOAD)
    legacy = [re.sub("^pooling_mode_|_tokens?$", "", key) for key, on in config.items() if on and "_mode_" in key]
    named = config.get("pooling_mode") or legacy
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in ST_POOLINGS:
        raise DataError(
            f"{path} asks for the pooling {' + '.join(modes) or 'none'}, but one of {', '.join(ST_POOLINGS)} is "
            "wanted. Give a pooling of your own."
        )
    return ST_POOLINGS[modes[0]]
