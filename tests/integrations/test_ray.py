"""The Ray recipe; the second voice is the encoder alone, over the whole text."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from safetensors.numpy import load_file

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.moments import Moments

from ..test_jobs import InProcess  # isort: skip
from ..texts import NOUNS

recipe = pytest.importorskip("bertflow.integrations.ray", reason="the ray extra is not installed")
SENTENCES = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red", "green") for b in NOUNS for c in NOUNS]
TIMEOUT = 200


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same kind of text twice: in row groups of ten, and in lines, of which two are blank."""
    folder = tmp_path_factory.mktemp("text")
    table = pa.table({"id": range(70), "text": [None, *SENTENCES[:69]]})
    pq.write_table(table, folder / "a.parquet", row_group_size=10)
    (folder / "b.txt").write_bytes("\n".join(["", *SENTENCES[69:], " "]).encode())
    return [folder / "a.parquet", folder / "b.txt"]


EXPECTED = {row + (1 if row <= 69 else 2) - 1: text for row, text in enumerate(SENTENCES, start=1)}
"""The text of each row; 0 and 70 hold none."""


def read(piece, column="text"):
    return list(piece.read(column, xxhash.xxh3_64()))


def written(files, folder, make, size):
    """What workers write, one piece after the other in this process; the names of the pieces."""
    pieces = recipe.cut(files, size)
    manifest = recipe.RayManifest(make().describe(), "text", pieces)
    job = manifest.begin(folder)
    worker = recipe._Worker(make, job, manifest)
    for number in range(len(pieces)):
        worker({"number": number})
    return job.names


@pytest.mark.parametrize("size", [1, 7, 25, 1000])
def test_the_pieces_hold_every_row_once(files, size):
    rows = [row for piece in recipe.cut(files, size) for row in read(piece)]
    assert dict(rows) == EXPECTED
    assert len(rows) == len(EXPECTED)


def test_a_piece_has_about_the_rows_asked_for(files):
    counts = np.diff([piece.row for piece in recipe.cut(files, 25)])
    assert counts.tolist() == [30, 30, 10, 25, 25, 25]


def test_a_worker_writes_the_vectors_and_their_moments(files, tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, device="cpu")
    written(files[1:], tmp_path, lambda: encoder, 1000)
    table = pq.read_table(tmp_path / "vectors" / "00000-of-00001.parquet")
    expected = encoder.encode(SENTENCES[69:])
    assert table["row"].to_pylist() == list(range(1, 76))
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), expected, atol=1e-6)
    moments = Moments.from_arrays(load_file(tmp_path / "moments" / "00000-of-00001.safetensors"))
    np.testing.assert_allclose(moments.covariance, np.cov(expected, rowvar=False, bias=True), atol=1e-6)


