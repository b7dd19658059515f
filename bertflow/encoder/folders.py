"""Where a model lies, and what its folder says about how to use it.

A model is a local folder or a hub id; a hub id becomes a local folder first (the hub's cache), so that all that follows
reads files. Three kinds of folder are known by the file they hold:

    bertflow_encoder.json   written by ``TransformerEncoder.save``: pooling, max_length, prompt, identity
    modules.json            a sentence-transformers folder: it names its pooling
    config.json             a plain transformers folder

A prompt is put before a sentence, and depends on what the sentence is: an encoder for search may have one for queries
and one for documents. sentence-transformers names them in its folder; a saved encoder keeps both.

Nothing in a folder is executed: code that comes with a model is refused.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from typing_extensions import TypedDict

from bertflow.encoder.abstract import Role
from bertflow.errors import DataError, UsageError
from bertflow.records import FileName, read_record

logger = logging.getLogger("bertflow")

RECORD_FILE = "bertflow_encoder.json"
RECORD_FORMAT = 1
DOWNLOAD = "Download or copy the whole folder again."
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of weight files; the first that matches is what transformers loads."""

ST_PACKAGE = "sentence_transformers."
ST_POOLINGS: Mapping[str, str] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last-token"}
"""sentence-transformers' pooling mode -> ours."""
_ST_LEGACY_KEYS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


Prompts = Mapping[Role, str]
"""What is put before a sentence, by what the sentence is."""
PROMPT_NAMES: Mapping[Role, tuple[str, ...]] = {"document": ("document", "passage", "corpus"), "query": ("query",)}
"""What sentence-transformers calls the prompt of a role, as in its ``encode_document`` and ``encode_query``."""


class EncoderRecord(TypedDict):
    """What a saved encoder cannot be opened without."""

    format: Literal[1]
    encoder: str
    weights: str
    blocks: int
    pooling: str
    max_length: int
    dtype: str
    prompt: str
    query_prompt: NotRequired[str]


@dataclass(frozen=True)
class StModuleRow:
    """One module in ``modules.json`` of a sentence-transformers folder."""

    type: str
    path: FileName
    name: str


@dataclass(frozen=True)
class StConfig:
    """What matters to us in ``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


def recorded_prompts(description: Mapping[str, Any]) -> Prompts:
    """The prompts in the ``describe()`` of an encoder; without roles, one is for all."""
    return {"document": description["prompt"], "query": description.get("query_prompt", description["prompt"])}


def shown_prompts(prompts: Prompts) -> str:
    """Prompts in words: "'query: ' before each query", or "none"."""
    return " and ".join(f"{text!r} before each {role}" for role, text in prompts.items() if text) or "none"


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine.

    Attributes:
        path: The folder with config, weights and tokenizer.
        name: The hub id, or the name of the folder given: the same on every machine.
        record: What ``TransformerEncoder.save`` wrote; empty for other folders.
        modules: A sentence-transformers folder's module classes and their folders, in order; empty for other folders.
        config: What else a sentence-transformers folder says.
    """

    path: Path
    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[tuple[str, Path]] = ()
    config: StConfig = field(default_factory=StConfig)

    def prompts(self, wanted: str | Prompts | None = None) -> Prompts:
        """The prompt for each role.

        Args:
            wanted: One text for all roles, the name of one of the folder's prompts, or a text for each role; None for
                the folder's own: those of the roles, else its default prompt, else none.

        Raises:
            UsageError: If a text is given for something that is not a role.
        """
        named = {name: text for name, text in (self.config.prompts or {}).items() if text}
        if isinstance(wanted, str):
            return dict.fromkeys(PROMPT_NAMES, named.get(wanted, wanted))
        if wanted is not None:
            if unknown := [name for name in wanted if name not in PROMPT_NAMES]:
                raise UsageError(f"A prompt is for {' or '.join(PROMPT_NAMES)}, got one for {unknown[0]!r}.")
            return {role: wanted.get(role, "") for role in PROMPT_NAMES}
        if self.record:
            return recorded_prompts(self.record)
        default = named.get(self.config.default_prompt_name or "", "")
        return {
            role: next((named[name] for name in names if name in named), default)
            for role, names in PROMPT_NAMES.items()
        }

    def own_pooling(self) -> str:
        """The pooling that the folder itself asks for; ``mean`` where it asks for none.

        Raises:
            DataError: If a sentence-transformers folder asks for more than one of our poolings.
        """
        pooling = str(self.record.get("pooling", "mean"))
        for kind, path in self.modules:
            if kind == ST_PACKAGE + "Pooling":
                pooling = _st_pooling(path / "config.json")
            elif kind == ST_PACKAGE + "Normalize":
                logger.warning(
                    "%s: its Normalize is left out; embeddings keep their length, cosines are the same.", self.name
                )
            elif kind != ST_PACKAGE + "Transformer":
                raise DataError(
                    f"{self.name} has a module {kind}, which bertflow cannot run: it reads Transformer, Pooling and "
                    "Normalize. Give a pooling of your own, which reads the transformer alone."
                )
        return pooling

    def hash_weights(self) -> str:
        """SHA-256 over the weight files in name order; for a single file, what ``sha256sum`` prints.

        Raises:
            DataError: If there is none.
        """
        files = next((found for pattern in WEIGHTS if (found := sorted(self.path.glob(pattern)))), [])
        if not files:
            raise DataError(f"{self.path} holds no weights ({' or '.join(WEIGHTS)}). Is it a complete model folder?")
        sha = hashlib.sha256()
        for file in files:
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    sha.update(block)
        return sha.hexdigest()


