"""Vectors that somebody else made: from an API, or out of a filled index. Read block by block, refused by file and row.

    .npy       one matrix (n, dim)
    .parquet   one column of lists of numbers, of fixed or variable length; the other columns stay with their rows

Numbers are float16, float32 or float64 (float16 is read as float32); rows are counted from 0. No file of a user is
mapped into memory (``bertflow.data.arrays``).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertflow.array_types import Floats, Int64
from bertflow.data.arrays import changed, open_array
from bertflow.data.lines import SkippedRows, State, skipping, state_of
from bertflow.data.tables import column_names
from bertflow.errors import BertflowError, DataError, RowError, UsageError, reason_of
from bertflow.places import require_files

LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
"""Types of a column that may hold vectors."""
BLOCK = 8192
"""Rows in memory at a time."""
BUFFER = 2**20
"""Bytes of a column of a parquet file that are read at a time."""
FLOATS = "should hold float16, float32 or float64"
LEAVE = "Leave the row out, or such rows with --skip_bad FILE."
AGAIN = "Embed the row again, or leave such rows out with --skip_bad FILE."


@dataclass(frozen=True)
class Vectors:
    """A file of vectors; nothing is read yet but its head.

    Attributes:
        path: The file.
        n: Rows, without those that are left out.
        dim: Width of a row.
        dtype: Type of the numbers.
        column: Their column in a parquet file; None for npy.
        read: Gives the rows of the file in blocks of at most this many, from a first to before a last one; and what is
            wrong with rows that are not vectors, by their place in the block.
        skipped: Rows of the file that are left out (``bertflow.skip_bad``), rising.
        opened: What the file was when it was opened; None for rows that are in no file.
    """

    path: Path
    n: int
    dim: int
    dtype: np.dtype[Any]
    column: str | None
    read: Callable[[int, int, int], Iterator[tuple[Floats, dict[int, str]]]]
    skipped: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    opened: State | None = None

    def __len__(self) -> int:
        return self.n

    def row_in_file(self, row: int) -> int:
        """The row of the file that is row ``row`` of those that are kept."""
        kept_before = self.skipped - np.arange(len(self.skipped))
        return row + int(np.searchsorted(kept_before, row, side="right"))

    def blocks(self, size: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[Floats]:
        """Rows ``start`` to ``stop`` (all by default) in order, in blocks of at most ``size``; float32 or float64.

        Raises:
            DataError: For a NaN, an infinity, zeros alone, or a row of another length; the message names file and row.
        """
        last = self.row_in_file(self.n if stop is None else min(stop, self.n))
        for row, block, bad in self._judged(size, self.row_in_file(start), last):
            there = self.skipped[slice(*np.searchsorted(self.skipped, (row, row + len(block))))] - row
            for at in sorted(bad.keys() - set(there.tolist())):
                raise RowError(str(self.path), row + at, bad[at], "row")
            if len(there) < len(block):
                dtype = np.float64 if self.dtype.itemsize == 8 else np.float32
                yield np.delete(block, there, axis=0).astype(dtype, copy=False)

    def without(self, bad: Mapping[int, str], skipped: SkippedRows) -> "Vectors":
        """The file without some more of its rows, for the reasons given.

        Raises:
            DataError: If no row is left.
        """
        for row, reason in sorted(bad.items()):
            skipped.add(RowError(str(self.path), row, reason, "row"))
        if len(bad) >= self.n:
            raise DataError(f"{self.path} holds no vector that can be used. Give another file.")
        return replace(self, n=self.n - len(bad), skipped=np.union1d(self.skipped, np.array([*bad], dtype=np.int64)))

    def bad_rows(self) -> dict[int, str]:
        """The rows of the file that cannot be used, and why; reads all of it."""
        found = self._judged(BLOCK, 0, self.n)
        return {row + at: reason for row, _, bad in found for at, reason in bad.items()}

    def require_unchanged(self) -> None:
        """Refuse a file that was written to since it was opened.

        Raises:
            DataError: If its size or time is another now.
        """
        if self.opened is not None and state_of(self.path) != self.opened:
            raise changed(self.path)

    def _judged(self, size: int, start: int, stop: int) -> Iterator[tuple[int, Floats, dict[int, str]]]:
        """Rows of the file in blocks: the first row, the block, and what is wrong, by the place in the block."""
        row = start
        for block, bad in self.read(size, start, stop):
            self.require_unchanged()
            finite = np.isfinite(block)
            for at in np.flatnonzero(~finite.all(1)).tolist():
                bad.setdefault(at, f"vectors must be finite, got {block[at][~finite[at]][0]}. {LEAVE}")
            for at in np.flatnonzero(~block.any(1)).tolist():
                bad.setdefault(at, f"a vector is wanted, got zeros alone, as where an embedding failed. {AGAIN}")
            yield row, block, bad
            row += len(block)


def open_vectors(path: str | Path, column: str | None = None) -> Vectors:
    """Open a file of vectors; inside ``bertflow.skip_bad`` all of it is read, to know the rows that are left out.

    Args:
        path: A .npy or .parquet file.
        column: The column of a parquet file that holds them; the only one of lists of numbers by default.

    Raises:
        DataError: If the file is missing, empty, damaged, of another format, or holds no vectors.
        UsageError: If ``column`` is given for npy, is not there, or has to be chosen.
    """
    path = Path(path)
    opened = FORMATS.get(path.suffix.lower())
    if opened is None:
        raise DataError(f"{path} should be vectors, by its ending one of {', '.join(FORMATS)}. Convert it to one.")
    state = state_of(path)
    vectors = replace(opened(path, column), opened=state)
    if not (vectors.n and vectors.dim):
        raise DataError(f"{path} holds no vectors: its shape is ({vectors.n}, {vectors.dim}). Give a filled file.")
    if (skipped := skipping()) is None:
        return vectors
    return vectors.without(vectors.bad_rows(), skipped)


def _npy(path: Path, column: str | None) -> Vectors:
    if column is not None:
        raise UsageError(f"{path} is one matrix, without columns, but column {column!r} is asked for. Leave it out.")
    array = open_array(path)
    if len(array.shape) != 2:
        raise DataError(f"{path} should hold a matrix (n, dim), but its shape is {array.shape}. Reshape it.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise DataError(f"{path} {FLOATS}, but holds {str(array.dtype)[:60]}. Convert it.")

    def read(size: int, start: int, stop: int) -> Iterator[tuple[Floats, dict[int, str]]]:
        return ((array.rows(row, min(row + size, stop)), {}) for row in range(start, stop, size))

    return Vectors(path, *array.shape, array.dtype, None, read)


def _parquet(path: Path, column: str | None) -> Vectors:
    with readable_parquet(path):
        file = open_parquet(path)
        column = _choose_column(path, file.schema_arrow, column)
        kind = file.schema_arrow.field(column).type.value_type
        if not pa.types.is_floating(kind):
            raise DataError(f"{path} {FLOATS}, but holds {kind}. Convert it.")
        batches = (batch.column(0) for batch in file.iter_batches(BLOCK, columns=[column]))
        lengths = (pc.list_value_length(rows).drop_null() for rows in batches)
        dim = next((found[0].as_py() for found in lengths if len(found)), 0)
    dtype = np.dtype(kind.to_pandas_dtype())

    def read(size: int, start: int, stop: int) -> Iterator[tuple[Floats, dict[int, str]]]:
        for batch in parquet_batches(path, size, start, stop, [column]):
            yield matrix_of_lists(batch.column(0), dim, dtype)

    return Vectors(path, file.metadata.num_rows, dim, dtype, column, read)


def open_parquet(path: Path) -> pq.ParquetFile:
    """A parquet file that is there, not yet read; to be used in ``readable_parquet``."""
    require_files(path)
    return pq.ParquetFile(path, buffer_size=BUFFER)  # else a row group is read whole


def parquet_batches(
    path: Path, size: int, start: int = 0, stop: int | None = None, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of a parquet file, in batches of at most ``size``; row groups before are skipped."""
    with readable_parquet(path):
        file = open_parquet(path)
        stop = file.metadata.num_rows if stop is None else stop
        ends = np.cumsum([file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)])
        groups = range(int(np.searchsorted(ends, start, side="right")), len(ends))
        row = int(ends[groups.start - 1]) if groups.start else 0
        for batch in file.iter_batches(size, row_groups=groups, columns=columns):
            wanted = batch.slice(max(0, start - row), max(0, min(stop, row + len(batch)) - max(start, row)))
            row += len(batch)
            if len(wanted):
                yield wanted
            if row >= stop:
                return


