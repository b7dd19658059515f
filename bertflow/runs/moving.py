"""How the rows of a collection are moved into a calibrated one: a job in a folder.

    reindex.json      source, target, the parts of the source, and how the calibrator was asked for
    calibrator/       fitted to the rows of the source, or a copy of the one that was given
    query-encoder/    embeds queries for the target; sentence-transformers and bertflow.load open it
    done/12.json      part 12 is written: how many rows it had, their digest, and which were left out

A part is read, calibrated and written, and then noted. The rows of a part that was written but not noted are there once
all the same (``AbstractCollection.write``). So a job can be killed at any moment, and several processes can share it:
each locks the part that it moves. The source is only read; in the end its digest is that of its parts.
"""

import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator, load_calibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import map_digest
from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.export import export_encoder
from bertflow.progress import Advance, bar, place, working
from bertflow.records import Count, read_record, write_record
from bertflow.retrieval.collections import AbstractCollection, Id, Part, Switch
from bertflow.retrieval.origin import CALIBRATOR, QUERY_ENCODER, RECORD
from bertflow.runs.collected import DIGESTS, Asked, calibrated, fitted_to, part_digest, refuse_rows, verify_target
from bertflow.store.build import POLL, locked

DONE = "done"
PART_BYTES = 2**25
"""Size of the raw vectors of a part, by default."""


@dataclass(frozen=True)
class ReindexRecord:
    """What ``reindex.json`` holds.

    Attributes:
        source: Address of the source; None after the switch, when its rows have another name.
        target: Address of the calibrated rows.
        n: Rows of the source when the job began.
        parts: The source, in parts.
        asked: How the calibrator was asked for.
        calibrator: Digest of its map.
        finished: Whether the target is complete, indexed and verified.
        verified: How many rows were read back.
        distance: Largest distance of their directions, as unit vectors, from what they should be.
        format: Version of the form.
    """

    source: str | None
    target: str
    n: Count
    parts: list[dict[str, Any]]
    asked: Asked
    calibrator: str
    finished: bool = False
    verified: Count = 0
    distance: float = 0.0
    format: Literal[1] = 1


@dataclass(frozen=True)
class DoneRecord:
    """What is noted of a part: its rows in the source, their digest, and id and reason of those that were left out."""

    rows: Count
    digest: Count
    bad: list[tuple[Id, str]]


