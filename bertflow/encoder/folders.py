"""What the folder of a model says about how to use it, its config, its tokenizer, its license: all but its weights.

A prompt is put before a sentence, and depends on what the sentence is: an encoder for search may have one for queries
and one for documents. sentence-transformers names them in its folder; a saved encoder keeps both. It also keeps the
license of the model that it was made from, since that goes on to everything that is made of the weights.

Nothing in a folder is executed: code that comes with a model is refused.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired

import torch
import yaml
from huggingface_hub import metadata_load
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import TypedDict

from bertflow.encoder.abstract import Role
from bertflow.encoder.architecture import OneLine, model_class, truncate
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError, logger
from bertflow.files import file_sha256
from bertflow.places import require_files
from bertflow.records import Checksums, Size, checksums, write_record

RECORD_FILE = "bertflow_encoder.json"

DEFAULTS: Mapping[str, Any] = {"max_length": 128, "dtype": "float32"}
"""Defaults where neither the caller nor the folder says anything."""
Prompts = Mapping[Role, str]
"""What is put before a sentence, by what the sentence is."""
PROMPT_NAMES: Mapping[Role, tuple[str, ...]] = {"document": ("document", "passage", "corpus"), "query": ("query",)}
"""What sentence-transformers calls the prompt of a role, as in its ``encode_document`` and ``encode_query``."""


class EncoderRecord(TypedDict):
    """What a saved encoder cannot be opened without."""

    format: Literal[1]
    encoder: str
    weights: str
    blocks: Size
    pooling: str
    max_length: Size
    dtype: str
    prompt: str
    query_prompt: NotRequired[str]
    chunks: NotRequired[str]
    template: NotRequired[str]
    labels: NotRequired[list[str]]
    tuned: NotRequired[dict[str, Any]]
    imports: NotRequired[list[str]]
    sha256: Checksums
    weights_above: NotRequired[Checksums]


def recorded_prompts(description: Mapping[str, Any]) -> Prompts:
    """The prompts in the ``describe()`` of an encoder; without roles, one is for all."""
    return {"document": description["prompt"], "query": description.get("query_prompt", description["prompt"])}


def shown_prompts(prompts: Prompts) -> str:
    """Prompts in words: "'query: ' before each query", or "none"."""
    return " and ".join(f"{text!r} before each {role}" for role, text in prompts.items() if text) or "none"


MOST = 2**20
"""Blocks, width and tokens that a model may have: beyond that its config is damaged."""
DOWNLOAD = "Download or copy the whole folder again."
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of weight files; the first that matches is what transformers loads."""
CARD, LICENSE = "README.md", ("license", "license_name", "license_link")
"""The model card, and what the hub calls a license in it; the last two where the first is "other"."""
LOCALLY: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options for all that is read. Without them, transformers asks on the terminal whether to run a folder's own code."""


