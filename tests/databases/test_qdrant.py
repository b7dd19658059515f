"""What only Qdrant does: vectors with names, aliases, settings, one client a folder, and a server if there is one."""

import os
import subprocess
import sys
import uuid

import numpy as np
import pytest

import bertflow
from bertflow.errors import UsageError
from bertflow.retrieval.collections import open_collection

from .conftest import copied, vectors

qdrant = pytest.importorskip("qdrant_client", reason="no Qdrant: qdrant-client is not installed")
models = qdrant.models
SERVER = os.environ.get("QDRANT_URL", "")
"""Address of a server to test on."""


def client_of(rows):
    return qdrant.QdrantClient(path=str(rows.folder))


@pytest.fixture
def named(qdrant_rows):
    """A collection with two dense vectors, one of several rows and a sparse one; point 3 lacks the first."""
    client = client_of(qdrant_rows)
    client.create_collection(
        "docs",
        {
            "text": models.VectorParams(size=8, distance=models.Distance.DOT, on_disk=True, datatype="uint8"),
            "image": models.VectorParams(size=2, distance=models.Distance.EUCLID),
            "words": models.VectorParams(
                size=2,
                distance=models.Distance.DOT,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            ),
        },
        sparse_vectors_config={"tokens": models.SparseVectorParams()},
        metadata={"made": "by us"},
    )
    for number, row in enumerate(vectors(6).tolist()):
        every = {
            "text": row,
            "image": [number, 1.0],
            "words": [[1.0, 2.0], [number, 4.0]],
            "tokens": models.SparseVector(indices=[1, number + 5], values=[0.5, 1.0]),
        }
        if number == 3:
            del every["text"]
        client.upsert("docs", [models.PointStruct(id=number, vector=every, payload={"n": number})])
    client.close()
    return qdrant_rows.address("docs", vector="text"), qdrant_rows.address("docs2", vector="text")


def test_other_vectors_and_settings_are_kept(named, opened, qdrant_rows):
    source, target = map(opened, named)
    assert source.facts.metric == "dot"
    target.create(source, 4, "digest")
    copied(source, target)
    assert (target.facts.n, target.facts.metric, target.facts.calibrator) == (5, "cosine", "digest")
    source.close()
    target.close()
    client = client_of(qdrant_rows)
    made, was = client.get_collection("docs2").config, client.get_collection("docs").config
    assert made.metadata == {"made": "by us", "bertflow": {"calibrator": "digest"}}
    changed = was.params.vectors["text"].model_copy(
        update={"size": 4, "distance": models.Distance.COSINE, "datatype": None}
    )
    assert made.params.vectors == {**was.params.vectors, "text": changed}
    assert made.params.sparse_vectors == was.params.sparse_vectors
    one, other = (client.retrieve(name, [5], with_vectors=["image", "words", "tokens"]) for name in ("docs", "docs2"))
    assert one == other
    client.close()


def test_a_point_without_the_vector_is_said(named, opened, refusal):
    source = opened(named[0])
    assert source.read({"begin": 2, "end": 5, "rows": 10}).bad == {1: "It has no vector 'text'."}
    assert "row 3: It has no vector 'text'." in refusal(source.vectors_of, [3])


def test_a_vector_has_to_be_chosen(named, opened, tmp_path):
    with pytest.raises(UsageError, match=r"should name a vector, as \?vector=NAME, got none\. It has text, image\.$"):
        _ = opened(named[0].partition("?")[0]).facts
    with pytest.raises(UsageError, match=r"got 'words'\. It has text, image\.$"):
        _ = opened(named[0].replace("text", "words")).facts
    job = {"calibrator": "center", "progress": False}
    with pytest.raises(UsageError, match=r"should name the columns as its source does: \?vector=text&id=id\."):
        bertflow.reindex(named[0], named[1].replace("text", "image"), output=tmp_path / "job", **job)


@pytest.mark.parametrize("metric", ["Dot", "Euclid"])
def test_other_metrics_are_searched_by_themselves(qdrant_rows, opened, metric):
    client = client_of(qdrant_rows)
    client.create_collection("docs", models.VectorParams(size=8, distance=metric))
    rows = vectors(9)
    client.upsert("docs", [models.PointStruct(id=at, vector=row) for at, row in enumerate(rows.tolist())])
    client.close()
    queries = vectors(2, seed=1)
    apart = queries @ rows.T if metric == "Dot" else -np.linalg.norm(queries[:, None] - rows, axis=2)
    assert opened(qdrant_rows.address("docs")).search(queries, 3) == np.argsort(-apart)[:, :3].tolist()


