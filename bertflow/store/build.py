"""How a store is made: begun by one process, compared with its plan by those that come later, filled by all of them.

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      written last: rows, bytes, checksum, and the center subtracted from float16 rows
    .lock.0                       while a process computes the shard
    .lock.text                    while a process begins the store, reads its text or tidies up

A shard without its marker is missing. Both are written aside and renamed.

A process takes the lock of the shard that it computes, and no other process touches that shard until the lock is given
back. The kernel gives back the locks of a process that ends, however it ends: ``kill -9`` leaves nothing behind but an
empty file that nobody holds. The locks hold between machines where their file system carries locks (NFS, GPFS, Lustre
mounted with ``flock``). Where it does not, they are refused instead of being replaced by something weaker.
"""

import functools
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, require_between
from bertflow.files import atomic_file, file_sha256, require_room, write_json
from bertflow.progress import Advance, place
from bertflow.records import read_record
from bertflow.registry import lookup
from bertflow.store.text import HASHES, ROW_IDS, SPOOL

logger = logging.getLogger("bertflow")

FORMAT = 2
MANIFEST = "store.json"
TEXT = ".lock.text"
OWN = (SPOOL, ROW_IDS, HASHES)
"""What a folder may hold before it has a ``store.json``."""
VERSIONED = ("bertflow", "torch", "transformers")
Blocks = Callable[[int, int], Iterable[NDArray[np.float32]]]
"""Gives rows ``start`` to ``stop`` of a new store, in blocks."""
POLL = 0.2
"""Seconds between two attempts at a lock that another process holds."""
DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Precisions of rows on disk."""
MOST_SHARDS = 99_999
"""Their names have five digits."""
SHARD_ROWS = 65536
"""Largest default size of a shard, in rows: at 300 sentences a second, a killed run loses at most 4 minutes of work."""
SHARDS_LEAST = 8
"""Number of shards of a small store, so that several processes can share it."""


def default_shards(n: int) -> int:
    """Number of shards for ``n`` rows; it does not depend on the number of processes."""
    return max(SHARDS_LEAST, -(-n // SHARD_ROWS))


@dataclass(frozen=True)
class Marker:
    """What the marker of a finished shard says about its file."""

    bytes: int
    sha256: str
    center: list[float]


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a store, in one file; it has a marker when it is finished."""

    start: int
    stop: int
    path: Path
    marker: Path

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def is_done(self) -> bool:
        """Whether the file exists and has the length that its marker gives."""
        if not (self.marker.exists() and self.path.exists()):
            return False
        return self._read_marker().bytes == self.path.stat().st_size

    def is_whole(self) -> bool:
        """Whether the file has the checksum that its marker gives; reads all of it."""
        return self.is_done() and self._read_marker().sha256 == file_sha256(self.path)

    @functools.cached_property
    def _mapped(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        return np.load(self.path, mmap_mode="r"), np.array(self._read_marker().center, dtype=np.float32)

    def read(self, index: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """Some rows, counted from the first of the shard; the file stays memory-mapped."""
        stored, center = self._mapped
        return stored[index].astype(np.float32) + center

    def _read_marker(self) -> "Marker":
        return read_record(self.marker, Marker, "marker of a shard", "Delete it and build the store again.")

    def write(self, blocks: Iterable[NDArray[np.float32]], dim: int, dtype: np.dtype[Any]) -> None:
        """Write file and marker; the caller holds the lock of the shard.

        Raises:
            DataError: If a row does not fit the dtype, or is not finite.
        """
        self.marker.unlink(missing_ok=True)  # until the new file is complete, the shard is missing
        center, sha, written = np.zeros(dim, dtype=np.float32), hashlib.sha256(), 0
        with atomic_file(self.path) as aside, aside.open("wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (self.rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            sha.update(aside.read_bytes())
            for x in blocks:
                if not written and dtype.itemsize == 2:
                    center = x.mean(0)
                largest = np.abs(x - center).max(initial=0)
                if not largest <= np.finfo(dtype).max:
                    raise DataError(
                        f"Embeddings reach {largest:g}, more than {dtype.name} can hold. Use a store of float32."
                    )
                block = np.ascontiguousarray(x - center, dtype=dtype).data
                sha.update(block)
                file.write(block)
                written += len(x)
        assert written == self.rows, "a shard gets all of its rows"
        facts = {"rows": self.rows, "bytes": self.path.stat().st_size, "sha256": sha.hexdigest()}
        write_json(self.marker, facts | {"center": center.tolist()})


def layout(folder: Path, n: int, count: int) -> list[Shard]:
    """The shards of ``n`` rows in ``count`` files, of equal length or nearly."""
    bounds = [n * number // count for number in range(count + 1)]
    names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
    return [
        Shard(start, stop, folder / "shards" / f"{name}.npy", folder / "done" / f"{name}.json")
        for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
    ]


def counted(blocks: Iterable[NDArray[np.float32]], advance: Advance) -> Iterator[NDArray[np.float32]]:
    """The same blocks; ``advance`` is told the rows of each block after it was used."""
    for block in blocks:
        yield block
        advance(len(block))


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

    def manifest(self) -> dict[str, Any]:
        """The content of ``store.json`` of a new store."""
        assert self.n is not None, "a store is begun when its text was read"
        chosen = {"shards": self.shards or default_shards(self.n), "storage": self.storage or "float32"}
        return {**vars(self), **chosen, "format": FORMAT, "recipe": dict(self.recipe), "versions": _versions()}

    def check(self, folder: Path) -> None:
        """Compare the store in ``folder`` with the plan.

        Raises:
            DataError: If they differ; the message gives both values of everything that differs.
        """
        old = read_manifest(folder)
        finished = all(shard.is_done() for shard in layout(folder, old.n, old.shards))
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


def begin(folder: Path, create: Callable[[], Plan], check: Callable[[], Plan]) -> None:
    """Begin a new store, or compare the existing one with its plan.

    Args:
        folder: Folder of the store.
        create: Writes the corpus of a new store and returns its plan.
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
            write_json(folder / MANIFEST, create().manifest())
    if not new:
        check().check(folder)


def fill(folder: Path, blocks: Blocks, advance: Advance) -> None:
    """Compute the missing shards, and wait for those that other processes compute.

    A shard that existed before is compared with its checksum by the process whose share it is; a damaged one is
    computed again.
    """
    manifest = read_manifest(folder)
    shards = layout(folder, manifest.n, manifest.shards)
    rank, world = place()
    missing = sum(shard.rows for shard in shards if not shard.is_done())
    require_room(folder / "shards", missing * manifest.dim * DTYPES[manifest.storage].itemsize)
    inherited = {number for number, shard in enumerate(shards) if number % world == rank and shard.is_done()}
    left = sorted(range(len(shards)), key=lambda number: ((number - rank) % world, number))

    def finish(number: int) -> bool:
        """Compute or check one shard; False if another process holds it."""
        shard: Shard = shards[number]
        with locked(folder / f".lock.{number}") as held:
            if held and (shard.is_whole() if number in inherited else shard.is_done()):
                advance(shard.rows)
            elif held:
                rows = counted(blocks(shard.start, shard.stop), advance)
                shard.write(rows, manifest.dim, DTYPES[manifest.storage])
        return held

    while left:
        busy = [number for number in left if not finish(number)]
        if len(busy) == len(left):
            time.sleep(POLL)
        left = busy
    with locked(folder / TEXT, "tidies up"):
        shutil.rmtree(folder / SPOOL, ignore_errors=True)


@contextmanager
def locked(path: Path, why: str = "") -> Iterator[bool]:
    """Hold a lock in a block, as the file ``path``, which is deleted while nobody else can hold it.

    Args:
        path: The file; its folder is made if it is missing.
        why: Waits until nobody else holds the lock; this is logged once as what another process does. Empty: does not
            wait.

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
