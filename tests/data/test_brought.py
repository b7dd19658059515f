"""Tables as other programs write them: what is read is what was written."""

import csv

import pandas as pd
import pytest

from bertflow.data import lines
from bertflow.data.cells import split_csv
from bertflow.data.tables import open_table
from bertflow.errors import RowError

HEADER = ("id", "text", "note")
ROWS = [
    ("1", 'She said "no", and left; quickly.', "a"),
    ("2", "Straße nach Köln\nim Regen", ""),
    ("3", "déjà vu — “quoted” for 5 €", "-"),
]
SIGNS = {";": "semicolons", "\t": "tabs"}


def cells(path):
    table = open_table(path)
    assert table.columns == HEADER
    return [row for _, row in table.read(HEADER)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(("name", "between"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t")])
def test_what_pythons_csv_writer_wrote_is_read(tmp_path, caplog, encoding, name, between):
    path = tmp_path / name
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=between).writerows([HEADER, *ROWS])
    caplog.set_level("INFO")
    assert cells(path) == ROWS
    assert cells(path) == ROWS
    said = []
    if encoding == "cp1252":
        said.append(f"{path} is not UTF-8 and is read as text of Windows (cp1252): ")
    if name == "a.csv" and between != ",":
        said.append(f"{path} has {SIGNS[between]} between its cells.")
    assert [message[: len(start)] for message, start in zip(caplog.messages, said, strict=True)] == said


@pytest.mark.parametrize("name", ["a.json", "a.xlsx", "a.tsv", "a.csv"])
def test_what_pandas_wrote_is_read(tmp_path, name):
    path, frame = tmp_path / name, pd.DataFrame(ROWS, columns=HEADER)
    {
        "a.json": lambda: frame.to_json(path, orient="records"),
        "a.xlsx": lambda: frame.to_excel(path, index=False),
        "a.tsv": lambda: frame.to_csv(path, sep="\t", index=False, quoting=csv.QUOTE_ALL),
        "a.csv": lambda: frame.to_csv(path, sep=";", index=False, quoting=csv.QUOTE_NONNUMERIC),
    }[name]()
    assert cells(path) == ROWS


def test_marks_of_a_tsv_without_quoting_stay_where_they_are(write):
    lines = ['"Yes", he said\tone', '"a whole sentence"\ttwo', 'an ""odd"" one\tthree', '5" of snow\t"four']
    found = open_table(write("a.tsv", "\n".join(["text\tname", *lines])))
    assert [row for _, row in found.read(found.columns)] == [tuple(line.split("\t")) for line in lines]


def test_marks_around_whole_cells_alone_do_not_tell_that_a_tsv_is_quoted(write):
    found = open_table(write("a.tsv", 'text\tname\n"Stop."\tone\n"Go."\ttwo\n'))
    assert [row for _, row in found.read(["text"])] == [('"Stop."',), ('"Go."',)]


QUOTED = [
    [("text", "name"), ("a\ttab", "one"), ("none", "two")],
    [("text", "name"), ("one", "a last\t")],
    [("text", "name"), ("a\nline\tand a tab", "one"), ('a "mark"\t', "two"), ("none", "")],
    [("text", "name"), ('"', "one"), ("none", "two")],
    [("text",), ("two\nlines",), ("one",)],
    [("text", "name"), ("one", "two\nlines"), ("", "\n"), ("\n", "")],
    [("text", "name", "n"), *[("a", "two\nlines", "1")] * 9],
]


@pytest.mark.parametrize("rows", QUOTED)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_tabs_lines_and_marks_in_quoted_cells_of_a_tsv_are_text(tmp_path, rows, quoting):
    path = tmp_path / "a.tsv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t", quoting=quoting).writerows(rows)
    found = open_table(path)
    assert [found.columns, *(row for _, row in found.read(found.columns))] == rows


@pytest.mark.parametrize(
    "lines",
    [
        ['"Open\t1', "between\t2", "too\tmany\tcells", 'closed"\t3'],  # the merged row would be even, too
        ['"She\tleft."\tone', "He\tstayed.\ttwo", "They\tcame.\tthree"],
    ],
)
def test_marks_that_close_in_another_cell_do_not_quote_a_tsv(write, lines):
    found = open_table(write("a.tsv", "\n".join(lines)), columns=["1"])
    assert next(found.read(["1"])) == (1, (lines[0].split("\t")[0],))


def test_commas_stay_what_parts_the_cells_where_rows_hold_other_signs(write):
    found = open_table(write("a.csv", "text,label\nWell; yes; no,0\nOne; two; three,1\n"))
    assert (found.columns, next(found.read(["text"]))) == (("text", "label"), (2, ("Well; yes; no",)))
    found = open_table(write("b.csv", "Well; yes; no; perhaps,0\nOne,1\n"), columns=["1"])
    assert [row for _, row in found.read(["1"])] == [("Well; yes; no; perhaps",), ("One",)]


def test_the_first_sheet_is_read_its_rows_are_those_of_excel_and_empty_ones_are_none(tmp_path, caplog):
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        rows = [["text", "score"], ["a dog", 3.5], [None, None], [None, 4]]
        pd.DataFrame(rows).to_excel(book, sheet_name="Pairs", index=False, header=False)
        pd.DataFrame([["other"]]).to_excel(book, sheet_name="Notes", index=False, header=False)
    caplog.set_level("INFO")
    table = open_table(path)
    assert caplog.messages == [f"{path} has 2 sheets; the first, Pairs, is read."]
    assert list(table.read(["text", "score"])) == [(2, ("a dog", "3.5")), (4, ("", "4"))]


CYRILLIC = "Собака спит в саду\n".encode("cp1251")


@pytest.mark.parametrize(
    "content", [b"one\ncaf\xe9\n" + "één\n".encode(), CYRILLIC, b"one\n\xff\xfe\n", b"caf\xe9 \x81"]
)
def test_bytes_that_may_be_anything_are_not_taken_for_text_of_windows(write, refusal, content):
    path = write("a.csv", b"text\n" + content)
    assert refusal(lambda: list(open_table(path).read(["text"]))).endswith(
        "which is not UTF-8. Save the file as UTF-8."
    )


def test_a_csv_that_is_refused_is_closed_while_its_error_is_still_held(write, monkeypatch):
    opened = []
    monkeypatch.setattr(lines, "open", lambda path, mode: opened.append(path.open(mode)) or opened[-1], raising=False)
    path = write("a.csv", b"text\ncaf\xe9 \x81")
    with pytest.raises(RowError) as held:
        list(split_csv(path, ","))
    assert held.value.number == 2
    assert opened
    assert all(file.closed for file in opened)
