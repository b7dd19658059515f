import numpy as np
import pytest
from scipy import stats

from bertflow.geometry.spectrum import LEVELS, Latent
from bertflow.training.recipe import gaussianity


def test_a_gaussian_lies_on_the_diagonal():
    found = Latent.of(np.random.default_rng(0).normal(size=(20_000, 32)))
    np.testing.assert_allclose(found.observed, found.expected, atol=0.02)
    assert found.spread == pytest.approx(1, abs=0.03)


def test_quantiles_are_those_of_the_squared_lengths():
    z = np.random.default_rng(0).standard_t(3, size=(500, 4))
    found = Latent.of(z)
    lengths = sorted(sum(value**2 for value in row) / 4 for row in z)
    assert found.observed[49] == pytest.approx(np.median(lengths))
    assert stats.chi2(4).cdf(4 * found.expected) == pytest.approx(LEVELS)
    assert found.spread > 2  # heavy tails
    assert found.departures == gaussianity(z)
