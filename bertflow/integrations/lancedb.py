"""Collections of LanceDB: tables in a folder or an object store, without a server.

    lancedb:FOLDER/TABLE        lancedb:s3://bucket/folder/TABLE

Every write of LanceDB makes a new version of a table, whole or not at all, and several processes may append at once. So
parts of a source are places in one version of it, which others do not change. While a target is filled, its column
``PART`` says which part a row is of: a part that is there was written before its process was killed.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from bertflow.data.vectors import LISTS, matrix_of_lists
from bertflow.errors import BertflowError, DataError, UsageError, needs, reason_of
from bertflow.retrieval.collections import (
    AbstractCollection,
    Address,
    CollectionFacts,
    CollectionRows,
    Id,
    Part,
    Switch,
)

with needs("lancedb", "lancedb"):
    import lancedb
    from lancedb import index as indices

logger = logging.getLogger("bertflow")

PART = "_bertflow_part"
"""Column of a target that is being filled: the first row of the source's part that a row is of."""
CALIBRATOR = b"bertflow.calibrator"
"""Key of a table's metadata: the digest of the calibrator that its vectors went through."""
EMBEDS = b"embedding_functions"
"""Key under which LanceDB keeps the encoder that embeds queries by itself: the raw one."""
BLOB = b"lance-encoding:blob"
"""Key of a column's metadata: reading rows gives places of its values, not the values."""
METRICS = {"cosine": "cosine", "l2": "euclidean", "dot": "dot"}
WITHOUT_PRODUCTS = {"IvfPq": "IvfSq", "IvfRq": "IvfSq", "IvfHnswPq": "IvfHnswSq"}
"""What stands in for an index of product quantization where the width is not a multiple of 8, as it wants."""
SCALAR = ("BTree", "Bitmap", "LabelList")
"""Indexes of other columns that a target gets as well."""
IDS = 500
"""Ids in one query."""


