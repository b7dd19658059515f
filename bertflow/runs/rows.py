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
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from bertflow.calibration.base import RECORD, AbstractCalibrator, Provenance
from bertflow.calibration.calibrators import FlowCalibrator
from bertflow.data.vectors import FORMATS, Vectors, open_vectors, write_parquet
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file, file_sha256, write_json
from bertflow.moments import Moments
from bertflow.progress import Advance, place, watched
from bertflow.records import read_record
from bertflow.store.build import MANIFEST, counted, locked
from bertflow.store.store import EmbeddingStore
from bertflow.training.recipe import resolve

Source = EmbeddingStore | Vectors
"""Both have n, dim and blocks(size, start, stop)."""
logger = logging.getLogger("bertflow")

EVERY = 256 * 2**20
"""Bytes between two entries of the journal."""
Blocks = Callable[[int], Iterator[NDArray[np.floating]]]
"""The rows from a first one on, in blocks."""


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
    return Provenance(source.recipe, source.text_hashes, tuple(source.recipe.get("labels", ())))


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
    elif source.column is None:
        yield np.load(source.path, mmap_mode="r")
    else:
        beside.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".rows.", dir=beside.parent) as folder:
            path = Path(folder) / "rows.npy"
            RowFile(path, source.n, source.dim, dtype_of(source), {}).write(lambda start: source.blocks(start=start))
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


def moments_of_share(source: Source, rank: int, world: int, advance: Advance) -> list[Moments]:
    """Moments of this rank's share of the rows, as a list of one; empty if there are fewer rows than ranks."""
    start, stop = (source.n * share // world for share in (rank, rank + 1))
    blocks = counted(source.blocks(start=start, stop=stop), advance)
    return [Moments.merged(map(Moments.of, blocks))] if start < stop else []


def merged_over_ranks(mine: list[Moments], world: int) -> Moments:
    """The moments of all rows, on every rank."""
    parts = [mine]
    if world > 1:
        parts = [[] for _ in range(world)]
        dist.all_gather_object(parts, mine)
    return Moments.merged(chain.from_iterable(parts))


def fitted_flow(
    flow: AbstractCalibrator, rows: Any, moments: Moments, preset: str, seed: int, progress: bool | None
) -> AbstractCalibrator:
    """A flow fitted to rows that are read in any order."""
    from bertflow.training.fitting import fit_flow

    assert isinstance(flow, FlowCalibrator), "a calibrator is linear, or a flow"
    recipe = resolve(preset, {} if flow.n_components == "auto" else {"n_components": flow.n_components})
    shown = watched() if progress is None else progress
    fitted = fit_flow(rows, recipe, random_state=seed, trainer={"enable_progress_bar": shown})
    return FlowCalibrator.of(fitted, recipe, moments, None)


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
    file = RowFile(output, source.n, calibrator.dim_out, dtype_of(source), job)
    beside = source if isinstance(source, Vectors) and source.column is not None else None
    return file.write(lambda start: map(calibrator.transform, source.blocks(start=start)), advance, beside)


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


class RowFile:
    """A matrix on its way into a file.

    Args:
        output: Path of the file.
        n: Number of rows.
        dim: Width of a row.
        dtype: Type of the numbers.
        job: What decides the rows, ready for JSON; a file that was begun for another job is begun again.
    """

    def __init__(self, output: Path, n: int, dim: int, dtype: np.dtype[Any], job: Mapping[str, Any]) -> None:
        self.output, self.n = output, n
        self.partial, self._journal = (output.with_name(f".{output.name}.{part}") for part in ("partial", "journal"))
        self._job = dict(job) | {"n": n, "dim": dim, "dtype": dtype.str}
        self._header = {"descr": dtype.str, "fortran_order": False, "shape": (n, dim)}
        self._row_bytes = dim * dtype.itemsize

    def rows_there(self) -> int:
        """Rows of this job that are in the file already."""
        if not (self._journal.exists() and self.partial.exists()):
            return 0
        journal = read_record(self._journal, Journal, "journal", "Delete it.")
        return journal.rows if journal.job == self._job else 0

    def write(self, blocks: Blocks, advance: Advance = lambda rows: None, beside: Vectors | None = None) -> int:
        """Write the rows that are missing, and give the file its name; returns how many rows were there.

        Args:
            blocks: Gives the rows.
            advance: Is told how many more rows are done.
            beside: A parquet file whose other columns a parquet file keeps.

        Raises:
            DataError: If the file is there, or another process writes it.
        """
        with locked(self.output.with_name(f".lock.{self.output.name}")) as held:
            if not held:
                raise DataError(
                    f"{self.output} is being written by another process. Wait for it, or name another file."
                )
            if self.output.exists():
                raise DataError(f"{self.output} is there already. Delete it, or name another file.")
            there = self.rows_there()
            if not there:
                self._journal.unlink(missing_ok=True)  # of another job, whose rows are overwritten now
            advance(there)
            with self.partial.open("r+b" if there else "wb") as file:
                np.lib.format.write_array_header_1_0(file, self._header)
                file.seek(there * self._row_bytes, os.SEEK_CUR)
                file.truncate()
                self._append(file, there, blocks, advance)
            self._finish(beside)
        return there

    def _append(self, file: Any, there: int, blocks: Blocks, advance: Advance) -> None:
        rows = entered = there
        for block in blocks(there):
            file.write(np.ascontiguousarray(block).data)
            rows += len(block)
            if rows == self.n or (rows - entered) * self._row_bytes >= EVERY:
                file.flush()
                os.fsync(file.fileno())
                write_json(self._journal, {"job": self._job, "rows": rows})
                entered = rows
            advance(len(block))
        assert rows == self.n, "a file is given all of its rows"

    def _finish(self, beside: Vectors | None) -> None:
        if self.output.suffix == ".parquet":
            for leftover in self.output.parent.glob(f".{self.output.name}.????????"):
                leftover.unlink()  # of a run that was killed in this step
            with atomic_file(self.output) as aside:
                write_parquet(aside, np.load(self.partial, mmap_mode="r"), beside)
            self.partial.unlink()
        else:
            self.partial.replace(self.output)
        self._journal.unlink()
