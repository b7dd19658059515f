"""kill -9 in the middle of a write: the old state or the new one, never half.

A writer is a fork. It gets a page cache of four pages, so that SQLite writes into the file long before the end of the
transaction, and is killed either by itself, at a given statement, or from outside, at any time.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bertflow.calibration.closed_forms import Whitening
from bertflow.data.corpus import Answer
from bertflow.retrieval.index import AnswerIndex

from .conftest import FakeEncoder

FORK = multiprocessing.get_context("fork")
BATCH, OLD = 30, 40
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def answers(kind, n):
    return [Answer(f"{kind}-{k}", f"{kind} {k} " + "x" * 500, (f"past {kind} {k}",)) for k in range(n)]


def whitening():
    return Whitening().fit(FakeEncoder().encode([str(k) for k in range(50)]))


CHANGES = {
    "add": lambda index: index.add(answers("new", BATCH)),
    "update": lambda index: index.update([Answer(a.id, "updated " + a.text) for a in answers("old", BATCH)]),
    "remove": lambda index: index.remove([a.id for a in answers("old", BATCH)]),
    "recalibrate": lambda index: index.recalibrate(whitening()),
}
MOMENTS = {
    "add": [("BEGIN", 1), ("INSERT INTO phrases", 1), ("INSERT INTO phrases", 2 * BATCH)],
    "update": [("DELETE", BATCH), ("INSERT INTO answers", BATCH // 2)],
    "remove": [("DELETE", BATCH // 2)],
    "recalibrate": [("UPDATE phrases", OLD)],
}
CASES = [(change, *moment) for change, moments in MOMENTS.items() for moment in [*moments, ("COMMIT", 1)]]


def opened(path):
    index = AnswerIndex.open(path, FakeEncoder())
    connection = index._storage._connection
    connection.execute("PRAGMA cache_size = 4")
    return index, connection


def dies_at(path, change, statement, times):
    (index, connection), left = opened(path), [times]

    def trace(sql):
        left[0] -= sql.startswith(statement)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.set_trace_callback(trace)
    CHANGES[change](index)


def keeps_adding(path, began):
    index, _ = opened(path)
    for number in range(10**6):
        index.add(answers(f"batch{number}", BATCH))
        began.set()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "base.index"
    AnswerIndex.create(path, FakeEncoder(), answers("old", OLD)).close()
    return path


@pytest.fixture
def path(base, tmp_path):
    return shutil.copy(base, tmp_path / "killed.index")


def require_sound(path):
    """SQLite finds nothing wrong, and every answer has all its phrases with all their embeddings."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("SELECT count(*) FROM phrases WHERE length(raw) != 40").fetchone() == (0,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} killed at {case[1]} {case[2]}")
def test_a_write_that_was_killed_never_happened(base, path, encoder, case):
    process = FORK.Process(target=dies_at, args=(path, *case))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with AnswerIndex.open(path, encoder) as index, AnswerIndex.open(base, encoder) as before:
        assert index.answers() == before.answers()
        assert index.search("old 3") == before.search("old 3")
        index.add([Answer("after", "It can be written again.")])
        assert index.search("It can be written again.", 1)[0].id == "after"
    require_sound(path)


@pytest.mark.parametrize("trial", range(8))
def test_whole_batches_are_there_or_not_at_all(path, encoder, trial):
    began = FORK.Event()
    process = FORK.Process(target=keeps_adding, args=(path, began))
    process.start()
    assert began.wait(60)
    time.sleep(random.Random(trial).random() / 10)
    process.kill()
    process.join(60)
    with AnswerIndex.open(path, encoder) as index:
        found = index.answers()
        assert len(found) > OLD
        assert (len(found) - OLD) % BATCH == 0
        assert all(len(answer.phrases) == 2 for answer in found)
        expected = encoder.encode([text for answer in sorted(found, key=lambda a: a.id) for text in answer.phrases])
        unit = index.phrases().unit
        assert_allclose(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    require_sound(path)
