"""How a store is made: begun by one process, compared with its plan by those that come later, filled by all of them.

Plan                what a store should hold
begin               write the plan down, or compare it with the store that exists
StreamedText        sentences that do not fit into memory, by their rows
fill                compute every shard that is missing
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.encoder.model import chunks
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_folder, write_json
from bertflow.progress import Advance, place
from bertflow.records import read_record
from bertflow.registry import lookup
from bertflow.store.shards import DTYPES, POLL, TEXT, Locks, Shard, counted, default_shards, layout
from bertflow.store.text import HASHES, ROW_IDS, SpooledText, TextIndex, exact_hashes, text_digest

logger = logging.getLogger("bertflow")

FORMAT = 2
MANIFEST = "store.json"
SPOOL = "text"
OWN = (SPOOL, ROW_IDS, HASHES)
"""What a folder may hold before it has a ``store.json``."""
CHUNK = 8192
"""Sentences encoded, or rows read, at a time; memory grows with this and not with the corpus."""
VERSIONED = ("bertflow", "torch", "transformers")
Blocks = Callable[[int, int], Iterable[NDArray[np.float32]]]
"""Gives rows ``start`` to ``stop`` of a new store, in blocks."""
Read = Callable[[], Iterable[str]]
"""Starts a text from the top."""


@dataclass(frozen=True)
class Manifest:
    """What ``store.json`` holds."""

    format: Literal[2]
    recipe: dict[str, Any]
    versions: dict[str, str]
    text: str
    corpus: str
    n: int
    dim: int
    shards: int
    storage: str


@dataclass(frozen=True)
class Plan:
    """What a store should hold.

    Attributes:
        recipe: ``describe()`` of the encoder.
        dim: Width of a row.
        text: Digest of the distinct sentences; None if only ``corpus`` is known.
        corpus: Digest of all sentences; None if only ``text`` matters.
        n: Number of distinct sentences; None if unknown.
        shards: Number of files; None for that of the existing store, else ``default_shards``.
        dtype: Precision of the rows, a row of ``DTYPES``; None for that of the existing store, else float32.
    """

    recipe: Mapping[str, Any]
    dim: int
    text: str | None = None
    corpus: str | None = None
    n: int | None = None
    shards: int | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            lookup("store dtype", DTYPES, self.dtype)

    def manifest(self) -> dict[str, Any]:
        """The content of ``store.json`` of a new store."""
        assert self.n is not None, "a store is begun when its text was read"
        return {
            "format": FORMAT,
            "recipe": dict(self.recipe),
            "versions": {name: version(name) for name in VERSIONED},
            "text": self.text,
            "corpus": self.corpus,
            "n": self.n,
            "dim": self.dim,
            "shards": default_shards(self.n) if self.shards is None else self.shards,
            "storage": self.dtype or "float32",
        }

    def check(self, folder: Path) -> None:
        """Compare the store in ``folder`` with the plan.

        Raises:
            DataError: If they differ; the message gives both values of everything that differs.
        """
        old = read_manifest(folder)
        finished = all(shard.is_done() for shard in layout(folder, old.n, old.shards))
        new = {"text": self.text, "corpus": self.corpus, "n": self.n, "shards": self.shards, "storage": self.dtype}
        wanted = {name: value for name, value in new.items() if value is not None} | {"dim": self.dim}
        others = Identity.from_record(old.recipe).differences(Identity.from_record(self.recipe))
        changed = [f"{one.key} {one.mine!r} (now {one.theirs!r})" for one in others]
        changed += _changes({name: getattr(old, name) for name in wanted}, wanted)
        newer = _changes(old.versions, {name: version(name) for name in VERSIONED})
        if changed or (newer and not finished):
            raise DataError(
                f"{folder} holds a store of something else: {', '.join(changed + newer)}. "
                "Choose another folder, or delete this one."
            )
        if newer:
            logger.warning("%s was made by another version: %s.", folder, ", ".join(newer))


def recipe_of(encoder: SentenceEncoder) -> dict[str, Any]:
    """Everything that decides the numbers of a store: what the encoder says, and which fitted map follows it."""
    digest = encoder.identity.digest
    return encoder.describe() | ({"calibrator_digest": digest} if digest else {})


def read_manifest(folder: Path) -> Manifest:
    """The content of ``store.json``.

    Raises:
        DataError: If the folder is not a store, or one of another format.
    """
    return read_record(folder / MANIFEST, Manifest, "store", "Build it again.")


def is_begun(folder: Path) -> bool:
    """Whether a store was begun there."""
    return (folder / MANIFEST).exists()


def begin(folder: Path, locks: Locks, create: Callable[[], Plan], check: Callable[[], Plan]) -> None:
    """Begin a new store, or compare the existing one with its plan.

    Args:
        folder: Folder of the store.
        locks: Locks of the store.
        create: Writes the corpus of a new store and returns its plan.
        check: Returns the plan to compare an existing store with.

    Raises:
        DataError: If the store holds something else, or the folder holds other files.
    """
    with locks.waiting(TEXT, "begins the store"):
        new = not is_begun(folder)
        if new:
            _require_empty(folder)
            write_json(folder / MANIFEST, create().manifest())
    if not new:
        check().check(folder)


def _require_empty(folder: Path) -> None:
    """Refuse to begin a store among other files; those that a killed process left of a store are none."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in OWN and path.name[0] != ".")
    if others:
        raise DataError(f"{folder} should be a store, new or begun, but holds {others[0]}. Name another folder.")


