"""What every collection of a database does: the same checks for each kind, on real databases."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import bertflow
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import DataError
from bertflow.retrieval.collection_index import CollectionIndex
from bertflow.retrieval.collections import open_collection

from .conftest import copied

COMMAND = "from bertflow.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture
def both(database, opened, embeddings):
    """A collection, the new one that is made like it, and the ids."""
    address, ids = database.make("docs", embeddings)
    source, target = opened(address), opened(database.address("docs2"))
    assert not target.exists()
    target.create(source, 4, "digest")
    return source, target, ids


def test_parts_hold_every_row_once_and_stay_the_same(both, embeddings):
    source, _, ids = both
    parts = source.parts(4)
    rows = [source.read(part) for part in parts]
    assert len(parts) == 6
    assert sorted(str(key) for one in rows for key in one.ids) == sorted(map(str, ids))
    at = {key: row for one in rows for key, row in zip(one.ids, one.vectors, strict=True)}
    np.testing.assert_allclose(unit(np.array([at[key] for key in ids])), unit(embeddings), atol=1e-6)
    assert [source.read(part).ids for part in parts] == [one.ids for one in rows]


def test_a_new_collection_has_the_ids_and_the_rest_of_its_source(both):
    source, target, ids = both
    assert (target.facts.n, target.facts.dim, target.facts.calibrator) == (0, 4, "digest")
    copied(source, target)
    assert target.facts.n == source.facts.n == len(ids)
    assert target.facts.metric == "cosine" or (target.facts.metric, target.facts.index) == (None, None)
    assert target.fetch(ids[::-1]).payload == source.fetch(ids[::-1]).payload
    wanted = source.vectors_of(ids)[:, :4]
    np.testing.assert_allclose(unit(target.vectors_of(ids)), unit(wanted), atol=1e-6)


class Known(AbstractEncoder):
    """The embedding of "text 3" is row 3."""

    def __init__(self, rows):
        self.rows, self.dim = rows, rows.shape[1]

    def _encode(self, sentences, *_):
        return self.rows[[int(text.split()[1]) for text in sentences]]

    def describe(self):
        return {"encoder": "known"}


def test_its_texts_are_read(database, opened, embeddings):
    address, ids = database.make("docs", embeddings)
    texts = CollectionIndex(opened(address), Known(embeddings)).texts()
    assert sorted(texts) == sorted(f"text {at}" for at in range(len(ids)))


def test_a_part_that_is_written_twice_is_there_once(both):
    source, target, ids = both
    copied(source, target)
    copied(source, target, some=slice(2, 4))
    assert target.facts.n == len(ids)


def test_its_search_finds_what_a_comparison_with_all_finds(both):
    source, target, ids = both
    copied(source, target)
    rows, queries = unit(target.vectors_of(ids)), np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    cosines = unit(queries) @ rows.T
    best = np.argsort(-cosines, axis=1)[:, :6]
    for exact in (True, False):
        assert target.search(queries, 6, exact=exact) == [[ids[at] for at in row] for row in best]
    assert [len(row) for row in target.search(queries, 100, exact=True)] == [23] * 5


def test_one_that_is_there_is_not_made_again(both):
    source, target, _ = both
    with pytest.raises(DataError, match=r"docs2.*(is there already|already exists)"):
        target.create(source, 4, "digest")
    with pytest.raises(DataError, match=r"is there already|already exists"):
        source.create(source, 4, "digest")


def test_rows_that_are_not_there_are_an_error(both):
    source, _, ids = both
    missing = {int: 999, str: "00000000-0000-0000-0000-00000000ffff"}[type(ids[1])]
    for asked in (source.fetch, source.vectors_of):
        with pytest.raises(DataError, match=rf"has no row {missing!r}\. Was it removed\?$"):
            asked([ids[0], missing])


def test_a_collection_that_is_missing_is_an_error_in_one_line(database, opened):
    database.make("docs", np.eye(8, dtype=np.float32))
    missing = opened(database.address("doc"))
    assert not missing.exists()
    with pytest.raises(DataError, match=r"doc\b.* (does not exist|is missing)") as refused:
        _ = missing.facts
    assert "\n" not in str(refused.value)


AWAY = {"qdrant_client": "qdrant:http://127.0.0.1:1/docs", "psycopg": "pgvector:postgresql://ann@127.0.0.1:1/db/docs"}


@pytest.mark.parametrize("client", AWAY)
def test_a_server_that_is_away_is_one_line(client, refusal):
    pytest.importorskip(client, reason="its client is not installed")
    said = refusal(open_collection, AWAY[client])
    assert said.startswith(f"{AWAY[client]}: ")
    assert ("refused" in said, said.count("\n")) == (True, 0)


def test_as_many_rows_removed_as_added_are_found_in_the_end(database, opened, tmp_path, monkeypatch, embeddings):
    source, ids = database.make("docs", np.concatenate([embeddings] * 10))
    target, options = database.address("docs2"), {"output": tmp_path / "job", "part_rows": 100, "progress": False}
    kind = type(opened(source))
    finish = kind.finish

    def replaced(self, held):
        finish(self, held)
        database.replace(held, ids[3:5], embeddings[:2] + 1)

    monkeypatch.setattr(kind, "finish", replaced)
    told = "holds other ids or vectors than those that are calibrated in .*docs2.* Stop what writes there, and reindex"
    with pytest.raises(DataError, match=told):
        bertflow.reindex(source, target, calibrator="center", **options)
    assert opened(source).facts.n == len(ids)
    assert not json.loads((tmp_path / "job" / "reindex.json").read_text())["finished"]


def test_a_job_that_is_refused_leaves_no_empty_collection(database, opened, tmp_path, embeddings):
    source, _ = database.make("docs", embeddings)
    calibrator, job = bertflow.Center().fit(embeddings), {"target": database.address("docs2"), "progress": False}
    held = opened(source)
    calibrator.map.shift[:] = torch.tensor(held.read(held.parts(10)[0]).vectors[1])
    held.close()
    calibrator.save(tmp_path / "mine")
    with pytest.raises(DataError, match="comes out as zeros"):
        bertflow.reindex(source, calibrator=tmp_path / "mine", output=tmp_path / "job", **job)
    left = opened(job["target"])
    assert not left.exists()
    left.close()
    with pytest.raises(DataError, match="holds a reindex job of something else"):
        bertflow.reindex(source, calibrator="center", output=tmp_path / "job", **job)
    assert bertflow.reindex(source, calibrator="center", output=tmp_path / "other", **job).facts.n == len(embeddings)


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_ends_the_same(database, opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(3).normal(size=(2000, 8)).astype(np.float32)
    source, ids = database.make("docs", x)
    target, draw = database.address("docs2"), random.Random(0)
    words = ["reindex", source, target, "--calibrator", "whitening(4)", "--part_rows", "10", "--output", "job"]
    call = [sys.executable, "-c", COMMAND, *words]
    for _ in range(4):
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before, more = len(list(tmp_path.glob("job/done/*.json"))), draw.randint(1, 30)
        while process.poll() is None and len(list(tmp_path.glob("job/done/*.json"))) < before + more:
            time.sleep(0.001)
        time.sleep(draw.random() / 100)
        process.kill()
        _, said = process.communicate()
        assert process.returncode < 0, said
    last = subprocess.run(call, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert "of them there already" in last.stdout
    first, second = opened(source), opened(target)
    assert second.facts.n == first.facts.n == len(ids)
    fitted = bertflow.load_calibrator("job/calibrator")
    np.testing.assert_allclose(unit(second.vectors_of(ids)), unit(fitted.transform(first.vectors_of(ids))), atol=1e-5)
    assert second.fetch(ids).payload == first.fetch(ids).payload
