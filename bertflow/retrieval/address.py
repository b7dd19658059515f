"""The address of a collection of vectors in a database.

    lancedb:FOLDER/TABLE                         LanceDB in a folder; also lancedb:s3://bucket/folder/TABLE
    qdrant:http://host:6333/COLLECTION           a Qdrant server; qdrant:FOLDER/COLLECTION is its local mode
    pgvector:postgresql://user@host/db/TABLE     Postgres with pgvector; also .../db/SCHEMA.TABLE

``?vector=COLUMN&id=COLUMN`` after an address names the columns where there are several.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from bertflow.errors import DataError, UsageError, require_no_secret
from bertflow.registry import lookup

COLLECTIONS: Mapping[str, str] = {
    "lancedb": "bertflow.databases.lancedb:LanceCollection",
    "qdrant": "bertflow.databases.qdrant:QdrantCollection",
    "pgvector": "bertflow.databases.pgvector:PostgresCollection",
}
"""Kind of database -> the module and the class of its collections."""
FORM = "KIND:PLACE/NAME[?vector=COLUMN&id=COLUMN]"
EXAMPLES = (
    "For example lancedb:FOLDER/TABLE, qdrant:http://localhost:6333/COLLECTION or "
    "pgvector:postgresql://user@host/db/TABLE."
)


@dataclass(frozen=True)
class Address:
    """Where a collection is.

    Attributes:
        kind: A row of ``COLLECTIONS``.
        place: Folder or address of the database.
        name: Name of the table or collection.
        vector: Column (or named vector) that holds the vectors; None for the only one.
        id: Column of the ids; None for the only possible one.
        options: Whatever else stands after the ``?``, for the database.
    """

    kind: str
    place: str
    name: str
    vector: str | None = None
    id: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        columns = {"vector": self.vector, "id": self.id}
        query = {**{name: value for name, value in columns.items() if value is not None}, **self.options}
        slash, mark = "" if self.place.endswith("/") else "/", "?" if query else ""
        return f"{self.kind}:{self.place}{slash}{self.name}{mark}{urlencode(query, quote_via=quote)}"

    def chosen(self, option: str, possible: Sequence[str], what: str) -> str:
        """The column that is named after the ``?``, or the only possible one.

        Args:
            option: vector or id.
            possible: Names of columns; a vector of Qdrant may have the empty name.
            what: What such a column is.

        Raises:
            DataError: If there is none.
            UsageError: If another one is named, or one of several has to be.
        """
        wanted = getattr(self, option)
        if wanted in possible:
            return str(wanted)
        if not possible:
            raise DataError(f"{self} should have {what}, but there is none. Add one, or name another place.")
        if wanted is None and len(possible) == 1:
            return possible[0]
        got = "none" if wanted is None else repr(wanted)
        known = ", ".join(possible) or f"one without a name; leave ?{option}=... out"
        raise UsageError(f"{self} should name {what}, as ?{option}=NAME, got {got}. It has {known}.")


def parse_address(address: str) -> Address:
    """Read the address of a collection.

    Raises:
        UsageError: If it is not of the form ``FORM``, its kind is unknown, or it holds a password or a key.
    """
    require_no_secret(address)
    kind, colon, rest = address.partition(":")
    if not colon:
        raise UsageError(f"The address of a collection should be {FORM}, got {address!r}. {EXAMPLES}")
    lookup("kind of database", COLLECTIONS, kind)
    path, _, query = rest.partition("?")
    place, slash, name = path.rpartition("/")
    if not (slash and name and (place or path.startswith("/"))) or name in (".", ".."):
        raise UsageError(f"{address!r} should name a place and, after its last '/', a table: {FORM}. {EXAMPLES}")
    try:
        named = dict(parse_qsl(query, strict_parsing=True, keep_blank_values=True)) if query else {}
    except ValueError:
        named = {query: ""}
    if empty := [key for key, value in named.items() if not value]:
        raise UsageError(f"After '?', {path!r} should have NAME=VALUE joined by '&', got {empty[0]!r}. Give both.")
    return Address(kind, place or "/", name, named.pop("vector", None), named.pop("id", None), named)
