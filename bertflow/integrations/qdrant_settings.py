"""The settings of a collection of Qdrant, for a new one like it."""

import logging
from typing import Any

from bertflow.errors import needs

with needs("qdrant-client", "qdrant"):
    from qdrant_client import models

logger = logging.getLogger("bertflow")

MARK = "bertflow"
"""The key of what is kept in the metadata of a calibrated collection."""


def dense_vectors(info: models.CollectionInfo) -> dict[str, models.VectorParams]:
    """The dense vectors of a collection by name; the one without a name is ''."""
    given = info.config.params.vectors or {}
    every = given if isinstance(given, dict) else {"": given}
    return {name: one for name, one in every.items() if one.multivector_config is None}


def settings_like(info: models.CollectionInfo, vector: str, dim: int, calibrator: str) -> dict[str, Any]:
    """What ``create_collection`` should be given.

    Args:
        info: Of the collection that is to be calibrated.
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
    named = params.vectors if isinstance(params.vectors, dict) else None
    return {
        "vectors_config": calibrated if named is None else {**named, vector: calibrated},
        "sparse_vectors_config": params.sparse_vectors,
        "shard_number": params.shard_number,
        "replication_factor": params.replication_factor,
        "write_consistency_factor": params.write_consistency_factor,
        "on_disk_payload": params.on_disk_payload,
        "payload": params.payload,
        "id_tracker": params.id_tracker,
        "hnsw_config": models.HnswConfigDiff(**config.hnsw_config.model_dump()),
        "optimizers_config": models.OptimizersConfigDiff(**config.optimizer_config.model_dump()),
        "wal_config": config.wal_config and models.WalConfigDiff(**config.wal_config.model_dump()),
        "quantization_config": config.quantization_config,
        "strict_mode_config": config.strict_mode_config
        and models.StrictModeConfig(**config.strict_mode_config.model_dump()),
        "metadata": {**(config.metadata or {}), MARK: {"calibrator": calibrator}},
    }
