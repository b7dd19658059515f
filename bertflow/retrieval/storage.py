"""An index as one SQLite file.

    answers   number, id                              one row an answer
    phrases   number, answer, text, raw, calibrated   its own text first, then its past questions
    facts     key, value (JSON)                       identity, sizes, name of the content
    chunks    phrase, chunk, start, stop, whole       of an index that splits its answers
    kept      kind, name, content                     files of a calibrator of its own (bertflow.retrieval.calibrating)

An embedding is float32 numbers and their XXH3 (64 bits), which is compared whenever it is read.

A write is one transaction of SQLite: a process that is killed during one leaves the old state, and many processes may
read while one writes. Every write names the content anew (``state``), so that what is derived from it knows whether it
is of this content; the numbers of phrases are never used twice, except in copies of the file.

Source: https://www.sqlite.org/atomiccommit.html for what happens when a write is cut off.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, Self, TypeAlias

import numpy as np
from typing_extensions import TypedDict
from xxhash import xxh3_64_digest

from bertflow.array_types import Bools, Float32, Int64
from bertflow.data.corpus import Answer, chunks, refuse_ids
from bertflow.encoder.abstract import Role
from bertflow.errors import DataError
from bertflow.records import FileName, Size, other_version, parse_record

FORMAT = 5
SUM = 8
"""Bytes of a checksum."""
APPLICATION = 0x62666169
"""Number that marks the file as an index of answers: "bfai"."""
CAREFUL = "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
"""Settings that SQLite advises for files that others made: https://www.sqlite.org/security.html."""
DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What SQLite raises for a damaged file; the second where its own message quotes bytes of the file."""
MARKS = ("application_id", "user_version")
RESTORE = "Restore a copy, or build it again."
ROWS = 8192
"""Embeddings that are read at a time."""
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
CREATE TABLE chunks (
    phrase INTEGER PRIMARY KEY REFERENCES phrases (number) ON DELETE CASCADE,
    chunk INTEGER, start INTEGER, stop INTEGER, whole TEXT
);
CREATE TABLE kept (kind TEXT, name TEXT, content BLOB NOT NULL, PRIMARY KEY (kind, name));
"""
"""The row of a chunk says which one of its answer a phrase is, and where; the first one has the whole text."""
INSERT = "INSERT INTO phrases (answer, text, raw, calibrated) VALUES (?, ?, ?, ?)"
VIEW = """
CREATE TEMP VIEW known AS
SELECT phrases.number, answer, id, text, raw, chunk, start, stop,
    (SELECT coalesce(whole, text) FROM phrases LEFT JOIN chunks ON phrase = number
     WHERE answer = answers.number ORDER BY number LIMIT 1) AS own_text
FROM phrases JOIN answers ON answer = answers.number LEFT JOIN chunks ON phrase = phrases.number
"""
"""A row a phrase: its number, the id of its answer, its text, embedding and chunk, and the text of the answer."""
Phrase: TypeAlias = tuple[str, int, tuple[int, int, int, str | None] | None]
"""A text and the row of its embedding; of a chunk its number, start and stop, and for the first one the whole text."""
Kinds: TypeAlias = tuple[type | UnionType, ...]
MAYBE = int | None


class Facts(TypedDict):
    """What the table ``facts`` holds."""

    name: FileName
    dim: Size
    recipe: dict[str, Any] | None
    calibrator: str
    digest: FileName
    source: dict[str, Any]
    chunks: NotRequired[str | None]
    state: FileName


