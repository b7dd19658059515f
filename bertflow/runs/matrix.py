"""A file of rows that are made of other rows: written aside, and named when it is whole; .parquet is made of .npy."""

import filecmp
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Floats
from bertflow.data.arrays import map_array, write_head
from bertflow.data.vectors import Vectors, write_parquet
from bertflow.errors import DataError
from bertflow.files import atomic_file, scratch_folder
from bertflow.places import require_room
from bertflow.progress import Advance
from bertflow.store.build import counted
from bertflow.store.store import EmbeddingStore

Source = EmbeddingStore | Vectors
"""Stores and files of vectors: both have n, dim and blocks(size, start, stop)."""


def write_matrix(
    output: Path, source: Source, blocks: Iterable[Floats], dim: int, advance: Advance, beside: Vectors | None
) -> bool:
    """Write what is made of all rows into a file, whole or not at all; returns whether it was there already.

    Args:
        output: Path of the file.
        source: The rows (n, source.dim).
        blocks: The new rows, in blocks; float64 where the rows are, else float32.
        dim: Width of a new row.
        advance: Is told how many more rows are done.
        beside: A parquet file whose other columns a parquet file keeps; None without one.

    Raises:
        DataError: If the file is there and holds anything else.
    """
    dtype: np.dtype[Any] = np.dtype("<f8" if isinstance(source, Vectors) and source.dtype.itemsize == 8 else "<f4")
    with scratch_folder(output) as folder, atomic_file(output) as aside:
        require_room(output, source.n * dim * dtype.itemsize)
        made = folder / "rows.npy" if output.suffix == ".parquet" else aside
        with made.open("wb") as file:
            write_head(file, dtype, source.n, dim)
            for z in counted(blocks, advance):
                file.write(np.ascontiguousarray(z, dtype).data)
        if made != aside:
            write_parquet(aside, map_array(made), beside)
        there = output.exists()
        if there and not filecmp.cmp(aside, output, shallow=False):
            raise DataError(f"{output} is there already. Delete it, or name another file.")
    return there
