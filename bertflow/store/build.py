"""How a store is made: begun by one process, compared with its plan by those that come later, filled by all of them.

    .lock.0         while a process computes the first shard (``bertflow.store.shards``)
    .lock.text      while a process begins the store, reads its text or tidies up

A process takes the lock of the shard that it computes, and no other process touches that shard until the lock is given
back. The kernel gives back the locks of a process that ends, however it ends: ``kill -9`` leaves nothing behind but an
empty file that no process holds. The locks hold between machines where their file system carries locks (NFS, GPFS,
Lustre mounted with ``flock``). Where it does not, they are refused instead of being replaced by something weaker.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bertflow.data.corpus import chunks
from bertflow.data.skipping import usable_rows
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.device import ahead, gpu_of
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, require_between
from bertflow.files import file_xxh3, require_room
from bertflow.progress import Advance, place
from bertflow.records import Count, read_record, write_record
from bertflow.registry import lookup
from bertflow.store.shards import DTYPES, Block, Shard, layout
from bertflow.store.text import HASHES, ROW_IDS, SPOOL, STARTS, hashes_without, save_array

logger = logging.getLogger("bertflow")

FORMAT = 2
MANIFEST = "store.json"
TEXT = ".lock.text"
ARRAYS: Mapping[str, str] = {ROW_IDS: "int64", HASHES: "uint64"}
"""Files beside ``store.json`` that say which text the rows are of, with the type of their numbers."""
OWN = (SPOOL, *ARRAYS)
"""What a folder may hold before it has a ``store.json``."""
VERSIONED = ("bertflow", "torch", "transformers")
Blocks = Callable[[int, int], Iterable[Block]]
"""Gives rows ``start`` to ``stop`` of what a new store is made of, in blocks."""
CHUNK = 8192
"""Sentences encoded, or rows read, at a time; memory grows with this and not with the corpus."""
GPU_CHUNK = 32768
"""Sentences given to a GPU at a time: many of its batches."""
POLL = 0.2
"""Seconds between two attempts at a lock that another process holds."""
MOST_SHARDS = 99_999
"""Their names have five digits."""
SHARD_ROWS = 65536
"""Largest default size of a shard, in rows: at 300 sentences a second, a killed run loses at most 4 minutes of work."""
SHARDS_LEAST = 8
"""Number of shards of a small store, so that several processes can share it."""


def default_shards(n: int) -> int:
    """Number of shards for ``n`` rows; it does not depend on the number of processes."""
    return min(MOST_SHARDS, max(SHARDS_LEAST, -(-n // SHARD_ROWS)))


def counted(blocks: Iterable[NDArray[np.float32]], advance: Advance) -> Iterator[NDArray[np.float32]]:
    """The same blocks; ``advance`` is told the rows of each block after it was used."""
    for block in blocks:
        yield block
        advance(len(block))


def encoded(encoder: SentenceEncoder, sentences: Callable[[int, int], Iterable[str]]) -> Blocks:
    """The embeddings of ``sentences(start, stop)``, in blocks; a GPU makes the next one while one is written."""
    gpu = gpu_of(encoder)

    def blocks(start: int, stop: int) -> Iterator[Block]:
        parts = chunks(sentences(start, stop), GPU_CHUNK if gpu else CHUNK)
        made = (usable_rows(lambda part: encoder.encode(part, progress=False), part, encoder.dim) for part in parts)
        return ahead(made) if gpu else made

    return blocks


@dataclass(frozen=True)
class Manifest:
    """What ``store.json`` holds."""

    format: Literal[2]
    recipe: dict[str, Any]
    versions: dict[str, str]
    text: str
    corpus: str
    n: Count
    dim: Count
    shards: Count
    storage: str
    xxh3: dict[str, str]
    """Checksums of the arrays beside it; hashes may have been left out."""

    def __post_init__(self) -> None:
        lookup("store dtype", DTYPES, self.storage)
        require_between(1, MOST_SHARDS, shards=self.shards)

    def layout(self, folder: Path) -> list[Shard]:
        """The shards of the store in ``folder``."""
        return layout(folder, self.n, self.shards, self.dim, self.storage)

    def without_hashes(self, folder: Path) -> "Manifest":
        """Delete the hashes of the corpus in ``folder``, and their checksum in its ``store.json``."""
        kept = replace(self, xxh3={name: value for name, value in self.xxh3.items() if name != HASHES})
        write_record(folder / MANIFEST, asdict(kept))
        (folder / HASHES).unlink(missing_ok=True)
        return kept

    def leave_out(self, rows: set[int], folder: Path) -> None:
        """Take the hashes of some sentences of the text that is still in ``folder`` out of those of the corpus."""
        if HASHES in self.xxh3 and (folder / SPOOL / STARTS).exists():
            save_array(folder / HASHES, hashes_without(rows, folder / SPOOL, np.load(folder / HASHES)))
            write_record(folder / MANIFEST, asdict(replace(self, xxh3=_checksums(folder))))


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
        storage: Precision of the rows, a row of ``DTYPES``; None for that of the existing store, else float32.
    """

    recipe: Mapping[str, Any]
    dim: int
    text: str | None = None
    corpus: str | None = None
    n: int | None = None
    shards: int | None = None
    storage: str | None = None

    def __post_init__(self) -> None:
        if self.storage is not None:
            lookup("store dtype", DTYPES, self.storage)
        require_between(1, MOST_SHARDS, shards=self.shards)

    def manifest(self, folder: Path) -> dict[str, Any]:
        """The content of ``store.json`` of a new store, whose text was read into ``folder``."""
        assert self.n is not None, "a store is begun when its text was read"
        chosen = {"shards": self.shards or default_shards(self.n), "storage": self.storage or "float32"}
        made = {"format": FORMAT, "recipe": dict(self.recipe), "versions": _versions()}
        return {**vars(self), **chosen, **made, "xxh3": _checksums(folder)}

    def check(self, folder: Path) -> None:
        """Compare the store in ``folder`` with the plan.

        Raises:
            DataError: If they differ; the message gives both values of everything that differs.
        """
        old = read_manifest(folder)
        finished = all(shard.is_done() for shard in old.layout(folder))
        wanted = {name: value for name, value in vars(self).items() if name != "recipe" and value is not None}
        others = Identity.from_record(old.recipe).differences(Identity.from_record(self.recipe))
        changed = [f"{one.key} {one.mine!r} (now {one.theirs!r})" for one in others]
        changed += _changes({name: getattr(old, name) for name in wanted}, wanted)
        newer = _changes(old.versions, _versions())
        if changed or (newer and not finished):
            raise DataError(
                f"{folder} holds a store of something else: {', '.join(changed + newer)}. "
                "Choose another folder, or delete this one."
            )
        if newer:
            logger.warning("%s was made by another version: %s.", folder, ", ".join(newer))


