"""Postgres by its catalog: connections, statements with names, and what is asked of tables, columns and indexes.

Names in statements go through ``psycopg.sql``. Placeholders are Postgres' own, ``$1``, so that a ``%`` in a name is a
character like any other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from bertflow.errors import DataError, UsageError, needs, reason_of
from bertflow.retrieval.address import Address

with needs("psycopg, pgvector", "pgvector"):
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import conninfo, rows, sql

Name: TypeAlias = "str | tuple[str, ...] | sql.Composable"
"""Name of a table or column in a statement: one name, those of schema and table, or anything else that is composed."""
DEFAULTS = {"connect_timeout": "10", "application_name": "bertflow"}
"""Options of libpq where the address does not give them; the time is in seconds."""
INTEGERS = ("smallint", "integer", "bigint")
"""Types of ids that are given as numbers; others are given as text."""
METRICS = {"cosine": "cosine", "ip": "dot", "l2": "euclidean"}
"""The metric in the name of a class of operators, as in ``vector_ip_ops``, and what we call it."""
MARK = "bertflow: calibrator "
"""How the comment on a column of calibrated vectors begins; a digest follows."""
LOCK = "SET LOCAL lock_timeout = '10s';"
"""A rename waits for running queries, and all later ones wait for it: it gives up first."""
STAY = "-- Views, foreign keys and triggers stay with the old one: make them again for the new one."
HOME = """
SELECT set_config('search_path',
                  concat_ws(', ', nullif(current_setting('search_path'), ''), extnamespace::regnamespace), false)
FROM pg_extension WHERE extname = 'vector'
"""
"""pgvector is found also where a host gives it a schema of its own."""
TABLE = """
SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, relowner::regrole::text AS owner,
       relrowsecurity AS secured
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(concat_ws('.', quote_ident($1::text), quote_ident($2::text)))
"""
COLUMNS = """
SELECT a.attname::text AS name, t.typname::text AS kind, format_type(a.atttypid, NULL) AS type, a.atttypmod AS width,
       a.attgenerated <> '' AS generated
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
KEYS = """
SELECT a.attname::text AS name, bool_or(i.indisprimary) AS main
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
      AND i.indnkeyatts = 1 AND a.attnotnull GROUP BY 1 ORDER BY 1
"""
INDEXES = """
SELECT DISTINCT n.nspname::text AS schema, c.relname::text AS name, m.amname::text AS method,
       o.opcname::text AS operators, c.reloptions AS options, i.indisvalid AS valid
FROM pg_depend d JOIN pg_index i ON i.indexrelid = d.objid JOIN pg_class c ON c.oid = i.indexrelid
     JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_am m ON m.oid = c.relam
     JOIN pg_opclass o ON o.oid = i.indclass[0]
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = $1 AND a.attname = $2 ORDER BY 2
"""
SETTINGS = """
SELECT set_config('enable_indexscan', $1, true) AS scan, set_config('hnsw.ef_search', least(1000, greatest($2::int,
       coalesce(nullif(current_setting('hnsw.ef_search', true), '')::int, 40)))::text, true) AS most
"""
GRANTS = """
SELECT format('GRANT %s ON %s TO %s%s', privilege_type, $2::regclass,
              CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
              CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM pg_class, aclexplode(relacl) WHERE oid = $1 AND grantee <> relowner
"""
SEQUENCES = """
SELECT attname::text AS name, pg_get_serial_sequence($1::regclass::text, attname) AS one,
       pg_get_serial_sequence($2::regclass::text, attname) AS other
FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
"""
"""The sequences of a table, and those of another one like it: a serial column has none there, an identity has one."""


def connect(address: Address) -> "psycopg.Connection[Any]":
    """Open a database for statements that each stand alone.

    Raises:
        UsageError: If its address cannot be read.
        DataError: If it has no pgvector.
    """
    try:
        place = conninfo.make_conninfo(address.place, **{**DEFAULTS, **address.options})
    except psycopg.ProgrammingError as error:
        bare = replace(address, options={})  # they may be anything
        raise UsageError(
            f"{bare} should hold postgresql://USER@HOST:PORT/DATABASE and options of libpq: {reason_of(error)}."
        ) from None
    # Poolers between us and the server know no prepared statements.
    options: Mapping[str, Any] = {"autocommit": True, "prepare_threshold": None, "row_factory": rows.namedtuple_row}
    opened = psycopg.connect(place, cursor_factory=psycopg.RawCursor, **options)
    if opened.execute(HOME).fetchone() is None:
        opened.close()
        raise DataError(f"{address}: the database has no pgvector. Install it, and run CREATE EXTENSION vector.")
    register_vector(opened)
    return opened


def composed(template: str, **parts: Name) -> sql.Composed:
    """A statement: names, or tuples of schema and name, are quoted and put at their places."""
    named = {key: (one,) if isinstance(one, str) else one for key, one in parts.items()}
    made = {key: sql.Identifier(*one) if isinstance(one, tuple) else one for key, one in named.items()}
    return sql.SQL(template).format(**made)
