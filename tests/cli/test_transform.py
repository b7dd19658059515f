"""Calibrated rows on disk; the second voice is the calibrator over the rows in memory."""

import os

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
def store(tmp_path):
    return EmbeddingStore.build(RowEncoder(RECIPE), [str(k) for k in range(N)], tmp_path / "store").folder


@pytest.fixture(autouse=True)
def calibrator(tmp_path):
    """A whitening of 5 directions, in the folder ``c``."""
    fitted = Whitening(5).fit(X)
    fitted.provenance_ = Provenance(RECIPE, None)
    fitted.save(tmp_path / "c")
    return fitted


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Sizes at which a few hundred rows are many blocks."""
    for function in (vectors.Vectors.blocks, EmbeddingStore.blocks):
        monkeypatch.setattr(function, "__defaults__", (7, *function.__defaults__[1:]))
    monkeypatch.setattr(store_module, "CHUNK", 7)


def transform(source, output, *more, calibrator="c"):
    kind = "--vectors" if source.suffix else "--store"
    given = [kind, str(source), "--calibrator", str(source.parent / calibrator), "--output", str(output)]
    return main(["transform", *given, *more])


def read(path):
    """The rows of what was written."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return np.array(table[table.column_names[-1]].to_pylist(), dtype=np.float32)
    opened = EmbeddingStore.open(path)
    return opened.rows(range(opened.n))


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


KINDS = [
    (source, output)
    for source in ("store", "npy", "parquet")
    for output in ("z.npy", "z.parquet", "z")
    if (source, output) not in {("npy", "z"), ("parquet", "z")}
]


