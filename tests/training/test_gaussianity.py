import numpy as np
import pytest
from scipy import stats

from bertflow.training.record import gaussianity


@pytest.fixture
def normal():
    return np.random.default_rng(0).normal(size=(20_000, 5))


def test_a_normal_cloud_departs_by_chance_alone(normal):
    found = gaussianity(normal)
    assert found.sampling == pytest.approx(20_000**-0.5)
    assert max(found.mean, found.covariance) < 2 * found.sampling
    assert found.norm_ks < 2 * found.sampling


@pytest.mark.parametrize(
    ("change", "measure", "expected"),
    [
        (lambda z: z + 2, "mean", 2.0),
        (lambda z: 2 * z, "variance", 3.0),
        (lambda z: np.repeat(z[:, :1], 5, axis=1), "covariance", 1.0),
    ],
)
def test_each_measure_sees_its_departure(normal, change, measure, expected):
    assert getattr(gaussianity(change(normal)), measure) == pytest.approx(expected, rel=0.1)


def test_higher_moments_are_those_of_scipy(normal):
    z = normal**3
    found = gaussianity(z)
    assert found.skewness == pytest.approx(np.sqrt(np.square(stats.skew(z)).mean()))
    assert found.kurtosis == pytest.approx(np.sqrt(np.square(stats.kurtosis(z)).mean()))


def test_a_constant_dimension_is_no_division_by_zero():
    assert np.isfinite(gaussianity(np.zeros((10, 3))).kurtosis)
