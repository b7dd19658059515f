"""Calibrated rows on disk; the second voice is the calibrator over the rows in memory."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.calibration.saving import Provenance
from bertflow.cli import main
from bertflow.data import vectors
from bertflow.moments import Moments
from bertflow.store import store as store_module
from bertflow.store.store import EmbeddingStore

from .conftest import RowEncoder, X

N = 300
RECIPE = {"encoder": "rows", "weights": "abc", "pooling": "mean"}
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture
def store():
    return EmbeddingStore.build(RowEncoder(RECIPE), [str(k) for k in range(N)], "store").folder


def kept(name, fitted, recipe=RECIPE):
    """Save a calibrator that was fitted on embeddings of this recipe."""
    fitted.provenance_ = Provenance(recipe, None)
    fitted.save(name)
    return fitted


@pytest.fixture(autouse=True)
def calibrator():
    """A whitening of 5 directions, in the folder ``c``."""
    return kept("c", Whitening(5).fit(X))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Sizes at which a few hundred rows are many blocks."""
    for function in (vectors.Vectors.blocks, EmbeddingStore.blocks):
        monkeypatch.setattr(function, "__defaults__", (7, *function.__defaults__[1:]))
    monkeypatch.setattr(store_module, "CHUNK", 7)


def transform(source, output, *more, calibrator="c"):
    kind = "--vectors" if Path(source).suffix else "--store"
    return main(["transform", kind, str(source), "--calibrator", calibrator, "--output", str(output), *more])


def read(name):
    """The rows of what was written."""
    path = Path(name)
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return np.array(table[table.column_names[-1]].to_pylist(), dtype=np.float32)
    opened = EmbeddingStore.open(path)
    return opened.rows(range(opened.n))


def hidden():
    return sorted(path.name for path in Path().iterdir() if path.name.startswith("."))


FILES = [*product(("store", "npy", "parquet"), ("z.npy", "z.parquet"))]
KINDS = [("store", "z"), *FILES]


@pytest.mark.parametrize(("source", "output"), KINDS)
def test_what_is_written_is_what_the_calibrator_makes(request, calibrator, source, output):
    assert transform(request.getfixturevalue(source), output) == 0
    assert_allclose(read(output), calibrator.transform(X), rtol=1e-5, atol=1e-6)
    assert hidden() == []


def test_queries_go_through_their_own_shift(npy, store, error_line):
    fitted = Whitening(5).fit(X, queries=X[:60] + 1)
    fitted.save("roles")
    assert transform(npy, "q.npy", "--role", "query", calibrator="roles") == 0
    assert_allclose(read("q.npy"), fitted.transform(X, role="query"), rtol=1e-5, atol=1e-6)
    assert np.abs(read("q.npy") - fitted.transform(X)).max() > 0.1
    said = error_line(transform(store, "z", "--role", "query"), 2)
    assert said == "error: A store holds documents. Give queries as --vectors, or leave --role out."


