"""The words that a tokenizer keeps whole, and their static vectors: rows of a transformer's embedding matrix."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bertflow.encoder.checkpoint import Checkpoint
from bertflow.encoder.folders import open_model
from bertflow.encoder.pooling import Pooling

WORD_STARTS = ("\u0120", "\u2581")
"""How byte-level BPE and SentencePiece mark a token that begins a word; WordPiece marks those that do not."""


@dataclass(frozen=True)
class Vocabulary:
    """Whole words (n) and their vectors (n, dim)."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]


def read_vocabulary(model: str | Path, revision: str | None = None) -> Vocabulary:
    """The whole words of a hub id or folder; nothing but the embedding layer is loaded.

    Raises:
        DataError: For a folder that is missing, incomplete or damaged.
    """
    checkpoint = Checkpoint.read(open_model(model, revision))
    stack = checkpoint.load([Pooling((0,))], torch.float32, torch.device("cpu"))
    embeddings: Any = stack.model.get_input_embeddings()
    words = whole_words(checkpoint.tokenizer)
    return Vocabulary(tuple(words), embeddings.weight.detach()[list(words.values())].numpy())


def whole_words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Words of letters alone by their token id: no pieces, numbers, signs or special tokens."""
    tokens = tokenizer.get_vocab()
    marks = [mark for mark in WORD_STARTS if any(token.startswith(mark) for token in tokens)]
    if marks:
        tokens = {token[1:]: index for token, index in tokens.items() if token.startswith(marks[0])}
    return {word: index for word, index in sorted(tokens.items(), key=lambda item: item[1]) if word.isalpha()}