class Storage:
    """The existing file of one index, for one thread; what is not an index, or is damaged, is a ``DataError``."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"An index was expected at {path}, but there is none. Run `bertflow search build`.")
        self.path = path
        self._connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
        try:
            self._connection.executescript(CAREFUL)
            marks = tuple(self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in MARKS)
            if marks[0] != APPLICATION:
                raise DataError(f"{path} is not an index of answers. {RESTORE}")
            if marks[1] != FORMAT:
                raise DataError(other_version(path, marks[1], FORMAT, "Build it again."))
            self._connection.execute(VIEW)
        except DataError:
            self.close()
            raise
        except DAMAGED as error:
            self.close()
            raise DataError(f"{path} is not an index of answers, or is damaged: {error}. {RESTORE}") from None

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Any]) -> Self:
        """Turn an empty file into an empty index."""
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(SCHEMA)
        storage = cls(path)
        with storage.transaction():
            storage.set_facts({"name": uuid.uuid4().hex, **facts})
        return storage

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE", what: str = "written") -> Iterator[None]:
        """Everything that is written inside becomes visible at once at the end, or not at all."""
        try:
            self._connection.execute(begin)
            yield
            self._connection.execute("COMMIT")
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            raise DataError(f"{self.path} could not be {what}: {error}. It is as it was; try again.") from None
        except DAMAGED as error:
            raise DataError(f"{self.path} is damaged: {error}. {RESTORE}") from None
        finally:
            if self._connection.in_transaction:
                with suppress(*DAMAGED):  # of a damaged file, which was said
                    self._connection.execute("ROLLBACK")

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that is read inside is of one moment, whatever others write."""
        return self.transaction("BEGIN", "read")

    def facts(self) -> dict[str, Any]:
        """All facts about the index; refused if they are damaged."""
        rows = self._rows((str, str), "SELECT key, value FROM facts")
        content = ", ".join(f"{json.dumps(key)}: {value}" for key, value in rows)
        return dict(parse_record(f"{{{content}}}", Facts, f"{self.path}, table facts", "index of answers", RESTORE))

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Change some facts, and give the content a name of its own."""
        rows = [(key, json.dumps(value, sort_keys=True)) for key, value in {**facts, "state": uuid.uuid4().hex}.items()]
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def insert(self, name: str, phrases: Iterable[Phrase], raw: Float32, calibrated: Float32 | None) -> None:
        """Add an answer with its phrases, whose embeddings are rows of ``raw`` and ``calibrated``."""
        answer = self._connection.execute("INSERT INTO answers (id) VALUES (?)", (name,)).lastrowid
        for text, row, chunk in phrases:
            values = (answer, text, self._blob(raw[row]), None if calibrated is None else self._blob(calibrated[row]))
            number = self._connection.execute(INSERT, values).lastrowid
            if chunk:
                self._connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (number, *chunk))

    def delete(self, names: Iterable[str]) -> None:
        """Remove answers and their phrases."""
        self._connection.executemany("DELETE FROM answers WHERE id = ?", [(name,) for name in names])

    def recalibrate(self, numbers: Iterable[int], calibrated: Iterable[Float32 | None]) -> None:
        """Replace the calibrated embeddings of some phrases; None removes them."""
        rows = [(self._blob(row), number) for number, row in zip(numbers, calibrated, strict=True)]
        self._connection.executemany("UPDATE phrases SET calibrated = ? WHERE number = ?", rows)

    def keep(self, kind: str, files: Mapping[str, bytes]) -> None:
        """Keep some files of a kind, instead of those that there are."""
        self._connection.execute("DELETE FROM kept WHERE kind = ?", (kind,))
        self._connection.executemany("INSERT INTO kept VALUES (?, ?, ?)", [(kind, *file) for file in files.items()])

    def kept(self, kind: str) -> dict[str, bytes]:
        """The files of a kind; names that lead elsewhere are refused."""
        files = dict(self._rows((str, bytes), "SELECT name, content FROM kept WHERE kind = ?", (kind,)))
        if any(Path(name).name != name for name in files):
            raise DataError(f"{self.path} is damaged: what it keeps has no plain names. {RESTORE}")
        return files

    def count(self, table: str) -> int:
        """Rows of ``answers`` or ``phrases``."""
        return int(next(self._rows((int,), f"SELECT count(*) FROM {table}"))[0])

    def known(self, names: Sequence[str]) -> list[str]:
        """Ids, of those given, that exist."""
        found = {name for (name,) in self._among((str,), "SELECT id FROM answers WHERE id IN", names)}
        return [name for name in names if name in found]

    def require_known(self, names: Sequence[str]) -> None:
        """Refuse ids that are not there."""
        known = set(self.known(names))
        refuse_ids([name for name in names if name not in known], f"not in {self.path}. Is the id right?")

    def answers(self) -> Iterator[Answer]:
        """All answers, in the order in which they were added."""
        rows = self._rows((str, str, str, MAYBE), "SELECT id, own_text, text, chunk FROM known ORDER BY answer, number")
        for (name, own), group in groupby(rows, key=itemgetter(0, 1)):
            yield Answer(name, own, tuple(text for *_, text, chunk in group if chunk is None and text != own))

    def raw_of(self, names: Sequence[str], dim: int) -> dict[tuple[str, Role], Float32]:
        """Each phrase of some answers with its role, chunks left out, and its raw embedding (dim,)."""
        query = "SELECT text, iif(text = own_text, 'document', 'query'), raw FROM known WHERE chunk IS NULL AND id IN"
        found = {(text, role): raw for text, role, raw in self._among((str, str, bytes), query, names)}
        return dict(zip(found, self._matrix(list(found.values()), dim), strict=True))

    def asked(self, numbers: Sequence[int]) -> Bools:
        """Which of some phrases (n,) are past questions, in the order given."""
        query = "SELECT number, chunk IS NULL AND text != own_text FROM known WHERE number IN"
        found = self._found(numbers, self._among((int, int), query, numbers))
        return np.array([found[number][0] for number in numbers], bool)

    def numbers(self) -> Int64:
        """The numbers of all phrases, rising."""
        rows = self._rows((int,), "SELECT number FROM phrases ORDER BY number")
        return np.fromiter((number for (number,) in rows), np.int64)

    def parts(self) -> Iterator[list[int]]:
        """The numbers of all phrases, ``ROWS`` at a time."""
        return chunks(self.numbers().tolist(), ROWS)

    def vectors(self, numbers: Sequence[int], raw: bool = False) -> Float32:
        """Embeddings (n, dim) of some phrases, in the order given; calibrated ones if there are any and not ``raw``."""
        query = f"SELECT number, {'raw' if raw else 'coalesce(calibrated, raw)'} FROM phrases WHERE number IN"
        found = self._found(numbers, self._among((int, bytes), query, numbers))
        rows = [found[number][0] for number in numbers]
        return self._matrix(rows, (len(rows[0]) - SUM) // 4 if raw else self.facts()["dim"])

    def phrases(self, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """What a ``Hit`` says of some phrases, by their number, without the score."""
        query = "SELECT number, id, own_text, text, chunk, start, stop FROM known WHERE number IN"
        return self._found(numbers, self._among((int, str, str, str, MAYBE, MAYBE, MAYBE), query, numbers))

    def owners(self) -> Iterator[tuple[int, str]]:
        """The number of each phrase and the id of its answer, in order of the ids."""
        # The plus: sorted when read, since the index of ids would jump through the file.
        return self._rows((int, str), "SELECT number, id FROM known ORDER BY +id, number")

    def _rows(self, kinds: Kinds, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, whose values should be of these kinds; else the file is damaged."""
        try:
            for row in self._connection.execute(query, values):
                if not all(map(isinstance, row, kinds)):
                    raise DataError(f"{self.path} is damaged: a value is not of its kind ({query}). {RESTORE}")
                yield row
        except DAMAGED as error:
            raise DataError(f"{self.path} could not be read: {error}. {RESTORE}") from None

    def _among(self, kinds: Kinds, query: str, values: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows of a query that ends in IN, for any number of values."""
        return self._rows(kinds, f"{query} (SELECT value FROM json_each(?))", (json.dumps(list(values)),))

    def _found(self, numbers: Sequence[int], rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        """Rows by their first value, one for each of these numbers."""
        found = {number: tuple(rest) for number, *rest in rows}
        if missing := set(numbers) - found.keys():
            raise DataError(f"{self.path} is damaged: phrase {min(missing)} is not whole. {RESTORE}")
        return found

    def _matrix(self, rows: Sequence[bytes], dim: int) -> Float32:
        """Embeddings (n, dim), as they are kept in the file."""
        size = 4 * dim
        if {len(row) for row in rows} <= {size + SUM}:
            if any(xxh3_64_digest(row[:size]) != row[size:] for row in rows):
                raise DataError(f"{self.path} is damaged: an embedding is not what was written. {RESTORE}")
            x = np.frombuffer(b"".join(row[:size] for row in rows), "<f4").reshape(len(rows), dim)
            if np.isfinite(x).all():
                return x
        raise DataError(f"{self.path} is damaged: an embedding is not {dim} finite numbers. {RESTORE}")

    def _blob(self, row: Float32 | None) -> bytes | None:
        """An embedding as it is stored in the file."""
        if row is None:
            return None
        content = row.astype("<f4").tobytes()
        return content + xxh3_64_digest(content)
