import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow.data.pairs import Pairs
from bertflow.evaluation.aggregation import SUBSET, ScoredTask, task_figures

from .conftest import toy_pairs


def scored(pairs, systems=2, seed=3):
    noise = np.random.default_rng(seed).normal(size=(systems, len(pairs.target)))
    return ScoredTask(pairs, "cosine", pairs.target + 3 * noise)


def by_loop(task, system):
    """Each aggregation, written out."""
    gold, similarity = task.pairs.target, task.similarities[system]
    subsets = list(dict.fromkeys(task.pairs.subsets))
    parts = [[at for at, name in enumerate(task.pairs.subsets) if name == subset] for subset in subsets]
    each = [spearmanr(gold[part], similarity[part])[0] for part in parts]
    sizes = [len(part) for part in parts]
    total = sum(value * size for value, size in zip(each, sizes, strict=True)) / sum(sizes)
    whole = {"all": spearmanr(gold, similarity)[0], "mean": sum(each) / len(each), "wmean": total}
    return {(how, ""): value for how, value in whole.items()} | {
        (SUBSET, subset): value for subset, value in zip(subsets, each, strict=True)
    }


@pytest.mark.parametrize("sizes", [(20, 15, 25), (60,)])
@pytest.mark.parametrize("system", [0, 1])
def test_every_aggregation_is_its_definition(sizes, system):
    task = scored(toy_pairs(sizes=sizes))
    figures = [one for one in task_figures(task, 0, 0) if one.metric == "cosine_spearman"]
    found = {(one.aggregation, one.subset): one.values[system] for one in figures}
    expected = by_loop(task, system)
    assert found == pytest.approx({key: expected[key] for key in found})
    assert len(found) == (3 + len(sizes) if len(sizes) > 1 else 3)


def test_the_sizes_of_the_sub_sets_are_their_pairs():
    found = {figure.subset: figure.n for figure in task_figures(scored(toy_pairs(sizes=(20, 15, 25))), 0, 0)}
    assert found == {"": 60, "part0": 20, "part1": 15, "part2": 25}


def test_sub_sets_need_not_lie_together():
    pairs = Pairs("mine", ("x",) * 5, ("y",) * 5, subsets=("a", "b", "a", "b", "b"))
    groups, _ = ScoredTask(pairs, "cosine", np.empty((0, 5))).partitions()[1]
    assert [group.tolist() for group in groups] == [[0, 2], [1, 3, 4]]


def test_a_set_without_names_of_sub_sets_gives_all_alone():
    found = task_figures(scored(toy_pairs("sts12", sizes=(60,))), 0, 0)  # as the hub's copy comes
    assert {figure.aggregation for figure in found} == {"all"}


def test_sub_sets_on_different_scales_are_never_ranked_together():
    found = task_figures(scored(toy_pairs("tuning", sizes=(30, 30))), 0, 0)
    assert {figure.aggregation for figure in found} == {"mean", "wmean", SUBSET}
