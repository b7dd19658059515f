"""A transformer's own word embeddings, averaged: no position, no segment, no LayerNorm, no block.

    sentences -> tokens -> rows of the embedding matrix -> pool -> x

What ``mean(0)`` pools is something else: the output of the embedding layer, which adds position and segment vectors and
normalizes. Static vectors need no pass through the model.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.encoder.abstract import AbstractEncoder, Float32, Role
from bertflow.encoder.folders import open_model
from bertflow.encoder.learned import TokenCounts, vocabulary_size
from bertflow.encoder.model import BlockStack, tokenize
from bertflow.encoder.pooling import COUNTED, Pooling, TokenViews, pool
from bertflow.progress import bar
from bertflow.registry import lookup

REDUCTIONS: Mapping[str, Pooling] = {name: Pooling((0,), tokens=name) for name in ("content", "mean", "sif", "max")}
"""How the vectors of the tokens become one; ``mean`` and ``max`` count special tokens, the others do not."""
BUDGET = 2**16
"""Tokens of a batch, padding included."""


class StaticEncoder(AbstractEncoder):
    """The word embeddings of a transformer as a ``SentenceEncoder``.

    Args:
        model: A hub id or a folder.
        pooling: A row of ``REDUCTIONS``.
        max_length: Longest sentence, in tokens, special ones included.
        revision: Branch, tag or commit, for a hub id.
        token_counts: For ``sif``: counts by word or by token id. Or call ``count_tokens``.

    Attributes:
        dim: Width of a word embedding.

    Raises:
        UnknownNameError: For an unknown pooling.
        DataError: For a folder that is missing, incomplete or damaged.
    """

    def __init__(
        self,
        model: str | Path,
        pooling: str = "content",
        max_length: int = 128,
        revision: str | None = None,
        token_counts: Mapping[str, int] | NDArray[Any] | None = None,
    ) -> None:
        self._pooling = lookup("pooling of static vectors", REDUCTIONS, pooling)
        self._folder = open_model(model, revision)
        stack = BlockStack.load(self._folder, [self._pooling])
        self._vectors = embedding_matrix(stack).clone()
        self._max_length = max_length
        tokenizer = self._folder.tokenizer
        self._counts = None if token_counts is None else TokenCounts.given(token_counts, tokenizer)
        self.dim = int(self._vectors.shape[1])
        self.recipe: dict[str, Any] = {
            "model": str(model),
            "pooling": f"static-{pooling}",
            "max_length": max_length,
            "revision": revision,
        }

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        text = tokenize(sentences, self._folder.tokenizer, self._max_length)
        x = np.empty((len(sentences), self.dim), np.float32)
        counts = self._counts
        with bar(len(sentences), "encoding", progress) as advance:
            for batch in text.batches(BUDGET, self._folder.pad_id, batch_size):
                views = TokenViews(
                    batch.mask, batch.content, counts.weigh(batch.ids, batch.content) if counts else None
                )
                x[batch.rows] = pool([self._vectors[batch.ids]], views, self._pooling).numpy()
                advance(len(batch.rows))
        return x

    def count_tokens(self, sentences: Iterable[str]) -> Self:
        """Count the tokens of a corpus, which may be a stream, for ``sif``; earlier counts are replaced.

        Raises:
            DataError: If there are no tokens to count.
        """
        tokenizer = self._folder.tokenizer
        self._counts = TokenCounts.of_text(
            sentences, lambda chunk: tokenize(chunk, tokenizer, self._max_length), vocabulary_size(tokenizer)
        )
        return self

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON."""
        recipe = {
            "encoder": self._folder.name,
            "weights": self._folder.weights_hash,
            "pooling": f"static-{self._pooling.tokens}",
            "max_length": self._max_length,
        }
        if self._pooling.counted:
            recipe |= {
                "sif_a": COUNTED[self._pooling.tokens],
                "token_counts": self._counts.digest() if self._counts else None,
            }
        return recipe

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """The text that ``sif`` counted; empty for the other poolings, None where counts came without their text."""
        if not self._pooling.counted or self._counts is None:
            return np.empty(0, dtype=np.uint64)
        return self._counts.text_hashes


def embedding_matrix(stack: BlockStack) -> torch.Tensor:
    """A row for each token id: no position, no segment, no LayerNorm; (vocabulary, dim)."""
    embeddings: Any = stack.model.get_input_embeddings()
    matrix: torch.Tensor = embeddings.weight.detach()
    return matrix
