"""Vectors at rest: ``embed``, ``fit`` and ``transform`` of stores and files, ``reindex`` of a collection.

All read and write in blocks, so that memory does not grow with the rows, and continue where an interrupted run stopped.
Several processes that a launcher started share the work of ``embed``, of ``fit``, and of ``transform`` into a store.
"""

from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Unpack

from bertflow import kinds
from bertflow.data.columns import split_columns
from bertflow.data.corpus import TextSource
from bertflow.encoder.options import EncoderOptions, Role
from bertflow.errors import UsageError, require_between, require_seed
from bertflow.places import require_place
from bertflow.training import Purpose


def embed(
    text: Sequence[str] = (),
    *,
    store: str | Path,
    columns: str | None = None,
    model: "str | Path | kinds.SentenceEncoder | None" = None,
    storage: str | None = None,
    shards: int | None = None,
    verify: bool = False,
    without_text_hashes: bool = False,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Embedded":
    """Embed a corpus once, into a store.

    Text is read as a stream, so it may be larger than memory. Call it again after an interruption of any kind: what is
    done is kept. Several processes may run it at the same time, started by torchrun, by srun or by hand: they share the
    work.

    Args:
        text: Text to embed: txt, tables, or hub:owner/name.
        store: Folder of the store; made if it is missing, else continued.
        columns: Columns of tables that hold text, as a,b; found by their names by default.
        model: Encoder: anything that bertflow.load opens; the built-in one by default.
        storage: Precision of the embeddings on disk: float32, or float16 around a center; float32 by default.
        shards: Number of files that hold the embeddings; one for 65,536 rows by default, and at least 8.
        verify: Only compare the store with its checksums.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``.

    Returns:
        The finished store, and how long it took.

    Raises:
        UsageError: If there is no text, or an option cannot be used.
        DataError: If text cannot be read, the folder holds another store, or the store is damaged.

    Examples:
        ```bash
        bertflow embed text.txt --store stores/mine --model bert-base-uncased --pooling first-last-avg
        bertflow embed a.jsonl hub:owner/name --store stores/mine --storage float16
        torchrun --nproc-per-node 2 -m bertflow embed text.txt --store stores/mine
        bertflow embed --store stores/mine --verify
        ```
    """
    if verify and text:
        raise UsageError(f"verify reads the store alone, but text is given ({text[0]}). Leave one out.")
    if not (verify or text):
        raise UsageError("Text is wanted, got none. Name files or hub:owner/name, or give --verify to check a store.")
    source = TextSource(text, split_columns(columns))
    require_place(None if verify else store, folder=True)
    from bertflow.runs.vectors import embed_text, verified

    if verify:
        return verified(store)
    return embed_text(model, options, source, store, shards, storage, without_text_hashes, progress)


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
) -> "kinds.Fitted":
    """Fit a calibrator to a store, or to plain vectors.

    Vectors are .npy, or a column of .parquet, from an API or out of an index. Closed forms read the rows once, as a
    stream; under torchrun the processes share them. A calibrator that was fitted to a store knows its text and encoder;
    one of plain vectors knows neither.

    Args:
        calibrator: Calibrator to fit, as whitening(128), ridge(1) or flow; ``bertflow.calibration.spelling`` has all.
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

    Examples:
        ```bash
        bertflow fit --store stores/mine --calibrator "whitening(128)" --output calibrators/mine
        bertflow fit --vectors index.parquet --column embedding --calibrator "abtt(3)" --output calibrators/index
        bertflow fit --store stores/mine --calibrator flow --output calibrators/flow
        ```
    """
    folder, source = Path(output), (store, vectors, column)
    require_place(folder, folder=True, new=True)
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
    role: Role = "document",
    bare: bool = False,
    progress: bool | None = None,
) -> "kinds.Transformed":
    """Calibrate a store or plain vectors, at the speed of the disk.

    Vectors are .npy, or a column of .parquet, whose other columns are kept. Rows stay in their order; those of a store
    are its distinct sentences. After an interruption of any kind call it again: a folder is continued, a file is begun
    again, and is done if it holds these rows already. A calibrator of another encoder or pooling than the store's is
    refused.

    Args:
        calibrator: Folder that fit, train or save() wrote.
        output: File that ends in .npy or .parquet; for a store also a folder, which becomes a store.
        store: A finished store.
        vectors: A file of vectors, .npy or .parquet, instead of a store.
        column: Column of a parquet file that holds the vectors; the only column of lists by default.
        role: What vectors are: document or query. It matters for a calibrator with a mean of its own for queries.
        bare: Take any rows of the right width: compare neither encoder and pooling, nor what vectors look like.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        Sizes, and how long it took.

    Raises:
        UsageError: If the output cannot be of that kind, or a store is said to hold queries.
        DataError: If rows and calibrator do not belong together, rows cannot be used, or the output is there and holds
            anything else.

    Examples:
        ```bash
        bertflow transform --calibrator calibrators/mine --store stores/mine --output stores/calibrated
        bertflow transform --calibrator calibrators/index --vectors index.parquet --output calibrated.parquet
        bertflow transform --calibrator runs/mine/calibrator --vectors x.npy --output z.npy
        ```
    """
    from bertflow.runs.vectors import transform_rows

    return transform_rows(Path(calibrator), (store, vectors, column), Path(output), role, bare, progress)


