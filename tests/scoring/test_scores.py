import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.scoring import random_pairs as scores_random
from bertflow.scoring.random_pairs import COPIES, RandomPairs
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.similarity import unit_rows

from ..texts import WITH_AND, drawn

CENTERS = np.random.default_rng(7).normal(size=(30, 12)) * 1.2
WEIGHTS = np.random.default_rng(8).dirichlet(np.ones(30) * 0.5)


def text(n, seed=0, off=0.5):
    """Embeddings of topics of different size, off the origin: some rows are like many others."""
    rng = np.random.default_rng(seed)
    return CENTERS[rng.choice(30, n, p=WEIGHTS)] + rng.normal(size=(n, 12)) + off


def all_cosines(x):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return (unit @ unit.T)[np.triu_indices(len(x), 1)]


@pytest.fixture(scope="module")
def fitted():
    return ScoreCalibrator().fit(text(600))


@pytest.fixture(scope="module")
def labeled():
    rng = np.random.default_rng(0)
    cosines = rng.uniform(-0.2, 1, 3000)
    return cosines, (rng.random(3000) < 1 / (1 + np.exp(-8 * (cosines - 0.6)))).astype(int)


def test_with_few_rows_the_pairs_are_all_pairs():
    x = text(101)
    np.testing.assert_allclose(np.sort(RandomPairs.of(x).cosines.ravel()), np.sort(all_cosines(x)), atol=1e-12)


@pytest.mark.parametrize("rate", [0.3, 0.03])
def test_pairs_that_share_rows_are_worth_as_many_independent_ones_as_they_vary(rate):
    threshold = np.quantile(all_cosines(text(3000, seed=99)), 1 - rate)
    drawn = [RandomPairs.of(text(150, seed), seed) for seed in range(200)]
    varies = np.var([(pairs.cosines >= threshold).mean() for pairs in drawn], ddof=1)
    claimed = np.mean([1 / pairs.independent(rate) for pairs in drawn]) * rate * (1 - rate)
    assert claimed == pytest.approx(varies, rel=0.35)


def test_pairs_are_worth_between_half_the_rows_and_their_number():
    pairs = RandomPairs.of(text(400))
    assert all(200 <= value <= len(pairs) for value in map(pairs.independent, (0.5, 0.1, 0.001)))
    assert RandomPairs.of(np.ones((60, 3))).independent(0.1) == 30


def test_the_share_is_a_count_exact_in_the_tail_and_elsewhere_within_a_thousandth(fitted):
    cosines = np.sort(RandomPairs.of(text(600)).cosines.ravel())
    for asked, within in ((cosines[[-1, -2, -17, -500, -999]], 1e-15), (np.linspace(-1, 1, 501), 1.1e-3)):
        counted = [(1 + (cosines >= s).sum()) / (1 + len(cosines)) for s in asked]
        np.testing.assert_allclose(fitted.share(asked), counted, rtol=0, atol=within)


def test_percentiles_keep_every_ranking_and_say_no_more_than_the_pairs_can(fitted):
    found = fitted.percentile(np.sort([-1.0, *np.random.default_rng(0).uniform(-0.3, 0.95, 1000), 1.0]))
    assert (np.diff(found) >= 0).all()
    assert (found[0], found[-1]) == (0, pytest.approx(100 * fitted.pairs_ / (1 + fitted.pairs_), abs=1e-12))
    assert found[-1] < 100


def test_equal_cosines_are_counted_together():
    scores = ScoreCalibrator().fit(np.tile(np.eye(3), (21, 1)))  # 63 rows, all their 1,953 pairs
    assert scores.share(1.0) == pytest.approx((1 + 630) / (1 + 1953))
    assert scores.share([0.0, 0.5]) == pytest.approx([1, (1 + (1953 + 630) / 2) / 1954])


