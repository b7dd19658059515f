"""Indexes that an accident has changed: what is read of them is finite, or they are refused in one line."""

import shutil
import sqlite3
from contextlib import closing, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.data.corpus import Answer
from bertflow.errors import BertflowError, DataError
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.storage import RESTORE

VALUES = [None, 0, -1, 2**63 - 1, 0.5, "", "x", b"", b"\xff", bytes(32), bytes(28), np.full(8, np.nan, "<f4").tobytes()]
FACTS = ["", "{", "null", "true", "-1", "0", "7", "9" * 30, "1e400", "NaN", '""', '"x"', "[]", "{}", '{"recipe": 3}']
CELLS = [("answers", "id"), ("phrases", "answer"), ("phrases", "text"), ("phrases", "raw"), ("phrases", "calibrated")]
accidents = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10**6)),
    st.tuples(st.just("cell"), st.sampled_from(CELLS), st.integers(1, 6), st.sampled_from(VALUES)),
    st.tuples(st.just("fact"), st.integers(0, 6), st.sampled_from(FACTS)),
)


def damage(path, kind, *how):
    """An accident, or a column of another program's making."""
    if kind in ("flip", "cut"):
        content = bytearray(path.read_bytes())
        if kind == "cut":
            del content[how[0] % len(content) :]
        else:
            content[how[0] % len(content)] ^= 1 << how[1]
        path.write_bytes(content)
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if kind == "cell":
            (table, column), number, value = how
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE number = ?", (value, number))
        else:
            number, value = how
            names = [name for (name,) in connection.execute("SELECT key FROM facts ORDER BY key")]
            connection.execute("UPDATE facts SET value = ? WHERE key = ?", (value, names[number % len(names)]))


def used(path, encoder):
    """Everything that an index is asked for."""
    with AnswerIndex.open(path, encoder) as index:
        answers = index.answers()
        hits = index.search_many(["Where is the dog?", "It is free."], 2)
        unit = index.phrases().unit
        index.update(answers[:1])
        index.add([Answer("new", "text")])
    return [hit.score for row in hits for hit in row], unit


@settings(max_examples=settings.default.max_examples // 3)
@given(accident=accidents)
def test_what_is_read_is_finite_or_refused(index, encoder, accident):
    path = index.path.with_name("damaged.index")
    shutil.copy(index.path, path)
    path.with_name("damaged.index-journal").unlink(missing_ok=True)
    damage(path, *accident)
    with suppress(BertflowError, OSError):
        scores, unit = used(path, encoder)
        assert np.isfinite(scores).all()
        assert np.isfinite(unit).all()


def test_an_embedding_that_is_not_finite_is_refused(index, encoder, refusal):
    damage(index.path, "cell", ("phrases", "raw"), 2, np.full(8, np.nan, "<f4").tobytes())
    said = f"{index.path} is damaged: an embedding is not 8 finite numbers. {RESTORE}"
    assert refusal(index.search, "Where is the dog?") == said


def test_a_flipped_bit_of_an_embedding_is_refused_when_it_is_read(index, encoder):
    with closing(sqlite3.connect(index.path)) as connection:
        (row,) = connection.execute("SELECT raw FROM phrases WHERE number = 2").fetchone()
    for at in (0, 17, len(row) - 1):  # a number's first byte and another, and the checksum itself
        flipped = bytearray(row)
        flipped[at] ^= 1
        damage(index.path, "cell", ("phrases", "raw"), 2, bytes(flipped))
        with pytest.raises(DataError) as caught, AnswerIndex.open(index.path, encoder) as opened:
            opened.search("Where is the dog?")
        assert str(caught.value) == f"{index.path} is damaged: an embedding is not what was written. {RESTORE}"
    damage(index.path, "cell", ("phrases", "raw"), 2, row)
    with AnswerIndex.open(index.path, encoder) as opened:
        assert opened.search("Where is the dog?")[0].score == pytest.approx(1)


def test_a_fact_of_another_kind_is_refused(index, encoder, refusal):
    damage(index.path, "fact", 2, '"8"')
    assert refusal(AnswerIndex.open, index.path, encoder) == (
        f"{index.path}, table facts is not a complete index of answers: dim should be a valid integer, got '8'. "
        f"{RESTORE}"
    )
