"""Shards: the rows of a store, in files of consecutive ones; each is a part of a job (``bertflow.jobs``).

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      their mark, with the center that was subtracted from float16 rows

A row that the encoder, or the calibrator, gives no finite numbers for is refused; inside ``bertflow.skip_bad`` it is
left out of the file, and the mark says so. A shard is compared with its checksum when it is first read.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Float32, Floats, Int64
from bertflow.data.arrays import map_array, write_head
from bertflow.data.lines import refuse
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file
from bertflow.jobs import Job, Mark
from bertflow.progress import Advance

DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""Precisions of rows on disk."""
Block = tuple[Floats, dict[int, str]]
"""Consecutive rows without the bad ones; and what is wrong with these, by their place in the block."""
Blocks = Callable[[int, int], Iterable[Block]]
"""Function that gives rows ``start`` to ``stop`` of what a store is made of, in blocks."""
SAY_SHARD_EVERY = 1.0
"""Fewest seconds between two lines that say which shard is made."""
AGAIN = "Build the store again with the same text and encoder; what is whole is kept."


@dataclass(frozen=True)
class ShardMark(Mark):
    """The mark of a shard, with its center."""

    center: list[float]


class Shards:
    """``n`` rows in ``count`` files, of equal length or nearly; a file lacks the rows that are left out."""

    def __init__(self, folder: Path, n: int, count: int, dim: int, storage: str) -> None:
        names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
        self.job = Job(folder, names, ShardMark, ("shards/{}.npy",), "shard", SAY_SHARD_EVERY)
        self.bounds = [n * number // count for number in range(count + 1)]
        self.dim, self.storage = dim, storage
        self._opened: dict[int, tuple[NDArray[Any], Float32]] = {}

    def write(self, number: int, blocks: Blocks, advance: Advance) -> None:
        """Write and mark a shard.

        Raises:
            BadRowsError: For rows that cannot be used, if they are not to be left out.
            DataError: If there are more or fewer rows, or a row does not fit the dtype.
        """
        (start, stop), (path,) = self.bounds[number : number + 2], self.job.paths(number).values()
        dtype, center, written = DTYPES[self.storage], np.zeros(self.dim, dtype=np.float32), 0
        left_out: dict[int, str] = {}
        with atomic_file(path) as aside, aside.open("w+b") as file:
            write_head(file, dtype, stop - start, self.dim)
            for x, bad in blocks(start, stop):
                found = {start + written + len(left_out) + row: reason for row, reason in bad.items()}
                refuse(found)
                left_out |= found
                if not written and len(x) and dtype.itemsize == 2:
                    center = x.mean(0)
                largest = np.abs(x - center).max(initial=0)
                if not largest <= np.finfo(dtype).max:
                    raise DataError(
                        f"Embeddings reach {largest:g}, more than {dtype.name} can hold. Use a store of float32."
                    )
                file.write(np.ascontiguousarray(x - center, dtype=dtype).data)
                written += len(x)
                advance(len(x) + len(bad))
            if (given := written + len(left_out)) != stop - start:
                raise DataError(
                    f"{path} should get {stop - start} rows, as store.json says, but the text gives {given}. "
                    "Delete the folder, and build the store again."
                )
            file.seek(0)
            write_head(file, dtype, written, self.dim)
        self.job.set_mark(number, rows=given, left_out=[*left_out.items()], center=center.tolist())

    @functools.cached_property
    def _marks(self) -> list[ShardMark]:
        """Marks of a finished store."""
        return [*self.job.marks().values()]

    @functools.cached_property
    def left_out(self) -> dict[int, str]:
        """The rows that are in no file, by their number, and what is wrong with each."""
        return {int(row): reason for mark in self._marks for row, reason in mark.left_out}

    @functools.cached_property
    def _starts(self) -> list[int]:
        """The first row of each file, numbered without gaps, and the number of all."""
        starts = [0, *accumulate(mark.rows - len(mark.left_out) for mark in self._marks)]
        if not starts[-1]:
            raise DataError(f"{self.job.folder} holds no row: {min(self.left_out.items())[1]}")
        return starts

    def __len__(self) -> int:
        """Rows that are in a file."""
        return self._starts[-1]

    def _open(self, number: int) -> tuple[NDArray[Any], Float32]:
        """A file, compared with its checksum and memory-mapped, and its center.

        Raises:
            DataError: If the file is not what was written.
        """
        (path,), mark = self.job.paths(number).values(), self._marks[number]
        if not self.job.is_whole(number):
            raise DataError(f"{path} is damaged: its checksum is not the one in {self.job.mark_path(number)}. {AGAIN}")
        with np.errstate(over="ignore"):  # of a center that is damaged
            center = np.array(mark.center, dtype=np.float32)
        stored, rows = map_array(path, AGAIN), mark.rows - len(mark.left_out)
        wanted = (rows, self.dim), DTYPES[self.storage], (self.dim,)
        if (stored.shape, stored.dtype, center.shape) != wanted or not np.isfinite(center).all():
            raise DataError(
                f"{path} should hold {rows} x {self.dim} {self.storage}, as store.json says, but holds "
                f"{' x '.join(map(str, stored.shape))} {stored.dtype}. {AGAIN}"
            )
        return stored, center

    def _read(self, number: int, index: Int64 | slice) -> Float32:
        """Some rows of a file, counted from its first."""
        if number not in self._opened:
            self._opened[number] = self._open(number)
        stored, center = self._opened[number]
        return stored[index].astype(np.float32) + center

    def rows(self, wanted: Int64) -> Float32:
        """Some rows, in the order of ``wanted``.

        Raises:
            UsageError: If one is out of range.
        """
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise UsageError(
                f"Rows go from 0 to {len(self) - 1}, got {wanted.min()} to {wanted.max()}. Use row_ids for sentences."
            )
        found = np.empty((len(wanted), self.dim), dtype=np.float32)
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(owner).tolist():
            mine = owner == number
            found[mine] = self._read(number, wanted[mine] - self._starts[number])
        return found

    def blocks(self, size: int, start: int, stop: int) -> Iterator[Float32]:
        """Rows ``start`` to ``stop`` in order, in blocks of at most ``size`` rows."""
        for number, (begin, end) in enumerate(pairwise(self._starts)):
            first, last = max(start, begin), min(stop, end)
            for row in range(first, last, size):
                yield self._read(number, slice(row - begin, min(row + size, last) - begin))
