"""Tokens -> batches -> the blocks that are needed -> pooled: x (n x dim), float32.

Of a transformer, or of its word embeddings alone. On a GPU text is tokenized ahead of it, and embeddings are fetched
behind it (``bertflow.encoder.device``).
"""

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow.encoder.abstract import Float32, Role, check_sentences, say_empty
from bertflow.encoder.batching import Batch, TokenizedText, tokenize
from bertflow.encoder.chunks import ChunkedText, Chunks, split
from bertflow.encoder.device import BEHIND, Landing, TokenBudget, ahead, parts
from bertflow.encoder.folders import ModelFolder, Prompts
from bertflow.encoder.learned import AbstractLearner, TokenCounts, vocabulary_size
from bertflow.encoder.model import POOLER, BlockStack
from bertflow.encoder.pooling import Pooling, TokenViews, pool
from bertflow.encoder.template import Template, told
from bertflow.errors import BadRowsError, DataError
from bertflow.onednn import prepacked
from bertflow.progress import bar

logger = logging.getLogger("bertflow")
CUT = "%d of %d sentences were cut to max_length=%d tokens. Read them whole: chunks, or a larger max_length."
"""What is said of sentences that are longer."""
REPAIR = "Use float32 where half precision overflows; else the weights are damaged."


class AbstractTokenEncoder(AbstractLearner):
    """Sentences -> tokens -> batches -> layers -> pooled: of a transformer, or of its word embeddings alone.

    Attributes:
        device: Where the model is.
    """

    _folder: ModelFolder
    _stack: BlockStack
    _max_length: int
    _counts: TokenCounts | None = None
    _chunks: Chunks | None = None
    _template: Template | None = None
    _dtype = "float32"
    _prompts: Prompts
    device = torch.device("cpu")

    def count_tokens(self, sentences: Iterable[str]) -> Self:
        """Count the tokens of a corpus, which may be a stream, for ``sif``; earlier counts are replaced.

        Raises:
            DataError: If there are no tokens to count.
        """
        self._counts = TokenCounts.of_text(sentences, self._tokenize, vocabulary_size(self._folder.tokenizer))
        return self

    _count = count_tokens

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        return self._pooled(sentences, [self._pooling], role, progress, batch_size)[0]

    def encode_chunks(
        self, sentences: Sequence[str], chunks: str, progress: bool | None = None, role: Role = "document"
    ) -> tuple[Float32, ChunkedText]:
        """One embedding for each chunk of long texts, not pooled over the chunks: what an index of them keeps.

        Args:
            sentences: As for ``encode``.
            chunks: How texts are split, as ``tokens:128:32`` (``bertflow.encoder.chunks``).
            progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.
            role: What the texts are.

        Returns:
            The embeddings (chunk, dim), and where each chunk stands in which text.

        Raises:
            UsageError: If the chunks are misspelled or too large, or the tokenizer does not say where tokens stand.
        """
        text = self._split(sentences, role, self.fitted_chunks(chunks))
        return self._embedded([text.tokens], [self._pooling], progress, None, text.owners)[0], text

    def fitted_chunks(self, spelling: str) -> Chunks:
        """Chunks as they are spelled, their size said, for the ``max_length`` and the prompts of this encoder."""
        return Chunks.parse(spelling).fitted(self._folder.tokenizer, self._prompts.values(), self._max_length)

    def tokenized(self, sentences: Sequence[str], role: Role = "document") -> TokenizedText:
        """Sentences as token ids, with the prompt, cut to ``max_length`` or a row a chunk; said as in ``encode``."""
        if self._chunks:
            return self._split(sentences, role, self._chunks).tokens
        text = self._tokenize(sentences, role)
        self._say(text.truncated, text.without_content(), len(sentences))
        return text

    def _say(self, cut: int, empty: int, n: int) -> None:
        if cut:
            logger.warning(CUT, cut, n, self._max_length)
        say_empty(empty, n)

    def _texts(self, sentences: Sequence[str], role: Role) -> Iterator[TokenizedText]:
        """As ``tokenized``: all at once, or in parts that are made ahead of a GPU."""
        pieces = parts(self.device, len(sentences))
        if len(pieces) == 1:
            yield self.tokenized(sentences, role)
            return
        cut = empty = 0
        for text in ahead(self._tokenize(sentences[piece], role, piece.start) for piece in pieces):
            cut, empty = cut + text.truncated, empty + text.without_content()
            yield text
        self._say(cut, empty, len(sentences))

    def _split(self, sentences: Sequence[str], role: Role, how: Chunks) -> ChunkedText:
        check_sentences(sentences)
        text = split(sentences, self._prompts[role], self._folder.tokenizer, self._max_length, how)
        say_empty(text.tokens.without_content(), len(sentences))
        return text

    def _tokenize(self, sentences: Sequence[str], role: Role = "document", first: int = 0) -> TokenizedText:
        check_sentences(sentences)
        prompted = [self._prompts[role] + sentence for sentence in sentences]
        return tokenize(prompted, self._folder.tokenizer, None if self._chunks else self._max_length, first)

    def _pooled(
        self, sentences: Sequence[str], rows: Sequence[Pooling], role: Role, progress: bool | None, most: int | None
    ) -> list[NDArray[np.float32]]:
        """The embeddings by each of some poolings, in batches of at most ``most`` sentences, or chunks of them."""
        if self._chunks is None:
            return self._embedded(self._texts(sentences, role), rows, progress, most, range(len(sentences)))
        text = self._split(sentences, role, self._chunks)
        found = self._embedded([text.tokens], rows, progress, most, text.owners)
        return [text.pooled(x, self._chunks.pool) for x in found]

    @functools.cached_property
    def budget(self) -> TokenBudget:
        """How many tokens the device is given at a time."""
        return TokenBudget(self.device)

    @torch.no_grad()
    def _embedded(
        self,
        texts: Iterable[TokenizedText],
        rows: Sequence[Pooling],
        progress: bool | None,
        most: int | None,
        owners: range | NDArray[np.int64],
    ) -> list[NDArray[np.float32]]:
        """The embeddings of tokens by each of some poolings; ``owners`` are the sentences that they are from."""
        depth, pooler = self._folder.needed(rows)
        stack = self._stack
        if depth > stack.depth or pooler > stack.pooler:
            stack = BlockStack.load(self._folder, rows, self._dtype, self.device)
        found = [np.empty((len(owners), pooling.width(stack.dim)), np.float32) for pooling in rows]
        done, landing, known = 0, Landing(BEHIND * len(rows)), getattr(self._folder.config, "vocab_size", np.inf)
        unit = "sentences" if isinstance(owners, range) else "chunks"

        def run(batch: Batch) -> list[Tensor]:
            return self._run(stack, batch.to(self.device), rows)

        with bar(len(owners), "encoding", progress, unit) as advance:
            for text in texts:
                if text.ids.max(initial=0) >= known:
                    raise DataError(
                        f"{self._folder.path} has a tokenizer with more tokens than its model, {known}. Copy it again."
                    )
                with prepacked(len(text.ids)):
                    for batch, made in self.budget.run(text, self._folder.pad_id, run, most):
                        for x, embedded in zip(found, made, strict=True):
                            landing.put(x, done + batch.rows, embedded)
                        advance(len(batch.rows))
                done += len(text.lengths)
            landing.finish()
        for x, pooling in zip(found, rows, strict=True):
            finite = np.isfinite(x).all(1)
            if not finite.all():
                bad = np.asarray(owners)[~finite]
                which = f"that of sentence {bad[0]} the first (pooling {pooling}, {self._dtype})"
                message = f"Embeddings must be finite, but {(~finite).sum()} of {len(x)} are not, {which}. {REPAIR}"
                raise BadRowsError(dict.fromkeys(bad.tolist(), f"the embedding is not finite. {REPAIR}"), message)
        return found

    def _run(self, stack: BlockStack, batch: Batch, poolings: Sequence[Pooling]) -> list[Tensor]:
        """The embeddings of one batch by each pooling."""
        layers = [pooling.resolve(self._folder.blocks) for pooling in poolings]
        counts = self._counts if any(pooling.counted for pooling in poolings) else None
        views = TokenViews(batch.mask, batch.content, counts.weigh(batch.ids, batch.content) if counts else None)
        wanted = sorted({layer for row in layers for layer in row})
        states = stack.read(batch.ids, batch.mask, wanted, batch.tokens)
        return [
            states[POOLER].float()
            if pooling.tokens == "pooler"
            else pool(
                [states[layer] for layer in row],
                told(self._template, views, pooling, stack, row, batch.lengths),
                pooling,
            )
            for pooling, row in zip(poolings, layers, strict=True)
        ]
