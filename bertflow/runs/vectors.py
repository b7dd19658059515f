"""Embeddings on disk: make a store, fit a calibrator to rows that are there, calibrate them.

    embed        text            -> a store
    fit          a store or vectors (.npy, .parquet) -> a calibrator folder
    transform    the same, and a calibrator folder   -> calibrated rows

All read and write in blocks, so that memory does not grow with the rows, and continue where an interrupted run stopped.
Several processes that a launcher started share the work of ``embed``, of ``fit``, and of ``transform`` into a store.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from bertflow.errors import BadRowsError, DataError, UsageError, require_directions, require_seed
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, load, require_openable
from bertflow.progress import bar, place, reading, watched
from bertflow.results import AbstractResult
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.calibration.base import AbstractCalibrator
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.store.store import EmbeddingStore


@dataclass(frozen=True, repr=False)
class Embedded(AbstractResult):
    """A complete store.

    Attributes:
        store: The embeddings.
        seconds: Time of the whole call; None if the store was only verified.
    """

    store: "EmbeddingStore"
    seconds: float | None

    def parts(self) -> Iterable[str]:
        """The store, its text and its encoder."""
        store = self.store
        if self.seconds is None:
            yield f"{store.folder}: whole, {store.describe_rows()}"
            return
        yield f"store     {store.folder}: {store.describe_rows()}"
        yield f"text      {len(store.row_ids):,} sentences, {store.n:,} distinct"
        chunks = f", chunks {store.recipe['chunks']}" if "chunks" in store.recipe else ""
        yield f"encoder   {store.recipe.get('encoder')}, {store.recipe.get('pooling')}{chunks}"
        yield f"took      {self.seconds:.1f} s"

    def as_dict(self) -> dict[str, Any]:
        """The recipe and the sizes."""
        store = self.store
        sizes = {"sentences": len(store.row_ids), "n": store.n, "dim": store.dim}
        return {"store": str(store.folder), "recipe": store.recipe, **sizes, "seconds": self.seconds}


@dataclass(frozen=True, repr=False)
class Fitted(AbstractResult):
    """A calibrator that was fitted to rows on disk.

    Attributes:
        calibrator: The calibrator.
        spelling: How it was asked for.
        output: Folder that holds it.
        source: The store or the file of vectors.
        known: Whether text and encoder are known, as they are for a store.
        seconds: Time of the whole call.
    """

    calibrator: "AbstractCalibrator"
    spelling: str
    output: Path
    source: Path
    known: bool
    seconds: float

    def parts(self) -> Iterable[str]:
        """The calibrator, and what it was fitted on."""
        n = self.calibrator.moments_.n
        known = f"text and encoder of {self.source}" if self.known else "plain vectors: text and encoder unknown"
        yield f"calibrator  {self.output}: {self.spelling}, {self.calibrator.dim_in} -> {self.calibrator.dim_out}"
        yield f"fitted on   {n:,} rows{' of unit length' if self.calibrator.moments_.unit else ''}, {known}"
        yield f"took        {self.seconds:.1f} s, {n / self.seconds:,.0f} rows a second"

    def as_dict(self) -> dict[str, Any]:
        """The calibrator's sizes and facts."""
        calibrator = self.calibrator
        sizes = {"n": calibrator.moments_.n, "dim_in": calibrator.dim_in, "dim_out": calibrator.dim_out}
        places = {"output": str(self.output), "source": str(self.source)}
        return {"calibrator": self.spelling, **places, **sizes, "facts": calibrator.facts_, "seconds": self.seconds}