def _choose_column(path: Path, schema: pa.Schema, column: str | None) -> str:
    """The column of that name that holds lists, or the only one that does."""
    lists = [field.name for field in schema if any(is_kind(field.type) for is_kind in LISTS)]
    wanted = [name for name in lists if column in (None, name)]
    if len(wanted) == 1:
        return wanted[0]
    raise (UsageError if lists else DataError)(
        f"{path} should have one column of lists of numbers{f' called {column!r}' if column else ''}, but its columns "
        f"are {column_names(schema.names)}. Name it with --column."
    )


def matrix_of_lists(rows: pa.Array, dim: int, dtype: np.dtype[Any]) -> tuple[Floats, dict[int, str]]:
    """A block (n, dim) of a column of lists, and what is wrong with rows that are not vectors; these come out as 0."""
    lengths = pc.list_value_length(rows).fill_null(-1).to_numpy(zero_copy_only=False)
    wanted = f"{dim} numbers are wanted, as in row 0, got"
    bad = {int(at): f"{wanted} {lengths[at]}. {AGAIN}" for at in np.flatnonzero(lengths != dim)}
    bad |= {int(at): f"a vector is wanted, but there is none. {LEAVE}" for at in np.flatnonzero(lengths < 0)}
    right = np.flatnonzero(lengths == dim)
    values = (rows.take(pa.array(right)) if bad else rows).flatten()
    if values.null_count:
        missing = ~values.is_valid().to_numpy(zero_copy_only=False).reshape(-1, dim).all(1)
        bad |= {int(at): f"a number is missing in the vector. {LEAVE}" for at in right[missing]}
        values = values.fill_null(pa.scalar(0.0, values.type))
    matrix: Floats = values.to_numpy(zero_copy_only=False).reshape(-1, dim)
    if len(right) == len(rows):
        return matrix, bad
    block = np.zeros((len(rows), dim), dtype)
    block[right] = matrix
    return block, bad


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Refuse whatever pyarrow cannot read of a parquet file in one line; what bertflow refuses stays as it is."""
    try:
        yield
    except (BertflowError, MemoryError):
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path} cannot be read as a parquet file: {reason_of(error)}. Fetch it again.") from None


def write_parquet(path: Path, z: Floats, beside: Vectors | None = None) -> None:
    """Write vectors as a parquet file.

    Args:
        path: The file; the caller makes it whole.
        z: The vectors (n, dim), in memory or mapped; they are read a block at a time.
        beside: A parquet file whose other columns are kept, row by row, and whose vectors these take the place of.
            Without it the only column is called vector.
    """
    tables = _tables(z, beside)
    first = next(tables)
    # Numbers of vectors hardly repeat: a dictionary or a compression would cost time and gain nothing.
    with pq.ParquetWriter(path, first.schema, compression="none", use_dictionary=False) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _tables(z: Floats, beside: Vectors | None) -> Iterator[pa.Table]:
    """The vectors in tables; beside them the other columns of a file, without its rows that are left out."""
    if beside is None:
        yield from (pa.table({"vector": _lists(z[row : row + BLOCK])}) for row in range(0, len(z), BLOCK))
        return
    first = row = 0
    for batch in parquet_batches(beside.path, BLOCK):
        beside.require_unchanged()
        kept = np.setdiff1d(np.arange(first, first + len(batch)), beside.skipped) - first
        first += len(batch)
        if len(kept):
            table = pa.Table.from_batches([batch]).take(pa.array(kept))
            place = table.schema.get_field_index(beside.column)
            yield table.set_column(place, beside.column, _lists(z[row : row + len(kept)]))
            row += len(kept)


def _lists(block: Floats) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(block).reshape(-1)), block.shape[1])


FORMATS: Mapping[str, Callable[[Path, str | None], Vectors]] = {".npy": _npy, ".parquet": _parquet}
"""A row is a file ending and how such a file is opened."""
