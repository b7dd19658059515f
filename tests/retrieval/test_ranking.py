"""Exactness: over blocks, over ties, over more answers than one statement of SQL takes."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from bertflow.data.corpus import Answer
from bertflow.retrieval import ranking
from bertflow.retrieval.index import AnswerIndex


@pytest.fixture
def many(tmp_path, encoder):
    # Seven hundred answers, of which every fifth says the same, so that the border of the best k runs through a tie.
    answers = [
        Answer(f"{number:03d}", "tied" if number % 5 == 0 else f"text {number}", (f"past {number}",) * (number % 3))
        for number in range(700)
    ]
    with AnswerIndex.create(tmp_path / "many.index", encoder, answers) as index:
        yield index


def sorted_by_hand(index, encoder, question, k):
    x = encoder.encode([question]).astype(np.float64)[0]
    scores = {}
    for answer in index.answers():
        rows = encoder.encode(list(answer.phrases)).astype(np.float64)
        scores[answer.id] = max(float(row @ x / np.linalg.norm(row) / np.linalg.norm(x)) for row in rows)
    return sorted(scores, key=lambda name: (-round(scores[name], 12), name))[:k]


@pytest.mark.parametrize("question", ["tied", "text 3", "something new"])
@pytest.mark.parametrize("k", [1, 10, 150, 700])
def test_all_is_sorted_as_by_hand(many, encoder, question, k):
    assert [hit.id for hit in many.search(question, k)] == sorted_by_hand(many, encoder, question, k)


def test_blocks_do_not_change_the_ranking(many, monkeypatch):
    questions = [f"question {number}" for number in range(9)]
    whole = many.search_many(questions, 20)
    monkeypatch.setattr(ranking, "CELLS", 3000)
    assert many.search_many(questions, 20) == whole


def test_a_write_holds_the_file_from_its_beginning(many):
    # Or two processes that read, then write, would each work from what the other is about to change.
    other = sqlite3.connect(many._storage.path, timeout=0)
    with closing(other), many._storage.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
