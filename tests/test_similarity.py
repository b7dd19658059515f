import numpy as np
import pytest
from scipy.spatial import distance

from bertflow.errors import DataError
from bertflow.similarity import SIMILARITIES, unit_rows

SECOND_VOICES = {
    "cosine": lambda a, b: 1 - distance.cosine(a, b),
    "dot": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
    "euclidean": lambda a, b: -distance.euclidean(a, b),
    "manhattan": lambda a, b: -distance.cityblock(a, b),
}


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    return generator.normal(size=(5, 4)), generator.normal(size=(5, 4))


@pytest.mark.parametrize("name", SIMILARITIES)
def test_pairs_agree_with_scipy(name, rows):
    a, b = rows
    expected = [SECOND_VOICES[name](x, y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(SIMILARITIES[name].paired(a, b), expected)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_diagonal_of_the_matrix_is_the_pairs(name, rows):
    np.testing.assert_allclose(np.diag(SIMILARITIES[name].matrix(*rows)), SIMILARITIES[name].paired(*rows))


@pytest.mark.parametrize("name", SIMILARITIES)
def test_float32_is_computed_in_float64(name, rows):
    assert SIMILARITIES[name].paired(*(x.astype(np.float32) for x in rows)).dtype == np.float64


def test_a_zero_row_has_no_cosine(refusal):
    assert refusal(lambda: unit_rows(np.array([[1.0, 0.0], [0.0, 0.0]]))) == (
        "Cosine needs embeddings of length above zero, but row 1 is all zeros. Leave it out."
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_a_row_that_is_not_finite_has_no_cosine(value):
    with pytest.raises(DataError) as error:
        unit_rows(np.array([[1.0, 0.0], [value, 1.0]]), first_row=10)
    message = "Cosine needs finite embeddings, but row 11 is not, or its length is not. Leave it out."
    assert str(error.value) == message


def test_equal_rows_are_tied_at_exactly_one():
    x = np.random.default_rng(0).normal(size=(50, 384))
    assert set(SIMILARITIES["cosine"].paired(x, x.copy())) == {1.0}
