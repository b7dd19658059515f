import numpy as np
import pytest

from bertflow.data.pairs import Pairs
from bertflow.evaluation import ungraded
from bertflow.evaluation.evaluating import evaluate_retrieval
from bertflow.evaluation.ungraded import random_pair_cosines, right_ranks

from .conftest import WORDS, ToyEncoder


@pytest.fixture
def questions():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(30)]
    queries = [" ".join(text.split()[:3]) for text in texts]
    return Pairs("faq", tuple(queries), tuple(texts), kind="retrieval", source="faq.tsv")


def ranks_by_loop(queries, texts, like):
    ranks = []
    for at, query in enumerate(queries):
        scores = [like(query, text) for text in texts]
        ranks.append(1 + sum(score >= scores[at] for other, score in enumerate(scores) if other != at))
    return ranks


@pytest.mark.parametrize(
    ("similarity", "like"),
    [
        ("cosine", lambda a, b: a @ b / np.sqrt(a @ a * (b @ b))),
        ("dot", lambda a, b: a @ b),
        ("euclidean", lambda a, b: -((a - b) ** 2).sum()),
        ("manhattan", lambda a, b: -np.abs(a - b).sum()),
    ],
)
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_ranks_are_those_of_a_loop(monkeypatch, similarity, like, block):
    monkeypatch.setattr(ungraded, "BLOCK", block)
    queries, texts = np.random.default_rng(0).normal(size=(2, 25, 4))
    assert right_ranks(queries, texts, similarity).tolist() == ranks_by_loop(queries, texts, like)


def test_ties_count_against_the_system():
    assert right_ranks(np.ones((3, 2)), np.ones((3, 2))).tolist() == [3, 3, 3]


def test_hit_and_mrr_are_means_over_the_queries(questions):
    encoder = ToyEncoder()
    report = evaluate_retrieval({"it": encoder}, questions, resamples=50)
    ranks = right_ranks(encoder.encode(list(questions.first)), encoder.encode(list(questions.second)))
    assert 0 < report.value("it", "faq", metric="hit@1") < 1
    assert report.value("it", "faq", metric="hit@1") == np.mean([rank == 1 for rank in ranks])
    assert report.value("it", "faq", metric="mrr") == pytest.approx(np.mean([1 / rank for rank in ranks]))


def test_the_interval_holds_the_value_and_is_of_the_size_of_a_binomial_one(questions):
    report = evaluate_retrieval({"it": ToyEncoder()}, questions, resamples=2000)
    row = next(row for row in report.rows if row.metric == "hit@1")
    assert row.ci_low < row.value < row.ci_high
    binomial = 2 * 1.96 * np.sqrt(row.value * (1 - row.value) / row.n)
    assert row.ci_high - row.ci_low == pytest.approx(binomial, rel=0.2)


def test_random_pairs_are_of_different_texts():
    assert np.abs(random_pair_cosines(np.eye(5), np.random.default_rng(0))).max() == 0


def test_the_cosines_of_random_pairs_stand_beside(questions):
    report = evaluate_retrieval({"it": ToyEncoder()}, questions, resamples=0)
    texts = ToyEncoder().encode(list(questions.second))
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    everything = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    found = [report.value("it", "faq", metric=f"random_{name}_cosine") for name in ("median", "p95")]
    assert found == pytest.approx([np.median(everything), np.quantile(everything, 0.95)], abs=0.03)
