"""Vectors that somebody else made: from an API, or out of a filled index. Read block by block, refused by file and row.

    .npy       one matrix (n, dim), memory-mapped
    .parquet   one column of lists of numbers, of fixed or variable length; the other columns stay with their rows

Numbers are float16, float32 or float64 (float16 is read as float32); rows are counted from 0.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertflow.errors import DataError, UsageError

LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
"""Types of a column that may hold vectors."""
BLOCK = 8192
"""Rows in memory at a time."""


@dataclass(frozen=True)
class Vectors:
    """A file of vectors; nothing is read yet but its head.

    Attributes:
        path: The file.
        n: Rows.
        dim: Width of a row.
        dtype: Type of the numbers.
        column: Their column in a parquet file; None for npy.
        read: Gives the rows as they are, in blocks of at most so many, from a first to before a last one.
    """

    path: Path
    n: int
    dim: int
    dtype: np.dtype[Any]
    column: str | None
    read: Callable[[int, int, int], Iterator[NDArray[np.floating]]]

    def __len__(self) -> int:
        return self.n

    def blocks(self, size: int = BLOCK, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.floating]]:
        """Rows ``start`` to ``stop`` (all by default) in order, in blocks of at most ``size``; float32 or float64.

        Raises:
            DataError: For a NaN, an infinity, or a row of another length; the message names file and row.
        """
        row = start
        for block in self.read(size, start, self.n if stop is None else min(stop, self.n)):
            infinite = np.argwhere(~np.isfinite(block))
            if len(infinite):
                bad = tuple(infinite[0])
                what = f"vectors must be finite, got {block[bad]}. Leave the row out."
                raise DataError(f"{self.path}, row {row + bad[0]}: {what}")
            yield block.astype(np.float64 if self.dtype.itemsize == 8 else np.float32, copy=False)
            row += len(block)


def open_vectors(path: str | Path, column: str | None = None) -> Vectors:
    """Open a file of vectors.

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
    if not path.is_file():
        raise DataError(f"{path} is missing. Give the path of an existing file.")
    vectors = opened(path, column)
    if not (vectors.n and vectors.dim):
        raise DataError(f"{path} holds no vectors: its shape is ({vectors.n}, {vectors.dim}). Give a filled file.")
    return vectors


def _npy(path: Path, column: str | None) -> Vectors:
    if column is not None:
        raise UsageError(f"{path} is one matrix, without columns, but column {column!r} is asked for. Leave it out.")
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a matrix: {error}. Save it again with numpy.save.") from None
    if matrix.ndim != 2:
        raise DataError(f"{path} should hold a matrix (n, dim), but its shape is {matrix.shape}. Reshape it.")
    _require_floats(path, matrix.dtype)

    def read(size: int, start: int, stop: int) -> Iterator[NDArray[np.floating]]:
        # A block is copied out of the map: it is used more than once, and pages that were read can be let go.
        return (np.array(matrix[row : min(row + size, stop)]) for row in range(start, stop, size))

    return Vectors(path, len(matrix), matrix.shape[1], matrix.dtype, None, read)


def _parquet(path: Path, column: str | None) -> Vectors:
    with _readable(path):
        file = pq.ParquetFile(path, memory_map=True)
        column = _choose_column(path, file.schema_arrow, column)
        dtype = np.dtype(file.schema_arrow.field(column).type.value_type.to_pandas_dtype())
        _require_floats(path, dtype)
        first = next(file.iter_batches(1, columns=[column]), None)
    dim = 0 if first is None else _matrix(first.column(0), path, 0).shape[1]

    def read(size: int, start: int, stop: int) -> Iterator[NDArray[np.floating]]:
        row = start
        for batch in parquet_batches(path, size, start, stop, [column]):
            yield _matrix(batch.column(0), path, row, dim)
            row += len(batch)

    return Vectors(path, file.metadata.num_rows, dim, dtype, column, read)


