"""Embeddings at rest: computed once, read many times, never half written.

    store.json                     the recipe (all that decides the numbers), versions, sizes, digests of the text
    row_ids.npy                    the corpus as rows of the store: row_ids[i] is the row of sentence i
    text_hashes.npy                what the corpus was, for provenance (``bertflow.text_keys``)
    shards/00000-of-00008.npy      the embeddings of distinct sentences, in order of first appearance
    done/00000-of-00008.json       written last: how many rows, their checksum, and the center of a float16 shard
    text/                          the sentences, while a store that is made of a stream is not finished

The number of shards is fixed when a store is begun, whoever computes them. A run that was killed is continued by
building again: shards with a valid marker are kept, the others are computed. Any number of processes may build one
store at the same time: each takes shards that nobody else holds (``bertflow.store.shards``), its own share
first where torchrun or SLURM have given it a rank. Reading maps the files into memory.

``float16`` halves the disk: a shard is then kept around a center of its own, so that the common mean of all embeddings,
often most of their length, does not eat the precision of what tells them apart.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import SentenceEncoder, check_sentences
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file
from bertflow.progress import Advance, bar
from bertflow.store.build import (
    CHUNK,
    SPOOL,
    Plan,
    Read,
    StreamedText,
    begin,
    encoded,
    fill,
    is_begun,
    read_manifest,
)
from bertflow.store.shards import Locks, Shard, layout
from bertflow.store.text import (
    HASHES,
    ROW_IDS,
    distinct_rows,
    exact_hashes,
    save_array,
    text_digest,
)
from bertflow.text_keys import hash_texts


class EmbeddingStore:
    """A folder of embeddings, one row a distinct sentence.

    Made by ``build``, ``build_streamed`` or ``open``.

    Attributes:
        folder: Where it lies.
        n: Rows, that is, distinct sentences.
        dim: Width of a row.
        recipe: What the encoder said of itself.
    """

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
        progress: bool = False,
    ) -> Self:
        """Encode each distinct sentence once; what is there already is kept.

        Args:
            encoder: Makes the embeddings.
            sentences: The corpus.
            folder: New, or begun by an earlier call with the same arguments, or by another process just now.
            shards: Into how many files; also how finely a killed run is resumed. By default those of the store that is
                there, else enough that none has more than 65,536 rows, and at least 8.
            dtype: ``float32``, or ``float16`` around each shard's center. By default as the store that is there, else
                float32.
            progress: Show a bar on stderr.

        Returns:
            The finished store; its ``row_ids`` are those of ``sentences``.

        Raises:
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        check_sentences(sentences)
        folder = Path(folder)
        if not len(sentences) or (shards is not None and shards < 1):
            raise UsageError(
                f"A store needs sentences and shards, got {len(sentences)} and {shards}. Give one at least."
            )
        distinct, row_ids = distinct_rows(sentences)
        text, n = text_digest([exact_hashes(distinct)]), len(distinct)
        plan = Plan(encoder.describe(), encoder.dim, text, n=n, shards=shards, dtype=dtype)

        def create() -> Plan:
            save_array(folder / ROW_IDS, row_ids)
            save_array(folder / HASHES, hash_texts(distinct))
            return replace(plan, corpus=text_digest([exact_hashes(sentences)]))

        if not os.access(folder, os.W_OK) and is_begun(folder):
            plan.check(folder)  # a finished store may lie where nothing can be written
        else:
            locks = Locks(folder)
            with bar(n, "encoding", progress) as advance:
                begin(folder, locks, create, lambda: plan)
                fill(folder, locks, encoded(encoder, lambda start, stop: distinct[start:stop]), advance)
        store = cls.open(folder)
        store.row_ids = row_ids
        return store

    @classmethod
    def build_streamed(
        cls,
        encoder: SentenceEncoder,
        read: Read,
        folder: str | Path,
        shards: int | None = None,
        dtype: str | None = None,
        begun: Callable[["EmbeddingStore"], Advance] | None = None,
    ) -> Self:
        """As ``build``, for more text than memory holds.

        The text is read once, as a stream, and lies in the folder until the store is finished.

        Args:
            encoder: Makes the embeddings.
            read: Starts the text from the top; sentences of one line. A store that is there is checked against it.
            folder: New, or begun by an earlier call with the same arguments, or by another process just now.
            shards: As for ``build``.
            dtype: As for ``build``.
            begun: Is given the store, still empty, when the text was read; returns what is told of rows that are done.

        Raises:
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder = Path(folder)
        if shards is not None and shards < 1:
            raise UsageError(f"A store needs shards, got {shards}. Give one at least.")
        plan = Plan(encoder.describe(), encoder.dim, shards=shards, dtype=dtype)
        locks = Locks(folder)
        text = StreamedText(read, folder, locks)

        def create() -> Plan:
            index = text.spool()
            for name in (ROW_IDS, HASHES):
                (folder / SPOOL / name).replace(folder / name)
            return replace(plan, text=index.text, corpus=index.corpus, n=index.n)

        begin(folder, locks, create, lambda: replace(plan, corpus=text.digest()))
        fill(folder, locks, encoded(encoder, text.rows), begun(cls(folder)) if begun else lambda rows: None)
        return cls.open(folder)

    def mapped(
        self,
        function: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        folder: str | Path,
        recipe: Mapping[str, Any],
        dim: int,
        advance: Advance = lambda rows: None,
    ) -> "EmbeddingStore":
        """A store of the same text that holds ``function`` of each block of rows; resumes as ``build`` does.

        Args:
            function: Row by row, (n, self.dim) -> (n, dim).
            folder: New, or begun by an earlier call with the same arguments.
            recipe: What decides the new numbers.
            dim: Width of a new row.
            advance: Is told how many more rows are done.

        Raises:
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        folder = Path(folder)
        facts = self._manifest
        plan = Plan(recipe, dim, facts.text, facts.corpus, self.n, facts.shards, facts.storage)

        def create() -> Plan:
            for name in (ROW_IDS, HASHES):
                with atomic_file(folder / name) as aside:
                    shutil.copyfile(self.folder / name, aside)
            return plan

        def blocks(start: int, stop: int) -> Iterator[NDArray[np.float32]]:
            return (function(x) for x in self.blocks(start=start, stop=stop))

        locks = Locks(folder)
        begin(folder, locks, create, lambda: plan)
        fill(folder, locks, blocks, advance)
        return EmbeddingStore.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A finished store.

        Raises:
            DataError: If it is no store, or not finished.
        """
        store = cls(folder)
        shards = store._shards
        missing = [shard for shard in shards if not shard.is_done()]
        if missing:
            raise DataError(
                f"{folder} is not finished: {len(missing)} of {len(shards)} shards are missing, {missing[0].path.name} "
                "the first. Build it again with the same text and encoder; what is done is kept."
            )
        return store

    def verify(self) -> None:
        """Read every shard and compare it with its checksum.

        Raises:
            DataError: If one differs; the message names it.
        """
        damaged = [shard.path.name for shard in self._shards if not shard.is_whole()]
        if damaged:
            raise DataError(
                f"{self.folder} is damaged: {len(damaged)} of {len(self._shards)} shards are not what was written, "
                f"{damaged[0]} the first. Build it again with the same text and encoder; what is whole is kept."
            )

    def describe_rows(self) -> str:
        """How many rows of what, and how much disk: "1,000 x 384 float32 in 8 shards, 2 MB"."""
        size = sum(shard.path.stat().st_size for shard in self._shards) / 1e6
        facts = self._manifest
        return f"{self.n:,} x {self.dim} {facts.storage} in {facts.shards} shards, {size:,.1f} MB"

    def __len__(self) -> int:
        return self.n

    @functools.cached_property
    def row_ids(self) -> NDArray[np.int64]:
        """The row of each sentence of the corpus, in the corpus' order."""
        return np.load(self.folder / ROW_IDS, mmap_mode="r")

    @functools.cached_property
    def text_hashes(self) -> NDArray[np.uint64]:
        """Hashes of the corpus, sorted."""
        return np.load(self.folder / HASHES)

    def rows(self, indices: NDArray[np.integer] | Sequence[int]) -> NDArray[np.float32]:
        """Some rows, in any order; (len(indices), dim).

        Raises:
            UsageError: If an index is out of range.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.n:
            raise UsageError(f"Rows go from 0 to {self.n - 1}, got {wanted.min()} to {wanted.max()}. Mind the row ids.")
        found = np.empty((len(wanted), self.dim), dtype=np.float32)
        starts = [shard.start for shard in self._shards]
        owner = np.searchsorted(starts, wanted, side="right") - 1
        for number in np.unique(owner):
            mine = owner == number
            found[mine] = self._read(number, wanted[mine] - starts[number])
        return found

    def blocks(self, size: int = CHUNK, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Rows ``start`` to ``stop`` (all by default) in order, in blocks of at most ``size``: for what streams."""
        stop = self.n if stop is None else min(stop, self.n)
        for number, shard in enumerate(self._shards):
            first, last = max(start, shard.start), min(stop, shard.stop)
            for row in range(first, last, size):
                yield self._read(number, slice(row - shard.start, min(row + size, last) - shard.start))

    @functools.cached_property
    def _shards(self) -> list[Shard]:
        return layout(self.folder, self.n, self._manifest.shards)

    @functools.cached_property
    def _mapped(self) -> list[tuple[NDArray[Any], NDArray[np.float32]]]:
        return [shard.mapped() for shard in self._shards]

    def _read(self, number: int, index: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        stored, center = self._mapped[number]
        return stored[index].astype(np.float32) + center
