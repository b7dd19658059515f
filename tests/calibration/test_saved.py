import json

import numpy as np
import pytest
from sklearn.base import clone

from bertflow.calibration.background import Background  # which is saved in test_background.py
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import CALIBRATORS, load_calibrator
from bertflow.text_keys import digest, hash_texts

FITTED = [
    Center(),
    Standardize(),
    AllButTheTop(k=2),
    Whitening(n_components=3),
    Ridge(2),
    TwoBand(0.25),
    Blocks("two-band(1)", blocks=2),
    FlowCalibrator(n_components=4),
]


@pytest.fixture
def x():
    generator = np.random.default_rng(0)
    return (generator.normal(size=(300, 6)) @ generator.normal(size=(6, 6))).astype(np.float32)


@pytest.fixture
def folder(tmp_path, x):
    Whitening().fit(x).save(tmp_path / "whitening")
    return tmp_path / "whitening"


def test_every_calibrator_is_saved_here():
    assert {type(calibrator) for calibrator in FITTED} == {kind.make for kind in CALIBRATORS.values()} - {Background}


@pytest.mark.parametrize("calibrator", FITTED, ids=lambda calibrator: type(calibrator).__name__)
def test_a_loaded_calibrator_is_the_saved_one_bit_by_bit(calibrator, tmp_path, x):
    calibrator.fit(x).save(tmp_path / "saved")
    loaded = load_calibrator(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.transform(x), calibrator.transform(x))
    assert loaded.get_params() == {**clone(calibrator).get_params(), **calibrator.recorded()}
    assert loaded.provenance is None


def test_the_provenance_comes_back(tmp_path, x):
    calibrator = Center().fit(x)
    calibrator.provenance_ = Provenance({"encoder": "e", "pooling": "mean"}, hash_texts(["a", "b"]), ("stsb",))
    calibrator.save(tmp_path / "c")
    loaded = load_calibrator(tmp_path / "c").provenance
    assert (loaded.encoder, loaded.labels) == ({"encoder": "e", "pooling": "mean"}, ("stsb",))
    np.testing.assert_array_equal(loaded.text_hashes, hash_texts(["a", "b"]))
    assert json.loads((tmp_path / "c" / "calibrator.json").read_text())["text_keys"] == digest(hash_texts(["b", "a"]))


def test_a_folder_holds_nothing_but_json_and_safetensors(folder):
    assert {path.name for path in folder.iterdir()} == {
        "calibrator.json",
        "calibrator.safetensors",
        "moments.safetensors",
    }


def test_a_missing_folder_is_said(tmp_path, refusal):
    assert refusal(load_calibrator, tmp_path / "none") == (
        f"A calibrator folder was expected at {tmp_path / 'none'}, but there is none. "
        "Give the folder that save() wrote."
    )
