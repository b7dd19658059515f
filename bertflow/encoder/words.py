"""One vector for each word of a sentence, read in its context.

A pooling is the row that it is for sentences, with the pieces of one word in the place of a sentence's tokens: by
``mean(3)`` a word is the mean of its pieces at layer 3, by ``cls(3)`` the first of them.

    words --joined by spaces--> a sentence --> tokens --by their places in the text--> the pieces of each word

So the model reads the sentence as it reads any other, whatever its tokenizer makes of a space.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertflow.array_types import Bools, Float32, Int64
from bertflow.data.corpus import chunks
from bertflow.encoder.batching import CHUNK, Batch, placing, tokenize
from bertflow.encoder.pooling import COUNTED, TEMPLATED, Pooling, TokenViews, parse_pooling, pool
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError


def of_words(spelling: str) -> Pooling:
    """A pooling that has a meaning for the pieces of one word.

    Raises:
        UnknownNameError: If there is no such pooling.
        UsageError: If it is for sentences only.
    """
    row = parse_pooling(spelling)
    if row.tokens in ("pooler", *COUNTED, *TEMPLATED):
        raise UsageError(
            f"The pooling {spelling} is for sentences: {row.tokens} has no meaning for the pieces of one word. "
            "Use mean, max, cls (the first piece) or last-token, as in mean(3)."
        )
    return row


@dataclass(frozen=True)
class WordPlaces:
    """Where the words of some sentences stand among their tokens. A word without pieces is left out.

    Attributes:
        read: Which of all words have a piece; (words,).
        first: Place of the first piece of each word that is read, in its sentence; (n,).
        count: How many pieces it has, one behind the other; (n,).
        starts: Where the words of each sentence start among the n, and the end; (sentences + 1,).
        cut: How many words are left out since they stand behind the longest input.
    """

    read: Bools
    first: Int64
    count: Int64
    starts: Int64
    cut: int

    def of_batch(self, batch: Batch) -> Iterator[tuple[Int64, Tensor, Tensor]]:
        """The words of a batch by their number of pieces, so that little is padded.

        Yields:
            Which of the n words, their pieces among all tokens of the batch (word, piece), and which of these count.
        """
        in_sentence = self.starts[batch.rows + 1] - self.starts[batch.rows]
        numbers = np.concatenate([np.arange(*self.starts[row : row + 2]) for row in batch.rows])
        first = self.first[numbers] + batch.ids.shape[1] * np.repeat(np.arange(len(batch.rows)), in_sentence)
        most = 2 ** np.ceil(np.log2(self.count[numbers])).astype(np.int64)
        for size in np.unique(most):
            chosen, places = most == size, np.arange(size)
            mask = places < self.count[numbers[chosen], None]
            pieces = np.where(mask, first[chosen, None] + places, 0)
            yield numbers[chosen], torch.from_numpy(pieces), torch.from_numpy(mask)


def word_places(encoder: TransformerEncoder, sentences: Sequence[Sequence[str]]) -> WordPlaces:
    """Where words stand among the tokens of their sentences, behind the encoder's prompt and cut to its max_length.

    Raises:
        UsageError: If the tokenizer cannot say where its pieces stand.
    """
    prompt, max_length = encoder.spec.prompts["document"], encoder.spec.max_length
    tokenizer = placing(encoder.tokenizer)
    first, count, starts, cut = [], [], [0], 0
    for chunk in chunks(sentences, CHUNK):
        text = [prompt + " ".join(words) for words in chunk]
        encoded = tokenizer(text, truncation=True, max_length=max_length, return_offsets_mapping=True)
        for words, spans in zip(chunk, encoded["offset_mapping"], strict=True):
            # The word of each character, counted from 1; the space behind a word is none's.
            owner = np.concatenate(
                [np.zeros(len(prompt)), *(np.repeat((at, 0), (len(word), 1)) for at, word in enumerate(words, 1))]
            )
            of_token = np.array([owner[end - 1] if end > start else 0 for start, end in spans], dtype=np.int64)
            pieces = np.bincount(of_token, minlength=len(words) + 1)[1:]
            count.append(pieces)
            first.append(np.array([np.argmax(of_token == at) for at in range(1, len(words) + 1)], dtype=np.int64))
            starts.append(starts[-1] + int(np.count_nonzero(pieces)))
            if len(spans) == max_length:
                cut += len(words) - int(of_token.max())
    firsts, counts = (np.concatenate([np.zeros(0, np.int64), *each]) for each in (first, count))
    read = counts > 0
    return WordPlaces(read, firsts[read], counts[read], np.array(starts), cut)


def encode_words(
    encoder: TransformerEncoder,
    sentences: Sequence[Sequence[str]],
    poolings: Sequence[str],
    progress: bool | None = None,
) -> dict[str, Float32]:
    """One vector for each word in its sentence by several poolings, from one pass.

    Args:
        encoder: A transformer, with its prompt and its longest input.
        sentences: Each a list of words.
        poolings: Names or rows written out; the keys of what comes back.
        progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.

    Returns:
        (n, width) for each pooling: the words that ``word_places`` reads, in their order.

    Raises:
        DataError: If a vector is not finite.
        UsageError: For a pooling that is for sentences only, or a tokenizer that cannot say where pieces stand.
    """
    rows, spec = list(map(of_words, poolings)), encoder.spec
    stack, places = encoder.reaching(rows), word_places(encoder, sentences)
    layers = [row.resolve(spec.folder.blocks) for row in rows]
    found = [np.empty((len(places.first), row.width(encoder.width)), np.float32) for row in rows]

    def pooled(batch: Batch) -> None:
        states = encoder.layers(stack, batch, sorted({layer for row in layers for layer in row}))
        for numbers, pieces, mask in places.of_batch(batch):
            views = TokenViews(mask.to(encoder.device), mask.to(encoder.device))
            words = {layer: state.flatten(0, 1)[pieces.to(encoder.device)] for layer, state in states.items()}
            for x, row, read in zip(found, rows, layers, strict=True):
                x[numbers] = pool([words[layer] for layer in read], views, row).cpu().numpy()

    text = [spec.prompts["document"] + " ".join(words) for words in sentences]
    tokens = tokenize(text, encoder.tokenizer, spec.max_length)
    for _ in encoder.run([tokens], pooled, len(sentences), progress):
        pass
    for name, x in zip(poolings, found, strict=True):
        if not np.isfinite(x).all():
            raise DataError(f"Vectors of words must be finite, but some are not (pooling {name}). Use float32.")
    return dict(zip(poolings, found, strict=True))