class LanceCollection(AbstractCollection):
    """A table of LanceDB; see ``bertflow.retrieval.collections``."""

    several = True

    def __init__(self, address: Address) -> None:
        address.require_options()
        self._local = "://" not in address.place
        place = str(Path(address.place).expanduser().resolve()) if self._local else address.place
        super().__init__(replace(address, place=place, name=address.name.removesuffix(".lance")))
        self._opened: dict[int | None, Any] = {}

    def close(self) -> None:
        """Let go of the table's files."""
        self._opened.clear()

    def exists(self) -> bool:
        """Whether it is there."""
        if self._local and not Path(self.address.place).is_dir():
            return False  # connecting would make the folder
        with self._in_one_line():
            try:
                self._opened[None] = lancedb.connect(self.address.place).open_table(self.address.name)
            except ValueError as error:
                if "was not found" in str(error):
                    return False
                raise
        return True

    def _table(self, version: int | None = None) -> Any:
        """The table as it is now, or in a version of it."""
        if None not in self._opened and not self.exists():
            raise DataError(f"{self.address} is missing. Look at the folder and the name of the table.")
        with self._in_one_line():
            if version not in self._opened:
                self._opened[version] = lancedb.connect(self.address.place).open_table(self.address.name)
                if version is not None:
                    self._opened[version].checkout(version)
            if version is None:
                self._opened[None].checkout_latest()  # else what other processes wrote is not seen
            return self._opened[version]

    @property
    def facts(self) -> CollectionFacts:
        """What is known of the table, as it is now."""
        table, vector, id_column = self._table(), self._vector(), self._id()
        with self._in_one_line():
            index = next((one for one in table.list_indices() if one.columns == [vector]), None)
            metric = METRICS.get(table.index_stats(index.name).distance_type) if index else None
            n, kind = table.count_rows(), index and index.index_type
        calibrator = (table.schema.metadata or {}).get(CALIBRATOR, b"").decode() or None
        stored = np.dtype(table.schema.field(vector).type.value_type.to_pandas_dtype()).name
        return CollectionFacts(n, self._dim(), metric, kind, id_column, vector, calibrator, stored)

    def _vector(self) -> str:
        lists = [field.name for field in self._table().schema if _holds_vectors(field.type)]
        return self.address.chosen("vector", lists, "a column of lists of floats")

    def _id(self) -> str:
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
        names = [field.name for field in self._table().schema if any(kind(field.type) for kind in kinds)]
        names = [name for name in names if name != PART]
        possible = ["id"] if self.address.id is None and "id" in names else names
        return self.address.chosen("id", possible, "a column of whole numbers or text")

    def _dim(self) -> int:
        kind = self._table().schema.field(self._vector()).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        vector = self._vector()
        with self._in_one_line():
            found = self._table().search().where(f"{_quoted(vector)} IS NOT NULL").select([vector]).limit(1).to_arrow()
        return len(found[vector][0]) if len(found) else 0

    def parts(self, rows: int) -> list[Part]:
        """Places in the version of now."""
        table, column = self._table(), self._id()
        with self._in_one_line():
            version, n = table.version, table.count_rows()
        self._require_unique(version, column)
        return [{"version": version, "start": start, "stop": min(start + rows, n)} for start in range(0, n, rows)]

    def _require_unique(self, version: int, column: str) -> None:
        """Refuse ids that are missing or occur twice: 8 bytes for each are kept."""
        hashes = [_hashed(ids) for ids in self._ids(version, column)]
        found = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)
        if twice := set(found[1:][found[1:] == found[:-1]].tolist()):
            seen = (one for ids in self._ids(version, column) for one in ids if int(_hashed([one])[0]) in twice)
            raise DataError(f"{self.address}: the id {next(seen)!r} occurs twice. Name a column of unique ids as ?id=.")

    def _ids(self, version: int, column: str) -> Iterator[list[Id]]:
        with self._in_one_line():
            for batch in self._table(version).search().select([column]).limit(None).to_batches():
                if batch.column(0).null_count:
                    raise DataError(f"{self.address}: a row has no {column}. Give it one, or name another as ?id=.")
                yield batch.column(0).to_pylist()

    def read(self, part: Part) -> CollectionRows:
        """Rows of one version, in its order."""
        with self._in_one_line():
            query = self._table(part["version"]).search()
            found = query.offset(part["start"]).limit(part["stop"] - part["start"]).to_arrow()
        vector, dim = self._vector(), self._dim()
        x, bad = _matrix(found[vector], dim)
        return CollectionRows(found[self._id()].to_pylist(), x, found.drop_columns([vector]), bad)

    def create_like(self, source: AbstractCollection, dim: int, calibrator: str) -> None:
        """Make the table: the columns of ``source``, and ``PART`` until it is finished."""
        assert isinstance(source, LanceCollection), "source and target are of one kind"
        schema, vector = source._table().schema, source._vector()
        if blobs := [field.name for field in schema if BLOB in (field.metadata or {})]:
            raise DataError(f"{source.address}: column {blobs[0]} holds blobs, which cannot be copied. Leave it out.")
        if self.address.vector not in (None, vector):
            raise UsageError(f"{self.address} is made with the column {vector} of {source.address}. Name it so.")
        schema = schema.set(schema.names.index(vector), pa.field(vector, pa.list_(pa.float32(), dim)))
        kept = dict(schema.metadata or {})
        if kept.pop(EMBEDS, None):
            logger.info("%s embeds no queries by itself: the source's encoder is not calibrated.", self.address)
        schema = schema.append(pa.field(PART, pa.int64())).with_metadata({**kept, CALIBRATOR: calibrator.encode()})
        with self._in_one_line():
            lancedb.connect(self.address.place).create_table(self.address.name, schema=schema)

    def drop(self, source: AbstractCollection) -> None:
        """Drop the table."""
        with self._in_one_line():
            lancedb.connect(self.address.place).drop_table(self.address.name)

    def write(self, part: Part, rows: CollectionRows) -> None:
        """Append the rows, unless they are there."""
        table, start = self._table(), part["start"]
        if PART not in table.schema.names:
            raise DataError(f"{self.address} is not being filled: it has no column {PART}. Name a new table.")
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.reshape(-1)), rows.vectors.shape[1])
        made = {self._vector(): vectors, PART: pa.array(np.full(len(rows), start))}
        columns = [made[name] if name in made else rows.payload[name] for name in table.schema.names]
        with self._in_one_line():
            if not table.count_rows(f"{PART} = {start}"):
                table.add(pa.Table.from_arrays(columns, schema=table.schema))

    def finish(self, source: AbstractCollection) -> None:
        """Drop ``PART``, and make the indexes that ``source`` has."""
        assert isinstance(source, LanceCollection), "source and target are of one kind"
        table, vector = self._table(), self._vector()
        with self._in_one_line():
            if PART in table.schema.names:
                table.drop_columns([PART])
            there = {one.name for one in table.list_indices()}
            for one in source._table().list_indices():
                kind = WITHOUT_PRODUCTS.get(one.index_type, one.index_type) if self._dim() % 8 else one.index_type
                options = {"distance_type": "cosine"} if one.columns == [vector] else {}
                if one.name in there:
                    continue
                if not options and kind not in SCALAR:
                    logger.info("%s: the index %s (%s) is not copied. Make it yourself.", self.address, one.name, kind)
                    continue
                table.create_index(one.columns[0], config=getattr(indices, kind)(**options), name=one.name)

    def search(
        self, queries: NDArray[np.float32], k: int, exact: bool = False
    ) -> tuple[list[list[Id]], NDArray[np.float32]]:
        """By the index where there is one, else exactly."""
        table, column, vector = self._table(), self._id(), self._vector()
        ids: list[list[Id]] = []
        cosines = np.full((len(queries), k), np.nan, dtype=np.float32)
        for row, query in enumerate(queries):
            with self._in_one_line():
                asked = table.search(query, vector_column_name=vector).distance_type("cosine")
                asked = asked.bypass_vector_index() if exact else asked
                found = asked.select([column, "_distance"]).limit(k).to_arrow()
            ids.append(found[column].to_pylist())
            cosines[row, : len(found)] = 1 - found["_distance"].to_numpy()
        return ids, cosines

    def fetch(self, ids: Sequence[Id]) -> list[dict[str, Any]]:
        """The other columns of some rows."""
        hidden = (self._vector(), self._id(), PART)
        names = [name for name in self._table().schema.names if name not in hidden]
        return [{name: row[name] for name in names} for row in self._found(ids, names).to_pylist()]

    def vectors_of(self, ids: Sequence[Id]) -> NDArray[np.float32]:
        """The vectors of some rows."""
        x, bad = _matrix(self._found(ids, [self._vector()])[self._vector()], self._dim())
        if bad:
            raise DataError(f"{self.address}, row {ids[min(bad)]!r}: {bad[min(bad)]}")
        return x

    def _found(self, ids: Sequence[Id], names: Sequence[str]) -> pa.Table:
        """Some columns of the rows of these ids, in their order."""
        table, column, found = self._table(), self._id(), []
        for start in range(0, len(ids), IDS):
            listed = ", ".join(_literal(one) for one in ids[start : start + IDS])
            query = table.search().where(f"{_quoted(column)} IN ({listed})").select([column, *names]).limit(None)
            with self._in_one_line():
                found.append(query.to_arrow())
        rows = pa.concat_tables(found) if found else table.schema.empty_table()
        places = {one: at for at, one in enumerate(rows[column].to_pylist())}
        return rows.take(self.in_order(ids, places))

    def switch(self, target: AbstractCollection) -> Switch:
        """By the names of two folders; an object store has no names to exchange."""
        name, other = self.address, target.address
        before = replace(name, name=f"{name.name}-before-{other.name}")
        if not self._local:
            opened = f"open the table {other.name} of {other.place} where your application opens {name.name}"
            return Switch((opened,), (f"open {name.name} of {name.place} again",), None, str(other))
        steps = ((name, before), (other, name))
        forward = tuple(f"mv '{_folder(old)}' '{_folder(new)}'" for old, new in steps)
        back = tuple(f"mv '{_folder(new)}' '{_folder(old)}'" for old, new in reversed(steps))

        def apply() -> None:
            if _folder(other).exists():  # else it was done before the process was killed
                if _folder(name).exists():
                    _folder(name).rename(_folder(before))
                _folder(other).rename(_folder(name))

        return Switch(forward, back, apply, str(name))

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """What LanceDB refuses, with the address."""
        try:
            yield
        except BertflowError:
            raise
        except (ValueError, RuntimeError, OSError, pa.ArrowException) as error:
            reason = reason_of(error).split(", /")[0].split(", rust/")[0]
            raise DataError(f"{self.address}: LanceDB says: {reason}. Look at it, and call again.") from None


def _holds_vectors(kind: pa.DataType) -> bool:
    return any(is_list(kind) for is_list in LISTS) and pa.types.is_floating(kind.value_type)


def _matrix(column: pa.ChunkedArray, dim: int) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Rows (n, dim) of a column of vectors, and what is wrong with those that have none, which come out as 0."""
    kind = np.dtype(column.type.value_type.to_pandas_dtype())
    x, bad = matrix_of_lists(column.combine_chunks(), dim, kind)
    return x.astype(np.float32, copy=False), bad


def _hashed(ids: Sequence[Id]) -> NDArray[np.uint64]:
    return np.array([xxh3_64_intdigest(str(one).encode()) for one in ids], dtype=np.uint64)


def _quoted(column: str) -> str:
    return f"`{column}`"


def _literal(one: Id) -> str:
    return str(one) if isinstance(one, int) else "'{}'".format(one.replace("'", "''"))


def _folder(address: Address) -> Path:
    return Path(address.place) / f"{address.name}.lance"
