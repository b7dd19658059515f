"""What the moments of a fit tell of embeddings whose encoder is not known.

A stand-in of an encoder leaves a mark, as real ones do: a mean and a size for each coordinate, and directions of its
own. Its text is what it draws.
"""

import logging
import zlib

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.calibration.same_space import likeness, require_alike, require_lengths
from bertflow.data.docstrings import PLAIN
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.moments import Moments

from ..test_unit_length import unit

DIM = 256


class Marked(AbstractEncoder):
    """An encoder with a mark of its own."""

    dim = DIM

    def __init__(self, seed=0, unit=False, length=1.0):
        generator = np.random.default_rng(seed)
        self.mean, self.sizes = generator.normal(size=DIM), np.exp(0.4 * generator.normal(size=DIM))
        self.directions = np.linalg.qr(generator.normal(size=(DIM, DIM)))[0] * np.arange(1, DIM + 1)[:, None] ** -0.5
        self.unit, self.length, self.encoded = unit, length, 0

    def describe(self):
        return {"encoder": "marked"}

    def _encode(self, sentences, role, progress, batch_size):
        self.encoded += len(sentences)
        seeds = [zlib.crc32(sentence.encode()) for sentence in sentences]
        drawn = np.array([np.random.default_rng(seed).normal(size=DIM) for seed in seeds])
        x = self.length * (self.mean + 10 * drawn @ self.directions) * self.sizes
        return np.float32(unit(x) if self.unit else x)


@pytest.fixture(scope="module")
def text():
    return [f"sentence {number}" for number in range(600)]


@pytest.fixture(scope="module")
def x(text):
    return Marked().encode(text)


def test_the_four_figures_are_what_they_say(x):
    rows, fit = x[300:], Moments.of(x[:300])
    found = likeness(rows, fit)
    sizes = [np.log(np.sqrt(np.square(side.astype(float)).mean(0))) for side in (rows, x[:300])]
    assert found.length == pytest.approx(np.sqrt(np.square(rows).sum() / np.square(x[:300]).sum()), rel=1e-5)
    assert found.mean == pytest.approx(np.corrcoef(rows.mean(0), fit.mean)[0, 1], rel=1e-4)
    assert found.sizes == pytest.approx(np.corrcoef(*sizes)[0, 1], rel=1e-4)
    assert found.spectrum == pytest.approx(1, abs=0.1)


def test_the_overlap_of_few_rows_is_that_of_many(x):
    # A covariance of 26 rows is mostly noise, whose size is known.
    few = [likeness(x[start : start + 26], Moments.of(x)).spectrum for start in range(0, 520, 26)]
    assert np.mean(few) == pytest.approx(1, abs=0.1)


def test_rows_are_compared_as_they_are_calibrated(x):
    assert likeness(9 * x[300:], Moments.of(unit(x[:300]))).length == pytest.approx(1)


def test_what_cannot_be_compared_is_not():
    few = np.random.default_rng(0).normal(size=(40, 16))
    assert likeness(few, Moments.of(few)).spectrum == likeness(np.zeros((3, DIM)), Moments.of(few)).length == 1
    constant = np.ones((20, DIM))
    assert likeness(constant, Moments.of(constant)).mean == 1


@pytest.mark.parametrize("unit_rows", [False, True])
def test_another_encoder_is_refused(x, unit_rows):
    calibrator = Center().fit(unit(x) if unit_rows else x)
    CalibratedEncoder(Marked(), calibrator)
    with pytest.raises(DataError) as error:
        CalibratedEncoder(Marked(seed=1), calibrator)
    assert str(error.value).startswith(
        "The calibrator is for the encoder that made the 600 bare vectors that it was fitted on, but the embeddings at "
        "hand are others: over the coordinates the means correlate by "
    )
    assert str(error.value).endswith("Use that encoder and pooling, or pass force=True in Python.")
    CalibratedEncoder(Marked(seed=1), calibrator, force=True)


def test_other_lengths_are_refused(x):
    with pytest.raises(DataError, match=r"are others: they are [45]\.?\d* times as short"):
        CalibratedEncoder(Marked(length=0.2), Center().fit(x))


def test_what_may_be_another_space_is_logged(x, caplog):
    mixed = x[:300] + 2.2 * Marked(seed=1).encode([f"other {number}" for number in range(300)])
    with caplog.at_level(logging.WARNING, "bertflow"):
        require_alike(mixed, Moments.of(x), "These should be of one encoder", "Look.")
    (record,) = caplog.records
    assert record.getMessage().startswith("These should be of one encoder, but the embeddings at hand may be others: ")


def test_an_encoder_that_scales_to_unit_length_is_refused_where_the_fit_was_raw(x):
    with pytest.raises(DataError) as error:
        CalibratedEncoder(Marked(unit=True), Center().fit(x))
    length = np.sqrt(Moments.of(x).mean_square_norm)
    assert str(error.value) == (
        f"All 26 rows have unit length, but the calibrator was fitted on rows {length:.3g} long (root mean square), "
        "and cannot know what their lengths were. Give rows as the encoder makes them; or fit on rows of unit length, "
        "and the calibrator brings all rows to unit length itself."
    )
    CalibratedEncoder(Marked(unit=True), Center().fit(unit(x)))


def test_an_encoder_that_is_known_is_not_asked(text):
    encoder = Marked()
    calibrator = Center().fit_sentences(encoder, text)
    encoder.encoded = 0
    CalibratedEncoder(encoder, calibrator)
    assert encoder.encoded == 0
    CalibratedEncoder(encoder, Center().fit(encoder.encode(text)))
    assert encoder.encoded == len(text) + len(PLAIN)


@pytest.mark.parametrize("rows", [1, 2, 600])
def test_rows_of_unit_length_are_refused_where_the_fit_was_raw(x, rows, refusal):
    assert "rows have unit length" in refusal(lambda: Center().fit(x).transform(unit(x)[:rows]))


@pytest.mark.parametrize(
    "rows",
    [np.zeros((4, DIM)), np.full((4, DIM), 1e-200), np.full((4, DIM), 1e200), np.vstack([np.eye(DIM), np.ones(DIM)])],
    ids=["zeros", "tiny", "huge", "one of another length"],
)
def test_other_rows_are_not_refused(x, rows):
    require_lengths(rows, Moments.of(x))


def test_a_fit_near_one_is_not_asked_for_lengths(x):
    near = x / np.sqrt(Moments.of(x).mean_square_norm)
    Center().fit(near).transform(unit(x))
    Center().fit(np.vstack([9 * near, near])).transform(unit(x))  # some of its rows were shorter than 1, some longer


@pytest.mark.slow
@pytest.mark.parametrize("lines", ["Order {} was shipped to Oslo.", "{}-A{}", "Der Zug Nummer {} ist verspätet."])
def test_narrow_text_of_the_same_encoder_is_never_refused(minilm, lines):
    encoder = TransformerEncoder(embedded_encoder(), "mean(1,2)", device="cpu")
    rows = encoder.encode([lines.format(number, number) for number in range(1000, 1400)])
    for fitted in (rows, unit(rows)):
        CalibratedEncoder(encoder, Whitening().fit(fitted))
