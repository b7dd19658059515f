"""How the rows of a collection are moved into a calibrated one.

    reindex.json      source, target, the parts of the source, and how the calibrator was asked for
    calibrator/       fitted to the rows of the source, or a copy of the one that was given
    query-encoder/    embeds queries for the target; sentence-transformers and bertflow.load open it
    done/12.json      part 12 is written: how many rows it had, their digest, and which were left out

It is a job (``bertflow.jobs``): a part is read, calibrated and written, and then marked. The rows of a part that was
written but not marked are there once all the same (``AbstractCollection.upsert``). The source is only read; in the end
its digest is that of its parts.
"""

import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertflow import jobs
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.spelling import load_calibrator
from bertflow.databases.calibrated_rows import (
    DIGESTS,
    Asked,
    calibrated,
    fitted_to,
    part_digest,
    refuse_rows,
    verify_target,
)
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import map_digest
from bertflow.errors import DataError, UsageError
from bertflow.export.targets import golden_distance, write_export
from bertflow.progress import bar, working
from bertflow.records import Count, read_record, write_record
from bertflow.retrieval.collections import AbstractCollection, Id, Part, Switch
from bertflow.retrieval.origin import CALIBRATOR, QUERY_ENCODER, RECORD

PART_BYTES = 2**25
"""Size of the raw vectors of a part, by default."""
OWN = (CALIBRATOR, QUERY_ENCODER, jobs.DONE)
"""What the folder may hold before it has its record."""
SAMPLE = 1000
"""Rows that are read back in the end."""


@dataclass(frozen=True)
class ReindexRecord:
    """What ``reindex.json`` holds.

    Attributes:
        source: Address of the source.
        target: Address of the calibrated rows.
        n: Rows of the source when the job began.
        parts: The source, in parts.
        asked: How the calibrator was asked for.
        calibrator: Digest of its map.
        finished: Whether the target is complete, indexed and verified.
        verified: How many rows were read back.
        distance: Largest distance of their directions, as unit vectors, from what they should be.
        switch: How the target takes the place of the source, and how to go back, once it is finished.
        format: Version of the form.
    """

    source: str
    target: str
    n: Count
    parts: list[dict[str, Any]]
    asked: Asked
    calibrator: str
    finished: bool = False
    verified: Count = 0
    distance: float = 0.0
    switch: Switch | None = None
    format: Literal[1] = 1


@dataclass(frozen=True)
class PartMark(jobs.Mark):
    """The mark of a part, with the digest of its rows in the source."""

    digest: Count


