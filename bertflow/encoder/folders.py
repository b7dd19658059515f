"""Where a model lies, what its folder says about how to use it, its config and its tokenizer: all but its weights.

A model is a local folder or a hub id; a hub id becomes a local folder first (the hub's cache), so that all that follows
reads files. Three kinds of folder are known by the file they hold:

    bertflow_encoder.json   written by ``TransformerEncoder.save``: pooling, max_length, prompt, identity
    modules.json            a sentence-transformers folder: it names its pooling
    config.json             a plain transformers folder

A prompt is put before a sentence, and depends on what the sentence is: an encoder for search may have one for queries
and one for documents. sentence-transformers names them in its folder; a saved encoder keeps both.

Nothing in a folder is executed: code that comes with a model is refused.
"""

import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging
from typing_extensions import TypedDict

from bertflow.encoder.abstract import Role
from bertflow.encoder.architecture import model_class
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError, first_line
from bertflow.files import file_sha256
from bertflow.records import FileName, read_record

logger = logging.getLogger("bertflow")

RECORD_FILE = "bertflow_encoder.json"
DOWNLOAD = "Download or copy the whole folder again."
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of weight files; the first that matches is what transformers loads."""

ST_PACKAGE = "sentence_transformers."
ST_POOLINGS: Mapping[str, str] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last-token"}
"""sentence-transformers' pooling mode -> ours."""

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
    chunks: NotRequired[str]


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


