"""A collection of Qdrant: of a server, or of the client's local mode, which is a folder.

    qdrant:http://host:6333/COLLECTION?vector=NAME        (the key of the server, if it has one: QDRANT_API_KEY)
    qdrant:FOLDER/COLLECTION?vector=NAME

The new collection has the settings of its source; only the width and the metric of the calibrated vector differ. Other
named vectors, sparse ones and payload are copied. A part is a range of ids, in Qdrant's order: numbers, then UUIDs. The
first part has no begin and the last one no end, so points that are added before they are read come along.
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote
from weakref import WeakValueDictionary

import numpy as np

from bertflow.array_types import Float32
from bertflow.data.corpus import chunks
from bertflow.errors import DataError, UsageError, logger, needs
from bertflow.retrieval.address import Address
from bertflow.retrieval.collections import AbstractCollection, CollectionFacts, CollectionRows, Id, Part, Switch

with needs("qdrant-client", "qdrant"):
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ApiException


SECONDS = 60
"""How long a server may take for one request."""
BATCH = 100
"""Points, or queries, in one request; a server refuses those of more than 32 MB."""
METRICS = {models.Distance.COSINE: "cosine", models.Distance.DOT: "dot", models.Distance.EUCLID: "euclidean"}
MARK = "bertflow"
"""The key of what is kept in the metadata of a calibrated collection."""
COPIED = ("shard_number", "replication_factor", "write_consistency_factor", "on_disk_payload", "payload", "id_tracker")
"""Parameters of a collection that the new one gets as they are."""
MOVE = (
    "models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name={0!r})), models.CreateAliasOperation("
    "create_alias=models.CreateAlias(collection_name={1!r}, alias_name={0!r}))"
)
"""Python that lets an alias lead to another collection."""


class QdrantCollection(AbstractCollection):
    """A collection of Qdrant; see the module."""

    errors = (ApiException, ValueError, RuntimeError, sqlite3.Error)
    _folders: ClassVar[WeakValueDictionary[str, QdrantClient]] = WeakValueDictionary()
    """Local mode allows one client a folder: its collections share it, and it is closed when no one uses it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        if address.id is not None:
            raise UsageError(f"{address} names a column of ids, but points have one id. Leave ?id=... out.")
        self._folder = None if "://" in address.place else os.path.realpath(address.place)
        self._client: QdrantClient | None = None
        self.name = unquote(address.name)
        if self._folder is None or Path(self._folder, "meta.json").is_file():
            # An alias is followed once: it may be moved while the collection is read.
            aliases = {one.alias_name: one.collection_name for one in self._connected().get_aliases().aliases}
            self.name = aliases.get(self.name, self.name)

    def _connected(self) -> QdrantClient:
        if self._client is None and self._folder is None:
            key = os.environ.get("QDRANT_API_KEY")
            self._client = QdrantClient(self.address.place, api_key=key, timeout=SECONDS, check_compatibility=False)
        elif self._client is None:
            self._client = self._folders.get(str(self._folder)) or QdrantClient(path=self._folder)
            self._folders[str(self._folder)] = self._client
        return self._client

    def close(self) -> None:
        """Let go of the client, which closes itself."""
        self._client = None

    def exists(self) -> bool:
        """Whether the collection is there."""
        return self._client is not None and self._client.collection_exists(self.name)

    def info(self) -> models.CollectionInfo:
        """What the database says of it."""
        if self._client is None or not self.exists():
            raise DataError(f"{self.address} does not exist: there is no such collection. Look at its name.")
        return self._client.get_collection(self.name)

    @property
    def vector(self) -> str:
        """Name of its vector."""
        return self.address.chosen("vector", list(dense_vectors(self.info())), "a vector")

    @property
    def facts(self) -> CollectionFacts:
        """What is known of it, as it is now; its points are counted."""
        info, vector = self.info(), self.vector
        params = dense_vectors(info)[vector]
        kept = (info.config.metadata or {}).get(MARK, {}).get("calibrator")
        points = self._connected().count(self.name, exact=True).count
        metric = METRICS.get(params.distance)
        index = None if self._folder else f"HNSW ({params.distance})"  # local mode compares every row
        stored = "float16" if params.datatype == models.Datatype.FLOAT16 else "float32"
        return CollectionFacts(points, params.size, metric, index, "id", vector, kept, stored)

    def _page(self, limit: int, begin: Id | None, content: bool) -> tuple[list[models.Record], Id | None]:
        """Points from an id on, and the id after them."""
        page, after = self._connected().scroll(
            self.name, limit=limit, offset=begin, with_payload=content, with_vectors=content
        )
        return page, None if after is None else _plain(after)

    def parts(self, rows: int) -> list[Part]:
        """Ranges of ids."""
        begins: list[Id | None] = [None]
        while (after := self._page(rows, begins[-1], content=False)[1]) is not None:
            begins.append(after)
        return [{"begin": one, "end": end, "rows": rows} for one, end in zip(begins, [*begins[1:], None], strict=True)]

    def read(self, part: Part) -> CollectionRows:
        """The points of a part, by id."""
        page, after = self._page(part["rows"], part["begin"], content=True)
        found, end = page, _order(part["end"])
        while _order(after) < end:
            page, after = self._page(part["rows"], after, content=True)
            found += page
        found = [one for one in found if _order(_plain(one.id)) < end]
        return self._rows(found, found)

    def _rows(self, points: Sequence[models.Record], payload: list[Any]) -> CollectionRows:
        name, bad = self.vector, {}
        vectors = np.zeros((len(points), dense_vectors(self.info())[name].size), np.float32)
        for at, point in enumerate(points):
            if (vector := _vectors(point).get(name)) is None:
                bad[at] = f"It has no vector {name!r}."
            else:
                vectors[at] = vector
        return CollectionRows([_plain(one.id) for one in points], vectors, payload, bad)

    def create(self, source: Self, dim: int, calibrator: str) -> None:
        """Make a collection with the settings of ``source``.

        Raises:
            DataError: If Qdrant refuses it, as where it is there already.
            UsageError: If the source has shards of the user's.
        """
        client, info = self._connected(), source.info()
        if info.config.params.sharding_method == models.ShardingMethod.CUSTOM:
            raise UsageError(f"{source.address} has shards by its own keys, which cannot be copied. Copy it without.")
        client.create_collection(self.name, **settings_like(info, source.vector, dim, calibrator))

    def upsert(self, source: Self, part: Part, rows: CollectionRows) -> None:
        """Put points there; those of equal ids are replaced."""
        client, name = self._connected(), self.vector
        if self._folder is not None:
            # Each point is a transaction, which waits for the disk: 30 times slower. Only a loss of power needs that.
            held = client._client.collections[self.name]  # type: ignore[attr-defined]
            held.storage.storage.execute("PRAGMA synchronous = OFF")
        points = []
        for key, vector, point in zip(rows.ids, rows.vectors.tolist(), rows.payload, strict=True):
            every: Any = {**_vectors(point), name: vector}
            named = vector if [*every] == [""] else every
            points.append(models.PointStruct(id=key, vector=named, payload=point.payload))
        for some in chunks(points, BATCH):
            client.upsert(self.name, some, wait=True)

    def finish(self, source: Self) -> None:
        """Make the indexes of payload that ``source`` has, and wait until the server has built its own."""
        for field, index in source.info().payload_schema.items():
            self._connected().create_payload_index(self.name, field, field_schema=index.params or index.data_type)
        while (info := self.info()).status == models.CollectionStatus.YELLOW:
            logger.info("%s: indexed %s vectors", self.address, f"{info.indexed_vectors_count or 0:,}")
            time.sleep(1)
        if info.status == models.CollectionStatus.RED:
            raise DataError(f"{self.address}: Qdrant could not build the index: {info.optimizer_status}.")

    def search(self, queries: Float32, k: int, exact: bool = False) -> list[list[Id]]:
        """The nearest points; local mode is always exact."""
        using, params = self.vector or None, None if self._folder else models.SearchParams(exact=exact)
        asked = [models.QueryRequest(query=one, using=using, limit=k, params=params) for one in queries.tolist()]
        client = self._connected()
        answers = chain.from_iterable(client.query_batch_points(self.name, some) for some in chunks(asked, BATCH))
        return [[_plain(point.id) for point in answer.points] for answer in answers]

    def fetch(self, ids: Sequence[Id]) -> CollectionRows:
        """Some points; for the metric cosine, Qdrant keeps their vectors at unit length."""
        name = self.vector
        found = self._connected().retrieve(
            self.name, list(ids), with_payload=True, with_vectors=[name] if name else True
        )
        points = self.in_order(ids, {_plain(one.id): one for one in found})
        return self._rows(points, [point.payload or {} for point in points])

    def switch(self, target: Self) -> Switch:
        """Python that moves every alias of this collection; a collection itself cannot be renamed."""
        listed = self._connected().get_aliases().aliases
        aliases = sorted(one.alias_name for one in listed if one.collection_name == self.name)
        if not aliases or self.address.place != target.address.place:
            words = f"# Qdrant renames no collection, and no alias leads to {self.name}: name {target.name} instead."
            return Switch([words], [f"# Name {self.name} again."])
        key = "" if self._folder else ", api_key=os.environ.get('QDRANT_API_KEY')"
        opening = (
            "import os",
            "from qdrant_client import QdrantClient, models",
            f"client = QdrantClient({'path' if self._folder else 'url'}={self.address.place!r}{key})",
        )
        names = (target.name, self.name)
        moves = (", ".join(MOVE.format(alias, name) for alias in aliases) for name in names)
        return Switch(*([*opening, f"client.update_collection_aliases([{one}])"] for one in moves))


