"""The embeddings of some text: in memory, or in a store."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.store.store import EmbeddingStore
from bertflow.store.text import distinct_rows


def some_rows(x: EmbeddingStore | NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """All rows, or ``most`` of them, evenly spaced."""
    places = np.linspace(0, len(x) - 1, min(len(x), most)).astype(np.int64)
    return x.rows(places) if isinstance(x, EmbeddingStore) else x[places]


def embedded(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    store: str | Path | None = None,
    progress: bool | None = None,
    without_text_hashes: bool = False,
) -> EmbeddingStore | NDArray[np.float32]:
    """Embeddings (n, dim) of all sentences, in memory or in a store; one that comes twice is encoded once.

    Raises:
        DataError: If the store holds embeddings of other text, or by another encoder.
    """
    if store is not None:
        built = EmbeddingStore.build(encoder, sentences, store, None, None, progress, without_text_hashes)
        return built if len(built) == len(sentences) else built.rows(built.row_ids)
    distinct, rows = distinct_rows(sentences)
    x = encoder.encode(distinct, progress=progress)
    return x if len(distinct) == len(sentences) else x[rows]
