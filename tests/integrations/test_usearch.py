"""The exact search is the second voice."""

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center
from bertflow.data.corpus import Answer
from bertflow.errors import DataError
from bertflow.retrieval.index import AnswerIndex

pytest.importorskip("usearch", reason="the search extra is not installed")

from bertflow.integrations import usearch
from bertflow.integrations.usearch import UsearchSearch

from ..retrieval.conftest import FakeEncoder

QUESTIONS = [f"new {number}" for number in range(40)]


def answers(n, kind="answer"):
    return [
        Answer(f"{kind} {k}", f"{kind} {k} text", tuple(f"{kind} {k} past {i}" for i in range(k % 4))) for k in range(n)
    ]


@pytest.fixture
def exact(tmp_path):
    with AnswerIndex.create(tmp_path / "faq.index", FakeEncoder(), answers(300)) as index:
        yield index


@pytest.fixture
def graph(exact):
    with AnswerIndex.open(exact.path, FakeEncoder(), search=UsearchSearch()) as index:
        yield index


def graphs(index):
    return sorted(path.name for path in index.path.parent.glob("*.usearch"))


def test_the_graph_finds_what_the_exact_search_finds(exact, graph, monkeypatch):
    graph.search("new")
    monkeypatch.setattr(usearch, "FEW", 0)
    ours, theirs = graph.search_many(QUESTIONS, 5), exact.search_many(QUESTIONS, 5)
    assert np.mean([one == other for one, other in zip(ours, theirs, strict=True)]) >= 0.95


def test_few_phrases_are_searched_exactly(exact, graph):
    assert graph.search_many(QUESTIONS, 5) == exact.search_many(QUESTIONS, 5)


def test_it_finds_as_many_answers_as_there_are(exact, graph, monkeypatch):
    graph.search("new")
    monkeypatch.setattr(usearch, "FEW", 0)
    assert [hit.id for hit in graph.search("new", 300)] == [hit.id for hit in exact.search("new", 300)]


def test_changes_reach_the_graph(exact, graph):
    graph.search("new")
    exact.add([Answer("added", "brand new")])
    assert graph.search("brand new", 1)[0].id == "added"
    exact.update([Answer("added", "other text")])
    assert graph.search("brand new", 1)[0].score < 0.9999
    exact.remove(["added"])
    assert "added" not in {hit.id for hit in graph.search("other text", 300)}


def test_the_graph_on_disk_is_used_again(exact, graph, monkeypatch):
    expected = graph.search("new")
    monkeypatch.setattr(graph._storage.__class__, "vectors", _counted(graph._storage.__class__.vectors, calls := []))
    with AnswerIndex.open(exact.path, FakeEncoder(), search=UsearchSearch()) as again:
        assert again.search("new") == expected
    assert sum(calls) < 50, "only the candidates are read, not all phrases"


def _counted(function, calls):
    def counted(self, numbers, raw=False):
        calls.append(len(numbers))
        return function(self, numbers, raw)

    return counted


def test_a_recalibrated_index_has_another_graph(exact, graph):
    graph.search("new")
    before = graphs(exact)
    calibrator = Center().fit(FakeEncoder().encode(QUESTIONS))
    graph.recalibrate(calibrator)
    exact.recalibrate(calibrator)
    assert graph.search("new") == exact.search("new")
    assert len(before) == len(graphs(exact)) == 1
    assert before != graphs(exact)
    with AnswerIndex.open(exact.path, CalibratedEncoder(FakeEncoder(), calibrator), search=UsearchSearch()) as again:
        assert again.search("new") == exact.search("new")


def test_another_index_of_that_name_does_not_take_the_old_graph(exact, graph):
    graph.search("new")
    exact.path.unlink()
    with AnswerIndex.create(exact.path, FakeEncoder(), answers(300, "other"), search=UsearchSearch()) as other:
        assert other.search("other 7 text", 1)[0].id == "other 7"


def test_a_copy_that_went_another_way_does_not_take_the_graph(exact, graph):
    """A backup is restored, and other answers are added: they have numbers that the graph knows with other content."""
    backup = exact.path.read_bytes()
    exact.add([Answer("one", "the first way")])
    graph.search("new")
    exact.close()
    graph.close()
    exact.path.write_bytes(backup)
    with AnswerIndex.open(exact.path, FakeEncoder(), search=UsearchSearch()) as again:
        again.add([Answer("other", "quite another way")])
        assert again.search("quite another way", 1)[0].id == "other"
        key = np.array([again._storage.numbers()[-1]], np.uint64)
        np.testing.assert_array_equal(again._search._graph.get(key), again._storage.vectors(key.tolist()))


def test_a_damaged_graph_is_refused(exact, graph):
    graph.search("new")
    path = exact.path.with_name(graphs(exact)[0])
    path.write_bytes(path.read_bytes()[:100])
    with AnswerIndex.open(exact.path, FakeEncoder(), search=UsearchSearch()) as again:
        with pytest.raises(DataError, match=r"is damaged.*Delete it; it will be built again"):
            again.search("new")
        path.unlink()
        assert again.search("new") == exact.search("new")
