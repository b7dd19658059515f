"""An index as one SQLite file, and the best answers in it for a question, exactly.

    answers   number, id                              one row an answer
    phrases   number, answer, text, raw, calibrated   its own text first, then its past questions
    facts     key, value (JSON)                       identity, sizes, revision
    chunks    phrase, chunk, start, stop, whole       of an index that splits its answers, which then has format 2

A write is one transaction of SQLite: a process that is killed during one leaves the old state, and many processes may
read while one writes. The numbers of phrases are never used twice, so that what is derived from them can be brought up
to date by comparing numbers.

An answer has several phrases; its score is the largest cosine of the question with one of them. Scores are computed in
float32, a block of questions at a time, and the k-th largest is found without sorting. Phrases within the rounding
error of float32 of it are candidates; they are scored again in float64, where equal embeddings have equal scores, and
sorted by score, then by id.

    float32 (q, n) --> best phrase of each answer (q, answers) --> candidates --> float64, sorted

Source: https://www.sqlite.org/atomiccommit.html for what happens when a write is cut off.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bertflow.data.corpus import Answer
from bertflow.errors import DataError
from bertflow.similarity import unit_rows

FORMAT, CHUNKED = 1, 2
"""Of an index that keeps its answers whole, and of one that keeps their chunks."""
APPLICATION = 0x62666169
"""Marks the file as an index of answers: "bfai"."""
WAIT = 60
"""Seconds that one process waits for another to finish its write."""
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL);
CREATE TABLE phrases (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    answer INTEGER NOT NULL REFERENCES answers (number) ON DELETE CASCADE,
    text TEXT NOT NULL,
    raw BLOB NOT NULL,
    calibrated BLOB
);
CREATE INDEX phrases_of_answer ON phrases (answer, number);
"""
CHUNKS = """TABLE chunks (phrase INTEGER PRIMARY KEY REFERENCES phrases (number) ON DELETE CASCADE,
    chunk INTEGER, start INTEGER, stop INTEGER, whole TEXT);"""