def parquet_batches(
    path: Path, size: int, start: int, stop: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows ``start`` to ``stop`` of a parquet file, in batches of at most ``size``; row groups before are skipped."""
    with _readable(path):
        file = pq.ParquetFile(path, memory_map=True)
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
    lists = [field.name for field in schema if any(is_kind(field.type) for is_kind in LISTS)]
    if column is None:
        if len(lists) == 1:
            return lists[0]
        found = f"{', '.join(lists)} all are lists" if lists else f"its columns are {', '.join(schema.names)}"
        error = UsageError if lists else DataError
        raise error(f"{path} should have one column of lists of numbers, but {found}. Name it with column.")
    if column not in schema.names:
        raise UsageError(
            f"{path} has no column {column!r}, its columns are {', '.join(schema.names)}. Name one of them."
        )
    if column not in lists:
        raise DataError(
            f"{path}, column {column}: lists of numbers are wanted, got {schema.field(column).type}. "
            "Name the column that holds the vectors."
        )
    return column


def _matrix(rows: pa.Array, path: Path, first_row: int, dim: int | None = None) -> NDArray[np.floating]:
    """A block (n, dim) of a column of lists; ``dim`` is that of its first row by default."""
    there = rows.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(there, pc.list_value_length(rows).fill_null(0).to_numpy(zero_copy_only=False), -1)
    wrong = (lengths < 0) | (lengths != (lengths[0] if dim is None else dim))
    values = rows.flatten()
    if wrong.any():
        bad = int(np.argmax(wrong))
        what = f"{dim} numbers are wanted, as in row 0, got {lengths[bad]}. Leave the row out, or embed it again."
        if lengths[bad] < 0:
            what = "a vector is wanted, but there is none. Leave the row out."
    elif values.null_count:
        bad = int(np.argmin(values.is_valid().to_numpy(zero_copy_only=False))) // lengths[0]
        what = "a number is missing in the vector. Leave the row out."
    else:
        matrix: NDArray[np.floating] = values.to_numpy(zero_copy_only=False).reshape(-1, lengths[0])
        return matrix
    raise DataError(f"{path}, row {first_row + bad}: {what}")


def _require_floats(path: Path, dtype: np.dtype[Any]) -> None:
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise DataError(f"{path} should hold float16, float32 or float64, but holds {dtype}. Convert it.")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a parquet file: {error}. Fetch it again.") from None


def write_parquet(path: Path, z: NDArray[np.floating], beside: Vectors | None = None, column: str = "vector") -> None:
    """Write vectors as a parquet file.

    Args:
        path: The file; the caller makes it whole.
        z: The vectors (n, dim), in memory or mapped; they are read a block at a time.
        beside: A parquet file whose other columns are kept, row by row, and whose vectors these take the place of.
        column: What the column is called, unless ``beside`` says.
    """
    tables = _tables(z, beside, column)
    first = next(tables)
    # Numbers of vectors hardly repeat: a dictionary or a compression would cost time and gain nothing.
    with pq.ParquetWriter(path, first.schema, compression="none", use_dictionary=False) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _tables(z: NDArray[np.floating], beside: Vectors | None, column: str) -> Iterator[pa.Table]:
    if beside is None:
        yield from (pa.table({column: _lists(z[row : row + BLOCK])}) for row in range(0, len(z), BLOCK))
        return
    row = 0
    for batch in parquet_batches(beside.path, BLOCK, 0, beside.n):
        table = pa.Table.from_batches([batch])
        place = table.schema.get_field_index(beside.column)
        yield table.set_column(place, beside.column, _lists(z[row : row + len(batch)]))
        row += len(batch)


def _lists(block: NDArray[np.floating]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(block).reshape(-1)), block.shape[1])


FORMATS: Mapping[str, Callable[[Path, str | None], Vectors]] = {".npy": _npy, ".parquet": _parquet}
"""A row is a file ending and how such a file is opened."""