@pytest.mark.parametrize(("source", "output"), KINDS)
def test_what_is_written_is_what_the_calibrator_makes(request, tmp_path, calibrator, source, output):
    assert transform(request.getfixturevalue(source), tmp_path / output) == 0
    assert_allclose(read(tmp_path / output), calibrator.transform(X), rtol=1e-5, atol=1e-6)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("given", "made"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("output", ["z.npy", "z.parquet"])
def test_precision_is_kept_but_for_half(tmp_path, given, made, output):
    np.save(tmp_path / "x.npy", X.astype(given))
    assert transform(tmp_path / "x.npy", tmp_path / output) == 0
    if output == "z.npy":
        assert np.load(tmp_path / output).dtype == made
    else:
        kind = {"float32": pa.float32(), "float64": pa.float64()}[made]
        assert pq.read_schema(tmp_path / output).field("vector").type == pa.list_(kind, 5)


def test_the_other_columns_of_an_index_stay(parquet, tmp_path):
    assert transform(parquet, tmp_path / "z.parquet") == 0
    table = pq.read_table(tmp_path / "z.parquet")
    assert table.column_names == ["id", "v"]
    assert table["id"].to_pylist() == list(range(N))


def test_a_calibrated_store_says_so_and_is_not_calibrated_twice(store, tmp_path, error_line):
    assert transform(store, tmp_path / "z") == 0
    recipe = EmbeddingStore.open(tmp_path / "z").recipe
    assert recipe["calibrator"] == "Whitening(n_components=5)"
    centered = Center().fit(read(tmp_path / "z"))
    centered.provenance_ = Provenance(RECIPE, None)
    centered.save(tmp_path / "again")
    assert error_line(transform(tmp_path / "z", tmp_path / "zz.npy", calibrator="again"), 3) == (
        f"error: {tmp_path / 'again'} was fitted on embeddings by rows with pooling 'mean', calibrator none; "
        f"{tmp_path / 'z'} holds those by rows with pooling 'mean', calibrator Whitening(n_components=5) (another "
        "calibrator makes other embeddings). Fit on this store, or add --bare."
    )


# Killed, and gone on with


@pytest.mark.parametrize(("source", "output"), [kind for kind in KINDS if kind[1] != "z"])
def test_what_is_done_is_left_as_it_is(request, tmp_path, capsys, source, output):
    path, output = request.getfixturevalue(source), tmp_path / output
    assert transform(path, output) == 0
    made = output.read_bytes()
    capsys.readouterr()
    assert transform(path, output) == 0
    assert "300 of them there already" in capsys.readouterr().out
    assert output.read_bytes() == made
    assert hidden(tmp_path) == []


def test_what_is_done_with_rows_left_out_is_left_as_it_is(tmp_path, capsys):
    x, path, output = X.copy(), tmp_path / "x.parquet", tmp_path / "z.parquet"
    x[[0, 9]] = np.nan
    pq.write_table(pa.table({"id": list(range(N)), "v": list(x)}), path, row_group_size=70)
    for _ in range(2):
        assert transform(path, output, "--skip_bad", str(tmp_path / "bad.tsv")) == 0
    assert "298 of them there already" in capsys.readouterr().out


def test_where_a_row_of_a_store_comes_out_infinite_one_of_zeros_is_left_out_as_well(tmp_path, monkeypatch, capsys):
    x = X.copy()
    x[3], x[9] = 0, 1e25 * X[9]
    monkeypatch.setattr("tests.cli.conftest.X", x)
    store = EmbeddingStore.build(RowEncoder(RECIPE), [str(k) for k in range(N)], tmp_path / "failing").folder
    far = Whitening(5).fit(X * 1e-20)
    far.provenance_ = Provenance(RECIPE, None)
    far.save(tmp_path / "far")
    listed = tmp_path / "bad.tsv"
    assert transform(store, tmp_path / "z.npy", "--bare", "--skip_bad", str(listed), calibrator="far") == 0
    assert "skipped 2 rows" in capsys.readouterr().out
    assert_allclose(read(tmp_path / "z.npy"), far.transform(np.delete(x, [3, 9], axis=0)), rtol=1e-5)


CHANGES = [(change, output) for change in ("last row", "fewer rows", "calibrator") for output in ("z.npy", "z.parquet")]


@pytest.mark.parametrize(("change", "output"), [*CHANGES, ("other column", "z.parquet")])
def test_what_was_made_of_other_rows_or_by_another_map_is_refused(parquet, tmp_path, error_line, change, output):
    assert transform(parquet, tmp_path / output) == 0
    made, x, ids = (tmp_path / output).read_bytes(), X.copy(), np.arange(N)
    x[-1] += change == "last row"
    ids[-1] += change == "other column"
    kept = slice(N - (change == "fewer rows"))
    pq.write_table(pa.table({"id": ids[kept], "v": list(x[kept])}), parquet, row_group_size=70)
    if change == "calibrator":
        Whitening(5).fit(X * 2).save(tmp_path / "other")
    options = {"calibrator": "other"} if change == "calibrator" else {}
    assert error_line(transform(parquet, tmp_path / output, *["--bare"][: len(options)], **options), 3) == (
        f"error: {tmp_path / output} is there already. Delete it, or name another file."
    )
    assert (tmp_path / output).read_bytes() == made


@pytest.mark.parametrize("command", ["transform", "fit", "fit a flow"])
@pytest.mark.parametrize("change", ["cut", "overwritten"])
@pytest.mark.parametrize("source", ["npy", "parquet"])
def test_a_file_that_is_written_to_while_it_is_read_is_refused(
    request, tmp_path, capsys, monkeypatch, source, change, command
):
    path, mapped, moments = request.getfixturevalue(source), AbstractCalibrator.transform, Moments.of
    before = sorted(tmp_path.iterdir())

    def damage():
        if change == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(path.read_bytes())

    monkeypatch.setattr(AbstractCalibrator, "transform", lambda self, x: damage() or mapped(self, x))
    monkeypatch.setattr(Moments, "of", lambda x: damage() or moments(x))
    if command == "transform":
        code = transform(path, tmp_path / "z.npy")
    else:
        kind = "flow" if command == "fit a flow" else "center"
        code = main(["fit", "--vectors", str(path), "--calibrator", kind, "--output", str(tmp_path / "fitted")])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (3, 1), error
    assert error.startswith(f"error: {path} ")
    if source == "npy" or change == "overwritten":
        assert error == (
            f"error: {path} should stay as it is while it is read, but it was changed. "
            "Run the command again once it is whole.\n"
        )
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_killed_in_the_last_step_is_tidied_up(npy, tmp_path):
    (tmp_path / ".z.parquet.abcd0123").write_bytes(b"half")
    assert transform(npy, tmp_path / "z.parquet") == 0
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("source", "output"), KINDS)
def test_an_interruption_leaves_no_file_and_says_how_a_store_goes_on(
    request, tmp_path, capsys, monkeypatch, source, output
):
    def interrupted(self, x):
        raise KeyboardInterrupt

    path = request.getfixturevalue(source)
    monkeypatch.setattr(AbstractCalibrator, "transform", interrupted)
    assert transform(path, tmp_path / output) == 1
    kept = "What is done is kept: run the same command again to continue."
    note = f"note: {tmp_path / 'z'}: shard 1 of 8.\nnote: {kept}\n" if output == "z" else ""
    assert capsys.readouterr().err == f"{note}interrupted\n"
    assert not (tmp_path / output).is_file()
    assert hidden(tmp_path) == []


