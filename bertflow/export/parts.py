"""What every export is made of: the encoder's files, its pooling from tokens alone, and the map behind it.

    encoder.write --> files --> blocks, tokenizer, PoolingHead      calibrator --> map, or none for a raw encoder

An encoder is taken apart by its own files: what is exported is what ``TransformerEncoder(files)`` would run.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bertflow.affine import AffineMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder.checkpoint import Checkpoint
from bertflow.encoder.devices import DTYPES
from bertflow.encoder.folders import open_model
from bertflow.encoder.pooling import Pooling, parse_pooling
from bertflow.encoder.token_counts import TokenCounts
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.encoder.truncated import FAMILIES, BlockStack, quiet_transformers
from bertflow.errors import DataError
from bertflow.export.head import PoolingHead
from bertflow.flow.map import FlowMap

Exportable = TransformerEncoder | CalibratedEncoder
"""What can be exported: an encoder as it comes, or one with its calibrator."""


def raw_encoder(system: Exportable) -> TransformerEncoder:
    """The transformer of what is exported.

    Raises:
        DataError: If it is of another kind, whose weights are not ours to write.
    """
    encoder = system.encoder if isinstance(system, CalibratedEncoder) else system
    if not isinstance(encoder, TransformerEncoder):
        raise DataError(
            f"Only a TransformerEncoder can be exported, this one is a {type(encoder).__name__}. "
            "Export the calibrator alone with calibrator.save(folder)."
        )
    return encoder


@dataclass(frozen=True)
class Parts:
    """An encoder taken apart.

    Attributes:
        files: Where its config, weights and tokenizer were written.
        checkpoint: Those files, read.
        pooling: How tokens become a vector.
        layers: The layers it reads, as indices from 0; none above the deepest block that was written.
        token_weights: For ``sif`` and ``soft-sif``: the weight of each token id, (vocabulary,).
        map: What follows, row by row, in float32; None for a raw encoder.
        description: ``describe()`` of what is exported.
    """

    files: Path
    checkpoint: Checkpoint
    pooling: Pooling
    layers: tuple[int, ...]
    token_weights: torch.Tensor | None
    map: AffineMap | FlowMap | None
    description: dict[str, Any]

    @classmethod
    def take(cls, system: Exportable, files: Path) -> "Parts":
        """Write the encoder's files into the folder ``files``, and read them as parts.

        Raises:
            DataError: If the encoder is of a kind that cannot be written.
        """
        encoder = raw_encoder(system)
        encoder.write(files)
        checkpoint = Checkpoint.read(open_model(files))
        pooling = parse_pooling(str(encoder.describe()["pooling"]))
        counts = TokenCounts.read(files) if pooling.counted else None
        weights = torch.from_numpy(counts.weights[pooling.tokens]) if counts else None
        parts = cls(
            files,
            checkpoint,
            pooling,
            pooling.resolve(checkpoint.blocks),
            weights,
            _single(system.calibrator.map) if isinstance(system, CalibratedEncoder) else None,
            system.describe(),
        )
        _prepare_tokenizer(checkpoint.tokenizer, parts.max_length)
        return parts

    @cached_property
    def stack(self) -> BlockStack:
        """The blocks, on the CPU, in the encoder's own dtype."""
        return self.checkpoint.load([self.pooling], DTYPES[self.dtype], torch.device("cpu"))

    @property
    def depth(self) -> int:
        """Blocks that were written, which is the layer that the written model calls its last."""
        return int(self.checkpoint.config.num_hidden_layers)

    @property
    def final_norm(self) -> str | None:
        """The written model's norm behind its last block, where that must not act."""
        if self.depth == self.checkpoint.blocks or self.checkpoint.config.model_type not in FAMILIES:
            return None
        return FAMILIES[self.checkpoint.config.model_type].final_norm

    @property
    def max_length(self) -> int:
        """Longest sentence, in tokens."""
        return int(self.description["max_length"])

    @property
    def prompt(self) -> str:
        """What is put in front of every sentence."""
        return str(self.description["prompt"])

    @property
    def dtype(self) -> str:
        """Of the encoder's weights."""
        return str(self.description["dtype"])

    @property
    def dim_hidden(self) -> int:
        """Width of a layer."""
        return int(self.checkpoint.config.hidden_size)

    @property
    def dim_raw(self) -> int:
        """Width of a raw embedding."""
        return self.pooling.width(self.dim_hidden)

    @property
    def dim(self) -> int:
        """Width of what comes out."""
        return self.dim_raw if self.map is None else self.map.dim_out

    def head(self) -> PoolingHead:
        """The pooling as a module that needs token ids and a mask, and nothing else."""
        before, after = special_ends(self.checkpoint.tokenizer)
        return PoolingHead(self.layers, self.pooling.join, self.pooling.tokens, before, after, self.token_weights)


def special_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """How many special tokens are put before a sentence, and how many behind it.

    By place and not by id: a "[SEP]" in the text, or a word that is [UNK], is text.

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


def save_tokenizer(parts: Parts, folder: Path) -> None:
    """Write the tokenizer so that other libraries cut and pad as we do."""
    tokenizer = parts.checkpoint.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # read by who has no transformers: the same cut and padding without being asked
        backend.enable_truncation(parts.max_length)
        backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    with quiet_transformers():
        tokenizer.save_pretrained(folder)


def _prepare_tokenizer(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Cut at ``max_length`` and pad on the right, with whatever is at hand where there is no padding token."""
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