def test_ids_are_read_as_ranges_that_others_do_not_shift(qdrant_rows, opened):
    ids = [7, 3, 2**64 - 1, str(uuid.UUID(int=5)), str(uuid.UUID(int=2**127)), 0, str(uuid.UUID(int=2**100))]
    client = client_of(qdrant_rows)
    client.create_collection("docs", models.VectorParams(size=8, distance="Cosine"))
    client.upsert("docs", [models.PointStruct(id=key, vector=[1.0] * 8) for key in ids])
    client.close()
    source = opened(qdrant_rows.address("docs"))
    parts = source.parts(2)
    assert [len(source.read(part)) for part in parts] == [2, 2, 2, 1]
    more = [5, 4, str(uuid.UUID(int=6)), str(uuid.UUID(int=2**128 - 1)), 1]
    source._client.upsert("docs", [models.PointStruct(id=key, vector=[2.0] * 8) for key in more])
    source._client.delete("docs", [7])
    read = [key for part in parts for key in source.read(part).ids]
    assert sorted(map(str, read)) == sorted(map(str, [*ids[1:], *more]))


def aliased(rows, alias):
    """The address of a collection that an alias leads to."""
    address, _ = rows.make("docs", vectors(5))
    client, create = client_of(rows), models.CreateAlias(collection_name="docs", alias_name=alias)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    client.close()
    return address


def test_an_alias_is_followed_once(qdrant_rows, opened):
    address = aliased(qdrant_rows, "live")
    source, target = opened(qdrant_rows.address("live")), opened(qdrant_rows.address("docs2"))
    target.create(source, 4, "digest")
    steps = source.switch(target)
    assert steps == opened(address).switch(target)
    names = {"client": source._connected()}
    exec(steps.forward[-1], names | {"models": models})
    assert (source.facts.dim, opened(qdrant_rows.address("live")).facts.dim) == (8, 4)


def test_the_printed_lines_do_the_switch_and_go_back(qdrant_rows):
    address = aliased(qdrant_rows, 'it\'s "live"')
    with open_collection(address) as source, open_collection(qdrant_rows.address("docs2")) as target:
        target.create(source, 4, "digest")
        steps = source.switch(target)
    for lines, leads_to in ((steps.forward, "docs2"), (steps.back, "docs")):
        names = {}
        exec("\n".join(lines), names)
        aliases = names["client"].get_aliases().aliases
        names["client"].close()
        assert [(one.alias_name, one.collection_name) for one in aliases] == [('it\'s "live"', leads_to)]


def test_without_an_alias_the_application_has_to_change(qdrant_rows, opened):
    address, _ = qdrant_rows.make("docs", vectors(5))
    source, target = opened(address), opened(qdrant_rows.address("docs2"))
    target.create(source, 4, "digest")
    steps = source.switch(target)
    assert steps.forward == ["# Qdrant renames no collection, and no alias leads to docs: name docs2 instead."]
    assert steps.back == ["# Name docs again."]


def test_nothing_is_made_by_opening(tmp_path, opened):
    missing = opened(f"qdrant:{tmp_path}/not/there/docs")
    assert not missing.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_process_is_one_line(qdrant_rows):
    address, _ = qdrant_rows.make("docs", vectors(2))
    script = (
        "from bertflow.retrieval.collections import open_collection\n"
        f"try: open_collection({address!r})\n"
        "except ValueError as error: print(error, error.exit_code)"
    )
    client = client_of(qdrant_rows)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    client.close()
    assert done.stdout.startswith(f"{address}: Storage folder {qdrant_rows.folder} is already accessed")
    assert done.stdout.endswith(" 3\n")


def test_an_id_column_is_refused(qdrant_rows):
    with pytest.raises(UsageError, match="points have one id"):
        open_collection(qdrant_rows.address("docs", id="key"))


@pytest.mark.slow
@pytest.mark.skipif(not SERVER, reason="no server of Qdrant: set QDRANT_URL to the address of one")
def test_a_server_does_what_local_mode_does(opened):
    client = qdrant.QdrantClient(url=SERVER, api_key=os.environ.get("QDRANT_API_KEY"))
    name = f"bertflow-{uuid.uuid4().hex[:8]}"
    rows = vectors(2500)
    try:
        client.create_collection(
            name,
            models.VectorParams(size=8, distance="Dot", hnsw_config=models.HnswConfigDiff(m=8)),
            optimizers_config=models.OptimizersConfigDiff(indexing_threshold=1),
            quantization_config=models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type="int8")),
        )
        client.create_payload_index(name, "n", models.PayloadSchemaType.INTEGER)
        points = (models.PointStruct(id=at, vector=row.tolist(), payload={"n": at}) for at, row in enumerate(rows))
        client.upload_points(name, points, wait=True)
        source, target = opened(f"qdrant:{SERVER}/{name}"), opened(f"qdrant:{SERVER}/{name}-2")
        target.create(source, 4, "digest")
        copied(source, target)
        assert (target.facts.n, target.facts.metric, target.facts.calibrator) == (2500, "cosine", "digest")
        assert target.fetch([1, 2499]).payload == [{"n": 1}, {"n": 2499}]
        made, was = client.get_collection(f"{name}-2"), client.get_collection(name)
        assert made.payload_schema["n"].data_type == was.payload_schema["n"].data_type
        assert made.config.quantization_config == was.config.quantization_config
        assert made.config.params.vectors.hnsw_config == was.config.params.vectors.hnsw_config
        assert [row[0] for row in target.search(rows[:5, :4], 3, exact=True)] == list(range(5))
    finally:
        client.delete_collection(name)
        client.delete_collection(f"{name}-2")
        client.close()
