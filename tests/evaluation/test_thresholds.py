import pytest

from bertflow.errors import UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.models import parse_thresholds, shortfalls

from .conftest import ToyEncoder


@pytest.fixture
def report(pairs):
    return score_sets({"it": ToyEncoder(), "other": ToyEncoder(seed=1)}, [pairs], resamples=0)


def test_thresholds_are_read_from_one_word():
    assert parse_thresholds(" stsb=70, sts7=65.5 ") == {"stsb": 70.0, "sts7": 65.5}
    assert parse_thresholds("") == {}


@pytest.mark.parametrize("part", ["stsb", "stsb=high", "stsb:70"])
def test_a_threshold_that_is_none_is_refused(part):
    with pytest.raises(UsageError) as refused:
        parse_thresholds(part)
    assert str(refused.value) == f"A threshold is written task=score, as stsb=70; got {part!r}."


def test_a_score_at_the_threshold_passes(report):
    value = 100 * report.value("it", "toy")
    assert shortfalls(report, {"toy": value}, ["it"]) == ""


def test_a_score_below_is_said(report):
    value = 100 * report.value("it", "toy")
    assert shortfalls(report, {"toy": 99}, ["it"]) == f"it scores {value:.2f} on toy, below 99."


def test_only_the_systems_named_must_pass(report):
    assert shortfalls(report, {"toy": 99}, []) == ""


def test_a_threshold_for_what_was_not_scored_is_refused(report):
    with pytest.raises(UsageError) as refused:
        shortfalls(report, {"stsb": 70}, ["it"])
    assert str(refused.value) == "There is a threshold for stsb, which is not scored. Scored: toy."
