"""Numbers at the ends of what a float can hold: calibrated, or refused in one line; never a NaN."""

import tempfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import load_calibrator
from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.moments import Moments
from bertflow.records import read_record, write_record

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 8)) @ RNG.normal(size=(8, 8)) + 3
CALIBRATORS = [Center(), Standardize(), AllButTheTop(1), Whitening(), Ridge(), TwoBand()]
CLOUDS = {
    "ordinary": lambda rng: rng.normal(size=(60, 5)) @ rng.normal(size=(5, 5)) + 3,
    "equal rows": lambda rng: np.tile(rng.normal(size=5), (60, 1)),
    "few distinct rows": lambda rng: np.repeat(rng.normal(size=(3, 5)), 20, 0),
    "a plane": lambda rng: rng.normal(size=(60, 2)) @ rng.normal(size=(2, 5)),
    "one row": lambda rng: rng.normal(size=(1, 5)),
    "two rows": lambda rng: rng.normal(size=(2, 5)),
    "one dimension": lambda rng: rng.normal(size=(60, 1)),
    "fewer rows than dimensions": lambda rng: rng.normal(size=(4, 5)),
    "a huge mean": lambda rng: rng.normal(size=(60, 5)) + 1e7,
    "a mean that eats the variance": lambda rng: rng.normal(size=(60, 5)) + 1e12,
    "one outlier": lambda rng: np.vstack([rng.normal(size=(59, 5)), np.full((1, 5), 1e30)]),
    "zeros but one": lambda rng: np.eye(60)[:, :5] * (np.arange(60) == 0)[:, None],
    "zeros": lambda rng: np.zeros((60, 5)),
    "a coordinate that hardly varies": lambda rng: rng.normal(size=(60, 5)) * [1, 1, 1, 1, 1e-4],
}
QUICK = {"epochs": 1, "batch_size": 32}
FLOWS = [
    FlowCalibrator(preset, changes={**QUICK, "glow": {"hidden": 8, **glow}})
    for preset in ("default", "paper-tf", "paper-text")
    for glow in (
        {},
        {"coupling": "affine", "permutation": "lu-rotation"},
        {"network": "conv-stack", "initialization": "data", "activation": "gatu"},
    )
]


@st.composite
def clouds(draw):
    """Rows of every kind, at every scale that their precision holds."""
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    most = {np.float64: 300, np.float32: 44, np.float16: 7}[dtype]
    rows = CLOUDS[draw(st.sampled_from(sorted(CLOUDS)))](np.random.default_rng(draw(st.integers(0, 9))))
    with np.errstate(over="ignore"):
        x = (rows * 10.0 ** draw(st.integers(-most, most))).astype(dtype)
    return np.clip(x, np.finfo(dtype).min, np.finfo(dtype).max)


def in_one_line(do):
    """What ``do`` gives, if all of it is finite; None if it is refused in one line."""
    said = ""
    try:
        given = do()
    except BertflowError as error:
        said, given = str(error), 0.0
    assert "\n" not in said
    assert np.isfinite(given).all()
    return None if said else given


def all_of(calibrator, x):
    """Fit and use a calibrator in every way: finite, or refused in one line."""
    fitted = clone(calibrator)
    if in_one_line(lambda: fitted.fit(x).moments_.n) is None:
        return
    z = in_one_line(lambda: fitted.transform(x))
    if z is not None:
        in_one_line(lambda: fitted.inverse_transform(z))
    if hasattr(fitted, "score_samples"):
        in_one_line(lambda: fitted.score_samples(x))
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(folder)
        loaded = load_calibrator(folder)
    if z is not None:
        np.testing.assert_array_equal(loaded.transform(x), z)
    if hasattr(fitted, "partial_fit"):
        parts = np.array_split(x.astype(np.float64), 2)
        in_one_line(lambda: clone(calibrator).partial_fit(parts[0]).partial_fit(parts[1]).transform(x))
        in_one_line(lambda: clone(calibrator).fit_moments(Moments.merged(map(Moments.of, parts))).transform(x))


few = pytest.mark.filterwarnings(
    "ignore::bertflow.errors.NullDirectionWarning", "ignore:Only 0 of the k=1 directions", "ignore:overflow encountered"
)