# What is refused


def test_another_pooling_is_refused_with_both(store, tmp_path, calibrator, error_line):
    calibrator.provenance_ = Provenance(RECIPE | {"encoder": "others", "weights": "def", "pooling": "cls"}, None)
    calibrator.save(tmp_path / "other")
    assert error_line(transform(store, tmp_path / "z.npy", calibrator="other"), 3) == (
        f"error: {tmp_path / 'other'} was fitted on embeddings by others with pooling 'cls', weights 'def'; {store} "
        "holds those by rows with pooling 'mean', weights 'abc' (another pooling makes other embeddings; other weights "
        "make other embeddings). Fit on this store, or add --bare."
    )
    assert transform(store, tmp_path / "z.npy", "--bare", calibrator="other") == 0


def test_a_calibrator_of_plain_vectors_is_refused_for_a_store(store, tmp_path, error_line):
    Whitening().fit(X).save(tmp_path / "bare")
    assert error_line(transform(store, tmp_path / "z.npy", calibrator="bare"), 3) == (
        f"error: {tmp_path / 'bare'} was fitted on plain vectors, of which nothing is known; {store} holds rows, mean. "
        "If both are of one encoder and pooling, add --bare."
    )
    assert transform(store, tmp_path / "z.npy", "--bare", calibrator="bare") == 0


@pytest.mark.parametrize("source", ["store", "npy"])
def test_another_width_is_refused(request, tmp_path, error_line, source):
    Center().fit(X[:, :4]).save(tmp_path / "narrow")
    path = request.getfixturevalue(source)
    assert error_line(transform(path, tmp_path / "z.npy", "--bare", calibrator="narrow"), 3) == (
        f"error: {tmp_path / 'narrow'} expects embeddings of size 4, but the rows of {path} have 8. Were both made "
        "with the same encoder and pooling?"
    )


def test_what_cannot_be_written_is_refused(store, tmp_path, error_line):
    assert error_line(transform(store, tmp_path / "z.txt"), 2) == (
        f"error: {tmp_path / 'z.txt'} should be .npy, .parquet or a folder, without an ending. Name one of these."
    )


def test_one_file_is_written_by_one_rank(npy, tmp_path, error_line, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert error_line(transform(npy, tmp_path / "z.npy"), 2) == (
        "error: One file is written by one process. Run it alone, or name a folder for a store."
    )


def test_rows_of_other_lengths_are_refused_unless_they_are_bare(tmp_path, error_line):
    np.save(tmp_path / "far.npy", 9 * X)
    line = error_line(transform(tmp_path / "far.npy", tmp_path / "z.npy"), 3)
    assert line.startswith(
        f"error: {tmp_path / 'c'} is for vectors by one encoder, and those of {tmp_path / 'far.npy'} should"
    )
    assert line.endswith("times as long. Fit on these, or add --bare.")
    assert transform(tmp_path / "far.npy", tmp_path / "z.npy", "--bare") == 0
