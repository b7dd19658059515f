"""The supervised ceiling on data whose right answer is known, what it must not see, and the same by scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, normalize

from bertflow.affine import whitening_map
from bertflow.data.pairs import Pairs, joined
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.mteb_files import mteb_files
from bertflow.evaluation.sides import row_numbers
from bertflow.moments import Moments
from bertflow.studies import ceiling
from bertflow.studies.ceiling import FOLDS, SupervisedCeiling, ceilings_of, labeled_pairs, sentence_folds
from bertflow.text_keys import hash_texts, text_key

DIM, MEANT = 12, 3


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(ceiling, "LANDMARKS", 60)
    monkeypatch.setattr(ceiling, "STRENGTHS", np.array([0.1, 1.0, 10.0, 100.0]))


class Noisy(AbstractEncoder):
    """Sentence "k" has a meaning, 3 numbers, beside louder noise: labels can tell them apart, cosines cannot."""

    dim = DIM

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.rows = rng.normal(size=(2400, DIM)) * np.r_[np.ones(MEANT), np.full(DIM - MEANT, 2.0)]
        # Second sentences are near their first ones, some nearer than others.
        near = rng.uniform(0.2, 1.5, size=(1200, 1))
        self.rows[1200:, :MEANT] = self.rows[:1200, :MEANT] + near * rng.normal(size=(1200, MEANT))

    def _encode(self, sentences, *_):
        return np.array([self.rows[int(s)] for s in sentences], dtype=np.float32).reshape(-1, DIM)

    def describe(self):
        return {"encoder": "noisy", "weights": "w"}


def pairs(task="scored", start=0, n=400):
    """Each sentence in one pair; the gold score is how near the meanings are."""
    first = np.arange(start, start + n)
    meant = Noisy().rows[:, :MEANT]
    gold = 5 * np.exp(-np.linalg.norm(meant[first] - meant[first + 1200], axis=1))
    return Pairs(task, tuple(map(str, first)), tuple(map(str, first + 1200)), gold)


def with_gold(given, gold):
    return replace(given, target=np.asarray(gold, dtype=float))


def rho(scores, given):
    return spearmanr(scores, given.target).statistic


def label_free(given):
    """Spearman of the cosine of raw and of whitened embeddings, by SciPy and scikit-learn."""
    x = Noisy().encode(given.sentences).astype(float)
    rows = given.rows(row_numbers(given.sentences)).T
    views = {"raw": x, "whitening": PCA(whiten=True).fit_transform(x)}
    return {name: rho([-cosine(z[a], z[b]) for a, b in rows], given) for name, z in views.items()}


def test_labels_find_what_cosines_do_not_show():
    given = pairs()
    found = rho(SupervisedCeiling(Noisy(), [given], {}).scores(given), given)
    assert max(label_free(given).values()) < 0.55
    assert found > max(label_free(given).values()) + 0.15


@pytest.mark.parametrize("view", ["raw", "whitening"])
def test_it_falls_back_to_the_best_label_free_row_where_labels_hold_nothing_more(view):
    given, rng = pairs(), np.random.default_rng(1)
    x = Noisy().encode(given.sentences).astype(float)
    z = {"raw": x, "whitening": PCA(whiten=True).fit_transform(x)}[view]
    cosines = np.array([1 - cosine(z[a], z[b]) for a, b in given.rows(row_numbers(given.sentences)).T])
    given = with_gold(given, cosines + 0.5 * rng.normal(size=len(given)))
    found, rows = rho(SupervisedCeiling(Noisy(), [given], {}).scores(given), given), label_free(given)
    assert max(rows, key=rows.get) == view
    assert abs(found - rows[view]) < 0.03


def test_no_sentence_stands_in_two_folds():
    rng = np.random.default_rng(0)
    first, second = ([f"Text {k}." for k in rng.integers(0, 400, 200)] for _ in range(2))
    first[:50] = [text.upper().rstrip(".") for text in first[:50]]  # the same texts by key
    given = Pairs("t", tuple(first), tuple(second), np.arange(200.0))
    folds = sentence_folds(given)
    keys = [
        {text_key(t) for k in np.flatnonzero(folds == fold) for t in (first[k], second[k])} for fold in range(FOLDS)
    ]
    assert min(map(len, keys)) > 10
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_a_fold_is_predicted_without_its_labels():
    given = pairs(n=100)
    folds = sentence_folds(given)
    changed = given.target.copy()
    changed[folds == 2] = 7.0
    before, after = (SupervisedCeiling(Noisy(), [one], {}).scores(one) for one in (given, with_gold(given, changed)))
    np.testing.assert_array_equal(before[folds == 2], after[folds == 2])
    assert np.abs(before - after)[folds != 2].max() > 0.1


def test_with_labels_of_other_pairs_those_of_the_scored_ones_are_never_read():
    given, labeled = pairs(n=100), pairs("labeled", start=100, n=300)
    before, after = (
        SupervisedCeiling(Noisy(), [one], {"scored": labeled}).scores(one)
        for one in (given, with_gold(given, [7] * 100))
    )
    np.testing.assert_array_equal(before, after)
    assert rho(before, given) > max(label_free(given).values()) + 0.1


def test_labeled_pairs_that_share_a_sentence_with_a_pair_do_not_predict_it():
    given, other = pairs(n=100), pairs("labeled", start=100, n=100)
    sharing = replace(given, second=tuple(map(str, range(1500, 1600))))
    folds = sentence_folds(joined([given, sharing, other]))
    np.testing.assert_array_equal(folds[:100], folds[100:200])
    of_fold = folds[:100] == 2
    before, after = (
        SupervisedCeiling(Noisy(), [given], {"scored": joined([one, other])}).scores(given)
        for one in (sharing, with_gold(sharing, np.where(of_fold, 9.0, sharing.target)))
    )
    np.testing.assert_array_equal(before[of_fold], after[of_fold])
    assert np.abs(before - after)[~of_fold].max() > 0.1


def test_sub_sets_of_a_task_with_scales_of_their_own_are_learned_apart():
    one, other = pairs(n=150), pairs(start=150, n=150)
    both = replace(
        joined([one, with_gold(other, 100 - other.target)]), task="tuning", subsets=("a",) * 150 + ("b",) * 150
    )
    found = SupervisedCeiling(Noisy(), [both], {}).scores(both)
    np.testing.assert_array_equal(found[:150], SupervisedCeiling(Noisy(), [one], {}).scores(one))
    assert found[150:].mean() > 90


def by_scikit_learn(x, given, labeled, folds):
    """The ceiling again: pipelines that are fitted once for each pair of folds, without sums that add up."""
    sentences = given.sentences
    rows = given.rows(row_numbers(sentences))
    kept = whitening_map(Moments.of(x)).dim_out
    whitened = PCA(kept, whiten=True, svd_solver="full").fit_transform(x.astype(float))
    centered = x - x.mean(0, dtype=float)
    views = [x.astype(float), centered, whitened, *(whitened[:, :k] for k in (128, 64) if k < kept)]
    cosines = np.column_stack([[1 - cosine(z[a], z[b]) for a, b in rows.T] for z in views])
    cosines = (cosines - cosines.mean(0)) / cosines.std(0)

    def scaled(columns):
        return (columns - columns.mean(0)) / np.sqrt(columns.var(0).sum())

    def features(z):
        u, v = (normalize(z)[side] for side in rows)
        kernel = Nystroem(kernel="rbf", gamma=1, n_components=min(ceiling.LANDMARKS, len(given)), random_state=0)
        return scaled(make_pipeline(FunctionTransformer(scaled), kernel).fit_transform(np.hstack([abs(u - v), u * v])))

    raw, white = features(x.astype(float)), features(whitened)
    slight = np.sqrt(ceiling.SLIGHT)
    candidates = [[cosines[:, [k]] / slight] for k in range(len(views))] + [[cosines / slight]]
    candidates += [
        [np.hstack([cosines / slight, added / np.sqrt(s)]) for s in ceiling.STRENGTHS]
        for added in (raw, white, np.hstack([raw, white]))
    ]

    def predicted(columns, without):
        train = labeled & ~np.isin(folds, without)
        return Ridge(alpha=1.0, solver="cholesky").fit(columns[train], given.target[train]).predict(columns)

    result = np.empty(len(given))
    for fold in range(FOLDS):
        others = labeled & (folds != fold)
        chosen = []
        for candidate in candidates:
            tried = []
            for columns in candidate:
                inner = predicted(columns, [fold])
                for left in set(range(FOLDS)) - {fold}:
                    inner[folds == left] = predicted(columns, [fold, left])[folds == left]
                tried.append(inner)
            best = max(tried, key=lambda one: spearmanr(one[others], given.target[others]).statistic)
            chosen.append(best)
        stacked, mean = np.stack(chosen, axis=1), given.target[others].mean()
        mixed = LinearRegression(positive=True, fit_intercept=False).fit(
            stacked[others] - mean, given.target[others] - mean
        )
        result[folds == fold] = mean + mixed.predict(stacked[folds == fold] - mean)
    return result


def test_scikit_learn_gives_the_same_predictions():
    given, labeled = pairs(n=60), pairs("labeled", start=60, n=120)
    found = SupervisedCeiling(Noisy(), [given], {"scored": labeled}).scores(given)
    both = joined([given, labeled])
    x = Noisy().encode(both.sentences)
    theirs = by_scikit_learn(x, both, np.arange(len(both)) >= 60, sentence_folds(both))[:60]
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_it_stands_in_a_report_with_its_interval_and_its_differences():
    given, encoder = pairs(), Noisy()
    report = score_sets({"raw": encoder}, [given], resamples=50, scorers=ceilings_of({"raw": encoder}, [given], {}))
    row = next(row for row in report.rows if (row.system, row.metric) == ("ceiling", "cosine_spearman"))
    assert row.ci_low < row.value < row.ci_high
    assert (row.seen, row.label_leak) == (1.0, "")
    assert report.compared("ceiling", "raw")[0].ci_low > 0
    np.testing.assert_array_equal(report.systems[1].hashes, hash_texts({*given.first, *given.second}))
    assert not any("ceiling" in path for path in mteb_files(report.systems, report.rows))


def test_each_raw_encoder_has_its_own():
    systems = {"raw of a": Noisy(), "center of a": Noisy(), "raw of b": Noisy(1), "rawhide": Noisy()}
    found = ceilings_of(systems, [], {})
    assert list(found) == ["ceiling of a", "ceiling of b"]
    assert found["ceiling of b"].encoder is systems["raw of b"]


def test_a_system_that_is_called_so_already_is_refused(refusal):
    said = "Two systems would be called 'ceiling'. Name one as NAME=path, or leave one out."
    assert refusal(ceilings_of, {"raw": Noisy(), "ceiling": Noisy()}, [], {}, error=UsageError) == said


def test_pairs_that_all_share_sentences_are_refused(refusal):
    given = Pairs("chain", tuple(map(str, range(30))), tuple(map(str, range(1, 31))), np.arange(30.0))
    assert refusal(SupervisedCeiling(Noisy(), [given], {}).scores, given) == (
        "The ceiling of chain needs at least 5 groups of pairs that share no sentence, got 1. Give more pairs."
    )


def test_labels_without_differences_are_refused():
    given, labeled = pairs(n=50), with_gold(pairs("labeled", start=50, n=50), [3] * 50)
    with pytest.raises(
        DataError, match=r"needs labeled pairs in each of 5 folds, and different .* and 1 scores outside\."
    ):
        SupervisedCeiling(Noisy(), [given], {"scored": labeled}).scores(given)


def test_the_benchmark_tasks_are_predicted_from_their_training_parts(shared_data):
    found = labeled_pairs(["sts16", "stsb", "sickr"], shared_data / "sts")
    assert {task: one.tasks for task, one in found.items()} == {
        "stsb": ("stsb-train",), "sickr": ("sickr-train", "sickr-trial")
    }  # fmt: skip
    assert {task: len(one) for task, one in found.items()} == {"stsb": 5749, "sickr": 5000}
