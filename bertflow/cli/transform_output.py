"""Rows that are written one block after the other into a file, which can be left at any moment and gone on with.

    .OUT.npy.partial     the rows so far
    .OUT.npy.journal     written after rows that are safely on disk: what is being written, and how many rows

Whoever comes again with the same job cuts the file back to what the journal says, and goes on. The last step makes
OUT.npy of it, by a new name; or OUT.parquet, by reading it once more.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.data.vectors import Vectors, write_parquet
from bertflow.errors import DataError
from bertflow.files import atomic_file, write_json
from bertflow.records import read_record
from bertflow.store.locks import Locks

EVERY = 256 * 2**20
"""Bytes between two entries of the journal."""
Blocks = Callable[[int], Iterator[NDArray[np.floating]]]
"""The rows from a first one on, in blocks."""


@dataclass(frozen=True)
class Journal:
    """What is being written, and how many rows are safely on disk."""

    job: dict[str, Any]
    rows: int


class RowFile:
    """A matrix on its way into a file.

    Args:
        output: What the file will be called.
        n: Rows in all.
        dim: Width of a row.
        dtype: Of the numbers.
        job: Decides the rows, ready for JSON; a file that was begun for another job is begun again.
    """

    def __init__(self, output: Path, n: int, dim: int, dtype: np.dtype[Any], job: Mapping[str, Any]) -> None:
        self.output, self.n = output, n
        self.partial, self._journal = (output.with_name(f".{output.name}.{part}") for part in ("partial", "journal"))
        self._job = dict(job) | {"n": n, "dim": dim, "dtype": dtype.str}
        self._header = {"descr": dtype.str, "fortran_order": False, "shape": (n, dim)}
        self._row_bytes = dim * dtype.itemsize

    def rows_there(self) -> int:
        """How many rows of this job are there already."""
        if not (self._journal.exists() and self.partial.exists()):
            return 0
        journal = read_record(self._journal, Journal, "journal", "Delete it.")
        return journal.rows if journal.job == self._job else 0

    def write(self, blocks: Blocks, advance: Callable[[int], None], beside: Vectors | None = None) -> int:
        """Write the rows that are missing, and give the file its name; returns how many rows were there.

        Args:
            blocks: The rows.
            advance: Is told how many more are done.
            beside: A parquet file whose other columns are kept in a parquet file.

        Raises:
            DataError: If the file is there, or another process writes it.
        """
        locks = Locks(self.output.parent)
        if not locks.take(self.output.name):
            raise DataError(f"{self.output} is being written by another process. Wait for it, or name another file.")
        try:
            if self.output.exists():
                raise DataError(f"{self.output} is there already. Delete it, or name another file.")
            there = self.rows_there()
            if not there:
                self._journal.unlink(missing_ok=True)  # of another job: from here on, the rows are no longer its
            advance(there)
            with self.partial.open("r+b" if there else "wb") as file:
                np.lib.format.write_array_header_1_0(file, self._header)
                file.seek(there * self._row_bytes, os.SEEK_CUR)
                file.truncate()
                self._append(file, there, blocks, advance)
            self._finish(beside)
        finally:
            locks.give_back(self.output.name)
        return there

    def _append(self, file: Any, there: int, blocks: Blocks, advance: Callable[[int], None]) -> None:
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
