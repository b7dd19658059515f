"""Rows on disk: where they are read from, how several processes share them, and the file that calibrated rows go to.

A file of rows is written block by block, and can be left at any moment and continued:

    .OUT.npy.partial     the rows so far
    .OUT.npy.journal     written after rows that are safely on disk: what is being written, and how many rows

The next run of the same job cuts the file back to what the journal says, and continues. In the last step OUT.npy gets
its name; OUT.parquet is made of it, by reading it once more.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from bertflow.calibration.base import RECORD, AbstractCalibrator, Provenance
from bertflow.data.skipping import skipping
from bertflow.data.vectors import FORMATS, Vectors, open_vectors, write_parquet
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, RowError, UsageError
from bertflow.files import atomic_file, file_sha256, require_room, scratch_folder, write_json
from bertflow.moments import Moments
from bertflow.progress import Advance, place
from bertflow.records import read_record
from bertflow.store.build import MANIFEST, counted, locked
from bertflow.store.store import EmbeddingStore

Source = EmbeddingStore | Vectors
"""Both have n, dim and blocks(size, start, stop)."""
logger = logging.getLogger("bertflow")

EVERY = 256 * 2**20
"""Bytes between two entries of the journal."""


def open_source(store: str | Path | None, vectors: str | Path | None, column: str | None) -> Source:
    """A finished store, or a file of vectors.

    Raises:
        UsageError: If not exactly one of them is given, or a column is named for a store.
        DataError: If it is not a finished store, or not a file of vectors.
    """
    if (store is None) == (vectors is None):
        raise UsageError(f"One of store and vectors is wanted, got {'neither' if store is None else 'both'}. Give one.")
    if vectors is not None:
        return open_vectors(vectors, column)
    if column is not None:
        raise UsageError("column is for vectors of a parquet file, but a store is given. Leave it out.")
    return EmbeddingStore.open(str(store))


def path_of(source: Source) -> Path:
    """Where the rows are."""
    return source.folder if isinstance(source, EmbeddingStore) else source.path


def provenance_of(source: Source) -> Provenance | None:
    """Encoder and text of a store; None for vectors, of which nothing is known."""
    if isinstance(source, Vectors):
        return None
    return Provenance.of(source.recipe, source.text_hashes)


def dtype_of(source: Source) -> np.dtype[Any]:
    """The precision that rows are written in: as they are, but float16 as float32."""
    return np.dtype("<f8" if isinstance(source, Vectors) and source.dtype.itemsize == 8 else "<f4")


@contextmanager
def any_order(source: Source, beside: Path) -> Iterator[EmbeddingStore | NDArray[Any]]:
    """The same rows, to be read in any order: those of a parquet file are copied into a scratch file for that.

    Args:
        source: The rows.
        beside: The scratch file is in the same folder as this path, where there is room for what is written.
    """
    if isinstance(source, EmbeddingStore):
        yield source
    elif source.column is None and not len(source.skipped):
        yield np.load(source.path, mmap_mode="r")
    else:
        with scratch_folder(beside) as folder:
            path = folder / "rows.npy"
            write_matrix(path, (source.n, source.dim), dtype_of(source), {}, lambda start: source.blocks(start=start))
            yield np.load(path, mmap_mode="r")


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Rank and number of the processes that torchrun started; a process alone needs no others.

    Raises:
        UsageError: If this is one of several processes that cannot find each other.
    """
    rank, world = place()
    if world == 1 or "MASTER_ADDR" not in os.environ:
        if rank:
            raise UsageError(f"Process {rank} of {world} cannot find the others: MASTER_ADDR is not set. Use torchrun.")
        yield 0, 1
        return
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        yield rank, world
    finally:
        dist.destroy_process_group()


