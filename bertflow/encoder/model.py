"""What runs: sentences -> tokens -> padded batches of about equal cost -> the blocks that are needed -> hidden states.

All sentences are tokenized first. Batches are then cut from the order of falling length, as many sentences at a time as
fit a budget of tokens, padding included, and fewer where the next ones are much shorter: so little is padded, also
where sentences are few. Embeddings go back to the order given by ``Batch.rows``. Padding always stands on the right,
whatever side the tokenizer prefers: positions are then those of the sentence alone, in models that count them from the
left, and the mask makes the rest harmless.
"""

import functools
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertflow.encoder.architecture import FAMILIES, model_class, some_ids, switch_off, truncate, try_padding
from bertflow.encoder.folders import LOCALLY, ModelFolder
from bertflow.encoder.foreign import OneLine
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError, reason_of
from bertflow.onednn import computed_in, use_onednn
from bertflow.registry import lookup

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
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
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        local = next((int(os.environ[rank]) for rank in LOCAL_RANKS if rank in os.environ), None)
        if name == "cuda" and local is not None:  # a launcher may show each process its own GPU alone
            name = f"cuda:{local % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = reason_of(error)
        raise UsageError(f"The device {name!r} cannot be used: {reason}. Use 'cpu', or 'auto'.") from error
    return device


CHUNK = 4096
"""Sentences handed to the tokenizer at a time."""
SIMILAR = 0.875
"""A batch ends where sentences are shorter than this share of its longest, once it is worth its overhead."""
ENOUGH = 4
"""A batch that fills one in so many parts of the budget is worth its overhead."""


@dataclass(frozen=True)
class Batch:
    """Some sentences, padded on the right.

    Attributes:
        rows: Where each stands among all sentences.
        ids: Token ids; (batch, token).
        mask: True at tokens, False at padding; (batch, token).
        content: True at tokens that are not special, or at all tokens where a sentence has no others; (batch, token).
    """

    rows: NDArray[np.int64]
    ids: Tensor
    mask: Tensor
    content: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch(self.rows, self.ids.to(device), self.mask.to(device), self.content.to(device))


