"""Tables of Postgres as its catalog describes them: columns, keys, indexes, and what a new table must be given.

Names in statements go through ``psycopg.sql``. Placeholders are Postgres' own, ``$1``, so that a ``%`` in a name is a
character like any other.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote

from bertflow.errors import DataError, UsageError, needs, reason_of
from bertflow.registry import did_you_mean
from bertflow.retrieval.collections import Address, Part

with needs("psycopg, pgvector", "pgvector"):
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import sql
    from psycopg.conninfo import make_conninfo

logger = logging.getLogger("bertflow")

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
DEFAULTS = {"connect_timeout": "10", "application_name": "bertflow"}
"""Options of libpq where the address does not give them; the time is in seconds."""
VECTORS = ("vector", "halfvec")
"""The types of pgvector that hold dense vectors."""
INDEXED = {"vector": 2000, "halfvec": 4000}
"""Widest vectors that pgvector's indexes take."""
INTEGERS = ("smallint", "integer", "bigint")
"""Types of ids that are given as numbers; others are given as text."""
METRICS = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}
"""The metric in the name of a class of operators, as in ``vector_ip_ops``, and what we call it."""

COLUMNS = """
SELECT a.attname::text, t.typname::text, format_type(a.atttypid, NULL), a.atttypmod, a.attgenerated <> ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
KEYS = """
SELECT ARRAY(SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k AND a.attnotnull),
       i.indnkeyatts, i.indisprimary
FROM pg_index i
WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indisprimary DESC, i.indexrelid
"""
INDEXES = """
SELECT DISTINCT n.nspname::text, c.relname::text, m.amname::text, o.opcname::text, c.reloptions, i.indisvalid
FROM pg_depend d JOIN pg_index i ON i.indexrelid = d.objid JOIN pg_class c ON c.oid = i.indexrelid
     JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_am m ON m.oid = c.relam
     JOIN pg_opclass o ON o.oid = i.indclass[0]
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = $1 AND a.attname = $2 ORDER BY 2
"""
GRANTS = """
SELECT privilege_type, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
       CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
FROM pg_class, aclexplode(relacl) WHERE oid = $1 AND grantee <> relowner
"""


@dataclass(frozen=True)
class TableColumn:
    """A column: its name, what kind and type it has, its width (-1: not said), and whether Postgres computes it."""

    name: str
    kind: str
    type: str
    width: int
    generated: bool


@dataclass(frozen=True)
class VectorIndex:
    """An index on vectors: its schema and name, method (hnsw, ivfflat), class of operators and options."""

    schema: str
    name: str
    method: str
    operators: str
    options: list[str] | None
    valid: bool

    @property
    def metric(self) -> str | None:
        """How it compares: cosine, dot or euclidean; None for what is not a metric that we know."""
        return next((name for part, name in METRICS.items() if f"_{part}_" in self.operators), None)

    def __str__(self) -> str:
        return f"{self.method} ({', '.join([self.operators, *(self.options or [])])})"


def connect(address: Address) -> Connection:
    """Open a database for statements that each stand alone.

    Raises:
        UsageError: If its address cannot be read.
        DataError: If it cannot be reached, or has no pgvector.
    """
    bare = replace(address, options={})  # they may be anything
    try:
        place = make_conninfo(address.place, **{**DEFAULTS, **address.options})
    except psycopg.ProgrammingError as error:
        raise UsageError(
            f"{bare} should hold postgresql://USER@HOST:PORT/DATABASE and options of libpq: {reason_of(error)}."
        ) from None
    with postgres_errors(address):
        # Poolers between us and the server know no prepared statements.
        opened = psycopg.connect(place, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=None)
        home = opened.execute(
            "SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'vector'"
        ).fetchone()
        if home is None:
            opened.close()
            raise DataError(f"{address}: the database has no pgvector. Install it, and run CREATE EXTENSION vector.")
        path = (
            "concat_ws(', ', nullif(current_setting('search_path'), ''), $1::text)"  # some hosts give it its own schema
        )
        opened.execute(f"SELECT set_config('search_path', {path}, false)", home)
        register_vector(opened)
    return opened


@contextmanager
def postgres_errors(address: Address) -> Iterator[None]:
    """What the database says against something, as one line with the address.

    Raises:
        DataError: If it does.
    """
    try:
        yield
    except psycopg.Error as error:
        raise DataError(f"{address}: {reason_of(error)}.") from None


def composed(template: str, **parts: str | tuple[str, ...] | sql.Composable) -> sql.Composed:
    """A statement: names, or tuples of schema and name, are quoted and put at their places."""
    made: Mapping[str, sql.Composable] = {
        key: part if isinstance(part, sql.Composable) else sql.Identifier(*((part,) if isinstance(part, str) else part))
        for key, part in parts.items()
    }
    return sql.SQL(template).format(**made)


def execute_statement(
    opened: Connection, statement: str, *values: Any, **parts: str | tuple[str, ...] | sql.Composable
) -> list[tuple[Any, ...]]:
    """Run one statement; what it gives, in Postgres' binary form where there is one."""
    done = opened.execute(composed(statement, **parts), values or None, binary=True)
    return done.fetchall() if done.description else []


