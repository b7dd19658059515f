import numpy as np
import pytest

from bertflow import moments as module
from bertflow.moments import Moments, all_finite


@pytest.fixture
def x():
    generator = np.random.default_rng(0)
    return generator.normal(size=(200, 5)) @ generator.normal(size=(5, 5)) + 100.0


def test_moments_agree_with_numpy(x):
    seen = Moments.of(x)
    np.testing.assert_allclose(seen.mean, x.mean(0))
    np.testing.assert_allclose(seen.covariance, np.cov(x.T, bias=True))
    assert seen.mean_square_norm == pytest.approx((x**2).sum(1).mean())


@pytest.mark.parametrize("cut", [1, 7, 100, 199])
def test_merged_parts_are_the_whole(x, cut):
    whole, merged = Moments.of(x), Moments.of(x[:cut]).merge(Moments.of(x[cut:]))
    assert merged.n == whole.n
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(merged.scatter, whole.scatter, rtol=1e-9)


def test_blocks_do_not_change_the_moments(x, monkeypatch):
    whole = Moments.of(x)
    monkeypatch.setattr(module, "CACHED", 17)
    cut = Moments.of(x)
    np.testing.assert_allclose(cut.scatter, whole.scatter, rtol=1e-9)
    np.testing.assert_allclose(cut.scatter, np.cov(x.T, bias=True) * len(x), rtol=1e-11)
    np.testing.assert_array_equal(cut.scatter, cut.scatter.T)
    assert cut.lengths == whole.lengths == (np.linalg.norm(x, axis=1).min(), np.linalg.norm(x, axis=1).max())


def test_rows_that_drift_and_columns_that_are_constant_keep_their_variance(monkeypatch):
    monkeypatch.setattr(module, "CACHED", 16)
    x = np.random.default_rng(0).normal(size=(500, 4))
    x[:, 0], x[:, 1] = 0.1, x[:, 1] + np.arange(500)  # the means of the blocks are far apart
    found = Moments.of(x.astype(np.float32)).covariance
    assert 0 <= found[0, 0] < 1e-30
    np.testing.assert_allclose(
        found[1:, 1:], np.cov(x[:, 1:].astype(np.float32).T.astype(np.float64), bias=True), rtol=1e-12
    )


def test_the_largest_number_counts_and_not_that_of_a_block(monkeypatch, refusal):
    monkeypatch.setattr(module, "CACHED", 4)
    x = np.full((12, 2), 1e-150)
    x[8:] = [[1.0, 2.0], [2.0, 1.0], [0.0, 3.0], [4.0, 4.0]]
    assert Moments.of(x).lengths[1] == pytest.approx(32**0.5)
    for bad in (x * 1e-120, x * 1e120):
        assert "The largest number (row 11) of the embeddings should lie between" in refusal(Moments.of, bad)


def test_a_large_mean_does_not_eat_the_variance():
    x = np.random.default_rng(0).normal(size=(1000, 3))
    np.testing.assert_allclose(Moments.of(x + 1e8).covariance, np.cov(x.T, bias=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("value", "found"), [(np.nan, "NaN"), (np.inf, "inf")])
def test_a_value_that_is_not_finite_is_named(x, value, found, refusal):
    x[150, 3] = value
    assert refusal(Moments.of, x) == (
        f"Embeddings must be finite, but row 150, column 3 holds {found}. "
        "Look for a half-precision overflow in the encoder, or leave the row out."
    )


def test_different_widths_do_not_merge(x, refusal):
    assert refusal(lambda: Moments.of(x).merge(Moments.of(x[:, :3]))) == (
        "Moments of dimension 5 and 3 cannot be merged. Same encoder, same pooling?"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finite_numbers_whose_sum_is_not_are_finite(dtype):
    large = np.full((3, 4), np.finfo(dtype).max)
    assert all_finite(large)
    for bad in (np.nan, np.inf, -np.inf):
        large[1, 2] = bad
        assert not all_finite(large)
