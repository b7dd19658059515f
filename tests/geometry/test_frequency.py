import numpy as np
import pytest
from scipy import stats

from bertflow.correlation import fisher_interval
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.frequency import (
    NEAREST,
    LengthTrend,
    bins,
    explained_by,
    fifths,
    log_frequencies,
    plane,
    words_by_rank,
)
from bertflow.tables import MISSING

WORDS = [f"w{at}" for at in range(40)]
COUNTS = {word: 1000 // (at + 1) for at, word in enumerate(WORDS)}


def vectors(n=40, dim=6):
    return np.random.default_rng(0).normal(size=(n, dim))


def slow_bin(x, rows):
    """Length, distances and products, one row at a time."""
    far = [np.sort([np.linalg.norm(x[i] - x[j]) for j in range(len(x)) if j != i]) for i in rows]
    near = [-np.sort([-(x[i] @ x[j]) for j in range(len(x)) if j != i]) for i in rows]
    return (
        np.mean([np.linalg.norm(x[i]) for i in rows]),
        {k: np.mean([row[:k].mean() for row in far]) for k in NEAREST},
        {k: np.mean([row[:k].mean() for row in near]) for k in NEAREST},
    )


def test_a_bin_is_what_its_slow_twin_says():
    x, rows = vectors(), np.array([3, 5, 8, 13])
    (found,) = bins(x, {"none": rows[:0], "some": rows}, np.zeros(40))
    length, distance, product = slow_bin(x, rows)
    assert found.length == pytest.approx(length)
    assert found.distance == pytest.approx(distance)
    assert found.product == pytest.approx(product)
    assert found.n == 4


def test_words_are_ranked_by_their_counts_and_those_without_are_left_out(monkeypatch):
    monkeypatch.setattr("bertflow.geometry.frequency.RANKS", ((0, 2), (2, 5), (5, 100)))
    shuffled = np.random.default_rng(1).permutation(40)
    x = vectors()[shuffled]
    words = [WORDS[at] for at in shuffled]
    known = {word: count for word, count in COUNTS.items() if word != "w1"}
    first, second, rest = words_by_rank(words, x, known)
    assert (first.name, second.name, rest.name) == ("0 to 1", "2 to 4", "5 to 99")
    assert (first.n, second.n, rest.n) == (2, 3, 34)
    assert first.length == pytest.approx(slow_bin(vectors(), [0, 2])[0])
    assert first.log_frequency > second.log_frequency > rest.log_frequency


def test_a_list_of_another_language_is_refused(refusal):
    assert refusal(lambda: words_by_rank(WORDS, vectors(), {"mot": 3, "w0": 1})) == (
        "1 of 40 words of the vocabulary have a count; 8 are wanted. Give a frequency list of the encoder's language, "
        "in lower case."
    )


def test_the_log_frequency_of_a_sentence_is_the_mean_over_its_words():
    found = log_frequencies(["The dog", "the THE zebra", "..."], {"the": 6, "dog": 4})
    assert found[0] == pytest.approx((np.log(0.6) + np.log(0.4)) / 2)
    assert found[1] == pytest.approx((2 * np.log(0.6) + np.log(0.1)) / 3)
    assert np.isnan(found[2])


def test_fifths_hold_all_sentences_with_words_in_rising_order():
    values = np.array([5.0, 1.0, np.nan, 3.0, 2.0, 4.0])
    assert [rows.tolist() for rows in fifths(values).values()] == [[1], [4], [3], [5], [0]]


def test_the_plane_is_that_of_the_svd():
    x = vectors() + 2
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    found = plane(Cloud(x))
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, :2] * s[:2]), atol=1e-9)
    assert (found.mean(0) >= 0).all()


def test_what_coordinates_explain_is_the_r2_of_a_regression():
    rng = np.random.default_rng(0)
    xy = rng.normal(size=(200, 2))
    target = xy @ [1.0, 2.0] + rng.normal(size=200)
    design = np.column_stack([np.ones(200), xy])
    residual = target - design @ np.linalg.solve(design.T @ design, design.T @ target)
    expected = 1 - residual.var() / target.var()
    assert explained_by(xy, target) == pytest.approx(expected)
    assert explained_by(np.vstack([xy, [9.0, 9.0]]), np.append(target, np.nan)) == pytest.approx(expected)


def test_length_and_frequency_are_correlated_as_scipy_does():
    rng = np.random.default_rng(0)
    logs = np.log(rng.integers(1, 500, 300).astype(float))
    x = rng.normal(size=(300, 5)) * (10 - logs + rng.normal(size=300) * 3)[:, None]
    logs[::7] = np.nan
    known = np.isfinite(logs)
    found = LengthTrend.of(x, logs)
    expected = stats.spearmanr(np.linalg.norm(x[known], axis=1), logs[known]).statistic
    assert found.n == known.sum()
    assert found.spearman == pytest.approx(expected)
    assert (found.low, found.high) == pytest.approx(fisher_interval(expected, found.n))
    assert str(found) == f"{expected:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def test_rows_of_one_length_have_no_trend():
    x = vectors()
    trend = LengthTrend.of((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), np.arange(40.0))
    assert (trend.n, trend.spearman, str(trend)) == (40, None, MISSING)
