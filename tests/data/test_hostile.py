"""Every reader against files that somebody damaged: one line of error or finite content, no traceback, nothing left.

Hypothesis makes the files: bytes at random, lines of awkward pieces, and whole files with some bytes changed, cut off
or put in twice. ``--slow`` tries 10,000 of each area.
"""

import gzip
import io
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertflow.data.corpus import load_answer_labels, load_answers, load_sentences, read_frequencies
from bertflow.data.labeled import is_conll, load_conll, load_labels
from bertflow.data.lines import skip_bad
from bertflow.data.pairs import PAIR_KINDS, load_pairs, load_related
from bertflow.data.sts import load_graded, load_sts, scored_pairs
from bertflow.data.sts_tasks import semeval_table, stsb_table
from bertflow.data.tables import open_table
from bertflow.data.vectors import open_vectors
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import BertflowError
from bertflow.geometry.fitted import read_history
from bertflow.words.study import load_study

LONGEST_MESSAGE = 1500


def read_pairs(path):
    pairs = load_pairs(path)
    assert pairs.target is None or np.isfinite(pairs.target).all()
    assert len(pairs.first) == len(pairs.second) == len(pairs.subsets)


def read_vectors(path):
    vectors = open_vectors(path)
    blocks = list(vectors.blocks(7))
    assert sum(map(len, blocks)) == vectors.n
    assert all(np.isfinite(block).all() for block in blocks)


def read_words(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(WordVectorEncoder(path).encode(["the dog 1 a"], progress=False)).all()


def read_all(path):
    table = open_table(path)
    list(table.read(table.columns))


def read_run(path):
    history = read_history(path.parent)
    assert all(np.isfinite(values).all() for points in history.values() for values in points)


def read_semeval(path):
    folder = path.parent
    (folder / "STS.gs.X.txt").write_bytes(b"1\n2.5\n\n4\n")
    scored_pairs(semeval_table(folder, "X"))


TABLES = {
    "sentences": load_sentences,
    "labels": load_labels,
    "answers": load_answers,
    "answer labels": load_answer_labels,
    "pairs": read_pairs,
    **{kind: lambda path, kind=kind: load_pairs(path, kind) for kind in PAIR_KINDS},
    "related": load_related,
    "graded": lambda path: load_graded([path], top=10.0),
    "task": lambda path: load_sts(str(path), "."),
    "all columns": read_all,
}
"""Readers of tables; each reads every ending."""
LINES = {
    "sentences.txt": load_sentences,
    "words.conll": load_conll,
    "words.conllu": load_conll,
    "words.any": is_conll,
    "counts.txt": read_frequencies,
    "glove.txt": read_words,
    "study.json": load_study,
    "metrics.csv": read_run,
    "STS.input.X.txt": read_semeval,
    "sts-test.csv": lambda path: scored_pairs(stsb_table(path.parent, path.name)),
}
"""Readers of other files, by a name that such a file has."""
ENDINGS = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz")
HEADS = (
    *("text\tlabel", "sentence1\tsentence2\tscore", "a\tb\tlabel", "id\ttext\tquestions", "question\tid"),
    *("query\ttext", "premise\thypothesis\tlabel", "step\ttrain/bits_per_dim", "text\tparaphrase", "2 3"),
)
PIECES = (
    *("dog", "the", "a b", "1", "0", "2.5", "-3", "nan", "inf", "1e400", "1_0", "entailment", "B-ORG", "O", "-", "||"),
    *("", " ", "\t", ",", '"', "\r", "\r\n", "\n", "\n\n", "\0", "\ufeff", "\u2028", "\x85", "\x1b[2J", "9" * 5000),
    *('{"text": ', '"label": ', "[", "]", "}", "[" * 2000, "null", "NaN", '"\\ud800"', '{"a": 1}', "#", "-DOCSTART-"),
)
text = st.tuples(st.sampled_from(("", *HEADS)), st.lists(st.sampled_from(PIECES), max_size=30)).map(
    lambda found: (found[0] + ("\n" if found[0] else "") + "".join(found[1])).encode()
)
COLUMNS = {
    **{"text": ["the dog", "a cat"], "paraphrase": ["x y", "z"], "label": ["1", "0"], "score": [1.5, 2.5]},
    **{"sentence1": ["one", "two"], "sentence2": ["uno", "due"], "question": ["who", "what"], "id": ["p", "q"]},
}
ROWS = [tuple(COLUMNS), *zip(*COLUMNS.values(), strict=True)]


def buffer(write):
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def parquet_of(columns):
    return buffer(lambda out: pq.write_table(pa.table(columns), out))


X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
WHOLE = {
    ".tsv": "".join("\t".join(map(str, row)) + "\n" for row in ROWS).encode(),
    ".csv": "".join(",".join(map(str, row)) + "\n" for row in ROWS).encode(),
    ".jsonl": "".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in ROWS[1:]).encode(),
    ".parquet": parquet_of(COLUMNS),
}
VECTORS = {".npy": buffer(lambda out: np.save(out, X)), ".parquet": parquet_of({"id": list(range(20)), "x": list(X)})}


