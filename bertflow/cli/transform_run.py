"""What ``bertflow transform`` does: see that rows and calibrator belong together, map block by block, write."""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.saving import RECORD, load_calibrator
from bertflow.cli.embed_progress import progress, say
from bertflow.cli.fit_source import Source, name_of, open_source
from bertflow.cli.transform_output import RowFile
from bertflow.data.vectors import FORMATS, Vectors
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, UsageError
from bertflow.files import file_sha256
from bertflow.store.locks import place
from bertflow.store.store import EmbeddingStore


def transform(options: argparse.Namespace) -> int:
    """Calibrate what the command line names; returns the exit code.

    Raises:
        UsageError: If the output cannot be of that kind.
        DataError: If rows and calibrator do not belong together, or rows cannot be used.
    """
    calibrator, source = load_calibrator(options.calibrator), open_source(options)
    _check_output(options.output, source)
    _require_same(calibrator, source, options)
    begin = time.monotonic()
    with progress("calibrating", source.n) as advance:
        try:
            if options.output.suffix in FORMATS:
                there = _to_file(calibrator, source, options, advance)
            else:
                assert isinstance(source, EmbeddingStore), "checked above"
                recipe = _recipe(calibrator, source, options.calibrator)
                source.mapped(calibrator.transform, options.output, recipe, calibrator.dim_out, advance)
                there = 0
        except KeyboardInterrupt:
            say("What is done is kept: run the same command again to go on.")
            raise
    seconds = time.monotonic() - begin
    if place()[0] == 0:
        went_on = f", {there:,} of them there already" if there else ""
        print(f"calibrated  {options.output}: {source.n:,} rows, {calibrator.dim_in} -> {calibrator.dim_out}{went_on}")
        print(f"took        {seconds:.1f} s, {(source.n - there) / seconds:,.0f} rows a second")
    return 0


def _to_file(calibrator: AbstractCalibrator, source: Source, options: argparse.Namespace, advance: Any) -> int:
    if place()[0]:
        raise UsageError("One file is written by one process. Run it alone, or name a folder for a store.")
    wide = isinstance(source, Vectors) and source.dtype.itemsize == 8
    dtype = np.dtype("<f8" if wide else "<f4")
    job = {"calibrator": file_sha256(options.calibrator / RECORD), "rows": _fingerprint(source)}
    file = RowFile(options.output, source.n, calibrator.dim_out, dtype, job)
    beside = source if isinstance(source, Vectors) and source.column is not None else None
    return file.write(lambda start: map(calibrator.transform, source.blocks(start=start)), advance, beside)


def _fingerprint(source: Source) -> dict[str, Any]:
    """Tells whether rows are the same as before, without reading them."""
    path = source.folder / "store.json" if isinstance(source, EmbeddingStore) else source.path
    facts = path.stat()
    return {"path": str(path.resolve()), "bytes": facts.st_size, "changed": facts.st_mtime_ns}


def _recipe(calibrator: AbstractCalibrator, source: EmbeddingStore, folder: Path) -> dict[str, Any]:
    """What decides the numbers of a calibrated store."""
    parameters = ", ".join(f"{key}={value!r}" for key, value in calibrator.get_params().items())
    return source.recipe | {
        "calibrator": f"{type(calibrator).__name__}({parameters})",
        "calibrator_sha256": file_sha256(folder / RECORD),
        "fitted_rows": calibrator.moments_.n,
    }


def _check_output(output: Path, source: Source) -> None:
    if output.suffix in FORMATS:
        if output.is_dir():
            raise DataError(f"{output} should become a file, but is a folder. Name another.")
        return
    if isinstance(source, Vectors):
        raise UsageError(f"Plain vectors are written to {' or '.join(FORMATS)}, got {output}. Name such a file.")
    if output.suffix or output.is_file():
        raise UsageError(f"{output} should be {', '.join(FORMATS)} or a folder, without an ending. Name one of these.")


def _require_same(calibrator: AbstractCalibrator, source: Source, options: argparse.Namespace) -> None:
    """Refuse rows that the calibrator was not fitted for."""
    if calibrator.dim_in != source.dim:
        raise DataError(
            f"{options.calibrator} expects embeddings of size {calibrator.dim_in}, but the rows of {name_of(source)} "
            f"have {source.dim}. Were both made with the same encoder and pooling?"
        )
    fitted = None if calibrator.provenance is None else calibrator.provenance.encoder
    if isinstance(source, Vectors) or options.bare:
        return
    if fitted is None:
        raise DataError(
            f"{options.calibrator} was fitted on plain vectors, of which nothing is known; {name_of(source)} holds "
            f"{_spelled(source.recipe)}. If both are of one encoder and pooling, add --bare."
        )
    Identity.from_record(fitted).require(
        Identity.from_record(source.recipe),
        f"{options.calibrator} was fitted on embeddings by",
        "Fit on this store, or add --bare.",
        other=f"{name_of(source)} holds those by",
    )


def _spelled(recipe: Any) -> str:
    return f"{recipe.get('encoder')}, {recipe.get('pooling')}"