def moments_over_ranks(source: Source, rank: int, world: int, advance: Advance) -> Moments:
    """The moments of all rows, on every rank; each reads its share, which may be empty."""
    start, stop = (source.n * share // world for share in (rank, rank + 1))
    blocks = counted(source.blocks(start=start, stop=stop), advance)
    mine = [Moments.merged(map(Moments.of, blocks))] if start < stop else []
    parts = [mine] * world
    if world > 1:
        dist.all_gather_object(parts, mine)
    return Moments.merged(chain.from_iterable(parts))


def require_same(calibrator: AbstractCalibrator, folder: Path, source: Source, bare: bool) -> None:
    """Refuse rows that a calibrator was not fitted for.

    Raises:
        DataError: If they have another width, or are by another encoder.
    """
    if calibrator.dim_in != source.dim:
        raise DataError(
            f"{folder} expects embeddings of size {calibrator.dim_in}, but the rows of {path_of(source)} have "
            f"{source.dim}. Were both made with the same encoder and pooling?"
        )
    if isinstance(source, Vectors) or bare:
        return
    if calibrator.provenance is None:
        raise DataError(
            f"{folder} was fitted on plain vectors, of which nothing is known; {source.folder} holds "
            f"{source.recipe.get('encoder')}, {source.recipe.get('pooling')}. If both are of one encoder and pooling, "
            "add --bare."
        )
    Identity.from_record(calibrator.provenance.encoder).require(
        Identity.from_record(source.recipe),
        f"{folder} was fitted on embeddings by",
        "Fit on this store, or add --bare.",
        other=f"{source.folder} holds those by",
    )


def calibrated_recipe(calibrator: AbstractCalibrator, folder: Path, store: EmbeddingStore) -> dict[str, Any]:
    """What decides the numbers of a calibrated store."""
    parameters = ", ".join(f"{key}={value!r}" for key, value in calibrator.get_params().items())
    return store.recipe | {
        "calibrator": f"{type(calibrator).__name__}({parameters})",
        "calibrator_sha256": file_sha256(folder / RECORD),
        "fitted_rows": calibrator.moments_.n,
    }


def check_output(output: Path, source: Source) -> None:
    """Refuse an output that rows cannot be written to.

    Raises:
        UsageError: If it is of another kind.
        DataError: If it is a folder that should become a file.
    """
    if output.suffix in FORMATS:
        if output.is_dir():
            raise DataError(f"{output} should become a file, but is a folder. Name another.")
        if place()[0]:
            raise UsageError("One file is written by one process. Run it alone, or name a folder for a store.")
    elif isinstance(source, Vectors):
        raise UsageError(f"Plain vectors are written to {' or '.join(FORMATS)}, got {output}. Name such a file.")
    elif output.suffix or output.is_file():
        raise UsageError(f"{output} should be {', '.join(FORMATS)} or a folder, without an ending. Name one of these.")


def write_calibrated(
    output: Path, source: Source, calibrator: AbstractCalibrator, folder: Path, advance: Advance
) -> int:
    """Write calibrated rows into a file; returns how many an interrupted run had written already."""
    path = path_of(source) / MANIFEST if isinstance(source, EmbeddingStore) else source.path
    facts = path.stat()
    rows = {"path": str(path.resolve()), "bytes": facts.st_size, "changed": facts.st_mtime_ns}
    job = {"calibrator": file_sha256(folder / RECORD), "rows": rows}
    beside = source if isinstance(source, Vectors) and source.column is not None else None
    shape, dtype = (source.n, calibrator.dim_out), dtype_of(source)

    def blocks(start: int) -> Iterator[NDArray[np.floating]]:
        for block, bad in _calibrated(source, calibrator, start):
            for row, reason in bad.items():
                raise RowError(str(path_of(source)), row, reason, "row")
            yield block

    try:
        return write_matrix(output, shape, dtype, job, blocks, advance, beside)
    except RowError:
        if (skipped := skipping()) is None or isinstance(source, EmbeddingStore):
            raise
    bad = {row: reason for _, found in _calibrated(source, calibrator, 0) for row, reason in found.items()}
    return write_calibrated(output, source.without(bad, skipped), calibrator, folder, advance)


def _calibrated(
    source: Source, calibrator: AbstractCalibrator, start: int
) -> Iterator[tuple[NDArray[np.floating], dict[int, str]]]:
    """Calibrated rows in blocks, from a first one on; where a calibrator refuses some, these by their row, and why."""
    for block in source.blocks(start=start):
        bad: dict[int, str] = {}
        try:
            z = calibrator.transform(block)
        except DataError:
            z = block[:0]
            for at, row in enumerate(block, start):
                try:
                    calibrator.transform(row[None])
                except DataError as error:
                    place = source.row_in_file(at) if isinstance(source, Vectors) else at
                    bad[place] = str(error).removeprefix("Row 0 ")
            if not bad:
                raise
        yield z, bad
        start += len(block)


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """If the user interrupts the work, say that it can be continued."""
    try:
        yield
    except KeyboardInterrupt:
        logger.warning("%s: run the same command again to continue.", kept)
        raise


@dataclass(frozen=True)
class Journal:
    """What is being written, and how many rows are safely on disk."""

    job: dict[str, Any]
    rows: int


@contextmanager
def _removed_where_it_fails(partial: Path, journal: Path) -> Iterator[None]:
    """Leave nothing behind where the disk is full, or a row is bad; what is interrupted stays, and is continued."""
    try:
        yield
    except (OSError, DataError) as error:
        partial.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(partial)
        raise


def write_matrix(
    output: Path,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    job: Mapping[str, Any],
    blocks: Callable[[int], Iterator[NDArray[np.floating]]],
    advance: Advance = lambda rows: None,
    beside: Vectors | None = None,
) -> int:
    """Write a matrix into a file, the rows that are missing; returns how many were there.

    Args:
        output: Path of the file.
        shape: Number of rows, and width of a row.
        dtype: Type of the numbers.
        job: What decides the rows, ready for JSON; a file that was begun for another job is begun again.
        blocks: Gives the rows from a first one on, in blocks.
        advance: Is told how many more rows are done.
        beside: A parquet file whose other columns a parquet file keeps.

    Raises:
        DataError: If the file is there, or another process writes it.
    """
    partial, journal = (output.with_name(f".{output.name}.{part}") for part in ("partial", "journal"))
    (n, dim), row_bytes = shape, shape[1] * dtype.itemsize
    job = {**job, "n": n, "dim": dim, "dtype": dtype.str}
    with locked(output.with_name(f".lock.{output.name}")) as held:
        if not held:
            raise DataError(f"{output} is being written by another process. Wait for it, or name another file.")
        if output.exists():
            raise DataError(f"{output} is there already. Delete it, or name another file.")
        there = 0
        if journal.exists() and partial.exists():
            begun = read_record(journal, Journal, "journal", "Delete it.")
            there = begun.rows if begun.job == job else 0
        if not there:
            journal.unlink(missing_ok=True)  # of another job, whose rows are overwritten now
        advance(there)
        require_room(output, (n - there) * row_bytes)
        with _removed_where_it_fails(partial, journal), partial.open("r+b" if there else "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
            file.seek(there * row_bytes, os.SEEK_CUR)
            file.truncate()
            rows = entered = there
            for block in blocks(there):
                file.write(np.ascontiguousarray(block).data)
                rows += len(block)
                if rows == n or (rows - entered) * row_bytes >= EVERY:
                    file.flush()
                    os.fsync(file.fileno())
                    write_json(journal, {"job": job, "rows": rows})
                    entered = rows
                advance(len(block))
        assert rows == n, "a file is given all of its rows"
        if output.suffix == ".parquet":
            with atomic_file(output) as aside:
                write_parquet(aside, np.load(partial, mmap_mode="r"), beside)
            partial.unlink()
        else:
            partial.replace(output)
        journal.unlink()
    return there