LOCALLY: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""For everything that is read. Left unsaid, transformers asks on the terminal whether to run a folder's own code."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No report about the weights that are left out on purpose, no progress bar for a file on disk."""
    verbosity, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine; config and tokenizer are read when they are first used.

    Attributes:
        path: The folder with config, weights and tokenizer.
        name: The hub id, or the name of the folder given: the same on every machine.
        record: What ``TransformerEncoder.save`` wrote; empty for other folders.
        modules: A sentence-transformers folder's module classes and their folders, in order; empty for other folders.
        settings: What else a sentence-transformers folder says.
    """

    path: Path
    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[tuple[str, Path]] = ()
    settings: StConfig = field(default_factory=StConfig)

    @functools.cached_property
    def config(self) -> PreTrainedConfig:
        """The model's config.

        Raises:
            DataError: If it cannot be read.
            UsageError: If the model is not one stack of blocks that reads a sentence by itself.
        """
        config: PreTrainedConfig = self._read(AutoConfig, "config")
        model_class(config, self.path)
        return config

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer.

        Raises:
            DataError: If it cannot be read, or has no vocabulary.
        """
        tokenizer: PreTrainedTokenizerBase = self._read(AutoTokenizer, "tokenizer")
        # Without its files a tokenizer is made up, to which every word is unknown.
        if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
            raise DataError(
                f"{self.path} holds no vocabulary. Add the files of its tokenizer, tokenizer.json at least."
            )
        return tokenizer

    def _read(self, kind: Any, what: str) -> Any:
        try:
            with quiet_transformers():
                return kind.from_pretrained(self.path, **LOCALLY)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{self.path} holds no {what} that transformers can read: {first_line(error)}") from error

    @property
    def blocks(self) -> int:
        """Blocks of the whole model; a saved encoder may hold only the first of them."""
        return int(self.record.get("blocks", self.config.num_hidden_layers))

    @property
    def pad_id(self) -> int:
        """What fills a batch: any token would do, since the mask hides it."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(pad_id for pad_id in ids if pad_id is not None)

    def needed(self, poolings: Sequence[Pooling]) -> tuple[int, bool]:
        """The deepest layer that some poolings read, and whether one reads BERT's pooling layer.

        Raises:
            UsageError: If a layer is out of range, or is not kept in this folder.
        """
        depth = max(layer for pooling in poolings for layer in pooling.resolve(self.blocks))
        if depth > self.config.num_hidden_layers:
            raise UsageError(
                f"{self.path} keeps blocks 1 to {self.config.num_hidden_layers} of {self.blocks}, but layer {depth} is "
                "asked for. Use the model it was saved from."
            )
        return depth, any(pooling.tokens == "pooler" for pooling in poolings)

    def prompts(self, wanted: str | Prompts | None = None) -> Prompts:
        """The prompt for each role.

        Args:
            wanted: One text for all roles, the name of one of the folder's prompts, or a text for each role; None for
                the folder's own: those of the roles, else its default prompt, else none.

        Raises:
            UsageError: If a text is given for something that is not a role.
        """
        named = {name: text for name, text in (self.settings.prompts or {}).items() if text}
        if isinstance(wanted, str):
            return dict.fromkeys(PROMPT_NAMES, named.get(wanted, wanted))
        if wanted is not None:
            if unknown := [name for name in wanted if name not in PROMPT_NAMES]:
                raise UsageError(f"A prompt is for {' or '.join(PROMPT_NAMES)}, got one for {unknown[0]!r}.")
            return {role: wanted.get(role, "") for role in PROMPT_NAMES}
        if self.record:
            return recorded_prompts(self.record)
        default = named.get(self.settings.default_prompt_name or "", "")
        return {
            role: next((named[name] for name in names if name in named), default)
            for role, names in PROMPT_NAMES.items()
        }

    def own_pooling(self) -> str:
        """The pooling that the folder asks for; ``mean`` where it asks for none.

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
                    f"Normalize. Give the pooling yourself, as pooling={pooling!r}, which reads the transformer alone."
                )
        return pooling

    @functools.cached_property
    def weights_hash(self) -> str:
        """SHA-256 over the weight files in name order; a saved encoder keeps that of the model it was made from.

        Raises:
            DataError: If there is none.
        """
        if self.record:
            return str(self.record["weights"])
        files = next((found for pattern in WEIGHTS if (found := sorted(self.path.glob(pattern)))), [])
        if not files:
            raise DataError(f"{self.path} holds no weights ({' or '.join(WEIGHTS)}). Is it a complete model folder?")
        return file_sha256(*files)


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
    name = place.resolve().name if Path(model).expanduser().is_dir() else str(model)
    if (place / RECORD_FILE).exists():
        record = read_record(place / RECORD_FILE, EncoderRecord, "saved encoder", "Save the encoder again.")
        return ModelFolder(place, record["encoder"], dict(record))
    if (place / "modules.json").exists():
        # The classes of sentence-transformers have moved, so theirs are known by package and name.
        moved = re.compile(r"^sentence_transformers\..*\.")
        modules = [(moved.sub(ST_PACKAGE, row.type), place / row.path) for row in read_modules(place)]
        file = place / "config_sentence_transformers.json"
        settings = read_record(file, StConfig, "configuration", DOWNLOAD) if file.is_file() else StConfig()
        return ModelFolder(_st_transformer(place, dict(modules)), name, modules=modules, settings=settings)
    if not (place / "config.json").exists():
        raise DataError(f"{place} is not a model folder: it holds no config.json. Give the folder with the weights.")
    return ModelFolder(place, name)


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
    # A hub id is "name" or "owner/name": what begins or nests as a path, or whose parent is here, cannot be one.
    nested = str(model).count("/") > 1 or (given.parent != Path() and given.parent.is_dir())
    if nested or given.is_absolute() or str(model).startswith((".", "~")):
        raise DataError(f"The model folder {model} does not exist. Give an existing folder, or a hub id.")
    wanted = ["*.json", "*.txt", "*.model", "*.jinja"]
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


def read_modules(folder: Path) -> list[StModuleRow]:
    """The modules of a sentence-transformers folder, in order.

    Raises:
        DataError: If ``modules.json`` is missing or damaged.
    """
    return read_record(folder / "modules.json", list[StModuleRow], "list of modules", DOWNLOAD)


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
    legacy = [re.sub("^pooling_mode_|_tokens?$", "", key) for key, on in config.items() if on and "_mode_" in key]
    named = config.get("pooling_mode") or legacy
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in ST_POOLINGS:
        raise DataError(
            f"{path} asks for the pooling {' + '.join(modes) or 'none'}, but one of {', '.join(ST_POOLINGS)} is "
            "wanted. Give a pooling of your own."
        )
    return ST_POOLINGS[modes[0]]
