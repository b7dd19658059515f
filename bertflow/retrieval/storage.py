"""An index as one SQLite file: the answers, their phrases, and the raw and calibrated embedding of each phrase.

    answers   number, id                              one row an answer
    phrases   number, answer, text, raw, calibrated   its own text first, then its past questions
    facts     key, value (JSON)                       identity, sizes, revision

A write is one transaction of SQLite: a process that is killed during one leaves the old state, and many processes may
read while one writes. The numbers of phrases are never used twice, so that what is derived from them can be brought up
to date by comparing numbers.

Source: https://www.sqlite.org/atomiccommit.html for what happens when a write is cut off.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.data.answers import Answer
from bertflow.errors import DataError

FORMAT = 1
APPLICATION = 0x62666169
"""Marks the file as an index of answers: "bfai"."""
WAIT = 60
"""Seconds that one process waits for another to finish its write."""
AT_ONCE = 500
"""Values in one SQL statement; SQLite allows 999 everywhere."""
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
VIEW = """
CREATE TEMP VIEW known AS
SELECT phrases.number, id, text, raw,
    phrases.number = (SELECT min(number) FROM phrases WHERE answer = answers.number) AS own_text
FROM phrases JOIN answers ON answer = answers.number
"""
"""A row a phrase: its number, the id of its answer, its text and embedding, and whether it is the answer itself."""
Float32 = NDArray[np.float32]


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
            marks = tuple(self._one(f"PRAGMA {name}")[0] for name in ("application_id", "user_version"))
        except sqlite3.DatabaseError as error:
            self.close()
            raise DataError(f"{path} is not an index of answers, or is damaged: {error}. Build it again.") from None
        if marks != (APPLICATION, FORMAT):
            self.close()
            raise DataError(f"{path} is not an index of format {FORMAT}. Was it written by a later bertflow?")
        self._connection.execute(VIEW)

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Any]) -> Self:
        """Turn an empty file into an empty index."""
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(SCHEMA)
        storage = cls(path)
        with storage.transaction():
            storage.set_facts({"name": uuid.uuid4().hex, "revision": 0, **facts})
        return storage

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that is written inside becomes visible at once at the end, or not at all.

        Raises:
            DataError: If another process keeps writing or has just added the same id, or the disk is full.
        """
        with self._between("BEGIN IMMEDIATE", "written"):
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read inside is of one moment, whatever others write.

        Raises:
            DataError: If another process keeps writing.
        """
        with self._between("BEGIN", "read"):
            yield

    @contextmanager
    def _between(self, begin: str, what: str) -> Iterator[None]:
        try:
            self._connection.execute(begin)
            yield
            self._connection.execute("COMMIT")
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            raise DataError(f"{self.path} could not be {what}: {error}. It is as it was; try again.") from None
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def facts(self) -> dict[str, Any]:
        """All facts about the index."""
        return {key: json.loads(value) for key, value in self._rows("SELECT key, value FROM facts")}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Change some facts, and increase the revision."""
        rows = [(key, json.dumps(value, sort_keys=True)) for key, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)
        self._connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'revision'")

    def revision(self) -> int:
        """A number that every write by any process changes."""
        return int(self._one("SELECT value FROM facts WHERE key = 'revision'")[0])

    def insert(self, answer: Answer, raw: Mapping[str, Float32], calibrated: Mapping[str, Float32]) -> None:
        """Add an answer with the embeddings of its phrases."""
        number = self._connection.execute("INSERT INTO answers (id) VALUES (?)", (answer.id,)).lastrowid
        rows = [(number, text, blob(raw[text]), blob(calibrated.get(text))) for text in answer.phrases]
        self._connection.executemany("INSERT INTO phrases (answer, text, raw, calibrated) VALUES (?, ?, ?, ?)", rows)

    def delete(self, names: Iterable[str]) -> None:
        """Remove answers and their phrases."""
        self._connection.executemany("DELETE FROM answers WHERE id = ?", [(name,) for name in names])

    def recalibrate(self, numbers: Sequence[int], calibrated: Float32 | None) -> None:
        """Replace the calibrated embeddings of some phrases; None removes them."""
        blobs = [None] * len(numbers) if calibrated is None else [blob(row) for row in calibrated]
        rows = list(zip(blobs, numbers, strict=True))
        self._connection.executemany("UPDATE phrases SET calibrated = ? WHERE number = ?", rows)

    def count(self, table: str) -> int:
        """Rows of ``answers`` or ``phrases``."""
        return int(self._one(f"SELECT count(*) FROM {table}")[0])

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of some ids that exist."""
        found = {name for (name,) in self._among("SELECT id FROM answers WHERE id IN", names)}
        return [name for name in names if name in found]

    def answers(self) -> Iterator[Answer]:
        """All answers, in the order in which they were added."""
        rows = self._rows("SELECT id, text FROM known JOIN answers USING (id) ORDER BY answers.number, known.number")
        for name, group in groupby(rows, key=itemgetter(0)):
            own, *questions = (text for _, text in group)
            yield Answer(name, own, tuple(questions))

    def raw_of(self, names: Sequence[str]) -> dict[str, Float32]:
        """Each phrase of some answers, and its raw embedding."""
        rows = self._among("SELECT text, raw FROM known WHERE id IN", names)
        return {text: np.frombuffer(data, dtype="<f4") for text, data in rows}

    def numbers(self) -> NDArray[np.int64]:
        """The numbers of all phrases, rising."""
        return np.fromiter((number for (number,) in self._rows("SELECT number FROM phrases ORDER BY number")), np.int64)

    def owners(self) -> tuple[NDArray[np.int64], list[str]]:
        """The number of each phrase and of its answer (n, 2), in order of the answers' ids; and the ids."""
        names: dict[str, int] = {}
        pairs = self._rows("SELECT number, id FROM known ORDER BY id, number")
        rows = [(number, names.setdefault(name, len(names))) for number, name in pairs]
        return np.array(rows, dtype=np.int64).reshape(-1, 2), list(names)

    def vectors(self, numbers: Sequence[int], raw: bool = False) -> Float32:
        """Embeddings (n, dim) of some phrases, in the order given; calibrated ones if there are any and not ``raw``."""
        column = "raw" if raw else "coalesce(calibrated, raw)"
        found = dict(self._among(f"SELECT number, {column} FROM phrases WHERE number IN", numbers))
        return np.stack([np.frombuffer(found[number], dtype="<f4") for number in numbers])

    def phrases(self, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """The id of the answer and the text of some phrases, by their number."""
        rows = self._among("SELECT number, id, text FROM known WHERE number IN", numbers)
        return {number: (name, text) for number, name, text in rows}

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """The text of some answers, by id."""
        return dict(self._among("SELECT id, text FROM known WHERE own_text AND id IN", names))

    def _rows(self, query: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(query, values)

    def _one(self, query: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._connection.execute(query).fetchone()
        return row

    def _among(self, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows of a query that ends in IN, for any number of values."""
        for start in range(0, len(values), AT_ONCE):
            part = list(values[start : start + AT_ONCE])
            yield from self._connection.execute(f"{query} ({','.join('?' * len(part))})", part)


def blob(row: Float32 | None) -> bytes | None:
    """An embedding as it is stored in the file."""
    return None if row is None else row.astype("<f4").tobytes()
