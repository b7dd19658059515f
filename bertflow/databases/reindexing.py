"""``bertflow reindex``: a collection of a database, calibrated, into a new collection of the same database.

How rows are moved, and why a job can be killed at any moment, is in ``bertflow.databases.job``.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from bertflow.errors import UsageError, require_between, require_seed
from bertflow.files import require_place
from bertflow.opening import LoadOptions, load, require_openable
from bertflow.results import AbstractResult
from bertflow.retrieval.collections import Address, CollectionFacts, Switch, open_collection, parse_address
from bertflow.retrieval.origin import CALIBRATOR, QUERY_ENCODER
from bertflow.training.purpose import Purpose

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder


@dataclass(frozen=True, repr=False)
class Reindexed(AbstractResult):
    """A collection that was calibrated into a new one.

    Attributes:
        folder: The folder of the job.
        target: Address of the new collection.
        facts: What is known of it.
        dim_in: Width of a vector of the source.
        calibrator: How the calibrator was asked for.
        fitted_rows: Rows that it was fitted on.
        kept: How many rows an interrupted run had written already.
        left_out: How many rows were left out.
        verified: How many rows were read back and compared.
        distance: Largest distance of their directions, as unit vectors, from what they should be.
        encoder: Whether the query encoder was written.
        switch: How the target takes the place of the source, and how to go back.
        seconds: Time of the whole call.
    """

    folder: Path
    target: str
    facts: CollectionFacts
    dim_in: int
    calibrator: str
    fitted_rows: int
    kept: int
    left_out: int
    verified: int
    distance: float
    encoder: bool
    switch: Switch
    seconds: float

    def parts(self) -> Iterator[str]:
        """The target, how sure it is, and how to switch to it."""
        facts, kept = self.facts, f", {self.kept:,} of them there already" if self.kept else ""
        out = f", {self.left_out:,} left out" if self.left_out else ""
        yield f"calibrated  {self.target}: {facts.n:,} rows{kept}{out}, {self.dim_in} -> {facts.dim}"
        yield f"by          {self.folder / CALIBRATOR}: {self.calibrator}, fitted on {self.fitted_rows:,} rows"
        yield f"index       {facts.index or 'none, as in the source: every search is exact'}, cosine"
        yield f"verified    {self.verified:,} random rows: ids, payload, directions within {self.distance:.0e}"
        yield f"took        {self.seconds:.1f} s"
        if self.encoder:
            yield f"queries     {self.folder / QUERY_ENCODER}, a sentence-transformers folder"
        else:
            yield "queries     calibrate them too: name their encoder (--model M) in the same command to get it"
        yield "\nto switch; from then on your application must embed queries with the query encoder:"
        yield from (f"  {line}" for line in self.switch.forward)
        yield "to go back:"
        yield from (f"  {line}" for line in self.switch.back)


def reindex(
    source: str,
    target: str,
    *,
    calibrator: str | Path,
    model: "str | Path | SentenceEncoder | None" = None,
    output: str | Path | None = None,
    fit_rows: int | None = None,
    preset: str | None = None,
    purpose: Purpose | None = None,
    seed: int | None = None,
    part_rows: int | None = None,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> Reindexed:
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
        calibrator: Folder that fit, train or save() wrote; or a calibrator to fit to the source's own rows: center,
            standardize, abtt(K), whitening(N), two-band(C), flow or flow(N).
        model: Encoder that made the vectors: anything that bertflow.load opens, raw. With it, the query encoder is
            written, too.
        output: Folder of the job (default: reindex-NAME for the target's NAME).
        fit_rows: Fit to a random sample of so many rows (default: all for a closed form, 50,000 for a flow).
        preset: Preset of a flow: default, paper-tf, ...
        purpose: What the embeddings of a flow are for, instead of a preset: similarity (default), search or all.
        seed: Random seed for a flow and for the sample; 0 by default.
        part_rows: Rows that are moved at a time (default: 32 MiB of vectors).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``.

    Returns:
        What was made, and the lines that switch and that go back.

    Raises:
        UsageError: If an address or an option cannot be used, or the target is the source.
        DataError: If the source cannot be read or was changed, a row or the calibrator does not fit, the target exists
            and is not of this job, or it does not hold what it should.
    """
    from bertflow.databases.calibrated_rows import Asked
    from bertflow.databases.job import Job
    from bertflow.runs.rows import resumable
    from bertflow.store.build import locked

    require_between(2, fit_rows=fit_rows)
    require_between(1, part_rows=part_rows)
    require_seed(seed)
    if model is None and (given := [name for name, value in options.items() if value is not None]):
        raise UsageError(f"{given[0]} is an option of the encoder, but none is named. Add --model, or leave it out.")
    require_openable(model, **options)
    asked = Asked(str(calibrator), preset, purpose, seed, fit_rows)
    asked.require()
    begin = time.monotonic()
    with ExitStack() as stack:
        old = stack.enter_context(open_collection(source))
        new = stack.enter_context(open_collection(_completed(source, target)))
        folder = Path(output or f"reindex-{new.address.name}")
        require_place(folder, folder=True)
        job = Job(folder, old, new, asked, part_rows, progress)
        job.require_new_or_own()
        encoder = load(model, **options) if isinstance(model, str | Path) else model
        with locked(folder / ".lock.begin", "begins the job"):
            fitted = job.begin(encoder)
        with resumable(f"What is done is kept in {new.address}"):
            kept = job.move(fitted)
            with locked(folder / ".lock.end", "finishes the job"):
                job.finish(fitted)
        record = job.record
        assert record.switch, "the job is finished"
        left_out, encoder_there = sum(len(one.bad) for one in job.notes.values()), (folder / QUERY_ENCODER).is_dir()
        return Reindexed(
            *(folder, record.target, new.facts, fitted.dim_in, record.asked.calibrator, fitted.moments_.n),
            *(kept, left_out, record.verified, record.distance, encoder_there, record.switch),
            seconds=time.monotonic() - begin,
        )


def _completed(source: str, target: str) -> Address:
    """The address of the target; columns that were named for the source are those of the target, too.

    Raises:
        UsageError: If the two are of different kinds.
    """
    one, other = parse_address(source), parse_address(target)
    if one.kind != other.kind:
        raise UsageError(f"Source and target should be of one kind of database, got {one.kind} and {other.kind}.")
    return replace(other, vector=other.vector or one.vector, id=other.id or one.id)
