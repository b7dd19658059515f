"""Shards: the rows of a store, in files of consecutive ones.

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      written last: rows, bytes, checksums, and the center subtracted from float16 rows

A shard without its marker is missing. Both are written aside and renamed. A row that the encoder, or the calibrator,
gives no finite numbers for is refused; inside ``bertflow.skip_bad`` it is left out of the file, and the marker says so.

A shard is compared with its checksum when it is first read: XXH3, 64 bits, many times faster than a disk. The marker
has its SHA-256, too, which ``verify`` compares.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from bertflow.data.arrays import map_array
from bertflow.data.skipping import refuse
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file, file_sha256, file_xxh3
from bertflow.records import Count, read_record, write_record

DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Precisions of rows on disk."""
Block = tuple[NDArray[np.floating], dict[int, str]]
"""Consecutive rows without the bad ones; and what is wrong with these, by their place in the block."""
AGAIN = "Build the store again with the same text and encoder; what is whole is kept."


@dataclass(frozen=True)
class Marker:
    """What the marker of a finished shard says about its file."""

    rows: Count
    bytes: Count
    sha256: str
    xxh3: str
    center: list[float]
    left_out: list[tuple[Count, str]] = field(default_factory=list)
    """The rows that are not in the file, by their number, and what is wrong with each."""


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of what a store is made of, in one file; it has a marker when it is finished."""

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

    @functools.cached_property
    def left_out(self) -> dict[int, str]:
        """The rows that are not in the file, by their number, and what is wrong with each."""
        return dict(self.read_marker().left_out)

    @property
    def kept(self) -> int:
        """Number of rows in the file."""
        return self.rows - len(self.left_out)

    def is_done(self) -> bool:
        """Whether the file exists, with the number of rows that is wanted and the length that its marker gives."""
        if not (self.marker.exists() and self.path.exists()):
            return False
        marker = self.read_marker()
        return (marker.rows + len(marker.left_out), marker.bytes) == (self.rows, self.path.stat().st_size)

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
        if file_xxh3(self.path) != self.read_marker().xxh3:
            raise DataError(f"{self.path} is damaged: its checksum is not the one in {self.marker}. {AGAIN}")
        with np.errstate(over="ignore"):  # of a center that is damaged
            center = np.array(self.read_marker().center, dtype=np.float32)
        stored = map_array(self.path, AGAIN)
        wanted = (self.kept, self.dim), DTYPES[self.storage], (self.dim,)
        if (stored.shape, stored.dtype, center.shape) != wanted or not np.isfinite(center).all():
            raise DataError(
                f"{self.path} should hold {self.kept} x {self.dim} {self.storage}, as store.json says, but holds "
                f"{' x '.join(map(str, stored.shape))} {stored.dtype}. {AGAIN}"
            )
        return stored, center

    def write(self, blocks: Iterable[Block]) -> None:
        """Write file and marker; the caller holds the lock of the shard.

        Raises:
            BadRowsError: For rows that cannot be used, if they are not to be left out.
            DataError: If there are more or fewer rows, or a row does not fit the dtype.
        """
        self.marker.unlink(missing_ok=True)  # until the new file is complete, the shard is missing
        dtype, center, written = DTYPES[self.storage], np.zeros(self.dim, dtype=np.float32), 0
        sha, xxh3, left_out = hashlib.sha256(), xxhash.xxh3_64(), dict[int, str]()
        with atomic_file(self.path) as aside, aside.open("w+b") as file:
            self._write_header(file, self.rows)
            for digest in (sha, xxh3):
                digest.update(aside.read_bytes())
            for x, bad in blocks:
                found = {self.start + written + len(left_out) + row: reason for row, reason in bad.items()}
                refuse(found)
                left_out |= found
                if not written and len(x) and dtype.itemsize == 2:
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
            if (given := written + len(left_out)) != self.rows:
                raise DataError(
                    f"{self.path} should get {self.rows} rows, as store.json says, but the text gives {given}. "
                    "Delete the folder, and build the store again."
                )
            if left_out:
                file.seek(0)
                self._write_header(file, written)
        facts: dict[str, Any] = {"sha256": sha.hexdigest(), "xxh3": xxh3.hexdigest()}
        if left_out:
            facts = {"sha256": file_sha256(self.path), "xxh3": file_xxh3(self.path), "left_out": [*left_out.items()]}
        size = self.path.stat().st_size
        write_record(self.marker, facts | {"rows": written, "bytes": size, "center": center.tolist()})
        self.__dict__.pop("left_out", None)

    def _write_header(self, file: BinaryIO, rows: int) -> None:
        """Write the head of the file, which is as long for any number of rows."""
        shape = (rows, self.dim)
        header = {"descr": DTYPES[self.storage].str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()


class Rows:
    """The rows of finished shards, numbered without gaps where some were left out."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self.left_out = {row: reason for shard in shards for row, reason in shard.left_out.items()}
        self._starts = [0, *accumulate(shard.kept for shard in shards)]
        if not self._starts[-1]:
            raise DataError(f"{shards[0].path.parents[1]} holds no row: {min(self.left_out.items())[1]}")

    def read(self, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows, in the order of ``wanted``.

        Raises:
            UsageError: If one is out of range.
        """
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self._starts[-1]:
            raise UsageError(
                f"Rows go from 0 to {self._starts[-1] - 1}, got {wanted.min()} to {wanted.max()}. "
                "Use row_ids for sentences."
            )
        found = np.empty((len(wanted), self._shards[0].dim), dtype=np.float32)
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(owner):
            mine = owner == number
            found[mine] = self._shards[number].read(wanted[mine] - self._starts[number])
        return found

    def blocks(self, size: int, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        """Rows ``start`` to ``stop`` in order, in blocks of at most ``size`` rows."""
        for shard, (begin, end) in zip(self._shards, pairwise(self._starts), strict=True):
            first, last = max(start, begin), min(stop, end)
            for row in range(first, last, size):
                yield shard.read(slice(row - begin, min(row + size, last) - begin))


def layout(folder: Path, n: int, count: int, dim: int, storage: str) -> list[Shard]:
    """The shards of ``n`` rows in ``count`` files, of equal length or nearly."""
    bounds = [n * number // count for number in range(count + 1)]
    names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
    return [
        Shard(start, stop, dim, storage, folder / "shards" / f"{name}.npy", folder / "done" / f"{name}.json")
        for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
    ]
