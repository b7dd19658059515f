import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bertflow.data.pairs import Pairs
from bertflow.evaluation.evaluating import evaluate_binary
from bertflow.evaluation.significance import generator, pair_weights
from bertflow.evaluation.ungraded import binary_figures
from bertflow.similarity import SIMILARITIES

from .conftest import ToyEncoder, toy_pairs


@pytest.fixture
def binary():
    pairs = toy_pairs()
    labels = (pairs.target > 3).astype(np.int64)
    return Pairs("qnli", pairs.first, pairs.second, labels, "binary", source="qnli.tsv")


@pytest.fixture
def scores(binary):
    """Scores with ties."""
    return np.round(binary.target + np.random.default_rng(0).normal(size=(2, len(binary.target))), 1)


def area(binary, scores, resamples=0, seed=0):
    """The figure of systems whose similarities are ``scores``: products of one number with one."""
    sides = [("it", row[:, None], np.ones((len(row), 1))) for row in scores]
    return binary_figures(binary, sides, "dot", resamples, seed)[0]


def test_the_area_is_that_of_scikit_learn(binary, scores):
    found = area(binary, scores).values
    assert found == pytest.approx([roc_auc_score(binary.target, row) for row in scores])


def test_resamples_keep_the_share_of_positives(binary, scores):
    groups = [np.flatnonzero(binary.target == 1), np.flatnonzero(binary.target == 0)]
    expected = []
    for weights in np.concatenate(list(pair_weights(groups, 40, generator(3, "qnli")))):
        drawn = np.repeat(np.arange(len(weights)), weights.astype(int))
        expected.append(roc_auc_score(binary.target[drawn], scores[0][drawn]))
    found = area(binary, scores, 40, 3).replicates[0]
    np.testing.assert_allclose(found, expected)


def test_the_influence_of_a_pair_is_what_the_jackknife_says(binary, scores):
    influence = area(binary, scores, 1).influence[0]
    kind = binary.target == 1
    for group in (kind, ~kind):
        rows = np.flatnonzero(group)
        without = [roc_auc_score(np.delete(binary.target, at), np.delete(scores[0], at)) for at in rows]
        expected = (np.mean(without) - without) * (len(rows) - 1) / len(rows)
        np.testing.assert_allclose(influence[rows], expected, atol=1e-12)


def test_a_system_is_scored_by_its_similarities(binary):
    encoder = ToyEncoder()
    report = evaluate_binary({"it": encoder}, binary, resamples=20)
    x, y = (encoder.encode(list(side)) for side in (binary.first, binary.second))
    expected = roc_auc_score(binary.target, SIMILARITIES["cosine"].paired(x, y))
    assert report.value("it", "qnli") == pytest.approx(expected)
    assert report.metric == "cosine_auc"
    assert report.rows[0].ci_low < expected < report.rows[0].ci_high
