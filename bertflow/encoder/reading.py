"""One pass from text to vectors, whatever the unit: a sentence, a chunk of a long text, a word in its sentence.

    text --split--> units --tokenize--> tokens --> batches --the blocks that are needed--> layers --reduce--> vectors

``run`` is that pass. Everything that reads text with a model calls it, and says what is to be made of a batch:
embeddings by one or several poolings (``vectors``), words (``bertflow.encoder.words``), the states of all tokens
(``bertflow.geometry.contexts``), the sentences of a step of training (``TransformerEncoder.embed``).
On a GPU text is tokenized ahead of it, and embeddings are fetched behind it (``bertflow.encoder.device``).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertflow.array_types import Float32, Int64
from bertflow.encoder.abstract import Role, check_sentences, require_finite_rows
from bertflow.encoder.batching import Batch, TokenBudget, TokenizedText, tokenize
from bertflow.encoder.chunks import ChunkedText, Chunks, split
from bertflow.encoder.device import BEHIND, Landing, T, ahead, parts
from bertflow.encoder.folders import Prompts
from bertflow.encoder.model import POOLER, BlockStack, nothing_dropped
from bertflow.encoder.notes import CUT, EMPTY, say
from bertflow.encoder.pooling import TEMPLATED, Pooling, TokenViews, pool
from bertflow.encoder.seen_text import AbstractLearner, TokenCounts, vocabulary_size
from bertflow.encoder.spec import EncoderSpec
from bertflow.errors import DataError
from bertflow.progress import bar, working

REPAIR = "Use float32 where half precision overflows; else the weights are damaged."


class AbstractTokenEncoder(AbstractLearner):
    """What reads text with a model: a transformer, or its word embeddings alone.

    Args:
        spec: How it is opened.

    Attributes:
        spec: Everything but the weights.
        device: Where the model is.
        dim: Width of an embedding.
        recipe: The arguments that open it again, ready for JSON.
    """

    counts: TokenCounts | None = None
    longer = "chunks or a larger max_length"
    """Options with which text is not cut."""

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec, self.pooling, self.device = spec, spec.pooling, spec.device
        self.dim = spec.pooling.width(self.width)
        self.recipe: dict[str, Any] = spec.recipe
        self._stacks: list[BlockStack] = []

    @property
    def width(self) -> int:
        """Width of a layer."""
        return int(self.spec.folder.config.hidden_size)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.spec.folder.tokenizer

    @property
    def prompts(self) -> Prompts:
        """The prompt of each role."""
        return dict(self.spec.prompts)

    @property
    def stack(self) -> BlockStack:
        """The blocks that the pooling reads; their weights are loaded when they are first used."""
        if not self._stacks:
            self._stacks.append(self._load([self.pooling]))
        return self._stacks[0]

    @functools.cached_property
    def budget(self) -> TokenBudget:
        """How many tokens the device is given at a time."""
        return TokenBudget(self.device)

    @working("reading the weights")
    def _load(self, poolings: Sequence[Pooling]) -> BlockStack:
        with torch.inference_mode(False):  # also where the first sentence is read in it, weights are ordinary tensors
            return BlockStack.load(self.spec.folder, poolings, self.spec.dtype, self.device)

    def reaching(self, poolings: Sequence[Pooling]) -> BlockStack:
        """The blocks that some poolings read: those of this encoder, or more of them."""
        depth, pooler = self.spec.folder.needed(poolings)
        enough = depth <= self.stack.depth and pooler <= self.stack.pooler
        return self.stack if enough else self._load(poolings)

    def count_tokens(self, sentences: Iterable[str]) -> Self:
        """Count the tokens of a corpus, which may be a stream, for ``sif``; earlier counts are replaced.

        Raises:
            DataError: If there are no tokens to count.
        """
        self.counts = TokenCounts.of_text(sentences, self._tokenize, vocabulary_size(self.tokenizer))
        return self

    _count = count_tokens

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        return self._by_poolings(sentences, [self.pooling], role, progress, batch_size)[0]

    def _by_poolings(
        self, sentences: Sequence[str], rows: Sequence[Pooling], role: Role, progress: bool | None, most: int | None
    ) -> list[Float32]:
        """The embeddings by each of some poolings, in batches of at most ``most`` sentences, or chunks of them."""
        if self.spec.chunks is None:
            return self.vectors(self._texts(sentences, role), range(len(sentences)), rows, progress, most)
        text = self._split(sentences, role, self.spec.chunks)
        found = self.vectors([text.tokens], text.owners, rows, progress, most)
        return [text.pooled(x, self.spec.chunks.pool) for x in found]

    def encode_chunks(
        self, sentences: Sequence[str], chunks: str, progress: bool | None = None, role: Role = "document"
    ) -> tuple[Float32, ChunkedText]:
        """One embedding for each chunk of long texts, not pooled over the chunks: what an index of them keeps.

        Args:
            sentences: The sentences, as for ``encode``.
            chunks: How texts are split, as ``tokens:128:32`` (``bertflow.encoder.chunks``).
            progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.
            role: What the texts are.

        Returns:
            The embeddings (chunk, dim), and where each chunk stands in which text.

        Raises:
            UsageError: If the chunks are misspelled or too large, or the tokenizer does not say where tokens stand.
        """
        text = self._split(sentences, role, self.spec.fitted_chunks(chunks))
        return self.vectors([text.tokens], text.owners, progress=progress)[0], text

    def tokenized(self, sentences: Sequence[str], role: Role = "document", said: bool = True) -> TokenizedText:
        """Sentences as token ids, with the prompt, cut to ``max_length`` or a row a chunk; noted if ``said``."""
        if self.spec.chunks:
            return self._split(sentences, role, self.spec.chunks).tokens
        text = self._tokenize(sentences, role)
        if said:
            self._say(text.truncated, text.without_content(), len(sentences))
        return text

    def _say(self, cut: int, empty: int, n: int) -> None:
        say(CUT, cut, n, self.spec.max_length, self.longer)
        say(EMPTY, empty, n)

    def _texts(self, sentences: Sequence[str], role: Role) -> Iterator[TokenizedText]:
        """What ``tokenized`` gives: all at once, or in parts that are made ahead of a GPU."""
        cut = empty = 0
        pieces = parts(self.device, len(sentences))
        made = (self._tokenize(sentences[piece], role, piece.start) for piece in pieces)
        for text in ahead(made) if len(pieces) > 1 else made:
            cut, empty = cut + text.truncated, empty + text.without_content()
            yield text
        self._say(cut, empty, len(sentences))

    def _split(self, sentences: Sequence[str], role: Role, how: Chunks) -> ChunkedText:
        check_sentences(sentences)
        text = split(sentences, self.spec.prompts[role], self.tokenizer, self.spec.max_length, how)
        say(EMPTY, text.tokens.without_content(), len(sentences))
        return text

    def _tokenize(self, sentences: Sequence[str], role: Role = "document", first: int = 0) -> TokenizedText:
        check_sentences(sentences)
        prompted = [self.spec.prompts[role] + sentence for sentence in sentences]
        most = None if self.spec.chunks else self.spec.max_length
        return tokenize(prompted, self.tokenizer, most, first)

    def vectors(
        self,
        texts: Iterable[TokenizedText],
        owners: range | Int64,
        rows: Sequence[Pooling] = (),
        progress: bool | None = None,
        most: int | None = None,
    ) -> list[Float32]:
        """The embeddings of tokens by each of some poolings.

        Args:
            texts: Tokens, which may be made while others are read.
            owners: Number of the sentence that each unit is from.
            rows: The poolings; the encoder's own by default.
            progress: Whether to show a bar.
            most: Units of a batch.

        Raises:
            BadRowsError: If embeddings are not finite; it knows which sentences they are of.
        """
        rows = rows or [self.pooling]
        stack, landing = self.reaching(rows), Landing(BEHIND * len(rows))
        found = [np.empty((len(owners), row.width(self.width)), np.float32) for row in rows]
        unit = "sentences" if isinstance(owners, range) else "chunks"
        pooled = functools.partial(self._pooled, stack, rows)
        with nothing_dropped(stack.model):
            for at, made in self.run(texts, pooled, len(owners), progress, unit, most):
                for x, embedded in zip(found, made, strict=True):
                    landing.put(x, at, embedded)
        landing.finish()
        for x, row in zip(found, rows, strict=True):
            require_finite_rows(x, owners, REPAIR, f" (pooling {row}, {self.spec.dtype})")
        return found

    @torch.no_grad()
    def run(
        self,
        texts: Iterable[TokenizedText],
        function: Callable[[Batch], T],
        n: int,
        progress: bool | None = False,
        unit: str = "sentences",
        most: int | None = None,
    ) -> Iterator[tuple[Int64, T]]:
        """Make something of every batch of some tokens.

        Args:
            texts: Tokens, which may be made while others are read.
            function: Makes it of a batch on the device.
            n: Units of all texts, for the bar.
            progress: Whether to show it.
            unit: What it counts.
            most: Units of a batch.

        Yields:
            The rows of a batch among all units, and what was made of it.

        Raises:
            DataError: If the tokenizer is another model's, or the memory of the device does not suffice for one unit.
        """
        done, folder = 0, self.spec.folder
        known = getattr(folder.config, "vocab_size", np.inf)
        with bar(n, "encoding", progress, unit) as advance:
            for text in texts:
                if text.ids.max(initial=0) >= known:
                    raise DataError(
                        f"{folder.path} has a tokenizer with more tokens than its model, {known}. Copy it again."
                    )
                for batch, made in self.budget.run(text, folder.pad_id, function, most):
                    yield done + batch.rows, made
                    advance(len(batch.rows))
                done += len(text.lengths)

    def layers(self, stack: BlockStack, batch: Batch, wanted: Iterable[int]) -> dict[int, Tensor]:
        """Some layers of a batch, each (batch, token, dim)."""
        return stack.read(batch.ids, batch.mask, wanted, batch.tokens)

    def _pooled(self, stack: BlockStack, poolings: Sequence[Pooling], batch: Batch) -> list[Tensor]:
        """The embeddings of one batch by each pooling."""
        layers = [pooling.resolve(self.spec.folder.blocks) for pooling in poolings]
        names, template = {pooling.tokens for pooling in poolings if pooling.counted}, self.spec.template
        weights = self.counts.weigh(batch.ids, batch.content, names) if names and self.counts else None
        views = TokenViews(batch.mask, batch.content, weights)
        states = self.layers(stack, batch, sorted({layer for row in layers for layer in row}))
        found = []
        for pooling, row in zip(poolings, layers, strict=True):
            around = template if pooling.tokens in TEMPLATED else None
            told = around.views(views, pooling, stack, row, batch.lengths) if around else views
            pooled = pooling.tokens == "pooler"
            found.append(states[POOLER].float() if pooled else pool([states[layer] for layer in row], told, pooling))
        return found