@dataclass(frozen=True)
class StConfig:
    """What matters to us in ``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine; config and tokenizer are read when they are first used.

    Attributes:
        path: The folder with config, weights and tokenizer.
        name: The hub id, or the name of the folder given: the same on every machine.
        record: What ``TransformerEncoder.save`` wrote; empty for other folders.
        modules: A sentence-transformers folder's module classes and their folders, in order; empty for other folders.
        settings: What else a sentence-transformers folder says.
        length: Its longest sentence, in tokens; None where it does not say.
    """

    path: Path
    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[tuple[str, Path]] = ()
    settings: StConfig = field(default_factory=StConfig)
    length: int | None = None

    @functools.cached_property
    def config(self) -> PreTrainedConfig:
        """The model's config.

        Raises:
            DataError: If it cannot be read.
            UsageError: If the model is not one stack of blocks that reads a sentence by itself.
        """
        config: PreTrainedConfig = self._read(AutoConfig, "config")
        model_class(config, self.path)
        for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
            value = getattr(config, name, 1)
            if not isinstance(value, int) or not 0 <= value <= MOST:
                raise DataError(f"{self.path}: config.json gives {name} as {value!r}. {DOWNLOAD}")
        return config

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer.

        Raises:
            DataError: If it cannot be read, or has no vocabulary.
        """
        tokenizer: PreTrainedTokenizerBase = self._read(AutoTokenizer, "tokenizer")
        if not isinstance(tokenizer.model_max_length, int | float):
            raise DataError(f"{self.path}: tokenizer_config.json gives no number as model_max_length. {DOWNLOAD}")
        # Without its files a tokenizer is made up, to which every word is unknown.
        if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
            raise DataError(
                f"{self.path} holds no vocabulary. Add the files of its tokenizer, tokenizer.json at least."
            )
        return tokenizer

    def _read(self, kind: Any, what: str) -> Any:
        with OneLine(f"{self.path} holds no {what} that transformers can read"):
            return kind.from_pretrained(self.path, **LOCALLY)

    @property
    def saved(self) -> dict[str, Any]:
        """How it is opened where the caller says nothing; without a ``max_length``, as long as the model can read."""
        return {**DEFAULTS, **({"max_length": self.length} if self.modules else {}), **self.record}

    @property
    def blocks(self) -> int:
        """Blocks of the whole model; a saved encoder may hold only the first of them."""
        return int(self.record.get("blocks", self.config.num_hidden_layers))

    @property
    def pad_id(self) -> int:
        """What fills a batch: any token would do, since the mask hides it."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        known = getattr(self.config, "vocab_size", MOST)
        return next(pad_id for pad_id in ids if pad_id is not None and pad_id < known)

    def needed(self, poolings: Sequence[Pooling]) -> tuple[int, bool]:
        """The deepest layer that some poolings read, and whether one reads BERT's pooling layer.

        Raises:
            UsageError: If a layer is out of range, is not kept in this folder, or the model has no pooling layer.
        """
        depth = max(layer for pooling in poolings for layer in pooling.resolve(self.blocks))
        if depth > self.config.num_hidden_layers:
            raise UsageError(
                f"{self.path} keeps blocks 1 to {self.config.num_hidden_layers} of {self.blocks}, but layer {depth} is "
                "asked for. Use the model it was saved from."
            )
        pooler = any(pooling.tokens == "pooler" for pooling in poolings)
        if pooler and not self.takes_pooler:
            kind = self.config.model_type
            raise UsageError(f"The pooling pooler needs BERT's pooling layer, and {kind} has none. Use cls.")
        return depth, pooler

    @property
    def takes_pooler(self) -> bool:
        """Whether the model has BERT's pooling layer, which may be left out."""
        return "add_pooling_layer" in inspect.signature(model_class(self.config, self.path)).parameters

    @functools.cached_property
    def shape(self) -> PreTrainedModel:
        """The model without weights, and with as few blocks as possible; takes milliseconds."""
        config = truncate(self.config, 0)
        with torch.device("meta"):
            return model_class(config, self.path)(config)

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
        require_files(*files, parts=True)
        return file_sha256(*files)

    @property
    def weights(self) -> Path:
        """The folder with the weights: that above for a saved encoder in an export."""
        return self.path.parent if "weights_above" in self.record else self.path

    @property
    def license(self) -> dict[str, str]:
        """What the front matter of the model's README.md says of its license, by ``LICENSE``; empty for nothing."""
        if self.record:
            said = self.record.get("license", {})
        else:
            # A sentence-transformers folder may keep its transformer in a folder of its own.
            places = (self.path, self.path.parent) if self.modules else (self.path,)
            card = next((place / CARD for place in places if (place / CARD).is_file()), None)
            try:
                said = (metadata_load(card) if card else None) or {}
            except (OSError, ValueError, yaml.YAMLError, RecursionError):
                logger.warning("%s cannot be read, so the license of %s is unknown.", card, self.name)
                said = {}
        return {key: said[key] for key in LICENSE if isinstance(said, dict) and isinstance(said.get(key), str)}


def write_facts(folder: Path, description: Mapping[str, Any]) -> None:
    """Write the ``describe()`` of an encoder beside its files, with their checksums."""
    (folder / RECORD_FILE).unlink(missing_ok=True)
    write_record(folder / RECORD_FILE, {"format": 1, **description, "sha256": checksums(folder)})
