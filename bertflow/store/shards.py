"""One file of a store, its marker and its lock.

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      written last: rows, bytes, checksum, and the center subtracted from float16 rows
    .lock.0                       while a process computes the shard

A shard without its marker is missing. Both are written aside and renamed.

A process takes the lock of the shard that it computes, and no other process touches that shard until the lock is given
back. The kernel gives back the locks of a process that ends, however it ends: ``kill -9`` leaves nothing behind but an
empty file that nobody holds. The locks hold between machines where their file system carries locks (NFS, GPFS, Lustre
mounted with ``flock``). Where it does not, they are refused instead of being replaced by something weaker.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.files import atomic_file, file_sha256, write_json
from bertflow.progress import Advance
from bertflow.records import read_record

logger = logging.getLogger("bertflow")

POLL = 0.2
"""Seconds between two attempts at a lock that another process holds."""
TEXT = "text"
"""The lock for reading the text; the lock of a shard has its number."""
DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Precisions of rows on disk."""
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

    def mapped(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The rows as they are on disk, memory-mapped, and their center."""
        return np.load(self.path, mmap_mode="r"), np.array(self._read_marker().center, dtype=np.float32)

    def _read_marker(self) -> "Marker":
        return read_record(self.marker, Marker, "marker of a shard", "Delete it and build the store again.")

    def write(self, blocks: Iterable[NDArray[np.float32]], dim: int, dtype: np.dtype[Any]) -> None:
        """Write file and marker; the caller holds the lock of the shard.

        Raises:
            DataError: If a row does not fit the dtype, or is not finite.
        """
        for leftover in self.path.parent.glob(f".{self.path.name}.*"):
            leftover.unlink()  # of a run that was killed
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
                block = np.ascontiguousarray(_narrow(x - center, dtype)).data
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


class Locks:
    """The locks of one folder.

    Args:
        folder: The folder, made if it is missing. A lock is the file ``.lock.NAME`` in it while somebody holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str | int, FileLock] = {}

    def take(self, name: str | int) -> bool:
        """Take a lock.

        Returns:
            False if somebody else holds it.

        Raises:
            DataError: If nothing can be written there, or the file system has no locks.
        """
        path = self.folder / f".lock.{name}"
        lock = FileLock(path, timeout=0, fallback_to_soft=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            return False
        except OSError as error:
            raise DataError(
                f"{path} cannot be locked ({error.strerror}), so several processes could overwrite each other's work. "
                "Choose a folder where you may write, on a file system with locks."
            ) from error
        self._held[name] = lock
        return True

    def give_back(self, name: str | int) -> None:
        """Let others take the lock; its file is deleted while nobody else can hold it."""
        lock = self._held.pop(name)
        with suppress(OSError):  # Windows deletes the file itself, after the lock is released
            Path(lock.lock_file).unlink()
        lock.release()

    @contextmanager
    def waiting(self, name: str | int, why: str) -> Iterator[None]:
        """Hold a lock as soon as nobody else does; ``why`` is logged once if that takes time."""
        if not self.take(name):
            logger.info("%s: waiting for another process, which %s.", self.folder, why)
            while not self.take(name):
                time.sleep(POLL)
        try:
            yield
        finally:
            self.give_back(name)


def _narrow(x: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The rows in the precision of the store."""
    largest = np.abs(x).max(initial=0)
    if not largest <= np.finfo(dtype).max:
        raise DataError(f"Embeddings reach {largest:g}, more than {dtype.name} can hold. Use a store of float32.")
    return x.astype(dtype, copy=False)
