"""What only Postgres does: types of columns and keys, new columns of a table, names, renames, and who may do what."""

import logging

import numpy as np
import pytest

import bertflow
from bertflow.errors import DataError, UsageError
from bertflow.retrieval.collections import open_collection

from .conftest import copied, vectors

HOSTILE = 'o"r%s; DROP TABLE docs; --{x}'
"""A name of a table that is quoted, or does harm."""


def address_of(rows, name, **options):
    return rows.address(name.replace("%", "%25").replace("/", "%2F").replace("?", "%3F"), **options)


def created(rows, opened, dim=4):
    """The table ``docs``, and a new one that was made for it."""
    source, target = (opened(rows.address(name)) for name in ("docs", "docs2"))
    target.create(source, dim, "digest")
    return source, target


def test_every_type_of_column_is_kept(postgres_rows, opened, refusal):
    postgres_rows.run("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    postgres_rows.run(
        "CREATE TABLE docs (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), n int GENERATED ALWAYS AS IDENTITY, "
        "e halfvec(8) NOT NULL, j jsonb, many text[], feel mood, raw bytea, at timestamptz, big numeric, "
        "up text GENERATED ALWAYS AS (upper(t)) STORED, t text UNIQUE CHECK (length(t) < 9) DEFAULT 'none')"
    )
    for number, row in enumerate(vectors(9)):
        postgres_rows.run(
            "INSERT INTO docs (e, j, many, feel, raw, at, big, t) VALUES "
            "(%s, '{\"a\": [1, null]}', '{x,\"y z\",NULL}', 'sad', '\\x00ff', '2024-02-29 12:00+00', 'NaN', %s)",
            *(str(row.tolist()), f"t{number}"),
        )
    source, target = created(postgres_rows, opened)
    copied(source, target)
    rest = "id, n, j, many, feel, raw, at, big, up, t"
    assert postgres_rows.run(f"SELECT {rest} FROM docs EXCEPT SELECT {rest} FROM docs2") == []
    assert target.facts.n == 9
    ((form,),) = postgres_rows.run(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'docs2'::regclass AND attname = 'e'"
    )
    assert form == "halfvec(4)"
    for broken in ("t = 'much too long'", "t = 't1'", "e = NULL"):
        assert "violates" in refusal(postgres_rows.run, f"UPDATE docs2 SET {broken}", error=Exception)


def test_rows_without_a_vector_are_copied_without_one(postgres_rows, opened, refusal):
    postgres_rows.make("docs", vectors(9))
    postgres_rows.run("UPDATE docs SET embedding = NULL WHERE id IN (2, 9)")
    source, target = opened(postgres_rows.address("docs")), opened(postgres_rows.address("docs2"))
    assert source.read({"after": None, "to": "4"}).bad == {1: "embedding should have 8 dimensions, got None."}
    target.create(source, 4, "digest")
    copied(source, target)
    assert postgres_rows.run("SELECT id, text FROM docs2 WHERE embedding IS NULL ORDER BY id") == [
        (2, "text 1"),
        (9, "text 8"),
    ]
    assert target.facts.n == source.facts.n == 9
    assert "row 2: embedding should have 4 dimensions, got None." in refusal(target.vectors_of, [1, 2])


def test_hostile_names_are_names(postgres_rows, opened):
    postgres_rows.make("docs", vectors(1))
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    postgres_rows.run(f'CREATE TABLE {quoted} ("i""d" text PRIMARY KEY, "v%s{{}}" vector(8))')
    for number, row in enumerate(vectors(5)):
        postgres_rows.run(
            f"INSERT INTO {quoted.replace('%', '%%')} VALUES (%s, %s)", f"'); DROP {number}", str(row.tolist())
        )
    source = opened(address_of(postgres_rows, HOSTILE))
    target = opened(address_of(postgres_rows, HOSTILE + "2"))
    target.create(source, 4, "digest")
    copied(source, target)
    ids = [f"'); DROP {number}" for number in range(5)]
    np.testing.assert_array_equal(target.vectors_of(ids), source.vectors_of(ids)[:, :4])
    postgres_rows.run("\n".join(source.switch(target).forward))
    assert opened(address_of(postgres_rows, HOSTILE)).facts.dim == 4
    assert postgres_rows.run("SELECT count(*) FROM docs") == [(1,)]


