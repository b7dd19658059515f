from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.evaluating import evaluate_sts, score_sets

from .conftest import ToyEncoder

REAL = {
    "mean": [72.37, 80.60, 75.60, 85.39, 78.99, 82.03, 77.15],
    "mean(3)": [41.39, 63.37, 52.54, 67.21, 69.67, 55.86, 60.03],
}
LIKE = {
    "cosine": lambda a, b: a @ b / np.sqrt(a @ a * (b @ b)),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


@pytest.mark.parametrize("similarity", LIKE)
def test_scores_are_correlations_of_similarities(pairs, similarity):
    encoder = ToyEncoder()
    report = score_sets({"it": encoder}, [pairs], similarity, resamples=0)
    x, y = (encoder.encode(list(side)).astype(np.float64) for side in (pairs.first, pairs.second))
    scores = [LIKE[similarity](a, b) for a, b in zip(x, y, strict=True)]
    # Identical sentences tie up to rounding, which ranks can see.
    expected = spearmanr(np.round(scores, 12), pairs.target)[0]
    assert report.value("it", "toy") == pytest.approx(expected, abs=0.01)
    assert report.value("it", "toy", metric=f"{similarity}_pearson") == pytest.approx(pearsonr(scores, pairs.target)[0])


def test_each_distinct_sentence_is_encoded_once_however_many_systems_share_the_encoder(sts7):
    encoder, twin = ToyEncoder(), ToyEncoder()
    sentences = [sentence for pairs in sts7 for side in (pairs.first, pairs.second) for sentence in side]
    center = Center().fit(ToyEncoder().encode(sentences))
    systems = {
        "raw": encoder,
        "centered": CalibratedEncoder(encoder, center, force=True),
        "twin": CalibratedEncoder(twin, center, force=True),
    }
    score_sets(systems, sts7, resamples=0)
    assert sorted(encoder.asked + twin.asked) == sorted(set(sentences))


def test_six_of_the_seven_tasks_have_no_mean(sts7):
    report = score_sets({"it": ToyEncoder()}, sts7[:-1], resamples=0)
    assert {row.task for row in report.rows} == {pairs.task for pairs in sts7[:-1]}


def test_an_encoder_without_a_name_is_refused_before_data_is_read(tmp_path, refusal):
    assert refusal(evaluate_sts, ToyEncoder(), data_dir=tmp_path / "missing", error=UsageError) == (
        "systems should be a dict of names and encoders, as {'raw': encoder}; got a ToyEncoder."
    )


BROKEN = {
    np.nan: "Embeddings must be finite, but that of sentence 0, {first!r}, is not. "
    "Leave the sentence out, or look for an overflow in the encoder.",
    0: "The system it gives an embedding of zeros for {first!r} (task toy), which has no cosine. "
    "Leave the sentence out, or choose another similarity.",
    1: "The system it finds all 60 pairs of toy equally similar (1), so there is no correlation. "
    "Its embeddings have collapsed: fit again.",
}


@pytest.mark.parametrize("value", BROKEN)
def test_embeddings_that_cannot_be_scored_are_refused(pairs, value, refusal, monkeypatch):
    full = lambda self, sentences, *_: np.full((len(sentences), self.dim), value, dtype=np.float32)  # noqa: E731
    monkeypatch.setattr(ToyEncoder, "_encode", full)
    said = BROKEN[value].format(first=pairs.first[0])
    assert refusal(score_sets, {"it": ToyEncoder()}, [pairs], resamples=0) == said


def test_pairs_of_the_same_text_twice_are_refused_as_such(pairs, refusal):
    twice = replace(pairs, second=pairs.first)
    assert refusal(score_sets, {"it": ToyEncoder()}, [twice], resamples=0, similarity="euclidean").endswith(
        "equally similar (-0), so there is no correlation. Both texts of every pair are the same."
    )


@pytest.mark.slow
def test_the_real_encoder_scores_as_measured(minilm, shared_data):
    systems = {pooling: TransformerEncoder(minilm, pooling=pooling, max_length=128) for pooling in REAL}
    report = evaluate_sts(systems, "sts7", shared_data / "sts", resamples=0)
    for pooling, expected in REAL.items():
        found = [100 * report.value(pooling, task.pairs.task) for task in report.tasks]
        assert found == pytest.approx(expected, abs=0.05)
