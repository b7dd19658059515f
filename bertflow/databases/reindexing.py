"""``bertflow reindex``: a collection of a database, calibrated, into a new collection of the same database.

How rows are moved, and why a job can be killed at any moment, is in ``bertflow.databases.job``.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bertflow.databases.calibrated_rows import Asked
from bertflow.databases.job import Job
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.files import require_place
from bertflow.opening import LoadOptions, load, require_openable
from bertflow.results import AbstractResult
from bertflow.retrieval.collections import Address, CollectionFacts, Switch, open_collection, parse_address
from bertflow.retrieval.origin import CALIBRATOR, QUERY_ENCODER
from bertflow.runs.rows import resumable
from bertflow.store.build import locked


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


def calibrate_collection(
    source: str,
    target: str,
    asked: Asked,
    model: str | Path | SentenceEncoder | None,
    options: LoadOptions,
    output: str | Path | None,
    part_rows: int | None,
    progress: bool | None,
) -> Reindexed:
    """Move a collection, calibrated, into a new one; or go on with it."""
    require_openable(model, **options)
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