def _checksums(folder: Path) -> dict[str, str]:
    return {name: file_xxh3(folder / name) for name in ARRAYS if (folder / name).exists()}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONED}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    keys = [key for key in sorted({**before, **now}) if before.get(key) != now.get(key)]
    return [f"{key} {before.get(key)!r} (now {now.get(key)!r})" for key in keys]


def read_manifest(folder: Path) -> Manifest:
    """The content of ``store.json``.

    Raises:
        DataError: If the folder is not a store, or one of another format.
    """
    return read_record(folder / MANIFEST, Manifest, "store", "Build it again.")


def is_as_written(folder: Path, manifest: Manifest, name: str) -> bool:
    """Whether one of ``ARRAYS`` is there, with the checksum that the manifest gives; or was left out."""
    path = folder / name
    if name not in manifest.xxh3:
        return not path.exists()
    return path.is_file() and manifest.xxh3[name] == file_xxh3(path)


def begin(folder: Path, create: Callable[[], Plan], check: Callable[[], Plan]) -> None:
    """Begin a new store, or compare the existing one with its plan.

    Args:
        folder: Folder of the store.
        create: Writes the corpus of a new store and returns its plan; called again where a file of it is damaged.
        check: Returns the plan to compare an existing store with.

    Raises:
        DataError: If the store holds something else, or the folder holds other files.
    """
    with locked(folder / TEXT, "begins the store"):
        new = not (folder / MANIFEST).exists()
        if new:
            # What a killed process left of a store is not another file.
            others = sorted(path.name for path in folder.iterdir() if path.name not in OWN and path.name[0] != ".")
            if others:
                raise DataError(
                    f"{folder} should be a store, new or begun, but holds {others[0]}. Name another folder."
                )
            write_record(folder / MANIFEST, create().manifest(folder))
    if not new:
        check().check(folder)
        with locked(folder / TEXT, "begins the store"):
            manifest = read_manifest(folder)
            if not all(is_as_written(folder, manifest, name) for name in ARRAYS):
                create()
                if HASHES not in manifest.xxh3:
                    (folder / HASHES).unlink(missing_ok=True)


