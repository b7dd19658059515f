import numpy as np
import pytest
from scipy import stats

from bertflow.evaluation.p_values import bootstrap_p, holm, williams
from bertflow.evaluation.significance import Difference, Figure, differences


def test_williams_is_the_published_formula():
    r12, r13, r23, n = 0.63, 0.51, 0.42, 103
    big_r = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    t = (r12 - r13) * np.sqrt(
        ((n - 1) * (1 + r23)) / (2 * ((n - 1) / (n - 3)) * big_r + ((r12 + r13) / 2) ** 2 * (1 - r23) ** 3)
    )
    statistic, p = williams(r12, r13, r23, n)
    assert statistic == pytest.approx(t)
    assert p == pytest.approx(2 * stats.t.cdf(-t, n - 3))


def test_two_systems_that_rank_alike_do_not_differ():
    assert williams(0.7, 0.7, 1.0, 50) == (0.0, 1.0)


def test_williams_turns_with_the_systems():
    assert williams(0.6, 0.5, 0.4, 50)[0] == -williams(0.5, 0.6, 0.4, 50)[0]


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.001, None, 0.9, 0.02], [0.003, None, 0.9, 0.04]),
        ([0.7, 0.6], [1.0, 1.0]),
    ],
)
def test_holm_of_known_cases(p_values, corrected):
    assert holm(p_values) == [None if one is None else pytest.approx(one) for one in corrected]


@pytest.mark.parametrize(
    ("replicates", "p"), [([1, 2, 3], 0.5), ([-1, 1, 2], 1.0), ([-1, -2, -3], 0.5), ([0, 0, 0], 1.0)]
)
def test_the_bootstrap_p_value_counts_the_side_of_zero_with_fewer_replicates(replicates, p):
    assert bootstrap_p(np.array(replicates, dtype=float)) == p


def figures(tasks, gap, resamples=200, n=50):
    """Figures of two systems that differ by ``gap``, with replicates around it."""
    rng = np.random.default_rng(0)
    made = []
    for task in tasks:
        noise = rng.normal(scale=0.02, size=(2, resamples))
        values = np.array([0.5 + gap, 0.5])
        between = np.array([[1.0, 0.8], [0.8, 1.0]])
        influence = rng.normal(size=(2, n))
        how = (task, "test", "all", "", "cosine_spearman", n)
        made.append(Figure(*how, values, values[:, None] + noise, influence, between))
    return made


@pytest.mark.parametrize(("gap", "separable"), [(0.3, True), (0.001, False)])
def test_a_difference_is_separable_when_it_is_more_than_chance(gap, separable):
    found = differences(["first", "second"], figures(["sts12", "stsb"], gap))
    assert [row.separable for row in found] == [separable, separable]
    assert [row.difference for row in found] == pytest.approx([gap, gap])


def test_tasks_are_corrected_together_and_a_suite_alone():
    found = {row.task: row for row in differences(["a", "b"], figures(["sts12", "stsb", "sts7"], 0.04), {"sts7"})}
    raw = [found[task].p_bootstrap for task in ("sts12", "stsb")]
    assert [found[task].p_bootstrap_holm for task in ("sts12", "stsb")] == pytest.approx(holm(raw))
    assert max(raw) < found["stsb"].p_bootstrap_holm
    assert found["sts7"].p_bootstrap_holm == found["sts7"].p_bootstrap


def test_every_pair_of_systems_is_compared_once():
    how, values = ("stsb", "test", "all", "", "cosine_spearman", 50), np.array([0.1, 0.2, 0.3])
    found = differences(["a", "b", "c"], [Figure(*how, values, np.zeros((3, 0)), np.zeros((3, 50)))])
    assert [(row.first, row.second) for row in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found[0].separable is None


def test_a_difference_turns_with_its_systems():
    row = differences(["a", "b"], figures(["stsb"], 0.3))[0]
    turned = row.seen_from("b")
    assert (turned.first, turned.second, turned.difference) == ("b", "a", -row.difference)
    assert (turned.ci_low, turned.ci_high) == (-row.ci_high, -row.ci_low)
    assert row.seen_from("a") is row


SAID, DECIDES = "significant difference", "this decides, not the interval)"


@pytest.mark.parametrize(
    ("interval", "p", "corrected", "verdict"),
    [
        ((0.01, 0.15), 0.01, 0.03, f"a {SAID}"),
        ((-0.01, 0.15), 0.2, 0.6, f"no {SAID}"),
        ((0.01, 0.15), 0.03, 0.21, f"no {SAID} (p = 0.21 after Holm's correction over the tasks; {DECIDES}"),
        ((0.01, 0.15), 0.06, 0.06, f"no {SAID} (p = 0.06; {DECIDES}"),
        ((-0.15, 0.01), 0.04, 0.04, f"a {SAID} (p = 0.04; {DECIDES}"),
    ],
)
def test_what_decides_is_said_where_the_interval_says_otherwise(interval, p, corrected, verdict):
    found = Difference("stsb", "all", "cosine_spearman", "one", "other", 0.1, *interval, p, None, corrected)
    assert found.verdict == verdict
