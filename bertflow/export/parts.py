"""What every export is made of: the encoder's files, its pooling as a module, and the map behind it.

    encoder.write --> files --> blocks, tokenizer, PoolingHead      calibrator --> map, or none for a raw encoder

An encoder is taken apart by its own files: what is exported is what ``TransformerEncoder(files)`` would run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertflow.affine import AffineMap
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.folders import ModelFolder, open_model, quiet_transformers
from bertflow.encoder.learned import TokenCounts
from bertflow.encoder.model import DTYPES, FAMILIES, BlockStack
from bertflow.encoder.pooling import COUNTED, Pooling, TokenViews, parse_pooling, pool
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.flow.glow import FlowMap


class PoolingHead(nn.Module):
    """Hidden states -> one vector a sentence, from what every server has: hidden states, token ids and a mask.

    It runs the same ``pool`` as the encoder, so a new row of ``POOLINGS`` needs no change here.

    Args:
        layers: Indices from 0 of the layers that are read, in the order of the pooling.
        join: A row of ``JOINS``.
        tokens: A row of ``TOKEN_REDUCTIONS``.
        before: Number of special tokens before the text.
        after: Number of special tokens after the text.
        weights: For ``sif`` and ``soft-sif``: the weight of each token id, (vocabulary,).
    """

    token_weights: Tensor | None

    def __init__(
        self,
        layers: Sequence[int],
        join: str = "mean",
        tokens: str = "mean",
        before: int = 1,
        after: int = 1,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.pooling = Pooling(tuple(layers), join, tokens)
        self.before, self.after = before, after
        self.register_buffer("token_weights", weights)

    def forward(self, layers: Mapping[int, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        """The embeddings of a batch.

        Args:
            layers: The layers that are read, by their index; each (batch, token, dim).
            ids: Token ids; (batch, token).
            mask: Nonzero at tokens, zero at padding, which may be on either side; (batch, token).

        Returns:
            (batch, dim), float32.
        """
        mask = mask != 0
        content = self._content(mask)
        counted = None
        if self.pooling.tokens in COUNTED and self.token_weights is not None:
            counted = {self.pooling.tokens: self.token_weights[ids] * content}
        views = TokenViews(mask, content, counted)
        return pool([layers[layer] for layer in self.pooling.layers], views, self.pooling)

    def _content(self, mask: Tensor) -> Tensor:
        """Where the text is: the mask without the special tokens at both ends."""
        place = mask.long().cumsum(1)  # 1 for the first token of a sentence
        length = mask.long().sum(1, keepdim=True)
        content = mask & (place > self.before) & (place <= length - self.after)
        # A sentence without text is embedded by its special tokens.
        return content | (mask & (length <= self.before + self.after))


@dataclass(frozen=True)
class Parts:
    """An encoder taken apart.

    Attributes:
        files: Folder with its config, weights and tokenizer.
        checkpoint: Those files, read.
        pooling: How tokens become a vector.
        layers: The layers it reads, as indices from 0; none above the deepest block that was written.
        token_weights: For ``sif`` and ``soft-sif``: the weight of each token id, (vocabulary,).
        map: The calibrator's map in float32; None for a raw encoder.
        description: ``describe()`` of what is exported.
    """

    files: Path
    checkpoint: ModelFolder
    pooling: Pooling
    layers: tuple[int, ...]
    token_weights: Tensor | None
    map: AffineMap | FlowMap | None
    description: dict[str, Any]

    @classmethod
    def take(cls, system: SentenceEncoder, files: Path) -> "Parts":
        """Write the encoder's files into the folder ``files``, and read them as parts.

        Raises:
            DataError: If this kind of encoder cannot be written.
        """
        encoder = transformer_of(system)
        encoder.write(files)
        checkpoint = open_model(files)
        pooling = parse_pooling(str(encoder.describe()["pooling"]))
        counts = TokenCounts.read(files) if pooling.counted else None
        parts = cls(
            files,
            checkpoint,
            pooling,
            pooling.resolve(checkpoint.blocks),
            torch.from_numpy(counts.weights[pooling.tokens]) if counts else None,
            _single(system.calibrator.map) if system.calibrator else None,
            system.describe(),
        )
        _prepare_tokenizer(checkpoint.tokenizer, parts.max_length)
        return parts

    @cached_property
    def stack(self) -> BlockStack:
        """The blocks, on the CPU, in the encoder's own dtype."""
        return BlockStack.load(self.checkpoint, [self.pooling], DTYPES[self.dtype])

    @property
    def depth(self) -> int:
        """Number of blocks that were written, which is the index of the written model's last layer."""
        return int(self.checkpoint.config.num_hidden_layers)

    @property
    def final_norm(self) -> str | None:
        """The norm after the written model's last block, if it must not act."""
        if self.depth == self.checkpoint.blocks or self.checkpoint.config.model_type not in FAMILIES:
            return None
        return FAMILIES[self.checkpoint.config.model_type].final_norm

    @property
    def max_length(self) -> int:
        """Longest sentence, in tokens."""
        return int(self.description["max_length"])

    @property
    def prompts(self) -> dict[str, str]:
        """Text that is put in front of a query and of a document."""
        prompt = str(self.description["prompt"])
        return {"query": str(self.description.get("query_prompt", prompt)), "document": prompt}

    @property
    def dtype(self) -> str:
        """Data type of the encoder's weights."""
        return str(self.description["dtype"])

    @property
    def dim_hidden(self) -> int:
        """Width of a layer."""
        return int(self.checkpoint.config.hidden_size)

    @property
    def dim_raw(self) -> int:
        """Width of a raw embedding."""
        return self.pooling.width(self.dim_hidden)

    def head(self) -> PoolingHead:
        """The pooling as a module."""
        before, after = special_ends(self.checkpoint.tokenizer)
        return PoolingHead(self.layers, self.pooling.join, self.pooling.tokens, before, after, self.token_weights)

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer so that other libraries truncate and pad as bertflow does."""
        tokenizer = self.checkpoint.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:  # read without transformers, too: the same truncation and padding by default
            backend.enable_truncation(self.max_length)
            backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
        with quiet_transformers():
            tokenizer.save_pretrained(folder)


def transformer_of(system: SentenceEncoder) -> TransformerEncoder:
    """The raw encoder of what is exported.

    Raises:
        DataError: If it is another kind of encoder, whose weights cannot be written.
    """
    encoder = system.raw
    if not isinstance(encoder, TransformerEncoder):
        raise DataError(
            f"Only a TransformerEncoder can be exported, this one is a {type(encoder).__name__}. "
            "Export the calibrator alone with calibrator.save(folder)."
        )
    return encoder


def special_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """How many special tokens are put before a sentence, and how many after it.

    They are recognized by position and not by id: a "[SEP]" in the text, or a word that is [UNK], is text.

    Raises:
        DataError: If the tokenizer puts special tokens into the middle of a sentence.
    """
    flags = tokenizer(["a a"], return_special_tokens_mask=True)["special_tokens_mask"][0]
    content = [place for place, special in enumerate(flags) if not special]
    if not content or any(flags[content[0] : content[-1] + 1]):
        raise DataError(
            f"Special tokens were expected at the ends of a sentence, but this tokenizer marks {flags}. "
            "Choose the pooling mean, which counts them."
        )
    return content[0], len(flags) - 1 - content[-1]


def _prepare_tokenizer(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Truncate at ``max_length`` and pad on the right, with another token where there is no padding token."""
    tokenizer.model_max_length = max_length
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    # Sentences stand alone: token types are all zero, which is what a model takes where none are given.
    tokenizer.model_input_names = ["input_ids", "attention_mask"]


def _single(module: AffineMap | FlowMap) -> AffineMap | FlowMap:
    """A copy in float32, in which rows are mapped anyway: half the file, and every device has it."""
    kind: Any = type(module)
    copy = kind.from_spec(module.spec())
    copy.load_state_dict(module.state_dict())
    single: AffineMap | FlowMap = copy.float().eval()
    return single
