"""Rows on disk: where they are read from, how several processes share them, and what calibrated rows are made of."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from bertflow.array_types import Floats
from bertflow.breadth import watch_breadth
from bertflow.calibration.background import Background
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AbstractClosedForm
from bertflow.calibration.same_space import require_alike, require_lengths
from bertflow.calibration.saving import RECORD
from bertflow.data.arrays import map_array, usable_rows
from bertflow.data.corpus import TextSource
from bertflow.data.lines import leave_out, skipping
from bertflow.data.vectors import FORMATS, Vectors, open_vectors
from bertflow.encoder.abstract import Role
from bertflow.encoder.identity import Identity
from bertflow.errors import BadRowsError, DataError, RowError, UsageError, logger, require_one, shown
from bertflow.files import file_sha256, scratch_folder
from bertflow.moments import Moments
from bertflow.progress import Advance, rank_and_world
from bertflow.runs.matrix import Source, write_matrix
from bertflow.store.build import counted
from bertflow.store.store import EmbeddingStore
from bertflow.training import Purpose
from bertflow.training.recipe import Recipe, preset_for, resolve

COMPARED = 1024
"""Vectors that are compared with those of the fit."""


def open_source(store: str | Path | None, vectors: str | Path | None, column: str | None) -> Source:
    """A finished store, or a file of vectors.

    Raises:
        UsageError: If not exactly one of them is given, or a column is named for a store.
        DataError: If it is not a finished store, or not a file of vectors.
    """
    require_one(store=store, vectors=vectors)
    if vectors is not None:
        return open_vectors(vectors, column)
    if column is not None:
        raise UsageError("column is for vectors of a parquet file, but a store is given. Leave it out.")
    return EmbeddingStore.open(str(store))


def path_of(source: Source) -> Path:
    """Where the rows are."""
    return source.folder if isinstance(source, EmbeddingStore) else source.path


@contextmanager
def any_order(source: Source, beside: Path) -> Iterator[EmbeddingStore | NDArray[Any]]:
    """The rows, to be read in any order: those of a file of vectors are copied into a scratch file for that.

    Args:
        source: The rows.
        beside: The scratch file is in the same folder as this path, where there is room for what is written.
    """
    if isinstance(source, EmbeddingStore):
        yield source
    else:
        with scratch_folder(beside) as folder:
            path = folder / "rows.npy"
            write_matrix(path, source, source.blocks(), source.dim, lambda rows: None, None)
            yield map_array(path)


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Rank and number of the processes that torchrun started; a process alone needs no others.

    Raises:
        UsageError: If this is one of several processes that cannot find each other.
    """
    rank, world = rank_and_world()
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