@few
@settings(max_examples=max(20, settings.default.max_examples // 5))
@given(clouds(), st.sampled_from([*CALIBRATORS, Whitening(2), AllButTheTop(0), Blocks(blocks=1)]))
@example(np.full((50, 5), 1e-40), Standardize())  # their mean is not exactly the row
def test_every_closed_form_is_finite_or_refused(x, calibrator):
    all_of(calibrator, x)


@few
@settings(max_examples=max(4, settings.default.max_examples // 100))
@given(clouds(), st.sampled_from(FLOWS))
@example((X * 1e-38).astype(np.float32), FLOWS[3])  # was fitted, and then could not be saved
@example((X * 1e60), FLOWS[0])  # its inverse overflowed in float32
def test_every_flow_is_finite_or_refused(x, calibrator):
    all_of(calibrator, x)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e98, "float64"), (1e-98, "float64"), (1e30, "float32"), (1e-38, "float32")]
)
def test_what_is_fitted_at_an_extreme_scale_is_finite(calibrator, scale, dtype):
    x = (X * scale).astype(dtype)
    z = calibrator.fit(x).transform(x)
    assert np.isfinite(z).all()
    if not isinstance(calibrator, AllButTheTop | TwoBand):  # which leave a direction or the lengths out
        np.testing.assert_allclose(calibrator.inverse_transform(z), x, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("scale", [1e155, 1e300, 1e-120, 1e-310])
def test_what_would_overflow_is_refused_in_one_line(scale, refusal):
    assert "should lie between 1e-100 and 1e+100" in refusal(lambda: Whitening().fit(X * scale))


def test_streamed_rows_that_would_overflow_are_refused():
    with pytest.raises(DataError, match=r"should lie between 1e-100 and 1e\+100, got 8"):
        Whitening().partial_fit(X).partial_fit(X / np.abs(X).max() * 8e200)


def test_a_flow_without_whitening_refuses_what_float32_does_not_sum(refusal):
    assert refusal(FLOWS[3].fit, X * 1e30).startswith(
        "The root mean square norm of the embeddings should lie between 0.0001 and 1e+08"
    )


@pytest.mark.parametrize("calibrator", [Standardize(), Whitening()])
def test_rows_whose_mean_eats_their_variance_say_what_to_do(calibrator):
    x = X + 1e12
    with pytest.raises(
        DataError, match=r"The 400 rows differ by less than 1e-05 of their length.* Subtract one of them"
    ):
        calibrator.fit(x)
    assert np.isfinite(calibrator.fit(x - x[0]).transform(x - x[0])).all()  # as the message says


def test_equal_rows_are_told_from_their_rounded_mean(refusal):
    assert "All 50 rows are equal" in refusal(lambda: Whitening().fit(np.full((50, 5), 1e-40)))


def test_a_row_that_overflows_on_the_way_is_mapped_in_float64():
    x = np.vstack([-X * 1e37, np.full((1, 8), 3.4e38)]).astype(np.float32)
    fitted = Standardize().fit(x[:-1])
    z = fitted.transform(x)  # the last row less the mean is more than float32 holds
    np.testing.assert_allclose(z[-1], fitted.transform(x[-1:].astype(np.float64))[0], rtol=1e-6)
    np.testing.assert_allclose(z[:3], fitted.transform(x[:3]), rtol=1e-5)


def test_a_density_far_from_the_rows_is_a_number_in_float64_and_refused_in_float32():
    fitted = FLOWS[0].fit(X)
    assert (fitted.score_samples(X * 1e30) < -1e58).all()
    with pytest.raises(DataError, match=r"Row 0 comes out as -inf in float32: .*, or give float64\.$"):
        fitted.score_samples((X * 1e30).astype(np.float32))


def test_a_mean_density_does_not_overflow():
    assert np.isfinite(Whitening().fit(X).score(X * 1e152))


def test_a_row_that_comes_out_infinite_is_named(refusal):
    x = X.astype(np.float32)
    far = np.vstack([x[:2], np.full((1, 8), 3e38, dtype=np.float32)])
    assert "Row 2 comes out as" in refusal(lambda: Standardize().fit(x / 1e3).transform(far))


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
    write_record(tmp_path / "c" / "calibrator.json", {**record, "sha256": change(record["sha256"])})
    with pytest.raises(DataError, match=message):
        load_calibrator(tmp_path / "c")


def test_tensors_that_are_not_finite_are_refused(tmp_path, refusal):
    fitted = Whitening().fit(X)
    fitted.map_.weight[0, 0] = np.nan
    fitted.save(tmp_path / "c")
    assert "weight is not finite" in refusal(load_calibrator, tmp_path / "c")


@pytest.mark.parametrize(
    ("calibrator", "message"),
    [
        (Whitening("4"), "Whitening(n_components=...) takes a whole number of directions, 1 or more, got '4'."),
        (Whitening(True), "Whitening(n_components=...) takes a whole number of directions, 1 or more, got True."),
        (Ridge(-1), "Ridge(r=...) takes a number of 0 or more, got -1."),
        (TwoBand(float("nan")), "TwoBand(c=...) takes a number of 0 or more, got nan."),
        (Blocks(blocks=0), "Blocks(blocks=...) takes a whole number of layers, 1 or more, got 0."),
        (AllButTheTop(-1), "AllButTheTop(k=...) takes a whole number of directions, 0 or more, got -1."),
        (AllButTheTop(None), "AllButTheTop(k=...) takes a whole number of directions, 0 or more, got None."),
        (FlowCalibrator(n_components="4"), "flow.n_components should be a valid integer or 'auto' or 'all', got '4'."),
        (FlowCalibrator(n_components=0), "flow.n_components must be at least 1, got 0."),
        (FlowCalibrator(["default"]), "Unknown preset ['default']. Known: default, similarity-2, search-2, "),
        (FlowCalibrator(changes=[1]), "FlowCalibrator(changes=...) takes a mapping of options to values, got [1]."),
        (FlowCalibrator(trainer="fast"),
         "FlowCalibrator(trainer=...) takes a mapping of options to values, got 'fast'."),
        (FlowCalibrator(changes={"epochs": "2"}), "flow.epochs should be a valid number, got '2'."),
        (FlowCalibrator(changes={"epochs": np.nan}), "flow.epochs should be a finite number, got nan."),
        (FlowCalibrator(changes={"weight_decay": -1}), "flow.weight_decay must be at least 0, got -1."),
        (FlowCalibrator(changes={"optimizer": "sgd"}),
         "flow.optimizer should be 'adam' or 'released-adamw', got 'sgd'."),
        (FlowCalibrator(changes={"glow": 5}), "flow.glow should be an instance of GlowConfig, got 5."),
        (FlowCalibrator(changes={"glow": {"coupling": ["a"]}}), "glow.coupling should be a valid string, got ['a']."),
    ],
    ids=str,
)  # fmt: skip
def test_a_parameter_of_a_wrong_type_or_range_is_refused_before_the_fit(calibrator, message, refusal):
    assert refusal(calibrator.fit, X, error=UsageError).startswith(message)
    if hasattr(calibrator, "partial_fit"):
        with pytest.raises(UsageError):
            calibrator.partial_fit(X)


def test_numbers_of_numpy_are_numbers_and_are_saved(tmp_path):
    for name, calibrator in {
        "whitening": Whitening(np.int64(3)),
        "flow": FlowCalibrator(n_components=np.int64(3), changes={**QUICK, "batch_size": np.int32(16)}),
    }.items():
        calibrator.fit(X).save(tmp_path / name)
        assert load_calibrator(tmp_path / name).dim_out == 3


@pytest.mark.parametrize("n", [0, -1, "4", 2.0, True])
def test_a_number_of_samples_is_a_whole_number(n):
    with pytest.raises(UsageError, match=r"^sample\(n\) takes a whole number of rows, 1 or more, got "):
        FlowCalibrator(n_components=1).fit(X).sample(n)


@pytest.mark.parametrize("x", [[1.0, 2.0], "abc", [["a"], ["b"]], X + 1j, [[1.0], [1.0, 2.0]], None], ids=str)
def test_what_is_no_matrix_is_refused_in_one_line(x):
    with pytest.raises(DataError) as error:
        Whitening().fit(x)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 400


@pytest.mark.parametrize(
    ("n", "mean", "scatter"),
    [
        (3, np.zeros(2), np.full((2, 2), np.nan)),
        (3, np.array([0, np.inf]), np.eye(2)),
        (3, np.zeros(2), np.zeros((2, 3))),
        (3, np.zeros(2), -np.eye(2)),
        (-1, np.zeros(2), np.eye(2)),
    ],
)
def test_moments_that_no_rows_have_are_refused(n, mean, scatter, refusal):
    assert "Moments are a count, a mean" in refusal(Moments, n, mean, scatter)


def test_fit_moments_takes_no_rows():
    with pytest.raises(UsageError, match=r"^fit_moments takes Moments, got ndarray\. For embeddings use fit\(x\)\.$"):
        Whitening().fit_moments(X)
