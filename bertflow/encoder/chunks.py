"""Long text: split into chunks, each embedded as a text of its own, and pooled over the chunks of a text.

    texts --split--> chunks --tokens, layers, pooling--> (chunk, dim) --mean or max over each text--> (n, dim)

One spelling, UNIT[:SIZE[:OVERLAP]][:POOL], says how, on the command line as in YAML, JSON and tables:

    tokens               windows of as many tokens as max_length has room for
    tokens:128:32:max    windows of 128 tokens, each beginning with the last 32 of the one before; their maximum
    sentences            each sentence
    sentences:3:1        windows of three sentences, each beginning with the last one of the one before

A window of sentences for which max_length has no room is split into windows of tokens. Special tokens and the prompt
are put around every chunk and do not count. A window of tokens holds those that the whole text has there: they are not
made again. A text that fits in one chunk has the embedding that it has without chunks, and nothing is cut.

``mean`` weights a chunk by its number of tokens, so that a short last one counts for little: by the pooling ``mean``
every token counts alike. Source: "Embedding texts that are longer than the model's maximum context length", OpenAI
cookbook (https://cookbook.openai.com/examples/embedding_long_inputs).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bertflow.array_types import Bools, Float32, Floats, Int64
from bertflow.data.corpus import chunks, sentence_spans
from bertflow.encoder.batching import CHUNK, TokenizedText, placing
from bertflow.errors import UsageError

TOKENS, SENTENCES = "tokens", "sentences"
POOLS: Mapping[str, Callable[[Float32, Int64], Floats]] = {
    "mean": lambda x, tokens: np.average(x, 0, tokens),
    "max": lambda x, tokens: x.max(0),
}
"""The embeddings (chunk, dim) of the chunks of one text, and the tokens of each -> its embedding (dim,)."""
_SPELLING = re.compile(rf"({TOKENS}|{SENTENCES})(?::(\d+)(?::(\d+))?)?(?::({'|'.join(POOLS)}))?")


@dataclass(frozen=True)
class Chunks:
    """How long text is split, and how its chunks become one embedding.

    Attributes:
        by: The unit: tokens or sentences.
        size: Units in a chunk; 0 where nothing is said.
        overlap: Units that a chunk shares with the one before.
        pool: A row of ``POOLS``; empty where nothing is said.
    """

    by: str
    size: int = 0
    overlap: int = 0
    pool: str = ""

    @classmethod
    def parse(cls, spelling: str) -> "Chunks":
        """Read UNIT[:SIZE[:OVERLAP]][:POOL]; the inverse of ``str``.

        Raises:
            UsageError: If it is something else, or the overlap is as long as the chunk.
        """
        found = _SPELLING.fullmatch(spelling.strip())
        size, overlap = (int(found[2] or 0), int(found[3] or 0)) if found else (0, 0)
        if not found or (found[2] and overlap >= size):
            raise UsageError(
                "Chunks are spelled tokens or sentences, then :SIZE, :OVERLAP (less than SIZE) and :mean or :max where "
                f"wanted, as tokens:128:32:mean; got {spelling!r}."
            )
        return cls(found[1], size, overlap, found[4] or "")

    def __str__(self) -> str:
        parts = [self.by, f"{self.size}:{self.overlap}" if self.size else "", self.pool]
        return ":".join(part for part in parts if part)

    def fitted(self, tokenizer: PreTrainedTokenizerBase, prompts: Iterable[str], max_length: int) -> "Chunks":
        """These chunks with their size said: for tokens all that ``max_length`` has room for, for sentences one.

        Raises:
            UsageError: If there is no room for a chunk, or the tokenizer does not say where tokens stand.
        """
        placing(tokenizer, "Add the model's tokenizer.json, or leave chunks out.")
        room = max_length - max(len(tokenizer(prompt, truncation=False)["input_ids"]) for prompt in prompts)
        least = max(1, self.size) if self.by == TOKENS else 1
        if room < least:
            raise UsageError(
                f"A chunk of {least} tokens is wanted, but max_length={max_length} has room for {max(0, room)} beside "
                "the prompt and the special tokens. Give smaller chunks, or a larger max_length."
            )
        return replace(self, size=self.size or (room if self.by == TOKENS else 1))

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """Where the parts of a text start and stop that are tokenized together."""
        if self.by == TOKENS:
            return [(0, len(text))]
        spans = list(sentence_spans(text))
        found = [(spans[first][0], spans[last - 1][1]) for first, last in windows(len(spans), self.size, self.overlap)]
        return found if len(found) > 1 else [(0, len(text))]

    def of_tokens(self, n: int, room: int) -> Iterator[tuple[int, int]]:
        """The windows of a part of ``n`` tokens, where ``room`` fit."""
        if self.by == SENTENCES:
            return windows(n, room, 0)
        size = min(self.size, room)
        return windows(n, size, min(self.overlap, size - 1))


def windows(n: int, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """``n`` units in windows of ``size``, each beginning with the last ``overlap`` of the one before; at least one."""
    return ((first, min(first + size, n)) for first in range(0, max(1, n - overlap), size - overlap))


@dataclass(frozen=True)
class ChunkedText:
    """Texts that were split.

    Attributes:
        tokens: A row a chunk, with prompt and special tokens.
        starts: Where the chunks of each text start, and the end; (n + 1,).
        spans: Where each chunk stands in its text: ``text[start:stop]``; (chunk, 2).
        sizes: Tokens of the text in each chunk, but at least 1; (chunk,).
    """

    tokens: TokenizedText
    starts: Int64
    spans: Int64
    sizes: Int64

    @property
    def owners(self) -> Int64:
        """The row of the text that each chunk is from; (chunk,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def pooled(self, x: Float32, pool: str) -> Float32:
        """The embeddings (n, dim) of the texts from those of their chunks (chunk, dim)."""
        found = x[self.starts[:-1]]  # exact where a text has one chunk
        for row in np.flatnonzero(np.diff(self.starts) > 1):
            own = slice(self.starts[row], self.starts[row + 1])
            found[row] = POOLS[pool](x[own], self.sizes[own])
        return found


def split(
    texts: Sequence[str], prompt: str, tokenizer: PreTrainedTokenizerBase, max_length: int, how: Chunks
) -> ChunkedText:
    """Split texts into chunks of at most ``max_length`` tokens, prompt and special tokens included.

    Raises:
        DataError: If a text has no token at all, as an empty one where the model has no special tokens.
    """
    wanted = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "truncation": False}
    parts, spans, owners, sizes = [], [], [], []
    for part in chunks(((row, *span) for row, text in enumerate(texts) for span in how.pieces(text)), CHUNK):
        encoded: Any = tokenizer(
            [prompt + texts[row][start:stop] for row, start, stop in part], verbose=False, **wanted
        )
        for number, (row, start, stop) in enumerate(part):
            tokens = np.array(encoded["input_ids"][number], dtype=np.int32)
            flags = np.array(encoded["special_tokens_mask"][number], dtype=bool)
            places = np.array(encoded["offset_mapping"][number]).reshape(-1, 2) - len(prompt)
            begin, end = _text_tokens(flags, places[:, 1] <= 0 if prompt else flags)
            found = list(how.of_tokens(end - begin, max_length - len(tokens) + end - begin))
            for first, last in found:
                kept = np.r_[:begin, begin + first : begin + last, end : len(tokens)]
                parts.append((tokens[kept], flags[kept]))
                inner = (0, stop - start) if len(found) == 1 else places[[begin + first, begin + last - 1], [0, 1]]
                spans.append((start + max(0, inner[0]), start + inner[1]))
                owners.append(row)
                sizes.append(max(1, last - first))
    starts = np.searchsorted(owners, np.arange(len(texts) + 1))
    chunk_texts = [texts[row][start:stop] for row, (start, stop) in zip(owners, spans, strict=True)]
    tokenized = TokenizedText.joined(parts, [len(tokens) for tokens, _ in parts], chunk_texts)
    return ChunkedText(tokenized, starts, np.array(spans, dtype=np.int64).reshape(-1, 2), np.array(sizes, np.int64))


def _text_tokens(special: Bools, before: Bools) -> tuple[int, int]:
    """First token of the text and the one behind its last: between special tokens, behind those ``before`` it."""
    content = np.flatnonzero(~special)
    end = int(content[-1]) + 1 if len(content) else len(special)
    own = content[~before[content]]
    return (int(own[0]) if len(own) else end), end


def require_unpooled(chunks: str) -> None:
    """Refuse chunks that an encoder would pool.

    Raises:
        UsageError: If they are, or are misspelled.
    """
    if Chunks.parse(chunks).pool:
        raise UsageError(f"An index keeps each chunk and pools none, got {chunks!r}. Leave its last part out.")