def test_a_column_that_is_not_there_is_refused(files, refusal):
    assert refusal(lambda: read(recipe.cut(files)[0], "sentence")) == (
        f"{files[0]} should have the columns sentence, but has id, text. Give column=..."
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{} is missing. Give the path of an existing file, on a disk that all nodes see."),
        (b"no parquet", "{} cannot be read as a parquet file: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(content, message, tmp_path, refusal):
    path = tmp_path / "a.parquet"
    if content is not None:
        path.write_bytes(content)
    assert refusal(recipe.cut, [path]).startswith(message.format(path))


def test_no_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"^files should be 1 or more, got 0\."):
        recipe.embed_with_ray([], tmp_path, lambda: None)


def test_a_folder_with_other_vectors_is_refused(files, tiny_bert, tmp_path, refusal):
    for pooling in ("mean", "cls"):
        encoder = TransformerEncoder(tiny_bert, pooling, device="cpu")
        manifest = recipe.RayManifest(encoder.describe(), "text", recipe.cut(files))
        if pooling == "mean":
            manifest.begin(tmp_path)
    assert refusal(manifest.begin, tmp_path) == (
        f"{tmp_path} holds a folder of vectors of something else: the encoder's pooling. Choose another folder, or "
        "delete this one."
    )


@pytest.fixture
def one_by_one(monkeypatch):
    """What the recipe asks of ``ray.data``, one piece after the other in this process; the names of these pieces."""
    computed = []

    class Listed(InProcess):
        def iter_rows(self):
            computed.extend(row["number"] for row in self.rows)
            return super().iter_rows()

    monkeypatch.setattr(recipe.ray.data, "from_items", Listed)
    return computed


def test_other_text_of_the_same_length_name_and_time_is_refused(tiny_bert, tmp_path, one_by_one, refusal):
    path, encoder = tmp_path / "a.txt", TransformerEncoder(tiny_bert, device="cpu")
    path.write_text("the big dog .\nthe red cat .\n")
    before = path.stat().st_mtime_ns
    recipe.embed_with_ray([path], tmp_path / "out", lambda: encoder)
    recipe.embed_with_ray([path], tmp_path / "out", lambda: encoder)
    assert len(one_by_one) == 1
    path.write_text("the big cat .\nthe red dog .\n")
    os.utime(path, ns=(before, before))
    assert refusal(recipe.embed_with_ray, [path], tmp_path / "out", lambda: encoder) == (
        f"{tmp_path / 'out'} holds vectors of something else: the text of {path} from row 0 on has changed since. "
        "Choose another folder."
    )


def test_text_that_is_all_blank_or_no_text_is_refused(tmp_path, tiny_bert, one_by_one, refusal):
    path, encoder = tmp_path / "a.txt", TransformerEncoder(tiny_bert, device="cpu")
    path.write_bytes(b" \n\n")
    with pytest.raises(DataError, match="should hold text, but all rows are blank"):
        recipe.embed_with_ray([path], tmp_path / "out", lambda: encoder)
    path.write_bytes(b"\xef\xbb\xbfdog\ncat\nman\n\xff\n")
    assert refusal(recipe.embed_with_ray, [path], tmp_path / "other", lambda: encoder, piece=2) == (
        f"{path}, line 4: byte 1 is 0xff, which is not UTF-8. Save the file as UTF-8."
    )
    assert [text for piece in recipe.cut([path], 2)[:1] for _, text in read(piece)] == ["dog", "cat"]


def test_rows_of_a_parquet_file_that_are_no_text_are_refused(tmp_path, refusal):
    pq.write_table(pa.table({"n": range(9)}), tmp_path / "n.parquet", row_group_size=2)
    assert refusal(lambda: read(recipe.cut([tmp_path / "n.parquet"], 4)[1], "n")) == (
        f"{tmp_path / 'n.parquet'}, row 5: the column n should hold text, got 4. Give column=..."
    )
    array = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"text": array}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet cannot be read as a parquet file: 'utf-8' codec can't decode"):
        read(recipe.cut([tmp_path / "t.parquet"])[0])


SCRIPT = """
import os, sys, time
from pathlib import Path
import ray
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.integrations.ray import embed_with_ray

model, output, pids, *files = sys.argv[1:]

def make():
    encoder = TransformerEncoder(model, device="cpu")
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        (Path(pids) / str(os.getpid())).touch()
        plain = encoder.encode
        encoder.encode = lambda sentences, **more: (time.sleep(0.5), plain(sentences, **more))[1]
    return encoder

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
moments = embed_with_ray(files, output, make, workers=2, piece=10)
print("rows", moments.n)
ray.shutdown()
"""


@pytest.mark.slow
def test_a_job_whose_worker_is_killed_finishes_with_every_row_once(files, tiny_bert, tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT)
    output, pids = tmp_path / "vectors", tmp_path / "pids"
    pids.mkdir()
    command = [sys.executable, str(tmp_path / "job.py"), *map(str, (tiny_bert, output, pids, *files))]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    begin = time.monotonic()
    try:
        while not len(list((output / "done").glob("*.json"))) >= 3:
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() - begin < TIMEOUT
            time.sleep(0.01)
        killed = int(next(pids.iterdir()).name)
        os.kill(killed, signal.SIGKILL)
        printed, _ = job.communicate(timeout=TIMEOUT)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, printed
    assert "rows 144" in printed
    assert len(list(pids.iterdir())) >= 3, "the worker that was killed should have been started again"
    table = pa.concat_tables([pq.read_table(path) for path in sorted((output / "vectors").glob("*.parquet"))])
    assert table["row"].to_pylist() == list(EXPECTED)
    x = TransformerEncoder(tiny_bert, device="cpu").encode(list(EXPECTED.values()))
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), x, atol=1e-5)
    moments = Moments.from_arrays(load_file(output / "moments.safetensors"))
    np.testing.assert_allclose(moments.scatter, Moments.of(x).scatter, atol=1e-4)