@pytest.mark.parametrize(("given", "made"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("output", ["z.npy", "z.parquet"])
def test_precision_is_kept_but_for_half(given, made, output):
    np.save("x.npy", X.astype(given))
    assert transform("x.npy", output) == 0
    if output == "z.npy":
        assert np.load(output).dtype == made
    else:
        assert pq.read_schema(output).field("vector").type == pa.list_(getattr(pa, made)(), 5)


def test_the_other_columns_of_an_index_stay(parquet):
    assert transform(parquet, "z.parquet") == 0
    table = pq.read_table("z.parquet")
    assert (table.column_names, table["id"].to_pylist()) == (["id", "v"], list(range(N)))


def test_a_calibrated_store_says_so_and_is_not_calibrated_twice(store, error_line):
    assert transform(store, "z") == 0
    assert EmbeddingStore.open("z").recipe["calibrator"] == "Whitening(n_components=5)"
    kept("again", Center().fit(read("z")))
    assert error_line(transform("z", "zz.npy", calibrator="again"), 3) == (
        "error: again was fitted on embeddings by rows with pooling 'mean', calibrator none; "
        "z holds those by rows with pooling 'mean', calibrator Whitening(n_components=5) (another "
        "calibrator makes other embeddings). Fit on this store, or add --bare."
    )


# Killed, and gone on with


@pytest.mark.parametrize(("source", "output"), FILES)
def test_what_is_done_is_left_as_it_is(request, capsys, source, output):
    path, output = request.getfixturevalue(source), Path(output)
    assert transform(path, output) == 0
    made = output.read_bytes()
    capsys.readouterr()
    assert transform(path, output) == 0
    assert "300 of them there already" in capsys.readouterr().out
    assert output.read_bytes() == made
    assert hidden() == []


def test_what_is_done_with_rows_left_out_is_left_as_it_is(capsys):
    x, path, output = X.copy(), Path("x.parquet"), Path("z.parquet")
    x[[0, 9]] = np.nan
    pq.write_table(pa.table({"id": list(range(N)), "v": list(x)}), path, row_group_size=70)
    for _ in range(2):
        assert transform(path, output, "--skip_bad", "bad.tsv") == 0
    assert "298 of them there already" in capsys.readouterr().out


def test_where_a_row_of_a_store_comes_out_infinite_one_of_zeros_is_left_out_as_well(monkeypatch, capsys):
    x = X.copy()
    x[3], x[9] = 0, 1e25 * X[9]
    monkeypatch.setattr("tests.cli.conftest.X", x)
    store = EmbeddingStore.build(RowEncoder(RECIPE), [str(k) for k in range(N)], "failing").folder
    far = kept("far", Whitening(5).fit(X * 1e-20))
    assert transform(store, "z.npy", "--bare", "--skip_bad", "bad.tsv", calibrator="far") == 0
    assert "skipped 2 rows" in capsys.readouterr().out
    assert_allclose(read("z.npy"), far.transform(np.delete(x, [3, 9], axis=0)), rtol=1e-5)


CHANGES = product(("last row", "fewer rows", "calibrator"), ("z.npy", "z.parquet"))


@pytest.mark.parametrize(("change", "output"), [*CHANGES, ("other column", "z.parquet")])
def test_what_was_made_of_other_rows_or_by_another_map_is_refused(parquet, error_line, change, output):
    assert transform(parquet, output) == 0
    made, x, ids = Path(output).read_bytes(), X.copy(), np.arange(N)
    x[-1] += change == "last row"
    ids[-1] += change == "other column"
    kept = slice(N - (change == "fewer rows"))
    pq.write_table(pa.table({"id": ids[kept], "v": list(x[kept])}), parquet, row_group_size=70)
    Whitening(5).fit(X * 2).save("other")
    bare, name = (["--bare"], "other") if change == "calibrator" else ([], "c")
    said = error_line(transform(parquet, output, *bare, calibrator=name), 3)
    assert said == f"error: {output} is there already. Delete it, or name another file."
    assert Path(output).read_bytes() == made


@pytest.mark.parametrize("command", ["transform", "fit", "fit a flow"])
@pytest.mark.parametrize("change", ["cut", "overwritten"])
@pytest.mark.parametrize("source", ["npy", "parquet"])
def test_a_file_that_is_written_to_while_it_is_read_is_refused(request, capsys, monkeypatch, source, change, command):
    path, mapped, moments = request.getfixturevalue(source), AbstractCalibrator.transform, Moments.of
    before = sorted(Path().iterdir())

    def damage():
        if change == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(path.read_bytes())

    monkeypatch.setattr(AbstractCalibrator, "transform", lambda self, x: damage() or mapped(self, x))
    monkeypatch.setattr(Moments, "of", lambda x: damage() or moments(x))
    if command == "transform":
        code = transform(path, "z.npy")
    else:
        kind = "flow" if command == "fit a flow" else "center"
        code = main(["fit", "--vectors", str(path), "--calibrator", kind, "--output", "fitted"])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (3, 1), error
    assert error.startswith(f"error: {path} ")
    if source == "npy" or change == "overwritten":
        assert error == (
            f"error: {path} should stay as it is while it is read, but it was changed. "
            "Run the command again once it is whole.\n"
        )
    assert sorted(Path().iterdir()) == before


def test_what_was_killed_in_the_last_step_is_tidied_up(npy):
    Path(".z.parquet.abcd0123").write_bytes(b"half")
    assert transform(npy, "z.parquet") == 0
    assert hidden() == []


@pytest.mark.parametrize(("source", "output"), KINDS)
def test_an_interruption_leaves_no_file_and_says_how_a_store_goes_on(request, capsys, monkeypatch, source, output):
    def interrupted(self, x, role="document"):
        raise KeyboardInterrupt

    path = request.getfixturevalue(source)
    monkeypatch.setattr(AbstractCalibrator, "transform", interrupted)
    assert transform(path, output) == 1
    kept = "What is done is kept: run the same command again to continue."
    note = f"note: z: shard 1 of 8.\nnote: {kept}\n" if output == "z" else ""
    assert capsys.readouterr().err == f"{note}interrupted\n"
    assert not Path(output).is_file()
    assert hidden() == []


# What is refused


def test_another_pooling_is_refused_with_both(store, calibrator, error_line):
    kept("other", calibrator, RECIPE | {"encoder": "others", "weights": "def", "pooling": "cls"})
    assert error_line(transform(store, "z.npy", calibrator="other"), 3) == (
        f"error: other was fitted on embeddings by others with pooling 'cls', weights 'def'; {store} "
        "holds those by rows with pooling 'mean', weights 'abc' (another pooling makes other embeddings; other weights "
        "make other embeddings). Fit on this store, or add --bare."
    )
    assert transform(store, "z.npy", "--bare", calibrator="other") == 0


def test_a_calibrator_of_plain_vectors_is_refused_for_a_store(store, error_line):
    Whitening().fit(X).save("bare")
    assert error_line(transform(store, "z.npy", calibrator="bare"), 3) == (
        f"error: bare was fitted on plain vectors, of which nothing is known; {store} holds rows, mean. "
        "If both are of one encoder and pooling, add --bare."
    )
    assert transform(store, "z.npy", "--bare", calibrator="bare") == 0


@pytest.mark.parametrize("source", ["store", "npy"])
def test_another_width_is_refused(request, error_line, source):
    Center().fit(X[:, :4]).save("narrow")
    path = request.getfixturevalue(source)
    assert error_line(transform(path, "z.npy", "--bare", calibrator="narrow"), 3) == (
        f"error: narrow expects embeddings of size 4, but the rows of {path} have 8. Were both made "
        "with the same encoder and pooling?"
    )


def test_what_cannot_be_written_is_refused(store, error_line):
    said = error_line(transform(store, "z.txt"), 2)
    assert said == "error: z.txt should be .npy, .parquet or a folder, without an ending. Name one of these."


def test_one_file_is_written_by_one_rank(npy, error_line, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = error_line(transform(npy, "z.npy"), 2)
    assert said == "error: One file is written by one process. Run it alone, or name a folder for a store."


def test_rows_of_other_lengths_are_refused_unless_they_are_bare(error_line):
    np.save("far.npy", 9 * X)
    line = error_line(transform("far.npy", "z.npy"), 3)
    assert line.startswith("error: c is for vectors by one encoder, and those of far.npy should")
    assert line.endswith("times as long. Fit on these, or add --bare.")
    assert transform("far.npy", "z.npy", "--bare") == 0
