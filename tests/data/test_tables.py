import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from bertflow.data.corpus import load_sentences
from bertflow.data.tables import open_table

ROWS = [("1", 'say "hi'), ("2", "wörld")]
FILES = {
    "a.tsv": 'id\ttext\n1\tsay "hi\n2\twörld\n',
    "a.csv": 'id,text\n1,"say ""hi"\n2,wörld\n',
    "a.jsonl": '{"id": "1", "text": "say \\"hi"}\n\n{"text": "w\\u00f6rld", "id": "2", "more": 3}\n',
}


def read_first_column(path):
    table = open_table(path)
    return list(table.read(table.columns[:1]))


def read(path, columns):
    return [cells for _, cells in open_table(path).read(columns)]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_text_format_gives_the_same_rows(write, name, compressed):
    content = FILES[name].encode()
    path = write(name + ".gz", gzip.compress(content)) if compressed else write(name, content)
    assert open_table(path).columns == ("id", "text")
    assert read(path, ("id", "text")) == ROWS
    assert read(path, ("text",)) == [(text,) for _, text in ROWS]


def test_parquet_gives_the_same_rows(tmp_path, own_cache):
    path = Path("a.parquet")
    Dataset.from_dict({"id": ["1", "2"], "text": [text for _, text in ROWS]}).to_parquet(str(path))
    assert open_table(path).columns == ("id", "text")
    assert read(path, ("id", "text")) == ROWS
    assert not list(tmp_path.glob("cache/**/*.arrow"))  # streamed, not copied


def test_a_table_can_be_read_twice(write):
    table = open_table(write("a.tsv", FILES["a.tsv"]))
    assert list(table.read(("id",))) == list(table.read(("id",))) == [(2, ("1",)), (3, ("2",))]


def test_a_cell_of_a_csv_may_hold_lines(write):
    path = write("a.csv", 'text,n\n"one\ntwo",1\nthree,2\n')
    assert list(open_table(path).read(("text",))) == [(2, ("one\ntwo",)), (4, ("three",))]


def test_a_table_without_a_header_has_numbered_columns(write):
    path = write("a.tsv", "long one\tin two\nanother\tin parts\n")
    table = open_table(path, ["2"])
    assert table.columns == ("1", "2")
    assert list(table.read(["2"])) == [(1, ("in two",)), (2, ("in parts",))]


def test_columns_are_found_whatever_their_case(write):
    table = open_table(write("a.tsv", b"\xef\xbb\xbfPremise\tHypothesis\na\tb\n"))
    assert table.find(("premise", "HYPOTHESIS")) == ("Premise", "Hypothesis")
    assert table.find(("premise", "label")) is None


