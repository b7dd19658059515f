"""Sentences -> tokens -> padded batches of about equal cost.

All sentences are tokenized first. Batches are then cut from the order of falling length, as many sentences at a time as
fit a budget of tokens, padding included, and fewer where the next ones are much shorter: so little is padded, also
where sentences are few. Embeddings go back to the order given by ``Batch.rows``. Padding always stands on the right,
whatever side the tokenizer prefers: positions are then those of the sentence alone, in models that count them from the
left, and the mask makes the rest harmless.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertflow.array_types import Bools, Int64
from bertflow.data.corpus import chunks
from bertflow.encoder.architecture import OneLine
from bertflow.encoder.device import T, sent
from bertflow.errors import DataError, UsageError, logger

CHUNK = 4096
"""Sentences handed to the tokenizer at a time."""
SIMILAR = 0.875
"""A batch ends where sentences are shorter than this share of its longest, once it is worth its overhead."""
TOKEN_BUDGETS: Mapping[str, int] = {"cpu": 1024, "cuda": 65536, "mps": 16384}
"""Tokens in a batch, padding included. On a CPU a batch should stay in the cache; a GPU should be full."""
ENOUGH = 4
"""Divisor of the budget: a batch that fills this part of it is worth its overhead."""
Part = tuple[NDArray[np.int32], Bools]
"""Token ids, and which of them are special."""
NO_TOKENS: Part = np.empty(0, np.int32), np.empty(0, np.bool_)


@dataclass(frozen=True)
class Batch:
    """Some sentences, padded on the right.

    Attributes:
        rows: Where each stands among all sentences.
        ids: Token ids; (batch, token).
        mask: True at tokens, False at padding; (batch, token).
        content: True at tokens that are not special, or at all tokens where a sentence has no others; (batch, token).
        lengths: Tokens of each, padding left out, on the CPU: no device is asked for them; (batch,).
    """

    rows: Int64
    ids: Tensor
    mask: Tensor
    content: Tensor
    lengths: Int64

    @property
    def tokens(self) -> int:
        """How many there are, padding left out."""
        return int(self.lengths.sum())

    def to(self, device: torch.device) -> "Batch":
        """This batch on a device."""
        ids, mask, content = (sent(tensor, device) for tensor in (self.ids, self.mask, self.content))
        return replace(self, ids=ids, mask=mask, content=content)


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
    special: Bools
    starts: Int64
    truncated: int

    @classmethod
    def joined(
        cls, parts: Sequence[Part], lengths: list[int], sentences: Sequence[str], truncated: int = 0, first: int = 0
    ) -> "TokenizedText":
        """Parts put end to end; ``lengths`` of their tokens are those of each sentence.

        Raises:
            DataError: If a sentence has no token at all, as an empty one where the model has no special tokens; the
                first one has the number ``first``.
        """
        if 0 in lengths:
            row = lengths.index(0)
            raise DataError(f"Sentence {first + row} ({sentences[row]!r}) has no tokens for this model. Leave it out.")
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        ids, special = map(np.concatenate, zip(NO_TOKENS, *parts, strict=True))
        return cls(ids, special, starts, truncated)

    @property
    def lengths(self) -> Int64:
        """Tokens of each sentence; (n,)."""
        return np.diff(self.starts)

    def count(self, vocabulary: int) -> Int64:
        """How often each token id occurs, special tokens left out; (vocabulary,)."""
        return np.bincount(self.ids[~self.special], minlength=vocabulary).astype(np.int64)

    def without_content(self) -> int:
        """How many sentences have special tokens only."""
        return int(np.logical_and.reduceat(self.special, self.starts[:-1]).sum())

    def batch(self, rows: Int64, pad_id: int) -> Batch:
        """The sentences ``rows``, padded to the longest of them."""
        lengths = self.lengths[rows]
        places = np.arange(lengths.max())
        mask = places < lengths[:, None]
        tokens = np.where(mask, self.starts[rows, None] + places, 0)
        ids = np.where(mask, self.ids[tokens].astype(np.int64), pad_id)
        content = mask & ~self.special[tokens]
        empty = ~content.any(1)
        content[empty] = mask[empty]
        there = torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(content)
        return Batch(rows, *there, lengths)

    def batches(self, budget: int, pad_id: int, at_most: int | None = None, start: int = 0) -> Iterator[Batch]:
        """All sentences, longest first, in batches of at most ``budget`` tokens (or of one sentence).

        Args:
            budget: Tokens, padding included.
            pad_id: What fills a batch.
            at_most: Most sentences of a batch.
            start: How many of the longest are left out.
        """
        order = np.argsort(-self.lengths, kind="stable")
        shortness = -self.lengths[order]  # rising, as a search wants it
        while start < len(order):
            longest = -int(shortness[start])
            similar = int(np.searchsorted(shortness, -longest * SIMILAR, side="right")) - start
            size = max(1, min(budget // longest, max(similar, budget // (ENOUGH * longest))))
            size = size if at_most is None else min(size, at_most)
            yield self.batch(order[start : start + size], pad_id)
            start += size


def tokenize(
    sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int | None, first: int = 0
) -> TokenizedText:
    """Tokenize all sentences, each cut to ``max_length`` tokens, special ones included; None cuts nothing.

    Raises:
        DataError: If a sentence has no token at all, as an empty one where the model has no special tokens; the message
            counts sentences from ``first``.
    """
    parts: list[Part] = []
    lengths: list[int] = []
    truncated = 0
    for chunk in chunks(sentences, CHUNK):
        cut = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        with OneLine("The tokenizer cannot be run"):
            tokens, flags = _encoded(chunk, tokenizer, cut)
        sizes = [len(row) for row in tokens]
        lengths += sizes
        ids = np.fromiter(chain.from_iterable(tokens), np.int32, sum(sizes))
        parts.append((ids, np.fromiter(chain.from_iterable(flags), np.bool_, sum(sizes))))
        full = [text for text, size in zip(chunk, sizes, strict=True) if size == max_length]
        whole = tokenizer(full, truncation=False, verbose=False)["input_ids"] if full else []
        truncated += sum(len(tokens) != max_length for tokens in whole)
    return TokenizedText.joined(parts, lengths, sentences, truncated, first)


def placing(
    tokenizer: PreTrainedTokenizerBase, do: str = "Choose a model with a tokenizer.json."
) -> PreTrainedTokenizerBase:
    """A tokenizer that says where in a text its tokens stand; ``do`` is what helps where it does not.

    Raises:
        UsageError: If it does not.
    """
    if not tokenizer.is_fast:
        raise UsageError(f"The tokenizer {type(tokenizer).__name__} cannot say where in a text its pieces stand. {do}")
    return tokenizer


def _encoded(
    chunk: list[str], tokenizer: PreTrainedTokenizerBase, cut: Mapping[str, Any]
) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of each sentence, and which of them are special."""
    kind: Any = type(tokenizer)
    usual = (PreTrainedTokenizerFast._encode_plus, PreTrainedTokenizerBase.__call__)
    if (getattr(kind, "_encode_plus", None), kind.__call__) != usual:
        encoded: Any = tokenizer(chunk, return_special_tokens_mask=True, **cut)
        return encoded["input_ids"], encoded["special_tokens_mask"]
    # transformers runs a loop over the sentences, which takes as long as the tokenizer itself: one of them tells the
    # tokenizer how to cut, then it is given all.
    tokenizer(chunk[:1], **cut)
    found = tokenizer.backend_tokenizer.encode_batch_fast(chunk)
    return [each.ids for each in found], [each.special_tokens_mask for each in found]


