"""The flow behind scikit-learn's API: what holds for a density, and for a map that can be inverted."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import load_calibrator
from bertflow.errors import UsageError
from bertflow.maps import BandMap
from bertflow.moments import Moments
from bertflow.training.flow_fit import fit_flow
from bertflow.training.recipe import resolve

QUICK = {"epochs": 3, "batch_size": 64, "learning_rate": 5e-3, "glow": {"hidden": 16}}


@pytest.fixture(scope="module")
def x():
    generator = np.random.default_rng(0)
    first = generator.normal(size=(800, 2))
    second = first**2 + 0.3 * generator.normal(size=(800, 2))
    return np.concatenate((first, second), 1) @ generator.normal(size=(4, 4)) + 2


@pytest.fixture(scope="module")
def calibrator(x):
    return FlowCalibrator(changes=QUICK).fit(x)


@parametrize_with_checks([FlowCalibrator(changes={"epochs": 1})])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_it_is_fit_flow(calibrator, x):
    fitted = fit_flow(x, **QUICK)
    np.testing.assert_array_equal(calibrator.transform(x), fitted.map(torch.from_numpy(x)).numpy().astype(np.float64))
    assert {**calibrator.facts_, "seconds": 0} == {**asdict(fitted.record), "seconds": 0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_precision_of_the_rows_is_kept(calibrator, x, dtype):
    for mapped in (calibrator.transform, calibrator.score_samples, calibrator.inverse_transform):
        assert mapped(x[:3].astype(dtype)).dtype == dtype


def test_the_inverse_brings_the_rows_back(calibrator, x):
    np.testing.assert_allclose(calibrator.inverse_transform(calibrator.transform(x)), x, atol=1e-4)


def test_samples_look_like_the_rows(calibrator, x):
    drawn = calibrator.sample(20_000, random_state=1)
    np.testing.assert_allclose(drawn.mean(0), x.mean(0), atol=0.3)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(x.T), atol=0.25 * np.abs(np.cov(x.T)).max())


def test_a_single_coordinate_is_whitened(x):
    one = FlowCalibrator(n_components=1).fit(x)
    np.testing.assert_allclose(one.transform(x), Whitening(n_components=1).fit_transform(x), atol=1e-6)
    np.testing.assert_allclose(one.score_samples(x), Whitening().fit(x).score_samples(x), atol=1e-6)


def test_a_saved_calibrator_is_the_same(calibrator, x, tmp_path):
    calibrator.save(tmp_path / "flow")
    loaded = load_calibrator(tmp_path / "flow")
    np.testing.assert_array_equal(loaded.transform(x), calibrator.transform(x))
    np.testing.assert_array_equal(loaded.score_samples(x), calibrator.score_samples(x))
    assert loaded.recorded() == calibrator.recorded()
    assert loaded.preset == "similarity-2"  # the version of default
    assert loaded.facts_ == json.loads(json.dumps(calibrator.facts_))


def test_a_flow_fitted_elsewhere_becomes_the_same_calibrator(calibrator, x):
    recipe = resolve("default", QUICK)
    provenance = Provenance({"encoder": "toy"}, None)
    made = FlowCalibrator.of(fit_flow(x, recipe), recipe, Moments.of(x), provenance)
    np.testing.assert_array_equal(made.transform(x), calibrator.transform(x))
    assert made.recorded() == calibrator.recorded()
    assert made.provenance is provenance


@pytest.mark.parametrize("random_state", [None, -1, 0.5, True, 2**64, np.random.RandomState(0)])
def test_a_seed_is_a_whole_number(x, random_state):
    with pytest.raises(UsageError, match=r"^random_state must be a whole number of 0 or more, below 2\*\*63, got "):
        FlowCalibrator(random_state=random_state).fit(x)


def test_what_looks_calibrated_is_handed_through_and_keeps_a_density(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 100)).astype(np.float32)
    alone = FlowCalibrator().fit(x)
    assert alone.facts_["left_alone"].startswith("left alone: ")
    np.testing.assert_array_equal(alone.transform(x), x)
    np.testing.assert_array_equal(alone.inverse_transform(x), x)
    np.testing.assert_allclose(alone.score_samples(x), Whitening().fit(x).score_samples(x), rtol=1e-6)
    alone.save(tmp_path / "alone")
    loaded = load_calibrator(tmp_path / "alone")
    np.testing.assert_array_equal(loaded.transform(x), x)
    assert loaded.facts_["left_alone"] == alone.facts_["left_alone"]


@pytest.mark.parametrize(("purpose", "preset"), [("similarity", "similarity-2"), ("search", "search-2")])
def test_a_purpose_is_recorded_as_its_preset(purpose, preset, x, tmp_path):
    given = FlowCalibrator(purpose=purpose, changes=QUICK)
    assert clone(given).get_params() == given.get_params()
    fitted = given.fit(x)
    assert (fitted.preset, fitted.purpose, fitted.facts_["preset"]) == ("default", purpose, preset)
    fitted.save(tmp_path / "saved")
    loaded = load_calibrator(tmp_path / "saved")
    assert (loaded.preset, loaded.purpose) == (preset, None)
    np.testing.assert_array_equal(loaded.transform(x), FlowCalibrator(preset, changes=QUICK).fit(x).transform(x))


def test_bands_of_a_flow_come_back_have_its_density_and_no_inverse(tmp_path, refusal):
    x = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
    options = {"changes": {"epochs": 1, "glow": {"hidden": 8}}, "trainer": {"accelerator": "cpu"}}
    fitted = FlowCalibrator(purpose="search", **options).fit(x)
    flow = FlowCalibrator("search-2", "all", **options).fit(x)
    assert isinstance(fitted.map, BandMap)
    np.testing.assert_array_equal(fitted.score_samples(x), flow.score_samples(x))
    assert fitted.sample(3).shape == (3, 64)
    assert "there is no inverse" in refusal(lambda: fitted.inverse_transform(fitted.transform(x)), error=UsageError)
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(load_calibrator(tmp_path / "saved").transform(x), fitted.transform(x))


def test_a_preset_and_another_purpose_are_refused_at_the_fit(x):
    with pytest.raises(UsageError, match="The purpose all uses the preset both-2, but the preset paper-tf is"):
        FlowCalibrator("paper-tf", purpose="all").fit(x)