def reindex(
    source: str,
    target: str,
    *,
    calibrator: str | Path,
    model: "str | Path | kinds.SentenceEncoder | None" = None,
    output: str | Path | None = None,
    fit_rows: int | None = None,
    preset: str | None = None,
    purpose: Purpose | None = None,
    seed: int | None = None,
    part_rows: int | None = None,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Reindexed":
    """Calibrate a collection of a database into a new collection, without its text.

    Ids and payload are kept; the index is built for cosine; the source is only read. The lines that let the new
    collection take its place, and those that go back, are printed for you to run. Call it again after an interruption
    of any kind: what is done is kept. Several processes may run it at the same time, where the database allows that. A
    random sample is read back in the end. Do not change the source while it runs: rows that are added or removed are
    found in the end, and refused.

    Addresses are KIND:PLACE/NAME, where NAME is a table or a collection:
    lancedb:FOLDER/TABLE, qdrant:http://localhost:6333/COLLECTION, pgvector:postgresql://user@host/db/TABLE.
    With several columns to choose from, add ?vector=COLUMN&id=COLUMN.

    Args:
        source: Address of the collection to read.
        target: Address of the new collection, in a database of the same kind; must not exist.
        calibrator: Folder that fit, train or save() wrote; or a calibrator to fit to the source's own rows, as
            whitening or ridge(1).
        model: Encoder that made the vectors: anything that bertflow.load opens, raw. With it, the query encoder is
            written, too.
        output: Folder of the job (default: reindex-NAME for the target's NAME).
        fit_rows: Fit to a random sample of this many rows (default: all for a closed form, 50,000 for a flow).
        preset: Preset of a flow: default, paper-tf, ...
        purpose: What the embeddings of a flow are for, instead of a preset: similarity (default), search or all.
        seed: Random seed for a flow and for the sample; 0 by default.
        part_rows: Rows that are moved at a time (default: 32 MiB of vectors).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``.

    Returns:
        What was made, and the lines that switch and that go back.

    Raises:
        UsageError: If an address or an option cannot be used, or the target is the source.
        DataError: If the source cannot be read or was changed, a row or the calibrator does not fit, the target exists
            and is not of this job, or it does not hold what it should.

    Examples:
        ```bash
        bertflow reindex lancedb:db/docs lancedb:db/docs2 --calibrator whitening --model MODEL
        bertflow reindex lancedb:db/docs lancedb:db/docs2 --calibrator runs/mine/calibrator
        bertflow reindex qdrant:http://localhost:6333/docs qdrant:http://localhost:6333/docs2 --calibrator whitening
        bertflow reindex pgvector:postgresql://ann@host/db/a pgvector:postgresql://ann@host/db/b --calibrator whitening
        ```
    """
    require_between(2, fit_rows=fit_rows)
    require_between(1, part_rows=part_rows)
    require_seed(seed)
    if model is None and (given := [name for name, value in options.items() if value is not None]):
        raise UsageError(f"{given[0]} is an option of the encoder, but none is named. Add --model, or leave it out.")
    from bertflow.databases.calibrated_rows import Asked
    from bertflow.databases.reindexing import calibrate_collection

    asked = Asked(str(calibrator), preset, purpose, seed, fit_rows)
    return calibrate_collection(source, target, asked, model, options, output, part_rows, progress)