@dataclass
class Job:
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

    def _write(self, record: ReindexRecord) -> None:
        write_record(self.folder / RECORD, asdict(record))

    def _done(self, number: int) -> Path:
        return self.folder / DONE / f"{number}.json"

    @property
    def _notes(self) -> list[DoneRecord]:
        return [_noted(path) for path in (self.folder / DONE).glob("*.json")]

    @property
    def left_out(self) -> int:
        """How many rows of the source are not in the target."""
        return sum(len(one.bad) for one in self._notes)

    @property
    def _parts(self) -> list[Part]:
        """The source as it is now, in parts."""
        return self.source.parts(self.part_rows or max(1, PART_BYTES // (4 * self.source.facts.dim)))

    def require_new_or_own(self) -> None:
        """Refuse a folder or a target that is not of this job.

        Raises:
            UsageError: If the folder holds something else, or the target is the source.
            DataError: If the target exists, or the job is one of something else.
        """
        own, target = {RECORD, DONE, CALIBRATOR, QUERY_ENCODER}, self.target.address
        if (self.folder / RECORD).exists():
            self._require_same()
            return
        others = [path.name for path in self.folder.glob("*") if path.name not in own and path.name[0] != "."]
        if others:
            raise UsageError(f"{self.folder} should become the folder of the job, but holds {others[0]}. Name another.")
        if self.target.exists():
            same = (target.place, target.name) == (self.source.address.place, self.source.address.name)
            why = "In place, a killed job would leave vectors of two spaces in it. " if same else ""
            raise DataError(f"{target} is there already, and not by the job of {self.folder}. {why}Name a new one.")

    def _require_same(self) -> None:
        record = self.record
        if record.source is None:
            raise UsageError(
                f"The job of {self.folder} is finished and switched. For another one, name a new --output."
            )
        now = {"source": str(self.source.address), "target": str(self.target.address)}
        before = {"source": record.source, "target": record.target}
        if self.asked.given:
            now["calibrator"] = map_digest(load_calibrator(self.asked.calibrator).map)
            before["calibrator"] = record.calibrator
        else:
            now, before = now | asdict(self.asked), before | asdict(record.asked)
        if changed := [f"{key} {before[key]!r} (now {now[key]!r})" for key in now if now[key] != before[key]]:
            raise DataError(f"{self.folder} holds a job of something else: {', '.join(changed)}. Name a new --output.")

    def begin(self, encoder: SentenceEncoder | None) -> AbstractCalibrator:
        """Begin the job, or go on with it; returns the calibrator.

        Raises:
            DataError: If rows, calibrator and encoder do not belong together.
        """
        if (self.folder / RECORD).exists():
            fitted = load_calibrator(self.folder / CALIBRATOR)
            self._write_encoder(encoder, fitted)
        else:
            fitted = self._new(encoder)
        if not (self.target.exists() or self.record.finished):
            if any((self.folder / DONE).glob("*.json")):
                raise DataError(
                    f"{self.target.address} is gone, but {self.folder} says it is begun. Delete the folder."
                )
            self.target.create_like(self.source, fitted.dim_out, self.record.calibrator)
        return fitted

    def _new(self, encoder: SentenceEncoder | None) -> AbstractCalibrator:
        facts, address = self.source.facts, self.source.address
        if not (facts.n and facts.dim):
            raise DataError(f"{address} holds no vectors: {facts.n} rows of width {facts.dim}. Name a filled one.")
        if encoder is not None and encoder.calibrator is not None:
            raise UsageError(
                "The encoder that made the vectors is wanted, but this one is calibrated. Name the raw one."
            )
        if encoder is not None and encoder.dim != facts.dim:
            raise DataError(
                f"{address} holds vectors of size {facts.dim}, but the encoder makes {encoder.dim}. "
                "Name the one that made them."
            )
        parts = self._parts
        if self.asked.given:
            fitted = load_calibrator(self.asked.calibrator)
        else:
            fitted = fitted_to(self.source, parts, self.asked, self.progress)
        if fitted.dim_in != facts.dim:
            raise DataError(
                f"{self.asked.calibrator} expects embeddings of size {fitted.dim_in}, but {address} "
                f"holds {facts.dim}. Were both made with the same encoder and pooling?"
            )
        self._write_encoder(encoder, fitted)
        fitted.save(self.folder / CALIBRATOR)
        addresses = str(address), str(self.target.address)
        self._write(ReindexRecord(*addresses, facts.n, parts, self.asked, map_digest(fitted.map)))
        return fitted

    def _write_encoder(self, encoder: SentenceEncoder | None, fitted: AbstractCalibrator) -> None:
        if encoder is not None and not (self.folder / QUERY_ENCODER).is_dir():
            whole, aside = CalibratedEncoder(encoder, fitted), self.folder / f".{QUERY_ENCODER}"
            export_encoder(whole, aside, "sentence-transformers", progress=self.progress)
            aside.rename(self.folder / QUERY_ENCODER)

    def move(self, fitted: AbstractCalibrator) -> int:
        """Move what is not there yet, together with other processes; returns how many rows were there already."""
        parts, (rank, world) = self.record.parts, place()
        noted = {number: _noted(self._done(number)) for number in range(len(parts)) if self._done(number).exists()}
        for one in noted.values():
            refuse_rows(self.source, one.bad)
        kept = sum(one.rows for one in noted.values())
        left = sorted(set(range(len(parts))) - noted.keys(), key=lambda number: ((number - rank) % world, number))
        with bar(self.record.n, "calibrating", self.progress, "rows") as advance:
            advance(kept)
            while left:
                busy = [number for number in left if not self._move(number, parts[number], fitted, advance)]
                if len(busy) == len(left):
                    time.sleep(POLL)
                left = busy
        return kept

    def _move(self, number: int, part: dict[str, Any], fitted: AbstractCalibrator, advance: Advance) -> bool:
        """Move one part; False if another process does."""
        with locked(self.folder / f".lock.{number}") as held:
            if not held:
                return False
            if not self._done(number).exists():
                rows = self.source.read(part)
                made, bad = calibrated(self.source, rows, fitted)
                if len(made):
                    self.target.write(part, made)
                self._done(number).parent.mkdir(exist_ok=True)
                write_record(self._done(number), asdict(DoneRecord(len(rows), part_digest(rows), bad)))
            advance(_noted(self._done(number)).rows)
        return True

    @working("building the index, and verifying the new collection")
    def finish(self, fitted: AbstractCalibrator, switching: bool) -> None:
        """Build the index, and verify the target; if that was done, ask again whether the source is the same.

        Args:
            fitted: The calibrator.
            switching: Whether the target will take the place of the source.

        Raises:
            DataError: If the source was changed, or the target does not hold what it should.
        """
        record = self.record
        if record.finished:
            # Killed in a switch, an alias leads from the source to the target already.
            if switching and self.source.exists() and self.source.facts.calibrator != record.calibrator:
                self._require_unchanged()
            return
        self.target.finish(self.source)
        self._require_unchanged()
        least = record.n - self.left_out
        verified, distance = verify_target(self.source, self.target, record.parts, range(least, record.n + 1), fitted)
        self._write(replace(record, finished=True, verified=verified, distance=distance))

    def _require_unchanged(self) -> None:
        n, before = self.source.facts.n, self.record.n
        if n != before:
            raise DataError(
                f"{self.source.address} has {n:,} rows, but had {before:,} when the job began, and "
                f"{self.target.address} holds those. Stop what writes there, and reindex into another new collection."
            )
        moved = sum(one.digest for one in self._notes)
        if (moved - sum(part_digest(self.source.read(part)) for part in self._parts)) % DIGESTS:
            raise DataError(
                f"{self.source.address} holds other ids or vectors than those that are calibrated in "
                f"{self.target.address}. Stop what writes there, and reindex into another new collection."
            )

    def drop(self) -> None:
        """Remove what a refused job has made, so that another one can begin; once a part is written, it can go on."""
        if any((self.folder / DONE).glob("*.json")) or any(self.folder.glob(".lock.[0-9]*")):
            return
        with suppress(BertflowError):  # of a database that is away: the job can go on, too
            if self.target.exists() and self.target.facts.calibrator == self.record.calibrator:
                self.target.drop(self.source)
            shutil.rmtree(self.folder / QUERY_ENCODER, ignore_errors=True)  # of this calibrator
            (self.folder / RECORD).unlink(missing_ok=True)

    def switch(self, asked: bool) -> Switch:
        """The commands of the switch; done if it is asked for.

        Raises:
            UsageError: If the database cannot do it.
        """
        way = self.source.switch(self.target)
        if not asked:
            return way
        if way.apply is None:
            raise UsageError(
                f"{self.target.address} is ready, but cannot take another name. Instead: {way.forward[0]}."
            )
        way.apply()
        self._write(replace(self.record, source=None, target=way.address))
        return way


def _noted(path: Path) -> DoneRecord:
    return read_record(path, DoneRecord, "note of a reindex job", "Delete it: the part is moved again.")
