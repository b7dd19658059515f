import numpy as np
import pytest
from scipy import stats

from bertflow.evaluation.aggregation import ScoredTask, suite_figures, task_figures
from bertflow.evaluation.significance import generator, pair_weights, sentence_numbers, sentence_weights

from .conftest import toy_pairs

RESAMPLES = 60
SEED = 5


def scored(pairs, systems=3):
    noise = np.random.default_rng(1).normal(size=(systems, len(pairs.target)))
    return ScoredTask(pairs, "cosine", pairs.target + 2 * noise)


@pytest.fixture
def task():
    return scored(toy_pairs())


def figure(figures, aggregation, metric="cosine_spearman"):
    return next(one for one in figures if (one.aggregation, one.metric, one.subset) == (aggregation, metric, ""))


@pytest.mark.parametrize(("system", "less"), [(0, None), (2, None), (0, 1)])
def test_an_interval_and_that_of_a_difference_are_those_of_scipy(task, system, less):
    def statistic(gold, one, other):
        return stats.spearmanr(gold, one)[0] - (0 if less is None else stats.spearmanr(gold, other)[0])

    data = (task.pairs.target, task.similarities[system], task.similarities[less or 0])
    how = {"n_resamples": RESAMPLES, "batch": RESAMPLES, "paired": True, "vectorized": False}
    theirs = stats.bootstrap(data, statistic, **how, rng=generator(SEED, task.pairs.task)).confidence_interval
    ours = figure(task_figures(task, RESAMPLES, SEED), "all").interval(system, less)
    assert ours == pytest.approx(tuple(theirs), abs=1e-9)


@pytest.mark.parametrize(("aggregation", "weigh"), [("mean", lambda sizes: [1] * len(sizes)), ("wmean", list)])
def test_sub_sets_are_resampled_within_themselves(task, aggregation, weigh):
    parts = [np.arange(0, 20), np.arange(20, 35), np.arange(35, 60)]
    gold, similarity = task.pairs.target, task.similarities[0]
    expected = []
    for weights in np.concatenate(list(pair_weights(parts, RESAMPLES, generator(SEED, task.pairs.task)))):
        drawn = [np.repeat(part, weights[part].astype(int)) for part in parts]
        assert [len(rows) for rows in drawn] == [20, 15, 25]
        each = [stats.spearmanr(gold[rows], similarity[rows])[0] for rows in drawn]
        expected.append(np.average(each, weights=weigh([20, 15, 25])))
    found = figure(task_figures(task, RESAMPLES, SEED), aggregation).replicates[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_system_is_scored_alike_whatever_stands_beside_it(task):
    alone = ScoredTask(task.pairs, "cosine", task.similarities[[1]])
    together, apart = (figure(task_figures(one, RESAMPLES, SEED), "wmean") for one in (task, alone))
    np.testing.assert_array_equal(together.replicates[1], apart.replicates[0])
    assert together.interval(1) == apart.interval(0)


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
def test_a_suite_is_the_mean_of_its_tasks(sts7, aggregation):
    tasks = [scored(pairs) for pairs in sts7]
    each = [figure(task_figures(task, 0, SEED), aggregation).values for task in tasks]
    found = figure(suite_figures("sts7", tasks, 0, SEED), aggregation)
    np.testing.assert_allclose(found.values, np.mean(each, axis=0))
    assert found.n == sum(len(pairs) for pairs in sts7)


def test_a_suite_is_resampled_by_sentence_all_tasks_together(sts7):
    tasks = [scored(pairs) for pairs in sts7]
    numbers = sentence_numbers(sts7)
    rows = list(sentence_weights(numbers, RESAMPLES, generator(SEED, "sts7")))
    expected = []
    for block in rows:
        for row in range(len(block[0])):
            each = []
            for task, weights in zip(tasks, block, strict=True):
                gold, similarity = (np.stack([values]) for values in (task.pairs.target, task.similarities[0]))
                weight = weights[row]
                # Weighted mid-ranks by comparing every value with every other one.
                ranks = [(np.heaviside(values.T - values, 0.5)) @ weight for values in (gold, similarity)]
                cov = np.cov(*ranks, aweights=weight)
                each.append(cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1]))
            expected.append(np.mean(each))
    found = figure(suite_figures("sts7", tasks, RESAMPLES, SEED), "all").replicates[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_suite_has_only_the_aggregations_that_all_its_tasks_have(sts7):
    as_on_the_hub = [toy_pairs("sts12", sizes=(21,)), *sts7[1:]]
    figures = suite_figures("sts7", [scored(pairs) for pairs in as_on_the_hub], 0, SEED)
    assert {one.aggregation for one in figures} == {"all"}
