"""The actions of ``bertflow search`` from Python: answers as objects, an index as its file or open."""

import json

import pytest

import bertflow
from bertflow.errors import UsageError
from bertflow.retrieval.ranking import Hit
from bertflow.retrieval.searching import Hits

ANSWERS = [
    bertflow.Answer("dogs", "The dog runs in the garden.", ("A big dog sings.",)),
    bertflow.Answer("cats", "A cat sleeps."),
]


@pytest.fixture
def path(tmp_path, tiny_bert):
    info = bertflow.build_index(tmp_path / "faq.index", ANSWERS, tiny_bert, device="cpu")
    assert (info.answers, info.phrases, info.calibrator) == (2, 3, "")
    return tmp_path / "faq.index"


def test_a_question_finds_its_answer(path):
    found = bertflow.search(path, "A big dog sings.", k=1)
    assert [(hit.id, hit.matched) for hit in found.hits] == [("dogs", "A big dog sings.")]
    assert repr(found).startswith("<Hits: 1. 1.000  dogs")
    assert json.loads(found.to_json())[0]["id"] == "dogs"


def test_an_open_index_stays_open(path, tiny_bert):
    encoder = bertflow.TransformerEncoder(tiny_bert, device="cpu")
    with bertflow.AnswerIndex.open(path, encoder) as index:
        assert bertflow.add_answers(index, [bertflow.Answer("birds", "The bird sings.")]).answers == 3
        assert bertflow.update_answers(index, [bertflow.Answer("birds", "A red bird.")]).phrases == 4
        assert bertflow.remove_answers(index, ["birds"]).answers == 2
        assert bertflow.search(index, "a cat", k=5).hits == index.search("a cat", 5)
        assert len(index) == 2


def test_labels_can_be_a_mapping(path):
    scores = bertflow.evaluate_search(path, {"The cat sleeps.": frozenset({"cats"})}, k=2, resamples=0, device="cpu")
    assert (scores.questions, scores.answers, scores.questions_in_index, scores.differences) == (1, 2, 0, [])
    assert {row["system"] for row in scores.rows} == {"raw", "bm25"}


def test_the_values_of_a_raw_index_are_printed_with_their_intervals_unless_none_are_wanted(path):
    right = {"The cat sleeps.": frozenset({"cats"}), "The dog runs.": frozenset({"dogs"})}
    for resamples, systems in ((50, ("raw", "  95 % interval", "bm25", "  95 % interval")), (0, ("raw", "bm25"))):
        scores = bertflow.evaluate_search(path, right, resamples=resamples, device="cpu")
        _, table, *_ = scores.parts()
        assert tuple(line[0] for line in table.lines) == systems
        row, shown = scores.rows[0], table.lines[1][1]
        assert not resamples or shown == f"{100 * row['ci_low']:.2f} to {100 * row['ci_high']:.2f}"


def test_an_encoder_that_bertflow_wrote_has_the_name_that_evaluate_gives_it(tiny_bert, tmp_path):
    bertflow.load(tiny_bert, device="cpu").save(tmp_path / "fixed" / "encoder")
    bertflow.build_index(tmp_path / "faq.index", ANSWERS, tmp_path / "fixed" / "encoder", device="cpu")
    asked = {"A cat sleeps here.": frozenset({"cats"})}
    scores = bertflow.evaluate_search(tmp_path / "faq.index", asked, resamples=0, device="cpu")
    assert {row["system"] for row in scores.rows} == {"fixed/encoder", "bm25"}


def test_what_cannot_be_asked_is_refused(path, refusal):
    with pytest.raises(UsageError, match="resamples should be from 0 to 1,000,000, got -1"):
        bertflow.evaluate_search(path, {}, resamples=-1)
    assert "The answer 'nope' is not in" in refusal(bertflow.remove_answers, path, ["nope"], device="cpu")


def test_an_answer_of_several_lines_is_printed_in_one():
    hits = Hits([Hit("a", 0.5, "Two\nlines.", "Two\nlines.")])
    assert [*hits.parts()] == ["1. 0.500  a  Two lines."]
    assert json.loads(hits.to_json())[0]["text"] == "Two\nlines."
