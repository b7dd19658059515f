"""Tables of LanceDB as collections: what is read, written, indexed, searched and renamed."""

import subprocess

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.errors import DataError, UsageError
from bertflow.retrieval.collections import open_collection

lancedb = pytest.importorskip("lancedb", reason="needs the extra lancedb")
X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
NAMES = [f"it's {number}" for number in range(300)]


def made(folder, vectors=None, metadata=None, name="vector", **columns):
    """The address of a table with X, or other vectors, and columns."""
    vectors = pa.array(list(X), pa.list_(pa.float32(), 8)) if vectors is None else vectors
    table = pa.table({"Doc Id": NAMES[: len(vectors)], name: vectors, **columns})
    lancedb.connect(folder).create_table("docs", table.replace_schema_metadata(metadata))
    return f"lancedb:{folder}/docs?id=Doc%20Id"


def filled(source, folder, rows=64):
    """A finished target, whose vectors are twice those of the source, in width and length."""
    target = open_collection(f"lancedb:{folder}/docs2?id=Doc%20Id")
    target.create(source, 16, "abc")
    for part in source.parts(rows):
        found = source.read(part)
        places = [at for at, row in enumerate(found.vectors) if at not in found.bad and np.isfinite(row).all()]
        written = found.kept(places, np.tile(found.vectors[places], 2))
        for _ in range(2):  # as after a kill between the write and its note
            target.upsert(source, part, written)
    for _ in range(2):
        target.finish(source)
    return target


def test_parts_stay_the_same_while_others_write(tmp_path):
    address = made(tmp_path)
    source, other = open_collection(address), lancedb.connect(tmp_path).open_table("docs")
    parts = source.parts(77)
    other.delete("`Doc Id` = 'it''s 3'")
    other.add(pa.table({"Doc Id": ["new"], "vector": pa.array([X[0]], pa.list_(pa.float32(), 8))}))
    assert_array_equal(np.concatenate([source.read(part).vectors for part in parts]), X)
    assert [name for part in parts for name in source.read(part).ids] == NAMES
    assert source.facts.n == 300
    assert open_collection(address).read(parts[2]).ids == NAMES[154:231]


def test_a_target_keeps_all_but_the_vectors_and_is_written_once(tmp_path):
    metadata = {"note": "kept", "embedding_functions": "[]"}
    source = open_collection(made(tmp_path, metadata=metadata, text=NAMES, page=pa.array(range(300), pa.int32())))
    assert source.facts.calibrator is None
    target = filled(source, tmp_path)
    assert (target.facts.n, target.facts.dim, target.facts.calibrator) == (300, 16, "abc")
    wanted = NAMES[5:9] + NAMES[:2]
    assert target.fetch(wanted).payload == source.fetch(wanted).payload
    assert target.fetch(["it's 7"]).payload == [{"text": "it's 7", "page": 7}]
    assert_array_equal(target.vectors_of(wanted), np.tile(source.vectors_of(wanted), 2))
    schema = lancedb.connect(tmp_path).open_table("docs2").schema
    assert schema.names == ["Doc Id", "vector", "text", "page"]
    assert schema.metadata == {b"note": b"kept", b"bertflow.calibrator": b"abc"}


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()], ids=str)
def test_lists_of_any_length_and_precision_are_read(tmp_path, kind, refusal):
    rows = [[*row] for row in X[:20].astype(np.float16 if kind == pa.float16() else np.float64)]
    rows[3], rows[5], rows[7], rows[9] = None, [1.0], [None] * 8, [np.nan] * 8
    source = open_collection(made(tmp_path, pa.array(rows, pa.list_(kind)), name="of any length"))
    (part,) = source.parts(100)
    found = source.read(part)
    assert sorted(found.bad) == [3, 5, 7]
    assert np.isnan(found.vectors[9]).all()  # is refused by who uses it, as in a file
    assert_allclose(found.vectors[10:], X[10:20], rtol=1e-3)
    assert filled(source, tmp_path, rows=6).facts.n == 16
    assert 'row "it\'s 3": a vector is wanted, but there is none' in refusal(source.vectors_of, NAMES[2:4])


def test_a_target_gets_the_indexes_of_the_source_for_cosine(tmp_path):
    address = made(tmp_path)
    table = lancedb.connect(tmp_path).open_table("docs")
    table.create_index("vector", config=lancedb.index.IvfFlat(distance_type="l2", num_partitions=2))
    table.create_index("Doc Id", config=lancedb.index.BTree())
    with open_collection(address) as source:
        assert (source.facts.index, source.facts.metric) == ("IvfFlat", "euclidean")
        target = filled(source, tmp_path)
    assert (target.facts.index, target.facts.metric) == ("IvfFlat", "cosine")
    made_now = lancedb.connect(tmp_path).open_table("docs2").list_indices()
    assert {one.index_type for one in made_now} == {"IvfFlat", "BTree"}
    assert [found[0] for found in target.search(np.tile(X[:4], 2), 3, exact=True)] == NAMES[:4]
    assert target.search(np.tile(X[:1], 2), 1) == [["it's 0"]]
    assert len(target.search(np.tile(X[:1], 2), 400, exact=True)[0]) == 300


def test_the_printed_lines_rename_and_go_back(tmp_path):
    address = made(tmp_path)
    source = open_collection(address)
    target = filled(source, tmp_path)
    switch = source.switch(target)
    for lines, dims in ((switch.forward, (16, None)), (switch.back, (8, 16))):
        subprocess.run(["sh", "-ec", "\n".join(lines)], check=True)
        now, new = open_collection(address), open_collection(str(target.address))
        assert (now.facts.dim, new.facts.dim if new.exists() else None) == dims


REFUSED = {
    "lancedb:{}/nope": "is missing. Look at the folder and the name of the table.",
    "lancedb:{}/none/docs": "is missing. Look at the folder and the name of the table.",
    "lancedb:{}/docs": "should name a column of whole numbers or text, as ?id=NAME, got none. It has Doc Id, text.",
    "lancedb:{}/docs?region=eu": "has 'region' after the '?', which lancedb does not know. Known: vector, id.",
    "lancedb:{}/docs?id=vector": "as ?id=NAME, got 'vector'. It has Doc Id, text.",
    "lancedb:{}/docs?vector=text&id=text": "a column of lists of floats, as ?vector=NAME, got 'text'. It has vector.",
}


@pytest.mark.parametrize("address", REFUSED)
def test_what_cannot_be_read_is_one_line(tmp_path, address):
    made(tmp_path, text=NAMES)
    with pytest.raises((DataError, UsageError)) as refused:
        _ = open_collection(address.format(tmp_path)).facts
    assert str(refused.value).endswith(REFUSED[address])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ids", [["a", "a"], ["a", None]])
def test_ids_are_unique(tmp_path, ids):
    vectors = pa.array(list(X[:2]), pa.list_(pa.float32(), 8))
    lancedb.connect(tmp_path).create_table("docs", pa.table({"key": ids, "vector": vectors}))
    with pytest.raises(DataError, match=r"an id in key is missing or occurs twice. Name another as \?id="):
        open_collection(f"lancedb:{tmp_path}/docs").parts(10)