@pytest.mark.parametrize(("n", "rate"), [(400, 0.01), pytest.param(800, 0.05, marks=pytest.mark.slow)])
def test_the_intervals_hold_the_truth_about_as_often_as_they_say(n, rate, monkeypatch):
    monkeypatch.setattr(scores_random, "PAIRS", 20_000)
    everything = all_cosines(text(4000, seed=99))
    truth = np.quantile(everything, 1 - rate)
    found = [ScoreCalibrator(random_state=seed).fit(text(n, seed)).threshold(rate) for seed in range(100)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.85
    rates = [(everything >= one.value).mean() for one in found]
    assert np.mean([one.rate_low <= rate <= one.rate_high for one, rate in zip(found, rates, strict=True)]) >= 0.85


@pytest.mark.parametrize(("n", "m"), [(400, 120), (120, 400)])
def test_the_intervals_hold_where_pairs_are_of_a_query_and_a_text(n, m, monkeypatch):
    monkeypatch.setattr(scores_random, "PAIRS", 20_000)
    texts, queries = text(4000, seed=99), text(4000, seed=98, off=1)
    truth = np.quantile(unit_rows(queries) @ unit_rows(texts).T, 0.95)
    found = [
        ScoreCalibrator(random_state=seed).fit(text(n, seed), queries=text(m, 200 + seed, off=1)) for seed in range(100)
    ]
    assert {(one.n_, one.queries_) for one in found} == {(n, m)}
    thresholds = [one.threshold(0.05) for one in found]
    assert np.mean([one.low <= truth <= one.high for one in thresholds]) >= 0.85
    spread = np.std([one.share(truth) for one in found])  # neither wider than it must be
    expected = np.median([(0.05 * 0.95 / one.independent) ** 0.5 for one in thresholds])
    assert spread == pytest.approx(expected, rel=0.3)


def test_a_threshold_is_where_the_share_is_the_rate(fitted):
    for rate in (0.001, 0.01, 0.2):
        found = fitted.threshold(rate)
        assert fitted.share(found.value) == pytest.approx(rate, rel=1e-6)
        assert found.low < found.value < found.high
    passed = round(rate * found.independent)
    exact = binomtest(passed, found.independent).proportion_ci(method="exact")
    assert (found.rate_low, found.rate_high) == pytest.approx((exact.low, exact.high), rel=0.05)


def test_a_rate_that_the_text_is_too_small_for_is_refused():
    scores = ScoreCalibrator().fit(text(60))
    with pytest.raises(UsageError) as refused:
        scores.threshold(1e-4)
    advised = float(str(refused.value).partition("Ask for ")[2].split()[0])
    assert str(refused.value) == (
        "A false-match rate of 0.0001 needs some 36,889 independent pairs, and the random pairs of 60 sentences are "
        f"worth {scores.independent(1e-4):,}. Ask for {advised:.2g} or more, or give more text."
    )
    scores.threshold(advised)
    assert (scores.strict_threshold().rate, ScoreCalibrator().fit(text(600)).strict_threshold().rate) == (0.01, 0.001)


def test_a_threshold_that_copies_reach_is_said_to_tell_nothing():
    x = text(600)
    assert not ScoreCalibrator().fit(x).strict_threshold().of_copies
    found = ScoreCalibrator().fit(x, queries=x[:100].repeat(3, axis=0)).threshold(0.001)
    assert (found.value, found.of_copies) == (pytest.approx(1), COPIES.format(1000))
    assert str(found).endswith(
        ", which tells nothing: both embeddings are the same in 1 of 1,000 pairs. Leave out copies, and "
        "queries that are in the text"
    )


def test_the_curves_are_those_of_scikit_learn(labeled):
    cosines, labels = labeled
    mine = ScoreCalibrator("isotonic").fit_labels(cosines, labels).probability(cosines)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(cosines, labels).predict(cosines)
    np.testing.assert_allclose(mine, theirs.clip(1 / 3002, 3001 / 3002), atol=1e-12)
    standard = ((cosines - cosines.mean()) / cosines.std())[:, None]
    theirs = LogisticRegression().fit(standard, labels).predict_proba(standard)[:, 1]
    mine = ScoreCalibrator("logistic").fit_labels(cosines, labels).probability(cosines)
    np.testing.assert_allclose(mine, theirs, atol=1e-9)


def test_auto_is_logistic_for_few_labels_and_isotonic_for_many(labeled):
    cosines, labels = labeled
    methods = [ScoreCalibrator().fit_labels(cosines[:n], labels[:n]).probability_.method for n in (999, 1000)]
    assert methods == ["logistic", "isotonic"]


def test_separable_labels_stay_finite():
    cosines = np.concatenate([np.linspace(0, 0.4, 20), np.linspace(0.6, 1, 20)])
    found = ScoreCalibrator().fit_labels(cosines, np.repeat([0, 1], 20)).probability(cosines)
    assert (np.diff(found) > 0).all()
    assert 0 < found[0] < 0.1 < 0.9 < found[-1] < 1


@pytest.mark.parametrize("method", ["isotonic", "logistic"])
def test_what_is_loaded_says_the_same(method, labeled, tmp_path):
    scores = ScoreCalibrator(method).fit(text(300)).fit_labels(*labeled)
    scores.save(tmp_path)
    loaded = ScoreCalibrator.load(tmp_path, None)
    asked = np.linspace(-1, 1, 201)
    np.testing.assert_array_equal(loaded.share(asked), scores.share(asked))
    np.testing.assert_array_equal(loaded.probability(asked), scores.probability(asked))
    assert loaded.threshold(0.01) == scores.threshold(0.01)


@pytest.fixture(scope="module")
def sentences():
    return list(dict.fromkeys(drawn(WITH_AND, 200, 0, 3, 9)))


@pytest.fixture
def tiny(tiny_bert):
    return TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")


def test_another_calibrator_is_refused_with_both_named(tiny, sentences, tmp_path):
    fitted = CalibratedEncoder.fit(tiny, Whitening(), sentences)
    fitted.save(tmp_path / "it")
    ScoreCalibrator().fit_sentences(fitted, sentences).save(tmp_path / "it")
    opened = CalibratedEncoder.load(tmp_path / "it", device="cpu")
    assert ScoreCalibrator.load(tmp_path / "it", opened).n_ == len(sentences)
    with pytest.raises(DataError, match=r"calibrator none \(.*\)\. Use the encoder that it was fitted on"):
        ScoreCalibrator.load(tmp_path / "it", tiny)


EVEN = np.linspace(0, 1, 40)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ScoreCalibrator().fit(text(49)), DataError,
         "Random pairs need at least 50 embeddings, got 49. Give more text."),
        (lambda: ScoreCalibrator().fit(np.zeros(60)), DataError, "Scores need embeddings (n, dim), got shape (60,)."),
        (lambda: ScoreCalibrator().fit(np.full((60, 3), np.nan)), DataError,
         "must be finite, but row 0, column 0 holds NaN"),
        (lambda: ScoreCalibrator().fit_labels(EVEN, np.zeros(40, int)), DataError,
         "Labels should be 0 and 1, both of them, got [0]. Repair the labels."),
        (lambda: ScoreCalibrator().fit_labels(EVEN, np.repeat([1, 0], 20)), DataError,
         "Matches should have higher cosines, but their mean is 0.244 and that of the others 0.756. Are the labels the "
         "wrong way round? Otherwise cosines say nothing here."),
        (lambda: ScoreCalibrator("platt").fit_labels(EVEN, np.repeat([0, 1], 20)), UnknownNameError,
         "Unknown method 'platt'. Known: isotonic, logistic."),
        (lambda: ScoreCalibrator().percentile([0.5]), UsageError, "This ScoreCalibrator is not fitted."),
        (lambda: ScoreCalibrator().fit(text(60)).probability([0.5]), UsageError, "Probabilities need labels"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(call, kind, message, refusal):
    assert message in refusal(call, error=kind)
