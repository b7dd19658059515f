"""``--skip_bad``: what is left out is listed and counted; everything else is as without it."""

from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main

from .conftest import SCORED, write_table

X = np.random.default_rng(0).normal(size=(60, 4)) @ np.diag([1.0, 2, 3, 4])
BAD = [3, 20, 59]
KEPT = np.delete(X, BAD, axis=0)


@pytest.fixture
def vectors(tmp_path):
    x = X.copy()
    x[BAD, 1] = np.nan, np.inf, -np.inf
    np.save("x.npy", x)
    pq.write_table(pa.table({"id": list(range(60)), "v": list(x)}), "x.parquet", row_group_size=19)
    return tmp_path


@pytest.fixture
def skipped(told):
    """Runs a command; gives the line that says what it left out."""
    return lambda *words: next(line for line in told(*words).splitlines() if line.startswith("skipped "))


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_fit_and_transform_leave_out_the_same_rows(vectors, skipped, ending):
    given, out = ["--vectors", vectors / f"x.{ending}", "--skip_bad", vectors / "bad.tsv"], vectors / f"z.{ending}"
    said = f"skipped 3 rows, listed in {vectors / 'bad.tsv'}"
    assert skipped("fit", "--calibrator", "whitening", "--output", vectors / "c", *given) == said
    assert skipped("transform", "--calibrator", vectors / "c", "--output", out, *given) == said
    listed = [line.split("\t") for line in (vectors / "bad.tsv").read_text().splitlines()]
    assert [int(row) for _, row, _, _ in listed[1:]] == BAD
    assert load_calibrator(vectors / "c").moments_.n == 57
    z = np.load(out) if ending == "npy" else np.array(pq.read_table(out)["v"].to_pylist())
    assert_allclose(z, Whitening().fit(KEPT).transform(KEPT), rtol=1e-6)
    if ending == "parquet":  # other columns stay with their rows
        assert pq.read_table(out)["id"].to_pylist() == np.delete(np.arange(60), BAD).tolist()


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_row_of_zeros_is_a_failed_embedding(ending, refused, skipped):
    x, path, listed = X.astype("float32"), Path(f"x.{ending}"), Path("bad.tsv")
    x[20] = 0
    np.save(path, x) if ending == "npy" else pq.write_table(pa.table({"v": list(x)}), path)
    Whitening().fit(X).save("c")
    fit = ["fit", "--calibrator", "center", "--output", "fitted"]
    transform = ["transform", "--calibrator", "c", "--output", "z.npy"]
    for command in (fit, transform):
        assert refused(3, *command, "--vectors", path) == (
            f"error: {path}, row 20: a vector is wanted, got zeros alone, as where an embedding failed. "
            "Embed the row again, or leave such rows out with --skip_bad FILE."
        )
        found = skipped(*command, "--vectors", path, "--skip_bad", listed)
        assert found == f"skipped 1 row, listed in {listed}"
    assert load_calibrator("fitted").moments_.n == len(np.load("z.npy")) == 59


def test_without_it_the_first_bad_row_ends_the_command_and_nothing_is_left(vectors, refused):
    Whitening().fit(KEPT).save(vectors / "c")
    arguments = ["transform", "--calibrator", vectors / "c", "--output", vectors / "z.npy"]
    assert refused(3, *arguments, "--vectors", vectors / "x.npy") == (
        f"error: {vectors / 'x.npy'}, row 3: vectors must be finite, got nan. Leave the row out, or such rows with "
        "--skip_bad FILE."
    )
    assert sorted(path.name for path in vectors.iterdir()) == ["c", "x.npy", "x.parquet"]


@pytest.mark.parametrize("command", ["embed {} --store {}/out", "search build {1}/out --answers {0}"])
def test_an_error_of_a_row_that_can_be_left_out_says_how(tiny_bert, tmp_path, command, refused, told):
    (path := Path("a.tsv")).write_text("id\ttext\na\tthe dog sings .\nb\t\n")
    arguments = [*command.format(path, tmp_path).split(), "--model", tiny_bert]
    assert refused(3, *arguments) == (
        f"error: {path}, line 3: the column text should hold text, got ''. Fill it in, or leave the line out. "
        "With --skip_bad FILE such rows are left out and listed."
    )
    path.write_bytes(b"id\ttext\xff\xfe\n")  # the header cannot be left out
    assert refused(3, *arguments).endswith("Save the file as UTF-8.")
    path.write_text("id\ttext\na\tthe dog sings .\nb\t\n")
    told(*arguments, "--skip_bad", "bad.tsv")


def test_a_flow_is_fitted_to_the_rows_that_are_left(vectors, monkeypatch):
    seen = []
    monkeypatch.setattr("bertflow.training.flow_fit.fit_flow", lambda x, *_, **how: seen.append(np.array(x)) or 1 / 0)
    given = ["--vectors", str(vectors / "x.npy"), "--skip_bad", str(vectors / "bad.tsv")]
    assert main(["fit", "--calibrator", "flow", "--output", str(vectors / "c"), *given]) == 5  # stopped there
    assert_array_equal(seen[0], KEPT)


def test_rows_that_come_out_infinite_are_left_out(skipped, refused):
    x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
    calibrator = Whitening().fit(x * 1e-30)
    calibrator.save("c")
    x[7] *= 1e20
    np.save("x.npy", x)
    given = ["transform", "--calibrator", "c", "--vectors", "x.npy"]
    given += ["--bare", "--output"]  # their lengths are far from those of the fit
    line = refused(3, *given, "y.npy")
    assert "x.npy, row 7: comes out as " in line
    said = skipped(*given, "z.npy", "--skip_bad", "bad.tsv")
    assert said == "skipped 1 row, listed in bad.tsv"
    assert_allclose(np.load("z.npy"), calibrator.transform(np.delete(x, 7, axis=0)), rtol=1e-6)


def test_pairs_are_left_out_of_a_score(tiny_bert, skipped):
    pairs = product(("dog", "cat", "bird"), ("eats", "runs"))
    rows = [(f"the {noun} sings .", f"the {noun} {verb} .", k) for k, (noun, verb) in enumerate(pairs)]
    bad, listed = [("a", "b", "1e400"), ("a", "", "1"), ("a", "b")], Path("bad.jsonl")
    own = write_table("own.tsv", SCORED, rows + bad)
    said = skipped("evaluate", tiny_bert, "--tasks", own, "--compare", "raw", "--skip_bad", listed)
    assert said == f"skipped 3 rows, listed in {listed}"
    assert listed.read_text().count("\n") == 3
