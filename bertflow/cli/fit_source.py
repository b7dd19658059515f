"""Rows to fit on or to calibrate: those of a store, or plain vectors."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.base import Provenance
from bertflow.data.vectors import Vectors, open_vectors
from bertflow.errors import UsageError
from bertflow.store.store import EmbeddingStore

Source = EmbeddingStore | Vectors
"""Both have n, dim and blocks(size, start, stop)."""


def open_source(options: argparse.Namespace) -> Source:
    """What the command line names.

    Raises:
        UsageError: If a column is named for a store.
        DataError: If it is no finished store, or no file of vectors.
    """
    if options.store is None:
        return open_vectors(options.vectors, options.column)
    if options.column is not None:
        raise UsageError("--column is for --vectors of a parquet file, but a store is given. Leave it out.")
    return EmbeddingStore.open(options.store)


def name_of(source: Source) -> Path:
    """What messages call it."""
    return source.folder if isinstance(source, EmbeddingStore) else source.path


def provenance_of(source: Source) -> Provenance | None:
    """Encoder and text of a store; None for vectors, of which nothing is known."""
    if isinstance(source, Vectors):
        return None
    return Provenance(source.recipe, source.text_hashes, tuple(source.recipe.get("labels", ())))


@contextmanager
def any_order(source: Source, beside: Path) -> Iterator[EmbeddingStore | NDArray[Any]]:
    """The same rows, to be read in any order: those of a parquet file are copied into a scratch file for that.

    Args:
        source: The rows.
        beside: The scratch file lies in the same folder as this path, where there is room for what is written.
    """
    if isinstance(source, EmbeddingStore):
        yield source
    elif source.column is None:
        yield np.load(source.path, mmap_mode="r")
    else:
        beside.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".rows.", dir=beside.parent) as folder:
            dtype = np.float64 if source.dtype.itemsize == 8 else np.float32
            shape = (source.n, source.dim)
            rows = np.lib.format.open_memmap(Path(folder) / "rows.npy", mode="w+", dtype=dtype, shape=shape)
            start = 0
            for block in source.blocks():
                rows[start : start + len(block)] = block
                start += len(block)
            yield rows
