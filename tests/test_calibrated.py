import pickle

import numpy as np
import pytest
import torch

from bertflow.calibrated import CalibratedEncoder, mapped_on
from bertflow.calibration.closed_forms import AllButTheTop, Center
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.text_keys import hash_texts

SENTENCES = ["the cat sat", "a dog ran", "the dog sat on the mat", "a cat", "the mat", "on a mat the cat ran"]


class CountingEncoder(AbstractEncoder):
    """Embeds a sentence as its length and its number of words, and counts what it is asked."""

    dim = 2

    def __init__(self, pooling="toy"):
        self.pooling, self.asked = pooling, 0

    def _encode(self, sentences, *_):
        self.asked += len(sentences)
        return np.array([[len(s), s.count(" ") + 1] for s in sentences], dtype=np.float32).reshape(-1, 2)

    def describe(self):
        return {"encoder": "counting", "pooling": self.pooling}

    def fitted_hashes(self):
        return np.empty(0, dtype=np.uint64)


@pytest.fixture
def tiny(tiny_bert):
    return TransformerEncoder(tiny_bert, pooling="mean(1,2)")


def test_repeated_sentences_are_fitted_once():
    calibrated = CalibratedEncoder.fit(CountingEncoder(), Center(), [*SENTENCES, *SENTENCES])
    assert calibrated.calibrator.moments_.n == len(SENTENCES)


def test_it_says_what_it_was_fitted_on(tiny):
    calibrated = CalibratedEncoder.fit(tiny, AllButTheTop(k=1), SENTENCES)
    np.testing.assert_array_equal(calibrated.fitted_hashes(), hash_texts(SENTENCES))
    assert calibrated.describe() == tiny.describe() | {"calibrator": "AllButTheTop(k=1)", "fitted_rows": len(SENTENCES)}


def test_bare_arrays_are_unknown_text(tiny):
    calibrator = AllButTheTop(k=1).fit(tiny.encode(SENTENCES))
    assert CalibratedEncoder(tiny, calibrator).fitted_hashes() is None


def test_another_width_is_refused(tiny, refusal):
    calibrator = Center().fit(np.random.default_rng(0).normal(size=(9, 7)))
    assert refusal(CalibratedEncoder, tiny, calibrator) == (
        "The calibrator expects embeddings of size 7, the encoder makes 16. "
        "Were both made with the same encoder and pooling?"
    )


def test_swapped_arguments_are_named(refusal):
    encoder = CountingEncoder()
    assert refusal(
        lambda: CalibratedEncoder(Center().fit_sentences(encoder, SENTENCES), encoder), error=UsageError
    ) == ("CalibratedEncoder takes an encoder, then a calibrator; got Center, CountingEncoder. Swap them.")
    with pytest.raises(UsageError, match="got Center, CountingEncoder"):
        CalibratedEncoder.fit(Center(), encoder, SENTENCES)
    assert refusal(lambda: Center().fit_sentences(SENTENCES, encoder), error=UsageError) == (
        "fit_sentences takes an encoder, then sentences; got list, CountingEncoder. For embeddings use fit(x)."
    )


def test_an_encoder_of_another_kind_is_told_what_to_do():
    with pytest.raises(UsageError, match="An encoder of your own derives from bertflow"):
        CalibratedEncoder(object(), Center().fit_sentences(CountingEncoder(), SENTENCES))


def test_its_repr_says_encoder_and_calibrator(tiny, tiny_bert):
    calibrated = CalibratedEncoder.fit(tiny, Center(), SENTENCES)
    assert repr(calibrated) == (
        f"CalibratedEncoder(TransformerEncoder('{tiny_bert}', pooling='mean(1,2)', max_length=64, dim=16), Center(), "
        "dim=16)"
    )
    assert repr(calibrated.calibrator) == ("<Center(): 16 -> 16, fitted on 6 embeddings by tiny-bert, mean(1,2)>")
    assert repr(Center()) == "Center()"


def test_it_is_copied_by_its_recipe(tiny):
    calibrated = CalibratedEncoder.fit(tiny, Center(), SENTENCES)
    again = pickle.loads(pickle.dumps(calibrated))
    np.testing.assert_array_equal(again.encode(SENTENCES), calibrated.encode(SENTENCES))
    assert again.identity == calibrated.identity


def test_an_encoder_that_cannot_be_written_is_refused(tmp_path, refusal):
    assert refusal(lambda: CalibratedEncoder.fit(CountingEncoder(), Center(), SENTENCES).save(tmp_path / "saved")) == (
        "Only a TransformerEncoder can be saved, this one is a CountingEncoder. Save the calibrator alone with "
        "calibrator.save(folder)."
    )
    assert not list(tmp_path.iterdir())


def test_a_pooling_that_weighs_by_frequency_counts_what_is_fitted_on(tiny_bert, caplog):
    caplog.set_level("INFO", "bertflow")
    calibrated = CalibratedEncoder.fit(TransformerEncoder(tiny_bert, "sif"), Center(), [*SENTENCES, SENTENCES[0]])
    counted = TransformerEncoder(tiny_bert, "sif").count_tokens(SENTENCES)
    np.testing.assert_array_equal(calibrated.encoder.encode(SENTENCES), counted.encode(SENTENCES))
    assert calibrated.describe()["token_counts"] == counted.describe()["token_counts"]
    assert "Frequencies for the pooling are counted in the sentences to fit on." in caplog.text


def test_counts_that_are_there_stay(tiny_bert):
    counted = TransformerEncoder(tiny_bert, "sif").count_tokens(["the dog"])
    before = counted.describe()
    assert CalibratedEncoder.fit(counted, Center(), SENTENCES).raw.describe() == before


def test_a_calibrator_runs_where_its_encoder_does(tiny_bert, monkeypatch):
    encoder = TransformerEncoder(tiny_bert, device="cpu")
    sentences = ["the dog sings", "a cat", "the man eats in the house", "a bird", "red garden"]
    calibrated = CalibratedEncoder.fit(encoder, Center(), sentences)
    expected = calibrated.encode(sentences)
    monkeypatch.setattr("bertflow.calibrated.gpu_of", lambda encoder: encoder.device)
    monkeypatch.setattr(calibrated.calibrator, "transform", None)  # what runs on the CPU
    monkeypatch.setattr("bertflow.encoder.device.ROWS", 2)
    np.testing.assert_allclose(calibrated.encode(sentences), expected, rtol=0, atol=1e-5)


def test_a_calibrator_of_an_encoder_on_mps_runs_on_the_processor(tiny_bert, monkeypatch):
    calibrated = CalibratedEncoder.fit(TransformerEncoder(tiny_bert, device="cpu"), Center(), SENTENCES)
    expected = calibrated.encode(SENTENCES)
    monkeypatch.setattr("bertflow.calibrated.gpu_of", lambda encoder: torch.device("mps"))
    monkeypatch.setattr(
        "bertflow.calibrated.mapped_on", None
    )  # a map on MPS: "the MPS framework doesn't support float64"
    np.testing.assert_array_equal(calibrated.encode(SENTENCES), expected)


def test_rows_that_cannot_be_written_are_calibrated_on_a_device():
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    fitted = Center().fit(x)
    x.setflags(write=False)
    found = mapped_on(torch.device("cpu"), fitted.map, x[::-1])
    np.testing.assert_allclose(found, fitted.transform(x[::-1]), rtol=0, atol=1e-6)
