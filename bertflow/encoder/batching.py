"""From sentences to padded batches of about equal cost.

All sentences are tokenized first. Batches are then cut from the order of falling length, as many sentences at a time as
fit a budget of tokens, padding included, and fewer where the next ones are much shorter: so little is padded, also
where sentences are few. Embeddings go back to the order given by ``Batch.rows``.

Padding always stands on the right, whatever side the tokenizer prefers: positions are then those of the sentence alone,
in models that count them from the left, and the mask makes the rest harmless.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertflow.errors import DataError

Scalar = TypeVar("Scalar", bound=np.generic)
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
        content: True at tokens that are no special ones; all tokens of a sentence that has no others; (batch, token).
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
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, pad_id, dtype=np.int64)
        content = np.zeros(mask.shape, dtype=bool)
        for place, row in enumerate(rows):
            tokens = slice(self.starts[row], self.starts[row + 1])
            ids[place, : lengths[place]] = self.ids[tokens]
            content[place, : lengths[place]] = ~self.special[tokens]
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


def tokenize(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> TokenizedText:
    """Tokenize all sentences, each cut to ``max_length`` tokens, special ones included.

    Raises:
        DataError: If a sentence has no token at all, as an empty one where the model has no special tokens.
    """
    ids: list[NDArray[np.int32]] = []
    special: list[NDArray[np.bool_]] = []
    truncated = 0
    for start in range(0, len(sentences), CHUNK):
        chunk = list(sentences[start : start + CHUNK])
        encoded = tokenizer(chunk, truncation=True, max_length=max_length, return_special_tokens_mask=True)
        ids += [np.array(tokens, dtype=np.int32) for tokens in encoded["input_ids"]]
        special += [np.array(flags, dtype=bool) for flags in encoded["special_tokens_mask"]]
        full = [text for text, tokens in zip(chunk, encoded["input_ids"], strict=True) if len(tokens) == max_length]
        truncated += _count_longer(full, tokenizer, max_length)
    lengths = np.array([len(tokens) for tokens in ids], dtype=np.int64)
    if not lengths.all():
        row = int(np.flatnonzero(lengths == 0)[0])
        raise DataError(f"Sentence {row} ({sentences[row]!r}) has no tokens for this model. Leave it out.")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return TokenizedText(_flat(ids, np.int32), _flat(special, np.bool_), starts, truncated)


def _flat(arrays: list[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])


def _count_longer(sentences: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """How many have more than ``max_length`` tokens."""
    if not sentences:
        return 0
    whole = tokenizer(sentences, truncation=False, verbose=False)["input_ids"]
    return sum(len(tokens) > max_length for tokens in whole)


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items, the last one shorter."""
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk
