import pytest

from bertflow.errors import UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.thresholds import parse_thresholds, shortfalls

from .conftest import ToyEncoder


@pytest.fixture
def report(pairs):
    return score_sets({"it": ToyEncoder(), "other": ToyEncoder(seed=1)}, [pairs], resamples=0)


def test_thresholds_are_read_from_one_word():
    assert parse_thresholds(" stsb=70, sts7=65.5 ", ["stsb", "sts7"]) == {"stsb": 70.0, "sts7": 65.5}
    assert parse_thresholds("", []) == {}


@pytest.mark.parametrize(
    ("spelling", "said"),
    [
        *(
            (part, f"A threshold is written task=score, as stsb=70; got {part!r}.")
            for part in ("toy", "toy=high", "toy:7")
        ),
        ("stsb=70", "There is a threshold for stsb, which is not scored. Scored: toy."),
    ],
)
def test_a_threshold_that_is_none_is_refused(spelling, said, refusal):
    assert refusal(parse_thresholds, spelling, ["toy"], error=UsageError) == said


def test_a_score_below_is_said_of_the_systems_that_are_named(report):
    value = 100 * report.value("it", "toy")
    assert shortfalls(report, {"toy": value}, ["it"]) == shortfalls(report, {"toy": 99}, []) == ""
    assert shortfalls(report, {"toy": 99}, ["it"]) == f"it scores {value:.2f} on toy, below 99."
