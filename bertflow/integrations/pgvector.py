"""A column of pgvector in a table of Postgres, as a collection.

    pgvector:postgresql://user@host/database/TABLE?vector=COLUMN&id=COLUMN

The target is a new table of the same schema, or a new column of the same table. Only ids and vectors travel: what else
a row holds is copied by the server, in the transaction that writes its vector. So every type of column is kept as it
is, a part is there whole or not at all, and rows without a vector are copied, too. A new table is made by
``LIKE ... INCLUDING ALL``.

A part is a range of keys: the rows after ``after``, up to ``to``. The last part has no end, so rows that are added
before it is read come along.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError, UsageError, needs
from bertflow.integrations.postgres import GRANTS, INTEGERS, VECTORS, PostgresTable, postgres_errors
from bertflow.integrations.postgres_renames import swapped_columns, swapped_tables
from bertflow.retrieval.collections import (
    AbstractCollection,
    Address,
    CollectionFacts,
    CollectionRows,
    Id,
    Part,
    Switch,
)

with needs("psycopg, pgvector", "pgvector"):
    from pgvector import HalfVector, Vector
    from psycopg import sql

CLASSES = {"vector": Vector, "halfvec": HalfVector}
STORED = {"vector": "float32", "halfvec": "float16"}
MARK = "bertflow: calibrator "
"""How the comment on a column of calibrated vectors begins; a digest follows."""


@dataclass(frozen=True)
class CopiedFrom:
    """Where the server finds what else the rows of a part hold."""

    table: tuple[str, str]
    vector: str

    def take(self, places: Sequence[int]) -> "CopiedFrom":
        """The same for some of the rows."""
        return self


class PostgresCollection(AbstractCollection):
    """A table of Postgres with a column of vectors; see the module."""

    several = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.table = PostgresTable(address)

    def close(self) -> None:
        """Close the connection."""
        self.table.connection.close()

    def exists(self) -> bool:
        """Whether the table is there, with the column of vectors that the address names."""
        return self.table.oid is not None and self.address.vector in (None, *(one.name for one in self.table.columns))

    @property
    def facts(self) -> CollectionFacts:
        """What is known of it, as it is now; the rows are counted.

        Raises:
            DataError: If it is missing, or has no column of vectors or no key.
            UsageError: If a column has to be chosen.
        """
        index, vector = self.table.index, self.table.vector.name
        ((rows, mark),) = self.table.run(
            "SELECT (SELECT count(*) FROM {table}), col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = $1 AND attname = $2",
            *(self.table.oid, vector),
            table=self.table.place,
        )
        digest = mark.removeprefix(MARK) if (mark or "").startswith(MARK) else None
        metric, words = (index.metric, str(index)) if index else (None, None)
        stored = STORED[self.table.vector.kind]
        return CollectionFacts(rows, self.table.dim, metric, words, self.table.id.name, vector, digest, stored)

    def parts(self, rows: int) -> list[Part]:
        """Ranges of keys, found by one pass over the index of the key."""
        found = self.table.run(
            "SELECT key FROM (SELECT {id}::text AS key, row_number() OVER keys AS n, lead({id}) OVER keys AS later "
            "FROM {table} WINDOW keys AS (ORDER BY {id})) AS numbered "
            "WHERE n % $1 = 0 AND later IS NOT NULL ORDER BY n",
            *(rows,),
            **self.table.names,
        )
        ends = [end for (end,) in found]
        return [{"after": after, "to": to} for after, to in zip([None, *ends], [*ends, None], strict=True)]

    def read(self, part: Part) -> CollectionRows:
        """Ids and vectors of a part, by key."""
        within, values = self.table.within(part)
        rows = self.table.run(
            "SELECT {key}, s.{vector} FROM {table} AS s WHERE {within} ORDER BY s.{id}",
            *values,
            **self.table.names,
            key=self.table.key,
            within=within,
        )
        vectors, bad = np.zeros((len(rows), self.table.dim), np.float32), {}
        for at, (_, vector) in enumerate(rows):
            if vector is None:
                bad[at] = f"{self.table.vector.name} is NULL."
            elif vector.dimensions() != self.table.dim:
                bad[at] = f"{self.table.vector.name} has {vector.dimensions()} dimensions, not {self.table.dim}."
            else:
                vectors[at] = vector.to_numpy()
        return CollectionRows(
            [key for key, _ in rows], vectors, CopiedFrom(self.table.place, self.table.vector.name), bad
        )

    def create_like(self, source: AbstractCollection, dim: int, calibrator: str) -> None:
        """Make the table as that of ``source`` is, or add the column to it.

        Raises:
            DataError: If it is there already, or Postgres refuses it.
            UsageError: If it cannot stand where it should.
        """
        if not isinstance(source, PostgresCollection) or self.table.server != source.table.server:
            raise UsageError(
                f"{self.address} should be a table of the database of {source.address}, which copies all other "
                "columns by itself. Name a new table, or a new column, in that database."
            )
        same = self.table.oid == source.table.oid
        if self.exists() or (self.table.oid is not None and not same):
            raise DataError(
                f"{self.address} is there already. Name a new table, or a new column of {source.table.name}."
            )
        try:
            with postgres_errors(self.address), self.table.connection.transaction():
                self._make(source, dim, same)
                self.table.run(
                    "COMMENT ON COLUMN {table}.{vector} IS {mark}",
                    **self.table.names,
                    mark=sql.Literal(MARK + calibrator),
                )
        finally:
            self.table.forget()

    def _make(self, source: "PostgresCollection", dim: int, same: bool) -> None:
        width, wanted = sql.SQL(f"{source.table.vector.kind}({dim:d})"), source.table.vector.name
        if same:
            wanted = self.address.vector or ""
            add = "ALTER TABLE {table} ADD COLUMN {new} {width}"
            self.table.run(add, table=self.table.place, new=wanted, width=width)
        else:
            self._make_table(source, width)
        self.table.forget()
        if self.table.id != source.table.id or self.table.vector.name != wanted:
            raise UsageError(
                f"{self.address} should name the columns as its source does: "
                f"?vector={wanted}&id={source.table.id.name}. Add them."
            )

    def _make_table(self, source: "PostgresCollection", width: sql.Composable) -> None:
        schema = source.table.place[0]
        if self.table.schema not in (None, schema):
            raise UsageError(
                f"{self.address} should be in the schema of its source, so that it can be renamed: name it "
                f"{schema}.{self.table.name}."
            )
        ((secured,),) = self.table.run("SELECT relrowsecurity FROM pg_class WHERE oid = $1", source.table.oid)
        if secured:
            raise UsageError(
                f"{source.address} has row-level security, which a new table would not have. Reindex into a new column "
                f"of it instead: the address of the source, with ?vector={source.table.vector.name}_2."
            )
        new, vector = (schema, self.table.name), source.table.vector.name
        self.table.run("CREATE TABLE {table} (LIKE {source} INCLUDING ALL)", table=new, source=source.table.place)
        self.table.forget()
        if self.table.oid is None:
            raise UsageError(
                f"{self.address} should name its schema, as its source is in another: {schema}.{self.table.name}."
            )
        for index in self.table.indexes(vector):
            self.table.run("DROP INDEX {index}", index=(index.schema, index.name))
        self.table.run(
            "ALTER TABLE {table} ALTER {vector} DROP DEFAULT, ALTER {vector} TYPE {width} USING NULL",
            table=new,
            vector=vector,
            width=width,
        )
        for privilege, role, more in self.table.run(GRANTS, source.table.oid):
            grant = sql.SQL(f"GRANT {privilege} ON {{table}} TO {role}{more}")
            self.table.run("{grant}", grant=grant.format(table=sql.Identifier(*new)))

    def drop(self, source: AbstractCollection) -> None:
        """Drop the table; of a column in the table of ``source``, the column."""
        assert isinstance(source, PostgresCollection), "create_like refuses others"
        same = self.table.place == source.table.place
        self.table.run("ALTER TABLE {table} DROP COLUMN {vector}" if same else "DROP TABLE {table}", **self.table.names)
        self.table.forget()

    def write(self, part: Part, rows: CollectionRows) -> None:
        """Write the rows of a part in one transaction, in which the server copies what else they hold."""
        origin, (within, values) = rows.payload, self.table.within(part)
        form = "int8" if self.table.id.type in INTEGERS else "text"
        vector_class = CLASSES[self.table.vector.kind]
        names = {**self.table.names, "source": origin.table, "within": within, "type": sql.SQL(self.table.id.type)}
        with postgres_errors(self.address), self.table.connection.transaction():
            self.table.run(
                "CREATE TEMP TABLE bertflow_part (key {form}, value {kind}) ON COMMIT DROP",
                form=sql.SQL(form),
                kind=sql.SQL(self.table.vector.kind),
            )
            with self.table.connection.cursor().copy("COPY pg_temp.bertflow_part FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types([form, self.table.vector.kind])
                for key, vector in zip(rows.ids, rows.vectors, strict=True):
                    copy.write_row((key, vector_class(vector)))
            if origin.table == self.table.place:
                self.table.run(
                    "UPDATE {table} AS s SET {vector} = p.value FROM pg_temp.bertflow_part AS p "
                    "WHERE s.{id} = p.key::{type}",
                    **names,
                )
                return
            self.table.run("DELETE FROM {table} AS s WHERE {within}", *values, **names)
            self.table.run(
                "INSERT INTO {table} ({vector}, {columns}) OVERRIDING SYSTEM VALUE SELECT p.value, {copied} "
                "FROM {source} AS s JOIN pg_temp.bertflow_part AS p ON s.{id} = p.key::{type} WHERE {within}",
                *values,
                **names,
                **self._others,
            )

    @property
    def _others(self) -> dict[str, sql.Composable]:
        """The columns that are copied, and what they are called in the source ``s``."""
        kept = [one.name for one in self.table.columns if not one.generated and one.name != self.table.vector.name]
        forms = {
            "columns": [sql.Identifier(name) for name in kept],
            "copied": [sql.Identifier("s", name) for name in kept],
        }
        return {form: sql.SQL(", ").join(names) for form, names in forms.items()}

    def finish(self, source: AbstractCollection) -> None:
        """Copy the rows without a vector, and build the index that ``source`` has, for cosine; without one, none."""
        assert isinstance(source, PostgresCollection), "create_like refuses others"
        if self.table.place != source.table.place:
            self.table.run(
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {copied} FROM {source} AS s "
                "WHERE s.{vector} IS NULL ON CONFLICT ({id}) DO NOTHING",
                **self.table.names,
                **self._others,
                source=source.table.place,
            )
        # The server goes on building for a client that was killed; the next one waits for it here.
        self.table.run("SELECT pg_advisory_lock($1)", self.table.oid)
        try:
            if source.table.index and not self.table.index:
                self.table.build_index(source.table.index, live=self.table.place == source.table.place)
            self.table.run("ANALYZE {table}", table=self.table.place)
        finally:
            self.table.run("SELECT pg_advisory_unlock($1)", self.table.oid)

    def search(
        self, queries: NDArray[np.float32], k: int, exact: bool = False
    ) -> tuple[list[list[Id]], NDArray[np.float32]]:
        """The nearest rows by ``<=>``; ``hnsw.ef_search`` is raised to ``k`` where it is less."""
        with postgres_errors(self.address), self.table.connection.transaction():
            self.table.run("SELECT set_config('enable_indexscan', $1, true)", "off" if exact else "on")
            self.table.run(
                "SELECT set_config('hnsw.ef_search', least(1000, greatest($1::int, "
                "coalesce(nullif(current_setting('hnsw.ef_search', true), '')::int, 40)))::text, true)",
                *(k,),
            )
            found = [
                self.table.run(
                    "SELECT {key}, 1 - (s.{vector} <=> $1) FROM {table} AS s WHERE s.{vector} IS NOT NULL "
                    "ORDER BY s.{vector} <=> $1 LIMIT $2",
                    *(CLASSES[self.table.vector.kind](query), k),
                    **self.table.names,
                    key=self.table.key,
                )
                for query in queries
            ]
        cosines = np.full((len(found), k), np.nan, np.float32)
        for row, answers in zip(cosines, found, strict=True):
            row[: len(answers)] = [cosine for _, cosine in answers]
        return [[key for key, _ in answers] for answers in found], cosines

    def fetch(self, ids: Sequence[Id]) -> list[dict[str, Any]]:
        """The other columns of some rows, as JSON has them."""
        left_out = [self.table.id.name, *(one.name for one in self.table.columns if one.kind in VECTORS)]
        return self._of(ids, "to_jsonb(s) - $2::text[]", left_out)

    def vectors_of(self, ids: Sequence[Id]) -> NDArray[np.float32]:
        """The vectors of some rows."""
        found = self._of(ids, "s.{vector}")
        if missing := [key for key, vector in zip(ids, found, strict=True) if vector is None]:
            raise DataError(f"{self.address}: row {missing[0]!r} has no vector.")
        return np.array([vector.to_numpy() for vector in found], np.float32).reshape(len(ids), self.table.dim)

    def _of(self, ids: Sequence[Id], what: str, *values: Any) -> list[Any]:
        statement = f"SELECT {{key}}, {what} FROM {{table}} AS s WHERE s.{{id}} = ANY($1::{{type}}[])"
        parts = {**self.table.names, "key": self.table.key, "type": sql.SQL(self.table.id.type)}
        return self.in_order(ids, dict(self.table.run(statement, list(ids), *values, **parts)))

    def switch(self, target: AbstractCollection) -> Switch:
        """Rename tables, or columns of one table, in one transaction."""
        assert isinstance(target, PostgresCollection), "create_like refuses others"
        if target.table.place == self.table.place:
            steps = swapped_columns(
                self.table.connection, self.table.place, self.table.vector.name, target.table.vector.name
            )
        else:
            steps = swapped_tables(self.table.connection, self.table.place, target.table.place)

        def apply() -> None:
            with postgres_errors(self.address), self.table.connection.transaction():
                for statement in steps.forward:
                    self.table.connection.execute(statement)

        forward, back = (
            ("BEGIN;", *(f"{one.as_string(self.table.connection)};" for one in statements), "COMMIT;")
            for statements in (steps.forward, steps.back)
        )
        notes = (f"-- {name} stays with the old one: make it again for the new one" for name in steps.left)
        return Switch((*notes, *forward), back, apply, str(self.address))
