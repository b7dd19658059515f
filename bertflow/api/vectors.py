"""Vectors on disk: ``embed`` makes a store, ``fit`` a calibrator of rows that are there, ``transform`` calibrates them.

All read and write in blocks, so that memory does not grow with the rows, and continue where an interrupted run stopped.
Several processes that a launcher started share the work of ``embed``, of ``fit``, and of ``transform`` into a store.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from bertflow.data.corpus import require_columns
from bertflow.errors import DataError, UsageError, require_seed
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.runs.vectors import Embedded, Fitted, Transformed


def embed(
    text: Sequence[str] = (),
    *,
    store: str | Path,
    columns: str | None = None,
    model: "str | Path | SentenceEncoder | None" = None,
    storage: str | None = None,
    shards: int | None = None,
    verify: bool = False,
    without_text_hashes: bool = False,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> "Embedded":
    """Embed a corpus once, into a store.

    Text is read as a stream, so it may be larger than memory. Call it again after an interruption of any kind: what is
    done is kept. Several processes may run it at the same time, started by torchrun, by srun or by hand: they share the
    work.

    Args:
        text: Text to embed: txt, tsv, csv, jsonl or parquet files, or hub:owner/name.
        store: Folder of the store; made if it is missing, else continued.
        columns: Columns of tables that hold text, as a,b; found by their names by default.
        model: Encoder: anything that bertflow.load opens; the embedded one by default.
        storage: Precision of the embeddings on disk: float32, or float16 around a center; float32 by default.
        shards: Number of files that hold the embeddings; one for 65,536 rows by default, and at least 8.
        verify: Only compare the store with its checksums.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``.

    Returns:
        The finished store, and how long it took.

    Raises:
        UsageError: If there is no text, or an option cannot be used.
        DataError: If text cannot be read, the folder holds another store, or the store is damaged.
    """
    if verify and text:
        raise UsageError(f"verify reads the store alone, but text is given ({text[0]}). Leave one out.")
    if not (verify or text):
        raise UsageError("Text is wanted, got none. Name files or hub:owner/name, or give --verify to check a store.")
    named = columns.split(",") if columns else None
    require_files(*text)
    require_columns(text, named)
    require_place(None if verify else store, folder=True)
    from bertflow.runs.vectors import embed_text, verified

    if verify:
        return verified(store)
    return embed_text(model, options, text, named, store, shards, storage, without_text_hashes, progress)


def fit(
    *,
    calibrator: str,
    output: str | Path,
    store: str | Path | None = None,
    vectors: str | Path | None = None,
    column: str | None = None,
    preset: str | None = None,
    purpose: Purpose | None = None,
    seed: int | None = None,
    without_text_hashes: bool = False,
    progress: bool | None = None,
) -> "Fitted":
    """Fit a calibrator to a store, or to plain vectors.

    Vectors are .npy, or a column of .parquet, from an API or out of an index. Closed forms read the rows once, as a
    stream; under torchrun the processes share them. A calibrator that was fitted to a store knows its text and encoder;
    one of plain vectors knows neither.

    Args:
        calibrator: Calibrator to fit: center, standardize, abtt(K), whitening(N), ridge(R), two-band(C), flow or
            flow(N); blocks(CALIBRATOR) for joined layers, each by itself.
        output: Folder for the calibrator; must not exist or be empty.
        store: A finished store.
        vectors: A file of vectors, .npy or .parquet, instead of a store.
        column: Column of a parquet file that holds the vectors; the only column of lists by default.
        preset: Preset of a flow: default, paper-tf, ...
        purpose: What the embeddings of a flow are for, instead of a preset: similarity (default), search or all.
        seed: Random seed for a flow; 0 by default.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        The calibrator, also on ranks other than the first; the first one writes it.

    Raises:
        UsageError: If the calibrator is misspelled, or an option does not belong to it.
        DataError: If the rows cannot be used; the message names file and row.
    """
    folder, source = Path(output), (store, vectors, column)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder} should not exist or be an empty folder, but it is there. Name another.")
    require_place(folder, folder=True)
    require_seed(seed)
    from bertflow.runs.vectors import fit_rows

    return fit_rows(calibrator, source, folder, preset, purpose, seed, without_text_hashes, progress)


def transform(
    *,
    calibrator: str | Path,
    output: str | Path,
    store: str | Path | None = None,
    vectors: str | Path | None = None,
    column: str | None = None,
    bare: bool = False,
    progress: bool | None = None,
) -> "Transformed":
    """Calibrate a store or plain vectors, at the speed of the disk.

    Vectors are .npy, or a column of .parquet, whose other columns are kept. Rows stay in their order; those of a store
    are its distinct sentences. Call it again after an interruption of any kind: it continues where it stopped, and is
    done if the output holds these rows already. A calibrator of another encoder or pooling than the store's is
    refused.

    Args:
        calibrator: Folder that fit, train or save() wrote.
        output: File that ends in .npy or .parquet; for a store also a folder, which becomes a store.
        store: A finished store.
        vectors: A file of vectors, .npy or .parquet, instead of a store.
        column: Column of a parquet file that holds the vectors; the only column of lists by default.
        bare: Take any rows of the right width: compare neither encoder and pooling, nor what vectors look like.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        Sizes, and how long it took.

    Raises:
        UsageError: If the output cannot be of that kind.
        DataError: If rows and calibrator do not belong together, rows cannot be used, or the output is there and holds
            anything else.
    """
    from bertflow.runs.vectors import transform_rows

    return transform_rows(Path(calibrator), (store, vectors, column), Path(output), bare, progress)
