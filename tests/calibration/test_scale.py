"""Numbers at the ends of what a float can hold: calibrated, or refused in one line; never a NaN."""

import numpy as np
import pytest

from bertflow.calibration.base import load_calibrator
from bertflow.calibration.calibrators import AllButTheTop, Center, Standardize, Whitening
from bertflow.errors import DataError
from bertflow.files import write_json
from bertflow.records import read_record

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 8)) @ RNG.normal(size=(8, 8)) + 3
CALIBRATORS = [Center(), Standardize(), AllButTheTop(1), Whitening()]


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e98, "float64"), (1e-98, "float64"), (1e30, "float32"), (1e-38, "float32")]
)
def test_what_is_fitted_at_an_extreme_scale_is_finite(calibrator, scale, dtype):
    x = (X * scale).astype(dtype)
    z = calibrator.fit(x).transform(x)
    assert np.isfinite(z).all()
    if not isinstance(calibrator, AllButTheTop):  # which leaves a direction out
        np.testing.assert_allclose(calibrator.inverse_transform(z), x, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-120, 1e-310])
def test_what_would_overflow_is_refused_in_one_line(scale):
    with pytest.raises(DataError, match=r"should lie between 1e-100 and 1e\+100"):
        Whitening().fit(X * scale)


def test_a_row_that_comes_out_infinite_is_named():
    x = X.astype(np.float32)
    far = np.vstack([x[:2], np.full((1, 8), 3e38, dtype=np.float32)])
    with pytest.raises(DataError, match="Row 2 comes out as"):
        Standardize().fit(x / 1e3).transform(far)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sums: {}, "is missing"),
        (lambda sums: {**sums, "other.safetensors": "0"}, "other.safetensors is not one of them"),
        (lambda sums: {name: sum_ for name, sum_ in sums.items() if name != "moments.safetensors"}, "is missing"),
    ],
)
def test_the_checksums_are_those_of_exactly_its_files(change, message, tmp_path):
    Whitening().fit(X).save(tmp_path / "c")
    record = read_record(tmp_path / "c" / "calibrator.json", dict[str, object])
    write_json(tmp_path / "c" / "calibrator.json", {**record, "sha256": change(record["sha256"])})
    with pytest.raises(DataError, match=message):
        load_calibrator(tmp_path / "c")


def test_tensors_that_are_not_finite_are_refused(tmp_path):
    fitted = Whitening().fit(X)
    fitted.map_.weight[0, 0] = np.nan
    fitted.save(tmp_path / "c")
    with pytest.raises(DataError, match="weight is not finite"):
        load_calibrator(tmp_path / "c")
