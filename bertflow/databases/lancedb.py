"""Collections of LanceDB: tables in a folder or an object store, without a server.

    lancedb:FOLDER/TABLE        lancedb:s3://bucket/folder/TABLE

Every write of LanceDB makes a new version of a table, whole or not at all, and several processes may write at once. So
parts of a source are places in one version of it, which others do not change.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertflow.array_types import Float32
from bertflow.data.corpus import chunks
from bertflow.data.vectors import LISTS, matrix_of_lists
from bertflow.errors import DataError, logger, needs
from bertflow.places import expand
from bertflow.retrieval.address import Address
from bertflow.retrieval.collections import AbstractCollection, CollectionFacts, CollectionRows, Id, Part, Switch

with needs("lancedb", "lancedb"):
    import lancedb.index


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

    errors = (ValueError, RuntimeError, OSError, pa.ArrowException)

    def __init__(self, address: Address) -> None:
        self._local = "://" not in address.place
        place = str(expand(address.place).resolve()) if self._local else address.place
        super().__init__(replace(address, place=place, name=address.name.removesuffix(".lance")))
        self._opened: Any = None

    def close(self) -> None:
        """Let go of the table's files."""
        self._opened = None

    def exists(self) -> bool:
        """Whether it is there."""
        self._opened = None
        if self._local and not Path(self.address.place).is_dir():
            return False  # connecting would make the folder
        try:
            self._opened = lancedb.connect(self.address.place).open_table(self.address.name)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
        return self._opened is not None

    def table(self, version: int | None = None) -> Any:
        """The table as it is now, with what other processes wrote, or in a version of it."""
        if self._opened is None and not self.exists():
            raise DataError(f"{self.address} is missing. Look at the folder and the name of the table.")
        if version is None:
            self._opened.checkout_latest()
        else:
            self._opened.checkout(version)
        return self._opened

    @property
    def facts(self) -> CollectionFacts:
        """What is known of the table, as it is now."""
        table, vector, id_column = self.table(), self.vector(), self.id()
        index = next((one for one in table.list_indices() if one.columns == [vector]), None)
        metric = METRICS.get(table.index_stats(index.name).distance_type) if index else None
        calibrator = (table.schema.metadata or {}).get(CALIBRATOR, b"").decode() or None
        stored = np.dtype(table.schema.field(vector).type.value_type.to_pandas_dtype()).name
        kind = index and index.index_type
        return CollectionFacts(table.count_rows(), self.dim(), metric, kind, id_column, vector, calibrator, stored)

    def vector(self) -> str:
        """The column of vectors."""
        lists = [one for one in self.table().schema if any(is_list(one.type) for is_list in LISTS)]
        names = [one.name for one in lists if pa.types.is_floating(one.type.value_type)]
        return self.address.chosen("vector", names, "a column of lists of floats")

    def id(self) -> str:
        """The column of ids."""
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
        names = [field.name for field in self.table().schema if any(kind(field.type) for kind in kinds)]
        possible = ["id"] if self.address.id is None and "id" in names else names
        return self.address.chosen("id", possible, "a column of whole numbers or text")

    def dim(self) -> int:
        """Width of a vector; 0 if nothing says it."""
        table, vector = self.table(), self.vector()
        kind = table.schema.field(vector).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        found = table.search().where(f"`{vector}` IS NOT NULL").select([vector]).limit(1).to_arrow()
        return len(found[vector][0]) if len(found) else 0

    def parts(self, rows: int) -> list[Part]:
        """Places in the version of now."""
        column, table = self.id(), self.table()
        ids = table.search().select([column]).limit(None).to_arrow()[column]
        if ids.null_count or len(ids) > pc.count_distinct(ids).as_py():
            raise DataError(f"{self.address}: an id in {column} is missing or occurs twice. Name another as ?id=.")
        starts = range(0, len(ids), rows)
        return [{"version": table.version, "start": one, "stop": min(one + rows, len(ids))} for one in starts]

    def read(self, part: Part) -> CollectionRows:
        """Rows of one version, in its order."""
        query = self.table(part["version"]).search()
        found = query.offset(part["start"]).limit(part["stop"] - part["start"]).to_arrow()
        return CollectionRows(found[self.id()].to_pylist(), *self._vectors(found))

    def _vectors(self, found: pa.Table) -> tuple[Float32, pa.Table, dict[int, str]]:
        """Vectors (n, dim), the other columns, and what is wrong with vectors that cannot be read."""
        vector = self.vector()
        kind = np.dtype(found.schema.field(vector).type.value_type.to_pandas_dtype())
        x, bad = matrix_of_lists(found[vector].combine_chunks(), self.dim(), kind)
        return x.astype(np.float32, copy=False), found.drop_columns([vector]), bad

    def create(self, source: Self, dim: int, calibrator: str) -> None:
        """Make the table: the columns of ``source``."""
        schema, vector = source.table().schema, source.vector()
        if blobs := [field.name for field in schema if BLOB in (field.metadata or {})]:
            raise DataError(f"{source.address}: column {blobs[0]} holds blobs, which cannot be copied. Leave it out.")
        kept = dict(schema.metadata or {})
        if kept.pop(EMBEDS, None):
            logger.info("%s embeds no queries by itself: the source's encoder is not calibrated.", self.address)
        schema = schema.set(schema.names.index(vector), pa.field(vector, pa.list_(pa.float32(), dim)))
        schema = schema.with_metadata({**kept, CALIBRATOR: calibrator.encode()})
        lancedb.connect(self.address.place).create_table(self.address.name, schema=schema)

    def upsert(self, source: Self, part: Part, rows: CollectionRows) -> None:
        """Append the rows whose ids are not there."""
        table, vector = self.table(), self.vector()
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.reshape(-1)), rows.vectors.shape[1])
        columns = [vectors if name == vector else rows.payload[name] for name in table.schema.names]
        made = pa.Table.from_arrays(columns, schema=table.schema)
        table.merge_insert(self.id()).when_not_matched_insert_all().execute(made)

    def finish(self, source: Self) -> None:
        """Make the indexes that ``source`` has."""
        table, vector = self.table(), self.vector()
        there = {one.name for one in table.list_indices()}
        for one in source.table().list_indices():
            kind = WITHOUT_PRODUCTS.get(one.index_type, one.index_type) if self.dim() % 8 else one.index_type
            options = {"distance_type": "cosine"} if one.columns == [vector] else {}
            if not options and kind not in SCALAR:
                logger.info("%s: the index %s (%s) is not copied. Make it yourself.", self.address, one.name, kind)
            elif one.name not in there:
                table.create_index(one.columns[0], config=getattr(lancedb.index, kind)(**options), name=one.name)

    def search(self, queries: Float32, k: int, exact: bool = False) -> list[list[Id]]:
        """Search by the index where there is one, else exactly."""
        table, column, vector, ids = self.table(), self.id(), self.vector(), []
        for query in queries:
            asked = table.search(query, vector_column_name=vector).distance_type("cosine")
            asked = asked.bypass_vector_index() if exact else asked
            ids.append(asked.select([column, "_distance"]).limit(k).to_arrow()[column].to_pylist())
        return ids

    def fetch(self, ids: Sequence[Id]) -> CollectionRows:
        """Some rows, a few hundred in a query."""
        table, column, found = self.table(), self.id(), []
        for some in chunks(ids, IDS):
            listed = ", ".join(str(one) if isinstance(one, int) else "'" + one.replace("'", "''") + "'" for one in some)
            found.append(table.search().where(f"`{column}` IN ({listed})").limit(None).to_arrow())
        rows = pa.concat_tables(found) if found else table.schema.empty_table()
        places = {one: at for at, one in enumerate(rows[column].to_pylist())}
        x, others, bad = self._vectors(rows.take(self.in_order(ids, places)))
        return CollectionRows(list(ids), x, others.drop_columns([column]).to_pylist(), bad)

    def switch(self, target: Self) -> Switch:
        """Exchange the names of two folders; an object store has no names to exchange."""
        old, new = self.address, target.address
        if not self._local:
            return Switch(
                [f"# Open the table {new.name} of {new.place} where your application opens {old.name}."],
                [f"# Open {old.name} of {old.place} again."],
            )
        before = replace(old, name=f"{old.name}-before-{new.name}")
        now, made, kept = (quote(f"{one.place}/{one.name}.lance") for one in (old, new, before))
        return Switch([f"mv {now} {kept}", f"mv {made} {now}"], [f"mv {now} {made}", f"mv {kept} {now}"])