def moments_over_ranks(source: Source, rank: int, world: int, advance: Advance, warn: bool = False) -> Moments:
    """The moments of all rows, on every rank; each reads its share, which may be empty; the first one may ``warn``."""
    start, stop = (source.n * share // world for share in (rank, rank + 1))
    blocks = counted(source.blocks(start=start, stop=stop), advance)
    blocks = watch_breadth(blocks, stop - start) if warn and not rank else blocks
    mine = [Moments.merged(map(Moments.of, blocks))] if start < stop else []
    parts = [mine] * world
    if world > 1:
        dist.all_gather_object(parts, mine)
    return Moments.merged(chain.from_iterable(parts))


def flow_recipe(
    made: AbstractCalibrator, spelling: str, preset: str | None, purpose: Purpose | None, seed: int | None
) -> Recipe | None:
    """The recipe of a flow that is to be fitted; None for a closed form.

    Raises:
        UsageError: If an option of a flow is given for a closed form, or general text would have to be embedded.
    """
    if isinstance(made, Background):
        raise UsageError(f"{spelling} embeds general text: fit it with `bertflow fix --candidates`, not to rows.")
    if not isinstance(made, AbstractClosedForm):
        n_components = getattr(made, "n_components", "auto")
        return resolve(preset_for(preset, purpose), {} if n_components == "auto" else {"n_components": n_components})
    for name, value in {"preset": preset, "purpose": purpose, "seed": seed}.items():
        if value is not None:
            raise UsageError(f"{name} is for a flow, but {spelling} has none. Leave it out.")
    return None


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
    if bare:
        return
    if isinstance(source, Vectors):
        _require_alike(calibrator, folder, source)
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


def _require_alike(calibrator: AbstractCalibrator, folder: Path, source: Vectors) -> None:
    """Compare the first vectors with those of the fit; a row that is not a vector is refused or left out later."""
    with suppress(RowError, StopIteration):
        first = next(source.blocks(COMPARED))
        require_lengths(first, calibrator.moments_)
        what = f"{folder} is for vectors by one encoder, and those of {source.path} should be by the same"
        require_alike(first, calibrator.moments_, what, "Fit on these, or add --bare.", any_text=True)


def is_file(output: Path, source: Source) -> bool:
    """Whether calibrated rows of a source are written to a file, by the name of the output; else to a store.

    Raises:
        UsageError: If it is of another kind.
        DataError: If it is a folder that should become a file.
    """
    if output.suffix in FORMATS:
        if output.is_dir():
            raise DataError(f"{output} should become a file, but is a folder. Name another.")
        if rank_and_world()[0]:
            raise UsageError("One file is written by one process. Run it alone, or name a folder for a store.")
    elif isinstance(source, Vectors):
        raise UsageError(f"Plain vectors are written to {' or '.join(FORMATS)}, got {output}. Name such a file.")
    elif output.suffix or output.is_file():
        raise UsageError(f"{output} should be {', '.join(FORMATS)} or a folder, without an ending. Name one of these.")
    return output.suffix in FORMATS


def write_calibrated(
    output: Path, source: Source, calibrator: AbstractCalibrator, role: Role, advance: Advance
) -> tuple[int, int]:
    """Write calibrated rows into a file; returns how many, and how many were there already."""
    beside = source if isinstance(source, Vectors) and source.column is not None else None

    def blocks() -> Iterator[Floats]:
        for z, bad in _calibrated(source, calibrator, role):
            for row, reason in bad.items():
                raise RowError(str(path_of(source)), row, reason, "row")
            yield z

    try:
        return source.n, source.n * write_matrix(output, source, blocks(), calibrator.dim_out, advance, beside)
    except RowError:
        if (skipped := skipping()) is None:
            raise
    bad = {row: reason for _, found in _calibrated(source, calibrator, role) for row, reason in found.items()}
    if isinstance(source, EmbeddingStore):
        source = _vectors_of(source)
        bad = source.bad_rows() | bad
    return write_calibrated(output, source.without(bad, skipped), calibrator, role, advance)


def write_store(
    output: Path, source: EmbeddingStore, calibrator: AbstractCalibrator, folder: Path, advance: Advance
) -> int:
    """Write calibrated rows into a store of the same text; returns how many."""
    made = {"calibrator": calibrator.spelled, "calibrator_sha256": file_sha256(folder / RECORD)}
    recipe = source.recipe | made | {"fitted_rows": calibrator.moments_.n}
    try:
        bad = source.mapped(calibrator.transform, output, recipe, calibrator.dim_out, advance).left_out
    except BadRowsError as error:
        bad = error.bad
    for row, reason in bad.items():
        leave_out(RowError(str(source.folder), row, reason, "row"))
    return source.n - len(bad)


def _vectors_of(store: EmbeddingStore) -> Vectors:
    """The rows of a store as if they were a file of vectors."""

    def read(size: int, start: int, stop: int) -> Iterator[tuple[Floats, dict[int, str]]]:
        return ((x, {}) for x in store.blocks(size, start, stop))

    return Vectors(store.folder, store.n, store.dim, np.dtype(np.float32), None, read)


def _calibrated(
    source: Source, calibrator: AbstractCalibrator, role: Role = "document"
) -> Iterator[tuple[Floats, dict[int, str]]]:
    """Calibrated rows in blocks; those that a calibrator refuses by row, and why."""
    start, place = 0, source.row_in_file if isinstance(source, Vectors) else int
    for block in source.blocks():
        z, bad = usable_rows(partial(calibrator.transform, role=role), block, calibrator.dim_out)
        yield z, {place(start + at): reason for at, reason in bad.items()}
        start += len(block)


def leave_out_sentences(bad: Mapping[int, str], text: TextSource) -> None:
    """Refuse sentences by their places in a text, or leave them out, and name their lines: the text is read again.

    Raises:
        RowError: For the first one, unless bad rows are left out.
    """
    if bad:
        for number, (place, sentence) in enumerate(text.placed()):
            if number in bad:
                leave_out(place(f"{shown(sentence)}: {bad[number]}"))


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """If the user interrupts the work, say that it can be continued."""
    try:
        yield
    except KeyboardInterrupt:
        logger.warning("%s: run the same command again to continue.", kept)
        raise
