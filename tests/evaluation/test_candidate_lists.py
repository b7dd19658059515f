"""Candidate lists: MAP and MRR; the second voices are scikit-learn and a count by hand."""

import logging

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

import bertflow
from bertflow.data.corpus import Answer
from bertflow.data.pairs import Pairs
from bertflow.errors import UsageError
from bertflow.evaluation.ungraded import average_precision, lists_of, right_places
from bertflow.similarity import SIMILARITIES

from .conftest import WORDS, ToyEncoder


@pytest.fixture
def candidates():
    """Twenty queries with six candidates each; the third has no right one, the fifth no wrong one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (20, 6))
    labels[:, 0], labels[:, 1] = 0, 1
    labels[2], labels[4] = 0, 1
    queries = [f"{WORDS[k % 10]} {WORDS[k // 10]} {WORDS[k % 7]}" for k in range(20) for _ in range(6)]
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(120)]
    return Pairs("trec", tuple(queries), tuple(texts), labels.ravel(), "candidates", source="trec.tsv")


def test_places_and_precision_by_hand():
    scores, labels = np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([0, 1, 0, 1, 0])
    assert right_places(scores, labels).tolist() == [2, 4]
    assert average_precision(np.array([2, 4])) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert right_places(np.zeros(3), np.array([1, 0, 0])).tolist() == [3], "ties count against the system"


def test_precision_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for n in (2, 3, 10, 50):
        labels = np.append(rng.integers(0, 2, n - 1), 1)
        scores = rng.normal(size=n)
        found = average_precision(right_places(scores, labels))
        assert found == pytest.approx(average_precision_score(labels, scores))


def test_candidates_that_stand_there_twice_count_twice_and_are_said(caplog):
    texts, labels = (*WORDS[:1] * 2, WORDS[1], *WORDS[2:3] * 2), np.array([1, 1, 0, 0, 1])
    pairs = Pairs("trec", (WORDS[3],) * 5, texts, labels, "candidates", source="trec.tsv")
    found = {
        row.metric: row.value for row in bertflow.evaluate_retrieval({"it": ToyEncoder()}, pairs, resamples=0).rows
    }
    assert caplog.messages == [
        "trec: 2 candidates are in their list more than once and count each time; 1 have both labels."
    ]
    encoder = ToyEncoder()
    cosines = SIMILARITIES["cosine"].paired(encoder.encode([WORDS[3]] * 5), encoder.encode(texts))
    assert found["map"] == pytest.approx(average_precision(right_places(cosines, labels)))


def test_scores_are_means_over_queries_that_have_both(candidates, caplog):
    encoder = ToyEncoder()
    with caplog.at_level(logging.INFO):
        report = bertflow.evaluate_retrieval({"it": encoder}, candidates, resamples=200)
    assert caplog.messages[-1] == "trec: 2 of 20 queries are left out: no right or no wrong candidate."
    precision, first = [], []
    for query in dict.fromkeys(candidates.first):
        rows = [at for at, one in enumerate(candidates.first) if one == query]
        labels = candidates.target[rows]
        if 0 < labels.sum() < len(rows):
            a, b = encoder.encode([query]), encoder.encode([candidates.second[at] for at in rows])
            cosines = (b @ a[0]) / np.linalg.norm(b, axis=1) / np.linalg.norm(a)
            ranked = sorted(zip(-np.round(cosines, 12), labels, strict=True))
            places = [place for place, (_, label) in enumerate(ranked, start=1) if label]
            precision.append(np.mean([(k + 1) / place for k, place in enumerate(places)]))
            first.append(1 / places[0])
    rows = {row.metric: row for row in report.rows}
    assert rows["map"].value == pytest.approx(np.mean(precision))
    assert rows["mrr"].value == pytest.approx(np.mean(first))
    assert rows["map"].n == 18
    assert rows["map"].ci_low < rows["map"].value < rows["map"].ci_high
    assert "MAP" in report.to_markdown()


def test_what_has_nothing_to_rank_is_refused(candidates, refusal):
    one_each = candidates.taken(range(0, 120, 6))
    assert refusal(lists_of, one_each) == (
        "trec should hold queries with right and with wrong texts, but none of its 20 has both. Give a row for each "
        "candidate, with label 1 or 0."
    )


def test_the_commands_score_them(candidates, tiny_bert, tmp_path, told):
    rows = zip(candidates.first, candidates.second, candidates.target, strict=True)
    path = tmp_path / "lists.tsv"
    path.write_text("\n".join(["query\ttext\tlabel", *(f"{a}\t{b}\t{label}" for a, b, label in rows)]))
    raw = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    calibrated = bertflow.CalibratedEncoder.fit(raw, bertflow.Center(), list(candidates.second))
    calibrated.save(tmp_path / "c")
    printed = told("evaluate", tmp_path / "c", "--candidate_lists", path, "--compare", "raw")
    assert "MAP" in printed
    assert "MRR" in printed
    bertflow.AnswerIndex.create(tmp_path / "i.index", calibrated, [Answer("a", "the dog")]).close()
    options = ["--candidate_lists", str(path), "--model", str(tmp_path / "c"), "--device", "cpu"]
    printed = told("search", "evaluate", tmp_path / "i.index", *options)
    report = bertflow.evaluate_retrieval({"raw": raw, "c": calibrated}, candidates, resamples=0)
    for row in report.rows:
        assert f"{100 * row.value:.2f}" in printed
    assert "18 questions" in printed
    with pytest.raises(UsageError, match=r"^One of labels and candidate_lists is wanted"):
        bertflow.evaluate_search(tmp_path / "i.index")