@dataclass(frozen=True, repr=False)
class Transformed(AbstractResult):
    """Calibrated rows.

    Attributes:
        output: The file or the store.
        n: Number of rows.
        dim_in: Width of a row before.
        dim_out: Width of a row now.
        kept: How many rows an interrupted run had written already.
        seconds: Time of the whole call.
    """

    output: Path
    n: int
    dim_in: int
    dim_out: int
    kept: int
    seconds: float

    def parts(self) -> Iterable[str]:
        """The output and the speed."""
        kept = f", {self.kept:,} of them there already" if self.kept else ""
        yield f"calibrated  {self.output}: {self.n:,} rows, {self.dim_in} -> {self.dim_out}{kept}"
        yield f"took        {self.seconds:.1f} s, {(self.n - self.kept) / self.seconds:,.0f} rows a second"


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
) -> Embedded:
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
    from bertflow.data.corpus import require_columns, stream_sentences
    from bertflow.runs import rows
    from bertflow.store.build import Plan
    from bertflow.store.store import EmbeddingStore

    if verify:
        if text:
            raise UsageError(f"verify reads the store alone, but text is given ({text[0]}). Leave one out.")
        opened = EmbeddingStore.open(store)
        opened.verify()
        return Embedded(opened, None)
    if not text:
        raise UsageError("Text is wanted, got none. Name files or hub:owner/name, or give --verify to check a store.")
    Plan({}, 0, shards=shards, storage=storage)  # refuses what no store can have
    require_files(*text)
    named = columns.split(",") if columns else None
    require_columns(text, named)
    require_place(store, folder=True)
    require_openable(model, **options)
    begin = time.monotonic()
    encoder = load(model, **options) if model is None or isinstance(model, str | Path) else model
    _count_tokens(encoder, lambda: stream_sentences(text, named))
    with ExitStack() as stack, rows.resumable(f"What is done is kept in {store}"):
        try:
            made = EmbeddingStore.build_streamed(
                encoder,
                lambda: reading(stream_sentences(text, named)),
                store,
                shards,
                storage,
                lambda begun: stack.enter_context(bar(begun.n, "embedding", progress, "rows")),
            )
        except BadRowsError as error:
            rows.leave_out_sentences(error.bad, text, named)
            raise
    rows.leave_out_sentences(made.sentences_left_out(), text, named)
    if without_text_hashes:
        made.forget_text()
    return Embedded(made, time.monotonic() - begin)


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
) -> Fitted:
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
    from bertflow.calibration.closed_forms import AbstractClosedForm
    from bertflow.calibration.flow import FlowCalibrator
    from bertflow.calibration.spelling import parse_calibrator
    from bertflow.runs import rows

    made, output = parse_calibrator(calibrator), Path(output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise DataError(f"{output} should not exist or be an empty folder, but it is there. Name another.")
    require_place(output, folder=True)
    require_seed(seed)
    recipe = rows.flow_recipe(made, calibrator, preset, purpose, seed)
    if recipe and place()[1] > 1:
        raise UsageError("A flow is trained over several processes by `bertflow train`. Use it, or one process.")
    source = rows.open_source(store, vectors, column)
    provenance = rows.provenance_of(source)
    made.require_encoder(provenance.encoder if provenance else None)
    require_directions(getattr(made, "n_components", None), source.dim)
    begin = time.monotonic()
    with rows.ranks() as (rank, world), bar(source.n // world, "fitting", progress, "rows") as advance:
        moments = rows.moments_over_ranks(source, rank, world, advance, made.divides)
        if isinstance(made, AbstractClosedForm):
            made.fit_moments(moments, provenance)
        else:
            from bertflow.training.fitting import fit_flow

            assert recipe, "a calibrator is a closed form, or a flow"
            options = {"enable_progress_bar": watched() if progress is None else progress}
            with rows.any_order(source, output) as x:
                made = FlowCalibrator.of(fit_flow(x, recipe, seed or 0, options), recipe, moments, provenance)
        if without_text_hashes:
            made.forget_text()
        if not rank:
            made.save(output)
    return Fitted(made, calibrator, output, rows.path_of(source), store is not None, time.monotonic() - begin)


def transform(
    *,
    calibrator: str | Path,
    output: str | Path,
    store: str | Path | None = None,
    vectors: str | Path | None = None,
    column: str | None = None,
    bare: bool = False,
    progress: bool | None = None,
) -> Transformed:
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
    from bertflow.calibration.spelling import load_calibrator
    from bertflow.data.vectors import FORMATS, Vectors
    from bertflow.runs import rows

    folder, output = Path(calibrator), Path(output)
    require_place(output, folder=Path(output).suffix not in FORMATS)
    fitted, source = load_calibrator(folder), rows.open_source(store, vectors, column)
    rows.check_output(output, source)
    rows.require_same(fitted, folder, source, bare)
    begin, n, kept = time.monotonic(), 0, 0
    with bar(source.n, "calibrating", progress, "rows") as advance, rows.resumable("What is done is kept"):
        if isinstance(source, Vectors) or output.suffix in FORMATS:
            n, kept = rows.write_calibrated(output, source, fitted, folder, advance)
        else:
            n = rows.write_store(output, source, fitted, folder, advance)
    return Transformed(output, n, fitted.dim_in, fitted.dim_out, kept, time.monotonic() - begin)


def _count_tokens(encoder: "SentenceEncoder", read: Callable[[], Iterable[str]]) -> None:
    """Count the tokens of the text, which ``read`` starts, for a pooling that weighs them by frequency and has none."""
    from bertflow.encoder.token_encoder import AbstractTokenEncoder
    from bertflow.store.text import index_text, text_rows

    uncounted = encoder.describe().get("token_counts", "") is None
    if uncounted and isinstance(encoder, AbstractTokenEncoder):
        # The text is read twice: each distinct sentence counts once, and the counts decide every embedding.
        with TemporaryDirectory() as folder:
            distinct, *_ = index_text(read(), Path(folder))
            encoder.count_tokens(text_rows(Path(folder), 0, distinct) if distinct else [])
