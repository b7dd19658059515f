"""A collection of Qdrant: of a server, or of the client's local mode, which is a folder.

    qdrant:http://host:6333/COLLECTION?vector=NAME        (the key of the server, if it has one: QDRANT_API_KEY)
    qdrant:FOLDER/COLLECTION?vector=NAME

The new collection has the settings of its source; only the width and the metric of the calibrated vector differ. Other
named vectors, sparse ones and payload are copied. A part is a range of ids, in Qdrant's order: numbers, then UUIDs. The
first part has no begin and the last one no end, so points that are added before they are read come along.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import BertflowError, DataError, UsageError, needs, reason_of
from bertflow.integrations.qdrant_settings import MARK, dense_vectors, settings_like
from bertflow.registry import did_you_mean
from bertflow.retrieval.collections import (
    AbstractCollection,
    Address,
    CollectionFacts,
    CollectionRows,
    Id,
    Part,
    Switch,
)
from bertflow.similarity import unit_rows

with needs("qdrant-client", "qdrant"):
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ApiException

logger = logging.getLogger("bertflow")

SECONDS = 60
"""How long a server may take for one request."""
BATCH = 100
"""Points, or queries, in one request; a server refuses those of more than 32 MB."""
METRICS = {models.Distance.COSINE: "cosine", models.Distance.DOT: "dot", models.Distance.EUCLID: "euclidean"}


class QdrantCollection(AbstractCollection):
    """A collection of Qdrant; see the module."""

    _folders: ClassVar[dict[Path, list["QdrantCollection"]]] = {}
    """Local mode allows one client a folder: all collections of a folder share it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        address.require_options()
        if address.id is not None:
            raise UsageError(f"{address} names a column of ids, but points have one id. Leave ?id=... out.")
        self.several = "://" in address.place
        self._folder = None if self.several else Path(os.path.realpath(address.place))
        self._client: QdrantClient | None = None
        self._name = unquote(address.name)
        if self._folder is None or (self._folder / "meta.json").is_file():
            self._connect()
            # An alias is followed once: it may be moved while the collection is read.
            with self._told():
                aliases = {one.alias_name: one.collection_name for one in self._open.get_aliases().aliases}
            self._name = aliases.get(self._name, self._name)

    def _connect(self) -> None:
        with self._told():
            if self._folder is None:
                key = os.environ.get("QDRANT_API_KEY")
                options: dict[str, Any] = {"api_key": key, "timeout": SECONDS, "check_compatibility": False}
                self._client = QdrantClient(url=self.address.place, **options)
                return
            users = self._folders.setdefault(self._folder, [])
            self._client = users[0]._client if users else QdrantClient(path=str(self._folder))
            users.append(self)

    def close(self) -> None:
        """Close the client, unless another collection of the same folder uses it."""
        users = self._folders.get(self._folder, []) if self._folder else []
        if self in users:
            users.remove(self)
        if self._client is not None and not users:
            self._client.close()
        self._client = None

    def exists(self) -> bool:
        """Whether the collection is there."""
        if self._client is None:
            return False
        with self._told():
            return self._client.collection_exists(self._name)

    @property
    def facts(self) -> CollectionFacts:
        """What is known of it, as it is now.

        Raises:
            DataError: If it is missing, or has no vectors.
            UsageError: If a vector has to be chosen.
        """
        info, vector = self._info(), self._vector
        params = dense_vectors(info)[vector]
        kept = (info.config.metadata or {}).get(MARK, {}).get("calibrator")
        with self._told():
            points = self._open.count(self._name, exact=True).count
        metric = METRICS.get(params.distance)
        index = f"HNSW ({params.distance})" if self.several else None  # local mode compares every row
        stored = "float16" if params.datatype == models.Datatype.FLOAT16 else "float32"
        return CollectionFacts(points, params.size, metric, index, "id", vector, kept, stored)

    def parts(self, rows: int) -> list[Part]:
        """Ranges of ids."""
        begins: list[Id | None] = [None]
        while True:
            with self._told():
                _, after = self._open.scroll(
                    self._name, limit=rows, offset=begins[-1], with_payload=False, with_vectors=False
                )
            if after is None:
                break
            begins.append(_plain(after))
        return [{"begin": one, "end": end, "rows": rows} for one, end in zip(begins, [*begins[1:], None], strict=True)]

    def read(self, part: Part) -> CollectionRows:
        """The points of a part, by id; payload is what Qdrant calls so, with their other vectors."""
        found: list[models.Record] = []
        after, end = part["begin"], part["end"]
        while True:
            with self._told():
                page, after = self._open.scroll(
                    self._name, limit=part["rows"], offset=after, with_payload=True, with_vectors=True
                )
            found += [one for one in page if end is None or _order(_plain(one.id)) < _order(end)]
            if after is None or (end is not None and _order(_plain(after)) >= _order(end)):
                break
        name = self._vector
        vectors = np.zeros((len(found), dense_vectors(self._info())[name].size), np.float32)
        bad, payload = {}, []
        for at, point in enumerate(found):
            held = _vectors(point)
            vector = held.pop(name, None)
            payload.append({"payload": point.payload, "vectors": held})
            if vector is None:
                bad[at] = f"It has no vector {name!r}."
            else:
                vectors[at] = vector
        return CollectionRows([_plain(one.id) for one in found], vectors, payload, bad)

    def create_like(self, source: AbstractCollection, dim: int, calibrator: str) -> None:
        """Make a collection with the settings of ``source``, and its indexes of payload.

        Raises:
            DataError: If it is there already, or Qdrant refuses it.
            UsageError: If the source has shards of the user's, or names its vectors otherwise.
        """
        assert isinstance(source, QdrantCollection), "collections of one kind are asked for"
        if self.address.vector not in (None, source._vector):
            raise UsageError(f"{self.address} should name the vector as its source does: {source._vector!r}.")
        info = source._info()
        if info.config.params.sharding_method == models.ShardingMethod.CUSTOM:
            raise UsageError(
                f"{source.address} has shards by keys of its own, which cannot be copied. Copy it without."
            )
        if self._client is None:
            self._connect()
        if self.exists():
            raise DataError(f"{self.address} is there already. Name a new collection.")
        with self._told():
            self._open.create_collection(self._name, **settings_like(info, source._vector, dim, calibrator))
            for field, index in info.payload_schema.items():
                self._open.create_payload_index(self._name, field, field_schema=index.params or index.data_type)

    def drop(self, source: AbstractCollection) -> None:
        """Delete the collection."""
        with self._told():
            self._open.delete_collection(self._name)

    def write(self, part: Part, rows: CollectionRows) -> None:
        """Put the points of a part there; those of equal ids are replaced."""
        points = [
            models.PointStruct(id=key, vector=_joined(vector, self._vector, held["vectors"]), payload=held["payload"])
            for key, vector, held in zip(rows.ids, rows.vectors.tolist(), rows.payload, strict=True)
        ]
        if self._folder is not None:
            # Each point is a transaction, which waits for the disk: 30 times slower. Only a loss of power needs that.
            held = self._open._client.collections[self._name]  # type: ignore[attr-defined]
            held.storage.storage.execute("PRAGMA synchronous = OFF")
        for start in range(0, len(points), BATCH):
            with self._told():
                self._open.upsert(self._name, points[start : start + BATCH], wait=True)

    def finish(self, source: AbstractCollection) -> None:
        """Wait until the server has built its index.

        Raises:
            DataError: If it could not.
        """
        while (info := self._info()).status == models.CollectionStatus.YELLOW:
            logger.info("%s: indexed %s vectors", self.address, f"{info.indexed_vectors_count or 0:,}")
            time.sleep(1)
        if info.status == models.CollectionStatus.RED:
            raise DataError(f"{self.address}: Qdrant could not build the index: {info.optimizer_status}.")

    def search(
        self, queries: NDArray[np.float32], k: int, exact: bool = False
    ) -> tuple[list[list[Id]], NDArray[np.float32]]:
        """The nearest points; local mode is always exact."""
        ids: list[list[Id]] = []
        cosines = np.full((len(queries), k), np.nan, np.float32)
        params = models.SearchParams(exact=True) if exact and self.several else None
        vector = self._vector
        metric = dense_vectors(self._info())[vector].distance
        for start in range(0, len(queries), BATCH):
            requests = [
                models.QueryRequest(query=query, using=vector or None, limit=k, params=params)
                for query in queries[start : start + BATCH].tolist()
            ]
            with self._told():
                answers = self._open.query_batch_points(self._name, requests)
            for row, answer in enumerate(answers, start):
                found = [_plain(point.id) for point in answer.points]
                scores = np.array([point.score for point in answer.points])
                if metric != models.Distance.COSINE and found:
                    scores = unit_rows(self.vectors_of(found)) @ unit_rows(queries[row])
                cosines[row, : len(found)] = scores
                ids.append(found)
        return ids, cosines

    def fetch(self, ids: Sequence[Id]) -> list[dict[str, Any]]:
        """The payload of some points."""
        return [point.payload or {} for point in self._points(ids, with_payload=True)]

    def vectors_of(self, ids: Sequence[Id]) -> NDArray[np.float32]:
        """The vectors of some points, as Qdrant keeps them: for cosine, they have unit length."""
        name = self._vector
        found = [_vectors(one).get(name) for one in self._points(ids, with_vectors=True)]
        if missing := [key for key, vector in zip(ids, found, strict=True) if vector is None]:
            raise DataError(f"{self.address}: point {missing[0]!r} has no vector {name!r}.")
        return np.array(found, np.float32).reshape(len(ids), -1)

    def _points(self, ids: Sequence[Id], **wanted: bool) -> list[models.Record]:
        with self._told():
            found = {_plain(one.id): one for one in self._open.retrieve(self._name, list(ids), **wanted)}
        return self.in_order(ids, found)

    def switch(self, target: AbstractCollection) -> Switch:
        """Move every alias of this collection; a collection itself cannot be renamed."""
        assert isinstance(target, QdrantCollection), "collections of one kind are asked for"
        with self._told():
            aliases = sorted(
                one.alias_name for one in self._open.get_aliases().aliases if one.collection_name == self._name
            )
        asked = unquote(self.address.name)
        aliases = [asked] if asked in aliases else aliases  # another one may be kept on purpose
        if not aliases or self.address.place != target.address.place:
            words = f"# Qdrant renames no collection, and no alias leads to {self._name}: name {target._name} instead."
            return Switch((words,), (f"# Name {self._name} again.",), None, str(target.address))
        moves = [
            operation
            for alias in aliases
            for operation in (
                models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)),
                models.CreateAliasOperation(
                    create_alias=models.CreateAlias(collection_name=target._name, alias_name=alias)
                ),
            )
        ]

        def apply() -> None:
            with self._told():
                self._open.update_collection_aliases(moves)

        place = f"url={self.address.place!r}, api_key=os.environ.get('QDRANT_API_KEY')"
        opening = (
            "import os",
            "from qdrant_client import QdrantClient, models",
            f"client = QdrantClient({place if self.several else f'path={self.address.place!r}'})",
        )
        done, undone = ((*opening, _typed(aliases, name)) for name in (target._name, self._name))
        return Switch(done, undone, apply, str(replace(self.address, name=quote(aliases[0], safe=""))))

    @property
    def _open(self) -> QdrantClient:
        if self._client is None:
            raise DataError(f"{self.address} does not exist: {self.address.place} is not a folder of Qdrant.")
        return self._client

    def _info(self) -> models.CollectionInfo:
        if not self.exists():
            with self._told():
                known = self._client.get_collections().collections if self._client is not None else []
            close = did_you_mean(self._name, [one.name for one in known])
            raise DataError(f"{self.address} does not exist: there is no such collection.{close}")
        with self._told():
            return self._open.get_collection(self._name)

    @property
    def _vector(self) -> str:
        return self.address.chosen("vector", list(dense_vectors(self._info())), "a vector")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Qdrant says against something, as one line with the address."""
        try:
            yield
        except BertflowError:
            raise
        except (ApiException, ValueError, RuntimeError, sqlite3.Error) as error:
            raise DataError(f"{self.address}: {reason_of(error)}.") from None


def _plain(key: models.ExtendedPointId) -> Id:
    return key if isinstance(key, int) else str(key)


def _order(key: Id) -> tuple[bool, Id]:
    """Numbers come before UUIDs, which are written in one form."""
    return isinstance(key, str), key


def _vectors(point: models.Record) -> dict[str, Any]:
    """Its vectors by name; the one without a name is ''."""
    return dict(point.vector) if isinstance(point.vector, dict) else {"": point.vector} if point.vector else {}


def _joined(vector: list[float], name: str, others: dict[str, Any]) -> Any:
    return {**others, name: vector} if name or others else vector


def _typed(aliases: Sequence[str], to: str) -> str:
    """The line of Python that makes aliases lead to a collection, in one step."""
    moves = (
        f"models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name={alias!r})), "
        f"models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name={to!r}, alias_name={alias!r}))"
        for alias in aliases
    )
    return f"client.update_collection_aliases([{', '.join(moves)}])"
