"""General text lends its deviations."""

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power

import bertflow
from bertflow import Background
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.docstrings import general_text
from bertflow.errors import UsageError
from bertflow.runs.sources import flow_recipe

TEXT = [f"The {size} {colour} {thing}." for size in ("big", "small") for colour in ("red", "blue") for thing in "abcde"]
QUERIES = ["red", "a big one"]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.load(tiny_bert)


def test_rows_are_centered_and_divided_by_deviations_of_general_text_to_a_power(encoder):
    general = np.cov(encoder.encode(general_text()).T.astype(float), bias=True)
    rows = np.linalg.inv(fractional_matrix_power(general, 0.3))
    x = encoder.encode(TEXT).astype(float)
    centered = x - x.mean(0)
    z = Background(0.3).fit_sentences(encoder, TEXT).transform(x)
    np.testing.assert_allclose(z @ z.T, centered @ rows @ centered.T, rtol=1e-5, atol=1e-6)


def test_what_is_saved_maps_queries_and_texts_as_before(encoder, tmp_path):
    fitted = bertflow.CalibratedEncoder.fit(encoder, Background(), TEXT, queries=QUERIES)
    fitted.save(tmp_path / "encoder")
    opened = bertflow.load(tmp_path / "encoder")
    for encode in ("encode_query", "encode_document"):
        np.testing.assert_array_equal(getattr(opened, encode)(QUERIES), getattr(fitted, encode)(QUERIES))
    assert not np.allclose(fitted.encode_query(QUERIES), fitted.encode_document(QUERIES))
    assert opened.calibrator.facts_["general_sentences"] == len(general_text())


def test_rows_without_an_encoder_are_refused(encoder, refusal):
    alone = "Background embeds general text, which needs an encoder. Use fit_sentences, not fit."
    assert refusal(lambda: Background().fit(encoder.encode(TEXT)), error=UsageError) == alone
    stored = "background(0.5) embeds general text: fit it with `bertflow fix --candidates`, not to rows."
    made = parse_calibrator("background(0.5)")
    assert refusal(lambda: flow_recipe(made, "background(0.5)", None, None, None), error=UsageError) == stored


@pytest.mark.parametrize("power", [-0.1, 1.5, "all"])
def test_a_power_that_is_no_share_is_refused(encoder, power, refusal):
    wanted = f"Background(power=...) takes a number from 0 to 1, got {power!r}."
    assert refusal(lambda: Background(power).fit_sentences(encoder, TEXT), error=UsageError) == wanted
