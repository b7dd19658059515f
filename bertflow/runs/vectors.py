"""What ``embed``, ``fit`` and ``transform`` do, and what they give back."""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AbstractClosedForm, Ridge
from bertflow.calibration.flow import flow_on_rows
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import load_calibrator, parse_calibrator
from bertflow.data.columns import added_up
from bertflow.data.corpus import TextSource
from bertflow.data.vectors import FORMATS, Vectors
from bertflow.encoder.abstract import Role, SentenceEncoder
from bertflow.encoder.options import EncoderOptions
from bertflow.encoder.reading import AbstractTokenEncoder
from bertflow.errors import BadRowsError, UsageError, how_many, require_between
from bertflow.opening import Openable, load
from bertflow.places import require_place
from bertflow.progress import Advance, bar, rank_and_world, reading
from bertflow.results import AbstractResult
from bertflow.runs import sources
from bertflow.scoring.domain import ROWS_A_DIRECTION
from bertflow.store.build import require_layout
from bertflow.store.store import EmbeddingStore
from bertflow.store.text import index_text, text_rows
from bertflow.training import Purpose

SourceNames = tuple[str | Path | None, str | Path | None, str | None]
"""Places of rows: a store, or else a file of vectors, and the column of it that holds them."""


@dataclass(frozen=True, repr=False)
class Embedded(AbstractResult):
    """A complete store.

    Attributes:
        store: The embeddings.
        seconds: Time of the whole call; None if the store was only verified.
        again: Whether everything was embedded already.
    """

    store: EmbeddingStore
    seconds: float | None
    again: bool = False

    def parts(self) -> Iterable[str]:
        """The store, its text and its encoder."""
        store = self.store
        if self.seconds is None:
            yield f"{store.folder}: whole, {store.describe_rows()}"
            return
        yield f"store     {store.folder}: {store.describe_rows()}"
        rows = {"different": store.n, "repeated": len(store.row_ids) - store.n}
        yield f"text      {added_up(rows)}"
        chunks = f", chunks {store.recipe['chunks']}" if "chunks" in store.recipe else ""
        yield f"encoder   {store.recipe.get('encoder')}, {store.recipe.get('pooling')}{chunks}"
        yield f"took      {self.seconds:.1f} s{', as everything was embedded already' * self.again}"

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

    calibrator: AbstractCalibrator
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
        yield f"fitted on   {how_many(n, 'rows')}{' of unit length' if self.calibrator.moments_.unit else ''}, {known}"
        if self.calibrator.divides and not self.known:
            looks = f"`bertflow fix --vectors {self.source} TEXT` looks at it"
            yield f"search      may become worse on narrow text; {looks}"
        least = ROWS_A_DIRECTION * self.calibrator.dim_out
        if self.calibrator.divides and n < least and not isinstance(self.calibrator, Ridge):
            for_ = f"for {self.calibrator.dim_out} directions"
            yield f"few rows    {n:,} {for_}: search may become much worse. Give {least:,} or more, or fit ridge(1)"
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
        kept: How many rows were there already.
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
        yield f"calibrated  {self.output}: {how_many(self.n, 'rows')}, {self.dim_in} -> {self.dim_out}{kept}"
        yield f"took        {self.seconds:.1f} s, {(self.n - self.kept) / self.seconds:,.0f} rows a second"


def verified(store: str | Path) -> Embedded:
    """A store that is as its checksums say."""
    opened = EmbeddingStore.open(store)
    opened.verify()
    return Embedded(opened, None)


