"""A column of pgvector in a table of Postgres, as a collection.

    pgvector:postgresql://user@host/database/TABLE?vector=COLUMN&id=COLUMN

The target is a new table of the same schema, or a new column of the same table. Only ids and vectors travel: what else
a row holds is copied by the server, in the statement that writes its vector. So every type of column is kept as it is,
a part is there whole or not at all, and rows without a vector are copied, too. A new table is made by
``LIKE ... INCLUDING ALL``.

A part is a range of keys: the rows after ``after``, up to ``to``. The last part has no end, so rows that are added
before it is read come along.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self
from urllib.parse import unquote

import numpy as np

from bertflow.array_types import Float32
from bertflow.databases import postgres as pg
from bertflow.databases.postgres import INTEGERS, LOCK, MARK, METRICS, STAY, Name, composed
from bertflow.errors import DataError, UsageError, logger, needs
from bertflow.retrieval.address import Address
from bertflow.retrieval.collections import AbstractCollection, CollectionFacts, CollectionRows, Id, Part, Switch

with needs("psycopg, pgvector", "pgvector"):
    from pgvector import HalfVector, Vector
    from psycopg import Error, sql


KINDS = {"vector": (Vector, "float32", 2000), "halfvec": (HalfVector, "float16", 4000)}
"""Types of columns: what their values are, the type of the numbers, and the widest vectors that an index takes."""


class PostgresCollection(AbstractCollection):
    """A table of Postgres: schema and table part at the first dot of the address's name; %2F is a slash in it."""

    errors, takes_options = (Error,), True  # of libpq

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        *schema, self.name = unquote(address.name).split(".", 1)
        self.schema = schema[0] if schema else None
        self.connection = pg.connect(address)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def run(self, statement: str, *values: Any, **parts: Name) -> list[Any]:
        """Run one statement, see ``composed``; what it gives, in Postgres' binary form where there is one."""
        done = self.connection.execute(composed(statement, **parts), values or None, binary=True)
        return done.fetchall() if done.description else []

    def ask(self, statement: str, *values: Any, **parts: Name) -> list[Any]:
        """Run a statement about the table, its columns, and an id as it is given to others."""
        name, kind = self.id.name, self.id.type
        names: dict[str, Name] = {"table": self.place, "id": name, "vector": self.vector.name}
        names["key"] = composed("s.{id}" if kind in INTEGERS else "s.{id}::text", id=name)
        names["type"], names["kind"] = sql.SQL(kind), sql.SQL(self.vector.kind)
        return self.run(statement, *values, **{**names, **parts})

    def exists(self) -> bool:
        """Whether the table is there, with the column of vectors that the address names."""
        for name in ("table", "vector", "id"):  # it may have been made or changed
            self.__dict__.pop(name, None)
        there = bool(self.run(pg.TABLE, self.schema, self.name))
        return there and self.address.vector in (None, *(one.name for one in self.columns))

    @cached_property
    def table(self) -> Any:
        """The table as the catalog has it."""
        if not (found := self.run(pg.TABLE, self.schema, self.name)):
            raise DataError(
                f"{self.address} does not exist: the database has no such table, or this user may not see it."
            )
        return found[0]

    @property
    def place(self) -> tuple[str, str]:
        """Schema and name of the table."""
        return self.table.schema, self.table.name

    @property
    def columns(self) -> list[Any]:
        """The columns as they are now, in order."""
        return self.run(pg.COLUMNS, self.table.oid)

    @cached_property
    def vector(self) -> Any:
        """The column of vectors that the address names, or the only one."""
        dense = {one.name: one for one in self.columns if one.kind in KINDS}
        return dense[self.address.chosen("vector", list(dense), "a column of type vector or halfvec")]

    @cached_property
    def id(self) -> Any:
        """The column of ids that the address names, or the primary key, or the only one."""
        keys = self.run(pg.KEYS, self.table.oid)
        possible = [one.name for one in keys if one.main and self.address.id is None] or [one.name for one in keys]
        what = "a primary key of one column, or a column that is unique and not null"
        name = self.address.chosen("id", possible, what)
        return next(one for one in self.columns if one.name == name)

    @property
    def dim(self) -> int:
        """Width of a vector, as the column says it, or the first row."""
        if self.vector.width > 0:
            return int(self.vector.width)
        found = self.ask("SELECT vector_dims({vector}) FROM {table} WHERE {vector} IS NOT NULL LIMIT 1")
        return int(found[0][0]) if found else 0

    @property
    def index(self) -> Any:
        """The first index that compares vectors, or None."""
        found = self.run(pg.INDEXES, self.table.oid, self.vector.name)
        return next((one for one in found if one.valid and one.operators.startswith(tuple(KINDS))), None)

    @property
    def facts(self) -> CollectionFacts:
        """What is known of it, as it is now; the rows are counted.

        Raises:
            DataError: If it is missing, or has no column of vectors or no key.
            UsageError: If a column has to be chosen.
        """
        index, vector, metric, words = self.index, self.vector, None, None
        if index:
            metric = next((name for part, name in METRICS.items() if f"_{part}_" in index.operators), None)
            words = f"{index.method} ({', '.join([index.operators, *(index.options or [])])})"
        mark = "SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = $1 AND attname = $2"
        ((n, note),) = self.ask(f"SELECT (SELECT count(*) FROM {{table}}) n, ({mark})", self.table.oid, vector.name)
        digest = note.removeprefix(MARK) if (note or "").startswith(MARK) else None
        stored = KINDS[vector.kind][1]
        return CollectionFacts(n, self.dim, metric, words, self.id.name, vector.name, digest, stored)

    def parts(self, rows: int) -> list[Part]:
        """Ranges of keys, found by one pass over the index of the key."""
        numbered = "SELECT {id}::text AS key, row_number() OVER (ORDER BY {id}) AS n FROM {table}"
        ends = [row.key for row in self.ask(f"SELECT key FROM ({numbered}) AS s WHERE n % $1 = 0 ORDER BY n", rows)]
        return [{"after": after, "to": to} for after, to in zip([None, *ends], [*ends, None], strict=True)]

    def read(self, part: Part) -> CollectionRows:
        """Ids and vectors of a part, by key; the server copies what else the rows hold."""
        query = "SELECT {key}, s.{vector} FROM {table} AS s WHERE {within} ORDER BY s.{id}"
        rows = self.ask(query, part["after"], part["to"], within=self._within(1))
        return self._rows([key for key, _ in rows], [vector for _, vector in rows], [None] * len(rows))

    def _within(self, at: int) -> sql.Composable:
        """The condition on rows ``s`` of being in a part, whose ends are the placeholder ``at`` and the next."""
        after, to = f"${at}::text", f"${at + 1}::text"
        ends = f"({after} IS NULL OR s.{{id}} > {after}::{{type}}) AND ({to} IS NULL OR s.{{id}} <= {to}::{{type}})"
        return composed(ends, id=self.id.name, type=sql.SQL(self.id.type))

    def _rows(self, ids: list[Id], given: Sequence[Any], payload: list[Any]) -> CollectionRows:
        vectors, bad = np.zeros((len(ids), self.dim), np.float32), {}
        for at, vector in enumerate(given):
            if vector is not None and vector.dimensions() == vectors.shape[1]:
                vectors[at] = vector.to_numpy()
            else:
                width = vector and vector.dimensions()
                bad[at] = f"{self.vector.name} should have {vectors.shape[1]} dimensions, got {width}."
        return CollectionRows(ids, vectors, payload, bad)

    def create(self, source: Self, dim: int, calibrator: str) -> None:
        """Make the table as that of ``source`` is, or add the column to it.

        Raises:
            DataError: If it is there already, or Postgres refuses it.
            UsageError: If it cannot stand where it should.
        """
        here, there = ((one.host, one.port, one.dbname) for one in (self.connection.info, source.connection.info))
        if here != there:
            raise UsageError(
                f"{self.address} should be in the database of {source.address}, which copies other columns."
            )
        width, vector = sql.SQL(f"{source.vector.kind}({dim:d})"), source.vector.name
        with self.connection.transaction():
            if not self.exists() and self.run(pg.TABLE, self.schema, self.name) == [source.table]:
                vector = self.address.vector or ""
                add = "ALTER TABLE {table} ADD COLUMN {vector} {width}"
                self.run(add, table=self.place, vector=vector, width=width)
            else:
                self._make_table(source, vector, width)
            comment = "COMMENT ON COLUMN {table}.{vector} IS {mark}"
            self.run(comment, table=self.place, vector=vector, mark=sql.Literal(MARK + calibrator))

    def _make_table(self, source: Self, vector: str, width: sql.Composable) -> None:
        if source.table.secured:
            raise UsageError(
                f"{source.address} has row-level security, which a new table would not have. Name a new column of the "
                f"same table instead: the address of the source, with ?vector={vector}_2."
            )
        names: dict[str, Name] = {"table": (source.table.schema, self.name), "vector": vector, "width": width}
        self.run("CREATE TABLE {table} (LIKE {source} INCLUDING ALL)", source=source.place, **names)
        if not self.exists() or self.place != names["table"]:
            name = f"{source.table.schema}.{self.name}"
            raise UsageError(f"{self.address} should be in the schema of its source: name it {name}.")
        for one in self.run(pg.INDEXES, self.table.oid, vector):
            self.run("DROP INDEX {index}", index=(one.schema, one.name))
        alter = "ALTER TABLE {table} ALTER {vector} DROP DEFAULT, ALTER {vector} TYPE {width} USING NULL"
        self.run(alter, **names)
        for (grant,) in self.run(pg.GRANTS, source.table.oid, self.table.oid):
            self.connection.execute(grant)

    def upsert(self, source: Self, part: Part, rows: CollectionRows) -> None:
        """Write the rows of a part in one statement, in which the server copies what else they hold."""
        new = "unnest($1::{type}[], $2::{kind}[]) AS p(key, value)"
        values = [KINDS[self.vector.kind][0](vector) for vector in rows.vectors]
        if source.place == self.place:
            update = f"UPDATE {{table}} AS s SET {{vector}} = p.value FROM {new} WHERE s.{{id}} = p.key"
            self.ask(update, rows.ids, values)
            return
        kept = [one.name for one in self.columns if not one.generated and one.name != self.vector.name]
        self.ask(
            "INSERT INTO {table} ({vector}, {columns}) OVERRIDING SYSTEM VALUE SELECT p.value, {copied} "
            f"FROM {{source}} AS s LEFT JOIN {new} ON s.{{id}} = p.key "
            "WHERE {within} AND (p.key IS NOT NULL OR s.{vector} IS NULL) ON CONFLICT ({id}) DO NOTHING",
            *(rows.ids, values, part["after"], part["to"]),
            source=source.place,
            within=self._within(3),
            columns=sql.SQL(", ").join(map(sql.Identifier, kept)),
            copied=sql.SQL(", ").join(sql.Identifier("s", name) for name in kept),
        )

    def finish(self, source: Self) -> None:
        """Build the index that ``source`` has, for cosine; without one, none."""
        # The server goes on building for a client that was killed; the next one waits for it here.
        self.run("SELECT pg_advisory_lock($1)", self.table.oid)
        most, like = KINDS[self.vector.kind][2], source.index
        if like and self.dim > most:
            logger.warning(
                "%s gets no index: those of pgvector stop at %s dimensions for %s, and these are %s. Searches compare "
                "with every row. Keep fewer directions, with n_components.",
                *(self.address, f"{most:,}", self.vector.kind, f"{self.dim:,}"),
            )
        elif like and not self.index:
            for broken in self.run(pg.INDEXES, self.table.oid, self.vector.name):
                self.run("DROP INDEX {index}", index=(broken.schema, broken.name))
            logger.info("building the index; more memory makes it faster: PGOPTIONS='-c maintenance_work_mem=2GB'")
            self.ask(
                "CREATE INDEX {live} ON {table} USING {method} ({vector} {operators}) {options}",
                live=sql.SQL("CONCURRENTLY" if self.place == source.place else ""),  # others may write to it meanwhile
                method=like.method,
                operators=f"{self.vector.kind}_cosine_ops",
                options=sql.SQL(f"WITH ({', '.join(like.options)})" if like.options else ""),
            )
        self.ask("ANALYZE {table}")

    def search(self, queries: Float32, k: int, exact: bool = False) -> list[list[Id]]:
        """The nearest rows by ``<=>``; ``hnsw.ef_search`` is raised to ``k`` where it is less."""
        nearest = "SELECT {key} FROM {table} AS s WHERE s.{vector} IS NOT NULL ORDER BY s.{vector} <=> $1 LIMIT $2"
        kind = KINDS[self.vector.kind][0]
        with self.connection.transaction():
            self.run(pg.SETTINGS, "off" if exact else "on", k)
            return [[key for (key,) in self.ask(nearest, kind(query), k)] for query in queries]

    def fetch(self, ids: Sequence[Id]) -> CollectionRows:
        """Some rows, as JSON has their other columns."""
        left_out = [self.id.name, *(one.name for one in self.columns if one.kind in KINDS)]
        query = "SELECT {key}, s.{vector}, to_jsonb(s) - $2::text[] FROM {table} AS s WHERE s.{id} = ANY($1::{type}[])"
        found = {key: (vector, others) for key, vector, others in self.ask(query, list(ids), left_out)}
        rows = self.in_order(ids, found)
        return self._rows(list(ids), [vector for vector, _ in rows], [others for _, others in rows])

    def switch(self, target: Self) -> Switch:
        """SQL that renames tables, or columns of one table; the sequences of a table go on where they are."""
        same, schema = self.place == target.place, self.table.schema
        now, made = (self.vector.name, target.vector.name) if same else (self.table.name, target.table.name)
        before, steps, undone = f"{now}_before", list[str](), list[str]()

        def line(statement: str, **parts: Name) -> str:
            return f"{composed(statement, **parts).as_string(self.connection)};"

        def rename(one: str, to: str) -> str:
            if same:
                return line("ALTER TABLE {table} RENAME COLUMN {one} TO {to}", table=self.place, one=one, to=to)
            return line("ALTER TABLE {table} RENAME TO {to}", table=(schema, one), to=to)

        if self.table.owner != target.table.owner:
            owner = sql.SQL(self.table.owner)
            steps.append(line("ALTER TABLE {table} OWNER TO {owner}", table=target.place, owner=owner))
        for column, mine, other in [] if same else self.run(pg.SEQUENCES, self.table.oid, target.table.oid):
            if other:
                one, two = sql.Literal(mine), sql.Literal(other)
                steps.append(line("SELECT setval({to}, nextval({of}))", of=one, to=two))
                undone.append(line("SELECT setval({to}, nextval({of}))", of=two, to=one))
            elif mine:  # both tables take their numbers from it: it should not be dropped with the old one
                for statements, table in ((steps, target.place), (undone, (schema, before))):
                    owned = "ALTER SEQUENCE {sequence} OWNED BY {table}.{column}"
                    statements.append(line(owned, sequence=sql.SQL(mine), table=table, column=column))
        return Switch(
            [STAY, "BEGIN;", LOCK, *steps, rename(now, before), rename(made, now), "COMMIT;"],
            ["BEGIN;", LOCK, *undone, rename(now, made), rename(before, now), "COMMIT;"],
        )
