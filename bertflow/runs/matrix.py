"""A file of rows, which are made of other rows: it can be left at any moment and continued.

    .OUT.npy.partial     the rows so far
    .OUT.npy.journal     written after rows that are safely on disk: what is being written, how many rows, and the XXH3
                         of the rows that they were made from and of the rows themselves

The next run of the same job reads both again, cuts the file back to what the journal says, and continues; made from
other rows, the file is begun again. In the last step OUT.npy gets its name; OUT.parquet is made of it, by reading it
once more.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from bertflow.data.skipping import none_skipped
from bertflow.data.vectors import BLOCK, Vectors, kept_tables, open_vectors, parquet_batches, write_parquet
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file, require_room
from bertflow.progress import Advance
from bertflow.records import Count, read_record, write_record
from bertflow.store.build import locked
from bertflow.store.store import EmbeddingStore

Source = EmbeddingStore | Vectors
"""Both have n, dim and blocks(size, start, stop)."""
Blocks = Iterable[NDArray[np.floating]]
BothBlocks = Iterator[tuple[NDArray[np.floating], NDArray[np.floating]]]
"""Rows in blocks, each with the rows that are made of it."""
Digest = xxhash.xxh3_64
logger = logging.getLogger("bertflow")

ROUNDING = 1e-5
"""Most that equal rows differ by, as a share of the largest number: a product may round differently each time."""
EVERY = 256 * 2**20
"""Bytes between two entries of the journal."""


def dtype_of(source: Source) -> np.dtype[Any]:
    """The precision that rows are written in: as they are, but float16 as float32."""
    return np.dtype("<f8" if isinstance(source, Vectors) and source.dtype.itemsize == 8 else "<f4")


@dataclass(frozen=True)
class Journal:
    """What is being written, and how many rows are safely on disk.

    Attributes:
        job: What decides the rows, besides those that they are made from.
        rows: Their number.
        read: XXH3 of the rows that they were made from.
        written: XXH3 of the rows.
    """

    job: dict[str, Any]
    rows: Count
    read: str
    written: str


@contextmanager
def _removed_where_it_fails(partial: Path, journal: Path) -> Iterator[None]:
    """Leave nothing behind where the disk is full, or a row is bad; what is interrupted stays, and is continued."""
    try:
        yield
    except (OSError, DataError) as error:
        _remove(partial, journal)
        if isinstance(error, OSError):
            error.filename = error.filename or str(partial)
        raise


def write_matrix(
    output: Path,
    source: Source,
    blocks: Callable[[int], BothBlocks],
    dim: int,
    job: Mapping[str, Any],
    advance: Advance = lambda rows: None,
    beside: Vectors | None = None,
) -> int:
    """Write what is made of all rows into a file, the rows that are missing; returns how many were there.

    Args:
        output: Path of the file.
        source: The rows (n, source.dim).
        blocks: Gives the rows of the source from a first one on, in blocks, each with the rows that are made of it.
        dim: Width of a new row.
        job: What decides the new rows besides the source, ready for JSON; a file that was begun for another job, or
            from other rows, is begun again.
        advance: Is told how many more rows are done.
        beside: A parquet file whose other columns a parquet file keeps.

    Raises:
        DataError: If the file is there and holds anything else, or another process writes it.
    """
    partial, journal = (output.with_name(f".{output.name}.{part}") for part in ("partial", "journal"))
    n, dtype = source.n, dtype_of(source)
    job, row_bytes = {**job, "n": n, "dim": dim, "dtype": dtype.str}, dim * dtype.itemsize
    with BytesIO() as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (n, dim)})
        head = file.getvalue()
    with locked(output.with_name(f".lock.{output.name}")) as held:
        if not held:
            raise DataError(f"{output} is being written by another process. Wait for it, or name another file.")
        begun = read_record(journal, Journal, "journal", "Delete it.") if journal.exists() else Journal({}, 0, "", "")
        if output.exists():
            if not _is_made(output, source, blocks(0), dim, beside):
                raise DataError(f"{output} is there already. Delete it, or name another file.")
            advance(n)
            _remove(partial, journal)
            return n
        there, digests = _kept(partial, len(head), begun, source, job)
        if begun.rows and not there and partial.is_file():
            logger.info("%s was begun from other rows, or by another calibrator. It is begun again.", output)
        if not there:
            journal.unlink(missing_ok=True)  # of another job, whose rows are overwritten now
        advance(there)
        require_room(output, (n - there) * row_bytes)
        with _removed_where_it_fails(partial, journal), partial.open("r+b" if there else "wb") as file:
            file.write(head)
            file.seek(there * row_bytes, os.SEEK_CUR)
            file.truncate()
            _append(file, journal, job, digests, there, blocks(there), advance)
        if output.suffix == ".parquet":
            with atomic_file(output) as aside:
                write_parquet(aside, np.load(partial, mmap_mode="r"), beside)
        else:
            partial.replace(output)
        _remove(partial, journal)
    return there


def _kept(
    partial: Path, head: int, begun: Journal, source: Source, job: Mapping[str, Any]
) -> tuple[int, tuple[Digest, Digest]]:
    """How many rows of an unfinished file stay, and the digests of those that they were made from and of their own."""
    dtype, dim = np.dtype(job["dtype"]), job["dim"]
    if begun.rows and partial.is_file() and partial.stat().st_size >= head + begun.rows * dim * dtype.itemsize:
        kept = np.memmap(partial, dtype, "r", head, (begun.rows, dim))
        blocks = (kept[row : row + BLOCK] for row in range(0, len(kept), BLOCK))
        if digests := _as_begun(begun, source, job, blocks):
            return begun.rows, digests
    return 0, (Digest(), Digest())


def _append(
    file: BinaryIO,
    journal: Path,
    job: Mapping[str, Any],
    digests: tuple[Digest, Digest],
    there: int,
    blocks: BothBlocks,
    advance: Advance,
) -> None:
    """Write the rows that are missing, and in the journal how many of all are safely on disk."""
    (read, written), row_bytes = digests, job["dim"] * np.dtype(job["dtype"]).itemsize
    rows = entered = there
    for x, z in blocks:
        file.write(np.ascontiguousarray(z).data)
        _add(read, x)
        _add(written, z)
        rows += len(z)
        if rows == job["n"] or (rows - entered) * row_bytes >= EVERY:
            file.flush()
            os.fsync(file.fileno())
            state = {"rows": rows, "read": read.hexdigest(), "written": written.hexdigest()}
            write_record(journal, {"job": job, **state})
            entered = rows
        advance(len(z))


def _is_made(output: Path, source: Source, blocks: BothBlocks, dim: int, beside: Vectors | None) -> bool:
    """Whether a file that is there holds, up to rounding, all that would be written to it."""
    beside = beside if output.suffix == ".parquet" else None
    try:
        with none_skipped():
            there = open_vectors(output, beside.column if beside else None)
    except (DataError, UsageError):
        return False
    if (there.n, there.dim, there.dtype) != (source.n, dim, dtype_of(source)):
        return False
    row = 0
    for _, z in blocks:
        made = np.concatenate([block for block, _ in there.read(BLOCK, row, row + len(z))])
        if not np.abs(made - z).max() <= ROUNDING * np.abs(z).max():
            return False
        row += len(z)
    row = 0
    for table in kept_tables(beside) if beside else ():
        made_table = pa.Table.from_batches(parquet_batches(output, BLOCK, row, row + len(table)))
        if not made_table.drop_columns([there.column]).equals(table.drop_columns([there.column])):
            return False
        row += len(table)
    return True


def _as_begun(begun: Journal, source: Source, job: Mapping[str, Any], rows: Blocks) -> tuple[Digest, Digest] | None:
    """The digests of the rows that were read and of those that were written, if they are those of the journal."""
    if begun.job != job:
        return None
    read, written = _digest(source.blocks(stop=begun.rows)), _digest(rows)
    same = (begun.read, begun.written) == (read.hexdigest(), written.hexdigest())
    return (read, written) if same else None


def _digest(blocks: Blocks) -> Digest:
    digest = Digest()
    for block in blocks:
        _add(digest, block)
    return digest


def _add(digest: Digest, block: NDArray[np.floating]) -> None:
    digest.update(np.ascontiguousarray(block).data)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