@dataclass(frozen=True)
class TokenizedText:
    """Sentences as token ids, end to end.

    Attributes:
        ids: All tokens of all sentences; int32.
        special: Whether each is a special token.
        starts: Where each sentence starts in ``ids``, and the end; (n + 1,).
        truncated: How many sentences were cut to the maximal length.
    """

    ids: NDArray[np.int32]
    special: NDArray[np.bool_]
    starts: NDArray[np.int64]
    truncated: int

    @classmethod
    def joined(
        cls,
        ids: list[NDArray[np.int32]],
        special: list[NDArray[np.bool_]],
        sentences: Sequence[str],
        truncated: int = 0,
    ) -> "TokenizedText":
        """The tokens of each sentence, and whether they are special, put end to end.

        Raises:
            DataError: If a sentence has no token at all, as an empty one where the model has no special tokens.
        """
        lengths = np.array([len(tokens) for tokens in ids], dtype=np.int64)
        if not lengths.all():
            row = int(np.flatnonzero(lengths == 0)[0])
            raise DataError(f"Sentence {row} ({sentences[row]!r}) has no tokens for this model. Leave it out.")
        starts = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.concatenate([np.empty(0, np.int32), *ids]), np.concatenate([np.empty(0, np.bool_), *special])
        return cls(*flat, starts, truncated)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sentence; (n,)."""
        return np.diff(self.starts)

    def count(self, vocabulary: int) -> NDArray[np.int64]:
        """How often each token id occurs, special tokens left out; (vocabulary,)."""
        return np.bincount(self.ids[~self.special], minlength=vocabulary).astype(np.int64)

    def without_content(self) -> int:
        """How many sentences have special tokens only."""
        content = np.concatenate([[0], np.cumsum(~self.special)])
        return int((np.diff(content[self.starts]) == 0).sum())

    def batch(self, rows: NDArray[np.int64], pad_id: int) -> Batch:
        """The sentences ``rows``, padded to the longest of them."""
        lengths = self.lengths[rows]
        places = np.arange(lengths.max())
        mask = places < lengths[:, None]
        tokens = np.where(mask, self.starts[rows, None] + places, 0)
        ids = np.where(mask, self.ids[tokens].astype(np.int64), pad_id)
        content = mask & ~self.special[tokens]
        empty = ~content.any(1)
        content[empty] = mask[empty]
        return Batch(rows, torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(content))

    def batches(self, budget: int, pad_id: int, at_most: int | None = None) -> Iterator[Batch]:
        """All sentences, longest first, in batches of at most ``budget`` tokens (or of one sentence)."""
        order = np.argsort(-self.lengths, kind="stable")
        shortness = -self.lengths[order]  # rising, as a search wants it
        start = 0
        while start < len(order):
            longest = -int(shortness[start])
            similar = int(np.searchsorted(shortness, -longest * SIMILAR, side="right")) - start
            size = max(1, min(budget // longest, max(similar, budget // (ENOUGH * longest))))
            size = size if at_most is None else min(size, at_most)
            yield self.batch(order[start : start + size], pad_id)
            start += size


def tokenize(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> TokenizedText:
    """Tokenize all sentences, each cut to ``max_length`` tokens, special ones included; None cuts nothing.

    Raises:
        DataError: If a sentence has no token at all, as an empty one where the model has no special tokens.
    """
    ids: list[NDArray[np.int32]] = []
    special: list[NDArray[np.bool_]] = []
    truncated = 0
    for chunk in chunks(sentences, CHUNK):
        cut = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        with OneLine("The tokenizer cannot be run"):
            encoded = tokenizer(chunk, return_special_tokens_mask=True, **cut)
        ids += [np.array(tokens, dtype=np.int32) for tokens in encoded["input_ids"]]
        special += [np.array(flags, dtype=bool) for flags in encoded["special_tokens_mask"]]
        full = [text for text, tokens in zip(chunk, encoded["input_ids"], strict=True) if len(tokens) == max_length]
        whole = tokenizer(full, truncation=False, verbose=False)["input_ids"] if full else []
        truncated += sum(len(tokens) != max_length for tokens in whole)
    return TokenizedText.joined(ids, special, sentences, truncated)


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items, the last one shorter."""
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk


POOLER = -1
"""Stands for BERT's pooling layer among the layers that were read."""


