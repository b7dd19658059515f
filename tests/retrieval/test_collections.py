"""The address of a collection, and the rows that are read from one."""

import numpy as np
import pyarrow as pa
import pytest

from bertflow.errors import DataError, UsageError
from bertflow.retrieval.address import EXAMPLES, FORM, Address, parse_address
from bertflow.retrieval.collections import CollectionRows

WHOLE = [
    ("lancedb:db/docs", Address("lancedb", "db", "docs")),
    ("lancedb:/docs", Address("lancedb", "/", "docs")),
    ("lancedb:s3://bucket/db/docs?id=key", Address("lancedb", "s3://bucket/db", "docs", id="key")),
    ("qdrant:http://localhost:6333/docs", Address("qdrant", "http://localhost:6333", "docs")),
    (
        "pgvector:postgresql://ann@host/db/public.docs?vector=a%26b&id=id&sslmode=require",
        Address("pgvector", "postgresql://ann@host/db", "public.docs", "a&b", "id", {"sslmode": "require"}),
    ),
]
WRONG = {
    "docs": f"The address of a collection should be {FORM}, got 'docs'. {EXAMPLES}",
    "lance:db/docs": "Unknown kind of database 'lance'. Known: lancedb, qdrant, pgvector. Did you mean lancedb?",
    "lancedb:docs": f"'lancedb:docs' should name a place and, after its last '/', a table: {FORM}. {EXAMPLES}",
    "qdrant:db/": f"'qdrant:db/' should name a place and, after its last '/', a table: {FORM}. {EXAMPLES}",
    "lancedb:db/docs?vector": "After '?', 'db/docs' should have NAME=VALUE joined by '&', got 'vector'. Give both.",
}


@pytest.mark.parametrize(("text", "address"), WHOLE, ids=[text for text, _ in WHOLE])
def test_an_address_is_read_and_written(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_address_is_refused_in_one_line(text, refusal):
    assert refusal(parse_address, text, error=UsageError) == WRONG[text]


@pytest.mark.parametrize(
    ("asked", "possible", "expected"), [("", ["a"], "a"), ("?vector=b", ["a", "b"], "b"), ("", [""], "")]
)
def test_a_column_is_the_one_that_is_named_or_the_only_one(asked, possible, expected):
    assert parse_address(f"qdrant:db/docs{asked}").chosen("vector", possible, "a vector") == expected


@pytest.mark.parametrize(
    ("asked", "possible", "error", "expected"),
    [
        ("", ["a", "b"], UsageError, "should name a vector, as ?vector=NAME, got none. It has a, b."),
        ("?vector=c", ["a"], UsageError, "should name a vector, as ?vector=NAME, got 'c'. It has a."),
        ("?vector=c", [""], UsageError, "got 'c'. It has one without a name; leave ?vector=... out."),
        ("", [], DataError, "should have a vector, but there is none. Add one, or name another place."),
    ],
)
def test_a_column_that_cannot_be_told_is_one_line(asked, possible, error, expected, refusal):
    assert refusal(
        parse_address(f"qdrant:db/docs{asked}").chosen, "vector", possible, "a vector", error=error
    ).endswith(expected)


@pytest.mark.parametrize("payload", [["a", "b", "c"], pa.table({"text": ["a", "b", "c"]})], ids=["list", "table"])
def test_rows_are_left_out_with_their_payload(payload):
    rows = CollectionRows([1, 2, 3], np.zeros((3, 2), np.float32), payload, {1: "no vector"})
    kept = rows.kept([0, 2], np.ones((2, 4), np.float32))
    assert (kept.ids, len(kept), kept.vectors.shape, dict(kept.bad)) == ([1, 3], 2, (2, 4), {})
    texts = kept.payload if isinstance(kept.payload, list) else kept.payload["text"].to_pylist()
    assert texts == ["a", "c"]