@st.composite
def damaged(draw, whole):
    """A whole file with some bytes changed, cut off, doubled or put in."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(("change", "cut", "double", "insert", "drop")))
        if how == "change" and content:
            content[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del content[at:]
        elif how == "double":
            content[at:at] = content[: draw(st.integers(0, 40))]
        elif how == "insert":
            content[at:at] = draw(st.binary(max_size=6))
        else:
            del content[at : at + draw(st.integers(1, 8))]
    return bytes(content)


@pytest.fixture
def tried(tmp_path):
    """Read a file with some content, which may be refused in a short message; nothing else is left in its folder."""

    def try_file(name, content, read):
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_bytes(content)
        message = ""
        try:
            read(path)
        except BertflowError as error:
            message = str(error)
        assert len(message) < LONGEST_MESSAGE
        assert {one.name for one in folder.iterdir()} <= {name, "STS.gs.X.txt"}
        path.unlink()

    return try_file


awkward = st.one_of(text, st.binary(max_size=200))


@given(content=awkward, ending=st.sampled_from(ENDINGS), reader=st.sampled_from([*TABLES]))
def test_tables_of_awkward_lines(tried, content, ending, reader):
    tried(f"table{ending}", gzip.compress(content, 1) if ending.endswith(".gz") else content, TABLES[reader])


@given(data=st.data(), ending=st.sampled_from([*WHOLE]), reader=st.sampled_from([*TABLES]))
def test_damaged_tables(tried, data, ending, reader):
    tried(f"table{ending}", data.draw(damaged(WHOLE[ending])), TABLES[reader])


@given(content=awkward, name=st.sampled_from([*LINES]))
def test_files_of_awkward_lines(tried, content, name):
    tried(name, content, LINES[name])


@given(content=st.one_of(damaged(gzip.compress(WHOLE[".tsv"], mtime=0)), st.binary(max_size=100)))
def test_damaged_compression(tried, content):
    tried("table.tsv.gz", content, read_all)


@given(data=st.data(), ending=st.sampled_from([*VECTORS]))
def test_damaged_vectors(tried, data, ending):
    tried(f"x{ending}", data.draw(damaged(VECTORS[ending])), read_vectors)


@given(content=st.one_of(text, damaged(WHOLE[".tsv"])), ending=st.sampled_from((".tsv", ".csv", ".jsonl", ".txt")))
def test_what_is_left_out_leaves_what_can_be_used(tried, tmp_path, content, ending):
    def read(path):
        with skip_bad(tmp_path / "bad.tsv") as skipped:
            load_sentences(path)
        table = open_table(tmp_path / "bad.tsv")
        assert len(list(table.read(("file", "row", "line", "reason")))) == len(skipped)

    tried(f"table{ending}", content, read)