def test_a_new_column_of_the_same_table(postgres_rows, opened):
    postgres_rows.make("docs", vectors(9))
    postgres_rows.run("CREATE VIEW seen AS SELECT embedding FROM docs")
    source = opened(postgres_rows.address("docs", vector="embedding"))
    target = opened(postgres_rows.address("docs", vector="white"))
    assert not target.exists()
    target.create(source, 4, "digest")
    assert target.facts.n == 9
    copied(source, target)
    assert (target.facts.metric, target.facts.index) == ("cosine", "hnsw (vector_cosine_ops, m=7)")
    assert target.fetch([3]).payload == source.fetch([3]).payload == [{"text": "text 2"}]
    raw, white = source.vectors_of([1, 9]), target.vectors_of([1, 9])
    np.testing.assert_array_equal(white, raw[:, :4])
    with pytest.raises(UsageError, match=r"as \?vector=NAME, got none\. It has embedding, white\."):
        _ = opened(postgres_rows.address("docs")).facts
    steps = source.switch(target)
    postgres_rows.run("\n".join(steps.forward))
    np.testing.assert_array_equal(opened(postgres_rows.address("docs", vector="embedding")).vectors_of([1, 9]), white)
    postgres_rows.run("\n".join(steps.back))
    np.testing.assert_array_equal(opened(postgres_rows.address("docs", vector="embedding")).vectors_of([1, 9]), raw)


def test_the_printed_lines_rename_and_go_back(postgres_rows, opened):
    address, _ = postgres_rows.make("docs", vectors(9))
    postgres_rows.run("ALTER TABLE docs ADD COLUMN n int GENERATED ALWAYS AS IDENTITY")
    source, target = created(postgres_rows, opened)
    copied(source, target)
    steps = source.switch(target)
    postgres_rows.run("\n".join(steps.forward))
    assert opened(address).facts.dim == 4
    # The numbers go on: no id is given twice.
    postgres_rows.run("INSERT INTO docs (text) VALUES ('new')")
    ((key, number),) = postgres_rows.run("SELECT id, n FROM docs WHERE text = 'new'")
    assert (key, number) == (10, 11)
    postgres_rows.run("\n".join(steps.back))
    assert opened(address).facts.dim == 8
    assert opened(postgres_rows.address("docs2")).facts.dim == 4
    postgres_rows.run("INSERT INTO docs (text) VALUES ('back')")
    assert postgres_rows.run("SELECT id FROM docs WHERE text = 'back'") == [(11,)]
    postgres_rows.run("\n".join(steps.forward))
    postgres_rows.run("DROP TABLE docs_before CASCADE")
    postgres_rows.run("INSERT INTO docs (text) VALUES ('last')")
    assert opened(address).facts.dim == 4


def test_others_may_read_the_new_table_as_the_old_one(postgres_rows, opened):
    postgres_rows.run('DO $$ BEGIN CREATE ROLE "read er"; EXCEPTION WHEN duplicate_object THEN NULL; END $$')
    address, _ = postgres_rows.make("docs", vectors(3))
    postgres_rows.run('GRANT SELECT, UPDATE ON docs TO "read er" WITH GRANT OPTION; GRANT SELECT ON docs TO PUBLIC')
    opened(postgres_rows.address("docs2")).create(opened(address), 4, "digest")
    grants = "SELECT acl::text FROM pg_class, unnest(relacl) AS acl WHERE relname = '{}' ORDER BY 1"
    assert postgres_rows.run(grants.format("docs2")) == postgres_rows.run(grants.format("docs"))


def test_row_level_security_wants_a_column(postgres_rows, opened):
    address, _ = postgres_rows.make("docs", vectors(3))
    postgres_rows.run("ALTER TABLE docs ENABLE ROW LEVEL SECURITY")
    with pytest.raises(UsageError, match=r"has row-level security, .* with \?vector=embedding_2\."):
        opened(postgres_rows.address("docs2")).create(opened(address), 4, "digest")
    assert not opened(postgres_rows.address("docs2")).exists()


KEYS = {
    "a int, b int, PRIMARY KEY (a, b)": "should have a primary key of one column",
    "a int UNIQUE": "should have a primary key of one column",
    "a int UNIQUE NOT NULL, b text UNIQUE NOT NULL": r"as \?id=NAME, got none\. It has a, b\.",
}


@pytest.mark.parametrize("columns", KEYS)
def test_a_key_of_one_column_is_wanted(postgres_rows, opened, columns):
    postgres_rows.run(f"CREATE TABLE docs ({columns}, e vector(3))")
    with pytest.raises((DataError, UsageError), match=KEYS[columns]):
        _ = opened(postgres_rows.address("docs")).facts


def test_another_key_can_be_named(postgres_rows, opened):
    postgres_rows.run("CREATE TABLE docs (a int PRIMARY KEY, slug text UNIQUE NOT NULL, e vector(3))")
    postgres_rows.run("INSERT INTO docs SELECT n, 'slug ' || n, '[1,2,3]' FROM generate_series(1, 12) AS n")
    source = opened(postgres_rows.address("docs", id="slug"))
    assert source.read(source.parts(5)[0]).ids == ["slug 1", "slug 10", "slug 11", "slug 12", "slug 2"]
    target = opened(postgres_rows.address("docs2", id="slug"))
    target.create(source, 2, "digest")
    copied(source, target, 2)
    assert target.facts.n == 12


