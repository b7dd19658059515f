"""``bertflow.score`` from Python: an open encoder, pairs and text as lists."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.errors import UsageError

from ..texts import WITH_THE, drawn

PAIRS = [("the dog runs", "the dog runs"), ("a cat", "the big house"), ("the man eats", "the bird")]


def sentences(n, seed):
    return list(dict.fromkeys(drawn(WITH_THE, n, seed, 4, 10)))


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def found(encoder):
    return bertflow.score(encoder, PAIRS, fit_on=sentences(300, 0), false_match_rate=0.1)


def test_the_numbers_are_attributes(found, encoder):
    x, y = (encoder.encode(list(side)).astype(np.float64) for side in zip(*PAIRS, strict=True))
    cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)
    np.testing.assert_allclose(found.percentiles, found.scores.percentile(found.cosines))
    assert found.matches.tolist() == (found.cosines >= found.threshold.value).tolist()
    assert found.probabilities is None


def test_it_is_shown_and_saved(found, tmp_path):
    assert repr(found).startswith("<ScoredPairs: Match: cosine ")
    assert "| the dog runs" in found.to_markdown()
    record = json.loads((found.save(tmp_path) / "scores.json").read_text())
    assert [row["sentence1"] for row in record["pairs"]] == [first for first, _ in PAIRS]
    assert record["threshold"]["rate"] == 0.1


def test_text_can_be_a_list(encoder):
    report = bertflow.score(encoder, domain=sentences(60, 3), fit_on=sentences(400, 0)).domain
    assert (len(report.percentiles), report.drift.n) == (len(report.sentences), len(report.sentences))


def test_an_open_encoder_has_no_scores_of_its_own(encoder, refusal):
    assert refusal(bertflow.score, encoder, PAIRS, error=UsageError) == (
        "The encoder holds no scores.json. Fit the scores to your text: add --fit_on TEXT."
    )  # fmt: skip
