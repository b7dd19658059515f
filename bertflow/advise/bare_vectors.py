"""Vectors that exist already, as an encoder of the sentences that they were made of."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Float32
from bertflow.calibration.saving import Provenance
from bertflow.data.corpus import drawn_rows
from bertflow.data.vectors import Vectors, open_vectors
from bertflow.encoder.abstract import AbstractEncoder, Role, SentenceEncoder
from bertflow.errors import DataError, how_many
from bertflow.store.store import EmbeddingStore
from bertflow.store.text import exact_hashes, text_digest


class VectorEncoder(AbstractEncoder):
    """Vectors that another encoder made, by their sentences.

    Args:
        path: A .npy or .parquet file (n, dim), or the folder of a store.
        sentences: The sentences of the vectors, in their order, as they were given; None numbers them.
        most: Number of rows to read, at random, if there are no sentences.
        seed: Random seed for that.
        queries: A file of vectors of queries, if there are any; ``queries`` numbers them.
        column: The column of a parquet file that holds the vectors; the only one of lists of numbers by default.

    Attributes:
        has_text: Whether there are sentences.
        provenance: What a calibrator of the vectors was fitted on: encoder and text of a store; None for a file.

    Raises:
        DataError: If the file is missing or holds no such matrix, the numbers of vectors and sentences differ, or a
            store is of other sentences.
    """

    def __init__(
        self,
        path: Path,
        sentences: Sequence[str] | None,
        most: int,
        seed: int,
        queries: Path | None = None,
        column: str | None = None,
    ) -> None:
        self._path, self.has_text = path, sentences is not None
        source = EmbeddingStore.open(path) if path.is_dir() else open_vectors(path, column)
        stored = source if isinstance(source, EmbeddingStore) else None
        self.provenance = Provenance.of(stored.recipe, stored.text_hashes) if stored is not None else None
        if sentences is None:
            places = np.array(drawn_rows(source.n, most, seed))
            sentences = [f"row {row}" for row in places]
        else:
            places = stored.row_ids if stored is not None else np.arange(source.n)
        if len(sentences) != len(places):
            raise DataError(
                f"{path} holds {len(places):,} vectors, but the text has {len(sentences):,} lines that are not empty. "
                "Give the text that was embedded, one line a vector; rows that --skip_bad leaves out have none there."
            )
        self.sentences, self.queries = [" ".join(one.split()) for one in sentences], list[str]()
        # A file was cleaned before it was embedded, a list was not.
        spelled = (text_digest([exact_hashes(one)]) for one in (sentences, self.sentences))
        if self.has_text and stored is not None and not stored.left_out and stored.manifest.corpus not in spelled:
            raise DataError(f"{path} is of another text, or has it in another order. Give the text of its vectors.")
        self._x = _rows_of(source, places)
        self.dim = self._x.shape[1]
        if queries is not None:
            asked = open_vectors(queries)
            if asked.dim != self.dim:
                raise DataError(f"{queries} has vectors of size {asked.dim}, but those of {path} have {self.dim}.")
            rows = np.array(drawn_rows(asked.n, most, seed))
            self.queries = [f"query {row}" for row in rows]
            self._x = np.concatenate([self._x, _rows_of(asked, rows)])
        self._row_of = {sentence: row for row, sentence in enumerate([*self.sentences, *self.queries])}

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        sentences = [" ".join(one.split()) for one in sentences]
        missing = [sentence for sentence in sentences if sentence not in self._row_of]
        if missing:
            raise DataError(
                f"{self._path} has no vector for {how_many(len(missing), 'sentences')} of the labels, such as "
                f"{missing[0]!r}. Embed all of them, and append both the vectors and the sentences to your files."
            )
        return self._x[[self._row_of[sentence] for sentence in sentences]].reshape(-1, self.dim)

    def describe(self) -> dict[str, Any]:
        """The file and a checksum of what was read of it; of a store, its encoder."""
        if self.provenance is not None:
            return dict(self.provenance.encoder)
        return {"encoder": self._path.name, "weights": self._digest, "pooling": "as given"}

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._x.tobytes()).hexdigest()


def lacks_text(encoder: SentenceEncoder) -> bool:
    """Whether an encoder is vectors whose text is not at hand."""
    return isinstance(encoder, VectorEncoder) and not encoder.has_text


def _rows_of(source: EmbeddingStore | Vectors, places: NDArray[np.integer[Any]]) -> Float32:
    """Rows by their numbers: of a store in any order; of a file rising ones, and it is read a block at a time."""
    if isinstance(source, EmbeddingStore):
        return np.asarray(source.rows(places), dtype=np.float32)
    found, first = [], 0
    for block in source.blocks():
        inside = places[slice(*np.searchsorted(places, (first, first + len(block))))]
        found.append(block[inside - first].astype(np.float32))
        first += len(block)
    return np.concatenate(found)