class PostgresTable:
    """A table with vectors, or the name of one, as the catalog describes it.

    Args:
        address: Where it is. Schema and table part at the first dot of its name; %2F is a slash in it.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        *schema, self.name = unquote(address.name).split(".", 1)
        self.schema = schema[0] if schema else None
        self.connection = connect(address)

    def run(
        self, statement: str, *values: Any, **parts: str | tuple[str, ...] | sql.Composable
    ) -> list[tuple[Any, ...]]:
        """Run one statement; see ``composed``."""
        with postgres_errors(self.address):
            return execute_statement(self.connection, statement, *values, **parts)

    @cached_property
    def server(self) -> tuple[Any, ...]:
        """What tells its database from others."""
        return self.run("SELECT current_database(), pg_postmaster_start_time()")[0]

    @cached_property
    def oid(self) -> int | None:
        """The table's number, if there is one."""
        statement = "SELECT to_regclass(concat_ws('.', quote_ident($1::text), quote_ident($2::text)))::oid"
        ((oid,),) = self.run(statement, self.schema, self.name)
        return oid

    def require(self) -> None:
        """Refuse a table that is missing.

        Raises:
            DataError: If it is.
        """
        if self.oid is None:
            known = [name for (name,) in self.run("SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p')")]
            raise DataError(
                f"{self.address} does not exist: the database has no such table, or this user may not see it."
                f"{did_you_mean(self.name, known)}"
            )

    @cached_property
    def place(self) -> tuple[str, str]:
        """Its schema and name."""
        self.require()
        of = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1"
        ((schema, name),) = self.run(f"SELECT n.nspname::text, c.relname::text {of}", self.oid)
        return schema, name

    @property
    def columns(self) -> list[TableColumn]:
        """Its columns as they are now, in order."""
        return [TableColumn(*row) for row in self.run(COLUMNS, self.oid)]

    @cached_property
    def vector(self) -> TableColumn:
        """The column of vectors that the address names, or the only one."""
        self.require()
        dense = {one.name: one for one in self.columns if one.kind in VECTORS}
        return dense[self.address.chosen("vector", list(dense), "a column of type vector or halfvec")]

    @cached_property
    def id(self) -> TableColumn:
        """The column of ids that the address names, or the primary key, or the only one."""
        self.require()
        keys = self.run(KEYS, self.oid)
        single = {names[0]: primary for names, width, primary in keys if width == len(names) == 1}
        possible = {one.name: one for one in self.columns if one.name in single}
        main = [one for one in possible.values() if single[one.name]]
        if self.address.id is None and main:
            return main[0]
        what = "a primary key of one column, or a column that is unique and not null"
        return possible[self.address.chosen("id", list(possible), what)]

    @property
    def dim(self) -> int:
        """Width of a vector, as the column says it, or the first row."""
        if self.vector.width > 0:
            return self.vector.width
        statement = "SELECT vector_dims({vector}) FROM {table} WHERE {vector} IS NOT NULL LIMIT 1"
        found = self.run(statement, **self.names)
        if not found:
            raise DataError(f"{self.address} holds no vectors, and its column has no width. Name a table with vectors.")
        return int(found[0][0])

    def indexes(self, vector: str) -> list[VectorIndex]:
        """Every index that depends on a column."""
        return [VectorIndex(*row) for row in self.run(INDEXES, self.oid, vector)]

    @property
    def index(self) -> VectorIndex | None:
        """The first index that compares vectors."""
        found = self.indexes(self.vector.name)
        return next((one for one in found if one.valid and one.operators.startswith(VECTORS)), None)

    def build_index(self, like: VectorIndex, live: bool) -> None:
        """Build an index like another one, for cosine; others may write to a table that is ``live`` meanwhile."""
        kind, most = self.vector.kind, INDEXED[self.vector.kind]
        if self.dim > most:
            logger.warning(
                "%s gets no index: those of pgvector stop at %s dimensions for %s, and these are %s. Searches compare "
                "with every row. Keep fewer directions, with n_components.",
                *(self.address, f"{most:,}", kind, f"{self.dim:,}"),
            )
            return
        for broken in self.indexes(self.vector.name):
            self.run("DROP INDEX {index}", index=(broken.schema, broken.name))
        ((memory,),) = self.run("SHOW maintenance_work_mem")
        logger.info(
            "building the index %s with maintenance_work_mem = %s; more memory makes it faster: "
            "PGOPTIONS='-c maintenance_work_mem=2GB'",
            *(like.method, memory),
        )
        options = [
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, _, value in (option.partition("=") for option in like.options or [])
        ]
        self.run(
            "CREATE INDEX {concurrently} ON {table} USING {method} ({vector} {operators}) {options}",
            **self.names,
            concurrently=sql.SQL("CONCURRENTLY" if live else ""),  # others write to the table
            method=like.method,
            operators=f"{kind}_cosine_ops",
            options=sql.SQL("WITH ({})").format(sql.SQL(", ").join(options)) if options else sql.SQL(""),
        )

    @property
    def names(self) -> dict[str, str | tuple[str, ...]]:
        """What statements call the table and its columns."""
        return {"table": self.place, "id": self.id.name, "vector": self.vector.name}

    @property
    def key(self) -> sql.Composable:
        """An id as it is given to others."""
        return composed("s.{id}" if self.id.type in INTEGERS else "s.{id}::text", id=self.id.name)

    def within(self, part: Part) -> tuple[sql.Composable, list[str]]:
        """The condition on rows ``s`` of being in a part, and its values."""
        ends = [(sign, part[end]) for sign, end in ((">", "after"), ("<=", "to")) if part[end] is not None]
        conditions = [
            composed(f"s.{{id}} {sign} ${at}::{{type}}", id=self.id.name, type=sql.SQL(self.id.type))
            for at, (sign, _) in enumerate(ends, start=1)
        ]
        return sql.SQL(" AND ").join([*conditions, sql.SQL("true")]), [value for _, value in ends]

    def forget(self) -> None:
        """Ask the catalog again: the table was made or changed."""
        for name in ("oid", "place", "vector", "id"):
            self.__dict__.pop(name, None)
