"""Where the vectors of a collection are from, before it is opened: the folder of ``bertflow reindex`` says it.

reindex.json    source and target          calibrator/    what the rows went through
query-encoder/  embeds questions for the target, where the job was given a model
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError, require_no_secret
from bertflow.opening import load
from bertflow.records import read_record
from bertflow.results import AbstractResult
from bertflow.retrieval.address import parse_address
from bertflow.retrieval.collections import CollectionFacts, open_collection

RECORD, QUERY_ENCODER, CALIBRATOR = "reindex.json", "query-encoder", "calibrator"


class OriginRecord(TypedDict):
    """What is read of ``reindex.json``."""

    source: str
    target: str
    finished: bool


@dataclass(frozen=True)
class Origin:
    """Where a collection is, and what is known of how its rows were made.

    Attributes:
        address: The collection.
        source: The collection of the raw rows, if it is known.
        folder: Folder of the job that made it, if that was named.
    """

    address: str
    source: str | None = None
    folder: Path | None = None

    @classmethod
    def find(cls, place: str | Path) -> "Origin":
        """Read the folder of a job, or take an address.

        Raises:
            UsageError: If an address holds a password or a key.
            DataError: If the job's record is damaged, or the job is not finished.
        """
        if not (Path(place) / RECORD).exists():
            require_no_secret(str(place))
            return cls(str(place))
        record = read_record(Path(place) / RECORD, OriginRecord, "reindex job", "Run `bertflow reindex` again.")
        if not record["finished"]:
            raise DataError(
                f"The job in {place} is not finished. Run the same `bertflow reindex` again to continue it."
            )
        return cls(record["target"], record["source"], Path(place))

    @property
    def query_encoder(self) -> str | None:
        """The encoder that the job wrote, if it did."""
        own = self.folder and self.folder / QUERY_ENCODER
        return str(own) if own and own.exists() else None

    def encoder_name(self, model: str | Path | None) -> str | Path:
        """The encoder for questions: the one that was given, else the job's.

        Raises:
            UsageError: If there is none.
        """
        name = self.query_encoder if model is None else model
        if name is None:
            raise UsageError(
                f"{self.folder or self.address} does not say which encoder made its vectors. Give it with --model, or "
                "name the folder of a `bertflow reindex` that was given a model."
            )
        return name

    def open_encoder(self, model: str | Path | None, device: str | None = None) -> SentenceEncoder:
        """The encoder for questions, opened; a raw encoder gets the calibrator of the job."""
        encoder = load(self.encoder_name(model), device=device)
        if self.folder is None or encoder.calibrator is not None:
            return encoder
        return CalibratedEncoder(encoder, load_calibrator(self.folder / CALIBRATOR))

    def how_to(self, action: str) -> str:
        """What a user does instead, for an action that changes the file of an index."""
        address = parse_address(self.address)
        new = replace(address, name=f"{address.name}-new")
        encoder = repr(str(self.folder / QUERY_ENCODER)) if self.folder else "ENCODER"
        do = (
            f"Change its rows with the database's own client, with embeddings by bertflow.load({encoder})"
            ".encode_document(texts)"
        )
        if action == "recalibrate":
            do = f"Make a new one: bertflow reindex '{self.source or address}' '{new}' --calibrator CALIBRATOR"
        return f"{address} is a collection of a database, in which nothing is changed. {do}."


def is_collection(place: object) -> bool:
    """Whether this names a collection of a database: by its address, or by the folder of the job that made it."""
    if not isinstance(place, str | Path):
        return False
    address = re.match(r"[a-z]{2,}:", str(place)) is not None  # one letter would be a drive
    return (Path(place) / RECORD).exists() or (address and not Path(place).exists())


def fact_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """A line a fact that is known, also for each fact of a fact."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from fact_lines(value)
        elif value or value == 0:
            yield f"{name}: {value}"


@dataclass(frozen=True, repr=False)
class CollectionInfo(AbstractResult):
    """What is in a collection of a database.

    Attributes:
        address: Where it is.
        facts: What the database says of it.
        source: Where its raw vectors are, if it is known.
        encoder: The encoder for questions, if it is known.
    """

    address: str
    facts: CollectionFacts
    source: str | None
    encoder: str | None

    def parts(self) -> Iterator[str]:
        """A line a fact."""
        yield from fact_lines(self.as_dict())

    @classmethod
    def of(cls, place: str | Path) -> "CollectionInfo":
        """Ask the database; needs no encoder.

        Raises:
            DataError: If there is no such collection.
        """
        origin = Origin.find(place)
        with open_collection(origin.address) as collection:
            return cls(origin.address, collection.facts, origin.source, origin.query_encoder)