def dense_vectors(info: models.CollectionInfo) -> dict[str, models.VectorParams]:
    """The dense vectors of a collection by name; the one without a name is ''."""
    given = info.config.params.vectors or {}
    every = given if isinstance(given, dict) else {"": given}
    return {name: one for name, one in every.items() if one.multivector_config is None}


def settings_like(info: models.CollectionInfo, vector: str, dim: int, calibrator: str) -> dict[str, Any]:
    """What ``create_collection`` should be given.

    Args:
        info: Facts of the collection that is to be calibrated.
        vector: Name of its vector that is.
        dim: The new width of it; its metric becomes cosine.
        calibrator: Digest that is kept in the metadata.
    """
    config, params = info.config, info.config.params
    changed: dict[str, Any] = {"size": dim, "distance": models.Distance.COSINE}
    calibrated = dense_vectors(info)[vector].model_copy(update=changed)
    if calibrated.datatype == models.Datatype.UINT8:
        logger.info("the vectors are bytes, which calibrated ones are not: they are kept as float32")
        calibrated.datatype = None
    strict = config.strict_mode_config
    return {
        **{name: getattr(params, name) for name in COPIED},
        "vectors_config": {**params.vectors, vector: calibrated} if isinstance(params.vectors, dict) else calibrated,
        "sparse_vectors_config": params.sparse_vectors,
        "hnsw_config": models.HnswConfigDiff(**config.hnsw_config.model_dump()),
        "optimizers_config": models.OptimizersConfigDiff(**config.optimizer_config.model_dump()),
        "wal_config": config.wal_config and models.WalConfigDiff(**config.wal_config.model_dump()),
        "quantization_config": config.quantization_config,
        "strict_mode_config": strict and models.StrictModeConfig(**strict.model_dump()),
        "metadata": {**(config.metadata or {}), MARK: {"calibrator": calibrator}},
    }


def _plain(key: models.ExtendedPointId) -> Id:
    return key if isinstance(key, int) else str(key)


def _order(key: Id | None) -> tuple[int, Id]:
    """Numbers come before UUIDs, which are written in one form; None is the end."""
    return (2, 0) if key is None else (int(isinstance(key, str)), key)


def _vectors(point: models.Record) -> dict[str, Any]:
    """Its vectors by name; the one without a name is ''."""
    return dict(point.vector) if isinstance(point.vector, dict) else {"": point.vector} if point.vector else {}
