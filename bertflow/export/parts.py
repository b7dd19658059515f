"""What every export is made of, and what it must answer.

    encoder.write --> files --> blocks, tokenizer, PoolingHead      calibrator --> map, or none for a raw encoder

An encoder is taken apart by its own files: what is exported is what ``TransformerEncoder(files)`` would run. Its golden
vectors (``golden.py``) are made from the same files, correctly and with frequent mistakes.
"""

import json
import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from bertflow.array_types import Float32
from bertflow.data.docstrings import PLAIN
from bertflow.encoder.abstract import Role, SentenceEncoder, encode_as
from bertflow.encoder.architecture import FAMILIES, quiet_transformers
from bertflow.encoder.device import DTYPES, TF32
from bertflow.encoder.folders import recorded_prompts
from bertflow.encoder.model import BlockStack
from bertflow.encoder.pooling import COUNTED, DENOISED, Pooling, TokenViews, parse_pooling, pool
from bertflow.encoder.transformer import TransformerEncoder, in_dtype
from bertflow.errors import DataError, UsageError
from bertflow.export.golden import SUSPECT_ROWS, Golden, distances
from bertflow.maps import UnitMap
from bertflow.progress import at_level
from bertflow.records import read_record

FORMAT = 1
"""Version of the config.json of our own modules in a sentence-transformers folder."""
LONG = (2, 4, 8, 12, 18, 26)
"""How many of them are joined into a long one: some 25, 50, 100, 150, 220 and 330 tokens of BERT."""
GOLDEN_SENTENCES = (*PLAIN, *(" ".join(PLAIN[:n]) for n in LONG))
"""The 32 sentences of every golden file."""
TOLERANCES = (2e-5, 1e-3)
"""Accepted distances of float32, as a share of a row's length: a third of what half precision costs, within these
bounds. Other kernels and batches stay below it."""
POOLINGS = ("mean", "cls", "max", "last-token")
"""What a server that does not know the pooling uses instead, on the last block it has."""


