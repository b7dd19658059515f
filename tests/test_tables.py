import csv
import json

import pandas as pd
import pytest

from bertflow.data.tables import open_table
from bertflow.errors import how_many
from bertflow.tables import Table, write_rows

TEXTS = ["=1+1", " =1+1", "+1", "@SUM(A1)", "-1", "a | b", "two\nlines", 'a "quote", and more']


@pytest.mark.parametrize(
    ("n", "units", "said"),
    [(1, "steps", "1 step"), (2000, "steps", "2,000 steps"), (1, "queries", "1 query"), (0, "queries", "0 queries")],
)
def test_what_is_counted_is_named_for_one_and_for_many(n, units, said):
    assert how_many(n, units) == said


def test_a_cell_of_a_markdown_table_is_one_cell():
    first, rule, *lines = Table(("name", "a|b"), tuple((text, "1") for text in TEXTS)).to_markdown().splitlines()
    assert len(lines) == len(TEXTS)
    assert {line.replace("\\|", "").count("|") for line in (first, rule, *lines)} == {3}
    assert any("a \\| b" in line for line in lines)
    assert any("two lines" in line for line in lines)


def test_a_text_in_a_csv_is_no_formula(tmp_path):
    write_rows(tmp_path / "x.csv", ["text", "=score"], [(text, -0.5) for text in TEXTS])
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["'=1+1", "' =1+1", "'+1", "'@SUM(A1)", *TEXTS[4:]]
    assert {row["'=score"] for row in rows} == {"-0.5"}


def test_other_files_hold_the_text_as_it_is(tmp_path):
    write_rows(tmp_path / "x.jsonl", ["text"], [(text,) for text in TEXTS])
    assert [json.loads(line)["text"] for line in (tmp_path / "x.jsonl").read_text().splitlines()] == TEXTS


def test_pandas_reads_every_row_of_a_tsv(tmp_path):
    texts = ['"Quoted", he said', '"', 'say ""hi', "two\tcells\nand lines", "'", "plain"]
    write_rows(tmp_path / "x.tsv", ["text", "n"], [(text, at) for at, text in enumerate(texts)])
    read = pd.read_csv(tmp_path / "x.tsv", sep="\t")
    assert read.text.tolist() == [" ".join(text.split()) for text in texts]
    assert read.n.tolist() == [*range(len(texts))]
    assert [cells[0] for _, cells in open_table(tmp_path / "x.tsv").read(("text",))] == read.text.tolist()
