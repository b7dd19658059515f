"""The embeddings of some text: in memory, or in a store."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Float32
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.store.store import EmbeddingStore
from bertflow.store.text import distinct_rows


def rows_at(x: EmbeddingStore | Float32, places: NDArray[np.integer]) -> Float32:
    """The rows at some places."""
    return x.rows(places) if isinstance(x, EmbeddingStore) else x[places]


def embedded(
    encoder: SentenceEncoder,
    sentences: Sequence[str],
    store: str | Path | None = None,
    progress: bool | None = None,
    without_text_hashes: bool = False,
) -> EmbeddingStore | Float32:
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
