"""Embeddings on disk: computed once, read many times, never half written.

    store.json                     recipe (everything that decides the numbers), versions, sizes, digests of the text
    row_ids.npy                    the corpus as rows of the store: row_ids[i] is the row of sentence i
    text_hashes.npy                hashes of the corpus, for provenance (``bertflow.text_keys``); may be left out
    shards/00000-of-00008.npy      the embeddings of distinct sentences, in order of first appearance
    done/00000-of-00008.json       written last: number of rows, checksums, and the center of a float16 shard
    text/                          the sentences, until a store that is made of a stream is finished

The number of shards is fixed when a store is begun. Building again continues a run that was killed: shards with a valid
marker are kept, the others are computed. Any number of processes may build one store at the same time. Each takes
shards that no other process holds (``bertflow.store.build``), those of its own share first if a launcher gave it a
rank. Reading maps the files into memory; each is compared with its checksum when it is first read.

``float16`` halves the size on disk. Each shard is then kept around its own center, so that the common mean of all
embeddings, often most of their length, does not use up the precision of the differences between them.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.data.arrays import map_array
from bertflow.data.corpus import chunks
from bertflow.data.skipping import none_skipped, refuse, usable_rows
from bertflow.encoder.abstract import SentenceEncoder, check_sentences
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_folder
from bertflow.progress import Advance, bar
from bertflow.store.build import (
    ARRAYS,
    CHUNK,
    MANIFEST,
    TEXT,
    Plan,
    begin,
    encoded,
    fill,
    is_as_written,
    locked,
    read_manifest,
)
from bertflow.store.shards import AGAIN, Block, Rows, Shard
from bertflow.store.text import (
    HASHES,
    ROW_IDS,
    SPOOL,
    by_places,
    distinct_rows,
    exact_hashes,
    index_text,
    places,
    renumbered,
    rows_digest,
    save_array,
    text_digest,
    text_rows,
)
from bertflow.text_keys import hash_texts

NO_TEXT = "A store needs sentences, got none. Give text."


class EmbeddingStore:
    """A folder of embeddings, one row for each distinct sentence.

    Made by ``build``, ``build_streamed`` or ``open``.

    Attributes:
        folder: The folder.
        n: Number of rows: of distinct sentences, without those that were left out.
        dim: Width of a row.
        recipe: ``describe()`` of the encoder.
        left_out: Rows of what it was made of that it lacks, by their number there, and what is wrong with each.
    """

    _rows: Rows
    left_out: Mapping[int, str]

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = read_manifest(self.folder)
        self.n = self._manifest.n
        self.dim = self._manifest.dim
        self.recipe = self._manifest.recipe

    @classmethod
    def build(
        cls,
        encoder: SentenceEncoder,
        sentences: Sequence[str],
        folder: str | Path,
        shards: int | None = None,
        dtype: str | None = None,
        progress: bool | None = None,
        without_text_hashes: bool = False,
    ) -> Self:
        """Encode each distinct sentence once; what exists already is kept.

        Args:
            encoder: Makes the embeddings.
            sentences: The corpus.
            folder: A new folder, or one that an earlier call with the same arguments or another process began.
            shards: Number of files; a killed run loses at most one for each process. By default that of the existing
                store, else 8 or more, so that none has more than 65,536 rows.
            dtype: ``float32``, or ``float16`` around each shard's center. By default that of the existing store, else
                float32.
            progress: Whether to show a progress bar (default: in a terminal or a notebook).
            without_text_hashes: Whether a new store leaves the hashes of the corpus out.

        Returns:
            The finished store; its ``row_ids`` are those of ``sentences``.

        Raises:
            BadRowsError: For sentences whose embeddings are not finite, by their places in ``sentences``.
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        check_sentences(sentences)
        folder = Path(folder)
        if not len(sentences):
            raise UsageError(NO_TEXT)
        distinct, row_ids = distinct_rows(sentences)
        text, n = text_digest([exact_hashes(distinct)]), len(distinct)
        plan = Plan(_recipe_of(encoder), encoder.dim, text, n=n, shards=shards, storage=dtype)

        def create() -> Plan:
            save_array(folder / ROW_IDS, row_ids)
            if not without_text_hashes:
                save_array(folder / HASHES, hash_texts(distinct))
            return replace(plan, corpus=text_digest([exact_hashes(sentences)]))

        with by_places(row_ids), none_skipped():
            if not os.access(folder, os.W_OK) and (folder / MANIFEST).exists():
                plan.check(folder)  # a finished store may be in a folder where nothing can be written
            else:
                with bar(n, "encoding", progress) as advance:
                    begin(folder, create, lambda: plan)
                    fill(folder, encoded(encoder, lambda start, stop: distinct[start:stop]), advance)
            store = cls.open(folder)
            refuse(store.left_out)
        store.row_ids = row_ids
        return store

    @classmethod
    def build_streamed(
        cls,
        encoder: SentenceEncoder,
        read: Callable[[], Iterable[str]],
        folder: str | Path,
        shards: int | None = None,
        dtype: str | None = None,
        begun: Callable[["EmbeddingStore"], Advance] | None = None,
    ) -> Self:
        """As ``build``, for text that does not fit into memory.

        The text is read once, as a stream, and kept in the folder until the store is finished.

        Args:
            encoder: Makes the embeddings.
            read: Starts the text from the top; sentences have one line. An existing store is compared with it.
            folder: As for ``build``.
            shards: As for ``build``.
            dtype: As for ``build``.
            begun: Gets the store, still empty, when the text was read; returns a function that is told of new rows.

        Raises:
            BadRowsError: For sentences whose embeddings are not finite, by their places in the text; inside
                ``bertflow.skip_bad`` they are ``left_out``.
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder = Path(folder)
        plan = Plan(_recipe_of(encoder), encoder.dim, shards=shards, storage=dtype)

        def spool() -> tuple[int, str, str]:
            with atomic_folder(folder / SPOOL) as aside:
                n, text, corpus = index_text(read(), aside)
                if not n:
                    raise UsageError(NO_TEXT)
            return n, text, corpus

        def create() -> Plan:
            n, text, corpus = spool()
            for name in (ROW_IDS, HASHES):
                (folder / SPOOL / name).replace(folder / name)
            return replace(plan, n=n, text=text, corpus=corpus)

        def check() -> Plan:
            return replace(plan, corpus=text_digest(exact_hashes(chunk) for chunk in chunks(read(), CHUNK)))

        @functools.cache
        def spooled() -> Path:
            """The text in the folder, compared with that of the store; read again where it is not whole."""
            kept = read_manifest(folder).text
            if rows_digest(folder / SPOOL) != kept:
                with locked(folder / TEXT, "reads the text"):
                    if rows_digest(folder / SPOOL) != kept:
                        n, text, corpus = spool()
                        replace(plan, n=n, text=text, corpus=corpus).check(folder)
            return folder / SPOOL

        def sentences(start: int, stop: int) -> Iterator[str]:
            return text_rows(spooled(), start, stop)

        begin(folder, create, check)
        with by_places((new := cls(folder))._array(ROW_IDS)):
            fill(folder, encoded(encoder, sentences), begun(new) if begun else lambda rows: None)
        return cls.open(folder)

    def mapped(
        self,
        function: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        folder: str | Path,
        recipe: Mapping[str, Any],
        dim: int,
        advance: Advance = lambda rows: None,
    ) -> "EmbeddingStore":
        """Make a store of the same text that holds ``function`` of each block of rows; it resumes as ``build`` does.

        Args:
            function: Maps rows (n, self.dim) to (n, dim), each by itself.
            folder: A new folder, or one that an earlier call with the same arguments began.
            recipe: Everything that decides the new numbers.
            dim: Width of a new row.
            advance: Is told how many more rows are done.

        Raises:
            BadRowsError: For rows that ``function`` refuses; inside ``bertflow.skip_bad`` they are left out.
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder, facts = Path(folder), self._manifest
        plan = Plan(recipe, dim, facts.text, facts.corpus, self.n, facts.shards, facts.storage)

        def create() -> Plan:
            save_array(folder / ROW_IDS, self.row_ids)
            if self.text_hashes is not None:
                save_array(folder / HASHES, self.text_hashes)
            return plan

        def blocks(start: int, stop: int) -> Iterator[Block]:
            return (usable_rows(function, x, dim) for x in self.blocks(start=start, stop=stop))

        begin(folder, create, lambda: plan)
        fill(folder, blocks, advance)
        return EmbeddingStore.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a finished store.

        Raises:
            DataError: If it is not a store, or not finished.
        """
        store = cls(folder)
        shards = store._shards
        if missing := [shard for shard in shards if not shard.is_done()]:
            raise DataError(
                f"{folder} is not finished: {len(missing)} of {len(shards)} shards are missing, {missing[0].path.name} "
                "the first. Build it again with the same text and encoder; what is done is kept."
            )
        store._rows = Rows(shards)
        store.left_out = store._rows.left_out
        store.n -= len(store.left_out)
        return store

    def verify(self) -> None:
        """Read every file and compare it with its checksum.

        Raises:
            DataError: If one differs; the message names it.
        """
        if damaged := [shard.path.name for shard in self._shards if not shard.is_whole()]:
            raise DataError(
                f"{self.folder} is damaged: {len(damaged)} of {len(self._shards)} shards are not what was written, "
                f"{damaged[0]} the first. {AGAIN}"
            )
        for name in self._manifest.xxh3:
            self._array(name)

    def describe_rows(self) -> str:
        """Sizes in one line: "1,000 x 384 float32 in 8 shards, 2 MB"."""
        size = sum(shard.path.stat().st_size for shard in self._shards) / 1e6
        facts = self._manifest
        return f"{self.n:,} x {self.dim} {facts.storage} in {facts.shards} shards, {size:,.1f} MB"

    def __len__(self) -> int:
        return self.n

    @functools.cached_property
    def row_ids(self) -> NDArray[np.int64]:
        """The row of each sentence of the corpus, in the order of the corpus, without those that were left out."""
        return renumbered(self._array(ROW_IDS), self.left_out)

    def sentences_left_out(self) -> dict[int, str]:
        """The sentences of the corpus that have no row, by their place from 0, and what is wrong with each."""
        return places(self.left_out, self._array(ROW_IDS))

    @functools.cached_property
    def text_hashes(self) -> NDArray[np.uint64] | None:
        """Sorted hashes of the corpus; None where they were left out."""
        return np.array(self._array(HASHES)) if HASHES in self._manifest.xxh3 else None

    def forget_text(self) -> Self:
        """Delete the hashes of the corpus; fingerprints of the whole text stay, so that other text is refused."""
        self._manifest = self._manifest.without_hashes(self.folder)
        self.__dict__.pop("text_hashes", None)
        return self

    def _array(self, name: str) -> NDArray[Any]:
        """A file beside ``store.json``, compared with its checksum."""
        array = map_array(self.folder / name, AGAIN)
        if not is_as_written(self.folder, self._manifest, name) or (array.dtype.name, array.ndim) != (ARRAYS[name], 1):
            raise DataError(f"{self.folder / name} is damaged: it is not what the store was begun with. {AGAIN}")
        return array

    def rows(self, indices: NDArray[np.integer] | Sequence[int]) -> NDArray[np.float32]:
        """Some rows (len(indices), dim), in the order of ``indices``.

        Raises:
            UsageError: If an index is out of range.
        """
        return self._rows.read(np.asarray(indices, dtype=np.int64))

    def blocks(self, size: int = CHUNK, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Rows ``start`` to ``stop`` (all by default) in order, in blocks of at most ``size`` rows."""
        return self._rows.blocks(size, start, self.n if stop is None else min(stop, self.n))

    @functools.cached_property
    def _shards(self) -> list[Shard]:
        return self._manifest.layout(self.folder)


def _recipe_of(encoder: SentenceEncoder) -> dict[str, Any]:
    """Everything that decides the numbers of a store: what the encoder says, and which fitted map follows it."""
    digest = encoder.identity.digest
    return encoder.describe() | ({"calibrator_digest": digest} if digest else {})
