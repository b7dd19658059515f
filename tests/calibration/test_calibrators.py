"""One table, all properties."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.errors import UsageError

CALIBRATORS = [
    Center(),
    Standardize(),
    AllButTheTop(k=2),
    Whitening(),
    Whitening(n_components=3),
    Whitening(power=0.5),
    Ridge(),
    TwoBand(),
    Blocks(blocks=2),
    Blocks("two-band(1)", blocks=3),
    Blocks("ridge(1)", n_components=4, blocks=2),
]
INVERTIBLE = [
    Center(),
    Standardize(),
    Whitening(),
    Whitening(power=0.25),
    Ridge(),
    Blocks(blocks=2),
    Blocks("ridge(2)", 6, blocks=3),
]


def anisotropic_embeddings(n=400, dim=6, dtype=np.float64):
    generator = np.random.default_rng(0)
    return (generator.normal(size=(n, dim)) * np.arange(1, dim + 1) + 5).astype(dtype)


@pytest.fixture(params=CALIBRATORS, ids=str)
def calibrator(request):
    return clone(request.param)


@pytest.mark.filterwarnings("ignore:Only . of the k=3 directions")
@parametrize_with_checks([Center(), Standardize(), AllButTheTop(), Whitening(), Ridge(), TwoBand(), Blocks(blocks=1)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_rows_do_not_see_each_other(calibrator):
    x = anisotropic_embeddings()
    calibrator.fit(x)
    one_by_one = np.concatenate([calibrator.transform(row[None]) for row in x[:5]])
    np.testing.assert_allclose(calibrator.transform(x)[:5], one_by_one, rtol=1e-12, atol=1e-12)


def test_streamed_batches_fit_as_the_whole(calibrator):
    x = anisotropic_embeddings()
    streamed = clone(calibrator)
    for batch in np.array_split(x, 7):
        streamed.partial_fit(batch)
    np.testing.assert_allclose(streamed.transform(x), calibrator.fit(x).transform(x), atol=1e-10)


def test_the_map_is_what_transform_does(calibrator):
    x = anisotropic_embeddings()
    calibrator.fit(x)
    np.testing.assert_array_equal(calibrator.transform(x), calibrator.map(torch.tensor(x)).numpy())


def test_blocks_of_rows_do_not_change_the_result(calibrator, monkeypatch):
    x = anisotropic_embeddings()
    whole = calibrator.fit(x).transform(x)
    monkeypatch.setattr("bertflow.encoder.device.ROWS", 7)
    np.testing.assert_allclose(calibrator.transform(x), whole, atol=1e-12)


@pytest.mark.parametrize("invertible", INVERTIBLE, ids=str)
def test_the_inverse_brings_the_rows_back(invertible):
    x = anisotropic_embeddings()
    np.testing.assert_allclose(clone(invertible).fit(x).inverse_transform(invertible.fit(x).transform(x)), x)


def test_the_inverse_of_a_reduction_is_the_best_point_of_its_span():
    x = anisotropic_embeddings()
    whitening, pca = Whitening(n_components=3).fit(x), PCA(3).fit(x)
    np.testing.assert_allclose(
        whitening.inverse_transform(whitening.transform(x)), pca.inverse_transform(pca.transform(x)), atol=1e-10
    )


def test_whitening_agrees_with_pca_up_to_signs_and_the_count():
    # scikit-learn divides by n - 1, we by n.
    x = anisotropic_embeddings()
    theirs = PCA(whiten=True).fit_transform(x) * np.sqrt(len(x) / (len(x) - 1))
    np.testing.assert_allclose(np.abs(Whitening().fit_transform(x)), np.abs(theirs))


@pytest.mark.parametrize("parameters", [{}, {"n_components": 2}, {"power": 0.5}], ids=str)
def test_reduction_keeps_the_density(parameters):
    x = anisotropic_embeddings()
    expected = stats.multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(Whitening(**parameters).fit(x).score_samples(x), expected)


@pytest.mark.parametrize("power", [0, 0.5, 1])
def test_a_power_leaves_a_power_of_each_variance(power):
    x = anisotropic_embeddings()
    left = np.linalg.eigvalsh(np.cov(x.T, bias=True)) ** (1 - power)
    z = Whitening(power=power).fit_transform(x)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.diag(left[::-1]), atol=1e-10)


@pytest.mark.parametrize("power", [-0.5, 1.5, True, "half", float("nan")])
def test_a_power_that_is_no_share_is_refused(power, refusal):
    assert (
        refusal(lambda: Whitening(power=power).fit(anisotropic_embeddings()), error=UsageError)
        == f"Whitening(power=...) takes a number from 0 to 1, got {power!r}."
    )


def test_standardizing_is_a_diagonal_gaussian():
    x = anisotropic_embeddings()
    expected = stats.norm(x.mean(0), x.std(0)).logpdf(x).sum(1)
    np.testing.assert_allclose(Standardize().fit(x).score_samples(x), expected)


def test_a_ridge_is_a_gaussian_of_a_wider_covariance():
    x = anisotropic_embeddings()
    covariance = np.cov(x.T, bias=True)
    wider = covariance + 2 * np.median(np.linalg.eigvalsh(covariance)) * np.eye(6)
    np.testing.assert_allclose(Ridge(2).fit(x).score_samples(x), stats.multivariate_normal(x.mean(0), wider).logpdf(x))
    z = Ridge(2).fit_transform(x)
    np.testing.assert_allclose(z @ z.T, (x - x.mean(0)) @ np.linalg.solve(wider, (x - x.mean(0)).T), atol=1e-9)


def test_a_nan_is_named(calibrator, refusal):
    x = anisotropic_embeddings()
    x[7, 2] = np.nan
    assert refusal(calibrator.fit, x) == (
        "Embeddings must be finite, but row 7, column 2 holds NaN. "
        "Look for a half-precision overflow in the encoder, or leave the row out."
    )


def test_the_inverse_of_another_width_is_refused(refusal):
    assert refusal(
        lambda: Whitening(n_components=3).fit(anisotropic_embeddings()).inverse_transform(np.zeros((2, 4)))
    ) == ("Calibrated embeddings of shape (n, 3) were expected, got (2, 4).")


def test_one_row_of_a_stream_is_not_enough(refusal):
    streamed = Whitening().partial_fit(anisotropic_embeddings(n=1))
    assert refusal(lambda: streamed.transform(anisotropic_embeddings())) == (
        "A covariance needs at least 2 rows, got 1. Fit on more sentences."
    )
