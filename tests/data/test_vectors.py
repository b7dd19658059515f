"""Plain vectors; the second voice is NumPy, or pyarrow, asked directly."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from bertflow.data.vectors import open_vectors, write_parquet
from bertflow.errors import DataError, UsageError

X = np.random.default_rng(0).normal(size=(50, 4))
KINDS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}

LEAVE = "Leave the row out, or such rows with --skip_bad FILE."
AGAIN = "Embed the row again, or leave such rows out with --skip_bad FILE."


def parquet(path, rows, kind=None, row_group_size=None, **others):
    table = pa.table({**others, "embedding": pa.array(rows, kind)})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def write(path, x):
    np.save(path, x) if path.suffix == ".npy" else parquet(path, list(x) if isinstance(x, np.ndarray) else x, None, 13)


LISTS = {"fixed": lambda kind: pa.list_(kind, 4), "variable": pa.list_, "large": pa.large_list}


def joined(vectors, *arguments):
    return np.concatenate([np.empty((0, vectors.dim), np.float32), *vectors.blocks(*arguments)])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_matrix_is_read_in_blocks(dtype, size):
    np.save("x.npy", X.astype(dtype))
    vectors = open_vectors("x.npy")
    assert (vectors.n, len(vectors), vectors.dim) == (50, 50, 4)
    assert max(len(block) for block in vectors.blocks(size)) <= size
    found = joined(vectors, size)
    assert_array_equal(found, X.astype(dtype))
    assert found.dtype == (np.float64 if dtype == "float64" else np.float32)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("lists", LISTS)
def test_a_column_of_lists_is_read_in_blocks(dtype, lists):
    kind = LISTS[lists](KINDS[dtype])
    path = parquet("x.parquet", list(X.astype(dtype)), kind, row_group_size=13, id=list(range(50)))
    vectors = open_vectors(path)
    assert (vectors.n, vectors.dim, vectors.column) == (50, 4, "embedding")
    assert_array_equal(joined(vectors, 8), X.astype(dtype))


@pytest.mark.parametrize(("start", "stop"), [(0, 50), (12, 14), (13, 26), (49, 50), (20, 20), (40, 1000)])
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_some_rows_are_read_alone(ending, start, stop):
    path = Path(f"x.{ending}")
    write(path, X)
    assert_array_equal(joined(open_vectors(path), 5, start, stop), X[start:stop])


def test_a_matrix_in_the_order_of_fortran_is_the_same_matrix():
    np.save("x.npy", np.asfortranarray(X))
    assert_array_equal(joined(open_vectors("x.npy"), 8), X)


def test_the_column_may_be_named():
    path = parquet("x.parquet", list(X), other=list(X[::-1]))
    assert_array_equal(joined(open_vectors(path, "other")), X[::-1])


# What is refused


@pytest.fixture
def refused(refusal):
    """The message with which vectors are refused."""
    return lambda path, column=None, **error: refusal(lambda: [*open_vectors(path, column).blocks(8)], **error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_row_that_is_not_finite_is_named(ending, value, refused):
    x, path = X.copy(), Path(f"x.{ending}")
    x[17, 2] = value
    write(path, x)
    assert refused(path) == f"{path}, row 17: vectors must be finite, got {value}. {LEAVE}"


def with_row(row, value):
    return [*X[:row].tolist(), value, *X[row + 1 :].tolist()]


NO_FLOATS = " should hold float16, float32 or float64, but holds {}. Convert it."
NONE = " holds no vectors: its shape is {}. Give a filled file."
REFUSED = {
    "a short row": (with_row(20, [1.0] * 3), f", row 20: 4 numbers are wanted, as in row 0, got 3. {AGAIN}"),
    "no vector": (with_row(20, None), f", row 20: a vector is wanted, but there is none. {LEAVE}"),
    "no first vector": (with_row(0, None), f", row 0: a vector is wanted, but there is none. {LEAVE}"),
    "no number": (with_row(20, [1.0, None, 1, 1]), f", row 20: a number is missing in the vector. {LEAVE}"),
    "whole numbers in lists": ([[1, 2], [3, 4]], NO_FLOATS.format("int64")),
    **{kind: (X.astype(kind), NO_FLOATS.format(np.dtype(kind))) for kind in ("int64", "complex128", "bool", "U3")},
    "an empty column": (pa.array([], pa.list_(pa.float32())), NONE.format((0, 0))),
    "no rows": (np.empty((0, 4)), NONE.format((0, 4))),
    "no columns": (np.empty((4, 0)), NONE.format((4, 0))),
    "one row": (X[0], " should hold a matrix (n, dim), but its shape is (4,). Reshape it."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_are_no_vectors_is_refused(case, refused):
    x, message = REFUSED[case]
    path = Path("x.npy" if isinstance(x, np.ndarray) else "x.parquet")
    write(path, x)
    assert refused(path) == f"{path}{message}"


@pytest.mark.parametrize("ending", ["npy", "parquet"])
@pytest.mark.parametrize("content", [b"", b"no such thing", "cut"])
def test_a_damaged_file_is_refused(ending, content, refused):
    path = Path(f"x.{ending}")
    write(path, X)
    path.write_bytes(path.read_bytes()[:-100] if content == "cut" else content)
    assert refused(path).startswith(f"{path} cannot be read as a {'matrix' if ending == 'npy' else 'parquet file'}: ")


HEADS = {
    "code": b"{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os'), 4), }",
    "open": b"{'descr': '<f4', 'fortran_order': False, 'shape': (50, 4",
    "deep": b"(" * 3000,
    "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904), }",
    "negative": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-50, 4), }",
    "no type": b"{'descr': '<q9', 'fortran_order': False, 'shape': (50, 4), }",
    "zip": None,
}


@pytest.mark.parametrize("head", HEADS)
def test_a_damaged_head_of_a_matrix_is_refused(head, refused):
    path = Path("x.npy")
    text = (HEADS[head] or b"").ljust(118) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + X.astype("<f4").tobytes())
    if head == "zip":
        np.savez(path.with_suffix(""), X)
        path.with_suffix(".npz").rename(path)
    assert refused(path).startswith(f"{path} cannot be read as a matrix: ")


def test_pickled_objects_are_not_loaded(refused):
    path = Path("x.npy")
    np.save(path, np.array([X, None], dtype=object), allow_pickle=True)
    assert refused(path).startswith(f"{path} cannot be read as a matrix: ")


def test_a_missing_file_and_another_format_are_refused(refused):
    path = Path("x.npy")
    assert refused(path) == f"{path} is missing. Give the path of an existing file."
    path = Path("x.npz")
    assert refused(path) == f"{path} should be vectors, by its ending one of .npy, .parquet. Convert it to one."


NOT_ONE = [
    ({"one": list(X), "two": list(X)}, None, UsageError),
    ({"id": ["a", "b"]}, None, DataError),
    ({"id": list(range(50)), "one": list(X)}, "vec", UsageError),
    ({"id": list(range(50)), "one": list(X)}, "id", UsageError),
]


@pytest.mark.parametrize(("columns", "column", "error"), NOT_ONE)
def test_one_column_of_vectors_has_to_be_named(columns, column, error, refused):
    path = Path("x.parquet")
    pq.write_table(pa.table(columns), path)
    assert refused(path, column, error=error) == (
        f"{path} should have one column of lists of numbers{f' called {column!r}' if column else ''}, but its columns "
        f"are {', '.join(columns)}. Name it with --column."
    )


def test_a_matrix_has_no_columns(refused):
    np.save("x.npy", X)
    said = refused("x.npy", "a", error=UsageError)
    assert said == "x.npy is one matrix, without columns, but column 'a' is asked for. Leave it out."


# Writing


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_are_written_as_parquet(dtype):
    write_parquet("z.parquet", X.astype(dtype))
    column = pq.read_table("z.parquet")["vector"]
    assert_array_equal(np.array(column.to_pylist(), dtype=dtype), X.astype(dtype))


def test_the_other_columns_stay_with_their_rows():
    ids = [f"id {k}" for k in range(50)]
    path = parquet("x.parquet", list(X), row_group_size=13, id=ids, n=list(range(50)))
    write_parquet("z.parquet", X[:, :2], open_vectors(path))
    table = pq.read_table("z.parquet")
    assert table.column_names == ["id", "n", "embedding"]
    assert table["id"].to_pylist() == ids
    assert_array_equal(np.array(table["embedding"].to_pylist()), X[:, :2])
