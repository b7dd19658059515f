"""A transformer: where it runs, its config and tokenizer, and the blocks that are needed of its weights.

Layer k of a transformer depends on blocks 1 to k alone, so for ``mean(3)`` a model of 12 blocks is loaded with 3. What
comes out equals ``hidden_states[k]`` of the whole model, with one thing to mind: some families put a final norm behind
their last block, and truncated they would put it behind block k. There it is switched off.

A family that is not in ``FAMILIES`` is loaded whole: slower, never wrong.
"""

import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from bertflow.encoder.folders import ModelFolder
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError
from bertflow.onednn import use_onednn

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""Of the weights and the hidden states; pooling is done in float32."""

TOKEN_BUDGETS: Mapping[str, int] = {"cpu": 1024, "cuda": 65536, "mps": 16384}
"""Tokens in a batch, padding included. On a CPU a batch should stay in the cache; a GPU should be full."""
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
"""Where torchrun, Lightning and SLURM say which process on its machine this is."""


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first of cuda, mps and cpu that is there.

    Where several processes share a machine, each ``auto`` takes a GPU of its own.

    Raises:
        UsageError: If a device that was named cannot be used: nothing else is put in its place.
    """
    if name == "auto":
        name = _own_gpu() if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"The device {name!r} cannot be used: {reason}. Use 'cpu', or 'auto'.") from error
    return device


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held; None on Windows, which has no such figure."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _own_gpu() -> str:
    """The GPU of this process; where a launcher shows each its own, that is the only one it sees."""
    local = next((int(os.environ[name]) for name in LOCAL_RANKS if name in os.environ), None)
    return "cuda" if local is None else f"cuda:{local % torch.cuda.device_count()}"


@dataclass(frozen=True)
class Family:
    """What to mind when a family is truncated.

    Attributes:
        final_norm: The module behind the last block, which must not act behind an earlier one.
        least_blocks: With fewer blocks the model cannot be built.
    """

    final_norm: str | None = None
    least_blocks: int = 0


FAMILIES: Mapping[str, Family] = {
    "albert": Family(),
    "bert": Family(),
    "distilbert": Family(),
    "electra": Family(),
    "gpt2": Family(final_norm="ln_f"),
    "modernbert": Family(final_norm="final_norm", least_blocks=1),
    "mpnet": Family(),
    "roberta": Family(),
    "xlm-roberta": Family(),
}
"""By model_type: the families whose truncated form is tested to be exact."""


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


