"""Shards: the rows of a store, in files of consecutive ones.

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      written last: rows, bytes, checksums, and the center subtracted from float16 rows

A shard without its marker is missing. Both are written aside and renamed.

A shard is compared with its checksum when it is first read: XXH3, 64 bits, many times faster than a disk. The marker
has its SHA-256, too. Markers of earlier versions have that one alone: it is compared then.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bertflow.data.vectors import map_array
from bertflow.errors import DataError
from bertflow.files import atomic_file, file_sha256, file_xxh3
from bertflow.records import Count, read_record, write_record

DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Precisions of rows on disk."""
AGAIN = "Build the store again with the same text and encoder; what is whole is kept."


@dataclass(frozen=True)
class Marker:
    """What the marker of a finished shard says about its file."""

    rows: Count
    bytes: Count
    sha256: str
    center: list[float]
    xxh3: str | None = None
    """None if an earlier version wrote it."""


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a store, in one file; it has a marker when it is finished."""

    start: int
    stop: int
    dim: int
    storage: str
    path: Path
    marker: Path

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def is_done(self) -> bool:
        """Whether the file exists, with the number of rows that is wanted and the length that its marker gives."""
        if not (self.marker.exists() and self.path.exists()):
            return False
        marker = self.read_marker()
        return (marker.rows, marker.bytes) == (self.rows, self.path.stat().st_size)

    def is_whole(self) -> bool:
        """Whether the file has the checksums that its marker gives; reads all of it."""
        return self.is_done() and file_sha256(self.path) == self.read_marker().sha256

    def read_marker(self) -> Marker:
        """What is known about the file; the shard has to be finished."""
        return read_record(self.marker, Marker, "marker of a shard", "Delete it and build the store again.")

    def read(self, index: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """Some rows, counted from the first of the shard; the file stays memory-mapped.

        Raises:
            DataError: If the file is not what was written.
        """
        stored, center = self._mapped
        return stored[index].astype(np.float32) + center

    @functools.cached_property
    def _mapped(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The file, compared with its checksum, and the center."""
        if not self._is_as_written():
            raise DataError(f"{self.path} is damaged: its checksum is not the one in {self.marker}. {AGAIN}")
        with np.errstate(over="ignore"):  # of a center that is damaged
            center = np.array(self.read_marker().center, dtype=np.float32)
        stored = map_array(self.path, AGAIN)
        wanted = (self.rows, self.dim), DTYPES[self.storage], (self.dim,)
        if (stored.shape, stored.dtype, center.shape) != wanted or not np.isfinite(center).all():
            raise DataError(
                f"{self.path} should hold {self.rows} x {self.dim} {self.storage}, as store.json says, but holds "
                f"{' x '.join(map(str, stored.shape))} {stored.dtype}. {AGAIN}"
            )
        return stored, center

    def _is_as_written(self) -> bool:
        marker = self.read_marker()
        return file_sha256(self.path) == marker.sha256 if marker.xxh3 is None else file_xxh3(self.path) == marker.xxh3

    def write(self, blocks: Iterable[NDArray[np.float32]]) -> None:
        """Write file and marker; the caller holds the lock of the shard.

        Raises:
            DataError: If there are more or fewer rows, or a row does not fit the dtype, or is not finite.
        """
        self.marker.unlink(missing_ok=True)  # until the new file is complete, the shard is missing
        dtype, center, written = DTYPES[self.storage], np.zeros(self.dim, dtype=np.float32), 0
        sha, xxh3 = hashlib.sha256(), xxhash.xxh3_64()
        with atomic_file(self.path) as aside, aside.open("wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (self.rows, self.dim)}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            for digest in (sha, xxh3):
                digest.update(aside.read_bytes())
            for x in blocks:
                if not written and dtype.itemsize == 2:
                    center = x.mean(0)
                largest = np.abs(x - center).max(initial=0)
                if not largest <= np.finfo(dtype).max:
                    raise DataError(
                        f"Embeddings reach {largest:g}, more than {dtype.name} can hold. Use a store of float32."
                    )
                block = np.ascontiguousarray(x - center, dtype=dtype).data
                for digest in (sha, xxh3):
                    digest.update(block)
                file.write(block)
                written += len(x)
            if written != self.rows:
                raise DataError(
                    f"{self.path} should get {self.rows} rows, as store.json says, but the text gives {written}. "
                    "Delete the folder, and build the store again."
                )
        facts = {"rows": self.rows, "bytes": self.path.stat().st_size, "center": center.tolist()}
        write_record(self.marker, facts | {"sha256": sha.hexdigest(), "xxh3": xxh3.hexdigest()})


def layout(folder: Path, n: int, count: int, dim: int, storage: str) -> list[Shard]:
    """The shards of ``n`` rows in ``count`` files, of equal length or nearly."""
    bounds = [n * number // count for number in range(count + 1)]
    names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
    return [
        Shard(start, stop, dim, storage, folder / "shards" / f"{name}.npy", folder / "done" / f"{name}.json")
        for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
    ]