class TokenBudget:
    """How many tokens a device is given at a time; half as many once they were too many.

    Attributes:
        tokens: Tokens in a batch, padding included.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.tokens = device, TOKEN_BUDGETS.get(device.type, TOKEN_BUDGETS["cpu"])

    def run(
        self, text: TokenizedText, pad_id: int, function: Callable[[Batch], T], at_most: int | None = None
    ) -> Iterator[tuple[Batch, T]]:
        """All batches of a text, and what ``function`` makes of each on the device.

        Raises:
            DataError: If the memory of the device does not suffice for one sentence.
        """
        done = 0
        while done < len(text.lengths):
            for batch in text.batches(self.tokens, pad_id, at_most, done):
                try:
                    made = function(batch.to(self.device))
                except torch.cuda.OutOfMemoryError as error:
                    self._halve(len(batch.ids), batch.ids.shape[1], error)
                    break
                yield batch, made
                done += len(batch.rows)

    def _halve(self, sentences: int, longest: int, error: BaseException) -> None:
        if sentences == 1:
            raise DataError(
                f"One sentence of {longest} tokens does not fit into the memory of {self.device}. Give a smaller "
                "max_length, chunks, dtype bfloat16, or another device."
            ) from error
        self.tokens = max(longest, sentences * longest // 2)
        said = "%s has no memory for %d sentences of up to %d tokens at a time: from now on it is given %d tokens."
        logger.warning(said, self.device, sentences, longest, self.tokens)