def first_line(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class HiddenStates:
    """What a batch left behind: some layers, each (batch, token, dim), and BERT's pooled [CLS], (batch, dim)."""

    layers: Mapping[int, Tensor]
    pooler: Tensor | None


@dataclass(frozen=True)
class BlockStack:
    """The first ``depth`` of a model's blocks, ready to run.

    Attributes:
        model: The transformers model, in eval mode.
        depth: Its deepest layer; what the model calls its last hidden state.
        pooler: Whether BERT's pooling layer is there.
    """

    model: PreTrainedModel
    depth: int
    pooler: bool

    @classmethod
    def load(
        cls, folder: Path, config: PreTrainedConfig, blocks: int, depth: int, pooler: bool, dtype: torch.dtype
    ) -> "BlockStack":
        """Load what layers 0 to ``depth`` need.

        Args:
            folder: Config and weights.
            config: The folder's config; left as it is.
            blocks: Blocks of the whole model, which the folder may hold only the first of.
            depth: Deepest layer that will be read.
            pooler: Whether BERT's pooling layer is needed.
            dtype: Precision of the weights.

        Raises:
            DataError: If weights are missing or damaged.
            UsageError: If a pooler is wanted and the model has none.
        """
        config = _truncate(config, depth)
        depth = config.num_hidden_layers
        model_class: Any = MODEL_MAPPING[type(config)]
        takes_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
        if pooler and not takes_pooler:
            raise UsageError(
                f"The pooling pooler needs BERT's pooling layer, and {config.model_type} has none. Use cls."
            )
        options = {"add_pooling_layer": pooler} if takes_pooler else {}
        model = _load_exactly(folder, config=config, dtype=dtype, **options)
        if depth < blocks and (norm := FAMILIES[config.model_type].final_norm):
            switch_off(model, norm)
        use_onednn(model)
        return cls(model.eval(), depth, pooler)

    @property
    def dim(self) -> int:
        """Width of a layer."""
        return int(self.model.config.hidden_size)

    def longest_input(self) -> int:
        """How many tokens the model has positions for."""
        positions = int(self.model.config.max_position_embeddings)
        for name, module in self.model.named_modules():
            # RoBERTa and its kin count positions from behind the padding index.
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                positions -= module.padding_idx + 1
        return positions

    def read(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> "HiddenStates":
        """The layers asked for; no others are kept in memory."""
        inner = [layer for layer in layers if layer < self.depth]
        output = self.model(**inputs, output_hidden_states=inner or False)
        found = {layer: output.hidden_states[layer] for layer in inner} | {self.depth: output.last_hidden_state}
        return HiddenStates(found, output.pooler_output if self.pooler else None)


def switch_off(model: nn.Module, norm: str) -> None:
    """Let a norm pass its input on; it keeps its weights, so that the model is saved and loaded as any other."""
    getattr(model, norm).forward = _unchanged


def _unchanged(hidden_states: Tensor) -> Tensor:
    return hidden_states


def _truncate(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """The same config with ``depth`` blocks, where the family is known to stand it."""
    config = type(config).from_dict(config.to_dict())
    config.use_cache = False
    # ALBERT deals its blocks out to groups by their number, so with several groups fewer blocks would be others.
    if config.model_type in FAMILIES and getattr(config, "num_hidden_groups", 1) == 1:
        depth = max(depth, FAMILIES[config.model_type].least_blocks)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]
        config.num_hidden_layers = depth
    return config


def _load_exactly(folder: Path, **options: Any) -> PreTrainedModel:
    """Load a model, and refuse one of which a part would be random."""
    try:
        with quiet_transformers():
            model, info = AutoModel.from_pretrained(folder, output_loading_info=True, **LOCALLY, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"The weights in {folder} cannot be loaded: {first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"The weights in {folder} lack {len(missing)} tensors, {missing[0]} the first, which would be random. "
            "Give the complete model, or a pooling that does not need them."
        )
    return model


@dataclass(frozen=True)
class Checkpoint:
    """Everything about a model but its weights.

    Attributes:
        folder: Where it lies.
        config: Its config.
        tokenizer: Its tokenizer.
    """

    folder: ModelFolder
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def read(cls, folder: ModelFolder) -> "Checkpoint":
        """Read config and tokenizer.

        Raises:
            DataError: If one of them cannot be read.
            UsageError: If the model is not one stack of blocks that reads a sentence by itself.
        """
        return cls(folder, _read_config(folder.path), _read_tokenizer(folder.path))

    @property
    def blocks(self) -> int:
        """Blocks of the whole model; a saved encoder may hold only the first of them."""
        return int(self.folder.record.get("blocks", self.config.num_hidden_layers))

    @functools.cached_property
    def weights_hash(self) -> str:
        """SHA-256 of the weights; a saved encoder keeps that of the model it was made from."""
        return self.folder.record.get("weights") or self.folder.hash_weights()

    @property
    def pad_id(self) -> int:
        """What fills a batch: any token would do, since the mask hides it."""
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(pad_id for pad_id in ids if pad_id is not None)

    def depth(self, poolings: Sequence[Pooling]) -> int:
        """The deepest layer that some poolings read.

        Raises:
            UsageError: If a layer is out of range, or is not kept in this folder.
        """
        depth = max(layer for pooling in poolings for layer in pooling.resolve(self.blocks))
        if depth > self.config.num_hidden_layers:
            raise UsageError(
                f"{self.folder.path} keeps blocks 1 to {self.config.num_hidden_layers} of {self.blocks}, but layer "
                f"{depth} is asked for. Use the model it was saved from."
            )
        return depth

    def load(self, poolings: Sequence[Pooling], dtype: torch.dtype, device: torch.device) -> BlockStack:
        """The blocks that some poolings need.

        Raises:
            DataError: If weights are missing or damaged.
            UsageError: If the model does not have what a pooling reads.
        """
        stack = BlockStack.load(
            self.folder.path, self.config, self.blocks, self.depth(poolings), needs_pooler(poolings), dtype
        )
        nn.Module.to(stack.model, device)
        return stack


def needs_pooler(poolings: Sequence[Pooling]) -> bool:
    """Whether BERT's pooling layer is among them."""
    return any(pooling.tokens == "pooler" for pooling in poolings)


def _read_config(folder: Path) -> PreTrainedConfig:
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, **LOCALLY)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} holds no config that transformers can read: {first_line(error)}") from error
    if config.is_encoder_decoder or not hasattr(config, "num_hidden_layers"):
        raise UsageError(
            f"{folder} is a model of type {config.model_type}, but sentences need one stack of blocks, as in BERT, "
            "RoBERTa, MPNet or GPT-2. Choose another model."
        )
    return config


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, **LOCALLY)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} holds no tokenizer that transformers can read: {first_line(error)}") from error
    # Without its files a tokenizer is made up, to which every word is unknown.
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
        raise DataError(f"{folder} holds no vocabulary. Add the files of its tokenizer, tokenizer.json at least.")
    return tokenizer
