"""A file that was begun, and that an accident has changed: continued, it is as it would have been, or it is refused."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given

from bertflow.data.vectors import open_vectors
from bertflow.errors import BertflowError
from bertflow.runs import matrix

from ..store.test_damaged import accidents, damaged

X = np.random.default_rng(0).normal(size=(40, 4))


def write(x, folder, stop=None):
    """Twice the rows of a file, four at a time; at row ``stop`` the user presses Ctrl-C."""

    def blocks(start):
        for row in range(start, len(X), 4):
            if row == stop:
                raise KeyboardInterrupt
            yield X[row : row + 4], 2 * X[row : row + 4]

    matrix.write_matrix(folder / "z.npy", open_vectors(x), blocks, 4, {"by": 2})


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The rows, and a folder in which half of the new ones are."""
    folder = tmp_path_factory.mktemp("begun")
    np.save(folder / "x.npy", X)
    (folder / "out").mkdir()
    with pytest.MonkeyPatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(matrix, "EVERY", 1)
        write(folder / "x.npy", folder / "out", 20)
    assert sorted(path.name for path in (folder / "out").iterdir()) == [".z.npy.journal", ".z.npy.partial"]
    return folder / "x.npy", folder / "out"


@given(accident=accidents)
def test_what_is_continued_is_what_would_have_been_written(begun, tmp_path, accident):
    x, folder = begun
    copy = damaged(folder, tmp_path, accident)
    with suppress(BertflowError, OSError):
        write(x, copy)
        np.testing.assert_array_equal(np.load(copy / "z.npy"), 2 * X)
        assert [path.name for path in copy.iterdir()] == ["z.npy"]
