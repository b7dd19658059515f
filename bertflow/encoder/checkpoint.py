"""A model as it lies on disk: config and tokenizer, read; and its weights, from which the needed blocks are loaded."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from bertflow.encoder.folders import ModelFolder
from bertflow.encoder.pooling import Pooling
from bertflow.encoder.truncated import LOCALLY, BlockStack, first_line, quiet_transformers
from bertflow.errors import DataError, UsageError


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
            UsageError: If the model is no encoder that reads a sentence by itself.
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
            UsageError: If a pooling cannot be had from this model.
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
