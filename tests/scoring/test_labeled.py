"""A threshold for a precision or recall, against scikit-learn's curve; and what is said of one by random pairs."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import precision_recall_curve

import bertflow
from bertflow.cli import main
from bertflow.errors import UsageError
from bertflow.scoring.labeled import Labeled

from ..texts import WITH_THE as WORDS


def drawn(seed, n=300, digits=2):
    """Cosines with ties, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return np.round(rng.normal(size=n) / 5 + 0.2 * labels, digits), labels


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target", [0.3, 0.7, 0.8, 0.95])
def test_it_is_the_threshold_of_scikit_learn_s_curve(seed, target, monkeypatch):
    monkeypatch.setattr("bertflow.scoring.labeled.REDRAWN", 2)
    cosines, labels = drawn(seed)
    precision, recall, thresholds = precision_recall_curve(labels, cosines)
    by_precision = Labeled.of(cosines, labels).threshold("precision", min(target, precision[:-1].max()))
    assert by_precision.value == thresholds[precision[:-1] >= min(target, precision[:-1].max())].min()
    by_recall = Labeled.of(cosines, labels).threshold("recall", target)
    assert by_recall.value == thresholds[recall[:-1] >= target].max()
    for found in (by_precision, by_recall):
        (at,) = np.flatnonzero(thresholds == found.value)
        passing = found.passing
        assert (passing.precision.value, passing.recall.value) == pytest.approx((precision[at], recall[at]))
        exact = binomtest(passing.matches, passing.matches + passing.others).proportion_ci(0.95, "exact")
        assert (passing.precision.low, passing.precision.high) == pytest.approx((exact.low, exact.high))


def test_the_interval_of_the_cosine_is_that_of_a_plain_bootstrap(monkeypatch):
    monkeypatch.setattr("bertflow.scoring.labeled.REDRAWN", 400)
    cosines, labels = drawn(7, 200, 6)
    found, rng, again = Labeled.of(cosines, labels).threshold("recall", 0.8), np.random.default_rng(1), []
    for _ in range(400):
        rows = rng.integers(0, 200, 200)
        _, recall, thresholds = precision_recall_curve(labels[rows], cosines[rows])
        again.append(thresholds[recall[:-1] >= 0.8].max())
    assert (found.low, found.high) == pytest.approx(np.quantile(again, (0.025, 0.975)), abs=0.03)


def test_what_no_cosine_reaches_is_refused(refusal):
    four = Labeled.of(np.array([0.9, 0.8, 0.7, 0.6]), np.array([0, 1, 1, 0]))
    assert refusal(four.threshold, "precision", 0.9, error=UsageError) == (
        "No cosine has a precision of 0.9 on the 4 labeled pairs: the highest is 0.667 (0.094 to 0.992). Ask for less."
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text, and labeled pairs that are all alike: the matches only a little more."""
    folder, rng = tmp_path_factory.mktemp("labeled"), np.random.default_rng(0)
    lines = list(dict.fromkeys(" ".join(rng.choice(WORDS, 7)) for _ in range(300)))
    (folder / "text.txt").write_text("\n".join(lines))
    rows = ["a\tb\tlabel"]
    for row, line in enumerate(lines[:200]):
        words = line.split()
        words[: 1 + row % 2] = rng.choice(WORDS, 1 + row % 2)
        rows.append(f"{line}\t{' '.join(words)}\t{1 - row % 2}")
    (folder / "labels.tsv").write_text("\n".join(rows))
    (folder / "pairs.tsv").write_text("\n".join("\t".join(row.split("\t")[:2]) for row in rows))
    return folder


def test_a_useless_threshold_is_said_to_be_one_and_labels_choose_a_better(files, tiny_bert, capsys, told):
    argv = [tiny_bert, files / "pairs.tsv", "--fit_on", files / "text.txt", "--labels", files / "labels.tsv"]
    argv = [*map(str, argv), "--device", "cpu"]
    printed = told("score", *argv, "--false_match_rate", "0.3", "--save", files / "saved")
    assert "This threshold is useless for such pairs: it tells random pairs from related ones, and " in printed
    assert "Choose one by the labels: --precision P or --recall R." in printed
    by_one = told("score", *argv, "--precision", "0.6")
    assert by_one == told("score", files / "saved", files / "pairs.tsv", "--device", "cpu", "--precision", "0.6")
    assert "for a precision of 0.6 (on the labeled pairs precision 0." in by_one
    assert "useless" not in by_one
    text = {"fit_on": files / "text.txt", "labels": files / "labels.tsv"}
    threshold = bertflow.score(tiny_bert, files / "pairs.tsv", **text, recall=0.9, device="cpu").as_dict()["threshold"]
    assert (threshold["wanted"], threshold["target"]) == ("recall", 0.9)
    assert threshold["passing"]["recall"]["value"] >= 0.9
    assert main(["score", *argv, "--recall", "0.5", "--precision", "0.6"]) == 2
    said = "There is one threshold, but precision and recall were given. Give one of them."
    assert capsys.readouterr().err == f"error: {said}\n"
