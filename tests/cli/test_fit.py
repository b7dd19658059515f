import errno
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.data.vectors import open_vectors
from bertflow.moments import Moments
from bertflow.records import read_record
from bertflow.runs import sources as row_files
from bertflow.store.store import EmbeddingStore

from .conftest import RowEncoder, X, run_python

RECIPE = {"encoder": "rows", "pooling": "mean", "labels": ["nli"]}


@pytest.fixture
def store():
    return EmbeddingStore.build(RowEncoder(RECIPE), [str(k) for k in range(len(X))], "store").folder


def fit(source, calibrator, output, *more):
    kind = "--vectors" if Path(source).suffix else "--store"
    return main(["fit", kind, str(source), "--calibrator", calibrator, "--output", str(output), *map(str, more)])


CALIBRATORS = {
    "center": Center(),
    "standardize": Standardize(),
    "abtt": AllButTheTop(),
    "abtt(2)": AllButTheTop(2),
    "whitening": Whitening(),
    "whitening(5)": Whitening(5),
    "ridge(1)": Ridge(1.0),
    "two-band(0.5)": TwoBand(0.5),
}


@pytest.mark.parametrize("spelling", CALIBRATORS)
@pytest.mark.parametrize("source", ["store", "npy", "parquet"])
def test_a_streamed_fit_is_a_fit_in_memory(request, spelling, source):
    assert fit(request.getfixturevalue(source), spelling, "c") == 0
    fitted, expected = load_calibrator("c"), CALIBRATORS[spelling].fit(X)
    assert fitted.get_params() == expected.get_params()
    assert_allclose(fitted.transform(X), expected.transform(X), rtol=1e-5, atol=1e-5)


def test_blocks_of_a_store_are_read_off_its_pooling(npy, capsys, error_line):
    concatenated = RowEncoder({"encoder": "rows", "pooling": "concat(0,3)"})
    joined = EmbeddingStore.build(concatenated, [str(k) for k in range(len(X))], "store")
    assert fit(joined.folder, "blocks(two-band(1))", "c") == 0
    assert "blocks(two-band(1)), 8 -> 8" in capsys.readouterr().out
    expected = np.hstack([TwoBand(1).fit_transform(X[:, :4]), TwoBand(1).fit_transform(X[:, 4:])])
    assert_allclose(load_calibrator("c").transform(X), expected, rtol=1e-4, atol=1e-4)
    assert "which bare embeddings do not tell" in error_line(fit(npy, "blocks(ridge(1))", "d"), 2)


@pytest.mark.parametrize(("spelling", "few"), [("whitening", True), ("whitening(3)", False), ("ridge(1)", False)])
def test_too_few_rows_for_the_directions_are_said(spelling, few, capsys):
    np.save("few.npy", X[:14])
    assert fit("few.npy", spelling, "c") == 0
    said = "few rows    14 for 8 directions: search may become much worse. Give 16 or more, or fit ridge(1)\n"
    assert (said in capsys.readouterr().out) == few


def test_a_store_is_known_and_vectors_are_not(store, npy, capsys):
    assert fit(store, "center", "a") == fit(npy, "center", "b") == 0
    assert "search " not in capsys.readouterr().out  # centering does not harm it
    assert fit(store, "ridge(1)", "c") == fit(npy, "ridge(1)", "d") == 0
    narrow = "search      may become worse on narrow text"
    assert capsys.readouterr().out.count(f"{narrow}; `bertflow fix --vectors {npy} TEXT` looks at it\n") == 1
    known, unknown = load_calibrator("a").provenance, load_calibrator("b").provenance
    assert known.encoder == RECIPE
    assert known.labels == ("nli",)
    assert_array_equal(known.text_hashes, EmbeddingStore.open(store).text_hashes)
    assert unknown is None


@pytest.mark.parametrize("world", [1, 2, 3, 7, 299, 400])
def test_any_number_of_ranks_sees_the_same_moments(npy, world, monkeypatch):
    parts = []

    def gather(everyone, mine):
        parts.extend(mine)
        everyone[0] = [Moments.of(X)]

    monkeypatch.setattr(row_files.dist, "all_gather_object", gather)
    source = open_vectors(npy)
    for rank in range(world):
        whole = row_files.moments_over_ranks(source, rank, world, lambda rows: None)
    parts = parts or [whole]
    for order in (parts, parts[::-1]):
        merged, whole = Moments.merged(order), Moments.of(X)
        assert merged.n == whole.n
        assert_allclose(merged.mean, whole.mean, rtol=1e-13)
        assert_allclose(merged.scatter, whole.scatter, rtol=1e-11)


@pytest.mark.parametrize("source", ["store", "npy", "parquet"])
def test_a_flow_is_fitted_too(request, source):
    assert fit(request.getfixturevalue(source), "flow(5)", "c", "--seed", 3) == 0
    record = read_record("c/calibrator.json", dict)
    assert (record["dim_in"], record["dim_out"], record["n"]) == (8, 5, len(X))
    assert record["facts"]["seed"] == 3
    assert record["facts"]["held_out_bits"] <= record["facts"]["held_out_bits_gaussian"]
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []


def test_a_flow_of_half_precision_vectors_is_one_of_the_same_numbers():
    np.save("half.npy", X.astype(np.float16))
    np.save("single.npy", X.astype(np.float16).astype(np.float32))
    for name in ("half", "single"):
        assert fit(f"{name}.npy", "flow", name) == 0
    half, single = (load_calibrator(name) for name in ("half", "single"))
    assert_array_equal(half.transform(X), single.transform(X))


# What is refused


def test_a_column_is_for_parquet(store, error_line):
    line = error_line(fit(store, "center", "c", "--column", "v"), 2)
    assert line == "error: --column is for vectors of a parquet file, but a store is given. Leave it out."


RANKS = {
    "flow": "A flow is trained over several processes by `bertflow train`. Use it, or one process.",
    "center": "Process 1 of 2 cannot find the others: MASTER_ADDR is not set. Use torchrun.",
}


@pytest.mark.parametrize("calibrator", RANKS)
def test_ranks_that_cannot_work_together_are_refused(npy, error_line, monkeypatch, calibrator):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert error_line(fit(npy, calibrator, "c"), 2) == f"error: {RANKS[calibrator]}"


@pytest.mark.slow
def test_two_ranks_of_torchrun_fit_what_one_fits(store):
    assert fit(store, "whitening", "one") == 0
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "bertflow"]
    given = ["--store", store, "--calibrator", "whitening", "--output", "two"]
    run_python(*ranks, "fit", *given, env={**os.environ, "OMP_NUM_THREADS": "1"})
    one, two = (load_calibrator(name) for name in ("one", "two"))
    assert one.moments_.n == two.moments_.n == len(X)
    assert_allclose(two.moments_.scatter, one.moments_.scatter, rtol=1e-11)
    assert_allclose(two.transform(X), one.transform(X), rtol=1e-4, atol=1e-5)


def test_what_no_memory_can_hold_is_no_damage(store, npy, monkeypatch, refused, told):
    def no_memory(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(np.lib.format, "open_memmap", no_memory)
    arguments = ["fit", "--calibrator", "center", "--output", "fitted"]
    hashes = store / "text_hashes.npy"
    assert refused(3, *arguments, "--store", store) == (
        f"error: There is not enough memory: {hashes.stat().st_size:,} bytes are wanted to map {hashes}. "
        "Ask for less at a time, or take a larger machine."
    )
    told(*arguments, "--vectors", npy)  # which is read a block at a time