"""Which chunk of its answer a phrase is, and where; the first one has the whole text. Empty in other indexes."""
SPLIT = f"PRAGMA user_version = {CHUNKED}; CREATE {CHUNKS}"
INSERT = "INSERT INTO phrases (answer, text, raw, calibrated) VALUES (?, ?, ?, ?)"
VIEW = """
CREATE TEMP VIEW known AS
SELECT phrases.number, answer, id, text, raw, chunk, start, stop,
    (SELECT coalesce(whole, text) FROM phrases LEFT JOIN chunks ON phrase = number
     WHERE answer = answers.number ORDER BY number LIMIT 1) AS own_text
FROM phrases JOIN answers ON answer = answers.number LEFT JOIN chunks ON phrase = phrases.number
"""
"""A row a phrase: its number, the id of its answer, its text, embedding and chunk, and the text of the answer."""
CELLS = 2**25
"""Scores computed at a time: 128 MB."""
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""A cosine of d coordinates in float32 has an error of less than d times this."""
Phrase: TypeAlias = tuple[str, int, tuple[int, int, int, str | None] | None]
"""A text and the row of its embedding; of a chunk its number, start and stop, and for the first one the whole text."""
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating]


class Storage:
    """The file of one index; use it from one thread.

    Args:
        path: An existing file.

    Raises:
        DataError: If it is missing, or is not an index.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"An index was expected at {path}, but there is none. Build it first.")
        self.path = path
        self._connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
        try:
            self._connection.execute("PRAGMA foreign_keys = ON")
            marks = tuple(self._value(f"PRAGMA {name}") for name in ("application_id", "user_version"))
        except sqlite3.DatabaseError as error:
            self.close()
            raise DataError(f"{path} is not an index of answers, or is damaged: {error}. Build it again.") from None
        if marks not in ((APPLICATION, FORMAT), (APPLICATION, CHUNKED)):
            self.close()
            raise DataError(f"{path} is not an index of format {FORMAT} or {CHUNKED}. Is it by a later bertflow?")
        if marks[1] == FORMAT:
            self._connection.execute(f"CREATE TEMP {CHUNKS}")
        self._connection.execute(VIEW)

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Any]) -> Self:
        """Turn an empty file into an empty index."""
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(SCHEMA + ("" if "chunks" not in facts else SPLIT))
        storage = cls(path)
        with storage.transaction():
            storage.set_facts({"name": uuid.uuid4().hex, "revision": 0, **facts})
        return storage

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE", what: str = "written") -> Iterator[None]:
        """Everything that is written inside becomes visible at once at the end, or not at all.

        Raises:
            DataError: If another process keeps writing or has just added the same id, or the disk is full.
        """
        try:
            self._connection.execute(begin)
            yield
            self._connection.execute("COMMIT")
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            raise DataError(f"{self.path} could not be {what}: {error}. It is as it was; try again.") from None
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that is read inside is of one moment, whatever others write.

        Raises:
            DataError: If another process keeps writing.
        """
        return self.transaction("BEGIN", "read")

    def facts(self) -> dict[str, Any]:
        """All facts about the index."""
        return {key: json.loads(value) for key, value in self._connection.execute("SELECT key, value FROM facts")}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Change some facts, and increase the revision."""
        rows = [(key, json.dumps(value, sort_keys=True)) for key, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)
        self._connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'revision'")

    def revision(self) -> int:
        """A number that every write by any process changes."""
        return self._value("SELECT value FROM facts WHERE key = 'revision'")

    def insert(self, name: str, phrases: Iterable[Phrase], raw: Float32, calibrated: Float32 | None) -> None:
        """Add an answer with its phrases, whose embeddings are rows of ``raw`` and ``calibrated``."""
        answer = self._connection.execute("INSERT INTO answers (id) VALUES (?)", (name,)).lastrowid
        for text, row, chunk in phrases:
            values = (answer, text, _blob(raw[row]), None if calibrated is None else _blob(calibrated[row]))
            number = self._connection.execute(INSERT, values).lastrowid
            if chunk:
                self._connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (number, *chunk))

    def delete(self, names: Iterable[str]) -> None:
        """Remove answers and their phrases."""
        self._connection.executemany("DELETE FROM answers WHERE id = ?", [(name,) for name in names])

    def recalibrate(self, numbers: Iterable[int], calibrated: Iterable[Float32 | None]) -> None:
        """Replace the calibrated embeddings of some phrases; None removes them."""
        rows = [(_blob(row), number) for number, row in zip(numbers, calibrated, strict=True)]
        self._connection.executemany("UPDATE phrases SET calibrated = ? WHERE number = ?", rows)

    def count(self, table: str) -> int:
        """Rows of ``answers`` or ``phrases``."""
        return self._value(f"SELECT count(*) FROM {table}")

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of some ids that exist."""
        found = {name for (name,) in self._among("SELECT id FROM answers WHERE id IN", names)}
        return [name for name in names if name in found]

    def answers(self) -> Iterator[Answer]:
        """All answers, in the order in which they were added."""
        rows = self._connection.execute("SELECT id, own_text, text, chunk FROM known ORDER BY answer, number")
        for (name, own), group in groupby(rows, key=itemgetter(0, 1)):
            yield Answer(name, own, tuple(text for *_, text, chunk in group if chunk is None and text != own))

    def raw_of(self, names: Sequence[str]) -> dict[str, Float32]:
        """Each phrase of some answers, chunks left out, and its raw embedding."""
        rows = self._among("SELECT text, raw FROM known WHERE chunk IS NULL AND id IN", names)
        return {text: np.frombuffer(data, dtype="<f4") for text, data in rows}

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of all phrases, rising."""
        rows = self._connection.execute("SELECT number FROM phrases ORDER BY number")
        return np.fromiter((number for (number,) in rows), np.int64)

    def vectors(self, numbers: Sequence[int], raw: bool = False) -> Float32:
        """Embeddings (n, dim) of some phrases, in the order given; calibrated ones if there are any and not ``raw``."""
        column = "raw" if raw else "coalesce(calibrated, raw)"
        found = dict(self._among(f"SELECT number, {column} FROM phrases WHERE number IN", numbers))
        return np.stack([np.frombuffer(found[number], dtype="<f4") for number in numbers])

    def phrases(self, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """What a ``Hit`` says of some phrases, by their number, without the score."""
        rows = self._among("SELECT number, id, own_text, text, chunk, start, stop FROM known WHERE number IN", numbers)
        return {row[0]: row[1:] for row in rows}

    def owners(self) -> Iterator[tuple[int, str]]:
        """The number of each phrase and the id of its answer, in order of the ids."""
        yield from self._connection.execute("SELECT number, id FROM known ORDER BY id, number")

    def _value(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    def _among(self, query: str, values: Iterable[Any]) -> sqlite3.Cursor:
        """Rows of a query that ends in IN, for any number of values."""
        return self._connection.execute(f"{query} (SELECT value FROM json_each(?))", (json.dumps(list(values)),))


def _blob(row: Float32 | None) -> bytes | None:
    """An embedding as it is stored in the file."""
    return None if row is None else row.astype("<f4").tobytes()


@dataclass(frozen=True)
class Phrases:
    """All phrases of an index, the answers in order of their ids.

    Attributes:
        numbers: The number of each phrase; (n,).
        starts: Where the phrases of each answer start; (answers,).
        names: The ids of the answers, rising.
        unit: The embeddings, of length one; (n, dim).
    """

    numbers: NDArray[np.int64]
    starts: NDArray[np.intp]
    names: tuple[str, ...]
    unit: Floats

    @classmethod
    def read(cls, storage: Storage, raw: bool = False, dtype: type[np.floating] = np.float32) -> "Phrases":
        """Read all of them into memory.

        Args:
            storage: The index.
            raw: Whether to read the embeddings without the calibrator.
            dtype: Data type of ``unit``.
        """
        numbers, owners = zip(*storage.owners(), strict=True) if storage.count("phrases") else ((), ())
        names, starts = np.unique(np.array(owners, dtype=object), return_index=True)
        unit = unit_rows(storage.vectors(numbers, raw)).astype(dtype) if numbers else np.empty((0, 0), dtype)
        return cls(np.array(numbers, dtype=np.int64), starts, tuple(names), unit)

    def scores(self, questions: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
        """Which questions (q, dim), their cosines with all phrases (q, n), and the best of each answer (q, answers)."""
        size = max(1, CELLS // max(1, len(self.numbers)))
        for start in range(0, len(questions), size):
            block = slice(start, min(start + size, len(questions)))
            cosines = questions[block].astype(self.unit.dtype) @ self.unit.T
            yield block, cosines, np.maximum.reduceat(cosines, self.starts, axis=1)

    def ranks(self, questions: Floats, right: Sequence[frozenset[str]]) -> list[NDArray[np.int64]]:
        """Ranks of the right answers of each question (q, dim), rising, from 1; of equal scores wrong ones first."""
        place = {name: at for at, name in enumerate(self.names)}
        found = []
        for block, _, best in self.scores(unit_rows(questions)):
            for row, names in zip(best, right[block], strict=True):
                mine = np.array([place[name] for name in names])
                wrong, falling = np.sort(np.delete(row, mine)), np.sort(row[mine])[::-1]
                found.append(len(wrong) - np.searchsorted(wrong, falling) + np.arange(1, len(mine) + 1))
        return found


class Search(Protocol):
    """Finds the phrases that the best answers may have; the rows of ``searching.ENGINES`` are such."""

    def refresh(self, storage: Storage) -> None:
        """Read what is stored now."""
        ...

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """For each question (q, dim) of length one the numbers of phrases, among them those of the best k answers."""
        ...


class ExactSearch:
    """All cosines, in memory: exact, and fast enough for tens of thousands of phrases."""

    _phrases: Phrases

    def refresh(self, storage: Storage) -> None:
        """Read all embeddings again."""
        self._phrases = Phrases.read(storage)

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """The phrases that come within rounding of the k-th best answer."""
        phrases, found = self._phrases, list[Sequence[int]]()
        for _, cosines, best in phrases.scores(questions):
            last = -min(k, best.shape[1])
            thresholds = np.partition(best, last, axis=1)[:, last] - phrases.unit.shape[1] * ROUNDING
            found += [phrases.numbers[row >= least].tolist() for row, least in zip(cosines, thresholds, strict=True)]
        return found


@dataclass(frozen=True)
class Hit:
    """An answer that was found.

    Attributes:
        id: Id of the answer.
        score: Cosine of the question with the phrase that matched best, in [-1, 1].
        text: The answer.
        matched: The phrase: the answer's own text or a chunk of it, or one of its past questions.
        chunk: Number of that chunk, from 0; None if it is none.
        start, stop: Where the chunk stands in the text: ``text[start:stop]``.
    """

    id: str
    score: float
    text: str
    matched: str
    chunk: int | None = None
    start: int | None = None
    stop: int | None = None


def rank(storage: Storage, question: Float64, candidates: Sequence[int], k: int) -> list[Hit]:
    """The best k answers among some candidates, by score, then by id; ``question`` (dim,) has length one."""
    unit = unit_rows(storage.vectors(candidates))
    # Row by row, not as a matrix product, whose rounding depends on where a row stands.
    scores = (unit * question).sum(1)
    about = storage.phrases(candidates)
    best: dict[str, tuple[float, int]] = {}
    for number, score in zip(candidates, scores.tolist(), strict=True):
        name = about[number][0]
        best[name] = max(best.get(name, (-np.inf, 0)), (score, -number))
    hits = [Hit(name, score, *about[-number][1:]) for name, (score, number) in best.items()]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]