def open_model(model: str | Path, revision: str | None = None) -> ModelFolder:
    """Find a model, and read what its folder says.

    Args:
        model: A folder, or a hub id such as ``bert-base-uncased``.
        revision: Branch, tag or commit on the hub.

    Raises:
        DataError: If a folder is missing or is not a model folder.
        UsageError: If the hub does not give the model, or a folder was given together with a revision.
    """
    place, local = locate(model, revision), Path(model).expanduser().is_dir()
    return _read_folder(place, place.resolve().name if local else str(model))


def locate(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model; one on the hub is downloaded.

    Raises:
        DataError: If a folder is missing.
        UsageError: If the hub does not give the model, or a folder was given together with a revision.
    """
    given = Path(model).expanduser()
    if given.is_dir():
        if revision is not None:
            raise UsageError(f"A revision ({revision!r}) is for hub ids, but {model} is a folder. Leave it out.")
        return given
    if _is_path(str(model), given):
        raise DataError(f"The model folder {model} does not exist. Give an existing folder, or a hub id.")
    return _download(str(model), revision)


def _is_path(model: str, given: Path) -> bool:
    """Whether this can be no hub id ("name" or "owner/name"): it begins or nests as a path, or its parent is here."""
    in_a_folder = given.parent != Path() and given.parent.is_dir()
    return given.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or in_a_folder


def _download(model: str, revision: str | None) -> Path:
    wanted = ["*.json", "*.txt", "*.model", "*.jinja"]
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*wanted, WEIGHTS[0]]))
        if not list(folder.rglob(WEIGHTS[0])):
            folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*wanted, WEIGHTS[1]]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        at = f" at revision {revision!r}" if revision else ""
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise UsageError(
            f"The model {model!r}{at} is not a folder here, and cannot be loaded from the hub: {reason}. "
            "Check the name and the network, or give the folder of a downloaded model."
        ) from error
    return folder


def _read_folder(folder: Path, name: str) -> ModelFolder:
    if (folder / RECORD_FILE).exists():
        record = read_record(folder / RECORD_FILE, EncoderRecord, "saved encoder", "Save the encoder again.")
        return ModelFolder(folder, record["encoder"], dict(record))
    if (folder / "modules.json").exists():
        rows = read_modules(folder)
        modules = [(_st_class(row.type), folder / row.path) for row in rows]
        file = folder / "config_sentence_transformers.json"
        config = read_record(file, StConfig, "configuration", DOWNLOAD) if file.is_file() else StConfig()
        return ModelFolder(_st_transformer(folder, dict(modules)), name, modules=modules, config=config)
    if not (folder / "config.json").exists():
        raise DataError(f"{folder} is not a model folder: it holds no config.json. Give the folder with the weights.")
    return ModelFolder(folder, name)


def read_modules(folder: Path) -> list[StModuleRow]:
    """The modules of a sentence-transformers folder, in order.

    Raises:
        DataError: If ``modules.json`` is missing or damaged.
    """
    return read_record(folder / "modules.json", list[StModuleRow], "list of modules", DOWNLOAD)


def _st_class(dotted: str) -> str:
    """A module's class; those of sentence-transformers have moved, so theirs are known by package and name."""
    package, _, name = dotted.rpartition(".")
    return ST_PACKAGE + name if package.split(".")[0] == "sentence_transformers" else dotted


def _st_transformer(folder: Path, modules: Mapping[str, Path]) -> Path:
    """Where a sentence-transformers folder keeps its transformer."""
    path = modules.get(ST_PACKAGE + "Transformer")
    if path is None:
        raise DataError(
            f"{folder / 'modules.json'} names no Transformer, but {', '.join(modules)}. Give another encoder."
        )
    settings = path / "sentence_bert_config.json"
    if settings.exists() and read_record(settings, dict[str, Any], "configuration", DOWNLOAD).get("do_lower_case"):
        raise DataError(
            f"{settings} asks for do_lower_case. Set it in tokenizer_config.json, where the tokenizer reads it."
        )
    return path


def _st_pooling(path: Path) -> str:
    """The pooling in a sentence-transformers ``1_Pooling/config.json``, of either schema."""
    config = read_record(path, dict[str, Any], "pooling", DOWNLOAD)
    named = config.get("pooling_mode") or [mode for key, mode in _ST_LEGACY_KEYS.items() if config.get(key)]
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in ST_POOLINGS:
        raise DataError(
            f"{path} asks for the pooling {' + '.join(modes) or 'none'}, but one of {', '.join(ST_POOLINGS)} is "
            "wanted. Give a pooling of your own."
        )
    return ST_POOLINGS[modes[0]]
