import numpy as np
import pytest
from scipy import stats

from bertflow.data.pairs import Pairs
from bertflow.evaluation.significance import UNIT, generator, pair_weights, sentence_numbers, sentence_weights


def test_pairs_are_drawn_within_their_group():
    groups = [np.array([0, 2, 4]), np.array([1, 3])]
    weights = np.concatenate(list(pair_weights(groups, 60, np.random.default_rng(0))))
    assert weights.shape == (60, 5)
    assert (weights[:, groups[0]].sum(1) == 3).all()
    assert (weights[:, groups[1]].sum(1) == 2).all()


@pytest.mark.parametrize("block", [1, 7, 100])
def test_the_size_of_a_block_changes_nothing(monkeypatch, block):
    draw = lambda: np.concatenate(list(pair_weights([np.arange(9)], 30, np.random.default_rng(0))))  # noqa: E731
    expected = draw()
    monkeypatch.setattr("bertflow.evaluation.significance.BLOCK", block)
    np.testing.assert_array_equal(draw(), expected)


def test_a_task_is_resampled_alike_whatever_else_is_scored():
    assert generator(0, "stsb").integers(1 << 40) == generator(0, "stsb").integers(1 << 40)
    assert generator(0, "stsb").integers(1 << 40) != generator(0, "sts12").integers(1 << 40)
    assert generator(0, "stsb").integers(1 << 40) != generator(1, "stsb").integers(1 << 40)


def test_one_text_has_one_number_in_every_task():
    first, second = sentence_numbers([Pairs("one", ("A dog.", "b"), ("c", "d")), Pairs("two", ("c",), ("a DOG",))])
    assert first.tolist() == [[0, 1], [2, 3]]
    assert second.tolist() == [[2], [0]]


def test_a_pair_weighs_as_in_the_bayesian_bootstrap_and_shares_what_it_shares():
    # Pairs (0, 1) and (0, 2) share a sentence; (3, 4) shares none; the second task has the pair (0, 1) again.
    numbers = [np.array([[0, 0, 3], [1, 2, 4]]), np.array([[1], [0]])]
    blocks = list(sentence_weights(numbers, 20_000, np.random.default_rng(0)))
    first, second = (np.concatenate([block[task] for block in blocks]) / UNIT for task in (0, 1))
    np.testing.assert_array_equal(second[:, 0], first[:, 0])
    assert stats.kstest(first[:, 0], "expon").pvalue > 0.01
    assert np.corrcoef(first.T)[0] == pytest.approx([1, 0.5, 0], abs=0.03)


def test_weights_by_sentence_are_whole_numbers_of_a_unit_that_no_figure_sees():
    numbers = [np.array([[0, 2], [1, 3]])]
    whole = np.concatenate([block[0] for block in sentence_weights(numbers, 40, np.random.default_rng(0))])
    assert whole.dtype == np.int64
    exact = np.random.default_rng(0).standard_normal((40, 4)) ** 2 / 2
    np.testing.assert_allclose(whole / UNIT, exact[:, [0, 2]] + exact[:, [1, 3]], rtol=0, atol=1 / UNIT)
