"""Refit now? Distances against SciPy's, chance against many draws."""

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis

from bertflow.scoring.drift import ERRORS, LARGE_DISTANCE, LEVEL, Coordinates, Drift, Means

RNG = np.random.default_rng(3)
SCALES = np.geomspace(0.1, 10, 40)


def rows(n, shift=0.0):
    """Rows with independent coordinates of different size."""
    return SCALES * (RNG.normal(size=(n, 40)) + shift)


def test_the_distance_of_means_is_that_of_mahalanobis():
    held_out, batch = rows(5000), rows(5000, 0.6)
    found = Coordinates.of(held_out).against(batch, len(held_out))
    theirs = mahalanobis(batch.mean(0), held_out.mean(0), np.diag(1 / held_out.var(0)))
    assert found.distance == pytest.approx(np.sqrt(theirs**2 - 40 * 2 / 5000), rel=1e-9)
    assert found.distance == pytest.approx(0.6 * 40**0.5, rel=0.02)
    assert found.standard_errors > 100 * ERRORS


@pytest.mark.parametrize("n", [20, 200])
def test_chance_alone_gives_no_distance_and_few_standard_errors(n):
    held_out = Coordinates.of(rows(2000))
    found = [held_out.against(rows(n), 2000) for _ in range(200)]
    assert max(one.standard_errors for one in found) < ERRORS
    errors = [one.standard_errors for one in found]
    assert np.mean(errors) == pytest.approx(0, abs=0.35)
    assert np.std(errors) == pytest.approx(1, abs=0.2)
    assert np.mean([one.distance == 0 for one in found]) > 0.4


def test_the_spectrum_is_that_of_the_variances():
    found = Coordinates.of(rows(4000)).against(3 * rows(4000), 4000)
    assert found.spectrum == pytest.approx((9, 9), rel=0.15)


def test_a_coordinate_without_variance_is_left_out():
    held_out, batch = rows(500), rows(500)
    flat = [np.hstack([x, np.ones((500, 1))]) for x in (held_out, batch)]
    assert Coordinates.of(flat[0]).against(flat[1], 500) == Coordinates.of(held_out).against(batch, 500)


FAR, NEAR = Means(LARGE_DISTANCE, ERRORS + 1, (0.5, 2.0)), Means(LARGE_DISTANCE / 2, ERRORS + 1, (0.5, 2.0))
MOVED = "the mean of the texts is far away"
CASES = {
    "nothing": (0.5, 0.5, None, "no, there is no drift to be seen"),
    "far by chance": (0.5, 0.9, Means(LARGE_DISTANCE, ERRORS - 1, (1.0, 1.0)), "no, there is no drift to be seen"),
    "significant and small": (LEVEL / 2, 0.6, NEAR, "no, the drift is small"),
    "strange texts": (LEVEL / 2, 0.9, NEAR, "yes, the texts are less ordinary than the held-out ones"),
    "texts that are too ordinary": (LEVEL / 2, 0.1, None, "yes, the texts are more ordinary than the held-out ones"),
    "the same likelihoods, another mean": (0.5, 0.5, FAR, f"yes, {MOVED}"),
    "both": (LEVEL / 2, 0.9, FAR, f"yes, the texts are less ordinary than the held-out ones, and {MOVED}"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_yes_needs_more_than_chance_and_a_large_difference(case):
    p_value, auroc, means, said = CASES[case]
    drift = Drift(1000, 2000, p_value, 0.3, -0.5, auroc, 0.02, means)
    outside = "2.0 % of 1,000 texts are out of domain (1 % of ordinary ones are)"
    assert str(drift).startswith(f"Refit now? {said}: {outside}")
    assert drift.refit == said.startswith("yes")
    assert drift.drifted == (said != "no, there is no drift to be seen")
    assert ("mean_distance" in drift.evidence()) == (means is not None)


def test_large_and_small_numbers_are_written_for_a_reader():
    far = Means(101.9, 141641.0, (0.57, 2412.3))
    assert str(far) == (
        "means more than 100 standard deviations apart (far above chance), variances 0.57 to 2,412 times those of the "
        "held-out text"
    )
    assert "(Kolmogorov-Smirnov 0.300, p < 0.0001); means" in str(Drift(1000, 2000, 4.9e-324, 0.3, -0.5, 1, 1, far))
    assert "(6 standard errors above chance)" in str(NEAR)
