"""How a model cuts text: pieces, ids, segments, and where each piece stands in the text.

    "I found a rock."  ->  [CLS] i found a rock . [SEP]

What a sentence encoder needs of a text is its ids alone (``batching``); whoever asks about single words needs to know
which piece came from where.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertflow.encoder.abstract import check_sentences
from bertflow.errors import DataError, UsageError


@dataclass(frozen=True)
class Tokens:
    """One text, or a pair of them, as a model reads it; every tuple but ``texts`` has one entry a token.

    Attributes:
        texts: The text, or the two of a pair.
        pieces: As the vocabulary spells them.
        ids: Their rows in the vocabulary.
        segments: Which text of a pair each belongs to, for models that are told; else 0.
        part: The same for all models: 0 or 1, and None for special tokens.
        words: Which word of its text a piece is of, as the tokenizer splits words; None for special tokens.
        spans: The characters of its text that a piece stands for, from and to; (0, 0) for special tokens.
    """

    texts: tuple[str, ...]
    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    part: tuple[int | None, ...]
    words: tuple[int | None, ...]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TokenBatch:
    """Several texts side by side, padded on the right; each tensor (text, token).

    Attributes:
        ids: Token ids.
        segments: 0 or 1.
        mask: True at tokens, False at padding.
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor


def read_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, second: str | None = None, segment: int | None = None
) -> Tokens:
    """Cut one text, or a pair; nothing is truncated.

    Args:
        tokenizer: The model's own.
        text: The text, or the first of a pair.
        second: The second of a pair.
        segment: Given to every token instead of what the tokenizer says.

    Raises:
        UsageError: If the tokenizer cannot say where its pieces stand.
        DataError: If there is no token at all.
    """
    texts = (text,) if second is None else (text, second)
    check_sentences(texts)
    if not tokenizer.is_fast:
        raise UsageError(
            f"The tokenizer {type(tokenizer).__name__} cannot say where in a text its pieces stand. "
            "Choose a model with a tokenizer.json."
        )
    encoded = tokenizer(*texts, return_offsets_mapping=True, return_token_type_ids=True, verbose=False)
    ids = encoded["input_ids"]
    if not ids:
        raise DataError(f"The text {text!r} has no tokens for this model. Leave it out.")
    return Tokens(
        texts=texts,
        pieces=tuple(tokenizer.convert_ids_to_tokens(ids)),
        ids=tuple(ids),
        segments=tuple(encoded["token_type_ids"]) if segment is None else (segment,) * len(ids),
        part=tuple(encoded.sequence_ids()),
        words=tuple(encoded.word_ids()),
        spans=tuple((int(start), int(end)) for start, end in encoded["offset_mapping"]),
    )


def stack_tokens(rows: Sequence[Tokens], pad_id: int) -> TokenBatch:
    """Several texts as one batch."""
    shape = len(rows), max(map(len, rows))
    ids = torch.full(shape, pad_id, dtype=torch.long)
    segments = torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens.ids)
        segments[row, : len(tokens)] = torch.tensor(tokens.segments)
        mask[row, : len(tokens)] = True
    return TokenBatch(ids, segments, mask)
