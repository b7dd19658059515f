"""kill -9 in the middle of a write: the old state or the new one, never half.

One helper process forks a writer for each case, so that the libraries are loaded once. A writer gets a page cache of
four pages, so that SQLite writes into the file long before the end of the transaction, and is killed either by itself,
at a given statement, or from outside, at any time.
"""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bertflow.data.corpus import Answer
from bertflow.retrieval.index import AnswerIndex

BATCH, OLD = 30, 40
TIMED = 8
HELPER = """
import json, os, random, shutil, signal, sys, time
from conftest import FakeEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.corpus import Answer
from bertflow.retrieval.index import AnswerIndex

folder, cases, batch, old, timed = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:])
encoder = FakeEncoder()
base = f"{folder}/base.index"
def answers(kind, n):
    return [Answer(f"{kind}-{k}", f"{kind} {k} " + "x" * 500, (f"past {kind} {k}",)) for k in range(n)]
AnswerIndex.create(base, encoder, answers("old", old)).close()
whitening = Whitening().fit(encoder.encode([str(k) for k in range(50)]))
changes = {
    "add": lambda index: index.add(answers("new", batch)),
    "update": lambda index: index.update([Answer(a.id, "updated " + a.id + "y" * 500) for a in answers("old", batch)]),
    "remove": lambda index: index.remove([a.id for a in answers("old", batch)]),
    "recalibrate": lambda index: index.recalibrate(whitening),
}

def opened(path):
    index = AnswerIndex.open(path, encoder)
    index._storage._connection.execute("PRAGMA cache_size = 4")
    return index

def forked(work):
    pid = os.fork()
    if not pid:
        try: work()
        finally: os._exit(0)
    return pid

def dies_at(path, change, statement, times):
    index, left = opened(path), [times]
    def trace(sql):
        left[0] -= sql.startswith(statement)
        if not left[0]: os.kill(os.getpid(), signal.SIGKILL)
    index._storage._connection.set_trace_callback(trace)
    changes[change](index)

ends = {}
for change, statement, times in cases:
    path = f"{folder}/{change}-{statement.split()[0]}-{times}.index"
    shutil.copy(base, path)
    ends[path] = os.waitpid(forked(lambda: dies_at(path, change, statement, times)), 0)[1]

def keeps_adding(path, pipe):
    index = opened(path)
    for number in range(10**6):
        index.add(answers(f"batch{number}", batch))
        os.write(pipe, b".")

random.seed(0)
for trial in range(timed):
    path = f"{folder}/timed-{trial}.index"
    shutil.copy(base, path)
    read, write = os.pipe()
    pid = forked(lambda: keeps_adding(path, write))
    os.close(write)
    os.read(read, 1)
    time.sleep(random.random() / 10)
    os.kill(pid, signal.SIGKILL)
    ends[path] = os.waitpid(pid, 0)[1]
print(json.dumps(ends))
"""
CASES = [
    ("add", "BEGIN", 1),
    ("add", "INSERT INTO phrases", 1),
    ("add", "INSERT INTO phrases", 2 * BATCH),
    ("add", "COMMIT", 1),
    ("update", "DELETE", BATCH),
    ("update", "INSERT INTO answers", BATCH // 2),
    ("update", "COMMIT", 1),
    ("remove", "DELETE", BATCH // 2),
    ("remove", "COMMIT", 1),
    ("recalibrate", "UPDATE phrases", OLD),
    ("recalibrate", "COMMIT", 1),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Files whose writers were killed, by name."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = [str(folder), json.dumps(CASES), str(BATCH), str(OLD), str(TIMED)]
    finished = subprocess.run(
        [sys.executable, "-c", HELPER, *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    ends = json.loads(finished.stdout)
    assert set(ends.values()) == {signal.SIGKILL}, "every writer should have been killed"
    return folder


def require_sound(path):
    """SQLite finds nothing wrong, and every answer has all its phrases with all their embeddings."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("SELECT count(*) FROM phrases WHERE length(raw) != 40").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} killed at {case[1]} {case[2]}")
def test_a_write_that_was_killed_never_happened(killed, encoder, case):
    change, statement, times = case
    path = killed / f"{change}-{statement.split()[0]}-{times}.index"
    with AnswerIndex.open(path, encoder) as index, AnswerIndex.open(killed / "base.index", encoder) as base:
        assert index.answers() == base.answers()
        assert index.search("old 3") == base.search("old 3")
        index.add([Answer("after", "It can be written again.")])
        assert index.search("It can be written again.", 1)[0].id == "after"
    require_sound(path)


@pytest.mark.parametrize("trial", range(TIMED))
def test_whole_batches_are_there_or_not_at_all(killed, encoder, trial):
    path = killed / f"timed-{trial}.index"
    with AnswerIndex.open(path, encoder) as index:
        answers = index.answers()
        assert len(answers) > OLD
        assert (len(answers) - OLD) % BATCH == 0
        assert all(len(answer.phrases) == 2 for answer in answers)
        phrases = index.phrases()
        expected = encoder.encode([text for answer in sorted(answers, key=lambda a: a.id) for text in answer.phrases])
        assert_allclose(phrases.unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    require_sound(path)
