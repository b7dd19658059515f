import numpy as np
import pytest

from bertflow.moments import Moments
from bertflow.training.presets import PRESETS, resolve
from bertflow.training.reduction import KEPT, kept_directions, participation_ratio


@pytest.mark.parametrize(("rank", "kept"), [(2, 2), (KEPT, KEPT), (KEPT + 1, KEPT), (4096, KEPT)])
def test_the_default_keeps_one_number_of_directions_or_all_there_are(rank, kept):
    assert kept_directions(PRESETS["default"], rank) == kept


@pytest.mark.parametrize("name", ["paper-tf", "paper-text"])
def test_the_paper_keeps_all(name):
    assert kept_directions(PRESETS[name], 768) == 768


def test_a_number_that_is_given_is_taken():
    assert kept_directions(resolve("default", {"n_components": 7}), 20) == 7


def test_the_participation_ratio_is_that_of_the_eigenvalues():
    x = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 1, 1, 0.1]
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert participation_ratio(Moments.of(x)) == pytest.approx(variances.sum() ** 2 / (variances**2).sum())


def test_an_isotropic_cloud_takes_part_in_all_directions():
    x = np.concatenate([np.eye(6), -np.eye(6)])
    assert participation_ratio(Moments.of(x)) == pytest.approx(6)