def embed_text(
    model: Openable | None,
    options: EncoderOptions,
    text: TextSource,
    store: str | Path,
    shards: int | None,
    storage: str | None,
    without_text_hashes: bool,
    progress: bool | None,
) -> Embedded:
    """Make a store, or go on with it."""
    require_layout(shards, storage)
    encoder, begin = load(model, **options), time.monotonic()
    _count_tokens(encoder, text)
    again = False
    with ExitStack() as stack, sources.resumable(f"What is done is kept in {store}"):

        def begun(store: EmbeddingStore) -> Advance:
            nonlocal again
            again = len(store.shards.job.marks()) == store.manifest.shards
            return stack.enter_context(bar(store.n, "checking" if again else "embedding", progress, "rows"))

        try:
            made = EmbeddingStore.build_streamed(encoder, lambda: reading(text), store, shards, storage, begun)
        except BadRowsError as error:
            sources.leave_out_sentences(error.bad, text)
            raise
    sources.leave_out_sentences(made.sentences_left_out(), text)
    if without_text_hashes:
        made.forget_text()
    return Embedded(made, time.monotonic() - begin, again)


def fit_rows(
    spelling: str,
    named: SourceNames,
    output: Path,
    preset: str | None,
    purpose: Purpose | None,
    seed: int | None,
    without_text_hashes: bool,
    progress: bool | None,
) -> Fitted:
    """Fit a calibrator, and write it."""
    made = parse_calibrator(spelling)
    recipe = sources.flow_recipe(made, spelling, preset, purpose, seed)
    if recipe and rank_and_world()[1] > 1:
        raise UsageError("A flow is trained over several processes by `bertflow train`. Use it, or one process.")
    source = sources.open_source(*named)
    provenance = Provenance.of(source.recipe, source.text_hashes) if isinstance(source, EmbeddingStore) else None
    made.require_encoder(provenance.encoder if provenance else None)
    require_between(1, source.dim, n_components=getattr(made, "n_components", None))
    begin = time.monotonic()
    with sources.ranks() as (rank, world), bar(source.n // world, "fitting", progress, "rows") as advance:
        moments = sources.moments_over_ranks(source, rank, world, advance, made.divides)
        if isinstance(made, AbstractClosedForm):
            made.fit_moments(moments, provenance)
        else:
            assert recipe, "a calibrator is a closed form, or a flow"
            with sources.any_order(source, output) as x:
                made = flow_on_rows(x, recipe, seed or 0, moments, provenance, progress)
        if without_text_hashes:
            made.forget_text()
        if not rank:
            made.save(output)
    return Fitted(made, spelling, output, sources.path_of(source), provenance is not None, time.monotonic() - begin)


def transform_rows(
    calibrator: Path, named: SourceNames, output: Path, role: Role, bare: bool, progress: bool | None
) -> Transformed:
    """Calibrate rows; a store that was begun is continued."""
    if role != "document" and named[0]:
        raise UsageError("A store holds documents. Give queries as --vectors, or leave --role out.")
    require_place(output, folder=output.suffix not in FORMATS)
    fitted, source = load_calibrator(calibrator), sources.open_source(*named)
    to_file = sources.is_file(output, source)
    sources.require_same(fitted, calibrator, source, bare)
    begin, kept = time.monotonic(), 0
    with bar(source.n, "calibrating", progress, "rows") as advance:
        if to_file or isinstance(source, Vectors):
            n, kept = sources.write_calibrated(output, source, fitted, role, advance)
        else:
            with sources.resumable("What is done is kept"):
                n = sources.write_store(output, source, fitted, calibrator, advance)
    return Transformed(output, n, fitted.dim_in, fitted.dim_out, kept, time.monotonic() - begin)


def _count_tokens(encoder: SentenceEncoder, text: TextSource) -> None:
    """Count the tokens of the text for a pooling that weights them by frequency and has none."""
    uncounted = encoder.describe().get("token_counts", "") is None
    if uncounted and isinstance(encoder, AbstractTokenEncoder):
        # The text is read twice: each distinct sentence counts once, and the counts decide every embedding.
        with TemporaryDirectory() as folder:
            distinct, *_ = index_text(text, Path(folder))
            encoder.count_tokens(text_rows(Path(folder), 0, distinct) if distinct else [])
