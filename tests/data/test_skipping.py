"""Rows that are left out; the second voice is the same reader over a file without them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

import bertflow
from bertflow.data.corpus import load_answers, load_sentences
from bertflow.data.labeled import load_labels
from bertflow.data.pairs import load_pairs
from bertflow.data.sts_tasks import semeval_table
from bertflow.data.tables import open_table
from bertflow.data.vectors import open_vectors
from bertflow.errors import DataError, UnknownNameError

BAD = {
    "text.txt": (b"one\n\xff\ntwo\n\0\nthree\n", [2, 4]),
    "text.tsv": (b"text\tn\none\t1\ntwo\nthree\t3\nf\xffur\t4\n", [3, 5]),
    "text.csv": (b'text,n\none,1\n"t\xffo\nlines",2\nthree,3\nfour,4,5\n', [3, 6]),
    "text.jsonl": (b'{"text": "one"}\n{"text": \n{"text": 3}\n[1]\n{"id": 1}\n{"text": "two"}\n', [2, 3, 4, 5]),
    "text.jsonl.gz": (gzip.compress(b'\n{"text": "one"}\n' + b"[" * 10**5 + b"\n"), [3]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_of_text_are_left_out_and_listed(write, name):
    content, lines = BAD[name]
    path = write(name, content)
    with pytest.raises(DataError, match=f"line {lines[0]}: "):
        load_sentences(path)
    with bertflow.skip_bad("bad.jsonl") as skipped:
        found = load_sentences(path)
    listed = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(row["file"], row["row"], row["line"]) for row in listed] == [(str(path), "", line) for line in lines]
    assert len(skipped) == len(lines)
    assert found == [word for word in ("one", "two", "three") if word in found]
    assert found[0] == "one"
    with pytest.raises(DataError):  # outside of the block nothing is left out
        load_sentences(path)


def test_pairs_labels_and_answers_are_left_out_whole(write):
    with bertflow.skip_bad("bad.tsv") as skipped:
        pairs = load_pairs(write("p.tsv", "sentence1\tsentence2\tscore\na\tb\t1\nc\td\tx\ne\t\t2\ng\th\t3\ni\tj\t4\n"))
        labels = load_labels(write("l.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": NaN}\n'
                                              '{"text": "c", "label": "x"}\n'))  # fmt: skip
        answers = load_answers(write("a.tsv", "id\ttext\n1\tone\n1\tagain\n2\ttwo\n"))
    assert (pairs.first, pairs.target.tolist()) == (("a", "g", "i"), [1, 3, 4])
    assert (labels.texts, labels.labels) == (("a", "c"), ("1", "x"))
    assert [answer.text for answer in answers] == ["one", "two"]
    assert [line for _, _, line, _ in skipped.rows] == [3, 4, 2, 3]


def test_lines_that_belong_to_lines_of_another_file_are_never_left_out(write):
    write("STS.gs.X.txt", "1\n2\n")
    folder = write("STS.input.X.txt", b"a\tb\n\xff\tc\n").parent
    with pytest.raises(DataError, match="line 2: byte 1 is 0xff"), bertflow.skip_bad("bad.tsv"):
        semeval_table(folder, "X")
    assert not Path("bad.tsv").exists()


def test_the_line_that_names_the_columns_is_never_left_out(write):
    path = write("t.tsv", b"te\xffxt\na\nb\n")
    with pytest.raises(DataError, match="line 1: byte 3 is 0xff"), bertflow.skip_bad("bad.tsv"):
        open_table(path)


def test_a_row_that_is_read_twice_is_listed_once(write):
    path = write("text.txt", b"one\n\xff\n")
    with bertflow.skip_bad("bad.csv") as skipped:
        assert load_sentences(path) == load_sentences(path) == ["one"]
    assert len(skipped) == 1
    assert Path("bad.csv").read_text().splitlines() == [
        "file,row,line,reason",
        f'{path},,2,"byte 1 is 0xff, which is not UTF-8. Save the file as UTF-8."',
    ]


def test_the_list_never_replaces_anything_else(write):
    path = write("text.tsv", "text\none\n")
    with pytest.raises(DataError) as error, bertflow.skip_bad(path):
        raise AssertionError("the block is not entered")
    message = "should become the list of bad rows, but holds something else. Name another file."
    assert str(error.value) == f"{path} {message}"
    known = r"^Unknown ending of --skip_bad '.txt'. Known: .tsv, .csv, .jsonl.$"
    with pytest.raises(UnknownNameError, match=known), bertflow.skip_bad("bad.txt"):
        raise AssertionError("the block is not entered")
    for _ in range(2):  # an earlier list is replaced
        with bertflow.skip_bad("bad.tsv"):
            pass
    assert Path("bad.tsv").read_text() == "file\trow\tline\treason\n"


X = np.random.default_rng(0).normal(size=(40, 3))


def vectors_file(folder, ending):
    """X with rows 0, 7, 8 and 39 damaged; rows 7 and 8 in other ways where a file can."""
    x = X.copy()
    x[[0, 39], 1] = np.nan, np.inf
    x[[7, 8]] = np.inf
    path = folder / f"x{ending}"
    if ending == ".npy":
        np.save(path, x)
    else:
        rows = x.tolist()
        rows[7], rows[8][2] = rows[7][:2], None
        pq.write_table(pa.table({"id": list(range(40)), "x": rows}), path, row_group_size=9)
    return path


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_bad_vectors_are_left_out(tmp_path, ending, size):
    path = vectors_file(tmp_path, ending)
    with bertflow.skip_bad("bad.tsv") as skipped:
        vectors = open_vectors(path)
    kept = np.delete(X, [0, 7, 8, 39], axis=0)
    assert [row for _, row, _, _ in skipped.rows] == [0, 7, 8, 39] == vectors.skipped.tolist()
    assert vectors.n == len(vectors) == 36
    assert_array_equal(np.concatenate(list(vectors.blocks(size))), kept)
    assert [vectors.row_in_file(row) for row in (0, 5, 6, 35)] == [1, 6, 9, 38]
    for start, stop in ((0, 1), (5, 7), (6, 36), (35, 99)):
        assert_array_equal(np.concatenate(list(vectors.blocks(size, start, stop))), kept[start:stop])


def test_a_file_without_any_vector_is_refused():
    np.save("x.npy", np.full((3, 2), np.nan))
    with pytest.raises(DataError) as error, bertflow.skip_bad("bad.tsv"):
        open_vectors("x.npy")
    assert str(error.value) == "x.npy holds no vector that can be used. Give another file."