class PoolingHead(nn.Module):
    """Hidden states -> one vector a sentence, from what every server has: hidden states, token ids and a mask.

    It runs the same ``pool`` as the encoder, so a new row of ``POOLINGS`` needs no change here.

    Args:
        pooling: Its layers are indices from 0.
        ends: Number of special tokens before the text, and after it.
        weights: Weight of each token id, (vocabulary,), for a row of ``COUNTED``.
        mask_at: Place of the template's mask, for ``mask`` and ``denoised-mask``, as in ``TokenViews``.
        bias: For ``denoised-mask``: what the template has there by itself, for sentences of 0, 1, ... tokens; (layer,
            tokens + 1, dim).
    """

    token_weights: Tensor | None
    bias: Tensor | None

    def __init__(
        self, pooling: Pooling, ends: tuple[int, int], weights: Tensor | None, mask_at: int | None, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.pooling, self.ends, self.mask_at = pooling, ends, mask_at
        self.register_buffer("token_weights", weights)
        self.register_buffer("bias", bias)

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
        place, length = mask.long().cumsum(1), mask.long().sum(1, keepdim=True)  # the first token is at place 1
        before, after = self.ends
        content = mask & (place > before) & (place <= length - after)
        content |= mask & (length <= before + after)  # a sentence without text is embedded by its special tokens
        counted = None
        if self.pooling.tokens in COUNTED and self.token_weights is not None:
            counted = {self.pooling.tokens: self.token_weights[ids] * content}
        bias = None
        if self.bias is not None:  # a sentence by its number of tokens
            bias = self.bias[:, (length[:, 0] - before - after).clamp(0, self.bias.shape[1] - 1)]
        views = TokenViews(mask, content, counted, self.mask_at, bias)
        return pool([layers[layer] for layer in self.pooling.layers], views, self.pooling)


class Parts:
    """An encoder taken apart by its own files.

    Args:
        system: The encoder, raw or calibrated.
        files: Folder of its config, weights and tokenizer; if it is empty, they are written first.
        given: The encoder as it was given, if it splits long texts, which an export does not; else ``system``.

    Attributes:
        opened: The encoder that is in the files, on the CPU.
        checkpoint: The files, read.
        pooling: How tokens become a vector; its layers are indices from 0, none above the deepest block in the files.
        token_weights: Weight of each token id, (vocabulary,), for a row of ``COUNTED``.
        template: What stands around every sentence; the checkpoint's tokenizer puts it there.
        map: The calibrator's map in float32, in which rows are mapped anyway; None for a raw encoder.
        description: ``describe()`` of what is exported.
        depth: Number of blocks in the files, which is the index of their last layer.
        final_norm: The norm after the last of these blocks, if it must not act.

    Raises:
        DataError: If it is another kind of encoder, whose weights cannot be written.
        UsageError: If the encoder must not be padded.
    """

    def __init__(self, system: SentenceEncoder, files: Path, given: SentenceEncoder | None = None) -> None:
        if not isinstance(system.raw, TransformerEncoder):
            raise DataError(
                f"Only a TransformerEncoder can be exported, this one is a {type(system.raw).__name__}. "
                "Export the calibrator alone with calibrator.save(folder)."
            )
        if not system.raw.stack.pads:
            raise UsageError(
                "Padding changes the embeddings of this encoder, and programs that load an export pad. "
                "Use bertflow itself, as `bertflow serve`, or another model."
            )
        if not any(files.iterdir()):
            system.raw.write(files)
        self.system, self.encoder, self.files, self.given = system, system.raw, files, given or system
        self.description = system.describe()
        self.max_length, self.dtype = int(self.description["max_length"]), str(self.description["dtype"])
        if self.dtype == TF32:  # what a GPU may round: the weights are float32
            self.dtype = "float32"
        self.opened = TransformerEncoder(files, device="cpu")
        self.checkpoint = self.opened.spec.folder
        config = self.checkpoint.config
        self.depth, self.dim_hidden = int(config.num_hidden_layers), int(config.hidden_size)
        family = FAMILIES.get(config.model_type)
        self.final_norm = family.final_norm if family and self.depth < self.checkpoint.blocks else None
        asked = parse_pooling(str(self.description["pooling"]))
        self.pooling = replace(asked, layers=asked.resolve(self.checkpoint.blocks))
        counts = self.opened.counts if asked.counted else None
        self.token_weights = torch.from_numpy(counts.weights[asked.tokens]) if counts else None
        self.map = deepcopy(system.calibrator.map).float().eval() if system.calibrator else None
        self.template = self.opened.spec.template

    @cached_property
    def stack(self) -> BlockStack:
        """The blocks, on the CPU, in the encoder's own dtype."""
        return BlockStack.load(self.checkpoint, [self.pooling], self.dtype)

    def head(self) -> PoolingHead:
        """The pooling as a module."""
        ends, bias = special_ends(self.checkpoint.tokenizer), None
        if self.template and self.pooling.tokens == DENOISED:
            lengths = torch.arange(self.max_length - sum(ends) + 1)
            with torch.no_grad():
                bias = self.template.bias(self.stack, self.pooling.layers, lengths)
        mask_at = self.template.mask_at if self.template else None
        return PoolingHead(self.pooling, ends, self.token_weights, mask_at, bias)

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer so that other libraries truncate and pad as bertflow does."""
        tokenizer = self.checkpoint.tokenizer
        tokenizer.model_max_length = self.max_length
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        # Sentences stand alone: token types are all zero, which is what a model takes where none are given.
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:  # read without transformers, too: the same truncation and padding by default
            backend.enable_truncation(self.max_length)
            backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
        with quiet_transformers():
            tokenizer.save_pretrained(folder)
        if self.template:  # the class of a family would put its own special tokens in the place of the template
            file = folder / "tokenizer_config.json"
            write_plain(file, {**read_record(file, dict[str, Any]), "tokenizer_class": "PreTrainedTokenizerFast"})


def write_plain(path: Path, value: Any) -> None:
    """Write JSON of another library's form, in the order of its keys; the whole folder is renamed in the end."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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


@at_level(logging.ERROR, "bertflow")  # long sentences are truncated on purpose
def make_golden(parts: Parts) -> Golden:
    """Embed the golden sentences, correctly and with frequent mistakes."""
    system, encoder, sentences = parts.system, parts.encoder, list(GOLDEN_SENTENCES)
    role = parts.given.role
    raw, calibrate = encode_as(encoder, role, sentences), partial(system.calibrate, role=role)
    vectors, rows, some = calibrate(raw), list(SUSPECT_ROWS), [sentences[row] for row in SUSPECT_ROWS]
    suspects = {} if system.calibrator is None else {"it leaves the calibrator out": raw[rows]}
    if isinstance(parts.map, UnitMap):  # as servers that run a Dense, but no Normalize before it
        with torch.inference_mode():
            scaled = parts.map.inner(torch.from_numpy(raw[rows])).numpy()
        suspects["it does not scale vectors to unit length before the calibrator"] = scaled
    if parts.given.has_roles:
        other: Role = "document" if role == "query" else "query"
        mistaken = system.calibrate(encode_as(encoder, other, some), other)
        suspects["it takes queries for documents, or documents for queries"] = mistaken
    depth = max(parts.pooling.layers)
    for spelling, x in encoder.encode_poolings(some, [f"{name}({depth})" for name in POOLINGS], role=role).items():
        if parse_pooling(spelling) == parts.pooling:
            continue
        wrong = f"it pools by {spelling.split('(')[0]} over its last block"
        if system.calibrator is not None:
            suspects[f"{wrong}, and leaves the calibrator out"] = x
        if system.calibrator is None or x.shape[1] == encoder.dim:
            suspects[wrong] = calibrate(x)
    prompt = recorded_prompts(parts.description)[role]
    if prompt:
        bare = TransformerEncoder(parts.files, prompt="", device="cpu")
        suspects["it leaves the prompt out"] = calibrate(bare.encode(some))
    precision = {}
    for dtype in (name for name in DTYPES if name != parts.dtype):
        x = encode_as(in_dtype(parts.opened, dtype), role, some)
        precision[dtype] = float(np.median(distances(calibrate(x), vectors[rows])))
    # In half precision the last digits depend on the machine: as many of them as differ from float32.
    if parts.dtype == "float32":
        tolerance = float(np.clip(min(precision.values()) / 3, *TOLERANCES))
    else:
        tolerance = 3 * precision["float32"]
    texts = [prompt + sentence for sentence in sentences]
    tokens = [len(ids) for ids in parts.checkpoint.tokenizer(texts, truncation=False, verbose=False)["input_ids"]]
    rounded = {name: _rounded(x) for name, x in suspects.items()}
    return Golden(1, sentences, tokens, _rounded(vectors), rounded, precision, tolerance, parts.description)


def _rounded(x: Float32) -> list[list[float]]:
    """Vectors kept to 7 digits, the precision of float32."""
    return [[float(f"{value:.7g}") for value in row] for row in x.tolist()]
