"""Answers and labels: a few lines of each format, and what is refused."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from bertflow.data.corpus import Answer, load_answer_labels, load_answers
from bertflow.errors import UsageError

EXPECTED = [Answer("a1", "Press the button.", ("How?", "What now?")), Answer("2", "It is free.")]
TABLES = {
    "answers.tsv": "id\ttext\tquestions\na1\tPress the button.\tHow? || What now?\n2\tIt is free.\t\n",
    "answers.csv": 'id,text,questions\na1,Press the button.,"How?||What now?"\n2,It is free.,\n',
    "answers.jsonl": "".join(
        json.dumps(row) + "\n"
        for row in (
            {"id": "a1", "text": "Press the button.", "questions": ["How?", "What now?"]},
            {"id": 2, "text": "It is free.", "questions": None},
        )
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_each_format_holds_the_same(write, name):
    path = write(name, TABLES[name])
    assert load_answers(path) == EXPECTED


def test_parquet_holds_the_same(tmp_path):
    path = tmp_path / "answers.parquet"
    columns = {
        "id": ["a1", "2"],
        "text": ["Press the button.", "It is free."],
        "questions": [["How?", "What now?"], []],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert load_answers(path) == EXPECTED


def test_past_questions_may_be_missing(write):
    path = write("answers.tsv", "ID\tText\na\tYes.\n")
    assert load_answers(path) == [Answer("a", "Yes.")]


def test_a_table_of_questions_and_answers_may_keep_its_names(write):
    path = write("faq.tsv", "id\tquestion\tanswer\na1\tHow? || What now?\tPress the button.\n2\t\tIt is free.\n")
    assert load_answers(path) == EXPECTED


def test_a_table_without_ids_is_told_what_an_answer_needs(write, refusal):
    path = write("faq.csv", "question,answer\nHow?,Yes.\n")
    assert refusal(load_answers, path) == (
        f"{path} has no column id. Add one, or name the column that holds the ids with --columns."
    )


@pytest.mark.parametrize(
    ("content", "expected", "said"),
    [
        (
            "question,answer\nHow?,Yes.\n,Yes.\n",
            [Answer("1", "Yes.", ("How?",)), Answer("2", "Yes.")],
            ("answer, question (see",),
        ),
        ("sku,Text\n7,Yes.\n", [Answer("1", "Yes.")], ("Text (unused: sku; see",)),
        ("ID,text\n7,Yes.\n", [Answer("7", "Yes.")], ("ID, text (see",)),
    ],
)
def test_a_new_index_numbers_answers_without_ids(write, content, expected, said, caplog):
    caplog.set_level("INFO")
    path = write("faq.csv", content)
    assert load_answers(path, numbered=True) == expected
    columns = [f"{path}: using column{'s' * (', ' in one)} {one} --columns)" for one in said]
    numbered = [] if content.startswith("ID") else [f"{path} has no column id: the answers are numbered from 1."]
    assert caplog.messages == columns + numbered
    if not expected[0].questions:
        ids, texts = content.splitlines()[0].split(",")
        load_answers(path, f"{ids},{texts}")
        assert caplog.messages[-1] == f"{path}: {ids} holds the ids, {texts} the texts."


def test_a_table_with_other_columns_is_told_what_they_may_be(write, refusal):
    path = write("faq.csv", "sku,note\n1,Yes.\n")
    assert refusal(load_answers, path) == (
        f"{path} should have the columns text + questions | answer + questions | answer + question | text + title | "
        "description + title | body + title | body + subject | text | answer | description | body, but has sku, note. "
        "Name the column of text with --columns; or those of id, text and, if "
        "there are any, past questions."
    )


@pytest.mark.parametrize(
    "header", ["id,subject,body,status", "id,Title,body,status", "id,title,text,author", "id,title,description,price"]
)
def test_a_text_is_found_by_its_title_as_well_which_stands_before_it(write, header):
    path = write("tickets.csv", f"{header}\n7,A pen,It does not write.,3\n8,,Nor does it erase.,3\n")
    assert load_answers(path) == [
        Answer("7", "A pen\nIt does not write.", ("A pen",)),
        Answer("8", "Nor does it erase."),
    ]


def test_the_body_of_a_ticket_without_a_subject_is_its_text(write):
    path = write("tickets.csv", "id,body,status\n7,It does not write.,open\n")
    assert load_answers(path) == [Answer("7", "It does not write.")]


def test_columns_of_other_names_are_named(write, refusal):
    path = write("faq.csv", "sku;category;description;asked\n7;pens;Writes.;Does it write?||Is it blue?\n")
    expected = Answer("7", "Writes.", ("Does it write?", "Is it blue?"))
    assert load_answers(path, "sku,description,asked") == [expected]
    assert load_answers(path, "sku, Description") == [Answer("7", "Writes.")]


@pytest.mark.parametrize("named", ["sku,text", "text, SKU"])
def test_a_column_that_was_named_and_is_not_there_is_said(write, refusal, named):
    path = write("faq.csv", "sku;description\n7;Writes.\n")
    assert refusal(load_answers, path, named) == (
        f"{path} has no column 'text'. Its columns: sku, description. Name some of these with --columns, or number "
        "them, from 1, if the file has no header."
    )
    assert refusal(load_answers, path, "a,b,c,d", error=UsageError) == (
        "--columns takes text, or id, text and, if there are any, past questions, as a,b or a,b,c; got 'a,b,c,d'."
    )


@pytest.mark.parametrize(("name", "columns"), [("faq.csv", "description"), ("faq.txt", None)])
def test_a_column_of_text_and_plain_lines_are_numbered_where_that_is_asked_for(write, refusal, name, columns):
    path = write(name, "sku;description\n7;Writes.\n9;Erases.\n" if columns else "Writes.\nErases.\n")
    assert load_answers(path, columns, numbered=True) == [Answer("1", "Writes."), Answer("2", "Erases.")]
    assert refusal(load_answers, path, columns).startswith(f"{path} has no column id. Add one, or name")


def test_the_phrases_of_an_answer_are_its_text_first_and_each_once():
    assert Answer("a", "text", ("one", "text", "one", "two")).phrases == ("text", "one", "two")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id\ttext\na\t \n", "line 2: the column text should hold text, got ' '. Fill it in, or leave the line out."),
        ("id\ttext\n\tYes.\n", "line 2: the column id should hold text, got ''. Fill it in, or leave the line out."),
        (
            "id\ttext\na\tYes.\nb\tNo.\na\tMaybe.\n",
            "line 4: the id 'a' is already in line 2. Give each answer an id of its own, and its past questions in "
            "one cell.",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_line(write, content, message, refusal):
    path = write("answers.tsv", content)
    assert refusal(load_answers, path) == (f"{path}, {message}")


def test_past_questions_that_are_no_list_of_texts_are_refused(write, refusal):
    path = write("answers.jsonl", '{"id": "a", "text": "Yes.", "questions": [1]}\n')
    assert refusal(load_answers, path) == (
        f"{path}, line 1: past questions should be a list of texts, got [1]. Repair it."
    )


def test_a_question_may_have_several_right_answers(write):
    path = write("labels.tsv", "question\tid\nHow?\ta\nWhy?\tb\nHow?\tc\n")
    assert load_answer_labels(path) == {"How?": {"a", "c"}, "Why?": {"b"}}


def test_labels_without_questions_are_refused(write, refusal):
    path = write("labels.tsv", "question\tid\n")
    assert "holds no questions" in refusal(load_answer_labels, path)
