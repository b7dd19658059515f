"""A word in its sentence, and its static vector.

    static       the word alone          -> its pieces -> rows of the embedding matrix     -> reduce -> one vector
    contextual   the word in a sentence  -> its pieces -> layers, at those pieces alone    -> pool   -> one vector

A pooling is the row that it is for sentences, with the pieces of one word in the place of a sentence's tokens: by
``mean(3)`` a word is the mean of its pieces at layer 3, by ``cls(3)`` the first of them.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertflow.encoder.folders import open_model
from bertflow.encoder.model import BlockStack
from bertflow.encoder.pooling import COUNTED, Pooling, TokenViews, parse_pooling, pool
from bertflow.errors import DataError, UsageError
from bertflow.words.inputs import InputSum, count_segments
from bertflow.words.study import Mention
from bertflow.words.tokens import TokenBatch, Tokens, read_tokens, stack_tokens, whole_words

SPACE = "\u2581"
"""What SentencePiece writes for a space."""


@dataclass(frozen=True)
class Place:
    """Where a mention was found: the tokens of its sentence, and which of them are the word's."""

    tokens: Tokens
    at: tuple[int, ...]

    @property
    def pieces(self) -> tuple[str, ...]:
        """The word's pieces."""
        return tuple(self.tokens.pieces[index] for index in self.at)


class WordEncoder:
    """A transformer that is asked about words and tokens rather than sentences; on the CPU, in float32.

    Args:
        model: A hub id or a folder.
        revision: Branch, tag or commit, for a hub id.

    Attributes:
        blocks: Blocks that are in the folder; layers go from 0 (embedding layer) to this.

    Raises:
        UsageError: If the model cannot be loaded, or is not a single stack of blocks.
        DataError: For a folder that is missing, incomplete or damaged.
    """

    def __init__(self, model: str | Path, revision: str | None = None) -> None:
        self._folder = open_model(model, revision)
        self.blocks = int(self._folder.config.num_hidden_layers)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own."""
        return self._folder.tokenizer

    @property
    def family(self) -> str:
        """The type of the model, as transformers calls it."""
        return str(self._folder.config.model_type)

    @functools.cached_property
    def stack(self) -> BlockStack:
        """All blocks of the model; loaded when they are needed."""
        return BlockStack.load(self._folder, [Pooling((self.blocks,))], torch.float32)

    @functools.cached_property
    def input_sum(self) -> InputSum:
        """What the model's input embedding is made of.

        Raises:
            UsageError: If it cannot be taken apart.
        """
        return InputSum.find(self.stack.model)

    def tokenize(self, text: str, second: str | None = None, segment: int | None = None) -> Tokens:
        """Cut a text, or a pair, as the model reads it.

        Args:
            text: The text, or the first of a pair.
            second: The second of a pair.
            segment: Given to every token; by default the model's own way: 0, and 1 in the second of a pair.

        Raises:
            UsageError: If the model does not know that segment.
            DataError: If the text is longer than the model can read, or has no tokens.
        """
        known = count_segments(self.stack.model)
        if segment is not None and not 0 <= segment < known:
            has = f"it knows segments 0 to {known - 1}" if known else "it has no segments"
            raise UsageError(f"Segment {segment} was asked for, but this is a {self.family}, and {has}. Leave it out.")
        # Tokenizers count the texts of a pair also for models that are not told.
        own = 0 if known < 2 else None
        tokens = read_tokens(self.tokenizer, text, second, own if segment is None else segment)
        longest = self.stack.longest_input()
        if len(tokens) > longest:
            raise DataError(
                f"The text {_shortened(text)!r} has {len(tokens)} tokens, and this model reads {longest}. Shorten it."
            )
        return tokens

    def batch(self, rows: Sequence[Tokens]) -> TokenBatch:
        """Several texts side by side."""
        return stack_tokens(rows, self._folder.pad_id)

    @torch.no_grad()
    def layers(self, batch: TokenBatch) -> list[Tensor]:
        """All layers from 0, each (text, token, dim)."""
        inputs = {"token_type_ids": batch.segments} if count_segments(self.stack.model) else {}
        states = self.stack.read(batch.ids, batch.mask, range(self.blocks + 1), **inputs)
        return [states[layer] for layer in range(self.blocks + 1)]

    def find(self, mention: Mention) -> Place:
        """Where a word stands among the tokens of its sentence.

        Raises:
            DataError: If it does not stand there, or not that often; the message names word, sentence and pieces.
        """
        tokens = self.tokenize(mention.sentence, segment=mention.segment)
        return Place(tokens, find_word(tokens, mention, self.tokenizer))

    def contextual(self, mentions: Sequence[Mention], poolings: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """One vector a mention by each pooling; mentions of one sentence that follow one another share a pass.

        Args:
            mentions: Words in their sentences.
            poolings: Names or rows written out; the keys of what comes back, each (n, dim of the row).

        Raises:
            UsageError: For a layer out of range, and a pooling that a word has no use for.
            DataError: If a word is not in its sentence.
        """
        rows = [self._parse(spelling) for spelling in poolings]
        found: list[list[NDArray[np.float32]]] = [[] for _ in rows]

        @functools.lru_cache(maxsize=1)
        def layers(tokens: Tokens) -> list[Tensor]:
            return self.layers(self.batch([tokens]))

        for place in map(self.find, mentions):
            mask = torch.zeros(1, len(place.tokens), dtype=torch.bool)
            mask[0, list(place.at)] = True
            states = layers(place.tokens)
            for vectors, row in zip(found, rows, strict=True):
                read = [states[layer] for layer in row.resolve(self._folder.blocks)]
                vectors.append(pool(read, TokenViews(mask, mask), row)[0].numpy())
        return {name: np.array(vectors) for name, vectors in zip(poolings, found, strict=True)}

    def static(self, words: Sequence[str], pooling: str = "mean") -> NDArray[np.float32]:
        """One vector a word: rows of the embedding matrix, no position, no segment, no LayerNorm; (n, dim).

        Args:
            words: Without a sentence; cut as they would be inside one.
            pooling: How several pieces become one vector; the layers of a row do not matter here.

        Raises:
            DataError: If a word has no pieces.
        """
        row = Pooling((0,), tokens=self._parse(pooling).tokens)
        embeddings: Any = self.stack.model.get_input_embeddings()
        matrix = embeddings.weight.detach()
        vectors = []
        for word in words:
            ids = torch.tensor([spelled_alike(self.tokenizer, word)])
            mask = torch.ones_like(ids, dtype=torch.bool)
            vectors.append(pool([matrix[ids]], TokenViews(mask, mask), row)[0].numpy())
        return np.array(vectors)

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON."""
        return {
            "encoder": self._folder.name,
            "weights": self._folder.weights_hash,
            "blocks": self.blocks,
            "family": self.family,
        }

    def _parse(self, spelling: str) -> Pooling:
        row = parse_pooling(spelling)
        if row.tokens in ("pooler", *COUNTED):
            raise UsageError(
                f"The pooling {spelling} is for sentences: {row.tokens} has no meaning for the pieces of one word. "
                "Use mean, max, cls (the first piece) or last-token, as in mean(3)."
            )
        self._folder.depth([row])
        return row


