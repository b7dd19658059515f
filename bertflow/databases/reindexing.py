"""``bertflow reindex``: a collection of a database, calibrated, into a new collection of the same database.

How rows are moved, and why a job can be killed at any moment, is in ``bertflow.databases.moving``.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bertflow import jobs
from bertflow.databases.calibrated_rows import Asked
from bertflow.databases.moving import Move
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import UsageError
from bertflow.opening import load
from bertflow.places import require_place
from bertflow.results import AbstractResult
from bertflow.retrieval.address import parse_address
from bertflow.retrieval.collections import CollectionFacts, Switch, open_collection
from bertflow.retrieval.origin import CALIBRATOR, QUERY_ENCODER
from bertflow.runs.sources import resumable


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
        since: How many rows more the source has than the job began with; fewer are negative.
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
    since: int
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
        if self.since:
            yield f"since then  the source has {self.since:+,} rows: reindex it into another new collection"
        yield f"took        {self.seconds:.1f} s"
        if self.encoder:
            yield f"queries     {self.folder / QUERY_ENCODER}, a sentence-transformers folder"
        else:
            yield "queries     calibrate them too: name their encoder (--model M) in the same command to get it"
        yield "\nto switch; from then on your application must embed queries with the query encoder (encode_query):"
        yield from (f"  {line}" for line in self.switch.forward)
        yield "to go back:"
        yield from (f"  {line}" for line in self.switch.back)


def calibrate_collection(
    source: str,
    target: str,
    asked: Asked,
    model: str | Path | SentenceEncoder | None,
    options: EncoderOptions,
    output: str | Path | None,
    part_rows: int | None,
    progress: bool | None,
) -> Reindexed:
    """Move a collection, calibrated, into a new one; or go on with it."""
    encoder = None if model is None else load(model, **options)
    asked.require()
    one, other = parse_address(source), parse_address(target)
    if one.kind != other.kind:
        raise UsageError(f"Source and target should be of one kind of database, got {one.kind} and {other.kind}.")
    # Columns that were named for the source are those of the target, too.
    completed = replace(other, vector=other.vector or one.vector, id=other.id or one.id)
    begin = time.monotonic()
    with ExitStack() as stack:
        old = stack.enter_context(open_collection(source))
        new = stack.enter_context(open_collection(completed))
        folder = Path(output or f"reindex-{new.address.name}")
        require_place(folder, folder=True)
        move = Move(folder, old, new, asked, part_rows, progress)
        move.require_new_or_own()
        fitted = move.begin(encoder)
        with resumable(f"What is done is kept in {new.address}"):
            kept = move.make_parts(fitted)
            with jobs.locked(folder / jobs.PLAN_LOCK, "finishes the job"):
                move.finish(fitted)
        record = move.record
        assert record.switch, "the job is finished"
        left_out = sum(len(mark.left_out) for mark in move.job.marks().values())
        return Reindexed(
            *(folder, record.target, new.facts, fitted.dim_in, record.asked.calibrator, fitted.moments_.n, kept),
            *(left_out, record.verified, record.distance, (folder / QUERY_ENCODER).is_dir()),
            *(old.facts.n - record.n, record.switch),
            seconds=time.monotonic() - begin,
        )
