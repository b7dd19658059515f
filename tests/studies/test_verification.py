"""The checks against the published tables, and our figures against the evaluation and NumPy."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import score_sets
from bertflow.studies.verification import CHECKS, FITTED_ON, Check, tasks_of, verify

from .conftest import toy_pairs

CUT = 5
"""Tokens: special ones and three more, so that many of the toy sentences are cut."""
LONG = 32
SETS = {
    **{task: toy_pairs(task, (12, 9)) for task in ("sts12", "sts13")},
    **{task: toy_pairs(task, (30,), seed) for seed, task in enumerate(FITTED_ON["stsb"])},
}


def check(task, pooling="first-last-avg", aggregation="all", max_length=LONG, whitened=False):
    return Check(task, pooling, whitened, aggregation, max_length, 50.0, 50.0, "a test")


@pytest.fixture
def encoder_of(tiny_bert):
    return partial(TransformerEncoder, tiny_bert, "mean", device="cpu")


@pytest.fixture
def value(encoder_of):
    """Our figure for a check, beside a longer one that shares its pass."""

    def compute(wanted, sets=SETS):
        return verify(encoder_of, sets, [check("sts13"), wanted]).rows[1].value

    return compute


def test_the_figures_are_those_of_the_papers():
    by_pooling = {(one.task, one.pooling, one.whitened): (one.low, one.high) for one in CHECKS if one.task != "sts12"}
    assert len(CHECKS) == 19
    assert by_pooling["stsb", "mean", False] == (47.29, 47.29)
    assert by_pooling["sickr", "emb-last-avg", False] == (62.06, 62.06)
    assert by_pooling["sickr", "first-last-avg", True] == (60.40, 60.60)
    assert {one.max_length for one in CHECKS if one.aggregation == "wmean"} == {64}


def test_the_seven_tasks_are_checked_under_both_aggregations():
    for aggregation in ("all", "wmean"):
        plain = [one for one in CHECKS if (one.pooling, one.whitened) == ("first-last-avg", False)]
        assert len([one for one in plain if one.aggregation == aggregation]) == 7


def test_what_whitening_is_fitted_on_is_loaded_too():
    assert tasks_of([check("stsb", whitened=True)]) == ["stsb", "stsb-train", "stsb-dev"]


@pytest.mark.parametrize("aggregation", ["all", "wmean"])
@pytest.mark.parametrize("max_length", [LONG, CUT])
def test_a_figure_is_what_the_evaluation_gives(value, tiny_bert, aggregation, max_length):
    encoder = TransformerEncoder(tiny_bert, "first-last-avg", max_length, device="cpu")
    expected = score_sets({"raw": encoder}, [SETS["sts12"]], resamples=0).value("raw", "sts12", aggregation)
    found = value(check("sts12", aggregation=aggregation, max_length=max_length))
    assert found == pytest.approx(100 * expected, abs=1e-3)


def test_whitening_counts_every_sentence_as_often_as_it_stands(value, tiny_bert):
    encoder = TransformerEncoder(tiny_bert, "first-last-avg", LONG, device="cpu")
    splits = [SETS[split] for split in FITTED_ON["stsb"]]
    x = encoder.encode([text for pairs in splits for side in (pairs.first, pairs.second) for text in side])
    covariance = np.cov(x, rowvar=False)
    variances, directions = np.linalg.eigh(covariance)
    kept = variances > 1e-6
    a, b = (
        (encoder.encode(side) - x.mean(0)) @ (directions[:, kept] / np.sqrt(variances[kept]))
        for side in (splits[2].first, splits[2].second)
    )
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    found = value(check("stsb", whitened=True))
    assert found == pytest.approx(100 * spearmanr(cosines, splits[2].target)[0], abs=0.05)


@pytest.mark.parametrize(
    ("ours", "low", "high", "difference", "passed"),
    [
        (59.13, 59.04, 59.04, 0.09, True),
        (58.93, 59.04, 59.04, -0.11, False),
        (60.50, 60.40, 60.60, 0.0, True),
        (60.69, 60.40, 60.60, 0.09, True),
        (60.25, 60.40, 60.60, -0.15, False),
    ],
)
def test_a_figure_passes_within_a_tenth(ours, low, high, difference, passed):
    row = replace(check("stsb"), low=low, high=high, n=10, value=ours)
    assert row.difference == pytest.approx(difference)
    assert row.passed == passed


def test_a_task_whose_sub_sets_are_not_named_has_no_wmean(value, refusal):
    sets = {**SETS, "sts12": toy_pairs("sts12", (20,))}
    assert refusal(value, check("sts12", aggregation="wmean"), sets) == (
        "The figure of sts12 is wmean, over its sub-sets, but sts12.tsv does not name them. Give a folder with the "
        "packages of SemEval or SentEval."
    )


def test_another_encoder_is_said_to_be_another_one(encoder_of):
    found = verify(encoder_of, SETS, [check("sts12")])
    assert list(found.parts())[1:] == [
        "0 of 1 figures of tiny-bert are within 0.1 of the published ones.",
        "The published figures are those of bert-base-uncased (12 blocks, 768 wide). tiny-bert has 4 blocks, 16 wide: "
        "it is another encoder, so FAIL says nothing about the pipeline here.",
        "Spearman of the cosine x 100; raw text, where the sources read STS12-16 as SentEval tokenized it; whitening "
        "fitted on all splits of its task, without labels (transductive).",
    ]
    assert json.loads(found.to_json())["rows"][0]["low"] == 0.5