class StreamedText:
    """A text that is read once, as a stream, and its distinct sentences by their rows.

    The first process writes the sentences into the folder, for all. Later ones only compare their text with it.

    Args:
        read: Starts the text from the top.
        folder: Folder of the store.
        locks: Locks of the store.
    """

    def __init__(self, read: Read, folder: Path, locks: Locks) -> None:
        self.read, self.folder, self.locks = read, folder, locks

    def spool(self) -> TextIndex:
        """Write the sentences into the folder; the caller holds the lock ``TEXT``."""
        for leftover in self.folder.glob(f".{SPOOL}.*"):
            shutil.rmtree(leftover)  # of a process that was killed while it read
        with atomic_folder(self.folder / SPOOL) as aside:
            index = TextIndex.read(self.read(), aside)
            if not index.n:
                raise UsageError("A store needs sentences, got none. Give text.")
        return index

    def digest(self) -> str:
        """Fingerprint of all sentences, repeats included."""
        return text_digest(exact_hashes(chunk) for chunk in chunks(self.read(), CHUNK))

    def rows(self, start: int, stop: int) -> Iterator[str]:
        """Distinct sentences ``start`` to ``stop``."""
        with self.locks.waiting(TEXT, "reads the text"):
            if not (self.folder / SPOOL).is_dir():
                self.spool()
            text = SpooledText(self.folder / SPOOL)
        return text.rows(start, stop)


def encoded(encoder: SentenceEncoder, sentences: Callable[[int, int], Iterable[str]]) -> Blocks:
    """The embeddings of ``sentences(start, stop)``, in blocks."""

    def blocks(start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        for chunk in chunks(sentences(start, stop), CHUNK):
            yield encoder.encode(chunk, progress=False)

    return blocks


def fill(folder: Path, locks: Locks, blocks: Blocks, advance: Advance) -> None:
    """Compute the missing shards, and wait for those that other processes compute.

    A shard that existed before is compared with its checksum by the process whose share it is; a damaged one is
    computed again.
    """
    manifest = read_manifest(folder)
    shards = layout(folder, manifest.n, manifest.shards)
    rank, world = place()
    inherited = {number for number, shard in enumerate(shards) if number % world == rank and shard.is_done()}
    left = sorted(range(len(shards)), key=lambda number: ((number - rank) % world, number))

    def finish(number: int) -> bool:
        """Compute or check one shard; False if another process holds it."""
        if not locks.take(number):
            return False
        shard: Shard = shards[number]
        try:
            if shard.is_whole() if number in inherited else shard.is_done():
                advance(shard.rows)
            else:
                rows = counted(blocks(shard.start, shard.stop), advance)
                shard.write(rows, manifest.dim, DTYPES[manifest.storage])
        finally:
            locks.give_back(number)
        return True

    while left:
        busy = [number for number in left if not finish(number)]
        if len(busy) == len(left):
            time.sleep(POLL)
        left = busy
    with locks.waiting(TEXT, "tidies up"):
        shutil.rmtree(folder / SPOOL, ignore_errors=True)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    keys = [key for key in sorted({**before, **now}) if before.get(key) != now.get(key)]
    return [f"{key} {before.get(key)!r} (now {now.get(key)!r})" for key in keys]