REFUSED = {
    "open quote": ("a.csv", 'text\n"never closed\nx\n', 'a.csv, line 2: this is not csv: unexpected end of data. Is a '
                   "quotation mark left open? Double the quotation marks inside a cell, or save the table as tsv."),
    "few cells": ("a.tsv", "a\tb\n1\t2\n3\n", "a.tsv, line 3: 2 cells are wanted, as in line 1, but 1 are there. "
                  "Repair the line."),
    "many cells": ("a.csv", "a,b\n1,2,3\n", "a.csv, line 2: 2 cells are wanted, as in line 1, but 3 are there. "
                   "Repair the line, or rename a file of one sentence per line to .txt."),
    "empty": ("a.tsv", "", "a.tsv is empty. It should hold a table."),
    "empty jsonl": ("a.jsonl", "\n", "a.jsonl is empty. It should hold a table."),
    "no json": ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl, line 2: this is not JSON: Expecting value: line 1 column 7 "
                "(char 6). Repair the line."),
    "no object": ("a.jsonl", "[1]\n", "a.jsonl, line 1: an object is wanted, got '[1]'. Repair the line."),
    "no key": ("a.jsonl", '{"a": 1}\n{"b": 2}\n', "a.jsonl, line 2: the key 'a' is wanted, as in line 1, but the keys "
               "are b. Repair the line."),
    "half a pair": ("a.jsonl", '{"a": "\\uD800"}\n', "a.jsonl, line 1: this is not JSON: 'utf-8' codec can't encode "
                    "character '\\ud800' in position 7: surrogates not allowed. Repair the line."),
    "unknown ending": ("a.xls", "", "a.xls should be a table, by its ending one of .tsv, .csv, .xlsx, .jsonl, .json, "
                       ".parquet (text also .gz). Convert it to one."),
    "deep json": ("a.jsonl", '{"a": ' + 10**5 * "[", "a.jsonl, line 1: this is not JSON: maximum recursion depth "
                  "exceeded while decoding a JSON array from a unicode string. Repair the line."),
    "long number": ("a.jsonl", '{"a": ' + 5000 * "9" + "}", "a.jsonl, line 1: this is not JSON: Exceeds the limit "
                    "(4300 digits) for integer string conversion: value has 5000 digits; use "
                    "sys.set_int_max_str_digits() to increase the limit. Repair the line."),
    "one object": ("a.json", '{"text": "a"}', "a.json should be a list of objects, got {'text': 'a'}. Write one, or a "
                   "line each as .jsonl."),
    "objects in lines": ("a.json", '{"text": "a"}\n{"text": "b"}', "a.json is not JSON: Extra data: line 2 column 1 "
                         "(char 14). Objects that stand in lines end in .jsonl."),
    "no objects": ("a.json", "[]", "a.json is empty. It should hold a table."),
    "no key in JSON": ("a.json", '[{"text": "a"}, {"body": "b"}]', "a.json, row 2: the key 'text' is wanted, as "
                       "in row 1, but the keys are body. Repair the row."),
    "half of UTF-16": ("a.csv", "text\na dog".encode("utf-16")[:-1], "a.csv is damaged: it should be in UTF-16, as it "
                       "begins, but: 'utf-16-le' codec can't decode byte 0x67 in position 0: truncated data. Fetch it "
                       "again."),
    "no Excel": ("a.xlsx", "no zip", "a.xlsx cannot be read as an Excel file: File is not a zip file. Save it again as "
                 ".xlsx."),
    "damaged parquet": ("a.parquet", "hello", "a.parquet cannot be read as a parquet file: Parquet file size is 5 "
                        "bytes, smaller than the minimum file footer (8 bytes). Fetch it again."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_read_says_where_and_why(write, own_cache, case, refusal):
    name, content, message = REFUSED[case]
    path = write(name, content)
    assert refusal(read_first_column, path) == f"{path.parent}/{message}"


def test_a_parquet_file_without_columns_is_refused(refusal):
    pq.write_table(pa.table({}), "a.parquet")
    do = "Name some of these with --columns, or number them, from 1, if the file has no header."
    said = refusal(load_sentences, "a.parquet", ["text"])
    assert said == f"a.parquet has no column 'text'. Its columns: none. {do}"


@pytest.mark.parametrize(("what", "reader"), [(b"name", open_table), (b"cell", read_first_column)])
def test_text_in_a_parquet_file_that_is_not_utf8_is_refused(what, reader, refusal):
    path = Path("a.parquet")
    pq.write_table(pa.table({"name": ["cell"]}), path, store_schema=False, compression="none", write_statistics=False)
    path.write_bytes(path.read_bytes().replace(what, b"\xff" * 4))
    assert refusal(reader, path) == (
        f"{path} cannot be read as a parquet file: 'utf-8' codec can't decode byte 0xff in position 0: invalid start "
        "byte. Fetch it again."
    )


@pytest.mark.parametrize("name", ["no.tsv", "no.jsonl.gz", "no.parquet"])
def test_a_missing_table_is_refused(name, refusal):
    assert refusal(open_table, name) == f"{name} is missing. Give the path of an existing file."


def test_surrogate_pairs_of_json_are_text(write):
    assert read(write("a.jsonl", '{"a": "\\ud83d\\ude00"}\n'), ("a",)) == [("\U0001f600",)]
