"""``reindex``: a collection in LanceDB becomes a calibrated one, whatever happens in between."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow.databases import moving
from bertflow.encoder.identity import map_digest
from bertflow.errors import DataError, UsageError
from bertflow.files import write_json
from bertflow.retrieval.collections import open_collection

lancedb = pytest.importorskip("lancedb", reason="needs the extra lancedb")
X = (np.random.default_rng(0).normal(size=(200, 6)) * np.arange(1, 7) + 3).astype(np.float32)


def made(folder, vectors=X, name="docs"):
    """The address of a table with these vectors, and a text for each."""
    rows = list(vectors)
    width = next(len(row) for row in rows if row is not None)
    numbers, listed = range(len(rows)), pa.array(rows, pa.list_(pa.float32(), width))
    table = {"id": [f"k{number}" for number in numbers], "vector": listed}
    table |= {"text": [f"text {number}" for number in numbers], "score": np.full(len(rows), np.nan)}
    lancedb.connect(folder).create_table(name, pa.table(table), on_bad_vectors="null")
    return f"lancedb:{folder}/{name}"


@pytest.fixture
def job(tmp_path):
    """Source, target and options of a job."""
    source = made(tmp_path / "db")
    return (source, f"{source}2"), {"output": tmp_path / "job", "part_rows": 30, "progress": False}


def rows_of(address):
    """Vectors and text of every row, by its id."""
    table = open_collection(address)
    found = [table.read(part) for part in table.parts(1000)]
    ids = [name for rows in found for name in rows.ids]
    assert len(set(ids)) == len(ids)
    vectors = np.concatenate([rows.vectors for rows in found])
    return {name: (row, one["text"]) for name, row, one in zip(ids, vectors, table.fetch(ids).payload, strict=True)}


def require_calibrated(target, calibrator, vectors=X):
    """The target holds every row once, with its text, calibrated."""
    found = rows_of(target)
    assert sorted(found) == sorted(f"k{number}" for number in range(len(vectors)))
    names = [f"k{number}" for number in range(len(vectors))]
    assert_allclose(np.stack([found[name][0] for name in names]), calibrator.transform(vectors), atol=1e-5)
    assert [found[name][1] for name in names] == [f"text {number}" for number in range(len(vectors))]


def test_a_collection_is_whitened_by_its_own_rows(job):
    (source, target), options = job
    done = bertflow.reindex(source, target, calibrator="whitening(4)", **options)
    assert (done.facts.n, done.dim_in, done.facts.dim) == (200, 6, 4)
    assert (done.fitted_rows, done.kept, done.verified) == (200, 0, 200)
    assert done.distance < 1e-6
    fitted = bertflow.load_calibrator(options["output"] / "calibrator")
    require_calibrated(target, fitted)
    assert_allclose(fitted.transform(X), bertflow.Whitening(4).fit(X).transform(X), atol=1e-4)
    again = bertflow.reindex(source, target, calibrator="whitening(4)", **options)
    assert (again.kept, again.verified, again.facts) == (200, 200, done.facts)
    assert json.loads(again.to_json())["switch"]["forward"] == done.switch.forward
    assert (done.switch, "to go back:" in list(done.parts())) == (again.switch, True)


def test_a_source_that_has_grown_since_the_job_ended_is_said(job):
    (source, target), options = job
    done = bertflow.reindex(source, target, calibrator="center", **options)
    assert "since then" not in "\n".join(done.parts())
    place, _, name = source.removeprefix("lancedb:").rpartition("/")
    table = lancedb.connect(place).open_table(name)
    table.add(table.to_arrow().slice(0, 30))
    again = bertflow.reindex(source, target, calibrator="center", **options)
    said = "since then  the source has +30 rows: reindex it into another new collection"
    assert said in list(again.parts())


def test_a_given_calibrator_is_taken_as_it_is(job, tmp_path):
    (source, target), options = job
    fitted = bertflow.Standardize().fit(X[:50])
    fitted.save(tmp_path / "mine")
    bertflow.reindex(source, target, calibrator=tmp_path / "mine", **options)
    require_calibrated(target, fitted)
    with pytest.raises(UsageError, match=r"seed is for a fit, but .*mine is fitted already. Leave it out."):
        bertflow.reindex(source, f"{target}3", calibrator=tmp_path / "mine", seed=3, output=tmp_path / "other")


def test_a_flow_is_fitted_to_a_sample(job):
    (source, target), options = job
    preset = {"preset": "default", "fit_rows": 100, "seed": 1}
    done = bertflow.reindex(source, target, calibrator="flow", **preset, **options)
    assert 70 < done.fitted_rows < 130
    require_calibrated(target, bertflow.load_calibrator(options["output"] / "calibrator"))


def test_the_query_encoder_searches_the_target(tmp_path, tiny_bert):
    encoder = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    texts = ["the dog runs", "a cat sleeps", "a big dog sings", "the red bird", "the garden", "a bird runs", "the cat"]
    x = encoder.encode(texts)
    source = made(tmp_path / "db", x / np.linalg.norm(x, axis=1, keepdims=True))
    options = {"output": tmp_path / "job", "progress": False}
    bertflow.reindex(source, f"{source}2", calibrator="standardize", model=tiny_bert, device="cpu", **options)
    ours = bertflow.load(tmp_path / "job" / "query-encoder", device="cpu")
    queries = bertflow.load_sentence_transformer(tmp_path / "job" / "query-encoder", device="cpu").encode(texts)
    assert_allclose(queries, ours.encode(texts), atol=1e-5)
    with open_collection(f"{source}2") as target:
        assert target.facts.calibrator == map_digest(ours.calibrator.map)
        ids = target.search(queries, 1, exact=True)
    assert [found[0] for found in ids] == [f"k{number}" for number in range(len(texts))]


def test_the_query_encoder_moves_queries_and_the_rows_are_documents(tmp_path, tiny_bert):
    encoder = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    texts = ["the dog runs", "a cat sleeps", "a big dog sings", "the red bird", "the garden"]
    x, asked = encoder.encode(texts), encoder.encode([f"{text} cat" for text in texts])
    source = made(tmp_path / "db", x)
    bertflow.Ridge().fit(x, queries=asked).save(tmp_path / "roles")
    options = {"output": tmp_path / "job", "progress": False, "device": "cpu"}
    bertflow.reindex(source, f"{source}2", calibrator=tmp_path / "roles", model=tiny_bert, **options)
    fitted = bertflow.load_calibrator(tmp_path / "roles")
    rows = np.stack([rows_of(f"{source}2")[f"k{number}"][0] for number in range(len(texts))])
    assert_allclose(rows, fitted.transform(x), atol=1e-5)
    wanted = fitted.transform(x, "query")
    assert np.abs(wanted - rows).max() > 1e-2
    folder = tmp_path / "job" / "query-encoder"
    for one in (bertflow.load_sentence_transformer(folder, device="cpu"), bertflow.load(folder, device="cpu")):
        assert_allclose(one.encode_query(texts), wanted, atol=1e-5)
        assert_allclose(one.encode_document(texts), rows, atol=1e-5)


def test_the_query_encoder_can_come_later(tiny_bert, tmp_path):
    source = made(
        tmp_path / "wide", bertflow.TransformerEncoder(tiny_bert, device="cpu").encode(["a dog", "a cat", "the"])
    )
    options = {"output": tmp_path / "later", "progress": False, "calibrator": "center"}
    assert not bertflow.reindex(source, f"{source}2", **options).encoder
    assert bertflow.reindex(source, f"{source}2", model=tiny_bert, device="cpu", **options).encoder


def test_a_killed_part_is_there_once(job, monkeypatch):
    (source, target), options = job
    write, calls = type(open_collection(target)).upsert, []

    def killed(self, source, part, rows):
        write(self, source, part, rows)
        calls.append(part)
        if len(calls) == 3:
            raise KeyboardInterrupt  # as a kill between the write and its note

    monkeypatch.setattr(type(open_collection(target)), "upsert", killed)
    with pytest.raises(KeyboardInterrupt):
        bertflow.reindex(source, target, calibrator="whitening", **options)
    done = bertflow.reindex(source, target, calibrator="whitening", **options)
    assert (done.kept, done.facts.n) == (60, 200)
    require_calibrated(target, bertflow.load_calibrator(options["output"] / "calibrator"))


def test_rows_that_cannot_be_used_are_refused_by_id_or_left_out(tmp_path, refusal):
    rows = [*X]
    rows[5] = None
    source = made(tmp_path / "db", rows)
    options = {"output": tmp_path / "job", "calibrator": "whitening", "part_rows": 30, "progress": False}
    reason = "a vector is wanted, but there is none. Leave the row out, or such rows with --skip_bad FILE."
    assert refusal(bertflow.reindex, source, f"{source}2", **options) == f"{source}, id k5: {reason}"
    with bertflow.skip_bad(tmp_path / "bad.jsonl") as skipped:
        done = bertflow.reindex(source, f"{source}2", **options)
    assert (done.facts.n, done.left_out, done.fitted_rows) == (199, 1, 199)
    assert [(row, why) for _, row, _, why in skipped.rows] == [("k5", reason)]


def test_a_target_with_another_vector_or_payload_is_found(job, monkeypatch):
    (source, target), options = job
    monkeypatch.setattr(moving, "SAMPLE", 10**6)
    finish = type(open_collection(target)).finish
    changes = iter([{"vector": [1.0] * 6}, {"text": "another"}])

    def changed(self, source):
        finish(self, source)
        self.table().update("id = 'k7'", next(changes))

    monkeypatch.setattr(type(open_collection(target)), "finish", changed)
    for what in ("vector", "payload"):
        with pytest.raises(DataError, match=f"the {what} of the row 'k7' is not that of the source"):
            bertflow.reindex(
                source, f"{target}{what}", calibrator="center", **options | {"output": options["output"] / what}
            )


def test_another_job_is_refused(job, tmp_path):
    (source, target), options = job
    bertflow.reindex(source, target, calibrator="whitening", **options)
    changed = r"holds a reindex job of something else: calibrator 'whitening' \(now 'center'\)"
    with pytest.raises(DataError, match=changed):
        bertflow.reindex(source, target, calibrator="center", **options)
    with pytest.raises(DataError, match=r"docs2 is there already, and not by the job of .*other"):
        bertflow.reindex(source, target, calibrator="center", output=tmp_path / "other")
    with pytest.raises(DataError, match="In place, a killed job would leave vectors of two spaces in it"):
        bertflow.reindex(source, source, calibrator="center", output=tmp_path / "other")
    lancedb.connect(tmp_path / "db").drop_table("docs2")
    write_json(tmp_path / "notes.json", {})
    with pytest.raises(UsageError, match=r"should be a reindex job, new or begun, but holds .*\. Name another"):
        bertflow.reindex(source, target, calibrator="center", output=tmp_path)


def test_what_does_not_fit_is_refused_before_a_row_is_moved(job, tmp_path, tiny_bert):
    (source, target), options = job
    bertflow.Center().fit(X[:, :4]).save(tmp_path / "narrow")
    database = lancedb.connect(tmp_path / "db")
    database.create_table("empty", schema=database.open_table("docs").schema)
    for changed, said in (
        ({"calibrator": tmp_path / "narrow"}, r"docs holds vectors of size 6, but .*narrow has 4"),
        ({"model": tiny_bert, "device": "cpu"}, "docs holds vectors of size 6, but the encoder has 16"),
        ({"calibrator": "whitening(7)"}, "n_components should be from 1 to 6, got 7"),
        ({"calibrator": "sif"}, "Unknown calibrator 'sif'"),
        ({"target": "qdrant:db/docs"}, "should be of one kind of database, got lancedb and qdrant"),
        ({"source": f"lancedb:{tmp_path}/db/empty"}, "empty holds no vectors: 0 rows of width 6"),
    ):
        with pytest.raises((DataError, UsageError), match=said):
            bertflow.reindex(**{"source": source, "target": target, "calibrator": "center", **options, **changed})
    assert not open_collection(target).exists()


@pytest.mark.slow
def test_several_processes_share_the_parts(tmp_path):
    x = np.random.default_rng(1).normal(size=(20_000, 32)).astype(np.float32)
    source, output = made(tmp_path / "db", x), tmp_path / "job"
    words = ["reindex", source, f"{source}2", "--calibrator", "whitening", "--output", output, "--part_rows", "100"]
    call = [sys.executable, "-m", "bertflow", *map(str, words)]
    processes = [subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert not list(output.glob(".lock*"))
    require_calibrated(f"{source}2", bertflow.load_calibrator(output / "calibrator"), x)


def test_rows_of_a_narrow_text_are_warned_of(job, tmp_path, caplog):
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(12, 16))[rng.integers(12, size=400)]
    source = made(tmp_path / "shop", (kinds + 0.01 * rng.normal(size=(400, 16)) + 1).astype(np.float32))
    for calibrator, warned in (("whitening", 1), ("center", 0)):
        caplog.clear()
        target, output = f"{source}-{calibrator}", tmp_path / calibrator
        bertflow.reindex(source, target, calibrator=calibrator, output=output, progress=False)
        assert caplog.text.count("The text is narrow") == warned