def fill(folder: Path, blocks: Blocks, advance: Advance) -> None:
    """Compute the missing shards, and wait for those that other processes compute.

    A shard that existed before is compared with its checksum by the process whose share it is; a damaged one is
    computed again. In the end the text is deleted, and the hashes of sentences that have no row.

    Raises:
        BadRowsError: For rows that cannot be used, unless they are left out (``bertflow.skip_bad``).
    """
    manifest = read_manifest(folder)
    shards = manifest.layout(folder)
    rank, world = place()
    missing = sum(shard.rows for shard in shards if not shard.is_done())
    require_room(folder / "shards", missing * manifest.dim * DTYPES[manifest.storage].itemsize)
    inherited = {number for number, shard in enumerate(shards) if number % world == rank and shard.is_done()}
    left = sorted(range(len(shards)), key=lambda number: ((number - rank) % world, number))

    def told(parts: Iterable[Block]) -> Iterator[Block]:
        for x, bad in parts:
            yield x, bad
            advance(len(x) + len(bad))

    def finish(number: int) -> bool:
        """Compute or check one shard; False if another process holds it."""
        shard: Shard = shards[number]
        with locked(folder / f".lock.{number}") as held:
            if held and (shard.is_whole() if number in inherited else shard.is_done()):
                advance(shard.rows)
            elif held:
                shard.write(told(blocks(shard.start, shard.stop)))
        return held

    while left:
        busy = [number for number in left if not finish(number)]
        if len(busy) == len(left):
            time.sleep(POLL)
        left = busy
    with locked(folder / TEXT, "tidies up"):
        if left_out := {row for shard in shards for row in shard.left_out}:
            read_manifest(folder).leave_out(left_out, folder)
        shutil.rmtree(folder / SPOOL, ignore_errors=True)


@contextmanager
def locked(path: Path, why: str = "") -> Iterator[bool]:
    """Hold a lock in a block, as the file ``path``, which is deleted while no other process can hold it.

    Args:
        path: The file; its folder is made if it is missing.
        why: Waits until no other process holds the lock; this is logged once as what another process does. Empty: does
            not wait.

    Yields:
        Whether the lock is held; False only without ``why``.

    Raises:
        DataError: If nothing can be written there, or the file system has no locks.
    """
    lock, new = FileLock(path, fallback_to_soft=False), not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=0)
        if why and not lock.is_locked:
            logger.info("%s: waiting for another process, which %s.", path.parent, why)
            lock.acquire(poll_interval=POLL)
    except OSError as error:
        raise DataError(
            f"{path} cannot be locked ({error.strerror}), so several processes could overwrite each other's work. "
            "Choose a folder where you may write, on a file system with locks."
        ) from error
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            with suppress(OSError):  # Windows deletes the file itself, after the lock is released
                path.unlink()
            lock.release()
        if new:
            with suppress(OSError):  # not empty: what the folder was made for is in it
                path.parent.rmdir()
