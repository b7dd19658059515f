import tracemalloc

import numpy as np
import pytest
from scipy import stats

from bertflow.correlation import (
    CORRELATIONS,
    bca_interval,
    correlation,
    jackknife,
    percentile_interval,
    spearman,
    weighted_correlations,
)
from bertflow.evaluation.significance import pair_weights

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}
EXACT = 1e-12


def sample(n, decimals=1, seed=0):
    """Gold scores with many ties, and similarities with a few."""
    rng = np.random.default_rng(seed)
    gold = np.round(rng.uniform(0, 5, n), decimals)
    similarity = np.tanh(0.3 * gold + rng.normal(size=n))
    similarity[: n // 10] = similarity[0]
    return gold, similarity


def under(name, gold, similarity, weights):
    scores = CORRELATIONS[name]
    return weighted_correlations(scores(gold), [scores(similarity)], weights)[0]


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("n", [3, 10, 500])
@pytest.mark.parametrize("decimals", [0, 3])
def test_correlations_are_those_of_scipy(name, n, decimals):
    gold, similarity = sample(n, decimals)
    assert correlation(name, gold, similarity) == pytest.approx(SCIPY[name](gold, similarity)[0], abs=EXACT)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_weight_is_how_often_a_pair_was_drawn(name):
    gold, similarity = sample(80)
    drawn = np.random.default_rng(1).integers(0, 80, (30, 80))
    weights = np.stack([np.bincount(row, minlength=80) for row in drawn])
    explicit = [SCIPY[name](gold[row], similarity[row])[0] for row in drawn]
    for same in (weights, weights.astype(np.float64)):
        np.testing.assert_allclose(under(name, gold, similarity, same), explicit, rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("size", [1, 200, 10**9])
def test_how_many_weights_are_read_at_a_time_changes_nothing(monkeypatch, name, size):
    gold, similarity = sample(80)
    weights = np.random.default_rng(1).integers(0, 3, (30, 80))
    expected = under(name, gold, similarity, weights)
    monkeypatch.setattr("bertflow.correlation.AT_A_TIME", size)
    np.testing.assert_array_equal(under(name, gold, similarity, weights), expected)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_systems_that_rank_alike_score_alike_to_the_last_bit(name):
    gold, similarity = sample(300)
    scores = CORRELATIONS[name]
    others = [scores(similarity), scores(-similarity), scores(2 * similarity)]
    weights = np.random.default_rng(1).integers(0, 3, (60, 300))
    found = weighted_correlations(scores(gold), others, weights)
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_allclose(found[1], -found[0], rtol=0, atol=EXACT)


def test_values_far_from_the_others_cost_the_rest_no_digit():
    gold, similarity = sample(200, decimals=3)
    gold[0], similarity[0] = 1e9, -1e7
    weights = np.random.default_rng(1).integers(0, 3, (5, 200))
    weights[:, 0] = 0
    explicit = [stats.pearsonr(np.repeat(gold, row), np.repeat(similarity, row))[0] for row in weights]
    np.testing.assert_allclose(under("pearson", gold, similarity, weights), explicit, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_weights_count_by_their_ratio_alone(name):
    gold, similarity = sample(50)
    weights = np.random.default_rng(1).integers(1, 4, (1, 50)).astype(np.float64)
    np.testing.assert_allclose(
        under(name, gold, similarity, weights * 0.37), under(name, gold, similarity, weights), rtol=0, atol=EXACT
    )


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_resample_without_variance_has_no_correlation(name):
    weights = np.array([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    found = under(name, np.array([0.1, 0.2, 0.4]), np.array([0.1, 0.7, 0.3]), weights)
    assert np.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize("name", CORRELATIONS)
def test_the_jackknife_leaves_one_pair_out_exactly(name):
    gold, similarity = sample(150)
    explicit = [SCIPY[name](np.delete(gold, i), np.delete(similarity, i))[0] for i in range(150)]
    np.testing.assert_allclose(jackknife(name, gold, similarity), explicit, rtol=0, atol=EXACT)


def by_all_signs(a, b):
    """The jackknife of Spearman's correlation from its definition: n^3 comparisons."""
    found = []
    for i in range(len(a)):
        ranks = [np.sign(x[:, None] - x).sum(1) for x in (np.delete(a, i), np.delete(b, i))]
        found.append(ranks[0] @ ranks[1] / np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1])))
    return found


@pytest.mark.parametrize("n", [4, 5, 7, 8, 9, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("distinct", [3, 10, 1000])
def test_the_jackknife_of_ranks_is_exact_with_any_ties(n, distinct):
    rng = np.random.default_rng([n, distinct])
    a, b = np.arange(2 * n).reshape(2, n) % distinct
    rng.shuffle(a)
    rng.shuffle(b)
    a, b = a / 7, -b / 3  # in neither order
    with np.errstate(invalid="ignore"):  # three pairs may be left with equal values
        np.testing.assert_allclose(jackknife("spearman", a, b), by_all_signs(a, b), rtol=0, atol=1e-15)


def test_the_jackknife_of_many_pairs_takes_memory_for_none_of_their_couples():
    n = 30_000
    gold, similarity = sample(n)
    tracemalloc.start()
    found = jackknife("spearman", gold, similarity)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500 * n  # bytes; each couple once would take n^2
    for i in (0, n // 10 + 1, n - 1):
        explicit = stats.spearmanr(np.delete(gold, i), np.delete(similarity, i))[0]
        assert found[i] == pytest.approx(explicit, rel=0, abs=EXACT)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_the_jackknife_is_nan_where_the_rest_has_no_variance(name):
    found = jackknife(name, np.array([1.0, 1.0, 1.0, 2.0]), np.array([0.1, 0.4, 0.2, 0.3]))
    assert np.isnan(found).tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize(("method", "accelerated"), [("BCa", True), ("percentile", False)])
def test_intervals_are_those_of_scipy_on_the_same_resamples(name, method, accelerated):
    gold, similarity = sample(60)
    theirs = stats.bootstrap(
        (gold, similarity),
        lambda a, b: SCIPY[name](a, b)[0],
        n_resamples=200,
        batch=200,
        paired=True,
        vectorized=False,
        method=method,
        rng=np.random.default_rng(7),
    )
    blocks = pair_weights([np.arange(60)], 200, np.random.default_rng(7))
    replicates = np.concatenate([under(name, gold, similarity, weights) for weights in blocks])
    np.testing.assert_allclose(replicates, theirs.bootstrap_distribution, rtol=0, atol=EXACT)
    without = jackknife(name, gold, similarity)
    value = correlation(name, gold, similarity)
    ours = bca_interval(value, replicates, without.mean() - without) if accelerated else percentile_interval(replicates)
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=1e-9)


def test_without_influence_the_interval_is_bias_corrected_alone():
    replicates = np.random.default_rng(0).normal(size=1000)
    plain, centered = percentile_interval(replicates), bca_interval(float(np.median(replicates)), replicates)
    assert centered == pytest.approx(plain)


@pytest.mark.parametrize("interval", [percentile_interval, lambda replicates: bca_interval(0.5, replicates)])
def test_no_interval_is_given_where_a_resample_had_no_variance(interval):
    assert interval(np.array([0.4, np.nan, 0.6])) == (None, None)


def test_replicates_that_are_all_equal_give_a_point():
    assert bca_interval(1.0, np.ones(100), np.zeros(10)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 2, 3], [1, 2], "A correlation needs two samples of one length, got 3 values and shape (2,)."),
        ([1, 2], [1, 2], "A correlation needs at least 3 pairs, got 2. Score more pairs together."),
        (
            [1.0, 2.0, 3.0],
            [0.5, np.nan, 0.5],
            "A correlation needs finite numbers, but value 1 of the second sample is nan.",
        ),
        ([1, 1, 1], [1, 2, 3], "A correlation needs variance, but all 3 values of the first sample are 1."),
    ],
)
def test_what_has_no_correlation_is_refused(a, b, message, refusal):
    assert refusal(lambda: spearman(np.array(a), np.array(b))) == (message)