@dataclass(frozen=True)
class BlockStack:
    """The first ``depth`` of a model's blocks, ready to run.

    Attributes:
        model: The transformers model, in eval mode.
        depth: Its deepest layer; what the model calls its last hidden state.
        pooler: Whether BERT's pooling layer is there.
        pads: Whether sentences of several lengths are padded to one batch; else each length is run by itself.
    """

    model: PreTrainedModel
    depth: int
    pooler: bool
    pads: bool = True

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        poolings: Sequence[Pooling],
        dtype: str = "float32",
        device: torch.device | str = "cpu",
    ) -> "BlockStack":
        """Load the blocks that some poolings need.

        Raises:
            DataError: If weights are missing or damaged.
            UsageError: If the model does not have what a pooling reads, or cannot embed sentences.
        """
        depth, pooler = folder.needed(poolings)
        config = truncate(folder.config, depth)
        depth, kind = config.num_hidden_layers, model_class(config, folder.path)
        takes_pooler = "add_pooling_layer" in inspect.signature(kind).parameters
        if pooler and not takes_pooler:
            raise UsageError(
                f"The pooling pooler needs BERT's pooling layer, and {config.model_type} has none. Use cls."
            )
        options = {"add_pooling_layer": pooler} if takes_pooler else {}
        model = _load_exactly(kind, folder.path, config=config, dtype=lookup("dtype", DTYPES, dtype), **options)
        if depth < folder.blocks and (norm := FAMILIES[config.model_type].final_norm):
            switch_off(model, norm)
        use_onednn(model)
        nn.Module.to(model.eval(), device, computed_in(model.dtype, device))
        layers = {layer for pooling in poolings for layer in pooling.resolve(folder.blocks)}
        return cls(model, depth, pooler)._tried(folder, sorted(layers))

    def _tried(self, folder: ModelFolder, layers: Iterable[int]) -> Self:
        """The same, once it is known whether it pads."""
        known = some_ids(folder.tokenizer, folder.config)
        pads = try_padding(lambda ids, mask: self.read(ids, mask, layers), known, folder.pad_id, self.model)
        return replace(self, pads=pads)

    @property
    def dim(self) -> int:
        """Width of a layer."""
        return int(self.model.config.hidden_size)

    @property
    def word_embeddings(self) -> Tensor:
        """A row for each token id: no position, no segment, no LayerNorm; (vocabulary, dim)."""
        return cast(nn.Embedding, self.model.get_input_embeddings()).weight.detach()

    @functools.cached_property
    def takes_mask(self) -> bool:
        """Whether the model can be told which tokens are padding (FNet cannot)."""
        return "attention_mask" in inspect.signature(self.model.forward).parameters

    def read(self, ids: Tensor, mask: Tensor, layers: Iterable[int], **inputs: Tensor) -> dict[int, Tensor]:
        """The layers asked for, each (batch, token, dim); under ``POOLER`` BERT's pooled [CLS] (batch, dim), if loaded.

        The last layer is what transformers calls ``last_hidden_state``, layer k its ``hidden_states[k]``. No other
        layers are kept in memory.

        Args:
            ids: Token ids; (batch, token).
            mask: True at tokens, False at padding, which is on the right; (batch, token).
            layers: Their indices; they need not hold the last one.
            inputs: What else the model takes, (batch, token).
        """
        if self.pads:
            return self._run(ids, mask, layers, **inputs)
        lengths, found = mask.sum(1), dict[int, Tensor]()
        for length in lengths.unique().tolist():
            rows = torch.nonzero(lengths == length)[:, 0]
            given = {name: value[rows, :length] for name, value in inputs.items()}
            for layer, states in self._run(ids[rows, :length], mask[rows, :length], layers, **given).items():
                shape = ids.shape if states.ndim == 3 else ids.shape[:1]
                whole = found.setdefault(layer, states.new_zeros(*shape, states.shape[-1]))
                whole[(rows, slice(length))[: states.ndim - 1]] = states
        return found

    def _run(self, ids: Tensor, mask: Tensor, layers: Iterable[int], **inputs: Tensor) -> dict[int, Tensor]:
        inner = [layer for layer in layers if layer < self.depth]
        if self.takes_mask:
            inputs["attention_mask"] = mask.long()
        output = self.model(input_ids=ids, output_hidden_states=inner or False, **inputs)
        states = (output.hidden_states or ()) if inner else ()
        if inner and len(states) != self.depth + 1:
            raise UsageError(
                f"A model of type {self.model.config.model_type} gives {len(states)} hidden states for {self.depth} "
                "blocks, so which is whose cannot be told. Use a pooling of the last layer, such as mean."
            )
        found = {layer: states[layer] for layer in inner} | {self.depth: output.last_hidden_state}
        return found | ({POOLER: output.pooler_output} if self.pooler else {})


class WordEmbeddings(BlockStack):
    """The word embeddings alone, which are read as layer 0."""

    @property
    def dim(self) -> int:
        """Width of a word embedding."""
        return self.word_embeddings.shape[1]

    def _tried(self, *_: Any) -> Self:
        return self

    def read(self, ids: Tensor, *_: Any, **__: Any) -> dict[int, Tensor]:
        """The rows of some token ids, (batch, token, dim), under 0."""
        return {0: self.word_embeddings[ids]}


def _load_exactly(kind: Any, folder: Path, **options: Any) -> PreTrainedModel:
    """Load a model, and refuse one of which a part would be random."""
    with OneLine(f"The weights in {folder} cannot be loaded"):
        model, info = kind.from_pretrained(folder, output_loading_info=True, **LOCALLY, **options)
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"The weights in {folder} lack {len(missing)} tensors, {missing[0]} the first, which would be random. "
            "Give the complete model, or a pooling that does not need them."
        )
    return model
