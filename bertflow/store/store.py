"""Embeddings on disk: computed once, read many times, never half written.

    store.json                     recipe (everything that decides the numbers), versions, sizes, digests of the text
    row_ids.npy                    the corpus as rows of the store: row_ids[i] is the row of sentence i
    text_hashes.npy                hashes of the corpus, for provenance (``bertflow.text_keys``); may be left out
    shards/00000-of-00008.npy      the embeddings of distinct sentences, in order of first appearance
    done/00000-of-00008.json       written last: number of rows, checksums, and the center of a float16 shard
    text/                          the sentences, until a store that is made of a stream is finished

The number of shards is fixed when a store is begun. Building again continues a run that was killed, and any number of
processes may build one store at the same time (``bertflow.jobs``). Each file is mapped into memory, and compared with
its checksum, when it is first read. ``float16`` halves the size on disk: each shard is kept around its own center, as
the common mean of all embeddings would use up the precision of the differences between them.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow import jobs
from bertflow.array_types import Float32, Hashes, Int64
from bertflow.data.arrays import usable_rows
from bertflow.data.corpus import chunks
from bertflow.data.lines import none_skipped, refuse
from bertflow.encoder.abstract import SentenceEncoder, check_sentences
from bertflow.errors import DataError, UsageError, how_many
from bertflow.files import atomic_folder
from bertflow.progress import Advance, bar
from bertflow.records import write_record
from bertflow.store.build import CHUNK, MANIFEST, Manifest, begin, encoded, fill, plan_of
from bertflow.store.shards import AGAIN, Block
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
        shards: Its files.
        left_out: Rows of what it was made of that it lacks, by their number there, and what is wrong with each.
    """

    left_out: Mapping[int, str]

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.shards = self.manifest.shards_in(self.folder)
        self.n, self.dim, self.recipe = self.manifest.n, self.manifest.dim, self.manifest.recipe

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
        """Encode each distinct sentence once, what exists already is kept; ``row_ids`` are those of ``sentences``.

        Args:
            encoder: Makes the embeddings.
            sentences: The corpus.
            folder: A new folder, or one that an earlier call with the same arguments or another process began.
            shards: Number of files; a killed run loses at most one for each process. By default that of the store,
                else 8 or more, so that none has more than 65,536 rows.
            dtype: ``float32``, or ``float16``. By default that of the existing store, else float32.
            progress: Whether to show a progress bar (default: in a terminal or a notebook).
            without_text_hashes: Whether a new store leaves the hashes of the corpus out.

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
        plan = plan_of(_recipe_of(encoder), encoder.dim, shards, dtype, text=text, n=n)

        def create() -> dict[str, Any]:
            save_array(folder / ROW_IDS, row_ids)
            if not without_text_hashes:
                save_array(folder / HASHES, hash_texts(distinct))
            return plan | {"corpus": text_digest([exact_hashes(sentences)])}

        with by_places(row_ids), none_skipped():
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
        """Build a store of text that does not fit into memory.

        The text is read once, as a stream, and kept in the folder until the store is finished.

        Args:
            encoder: Makes the embeddings.
            read: Starts the text from the top; sentences have one line. An existing store is compared with it.
            folder: The folder, as for ``build``.
            shards: Number of files, as for ``build``.
            dtype: Precision, as for ``build``.
            begun: Gets the store, still empty, when the text was read; returns a function that is told of new rows.

        Raises:
            BadRowsError: For sentences whose embeddings are not finite, by their places in the text; inside
                ``bertflow.skip_bad`` they are ``left_out``.
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder = Path(folder)
        plan = plan_of(_recipe_of(encoder), encoder.dim, shards, dtype)

        def spool() -> dict[str, Any]:
            with atomic_folder(folder / SPOOL) as aside:
                n, text, corpus = index_text(read(), aside)
                if not n:
                    raise UsageError(NO_TEXT)
            return plan | {"n": n, "text": text, "corpus": corpus}

        def create() -> dict[str, Any]:
            read_plan = spool()
            for name in (ROW_IDS, HASHES):
                (folder / SPOOL / name).replace(folder / name)
            return read_plan

        def check() -> dict[str, Any]:
            return plan | {"corpus": text_digest(exact_hashes(chunk) for chunk in chunks(read(), CHUNK))}

        @functools.cache
        def spooled() -> Path:
            """The text in the folder, compared with that of the store; read again where it is not whole."""
            if rows_digest(folder / SPOOL) != new.manifest.text:
                with jobs.locked(folder / jobs.PLAN_LOCK, "reads the text"):
                    if rows_digest(folder / SPOOL) != new.manifest.text:
                        new.manifest.check(folder, spool())
            return folder / SPOOL

        begin(folder, create, check)
        new = cls(folder)
        with by_places(new.manifest.array(folder, ROW_IDS)):
            blocks = encoded(encoder, lambda start, stop: text_rows(spooled(), start, stop))
            fill(folder, blocks, begun(new) if begun else lambda rows: None)
        return cls.open(folder)

    def mapped(
        self,
        function: Callable[[Float32], Float32],
        folder: str | Path,
        recipe: Mapping[str, Any],
        dim: int,
        advance: Advance = lambda rows: None,
    ) -> "EmbeddingStore":
        """Make a store of the same text that holds ``function`` of each block of rows, or go on with it.

        Args:
            function: Maps rows (n, self.dim) to (n, dim), each by itself.
            folder: A new folder, or one that was begun.
            recipe: Everything that decides the new numbers.
            dim: Width of a new row.
            advance: Is told how many more rows are done.

        Raises:
            BadRowsError: For rows that ``function`` refuses; inside ``bertflow.skip_bad`` they are left out.
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder, facts = Path(folder), self.manifest
        plan = plan_of(recipe, dim, facts.shards, facts.storage, text=facts.text, corpus=facts.corpus, n=self.n)

        def create() -> dict[str, Any]:
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
        names, there = store.shards.job.names, store.shards.job.marks()
        if missing := [name for part, name in enumerate(names) if part not in there]:
            raise DataError(
                f"{folder} is not finished: {len(missing)} of {len(names)} shards are missing, {missing[0]}.npy the "
                "first. Build it again with the same text and encoder; what is done is kept."
            )
        store.n, store.left_out = len(store.shards), store.shards.left_out
        return store

    def verify(self) -> None:
        """Read every file and compare it with its checksum; the first one that differs is refused."""
        job = self.shards.job
        if damaged := [name for part, name in enumerate(job.names) if not job.is_whole(part)]:
            raise DataError(
                f"{self.folder} is damaged: {len(damaged)} of {len(job.names)} shards are not what was written, "
                f"{damaged[0]}.npy the first. {AGAIN}"
            )
        for name in self.manifest.xxh3:
            self.manifest.array(self.folder, name)

    def describe_rows(self) -> str:
        """Sizes in one line: "1,000 x 384 float32 in 8 shards, 2 MB"."""
        size = sum(size for mark in self.shards.job.marks().values() for size, _ in mark.files.values()) / 1e6
        facts = self.manifest
        return f"{self.n:,} x {self.dim} {facts.storage} in {how_many(facts.shards, 'shards')}, {size:,.1f} MB"

    def __len__(self) -> int:
        return self.n

    @functools.cached_property
    def row_ids(self) -> Int64:
        """The row of each sentence of the corpus, in the order of the corpus, without those that were left out."""
        return renumbered(self.manifest.array(self.folder, ROW_IDS), self.left_out)

    def sentences_left_out(self) -> dict[int, str]:
        """The sentences of the corpus that have no row, by their place from 0, and what is wrong with each."""
        return places(self.left_out, self.manifest.array(self.folder, ROW_IDS))

    @functools.cached_property
    def text_hashes(self) -> Hashes | None:
        """Sorted hashes of the corpus; None where they were left out."""
        return np.array(self.manifest.array(self.folder, HASHES)) if HASHES in self.manifest.xxh3 else None

    def forget_text(self) -> Self:
        """Delete the hashes of the corpus; fingerprints of the whole text stay, so that other text is refused."""
        kept = {name: one for name, one in self.manifest.xxh3.items() if name != HASHES}
        self.manifest = replace(self.manifest, xxh3=kept)
        write_record(self.folder / MANIFEST, asdict(self.manifest))
        (self.folder / HASHES).unlink(missing_ok=True)
        self.__dict__.pop("text_hashes", None)
        return self

    def rows(self, indices: NDArray[np.integer] | Sequence[int]) -> Float32:
        """Some rows (len(indices), dim), in the order of ``indices``; one out of range is refused."""
        return self.shards.rows(np.asarray(indices, dtype=np.int64))

    def blocks(self, size: int = CHUNK, start: int = 0, stop: int | None = None) -> Iterator[Float32]:
        """Rows ``start`` to ``stop`` (all by default) in order, in blocks of at most ``size`` rows."""
        return self.shards.blocks(size, start, self.n if stop is None else min(stop, self.n))


def _recipe_of(encoder: SentenceEncoder) -> dict[str, Any]:
    """Everything that decides the numbers of a store: what the encoder says, and which fitted map follows it."""
    digest = encoder.identity.digest
    return encoder.describe() | ({"calibrator_digest": digest} if digest else {})