def test_halfvec_is_reindexed_as_near_as_it_can_be(postgres_rows, opened, tmp_path):
    postgres_rows.run("CREATE TABLE docs (id bigserial PRIMARY KEY, embedding halfvec(8), text text)")
    postgres_rows.insert("docs", vectors(300))
    job = {"calibrator": "whitening", "output": tmp_path / "job", "progress": False}
    done = bertflow.reindex(postgres_rows.address("docs"), postgres_rows.address("docs2"), **job)
    assert (done.facts.n, done.verified, done.facts.stored) == (300, 300, "float16")
    assert 1e-5 < done.distance < 1e-3
    assert opened(postgres_rows.address("docs2")).vector.kind == "halfvec"


@pytest.mark.parametrize(("kind", "dim"), [("vector", 2001), ("halfvec", 4001)])
def test_vectors_too_wide_for_an_index_get_none(postgres_rows, opened, caplog, kind, dim):
    postgres_rows.run(f"CREATE TABLE docs (id int PRIMARY KEY, e {kind}(8))")
    postgres_rows.run(f"CREATE INDEX ON docs USING hnsw (e {kind}_ip_ops)")
    source, target = opened(postgres_rows.address("docs")), opened(postgres_rows.address("docs2"))
    assert source.facts.metric == "dot"
    target.create(source, dim, "digest")
    with caplog.at_level(logging.WARNING, "bertflow"):
        target.finish(source)
    assert f"stop at {dim - 1:,} dimensions for {kind}, and these are {dim:,}" in caplog.text
    assert target.facts.index is None


def test_without_an_index_of_the_source_none_is_made(postgres_rows, opened):
    postgres_rows.make("docs", vectors(3))
    postgres_rows.run("DROP INDEX docs_embedding_idx")
    source, target = created(postgres_rows, opened)
    copied(source, target)
    assert (target.facts.index, target.facts.metric) == (None, None)
    assert target.search(source.vectors_of([2])[:, :4], 1) == [[2]]


def test_more_answers_than_hnsw_looks_for_by_itself(postgres_rows, opened):
    address, _ = postgres_rows.make("docs", vectors(200))
    postgres_rows.run("DROP INDEX docs_embedding_idx; CREATE INDEX ON docs USING hnsw (embedding vector_cosine_ops)")
    postgres_rows.run("ANALYZE docs")
    assert [len(row) for row in opened(address).search(vectors(2, seed=1), 150)] == [150, 150]


def test_a_table_of_another_schema(postgres_rows, opened):
    postgres_rows.run("CREATE SCHEMA app; CREATE TABLE app.docs (id int PRIMARY KEY, e vector(3))")
    source = opened(postgres_rows.address("app.docs"))
    with pytest.raises(UsageError, match=r"name it app\.docs2\."):
        opened(postgres_rows.address("docs2")).create(source, 2, "digest")
    with pytest.raises(UsageError, match=r"name it app\.docs2\."):
        opened(postgres_rows.address("public.docs2")).create(source, 2, "digest")
    target = opened(postgres_rows.address("app.docs2"))
    target.create(source, 2, "digest")
    assert (target.exists(), target.facts.dim) == (True, 2)


def test_rows_that_are_added_meanwhile_come_along(postgres_rows, opened):
    postgres_rows.make("docs", vectors(10))
    source, target = created(postgres_rows, opened, 8)
    parts = source.parts(4)
    postgres_rows.insert("docs", vectors(3, seed=5))
    postgres_rows.run("DELETE FROM docs WHERE id = 2")
    for part in parts:
        target.upsert(source, part, source.read(part))
    assert postgres_rows.run("SELECT id FROM docs EXCEPT SELECT id FROM docs2") == []
    assert target.facts.n == 12


def test_the_database_of_the_target_is_that_of_the_source(postgres, postgres_rows, opened, refusal):
    address, _ = postgres_rows.make("docs", vectors(3))
    elsewhere = address.replace("/docs?", "/docs2?").replace(f"/{postgres_rows.name}/", "/template1/")
    assert "the database has no pgvector" in refusal(open_collection, elsewhere)
    other = type(postgres_rows)(postgres)
    with pytest.raises(UsageError, match="should be in the database of"):
        opened(other.address("docs2")).create(opened(address), 4, "digest")


def test_a_password_that_postgres_repeats_is_not_said(monkeypatch):
    def echoing(*_, **__):
        raise pytest.importorskip("psycopg").OperationalError("bad connection: host=h password=s3cret")

    monkeypatch.setattr("psycopg.connect", echoing)
    with pytest.raises(DataError, match=r"docs: bad connection: host=h password=\*\*\*\.$"):
        open_collection("pgvector:postgresql://ann@127.0.0.1:1/db/docs")


def test_an_option_that_libpq_does_not_know_is_refused():
    with pytest.raises(UsageError, match=r'invalid connection option "colour"\.$'):
        open_collection("pgvector:postgresql://ann@127.0.0.1:1/db/docs?colour=red")