@dataclass
class Move:
    """A job in its folder; see ``bertflow.reindex`` for what is given."""

    folder: Path
    source: AbstractCollection
    target: AbstractCollection
    asked: Asked
    part_rows: int | None
    progress: bool | None

    @property
    def record(self) -> ReindexRecord:
        """What ``reindex.json`` holds now."""
        return read_record(self.folder / RECORD, ReindexRecord, "record of a reindex job", "Delete its folder.")

    @property
    def job(self) -> jobs.Job[PartMark]:
        """The parts, which are there once it is begun."""
        return jobs.Job(self.folder, [str(number) for number in range(len(self.record.parts))], PartMark)

    def _parts(self) -> list[Part]:
        """The source as it is now, in parts."""
        return self.source.parts(self.part_rows or max(1, PART_BYTES // (4 * self.source.facts.dim)))

    def require_new_or_own(self) -> None:
        """Refuse a folder or a target that is not of this job.

        Raises:
            UsageError: If the folder holds something else, or the target names other columns than the source.
            DataError: If the target exists, or the job is one of something else.
        """
        source, target = self.source.address, self.target.address
        if (self.folder / RECORD).exists():
            record = self.record
            now = {**asdict(self.asked), "source": str(source), "target": str(target)}
            before = {**asdict(record.asked), "source": record.source, "target": record.target}
            if self.asked.given:
                now["calibrator"] = map_digest(load_calibrator(self.asked.calibrator).map)
                before["calibrator"] = record.calibrator
            jobs.require_plan(self.folder, "reindex job", jobs.changes(before, now))
            return
        jobs.require_own(self.folder / RECORD, "reindex job", OWN)
        same, facts = (target.place, target.name) == (source.place, source.name), self.source.facts
        if self.target.exists():
            why = "In place, a killed job would leave vectors of two spaces in it. " if same else ""
            raise DataError(f"{target} is there already, and not by the job of {self.folder}. {why}Name a new one.")
        if not same and (target.vector not in (None, facts.vector) or target.id not in (None, facts.id)):
            columns = f"?vector={facts.vector}&id={facts.id}"
            raise UsageError(f"{target} should name the columns as its source does: {columns}. Leave them out.")

    def begin(self, encoder: SentenceEncoder | None) -> AbstractCalibrator:
        """Begin the job, or go on with it; returns the calibrator.

        Raises:
            DataError: If rows, calibrator and encoder do not belong together.
        """
        jobs.begin_job(self.folder / RECORD, "reindex job", OWN, lambda: asdict(self._fitted(encoder)))
        fitted = load_calibrator(self.folder / CALIBRATOR)
        with jobs.locked(self.folder / jobs.PLAN_LOCK, "writes the query encoder"):
            if encoder is not None and not (self.folder / QUERY_ENCODER).is_dir():
                whole, aside = CalibratedEncoder(encoder, fitted), self.folder / f".{QUERY_ENCODER}"
                write_export(whole, aside, "sentence-transformers")
                golden_distance(aside)  # loads it once, as other tools do
                aside.rename(self.folder / QUERY_ENCODER)
        return fitted

    def _fitted(self, encoder: SentenceEncoder | None) -> ReindexRecord:
        """The plan of a new job, once its calibrator is fitted."""
        facts, address = self.source.facts, self.source.address
        if not (facts.n and facts.dim):
            raise DataError(f"{address} holds no vectors: {facts.n} rows of width {facts.dim}. Name a filled one.")
        if encoder is not None and encoder.calibrator is not None:
            raise UsageError(
                "The encoder that made the vectors is wanted, but this one is calibrated. Name the raw one."
            )
        asked, parts = self.asked, self._parts()
        given = load_calibrator(asked.calibrator) if asked.given else None
        for what, dim in (("the encoder", encoder and encoder.dim), (asked.calibrator, given and given.dim_in)):
            if dim not in (None, facts.dim):
                raise DataError(
                    f"{address} holds vectors of size {facts.dim}, but {what} has {dim}. Were both made with one "
                    "encoder and pooling?"
                )
        fitted = given or fitted_to(self.source, parts, asked, self.progress)
        fitted.save(self.folder / CALIBRATOR)
        return ReindexRecord(str(address), str(self.target.address), facts.n, parts, asked, map_digest(fitted.map))

    def make_parts(self, fitted: AbstractCalibrator) -> int:
        """Move what is not there yet, together with other processes; returns how many rows were there already."""
        record, job = self.record, self.job
        there = job.marks().values()
        for mark in there:
            refuse_rows(self.source, mark.left_out)

        def make(number: int) -> None:
            rows = self.source.read(part := record.parts[number])
            made, bad = calibrated(self.source, rows, fitted)
            if not self.target.exists():  # a job that is refused before leaves nothing
                with jobs.locked(self.folder / jobs.PLAN_LOCK, "makes the new collection"):
                    if not self.target.exists():
                        self.target.create(self.source, fitted.dim_out, record.calibrator)
            self.target.upsert(self.source, part, made)
            job.set_mark(number, rows=len(rows), left_out=bad, digest=part_digest(rows))
            advance(len(rows))

        with bar(record.n, "calibrating", self.progress, "rows") as advance:
            job.work(make, advance)
        return sum(mark.rows for mark in there)

    @working("building the index, and verifying the new collection")
    def finish(self, fitted: AbstractCalibrator) -> None:
        """Build the index, and verify the target.

        Raises:
            DataError: If the source was changed, or the target does not hold what it should.
        """
        record, marks, draw = self.record, self.job.marks().values(), random.Random(str(self.target.address))
        if record.finished:
            return
        self.target.finish(self.source)
        parts, sample, digest = self._parts(), list[Id](), sum(mark.digest for mark in marks)
        for rows in map(self.source.read, parts):
            digest -= part_digest(rows)
            sample += draw.sample(rows.ids, min(len(rows), -(-SAMPLE // len(parts))))
        if digest % DIGESTS:
            raise DataError(
                f"{self.source.address} holds other ids or vectors than those that are calibrated in "
                f"{self.target.address}. Stop what writes there, and reindex into another new collection."
            )
        n, least = self.target.facts.n, record.n - sum(len(mark.left_out) for mark in marks)
        if not least <= n <= record.n:
            raise DataError(
                f"{self.target.address} should hold {least:,} rows, but holds {n:,}. Name a new collection."
            )
        sample = draw.sample(sample, min(len(sample), SAMPLE))
        verified, distance = verify_target(self.source, self.target, sample, fitted)
        switch = self.source.switch(self.target)
        done = replace(record, finished=True, verified=verified, distance=distance, switch=switch)
        write_record(self.folder / RECORD, asdict(done))