@dataclass(frozen=True)
class StaticWords:
    """The words that a tokenizer keeps whole (n), and their static vectors (n, dim)."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]


def read_static_words(model: str | Path, revision: str | None = None) -> StaticWords:
    """The whole words of a hub id or folder; only the embedding layer is loaded.

    Raises:
        DataError: If the folder is missing, incomplete or damaged.
    """
    folder = open_model(model, revision)
    stack = BlockStack.load(folder, [Pooling((0,))], torch.float32)
    embeddings: Any = stack.model.get_input_embeddings()
    words = whole_words(folder.tokenizer)
    return StaticWords(tuple(words), embeddings.weight.detach()[list(words.values())].numpy())


def _shortened(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def find_word(tokens: Tokens, mention: Mention, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Indices of the tokens that are the word.

    Raises:
        DataError: If it is not there, or not that often; the message names word, sentence and pieces.
    """
    target = normalize(tokenizer, mention.word)
    if not target:
        raise DataError(f"A word is wanted, got {mention.word!r}. Name one that stands in {mention.sentence!r}.")
    places: list[tuple[int, ...]] = []
    start = 0
    while start < len(tokens):
        end = _match(tokens, start, target, tokenizer)
        if end is not None:
            places.append(tuple(range(start, end)))
        start = start + 1 if end is None else end
    if len(places) >= mention.occurrence:
        return places[mention.occurrence - 1]
    there = f"stands {len(places)} times in" if places else "is not in"
    asked = f", and occurrence {mention.occurrence} was asked for" if places else ""
    raise DataError(
        f"The word {mention.word!r} {there} the sentence {mention.sentence!r}{asked}. Its pieces are "
        f"{' '.join(tokens.pieces)}. Name a whole word, in the case that the tokenizer has it."
    )


def normalize(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Text as the tokenizer sees it: lower-cased, stripped of accents, or as it is."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str(text if normalizer is None else normalizer.normalize_str(text)).replace(SPACE, " ").strip()


def spelled_alike(tokenizer: PreTrainedTokenizerBase, word: str) -> list[int]:
    """Token ids of a word by itself, spelled as inside a sentence: byte-level BPE marks the space before a word.

    Raises:
        DataError: If there are none.
    """
    ids: list[int] = tokenizer(f" {word.strip()}", add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise DataError(f"The word {word!r} has no tokens for this model. Leave it out.")
    return ids


def _match(tokens: Tokens, start: int, target: str, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Behind the last of the tokens that, from ``start``, spell the target; None if none do."""
    part = tokens.part[start]
    if part is None:
        return None
    text = tokens.texts[part]
    first = tokens.spans[start][0]
    for end in range(start + 1, len(tokens) + 1):
        if tokens.part[end - 1] != part:
            return None
        last = tokens.spans[end - 1][1]
        spelled = normalize(tokenizer, text[first:last])
        if len(spelled) > len(target):
            return None
        if spelled == target and not _cuts(tokens, start, text) and not _cuts(tokens, end, text):
            return end
    return None


def _cuts(tokens: Tokens, index: int, text: str) -> bool:
    """Whether a word goes on across the border in front of token ``index``."""
    if index in (0, len(tokens)) or tokens.words[index] is None or tokens.words[index] != tokens.words[index - 1]:
        return False
    place = tokens.spans[index][0]
    return text[place - 1 : place].isalnum() and text[place : place + 1].isalnum()
