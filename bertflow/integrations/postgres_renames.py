"""How a new table, or column, of Postgres takes the name of the old one, and how it goes back."""

from dataclasses import dataclass

from bertflow.errors import needs
from bertflow.integrations.postgres import Connection, composed, execute_statement

with needs("psycopg, pgvector", "pgvector"):
    from psycopg import sql

LOCK = "SET LOCAL lock_timeout = '10s'"
"""A rename waits for running queries, and all later ones wait for it: it gives up first."""
SEQUENCES = """
SELECT a.attname::text, d.objid::regclass::text, d.deptype = 'i'
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
     JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = $1 AND d.deptype IN ('a', 'i') ORDER BY 1
"""
VIEWS = """
SELECT DISTINCT 'view ' || r.ev_class::regclass FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = $1 AND r.ev_class <> $1 ORDER BY 1
"""
OTHERS = """
SELECT format('foreign key %I of %s', conname, conrelid::regclass) FROM pg_constraint
WHERE contype = 'f' AND $1 IN (confrelid, conrelid)
UNION SELECT format('trigger %I', tgname) FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal ORDER BY 1
"""


@dataclass(frozen=True)
class Swap:
    """Statements that put something new in the place of the old, those that undo it, and what does not follow."""

    forward: list[sql.Composed]
    back: list[sql.Composed]
    left: list[str]


def swapped_columns(opened: Connection, table: tuple[str, str], old: str, new: str) -> Swap:
    """Give a new column the name of the old one, which is renamed."""
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1"
    before = _free(old, {name for (name,) in execute_statement(opened, columns, _oid(opened, table))})
    rename = "ALTER TABLE {table} RENAME COLUMN {one} TO {other}"

    def renames(*pairs: tuple[str, str]) -> list[sql.Composed]:
        return [composed(LOCK), *(composed(rename, table=table, one=one, other=other) for one, other in pairs)]

    left = [name for (name,) in execute_statement(opened, VIEWS, _oid(opened, table))]
    return Swap(renames((old, before), (new, old)), renames((old, new), (before, old)), _lines(left))


def swapped_tables(opened: Connection, old: tuple[str, str], new: tuple[str, str]) -> Swap:
    """Give a new table the name of the old one, which is renamed; its sequences go on where they are."""
    schema, name = old
    tables = "SELECT relname::text FROM pg_class WHERE relnamespace = $1::text::regnamespace"
    quoted = composed("{schema}", schema=schema).as_string(opened)
    before = (schema, _free(name, {one for (one,) in execute_statement(opened, tables, quoted)}))
    oids = _oid(opened, old), _oid(opened, new)
    owners = [
        execute_statement(opened, "SELECT relowner::regrole::text FROM pg_class WHERE oid = $1", oid)[0][0]
        for oid in oids
    ]
    forward, back = [composed(LOCK)], [composed(LOCK)]
    if owners[0] != owners[1]:
        forward.append(composed("ALTER TABLE {new} OWNER TO {owner}", new=new, owner=sql.SQL(owners[0])))
    own = {column: sequence for column, sequence, identity in execute_statement(opened, SEQUENCES, oids[1]) if identity}
    for column, sequence, identity in execute_statement(opened, SEQUENCES, oids[0]):
        if identity and column in own:
            pair = sql.Literal(own[column]), sql.Literal(sequence)
            forward.append(composed("SELECT setval({to}, nextval({of}))", to=pair[0], of=pair[1]))
            back.append(composed("SELECT setval({to}, nextval({of}))", to=pair[1], of=pair[0]))
        elif not identity:  # both tables take their numbers from it: it should not be dropped with the old one
            for statements, table in ((forward, new), (back, before)):
                owned = "ALTER SEQUENCE {sequence} OWNED BY {table}.{column}"
                statements.append(composed(owned, sequence=sql.SQL(sequence), table=table, column=column))
    rename = "ALTER TABLE {one} RENAME TO {other}"
    forward += [composed(rename, one=old, other=before[1]), composed(rename, one=new, other=name)]
    back += [composed(rename, one=old, other=new[1]), composed(rename, one=before, other=name)]
    left = [name for query in (VIEWS, OTHERS) for (name,) in execute_statement(opened, query, oids[0])]
    return Swap(forward, back, _lines(left))


def _oid(opened: Connection, table: tuple[str, str]) -> int:
    quoted = composed("{table}", table=table).as_string(opened)
    ((oid,),) = execute_statement(opened, "SELECT $1::text::regclass::oid", quoted)
    return int(oid)


def _free(name: str, taken: set[str]) -> str:
    """A name for the old one; Postgres cuts names after 63 bytes."""
    stem = name.encode()[:52].decode(errors="ignore")
    return next(one for one in (f"{stem}_before{number or ''}" for number in range(len(taken) + 1)) if one not in taken)


def _lines(names: list[str]) -> list[str]:
    """Names may hold line ends, which would end the comment that shows them."""
    return [" ".join(name.split()) for name in names]
